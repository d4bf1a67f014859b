"""A float32 matrix as two float16 parts, at memory speed: x times a power of two = hi + lo / 2048.

Each row has its own power of two, which moves its largest element to just below float16's overflow. A power
of two doesn't change any bit of a significand, so nothing is lost. B is split first. Scaling a row of B must
be undone in a column of A: so A's columns are multiplied by B's factors (*balanced*), and then A's rows are
scaled. One factor per row of C remains to be undone, and every matrix is read only once.

What can't float16 parts represent? hi has 11 bits, and lo has 11 more if it isn't too small: below 2^-14
float16 loses bits. A scaled number x loses at most 2^-36, or 2^-23 of itself if that is more. That is less
than k·2^-24 of x, float32's own bound for sums of k products, as long as x is at least 2^-12 / k (`least`).
The product lo·lo, which is never computed, is just as small if one of the two numbers is at least 2^-14
(`SMALL`), so that its hi has all bits. Two small numbers must not meet: a row of B with such a number
indicates that by the sign of its factor, which A meets in that column. A row with a number out of range gets
NaN as its factor. From B's rows, NaN spreads to all of A's rows.
"""
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import gcd
from typing import NamedTuple

import numpy as np
from numba import config, cuda, float32, int32, int64, uint32, uint64

from ..arrays import KEPT_AS, array_like, cdiv, current_gpu, is_torch, to_h
from ..ptx.ampere import cvt_rn_f16x2_f32, store_pairs, unpack_f16x2
from ..ptx.core import float_as_uint, uint_as_float
from ..static import static, unrolled
from .args import Gemm, device_matrix, numba_array, span
from .plan import Launch, Plan, is_captured, kept_plan, simulate_plan, stream_of
from .tensor_maps import LONGEST


# A number in two parts

LO = np.float32(2**11)  # lo is stored scaled up by this


@cuda.jit(device=True)
def split_pair(
    x, y,  # float32, scaled
) -> tuple:
    "Both numbers in two parts, two float16 in a uint32 each: x = hi + lo / 2048."
    hi = cvt_rn_f16x2_f32(x, y)
    x_hi, y_hi = unpack_f16x2(hi)
    return hi, cvt_rn_f16x2_f32((x - x_hi) * LO, (y - y_hi) * LO)


# The power of two of a row

TOP = 15  # exponent of a row's largest element after scaling: the largest that doesn't overflow float16


@cuda.jit(device=True)
def larger_magnitude(largest, four):
    "Bits of the largest magnitude: they sort like the numbers, with NaN above infinity."
    for i in range(4): largest = max(largest, int32(float_as_uint(four[i]) & uint32(0x7FFFFFFF)))
    return largest


@cuda.jit(device=True)
def scale_exponent(
    largest,  # bits of the row's largest magnitude
) -> int:
    "The power of two that gives a row's largest element, rounded to 11 bits, the exponent `TOP`."
    exponent = int32(int32(largest + int32(0x1000)) >> int32(23)) - int32(127)
    return min(int32(TOP) - exponent, int32(126)) if largest > 0 else int32(0)


@cuda.jit(device=True)
def power_of_two(exponent):
    "2 to this power, from -126 to 127."
    return uint_as_float(uint32(uint32(exponent + int32(127)) << uint32(23)))


# What the parts can't represent

NORMAL = np.float32(2**-126)    # the smallest float32 with all 24 bits
SMALL = np.float32(2**-14)      # below this, hi has fewer than 11 bits
INFINITE = np.float32(65520)    # from here up, float16 rounds to infinity
NO_PARTS = np.float32(np.nan)   # the factor of a row that float16 parts can't represent
OUT, IS_SMALL = 1, 2            # marks for a row: a number is out of range; a number is small


@cuda.jit(device=True)
def range_marks(
    marks,   # what was detected so far
    x,
    scaled,  # x times the power of two; 0 if that is too small for a float32
    meets,   # bit 0: may x be multiplied by a small number?
    least,   # see `split_rows_kernel`
) -> int:
    "The marks for a number."
    size = abs(scaled)
    if x != float32(0) and not (size >= SMALL and size < INFINITE):
        marks |= IS_SMALL if size >= least and size < SMALL and not meets & 1 else OUT
    return marks


# Four adjacent numbers at a time: read, perhaps balanced; scaled, split and stored

@cache
def balanced_reader(
    read4: Callable,  # device function, see `four_reader` in lesson 6
    balanced: bool,   # are columns multiplied by factors?
):
    """A device function: read four adjacent numbers of a row, each times its column's factor; and return
    which of the four factors are negative, one bit each."""

    @cuda.jit(device=True)
    def balance(x, factor):
        y = x * abs(factor)
        return NO_PARTS if abs(y) < NORMAL and x != float32(0) else y  # too small for 24 bits

    @cuda.jit(device=True)
    def read(
        x,        # the matrix, flat
        start,    # of the row
        col,      # of the first of the four
        cols,     # of the matrix; beyond them, zeros are read
        factors,  # (cols,) float32
    ):  # the four numbers, the bits
        inside = int32(cols - col)
        four, meets = read4(x, uint64(start + col), inside), int32(0)
        if balanced:
            by = read4(factors, uint64(col), inside)
            for i in range(4):
                if by[i] < float32(0): meets |= int32(1) << i
            four = (balance(four[0], by[0]), balance(four[1], by[1]),
                    balance(four[2], by[2]), balance(four[3], by[3]))
        return four, meets
    return read


