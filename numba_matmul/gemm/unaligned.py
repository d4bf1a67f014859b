"""How a thread's results get to C where its rows don't start at multiples of 16 bytes.

Results are then stored one by one. A thread has four neighbors of a row, so lanes next to each other would
store results that are four apart, and every store would touch as many sectors as all of them do. Here lanes
exchange results first.
"""
from collections.abc import Callable
from functools import cache

from ..ptx.core import store4
from ..static import static, unrolled
from .tiles import WarpTile
from numba import cuda, int32, int64, uint32, uint64


def can_stage(
    tile: WarpTile,
) -> bool:
    "Is there room for `staged_writer`?"
    return tile.wn % 32 == 0 and 16 * tile.step[0] * (tile.wn + 4) * tile.threads // 128 <= tile.shared_bytes


@cache
def staged_writer(
    tile: WarpTile,  # see `can_stage`
    predicated: bool,  # may results lie outside C?
    read_c: bool,      # may beta be other than 0?
) -> Callable:
    "A device function: write all results. Each warp puts them into shared memory first, to store rows of C."
    rows, cols = tile.shape
    step_m, step_n = tile.step
    wm, wn, tm = tile.wm, tile.wn, tile.tm
    warps_across, pitch = tile.bn // wn, wn + 4
    region = step_m * pitch

    @cuda.jit(device=True)
    @unrolled
    def write_all(c, acc, ring, thread, work, row0, col0, alpha, beta):
        warp, lane = uint32(thread // uint32(32)), uint32(thread % uint32(32))
        warp_row = uint32(warp // uint32(warps_across) * uint32(wm))
        warp_col = uint32(warp % uint32(warps_across) * uint32(wn))
        base = uint32(warp * uint32(region))
        own = uint32(base + (work.row - warp_row) * uint32(pitch) + work.col - warp_col)
        # what is left to the edge of C, at most a warp's tile
        rows_left = int32(min(int64(c.shape[0]) - row0 - warp_row, int64(wm)))
        cols_left = int32(min(int64(c.shape[1]) - col0 - warp_col, int64(wn))) - int32(lane)
        row, col = uint64(row0 + warp_row), uint64(col0 + warp_col + lane)
        cuda.syncthreads()  # no thread needs the ring anymore
        for group in static(rows // tm):
            for i in static(tm):
                for j in static(cols // 4):
                    four = acc[cols * (tm * group + i) + 4 * j:cols * (tm * group + i) + 4 * j + 4]
                    store4(ring, uint64(own + uint32(i * pitch + j * step_n)),
                           alpha * four[0], alpha * four[1], alpha * four[2], alpha * four[3])
            cuda.syncwarp()
            # read all before the first is stored, or each store would wait for its own read
            found = ()
            for i in static(step_m):
                for j in static(0, wn, 32):
                    found = found + (ring[uint64(base + uint32(i * pitch + j) + lane)],)
            cuda.syncwarp()
            for i in static(step_m):
                for j in static(0, wn, 32):
                    if not predicated or (group * step_m + i < rows_left and j < cols_left):
                        at = row + uint64(group * step_m + i), col + uint64(j)
                        y = found[i * wn // 32 + j // 32]
                        if read_c: y += beta * c[at]
                        c[at] = y
    return write_all


@cache
def single_writer(
    predicated: bool,  # may results lie outside C?
    read_c: bool,      # may beta be other than 0?
    step: int,         # columns from one of the four results to the next
) -> Callable:
    "A device function: C ← alpha·x + beta·C for four results of a row, one by one."
    @cuda.jit(device=True)
    @unrolled
    def write4(
        c,         # (m, n)
        row, col,  # where the first belongs
        x,         # the four
        alpha, beta,
    ):
        for i in static(4):
            here = col + i * step
            if not predicated or (row < int64(c.shape[0]) and here < int64(c.shape[1])):
                at = uint64(row), uint64(here)  # unsigned: no index counts from the end
                y = alpha * x[i]
                if read_c: y += beta * c[at]
                c[at] = y
    return write4
