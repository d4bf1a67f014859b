"""The third round, from naive kernels to columns of results: four readers with eight kernels each.

They were written without a look at the model, after it had gained rules for the second round."""
import numba_matmul  # noqa: F401  first: this chooses between the GPU and the simulator
from numba import cuda, float32, int32, int64, uint32

from numba_matmul.arrays import cdiv
from numba_matmul.ptx.core import load4

from .written import collection

WRITTEN, launched = collection()


# One who has just begun: one thread per element, or a few elements

@launched(13, 17, (17, 13), edges=True)
@cuda.jit
def block_of_17x13(A, B, C):
    col, row = cuda.grid(2)
    if row < C.shape[0] and col < C.shape[1]:
        total = float32(0)
        for k in range(A.shape[1]):
            total += A[row, k] * B[k, col]
        C[row, col] = total

@launched(4, 96, (96, 4), edges=True)
@cuda.jit
def block_of_96x4(A, B, C):
    x = cuda.blockDim.x * cuda.blockIdx.x + cuda.threadIdx.x
    y = cuda.blockDim.y * cuda.blockIdx.y + cuda.threadIdx.y
    if y >= A.shape[0]: return
    if x >= B.shape[1]: return
    k = 0
    res = float32(0)
    while k != A.shape[1]:
        res = res + A[y, k] * B[k, x]
        k = k + 1
    C[y, x] = res

@launched(50, 5, (5, 50), edges=True)
@cuda.jit
def block_of_5x50(A, B, C):
    j, i = cuda.grid(2)
    if i < C.shape[0] and j < C.shape[1]:
        C[i, j] = 0
        tmp = float32(0)
        for k in range(B.shape[0]):
            tmp += A[i, k] * B[k, j]
        C[i, j] += tmp

@launched(8, 32, (32, 8), edges=True)
@cuda.jit
def kahan(A, B, C):
    # carries what each addition lost
    j, i = cuda.grid(2)
    if i < C.shape[0] and j < C.shape[1]:
        s, lost = float32(0), float32(0)
        for k in range(A.shape[1]):
            y = A[i, k] * B[k, j] - lost
            t = s + y
            lost = (t - s) - y
            s = t
        C[i, j] = s

@launched(16, 16, (16, 16), edges=True, grid=lambda m, n: (cdiv(n, 64), cdiv(m, 64)))
@cuda.jit
def strides_in_both_directions(A, B, C):
    x0, y0 = cuda.grid(2)
    dx, dy = cuda.gridsize(2)
    for i in range(y0, C.shape[0], dy):
        for j in range(x0, C.shape[1], dx):
            s = float32(0)
            for k in range(A.shape[1]):
                s += A[i, k] * B[k, j]
            C[i, j] = s

@launched(16, 64, (32, 8), edges=True)
@cuda.jit
def two_by_two_neighbors(A, B, C):
    x, y = cuda.grid(2)
    i, j = 2 * y, 2 * x
    if i + 1 < C.shape[0] and j + 1 < C.shape[1]:
        s00, s01, s10, s11 = float32(0), float32(0), float32(0), float32(0)
        for k in range(A.shape[1]):
            a0, a1 = A[i, k], A[i + 1, k]
            b0, b1 = B[k, j], B[k, j + 1]
            s00 += a0 * b0
            s01 += a0 * b1
            s10 += a1 * b0
            s11 += a1 * b1
        C[i, j], C[i, j + 1] = s00, s01
        C[i + 1, j], C[i + 1, j + 1] = s10, s11
    else:
        for p in range(i, min(i + 2, C.shape[0])):
            for q in range(j, min(j + 2, C.shape[1])):
                s = float32(0)
                for k in range(A.shape[1]): s += A[p, k] * B[k, q]
                C[p, q] = s

