"""The last kernel for float32 and for bfloat16 as a PyTorch operator: with gradients, in
`torch.compile`, under autocast."""
from functools import cache, partial

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.function import _SingleLevelFunction
from .arrays import current_gpu, to_d, to_h
from .gemm.kernel import Kernel
from .gemm.limits import capable
from .registry import KERNELS
from .torch_copy import row_major
from .torch_layer import aligned_for_tma, can_implement, fused_layer, has_wgmma
from .torch_rules import (  # noqa: F401
    DEVICE, DTYPES, LIBRARY, below, check_device, check_tensors, count_flops, forward_mode, levels_below,
    need_tensors, on_its_gpu, register, reverse_mode, untraced, while_compiled)
from numba import config


# Which kernel, and what it takes

@cache
def _last_kernel(dtype, capability):
    return [kernel for kernel in KERNELS.values()
            if kernel.dtype == DTYPES[dtype] and capable(capability, kernel.capability)][-1]

def _capability(): return (9, 0) if config.ENABLE_CUDASIM else current_gpu().compute_capability

_INSTEAD = []  # the kernel that float32 goes to, if not the last one

def kernel_for(
    dtype: torch.dtype,  # float32 or bfloat16
) -> Kernel:
    """The last kernel for a type that the current GPU can run. For float32 on a Hopper GPU that's kernel 19,
    which calls kernel 14 where that should be faster: `why` in its module compares the two."""
    if dtype not in DTYPES: raise TypeError(f"dtype is {dtype!r}; expected torch.float32 or torch.bfloat16")
    if _INSTEAD and dtype == torch.float32: return _INSTEAD[0]
    return _last_kernel(dtype, _capability())

def use_for_float32(
    number: int = None,  # of a kernel for float32; None: kernel 19 chooses again
):
    "Float32 products go to this kernel from now on. `ValueError` if this GPU has no such kernel."
    kernel = KERNELS.get(number)
    able = [x.number for x in KERNELS.values()
            if x.dtype == "float32" and capable(_capability(), x.capability)]
    if number is not None and (isinstance(number, bool) or number not in able):
        raise ValueError(f"number is {number!r}; expected None or one of {', '.join(map(str, able))}, "
                         "which this GPU can run")
    _INSTEAD[:] = [kernel] if kernel else []

def _other_call(a, b):
    "What to call instead, if `matmul` gets tensors that aren't matrices."
    extra = a.dim() - 2
    if extra > 0 and b.dim() == 2:
        return ": call matmul(a.flatten(0, -2), b).unflatten(0, a.shape[:-1]), or linear(a, b.t())"
    if extra > 0 and a.shape[:-2] == b.shape[:-2]:
        return f": call {'torch.vmap(' * extra}matmul{')' * extra}(a, b)"
    if a.dim() == 2 and b.dim() == 3: return ": call torch.vmap(matmul, (None, 0))(a, b)"
    return ""

def check_operands(
    a, b,  # tensors
):
    "`TypeError` or `ValueError`, unless they are matrices that can be multiplied."
    check_tensors(a=a, b=b)
    for name, x in ("a", a), ("b", b):
        if x.dim() != 2:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; expected a matrix, two dimensions"
                             + _other_call(a, b))
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"a is {a.shape[0]}×{a.shape[1]} and b is {b.shape[0]}×{b.shape[1]}: "
                         "a must have as many columns as b has rows")


# Rows and columns

def copied(
    a: torch.Tensor, b: torch.Tensor,  # matrices
    columns: bool,                     # is C computed transposed?
) -> int:
    "How many numbers have to be copied, so that the kernel gets row-major operands."
    return sum(x.numel() for x in ((b.t(), a.t()) if columns else (a, b)) if not x.is_contiguous())

def straight(
    a: torch.Tensor, b: torch.Tensor,  # matrices
) -> bool:
    "Is one of them a transposed view, or both, and does kernel 17 take them as they are?"
    return not (a.is_contiguous() and b.is_contiguous()) and can_implement(a, b) and has_wgmma(a.device)

