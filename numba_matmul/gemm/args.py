"""C ← alpha·A·B + beta·C, as BLAS defines it: correct for every size, or rejected with an error that says
why.

Every lesson's host function computes what BLAS, the standard library interface for linear algebra, calls
GEMM: C ← alpha·A·B + beta·C. They all take the same arguments, so the rules are here, once. A wrong argument
is rejected before anything is launched: a GPU wouldn't complain, it would compute nonsense.
"""
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from numbers import Real

import numpy as np
from ..arrays import KEPT_AS, array_like, current_gpu, describe, is_row_major, is_torch
from numba import config, cuda


@dataclass
class Gemm:
    "The arguments of one matrix product, checked: Numba device arrays, alpha and beta in float32."
    m: int
    n: int
    k: int
    a: object
    b: object
    c: object
    alpha: np.float32
    beta: np.float32
    stream: object  # for a kernel launched directly, without a plan
    spans: tuple  # of A, B and C in memory, see `span`
    alignments: dict  # name → the largest power of two, up to 16, that divides every row's address
    result: object  # what the host function returns: `c` as the caller gave it, or the new array
    workspace: Callable  # function (*shape, kind): allocates scratch memory for this call
    others: dict = field(default_factory=dict)  # name → additional device array for this call, see `run`

    @property
    def alignment(self) -> int: return min(self.alignments.values())

    @property
    def aligned(self) -> bool: return self.alignment == 16


def need_on_device(
    name: str,  # the array's name, for errors
    x,
):
    "`TypeError` for anything but an array on the device, `ValueError` for one on another GPU."
    if is_torch(x):
        if not x.is_cuda:
            raise TypeError(f"{name} is a torch tensor on {x.device}; expected an array on the device: "
                            f"pass to_d({name}) or {name}.cuda()")
        gpu = 0 if config.ENABLE_CUDASIM else current_gpu().id
        if x.device.index != gpu:
            raise ValueError(f"{name} is on {x.device}; expected an array on the current GPU, cuda:{gpu}")
    elif not getattr(x, "__cuda_ndarray__", False):
        raise TypeError(f"{name} is a host object ({describe(x)}); expected an array on the device: "
                        f"pass to_d({name})")


def device_matrix(
    name: str,   # the matrix's name, for errors
    x,           # Numba device array or torch tensor, row-major
    dtype: str,  # see `gemm_args`
):               # Numba device array
    "`x` as a Numba device array that shares its memory, or raises an error that says what is wrong."
    def refuse(kind, given, needed): raise kind(f"{name} is {given}; expected {needed}")
    need_on_device(name, x)
    is_tensor = is_torch(x)
    if len(x.shape) != 2:
        refuse(ValueError, f"an array of shape {tuple(x.shape)}", "a matrix with two dimensions")
    given, kept = str(x.dtype).replace("torch.", ""), KEPT_AS.get(dtype, dtype)
    if given != (dtype if is_tensor else kept):
        if is_tensor: how = f"{name}.to(torch.{dtype})"
        elif dtype in KEPT_AS:
            to_bits = "to_bf16" if dtype == "bfloat16" else "to_fp8"
            how = f"to_d({to_bits}({name})), with {name} still on the host"
        else: how = f"to_d({name}.astype(np.{dtype})), with {name} still on the host"
        refuse(TypeError, given, f"{dtype}: pass {how}")
    if not is_row_major(x):
        if is_tensor: how = f"{name}.contiguous()"
        else: how = f"to_d({name}), which copies row by row, with {name} still on the host"
        refuse(ValueError, "not row-major contiguous (a transposed or strided view?)",
               f"a row-major array: pass {how}")
    return numba_array(x)

class _Memory:
    "The minimal object that `cuda.as_cuda_array` accepts."
    def __init__(self, **interface): self.__cuda_array_interface__ = dict(interface, version=3)


@lru_cache(1000)
def _view(address, shape, typestr, device):
    "A Numba array for memory the caller owns. Creating one takes longer than a launch."
    return cuda.as_cuda_array(_Memory(data=(address, False), shape=shape, typestr=typestr), sync=False)

def numba_array(
    x,  # Numba device array, or torch tensor on the GPU, contiguous
):
    "`x` as a Numba device array that shares its memory; bfloat16 as its bits."
    if not is_torch(x): return x
    kind = str(x.dtype).removeprefix("torch.")
    return _view(x.data_ptr(), tuple(x.shape), np.dtype(KEPT_AS.get(kind, kind)).str, x.device.index)

@lru_cache(1000)
def _external(handle): return cuda.external_stream(handle)

def launch_stream(
    has_tensor: bool,  # is any matrix a torch tensor?
):                     # a stream, or 0
    "The stream to launch on: torch's current one if any matrix is a torch tensor."
    if not has_tensor: return 0
    import torch
    handle = torch.cuda.current_stream().cuda_stream
    return _external(handle) if handle else 0

