"""Whatever a run remembers, a run that was cut goes on as one that was not.

Metrics, rollouts, weights and optimiser are compared to the last bit.
"""

import contextlib

import pytest
import torch
from safetensors.torch import load_file

from grpo_core.checkpoints import checkpoint_folder, load_state
from grpo_core.metric_names import depends_on_machine
from grpo_core.run_record import read_metrics, read_rollouts
from grpo_core.train import Verdict, train

from .conftest import small_config

NUM_STEPS = 6
#: Settings by what they make a run remember between steps.
MEMORIES = {
    "weights and moments": {"algorithm": {"updates_per_batch": 2}},
    "schedule": {"optim": {"lr_schedule": "cosine", "lr_warmup_steps": 2}},
    "temperature": {"rollout": {"temperature_decay": 0.9}},
    "minibatch order": {"algorithm": {"updates_per_batch": 4, "num_minibatches": 2}},
    "reference": {"algorithm": {"kl_coef": 0.1}},
    "KL coefficient": {"algorithm": {"kl_coef": 0.1, "kl_target": 1e-4}},
    "entropy coefficient": {"algorithm": {"entropy_coef": 0.01, "entropy_target": 4.0}},
    "smoothed reward": {"algorithm": {"smoothing_window": 4}},
    "problem priorities": {"rollout": {"priority_exponent": 0.6}},
    "value head": {"algorithm": {"name": "ppo", "group_size": 4}},
    "adapters": {"policy": {"lora": {"rank": 4}}},
    "refilled groups": {"algorithm": {"name": "dapo", "group_size": 4}},
}


def recorded(run_dir):
    return [
        (line["step"], {key: value for key, value in line["metrics"].items() if not depends_on_machine(key)})
        for line in read_metrics(run_dir / "metrics.jsonl")
    ]


def tensors(run_dir):
    """Everything that is a tensor in the last checkpoint, by name."""
    folder = checkpoint_folder(run_dir, NUM_STEPS)
    found = {
        f"{file.name}/{key}": value for file in folder.rglob("*.safetensors") for key, value in load_file(file).items()
    }
    moments = torch.load(folder / "optimizer.pt", weights_only=True)["state"]
    return found | {f"{number}/{key}": value for number, each in moments.items() for key, value in each.items()}


class Killed(Exception):
    """Stands for a process that died: no checkpoint, no goodbye."""


def stopped_after_3(step, metrics):
    return Verdict("stop") if step == 3 else None


def killed_at_4(step, metrics):
    if step == 4:
        raise Killed


#: A stop leaves a checkpoint itself, so that it shows nothing that a kill does not, but for the step it is taken at.
CASES = [(memory, killed_at_4) for memory in MEMORIES] + [
    ("value head", stopped_after_3),
    ("adapters", stopped_after_3),
]


@pytest.mark.parametrize(("memory", "end"), CASES)
def test_a_cut_run_equals_an_uncut_one(tmp_path, memory, end):
    config = small_config(num_steps=NUM_STEPS, checkpoint={"every": 2}, **MEMORIES[memory])
    train(config, run_dir=tmp_path / "whole")
    with contextlib.suppress(Killed):
        train(config, run_dir=tmp_path / "cut", on_step=end)
    # Nothing of the process's own random state may matter.
    torch.manual_seed(1234)
    told = []
    train(config, run_dir=tmp_path / "cut", on_step=lambda step, _: told.append(step))
    assert told == ([4, 5, 6] if end is stopped_after_3 else [5, 6])
    assert recorded(tmp_path / "cut") == recorded(tmp_path / "whole")
    files = [tmp_path / run / "rollouts.jsonl.zst" for run in ("cut", "whole")]
    assert list(read_rollouts(files[0])) == list(read_rollouts(files[1]))
    ours, theirs = tensors(tmp_path / "cut"), tensors(tmp_path / "whole")
    assert ours.keys() == theirs.keys() and len(ours) > 4
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    states = [load_state(checkpoint_folder(tmp_path / run, NUM_STEPS)) for run in ("cut", "whole")]
    assert states[0] == states[1]
