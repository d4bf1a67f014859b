"""Tensor maps: what the TMA must know about a matrix before it can copy from it.

A map is 128 bytes that the driver creates on the host. For another matrix of the same shape only the address
changes. A map in the GPU's memory would have to be copied there in stream order, to a place that no earlier
launch is still reading. As a kernel parameter it travels with the launch, into CUDA graphs as well: no
memory, no copy, nothing to fence. Numba passes a tuple of integers as consecutive parameters, so that's what
our kernels take, and `tensor_map_address` finds the maps there.
"""
import ctypes
from collections.abc import Callable

import numpy as np
from numba import config, cuda

from ..arrays import current_gpu
from ..ptx.hopper import MAP_WORDS, WORDS_BEFORE
from ..sim import hopper
from .args import Gemm

LONGEST = 2**31 - 256  # rows or columns: the TMA counts them in 32 bits, one of them for the sign


def ask_driver(
    call: Callable,  # a driver function, which returns its error first
    *arguments,
):
    """A driver function's results, or `RuntimeError` with its error. A thread that hasn't used the GPU before
    has no context; it gets one here, and the call is repeated."""
    for _ in range(2):
        result = call(*arguments)
        error, *found = result if isinstance(result, tuple) else (result,)
        if error != 201: break  # CUDA_ERROR_INVALID_CONTEXT
        cuda.current_context(current_gpu().id)
    if error:
        name = getattr(error, "name", f"error {error}")
        raise RuntimeError(f"the CUDA driver refuses {call.__name__}: {name}")
    return found[0] if found else None


def _map_words(x, box_rows, row_bytes=128):
    """The `MAP_WORDS` uint64 of a row-major matrix of 16-bit numbers, or of pairs of 8-bit ones, in boxes
    whose rows are as long as the swizzle: 128, 64 or 32 bytes. CUDA driver API, cuTensorMapEncodeTiled.
    `RuntimeError` if it refuses."""
    rows, cols = int(x.shape[0]), int(x.shape[1]) * x.dtype.itemsize // 2
    if config.ENABLE_CUDASIM:
        return hopper.tensor_map(x._ary.ctypes.data, rows, cols, box_rows, row_bytes).view(np.uint64)
    from cuda.bindings import driver as b
    made = ask_driver(
        b.cuTensorMapEncodeTiled,
        b.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, x.device_ctypes_pointer.value,
        [b.cuuint64_t(cols), b.cuuint64_t(rows)], [b.cuuint64_t(2 * cols)],
        [b.cuuint32_t(row_bytes // 2), b.cuuint32_t(box_rows)], [b.cuuint32_t(1)] * 2,
        b.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(b.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{row_bytes}B"),
        b.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        b.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
    return np.frombuffer(ctypes.string_at(made.getPtr(), 8 * MAP_WORDS), np.uint64)


class TensorMapWords:
    "The tensor maps of a launch, as the first argument of a kernel."
    def __init__(
        self,
        *boxes,  # (x, rows): a device array made by `gemm_args`, and the rows of a box
    ):
        self.arrays = [x for x, _ in boxes]
        words = np.concatenate([np.zeros(WORDS_BEFORE, np.uint64), *(_map_words(*box) for box in boxes)])
        self.words = tuple(words)


def map_of(
    x,              # (rows, cols), a device array made by `gemm_args`
    box_rows: int,  # of the box a copy moves
    row_bytes: int = 128,  # of each of them, and of the swizzle: 128, 64 or 32
):                  # (16,) uint64, device array
    "A matrix's tensor map in a separate array, which a kernel must fence."
    return cuda.to_device(_map_words(x, box_rows, row_bytes))


def tma_counts(
    g: Gemm,
) -> bool:
    "Is there anything to multiply, with no more rows and columns than the TMA can count?"
    return bool(g.m and g.n and g.k and g.alpha and max(g.m, g.n, g.k) <= LONGEST)
