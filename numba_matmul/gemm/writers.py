"""Threads that write results to C: scaled, rounded to bfloat16, and perhaps added to what C held."""
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from ..ptx.ampere import cvt_rn_bf16x2_f32, store_pair, unpack_bf16
from ..static import static, unrolled
from .tiles import WgmmaTile
from numba import cuda, int64, uint16, uint32, uint64


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


@cache
def column_writer(
    predicated: bool,  # may the tile extend past the edge of C?
    read_c: bool,      # is beta not 0?
) -> Callable:
    "A device function: write two elements of a transposed C that are adjacent in a row of the tile."
    @cuda.jit(device=True)
    def write_one(to, row, col, total):
        if not predicated or (row < to.rows and col < to.cols):
            at = uint64(col * to.rows + row)
            value = to.alpha * total
            if read_c: value += to.beta * unpack_bf16(uint32(to.array[at]))[0]
            to.array[at] = uint16(cvt_rn_bf16x2_f32(value, value) & uint32(0xFFFF))

    @cuda.jit(device=True)
    def write(to, row, col, low, high):
        write_one(to, row, col, low)
        write_one(to, row, col + 1, high)
    return write


def results_writer(tile: WgmmaTile, predicated: bool, read_c: bool) -> Callable:
    "A device function: write two adjacent sums of a row of the tile."
    return column_writer(predicated, read_c) if tile.m_major_c else pair_writer(predicated, 8, read_c)

@cache
def tile_writer(
    tile: WgmmaTile, predicated: bool, read_c: bool,
) -> Callable:
    "A device function: each thread of a warpgroup writes its results."
    write = mma_tile_writer(1, tile.bn // 8, results_writer(tile, predicated, read_c))

    @cuda.jit(device=True)
    def write_tile(
        to,        # `Target`
        row, col,  # of the warpgroup's results
        thread, acc,
    ):
        lane = uint32(thread % 32)
        write(to, int64(row) + thread % 128 // 32 * 16 + lane // 4, int64(col) + lane % 4 * 2, acc)
    return write_tile
