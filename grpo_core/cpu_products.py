"""Matrix products of linear layers on a CPU, by the library that runs them fastest.

torch multiplies float32 matrices with MKL, which keeps to AVX2 on processors that are not Intel's. oneDNN, which torch
carries too, uses their AVX-512 units: about twice the rate for the shapes here, to the same rounding.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

#: Multiplications below which the call of oneDNN costs more than it saves.
MIN_PRODUCTS = 2**20
#: oneDNN compiles a kernel for each new shape, which takes milliseconds; row counts that are multiples of this are few.
ROWS_MULTIPLE = 64


@cache
def prefers_onednn() -> bool:
    """Whether oneDNN is the faster library on this machine: AVX-512 on a processor that is not Intel's.

    By what the processor is, never by a measurement: runs on one machine must give the same numbers.
    """
    available = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if not available or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    info = Path("/proc/cpuinfo")
    return info.exists() and "GenuineIntel" not in info.read_text()


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """`a [M, K]` times `b [K, N]`, plus `bias [N]`; strides may be any, autograd is not told."""
    few = a.shape[0] * a.shape[1] * b.shape[1] < MIN_PRODUCTS
    if few or a.dtype != torch.float32 or a.device.type != "cpu" or not prefers_onednn():
        return a @ b if bias is None else torch.addmm(bias, a, b)
    result: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), bias, "none", [], "")
    return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.has_bias = bias is not None
        return product(inputs, weight.t(), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (gradient,) = gradients
        inputs, weight = ctx.saved_tensors
        of_inputs = product(gradient, weight) if ctx.needs_input_grad[0] else None
        of_weight = product(gradient.t(), inputs) if ctx.needs_input_grad[1] else None
        return of_inputs, of_weight, gradient.sum(dim=0) if ctx.has_bias else None


class CpuLinear(nn.Linear):
    """`nn.Linear` by `product` for float32 on a CPU; for all else the layer that it was."""

    def forward(self, input: Tensor) -> Tensor:
        if input.dtype != torch.float32 or input.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return super().forward(input)
        rows = input.reshape(-1, self.in_features)
        result: Tensor = _Linear.apply(rows, self.weight, self.bias)
        return result.view(*input.shape[:-1], self.out_features)


def use_fast_products(model: nn.Module) -> None:
    """Makes the linear layers of `model` multiply by `product` where this machine gains from it."""
    if not prefers_onednn():
        return
    for module in model.modules():
        # Subclasses have reasons of their own.
        if type(module) is nn.Linear:
            module.__class__ = CpuLinear
