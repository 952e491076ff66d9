"""How fast this machine is right now, so that seconds measured on shared machines can be compared."""

import time

import torch


def matrix_product_gflops(size: int = 1024, repeats: int = 20) -> float:
    """Rate of a float32 matrix product on one thread, in 10^9 operations a second."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    a = torch.randn(size, size)
    a @ a
    started = time.perf_counter()
    for _ in range(repeats):
        a @ a
    elapsed = time.perf_counter() - started
    torch.set_num_threads(threads)
    return 2 * size**3 * repeats / elapsed / 1e9
