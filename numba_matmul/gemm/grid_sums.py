"""Blocks anywhere on the GPU that each have a part of a tile's sums add them up: each block some columns, in
a fixed order. The parts go through global memory, so they needn't be in one cluster.

Each warpgroup is on its own. It stores its sums in a workspace and raises its flag. Then it waits until the
same warpgroup of all other blocks has done so, and adds up its share of the columns. Flags work as in
`shared_sums`."""
from functools import cache
from typing import NamedTuple

import numpy as np
from ..ptx.core import add_tuples, load4, store_fours, store_relaxed
from ..ptx.hopper import bar_sync
from ..static import static, unrolled
from .args import Gemm
from .epilogue import EPILOGUES, Epilogue, drain_nothing
from .plan import launch_number
from .tiles import WgmmaTile
from .writers import mma_tile_writer, results_writer
from numba import cuda, int64, uint32, uint64

AT_ONCE = 8  # parts that a thread reads before it adds them
GROUP = 128 * 4  # a warpgroup's sums of eight columns


class PartsMemory(NamedTuple):
    "What a kernel gets in place of C."
    c: object
    workspace: object  # float32, each block's sums
    flags: object      # int64, one per block and warpgroup, and then as many counters
    launch: object     # the launch's number

class GridTarget(NamedTuple):
    "A `Target` for parts of sums."
    array: object
    rows: int
    cols: int
    alpha: float
    beta: float
    split_k: int  # parts of each sum
    memory: object  # `PartsMemory`

@cuda.jit(device=True)
def grid_target(c, m, n, alpha, beta, split_k):
    return GridTarget(c[0], m, n, alpha, beta, split_k, PartsMemory(c[0], c[1], c[2], c[3]))

def parts_memory(
    g: Gemm, tile: WgmmaTile,
    blocks: int,  # of the grid
) -> PartsMemory:
    "C, and workspace for the parts of its sums."
    warpgroups = blocks * tile.warpgroups
    return PartsMemory(g.c.ravel(), g.workspace(warpgroups * tile.bn // 8 * GROUP, kind="float32"),
                       g.workspace(2 * warpgroups, kind="int64"), launch_number)

@cache
def grid_epilogue(tile: WgmmaTile, predicated: bool, read_c: bool, scaled: bool) -> Epilogue:
    "A block stores its sums for others to add, and adds up and stores its own columns."
    groups, warpgroups = tile.bn // 8, tile.warpgroups
    write = mma_tile_writer(1, 1, results_writer(tile, predicated, read_c))
    zeros, at_once = (np.float32(0),) * 4, AT_ONCE

    @cuda.jit(device=True)
    @unrolled
    def finish(acc, pending, to, part, row, col, thread, store):
        parts, part, memory = to.split_k, uint32(part), to.memory
        warpgroup, thread = uint32(thread // 128 - 1), uint32(thread % 128)
        # the same warpgroups of the blocks with the other parts
        block = uint32(cuda.blockIdx.x)
        step = uint32(uint32(cuda.gridDim.x) // parts)
        first = uint32(uint32(block - part * step) * uint32(warpgroups) + warpgroup)
        step = uint32(step * uint32(warpgroups))
        mine = uint32(first + part * step)
        counter = uint32(uint32(cuda.gridDim.x) * uint32(warpgroups) + first)
        store_fours(memory.workspace, uint64(int64(mine) * (groups * GROUP) + 4 * thread), GROUP, acc)
        # all of them are there
        if thread == 0 and part == 0: store_relaxed(memory.flags, uint64(counter), uint64(0))
        cuda.threadfence()
        bar_sync(store.barrier, uint32(128))
        if thread == 0: cuda.atomic.exch(memory.flags, mine, memory.launch)
        if thread < parts:
            flag = uint32(first + thread * step)
            while cuda.atomic.cas(memory.flags, flag, memory.launch, memory.launch) != memory.launch: pass
        cuda.threadfence()
        bar_sync(store.barrier, uint32(128))
        # this block's columns
        row = int64(row) + thread // 32 * 16 + thread % 32 // 4
        group = part
        while group < uint32(groups):
            total, other = zeros, uint32(0)
            while other < parts:
                # read several before the first is needed; beyond the last one: the last one again, not added
                found = ()
                for i in static(at_once):
                    at = int64(first + min(uint32(other + uint32(i)), uint32(parts - uint32(1))) * step)
                    at = (at * groups + group) * GROUP + 4 * thread
                    found = found + (load4(memory.workspace, uint64(at)),)
                for i in static(at_once):
                    total = add_tuples(total, found[i] if uint32(other + uint32(i)) < parts else zeros)
                other = uint32(other + uint32(at_once))
            write(to, row, int64(col) + group * 8 + thread % 4 * 2, total)
            group = uint32(group + parts)
        # the last one that has seen the flags lowers them
        if thread == 0 and cuda.atomic.add(memory.flags, counter, 1) == int64(parts) - 1:
            other = uint32(0)
            while other < parts:
                store_relaxed(memory.flags, uint64(first + other * step), uint64(0))
                other = uint32(other + uint32(1))
        return pending
    return Epilogue(0, finish, drain_nothing)

EPILOGUES["split_grid"] = grid_epilogue
