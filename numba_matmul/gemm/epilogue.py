"""Accumulators are scaled, rounded to bfloat16 and stored: by each thread, or by TMA; immediately, or while
the next tile is multiplied."""
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import NamedTuple

import numpy as np
from ..arrays import cdiv
from ..ptx.ampere import cvt_rn_bf16x2_f32, ex2_approx_ftz_f32, rcp_approx_ftz_f32, unpack_bf16
from ..ptx.core import add_tuples
from ..ptx.hopper import (
    bar_sync, cp_async_bulk_commit_group, cp_async_bulk_tensor_2d_shared_to_global,
    cp_async_bulk_wait_group_read, fence_proxy_async, ld_shared_v4, mbarrier_arrive_expect_tx, mbarrier_init,
    mbarrier_wait, pack_scaled, st_async_v4, stmatrix, stmatrix_trans)
from ..static import static, unrolled
from .pipeline import swizzle_128b
from .tiles import BOX, MOST_SHARED, ROW, WgmmaTile
from .writers import Target, mma_tile_writer, results_writer, tile_writer
from numba import cuda, float32, int64, uint32, uint64


# By TMA
#
# A warpgroup's results are a tile of 64 rows. Boxes of 64 columns go to shared memory with `stmatrix`,
# swizzled, and from there to C by TMA, 8 KB each. Lesson 17 explains each line. If C is transposed, these 64
# rows are columns of C, and a box has `c_box` rows of C.

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
    first_box: int  # address of the warpgroup's first box in shared memory
    lane_row: int  # address of the lane's row
    swizzle: int   # for that row
    map_c: int     # address of C's tensor map
    sums: int      # of `SharedStorage`
    parts: int     # of `SharedStorage`

def c_bytes(
    tile: WgmmaTile,
) -> int:
    "Staging for results on their way out: two boxes for each consumer."
    return 2 * tile.c_box * ROW * tile.warpgroups

