"""More kernels as readers of lessons 1 to 3 might write them, some of them slow: the second round.

They were written after the model's rules and constants, without a look at either."""
import numba_matmul  # noqa: F401  first: this chooses between the GPU and the simulator
from numba import cuda, float32, float64, int32, uint32

from numba_matmul.ptx.core import load4, store4

from .written import collection

WRITTEN, launched = collection()


# One thread per element: which one?

@launched(32, 32, (32, 32), grid=lambda m, n: (m // 32, n // 32))
@cuda.jit
def x_is_the_row(A, B, C):
    i, j = cuda.grid(2)
    if i < C.shape[0] and j < C.shape[1]:
        s = float32(0.)
        for k in range(A.shape[1]):
            s += A[i, k] * B[k, j]
        C[i, j] = s

@launched(8, 8, (8, 8), grid=lambda m, n: (m // 8, n // 8))
@cuda.jit
def x_is_the_row_8x8(A, B, C):
    i, j = cuda.grid(2)
    s = float32(0.)
    for k in range(A.shape[1]):
        s += A[i, k] * B[k, j]
    C[i, j] = s

@launched(1, 256, (1, 256), grid=lambda m, n: (m, n // 256))
@cuda.jit
def x_is_the_row_1x256(A, B, C):
    i, j = cuda.grid(2)
    s = float32(0.)
    k = 0
    while k < A.shape[1]:
        s += A[i, k] * B[k, j]
        k += 1
    C[i, j] = s

@launched(64, 4, (64, 4), grid=lambda m, n: (m // 64, n // 4))
@cuda.jit
def x_is_the_row_64x4(A, B, C):
    row, col = cuda.grid(2)
    tmp = float32(0)
    for kk in range(B.shape[0]): tmp += A[row, kk] * B[kk, col]
    C[row, col] = tmp

@launched(128, 2, (2, 128))
@cuda.jit
def block_of_2x128(A, B, C):
    j, i = cuda.grid(2)
    s = float32(0)
    for k in range(A.shape[1]): s += A[i, k] * B[k, j]
    C[i, j] = s

@launched(6, 12, (12, 6))
@cuda.jit
def block_of_12x6(A, B, C):
    j, i = cuda.grid(2)
    if i >= C.shape[0] or j >= C.shape[1]:
        return
    s = float32(0)
    for k in range(A.shape[1]): s += A[i, k] * B[k, j]
    C[i, j] = s

@launched(16, 16, (16, 16))
@cuda.jit
def forgot_float32(A, B, C):
    j, i = cuda.grid(2)
    if i < C.shape[0] and j < C.shape[1]:
        s = 0.
        for k in range(A.shape[1]):
            s += A[i, k] * B[k, j]
        C[i, j] = s

@launched(16, 16, (16, 16))
@cuda.jit
def float64_on_purpose(A, B, C):
    j, i = cuda.grid(2)
    s = float64(0)
    for k in range(A.shape[1]):
        s += float64(A[i, k]) * float64(B[k, j])
    C[i, j] = float32(s)

@launched(8, 32, (32, 8))
@cuda.jit
def straight_into_c(A, B, C):
    j, i = cuda.grid(2)
    C[i, j] = 0
    for k in range(A.shape[1]):
        C[i, j] += A[i, k] * B[k, j]

@launched(1, 128, 128, grid=lambda m, n: m * n // 128)
@cuda.jit
def flat_and_divided(A, B, C):
    at = cuda.grid(1)
    i, j = at // C.shape[1], at % C.shape[1]
    s = float32(0)
    for k in range(A.shape[1]): s += A[i, k] * B[k, j]
    C[i, j] = s

@launched(32, 32, 1024)
@cuda.jit
def article_2(A, B, C):
    # as in the article: 1024 threads in a row, cut into rows of 32
    x = cuda.blockIdx.y * 32 + cuda.threadIdx.x // 32
    y = cuda.blockIdx.x * 32 + cuda.threadIdx.x % 32
    if x < C.shape[0] and y < C.shape[1]:
        tmp = float32(0.0)
        for i in range(A.shape[1]):
            tmp += A[x, i] * B[i, y]
        C[x, y] = tmp

@launched(16, 16, 256)
@cuda.jit
def article_2_of_16(A, B, C):
    t = uint32(cuda.threadIdx.x)
    x = uint32(cuda.blockIdx.y * 16 + t // 16)
    y = uint32(cuda.blockIdx.x * 16 + t % 16)
    tmp, i = float32(0), uint32(0)
    while i < uint32(A.shape[1]):
        tmp += A[x, i] * B[i, y]
        i = uint32(i + 1)
    C[x, y] = tmp

@launched(2, 64, 256, grid=lambda m, n: 1056)
@cuda.jit
def grid_stride(A, B, C):
    m, n, K = C.shape[0], C.shape[1], A.shape[1]
    for at in range(cuda.grid(1), m * n, cuda.gridsize(1)):
        row = at // n
        col = at - row * n
        s = float32(0)
        for k in range(K): s += A[row, k] * B[k, col]
        C[row, col] = s

@launched(1, 256, 256, grid=lambda m, n: m)
@cuda.jit
def one_block_per_row(A, B, C):
    i = cuda.blockIdx.x
    for j in range(cuda.threadIdx.x, C.shape[1], cuda.blockDim.x):
        s = float32(0)
        for k in range(A.shape[1]): s += A[i, k] * B[k, j]
        C[i, j] = s


# The loop over k

@launched(8, 32, (32, 8))
@cuda.jit
def backward(A, B, C):
    j, i = cuda.grid(2)
    s = float32(0)
    for k in range(A.shape[1] - 1, -1, -1): s += A[i, k] * B[k, j]
    C[i, j] = s

@launched(4, 64, (64, 4))
@cuda.jit
def by_eights_and_a_rest(A, B, C):
    j, i = cuda.grid(2)
    K = A.shape[1]
    s, k = float32(0), 0
    while k + 8 <= K:
        for u in range(8): s += A[i, k + u] * B[k + u, j]
        k += 8
    while k < K:
        s += A[i, k] * B[k, j]
        k += 1
    C[i, j] = s

@launched(8, 32, (32, 8))
@cuda.jit
def two_halves(A, B, C):
    j, i = cuda.grid(2)
    half = A.shape[1] // 2
    first, second = float32(0), float32(0)
    for k in range(half): first += A[i, k] * B[k, j]
    for k in range(half, A.shape[1]): second += A[i, k] * B[k, j]
    C[i, j] = first + second

@launched(8, 32, (32, 8))
@cuda.jit
def both_ends_at_once(A, B, C):
    j, i = cuda.grid(2)
    half = A.shape[1] // 2
    s, t = float32(0), float32(0)
    k = int32(0)
    while k < half:
        s += A[i, k] * B[k, j]
        t += A[i, k + half] * B[k + half, j]
        k += 1
    C[i, j] = s + t

@launched(16, 32, (32, 16), sized=True)
def everything_constant(N):
    @cuda.jit
    def kernel(A, B, C):
        j = cuda.blockIdx.x * 32 + cuda.threadIdx.x
        i = cuda.blockIdx.y * 16 + cuda.threadIdx.y
        s = float32(0)
        for k in range(N): s += A[i, k] * B[k, j]
        C[i, j] = s
    return kernel

@launched(8, 8, (8, 8, 4))
@cuda.jit
def z_shares_the_sum(A, B, C):
    parts = cuda.shared.array((4, 8, 8), float32)
    x, y, z = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    i, j = cuda.blockIdx.y * 8 + y, cuda.blockIdx.x * 8 + x
    s = float32(0)
    for k in range(z, A.shape[1], 4): s += A[i, k] * B[k, j]
    parts[z, y, x] = s
    cuda.syncthreads()
    if z == 0:
        C[i, j] = parts[0, y, x] + parts[1, y, x] + parts[2, y, x] + parts[3, y, x]

@launched(8, 32, (32, 8), grid=lambda m, n: (n // 32, m // 8, 4), adds=True)
@cuda.jit
def parts_added_by_atomics(A, B, C):
    j = cuda.blockIdx.x * 32 + cuda.threadIdx.x
    i = cuda.blockIdx.y * 8 + cuda.threadIdx.y
    part = A.shape[1] // cuda.gridDim.z
    k0 = cuda.blockIdx.z * part
    s = float32(0)
    for k in range(k0, k0 + part): s += A[i, k] * B[k, j]
    cuda.atomic.add(C, (i, j), s)


# Several results per thread, without shared memory

@launched(8, 128, (32, 8))
@cuda.jit
def four_columns_apart(A, B, C):
    x = cuda.blockIdx.x * 128 + cuda.threadIdx.x
    i = cuda.blockIdx.y * 8 + cuda.threadIdx.y
    s0 = s1 = s2 = s3 = float32(0)
    for k in range(A.shape[1]):
        v = A[i, k]
        s0 += v * B[k, x]
        s1 += v * B[k, x + 32]
        s2 += v * B[k, x + 64]
        s3 += v * B[k, x + 96]
    C[i, x], C[i, x + 32], C[i, x + 64], C[i, x + 96] = s0, s1, s2, s3

@launched(64, 64, (16, 16))
@cuda.jit
def four_by_four_from_global(A, B, C):
    acc = cuda.local.array((4, 4), float32)
    av = cuda.local.array(4, float32)
    bv = cuda.local.array(4, float32)
    i0 = cuda.blockIdx.y * 64 + cuda.threadIdx.y * 4
    j0 = cuda.blockIdx.x * 64 + cuda.threadIdx.x * 4
    for i in range(4):
        for j in range(4): acc[i, j] = 0
    for k in range(A.shape[1]):
        for i in range(4): av[i] = A[i0 + i, k]
        for j in range(4): bv[j] = B[k, j0 + j]
        for i in range(4):
            for j in range(4): acc[i, j] += av[i] * bv[j]
    for i in range(4):
        for j in range(4): C[i0 + i, j0 + j] = acc[i, j]

@launched(8, 128, (32, 8))
@cuda.jit
def fours_of_b(A, B, C):
    j = cuda.blockIdx.x * 128 + cuda.threadIdx.x * 4
    i = cuda.blockIdx.y * 8 + cuda.threadIdx.y
    s0 = s1 = s2 = s3 = float32(0)
    k = 0
    while k < A.shape[1]:
        v = A[i, k]
        b0, b1, b2, b3 = load4(B, (k, j))
        s0 += v * b0
        s1 += v * b1
        s2 += v * b2
        s3 += v * b3
        k += 1
    store4(C, (i, j), s0, s1, s2, s3)

@launched(32, 128, (32, 8))
@cuda.jit
def fours_of_both(A, B, C):
    acc = cuda.local.array((4, 4), float32)
    j = cuda.blockIdx.x * 128 + cuda.threadIdx.x * 4
    i = cuda.blockIdx.y * 32 + cuda.threadIdx.y * 4
    for r in range(4):
        for q in range(4): acc[r, q] = float32(0)
    for k in range(0, A.shape[1], 4):
        b0, b1, b2, b3 = load4(B, (k, j)), load4(B, (k + 1, j)), load4(B, (k + 2, j)), load4(B, (k + 3, j))
        for r in range(4):
            a4 = load4(A, (i + r, k))
            for q in range(4): acc[r, q] += a4[0] * b0[q] + a4[1] * b1[q] + a4[2] * b2[q] + a4[3] * b3[q]
    for r in range(4): store4(C, (i + r, j), acc[r, 0], acc[r, 1], acc[r, 2], acc[r, 3])

@launched(1, 8, 256, grid=lambda m, n: (n // 8, m))
@cuda.jit
def a_warp_per_result(A, B, C):
    lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
    i, j = cuda.blockIdx.y, cuda.blockIdx.x * 8 + warp
    s = float32(0)
    for k in range(lane, A.shape[1], 32): s += A[i, k] * B[k, j]
    for step in (16, 8, 4, 2, 1): s += cuda.shfl_down_sync(0xffffffff, s, step)
    if lane == 0: C[i, j] = s

@launched(1, 256, 256, least=256)
@cuda.jit
def row_of_a_in_shared(A, B, C):
    row = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    i, j = cuda.blockIdx.y, cuda.blockIdx.x * 256 + t
    s = float32(0)
    for k0 in range(0, A.shape[1], 256):
        row[t] = A[i, k0 + t]
        cuda.syncthreads()
        for k in range(256): s += row[k] * B[k0 + k, j]
        cuda.syncthreads()
    C[i, j] = s


# Tiles in shared memory, one result per thread

@launched(8, 8, (8, 8))
@cuda.jit
def tile_of_8(A, B, C):
    sA = cuda.shared.array((8, 8), float32)
    sB = cuda.shared.array((8, 8), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    j, i = cuda.grid(2)
    s = float32(0)
    for t in range(A.shape[1] // 8):
        sA[ty, tx] = A[i, tx + t * 8]
        sB[ty, tx] = B[ty + t * 8, j]
        cuda.syncthreads()
        for k in range(8): s += sA[ty, k] * sB[k, tx]
        cuda.syncthreads()
    C[i, j] = s

def with_zeros(TPB, pad, name):
    "Numba's own example, with tiles of TPB: zeros past the edge."
    width = TPB + pad

    @launched(TPB, TPB, (TPB, TPB), name=name)
    @cuda.jit
    def kernel(x, y, z):
        sx = cuda.shared.array((TPB, width), float32)
        sy = cuda.shared.array((TPB, width), float32)
        col, row = cuda.grid(2)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        tmp = float32(0.)
        for i in range((x.shape[1] + TPB - 1) // TPB):
            sx[ty, tx] = 0
            sy[ty, tx] = 0
            if row < x.shape[0] and tx + i * TPB < x.shape[1]:
                sx[ty, tx] = x[row, tx + i * TPB]
            if col < y.shape[1] and ty + i * TPB < y.shape[0]:
                sy[ty, tx] = y[ty + i * TPB, col]
            cuda.syncthreads()
            for k in range(TPB):
                tmp += sx[ty, k] * sy[k, tx]
            cuda.syncthreads()
        if row < z.shape[0] and col < z.shape[1]:
            z[row, col] = tmp

with_zeros(16, 0, "zeros_16")
with_zeros(24, 0, "zeros_24")
with_zeros(32, 1, "zeros_32_padded")

@launched(16, 16, (16, 16), grid=lambda m, n: (m // 16, n // 16))
@cuda.jit
def tile_x_is_the_row(A, B, C):
    sA = cuda.shared.array((16, 16), float32)
    sB = cuda.shared.array((16, 16), float32)
    i, j = cuda.grid(2)
    ti, tj = cuda.threadIdx.x, cuda.threadIdx.y
    s = float32(0)
    for k0 in range(0, A.shape[1], 16):
        sA[ti, tj] = A[i, k0 + tj]
        sB[ti, tj] = B[k0 + ti, j]
        cuda.syncthreads()
        for k in range(16): s += sA[ti, k] * sB[k, tj]
        cuda.syncthreads()
    C[i, j] = s

@launched(32, 32, (32, 32))
@cuda.jit
def tile_a_transposed_in_32_banks(A, B, C):
    sA = cuda.shared.array((32, 32), float32)
    sB = cuda.shared.array((32, 32), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    i, j = cuda.blockIdx.y * 32 + y, cuda.blockIdx.x * 32 + x
    s = float32(0)
    for k0 in range(0, A.shape[1], 32):
        sA[x, y] = A[i, k0 + x]
        sB[y, x] = B[k0 + y, j]
        cuda.syncthreads()
        for k in range(32): s += sA[k, y] * sB[k, x]
        cuda.syncthreads()
    C[i, j] = s

@launched(32, 32, (32, 32))
@cuda.jit
def tile_unrolled_by_four(A, B, C):
    sA = cuda.shared.array((32, 32), float32)
    sB = cuda.shared.array((32, 32), float32)
    x, y = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    i, j = cuda.blockIdx.y * 32 + y, cuda.blockIdx.x * 32 + x
    s, k0 = float32(0), 0
    while k0 < A.shape[1]:
        sA[y, x] = A[i, k0 + x]
        sB[y, x] = B[k0 + y, j]
        cuda.syncthreads()
        k = uint32(0)
        while k < 32:
            s += sA[y, k] * sB[k, x]
            s += sA[y, k + 1] * sB[k + 1, x]
            s += sA[y, k + 2] * sB[k + 2, x]
            s += sA[y, k + 3] * sB[k + 3, x]
            k = uint32(k + 4)
        cuda.syncthreads()
        k0 += 32
    C[i, j] = s

@launched(8, 64, (64, 8))
@cuda.jit
def flat_tile_8x64(A, B, C):
    sA = cuda.shared.array((8, 32), float32)
    sB = cuda.shared.array((32, 64), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    i0, j0 = cuda.blockIdx.y * 8, cuda.blockIdx.x * 64
    t = y * 64 + x
    s = float32(0)
    for k0 in range(0, A.shape[1], 32):
        if t < 256: sA[t // 32, t % 32] = A[i0 + t // 32, k0 + t % 32]
        for r in range(y, 32, 8): sB[r, x] = B[k0 + r, j0 + x]
        cuda.syncthreads()
        for k in range(32): s += sA[y, k] * sB[k, x]
        cuda.syncthreads()
    C[i0 + y, j0 + x] = s

@launched(32, 32, (32, 32), least=64)
@cuda.jit
def long_tiles_64(A, B, C):
    sA = cuda.shared.array((32, 64), float32)
    sB = cuda.shared.array((64, 32), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    i, j = cuda.blockIdx.y * 32 + y, cuda.blockIdx.x * 32 + x
    s = float32(0)
    for k0 in range(0, A.shape[1], 64):
        sA[y, x], sA[y, x + 32] = A[i, k0 + x], A[i, k0 + 32 + x]
        sB[y, x], sB[y + 32, x] = B[k0 + y, j], B[k0 + 32 + y, j]
        cuda.syncthreads()
        for k in range(64): s += sA[y, k] * sB[k, x]
        cuda.syncthreads()
    C[i, j] = s

@launched(32, 32, (32, 32))
@cuda.jit
def tile_of_a_only(A, B, C):
    sA = cuda.shared.array((32, 32), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    i, j = cuda.blockIdx.y * 32 + y, cuda.blockIdx.x * 32 + x
    s = float32(0)
    for k0 in range(0, A.shape[1], 32):
        sA[y, x] = A[i, k0 + x]
        cuda.syncthreads()
        for k in range(32): s += sA[y, k] * B[k0 + k, j]
        cuda.syncthreads()
    C[i, j] = s

@launched(32, 32, (32, 32))
@cuda.jit
def tile_kept_in_registers_first(A, B, C):
    sA = cuda.shared.array((32, 32), float32)
    sB = cuda.shared.array((32, 32), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    i, j = cuda.blockIdx.y * 32 + y, cuda.blockIdx.x * 32 + x
    s = float32(0)
    next_a, next_b = A[i, x], B[y, j]
    for k0 in range(0, A.shape[1], 32):
        sA[y, x] = next_a
        sB[y, x] = next_b
        cuda.syncthreads()
        if k0 + 32 < A.shape[1]:
            next_a, next_b = A[i, k0 + 32 + x], B[k0 + 32 + y, j]
        for k in range(32): s += sA[y, k] * sB[k, x]
        cuda.syncthreads()
    C[i, j] = s

@launched(16, 16, (16, 16), grid=lambda m, n: (n // 16, m // 16, 2), adds=True)
@cuda.jit
def tile_half_of_k(A, B, C):
    sA = cuda.shared.array((16, 16), float32)
    sB = cuda.shared.array((16, 16), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    i, j = cuda.blockIdx.y * 16 + y, cuda.blockIdx.x * 16 + x
    half = A.shape[1] // 2
    start = cuda.blockIdx.z * half
    s = float32(0)
    for k0 in range(start, start + half, 16):
        sA[y, x] = A[i, k0 + x]
        sB[y, x] = B[k0 + y, j]
        cuda.syncthreads()
        for k in range(16): s += sA[y, k] * sB[k, x]
        cuda.syncthreads()
    cuda.atomic.add(C, (i, j), s)


KERNELS = {name: one.at(4096, 4096) for name, one in WRITTEN.items()}
