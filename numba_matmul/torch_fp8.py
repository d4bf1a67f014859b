"""A linear layer in FP8 for PyTorch: the forward product by kernel 20, its derivatives in bfloat16."""
import numpy as np
import torch
from numba import config
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.function import _SingleLevelFunction

from .arrays import to_d, to_h
from .gemm.fp8_cast import fp8_cast
from .gemm.limits import need_capability
from .kernels.k20_fp8 import KERNEL, fp8_gemm
from .torch_ops import matmul
from .torch_rules import (
    DEVICE, LIBRARY, below, check_device, check_tensors, count_flops, forward_mode, levels_below,
    need_tensors, on_its_gpu, register, reverse_mode, untraced, while_compiled)


def _product(x, w):
    "x·wᵀ for dense x and w, cast with a scale per 1×128 and per 128×128."
    if config.ENABLE_CUDASIM:
        (a, scale_a), (b, scale_b) = fp8_cast(to_d(x), "1x128"), fp8_cast(to_d(w), "128x128")
        scale_b = to_d(np.ascontiguousarray(to_h(scale_b).T))
        c = fp8_gemm(a, b, scale_a=scale_a, scale_b=scale_b, k_major_b=True)
        return torch.from_numpy(to_h(c)).view(torch.bfloat16)
    (a, scale_a), (b, scale_b) = fp8_cast(x.contiguous(), "1x128"), fp8_cast(w.contiguous(), "128x128")
    return fp8_gemm(a, b, scale_a=scale_a, scale_b=scale_b.t().contiguous(), k_major_b=True)


LIBRARY.define("fp8_linear(Tensor x, Tensor w) -> Tensor", tags=torch.Tag.needs_exact_strides)

def _fp8_linear(x, w):
    check_device(x=x, w=w)
    need_capability(KERNEL.capability, "fp8_linear")
    if not (x.numel() and w.numel()): return x.new_zeros(x.shape[0], w.shape[0], dtype=torch.bfloat16)
    return on_its_gpu(_product, x, w)

def _fp8_linear_fake(x, w): return x.new_empty(x.shape[0], w.shape[0], dtype=torch.bfloat16)

register("fp8_linear", _fp8_linear, "CompositeExplicitAutograd")
torch.library.register_fake("numba_matmul::fp8_linear", _fp8_linear_fake, lib=LIBRARY)
_OP = torch.ops.numba_matmul.fp8_linear.default
count_flops(_OP, lambda w: w[0])


def _in_bf16(a, b): return matmul(a.bfloat16(), b.bfloat16())

class _Rule(_SingleLevelFunction):
    "The derivatives of x·wᵀ in bfloat16, from x and w before the cast."
    @staticmethod
    def forward(*args): return levels_below(_OP, *args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx, dy):
        if dy is None: return None, None, None
        x, w = ctx.saved_tensors
        _, of_x, of_w = ctx.needs_input_grad
        dx = _in_bf16(dy, w).to(x.dtype) if of_x else None
        dw = _in_bf16(dy.t(), x).to(w.dtype) if of_w else None
        return None, dx, dw

    @staticmethod
    def jvp(ctx, _, dx, dw):
        x, w = ctx.saved_tensors
        parts = []
        if dx is not None: parts.append(_in_bf16(dx, w.t()))
        if dw is not None: parts.append(_in_bf16(x, dw.t()))
        return sum(parts[1:], parts[0])

def _autograd(keys, x, w):
    if torch._guards.TracingContext.try_get(): while_compiled()
    if torch._C._are_functorch_transforms_active():
        with enable_single_level_autograd_function(): return _Rule.apply(keys, x, w)
    if forward_mode(x, w) or reverse_mode(x, w): return _Rule.apply(keys, x, w)
    return below(_OP, keys, x, w)

def _batched(info, in_dims, x, w):
    "Under `torch.vmap`: one product where only x has many matrices, since each row has scales of its own."
    of_x, of_w = in_dims
    if of_w is None:
        x = x.movedim(of_x, 0)
        return _OP(x.flatten(0, 1), w).unflatten(0, x.shape[:2]), 0
    xs = [x] * info.batch_size if of_x is None else x.unbind(of_x)
    products = [_OP(x, w) for x, w in zip(xs, w.unbind(of_w))]
    if products: return torch.stack(products), 0
    rows = x.shape[0] if of_x is None else x.movedim(of_x, 0).shape[1]
    return x.new_empty(0, rows, w.movedim(of_w, 0).shape[1], dtype=torch.bfloat16), 0

register("fp8_linear", _autograd, "Autograd", with_keyset=True)
torch.library.register_vmap("numba_matmul::fp8_linear", untraced(_batched), lib=LIBRARY)


def fp8_linear(
    x: torch.Tensor,  # (…, k), float32 or bfloat16
    w: torch.Tensor,  # (n, k), of the same type
) -> torch.Tensor:    # (…, n), bfloat16
    """x·wᵀ in e4m3, cast with a scale per 1×128 numbers of `x` and per 128×128 of `w`, by kernel 20 (sm_90;
    in the simulator on the CPU). An infinity or NaN turns everything that shares its scale into NaN.
    Derivatives, in reverse and in forward mode, are computed in bfloat16, from `x` and `w` before the cast.
    Works under `torch.compile` and `torch.func`; under autocast the types may differ. `TypeError` or
    `ValueError` for operands that don't fit, `RuntimeError` on another GPU."""
    need_tensors(x=x, w=w)
    autocast = torch.is_autocast_enabled(DEVICE)
    check_tensors(autocast, x=x, w=w)
    if w.dim() != 2 or not x.dim() or x.shape[-1] != w.shape[1]:
        raise ValueError(f"x is {tuple(x.shape)} and w {tuple(w.shape)}; expected (…, k) and (n, k)")
    # float32 has all their values, so they're rounded once, to e4m3
    if x.dtype != w.dtype or x.dtype == torch.float16: x, w = x.float(), w.float()
    rows = x.flatten(0, -2) if x.dim() > 1 else x[None]
    return _OP(rows, w).reshape(*x.shape[:-1], w.shape[0])