@cache
def tma_store_of(
    tile: WgmmaTile,
) -> Callable:
    "A device function (thread, `SharedStorage`, address of C's tensor map): a consumer thread's `TmaStore`."
    m_major_c, boxes_bytes = tile.m_major_c, 2 * tile.c_box * ROW

    @cuda.jit(device=True)
    def tma_store(thread, storage, map_c):
        warpgroup = uint32(thread // 128 - 1)
        warp, lane = uint32(thread % 128 // 32), uint32(thread % 32)
        # `stmatrix`: each lane supplies a row address, half of them for its right half
        if m_major_c:
            row = uint32(lane // 16 * 8 + lane % 8)
            chunk = uint32(uint32(2) * warp + lane // 8 % 2)
        else:
            row = uint32(warp * 16 + lane % 16)
            chunk = uint32(lane // 16)
        first_box = uint32(storage.c_tiles + warpgroup * uint32(boxes_bytes))
        swizzle = uint32(swizzle_128b(row, chunk) * 16)
        lane_row = uint32(first_box + uint32(row * uint32(ROW)))
        return TmaStore(uint32(warpgroup + 1), thread % 128 == 0, lane == 0, first_box, lane_row, swizzle,
                        map_c, storage.sums, storage.parts)
    return tma_store


@cache
def box_filler(
    tile: WgmmaTile,
    first: int,  # of its columns
) -> Callable:
    "A device function: the threads of a warpgroup write a box of packed results to shared memory."
    groups, m_major_c = tile.c_box // 16, tile.m_major_c
    number, step = first // 4, 16 * ROW  # of its `packed`; from 16 rows to the next

    @cuda.jit(device=True)
    def fill_rows(store, box, packed):
        stmatrix(uint32(store.lane_row + box), store.swizzle, packed, number, groups)

    @cuda.jit(device=True)
    def fill_columns(store, box, packed):
        lane_row = uint32(uint32(store.lane_row + store.swizzle) + box)
        stmatrix_trans(lane_row, step, packed, number, groups)
    return fill_columns if m_major_c else fill_rows

@cache
def boxes_storer(
    tile: WgmmaTile,
    first: int, end: int,     # which boxes, `c_box` columns of the tile each
    stride_bytes: int = None,  # from one box in shared memory to the next; a box if None
    reused: bool = True,      # are there two boxes, which the previous round may still be reading?
) -> Callable:
    "A device function (`PendingTile`, `TmaStore`): a warpgroup stores boxes of results."
    m_major_c = tile.m_major_c
    starts = [min(tile.c_box * i, tile.bn - tile.c_box) for i in range(end)]  # the last two may overlap
    fill = [box_filler(tile, start) for start in starts]
    stride_bytes = stride_bytes or tile.c_box * ROW
    again = 0 if tile.c_boxes % 2 else -1  # a box that follows another one in the same place

    @cuda.jit(device=True)
    @unrolled
    def store_boxes(pending, store):
        for i in static(first, end):
            # the box is free
            if reused:
                if store.elected:  # its previous contents have been read
                    if i == again: cp_async_bulk_wait_group_read(0)
                    else: cp_async_bulk_wait_group_read(1)
                bar_sync(store.barrier, uint32(128))
            elif i == 0: bar_sync(store.barrier, uint32(128))  # all warps are done with the ring
            # fill it, and make it visible to the TMA
            box = uint32(stride_bytes * (i % 2 if reused else i))
            fill[i](store, box, pending.packed)
            fence_proxy_async()
            bar_sync(store.barrier, uint32(128))
            # one thread stores it
            if store.elected and pending.valid:
                row, col = pending.row, uint32(pending.col + uint32(starts[i]))
                if m_major_c: row, col = col, row
                cp_async_bulk_tensor_2d_shared_to_global(store.map_c, uint32(store.first_box + box), col, row)
                cp_async_bulk_commit_group()
    return store_boxes


# The epilogues by name
#
# A persistent kernel picks its epilogue by name. `finish` receives a tile's accumulators. `drain` is called
# when the block has no tiles left. *overlapped*: results are kept as pairs of bfloat16, and while the first
# k tiles of the next tile of C are multiplied, one box is stored after each. *staged*: they are stored by
# TMA, but before the next tile starts. *direct*: each thread writes its results, after reading C if beta is
# not 0. *split_k*: each thread sends its sums to blocks of its cluster, which add them up.

class Epilogue(NamedTuple):
    "What happens to a tile's accumulators."
    pending_boxes: int  # for the next tile, which stores one after each of its first k tiles
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
    store_last = boxes_storer(tile, 0, tile.c_boxes, tile.stage_bytes, False)
    store_staged = boxes_storer(tile, 0, tile.c_boxes)
    one = np.float32(1)

    @cuda.jit(device=True)
    def finish(acc, pending, to, part, row, col, thread, store):
        return PendingTile(pack_scaled(acc, to.alpha if scaled else one), row, col, True)

    @cuda.jit(device=True)
    def drain(pending, storage, store, warpgroup):
        first_box = drain_box(storage, warpgroup)
        lane_row = uint32(first_box + uint32(store.lane_row - store.first_box))
        store_last(pending, TmaStore(store.barrier, store.elected, store.releases, first_box, lane_row,
                                     store.swizzle, store.map_c, store.sums, store.parts))

    @cuda.jit(device=True)
    def drain_staged(pending, storage, store, warpgroup): store_staged(pending, store)
    return Epilogue(tile.c_boxes, finish, drain_staged if tile.m_major_c else drain)

@cache
def staged_epilogue(tile: WgmmaTile, predicated: bool, read_c: bool, scaled: bool) -> Epilogue:
    "Results are rounded, and stored by TMA before the next tile starts."
    pack = overlapped_epilogue(tile, predicated, read_c, scaled).finish
    store_all = boxes_storer(tile, 0, tile.c_boxes)

    @cuda.jit(device=True)
    def finish(acc, pending, to, part, row, col, thread, store):
        pending = pack(acc, pending, to, part, row, col, thread, store)
        store_all(pending, store)
        return pending
    return Epilogue(0, finish, drain_nothing)


@cache
def direct_epilogue(tile: WgmmaTile, predicated: bool, read_c: bool, scaled: bool) -> Epilogue:
    "Each thread writes its results, and reads its elements of C first if beta is not 0."
    write = tile_writer(tile, predicated, read_c)

    @cuda.jit(device=True)
    def finish(acc, pending, to, part, row, col, thread, store):
        write(to, row, col, thread, acc)
        return pending
    return Epilogue(0, finish, drain_nothing)

# Split-K
#
# If blocks of a cluster share a tile of C, each has a part of its sums. They divide up the columns, eight at
# a time: each block gets all parts of its columns, as they are finished, straight into its shared memory. It
# waits for them, and adds them up, always in the same order.

class SplitTarget(NamedTuple):
    "A `Target` for parts of sums."
    array: object
    rows: int
    cols: int
    alpha: float
    beta: float
    split_k: int  # parts of each sum: blocks of a cluster

def target_maker(
    is_split: bool,  # are sums divided into parts?
) -> Callable:
    "A device function: where results go."
    @cuda.jit(device=True)
    def whole(c, m, n, alpha, beta, split_k): return Target(c, m, n, alpha, beta)
    @cuda.jit(device=True)
    def split(c, m, n, alpha, beta, split_k): return SplitTarget(c, m, n, alpha, beta, split_k)
    return split if is_split else whole

GROUP_BYTES = 128 * 16  # of a warpgroup's sums of eight columns

def parts_bytes(
    tile: WgmmaTile, split_k: int,
) -> int:
    "Shared memory for the parts that a block may get."
    return tile.warpgroups * cdiv(tile.bn // 8, split_k) * split_k * GROUP_BYTES

def split_bytes(
    tile: WgmmaTile, split_k: int,
) -> int:
    "Shared memory of a block that shares sums: the ring, mbarriers, and parts that arrive, but no staging."
    return tile.shared_bytes + 16 + parts_bytes(tile, split_k)

def with_room(
    tile: WgmmaTile, split_k: int,
) -> WgmmaTile:
    "The tile with as many stages as leave room for the parts of sums; `ValueError` if that's too few."
    stages = (MOST_SHARED - split_bytes(tile._replace(stages=0), split_k)) // (tile.stage_bytes + 16)
    if stages < min(tile.stages, 3):
        raise ValueError(f"{tile}: {split_k} parts of sums leave room for only {stages} stages")
    return tile._replace(stages=min(tile.stages, stages))

@cache
def parts_expecter(tile: WgmmaTile) -> Callable:
    "A device function, for one thread: make the mbarrier that the parts arrive at."
    warpgroups, groups = tile.warpgroups, tile.bn // 8

    @cuda.jit(device=True)
    def expect_parts(storage, split_k):
        rank = uint32(uint32(cuda.blockIdx.x) % split_k)
        own = uint32((uint32(groups - 1) + split_k - rank) // split_k)
        mbarrier_init(storage.sums, uint32(1))
        mbarrier_arrive_expect_tx(storage.sums, uint32(own * split_k * uint32(warpgroups * GROUP_BYTES)))
    return expect_parts

@cache
def split_k_epilogue(
    tile: WgmmaTile, predicated: bool, read_c: bool, scaled: bool,
    write: Callable = None,  # device function (target, row, column, four sums); as bfloat16 if None
) -> Epilogue:
    "A block sends each part to the block that adds up those columns, and adds up and stores its own ones."
    groups, warpgroups = tile.bn // 8, tile.warpgroups
    write = write or mma_tile_writer(1, 1, results_writer(tile, predicated, read_c))
    zeros = (np.float32(0),) * 4

    @cuda.jit(device=True)
    @unrolled
    def finish(acc, pending, to, part, row, col, thread, store):
        split_k, rank = to.split_k, uint32(part)
        warpgroup, thread = uint32(thread // 128 - 1), uint32(thread % 128)
        # a round for each block's next columns; in a round, one place for each part and warpgroup
        step = uint32(uint32(warpgroups * GROUP_BYTES) * split_k)
        first = uint32(store.parts + uint32(GROUP_BYTES) * warpgroup + uint32(16) * thread)
        at, block = uint32(first + uint32(warpgroups * GROUP_BYTES) * rank), uint32(0)
        for i in static(groups):
            st_async_v4(at, block, acc[4 * i:4 * i + 4], store.sums)
            block = uint32(block + uint32(1))
            if block == split_k:
                block = uint32(0)
                at = uint32(at + step)
        # all parts of this block's columns
        mbarrier_wait(store.sums, uint32(0))
        row = int64(row) + thread // 32 * 16 + thread % 32 // 4
        group = rank
        while group < uint32(groups):
            at, total, other = first, zeros, uint32(0)
            while other < split_k:
                total = add_tuples(total, ld_shared_v4(at))
                at = uint32(at + uint32(warpgroups * GROUP_BYTES))
                other = uint32(other + uint32(1))
            write(to, row, int64(col) + group * 8 + thread % 4 * 2, total)
            group = uint32(group + split_k)
            first = at
        return pending
    return Epilogue(0, finish, drain_nothing)

@cache
def two_epilogues(
    one: Epilogue,  # any but the overlapped one
) -> Epilogue:
    "The epilogue of a warpgroup with two products, 64 rows each."
    finish_one = one.finish

    @cuda.jit(device=True)
    def finish(acc, pending, to, part, row, col, thread, store):
        finish_one(acc[0], pending, to, part, row, col, thread, store)
        finish_one(acc[1], pending, to, part, uint32(row + uint32(64)), col, thread, store)
        return pending
    return one._replace(finish=finish)

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
    if tile.m_major_c: raise ValueError(f"{tile}: a layer's C isn't transposed, so m_major_c must be 0")
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
