"""A linear layer in FP8 for PyTorch: the forward product by kernel 20, the gradients in bfloat16."""
import numpy as np
import torch
from numba import config

from .arrays import to_d, to_h
from .gemm.fp8_cast import fp8_cast
from .kernels.k20_fp8 import fp8_gemm
from .torch_ops import matmul


def _product(x, w):
    "x·wᵀ for dense x and w, cast with a scale per 1×128 and per 128×128."
    if config.ENABLE_CUDASIM:
        (a, scale_a), (b, scale_b) = fp8_cast(to_d(x), "1x128"), fp8_cast(to_d(w), "128x128")
        scale_b = to_d(np.ascontiguousarray(to_h(scale_b).T))
        c = fp8_gemm(a, b, scale_a=scale_a, scale_b=scale_b, k_major_b=True)
        return torch.from_numpy(to_h(c)).view(torch.bfloat16)
    (a, scale_a), (b, scale_b) = fp8_cast(x.contiguous(), "1x128"), fp8_cast(w.contiguous(), "128x128")
    return fp8_gemm(a, b, scale_a=scale_a, scale_b=scale_b.t().contiguous(), k_major_b=True)

@torch.library.custom_op("numba_matmul::fp8_linear", mutates_args=())
def _fp8_linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    if not x.shape[1]: return x.new_zeros(x.shape[0], w.shape[0], dtype=torch.bfloat16)
    if config.ENABLE_CUDASIM: return _product(x, w)
    with torch.cuda.device(x.device): return _product(x, w)

@_fp8_linear.register_fake
def _(x, w): return x.new_empty(x.shape[0], w.shape[0], dtype=torch.bfloat16)

def _remember(ctx, inputs, output): ctx.save_for_backward(*inputs)

def _gradients(ctx, dy):
    x, w = ctx.saved_tensors
    dy = dy.bfloat16()
    dx = matmul(dy, w.bfloat16()).to(x.dtype) if ctx.needs_input_grad[0] else None
    dw = matmul(dy.t(), x.bfloat16()).to(w.dtype) if ctx.needs_input_grad[1] else None
    return dx, dw

_fp8_linear.register_autograd(_gradients, setup_context=_remember)

def fp8_linear(
    x: torch.Tensor,  # (…, k), float32 or bfloat16
    w: torch.Tensor,  # (n, k), of the same type
) -> torch.Tensor:    # (…, n), bfloat16
    """x·wᵀ in e4m3, cast with a scale per 1×128 numbers of `x` and per 128×128 of `w`, by kernel 20 (sm_90;
    in the simulator on the CPU). Gradients are computed in bfloat16, from `x` and `w` as they were. Works
    under `torch.compile`. `TypeError` or `ValueError` for operands that don't fit, `RuntimeError` on another
    GPU."""
    for name, z in ("x", x), ("w", w):
        if not isinstance(z, torch.Tensor):
            raise TypeError(f"{name} is a {type(z).__name__}; expected a torch tensor")
        if z.dtype not in (torch.float32, torch.bfloat16):
            raise TypeError(f"{name} is {z.dtype}; expected float32 or bfloat16")
    if x.dtype != w.dtype: raise TypeError(f"x is {x.dtype} and w is {w.dtype}: pass x.to(w.dtype)")
    if x.device != w.device: raise ValueError(f"x is on {x.device} and w on {w.device}")
    if w.dim() != 2 or not x.dim() or x.shape[-1] != w.shape[1]:
        raise ValueError(f"x is {tuple(x.shape)} and w {tuple(w.shape)}; expected (…, k) and (n, k)")
    y = _fp8_linear(x.reshape(-1, x.shape[-1]), w)
    return y.reshape(*x.shape[:-1], w.shape[0])