def by_columns(
    a: torch.Tensor, b: torch.Tensor,  # matrices
    columns: bool = None,  # should C be column-major, a transposed view? None: either will do
) -> bool:
    "Does the kernel compute Cᵀ = Bᵀ·Aᵀ? It does if that copies fewer numbers, those of C included."
    if columns is None:
        by_rows = copied(a, b, False)
        turned = copied(a, b, True)
        return turned < by_rows and not (turned and straight(a, b))
    way = copied(a, b, columns)
    if not way or straight(*((b.t(), a.t()) if columns else (a, b))): return columns
    return columns if way <= copied(a, b, not columns) + a.shape[0] * b.shape[1] else not columns

def _product(a, b):
    "A·B of row-major matrices on the current GPU, by a kernel of the course."
    (m, k), n = a.shape, b.shape[1]
    if not (m and n and k): return a.new_zeros(m, n)
    if config.ENABLE_CUDASIM:
        return torch.from_numpy(to_h(kernel_for(a.dtype)(to_d(a), to_d(b)))).view(a.dtype)
    return kernel_for(a.dtype)(a, b)

def _as_they_are(a, b):
    "A·B by rows, by a kernel that takes both without a copy; None if there is none."
    if a.is_contiguous() and b.is_contiguous(): return _product(a, b)
    if straight(a, b) and aligned_for_tma(a, b): return fused_layer(a, b)

def _multiply(a, b, columns):
    "A·B on the current GPU, with few copies."
    # most calls, as fast as can be: the GPU may be waiting
    if not columns and (a.is_contiguous() or b.is_contiguous()):
        if (c := _as_they_are(a, b)) is not None: return c
    turned = by_columns(a, b, columns)
    if turned: a, b = b.t(), a.t()
    c = _as_they_are(a, b)
    if c is None: c = _product(row_major(a), row_major(b))
    if turned: c = c.t()
    if columns in (None, turned): return c
    return row_major(c.t()).t() if columns else row_major(c)


# The operator

LIBRARY.define("matmul(Tensor a, Tensor b, bool? columns=None) -> Tensor", tags=torch.Tag.needs_exact_strides)

def _columns(x): return x.dim() == 2 and not x.is_contiguous() and x.t().is_contiguous()

def _matmul(a, b, columns=None):
    check_operands(a, b)
    check_device(a=a, b=b)
    return on_its_gpu(_multiply, a, b, columns)

def _matmul_fake(a, b, columns=None):
    check_operands(a, b)
    m, n = a.shape[0], b.shape[1]
    if columns is None: columns = by_columns(a, b)
    return a.new_empty(n, m).t() if columns else a.new_empty(m, n)

register("matmul", _matmul, "CompositeExplicitAutograd")
torch.library.register_fake("numba_matmul::matmul", _matmul_fake, lib=LIBRARY)
_OP = torch.ops.numba_matmul.matmul.default
count_flops(_OP, lambda b: b[1])
for _device in "cuda", "cpu":
    torch.library.register_autocast("numba_matmul::matmul", _device, torch.bfloat16, lib=LIBRARY)


