"""What one training run is: a frozen pydantic tree, importable without torch.

Every field has its meaning and unit under it. `TrainConfig.model_validate(dict)` raises `pydantic.ValidationError`
(a `ValueError`) that lists every mistake; unknown keys are mistakes.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from grpo_core.presets import PRESETS

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """Base of every section: frozen, unknown keys forbidden, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TaskConfig(Section):
    name: str = "grade_school"
    """A key of `grpo_core.tasks.TASKS`."""
    path: str | None = None
    """Local JSONL file, or folder with train.jsonl and test.jsonl; None loads the task's own source."""
    num_train: Count | None = None
    """Training problems to use; None takes all."""
    num_validation: Count = 512
    """Problems set apart from training for evaluation during the study."""
    num_test: Count | None = None
    """Test problems to use, seen by no decision; None takes all."""
    seed: int = 0
    """Draws the problems (generated tasks) or the validation split (loaded tasks)."""
    reward_weights: dict[str, float] = {}
    """Weight of each named reward part; a part not named here weighs as the task says."""


class PolicyConfig(Section):
    name: str = "tiny"
    """`tiny`, a hub id, or the path of a folder written by `save_pretrained`."""
    num_layers: Count = 3
    """Layers of the `tiny` policy."""
    hidden_size: Annotated[int, Field(ge=8, multiple_of=8)] = 96
    """Width of the `tiny` policy."""
    gguf_file: str | None = None
    """Name of a GGUF file inside the folder `name`; None loads safetensors."""


class WarmStartConfig(Section):
    num_steps: CountOrZero = 0
    """Supervised steps before RL, once for all trials of a study; 0 means none."""
    batch_size: Count = 64
    """Worked solutions in a step."""
    lr: Positive = 3e-3
    """Peak learning rate, reached after a tenth of the steps and lowered to 0 by a cosine."""


class RolloutConfig(Section):
    completions_per_step: Annotated[int, Field(ge=2)] = 128
    """Completions that one step samples over all ranks, whatever the group size."""
    max_new_tokens: Count = 64
    """Tokens after which a completion without EOS is truncated."""
    temperature: Positive = 1.0
    """Divides the logits, in sampling, training and evaluation alike."""
    top_p: float = 1.0
    """Only 1: a truncated distribution is not the one that the loss differentiates."""
    top_k: int = 0
    """Only 0, for the same reason."""
    chunk_size: Count = 256
    """Completions decoded at once on a rank; bounds the memory of the cache."""

    @model_validator(mode="after")
    def _sample_the_whole_distribution(self) -> Self:
        if self.top_p != 1.0:
            raise ValueError(f"top_p={self.top_p}: training rollouts sample the full distribution; use 1.0")
        if self.top_k != 0:
            raise ValueError(f"top_k={self.top_k}: training rollouts sample the full distribution; use 0")
        return self


