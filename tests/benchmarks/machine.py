"""How fast this machine is right now, so that seconds measured on shared machines can be compared."""

import time
from collections.abc import Callable

import torch

from grpo_core.cpu_products import product


def matrix_product_gflops(size: int = 1024, repeats: int = 20) -> float:
    """Rate of a float32 matrix product on one thread by torch's own library, in 10^9 operations a second."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    a = torch.randn(size, size)
    seconds = _seconds(lambda: a @ a, repeats)
    torch.set_num_threads(threads)
    return 2 * size**3 / seconds / 1e9


def product_gflops(size: int = 2048, repeats: int = 10) -> float:
    """Rate of a float32 matrix product on all threads, by the library that the trainer takes here."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / _seconds(lambda: product(a, b), repeats) / 1e9


def copy_gb_per_s(num_mb: int = 512, repeats: int = 5) -> float:
    """Rate of a copy in memory on all threads, bytes read and written, 10^9 a second."""
    source = torch.zeros(num_mb * 250_000)
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / _seconds(lambda: target.copy_(source), repeats) / 1e9


def _seconds(work: Callable[[], object], repeats: int) -> float:
    work()
    started = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - started) / repeats
