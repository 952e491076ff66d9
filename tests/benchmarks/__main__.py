"""Every measurement of the product against what people would use instead: `make bench`.

Prints figures as they come and one table at the end, writes all as JSON, and exits with 1 where a line is not met.
"""

import argparse
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.lines import Line

#: Module of each part. They are imported when it is their turn: every trial process imports this module again.
PARTS = {
    "step": "steps",
    "turnaround": "turnaround",
    "controller": "controller",
    "tracking": "tracking",
    "concurrency": "concurrency",
    "study": "study_replay",
    "report": "report",
}


def main() -> None:
    """Measures the parts one after the other, so that none of them disturbs another."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="only these")
    parser.add_argument("--json", type=Path, default=Path("bench.json"))
    given = parser.parse_args()
    figures: dict[str, Any] = {"machine": _machine()}
    lines: list[Line] = []
    for name in given.parts or PARTS:
        started = time.monotonic()
        part = importlib.import_module(f"tests.benchmarks.{PARTS[name]}")
        figures[name] = part.measure()
        lines += part.lines(figures[name])
        print(f"{name}, {time.monotonic() - started:.0f} s: {json.dumps(figures[name], indent=2)}", flush=True)
    figures["machine, at the end"] = _machine()
    rows = [{**vars(line), "met": line.is_met} for line in lines]
    given.json.write_text(json.dumps({"lines": rows, "figures": figures}, indent=2))
    print(f"machine: {json.dumps(figures['machine'])}; at the end: {json.dumps(figures['machine, at the end'])}")
    print("\n".join(line.text() for line in lines))
    if not all(line.is_met for line in lines):
        sys.exit(1)


def _machine() -> dict[str, float]:
    from tests.benchmarks.machine import copy_gb_per_s, matrix_product_gflops, product_gflops

    return {
        "torch's product on one thread, GFLOP/s": round(matrix_product_gflops(), 1),
        "our product on all threads, GFLOP/s": round(product_gflops(), 1),
        "copy, GB/s": round(copy_gb_per_s(), 1),
    }


if __name__ == "__main__":
    main()
