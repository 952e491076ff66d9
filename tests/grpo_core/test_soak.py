"""A long run takes no more memory at its end than after its beginning."""

import pytest

from grpo_core.train import train
from tests.soak import memory_mb, slope

from .conftest import small_config

NUM_STEPS, WARM_UP = 2000, 500
MAX_MB_PER_1000_STEPS = 3.0


def test_the_slope_is_that_of_most_points():
    assert slope([(0, 1), (1, 3), (2, 5), (3, 100), (4, 9)]) == 2


@pytest.mark.slow
def test_two_thousand_steps_do_not_grow(tmp_path, record_property):
    seen = []

    def on_step(step, metrics):
        if step > WARM_UP and step % 50 == 0:
            seen.append((step / 1000, memory_mb()))

    config = small_config(
        num_steps=NUM_STEPS,
        rollout={"completions_per_step": 8, "max_new_tokens": 16},
        eval={"every": 100, "num_problems": 8},
        checkpoint={"every": 100},
    )
    assert train(config, run_dir=tmp_path, on_step=on_step).status == "complete"
    growth = slope(seen)
    record_property("mb_per_1000_steps", growth)
    print(f"{growth:.3f} MB per 1,000 steps over {len(seen)} points, {seen[0][1]:.0f} to {seen[-1][1]:.0f} MB")
    assert growth < MAX_MB_PER_1000_STEPS
