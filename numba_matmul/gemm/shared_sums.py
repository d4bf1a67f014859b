"""Blocks that each have a part of the same sums add them up together: each one a slice, in a fixed order.

Every block stores its part in a workspace and raises the part's flag. Then it waits until all parts of the
tile are there, and adds up its own slice of them. So it doesn't matter how many parts there are: all of them
are read at the same time, by all blocks. (If one block added all parts, it would read one after the other.)

The flag of a part holds the number of the launch, see `launch_number`. A counter for each tile counts the
blocks that don't need its flags anymore, and the last one lowers them. So they can be raised again by the
same launch, replayed in a CUDA graph.
"""
from collections.abc import Callable
from functools import cache

from ..ptx.core import store_relaxed
from ..static import static, unrolled
from numba import cuda, float32, int64, uint32, uint64

AT_ONCE = 4  # parts that a thread reads before it adds them


@cuda.jit(device=True)
def raise_flag(
    flags,   # (parts + tiles,) int64: one flag per part, then one counter per tile
    part,    # number of the part, which all threads of the block have stored
    counter,  # of its tile
    first,   # is it the tile's first part?
    launch,  # number
    thread,
):
    "Say that a part is there."
    cuda.threadfence()
    cuda.syncthreads()
    if thread == 0:
        if first:
            store_relaxed(flags, uint64(counter), uint64(0))
            cuda.threadfence()
        cuda.atomic.exch(flags, part, launch)


@cuda.jit(device=True)
def wait_for_parts(
    flags,         # see `raise_flag`
    first, parts,  # number of the tile's first part, and how many there are
    counter, launch, thread,  # see `raise_flag`
):
    "Return when all parts of a tile are there."
    part = uint32(thread)
    while part < parts:
        while cuda.atomic.cas(flags, uint32(first + part), launch, launch) != launch: pass
        part = uint32(part + uint32(cuda.blockDim.x))
    cuda.threadfence()
    cuda.syncthreads()
    # the last block that has seen the flags lowers them
    if thread == 0 and cuda.atomic.add(flags, counter, 1) == parts - 1:
        part = uint32(0)
        while part < parts:
            store_relaxed(flags, uint64(first + part), uint64(0))
            part = uint32(part + uint32(1))


@cache
def slice_adder(
    fours: int,  # results of a tile, in groups of four
    threads: int,  # of a block
    read4: Callable,  # device function (workspace, where a part begins, number of a group of four) → the four
    place: Callable,  # device function: number of a group of four → row and column of the first, in the tile
    write4: Callable,  # device function (c, row, col, four results, alpha, beta)
) -> Callable:
    "A device function: add up one slice of a tile's parts, in order, and write the sums."
    at_once = AT_ONCE
    @cuda.jit(device=True)
    @unrolled
    def add_slice(
        c,             # (m, n)
        workspace,     # (parts·4·fours,) float32, aligned to 16 bytes
        first, parts,  # number of the tile's first part, and how many there are
        number,        # of the slice: as many as parts
        row0, col0,    # where the tile of C begins
        alpha, beta,
        thread,
    ):
        four = int64(number) * fours // int64(parts) + int64(thread)
        end = (int64(number) + 1) * fours // int64(parts)
        while four < end:
            x, y, z, w = float32(0), float32(0), float32(0), float32(0)
            part = int64(0)
            while part < int64(parts):
                # read several before the first is needed; beyond the last one: the last one again, not added
                found = ()
                for i in static(at_once):
                    at = first + min(part + i, int64(parts) - 1)
                    found = found + (read4(workspace, 4 * at * fours, four),)
                for i in static(at_once):
                    inside = part + i < int64(parts)
                    x += found[i][0] if inside else float32(0)
                    y += found[i][1] if inside else float32(0)
                    z += found[i][2] if inside else float32(0)
                    w += found[i][3] if inside else float32(0)
                part += at_once
            row, col = place(four)
            write4(c, row0 + row, col0 + col, (x, y, z, w), alpha, beta)
            four += threads
    return add_slice
