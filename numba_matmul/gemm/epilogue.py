"""Accumulators are scaled, rounded to bfloat16 and stored: by each thread, or by TMA; immediately, or while
the next tile is multiplied."""
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import NamedTuple

import numpy as np
from ..ptx.ampere import (
    cvt_rn_bf16x2_f32, ex2_approx_ftz_f32, rcp_approx_ftz_f32, store_pair, unpack_bf16)
from ..ptx.hopper import (
    bar_sync, cp_async_bulk_commit_group, cp_async_bulk_tensor_2d_shared_to_global,
    cp_async_bulk_wait_group_read, fence_proxy_async, pack_scaled, stmatrix)
from ..static import static, unrolled
from .pipeline import swizzle_128b
from .tiles import BOX, ROW, WgmmaTile
from numba import cuda, float32, int64, uint16, uint32, uint64


class Target(NamedTuple):
    "Where results go."
    array: object  # C, flat
    rows: int
    cols: int
    alpha: float   # factor of A·B
    beta: float    # factor of C

@cache
def pair_writer(
    predicated: bool,  # may the tile extend past the edge of C?
    width: int,        # are rows of C aligned to two numbers (2 or more), or not (1)?
    read_c: bool,      # is beta not 0?
) -> Callable:
    "A device function: round two adjacent elements of a row to bfloat16, and write them."
    @cuda.jit(device=True)
    def write(
        to,         # `Target`
        row, col,   # of the first of the two
        low, high,  # their sums
    ):
        if not predicated or (row < to.rows and col < to.cols):
            c, beta = to.array, to.beta
            left, right = to.alpha * low, to.alpha * high
            at = uint64(row * to.cols + col)
            both = width > 1 or col + 1 < to.cols
            if read_c:
                left += beta * unpack_bf16(uint32(c[at]))[0]
                if both: right += beta * unpack_bf16(uint32(c[at + uint64(1)]))[0]
            pair = cvt_rn_bf16x2_f32(left, right)
            if width > 1: store_pair(c, at, pair)
            else:
                c[at] = uint16(pair & uint32(0xFFFF))
                if both: c[at + uint64(1)] = uint16(pair >> uint32(16))
    return write


@cache
def mma_tile_writer(
    rows: int,  # rows of matrices of 16×8
    cols: int,  # matrices in each
    write: Callable,  # see `pair_writer`
) -> Callable:
    "A device function: write all of a lane's results."
    @cuda.jit(device=True)
    @unrolled
    def write_all(
        to,        # `Target`
        row, col,  # of the lane's first sum
        sums,      # four per matrix: two adjacent ones, and two that are eight rows below
    ):
        for i in static(rows):
            for j in static(cols):
                write(to, row + 16 * i, col + 8 * j, sums[4 * (cols * i + j)], sums[4 * (cols * i + j) + 1])
                write(to, row + 16 * i + 8, col + 8 * j,
                      sums[4 * (cols * i + j) + 2], sums[4 * (cols * i + j) + 3])
    return write_all


# Split-K
#
# If blocks share a tile of C, each writes its part of the sums to a workspace, and a kernel adds them up.

@cache
def partial_sum_writer(
    predicated: bool,  # may the tile extend past the edge of C?
) -> Callable:
    "A device function: write two adjacent elements of a row of the workspace."
    @cuda.jit(device=True)
    def write(to, row, col, low, high):
        if not predicated or (row < to.rows and col < to.cols):
            at = uint64(row * to.cols + col)
            to.array[at] = low
            to.array[at + uint64(1)] = high
    return write

@cuda.jit(lineinfo=True, launch_bounds=256)
def split_k_reduce_kernel(
    workspace,  # (split_k·size,) float32
    split_k,    # parts of each sum
    c,          # (size,) bits of bfloat16
    size,       # m·n
    alpha,      # factor of A·B
    beta,       # factor of C
):
    "C ← alpha · the sum of the parts + beta · C."
    i = int64(cuda.blockIdx.x) * 256 + cuda.threadIdx.x
    if i < size:
        total = float32(0)
        for part in range(split_k): total += workspace[part * size + i]
        value = alpha * total
        if beta != 0: value += beta * unpack_bf16(uint32(c[i]))[0]
        c[i] = uint16(cvt_rn_bf16x2_f32(value, value) & uint32(0xFFFF))


