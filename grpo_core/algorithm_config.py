"""The knobs that make an algorithm; `presets.PRESETS` says which algorithm turns which."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from grpo_core.config_section import Count, NotNegative, Positive, Section, divisors
from grpo_core.presets import GROUP_BASELINES, PRESETS


class AlgorithmConfig(Section):
    name: str = "grpo"
    """A key of `grpo_core.presets.PRESETS`; the fields given beside it turn single knobs of that preset."""
    group_size: Annotated[int, Field(ge=1, le=64)] = 8
    """Completions sampled for each prompt, 2 to 64; 1 only where no baseline is taken from a prompt's own group."""
    reward_scale: Positive = 1.0
    """Factor on rewards before the advantages; `reward/mean` is recorded without it."""
    reward_floor: float | None = None
    """Rewards below it are raised to it before the advantages; None leaves them."""
    overlong_penalty: NotNegative = 0.0
    """Largest amount taken off the reward of a long completion (DAPO); 0 takes off nothing."""
    overlong_buffer_tokens: Count | None = None
    """Last tokens before rollout.max_new_tokens over which that grows from 0; None means a fifth of the limit."""
    smoothing_window: Count | None = None
    """Steps over which `reward/smoothed` averages `reward/mean` for the curves; None records no such curve."""
    grouping: Literal["prompt", "similarity"] = "prompt"
    """Whether completions are compared with those of their own prompt, or with those of similar prompts of the step."""
    min_similar_group: Annotated[int, Field(ge=2)] = 8
    """Fewest completions in a group under `grouping: similarity`."""
    max_similar_group: Annotated[int, Field(ge=2)] = 64
    """Most completions in a group under `grouping: similarity`."""
    dynamic_sampling: bool = False
    """Drops groups whose rewards are all equal and samples other prompts in their place."""
    max_refills: Count = 3
    """Times that `dynamic_sampling` samples again within a step; what is still missing then makes the step smaller."""
    credit: Literal["sequence", "token"] = "sequence"
    """Whether a completion has one advantage, or each token that of the rewards that follow it."""
    baseline: Literal["mean", "median", "leave_one_out", "batch_mean", "value", "none"] = "mean"
    """What is subtracted: of the rewards in the group (`mean`, `median`, `leave_one_out`) or in the step
    (`batch_mean`), or what a value head expects (`value`)."""
    advantage_scale: Literal["group_std", "batch_std", "none"] = "group_std"
    """What the centred rewards are divided by."""
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Discount of a reward for each token that it comes later, under `credit: token`."""
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Weight of later value errors (Schulman et al. 2015, arXiv:1506.02438) under `credit: token`; 1 trusts rewards
    alone."""
    value_coef: NotNegative = 0.5
    """Weight of the value head's loss under `baseline: value`."""
    value_clip_range: Positive | None = None
    """How far a value may move from its old one in an update before its loss is clipped; None clips nothing."""
    ratio_level: Literal["token", "sequence"] = "token"
    """Whether the probability ratio is taken for each token or once for a sequence (length-normalised)."""
    clipping: Literal["surrogate", "weight"] = "surrogate"
    """`surrogate` clips the objective (PPO); `weight` clips the detached ratio (CISPO)."""
    clip_range: Positive = 0.2
    """Ratios below 1 - clip_range are clipped."""
    clip_range_high: Positive | None = None
    """Ratios above 1 + clip_range_high are clipped; None means clip_range."""
    dual_clip: Positive | None = None
    """Ratios above it are clipped for negative advantages too (Ye et al. 2019, arXiv:1912.09729); None clips none."""
    ratio_cap: Positive = 5.0
    """Largest weight under `clipping: weight`."""
    importance_cap: Positive | None = None
    """Where sampler and trainer differ: log-probabilities are computed anew before the updates, and tokens weighted by
    trainer / sampler up to this cap (truncated importance sampling; 2 is usual). None trusts the sampler's."""
    aggregation: Literal["sequence_mean", "token_mean", "constant"] = "sequence_mean"
    """How token losses become one number."""
    constant_length: Count | None = None
    """Tokens that `aggregation: constant` divides each sequence by; None means rollout.max_new_tokens."""
    mask_truncated: bool = False
    """Leaves truncated completions out of the loss (they keep their place in the baseline)."""
    kl_coef: NotNegative = 0.0
    """Weight of the KL divergence to the initial policy; 0 loads no reference."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of that divergence, Schulman 2020, joschu.net/blog/kl-approx.html."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Whether that divergence is a term of the loss or taken off the rewards."""
    kl_target: Positive | None = None
    """Nats per token towards which kl_coef is steered after each step; None keeps it."""
    entropy_coef: NotNegative = 0.0
    """Weight of the entropy bonus in the loss."""
    entropy_target: Positive | None = None
    """Nats per token towards which entropy_coef is steered after each step; None keeps it."""
    entropy_coef_step: Positive = 0.005
    """By how much `entropy_target` changes entropy_coef in a step."""
    updates_per_batch: Count = 1
    """Optimiser updates on each rollout batch."""
    num_minibatches: Count = 1
    """Parts of whole groups into which a batch is cut, one for each update in turn."""

    @model_validator(mode="before")
    @classmethod
    def _start_from_the_preset(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        name = given.get("name", "grpo")
        if not isinstance(name, str) or name not in PRESETS:
            raise ValueError(f"name={name!r}: not an algorithm; use one of {', '.join(PRESETS)}")
        return {**PRESETS[name], **given}

    @property
    def compares_groups(self) -> bool:
        """Whether a completion's advantage depends on the others of its group."""
        return self.baseline in GROUP_BASELINES or self.advantage_scale == "group_std"

    @property
    def high_clip(self) -> float:
        """The upper clip range, `clip_range` where no other is given."""
        return self.clip_range if self.clip_range_high is None else self.clip_range_high

    @model_validator(mode="after")
    def _a_group_has_a_baseline(self) -> Self:
        if self.group_size < 2 and self.compares_groups and self.grouping == "prompt":
            raise ValueError(
                f"group_size={self.group_size}: a group needs at least 2 completions for a baseline; use 2 to 64"
            )
        if self.group_size < 2 and self.dynamic_sampling:
            raise ValueError("group_size=1: dynamic_sampling drops groups of equal rewards; use 2 to 64")
        if self.dynamic_sampling and self.grouping == "similarity":
            raise ValueError(
                "grouping='similarity': dynamic_sampling drops the groups of single prompts; "
                "use grouping: prompt, or dynamic_sampling: false"
            )
        if self.min_similar_group > self.max_similar_group:
            raise ValueError(
                f"min_similar_group={self.min_similar_group}: more than max_similar_group={self.max_similar_group}; "
                "lower the first or raise the second"
            )
        return self

    @model_validator(mode="after")
    def _credit_fits_the_baseline(self) -> Self:
        if self.baseline == "value" and self.credit != "token":
            raise ValueError("baseline='value': a value head judges each token; use credit: token")
        if self.baseline == "value" and self.value_coef == 0:
            raise ValueError("value_coef=0: the value head of baseline value would never learn; use for example 0.5")
        if self.credit == "token" and self.advantage_scale == "group_std":
            raise ValueError(
                "advantage_scale='group_std': advantages of tokens are scaled over the whole step; "
                "use batch_std or none, or credit: sequence"
            )
        return self

    @model_validator(mode="after")
    def _clips_are_in_order(self) -> Self:
        if self.clip_range >= 1 and self.clipping == "surrogate":
            raise ValueError(
                f"clip_range={self.clip_range}: 1 or more clips no ratio from below; use 0 < clip_range < 1"
            )
        if self.dual_clip is not None and self.dual_clip <= 1 + self.high_clip:
            raise ValueError(
                f"dual_clip={self.dual_clip:g}: not above the upper clip 1 + {self.high_clip:g}, "
                "which it would take the place of; use for example 3"
            )
        if self.kl_target is not None and self.kl_coef == 0:
            raise ValueError(
                f"kl_target={self.kl_target:g}: it multiplies kl_coef, which is 0; set kl_coef to where it begins"
            )
        if self.updates_per_batch % self.num_minibatches:
            raise ValueError(
                f"num_minibatches={self.num_minibatches}: updates_per_batch={self.updates_per_batch} is not a whole "
                f"number of passes; use one of {divisors(self.updates_per_batch)}, or more updates"
            )
        return self
