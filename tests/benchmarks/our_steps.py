"""Our training steps, one a turn: `python -m tests.benchmarks.our_steps SETUP FOLDER`."""

import sys
from pathlib import Path

import torch

from grpo_core import collection, train
from grpo_core import metric_names as names
from grpo_core.run_setup import open_run
from tests.benchmarks.memory import peak_mb, reset_peak, resident_mb
from tests.benchmarks.step_setups import SETUPS
from tests.benchmarks.turns import answer, timed, wait_for_turn


def main() -> None:
    """Answers each turn with the seconds of one step and its peak memory."""
    setup, folder = SETUPS[sys.argv[1]], Path(sys.argv[2])
    config = setup.config(folder)
    seconds: dict[str, float] = {}
    collection.sample_groups = timed(collection.sample_groups, seconds, "sampling_s")
    update, peaks = train.update_policy, []

    def watched_update(*arguments, **options):
        reset_peak()
        stats = update(*arguments, **options)
        peaks.append(peak_mb())
        return stats

    train.update_policy = watched_update
    torch.zeros(1)
    before_mb = resident_mb()
    with open_run(config, folder / "ours") as run:
        for step in range(1, config.num_steps + 1):
            wait_for_turn()
            seconds.clear()
            metrics, rows = train.train_step(run, step)
            prompts = {row["prompt"] for row in rows}
            multiplied = [weight for name, weight in run.policy.model.named_parameters() if "embed" not in name]
            head = run.policy.model.get_output_embeddings().weight
            answer(
                sampling_s=seconds["sampling_s"],
                scoring_s=metrics[names.TIME_ROLLOUT_S] - seconds["sampling_s"],
                update_s=metrics[names.TIME_UPDATE_S],
                step_s=metrics[names.TIME_STEP_S],
                update_peak_mb=peaks[-1] - before_mb,
                completion_tokens=sum(row["num_tokens"] for row in rows),
                prompt_tokens=sum(len(run.policy.encode_prompt(prompt)) for prompt in prompts),
                decode_steps=max(row["num_tokens"] for row in rows),
                num_weights=sum(weight.numel() for weight in {*multiplied, head}),
                updates=config.algorithm.updates_per_batch,
            )


if __name__ == "__main__":
    main()
