"""Numbers of eight bits: twice the speed of bfloat16, if sums are promoted and scales follow the data."""
from functools import cache
from typing import NamedTuple

import numpy as np
from ..arrays import KEPT_AS, array_like, cdiv, is_row_major, is_torch
from ..fp8 import E4M3
from ..gemm.args import Gemm
from ..gemm.epilogue import Epilogue, PendingTile, c_bytes, drain_nothing, overlapped_epilogue, staged_epilogue, two_epilogues
from ..gemm.limits import need_capability, need_whole, sm_count, MAX_GRID_X
from ..gemm.pipeline import TensorMaps, storage_layout
from ..gemm.plan import Launch, Plan, run
from ..gemm.schedule import persistent_scheduler
from ..gemm.tensor_maps import TensorMapWords, tma_counts
from ..gemm.tiles import BK, WgmmaTile, check_tile
from ..ptx.ampere import cvt_rn_bf16x2_f32, store_pair, unpack_bf16
from ..ptx.core import add_scaled, add_tuples, store2
from ..ptx.hopper import (
    cluster_sync, pack_scaled, prefetch_tensormap, setmaxnreg_dec, setmaxnreg_inc, tensor_map_address,
    wgmma_mma_async_e4m3, wgmma_wait_group)
from ..static import static, unrolled
from .k16_tma_wgmma import k_tile_loader, wgmma_multiplier
from .k17_warp_specialized import (
    CONSUMER_REGISTERS, PRODUCER_REGISTERS, Mainloop, barrier_init, consumer_loop, producer_loop,
    stagger_distance, with_producer)
from numba import cuda, float32, int32, int64, uint16, uint32, uint64

# %%
class ScaledTarget(NamedTuple):
    "Where results go, and the scales of A and B."
    array: object    # C, flat
    rows: int
    cols: int
    alpha: float     # factor of A·B
    beta: float      # factor of C
    scale_a: object  # (1,), (m,) or (m·k tiles,) float32
    scale_b: object  # (1,), (n,) or (k tiles·columns of blocks,) float32
    step_a: int      # from a row's scale to the next one's; 0 if there is only one
    step_b: int

# %%
@cache
def fast_mainloop(tile):
    "The tensor cores add up the whole sum."
    zeros = (np.float32(0),) * tile.results
    def multiplier(accumulate, pending):
        return wgmma_multiplier(tile, accumulate, pending, wgmma_mma_async_e4m3)
    if tile.wm == 64:
        return Mainloop(zeros, multiplier(False, 1), multiplier(True, 1), wgmma_wait_group)

    def two(accumulate):
        multiply = multiplier(accumulate, 2)
        @cuda.jit(device=True)
        def mma(acc, storage, stage, warpgroup):
            first = uint32(uint32(2) * warpgroup)
            return (multiply(acc[0], storage, stage, first),
                    multiply(acc[1], storage, stage, uint32(first + uint32(1))))
        return mma

    @cuda.jit(device=True)
    def wait(acc): return wgmma_wait_group(acc[0]), wgmma_wait_group(acc[1])
    return Mainloop((zeros, zeros), two(False), two(True), wait)

@cuda.jit(device=True)
def nothing_in_flight(acc): return acc

@cache
def promoted_mainloop(tile):
    "The tensor cores add up a k tile; the sum of those is kept in float32."
    zeros = (np.float32(0),) * tile.results
    multiply = wgmma_multiplier(tile, False, 1, wgmma_mma_async_e4m3)

    @cuda.jit(device=True)
    def first_mma(acc, storage, stage, warpgroup):
        return wgmma_wait_group(multiply(zeros, storage, stage, warpgroup))

    @cuda.jit(device=True)
    def mma(acc, storage, stage, warpgroup):
        return add_tuples(acc, wgmma_wait_group(multiply(zeros, storage, stage, warpgroup)))
    return Mainloop(zeros, first_mma, mma, nothing_in_flight)

# %%
class BlockScales(NamedTuple):
    "Scales of the k tile to come, and where the following ones are."
    scale_a: object
    scale_b: object
    above: int   # index of the thread's upper row's scale
    below: int   # and of its lower one's
    column: int  # of B's block
    step: int    # to its next k tile
    k_tile: int
    last: int
    factors: tuple

