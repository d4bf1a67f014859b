"""Around a planned main loop: where a thread copies from and to, what it reads, and how it stores results.

The tiles of A and B are in a ring in shared memory: one flat array, one stage after another. A stage has 2·bk
rows. The first bk are A's tile, transposed: each row is one k, with all bm numbers of that column of A, plus
the padding. The others are B's tile, each with the bn numbers of a row of B. So a step's operands come from
two rows. All positions are byte addresses, so anything that is the same in every stage is a constant in the
machine code.
"""
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from ..ptx.core import global_address, shared_address
from ..static import static, unrolled
from .tiles import WarpTile
from numba import cuda, int32, int64, uint32, uint64


MOST_K = 2**31 - 2**10  # columns of A: what is left of them is counted in 32 bits


class TileAddresses(NamedTuple):
    "Two addresses in shared memory, or two strides, in bytes."
    a: int  # in A's part of a stage
    b: int  # in B's

class SourceAddress(NamedTuple):
    "The next elements a thread copies."
    array: object  # A or B, flat
    address: int   # of the first element
    pass_stride_bytes: int    # from the rows of one pass to those of the next
    k_tile_stride_bytes: int  # from one k tile to the next
    rows: int      # remaining to the edge of the matrix, `MOST_K` at most: int32
    cols: int

class ThreadWork(NamedTuple):
    "A thread's share of its block's work."
    row: int    # of its first result, in the block's tile of C
    col: int
    factors: TileAddresses  # its operands, in the first stage
    copied: TileAddresses   # where it copies to, in the first stage
    a_row: int  # of the first element it copies, in the tile of A
    a_col: int
    b_row: int  # the same for the tile of B
    b_col: int


def turn_of(
    tile: WarpTile,
) -> int:
    """By how many places each slice's columns of A are turned within groups of four rows, relative to the
    slice before. A warp copies columns of all slices at once, and would store them in the same banks."""
    return 4 // tile.slices if tile.slices > 1 and tile.threads // tile.bk % 4 == 0 else 0


@cuda.jit(device=True)
def turned(row, places):
    "The row to which one is turned within its group of four."
    return uint32(row // uint32(4) * uint32(4) + uint32(row + places) % uint32(4))


# These functions are split up for the reader. With inline="always" Numba inlines them, so the compiler
# doesn't see the splits.

@cache
def thread_work(
    tile: WarpTile,
    first_result: Callable,  # device function: thread → row and column of its first result
    hidden: bool,  # hide from the compiler how operand addresses depend on the thread number?
    width: int = 4,  # floats that a copy of B moves: 4, or 2 or 1 where rows aren't aligned to 16 bytes
) -> Callable:
    "A device function: a thread's `ThreadWork`."
    bn, bk, steps = tile.bn, tile.bk, tile.steps
    a_width = tile.bm + tile.pad_a  # of a row of A's transposed tile
    b_start = bk * a_width
    slices, slice_threads = tile.slices, tile.threads // tile.slices
    turn = turn_of(tile)

    @cuda.jit(device=True, inline="always")
    def work_of(
        ring,    # the array in shared memory
        thread,  # number in the block
    ):
        first_step = uint32(0)
        if slices == 1: row, col = first_result(thread)
        else:
            row, col = first_result(uint32(thread % uint32(slice_threads)))
            first_step = uint32(thread // uint32(slice_threads) * uint32(steps))
        a_row, a_col = uint32(thread // bk), uint32(thread % bk)
        b_row, b_col = uint32(thread // (bn // 4)), uint32(thread % (bn // 4) * width)
        ring_row = turned(a_row, a_col // uint32(steps) * uint32(turn))
        copied = TileAddresses(shared_address(ring, uint64(a_col * uint32(a_width) + ring_row)),
                               shared_address(ring, uint64(b_start + b_row * uint32(bn) + b_col)))
        factors_a = shared_address(ring, uint64(first_step * uint32(a_width) + row))
        factors_b = shared_address(ring, uint64(b_start + first_step * uint32(bn) + col))
        if hidden:  # each lane shuffles from itself: a no-op the compiler can't see through
            lane = int32(thread % 32)
            factors_a = uint32(cuda.shfl_sync(0xFFFFFFFF, int32(factors_a), lane))
            factors_b = uint32(cuda.shfl_sync(0xFFFFFFFF, int32(factors_b), lane))
        return ThreadWork(row, col, TileAddresses(factors_a, factors_b), copied, a_row, a_col, b_row, b_col)
    return work_of


@cache
def thread_sources(
    tile: WarpTile,
) -> Callable:
    "A device function: the `SourceAddress` in A and in B that a thread copies from."
    bk = tile.bk
    pass_a = tile.threads // bk  # rows a pass
    pass_b = 4 * tile.threads // tile.bn
    k_tile_bytes = 4 * bk  # of a row of A, or of a column of B

    @cuda.jit(device=True, inline="always")
    def left(count): return int32(min(count, int64(MOST_K)))  # in 32 bits, so that fewer registers are needed

    @cuda.jit(device=True, inline="always")
    def sources(
        a, b,        # flat
        m, n, k,     # sizes of the matrices
        row0, col0,  # where the tile of C starts
        k0,          # the first column of A, the first row of B
        work,        # `ThreadWork`
    ):
        from_a = global_address(a, uint64((row0 + work.a_row) * k + k0 + work.a_col))
        from_b = global_address(b, uint64((k0 + work.b_row) * n + col0 + work.b_col))
        return (SourceAddress(a, from_a, uint64(4 * pass_a * k), uint64(k_tile_bytes),
                              left(m - row0 - work.a_row), left(k - k0 - work.a_col)),
                SourceAddress(b, from_b, uint64(4 * pass_b * n), uint64(k_tile_bytes * n),
                              left(k - k0 - work.b_row), left(n - col0 - work.b_col)))
    return sources


@cache
def group_writer(
    tile: WarpTile,
    write4: Callable,  # device function (c, row, col, four results, alpha, beta)
) -> Callable:
    "A device function: write all of a thread's results, four adjacent ones at a time, from the tuple."
    rows, cols = tile.shape
    step_m, step_n = tile.step
    tm = tile.tm

    @cuda.jit(device=True)
    @unrolled
    def write_all(
        c,         # (m, n)
        acc,       # tuple of the thread's results, row by row
        row, col,  # position of the first
        alpha, beta,
    ):
        for i in static(rows):
            for j in static(cols // 4):
                four = acc[cols * i + 4 * j:cols * i + 4 * j + 4]
                write4(c, row + (i // tm * step_m + i % tm), col + j * step_n, four, alpha, beta)
    return write_all