@cuda.jit(device=True)
def store_parts(
    hi, lo,  # the parts, flat
    at,      # index of the first of four adjacent numbers
    four, meets,  # see `balanced_reader`
    scale,   # of their row
    least,   # see `split_rows_kernel`
    marks,   # what was detected so far
) -> int:
    "Scale four numbers, and store their parts. Returns the marks."
    x, y = four[0] * scale, four[1] * scale
    z, w = four[2] * scale, four[3] * scale
    first_hi, first_lo = split_pair(x, y)
    second_hi, second_lo = split_pair(z, w)
    store_pairs(hi, at, first_hi, second_hi)
    store_pairs(lo, at, first_lo, second_lo)
    marks = range_marks(marks, four[0], x, meets, least)
    marks = range_marks(marks, four[1], y, meets >> 1, least)
    marks = range_marks(marks, four[2], z, meets >> 2, least)
    return range_marks(marks, four[3], w, meets >> 3, least)


# One block per row

@cache
def split_rows_kernel(
    read4: Callable,  # see `balanced_reader`
    balanced: bool,   # see `balanced_reader`
    kept: int,        # see `KEPT`
):
    "A kernel, one block per row: find the row's largest element, scale the row, and split it."
    read = balanced_reader(read4, balanced)

    @cuda.jit(lineinfo=True, launch_bounds=1024)
    @unrolled
    def split_rows_kernel(
        x,        # (rows·cols,) float32
        cols,     # uint32
        factors,  # (cols,) float32: `inverse` of the other matrix, if columns are balanced
        hi, lo,   # (rows·pitch,) bits of float16
        pitch,    # uint32, a multiple of 64: row stride of the parts in numbers, padded with zeros
        inverse,  # (rows,) float32; gets what undoes the scale, negative if a number is small, or `NO_PARTS`
        least,    # small numbers below this are out of range, and so are those that meet small ones
    ):
        shared = cuda.shared.array(2, int32)  # the largest magnitude; the marks
        thread, threads = uint32(cuda.threadIdx.x), uint32(cuda.blockDim.x)
        row = int64(cuda.blockIdx.x)
        start, to = row * cols, row * pitch
        first, step = uint32(uint32(4) * thread), uint32(uint32(4) * threads)
        if thread < 2: shared[thread] = 0
        cuda.syncthreads()

        # the largest element of the row
        fours, all_meets, largest = (), int32(0), int32(0)
        for i in static(kept):
            four, meets = read(x, start, uint32(first + uint32(i) * step), cols, factors)
            fours = fours + (four,)
            all_meets |= meets << int32(4 * i)
            largest = larger_magnitude(largest, four)
        col = uint32(first + uint32(kept) * step)
        while col < cols:
            four, meets = read(x, start, col, cols, factors)
            largest = larger_magnitude(largest, four)
            col = uint32(col + step)
        for distance in (16, 8, 4, 2, 1):
            largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance))
        if thread % 32 == 0: cuda.atomic.max(shared, 0, largest)
        cuda.syncthreads()

        # its parts
        exponent, marks = scale_exponent(shared[0]), int32(0)
        scale = power_of_two(exponent)
        for i in static(kept):
            col, four, meets = uint32(first + uint32(i) * step), fours[i], all_meets >> int32(4 * i)
            if col < pitch: marks = store_parts(hi, lo, uint64(to + col), four, meets, scale, least, marks)
        col = uint32(first + uint32(kept) * step)
        while col < pitch:
            four, meets = read(x, start, col, cols, factors)
            marks = store_parts(hi, lo, uint64(to + col), four, meets, scale, least, marks)
            col = uint32(col + step)

        # can they represent it?
        if marks: cuda.atomic.or_(shared, 1, marks)
        cuda.syncthreads()
        if thread == 0:
            marks, factor = shared[1], power_of_two(-exponent)
            if not balanced and marks & IS_SMALL: factor = -factor
            inverse[row] = NO_PARTS if marks & OUT else factor
    return split_rows_kernel


# A matrix and its parts

class Parts(NamedTuple):
    "A matrix in two parts: x times a power of two = hi + lo / 2048."
    hi: object       # (rows, pitch) bits of float16, padded with zeros
    lo: object
    inverse: object  # (rows,) float32: what undoes the scale of a row, see `split_rows_kernel`


def new_parts(
    rows: int, cols: int,  # of a matrix
    allocate: Callable,    # function (*shape, kind) → array, see `Gemm`
) -> Parts:
    "Memory for its parts: rows that are whole TMA boxes."
    pitch = cdiv(cols, 64) * 64
    hi, lo = (allocate(rows, pitch, kind="bfloat16") for _ in range(2))  # any type of 16 bits
    return Parts(hi, lo, allocate(rows, kind="float32"))