class _ProductRule(_SingleLevelFunction):
    """The derivatives of A·B, at one level of PyTorch's transforms. (`register_autograd` has no forward mode,
    and an `autograd.Function` can't be called in an operator while `torch.func` is running.)"""
    @staticmethod
    def forward(*args): return levels_below(_OP, *args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.columns = _columns(output)
        ctx.set_materialize_grads(False)  # zeros would be multiplied
        ctx.save_for_backward(*inputs[1:3])
        ctx.save_for_forward(*inputs[1:3])

    @staticmethod
    def backward(ctx, dc):
        if dc is None: return None, None, None, None
        a, b = ctx.saved_tensors
        _, of_a, of_b, _ = ctx.needs_input_grad
        da = _OP(dc, b.t(), _columns(a)) if of_a else None
        db = _OP(a.t(), dc, _columns(b)) if of_b else None
        return None, da, db, None

    @staticmethod
    def jvp(ctx, _, da, db, __):
        a, b = ctx.saved_tensors
        parts = []
        if da is not None: parts.append(_OP(da, b, ctx.columns))
        if db is not None: parts.append(_OP(a, db, ctx.columns))
        return sum(parts[1:], parts[0])


def _matmul_autograd(keys, a, b, columns=None):
    if torch._guards.TracingContext.try_get(): while_compiled()
    if torch._C._are_functorch_transforms_active():
        with enable_single_level_autograd_function(): return _ProductRule.apply(keys, a, b, columns)
    if forward_mode(a, b) or reverse_mode(a, b): return _ProductRule.apply(keys, a, b, columns)
    return below(_OP, keys, a, b, columns)

def _matmul_batched(info, in_dims, a, b, columns=None):
    "Under `torch.vmap`: one product where only one factor has many matrices."
    of_a, of_b = in_dims[:2]
    if of_b is None:
        a = a.movedim(of_a, 0)
        c = _OP(a.flatten(0, 1), b).unflatten(0, a.shape[:2])
    elif of_a is None:
        b = b.movedim(of_b, 1)
        c = _OP(a, b.flatten(1, 2)).unflatten(1, b.shape[1:]).movedim(1, 0)
    else:
        products = [_OP(x, y, columns) for x, y in zip(a.unbind(of_a), b.unbind(of_b))]
        c = torch.stack(products) if products else a.movedim(of_a, 0).bmm(b.movedim(of_b, 0))
    if columns is None: return c, 0
    return (c.mT.contiguous().mT if columns else c.contiguous()), 0

register("matmul", _matmul_autograd, "Autograd", with_keyset=True)
torch.library.register_vmap("numba_matmul::matmul", untraced(_matmul_batched), lib=LIBRARY)

def matmul(
    a: torch.Tensor,       # (m, k), float32 or bfloat16
    b: torch.Tensor,       # (k, n), of the same type
    columns: bool = None,  # should the result be a transposed view? None: whatever needs fewer copies
) -> torch.Tensor:         # (m, n)
    """A·B by the last kernel of the course for the type.

    `a` is (m, k), `b` (k, n), the result (m, n): dense tensors, all float32 or all bfloat16, in any layout,
    on the GPU (in the simulator on the CPU). It has derivatives of any order, in reverse and in forward mode,
    so `torch.func` works, `vmap` included, and `torch.compile` and `torch.export`. Under autocast float32
    becomes bfloat16. `columns=True` returns a column-major result, `False` a row-major one; `None` returns
    whatever needs fewer copies (compiled: row-major, unless both factors are column-major).

    Errors in float32 are at most (4k + 16)·2⁻²⁴·(|A|·|B|) for each element. On a Hopper GPU kernel 19
    multiplies, with a workspace about as large as A and B. Kernel 14 takes over if it should be faster
    (`use_for_float32` overrides that), or if the GPU, without the host, finds infinities, NaN or numbers that
    float16 parts can't represent.
    `TypeError` for other types, `ValueError` for shapes or devices that don't fit. (Cᵀ = Bᵀ·Aᵀ saves the
    copies; dA = dC·Bᵀ, dB = Aᵀ·dC; Giles 2008, "Collected matrix derivative results".)"""
    need_tensors(a=a, b=b)
    if not (columns is None or isinstance(columns, bool)):
        raise TypeError(f"columns is {columns!r}; expected True, False or None")
    if columns is None and torch.compiler.is_compiling():
        columns = _columns(a) and _columns(b)  # whatever the sizes will be
    return _OP(a, b, columns)


# A layer

ACTIVATIONS = {None: lambda y: y, "relu": torch.relu,
               "gelu": partial(torch.nn.functional.gelu, approximate="tanh")}

def _shape(x): return "×".join(map(str, x.shape)) or "a single number"

def check_activation(activation: str):
    "`ValueError` if there is none of that name."
    if not isinstance(activation, (str, type(None))) or activation not in ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}; expected one of {', '.join(map(repr, ACTIVATIONS))}")

