"""What is done to a reward between the task that gives it and the advantages: length penalty, then floor."""

from collections.abc import Sequence

from grpo_core.config import TrainConfig


def overlong_penalties(lengths: Sequence[int], max_new_tokens: int, buffer_tokens: int, penalty: float) -> list[float]:
    """What each completion of `lengths` tokens loses for its length, between 0 and `penalty`.

    Soft overlong punishment, Yu et al. 2025, arXiv:2503.14476, eq. 13: nothing up to `max_new_tokens - buffer_tokens`
    tokens, then in proportion to the tokens beyond, the whole `penalty` at `max_new_tokens`.
    """
    free = max_new_tokens - buffer_tokens
    return [penalty * min(max(length - free, 0) / buffer_tokens, 1.0) for length in lengths]


def shaped_rewards(rewards: Sequence[float], lengths: Sequence[int], config: TrainConfig) -> list[float]:
    """`rewards` of completions of `lengths` tokens less their overlong penalties, then raised to the reward floor.

    NaN, a completion without a score, stays NaN.
    """
    algorithm = config.algorithm
    penalties = overlong_penalties(
        lengths, config.rollout.max_new_tokens, config.overlong_buffer_tokens, algorithm.overlong_penalty
    )
    shaped = [reward - penalty for reward, penalty in zip(rewards, penalties, strict=True)]
    if algorithm.reward_floor is None:
        return shaped
    floor = algorithm.reward_floor
    return [floor if reward < floor else reward for reward in shaped]
