"""What kernel 20 does with scales of A and B, and its epilogues, which store bfloat16 or float32."""
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from ..arrays import cdiv
from ..ptx.ampere import cvt_rn_bf16x2_f32, store_pair, unpack_bf16
from ..ptx.core import add_scaled, store2
from ..ptx.hopper import pack_scaled
from ..static import static, unrolled
from .epilogue import (
    Epilogue, PendingTile, boxes_storer, drain_nothing, overlapped_epilogue, split_k_epilogue)
from .tiles import WgmmaTile
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

class ScaleSource(NamedTuple):
    "Where a lane's scales are."
    scale_a: object  # (m·k tiles,) float32
    scale_b: object  # (k tiles·columns of blocks,) float32
    rows: tuple      # where those of its rows begin in scale_a
    cols: tuple      # columns of blocks that the tile has
    across: int      # columns of blocks that B has
    last: int        # number of the last k tile
    middle: int      # to which of its columns of blocks the tile's middle belongs

class BlockScales(NamedTuple):
    """A lane's scales. Four lanes have the same rows, so of four k tiles each of them loads one's scales, and
    gets the others' by a shuffle."""
    factors: tuple  # of these four: for each product and column of blocks, A's scales of two rows times B's
    coming: tuple   # of the next four: A's scales of the rows, and B's of each column of blocks
    k_tile: int     # the lane's, of the next four
    turn: int       # which of these four is next

@cache
def block_scales(
    products,  # of a consumer, each with two rows of a lane: 1, or 2 with 128 rows
    columns,   # of blocks in a tile: 1, or 2 for tiles of 192 columns
):
    "Device functions: the first `BlockScales`; a k tile's factors, and the next `BlockScales`."
    count = 2 * products * columns
    nothing = (np.float32(0),) * count

    @cuda.jit(device=True)
    @unrolled
    def load(of, k_tile):
        k_tile = uint32(min(k_tile, of.last))  # after the last one, the same again
        found = ()
        for i in static(2 * products): found = found + (of.scale_a[uint32(of.rows[i] + k_tile)],)
        for j in static(columns): found = found + (of.scale_b[uint32(of.cols[j] + k_tile * of.across)],)
        return found

    @cuda.jit(device=True)
    def first(of, k_begin, lane):
        k_tile = uint32(k_begin + lane % 4)
        return BlockScales(nothing, load(of, k_tile), k_tile, uint32(0))

    @cuda.jit(device=True)
    @unrolled
    def renewed(of, at):
        factors, k_tile = (), uint32(at.k_tile + uint32(4))
        for i in static(count):  # the row changes first, then the column of blocks
            a, b = i // 2 // columns * 2 + i % 2, 2 * products + i // 2 % columns
            factors = factors + (at.coming[a] * at.coming[b],)
        return BlockScales(factors, load(of, k_tile), k_tile, uint32(0))

    @cuda.jit(device=True)
    @unrolled
    def following(of, at, lane):
        if at.turn % 4 == 0: at = renewed(of, at)
        owner, factors = int32(lane // 4 * 4 + at.turn), ()
        for i in static(count):
            factors = factors + (cuda.shfl_sync(0xFFFFFFFF, at.factors[i], owner),)
        return factors, BlockScales(at.factors, at.coming, at.k_tile, uint32(at.turn + uint32(1)))
    return first, following

@cuda.jit(device=True)
def add_block(sums, products, of, factors):
    "One column of blocks."
    above, below = factors
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
