"""Matrices of e4m3: cast from float32 or bfloat16 with their scales, transposed, or padded.

A scale is what the numbers are divided by before they are rounded: the largest magnitude of their row or
block, over 448, e4m3's largest. Each number is read once: it stays in registers while its row or block is
searched for the largest.
"""
from collections.abc import Callable
from functools import cache
from math import gcd

import numpy as np
from numba import config, cuda, float32, int32, int64, uint8, uint32, uint64

from ..arrays import array_like, cdiv, current_gpu, is_torch
from ..fp8 import E4M3, LARGEST
from ..ptx.ampere import unpack_bf16
from ..ptx.core import float_as_uint, load4, uint_as_float
from ..ptx.hopper import cvt_rn_satfinite_e4m3x4_f32
from ..static import static, unrolled
from .args import device_matrix, numba_array, span
from .limits import need_capability
from .plan import Launch, Plan, kept_plan, simulate_plan, stream_of

OVER_MOST = np.float32(1 / LARGEST[E4M3])
TINIEST = np.float32(2.0**-126)  # so that 1 over a scale is finite
SIDE = 128  # of a block
THREADS = 256


# A *pack* is 16 bytes of a row: four numbers of float32 or eight of bfloat16, in four words. All packs that a
# thread needs are loaded before it uses the first, so that they wait for memory together.

def numbers_of(kind: str) -> int: return 4 if kind == "float32" else 8

@cache
def pack_reader(
    kind: str,   # float32 or bfloat16
    wide: bool,  # are rows whole packs, and aligned to them?
) -> Callable:
    "A device function: a pack of a row, as four uint32, with zeros for what is outside."
    is_float32 = kind == "float32"

    @cuda.jit(device=True)
    @unrolled
    def read(
        x,       # flat: numbers of float32, bits of bfloat16, or, if wide, words as if they were float32
        at,      # index of the first number
        inside,  # how many are inside
    ):
        nothing = uint32(0)
        if wide:
            if inside <= 0: return nothing, nothing, nothing, nothing
            a, b, c, d = load4(x, at if is_float32 else at >> uint64(1))
            return float_as_uint(a), float_as_uint(b), float_as_uint(c), float_as_uint(d)
        words = ()
        for i in static(4):
            word = nothing
            if is_float32:
                if i < inside: word = float_as_uint(x[at + uint64(i)])
            else:
                for half in static(2):
                    if 2 * i + half < inside:
                        number = uint32(x[at + uint64(2 * i + half)])
                        word = uint32(word | uint32(number << uint32(16 * half)))
            words = words + (word,)
        return words
    return read

@cache
def pack_searcher(kind: str) -> Callable:
    "A device function: bits of the largest magnitude so far, see `larger_magnitude`."
    is_float32 = kind == "float32"

    @cuda.jit(device=True)
    @unrolled
    def larger(largest, words):
        low = int32(0)
        for i in static(4):
            if is_float32: largest = max(largest, int32(words[i] & uint32(0x7FFFFFFF)))
            else:
                largest = max(largest, int32(words[i] & uint32(0x7FFF0000)))
                low = max(low, int32(words[i] & uint32(0x7FFF)))
        return largest if is_float32 else max(largest, int32(low << int32(16)))
    return larger

@cuda.jit(device=True)
def scale_of(
    largest,  # bits of the largest magnitude
):
    "What numbers are divided by; 1 for nothing but zeros; NaN where a number is infinite or NaN."
    if largest >= int32(0x7F800000): return float32(np.nan)
    return max(uint_as_float(uint32(largest)) * OVER_MOST, TINIEST) if largest > int32(0) else float32(1)

