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

from ..arrays import array_like, current_gpu, is_torch
from ..fp8 import E4M3, LARGEST
from ..ptx.ampere import unpack_bf16
from ..ptx.core import load4, uint_as_float
from ..ptx.hopper import cvt_rn_satfinite_e4m3x4_f32
from ..static import static, unrolled
from .args import device_matrix, numba_array, span
from .limits import need_capability
from .plan import Launch, Plan, kept_plan, simulate_plan, stream_of
from .split import larger_magnitude

OVER_MOST = np.float32(1 / LARGEST[E4M3])
TINIEST = np.float32(2.0**-126)  # so that 1 over a scale is finite
SIDE = 128  # of a block
THREADS = 256


@cache
def reader_of_fours(
    kind: str,   # float32 or bfloat16
    wide: bool,  # are rows multiples of four numbers, and aligned to that many?
) -> Callable:
    "A device function: four neighbors of a row as float32, with zeros for those outside."
    @cuda.jit(device=True)
    def number(x, at):
        if kind == "float32": return x[at]
        return unpack_bf16(uint32(x[at]))[0]

    @cuda.jit(device=True)
    def read(
        x,       # flat: numbers of float32, bits of bfloat16, or, if wide, four of those in a uint64
        at,      # index of the first
        inside,  # how many are inside
    ):
        zero = float32(0)
        if wide:
            if inside <= 0: return zero, zero, zero, zero
            if kind == "float32": return load4(x, at)
            bits = x[at >> uint64(2)]
            low = unpack_bf16(uint32(bits & uint64(0xFFFFFFFF)))
            high = unpack_bf16(uint32(bits >> uint64(32)))
            return low[0], low[1], high[0], high[1]
        first = number(x, at) if inside > 0 else zero
        second = number(x, at + uint64(1)) if inside > 1 else zero
        third = number(x, at + uint64(2)) if inside > 2 else zero
        fourth = number(x, at + uint64(3)) if inside > 3 else zero
        return first, second, third, fourth
    return read


@cuda.jit(device=True)
def scale_of(
    largest,  # bits of the largest magnitude
):
    "What numbers are divided by; 1 for nothing but zeros; NaN where a number is infinite or NaN."
    if largest >= int32(0x7F800000): return float32(np.nan)
    return max(uint_as_float(uint32(largest)) * OVER_MOST, TINIEST) if largest > int32(0) else float32(1)


@cache
def writer_of_fours(wide: bool) -> Callable:
    "A device function: divide four neighbors by their scale, round them, and store those that are inside."
    @cuda.jit(device=True)
    def write(
        to,      # flat: e4m3's bits in uint8, or, if wide, four in a uint32
        at,      # index of the first
        inside,  # how many are inside
        four, inverse,  # the numbers; 1 over the scale
    ):
        bits = cvt_rn_satfinite_e4m3x4_f32(four[0] * inverse, four[1] * inverse, four[2] * inverse,
                                           four[3] * inverse)
        if wide:
            if inside > 0: to[at >> uint64(2)] = bits
        else:
            for i in range(4):
                if i < inside: to[at + uint64(i)] = uint8(bits >> uint32(8 * i) & uint32(255))
    return write


@cuda.jit(device=True)
def largest_of_warp(largest):
    "The largest of all lanes' numbers."
    for distance in (16, 8, 4, 2, 1):
        largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance))
    return largest


@cache
def cast_rows_kernel(
    kind: str, wide: bool,  # see `reader_of_fours`
    kept: int,              # fours a thread keeps in registers
) -> Callable:
    "A kernel: one scale per row, one block per row."
    read, write = reader_of_fours(kind, wide), writer_of_fours(wide)

    @cuda.jit(lineinfo=True, launch_bounds=THREADS)
    @unrolled
    def cast_rows_kernel(
        x,      # see `reader_of_fours`
        cols,
        to,     # see `writer_of_fours`
        scale,  # (rows,) float32, gets the scales
    ):
        shared = cuda.shared.array(1, int32)
        thread, row = uint32(cuda.threadIdx.x), int64(cuda.blockIdx.x)
        start = row * cols
        if thread == 0: shared[0] = 0
        cuda.syncthreads()

        # the largest of the row
        fours, largest = (), int32(0)
        for i in static(kept):
            col = int64(4 * (thread + THREADS * i))
            four = read(x, uint64(start + col), cols - col)
            fours = fours + (four,)
            largest = larger_magnitude(largest, four)
        col = int64(4 * (thread + THREADS * kept))
        while col < cols:
            largest = larger_magnitude(largest, read(x, uint64(start + col), cols - col))
            col += 4 * THREADS
        largest = largest_of_warp(largest)
        if thread % 32 == 0: cuda.atomic.max(shared, 0, largest)
        cuda.syncthreads()

        # the row, divided by its scale
        by = scale_of(shared[0])
        if thread == 0: scale[row] = by
        inverse = float32(1) / by
        for i in static(kept):
            col = int64(4 * (thread + THREADS * i))
            write(to, uint64(start + col), cols - col, fours[i], inverse)
        col = int64(4 * (thread + THREADS * kept))
        while col < cols:
            write(to, uint64(start + col), cols - col, read(x, uint64(start + col), cols - col), inverse)
            col += 4 * THREADS
    return cast_rows_kernel