SPLIT_THREADS = 1024  # maximum per block
KEPT = 4              # groups of four a thread keeps in registers between its two passes; at most 8


def split_launch(
    x,                # (rows, cols) float32 device array, row-major
    k: int,           # products per sum
    read4: Callable,  # see `balanced_reader`
    parts: Parts,     # see `new_parts`
    other: Parts = None,  # B's, for A
) -> Launch:
    "The launch that splits a matrix."
    rows, cols = x.shape
    pitch = parts.hi.shape[1]
    threads = min(SPLIT_THREADS, cdiv(pitch, 16 * 32) * 32)
    kept = min(KEPT, cdiv(pitch, 4 * threads))
    args = (x.ravel(), np.uint32(cols), (other or parts).inverse, parts.hi.ravel(), parts.lo.ravel(),
            np.uint32(pitch), parts.inverse, np.float32(2.0**-12 / k))
    return Launch(split_rows_kernel(read4, other is not None, kept), rows, threads, args)


@dataclass(frozen=True, eq=False, repr=False)
class SplitMatrix:
    "A matrix and its parts, which are freed along with it."
    matrix: object  # (k, n) float32 device array; if it changes, split it again
    parts: Parts    # arrays of the same kind


def split_matrix(
    b,                   # (k, n) float32 device array, row-major
    fours_of: Callable,  # function (alignment of rows in bytes) → see `balanced_reader`
) -> SplitMatrix:
    "Split B once for use in several products."
    x = device_matrix("b", b, "float32")
    k, n = map(int, x.shape)
    if max(k, n) > LONGEST: raise ValueError(f"b is {k}×{n}; expected at most {LONGEST:,} rows and columns")
    def allocate(*shape, kind): return array_like(b, shape, kind if is_torch(b) else KEPT_AS.get(kind, kind))
    parts = new_parts(k, n, allocate)
    arrays = x, *map(numba_array, parts)
    alignment = gcd(16, span(x)[0], 4 * n)
    def plan(): return Plan([split_launch(x, k, fours_of(alignment), Parts(*arrays[1:]))]), arrays
    if not (k and n): pass
    elif config.ENABLE_CUDASIM: simulate_plan(plan()[0])
    else:
        packed = kept_plan((split_matrix, fours_of, current_gpu().id, k, n, alignment), plan)
        packed([span(array)[0] for array in arrays], stream_of(b.get_device()) if is_torch(b) else 0)
    return SplitMatrix(b, parts)


# A call: its arguments besides A, B and C

def need_range(
    range: str,  # see `sgemm_tensor_cores` in lesson 19
):
    "`ValueError` unless it is one of the three."
    if not (isinstance(range, str) and range in ("check", "trust", "refuse")):
        raise ValueError(f"range is {range!r}; expected 'check', 'trust' or 'refuse'")


def further_arrays(
    a, b,      # device arrays; b may be a `SplitMatrix`
    range: str,
    declined,  # (1,) int32 device array for the decision, or None
) -> tuple:
    "B's matrix, and the additional arrays of the call: B's parts, and where to put the decision."
    others = {}
    if isinstance(b, SplitMatrix):
        others = {f"b's {name}": part for name, part in b.parts._asdict().items()}
        b = b.matrix
    if isinstance(range, str) and range == "refuse":
        if is_captured():
            raise RuntimeError("range is 'refuse' during CUDA graph capture, where the host can't wait "
                               "for the decision: use 'check', and pass an array as declined")
        if declined is None: declined = array_like(a, (1,), "int32")
    if declined is not None: others["declined"] = declined
    return b, others


def parts_ahead(
    g: Gemm,
) -> Parts:  # None: B isn't split
    "B's parts, if the call received a `SplitMatrix`."
    found = [g.others.get(f"b's {name}") for name in Parts._fields]
    return None if found[0] is None else Parts(*found)


def declined_array(
    g: Gemm,
):  # None: there is none
    "The caller's array for the decision. `TypeError` or `ValueError` if it can't hold it."
    declined = g.others.get("declined")
    if declined is None: return None
    if declined.dtype != np.int32: raise TypeError(f"declined is {declined.dtype}; expected int32")
    if tuple(declined.shape) != (1,):
        raise ValueError(f"declined has shape {tuple(declined.shape)}; expected (1,), one number")
    return declined


@cuda.jit
def nobody_looked_kernel(declined):
    if cuda.grid(1) == 0: declined[0] = -1


def nobody_looked(
    g: Gemm,
) -> list:  # of launches
    "Tells the caller that the numbers weren't checked."
    declined = g.others.get("declined")
    return [] if declined is None else [Launch(nobody_looked_kernel, 1, 32, (declined,))]


def refuse_declined(declined):
    "`ValueError` if the parts can't represent the numbers; waits for the GPU."
    if to_h(declined)[0] == 1:
        raise ValueError("two float16 parts can't represent a or b: there is an infinity, NaN, or a number "
                         "too small next to its row's largest; with range='check' sgemm_stream_k multiplies")