@launched(20, 64, (64, 4), edges=True)
@cuda.jit
def five_rows_from_global(A, B, C):
    results = cuda.local.array(5, float32)
    j = cuda.grid(2)[0]
    i0 = 5 * cuda.grid(2)[1]
    if j < C.shape[1] and i0 < C.shape[0]:
        last = C.shape[0] - 1
        for r in range(5): results[r] = 0
        for k in range(A.shape[1]):
            b = B[k, j]
            for r in range(5):
                results[r] += A[min(i0 + r, last), k] * b  # the last row again, rather than none
        for r in range(5):
            if i0 + r < C.shape[0]: C[i0 + r, j] = results[r]

@launched(1, 64, 64, edges=True)
@cuda.jit
def one_row_in_blocks_of_64(A, B, C):
    # a block works in one row, and B's rows are taken three at a time
    i = cuda.blockIdx.y
    j = cuda.blockIdx.x * 64 + cuda.threadIdx.x
    if j < C.shape[1]:
        s, k, K = float32(0), 0, A.shape[1]
        while k + 3 <= K:
            s += A[i, k] * B[k, j] + A[i, k + 1] * B[k + 1, j] + A[i, k + 2] * B[k + 2, j]
            k += 3
        while k < K:
            s += A[i, k] * B[k, j]
            k += 1
        C[i, j] = s


# One who knows CUDA C: numbers of rows, columns and steps as arguments, flat arrays

@launched(8, 32, (32, 8), flat=True, edges=True, more=lambda m, n, k: tuple(map(int32, (m, n, k, k, n, n))))
@cuda.jit
def flat_with_strides(a, b, c, m, n, k, lda, ldb, ldc):
    row = int32(cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y)
    col = int32(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x)
    if row < m and col < n:
        acc = float32(0)
        p = int32(0)
        while p < k:
            acc += a[row * lda + p] * b[p * ldb + col]
            p += int32(1)
        c[row * ldc + col] = acc

@launched(8, 64, (64, 8), flat=True, edges=True, more=lambda m, n, k: (m, n, k))
@cuda.jit
def flat_with_moving_offsets(a, b, c, m, n, k):
    col, row = cuda.grid(2)
    if row < m and col < n:
        at_a, at_b = row * k, col
        end = at_a + k
        acc = float32(0)
        while at_a < end:
            acc += a[at_a] * b[at_b]
            at_a += 1
            at_b += n
        c[row * n + col] = acc

@launched(16, 16, (16, 16), flat=True, least=16, more=lambda m, n, k: (k, n))
@cuda.jit
def as_in_nvidias_sample(A, B, C, wA, wB):
    bx, by = cuda.blockIdx.x, cuda.blockIdx.y
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    aBegin = wA * 16 * by
    aEnd = aBegin + wA - 1
    bBegin = 16 * bx
    Csub = float32(0)
    a, b = aBegin, bBegin
    As = cuda.shared.array((16, 16), float32)
    Bs = cuda.shared.array((16, 16), float32)
    while a <= aEnd:
        As[ty, tx] = A[a + wA * ty + tx]
        Bs[ty, tx] = B[b + wB * ty + tx]
        cuda.syncthreads()
        for k in range(16):
            Csub += As[ty, k] * Bs[k, tx]
        cuda.syncthreads()
        a += 16
        b += 16 * wB
    c = wB * 16 * by + 16 * bx
    C[c + wB * ty + tx] = Csub

