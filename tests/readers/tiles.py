"Kernels as readers of lessons 5 to 12 might write them, each with its launch for m = n = 4096; see loops.py."
import numba_matmul  # noqa: F401  first: this chooses between the GPU and the simulator
from numba import cuda, float32, int64, uint32

from numba_matmul.ptx.core import load4, store4
from numba_matmul.static import static, unrolled

KERNELS = {}  # name → kernel with its launch configuration


def plain(bm, bn, bk, tm, tn, name):
    "Rectangles of results, copied one number after the other."
    threads = bm * bn // (tm * tn)

    @cuda.jit
    def kernel(a, b, c):
        a_tile = cuda.shared.array((bm, bk), float32)
        b_tile = cuda.shared.array((bk, bn), float32)
        sums = cuda.local.array((tm, tn), float32)
        t = cuda.threadIdx.x
        row0, col0 = cuda.blockIdx.y * bm, cuda.blockIdx.x * bn
        row, col = t // (bn // tn) * tm, t % (bn // tn) * tn
        for i in range(tm):
            for j in range(tn): sums[i, j] = float32(0)
        for start in range(0, a.shape[1], bk):
            for at in range(t, bm * bk, threads):
                a_tile[at // bk, at % bk] = a[row0 + at // bk, start + at % bk]
            for at in range(t, bk * bn, threads):
                b_tile[at // bn, at % bn] = b[start + at // bn, col0 + at % bn]
            cuda.syncthreads()
            for k in range(bk):
                for i in range(tm):
                    factor = a_tile[row + i, k]
                    for j in range(tn): sums[i, j] += factor * b_tile[k, col + j]
            cuda.syncthreads()
        for i in range(tm):
            for j in range(tn): c[row0 + row + i, col0 + col + j] = sums[i, j]
    KERNELS[name] = kernel[(4096 // bn, 4096 // bm), threads]

plain(64, 64, 16, 4, 4, "plain_64")
plain(128, 64, 8, 8, 4, "plain_128_by_64")
plain(64, 128, 16, 4, 8, "plain_64_by_128")
plain(128, 128, 16, 8, 8, "plain_128")
plain(32, 32, 32, 2, 2, "plain_32")


def spread(bm, bn, bk, tm, tn, name):
    "A thread's rows and columns lie apart, and A's tile is transposed."
    threads, down, across = bm * bn // (tm * tn), bm // tm, bn // tn

    @cuda.jit
    def kernel(a, b, c):
        a_tile = cuda.shared.array((bk, bm), float32)
        b_tile = cuda.shared.array((bk, bn), float32)
        sums = cuda.local.array((tm, tn), float32)
        left, right = cuda.local.array(tm, float32), cuda.local.array(tn, float32)
        t = uint32(cuda.threadIdx.x)
        row0, col0 = cuda.blockIdx.y * bm, cuda.blockIdx.x * bn
        row, col = t // across, t % across
        for i in range(tm):
            for j in range(tn): sums[i, j] = float32(0)
        start = int64(0)
        while start < a.shape[1]:
            for s in range(0, bm, threads // bk):
                a_tile[t % bk, s + t // bk] = a[row0 + s + t // bk, start + t % bk]
            for s in range(0, bk, threads // bn):
                b_tile[s + t // bn, t % bn] = b[start + s + t // bn, col0 + t % bn]
            cuda.syncthreads()
            for k in range(bk):
                for i in range(tm): left[i] = a_tile[k, row + i * down]
                for j in range(tn): right[j] = b_tile[k, col + j * across]
                for i in range(tm):
                    for j in range(tn): sums[i, j] += left[i] * right[j]
            cuda.syncthreads()
            start += bk
        for i in range(tm):
            for j in range(tn): c[row0 + row + i * down, col0 + col + j * across] = sums[i, j]
    KERNELS[name] = kernel[(4096 // bn, 4096 // bm), threads]

spread(128, 128, 8, 8, 8, "spread_128")
spread(64, 64, 8, 4, 4, "spread_64")
spread(128, 64, 16, 8, 8, "spread_128_by_64")


def wide(bm, bn, bk, tm, tn, pad, name, ahead=False, unroll=False):
    "Copies four numbers at a time; `ahead`: loads the next tile's numbers before it multiplies."
    threads = bm * bn // (tm * tn)
    per_a, per_b, row_of_a = bm * bk // 4 // threads, bk * bn // 4 // threads, bm + pad

    @cuda.jit
    @unrolled
    def kernel(a, b, c):
        a_tile = cuda.shared.array((bk, row_of_a), float32, alignment=16)
        b_tile = cuda.shared.array((bk, bn), float32, alignment=16)
        sums = cuda.local.array((tm, tn), float32)
        left, right = cuda.local.array(tm, float32), cuda.local.array(tn, float32)
        next_a, next_b = cuda.local.array((per_a, 4), float32), cuda.local.array((per_b, 4), float32)
        t = uint32(cuda.threadIdx.x)
        row0, col0 = int64(cuda.blockIdx.y * bm), int64(cuda.blockIdx.x * bn)
        row, col = t // (bn // tn) * tm, t % (bn // tn) * tn
        for i in static(tm):
            for j in static(tn): sums[i, j] = float32(0)
        if ahead:
            for s in static(per_a):
                at = t + s * threads
                x = load4(a, (row0 + at // (bk // 4), int64(at % (bk // 4) * 4)))
                for q in static(4): next_a[s, q] = x[q]
            for s in static(per_b):
                at = t + s * threads
                x = load4(b, (int64(at // (bn // 4)), col0 + at % (bn // 4) * 4))
                for q in static(4): next_b[s, q] = x[q]
        start = int64(0)
        while start < a.shape[1]:
            if not ahead:
                for s in static(per_a):
                    at = t + s * threads
                    x = load4(a, (row0 + at // (bk // 4), start + at % (bk // 4) * 4))
                    for q in static(4): next_a[s, q] = x[q]
                for s in static(per_b):
                    at = t + s * threads
                    x = load4(b, (start + at // (bn // 4), col0 + at % (bn // 4) * 4))
                    for q in static(4): next_b[s, q] = x[q]
            for s in static(per_a):
                at = t + s * threads
                for q in static(4): a_tile[at % (bk // 4) * 4 + q, at // (bk // 4)] = next_a[s, q]
            for s in static(per_b):
                at = t + s * threads
                store4(b_tile, (at // (bn // 4), at % (bn // 4) * 4),
                       next_b[s, 0], next_b[s, 1], next_b[s, 2], next_b[s, 3])
            cuda.syncthreads()
            start += bk
            if ahead:
                if start < a.shape[1]:
                    for s in static(per_a):
                        at = t + s * threads
                        x = load4(a, (row0 + at // (bk // 4), start + at % (bk // 4) * 4))
                        for q in static(4): next_a[s, q] = x[q]
                    for s in static(per_b):
                        at = t + s * threads
                        x = load4(b, (start + at // (bn // 4), col0 + at % (bn // 4) * 4))
                        for q in static(4): next_b[s, q] = x[q]
            if unroll:
                for step in static(bk):
                    for i in static(tm): left[i] = a_tile[step, row + i]
                    for j in static(tn): right[j] = b_tile[step, col + j]
                    for i in static(tm):
                        for j in static(tn): sums[i, j] += left[i] * right[j]
            else:
                for k in range(bk):
                    for i in static(tm): left[i] = a_tile[k, row + i]
                    for j in static(tn): right[j] = b_tile[k, col + j]
                    for i in static(tm):
                        for j in static(tn): sums[i, j] += left[i] * right[j]
            cuda.syncthreads()
        for i in static(tm):
            for j in static(0, tn, 4):
                store4(c, (row0 + row + i, col0 + col + j),
                       sums[i, j], sums[i, j + 1], sums[i, j + 2], sums[i, j + 3])
    KERNELS[name] = kernel[(4096 // bn, 4096 // bm), threads]

wide(128, 128, 8, 8, 8, 0, "wide_128")
wide(128, 128, 16, 8, 8, 4, "wide_128_bk_16_padded")
wide(64, 64, 16, 4, 4, 4, "wide_64_padded")
wide(64, 128, 8, 8, 8, 0, "wide_64_by_128")
wide(128, 128, 8, 8, 8, 4, "wide_ahead", ahead=True)
wide(64, 64, 16, 4, 8, 4, "wide_ahead_64", ahead=True)
wide(128, 64, 16, 8, 8, 0, "wide_ahead_128_by_64", ahead=True)
wide(64, 64, 8, 8, 4, 4, "wide_unrolled_ahead_64", ahead=True, unroll=True)
wide(128, 128, 32, 8, 8, 4, "wide_bk_32")


def halves(bm, bn, bk, tm, tn, name):
    "A thread has two groups of columns, half a tile apart, so that neighbors load neighboring fours."
    threads, row_of_a = bm * bn // (tm * tn), bm + 4

    @cuda.jit
    def kernel(a, b, c):
        a_tile = cuda.shared.array((bk, row_of_a), float32, alignment=16)
        b_tile = cuda.shared.array((bk, bn), float32, alignment=16)
        sums = cuda.local.array((tm, tn), float32)
        left = cuda.local.array(tm, float32)
        t = uint32(cuda.threadIdx.x)
        row0, col0 = cuda.blockIdx.y * bm, cuda.blockIdx.x * bn
        row, col = t // (bn // tn) * tm, t % (bn // tn) * 4
        for i in range(tm):
            for j in range(tn): sums[i, j] = float32(0)
        for start in range(0, a.shape[1], bk):
            for at in range(t, bm * bk // 4, threads):
                x = load4(a, (row0 + at // (bk // 4), start + at % (bk // 4) * 4))
                for q in range(4): a_tile[at % (bk // 4) * 4 + q, at // (bk // 4)] = x[q]
            for at in range(t, bk * bn // 4, threads):
                store4(b_tile, (at // (bn // 4), at % (bn // 4) * 4),
                       *load4(b, (start + at // (bn // 4), col0 + at % (bn // 4) * 4)))
            cuda.syncthreads()
            for k in range(bk):
                for i in range(tm): left[i] = a_tile[k, row + i]
                x, y = load4(b_tile, (k, col)), load4(b_tile, (k, col + bn // 2))
                for i in range(tm):
                    for q in range(4):
                        sums[i, q] += left[i] * x[q]
                        sums[i, 4 + q] += left[i] * y[q]
            cuda.syncthreads()
        for i in range(tm):
            for q in range(2):
                store4(c, (row0 + row + i, col0 + col + q * (bn // 2)),
                       sums[i, 4 * q], sums[i, 4 * q + 1], sums[i, 4 * q + 2], sums[i, 4 * q + 3])
    KERNELS[name] = kernel[(4096 // bn, 4096 // bm), threads]

halves(128, 128, 8, 8, 8, "halves_128")
halves(64, 128, 16, 8, 8, "halves_64_by_128")
halves(128, 64, 8, 4, 8, "halves_128_by_64")
