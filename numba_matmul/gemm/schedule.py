"""Blocks that run together should need few rows of A and few columns of B."""
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from numba import cuda, int64, uint32

from .tiles import WgmmaTile


@cuda.jit(device=True)
def rasterize(
    tile,     # number of a tile
    rows,     # rows of tiles in C
    cols,     # columns of tiles
    group_m,  # rows that are gone through together, column by column
) -> tuple:   # row and column of the tile
    "Where a tile lies: in an order in which blocks that run together need few rows and columns."
    # the group of rows that the tile is in
    width = uint32(group_m * cols)
    group = uint32(tile // width) if tile >= width else uint32(0)
    first = uint32(group * group_m)
    # its place in the group: the last one may be less high
    within = uint32(tile - group * width)
    height = min(uint32(group_m), uint32(rows - first))
    col = uint32(within // uint32(group_m)) if height == group_m else uint32(within // height)
    return uint32(first + within - col * height), col


# Persistent blocks
#
# A *persistent* block goes from one work tile to the next. A work tile is a tile of C; or, where there are
# fewer of those than multiprocessors, a part of its sums (*split-K*): some of its k tiles.

class WorkGrid(NamedTuple):
    "All that there is to do."
    rows: int     # of tiles in C
    cols: int
    tiles: int    # of C
    k_tiles: int  # of each
    work: int     # work tiles
    split_k: int  # parts of each sum

class Scheduler(NamedTuple):
    "Device functions that tell a persistent block what to do."
    work_grid: Callable    # sizes → `WorkGrid`
    work_tile: Callable    # its number → tile of C, part, its first k tile, and the one behind its last
    tile_origin: Callable  # number of a tile of C → its first row and column

@cache
def persistent_scheduler(
    tile: WgmmaTile,
    is_split: bool,  # are sums cut into parts?
) -> Scheduler:
    "The order of work tiles, see `rasterize`."
    bm, bn, bk, group_m = tile.bm, tile.bn, tile.bk, tile.group_m

    @cuda.jit(device=True)
    def work_grid(m, n, k, split_k):
        rows = uint32(uint32(m + bm - 1) // uint32(bm))
        cols = uint32(uint32(n + bn - 1) // uint32(bn))
        tiles = uint32(rows * cols)
        k_tiles = uint32(uint32(k + bk - 1) // uint32(bk))
        work = uint32(tiles * split_k) if is_split else tiles
        return WorkGrid(rows, cols, tiles, k_tiles, work, split_k)

    @cuda.jit(device=True)
    def work_tile(work, grid):
        if not is_split: return work, int64(0), uint32(0), grid.k_tiles
        part = uint32(work // grid.tiles)
        length = uint32(uint32(grid.k_tiles + grid.split_k - uint32(1)) // grid.split_k)
        begin = uint32(part * length)
        end = min(grid.k_tiles, uint32(begin + length))
        return uint32(work - part * grid.tiles), int64(part), begin, end

    @cuda.jit(device=True)
    def tile_origin(number, grid):
        row, col = rasterize(number, grid.rows, grid.cols, uint32(group_m))
        return uint32(row * uint32(bm)), uint32(col * uint32(bn))
    return Scheduler(work_grid, work_tile, tile_origin)
