"""Lint rules about how trials train: knobs that cancel, and combinations that work against themselves."""

from collections.abc import Callable, Iterator

from sweeps.findings import Finding, Sweep, idle

#: Terms of the loss beside the policy term; a new one belongs here, since reward_scale weighs against it.
OTHER_LOSS_TERMS = ("algorithm.kl_coef", "algorithm.entropy_coef")
#: A length-normalised ratio of sequences moves by thousandths in an update (GSPO clips at 3e-4).
WIDE_SEQUENCE_CLIP = 0.02


def reward_scale(sweep: Sweep) -> Iterator[Finding]:
    """reward_scale cancels in divided advantages, and under AdamW where it weighs against nothing."""
    path = "algorithm.reward_scale"
    if not sweep.turned(path):
        return
    scales = sweep.possible("algorithm.advantage_scale")
    if "none" not in scales:
        message = (
            f"advantages are divided by their standard deviation ({', '.join(sorted(scales))}), which takes "
            "the scale out again; set train.algorithm.advantage_scale: none, or drop the key"
        )
        yield idle(sweep.place(path), message)
    elif all(sweep.possible(term) == {0.0} for term in OTHER_LOSS_TERMS):
        message = (
            "AdamW divides gradients by their own size, so a factor on the whole loss cancels, but for what "
            "max_grad_norm clips; set train.algorithm.entropy_coef or kl_coef above 0, or drop the key"
        )
        yield idle(sweep.place(path), message)
    elif len(scales) > 1 and sweep.searched(path):
        message = "matters only under advantage_scale none; add when: {algorithm.advantage_scale: none}"
        yield Finding("warning", sweep.place(path), message)


def clip_range(sweep: Sweep) -> Iterator[Finding]:
    """No ratio leaves 1 in the only update of a batch, so no clip range is reached; CISPO has its own cap."""
    for path in ("algorithm.clip_range", "algorithm.clip_range_high", "algorithm.ratio_cap"):
        if not sweep.turned(path):
            continue
        clipping = "weight" if path == "algorithm.ratio_cap" else "surrogate"
        if sweep.possible("algorithm.updates_per_batch") == {1}:
            message = (
                "the only update of a batch is on-policy, every ratio is 1 and nothing is clipped; "
                "set train.algorithm.updates_per_batch to 2 or more, or drop the key"
            )
            yield idle(sweep.place(path), message)
        elif clipping not in sweep.possible("algorithm.clipping"):
            other = "clip_range" if path == "algorithm.ratio_cap" else "ratio_cap"
            message = f"clipping is never {clipping}, which alone reads it; turn {other} instead"
            yield idle(sweep.place(path), message)


def sequence_clip(sweep: Sweep) -> Iterator[Finding]:
    """A clip range meant for tokens is never reached by sequence ratios."""
    sequences = [train for train in sweep.variants if train.algorithm.ratio_level == "sequence"]
    wide = [train.algorithm.clip_range for train in sequences if train.algorithm.updates_per_batch > 1]
    if wide and max(wide) >= WIDE_SEQUENCE_CLIP:
        message = (
            f"clip_range {max(wide):g} is meant for tokens; a sequence's ratio stays within thousandths of 1 and is "
            "not clipped; use about 3e-4 (GSPO)"
        )
        yield Finding("warning", sweep.place("algorithm.clip_range"), message)


def sequence_ratio(sweep: Sweep) -> Iterator[Finding]:
    """A ratio for each sequence in a mean over tokens weighs a sequence by its length."""
    if any(t.algorithm.ratio_level == "sequence" and t.algorithm.aggregation == "token_mean" for t in sweep.variants):
        message = (
            "with ratio_level sequence, token_mean gives long answers more weight; "
            "use aggregation: sequence_mean, the preset of gspo"
        )
        yield Finding("warning", sweep.place("algorithm.aggregation"), message)


def constant_length(sweep: Sweep) -> Iterator[Finding]:
    """The divisor of one aggregation has no place in another."""
    path = "algorithm.constant_length"
    if sweep.turned(path) and "constant" not in sweep.possible("algorithm.aggregation"):
        found = ", ".join(sorted(sweep.possible("algorithm.aggregation")))
        message = f"it has no place under aggregation {found}; set aggregation: constant, or drop the key"
        yield idle(sweep.place(path), message)


def kl_estimator(sweep: Sweep) -> Iterator[Finding]:
    """An estimator without a weight does nothing; k1 has a gradient of zero mean."""
    path = "algorithm.kl_estimator"
    if sweep.turned(path) and sweep.possible("algorithm.kl_coef") == {0.0}:
        yield idle(sweep.place(path), "kl_coef is 0; set it above 0, or drop the key")
    elif any(t.algorithm.kl_coef > 0 and t.algorithm.kl_estimator == "k1" for t in sweep.variants):
        message = "the gradient of k1 in the loss is zero on average, so it holds nothing back; use k3 or k2"
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
    clip_range,
    sequence_clip,
    sequence_ratio,
    constant_length,
    kl_estimator,
    warm_start,
    lr_warmup,
)