@cache
def cast_blocks_kernel(
    kind: str, wide: bool,  # see `reader_of_fours`
    squares: bool,          # one scale per 128×128 numbers? If not, per 1×128
) -> Callable:
    "A kernel: one block per 128×128 numbers, 16 rows per warp."
    read, write = reader_of_fours(kind, wide), writer_of_fours(wide)
    rows_each = SIDE * 32 // THREADS

    @cuda.jit(lineinfo=True, launch_bounds=THREADS)
    @unrolled
    def cast_blocks_kernel(
        x, rows, cols,  # see `cast_rows_kernel`
        to,
        scale,   # (rows or blocks down, blocks across), flat: float32, gets the scales
        across,  # uint32, blocks of 128 columns
    ):
        shared = cuda.shared.array(1, int32)
        thread, block = uint32(cuda.threadIdx.x), uint32(cuda.blockIdx.x)
        lane = uint32(thread % 32)
        down = uint32(block // across)
        right = uint32(block - down * across)
        row = int64(down) * SIDE + thread // 32
        col = int64(right) * SIDE + 4 * lane
        inside = cols - col

        # all loads come first, so that they wait for memory together
        fours, largest = (), int32(0)
        for i in static(rows_each):
            at = row + THREADS // 32 * i
            fours = fours + (read(x, uint64(at * cols + col), inside if at < rows else int64(0)),)

        if squares:
            if thread == 0: shared[0] = 0
            cuda.syncthreads()
            for i in static(rows_each): largest = larger_magnitude(largest, fours[i])
            largest = largest_of_warp(largest)
            if lane == 0: cuda.atomic.max(shared, 0, largest)
            cuda.syncthreads()
            by = scale_of(shared[0])
            if thread == 0: scale[block] = by
            for i in static(rows_each):
                at = row + THREADS // 32 * i
                write(to, uint64(at * cols + col), inside if at < rows else int64(0), fours[i],
                      float32(1) / by)
        else:
            # the rows' searches don't depend on each other, so their shuffles overlap
            tops = ()
            for i in static(rows_each): tops = tops + (largest_of_warp(larger_magnitude(int32(0), fours[i])),)
            for i in static(rows_each):
                at = row + THREADS // 32 * i
                by = scale_of(tops[i])
                if lane == 0 and at < rows: scale[at * across + right] = by
                write(to, uint64(at * cols + col), inside if at < rows else int64(0), fours[i],
                      float32(1) / by)
    return cast_blocks_kernel


SCALES = "row", "1x128", "128x128"


def scale_shape(rows: int, cols: int, scales: str) -> tuple:
    "The shape of a matrix's scales."
    down, across = -(-rows // SIDE), -(-cols // SIDE)
    return {"row": (rows,), "1x128": (rows, across), "128x128": (down, across)}[scales]


def cast_launch(
    x,            # (rows, cols) device array, row-major: float32, or bits of bfloat16
    to, scale,    # (rows, cols) uint8; float32 of `scale_shape`
    scales: str,  # of `SCALES`
    alignment: int,  # of x's and to's rows: the largest power of two that divides their addresses
) -> Launch:
    "The launch that casts a matrix to e4m3."
    rows, cols = map(int, x.shape)
    kind = "float32" if x.dtype == np.float32 else "bfloat16"
    wide = cols % 4 == 0 and alignment >= 4 * x.dtype.itemsize
    flat, out = x.ravel(), to.ravel()
    if wide: out = out.view(np.uint32)
    if wide and kind == "bfloat16": flat = flat.view(np.uint64)
    if scales == "row":
        kept = min(8, -(-cols // (4 * THREADS)))
        return Launch(cast_rows_kernel(kind, wide, kept), rows, THREADS, (flat, np.int64(cols), out, scale))
    across = -(-cols // SIDE)
    kernel = cast_blocks_kernel(kind, wide, scales == "128x128")
    args = flat, np.int64(rows), np.int64(cols), out, scale.ravel(), np.uint32(across)
    return Launch(kernel, across * -(-rows // SIDE), THREADS, args)


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


def pitch_of(k: int) -> int: return -(-k // 16) * 16

def pad_launch(
    x,   # (rows, k) uint8
    to,  # (rows, pitch) uint8
) -> Launch:
    "The launch that pads rows."
    rows, cols = map(int, x.shape)
    args = x.ravel(), np.int64(rows), np.int64(cols), to.ravel(), np.int64(to.shape[1])
    return Launch(pad_rows_kernel, -(-rows // (THREADS // 32)), THREADS, args)

def transpose_launch(
    x,   # (k, n) uint8
    to,  # (n, pitch) uint8
    alignment: int,  # of x's rows
) -> Launch:
    "The launch that transposes a matrix and pads its rows."
    rows, cols = map(int, x.shape)
    wide = alignment >= 4 and cols % 4 == 0
    flat, across = x.ravel(), -(-cols // SIDE)
    if wide: flat = flat.view(np.uint32)
    args = (flat, np.int64(rows), np.int64(cols), to.ravel().view(np.uint32), np.int64(to.shape[1]),
            np.uint32(across))
    return Launch(transpose_kernel(wide), across * -(-rows // SIDE), THREADS, args)
