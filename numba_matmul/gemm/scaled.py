"""What kernel 20 does with scales of A and B, and its epilogues, which store bfloat16 or float32."""
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from ..arrays import cdiv
from ..ptx.ampere import cvt_rn_bf16x2_f32, store_pair, unpack_bf16
from ..ptx.core import add_scaled, store2
from ..ptx.hopper import (
    fence_mbarrier_init, ld_shared_v4, mbarrier_arrive, mbarrier_init, pack_scaled, st_shared_v4)
from ..static import static, unrolled
from .epilogue import (
    Epilogue, PendingTile, boxes_storer, drain_nothing, overlapped_epilogue, split_bytes, split_k_epilogue,
    with_room)
from .pipeline import PipelineState, empty_barrier, full_barrier, pipeline_advance, producer_acquire
from .schedule import persistent_scheduler
from .tiles import MOST_SHARED, WgmmaTile
from numba import cuda, float32, int32, int64, uint16, uint32, uint64


class ScaledTarget(NamedTuple):
    "Where results go, and the scales of A and B."
    array: object    # C, flat
    rows: int
    cols: int
    alpha: float     # factor of A·B
    beta: float      # factor of C
    split_k: int     # parts of each sum
    scale_a: object  # float32: one, one per row, or (m, k / 128), flat
    scale_b: object  # float32: one, one per column, or (k / 128, n / 128), flat
    step_a: int      # from a row's scale to the next one's; 0 if there's only one
    step_b: int

SCALINGS = "none", "one", "rows", "blocks"  # one: of each matrix; rows: of A, and columns of B

@cache
def factors_of(
    scaling: str,  # of `SCALINGS`; with blocks, the main loop has applied the scales
) -> tuple:
    """Device functions: the factor of a row of results, alpha included, and that of a column. Multiply them
    with each other first: a sum times a large scale of A may overflow where B's is small."""
    @cuda.jit(device=True)
    def row_factor(to, row):
        if scaling == "one": return to.alpha * (to.scale_a[0] * to.scale_b[0])
        if scaling == "rows": return to.alpha * to.scale_a[min(row, to.rows - 1) * to.step_a]
        return to.alpha

    @cuda.jit(device=True)
    def col_factor(to, col):
        if scaling == "rows": return to.scale_b[min(col, to.cols - 1) * to.step_b]
        return float32(1)
    return row_factor, col_factor


# By TMA

