import io

from rich.console import Console

from sweeps.progress import LiveProgress, PlainProgress, StudyView, TrialRow, duration, table

ROWS = [
    TrialRow(0, "complete", 60, 60, 0.52, 0.6, 0.7, "lr 0.0001"),
    TrialRow(1, "pruned", 9, 60, None, 0.1, 1.4, "lr 0.003", "entropy"),
    TrialRow(2, "running", 20, 60, 0.31, 0.3, 0.72, "lr 0.0002"),
]
VIEW = StudyView("gsm8k", "eval/accuracy", 16, ROWS, elapsed_s=125.0)


def test_plain_output_is_a_status_line_now_and_then() -> None:
    stream = io.StringIO()
    progress = PlainProgress(stream, interval_s=3600)
    progress.say("trial 0: complete")
    progress.show(VIEW)
    progress.show(VIEW)
    progress.close()
    assert stream.getvalue().splitlines() == [
        "trial 0: complete",
        "2 of 16 trials ended after 2 min 05 s; running: 2 at step 20/60 (0.310)",
    ]


def test_the_live_table_shows_every_trial_and_keeps_lines_above() -> None:
    stream = io.StringIO()
    progress = LiveProgress(Console(file=stream, width=120, force_terminal=True), interval_s=0)
    progress.phase("warm start: step 10 of 500")
    progress.say("trial 0: [complete]")
    progress.show(VIEW)
    progress.close()
    text = stream.getvalue()
    assert "warm start: step 10 of 500" in text
    assert "trial 0: [complete]" in text
    assert "gsm8k: 2 of 16 trials ended" in text
    assert "pruned (entropy)" in text and "0.520" in text and "20/60" in text


def test_a_table_of_many_trials_stays_short() -> None:
    console = Console(file=io.StringIO(), width=120)
    rows = [TrialRow(number, "complete", 60, 60, 0.5) for number in range(100)]
    console.print(table(StudyView("s", "eval/accuracy", 100, rows)))
    text = console.file.getvalue()
    assert "88 earlier trials not shown" in text
    assert text.count("60/60") == 12


def test_durations_in_words() -> None:
    assert [duration(s) for s in (0.4, 59.4, 60, 185, 3600, 7620)] == [
        "0 s",
        "59 s",
        "1 min 00 s",
        "3 min 05 s",
        "1 h 00 min",
        "2 h 07 min",
    ]
