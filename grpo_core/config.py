"""What one training run is: a frozen pydantic tree, importable without torch.

Every field has its meaning and unit under it. `TrainConfig.model_validate(dict)` raises `pydantic.ValidationError`
(a `ValueError`) that lists every mistake; unknown keys are mistakes.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from grpo_core.algorithm_config import AlgorithmConfig
from grpo_core.config_section import Count, CountOrZero, NotNegative, Positive, Section, divisors


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
    reward_weights: dict[str, float] = Field(default_factory=dict)
    """Weight of each named reward part; a part not named here weighs as the task says."""


class LoraSection(Section):
    """Low-rank adaptation, Hu et al. 2021, arXiv:2106.09685, through peft."""

    rank: Count = 16
    """Rank of each adapter."""
    alpha: Positive = 32.0
    """An adapter's output is multiplied by alpha / rank."""
    target_modules: tuple[str, ...] | None = None
    """Names of the layers that get an adapter; None takes every linear layer but the output layer."""


class PolicyConfig(Section):
    name: str = "tiny"
    """`tiny`, a hub id, or the path of a folder written by `save_pretrained`."""
    num_layers: Count = 3
    """Layers of the `tiny` policy."""
    hidden_size: Annotated[int, Field(ge=8, multiple_of=8)] = 96
    """Width of the `tiny` policy."""
    gguf_file: str | None = None
    """Name of a GGUF file inside the folder `name`; None loads safetensors."""
    lora: LoraSection | None = None
    """Trains low-rank adapters in place of the weights; None trains all weights."""


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
    temperature_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Factor on the temperature of sampling and training after each step; evaluation keeps `temperature`."""
    temperature_min: Positive = 0.1
    """The temperature below which the decay does not go."""
    priority_exponent: Annotated[float, Field(ge=0, le=1)] = 0.0
    """0 takes each problem once an epoch; above it, problems are drawn with a probability proportional to the spread
    of rewards in their last group to this power (Schaul et al. 2015, arXiv:1511.05952, use 0.6)."""
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
        if self.temperature_decay < 1 and self.temperature_min > self.temperature:
            raise ValueError(
                f"temperature_min={self.temperature_min:g}: above temperature={self.temperature:g}, where the decay "
                f"begins; use at most {self.temperature:g}"
            )
        return self


class OptimConfig(Section):
    lr: Positive = 1e-4
    """Peak learning rate of AdamW."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate falls from its peak to the last step."""
    lr_warmup_steps: CountOrZero = 0
    """Steps over which the rate rises to its peak."""
    value_lr_factor: Positive = 10.0
    """Learning rate of a value head, as a multiple of the policy's: it starts at 0 and has far to go."""
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
    every_s: Positive | None = 600.0
    """Seconds after which a step leaves one all the same; None means by steps alone."""
    keep: Count = 1
    """Checkpoints kept, the newest ones; the best one is kept beside them while a rollback may need it."""


class RollbackConfig(Section):
    """Return to the best checkpoint when evaluations fall in a row."""

    metric: Literal["eval/accuracy", "eval/accuracy_greedy", "eval/reward"] = "eval/accuracy"
    """What is watched at evaluation steps."""
    after_drops: Count = 3
    """Evaluations in a row, each below the one before, after which the weights return."""
    lr_factor: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The learning rate is multiplied by it at each return."""
    max_times: CountOrZero = 2
    """Returns in one run; 0 switches them off."""


class ComputeConfig(Section):
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes CUDA where it is present."""
    num_ranks: Count = 1
    """Processes that share one run, each with its part of every batch."""
    num_threads: Count = 1
    """CPU threads of each rank."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of activations in the forward pass; log-probabilities and entropy are float32 always. `float16` needs CUDA
    and scales the loss."""
    activation_checkpointing: bool = False
    """Recomputes activations in the backward pass: less memory, more time."""
    collective_timeout_s: Positive = 600.0
    """Seconds after which a rank that waits for the others gives up."""

    @model_validator(mode="after")
    def _float16_needs_cuda(self) -> Self:
        if self.precision == "float16" and self.device == "cpu":
            raise ValueError("precision='float16': its loss scaling needs CUDA; use bfloat16 or float32 on a CPU")
        return self


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
    rollback: RollbackConfig = RollbackConfig()
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
        return self.optim.micro_batch_size or min(64, self.completions_per_rank // self.algorithm.num_minibatches)

    @property
    def loss_algorithm(self) -> AlgorithmConfig:
        """The algorithm with `constant_length` resolved."""
        if self.algorithm.constant_length is not None:
            return self.algorithm
        return self.algorithm.model_copy(update={"constant_length": self.rollout.max_new_tokens})

    @property
    def overlong_buffer_tokens(self) -> int:
        """The buffer of the overlong penalty: what the algorithm says, or a fifth of the limit as in DAPO."""
        return self.algorithm.overlong_buffer_tokens or max(1, self.rollout.max_new_tokens // 5)

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
        if self.prompts_per_rank % self.algorithm.num_minibatches:
            raise ValueError(
                f"algorithm.num_minibatches={self.algorithm.num_minibatches}: the {self.prompts_per_rank} groups that "
                f"algorithm.group_size={self.algorithm.group_size} makes of a rank's {self.completions_per_rank} "
                f"completions can't be cut so; use one of {divisors(self.prompts_per_rank)}"
            )
        if self.eval.num_problems > self.task.num_validation:
            raise ValueError(
                f"eval.num_problems={self.eval.num_problems}: more than task.num_validation="
                f"{self.task.num_validation}; lower the first or raise the second"
            )
        return self

    @model_validator(mode="after")
    def _lengths_and_groups_fit(self) -> Self:
        algorithm, limit = self.algorithm, self.rollout.max_new_tokens
        if algorithm.overlong_buffer_tokens and algorithm.overlong_buffer_tokens >= limit:
            raise ValueError(
                f"algorithm.overlong_buffer_tokens={algorithm.overlong_buffer_tokens}: not shorter than "
                f"rollout.max_new_tokens={limit}, so that every completion would be overlong; use 1 to {limit - 1}"
            )
        if self.rollout.priority_exponent > 0 and algorithm.group_size == 1:
            raise ValueError(
                f"rollout.priority_exponent={self.rollout.priority_exponent:g}: the spread of rewards in a group of "
                "algorithm.group_size=1 tells nothing of a problem; use 2 or more completions, or priority_exponent: 0"
            )
        if algorithm.grouping == "similarity":
            # Groups are made of whole prompts; any number of prompts can be cut when the bounds are this far apart.
            fewest = -(-algorithm.min_similar_group // algorithm.group_size)
            most = algorithm.max_similar_group // algorithm.group_size
            prompts = self.rollout.completions_per_step // algorithm.group_size
            if most < 2 * fewest - 1 or prompts < fewest:
                raise ValueError(
                    f"algorithm.min_similar_group={algorithm.min_similar_group}: {prompts} prompts of "
                    f"algorithm.group_size={algorithm.group_size} completions can't be cut into groups of "
                    f"{algorithm.min_similar_group} to {algorithm.max_similar_group} completions; lower "
                    "min_similar_group, or raise max_similar_group or rollout.completions_per_step"
                )
        return self


def legal_group_sizes(completions_per_step: int, num_ranks: int) -> list[int]:
    """Group sizes from 2 to 64 that cut a step's completions into whole groups on every rank."""
    return [size for size in range(2, 65) if completions_per_step % (size * num_ranks) == 0]
