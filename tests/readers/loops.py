"""Kernels as readers of lessons 1 to 4 might write them, each with its launch for m = n = 4096.

They were written after the model's rules, to find out how well it predicts kernels that nobody had seen."""
import numba_matmul  # noqa: F401  first: this chooses between the GPU and the simulator
from numba import cuda, float32, int32

KERNELS = {}  # name → kernel with its launch configuration


def launched(grid, block):
    "Decorator that adds a kernel with its launch."
    def add(kernel):
        KERNELS[kernel.py_func.__name__] = kernel[grid, block]
        return kernel
    return add


# One thread per element

@launched((256, 256), (16, 16))
@cuda.jit
def one_16x16(a, b, c):
    col, row = cuda.grid(2)
    total = float32(0)
    for i in range(a.shape[1]): total += a[row, i] * b[i, col]
    c[row, col] = total

@launched((128, 128), (32, 32))
@cuda.jit
def one_guarded(a, b, c):
    x, y = cuda.grid(2)
    if y < c.shape[0] and x < c.shape[1]:
        total = float32(0.0)
        for i in range(a.shape[1]):
            total += a[y, i] * b[i, x]
        c[y, x] = total

@launched((16, 4096), 256)
@cuda.jit
def one_row_of_threads(a, b, c):
    row = cuda.blockIdx.y
    col = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    total = float32(0)
    k = 0
    while k < a.shape[1]:
        total += a[row, k] * b[k, col]
        k += 1
    c[row, col] = total

@launched((128, 512), (32, 8))
@cuda.jit
def one_by_fours(a, b, c):
    col, row = cuda.grid(2)
    total = float32(0)
    for k in range(0, a.shape[1], 4):
        total += a[row, k] * b[k, col]
        total += a[row, k + 1] * b[k + 1, col]
        total += a[row, k + 2] * b[k + 2, col]
        total += a[row, k + 3] * b[k + 3, col]
    c[row, col] = total

@launched((128, 512), (32, 8))
@cuda.jit
def one_two_sums(a, b, c):
    col, row = cuda.grid(2)
    even, odd = float32(0), float32(0)
    for k in range(0, a.shape[1], 2):
        even += a[row, k] * b[k, col]
        odd += a[row, k + 1] * b[k + 1, col]
    c[row, col] = even + odd

@launched((64, 512), (32, 8))
@cuda.jit
def two_columns(a, b, c):
    x, row = cuda.grid(2)
    left, right = float32(0), float32(0)
    for k in range(a.shape[1]):
        factor = a[row, k]
        left += factor * b[k, 2 * x]
        right += factor * b[k, 2 * x + 1]
    c[row, 2 * x] = left
    c[row, 2 * x + 1] = right

@launched((128, 256), (32, 8))
@cuda.jit
def two_rows_apart(a, b, c):
    col, y = cuda.grid(2)
    half = c.shape[0] // 2
    low, high = float32(0), float32(0)
    for k in range(a.shape[1]):
        value = b[k, col]
        low += a[y, k] * value
        high += a[y + half, k] * value
    c[y, col] = low
    c[y + half, col] = high

@launched((128, 128), (32, 8))
@cuda.jit
def four_rows(a, b, c):
    col = cuda.blockIdx.x * 32 + cuda.threadIdx.x
    row = cuda.blockIdx.y * 32 + 4 * cuda.threadIdx.y
    sums = cuda.local.array(4, float32)
    for i in range(4): sums[i] = float32(0)
    for k in range(a.shape[1]):
        value = b[k, col]
        for i in range(4): sums[i] += a[row + i, k] * value
    for i in range(4): c[row + i, col] = sums[i]


# Tiles in shared memory

T = 16

