"""Random numbers by name: every draw depends on the seed and on what it is for, never on what was drawn before.

So a resumed run draws what an uninterrupted one would have drawn, and no generator state has to be kept.
"""

import hashlib
import random

import torch


def derived_seed(*parts: int | str) -> int:
    """A 63-bit seed from the parts that name its use."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(device: torch.device, *parts: int | str) -> torch.Generator:
    """A torch generator on `device`, seeded by `parts`."""
    return torch.Generator(device=device).manual_seed(derived_seed(*parts))


def shuffled(length: int, *parts: int | str) -> list[int]:
    """0 … length - 1 in an order drawn by `parts`."""
    order = list(range(length))
    random.Random(derived_seed(*parts)).shuffle(order)
    return order
