"""A float32 matrix in two parts of float16, at the speed of memory: x times a power of two = hi + lo / 2048.

Each row has its own power of two, which brings its largest element just below float16's infinity. A power
of two changes no bit of a significand, so nothing is lost. B is split first. What scales a row of B must be
undone in a column of A: so A's columns are multiplied by B's factors (they are *balanced*), and then A's
rows are scaled. What is left to undo is a factor for each row of C, and every matrix is read only once.

What can float16 parts not carry? hi has 11 bits, and lo has 11 more if it isn't too small: below 2^-14
float16 loses bits. A scaled number x loses at most 2^-36, or 2^-23 of itself if that is more. That is less
than k·2^-24 of x, float32's own bound for sums of k products, as long as x is at least 2^-12 / k (`least`).
And the product lo·lo, which nobody computes, counts where numbers of both matrices are below 2^-13 / √k
(`small`). A row with a number out of range gets NaN as its factor. From B's rows NaN spreads to all of A's
by itself.
"""
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numba import cuda, float32, int32, int64, uint32, uint64

from ..arrays import cdiv
from ..ptx.ampere import cvt_rn_f16x2_f32, store_pairs, unpack_f16x2
from ..ptx.core import float_as_uint, uint_as_float
from ..static import static, unrolled
from .args import Gemm
from .plan import Launch


LO = np.float32(2**11)  # lo is stored this much larger


@cuda.jit(device=True)
def split_pair(
    x, y,  # float32, scaled
) -> tuple:
    "Both numbers in two parts, two float16 in a uint32 each: x = hi + lo / 2048."
    hi = cvt_rn_f16x2_f32(x, y)
    x_hi, y_hi = unpack_f16x2(hi)
    return hi, cvt_rn_f16x2_f32((x - x_hi) * LO, (y - y_hi) * LO)

TOP = 15  # exponent of a row's largest element after scaling: the last one below float16's infinity


@cuda.jit(device=True)
def power_of_two(exponent):
    "2 to that power, for -126 to 127."
    return uint_as_float(uint32(uint32(exponent + int32(127)) << uint32(23)))


@cuda.jit(device=True)
def scale_exponent(
    largest,  # bits of the row's largest magnitude
) -> int:
    "The power of two that gives a row's largest element, once rounded to 11 bits, the exponent `TOP`."
    exponent = int32(int32(largest + int32(0x1000)) >> int32(23)) - int32(127)
    return min(int32(TOP) - exponent, int32(126)) if largest > 0 else int32(0)

NORMAL = np.float32(2**-126)    # the smallest float32 with all 24 bits
NO_PARTS = np.float32(np.nan)   # the factor of a row that float16 parts can't carry
OUT, SMALL, SMALL_FACTOR = 1, 2, 4  # a number out of range; a small one; a factor whose row has a small one


@cache
def balanced_reader(
    read4: Callable,  # device function, see `four_reader` in lesson 6
    balanced: bool,   # are columns multiplied by factors?
):
    "A device function: read four neighbors of a row, each times its column's factor."

    @cuda.jit(device=True)
    def balance(x, factor):
        y = x * abs(factor)
        return NO_PARTS if abs(y) < NORMAL and x != float32(0) else y  # too small for 24 bits

    @cuda.jit(device=True)
    def read(
        x,        # the matrix, flat
        start,    # of the row
        col,      # of the first of the four
        cols,     # of the matrix; zeros are read beyond them
        factors,  # (cols,) float32
        marks,    # what was noticed so far
    ):  # the four numbers, the marks
        inside = int32(cols - col)
        four = read4(x, uint64(start + col), inside)
        if balanced:
            by = read4(factors, uint64(col), inside)
            if min(min(by[0], by[1]), min(by[2], by[3])) < float32(0): marks |= SMALL_FACTOR
            four = (balance(four[0], by[0]), balance(four[1], by[1]),
                    balance(four[2], by[2]), balance(four[3], by[3]))
        return four, marks
    return read


@cuda.jit(device=True)
def larger_magnitude(largest, four):
    "Bits of the largest magnitude: they are in the order of the numbers, with NaN above infinity."
    for i in range(4): largest = max(largest, int32(float_as_uint(four[i]) & uint32(0x7FFFFFFF)))
    return largest


@cuda.jit(device=True)
def range_marks(marks, x, least, small):
    "What is to be noticed of a scaled number."
    size = abs(x)
    if size != float32(0) and not (size >= small and size < float32(65520)):
        marks |= SMALL if size >= least and size < small else OUT
    return marks


@cuda.jit(device=True)
def store_parts(
    hi, lo,  # the parts, flat
    at,      # index of the first of four neighbors
    four,    # float32
    scale,   # of their row
    least, small,  # see `split_rows_kernel`
    marks,   # what was noticed so far
) -> int:
    "Scale four numbers, and store their parts. Returns the marks."
    x, y = four[0] * scale, four[1] * scale
    z, w = four[2] * scale, four[3] * scale
    first_hi, first_lo = split_pair(x, y)
    second_hi, second_lo = split_pair(z, w)
    store_pairs(hi, at, first_hi, second_hi)
    store_pairs(lo, at, first_lo, second_lo)
    marks = range_marks(range_marks(marks, x, least, small), y, least, small)
    return range_marks(range_marks(marks, z, least, small), w, least, small)


