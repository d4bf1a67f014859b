"""Row-major copies of transposed views, for kernels that need row-major matrices.

Copied row by row, a transposed matrix is read number by number from all over memory. Here a block takes a
tile through shared memory, so that both its reads and its writes are 256 bytes in a row.
"""
from functools import cache

import numpy as np
import torch
from numba import config, cuda, float32, int32, int64, uint32, uint64

from .arrays import cdiv, to_d, to_h
from .gemm.args import device_matrix
from .gemm.plan import Launch, Plan, kept_plan, simulate_plan, stream_of
from .kernels.k06_vectorized import four_reader
from .static import static, unrolled

TILE = 64          # rows and columns of a block's tile
PADDED = 64, 65    # of it in shared memory: with one more column, a column uses every bank
THREADS = 256      # of a block: 16 for each row of the tile
SMALL = 512 * 512  # PyTorch copies matrices with fewer numbers: our call would take longer than the copy


@cache
def transpose_kernel(
    width: int,  # floats a load, see `four_reader`
):
    "A kernel, one block per tile: y = xᵀ."
    read4 = four_reader(True, width)

    @cuda.jit(lineinfo=True, launch_bounds=THREADS)
    @unrolled
    def transpose_kernel(
        x,           # (rows·cols,) float32
        rows, cols,  # int64
        y,           # (cols·rows,) float32
    ):
        tile = cuda.shared.array(PADDED, float32)
        thread, block = uint32(cuda.threadIdx.x), int64(cuda.blockIdx.x)
        across = (cols + TILE - 1) // TILE
        row0, col0 = block // across * TILE, block % across * TILE

        # all loads first, so that they're in flight together
        quarter, left = thread // 16, 4 * (thread % 16)
        inside = int32(min(cols - col0 - left, int64(4)))
        fours = ()
        for i in static(4):
            row = row0 + quarter + 16 * i
            fours = fours + (read4(x, uint64(row * cols + col0 + left), inside if row < rows else int32(0)),)
        for i in static(4):
            for j in static(4): tile[quarter + 16 * i, left + j] = fours[i][j]
        cuda.syncthreads()

        # a row of y is a column of the tile
        lane, first = thread % TILE, thread // TILE
        for i in static(16):
            col = col0 + first + 4 * i
            if row0 + lane < rows and col < cols: y[col * rows + row0 + lane] = tile[lane, first + 4 * i]
    return transpose_kernel


def _transpose_plan(x, y, width):
    "The plan of y = xᵀ, and its operands."
    rows, cols = x.shape
    blocks = cdiv(rows, TILE) * cdiv(cols, TILE)
    args = x.ravel(), np.int64(rows), np.int64(cols), y.ravel()
    return Plan([Launch(transpose_kernel(width), blocks, THREADS, args)]), (x, y)


def row_major(
    x: torch.Tensor,  # a matrix, on the current GPU
) -> torch.Tensor:
    "The same numbers row by row: `x` itself, or a copy."
    if x.is_contiguous(): return x
    turned = x.t()
    if x.dtype != torch.float32 or x.numel() < SMALL or not turned.is_contiguous():
        return x.contiguous()
    width = 4 if turned.shape[1] % 4 == 0 and x.data_ptr() % 16 == 0 else 1
    if config.ENABLE_CUDASIM:
        plan, (_, y) = _transpose_plan(to_d(turned), to_d(np.empty(x.shape, np.float32)), width)
        simulate_plan(plan)
        return torch.from_numpy(to_h(y))
    y = x.new_empty(x.shape)
    def make():
        return _transpose_plan(device_matrix("x", turned, "float32"), device_matrix("y", y, "float32"), width)
    device = x.get_device()
    packed = kept_plan((_transpose_plan, device, x.shape, width), make)
    packed((x.data_ptr(), y.data_ptr()), stream_of(device))
    return y
