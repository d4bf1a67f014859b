"""The fourth round: tiles in registers, vectors, warps and asynchronous copies, as readers of lessons 5 to 14
might write them; see from_memory.py."""
import numba_matmul  # noqa: F401  first: this chooses between the GPU and the simulator
from numba import cuda, float32, float64, uint32

from numba_matmul.ptx.ampere import cp_async, cp_async_commit_group, cp_async_wait_group
from numba_matmul.ptx.core import load2, load4, store2, store4

from .written import collection

WRITTEN, launched = collection()


# Rectangles, copied number by number

def rectangle(bm, bn, bk, tm, tn, name, apart=False):
    "A block of two dimensions, whose threads have tm × tn results: neighbors, or `apart` as the threads are."
    wide, high = bn // tn, bm // tm
    step_i, step_j = (high, wide) if apart else (1, 1)
    stride_i, stride_j = (1, 1) if apart else (tm, tn)

    @cuda.jit
    def kernel(A, B, C):
        As, Bs = cuda.shared.array((bm, bk), float32), cuda.shared.array((bk, bn), float32)
        results = cuda.local.array((tm, tn), float32)
        column, line = cuda.local.array(tm, float32), cuda.local.array(tn, float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        top, left = cuda.blockIdx.y * bm, cuda.blockIdx.x * bn
        row, col = ty * stride_i, tx * stride_j
        for i in range(tm):
            for j in range(tn): results[i, j] = 0
        for start in range(0, A.shape[1], bk):
            for r in range(ty, bm, high):
                for q in range(tx, bk, wide): As[r, q] = A[top + r, start + q]
            for r in range(ty, bk, high):
                for q in range(tx, bn, wide): Bs[r, q] = B[start + r, left + q]
            cuda.syncthreads()
            for k in range(bk):
                for j in range(tn): line[j] = Bs[k, col + j * step_j]
                for i in range(tm): column[i] = As[row + i * step_i, k]
                for j in range(tn):
                    for i in range(tm): results[i, j] += column[i] * line[j]
            cuda.syncthreads()
        for i in range(tm):
            for j in range(tn): C[top + row + i * step_i, left + col + j * step_j] = results[i, j]
    launched(bm, bn, (wide, high), name=name, least=bk)(kernel)

rectangle(32, 64, 32, 2, 4, "rectangle_2x4")
rectangle(64, 32, 64, 4, 2, "rectangle_4x2_64_deep")
rectangle(64, 128, 16, 4, 16, "rectangle_4x16")
rectangle(128, 128, 8, 8, 16, "rectangle_8x16_apart", apart=True)
rectangle(64, 64, 32, 8, 8, "rectangle_8x8_64_threads")


def clamped(tm, tn, bk, name, sums=float32):
    "Any size of matrix: past the edge, threads copy the last row or column, and zeros along k in A only."
    bm, bn = 16 * tm, 16 * tn

    @cuda.jit
    def kernel(a, b, c):
        sa, sb = cuda.shared.array((bk, bm), float32), cuda.shared.array((bk, bn), float32)
        acc = cuda.local.array((tm, tn), sums)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        m, n, length, t = c.shape[0], c.shape[1], a.shape[1], y * 16 + x
        row, col = cuda.blockIdx.y * bm, cuda.blockIdx.x * bn
        for i in range(tm):
            for j in range(tn): acc[i, j] = 0
        k0 = 0
        while k0 < length:
            for at in range(t, bm * bk, 256):
                k = k0 + at % bk
                sa[at % bk, at // bk] = a[min(row + at // bk, m - 1), k] if k < length else float32(0)
            for at in range(t, bn * bk, 256):
                sb[at // bn, at % bn] = b[min(k0 + at // bn, length - 1), min(col + at % bn, n - 1)]
            cuda.syncthreads()
            for k in range(bk):
                for i in range(tm):
                    for j in range(tn): acc[i, j] += sa[k, y + 16 * i] * sb[k, x + 16 * j]
            cuda.syncthreads()
            k0 += bk
        for i in range(tm):
            for j in range(tn):
                r, q = row + y + 16 * i, col + x + 16 * j
                if r < m and q < n: c[r, q] = acc[i, j]
    launched(bm, bn, (16, 16), name=name, least=bk, edges=True)(kernel)

clamped(3, 3, 16, "clamped_3x3")
clamped(6, 6, 8, "clamped_6x6")
clamped(5, 8, 8, "clamped_5x8")
clamped(4, 4, 16, "clamped_4x4_double_sums", sums=float64)

@launched(64, 64, 256, least=16, more=lambda m, n, k: (4, 16))
@cuda.jit
def sizes_as_arguments(a, b, c, size, depth):
    # the compiler doesn't know how long the loops are: the sums are in local memory
    sa, sb = cuda.shared.array((64, 16), float32), cuda.shared.array((16, 64), float32)
    acc = cuda.local.array((8, 8), float32)
    t, across = cuda.threadIdx.x, 64 // size
    row0, col0 = cuda.blockIdx.y * 64, cuda.blockIdx.x * 64
    row, col = t // across * size, t % across * size
    for i in range(size):
        for j in range(size): acc[i, j] = 0
    for k0 in range(0, a.shape[1], depth):
        for at in range(t, 64 * depth, cuda.blockDim.x):
            sa[at // depth, at % depth] = a[row0 + at // depth, k0 + at % depth]
            sb[at // 64, at % 64] = b[k0 + at // 64, col0 + at % 64]
        cuda.syncthreads()
        for k in range(depth):
            for i in range(size):
                for j in range(size): acc[i, j] += sa[row + i, k] * sb[k, col + j]
        cuda.syncthreads()
    for i in range(size):
        for j in range(size): c[row0 + row + i, col0 + col + j] = acc[i, j]

@launched(32, 32, 256)
@cuda.jit
def four_lanes_share_k(a, b, c):
    # four neighbors have the same 4 × 4 results; each takes every fourth step
    sa, sb = cuda.shared.array((32, 33), float32), cuda.shared.array((32, 33), float32)
    acc = cuda.local.array((4, 4), float32)
    t, lane, warp = cuda.threadIdx.x, cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
    row, col, part = t // 32 * 4, t % 32 // 4 * 4, t % 4
    row0, col0 = cuda.blockIdx.y * 32, cuda.blockIdx.x * 32
    for i in range(4):
        for j in range(4): acc[i, j] = float32(0)
    for k0 in range(0, a.shape[1], 32):
        for r in range(warp, 32, 8): sa[r, lane], sb[r, lane] = a[row0 + r, k0 + lane], b[k0 + r, col0 + lane]
        cuda.syncthreads()
        for k in range(part, 32, 4):
            for i in range(4):
                for j in range(4): acc[i, j] += sa[row + i, k] * sb[k, col + j]
        cuda.syncthreads()
    for i in range(4):
        for j in range(4):
            s = acc[i, j]
            s += cuda.shfl_xor_sync(0xffffffff, s, 1)
            s += cuda.shfl_xor_sync(0xffffffff, s, 2)
            if part == j: c[row0 + row + i, col0 + col + j] = s


# Twos and fours

@launched(32, 64, (32, 16), least=16)
@cuda.jit
def twos_2x2(a, b, c):
    sa = cuda.shared.array((16, 34), float32, alignment=8)
    sb = cuda.shared.array((16, 64), float32, alignment=8)
    x, y = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    row0, col = cuda.blockIdx.y * 32, cuda.blockIdx.x * 64 + 2 * x
    t, s, u = y * 32 + x, (float32(0), float32(0)), (float32(0), float32(0))
    for k0 in range(0, a.shape[1], 16):
        sa[t % 16, t // 16] = a[row0 + t // 16, k0 + t % 16]
        store2(sb, (y, 2 * x), *load2(b, (k0 + y, col)))
        cuda.syncthreads()
        for k in range(16):
            p, q = load2(sa, (k, 2 * y)), load2(sb, (k, 2 * x))
            s, u = (s[0] + p[0] * q[0], s[1] + p[0] * q[1]), (u[0] + p[1] * q[0], u[1] + p[1] * q[1])
        cuda.syncthreads()
    store2(c, (row0 + 2 * y, col), *s)
    store2(c, (row0 + 2 * y + 1, col), *u)


def vectors(bm, bn, bk, tm, tn, name, pad=0):
    "All in fours: copies, factors and results. A's tile is transposed, its rows `pad` longer."
    threads, across, k_fours, n_fours, row_of_a = bm * bn // (tm * tn), bn // tn, bk // 4, bn // 4, bm + pad

    @cuda.jit
    def kernel(a, b, c):
        sa = cuda.shared.array((bk, row_of_a), float32, alignment=16)
        sb = cuda.shared.array((bk, bn), float32, alignment=16)
        acc = cuda.local.array((tm, tn), float32)
        u, v = cuda.local.array(tm, float32), cuda.local.array(tn, float32)
        t = uint32(cuda.threadIdx.x)
        row0, col0 = cuda.blockIdx.y * bm, cuda.blockIdx.x * bn
        row, col = uint32(t // across * tm), uint32(t % across * tn)
        for i in range(tm):
            for j in range(tn): acc[i, j] = float32(0)
        for k0 in range(0, a.shape[1], bk):
            for at in range(t, bm * k_fours, threads):
                four = load4(a, (row0 + at // k_fours, k0 + at % k_fours * 4))
                for q in range(4): sa[at % k_fours * 4 + q, at // k_fours] = four[q]
            for at in range(t, bk * n_fours, threads):
                four = load4(b, (k0 + at // n_fours, col0 + at % n_fours * 4))
                store4(sb, (at // n_fours, at % n_fours * 4), *four)
            cuda.syncthreads()
            for k in range(bk):
                for i in range(0, tm, 4): u[i], u[i + 1], u[i + 2], u[i + 3] = load4(sa, (k, row + i))
                for j in range(0, tn, 4): v[j], v[j + 1], v[j + 2], v[j + 3] = load4(sb, (k, col + j))
                for i in range(tm):
                    for j in range(tn): acc[i, j] += u[i] * v[j]
            cuda.syncthreads()
        for i in range(tm):
            for j in range(0, tn, 4):
                store4(c, (row0 + row + i, col0 + col + j),
                       acc[i, j], acc[i, j + 1], acc[i, j + 2], acc[i, j + 3])
    launched(bm, bn, threads, name=name, least=bk)(kernel)

vectors(64, 64, 32, 4, 4, "vectors_4x4_32_deep")
vectors(128, 64, 8, 8, 4, "vectors_8x4")
vectors(64, 128, 16, 4, 8, "vectors_4x8_padded", pad=4)
vectors(32, 64, 16, 8, 8, "vectors_8x8_one_warp")
vectors(64, 128, 16, 4, 4, "vectors_4x4_512_threads", pad=4)
vectors(128, 128, 8, 16, 16, "vectors_16x16_spilled")

@launched(64, 64, 256, least=16)
@cuda.jit
def xor_instead_of_padding(a, b, c):
    sa = cuda.shared.array((16, 64), float32, alignment=16)
    sb = cuda.shared.array((16, 64), float32, alignment=16)
    acc = cuda.local.array((4, 4), float32)
    t = uint32(cuda.threadIdx.x)
    row0, col0 = cuda.blockIdx.y * 64, cuda.blockIdx.x * 64
    row, col = t // 16 * 4, t % 16 * 4
    for i in range(4):
        for j in range(4): acc[i, j] = float32(0)
    for k0 in range(0, a.shape[1], 16):
        four = load4(a, (row0 + t // 4, k0 + t % 4 * 4))
        for q in range(4): sa[t % 4 * 4 + q, t // 4 ^ t % 4 * 8] = four[q]
        store4(sb, (t // 16, col), *load4(b, (k0 + t // 16, col0 + col)))
        cuda.syncthreads()
        for k in range(16):
            u, v = load4(sa, (k, row ^ k // 4 * 8)), load4(sb, (k, col))
            for i in range(4):
                for j in range(4): acc[i, j] += u[i] * v[j]
        cuda.syncthreads()
    for i in range(4): store4(c, (row0 + row + i, col0 + col), acc[i, 0], acc[i, 1], acc[i, 2], acc[i, 3])


# Lessons 9 to 14: what blocks of 64 × 64 can do besides, with 256 threads and 4 × 4 results each

@cuda.jit(device=True)
def copy_fours(a, b, sa, sb, row0, col0, k0, t):
    p, q = load4(a, (row0 + t // 4, k0 + t % 4 * 4)), load4(b, (k0 + t // 16, col0 + t % 16 * 4))
    for i in range(4): sa[t % 4 * 4 + i, t // 4] = p[i]
    store4(sb, (t // 16, t % 16 * 4), q[0], q[1], q[2], q[3])

@cuda.jit(device=True)
def add_products(sa, sb, t, acc):
    for k in range(16):
        u, v = load4(sa, (k, t // 16 * 4)), load4(sb, (k, t % 16 * 4))
        for i in range(4):
            for j in range(4): acc[i, j] += u[i] * v[j]

@cuda.jit(device=True)
def one_tile(a, b, sa, sb, row0, col0, first, last, t, acc):
    for i in range(4):
        for j in range(4): acc[i, j] = float32(0)
    for k0 in range(first, last, 16):
        copy_fours(a, b, sa, sb, row0, col0, k0, t)
        cuda.syncthreads()
        add_products(sa, sb, t, acc)
        cuda.syncthreads()

@launched(64, 64, 256, least=64, adds=True, grid=lambda m, n: (4, n // 64, m // 64))
@cuda.jit
def split_four_ways(a, b, c):
    # the parts of a tile are neighbors in the grid, so that they run together
    sa = cuda.shared.array((16, 68), float32, alignment=16)
    sb = cuda.shared.array((16, 64), float32, alignment=16)
    acc = cuda.local.array((4, 4), float32)
    t, row0, col0 = uint32(cuda.threadIdx.x), cuda.blockIdx.z * 64, cuda.blockIdx.y * 64
    part = a.shape[1] // 4
    one_tile(a, b, sa, sb, row0, col0, cuda.blockIdx.x * part, cuda.blockIdx.x * part + part, t, acc)
    for i in range(4):
        for j in range(4): cuda.atomic.add(c, (row0 + t // 16 * 4 + i, col0 + t % 16 * 4 + j), acc[i, j])

@launched(64, 64, 256, least=16, grid=lambda m, n: 264)
@cuda.jit
def snake_for_264_blocks(a, b, c):
    sa = cuda.shared.array((16, 68), float32, alignment=16)
    sb = cuda.shared.array((16, 64), float32, alignment=16)
    acc = cuda.local.array((4, 4), float32)
    t, across = uint32(cuda.threadIdx.x), c.shape[1] // 64
    tile = cuda.blockIdx.x
    while tile < c.shape[0] // 64 * across:
        down, right = tile // across, tile % across
        if down % 2: right = across - 1 - right
        one_tile(a, b, sa, sb, down * 64, right * 64, 0, a.shape[1], t, acc)
        for i in range(4):
            at = down * 64 + t // 16 * 4 + i, right * 64 + t % 16 * 4
            store4(c, at, acc[i, 0], acc[i, 1], acc[i, 2], acc[i, 3])
        tile += cuda.gridDim.x

@launched(64, 64, 256, least=16, grid=lambda m, n: (m // 64) * (n // 64))
@cuda.jit
def groups_of_8_and_c_through_shared(a, b, c):
    # 16 lanes would write 64 numbers of a row each in four parts: rows of C are put together first
    sa = cuda.shared.array((16, 68), float32, alignment=16)
    sb = cuda.shared.array((16, 64), float32, alignment=16)
    results, acc = cuda.shared.array((64, 65), float32), cuda.local.array((4, 4), float32)
    t, down, across = uint32(cuda.threadIdx.x), c.shape[0] // 64, c.shape[1] // 64
    first, inside = cuda.blockIdx.x // (8 * across) * 8, cuda.blockIdx.x % (8 * across)
    height = min(8, down - first)
    row0, col0 = (first + inside % height) * 64, inside // height * 64
    one_tile(a, b, sa, sb, row0, col0, 0, a.shape[1], t, acc)
    for i in range(4):
        for j in range(4): results[t // 16 * 4 + i, t % 16 * 4 + j] = acc[i, j]
    cuda.syncthreads()
    for r in range(t // 64, 64, 4): c[row0 + r, col0 + t % 64] = results[r, t % 64]

@launched(64, 64, 256, least=16)
@cuda.jit
def next_fours_early_two_buffers(a, b, c):
    sa = cuda.shared.array((2, 16, 68), float32, alignment=16)
    sb = cuda.shared.array((2, 16, 64), float32, alignment=16)
    acc = cuda.local.array((4, 4), float32)
    t, now, length = uint32(cuda.threadIdx.x), 0, a.shape[1]
    row0, col0 = cuda.blockIdx.y * 64, cuda.blockIdx.x * 64
    for i in range(4):
        for j in range(4): acc[i, j] = float32(0)
    p, q = load4(a, (row0 + t // 4, t % 4 * 4)), load4(b, (t // 16, col0 + t % 16 * 4))
    for k0 in range(16, length + 16, 16):
        for i in range(4): sa[now, t % 4 * 4 + i, t // 4] = p[i]
        store4(sb, (now, t // 16, t % 16 * 4), *q)
        cuda.syncthreads()
        if k0 < length:
            p, q = load4(a, (row0 + t // 4, k0 + t % 4 * 4)), load4(b, (k0 + t // 16, col0 + t % 16 * 4))
        add_products(sa[now], sb[now], t, acc)
        now ^= 1
    for i in range(4):
        store4(c, (row0 + t // 16 * 4 + i, col0 + t % 16 * 4), acc[i, 0], acc[i, 1], acc[i, 2], acc[i, 3])


# Warps with tiles of their own

def warptile(bm, bn, bk, wm, wn, tm, tn, name):
    "Rows of a thread are neighbors; its columns come in fours, as many of them apart as a row has lanes."
    threads, warps, lanes, k_fours, n_fours = 32 * bm * bn // (wm * wn), bn // wn, wn // tn, bk // 4, bn // 4
    step, row_of_a = 4 * lanes, bm + 4

    @cuda.jit
    def kernel(a, b, c):
        sa = cuda.shared.array((bk, row_of_a), float32, alignment=16)
        sb = cuda.shared.array((bk, bn), float32, alignment=16)
        acc = cuda.local.array((tm, tn), float32)
        u, v = cuda.local.array(tm, float32), cuda.local.array(tn, float32)
        t = uint32(cuda.threadIdx.x)
        warp, lane = t // 32, t % 32
        row, col = warp // warps * wm + lane // lanes * tm, warp % warps * wn + lane % lanes * 4
        row0, col0 = cuda.blockIdx.y * bm, cuda.blockIdx.x * bn
        for i in range(tm):
            for j in range(tn): acc[i, j] = float32(0)
        k0 = 0
        while k0 < a.shape[1]:
            for at in range(t, bm * k_fours, threads):
                four = load4(a, (row0 + at // k_fours, k0 + at % k_fours * 4))
                for q in range(4): sa[at % k_fours * 4 + q, at // k_fours] = four[q]
            for at in range(t, bk * n_fours, threads):
                store4(sb, (at // n_fours, at % n_fours * 4),
                       *load4(b, (k0 + at // n_fours, col0 + at % n_fours * 4)))
            cuda.syncthreads()
            k = 0
            while k < bk:
                for i in range(tm): u[i] = sa[k, row + i]
                for j in range(tn): v[j] = sb[k, col + j // 4 * step + j % 4]
                for i in range(tm):
                    for j in range(tn): acc[i, j] += u[i] * v[j]
                k += 1
            cuda.syncthreads()
            k0 += bk
        for i in range(tm):
            for j in range(0, tn, 4):
                store4(c, (row0 + row + i, col0 + col + j // 4 * step),
                       acc[i, j], acc[i, j + 1], acc[i, j + 2], acc[i, j + 3])
    launched(bm, bn, threads, name=name, least=bk)(kernel)

warptile(64, 64, 16, 32, 32, 4, 8, "warptile_32x32_of_4x8")
warptile(128, 128, 8, 64, 32, 8, 8, "warptile_64x32_of_8x8")
warptile(128, 64, 32, 32, 16, 4, 4, "warptile_32x16_of_4x4")
warptile(128, 128, 16, 64, 64, 16, 8, "warptile_64x64_of_16x8")


# Asynchronous copies

@launched(32, 32, (32, 32))
@cuda.jit
def square_32_copied_asynchronously(A, B, C):
    sa, sb = cuda.shared.array((2, 32, 32), float32), cuda.shared.array((2, 32, 32), float32)
    x, y, now, s = cuda.threadIdx.x, cuda.threadIdx.y, 0, float32(0)
    j, i = cuda.grid(2)
    cp_async(sa, (0, y, x), A, (i, x), 1, 1)
    cp_async(sb, (0, y, x), B, (y, j), 1, 1)
    cp_async_commit_group()
    for k0 in range(32, A.shape[1] + 32, 32):
        cp_async_wait_group(0)
        cuda.syncthreads()
        if k0 < A.shape[1]:
            cp_async(sa, (1 - now, y, x), A, (i, k0 + x), 1, 1)
            cp_async(sb, (1 - now, y, x), B, (k0 + y, j), 1, 1)
        cp_async_commit_group()
        for k in range(32): s += sa[now, y, k] * sb[now, k, x]
        now = 1 - now
    C[i, j] = s


def ring(stages, bm, bn, bk, tm, tn, name):
    "A ring of tiles as they are in memory, copied in fours; A's rows are 4 longer."
    threads, across, k_fours, n_fours, row_of_a = bm * bn // (tm * tn), bn // tn, bk // 4, bn // 4, bk + 4
    pending = stages - 2

    @cuda.jit(device=True)
    def start(sa, sb, stage, a, b, row0, col0, k0, t):
        for at in range(t, bm * k_fours, threads):
            r, q = at // k_fours, at % k_fours * 4
            cp_async(sa, (stage, r, q), a, (row0 + r, k0 + q), 4, 4)
        for at in range(t, bk * n_fours, threads):
            r, q = at // n_fours, at % n_fours * 4
            cp_async(sb, (stage, r, q), b, (k0 + r, col0 + q), 4, 4)

    @cuda.jit
    def kernel(a, b, c):
        sa = cuda.shared.array((stages, bm, row_of_a), float32, alignment=16)
        sb = cuda.shared.array((stages, bk, bn), float32, alignment=16)
        acc = cuda.local.array((tm, tn), float32)
        t, length = uint32(cuda.threadIdx.x), a.shape[1]
        row0, col0, row, col = cuda.blockIdx.y * bm, cuda.blockIdx.x * bn, t // across, t % across * 4
        for i in range(tm):
            for j in range(tn): acc[i, j] = float32(0)
        for stage in range(stages - 1):
            if stage * bk < length: start(sa, sb, stage, a, b, row0, col0, stage * bk, t)
            cp_async_commit_group()
        for tile in range(length // bk):
            cp_async_wait_group(pending)
            cuda.syncthreads()
            ahead, now = tile + stages - 1, tile % stages
            if ahead * bk < length: start(sa, sb, ahead % stages, a, b, row0, col0, ahead * bk, t)
            cp_async_commit_group()
            for k in range(bk):
                for j in range(tn):
                    v = sb[now, k, col + j // 4 * (4 * across) + j % 4]
                    for i in range(tm): acc[i, j] += sa[now, row + i * (bm // tm), k] * v
        for i in range(tm):
            r = row0 + row + i * (bm // tm)
            for j in range(tn): c[r, col0 + col + j // 4 * (4 * across) + j % 4] = acc[i, j]
    launched(bm, bn, threads, name=name, least=bk)(kernel)

ring(2, 64, 64, 32, 4, 4, "ring_of_2_32_deep")
ring(3, 128, 64, 16, 8, 4, "ring_of_3_128x64")
ring(5, 64, 128, 8, 8, 8, "ring_of_5")


KERNELS = {name: one.at(4096, 4096) for name, one in WRITTEN.items()}