@cache
def split_rows_kernel(
    read4: Callable,  # see `balanced_reader`
    balanced: bool,   # see `balanced_reader`
    kept: int = 4,    # fours that a thread keeps in registers from its first pass over the row to the second
):
    "A kernel, one block per row: find the row's largest element, scale the row, and split it."
    read = balanced_reader(read4, balanced)

    @cuda.jit(lineinfo=True, launch_bounds=1024)
    @unrolled
    def split_rows_kernel(
        x,        # (rows·cols,) float32
        cols,     # uint32
        factors,  # (cols,) float32: `inverse` of the other matrix, where columns are balanced
        hi, lo,   # (rows·pitch,) bits of float16
        pitch,    # uint32, a multiple of 64: numbers from row to row of the parts, filled up with zeros
        inverse,  # (rows,) float32; gets what undoes the scale, negative if a number is small, or `NO_PARTS`
        least,    # scaled numbers below this are out of range
        small,    # and those below this, if the other matrix has such numbers, too
    ):
        shared = cuda.shared.array(2, int32)  # the largest magnitude; the marks
        thread, threads = uint32(cuda.threadIdx.x), uint32(cuda.blockDim.x)
        row = int64(cuda.blockIdx.x)
        start, to = row * cols, row * pitch
        first, step = uint32(uint32(4) * thread), uint32(uint32(4) * threads)
        if thread < 2: shared[thread] = 0
        cuda.syncthreads()

        # the largest element of the row
        fours, largest, marks = (), int32(0), int32(0)
        for i in static(kept):
            four, marks = read(x, start, uint32(first + uint32(i) * step), cols, factors, marks)
            fours = fours + (four,)
            largest = larger_magnitude(largest, four)
        col = uint32(first + uint32(kept) * step)
        while col < cols:
            four, marks = read(x, start, col, cols, factors, marks)
            largest = larger_magnitude(largest, four)
            col = uint32(col + step)
        for distance in (16, 8, 4, 2, 1):
            largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance))
        if thread % 32 == 0: cuda.atomic.max(shared, 0, largest)
        cuda.syncthreads()

        # its parts
        exponent = scale_exponent(shared[0])
        scale = power_of_two(exponent)
        for i in static(kept):
            col = uint32(first + uint32(i) * step)
            if col < pitch: marks = store_parts(hi, lo, uint64(to + col), fours[i], scale, least, small, marks)
        col = uint32(first + uint32(kept) * step)
        while col < pitch:
            four, marks = read(x, start, col, cols, factors, marks)
            marks = store_parts(hi, lo, uint64(to + col), four, scale, least, small, marks)
            col = uint32(col + step)

        # can they carry it?
        if marks: cuda.atomic.or_(shared, 1, marks)
        cuda.syncthreads()
        if thread == 0:
            marks, factor = shared[1], power_of_two(-exponent)
            if not balanced and marks & SMALL: factor = -factor
            both_small = marks & SMALL and marks & SMALL_FACTOR
            inverse[row] = NO_PARTS if marks & OUT or both_small else factor
    return split_rows_kernel


class Parts(NamedTuple):
    "A matrix in two parts: x times a power of two = hi + lo / 2048."
    hi: object       # (rows, pitch) bits of float16, filled up with zeros
    lo: object
    inverse: object  # (rows,) float32: what undoes the scale of a row, see `split_rows_kernel`

SPLIT_THREADS = 1024  # of a block, at most


def split_launch(
    g: Gemm,          # for the workspace, and k
    name: str,        # "a" or "b"
    read4: Callable,  # see `balanced_reader`
    other: Parts = None,  # B's, for A
) -> tuple:
    "The launch that splits a matrix, and its `Parts` in the workspace."
    x = getattr(g, name)
    rows, cols = x.shape
    pitch = cdiv(cols, 64) * 64
    hi, lo = (g.workspace(rows, pitch, kind="bfloat16") for _ in range(2))  # any type of 16 bits
    parts = Parts(hi, lo, g.workspace(rows, kind="float32"))
    threads = min(SPLIT_THREADS, cdiv(pitch, 16 * 32) * 32)
    kept = min(4, cdiv(pitch, 4 * threads))
    kernel = split_rows_kernel(read4, other is not None, kept)
    least, small = np.float32(2.0**-12 / g.k), np.float32(2.0**-13 / g.k**0.5)
    args = (x.ravel(), np.uint32(cols), (other or parts).inverse, hi.ravel(), lo.ravel(), np.uint32(pitch),
            parts.inverse, least, small)
    return Launch(kernel, rows, threads, args), parts
