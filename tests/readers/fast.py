"""More kernels as readers of lessons 4 to 12 might write them: the second round, see simple.py."""
import numba_matmul  # noqa: F401  first: this chooses between the GPU and the simulator
import numpy as np
from numba import cuda, float32, int32, int64, uint32, uint64

from numba_matmul.ptx.ampere import cp_async, cp_async_commit_group, cp_async_wait_group
from numba_matmul.ptx.core import add_outer, load2, load4, store4, to_array
from numba_matmul.static import static, unrolled

from .written import collection

WRITTEN, launched = collection()


# Columns and rows of results

@launched(64, 32, (32, 32))
@cuda.jit
def two_scalars_in_a_column(a, b, c):
    sa = cuda.shared.array((64, 32), float32)
    sb = cuda.shared.array((32, 32), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 64 + y, cuda.blockIdx.x * 32 + x
    top, bottom = float32(0), float32(0)
    for k0 in range(0, a.shape[1], 32):
        sa[y, x] = a[row, k0 + x]
        sa[y + 32, x] = a[row + 32, k0 + x]
        sb[y, x] = b[k0 + y, col]
        cuda.syncthreads()
        for k in range(32):
            value = sb[k, x]
            top += sa[y, k] * value
            bottom += sa[y + 32, k] * value
        cuda.syncthreads()
    c[row, col] = top
    c[row + 32, col] = bottom

@launched(32, 64, (16, 16))
@cuda.jit
def two_by_four_scalars(a, b, c):
    sa = cuda.shared.array((32, 16), float32)
    sb = cuda.shared.array((16, 64), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 32, cuda.blockIdx.x * 64
    s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = float32(0)
    for k0 in range(0, a.shape[1], 16):
        sa[y, x] = a[row + y, k0 + x]
        sa[y + 16, x] = a[row + y + 16, k0 + x]
        for q in range(4): sb[y, x + 16 * q] = b[k0 + y, col + x + 16 * q]
        cuda.syncthreads()
        for k in range(16):
            u, v = sa[y, k], sa[y + 16, k]
            p, q, r, t = sb[k, x], sb[k, x + 16], sb[k, x + 32], sb[k, x + 48]
            s00 += u * p
            s01 += u * q
            s02 += u * r
            s03 += u * t
            s10 += v * p
            s11 += v * q
            s12 += v * r
            s13 += v * t
        cuda.syncthreads()
    c[row + y, col + x], c[row + y, col + x + 16] = s00, s01
    c[row + y, col + x + 32], c[row + y, col + x + 48] = s02, s03
    c[row + y + 16, col + x], c[row + y + 16, col + x + 16] = s10, s11
    c[row + y + 16, col + x + 32], c[row + y + 16, col + x + 48] = s12, s13

@launched(48, 64, (64, 8))
@cuda.jit
def column_of_6_guarded(a, b, c):
    sa = cuda.shared.array((48, 8), float32)
    sb = cuda.shared.array((8, 64), float32)
    sums = cuda.local.array(6, float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    t = y * 64 + x
    row0, col0 = cuda.blockIdx.y * 48, cuda.blockIdx.x * 64
    for i in range(6): sums[i] = float32(0)
    for k0 in range(0, a.shape[1], 8):
        if t < 384:
            if row0 + t // 8 < a.shape[0]: sa[t // 8, t % 8] = a[row0 + t // 8, k0 + t % 8]
            else: sa[t // 8, t % 8] = 0
        sb[y, x] = b[k0 + y, col0 + x]
        cuda.syncthreads()
        for k in range(8):
            value = sb[k, x]
            for i in range(6): sums[i] += sa[y * 6 + i, k] * value
        cuda.syncthreads()
    for i in range(6):
        if row0 + y * 6 + i < c.shape[0]: c[row0 + y * 6 + i, col0 + x] = sums[i]

@launched(64, 64, (64, 2))
@cuda.jit
def column_of_32(a, b, c):
    sa = cuda.shared.array((64, 8), float32)
    sb = cuda.shared.array((8, 64), float32)
    sums = cuda.local.array(32, float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row0, col0 = cuda.blockIdx.y * 64, cuda.blockIdx.x * 64
    for i in range(32): sums[i] = 0
    for k0 in range(0, a.shape[1], 8):
        for r in range(4):
            t = y * 64 + x + r * 128
            sa[t // 8, t % 8] = a[row0 + t // 8, k0 + t % 8]
            sb[y + 2 * r, x] = b[k0 + y + 2 * r, col0 + x]
        cuda.syncthreads()
        for k in range(8):
            value = sb[k, x]
            for i in range(32): sums[i] += sa[y * 32 + i, k] * value
        cuda.syncthreads()
    for i in range(32): c[row0 + y * 32 + i, col0 + x] = sums[i]

@launched(32, 128, (32, 8))
@cuda.jit
def row_of_4_and_column_of_4(a, b, c):
    sa = cuda.shared.array((32, 33), float32)
    sb = cuda.shared.array((32, 128), float32)
    sums = cuda.local.array((4, 4), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row0, col0 = cuda.blockIdx.y * 32, cuda.blockIdx.x * 128
    for i in range(4):
        for j in range(4): sums[i, j] = 0
    for k0 in range(0, a.shape[1], 32):
        for i in range(4):
            sa[y + 8 * i, x] = a[row0 + y + 8 * i, k0 + x]
            for j in range(4): sb[y + 8 * i, x + 32 * j] = b[k0 + y + 8 * i, col0 + x + 32 * j]
        cuda.syncthreads()
        for k in range(32):
            for j in range(4):
                value = sb[k, x + 32 * j]
                for i in range(4): sums[i, j] += sa[y + 8 * i, k] * value
        cuda.syncthreads()
    for i in range(4):
        for j in range(4): c[row0 + y + 8 * i, col0 + x + 32 * j] = sums[i, j]


# Rectangles, copied number by number

def guarded(tm, tn, bk, name):
    "tm × tn results apart, 16 × 16 threads, any size of matrix: zeros past the edge."
    bm, bn = 16 * tm, 16 * tn

    @launched(bm, bn, (16, 16), name=name)
    @cuda.jit
    def kernel(a, b, c):
        m, n, depth = c.shape[0], c.shape[1], a.shape[1]
        sa = cuda.shared.array((bm, bk), float32)
        sb = cuda.shared.array((bk, bn), float32)
        sums = cuda.local.array((tm, tn), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        t = 16 * y + x
        row0, col0 = cuda.blockIdx.y * bm, cuda.blockIdx.x * bn
        for i in range(tm):
            for j in range(tn): sums[i, j] = float32(0)
        for k0 in range(0, depth, bk):
            for at in range(t, bm * bk, 256):
                i, k = at // bk, at % bk
                sa[i, k] = a[row0 + i, k0 + k] if row0 + i < m and k0 + k < depth else float32(0)
            for at in range(t, bk * bn, 256):
                k, j = at // bn, at % bn
                sb[k, j] = b[k0 + k, col0 + j] if k0 + k < depth and col0 + j < n else float32(0)
            cuda.syncthreads()
            for k in range(bk):
                for i in range(tm):
                    for j in range(tn): sums[i, j] += sa[y + 16 * i, k] * sb[k, x + 16 * j]
            cuda.syncthreads()
        for i in range(tm):
            for j in range(tn):
                if row0 + y + 16 * i < m and col0 + x + 16 * j < n:
                    c[row0 + y + 16 * i, col0 + x + 16 * j] = sums[i, j]

guarded(3, 3, 16, "guarded_3x3")
guarded(5, 3, 16, "guarded_5x3")
guarded(6, 6, 8, "guarded_6x6")
guarded(2, 8, 16, "guarded_2x8")

def by_columns(tm, tn, name):
    "Columns first, A's tile transposed and padded by one, steps of the sum in a while loop."
    bm, bn, bk = 8 * tm, 16 * tn, 16
    wide = bm + 1

    @launched(bm, bn, 128, name=name)
    @cuda.jit
    def kernel(a, b, c):
        sa = cuda.shared.array((bk, wide), float32)
        sb = cuda.shared.array((bk, bn), float32)
        acc = cuda.local.array((tn, tm), float32)
        t = uint32(cuda.threadIdx.x)
        ty, tx = uint32(t // 16), uint32(t % 16)
        row0, col0 = cuda.blockIdx.y * bm, cuda.blockIdx.x * bn
        for j in range(tn):
            for i in range(tm): acc[j, i] = float32(0)
        k0 = int64(0)
        while k0 < a.shape[1]:
            for r in range(0, bm, 8): sa[tx, r + ty] = a[row0 + r + ty, k0 + tx]
            for r in range(0, bk * bn, 128):
                sb[(r + t) // bn, (r + t) % bn] = b[k0 + (r + t) // bn, col0 + (r + t) % bn]
            cuda.syncthreads()
            k = uint32(0)
            while k < uint32(bk):
                for j in range(tn):
                    value = sb[k, tx * tn + j]
                    for i in range(tm): acc[j, i] += sa[k, ty * tm + i] * value
                k = uint32(k + 1)
            cuda.syncthreads()
            k0 += bk
        for j in range(tn):
            for i in range(tm): c[row0 + ty * tm + i, col0 + tx * tn + j] = acc[j, i]

by_columns(8, 4, "by_columns_8x4")
by_columns(4, 8, "by_columns_4x8")
by_columns(16, 4, "by_columns_16x4")


# Fours

@launched(64, 64, (16, 16))
@cuda.jit
def fours_as_they_are(a, b, c):
    # neither tile is transposed: A's numbers come as a column of single loads
    sa = cuda.shared.array((64, 16), float32, alignment=16)
    sb = cuda.shared.array((16, 64), float32, alignment=16)
    acc = cuda.local.array((4, 4), float32)
    x, y = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    t = uint32(y * 16 + x)
    row0, col0 = cuda.blockIdx.y * 64, cuda.blockIdx.x * 64
    for i in range(4):
        for j in range(4): acc[i, j] = float32(0)
    for k0 in range(0, a.shape[1], 16):
        p, q, r, s = load4(a, (row0 + t // 4, k0 + t % 4 * 4))
        store4(sa, (t // 4, t % 4 * 4), p, q, r, s)
        p, q, r, s = load4(b, (k0 + y, col0 + x * 4))
        store4(sb, (y, x * 4), p, q, r, s)
        cuda.syncthreads()
        for k in range(16):
            u = load4(sb, (k, x * 4))
            for i in range(4):
                v = sa[y * 4 + i, k]
                for j in range(4): acc[i, j] += v * u[j]
        cuda.syncthreads()
    for i in range(4):
        store4(c, (row0 + y * 4 + i, col0 + x * 4), acc[i, 0], acc[i, 1], acc[i, 2], acc[i, 3])

@launched(64, 64, (16, 16))
@cuda.jit
def fours_along_k(a, b, c):
    # four steps of the sum per load of A
    sa = cuda.shared.array((64, 20), float32, alignment=16)
    sb = cuda.shared.array((16, 64), float32, alignment=16)
    acc = cuda.local.array((4, 4), float32)
    x, y = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    t = uint32(y * 16 + x)
    row0, col0 = cuda.blockIdx.y * 64, cuda.blockIdx.x * 64
    for i in range(4):
        for j in range(4): acc[i, j] = float32(0)
    for k0 in range(0, a.shape[1], 16):
        p, q, r, s = load4(a, (row0 + t // 4, k0 + t % 4 * 4))
        store4(sa, (t // 4, t % 4 * 4), p, q, r, s)
        p, q, r, s = load4(b, (k0 + y, col0 + x * 4))
        store4(sb, (y, x * 4), p, q, r, s)
        cuda.syncthreads()
        for k in range(0, 16, 4):
            u0, u1 = load4(sb, (k, x * 4)), load4(sb, (k + 1, x * 4))
            u2, u3 = load4(sb, (k + 2, x * 4)), load4(sb, (k + 3, x * 4))
            for i in range(4):
                v = load4(sa, (y + 16 * i, k))
                for j in range(4): acc[i, j] += v[0] * u0[j] + v[1] * u1[j] + v[2] * u2[j] + v[3] * u3[j]
        cuda.syncthreads()
    for i in range(4):
        store4(c, (row0 + y + 16 * i, col0 + x * 4), acc[i, 0], acc[i, 1], acc[i, 2], acc[i, 3])

@launched(64, 64, (32, 8))
@cuda.jit
def twos(a, b, c):
    sa = cuda.shared.array((16, 66), float32, alignment=16)
    sb = cuda.shared.array((16, 64), float32, alignment=16)
    acc = cuda.local.array((8, 2), float32)
    x, y = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    t = uint32(y * 32 + x)
    row0, col0 = cuda.blockIdx.y * 64, cuda.blockIdx.x * 64
    for i in range(8):
        for j in range(2): acc[i, j] = float32(0)
    for k0 in range(0, a.shape[1], 16):
        for h in range(2):
            p, q = load2(a, (row0 + 32 * h + t // 8, k0 + t % 8 * 2))
            sa[t % 8 * 2, 32 * h + t // 8] = p
            sa[t % 8 * 2 + 1, 32 * h + t // 8] = q
            sb[y + 8 * h, x] = b[k0 + y + 8 * h, col0 + x]
            sb[y + 8 * h, x + 32] = b[k0 + y + 8 * h, col0 + x + 32]
        cuda.syncthreads()
        for k in range(16):
            u, v = load2(sb, (k, x * 2))
            for i in range(8):
                f = sa[k, y * 8 + i]
                acc[i, 0] += f * u
                acc[i, 1] += f * v
        cuda.syncthreads()
    for i in range(8):
        c[row0 + y * 8 + i, col0 + x * 2] = acc[i, 0]
        c[row0 + y * 8 + i, col0 + x * 2 + 1] = acc[i, 1]


# Warp tiles

def warps(bm, bn, bk, wm, wn, name, apart=False, turns=False, raster=0):
    """Each warp has wm × wn results, 8 × 4 lanes. `apart`: a thread's columns lie apart; `turns`: k tiles
    alternate between two pairs of tiles by if and else; `raster`: rows of blocks that are taken together."""
    across = bn // wn
    threads = 32 * (bm // wm) * across
    tm, tn = wm // 8, wn // 4
    step = 4 if not apart else 16
    row_of_a = bm + 4
    passes_a, passes_b = bm * bk // 4 // threads, bk * bn // 4 // threads

    @cuda.jit(device=True)
    def copy(a, b, sa, sb, row0, col0, k0, t):
        for s in range(passes_a):
            at = t + s * threads
            p = load4(a, (row0 + at // (bk // 4), k0 + at % (bk // 4) * 4))
            for q in range(4): sa[at % (bk // 4) * 4 + q, at // (bk // 4)] = p[q]
        for s in range(passes_b):
            at = t + s * threads
            p = load4(b, (k0 + at // (bn // 4), col0 + at % (bn // 4) * 4))
            store4(sb, (at // (bn // 4), at % (bn // 4) * 4), p[0], p[1], p[2], p[3])

    @cuda.jit(device=True)
    def multiply(sa, sb, row, col, left, right, acc):
        k = uint32(0)
        while k < uint32(bk):
            for i in range(tm): left[i] = sa[k, row + i]
            for j in range(tn): right[j] = sb[k, col + j // 4 * step + j % 4]
            for i in range(tm):
                for j in range(tn): acc[i, j] += left[i] * right[j]
            k = uint32(k + 1)

    @cuda.jit
    def kernel(a, b, c):
        sa = cuda.shared.array((bk, row_of_a), float32, alignment=16)
        sb = cuda.shared.array((bk, bn), float32, alignment=16)
        acc = cuda.local.array((tm, tn), float32)
        left, right = cuda.local.array(tm, float32), cuda.local.array(tn, float32)
        t = uint32(cuda.threadIdx.x)
        warp, lane = uint32(t // 32), uint32(t % 32)
        y, x = cuda.blockIdx.y, cuda.blockIdx.x
        if raster:
            number = y * cuda.gridDim.x + x
            group = number // (raster * cuda.gridDim.x)
            inside = number % (raster * cuda.gridDim.x)
            y, x = group * raster + inside % raster, inside // raster
        row0, col0 = int64(y * bm), int64(x * bn)
        row = uint32(warp // across * wm + lane // 4 * tm)
        col = uint32(warp % across * wn + lane % 4 * (4 if apart else tn))
        for i in range(tm):
            for j in range(tn): acc[i, j] = float32(0)
        k0 = int64(0)
        if turns:
            ta = cuda.shared.array((bk, row_of_a), float32, alignment=16)
            tb = cuda.shared.array((bk, bn), float32, alignment=16)
            copy(a, b, sa, sb, row0, col0, k0, t)
            cuda.syncthreads()
            odd = int32(0)
            while k0 < a.shape[1]:
                if odd == 0:
                    if k0 + bk < a.shape[1]: copy(a, b, ta, tb, row0, col0, k0 + bk, t)
                    multiply(sa, sb, row, col, left, right, acc)
                else:
                    if k0 + bk < a.shape[1]: copy(a, b, sa, sb, row0, col0, k0 + bk, t)
                    multiply(ta, tb, row, col, left, right, acc)
                cuda.syncthreads()
                odd = 1 - odd
                k0 += bk
        else:
            while k0 < a.shape[1]:
                copy(a, b, sa, sb, row0, col0, k0, t)
                cuda.syncthreads()
                multiply(sa, sb, row, col, left, right, acc)
                cuda.syncthreads()
                k0 += bk
        for i in range(tm):
            for j in range(0, tn, 4):
                store4(c, (row0 + row + i, col0 + col + j // 4 * step),
                       acc[i, j], acc[i, j + 1], acc[i, j + 2], acc[i, j + 3])
    launched(bm * max(1, raster), bn, threads, name=name, grid=lambda m, n: (n // bn, m // bm))(kernel)

warps(64, 64, 16, 32, 32, "warps_64")
warps(128, 128, 8, 64, 32, "warps_128")
warps(128, 64, 16, 64, 32, "warps_128_by_64_apart", apart=True)
warps(64, 128, 16, 32, 32, "warps_64_by_128_turns", turns=True)
warps(128, 128, 16, 64, 32, "warps_128_apart_raster", apart=True, raster=4)


# Rings of asynchronous copies

def ring(bm, bn, bk, tm, tn, stages, name, transposed=True):
    "A ring of tiles; A comes number by number, transposed, or in fours as it lies."
    threads = bm * bn // (tm * tn)
    shape_a = (stages, bk, bm + 4) if transposed else (stages, bm, bk + 4)
    waiting, per_row = stages - 2, bn // tn

    @cuda.jit(device=True)
    def start(ring_a, ring_b, stage, a, b, row0, col0, k0, t):
        if transposed:
            for s in range(0, bm, threads // bk):
                row, col = s + t // bk, t % bk
                cp_async(ring_a, (stage, col, row), a, (row0 + row, k0 + col), 1, 1)
        else:
            for at in range(t, bm * bk // 4, threads):
                row, col = at // (bk // 4), at % (bk // 4) * 4
                cp_async(ring_a, (stage, row, col), a, (row0 + row, k0 + col), 4, 4)
        for at in range(t, bk * bn // 4, threads):
            row, col = at // (bn // 4), at % (bn // 4) * 4
            cp_async(ring_b, (stage, row, col), b, (k0 + row, col0 + col), 4, 4)

    @launched(bm, bn, threads, name=name)
    @cuda.jit
    def kernel(a, b, c):
        ring_a = cuda.shared.array(shape_a, float32, alignment=16)
        ring_b = cuda.shared.array((stages, bk, bn), float32, alignment=16)
        acc = cuda.local.array((tm, tn), float32)
        left, right = cuda.local.array(tm, float32), cuda.local.array(tn, float32)
        t = uint32(cuda.threadIdx.x)
        row0, col0 = cuda.blockIdx.y * bm, cuda.blockIdx.x * bn
        row, col = t // per_row * tm, t % per_row * tn
        for i in range(tm):
            for j in range(tn): acc[i, j] = float32(0)
        for stage in range(stages - 1):
            if stage * bk < a.shape[1]: start(ring_a, ring_b, stage, a, b, row0, col0, stage * bk, t)
            cp_async_commit_group()
        now, k0 = 0, 0
        while k0 < a.shape[1]:
            cp_async_wait_group(waiting)
            cuda.syncthreads()
            ahead = k0 + (stages - 1) * bk
            if ahead < a.shape[1]:
                start(ring_a, ring_b, (now + stages - 1) % stages, a, b, row0, col0, ahead, t)
            cp_async_commit_group()
            for k in range(bk):
                for i in range(tm):
                    left[i] = ring_a[now, k, row + i] if transposed else ring_a[now, row + i, k]
                for j in range(tn): right[j] = ring_b[now, k, col + j]
                for i in range(tm):
                    for j in range(tn): acc[i, j] += left[i] * right[j]
            now = (now + 1) % stages
            k0 += bk
        for i in range(tm):
            for j in range(0, tn, 4):
                store4(c, (row0 + row + i, col0 + col + j),
                       acc[i, j], acc[i, j + 1], acc[i, j + 2], acc[i, j + 3])

ring(64, 64, 16, 4, 4, 3, "ring_of_3")
ring(128, 64, 8, 8, 4, 4, "ring_of_4_128_by_64")
ring(128, 128, 8, 8, 8, 3, "ring_of_3_128")
ring(64, 64, 16, 4, 4, 3, "ring_a_as_it_lies", transposed=False)

@launched(128, 128, 256)
@cuda.jit
def ring_of_2_all_at_once(a, b, c):
    # waits for everything: two tiles, one of them on its way while the other is multiplied
    ra = cuda.shared.array((2, 8, 132), float32, alignment=16)
    rb = cuda.shared.array((2, 8, 128), float32, alignment=16)
    acc = cuda.local.array((8, 8), float32)
    t = uint32(cuda.threadIdx.x)
    row0, col0 = cuda.blockIdx.y * 128, cuda.blockIdx.x * 128
    row, col = t // 16 * 8, t % 16 * 8
    for i in range(8):
        for j in range(8): acc[i, j] = float32(0)
    for r in range(4): cp_async(ra, (0, t % 8, t // 8 + 32 * r), a, (row0 + t // 8 + 32 * r, t % 8), 1, 1)
    cp_async(rb, (0, t // 32, t % 32 * 4), b, (t // 32, col0 + t % 32 * 4), 4, 4)
    cp_async_commit_group()
    now = 0
    for k0 in range(0, a.shape[1], 8):
        cp_async_wait_group(0)
        cuda.syncthreads()
        if k0 + 8 < a.shape[1]:
            for r in range(4):
                down = t // 8 + 32 * r
                cp_async(ra, (1 - now, t % 8, down), a, (row0 + down, k0 + 8 + t % 8), 1, 1)
            cp_async(rb, (1 - now, t // 32, t % 32 * 4), b, (k0 + 8 + t // 32, col0 + t % 32 * 4), 4, 4)
            cp_async_commit_group()
        for k in range(8):
            x0, x1 = load4(ra, (now, k, row)), load4(ra, (now, k, row + 4))
            y0, y1 = load4(rb, (now, k, col)), load4(rb, (now, k, col + 4))
            for i in range(4):
                for j in range(4):
                    acc[i, j] += x0[i] * y0[j]
                    acc[i, j + 4] += x0[i] * y1[j]
                    acc[i + 4, j] += x1[i] * y0[j]
                    acc[i + 4, j + 4] += x1[i] * y1[j]
        now = 1 - now
    for i in range(8):
        for j in range(0, 8, 4):
            store4(c, (row0 + row + i, col0 + col + j),
                   acc[i, j], acc[i, j + 1], acc[i, j + 2], acc[i, j + 3])


# Experts

def tuples(bm, bn, tm, tn, name):
    "Accumulators in a tuple; the next tile in registers; the next step's factors are loaded early."
    bk, threads = 8, bm * bn // (tm * tn)
    per_a, per_b = bm * bk // 4 // threads, bk * bn // 4 // threads
    down, across = bm // tm, bn // tn
    row_of_a = bm + 4
    zeros = (np.float32(0),) * (tm * tn)

    @launched(bm, bn, threads, name=name)
    @cuda.jit
    @unrolled
    def kernel(a, b, c):
        sa = cuda.shared.array((2, bk, row_of_a), float32, alignment=16)
        sb = cuda.shared.array((2, bk, bn), float32, alignment=16)
        next_a = cuda.local.array((per_a, 4), float32)
        next_b = cuda.local.array((per_b, 4), float32)
        out = cuda.local.array((tm, tn), float32)
        t = uint32(cuda.threadIdx.x)
        row0, col0 = int64(cuda.blockIdx.y * bm), int64(cuda.blockIdx.x * bn)
        row, col = uint64(t // across * 4), uint64(t % across * 4)
        acc = zeros
        k0, now = int64(0), uint64(0)
        while k0 <= a.shape[1]:
            if k0 < a.shape[1]:
                for s in static(per_a):
                    at = t + s * threads
                    x = load4(a, (row0 + at // 2, k0 + at % 2 * 4))
                    for q in static(4): next_a[s, q] = x[q]
                for s in static(per_b):
                    at = t + s * threads
                    x = load4(b, (k0 + at // (bn // 4), col0 + at % (bn // 4) * 4))
                    for q in static(4): next_b[s, q] = x[q]
            if k0 > 0:
                for k in static(bk):
                    x, y = (), ()
                    for i in static(0, tm, 4):
                        x = x + load4(sa, (1 - now, uint64(k), row + uint64(i * down)))
                    for j in static(0, tn, 4):
                        y = y + load4(sb, (1 - now, uint64(k), col + uint64(j * across)))
                    acc = add_outer(acc, x, y)
            if k0 < a.shape[1]:
                for s in static(per_a):
                    at = t + s * threads
                    for q in static(4): sa[now, at % 2 * 4 + q, at // 2] = next_a[s, q]
                for s in static(per_b):
                    at = t + s * threads
                    store4(sb, (now, uint64(at // (bn // 4)), uint64(at % (bn // 4) * 4)),
                           next_b[s, 0], next_b[s, 1], next_b[s, 2], next_b[s, 3])
            cuda.syncthreads()
            now = uint64(1 - now)
            k0 += bk
        to_array(acc, out, tn)
        for i in static(tm):
            for j in static(0, tn, 4):
                store4(c, (row0 + int64(row) + i // 4 * 4 * down + i % 4, col0 + int64(col) + j * across),
                       out[i, j], out[i, j + 1], out[i, j + 2], out[i, j + 3])

tuples(128, 128, 8, 8, "tuples_128")
tuples(128, 256, 16, 8, "tuples_16x8")
tuples(64, 64, 8, 8, "tuples_64_of_64_threads")

@launched(64, 64, 256, grid=lambda m, n: 264)
@cuda.jit
def blocks_that_stay(a, b, c):
    # two blocks per multiprocessor take tile after tile
    sa = cuda.shared.array((16, 68), float32, alignment=16)
    sb = cuda.shared.array((16, 64), float32, alignment=16)
    acc = cuda.local.array((4, 4), float32)
    t = uint32(cuda.threadIdx.x)
    row, col = t // 16 * 4, t % 16 * 4
    tiles_across = c.shape[1] // 64
    for tile in range(cuda.blockIdx.x, c.shape[0] // 64 * tiles_across, cuda.gridDim.x):
        row0, col0 = tile // tiles_across * 64, tile % tiles_across * 64
        for i in range(4):
            for j in range(4): acc[i, j] = float32(0)
        for k0 in range(0, a.shape[1], 16):
            p = load4(a, (row0 + t // 4, k0 + t % 4 * 4))
            for q in range(4): sa[t % 4 * 4 + q, t // 4] = p[q]
            p = load4(b, (k0 + t // 16, col0 + col))
            store4(sb, (t // 16, col), p[0], p[1], p[2], p[3])
            cuda.syncthreads()
            for k in range(16):
                x, y = load4(sa, (k, row)), load4(sb, (k, col))
                for i in range(4):
                    for j in range(4): acc[i, j] += x[i] * y[j]
            cuda.syncthreads()
        for i in range(4):
            store4(c, (row0 + row + i, col0 + col), acc[i, 0], acc[i, 1], acc[i, 2], acc[i, 3])

@launched(64, 64, (16, 16, 2))
@cuda.jit
def halves_of_k_in_a_block(a, b, c):
    # threads with z = 1 take the second half of k; at the end they store what they have
    sa = cuda.shared.array((2, 8, 64), float32)
    sb = cuda.shared.array((2, 8, 64), float32)
    parts = cuda.shared.array((64, 64), float32)
    acc = cuda.local.array((4, 4), float32)
    x, y, z = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    t = y * 16 + x
    row0, col0 = cuda.blockIdx.y * 64, cuda.blockIdx.x * 64
    half = a.shape[1] // 2
    for i in range(4):
        for j in range(4): acc[i, j] = float32(0)
    for k0 in range(0, half, 8):
        at = z * half + k0
        for h in range(2):
            sa[z, t % 8, 32 * h + t // 8] = a[row0 + 32 * h + t // 8, at + t % 8]
            sb[z, 4 * h + t // 64, t % 64] = b[at + 4 * h + t // 64, col0 + t % 64]
        cuda.syncthreads()
        for k in range(8):
            for i in range(4):
                for j in range(4): acc[i, j] += sa[z, k, 4 * y + i] * sb[z, k, 4 * x + j]
        cuda.syncthreads()
    if z == 1:
        for i in range(4):
            for j in range(4): parts[4 * y + i, 4 * x + j] = acc[i, j]
    cuda.syncthreads()
    if z == 0:
        for i in range(4):
            for j in range(4): c[row0 + 4 * y + i, col0 + 4 * x + j] = acc[i, j] + parts[4 * y + i, 4 * x + j]


KERNELS = {name: one.at(4096, 4096) for name, one in WRITTEN.items()}