@cache
def scaled_packer(tile: WgmmaTile, scaling: str) -> Callable:
    "A device function: a lane's results, scaled and rounded to bfloat16, in the order of `pack_scaled`."
    row_factor, col_factor = factors_of(scaling)
    groups, spans = tile.bn // 8, tile.bn // 32

    @cuda.jit(device=True)
    def pack_alike(acc, to, row, col, thread): return pack_scaled(acc, row_factor(to, int64(0)))

    @cuda.jit(device=True)
    @unrolled
    def pack(acc, to, row, col, thread):
        lane = thread % 32
        row = int64(row) + thread % 128 // 32 * 16 + lane // 4
        above, below = row_factor(to, row), row_factor(to, row + 8)
        # a warp reads all columns' scales at once, and lanes get them from each other
        factors = ()
        for i in static(spans): factors = factors + (col_factor(to, int64(col) + 32 * i + lane),)
        packed = ()
        for i in static(groups):
            owner = int32(8 * (i % 4) + lane % 4 * 2)
            left = cuda.shfl_sync(0xFFFFFFFF, factors[i // 4], owner)
            right = cuda.shfl_sync(0xFFFFFFFF, factors[i // 4], owner + 1)
            packed = packed + (
                cvt_rn_bf16x2_f32(acc[4 * i] * (above * left), acc[4 * i + 1] * (above * right)),
                cvt_rn_bf16x2_f32(acc[4 * i + 2] * (below * left), acc[4 * i + 3] * (below * right)))
        return packed
    return pack if scaling == "rows" else pack_alike

@cache
def by_tma_epilogue(
    tile: WgmmaTile, scaling: str,
    overlapped: bool,  # are results stored while the next tile is multiplied?
) -> Epilogue:
    "Results are scaled, rounded to bfloat16, and stored by TMA."
    pack = scaled_packer(tile, scaling)
    store_all = boxes_storer(tile, 0, tile.c_boxes)

    @cuda.jit(device=True)
    def finish(acc, pending, to, part, row, col, thread, store):
        return PendingTile(pack(acc, to, row, col, thread), row, col, True)

    @cuda.jit(device=True)
    def finish_now(acc, pending, to, part, row, col, thread, store):
        pending = PendingTile(pack(acc, to, row, col, thread), row, col, True)
        store_all(pending, store)
        return pending
    if overlapped: return overlapped_epilogue(tile, False, False, False)._replace(finish=finish)
    return Epilogue(0, finish_now, drain_nothing)


# By each thread

class Stores(NamedTuple):
    "How threads write C themselves."
    float32_c: bool   # is C float32? If not, bfloat16
    predicated: bool  # may a tile extend past the edge of C?
    width: int        # numbers per store: 2, or 1 where rows of C aren't aligned to two
    read_c: bool      # is beta not 0?

class Elements(NamedTuple):
    "Device functions for the elements of C."
    before: Callable   # (c, at) → element, as float32
    write: Callable    # (c, at, value)
    write2: Callable   # (c, at, low, high), aligned to two elements

@cuda.jit(device=True)
def float32_before(c, at): return c[at]

@cuda.jit(device=True)
def write_float32(c, at, value): c[at] = value

@cuda.jit(device=True)
def bf16_before(c, at): return unpack_bf16(uint32(c[at]))[0]

@cuda.jit(device=True)
def write_bf16(c, at, value): c[at] = uint16(cvt_rn_bf16x2_f32(value, value) & uint32(0xFFFF))

@cuda.jit(device=True)
def write_two_bf16(c, at, low, high): store_pair(c, at, cvt_rn_bf16x2_f32(low, high))

FLOAT32 = Elements(float32_before, write_float32, store2)
BF16 = Elements(bf16_before, write_bf16, write_two_bf16)

@cache
def element_pair_writer(stores: Stores) -> Callable:
    "A device function: write two neighbors of a row of C."
    _, predicated, width, read_c = stores
    before, write_one, write_two = FLOAT32 if stores.float32_c else BF16

    @cuda.jit(device=True)
    def write(to, row, col, low, high):
        c = to.array
        if predicated and (row >= to.rows or col >= to.cols): return
        at = uint64(row * to.cols + col)
        both = width > 1 or col + 1 < to.cols
        if read_c:
            low += to.beta * before(c, at)
            if both: high += to.beta * before(c, at + uint64(1))
        if width > 1: write_two(c, at, low, high)
        else:
            write_one(c, at, low)
            if both: write_one(c, at + uint64(1), high)
    return write

@cache
def scaled_writer(scaling: str, stores: Stores) -> Callable:
    "A device function: scale four sums, two of a row and two that are eight rows below, and write them."
    write, col_factor = element_pair_writer(stores), factors_of(scaling)[1]

    @cuda.jit(device=True)
    def write_scaled(to, row, col, sums, above, below):
        left, right = col_factor(to, col), col_factor(to, col + 1)
        write(to, row, col, sums[0] * (above * left), sums[1] * (above * right))
        write(to, row + 8, col, sums[2] * (below * left), sums[3] * (below * right))
    return write_scaled

@cache
def by_threads_epilogue(
    tile: WgmmaTile, scaling: str, stores: Stores,
    is_split: bool,  # do blocks share a tile, each with a part of its sums?
) -> Epilogue:
    "Each thread scales and writes its results; if sums are in parts, it adds them up first."
    write, row_factor, groups = scaled_writer(scaling, stores), factors_of(scaling)[0], tile.bn // 8

    @cuda.jit(device=True)
    def write_four(to, row, col, sums):
        write(to, row, col, sums, row_factor(to, row), row_factor(to, row + 8))
    if is_split: return split_k_epilogue(tile, stores.predicated, stores.read_c, True, write_four)

    @cuda.jit(device=True)
    @unrolled
    def finish(acc, pending, to, part, row, col, thread, store):
        row = int64(row) + thread % 128 // 32 * 16 + thread % 32 // 4
        col = int64(col) + thread % 4 * 2
        above, below = row_factor(to, row), row_factor(to, row + 8)
        for i in static(groups): write(to, row, col + 8 * i, acc[4 * i:4 * i + 4], above, below)
        return pending
    return Epilogue(0, finish, drain_nothing)


# One per block, as the main loop needs them
#
# Warps of the producer's warpgroup, one for each consumer, multiply the scales of a k tile's blocks of A and
# B, and store these factors in shared memory, where every stage has room for its own. A consumer finds them
# there, and needs neither their addresses nor registers for those that come next.

FACTORS_BYTES = 32 * 16  # of a consumer and a stage: four float32 for each lane of the warp that stores them

def factors_bytes(tile: WgmmaTile) -> int:
    "Shared memory for the factors of all stages."
    return tile.stages * tile.warpgroups * FACTORS_BYTES

def with_room_for_factors(tile: WgmmaTile, split_k: int) -> WgmmaTile:
    "Like `with_room`, but for the factors, too."
    tile = with_room(tile, split_k)
    fits = split_bytes(tile, split_k) + factors_bytes(tile) <= MOST_SHARED
    return tile if fits else tile._replace(stages=tile.stages - 1)  # a stage has more bytes than all factors

@cache
def scaled_barrier_init(tile: WgmmaTile) -> Callable:
    "Like `barrier_init`, but a stage is full only when the factors have arrived, too."
    stages, consumers, released = tile.stages, tile.warpgroups, 4 * tile.warpgroups * tile.cluster

    @cuda.jit(device=True)
    def init(storage, thread):
        if thread == 0:
            for stage in range(stages):
                mbarrier_init(full_barrier(storage, stage), uint32(1 + consumers))
                mbarrier_init(empty_barrier(storage, stage), uint32(released))
            fence_mbarrier_init()
    return init

@cache
def scales_loop(
    tile: WgmmaTile, is_split: bool,  # see `producer_loop` in lesson 17
    offset: int,  # of the factors, from `SharedStorage.c_tiles`
) -> Callable:
    """A device function, for a warp per consumer: store the factors of a block's work tiles, as stages become
    empty. A lane does it for the rows that four lanes of a consumer's warp have."""
    scheduler = persistent_scheduler(tile, is_split, in_cluster=is_split)
    work_tile, tile_origin = scheduler.work_tile, scheduler.tile_origin
    advance, wm, stage_bytes = pipeline_advance(tile.stages), tile.wm, tile.warpgroups * FACTORS_BYTES
    rows_each, columns = 2 * (wm // 64), cdiv(tile.bn, 128)  # of a lane; of blocks in a tile
    count = rows_each * columns
    ahead = (16 if tile.warpgroups == 1 else 8) // count  # k tiles; two consumers leave registers for fewer
    unused = (np.float32(0),) * (4 - count)

    @cuda.jit(device=True)
    @unrolled
    def store_factors(
        storage, to, grid,  # `SharedStorage`, `ScaledTarget`, `WorkGrid`
        work, step,         # see `producer_loop`
        thread,             # number among those that do this
    ):
        lane = uint32(thread % 32)
        above = uint32(thread // 32 * wm + lane // 8 * 16 + lane % 8)
        place = uint32(storage.c_tiles + uint32(offset) + uint32(16) * thread)
        last_row, across = uint32(to.rows - 1), uint32(uint32(to.cols + 127) // uint32(128))
        state = PipelineState(uint32(0), uint32(1))
        while work < grid.work:
            number, part, k_tile, k_end = work_tile(work, grid)
            row, col = tile_origin(number, grid)
            rows, cols = (), ()
            for i in static(rows_each):
                here = min(uint32(row + above + uint32(i // 2 * 64 + i % 2 * 8)), last_row)
                rows = rows + (uint32(here * grid.k_tiles),)
            for j in static(columns): cols = cols + (min(uint32(col // 128 + j), uint32(across - 1)),)
            last = uint32(k_end - uint32(1))
            while k_tile < k_end:
                # of a few k tiles at a time, so that their loads wait for memory together
                factors = ()
                for t in static(ahead):
                    here = min(uint32(k_tile + uint32(t)), last)
                    for j in static(columns):
                        of_b = to.scale_b[uint32(cols[j] + here * across)]
                        for i in static(rows_each):
                            factors = factors + (to.scale_a[uint32(rows[i] + here)] * of_b,)
                for t in static(ahead):
                    if k_tile < k_end:
                        producer_acquire(storage, state)
                        at = uint32(place + state.stage * uint32(stage_bytes))
                        st_shared_v4(at, factors[t * count:(t + 1) * count] + unused)
                        cuda.syncwarp()
                        if lane == 0: mbarrier_arrive(full_barrier(storage, state.stage))
                        state = advance(state)
                        k_tile = uint32(k_tile + uint32(1))
            work = uint32(work + step)
    return store_factors

@cache
def producer(
    tile: WgmmaTile, is_split: bool, scaling: str,
    produce: Callable,  # for one thread: see `producer_loop` in lesson 17
    offset: int,        # see `scales_loop`
) -> Callable:
    "A device function: what the threads of the producer's warpgroup do."
    senders = 32 * tile.warpgroups

    @cuda.jit(device=True)
    def copy_k_tiles(storage, maps, target, grid, work, step, thread):
        if thread == 0: produce(storage, maps, grid, work, step)
    if scaling != "blocks": return copy_k_tiles
    store_factors = scales_loop(tile, is_split, offset)

    @cuda.jit(device=True)
    def copy_and_scale(storage, maps, target, grid, work, step, thread):
        if thread == 0: produce(storage, maps, grid, work, step)
        elif thread >= 32 and thread < 32 + senders:
            store_factors(storage, target, grid, work, step, uint32(thread - 32))
    return copy_and_scale

class BlockFactors(NamedTuple):
    "Where a lane's factors are, and what they're for."
    first: int   # from `SharedStorage.c_tiles` to those of the first stage
    middle: int  # to which of its two columns of blocks a tile's middle belongs: 0, or something else

@cache
def factors_reader(
    tile: WgmmaTile,
    offset: int,  # see `scales_loop`
) -> tuple:
    """Device functions: a consumer thread's `BlockFactors` for a tile of C; and a stage's factors, four
    float32: of two rows for each product of 64 rows, or for each of two columns of blocks."""
    tile_origin, columns = persistent_scheduler(tile, False).tile_origin, cdiv(tile.bn, 128)
    stage_bytes = tile.warpgroups * FACTORS_BYTES

    @cuda.jit(device=True)
    def factors_of_tile(grid, number, thread):
        lane = uint32(thread % 128 // 32 * 8 + thread % 32 // 4)
        first = uint32(uint32(offset) + (thread // 128 - 1) * uint32(FACTORS_BYTES) + lane * uint32(16))
        middle = uint32(0)
        if columns > 1: middle = uint32(tile_origin(number, grid)[1] % 128)
        return BlockFactors(first, middle)

    @cuda.jit(device=True)
    def read_factors(of, storage, stage):
        return ld_shared_v4(uint32(storage.c_tiles + of.first + stage * uint32(stage_bytes)))
    return factors_of_tile, read_factors

@cuda.jit(device=True)
def add_block(sums, products, of, factors):
    "One column of blocks."
    above, below = factors[0], factors[1]
    return add_scaled(sums, products, (above, above, below, below))

@cuda.jit(device=True)
def add_two_blocks(sums, products, of, factors):
    "Two: the tile's 192 columns are three times 64."
    left, right = factors[:2], factors[2:]
    middle = left if of.middle == 0 else right
    return (add_block(sums[:32], products[:32], of, left)
            + add_block(sums[32:64], products[32:64], of, middle)
            + add_block(sums[64:], products[64:], of, right))


# A call: its scales, and a product of nothing

def scaling_of(
    scale_a, scale_b,  # device arrays, or None
    m: int, n: int, k: int,
) -> str:  # of `SCALINGS`
    "What a call's scales belong to. `TypeError` or `ValueError` if they don't fit."
    if scale_a is None and scale_b is None: return "none"
    if scale_a is None or scale_b is None: raise ValueError("pass both scale_a and scale_b, or neither")
    for name, x in ("scale_a", scale_a), ("scale_b", scale_b):
        if str(x.dtype) != "float32": raise TypeError(f"{name} is {x.dtype}; expected float32")
    shape_a, shape_b = tuple(scale_a.shape), tuple(scale_b.shape)
    blocks_a, blocks_b = (m, cdiv(k, 128)), cdiv((k, n), (128, 128))
    one = (), (1,), (1, 1)
    if shape_a in one and shape_b in one: return "one"
    if shape_a in (*one, (m,), (m, 1)) and shape_b in (*one, (n,), (1, n)): return "rows"
    if (shape_a, shape_b) == (blocks_a, blocks_b): return "blocks"
    raise ValueError(f"scale_a has shape {shape_a} and scale_b {shape_b}; expected one scale each, (1,); or "
                     f"one per row of A, ({m},), and one per column of B, ({n},); or one per 1×128 of A, "
                     f"{blocks_a}, and one per 128×128 of B, {blocks_b}")

@cache
def only_c_kernel(float32_c: bool, read_c: bool) -> Callable:
    "A kernel: C ← beta·C."
    before, write_one, _ = FLOAT32 if float32_c else BF16

    @cuda.jit(lineinfo=True, launch_bounds=256)
    def only_c_kernel(
        c, size,  # flat, and its length
        beta,
    ):
        i = int64(cuda.blockIdx.x) * 256 + cuda.threadIdx.x
        if i < size:
            value = float32(0)
            if read_c: value = beta * before(c, i)
            write_one(c, i, value)
    return only_c_kernel