@cache
def pack_writer(kind: str, wide: bool) -> Callable:
    "A device function: divide a pack's numbers by their scale, round them, and store those that are inside."
    is_float32, numbers = kind == "float32", numbers_of(kind)

    @cuda.jit(device=True)
    def rounded(a, b, c, d, inverse):
        return cvt_rn_satfinite_e4m3x4_f32(a * inverse, b * inverse, c * inverse, d * inverse)

    @cuda.jit(device=True)
    def write(
        to,      # flat: e4m3's bits in uint8, or, if wide, a pack's in a uint32 or uint64
        at,      # index of the first number
        inside,  # how many are inside
        words, inverse,  # the pack; 1 over the scale
    ):
        if is_float32:
            bits = rounded(uint_as_float(words[0]), uint_as_float(words[1]), uint_as_float(words[2]),
                           uint_as_float(words[3]), inverse)
        else:
            a, b = unpack_bf16(words[0]), unpack_bf16(words[1])
            low = rounded(a[0], a[1], b[0], b[1], inverse)
            a, b = unpack_bf16(words[2]), unpack_bf16(words[3])
            high = rounded(a[0], a[1], b[0], b[1], inverse)
            bits = uint64(low) | uint64(uint64(high) << uint64(32))
        if wide:
            if inside > 0: to[at // uint64(numbers)] = bits
        else:
            for i in range(numbers):
                if i < inside: to[at + uint64(i)] = uint8(uint64(bits) >> uint64(8 * i) & uint64(255))
    return write

@cache
def largest_of(
    lanes: int,  # neighbors in a warp
) -> Callable:
    "A device function: the largest of these lanes' numbers."
    @cuda.jit(device=True)
    @unrolled
    def largest_of_lanes(largest):
        for i in static(lanes.bit_length() - 1):
            largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, 1 << i))
        return largest
    return largest_of_lanes


@cache
def cast_rows_kernel(
    kind: str, wide: bool,  # see `pack_reader`
    kept: int,              # packs a thread keeps in registers
) -> Callable:
    "A kernel: one scale per row, one block per row."
    read, larger, write = pack_reader(kind, wide), pack_searcher(kind), pack_writer(kind, wide)
    largest_of_warp, numbers = largest_of(32), numbers_of(kind)

    @cuda.jit(lineinfo=True, launch_bounds=THREADS)
    @unrolled
    def cast_rows_kernel(
        x,      # see `pack_reader`
        cols,
        to,     # see `pack_writer`
        scale,  # (rows,) float32, gets the scales
    ):
        shared = cuda.shared.array(1, int32)
        thread, row = uint32(cuda.threadIdx.x), int64(cuda.blockIdx.x)
        start = row * cols
        if thread == 0: shared[0] = 0
        cuda.syncthreads()

        # the largest of the row
        packs, largest = (), int32(0)
        for i in static(kept):
            col = int64(numbers * (thread + THREADS * i))
            packs = packs + (read(x, uint64(start + col), cols - col),)
        for i in static(kept): largest = larger(largest, packs[i])
        col = int64(numbers * (thread + THREADS * kept))
        while col < cols:
            largest = larger(largest, read(x, uint64(start + col), cols - col))
            col += numbers * THREADS
        largest = largest_of_warp(largest)
        if thread % 32 == 0: cuda.atomic.max(shared, 0, largest)
        cuda.syncthreads()

        # the row, divided by its scale
        by = scale_of(shared[0])
        if thread == 0: scale[row] = by
        inverse = float32(1) / by
        for i in static(kept):
            col = int64(numbers * (thread + THREADS * i))
            write(to, uint64(start + col), cols - col, packs[i], inverse)
        col = int64(numbers * (thread + THREADS * kept))
        while col < cols:
            write(to, uint64(start + col), cols - col, read(x, uint64(start + col), cols - col), inverse)
            col += numbers * THREADS
    return cast_rows_kernel


KEPT = 2  # packs of a group that a lane keeps

def lanes_of(kind: str) -> int:
    "How many lanes cast a group."
    return SIDE // numbers_of(kind) // KEPT

