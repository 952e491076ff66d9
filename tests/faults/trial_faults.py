"""What goes wrong inside a trial.

Each function makes a study meet one fault, brings it to its end, and gives in words how it came out; it raises where
anything is wrong.
"""

from collections.abc import Callable
from pathlib import Path

from tests.faults.study import Broken, Study, expect


def inside(name: str, states: tuple[str, ...], said: str, *settings: str) -> Callable[[Path], str]:
    """A fault that `injections` makes in every trial: all must end in one of `states`, and `said` be in the output."""

    def run(runs_dir: Path) -> str:
        study = Study(runs_dir, settings, name)
        expect(study.launch(), 0)
        study.check_whole(states=states)
        if said:
            study.said(said)
        return f"{', '.join(states)}; exit code 0"

    return run


def memory_limit(runs_dir: Path) -> str:
    hungry = (
        *("study.n_trials=1", "resources.max_concurrent_trials=1", "train.policy.hidden_size=128"),
        *("train.rollout.completions_per_step=256", "train.rollout.max_new_tokens=96"),
        *("train.optim.micro_batch_size=256", "search_space.group_size=null", "train.eval.num_problems=4"),
    )
    study = Study(runs_dir, hungry, "memory limit")
    expect(study.launch(), 0)
    study.check_whole(num_trials=1)
    [outcome] = study.outcomes()
    assert outcome is not None
    if not outcome["changes"]:
        raise Broken("it never ran out of memory")
    return f"complete with {outcome['changes']}"


TRIAL_FAULTS: dict[str, Callable[[Path], str]] = {
    name: inside(name, *expected)
    for name, expected in {
        "NaN in the loss": (("pruned",), "loss/policy is nan at step 3"),
        "NaN in the gradient": (("pruned",), "is nan at step 3"),
        "NaN in the weights": (("pruned",), "at step [34]"),
        "reward is NaN": (("complete", "pruned"), ""),
        "reward is 1e30": (("complete", "pruned"), ""),
        "reward is None": (("complete", "pruned"), ""),
        "reward is a string": (("complete", "pruned"), ""),
        "reward raises": (("complete", "pruned"), ""),
        "reward hangs": (("failed",), "no news for 2 s", "resources.hang_timeout=2s", "study.retries=1"),
        "the code raises": (("failed",), "KeyError: 'a bug in the code'"),
    }.items()
} | {
    "memory limit": memory_limit,
}