@launched(32, 32, (32, 32), edges=True, more=lambda m, n, k: (m, n, k, float32(1), float32(0)))
@cuda.jit
def alpha_and_beta_and_flat_tiles(a, b, c, m, n, k, alpha, beta):
    As = cuda.shared.array(32 * 32, float32)
    Bs = cuda.shared.array(32 * 32, float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row = cuda.blockIdx.y * 32 + ty
    col = cuda.blockIdx.x * 32 + tx
    acc = float32(0)
    for t in range((k + 31) // 32):
        if row < m and t * 32 + tx < k: As[ty * 32 + tx] = a[row, t * 32 + tx]
        else: As[ty * 32 + tx] = float32(0)
        if t * 32 + ty < k and col < n: Bs[ty * 32 + tx] = b[t * 32 + ty, col]
        else: Bs[ty * 32 + tx] = float32(0)
        cuda.syncthreads()
        for i in range(32):
            acc += As[ty * 32 + i] * Bs[i * 32 + tx]
        cuda.syncthreads()
    if row < m and col < n:
        if beta == 0: c[row, col] = alpha * acc
        else: c[row, col] = alpha * acc + beta * c[row, col]

@launched(32, 32, 256, flat=True, least=8, more=lambda m, n, k: (int32(n), int32(k)))
@cuda.jit
def flat_column_of_4(a, b, c, n, k):
    As = cuda.shared.array(32 * 8, float32)
    Bs = cuda.shared.array(8 * 32, float32)
    res = cuda.local.array(4, float32)
    t = int32(cuda.threadIdx.x)
    thread_row, thread_col = int32(t // 32), int32(t % 32)
    inner_row, inner_col = int32(t // 8), int32(t % 8)
    at_a = int32(cuda.blockIdx.y * 32 * k)
    at_b = int32(cuda.blockIdx.x * 32)
    at_c = int32(cuda.blockIdx.y * 32 * n + cuda.blockIdx.x * 32)
    for i in range(4): res[i] = 0
    for _ in range(0, k, 8):
        As[inner_row * 8 + inner_col] = a[at_a + inner_row * k + inner_col]
        Bs[thread_row * 32 + thread_col] = b[at_b + thread_row * n + thread_col]
        cuda.syncthreads()
        at_a += int32(8)
        at_b += int32(8 * n)
        for d in range(8):
            tmp = Bs[d * 32 + thread_col]
            for i in range(4): res[i] += As[(thread_row * 4 + i) * 8 + d] * tmp
        cuda.syncthreads()
    for i in range(4): c[at_c + (thread_row * 4 + i) * n + thread_col] = res[i]

@launched(64, 64, 256, flat=True, least=8, more=lambda m, n, k: (m, n, k))
@cuda.jit
def flat_four_by_four(A, B, C, M, N, K):
    As = cuda.shared.array(64 * 8, float32)
    Bs = cuda.shared.array(8 * 64, float32)
    results = cuda.local.array(4 * 4, float32)
    regM, regN = cuda.local.array(4, float32), cuda.local.array(4, float32)
    tid = cuda.threadIdx.x
    threadRow, threadCol = tid // 16, tid % 16
    a0 = cuda.blockIdx.y * 64 * K
    b0 = cuda.blockIdx.x * 64
    c0 = cuda.blockIdx.y * 64 * N + cuda.blockIdx.x * 64
    for i in range(16): results[i] = 0.
    for _ in range(0, K, 8):
        for off in range(0, 64, 32):
            As[(tid // 8 + off) * 8 + tid % 8] = A[a0 + (tid // 8 + off) * K + tid % 8]
        for off in range(0, 8, 4):
            Bs[(tid // 64 + off) * 64 + tid % 64] = B[b0 + (tid // 64 + off) * N + tid % 64]
        cuda.syncthreads()
        a0 += 8
        b0 += 8 * N
        for dot in range(8):
            for i in range(4): regM[i] = As[(threadRow * 4 + i) * 8 + dot]
            for i in range(4): regN[i] = Bs[dot * 64 + threadCol * 4 + i]
            for i in range(4):
                for j in range(4): results[i * 4 + j] += regM[i] * regN[j]
        cuda.syncthreads()
    for i in range(4):
        for j in range(4): C[c0 + (threadRow * 4 + i) * N + threadCol * 4 + j] = results[i * 4 + j]

@launched(64, 64, 128, flat=True, least=16, more=lambda m, n, k: (uint32(n), uint32(k)))
@cuda.jit
def flat_fours_of_a(a, b, c, n, k):
    # A by float4, transposed; B number by number; 8 rows × 4 columns
    As = cuda.shared.array(16 * 64, float32)
    Bs = cuda.shared.array(16 * 64, float32)
    acc = cuda.local.array((8, 4), float32)
    t = uint32(cuda.threadIdx.x)
    row0, col0 = uint32(cuda.blockIdx.y * 64), uint32(cuda.blockIdx.x * 64)
    ty, tx = uint32(t // 16), uint32(t % 16)
    for i in range(8):
        for j in range(4): acc[i, j] = float32(0)
    k0 = uint32(0)
    while k0 < k:
        for p in range(2):
            r, q = uint32(t // 4 + p * 32), uint32(t % 4 * 4)
            x, y, z, w = load4(a, uint32((row0 + r) * k + k0 + q))
            As[q * 64 + r] = x
            As[(q + 1) * 64 + r] = y
            As[(q + 2) * 64 + r] = z
            As[(q + 3) * 64 + r] = w
        for p in range(8):
            r = uint32(t // 64 + 2 * p)
            Bs[r * 64 + t % 64] = b[(k0 + r) * n + col0 + t % 64]
        cuda.syncthreads()
        for d in range(16):
            for j in range(4):
                right = Bs[d * 64 + tx + 16 * j]
                for i in range(8): acc[i, j] += As[d * 64 + ty * 8 + i] * right
        cuda.syncthreads()
        k0 += uint32(16)
    for i in range(8):
        for j in range(4): c[(row0 + ty * 8 + i) * n + col0 + tx + 16 * j] = acc[i, j]

@launched(32, 32, (32, 32), more=lambda m, n, k: (k,))
@cuda.jit
def both_along_k(a, b, c, k):
    # B's tile is stored transposed, so that both are read along k; a word of padding each
    sa = cuda.shared.array((32, 33), float32)
    sb = cuda.shared.array((32, 33), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 32 + ty, cuda.blockIdx.x * 32 + tx
    acc = float32(0)
    for k0 in range(0, k, 32):
        sa[ty, tx] = a[row, k0 + tx]
        sb[tx, ty] = b[k0 + ty, col]
        cuda.syncthreads()
        for i in range(0, 32, 2):
            acc += sa[ty, i] * sb[tx, i]
            acc += sa[ty, i + 1] * sb[tx, i + 1]
        cuda.syncthreads()
    c[row, col] = acc


# A student with Numba's documentation open: tiles in shared memory

TPB = 16

@launched(TPB, TPB, (TPB, TPB), least=TPB, edges=True)
@cuda.jit
def as_in_numbas_guide(A, B, C):
    sA = cuda.shared.array(shape=(TPB, TPB), dtype=float32)
    sB = cuda.shared.array(shape=(TPB, TPB), dtype=float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    bpg = (A.shape[1] + TPB - 1) // TPB
    tmp = float32(0.)
    for i in range(bpg):
        sA[ty, tx] = 0
        sB[ty, tx] = 0
        if y < A.shape[0] and (tx + i * TPB) < A.shape[1]:
            sA[ty, tx] = A[y, tx + i * TPB]
        if x < B.shape[1] and (ty + i * TPB) < B.shape[0]:
            sB[ty, tx] = B[ty + i * TPB, x]
        cuda.syncthreads()
        for j in range(TPB):
            tmp += sA[ty, j] * sB[j, tx]
        cuda.syncthreads()
    if y < C.shape[0] and x < C.shape[1]:
        C[y, x] = tmp

@launched(24, 24, (24, 24), least=24, edges=True)
@cuda.jit
def tile_24_clamped(A, B, C):
    # reads the last row or column again past the edges; only A's extra columns have to be zero
    sA = cuda.shared.array((24, 24), float32)
    sB = cuda.shared.array((24, 24), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    x, y = cuda.grid(2)
    M, N, K = C.shape[0], C.shape[1], A.shape[1]
    row, col = min(y, M - 1), min(x, N - 1)
    tmp = float32(0)
    k0 = 0
    while k0 < K:
        sA[ty, tx] = A[row, min(k0 + tx, K - 1)] * float32(k0 + tx < K)
        sB[ty, tx] = B[min(k0 + ty, K - 1), col]
        cuda.syncthreads()
        for q in range(24): tmp += sA[ty, q] * sB[q, tx]
        cuda.syncthreads()
        k0 += 24
    if y < M and x < N: C[y, x] = tmp

@launched(8, 32, (32, 8))
@cuda.jit
def flat_a_and_square_b(A, B, C):
    # 8×32 of A: one element a thread; 32×32 of B: four
    sA = cuda.shared.array((8, 32), float32)
    sB = cuda.shared.array((32, 32), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    x, y = cuda.grid(2)
    tmp = float32(0)
    for k0 in range(0, A.shape[1], 32):
        sA[ty, tx] = A[y, k0 + tx]
        for p in range(ty, 32, 8): sB[p, tx] = B[k0 + p, x]
        cuda.syncthreads()
        for q in range(32): tmp += sA[ty, q] * sB[q, tx]
        cuda.syncthreads()
    C[y, x] = tmp

@launched(16, 16, (16, 16), least=16)
@cuda.jit
def tile_16_transposed_padded(A, B, C):
    sA = cuda.shared.array((16, 17), float32)
    sB = cuda.shared.array((16, 17), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 16 + ty, cuda.blockIdx.x * 16 + tx
    tmp = float32(0)
    for step in range(A.shape[1] // 16):
        sA[tx, ty] = A[row, step * 16 + tx]
        sB[ty, tx] = B[step * 16 + ty, col]
        cuda.syncthreads()
        for q in range(16): tmp += sA[q, ty] * sB[q, tx]
        cuda.syncthreads()
    C[row, col] = tmp

@launched(32, 32, (32, 32))
@cuda.jit
def tile_32_two_of_each(A, B, C):
    # the next tiles are read into the other pair while this one is used: one barrier a tile
    a0, a1 = cuda.shared.array((32, 32), float32), cuda.shared.array((32, 32), float32)
    b0, b1 = cuda.shared.array((32, 32), float32), cuda.shared.array((32, 32), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    x, y = cuda.grid(2)
    K = A.shape[1]
    tmp = float32(0)
    a0[ty, tx], b0[ty, tx] = A[y, tx], B[ty, x]
    cuda.syncthreads()
    even = True
    for k0 in range(32, K + 32, 32):
        if even:
            if k0 < K: a1[ty, tx], b1[ty, tx] = A[y, k0 + tx], B[k0 + ty, x]
            for q in range(32): tmp += a0[ty, q] * b0[q, tx]
        else:
            if k0 < K: a0[ty, tx], b0[ty, tx] = A[y, k0 + tx], B[k0 + ty, x]
            for q in range(32): tmp += a1[ty, q] * b1[q, tx]
        even = not even
        cuda.syncthreads()
    C[y, x] = tmp

@launched(20, 20, (20, 20), least=20, edges=True)
@cuda.jit
def tile_20(A, B, C):
    sA = cuda.shared.array((20, 20), float32)
    sB = cuda.shared.array((20, 20), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    x, y = cuda.grid(2)
    tmp = float32(0)
    for k0 in range(0, A.shape[1], 20):
        sA[ty, tx] = A[y, k0 + tx] if y < A.shape[0] and k0 + tx < A.shape[1] else float32(0)
        sB[ty, tx] = B[k0 + ty, x] if k0 + ty < B.shape[0] and x < B.shape[1] else float32(0)
        cuda.syncthreads()
        for q in range(min(20, A.shape[1] - k0)): tmp += sA[ty, q] * sB[q, tx]
        cuda.syncthreads()
    if y < C.shape[0] and x < C.shape[1]: C[y, x] = tmp

@launched(16, 16, (16, 16), least=64)
@cuda.jit
def tile_16_and_64_deep(A, B, C):
    sA = cuda.shared.array((16, 64), float32)
    sB = cuda.shared.array((64, 16), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    x, y = cuda.grid(2)
    tmp = float32(0)
    for k0 in range(0, A.shape[1], 64):
        for q in range(tx, 64, 16): sA[ty, q] = A[y, k0 + q]
        for q in range(ty, 64, 16): sB[q, tx] = B[k0 + q, x]
        cuda.syncthreads()
        for q in range(64): tmp += sA[ty, q] * sB[q, tx]
        cuda.syncthreads()
    C[y, x] = tmp

@launched(16, 64, (64, 16), least=32)
@cuda.jit
def b_in_shared_fours_of_a(A, B, C):
    # all of a warp have the same row of A: it's read in fours, straight from global memory
    sB = cuda.shared.array((32, 64), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    x, y = cuda.grid(2)
    tmp = float32(0)
    for k0 in range(0, A.shape[1], 32):
        sB[ty, tx] = B[k0 + ty, x]
        sB[ty + 16, tx] = B[k0 + ty + 16, x]
        cuda.syncthreads()
        for q in range(0, 32, 4):
            a = load4(A, (y, k0 + q))
            tmp += a[0] * sB[q, tx] + a[1] * sB[q + 1, tx] + a[2] * sB[q + 2, tx] + a[3] * sB[q + 3, tx]
        cuda.syncthreads()
    C[y, x] = tmp


# One who plays with lesson 4: columns and rows of results, of all lengths

@launched(24, 32, (32, 8), least=8, edges=True)
@cuda.jit
def column_of_3(a, b, c):
    ta = cuda.shared.array((24, 8), float32)
    tb = cuda.shared.array((8, 32), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    t = 32 * y + x
    row0, col0 = 24 * cuda.blockIdx.y, 32 * cuda.blockIdx.x
    m, n, kk = c.shape[0], c.shape[1], a.shape[1]
    s0 = s1 = s2 = float32(0)
    for k0 in range(0, kk, 8):
        if t < 192:
            r, q = row0 + t // 8, k0 + t % 8
            ta[t // 8, t % 8] = a[r, q] if r < m and q < kk else float32(0)
        tb[y, x] = b[k0 + y, col0 + x] if k0 + y < kk and col0 + x < n else float32(0)
        cuda.syncthreads()
        for k in range(8):
            v = tb[k, x]
            s0 += ta[3 * y, k] * v
            s1 += ta[3 * y + 1, k] * v
            s2 += ta[3 * y + 2, k] * v
        cuda.syncthreads()
    row, col = row0 + 3 * y, col0 + x
    if col < n:
        if row < m: c[row, col] = s0
        if row + 1 < m: c[row + 1, col] = s1
        if row + 2 < m: c[row + 2, col] = s2

@launched(40, 32, (32, 8), least=16, edges=True)
@cuda.jit
def column_of_5_apart(a, b, c):
    ta = cuda.shared.array((40, 16), float32)
    tb = cuda.shared.array((16, 32), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row0, col0 = 40 * cuda.blockIdx.y, 32 * cuda.blockIdx.x
    s0 = s1 = s2 = s3 = s4 = float32(0)
    for k0 in range(0, a.shape[1], 16):
        for i in range(32 * y + x, 640, 256):
            r, q = i // 16, i % 16
            if row0 + r < a.shape[0] and k0 + q < a.shape[1]: ta[r, q] = a[row0 + r, k0 + q]
            else: ta[r, q] = 0
        for q in range(y, 16, 8):
            if k0 + q < b.shape[0] and col0 + x < b.shape[1]: tb[q, x] = b[k0 + q, col0 + x]
            else: tb[q, x] = 0
        cuda.syncthreads()
        for k in range(16):
            v = tb[k, x]
            s0 += ta[y, k] * v
            s1 += ta[y + 8, k] * v
            s2 += ta[y + 16, k] * v
            s3 += ta[y + 24, k] * v
            s4 += ta[y + 32, k] * v
        cuda.syncthreads()
    row, col = row0 + y, col0 + x
    if col < c.shape[1]:
        if row < c.shape[0]: c[row, col] = s0
        if row + 8 < c.shape[0]: c[row + 8, col] = s1
        if row + 16 < c.shape[0]: c[row + 16, col] = s2
        if row + 24 < c.shape[0]: c[row + 24, col] = s3
        if row + 32 < c.shape[0]: c[row + 32, col] = s4

@launched(16, 96, (16, 16), least=16, edges=True)
@cuda.jit
def row_of_6(a, b, c):
    ta = cuda.shared.array((16, 16), float32)
    tb = cuda.shared.array((16, 96), float32)
    sums = cuda.local.array(6, float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = 16 * cuda.blockIdx.y + y, 96 * cuda.blockIdx.x + x
    m, n, depth = c.shape[0], c.shape[1], a.shape[1]
    sums[:] = 0
    for k0 in range(0, depth, 16):
        ta[y, x] = a[row, k0 + x] if row < m and k0 + x < depth else float32(0)
        for j in range(6):
            at = col + 16 * j
            tb[y, x + 16 * j] = b[k0 + y, at] if k0 + y < depth and at < n else float32(0)
        cuda.syncthreads()
        for k in range(16):
            v = ta[y, k]
            for j in range(6): sums[j] += v * tb[k, x + 16 * j]
        cuda.syncthreads()
    if row < m:
        for j in range(6):
            if col + 16 * j < n: c[row, col + 16 * j] = sums[j]

@launched(28, 64, (64, 4), least=16, edges=True)
@cuda.jit
def column_of_7(a, b, c):
    ta = cuda.shared.array((28, 16), float32)
    tb = cuda.shared.array((16, 64), float32)
    sums = cuda.local.array(7, float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    t = y * 64 + x
    row0, col = cuda.blockIdx.y * 28, cuda.blockIdx.x * 64 + x
    for i in range(7): sums[i] = 0
    k0 = 0
    while k0 < a.shape[1]:
        i = t
        while i < 28 * 16:
            r, q = row0 + (i >> 4), k0 + (i & 15)
            ta[i >> 4, i & 15] = a[r, q] if r < a.shape[0] and q < a.shape[1] else float32(0)
            i += 256
        for i in range(4):
            q = k0 + y + 4 * i
            tb[y + 4 * i, x] = b[q, col] if q < b.shape[0] and col < b.shape[1] else float32(0)
        cuda.syncthreads()
        for k in range(16):
            v = tb[k, x]
            for i in range(7): sums[i] += ta[y * 7 + i, k] * v
        cuda.syncthreads()
        k0 += 16
    for i in range(7):
        r = row0 + y * 7 + i
        if r < c.shape[0] and col < c.shape[1]: c[r, col] = sums[i]

@launched(64, 128, (128, 4), least=32)
@cuda.jit
def column_of_16_a_transposed(a, b, c):
    ta = cuda.shared.array((32, 68), float32, alignment=16)
    tb = cuda.shared.array((32, 128), float32)
    sums = cuda.local.array(16, float32)
    x, y = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    t = uint32(y * 128 + x)
    row0, col0 = int64(cuda.blockIdx.y * 64), int64(cuda.blockIdx.x * 128)
    for i in range(16): sums[i] = float32(0)
    for k0 in range(0, a.shape[1], 32):
        for p in range(4): ta[t % 32, t // 32 + 16 * p] = a[row0 + t // 32 + 16 * p, k0 + t % 32]
        for p in range(8): tb[y + 4 * p, x] = b[k0 + y + 4 * p, col0 + x]
        cuda.syncthreads()
        for k in range(32):
            v = tb[k, x]
            for i in range(0, 16, 4):
                p, q, r, s = load4(ta, (uint32(k), uint32(y * 16 + i)))
                sums[i] += p * v
                sums[i + 1] += q * v
                sums[i + 2] += r * v
                sums[i + 3] += s * v
        cuda.syncthreads()
    for i in range(16): c[row0 + y * 16 + i, col0 + x] = sums[i]

@launched(24, 128, (128, 2), least=8, edges=True)
@cuda.jit
def column_of_12_without_zeros(a, b, c):
    # no zeros past the edges: whoever is outside does nothing
    ta = cuda.shared.array((24, 9), float32)
    tb = cuda.shared.array((8, 128), float32)
    sums = cuda.local.array(12, float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    t = y * 128 + x
    row0, col = cuda.blockIdx.y * 24, cuda.blockIdx.x * 128 + x
    inside = col < c.shape[1]
    for i in range(12): sums[i] = 0
    for k0 in range(0, a.shape[1], 8):
        left = min(8, a.shape[1] - k0)
        if t < 192 and row0 + t // 8 < a.shape[0] and t % 8 < left:
            ta[t // 8, t % 8] = a[row0 + t // 8, k0 + t % 8]
        if inside:
            for q in range(y, left, 2): tb[q, x] = b[k0 + q, col]
        cuda.syncthreads()
        if inside:
            for k in range(left):
                v = tb[k, x]
                for i in range(12):
                    if row0 + 12 * y + i < c.shape[0]: sums[i] += ta[12 * y + i, k] * v
        cuda.syncthreads()
    if inside:
        for i in range(12):
            if row0 + 12 * y + i < c.shape[0]: c[row0 + 12 * y + i, col] = sums[i]

@launched(64, 64, (64, 8), least=8)
@cuda.jit
def column_of_8_next_b_early(a, b, c):
    # B's next value is read before this one is used
    ta = cuda.shared.array((64, 8), float32)
    tb = cuda.shared.array((8, 64), float32)
    sums = cuda.local.array(8, float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    t = y * 64 + x
    row0, col0 = cuda.blockIdx.y * 64, cuda.blockIdx.x * 64
    for i in range(8): sums[i] = float32(0)
    k0 = 0
    while k0 < a.shape[1]:
        ta[t >> 3, t & 7] = a[row0 + (t >> 3), k0 + (t & 7)]
        tb[y, x] = b[k0 + y, col0 + x]
        cuda.syncthreads()
        now = tb[0, x]
        for k in range(8):
            soon = tb[(k + 1) % 8, x]
            for i in range(8): sums[i] += ta[8 * y + i, k] * now
            now = soon
        cuda.syncthreads()
        k0 += 8
    for i in range(8): c[row0 + 8 * y + i, col0 + x] = sums[i]

@launched(32, 32, (32, 16), least=64)
@cuda.jit
def two_results_one_after_the_other(a, b, c):
    # the loop over results is outside the loop over k
    ta = cuda.shared.array((32, 64), float32)
    tb = cuda.shared.array((64, 32), float32)
    sums = cuda.local.array(2, float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row0, col0 = cuda.blockIdx.y * 32, cuda.blockIdx.x * 32
    sums[0] = sums[1] = 0
    for k0 in range(0, a.shape[1], 64):
        for h in range(2):
            for g in range(2): ta[y + 16 * h, x + 32 * g] = a[row0 + y + 16 * h, k0 + x + 32 * g]
        for q in range(y, 64, 16): tb[q, x] = b[k0 + q, col0 + x]
        cuda.syncthreads()
        for i in range(2):
            s = sums[i]
            for k in range(64): s += ta[y + 16 * i, k] * tb[k, x]
            sums[i] = s
        cuda.syncthreads()
    c[row0 + y, col0 + x] = sums[0]
    c[row0 + y + 16, col0 + x] = sums[1]


KERNELS = {name: one.at(4096, 4096) for name, one in WRITTEN.items()}
