"""Blocks that run at the same time should share rows of A and columns of B."""
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
    group_m,  # rows processed together, column by column
) -> tuple:   # row and column of the tile
    "A tile's position, in an order where blocks that run at the same time need few rows and columns."
    # the tile's group of rows
    width = uint32(group_m * cols)
    group = uint32(tile // width) if tile >= width else uint32(0)
    first = uint32(group * group_m)
    # its place in the group: the last one may have fewer rows
    within = uint32(tile - group * width)
    height = min(uint32(group_m), uint32(rows - first))
    col = uint32(within // uint32(group_m)) if height == group_m else uint32(within // height)
    return uint32(first + within - col * height), col


# Persistent blocks
#
# A *persistent* block goes from one work tile to the next. A work tile is a tile of C; or, if there are
# fewer of those than multiprocessors, a part of its sums (*split-K*): some of its k tiles.

class WorkGrid(NamedTuple):
    "All of the work."
    rows: int     # of tiles in C
    cols: int
    tiles: int    # of C
    k_tiles: int  # of each tile
    work: int     # work tiles
    split_k: int  # parts of each sum

class Scheduler(NamedTuple):
    "Device functions that assign work to a persistent block."
    work_grid: Callable    # sizes → `WorkGrid`
    work_tile: Callable    # number → tile of C, part, first k tile, and the one after its last
    tile_origin: Callable  # number of a tile of C → its first row and column

@cache
def persistent_scheduler(
    tile: WgmmaTile,
    is_split: bool,  # are sums divided into parts?
    in_cluster: bool = False,  # does each block of a cluster have a part of the same tile's?
) -> Scheduler:
    "The order of work tiles, see `rasterize`."
    (bm, bn), bk, group_m = tile.covered, tile.bk, tile.group_m
    cluster, shared_b, own = tile.cluster, tile.shared_b, tile.bm if tile.shared_b else tile.bn

    @cuda.jit(device=True)
    def work_grid(m, n, k, split_k):
        rows = uint32(uint32(m + bm - 1) // uint32(bm))
        cols = uint32(uint32(n + bn - 1) // uint32(bn))
        tiles = uint32(rows * cols)
        k_tiles = uint32(uint32(k + bk - 1) // uint32(bk))
        work = uint32(tiles * split_k) if is_split and not in_cluster else tiles
        return WorkGrid(rows, cols, tiles, k_tiles, work, split_k)

    @cuda.jit(device=True)
    def work_tile(work, grid):
        if not is_split: return work, int64(0), uint32(0), grid.k_tiles
        if in_cluster: number, part = work, uint32(uint32(cuda.blockIdx.x) % grid.split_k)
        else:
            part = uint32(work // grid.tiles)
            number = uint32(work - part * grid.tiles)
        length = uint32(uint32(grid.k_tiles + grid.split_k - uint32(1)) // grid.split_k)
        begin = uint32(part * length)
        end = min(grid.k_tiles, uint32(begin + length))
        return number, int64(part), begin, end

    @cuda.jit(device=True)
    def tile_origin(number, grid):
        row, col = rasterize(number, grid.rows, grid.cols, uint32(group_m))
        row, col = uint32(row * uint32(bm)), uint32(col * uint32(bn))
        if cluster > 1 and shared_b: row = uint32(row + uint32(cuda.blockIdx.x % 2) * uint32(own))
        elif cluster > 1: col = uint32(col + uint32(cuda.blockIdx.x % 2) * uint32(own))
        return row, col
    return Scheduler(work_grid, work_tile, tile_origin)
