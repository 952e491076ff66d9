"""The cost model of a step: what its parts must compute and move, beside what this machine can.

A pass of a policy takes 2 operations a weight and token forward and 4 backward; attention and elementwise work come on
top and are left out. Decoding reads every weight once for each token of the longest completion, whatever the number of
rows. Embedding rows are looked up, not multiplied, except by the output layer.
"""

from collections.abc import Mapping

from tests.benchmarks.machine import copy_gb_per_s, product_gflops


def shares_of_limits(step: Mapping[str, float]) -> dict[str, float]:
    """Least seconds of each part by the machine's limits, measured now, and the share of the real ones that they are.

    `step` has `sampling_s, update_s, num_weights` (those that are multiplied), `prompt_tokens, completion_tokens,
    decode_steps` and `updates`.
    """
    flops, bytes_per_s = product_gflops() * 1e9, copy_gb_per_s() * 1e9
    weights = step["num_weights"]
    decoded = 2 * weights * step["completion_tokens"] / flops
    read = 4 * weights * step["decode_steps"] / bytes_per_s
    prefill = 2 * weights * step["prompt_tokens"] / flops
    update = step["updates"] * 6 * weights * (step["prompt_tokens"] + step["completion_tokens"]) / flops
    # AdamW reads weights, gradients and both moments, and writes all but the gradients.
    optimiser = step["updates"] * 7 * 4 * weights / bytes_per_s
    return {
        "product, GFLOP/s": flops / 1e9,
        "copy, GB/s": bytes_per_s / 1e9,
        "prefill, least s": prefill,
        "decode by operations, least s": decoded,
        "decode by weights read, least s": read,
        "update by operations, least s": update,
        "optimiser by bytes, least s": optimiser,
        "sampling, share of its limit": (prefill + max(decoded, read)) / step["sampling_s"],
        "update, share of its limit": (update + optimiser) / step["update_s"],
    }
