"""What a person sees while a study runs: a live table on a terminal, plain lines where output goes to a file."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

#: Time between status lines in plain output, and between redraws on a terminal.
PLAIN_INTERVAL_S = 30.0
LIVE_INTERVAL_S = 2.0
#: Ended trials that the live table shows.
_ENDED_SHOWN = 12


@dataclass(frozen=True)
class TrialRow:
    """One trial as a row: `state` is running or that of its outcome."""

    number: int
    state: str
    step: int
    num_steps: int
    objective: float | None = None
    reward: float | None = None
    entropy: float | None = None
    settings: str = ""
    note: str = ""


@dataclass
class StudyView:
    """The study at one moment."""

    name: str
    objective: str
    n_trials: int
    rows: Sequence[TrialRow] = field(default_factory=tuple)
    elapsed_s: float = 0.0
    note: str = ""

    @property
    def running(self) -> list[TrialRow]:
        return [row for row in self.rows if row.state == "running"]

    @property
    def ended(self) -> list[TrialRow]:
        return [row for row in self.rows if row.state != "running"]

    def status(self) -> str:
        """The study in one line."""
        scores = {row.number: "" if row.objective is None else f" ({row.objective:.3f})" for row in self.running}
        trials = ", ".join(
            f"{row.number} at step {row.step}/{row.num_steps}{scores[row.number]}" for row in self.running
        )
        text = f"{len(self.ended)} of {self.n_trials} trials ended after {duration(self.elapsed_s)}"
        return f"{text}; running: {trials}" if trials else text


class Progress(Protocol):
    """Where news of a study goes."""

    def say(self, text: str) -> None:
        """Shows a line that stays."""

    def phase(self, text: str) -> None:
        """Shows how far the work before or after the trials is."""

    def show(self, view: StudyView) -> None:
        """Shows the trials as they stand; may be called as often as one likes."""

    def close(self) -> None:
        """Takes away what is redrawn; lines that are said later still show."""


class PlainProgress:
    """Lines of text, few enough for a log file."""

    def __init__(self, stream: IO[str] | None = None, interval_s: float = PLAIN_INTERVAL_S) -> None:
        self._stream = stream or sys.stdout
        self._interval_s = interval_s
        self._due = 0.0

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def phase(self, text: str) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._interval_s / 3
            self.say(text)

    def show(self, view: StudyView) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._interval_s
            self.say(view.status())

    def close(self) -> None:
        self._stream.flush()


class LiveProgress:
    """A table of the trials that is redrawn in place, below the lines that stay."""

    def __init__(self, console: "Console | None" = None, interval_s: float = LIVE_INTERVAL_S) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = console or Console()
        # Drawn by our own calls only: a thread of its own would take turns with the controller.
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._interval_s = interval_s
        self._due = 0.0
        self._is_open = False

    def say(self, text: str) -> None:
        # Lines are never broken by us: a command must stay one to be copied.
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def phase(self, text: str) -> None:
        from rich.text import Text

        self._draw(Text(text))

    def show(self, view: StudyView) -> None:
        if time.monotonic() >= self._due:
            self._draw(table(view))
            self._due = time.monotonic() + self._interval_s

    def close(self) -> None:
        if self._is_open:
            self._live.stop()
            self._is_open = False

    def _draw(self, content: "RenderableType") -> None:
        if not self._is_open:
            self._live.start()
            self._is_open = True
        self._live.update(content, refresh=True)


def open_progress() -> Progress:
    """The live table where standard output is a terminal, else plain lines."""
    return LiveProgress() if sys.stdout.isatty() else PlainProgress()


def table(view: StudyView) -> Any:
    """The study as a rich table: ended trials, the newest last, then the running ones."""
    from rich.table import Table
    from rich.text import Text

    hidden = len(view.ended) - _ENDED_SHOWN
    title = f"{view.name}: {len(view.ended)} of {view.n_trials} trials ended, {duration(view.elapsed_s)}"
    caption = view.note or (f"{hidden} earlier trials not shown" if hidden > 0 else None)
    drawn = Table(title=title, caption=caption, expand=False, title_justify="left")
    for name in ("trial", "state", "step", view.objective, "reward", "entropy"):
        drawn.add_column(name, justify="right" if name != "state" else "left", no_wrap=True)
    drawn.add_column("settings", no_wrap=True, overflow="ellipsis")
    colours = {"running": "cyan", "complete": "green", "pruned": "yellow", "failed": "red"}
    for row in [*view.ended[-_ENDED_SHOWN:], *view.running]:
        numbers = ("" if value is None else f"{value:.3f}" for value in (row.objective, row.reward, row.entropy))
        state = Text(f"{row.state}{f' ({row.note})' if row.note else ''}", style=colours.get(row.state, ""))
        drawn.add_row(str(row.number), state, f"{row.step}/{row.num_steps}", *numbers, Text(row.settings))
    return drawn


def duration(seconds: float) -> str:
    """Seconds as `4 s`, `3 min 05 s` or `2 h 07 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
