"""Return of a run to its best checkpoint when its evaluations fall in a row.

Weights and optimiser go back and the learning rate is cut; steps and random numbers go on.
"""

import math

from grpo_core.checkpoints import checkpoint_folder, checkpoint_policy_folder, damage, load_optimizer, load_value_head
from grpo_core.config import RollbackConfig, TrainConfig
from grpo_core.policy import restore_weights
from grpo_core.run_setup import Run
from grpo_core.run_state import RunState


def note_evaluation(state: RunState, config: RollbackConfig, step: int, value: float) -> bool:
    """Takes the value of an evaluation into the state; True when it is the last drop that was allowed.

    A value that is not a number is a drop, and never the best.
    """
    dropped = state.last_value is not None and not value >= state.last_value
    state.num_drops = state.num_drops + 1 if dropped else 0
    if state.best_value is None or value > state.best_value:
        state.best_value, state.best_step = value, step
    state.last_value = value
    return state.num_drops >= config.after_drops and state.num_rollbacks < config.max_times


def may_be_needed(state: RunState, config: TrainConfig, step: int) -> bool:
    """Whether the best checkpoint could still be returned to after `step`."""
    num_later = math.ceil(config.num_steps / config.eval.every) - step // config.eval.every
    # A return at the last step would train nothing any more.
    can_drop_so_often = num_later > config.rollback.after_drops - state.num_drops
    return can_drop_so_often and state.num_rollbacks < config.rollback.max_times


def roll_back(run: Run) -> str | None:
    """Sets weights, value head and optimiser to those of the best checkpoint and cuts the learning rate.

    Returns why it cannot be done, in words, where that checkpoint is missing or damaged. Every rank calls it.
    """
    state = run.state
    folder = checkpoint_folder(run.run_dir, state.best_step)
    problem = run.ranks.from_first(damage(folder) if run.ranks.is_first else None)
    state.num_drops, state.last_value = 0, state.best_value
    if problem is not None:
        return f"{folder}: {problem}"
    restore_weights(run.policy, checkpoint_policy_folder(folder))
    load_optimizer(folder, run.learner.optimizer)
    load_value_head(folder, run.learner.forward.value_head)
    state.num_rollbacks += 1
    state.lr_scale *= run.config.rollback.lr_factor
    return None