@launched((256, 256), (16, 16))
@cuda.jit
def tiles_of_16(a, b, c):
    left = cuda.shared.array((T, T), float32)
    right = cuda.shared.array((T, T), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = float32(0)
    for t in range(a.shape[1] // T):
        left[y, x] = a[row, t * T + x]
        right[y, x] = b[t * T + y, col]
        cuda.syncthreads()
        for i in range(T): total += left[y, i] * right[i, x]
        cuda.syncthreads()
    c[row, col] = total

@launched((128, 128), (32, 32))
@cuda.jit
def tiles_b_transposed(a, b, c):
    left = cuda.shared.array((32, 32), float32)
    right = cuda.shared.array((32, 33), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 32 + y, cuda.blockIdx.x * 32 + x
    total = float32(0)
    for start in range(0, a.shape[1], 32):
        left[y, x] = a[row, start + x]
        right[x, y] = b[start + y, col]
        cuda.syncthreads()
        for i in range(32): total += left[y, i] * right[x, i]
        cuda.syncthreads()
    c[row, col] = total

@launched((128, 128), 1024)
@cuda.jit
def tiles_flat_block(a, b, c):
    left = cuda.shared.array((32, 32), float32)
    right = cuda.shared.array((32, 32), float32)
    y, x = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    row, col = cuda.blockIdx.y * 32 + y, cuda.blockIdx.x * 32 + x
    total = float32(0)
    start = 0
    while start < a.shape[1]:
        left[y, x] = a[row, start + x]
        right[y, x] = b[start + y, col]
        cuda.syncthreads()
        i = 0
        while i < 32:
            total += left[y, i] * right[i, x]
            i += 1
        cuda.syncthreads()
        start += 32
    c[row, col] = total

@launched((128, 128), (32, 32))
@cuda.jit
def tile_of_b_only(a, b, c):
    right = cuda.shared.array((32, 32), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 32 + y, cuda.blockIdx.x * 32 + x
    total = float32(0)
    for start in range(0, a.shape[1], 32):
        right[y, x] = b[start + y, col]
        cuda.syncthreads()
        for i in range(32): total += a[row, start + i] * right[i, x]
        cuda.syncthreads()
    c[row, col] = total

@launched((128, 128), (32, 32))
@cuda.jit
def tiles_two_at_once(a, b, c):
    left = cuda.shared.array((2, 32, 32), float32)
    right = cuda.shared.array((2, 32, 32), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 32 + y, cuda.blockIdx.x * 32 + x
    total, now = float32(0), int32(0)
    left[0, y, x] = a[row, x]
    right[0, y, x] = b[y, col]
    cuda.syncthreads()
    for start in range(0, a.shape[1], 32):
        if start + 32 < a.shape[1]:
            left[1 - now, y, x] = a[row, start + 32 + x]
            right[1 - now, y, x] = b[start + 32 + y, col]
        for i in range(32): total += left[now, y, i] * right[now, i, x]
        cuda.syncthreads()
        now = 1 - now
    c[row, col] = total

@launched((128, 128), (32, 8))
@cuda.jit
def tile_four_results_apart(a, b, c):
    left = cuda.shared.array((32, 32), float32)
    right = cuda.shared.array((32, 32), float32)
    sums = cuda.local.array(4, float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 32, cuda.blockIdx.x * 32 + x
    for r in range(4): sums[r] = float32(0)
    for start in range(0, a.shape[1], 32):
        for r in range(4):
            left[y + 8 * r, x] = a[row + y + 8 * r, start + x]
            right[y + 8 * r, x] = b[start + y + 8 * r, col]
        cuda.syncthreads()
        for i in range(32):
            value = right[i, x]
            for r in range(4): sums[r] += left[y + 8 * r, i] * value
        cuda.syncthreads()
    for r in range(4): c[row + y + 8 * r, col] = sums[r]


# Several results in a column

def column(bm, bk, tm, name):
    "A column of `tm` results per thread, in tiles of bm × 64."
    threads = bm // tm * 64

    @cuda.jit
    def kernel(a, b, c):
        a_tile = cuda.shared.array((bm, bk), float32)
        b_tile = cuda.shared.array((bk, 64), float32)
        sums = cuda.local.array(tm, float32)
        t = cuda.threadIdx.x
        row0, col0 = cuda.blockIdx.y * bm, cuda.blockIdx.x * 64
        mine, col = t // 64 * tm, t % 64
        for i in range(tm): sums[i] = float32(0)
        for start in range(0, a.shape[1], bk):
            for at in range(t, bm * bk, threads):
                a_tile[at // bk, at % bk] = a[row0 + at // bk, start + at % bk]
            for at in range(t, bk * 64, threads):
                b_tile[at // 64, at % 64] = b[start + at // 64, col0 + at % 64]
            cuda.syncthreads()
            for k in range(bk):
                value = b_tile[k, col]
                for i in range(tm): sums[i] += a_tile[mine + i, k] * value
            cuda.syncthreads()
        for i in range(tm): c[row0 + mine + i, col0 + col] = sums[i]
    KERNELS[name] = kernel[(64, 4096 // bm), threads]

column(32, 16, 4, "column_of_4")
column(64, 8, 16, "column_of_16")
column(64, 16, 8, "column_of_8_bk_16")
column(128, 8, 16, "column_of_16_in_128")

@launched((64, 64), (64, 8))
@cuda.jit
def column_a_transposed(a, b, c):
    a_tile = cuda.shared.array((8, 64), float32)
    b_tile = cuda.shared.array((8, 64), float32)
    sums = cuda.local.array(8, float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row0, col0 = cuda.blockIdx.y * 64, cuda.blockIdx.x * 64
    for i in range(8): sums[i] = float32(0)
    for start in range(0, a.shape[1], 8):
        a_tile[y, x] = a[row0 + x, start + y]
        b_tile[y, x] = b[start + y, col0 + x]
        cuda.syncthreads()
        for k in range(8):
            value = b_tile[k, x]
            for i in range(8): sums[i] += a_tile[k, 8 * y + i] * value
        cuda.syncthreads()
    for i in range(8): c[row0 + 8 * y + i, col0 + x] = sums[i]

@launched((64, 64), (8, 64))
@cuda.jit
def row_of_8(a, b, c):
    a_tile = cuda.shared.array((64, 8), float32)
    b_tile = cuda.shared.array((8, 64), float32)
    sums = cuda.local.array(8, float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row0, col0 = cuda.blockIdx.y * 64, cuda.blockIdx.x * 64
    number = 8 * y + x
    for j in range(8): sums[j] = float32(0)
    for start in range(0, a.shape[1], 8):
        a_tile[y, x] = a[row0 + y, start + x]
        b_tile[number // 64, number % 64] = b[start + number // 64, col0 + number % 64]
        cuda.syncthreads()
        for k in range(8):
            factor = a_tile[y, k]
            for j in range(8): sums[j] += factor * b_tile[k, 8 * x + j]
        cuda.syncthreads()
    for j in range(8): c[row0 + y, col0 + 8 * x + j] = sums[j]