def _workspace(shape, kind, has_tensor):
    """Scratch memory for one call's launches, and its owner. It always comes from torch, whose allocator
    reuses freed memory in stream (or graph) order."""
    kept_as = KEPT_AS.get(kind, kind)
    if config.ENABLE_CUDASIM: return (cuda.device_array(shape, kept_as),) * 2
    import torch
    on_stream = nullcontext() if has_tensor else torch.cuda.stream(torch.cuda.default_stream())
    with on_stream: memory = torch.empty(shape, dtype=getattr(torch, kind), device="cuda")
    return memory, _view(memory.data_ptr(), shape, np.dtype(kept_as).str, memory.device.index)

def span(
    x,  # Numba device array, contiguous
) -> tuple:
    "The address of its first byte, and of the byte after its last."
    first = x._ary.ctypes.data if config.ENABLE_CUDASIM else x.device_ctypes_pointer.value or 0
    return first, first + x.nbytes

def product_shape(
    a, b,  # matrices
    k_major_b: bool = False,  # is `b` transposed?
) -> tuple:
    "m, n, k of a product; `ValueError` if the shapes don't match."
    (m, k), (rows, n) = a.shape, b.shape[::-1] if k_major_b else b.shape
    if rows != k:
        raise ValueError(f"a is {m}×{k} and b is {rows}×{n}: "
                         "a must have as many columns as b has rows")
    return m, n, k


def refuse_overlap(
    span_a: tuple, span_b: tuple, span_c: tuple,  # see `span`
):
    "`ValueError` if C shares memory with A or B."
    c_first, c_end = span_c
    for name, (first, end) in ("a", span_a), ("b", span_b):
        if max(c_first, first) < min(c_end, end):
            raise ValueError(f"c overlaps {name} in memory, so writing c would change {name} "
                             "while it is read: pass another c")


def refuse_others_overlap(
    names: list,  # of A, B, C and the call's further arrays
    spans: list,  # their spans, see `span`
):
    "`ValueError` if an additional array shares memory with any other array of the call."
    for number in range(3, len(spans)):
        first, end = spans[number]
        for name, (other_first, other_end) in zip(names[:number], spans):
            if max(first, other_first) < min(end, other_end):
                raise ValueError(f"{names[number]} overlaps {name} in memory: pass another array")

LARGEST = float(np.finfo(np.float32).max)

def gemm_args(
    a,       # (m, k) device array, row-major
    b,       # (k, n) device array, row-major
    c=None,  # (m, n) device array, row-major; a new one like `a` if None
    alpha: float = 1.0,      # factor of A·B; 0 never reads A or B
    beta: float = 0.0,       # factor of C; 0 never reads C
    # the type of all three: "float32"; "bfloat16": torch tensors, or bits in uint16; "float8_e4m3fn": or in
    # uint8
    dtype: str = "float32",
    others: dict = None,     # see `Gemm`
    dtype_c: str = None,     # the type of C, if it's another one
    k_major_b: bool = False,  # is B given as its transpose, (n, k) row-major?
) -> Gemm:
    "Check the arguments of C ← alpha·A·B + beta·C, create `c` if None; `TypeError` or `ValueError`."
    # the matrices, and C if there is none
    a_d = device_matrix("a", a, dtype)
    b_d = device_matrix("b", b, dtype)
    m, n, k = product_shape(a, b, k_major_b)
    dtype_c = dtype_c or dtype
    if c is None and beta != 0:
        raise ValueError(f"beta is {beta}, so c is read: pass the c to add to")
    others = others or {}
    has_tensor = any(map(is_torch, (a, b, c, *others.values())))
    kept = []
    def workspace(*shape, kind=dtype):
        memory, array = _workspace(shape, kind, has_tensor)
        kept.append(memory)
        return array
    kind = None if dtype_c == dtype else dtype_c if is_torch(a) else KEPT_AS.get(dtype_c, dtype_c)
    result = array_like(a, (m, n), kind) if c is None else c
    c_d = device_matrix("c", result, dtype_c)
    if tuple(c_d.shape) != (m, n):
        raise ValueError(f"c is {c.shape[0]}×{c.shape[1]}; "
                         f"the product of {m}×{k} and {k}×{n} is {m}×{n}")

    spans = span(a_d), span(b_d), span(c_d)
    refuse_overlap(*spans)
    for name, x in others.items():
        need_on_device(name, x)
        if not is_row_major(x): raise ValueError(f"{name} has gaps or is transposed: pass a contiguous array")
    others = {name: numba_array(x) for name, x in others.items()}
    refuse_others_overlap(["a", "b", "c", *others], [*spans, *map(span, others.values())])

    # the factors
    for name, factor in ("alpha", alpha), ("beta", beta):
        if not isinstance(factor, Real):
            raise TypeError(f"{name} is {factor!r}; expected a number")
        if LARGEST < abs(factor) < math.inf:
            raise ValueError(f"{name} is {factor!r}, which exceeds the range of float32")

    alignments = {name: math.gcd(16, first, x.shape[1] * x.dtype.itemsize)  # the second row
                  for name, x, (first, _) in zip("abc", (a_d, b_d, c_d), spans)}
    return Gemm(int(m), int(n), int(k), a_d, b_d, c_d, np.float32(alpha), np.float32(beta),
                launch_stream(has_tensor), spans, alignments, result, workspace, others)