def check_layer(
    x, w, bias, activation, residual,  # see `linear`
):
    "`TypeError` or `ValueError`, unless these make a layer."
    check_activation(activation)
    if w.dim() != 2: raise ValueError(f"w has {w.dim()} dimensions; expected two: a matrix (n, k)")
    n, k = w.shape
    if not x.dim() or x.shape[-1] != k:
        raise ValueError(f"x is {_shape(x)} and w is {n}×{k}: the last dimension of x must be {k}")
    if bias is not None and bias.shape != (n,):
        raise ValueError(f"bias is {_shape(bias)}; w is {n}×{k}, so expected {n} numbers")
    if residual is not None and residual.shape != (*x.shape[:-1], n):
        raise ValueError(f"residual is {_shape(residual)}; "
                         f"expected the shape of the result, {'×'.join(map(str, (*x.shape[:-1], n)))}")

def _layer_by_steps(x, w, bias, activation, residual, columns=None):
    y = matmul(x, w, columns)
    if bias is not None: y = y + bias.to(y.dtype)
    y = ACTIVATIONS[activation](y)
    return y if residual is None else y + residual


# A layer in one kernel

LIBRARY.define("layer(Tensor x, Tensor w, Tensor? bias, str? activation, Tensor? residual) -> Tensor",
               tags=torch.Tag.needs_exact_strides)

def _layer(x, w, bias, activation, residual):
    check_operands(x, w)
    check_layer(x, w.t(), bias, activation, residual)
    others = [z for z in (bias, residual) if z is not None]
    aligned = aligned_for_tma(x, w) and all(z.data_ptr() % 4 == 0 for z in others)
    if can_implement(x, w, others) and has_wgmma(x.device) and aligned:
        return on_its_gpu(fused_layer, x, w, bias, activation, residual)
    return _layer_by_steps(x, w, bias, activation, residual, False).contiguous()

def _layer_fake(x, w, bias, activation, residual):
    check_operands(x, w)
    check_layer(x, w.t(), bias, activation, residual)
    return x.new_empty(x.shape[0], w.shape[1])

def _derivative_from_result(activation, residual):
    return activation is None or activation == "relu" and residual is None