@cache
def cast_groups_kernel(
    kind: str, wide: bool,  # see `pack_reader`
) -> Callable:
    "A kernel: one scale per 1×128 numbers. A warp casts several of these groups, a few lanes each."
    read, larger, write = pack_reader(kind, wide), pack_searcher(kind), pack_writer(kind, wide)
    numbers, lanes, kept = numbers_of(kind), lanes_of(kind), KEPT
    largest_of_group = largest_of(lanes)

    @cuda.jit(lineinfo=True, launch_bounds=THREADS)
    @unrolled
    def cast_groups_kernel(
        x, rows, cols,  # see `cast_rows_kernel`; the numbers of rows and groups are uint32
        to,
        scale,   # (rows, groups across), flat: float32, gets the scales
        across,  # uint32, groups of a row
    ):
        thread = uint32(cuda.threadIdx.x)
        group = uint32(uint32(cuda.blockIdx.x) * uint32(THREADS // lanes) + thread // lanes)
        row = uint32(group // across)
        lane, exists = thread % lanes, row < rows
        col = int64(uint32(group - row * across)) * SIDE + numbers * lane
        start, inside = int64(row) * cols + col, cols - col if exists else int64(0)

        packs, largest = (), int32(0)
        for i in static(kept):
            first = numbers * lanes * i
            packs = packs + (read(x, uint64(start + first), inside - first),)
        for i in static(kept): largest = larger(largest, packs[i])

        by = scale_of(largest_of_group(largest))
        if lane == 0 and exists: scale[group] = by
        inverse = float32(1) / by
        for i in static(kept):
            first = numbers * lanes * i
            write(to, uint64(start + first), inside - first, packs[i], inverse)
    return cast_groups_kernel


SQUARE_THREADS = 512

@cache
def cast_squares_kernel(
    kind: str, wide: bool,  # see `pack_reader`
) -> Callable:
    "A kernel: one scale per 128×128 numbers, one block each."
    read, larger, write = pack_reader(kind, wide), pack_searcher(kind), pack_writer(kind, wide)
    largest_of_warp, numbers = largest_of(32), numbers_of(kind)
    across = SIDE // numbers  # packs of a row
    each = SQUARE_THREADS // across  # rows that all threads read at once
    passes = SIDE // each

    @cuda.jit(lineinfo=True, launch_bounds=SQUARE_THREADS)
    @unrolled
    def cast_squares_kernel(
        x, rows, cols,  # see `cast_rows_kernel`
        to,
        scale,   # (squares down, squares across), flat: float32, gets the scales
        squares_across,  # uint32
    ):
        shared = cuda.shared.array(1, int32)
        thread, square = uint32(cuda.threadIdx.x), uint32(cuda.blockIdx.x)
        down = uint32(square // squares_across)
        row = int64(down) * SIDE + thread // across
        col = int64(uint32(square - down * squares_across)) * SIDE + numbers * (thread % across)
        start, inside = row * cols + col, cols - col
        if thread == 0: shared[0] = 0
        cuda.syncthreads()

        # the largest of all
        packs, largest = (), int32(0)
        for i in static(passes):
            here = inside if row + each * i < rows else int64(0)
            packs = packs + (read(x, uint64(start + each * i * cols), here),)
        for i in static(passes): largest = larger(largest, packs[i])
        largest = largest_of_warp(largest)
        if thread % 32 == 0: cuda.atomic.max(shared, 0, largest)
        cuda.syncthreads()

        by = scale_of(shared[0])
        if thread == 0: scale[square] = by
        inverse = float32(1) / by
        for i in static(passes):
            here = inside if row + each * i < rows else int64(0)
            write(to, uint64(start + each * i * cols), here, packs[i], inverse)
    return cast_squares_kernel


SCALES = "row", "1x128", "128x128"


def scale_shape(rows: int, cols: int, scales: str) -> tuple:
    "The shape of a matrix's scales."
    down, across = cdiv(rows, SIDE), cdiv(cols, SIDE)
    return {"row": (rows,), "1x128": (rows, across), "128x128": (down, across)}[scales]


def cast_launch(
    x,            # (rows, cols) device array, row-major: float32, or bits of bfloat16
    to, scale,    # (rows, cols) uint8; float32 of `scale_shape`
    scales: str,  # of `SCALES`
    alignment: int,  # of x's rows: the largest power of two up to 16 that divides their addresses
) -> Launch:
    "The launch that casts a matrix to e4m3."
    rows, cols = map(int, x.shape)
    kind = "float32" if x.dtype == np.float32 else "bfloat16"
    numbers = numbers_of(kind)
    wide = cols % numbers == 0 and alignment == 16
    flat, out = x.ravel(), to.ravel()
    if wide: flat, out = flat.view(np.float32), out.view(np.uint32 if kind == "float32" else np.uint64)
    if scales == "row":
        kept = min(8, cdiv(cols, numbers * THREADS))
        return Launch(cast_rows_kernel(kind, wide, kept), rows, THREADS, (flat, np.int64(cols), out, scale))
    across = np.uint32(cdiv(cols, SIDE))
    if scales == "128x128":
        args = flat, np.int64(rows), np.int64(cols), out, scale.ravel(), across
        return Launch(cast_squares_kernel(kind, wide), scale.size, SQUARE_THREADS, args)
    args = flat, np.uint32(rows), np.int64(cols), out, scale.ravel(), across
    blocks = cdiv(scale.size, THREADS // lanes_of(kind))
    return Launch(cast_groups_kernel(kind, wide), blocks, THREADS, args)


def fp8_cast(
    x,                # (rows, cols) device array, row-major: float32 or bfloat16
    scales="1x128",   # one scale per "row", per "1x128" numbers, or per "128x128"
) -> tuple:           # (rows, cols) e4m3, an array of the same kind as `x`; float32 scales, see `scale_shape`
    """Round a matrix to e4m3, each row or block divided by its scale, so that its largest number becomes 448.
    Where a number is infinite or NaN, the scale and all its numbers are NaN. Raises `TypeError`,
    `ValueError`, or `RuntimeError` on a GPU that doesn't have the type."""
    if scales not in SCALES:
        raise ValueError(f"scales is {scales!r}; expected {', '.join(map(repr, SCALES))}")
    need_capability((8, 9), "the conversion to e4m3")
    kind = str(getattr(x, "dtype", "")).removeprefix("torch.")
    source = device_matrix("x", x, "bfloat16" if kind in ("bfloat16", "uint16") else "float32")
    rows, cols = map(int, source.shape)
    to = array_like(x, (rows, cols), E4M3 if is_torch(x) else "uint8")
    scale = array_like(x, scale_shape(rows, cols, scales), "float32")
    if not (rows and cols): return to, scale
    arrays = source, *map(numba_array, (to, scale))
    alignment = gcd(16, span(source)[0], cols * source.dtype.itemsize)
    def plan(): return Plan([cast_launch(*arrays, scales, alignment)]), arrays
    if config.ENABLE_CUDASIM: simulate_plan(plan()[0])
    else:
        packed = kept_plan((fp8_cast, current_gpu().id, kind, rows, cols, scales, alignment), plan)
        packed([span(array)[0] for array in arrays], stream_of(x.get_device()) if is_torch(x) else 0)
    return to, scale


# Operands that the TMA can copy: rows of k numbers that start at multiples of 16 bytes.

@cuda.jit(lineinfo=True, launch_bounds=THREADS)
def pad_rows_kernel(
    x, rows, cols,  # (rows·cols,) uint8
    to, pitch,      # (rows·pitch,) uint8
):
    "Copy rows into longer ones, padded with zeros. A warp copies a row, 128 bytes at a time."
    thread = uint32(cuda.threadIdx.x)
    row = int64(cuda.blockIdx.x) * (THREADS // 32) + thread // 32
    if row >= rows: return
    col = int64(thread % 32)
    while col < pitch:
        to[row * pitch + col] = x[row * cols + col] if col < cols else uint8(0)
        col += 32


@cuda.jit(device=True)
def transposed(a, b, c, d):
    "Four words of four bytes each: the first bytes of all, the second ones …"
    low, high = uint32(0x00FF00FF), uint32(0xFF00FF00)
    # pairs of bytes first, then pairs of pairs
    ab0 = uint32(a & low) | uint32(uint32(b & low) << uint32(8))
    ab1 = uint32(uint32(a & high) >> uint32(8)) | uint32(b & high)
    cd0 = uint32(c & low) | uint32(uint32(d & low) << uint32(8))
    cd1 = uint32(uint32(c & high) >> uint32(8)) | uint32(d & high)
    half = uint32(0xFFFF)
    return (uint32(ab0 & half) | uint32(cd0 << uint32(16)), uint32(ab1 & half) | uint32(cd1 << uint32(16)),
            uint32(ab0 >> uint32(16)) | uint32(cd0 & uint32(0xFFFF0000)),
            uint32(ab1 >> uint32(16)) | uint32(cd1 & uint32(0xFFFF0000)))


@cache
def transpose_kernel(
    wide: bool,  # are rows of x multiples of four bytes, and aligned to that many?
) -> Callable:
    """A kernel: transpose bytes, one block per 128×128. Four words of four rows each are transposed in
    registers."""

    @cuda.jit(device=True)
    def read(x, row, col, rows, cols):
        word = uint32(0)
        if row >= rows or col >= cols: return word
        if wide: return x[(row * cols + col) >> 2]
        for i in range(4):
            if col + i < cols: word = uint32(word | uint32(uint32(x[row * cols + col + i]) << uint32(8 * i)))
        return word

    @cuda.jit(lineinfo=True, launch_bounds=THREADS)
    def transpose_kernel(
        x, rows, cols,  # (rows·cols,) uint8, or, if wide, four in a uint32
        to, pitch,      # (cols·pitch / 4,) uint32; pitch: bytes of a row, padded with zeros
        across,         # uint32, blocks of 128 columns of x
    ):
        # row j of the transposed block is at 32·(j % 4) + j // 4, so that 32 lanes meet 32 banks
        tile = cuda.shared.array((SIDE, 33), uint32)
        thread, block = uint32(cuda.threadIdx.x), uint32(cuda.blockIdx.x)
        lane, warp = uint32(thread % 32), uint32(thread // 32)
        down = uint32(block // across)
        row, col = int64(down) * SIDE, int64(uint32(block - down * across)) * SIDE
        for i in range(4):
            four = warp + 8 * i  # rows of x
            at, here = row + 4 * four, col + 4 * lane
            a, b = read(x, at, here, rows, cols), read(x, at + 1, here, rows, cols)
            c, d = read(x, at + 2, here, rows, cols), read(x, at + 3, here, rows, cols)
            a, b, c, d = transposed(a, b, c, d)
            tile[lane, four] = a
            tile[lane + 32, four] = b
            tile[lane + 64, four] = c
            tile[lane + 96, four] = d
        cuda.syncthreads()
        for i in range(SIDE // 8):
            j = warp + 8 * i
            if col + j < cols and row + 4 * lane < pitch:
                to[((col + j) * pitch + row + 4 * lane) >> 2] = tile[32 * (j % 4) + j // 4, lane]
    return transpose_kernel


def pitch_of(k: int) -> int: return cdiv(k, 16) * 16

def pad_launch(
    x,   # (rows, k) uint8
    to,  # (rows, pitch) uint8
) -> Launch:
    "The launch that pads rows."
    rows, cols = map(int, x.shape)
    args = x.ravel(), np.int64(rows), np.int64(cols), to.ravel(), np.int64(to.shape[1])
    return Launch(pad_rows_kernel, cdiv(rows, THREADS // 32), THREADS, args)

def transpose_launch(
    x,   # (k, n) uint8
    to,  # (n, pitch) uint8
    alignment: int,  # of x's rows
) -> Launch:
    "The launch that transposes a matrix and pads its rows."
    rows, cols = map(int, x.shape)
    wide = alignment >= 4 and cols % 4 == 0
    flat, across = x.ravel(), cdiv(cols, SIDE)
    if wide: flat = flat.view(np.uint32)
    args = (flat, np.int64(rows), np.int64(cols), to.ravel().view(np.uint32), np.int64(to.shape[1]),
            np.uint32(across))
    return Launch(transpose_kernel(wide), across * cdiv(rows, SIDE), THREADS, args)
