"""Lint rules about how trials train: knobs that cancel, and combinations that work against themselves."""

from collections.abc import Callable, Iterator

from grpo_core.config import TrainConfig
from sweeps.findings import Finding, Sweep, idle
from sweeps.train_fields import LABEL

#: A length-normalised ratio of sequences moves by thousandths in an update (GSPO clips at 3e-4).
WIDE_SEQUENCE_CLIP = 0.02
#: Rounds of dynamic sampling beyond which its cost is worth a word.
MANY_REFILLS = 8


def reward_scale(sweep: Sweep) -> Iterator[Finding]:
    """reward_scale cancels in divided advantages, and under AdamW where it weighs against nothing."""
    path = "algorithm.reward_scale"
    if not sweep.turned(path):
        return
    scales = sweep.possible("algorithm.advantage_scale")
    if not any(map(_scale_weighs, sweep.trains)):
        if "none" in scales:
            message = (
                "AdamW divides gradients by their own size, so a factor on the whole loss cancels, but for what "
                "max_grad_norm clips; set train.algorithm.entropy_coef or kl_coef above 0, or drop the key"
            )
        else:
            message = (
                f"advantages are divided by their standard deviation ({', '.join(sorted(scales))}), which takes "
                "the scale out again; set train.algorithm.advantage_scale: none, or drop the key"
            )
        yield idle(sweep.place(path), message)
    elif len(scales) > 1 and sweep.searched(path):
        message = "matters only under advantage_scale none; add when: {algorithm.advantage_scale: none}"
        yield Finding("warning", sweep.place(path), message)


def _scale_weighs(train: TrainConfig) -> bool:
    """Whether something that a trial learns from does not grow with its rewards."""
    algorithm = train.algorithm
    # A cost that is taken off the rewards, or a value head that must follow them, is there before they are divided.
    before = (algorithm.kl_in == "reward" and algorithm.kl_coef > 0) or algorithm.baseline == "value"
    beside = algorithm.kl_coef > 0 or algorithm.entropy_coef > 0 or algorithm.entropy_target is not None
    return before or (beside and algorithm.advantage_scale == "none")


def sequence_clip(sweep: Sweep) -> Iterator[Finding]:
    """A clip range meant for tokens is never reached by sequence ratios."""
    path = "algorithm.clip_range"
    sequences = [variant for variant in sweep.variants if variant.train.algorithm.ratio_level == "sequence"]
    clipped = [variant for variant in sequences if variant.train.algorithm.updates_per_batch > 1]
    widest = max(clipped, key=lambda variant: variant.train.algorithm.clip_range, default=None)
    if widest is None or widest.train.algorithm.clip_range < WIDE_SEQUENCE_CLIP:
        return
    key = next((key for key in sweep.keys_of(path) if key in widest.params), None)
    message = (
        f"clip_range {widest.train.algorithm.clip_range:g} is meant for tokens; a sequence's ratio stays within "
        "thousandths of 1 and is not clipped; use about 3e-4 (GSPO)"
    )
    if key is not None and any(variant.train.algorithm.ratio_level == "token" for variant in sweep.with_key(key)):
        message += f", under a key of its own with another when: {key.partition(LABEL)[0]}{LABEL}gspo"
    yield Finding("warning", f"train.{path}" if key is None else f"search_space.{key}", message)


def sequence_ratio(sweep: Sweep) -> Iterator[Finding]:
    """A ratio for each sequence in a mean over tokens weighs a sequence by its length."""
    if any(t.algorithm.ratio_level == "sequence" and t.algorithm.aggregation == "token_mean" for t in sweep.trains):
        message = (
            "with ratio_level sequence, token_mean gives long answers more weight; "
            "use aggregation: sequence_mean, the preset of gspo"
        )
        yield Finding("warning", sweep.place("algorithm.aggregation"), message)


def kl_estimator(sweep: Sweep) -> Iterator[Finding]:
    """k1 in the loss has a gradient of zero mean."""
    in_loss = [train.algorithm for train in sweep.trains if train.algorithm.kl_in == "loss"]
    if any(algorithm.kl_coef > 0 and algorithm.kl_estimator == "k1" for algorithm in in_loss):
        message = "the gradient of k1 in the loss is zero on average, so it holds nothing back; use k3 or k2"
        yield Finding("warning", sweep.place("algorithm.kl_estimator"), message)


def kl_in_divided_rewards(sweep: Sweep) -> Iterator[Finding]:
    """A group of equal rewards is told apart by its KL alone, which dividing by the group's own spread blows up."""
    for train in sweep.trains:
        algorithm = train.algorithm
        if algorithm.kl_in == "reward" and algorithm.kl_coef > 0 and algorithm.advantage_scale == "group_std":
            message = (
                "with kl_in reward, a group of equal rewards differs by its KL alone, and group_std makes that as "
                "large as any other signal; use kl_in: loss, or advantage_scale none or batch_std"
            )
            yield Finding("warning", sweep.place("algorithm.kl_in"), message)
            return


def kl_from_nothing(sweep: Sweep) -> Iterator[Finding]:
    """A coefficient just above 0 pays for a reference that holds nothing back."""
    for key in sweep.keys_of("algorithm.kl_coef"):
        if sweep.config.search_space[key].min == 0:
            message = (
                "a trial at 0 loads no reference, one just above it loads and runs a reference that holds nothing "
                "back; use a min above 0 with log: true, or values of which 0 is one"
            )
            yield Finding("warning", f"search_space.{key}", message)


def refills(sweep: Sweep) -> Iterator[Finding]:
    """Dynamic sampling with hardly a bound may spend many times a step's completions."""
    path = "algorithm.max_refills"
    most = max((train.algorithm.max_refills for train in sweep.trains if train.algorithm.dynamic_sampling), default=0)
    if most > MANY_REFILLS:
        message = (
            f"a step may sample {most + 1} times its completions where rewards are equal in most groups, and the "
            f"study then takes as long; use up to {MANY_REFILLS}, with larger groups or problems of another difficulty"
        )
        yield Finding("warning", sweep.place(path), message)


def warm_start(sweep: Sweep) -> Iterator[Finding]:
    """A fresh tiny policy needs a warm start; a hub model has had its own."""
    train = sweep.config.train
    if sweep.searched("policy.name") or sweep.searched("warm_start.num_steps"):
        return
    if train.policy.name == "tiny" and train.warm_start.num_steps == 0:
        message = "a fresh tiny policy writes noise that earns no reward; set for example 500 steps"
        yield Finding("warning", "train.warm_start.num_steps", message)
    if train.policy.name != "tiny" and train.warm_start.num_steps > 0:
        message = (
            f"{train.policy.name} is trained already, and supervised steps at lr {train.warm_start.lr:g} overwrite "
            "what it knows; set 0, or a much lower warm_start.lr"
        )
        yield Finding("warning", "train.warm_start.num_steps", message)


def lr_warmup(sweep: Sweep) -> Iterator[Finding]:
    """A warm-up as long as the run never reaches its peak."""
    train = sweep.config.train
    if train.optim.lr_warmup_steps >= train.num_steps:
        message = f"the rate never reaches its peak within num_steps={train.num_steps}; use fewer warm-up steps"
        yield Finding("warning", sweep.place("optim.lr_warmup_steps"), message)


TRAINING_RULES: tuple[Callable[[Sweep], Iterator[Finding]], ...] = (
    reward_scale,
    sequence_clip,
    sequence_ratio,
    kl_estimator,
    kl_in_divided_rewards,
    kl_from_nothing,
    refills,
    warm_start,
    lr_warmup,
)