class _LayerRule(_SingleLevelFunction):
    "The derivatives of a layer, from its operands and its result."
    @staticmethod
    def forward(*args): return below(_LAYER, *args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, x, w, _, activation, _ = inputs
        ctx.save_for_backward(x, w, output if activation else None)

    @staticmethod
    def backward(ctx, dy):
        x, w, y = ctx.saved_tensors
        _, of_x, of_w, of_bias, _, of_residual = ctx.needs_input_grad
        dz = dy if y is None else torch.ops.aten.threshold_backward(dy, y, 0)  # selects: 0 · inf would be NaN
        dx = _OP(dz, w.t(), _columns(x)) if of_x else None
        dw = _OP(x.t(), dz, _columns(w)) if of_w else None
        return None, dx, dw, dz.sum(0) if of_bias else None, None, dy if of_residual else None

def _layer_autograd(keys, x, w, bias, activation, residual):
    if torch._guards.TracingContext.try_get(): while_compiled()
    tensors = [z for z in (x, w, bias, residual) if z is not None]
    forward = torch._C._are_functorch_transforms_active() or forward_mode(*tensors)
    reverse = reverse_mode(*tensors)
    if forward or reverse and not _derivative_from_result(activation, residual):
        return _layer_by_steps(x, w, bias, activation, residual, False).contiguous()
    if reverse: return _LayerRule.apply(keys, x, w, bias, activation, residual)
    return below(_LAYER, keys, x, w, bias, activation, residual)

register("layer", _layer, "CompositeExplicitAutograd")
register("layer", _layer_autograd, "Autograd", with_keyset=True)
torch.library.register_fake("numba_matmul::layer", _layer_fake, lib=LIBRARY)
register("layer", _layer_by_steps, "FuncTorchBatched")  # under `torch.vmap`
for _device in "cuda", "cpu":
    torch.library.register_autocast("numba_matmul::layer", _device, torch.bfloat16, lib=LIBRARY)
_LAYER = torch.ops.numba_matmul.layer.default
count_flops(_LAYER, lambda w: w[1])


def linear(
    x: torch.Tensor,               # (…, k), float32 or bfloat16
    w: torch.Tensor,               # (n, k), of the same type
    bias: torch.Tensor = None,     # (n,), converted to the type of the product
    activation: str = None,        # "relu", "gelu" (the form with tanh), or None
    residual: torch.Tensor = None, # (…, n), of the same type, added last
) -> torch.Tensor:                 # (…, n)
    """act(x·Wᵀ + bias) + residual: bfloat16 in one kernel where possible, float32 by `matmul` and
    PyTorch's operators.

    `x` is (…, k), `w` (n, k) as in `torch.nn.Linear`, `bias` (n,), `residual` and the result (…, n): dense
    tensors of float32 or bfloat16; `x`, `w` and `residual` of one type, unless autocast makes them so.
    Devices, derivatives and errors are those of `matmul`. Where bfloat16 doesn't fit one kernel, each step
    rounds: 64 rows or fewer with W row-major, sums of 2048 or more with few results, sizes that aren't
    multiples of 8, a gradient of GELU or of ReLU with a residual. (The layer in an epilogue is an idea of
    CUTLASS's; GELU's tanh form: Hendrycks and Gimpel, arXiv 1606.08415.)"""
    given = {name: z for name, z in (("bias", bias), ("residual", residual)) if z is not None}
    need_tensors(x=x, w=w, **given)
    autocast = torch.is_autocast_enabled(DEVICE)
    check_tensors(autocast, x=x, w=w, **given)
    check_layer(x, w, bias, activation, residual)
    if residual is not None and residual.dtype != x.dtype and not autocast:
        raise TypeError(f"residual is {residual.dtype} and x is {x.dtype}: pass residual.to(x.dtype)")
    rows = x.flatten(0, -2) if x.dim() > 1 else x[None]
    if residual is not None: residual = residual.flatten(0, -2) if residual.dim() > 1 else residual[None]

    # one kernel, or a product and what comes after it, one by one
    types = [z.dtype for z in (x, w, *given.values())]
    if autocast: fits = residual is None or residual.dtype == torch.bfloat16
    else: fits = types == [torch.bfloat16] * len(types)
    is_layer = len(given) > 0 or activation is not None  # (Dynamo of torch 2.11 does not know bool of a list)
    stored = torch.is_grad_enabled() and not _derivative_from_result(activation, residual) and any(
        z.requires_grad for z in (x, w, *given.values()))  # the product, for the gradient
    # The operator finds out whether sizes and addresses let one kernel do it: `torch.compile` would take a
    # limit for a constant.
    layer = _LAYER if is_layer and fits and not stored else _layer_by_steps
    y = layer(rows, w.t(), bias, activation, residual)
    return y if x.dim() == 2 else y.reshape(*x.shape[:-1], w.shape[0])

class Linear(torch.nn.Linear):
    "`torch.nn.Linear` with the course's kernel and an activation; `forward` takes a residual, too."
    def __init__(
        self,
        in_features: int,   # k
        out_features: int,  # n
        bias: bool = True,  # is there one?
        activation: str = None,  # see `linear`
        **options,          # device, dtype
    ):
        if not isinstance(bias, bool):  # an activation in third place would be lost
            raise TypeError(f"bias is {bias!r}; expected True or False")
        check_activation(activation)
        super().__init__(in_features, out_features, bias, **options)
        self.activation = activation

    def extra_repr(self): return f"{super().extra_repr()}, activation={self.activation}"

    def forward(self, x, residual=None): return linear(x, self.weight, self.bias, self.activation, residual)