# By TMA
#
# A warpgroup's results are a tile of 64 rows. Boxes of 64 columns go to shared memory with `stmatrix`,
# swizzled, and from there to C by TMA, 8 KB each. Lesson 17 explains each line.

class PendingTile(NamedTuple):
    "A warpgroup's results that haven't been stored yet."
    packed: tuple  # see `pack_scaled`
    row: int       # of the warpgroup's part in C
    col: int
    valid: bool    # False before the first tile

class TmaStore(NamedTuple):
    "What a thread of a consumer warpgroup needs for storing results by TMA."
    barrier: int   # number of the warpgroup's named barrier
    elected: bool  # is this the warpgroup's elected thread, which issues the TMA stores?
    releases: bool  # is this its warp's elected thread, which releases stages?
    first_box: int  # address of the warpgroup's first box of 64×64 in shared memory
    lane_row: int  # address of the lane's row
    swizzle: int   # for that row
    map_c: int     # address of C's tensor map

@cuda.jit(device=True)
def tma_store_of(
    thread, storage,
    map_c,  # address of C's tensor map
):
    "The `TmaStore` of a consumer thread."
    warpgroup = uint32(thread // 128 - 1)
    lane = uint32(thread % 32)
    # `stmatrix`: each lane supplies a row address, half of them for its right half
    row = uint32(thread % 128 // 32 * 16 + lane % 16)
    first_box = uint32(storage.c_tiles + warpgroup * uint32(2 * BOX))
    swizzle = uint32(swizzle_128b(row, uint32(lane // 16)) * 16)
    lane_row = uint32(first_box + uint32(row * uint32(ROW)))
    return TmaStore(uint32(warpgroup + 1), thread % 128 == 0, lane == 0, first_box, lane_row, swizzle, map_c)


@cache
def boxes_storer(
    first: int, end: int,     # which boxes, of 64 columns each
    stride_bytes: int = BOX,  # from one box in shared memory to the next
    reused: bool = True,      # are there two boxes, which the previous round may still be reading?
) -> Callable:
    "A device function (`PendingTile`, `TmaStore`): a warpgroup stores boxes of results."
    @cuda.jit(device=True)
    @unrolled
    def store_boxes(pending, store):
        for i in static(first, end):
            # the box is free
            if reused:
                if store.elected: cp_async_bulk_wait_group_read(1)  # its previous contents have been read
                bar_sync(store.barrier, uint32(128))
            elif i == 0: bar_sync(store.barrier, uint32(128))  # all warps are done with the ring
            # fill it, and make it visible to the TMA
            box = uint32(stride_bytes * (i % 2 if reused else i))
            stmatrix(uint32(store.lane_row + box), store.swizzle, pending.packed, 16 * i, 4)
            fence_proxy_async()
            bar_sync(store.barrier, uint32(128))
            # one thread stores it
            if store.elected and pending.valid:
                cp_async_bulk_tensor_2d_shared_to_global(store.map_c, uint32(store.first_box + box),
                                                         uint32(pending.col + uint32(64 * i)), pending.row)
                cp_async_bulk_commit_group()
    return store_boxes


# The epilogues by name
#
# A persistent kernel picks its epilogue by name. `finish` receives a tile's accumulators. `drain` is called
# when the block has no tiles left. *overlapped*: results are kept as pairs of bfloat16, and while the first
# k tiles of the next tile of C are multiplied, one box is stored after each. *staged*: they are stored by
# TMA, but before the next tile starts. *direct*: each thread writes its results, after reading C if beta is
# not 0. *split_k*: each thread writes its accumulators to a workspace.

class Epilogue(NamedTuple):
    "What happens to a tile's accumulators."
    boxes_left: int   # carried over to the next tile, which stores one after each of its first k tiles
    finish: Callable  # device function, at the end of a tile: packs or stores it; returns what's pending
    drain: Callable   # device function, at the end of the block: stores what is still pending

@cuda.jit(device=True)
def drain_nothing(pending, storage, store, warpgroup): pass

@cuda.jit(device=True)
def drain_box(storage, warpgroup):
    "Where a consumer stages its last tile: in its own 64 rows of A's tiles, which no other warpgroup reads."
    return uint32(storage.ab_tiles + warpgroup * uint32(BOX))

@cache
def overlapped_epilogue(
    tile: WgmmaTile,
    predicated: bool,  # may it extend past the edge of C? The TMA doesn't need a predicate
    read_c: bool,      # is beta not 0? Only `direct_epilogue` can read C
    scaled: bool,      # is alpha not 1?
) -> Epilogue:
    "Results are rounded, and stored by TMA while the next tile is multiplied; the last ones immediately."
    store_last = boxes_storer(0, tile.bn // 64, tile.stage_bytes, False)
    one = np.float32(1)

    @cuda.jit(device=True)
    def finish(acc, pending, to, part, row, col, thread, store):
        return PendingTile(pack_scaled(acc, to.alpha if scaled else one), row, col, True)

    @cuda.jit(device=True)
    def drain(pending, storage, store, warpgroup):
        first_box = drain_box(storage, warpgroup)
        lane_row = uint32(first_box + uint32(store.lane_row - store.first_box))
        store_last(pending, TmaStore(store.barrier, store.elected, store.releases, first_box, lane_row,
                                     store.swizzle, store.map_c))
    return Epilogue(tile.bn // 64, finish, drain)

@cache
def staged_epilogue(tile: WgmmaTile, predicated: bool, read_c: bool, scaled: bool) -> Epilogue:
    "Results are rounded, and stored by TMA before the next tile starts."
    pack = overlapped_epilogue(tile, predicated, read_c, scaled).finish
    store_all = boxes_storer(0, tile.bn // 64)

    @cuda.jit(device=True)
    def finish(acc, pending, to, part, row, col, thread, store):
        pending = pack(acc, pending, to, part, row, col, thread, store)
        store_all(pending, store)
        return pending
    return Epilogue(0, finish, drain_nothing)


@cache
def direct_epilogue(
    tile: WgmmaTile, predicated: bool, read_c: bool, scaled: bool,  # as for the others
    write_pair: Callable = None,  # see `pair_writer`
) -> Epilogue:
    "Each thread writes its results, and reads its elements of C first if beta is not 0."
    write = mma_tile_writer(1, tile.bn // 8, write_pair or pair_writer(predicated, 8, read_c))

    @cuda.jit(device=True)
    def finish(acc, pending, to, part, row, col, thread, store):
        lane = uint32(thread % 32)
        write(Target(to.array, to.rows * (part + 1), to.cols, to.alpha, to.beta),
              to.rows * part + row + thread % 128 // 32 * 16 + lane // 4,
              int64(col) + lane % 4 * 2, acc)
        return pending
    return Epilogue(0, finish, drain_nothing)

@cache
def split_k_epilogue(tile: WgmmaTile, predicated: bool, read_c: bool, scaled: bool) -> Epilogue:
    "Each thread writes its sums to a workspace, where the parts are stacked vertically."
    return direct_epilogue(tile, predicated, read_c, scaled, partial_sum_writer(predicated))

EPILOGUES = dict(overlapped=overlapped_epilogue, staged=staged_epilogue, direct=direct_epilogue,
                 split_k=split_k_epilogue)


# Fused operations
#
# A layer of a network adds a bias to each column, applies a function, and adds a residual. Here that happens
# while the sums are still in registers, before rounding; then they are stored by TMA as usual. Anything
# switched off isn't in the machine code. `Target.array` is then a pair: the bias and the residual, each as
# words of two numbers.

STEEP = np.float32(-2 * (2 / np.pi) ** 0.5 * np.log2(np.e))
CUBE = np.float32(0.044715 * STEEP)

@cuda.jit(device=True)
def gelu(x):
    "x·sigmoid(2u), u = √(2/π)·(x + 0.044715·x³): the tanh form of GELU, with tanh(u) = 2·sigmoid(2u) - 1."
    return x * rcp_approx_ftz_f32(float32(1) + ex2_approx_ftz_f32(x * (STEEP + CUBE * (x * x))))

@cuda.jit(device=True)
def relu(x): return float32(0) if x < float32(0) else x  # and NaN stays NaN

@cuda.jit(device=True)
def identity(x): return x

ACTIVATIONS = {None: identity, "relu": relu, "gelu": gelu}

@cache
def pair_finisher(
    predicated: bool,  # may the tile extend past the edge of C?
    bias: bool, activation: str, residual: bool,  # see `fused_epilogue`
) -> Callable:
    "A device function: two adjacent elements of a row, from their sums to bfloat16."
    activate = ACTIVATIONS[activation]

    @cuda.jit(device=True)
    def finish_pair(
        to,         # `Target`
        row, col,   # of the first of the two
        of_bias, of_residual,  # where their words are
        low, high,  # their sums
    ):
        inside = not predicated or (row < to.rows and col < to.cols)
        if bias and inside:
            left, right = unpack_bf16(to.array[0][of_bias])
            low += left
            high += right
        low, high = activate(low), activate(high)
        if residual and inside:
            left, right = unpack_bf16(to.array[1][of_residual])
            low += left
            high += right
        return cvt_rn_bf16x2_f32(low, high)
    return finish_pair


@cache
def finished_pairs(
    count: int,  # groups of eight columns
    finish_pair: Callable,  # see `pair_finisher`
) -> Callable:
    "A device function: a lane's share of a warpgroup's results, in the order of `pack_scaled`."
    @cuda.jit(device=True)
    @unrolled
    def finished(
        to,        # `Target`
        row, col,  # of the lane's first sum
        of_bias, upper, lower,  # where the words of its columns and of its two rows start
        acc,       # four sums per group
    ):
        packed = ()
        for i in static(count):
            words = uint64(4 * i)
            packed = packed + (
                finish_pair(to, row, col + 8 * i, of_bias + words, upper + words,
                            acc[4 * i], acc[4 * i + 1]),
                finish_pair(to, row + 8, col + 8 * i, of_bias + words, lower + words,
                            acc[4 * i + 2], acc[4 * i + 3]))
        return packed
    return finished

@cache
def fused_epilogue(
    tile: WgmmaTile, predicated: bool, read_c: bool, scaled: bool,  # as for the others
    bias: bool,       # is one added to each column?
    activation: str,  # a key of `ACTIVATIONS`
    residual: bool,   # is one added last?
) -> Epilogue:
    "The epilogue of a layer: the overlapped one, with more work before results are rounded."
    if read_c or scaled:
        raise ValueError("a layer doesn't have alpha or beta: its epilogue takes read_c=False, scaled=False")
    overlapped = overlapped_epilogue(tile, predicated, read_c, scaled)
    finished = finished_pairs(tile.bn // 8, pair_finisher(predicated, bias, activation, residual))

    @cuda.jit(device=True)
    def finish(acc, pending, to, part, row, col, thread, store):
        lane = uint32(thread % 32)
        my_row = int64(row) + thread % 128 // 32 * 16 + lane // 4
        my_col = int64(col) + lane % 4 * 2
        upper = uint64(my_row * to.cols + my_col) >> uint64(1)
        lower = upper + (uint64(8 * to.cols) >> uint64(1))
        packed = finished(to, my_row, my_col, uint64(my_col) >> uint64(1), upper, lower, acc)
        return PendingTile(packed, row, col, True)
    return overlapped._replace(finish=finish)

def fused_name(
    bias: bool, activation: str, residual: bool,  # see `fused_epilogue`
) -> str:  # a key of `EPILOGUES`
    "The name of a layer's epilogue."
    return "fused" + "_bias" * bias + (f"_{activation}" if activation else "") + "_residual" * residual

for bias, activation, residual in product((False, True), ACTIVATIONS, (False, True)):
    EPILOGUES[fused_name(bias, activation, residual)] = partial(
        fused_epilogue, bias=bias, activation=activation, residual=residual)