class AlgorithmConfig(Section):
    name: str = "grpo"
    """A key of `grpo_core.presets.PRESETS`; the fields given beside it turn single knobs of that preset."""
    group_size: Annotated[int, Field(le=64)] = 8
    """Completions sampled for each prompt, 2 to 64."""
    reward_scale: Positive = 1.0
    """Factor on rewards before the advantages; `reward/mean` is recorded without it."""
    baseline: Literal["mean", "median", "leave_one_out", "none"] = "mean"
    """What is subtracted from a completion's reward."""
    advantage_scale: Literal["group_std", "batch_std", "none"] = "group_std"
    """What the centred rewards are divided by."""
    ratio_level: Literal["token", "sequence"] = "token"
    """Whether the probability ratio is taken for each token or once for a sequence (length-normalised)."""
    clipping: Literal["surrogate", "weight"] = "surrogate"
    """`surrogate` clips the objective (PPO); `weight` clips the detached ratio (CISPO)."""
    clip_range: Positive = 0.2
    """Ratios below 1 - clip_range are clipped."""
    clip_range_high: Positive | None = None
    """Ratios above 1 + clip_range_high are clipped; None means clip_range."""
    ratio_cap: Positive = 5.0
    """Largest weight under `clipping: weight`."""
    aggregation: Literal["sequence_mean", "token_mean", "constant"] = "sequence_mean"
    """How token losses become one number."""
    constant_length: Count | None = None
    """Tokens that `aggregation: constant` divides each sequence by; None means rollout.max_new_tokens."""
    mask_truncated: bool = False
    """Leaves truncated completions out of the loss (they keep their place in the baseline)."""
    kl_coef: NotNegative = 0.0
    """Weight of the KL divergence to the initial policy in the loss."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of that divergence, Schulman 2020, joschu.net/blog/kl-approx.html."""
    entropy_coef: NotNegative = 0.0
    """Weight of the entropy bonus in the loss."""
    updates_per_batch: Count = 1
    """Optimiser updates on each rollout batch, each over the whole batch."""

    @model_validator(mode="before")
    @classmethod
    def _start_from_the_preset(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        name = given.get("name", "grpo")
        if not isinstance(name, str) or name not in PRESETS:
            raise ValueError(f"name={name!r}: not an algorithm; use one of {', '.join(PRESETS)}")
        return {**PRESETS[name], **given}

    @model_validator(mode="after")
    def _a_group_has_a_baseline(self) -> Self:
        if self.group_size < 2:
            raise ValueError(
                f"group_size={self.group_size}: a group needs at least 2 completions for a baseline; use 2 to 64"
            )
        if self.clip_range >= 1 and self.clipping == "surrogate":
            raise ValueError(
                f"clip_range={self.clip_range}: 1 or more clips no ratio from below; use 0 < clip_range < 1"
            )
        return self


class OptimConfig(Section):
    lr: Positive = 1e-4
    """Peak learning rate of AdamW."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate falls from its peak to the last step."""
    lr_warmup_steps: CountOrZero = 0
    """Steps over which the rate rises to its peak."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of AdamW's first moment."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of AdamW's second moment."""
    weight_decay: NotNegative = 0.0
    """Decoupled weight decay."""
    max_grad_norm: Positive = 1.0
    """Global gradient norm above which gradients are scaled down."""
    micro_batch_size: Count | None = None
    """Completions a rank takes through one forward and backward pass; None means at most 64."""


class EvalConfig(Section):
    every: Count = 20
    """Steps between evaluations; the last step is always evaluated."""
    num_problems: Count = 256
    """Validation problems, the same in every trial."""
    samples_per_problem: Count = 4
    """Completions for each problem at the rollout temperature."""
    greedy: bool = True
    """Whether `eval/accuracy_greedy` is measured beside it."""
    num_test_problems: Count = 512
    """Test problems on which winner and base policy are measured once, at the end of the study."""


class CheckpointConfig(Section):
    every: Count = 1000
    """Steps between checkpoints; the last step of a run always leaves one."""
    keep: Count = 1
    """Checkpoints kept."""


class ComputeConfig(Section):
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes CUDA where it is present."""
    num_ranks: Count = 1
    """Processes that share one run, each with its part of every batch."""
    num_threads: Count = 1
    """CPU threads of each rank."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type of activations in the forward pass; log-probabilities and entropy are float32 always."""
    activation_checkpointing: bool = False
    """Recomputes activations in the backward pass: less memory, more time."""
    collective_timeout_s: Positive = 600.0
    """Seconds after which a rank that waits for the others gives up."""


class TrainConfig(Section):
    """One training run. Cross-rules between sections are checked here."""

    task: TaskConfig = TaskConfig()
    policy: PolicyConfig = PolicyConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    rollout: RolloutConfig = RolloutConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    optim: OptimConfig = OptimConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    compute: ComputeConfig = ComputeConfig()
    num_steps: Count = 60
    """Rollout batches, each with all its updates."""
    seed: int = 0
    """Drives problem order and sampling; the warm start has its own fixed seed."""

    @property
    def completions_per_rank(self) -> int:
        return self.rollout.completions_per_step // self.compute.num_ranks

    @property
    def prompts_per_rank(self) -> int:
        return self.completions_per_rank // self.algorithm.group_size

    @property
    def micro_batch_size(self) -> int:
        """Completions of one forward and backward pass on a rank."""
        return self.optim.micro_batch_size or min(64, self.completions_per_rank)

    @property
    def loss_algorithm(self) -> AlgorithmConfig:
        """The algorithm with `constant_length` resolved."""
        if self.algorithm.constant_length is not None:
            return self.algorithm
        return self.algorithm.model_copy(update={"constant_length": self.rollout.max_new_tokens})

    @model_validator(mode="after")
    def _the_batch_divides(self) -> Self:
        completions, ranks = self.rollout.completions_per_step, self.compute.num_ranks
        if completions % (self.algorithm.group_size * ranks):
            legal = legal_group_sizes(completions, ranks)
            fix = f"legal group sizes: {', '.join(map(str, legal))}" if legal else "change rollout.completions_per_step"
            among = f" on {ranks} ranks" if ranks > 1 else ""
            raise ValueError(
                f"algorithm.group_size={self.algorithm.group_size}: "
                f"rollout.completions_per_step={completions}{among} is not a whole number of groups; {fix}"
            )
        if self.optim.micro_batch_size and self.optim.micro_batch_size > self.completions_per_rank:
            raise ValueError(
                f"optim.micro_batch_size={self.optim.micro_batch_size}: a rank has only "
                f"{self.completions_per_rank} completions a step; use 1 to {self.completions_per_rank}"
            )
        if self.eval.num_problems > self.task.num_validation:
            raise ValueError(
                f"eval.num_problems={self.eval.num_problems}: more than task.num_validation="
                f"{self.task.num_validation}; lower the first or raise the second"
            )
        return self


def legal_group_sizes(completions_per_step: int, num_ranks: int) -> list[int]:
    """Group sizes from 2 to 64 that cut a step's completions into whole groups on every rank."""
    return [size for size in range(2, 65) if completions_per_step % (size * num_ranks) == 0]