@cache
def block_mainloop(tile):
    "The sums of a k tile are scaled, and added to the others in float32."
    zeros = (np.float32(0),) * tile.results
    multiply = wgmma_multiplier(tile, False, 1, wgmma_mma_async_e4m3)
    bm, bn, wm = tile.bm, tile.bn, tile.wm
    assert 128 % bn == 0
    tile_origin = persistent_scheduler(tile, False).tile_origin

    @cuda.jit(device=True)
    def load(scale_a, scale_b, above, below, column, step, k_tile, last):
        k_tile = min(k_tile, last)
        by = scale_b[column + k_tile * step]
        up, down = scale_a[above + k_tile] * by, scale_a[below + k_tile] * by
        return up, up, down, down

    @cuda.jit(device=True)
    def start(zeros, to, grid, number, k_begin, thread):
        row, col = tile_origin(number, grid)
        k_tiles = int64(grid.k_tiles)
        mine = int64(row) + (thread // 128 - uint32(1)) * uint32(wm) + thread % 128 // 32 * 16 + thread % 32 // 4
        above, below = min(mine, to.rows - 1) * k_tiles, min(mine + 8, to.rows - 1) * k_tiles
        step = (to.cols + 127) // 128
        column = int64(min(int64(col // uint32(128)), step - 1))
        k_tile, last = int64(k_begin), k_tiles - 1
        factors = load(to.scale_a, to.scale_b, above, below, column, step, k_tile, last)
        return zeros, BlockScales(to.scale_a, to.scale_b, above, below, column, step, k_tile, last, factors)

    @cuda.jit(device=True)
    def mma(acc, storage, stage, warpgroup):
        sums, at = acc
        products = multiply(zeros, storage, stage, warpgroup)
        k_tile = at.k_tile + 1
        factors = load(at.scale_a, at.scale_b, at.above, at.below, at.column, at.step, k_tile, at.last)
        sums = add_scaled(sums, wgmma_wait_group(products), at.factors)
        return sums, BlockScales(at.scale_a, at.scale_b, at.above, at.below, at.column, at.step, k_tile,
                                 at.last, factors)

    @cuda.jit(device=True)
    def wait(acc): return acc[0]
    return Mainloop(zeros, mma, mma, wait, start)

# %%
@cache
def factors_of(scaling):
    "Device functions: the factor of a row of results, alpha included, and that of a column."
    @cuda.jit(device=True)
    def row_factor(to, row):
        if scaling == "tensor": return to.alpha * (to.scale_a[0] * to.scale_b[0])
        if scaling == "rows": return to.alpha * to.scale_a[min(row, to.rows - 1) * to.step_a]
        return to.alpha

    @cuda.jit(device=True)
    def col_factor(to, col):
        if scaling == "rows": return to.scale_b[min(col, to.cols - 1) * to.step_b]
        return float32(1)
    return row_factor, col_factor

@cache
def scaled_epilogue(tile, scaling, overlapped):
    "Results are scaled, rounded to bfloat16, and stored by TMA."
    make = overlapped_epilogue if overlapped else staged_epilogue
    base = overlapped_epilogue(tile, False, False, False)
    row_factor, col_factor = factors_of(scaling)
    groups = tile.bn // 8
    by_rows = scaling == "rows"
    from ..gemm.epilogue import boxes_storer
    store_all = boxes_storer(tile, 0, tile.c_boxes)

    @cuda.jit(device=True)
    @unrolled
    def pack(acc, to, row, col, thread):
        if by_rows:
            row = int64(row) + thread % 128 // 32 * 16 + thread % 32 // 4
            col = int64(col) + thread % 32 % 4 * 2
            above, below = row_factor(to, row), row_factor(to, row + 8)
            packed = ()
            for i in static(groups):
                left, right = col_factor(to, col + 8 * i), col_factor(to, col + 8 * i + 1)
                packed = packed + (cvt_rn_bf16x2_f32(acc[4 * i] * above * left, acc[4 * i + 1] * above * right),
                                   cvt_rn_bf16x2_f32(acc[4 * i + 2] * below * left, acc[4 * i + 3] * below * right))
        else: packed = pack_scaled(acc, row_factor(to, int64(0)))
        return packed

    @cuda.jit(device=True)
    def finish(acc, pending, to, part, row, col, thread, store):
        return PendingTile(pack(acc, to, row, col, thread), row, col, True)

    @cuda.jit(device=True)
    def finish_now(acc, pending, to, part, row, col, thread, store):
        pending = PendingTile(pack(acc, to, row, col, thread), row, col, True)
        store_all(pending, store)
        return pending
    if overlapped: return base._replace(finish=finish)
    return Epilogue(0, finish_now, drain_nothing)

# %%
@cache
def pair_writer(scaling, float32_c, predicated, width, read_c):
    "A device function: write two neighbors of a row of C."
    @cuda.jit(device=True)
    def write(to, row, col, low, high):
        if not predicated or (row < to.rows and col < to.cols):
            at = uint64(row * to.cols + col)
            both = width > 1 or col + 1 < to.cols
            if read_c:
                if float32_c:
                    low += to.beta * to.array[at]
                    if both: high += to.beta * to.array[at + uint64(1)]
                else:
                    low += to.beta * unpack_bf16(uint32(to.array[at]))[0]
                    if both: high += to.beta * unpack_bf16(uint32(to.array[at + uint64(1)]))[0]
            if float32_c:
                if width > 1: store2(to.array, at, low, high)
                else:
                    to.array[at] = low
                    if both: to.array[at + uint64(1)] = high
            else:
                pair = cvt_rn_bf16x2_f32(low, high)
                if width > 1: store_pair(to.array, at, pair)
                else:
                    to.array[at] = uint16(pair & uint32(0xFFFF))
                    if both: to.array[at + uint64(1)] = uint16(pair >> uint32(16))
    return write

@cache
def direct_epilogue(tile, scaling, float32_c, predicated, width, read_c):
    "Each thread scales its results and writes them, and reads its elements of C first if beta is not 0."
    write = pair_writer(scaling, float32_c, predicated, width, read_c)
    row_factor, col_factor = factors_of(scaling)
    groups = tile.bn // 8

    @cuda.jit(device=True)
    @unrolled
    def finish(acc, pending, to, part, row, col, thread, store):
        row = int64(row) + thread % 128 // 32 * 16 + thread % 32 // 4
        col = int64(col) + thread % 32 % 4 * 2
        above, below = row_factor(to, row), row_factor(to, row + 8)
        for i in static(groups):
            left, right = col_factor(to, col + 8 * i), col_factor(to, col + 8 * i + 1)
            write(to, row, col + 8 * i, acc[4 * i] * above * left, acc[4 * i + 1] * above * right)
            write(to, row + 8, col + 8 * i, acc[4 * i + 2] * below * left, acc[4 * i + 3] * below * right)
        return pending
    return Epilogue(0, finish, drain_nothing)

# %%
def shared_bytes(tile):
    return tile.shared_bytes + c_bytes(tile) + 8

def fp8_tile(bm, bn, stages, group_m=16, **others): return WgmmaTile(bm, bn, stages, group_m, k_major_b=1, **others)
LARGE = fp8_tile(128, 256, 4)
PROMOTED = fp8_tile(128, 128, 5, cluster=2)

@cache
def fp8_gemm_kernel(tile=LARGE, promoted=True, scaling="tensor", epilogue="overlapped", float32_c=False,
                    predicated=True, width=1, read_c=True, stagger_consumers=True):
    consumers = tile.warpgroups
    distance = stagger_distance(tile.stages) if stagger_consumers and consumers == 2 else 0
    cluster = tile.cluster
    shared_storage, init = storage_layout(tile, c_bytes(tile)), barrier_init(tile.stages, consumers * cluster)
    work_grid = persistent_scheduler(tile, False).work_grid
    produce = producer_loop(tile, False, k_tile_loader(tile))
    if epilogue == "direct": finish = direct_epilogue(tile, scaling, float32_c, predicated, width, read_c)
    else: finish = scaled_epilogue(tile, scaling, epilogue == "overlapped")
    if tile.wm > 64: finish = two_epilogues(finish)
    mainloop = block_mainloop if scaling == "blocks" else promoted_mainloop if promoted else fast_mainloop
    consume = consumer_loop(tile, False, finish, distance, mainloop(tile))
    producer_registers, consumer_registers = PRODUCER_REGISTERS[consumers], CONSUMER_REGISTERS[consumers]

    @cuda.jit(lineinfo=True, launch_bounds=(with_producer(tile), 1))
    def fp8_gemm_kernel(
        tensor_maps,  # `TensorMapWords`: A in boxes of bm rows, B in boxes of bn, C in boxes of 64
        c,            # (m·n,) bits of bfloat16, or float32
        scale_a, scale_b, step_a, step_b,  # see `ScaledTarget`
        m, n,
        pairs,        # k / 2: the TMA and the pipeline move two numbers at a time
        split_k, alpha, beta,
    ):
        storage = shared_storage(cuda.shared.array(0, uint16, alignment=16))
        thread = uint32(cuda.threadIdx.x)
        maps = TensorMaps(tensor_map_address(tensor_maps, 0), tensor_map_address(tensor_maps, 1))
        if thread == 0:
            prefetch_tensormap(maps.a)
            prefetch_tensormap(maps.b)
        init(storage, thread)
        if cluster > 1: cluster_sync()
        else: cuda.syncthreads()

        grid = work_grid(m, n, pairs, split_k)
        target = ScaledTarget(c, m, n, alpha, beta, scale_a, scale_b, step_a, step_b)
        work, step = uint32(cuda.blockIdx.x // cluster), uint32(cuda.gridDim.x // cluster)
        if thread < 128:
            setmaxnreg_dec(producer_registers)
            if thread == 0: produce(storage, maps, grid, work, step)
        else:
            setmaxnreg_inc(consumer_registers)
            consume(storage, tensor_map_address(tensor_maps, 2), grid, work, step, target, thread)
        if cluster > 1: cluster_sync()
    return fp8_gemm_kernel

# %%
def plan_fp8(g: Gemm, k_major_b, fast=False, tile=None, blocks=None, scaling=None, epilogue=None, **options):
    need_capability((9, 0, "a"), "wgmma")
    scale_a, scale_b = (g.others.get(name) for name in ("scale_a", "scale_b"))
    if scaling is None:
        if scale_a is None: scaling = "none"
        elif scale_a.size == scale_b.size == 1: scaling = "tensor"
        elif len(scale_a.shape) == 2 and scale_a.shape[1] > 1: scaling = "blocks"
        else: scaling = "rows"
    promoted = not fast or scaling == "blocks"
    if tile is None: tile = PROMOTED if promoted else LARGE
    assert k_major_b and g.k % 16 == 0 and g.alignments["a"] == g.alignments["b"] == 16
    float32_c = g.c.dtype == np.float32
    by_tma = not float32_c and g.beta == 0 and g.alignments["c"] == 16
    if epilogue is None: epilogue = "overlapped" if by_tma and tile.wm == 64 and tile.bn%128==0 else "staged" if by_tma else "direct"
    direct = epilogue == "direct"
    kernel = fp8_gemm_kernel(tile, promoted, scaling, epilogue, float32_c, direct and not tile.fits(g),
                             2 if direct and g.n % 2 == 0 and g.alignments["c"] >= 8 else 1, direct and bool(g.beta != 0), **options)
    work = cdiv(g.m, tile.bm) * cdiv(g.n, tile.bn * tile.cluster)
    if blocks is None: blocks = tile.cluster * cdiv(work, cdiv(work, sm_count() // tile.cluster))
    c = g.c.ravel()
    sa, sb = (c, c) if scale_a is None else (scale_a.ravel(), scale_b.ravel())
    maps = TensorMapWords((g.a, tile.bm // tile.cluster), (g.b, tile.bn), (g.c if by_tma else g.a, tile.c_box))
    args = (maps, c, sa, sb, np.int64(sa.size > 1), np.int64(sb.size > 1), np.int64(g.m), np.int64(g.n), np.int64(g.k // 2),
            np.uint32(1), g.alpha, g.beta)
    return Plan([Launch(kernel, blocks, with_producer(tile), args, shared_bytes(tile), cluster=tile.cluster)])

def fp8_gemm(a, b, scale_a=None, scale_b=None, c=None, alpha=1.0, beta=0.0, dtype_c="bfloat16", fast=False, tile=None, blocks=None, k_major_b=False, **options):
    if is_torch(b) and not k_major_b and not is_row_major(b): b, k_major_b = b.T, True
    others = {name: x for name, x in dict(scale_a=scale_a, scale_b=scale_b).items() if x is not None}
    return run(plan_fp8, a, b, c, alpha, beta, k_major_b, fast, tile, blocks, dtype=E4M3, others=others, dtype_c=dtype_c,
               k_major_b=k_major_b, **options)
fp8_gemm.plan = plan_fp8
