"""The results of a product of parts: sums and cross products are joined, and the scales of A's rows undone.
Where blocks have parts of sums, a kernel adds them up and does that."""
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from ..ptx.core import store2
from ..static import static, unrolled
from .epilogue import Epilogue, drain_nothing
from .split import LO
from .tiles import WgmmaTile
from numba import cuda, float32, int64, uint64


class JoinedTarget(NamedTuple):
    "Where results go."
    array: object    # C, flat; or the workspace, for parts of sums
    rows: int
    cols: int
    alpha: float     # factor of A·B
    beta: float      # factor of C
    inverse: object  # (rows,) float32: what undoes the scales of A's rows

@cache
def float32_pair_writer(predicated: bool, width: int, read_c: bool, is_split: bool) -> Callable:
    "A device function: write two neighbors of a row of C, or of a part of the sums."
    @cuda.jit(device=True)
    def write(to, part, row, col, low, high):
        if not predicated or (row < to.rows and col < to.cols):
            at = uint64((part * to.rows + row) * to.cols + col)
            both = not predicated or col + 1 < to.cols
            if not is_split:
                low, high = to.alpha * low, to.alpha * high
                if read_c:
                    low += to.beta * to.array[at]
                    if both: high += to.beta * to.array[at + uint64(1)]
            if width > 1: store2(to.array, at, low, high)
            else:
                to.array[at] = low
                if both: to.array[at + uint64(1)] = high
    return write

@cache
def float32_epilogue(
    tile: WgmmaTile,   # of two parts
    predicated: bool,  # may it reach over the edge of C?
    width: int,        # floats a store: 2, or 1 where rows of C don't start at multiples of 8 bytes
    read_c: bool,      # is beta not 0?
    is_split: bool,    # are sums cut into parts?
) -> Epilogue:
    """Each thread adds the cross products to its sums, undoes the scales, and stores: results, or its part of
    the sums."""
    write = float32_pair_writer(predicated, width, read_c, is_split)
    cols, over_lo = tile.bn // 8, np.float32(1 / LO)

    @cuda.jit(device=True)
    def factor(to, row):
        if is_split or (predicated and row >= to.rows): return float32(1)
        return to.inverse[row]

    @cuda.jit(device=True)
    @unrolled
    def finish(acc, pending, to, part, row, col, thread, store):
        cross, sums = acc
        lane, warp = thread % 32, thread % 128 // 32
        row, col = int64(row) + 16 * warp + lane // 4, int64(col) + 2 * (lane % 4)
        above, below = factor(to, row), factor(to, row + 8)
        for j in static(cols):
            i = 4 * j
            write(to, part, row, col + 8 * j,
                  (sums[i] + cross[i] * over_lo) * above, (sums[i + 1] + cross[i + 1] * over_lo) * above)
            write(to, part, row + 8, col + 8 * j,
                  (sums[i + 2] + cross[i + 2] * over_lo) * below,
                  (sums[i + 3] + cross[i + 3] * over_lo) * below)
        return pending
    return Epilogue(0, finish, drain_nothing)

@cuda.jit(lineinfo=True, launch_bounds=256)
def reduce_scaled_kernel(
    workspace,  # (split_k·size,) float32
    split_k,    # parts of each sum
    c,          # (size,) float32
    size,       # m·n
    cols,       # n
    alpha,      # factor of A·B
    beta,       # factor of C
    inverse,    # (m,) float32: what undoes the scales of A's rows
    declined,   # (1,) int32: is there nothing to add?
):
    "C ← alpha · the scaled sum of the parts + beta · C."
    i = int64(cuda.blockIdx.x) * 256 + cuda.threadIdx.x
    if i < size and declined[0] == 0:
        total = float32(0)
        for part in range(split_k): total += workspace[part * size + i]
        value = alpha * (total * inverse[i // cols])
        if beta != 0: value += beta * c[i]
        c[i] = value
