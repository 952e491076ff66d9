"""The report of 1,000 trials with 1,000 steps each: `python -m tests.benchmarks.report`.

Seconds of `python -m reports`, size of the page, and how it behaves in headless Chromium: time until all charts are
drawn, and the intervals between frames while the wheel takes it from the top to the end.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from tests.benchmarks.big_study import write_big_study
from tests.benchmarks.lines import Line

NUM_TRIALS = NUM_STEPS = 1000
NUM_REPEATS = 5
FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
MORE_FLAGS = "--disable-component-update --disable-sync"
_WHEEL_PIXELS, _WHEEL_PAUSE_MS = 600, 50


def measure() -> dict[str, Any]:
    """Writes the study once, its report some times, and opens the last of them."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_big_study(Path(temporary), NUM_TRIALS, NUM_STEPS)
        command = [sys.executable, "-m", "reports", folder.name, "--runs-dir", temporary]
        seconds = []
        for _ in range(NUM_REPEATS):
            started = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - started)
        page = folder / "report.html"
        return {
            "seconds": seconds,
            "median_s": statistics.median(seconds),
            "size_mb": page.stat().st_size / 1e6,
            **_in_browser(page),
        }


def lines(figures: dict[str, Any]) -> list[Line]:
    """The lines of the table."""
    scrolls = figures["frame_p95_ms"] if figures["reached_end"] and not figures["messages"] else float("nan")
    return [
        Line("report of 1,000 x 1,000, seconds", figures["median_s"], at_most=15, unit="s"),
        Line("report of 1,000 x 1,000, size", figures["size_mb"], at_most=12, unit="MB"),
        Line("report of 1,000 x 1,000, 95% of frames while scrolling within", scrolls, at_most=100, unit="ms"),
    ]


def _in_browser(file: Path) -> dict[str, Any]:
    messages: list[str] = []
    with sync_playwright() as playwright:
        arguments = [*FLAGS.split(), *MORE_FLAGS.split()]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        started = time.perf_counter()
        page.goto(file.as_uri())
        page.wait_for_function(
            "[...document.querySelectorAll('.chart')].every((each) => each.querySelector('.main-svg'))"
        )
        drawn_s = time.perf_counter() - started
        found = _scroll(page)
        browser.close()
    return {"drawn_s": drawn_s, "messages": messages, **found}


def _scroll(page: Page) -> dict[str, Any]:
    page.evaluate(
        """() => {
            window.frames_ms = [];
            let last = performance.now();
            const note = (now) => { window.frames_ms.push(now - last); last = now; requestAnimationFrame(note); };
            requestAnimationFrame(note);
        }"""
    )
    height = page.evaluate("document.documentElement.scrollHeight")
    page.mouse.move(640, 400)
    for _ in range(2 * height // _WHEEL_PIXELS):
        page.mouse.wheel(0, _WHEEL_PIXELS)
        page.wait_for_timeout(_WHEEL_PAUSE_MS)
        if page.evaluate("window.scrollY + window.innerHeight >= document.documentElement.scrollHeight - 2"):
            break
    frames = sorted(page.evaluate("window.frames_ms"))
    return {
        "page_height_px": height,
        "num_frames": len(frames),
        "frame_median_ms": statistics.median(frames),
        "frame_p95_ms": frames[int(0.95 * (len(frames) - 1))],
        "frame_max_ms": frames[-1],
        "reached_end": page.evaluate(
            "window.scrollY + window.innerHeight >= document.documentElement.scrollHeight - 2"
        ),
    }


if __name__ == "__main__":
    measured = measure()
    print(json.dumps(measured, indent=2))
    for line in lines(measured):
        print(line.text())
