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

from ..ptx.core import load4, store4, store_fours, store_relaxed
from ..static import static, unrolled
from .ring import group_writer, turn_of, turned
from .tiles import WarpTile
from .unaligned import single_writer
from numba import cuda, float32, int64, uint32, uint64

AT_ONCE = 4  # parts that a thread reads before it adds them


def adds_together(
    tiles: int, blocks: int, k_tiles: int,  # of C; of the grid, each with an equal share; of each tile
) -> bool:
    "Are there three parts of a tile, or more, one per block? Then all of its blocks add them up, not one."
    return blocks % tiles == 0 and 2 < blocks // tiles <= k_tiles


@cuda.jit(device=True)
def part_of(
    count,         # less than 2³²
    parts, index,  # how many there are, and the number of this one
):  # where it begins and ends
    "One of nearly equal parts. (In 32 bits, since a division of 64 bits takes about a hundred instructions.)"
    size = uint32(uint32(count) // uint32(parts))
    rest = uint32(uint32(count) - size * uint32(parts))
    begin = uint32(index * size + min(index, rest))
    return begin, uint32(begin + size + (uint32(1) if index < rest else uint32(0)))


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
    if first and thread == 0: store_relaxed(flags, uint64(counter), uint64(0))
    cuda.threadfence()
    cuda.syncthreads()
    if thread == 0: cuda.atomic.exch(flags, part, launch)


@cuda.jit(device=True)
def wait_for_parts(
    flags,         # see `raise_flag`
    first, parts,  # number of the tile's first part, and how many there are
    launch, thread,  # see `raise_flag`
):
    "Return when all parts of a tile are there."
    part = uint32(thread)
    while part < parts:
        while cuda.atomic.cas(flags, uint32(first + part), launch, launch) != launch: pass
        part = uint32(part + uint32(cuda.blockDim.x))
    cuda.threadfence()
    cuda.syncthreads()


@cuda.jit(device=True)
def lower_flags(
    flags,         # see `raise_flag`
    first, parts,  # see `wait_for_parts`
    counter, thread,  # see `raise_flag`
):
    "The last block that has seen a tile's flags lowers them."
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
        four = int64(uint32(uint32(number) * uint32(fours)) // uint32(parts)) + int64(thread)
        end = int64(uint32(uint32(number + uint32(1)) * uint32(fours)) // uint32(parts))
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


@cache
def sums_sharer(
    fours: int, threads: int, read4: Callable, place: Callable, write4: Callable,  # see `slice_adder`
) -> Callable:
    "A device function: when all blocks have stored their parts of a tile, add up this block's slice of them."
    add_slice = slice_adder(fours, threads, read4, place, write4)

    @cuda.jit(device=True)
    def share(
        c, workspace, flags, launch,
        block, parts,  # number of the block; parts of each tile, one per block
        row0, col0,    # where the tile of C begins
        alpha, beta,
        thread,
    ):
        number, index = uint32(block // parts), uint32(block % parts)
        first, counter = uint32(block - index), uint32(cuda.gridDim.x + number)
        raise_flag(flags, block, counter, index == 0, launch, thread)
        wait_for_parts(flags, first, parts, launch, thread)
        add_slice(c, workspace, int64(first), parts, index, row0, col0, alpha, beta, thread)
        lower_flags(flags, first, parts, counter, thread)
    return share


@cache
def slices_writer(
    tile: WarpTile,
) -> Callable:
    "A device function: store a thread's results in the ring, one whole tile per slice."
    bm, bn, turn = tile.bm, tile.bn, turn_of(tile)

    @cuda.jit(device=True)
    def store_in_ring(ring, row, col, four, alpha, beta):
        row = turned(row, uint32(4) - row // uint32(bm) * uint32(turn))  # its slice's turn, undone
        at = uint64(uint32(row * uint32(bn)) + col)
        store4(ring, at, alpha * four[0], alpha * four[1], alpha * four[2], alpha * four[3])
    return group_writer(tile, store_in_ring)


@cache
def sums_writer(
    tile,              # with bm, bn and threads
    groups: int,       # of threads, each with its own sums for the whole tile
    four_writer: Callable,  # the factory of lesson 6 that writes four results
    predicated: bool,  # may results lie outside C?
    width: int,        # 4 if rows of C are aligned to 16 bytes
    read_c: bool,      # may beta be other than 0?
    in_order: bool = False,  # are the sums in shared memory in the order of C, also if rows aren't aligned?
) -> Callable:
    """A device function: add up what groups of threads have left in shared memory, one row of the tile after
    another; then what other blocks have; and write it. Where rows of C aren't aligned, a thread takes four
    columns that are far apart, so that lanes next to each other store results next to each other."""
    lanes, threads = tile.bn // 4, tile.threads
    fours = tile.bm * lanes
    if width == 4: write4 = four_writer(predicated, 4, read_c)
    else: write4 = single_writer(predicated, read_c, lanes)
    apart = in_order and width < 4

    @cuda.jit(device=True)
    def place(four): return four // lanes, 4 * (four % lanes) if width == 4 else four % lanes

    @cuda.jit(device=True)
    def read4(workspace, start, four): return load4(workspace, uint64(start + 4 * four))

    @cuda.jit(device=True)
    def read_sums(ring, four):
        if not apart: return load4(ring, uint64(uint32(4) * four))
        first = uint32(uint32(four // uint32(lanes)) * uint32(4 * lanes) + four % uint32(lanes))
        return (ring[uint64(first)], ring[uint64(first + uint32(lanes))],
                ring[uint64(first + uint32(2 * lanes))], ring[uint64(first + uint32(3 * lanes))])

    share = sums_sharer(fours, threads, read4, place, write4)

    @cuda.jit(device=True)
    @unrolled
    def write_sums(
        ring,  # the array in shared memory
        c, workspace, flags, launch,
        block, parts, row0, col0, alpha, beta, thread,  # see `sums_sharer`
    ):
        cuda.syncthreads()
        four = thread
        while four < uint32(fours):
            x, y, z, w = read_sums(ring, four)
            for j in static(1, groups):
                more = read_sums(ring, uint32(four + uint32(j * fours)))
                x, y, z, w = x + more[0], y + more[1], z + more[2], w + more[3]
            if parts == 1:
                row, col = place(int64(four))
                write4(c, row0 + row, col0 + col, (x, y, z, w), alpha, beta)
            else: store_fours(workspace, uint64(4 * (int64(block) * fours + four)), 4, (x, y, z, w))
            four = uint32(four + uint32(threads))
        if parts > 1: share(c, workspace, flags, launch, block, parts, row0, col0, alpha, beta, thread)
    return write_sums


@cache
def parts_writer(
    tile,              # a `WarpTile`
    first_result: Callable,  # device function: thread → row and column of its first result
    write4: Callable,  # see `slice_adder`
) -> Callable:
    "A device function: share a tile of which each block has a part in its threads' registers."
    threads, results, tm, cols = tile.threads, tile.results, tile.tm, tile.shape[1] // 4
    fours = threads * results // 4
    step_m, step_n = tile.step

    @cuda.jit(device=True)
    def place(four):
        row, col = first_result(uint32(four % threads))
        group = four // threads
        i, j = group // cols, group % cols
        return int64(row) + (i // tm * step_m + i % tm), int64(col) + j * step_n

    @cuda.jit(device=True)
    def read4(workspace, start, four): return load4(workspace, uint64(start + 4 * four))

    share = sums_sharer(fours, threads, read4, place, write4)

    @cuda.jit(device=True)
    @unrolled
    def write_part(c, acc, workspace, flags, launch, block, parts, row0, col0, alpha, beta, thread):
        start = 4 * (int64(block) * fours + int64(thread))
        for i in static(results // 4):
            four = acc[4 * i:4 * i + 4]
            store4(workspace, uint64(start + 4 * threads * i),
                   alpha * four[0], alpha * four[1], alpha * four[2], alpha * four[3])
        share(c, workspace, flags, launch, block, parts, row0, col0, float32(1), beta, thread)
    return write_part
