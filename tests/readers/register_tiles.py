"""The third round, from tiles in registers to double buffering: four more readers, see first_steps.py."""
import numba_matmul  # noqa: F401  first: this chooses between the GPU and the simulator
from numba import cuda, float32, int64, uint32

from numba_matmul.ptx.ampere import cp_async, cp_async_commit_group, cp_async_wait_group
from numba_matmul.ptx.core import load2, load4, store2, store4
from numba_matmul.static import static, unrolled

from .written import collection

WRITTEN, launched = collection()


# One who tries lesson 5 with sizes that aren't powers of two

@launched(48, 80, (16, 16), least=16, edges=True)
@cuda.jit
def three_by_five(a, b, c):
    sa = cuda.shared.array((48, 16), float32)
    sb = cuda.shared.array((16, 80), float32)
    acc = cuda.local.array((3, 5), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row0, col0 = cuda.blockIdx.y * 48, cuda.blockIdx.x * 80
    m, n, kk = c.shape[0], c.shape[1], a.shape[1]
    for i in range(3):
        for j in range(5): acc[i, j] = 0
    for k0 in range(0, kk, 16):
        for i in range(3):
            r = row0 + 3 * y + i
            sa[3 * y + i, x] = a[r, k0 + x] if r < m and k0 + x < kk else float32(0)
        for j in range(5):
            q = col0 + x + 16 * j
            sb[y, x + 16 * j] = b[k0 + y, q] if k0 + y < kk and q < n else float32(0)
        cuda.syncthreads()
        for k in range(16):
            for i in range(3):
                v = sa[3 * y + i, k]
                for j in range(5): acc[i, j] += v * sb[k, 5 * x + j]
        cuda.syncthreads()
    for i in range(3):
        for j in range(5):
            if row0 + 3 * y + i < m and col0 + 5 * x + j < n:
                c[row0 + 3 * y + i, col0 + 5 * x + j] = acc[i, j]

@launched(48, 64, (16, 8), least=8, edges=True)
@cuda.jit
def six_by_four(a, b, c):
    sa = cuda.shared.array((48, 8), float32)
    sb = cuda.shared.array((8, 64), float32)
    acc = cuda.local.array((6, 4), float32)
    left, right = cuda.local.array(6, float32), cuda.local.array(4, float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    t = y * 16 + x
    row0, col0 = cuda.blockIdx.y * 48, cuda.blockIdx.x * 64
    m, n, kk = a.shape[0], b.shape[1], a.shape[1]
    for i in range(6):
        for j in range(4): acc[i, j] = 0
    k0 = 0
    while k0 < kk:
        for p in range(3):
            r, q = p * 16 + t // 8, t % 8
            if row0 + r < m and k0 + q < kk: sa[r, q] = a[row0 + r, k0 + q]
            else: sa[r, q] = 0
        for p in range(4):
            r, q = 2 * p + t // 64, t % 64
            if k0 + r < kk and col0 + q < n: sb[r, q] = b[k0 + r, col0 + q]
            else: sb[r, q] = 0
        cuda.syncthreads()
        k = 0
        while k < 8:
            for i in range(6): left[i] = sa[y * 6 + i, k]
            for j in range(4): right[j] = sb[k, x * 4 + j]
            for j in range(4):
                for i in range(6): acc[i, j] += left[i] * right[j]
            k += 1
        cuda.syncthreads()
        k0 += 8
    for i in range(6):
        r = row0 + y * 6 + i
        if r < m:
            for j in range(4):
                if col0 + x * 4 + j < n: c[r, col0 + x * 4 + j] = acc[i, j]

@launched(80, 80, (16, 16), least=16, edges=True)
@cuda.jit
def five_by_five_apart(a, b, c):
    sa = cuda.shared.array((80, 17), float32)
    sb = cuda.shared.array((16, 80), float32)
    acc = cuda.local.array((5, 5), float32)
    x, y = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    row, col = uint32(cuda.blockIdx.y * 80 + y), uint32(cuda.blockIdx.x * 80 + x)
    m, n, kk = uint32(c.shape[0]), uint32(c.shape[1]), uint32(a.shape[1])
    for i in range(5):
        for j in range(5): acc[i, j] = float32(0)
    k0 = uint32(0)
    while k0 < kk:
        for i in range(5):
            value = float32(0)
            if row + 16 * i < m and k0 + x < kk: value = a[row + 16 * i, k0 + x]
            sa[y + 16 * i, x] = value
            value = float32(0)
            if k0 + y < kk and col + 16 * i < n: value = b[k0 + y, col + 16 * i]
            sb[y, x + 16 * i] = value
        cuda.syncthreads()
        for k in range(16):
            b0, b1, b2, b3, b4 = sb[k, x], sb[k, x + 16], sb[k, x + 32], sb[k, x + 48], sb[k, x + 64]
            for i in range(5):
                v = sa[y + 16 * i, k]
                acc[i, 0] += v * b0
                acc[i, 1] += v * b1
                acc[i, 2] += v * b2
                acc[i, 3] += v * b3
                acc[i, 4] += v * b4
        cuda.syncthreads()
        k0 = uint32(k0 + 16)
    for i in range(5):
        for j in range(5):
            if row + 16 * i < m and col + 16 * j < n: c[row + 16 * i, col + 16 * j] = acc[i, j]

@launched(64, 96, (8, 16), least=8, edges=True)
@cuda.jit
def four_by_twelve(a, b, c):
    sa = cuda.shared.array((8, 64), float32)
    sb = cuda.shared.array((8, 96), float32)
    acc = cuda.local.array((4, 12), float32)
    right = cuda.local.array(12, float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    t = 8 * y + x
    row0, col0 = cuda.blockIdx.y * 64, cuda.blockIdx.x * 96
    m, n, kk = c.shape[0], c.shape[1], a.shape[1]
    for i in range(4):
        for j in range(12): acc[i, j] = 0
    for k0 in range(0, kk, 8):
        for p in range(4):
            r, q = row0 + p * 16 + y, k0 + x
            sa[x, p * 16 + y] = a[r, q] if r < m and q < kk else float32(0)
        if t < 96:
            for p in range(8):
                sb[p, t] = b[k0 + p, col0 + t] if k0 + p < kk and col0 + t < n else float32(0)
        cuda.syncthreads()
        for k in range(8):
            for j in range(12): right[j] = sb[k, j * 8 + x]
            for i in range(4):
                left = sa[k, y * 4 + i]
                for j in range(12): acc[i, j] += left * right[j]
        cuda.syncthreads()
    for i in range(4):
        for j in range(12):
            r, q = row0 + y * 4 + i, col0 + j * 8 + x
            if r < m and q < n: c[r, q] = acc[i, j]

@launched(112, 112, 256, least=8, edges=True)
@cuda.jit
def seven_by_seven(a, b, c):
    sa = cuda.shared.array((8, 113), float32)
    sb = cuda.shared.array((8, 112), float32)
    acc = cuda.local.array((7, 7), float32)
    left, right = cuda.local.array(7, float32), cuda.local.array(7, float32)
    t = cuda.threadIdx.x
    ty, tx = t // 16, t % 16
    row0, col0 = cuda.blockIdx.y * 112, cuda.blockIdx.x * 112
    for i in range(7):
        for j in range(7): acc[i, j] = 0
    for k0 in range(0, a.shape[1], 8):
        for at in range(t, 896, 256):
            r, q = at // 8, at % 8
            sa[q, r] = a[row0 + r, k0 + q] if row0 + r < a.shape[0] and k0 + q < a.shape[1] else float32(0)
        for at in range(t, 896, 256):
            r, q = at // 112, at % 112
            sb[r, q] = b[k0 + r, col0 + q] if k0 + r < b.shape[0] and col0 + q < b.shape[1] else float32(0)
        cuda.syncthreads()
        for k in range(8):
            for i in range(7):
                left[i] = sa[k, ty * 7 + i]
                right[i] = sb[k, tx * 7 + i]
            for i in range(7):
                for j in range(7): acc[i, j] += left[i] * right[j]
        cuda.syncthreads()
    for i in range(7):
        for j in range(7):
            if row0 + ty * 7 + i < c.shape[0] and col0 + tx * 7 + j < c.shape[1]:
                c[row0 + ty * 7 + i, col0 + tx * 7 + j] = acc[i, j]

@launched(64, 128, (16, 32), least=16)
@cuda.jit
def two_by_eight_in_one_array(a, b, c):
    sa = cuda.shared.array((64, 16), float32)
    sb = cuda.shared.array((16, 128), float32)
    acc = cuda.local.array(16, float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 64 + y, cuda.blockIdx.x * 128 + x
    for i in range(16): acc[i] = 0
    for k0 in range(0, a.shape[1], 16):
        sa[y, x] = a[row, k0 + x]
        sa[y + 32, x] = a[row + 32, k0 + x]
        if y < 16:
            for j in range(8): sb[y, x + 16 * j] = b[k0 + y, col + 16 * j]
        cuda.syncthreads()
        for k in range(16):
            for i in range(2):
                for j in range(8): acc[8 * i + j] += sa[y + 32 * i, k] * sb[k, x + 16 * j]
        cuda.syncthreads()
    for i in range(2):
        for j in range(8): c[row + 32 * i, col + 16 * j] = acc[8 * i + j]

@launched(128, 32, (16, 16), least=32)
@cuda.jit
def eight_by_two(a, b, c):
    sa = cuda.shared.array((128, 32), float32)
    sb = cuda.shared.array((32, 32), float32)
    left_col, right_col = cuda.local.array(8, float32), cuda.local.array(8, float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    t = y * 16 + x
    row0, col0 = cuda.blockIdx.y * 128, cuda.blockIdx.x * 32
    for i in range(8): left_col[i], right_col[i] = 0, 0
    for k0 in range(0, a.shape[1], 32):
        for p in range(16): sa[8 * p + t // 32, t % 32] = a[row0 + 8 * p + t // 32, k0 + t % 32]
        for p in range(4): sb[8 * p + t // 32, t % 32] = b[k0 + 8 * p + t // 32, col0 + t % 32]
        cuda.syncthreads()
        for k in range(32):
            u, v = sb[k, 2 * x], sb[k, 2 * x + 1]
            for i in range(8):
                w = sa[8 * y + i, k]
                left_col[i] += w * u
                right_col[i] += w * v
        cuda.syncthreads()
    for i in range(8):
        store2(c, (row0 + 8 * y + i, col0 + 2 * x), left_col[i], right_col[i])

@launched(128, 64, 128, least=16)
@cuda.jit
def sixteen_by_four(a, b, c):
    sa = cuda.shared.array((16, 129), float32)
    sb = cuda.shared.array((16, 64), float32)
    acc = cuda.local.array((16, 4), float32)
    left, right = cuda.local.array(16, float32), cuda.local.array(4, float32)
    t = uint32(cuda.threadIdx.x)
    row0, col0 = int64(cuda.blockIdx.y * 128), int64(cuda.blockIdx.x * 64)
    ty, tx = uint32(t // 16 * 16), uint32(t % 16 * 4)
    for i in range(16):
        for j in range(4): acc[i, j] = float32(0)
    for k0 in range(0, a.shape[1], 16):
        for p in range(16): sa[t % 16, 8 * p + t // 16] = a[row0 + 8 * p + t // 16, k0 + t % 16]
        for p in range(8): sb[2 * p + t // 64, t % 64] = b[k0 + 2 * p + t // 64, col0 + t % 64]
        cuda.syncthreads()
        for k in range(16):
            for i in range(16): left[i] = sa[k, ty + i]
            for j in range(4): right[j] = sb[k, tx + j]
            for i in range(16):
                for j in range(4): acc[i, j] += left[i] * right[j]
        cuda.syncthreads()
    for i in range(16):
        for j in range(4): c[row0 + ty + i, col0 + tx + j] = acc[i, j]


# One who is at lessons 6 to 8: wide loads here or there

@launched(64, 64, (16, 16), least=16)
@cuda.jit
def fours_of_b_only(a, b, c):
    sa = cuda.shared.array((64, 16), float32)
    sb = cuda.shared.array((16, 64), float32, alignment=16)
    acc = cuda.local.array((4, 4), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row0, col0 = cuda.blockIdx.y * 64, cuda.blockIdx.x * 64
    for i in range(4):
        for j in range(4): acc[i, j] = 0
    for k0 in range(0, a.shape[1], 16):
        for p in range(4): sa[y + 16 * p, x] = a[row0 + y + 16 * p, k0 + x]
        p, q, r, s = load4(b, (k0 + y, col0 + 4 * x))
        store4(sb, (y, 4 * x), p, q, r, s)
        cuda.syncthreads()
        for k in range(16):
            p, q, r, s = load4(sb, (k, 4 * x))
            for i in range(4):
                v = sa[4 * y + i, k]
                acc[i, 0] += v * p
                acc[i, 1] += v * q
                acc[i, 2] += v * r
                acc[i, 3] += v * s
        cuda.syncthreads()
    for i in range(4):
        store4(c, (row0 + 4 * y + i, col0 + 4 * x), acc[i, 0], acc[i, 1], acc[i, 2], acc[i, 3])

@launched(64, 96, 256, least=16, grid=lambda m, n: ((n + 95) // 96, m // 64))
@cuda.jit
def fours_of_a_only(a, b, c):
    # six columns a thread, 16 apart; the last block's columns may be missing
    sa = cuda.shared.array((16, 64), float32, alignment=16)
    sb = cuda.shared.array((16, 96), float32)
    acc = cuda.local.array((4, 6), float32)
    t = cuda.threadIdx.x
    row0, col0 = cuda.blockIdx.y * 64, cuda.blockIdx.x * 96
    n = b.shape[1]
    y, x = t // 16, t % 16
    for i in range(4):
        for j in range(6): acc[i, j] = 0
    for k0 in range(0, a.shape[1], 16):
        v = load4(a, (row0 + t // 4, k0 + t % 4 * 4))
        for q in range(4): sa[t % 4 * 4 + q, t // 4] = v[q]
        for p in range(6):
            r, q = (t + 256 * p) // 96, (t + 256 * p) % 96
            if col0 + q < n: sb[r, q] = b[k0 + r, col0 + q]
            else: sb[r, q] = 0
        cuda.syncthreads()
        for k in range(16):
            p, q, r, s = load4(sa, (k, y * 4))
            for j in range(6):
                v = sb[k, x + 16 * j]
                acc[0, j] += p * v
                acc[1, j] += q * v
                acc[2, j] += r * v
                acc[3, j] += s * v
        cuda.syncthreads()
    for i in range(4):
        for j in range(6):
            if col0 + x + 16 * j < n: c[row0 + y * 4 + i, col0 + x + 16 * j] = acc[i, j]

@launched(64, 128, 256, least=32)
@cuda.jit
def fours_of_both_32_deep(a, b, c):
    # A as it lies, rows padded to 36 words; 4 rows × 8 columns, the columns in two groups
    sa = cuda.shared.array((64, 36), float32, alignment=16)
    sb = cuda.shared.array((32, 128), float32, alignment=16)
    acc = cuda.local.array((4, 8), float32)
    right = cuda.local.array(8, float32)
    t = uint32(cuda.threadIdx.x)
    row0, col0 = int64(cuda.blockIdx.y * 64), int64(cuda.blockIdx.x * 128)
    y, x = uint32(t // 16), uint32(t % 16)
    for i in range(4):
        for j in range(8): acc[i, j] = float32(0)
    k0 = int64(0)
    while k0 < a.shape[1]:
        for p in range(2):
            r, q = uint32(t // 8 + 32 * p), uint32(t % 8 * 4)
            store4(sa, (r, q), *load4(a, (row0 + r, k0 + q)))
        for p in range(4):
            r, q = uint32(t // 32 + 8 * p), uint32(t % 32 * 4)
            store4(sb, (r, q), *load4(b, (k0 + r, col0 + q)))
        cuda.syncthreads()
        k = uint32(0)
        while k < uint32(32):
            v, w = load4(sb, (k, uint32(x * 4))), load4(sb, (k, uint32(x * 4 + 64)))
            for j in range(4): right[j], right[j + 4] = v[j], w[j]
            for i in range(4):
                left = sa[y + 16 * i, k]
                for j in range(8): acc[i, j] += left * right[j]
            k = uint32(k + 1)
        cuda.syncthreads()
        k0 += 32
    for i in range(4):
        for h in range(2):
            store4(c, (row0 + y + 16 * i, col0 + x * 4 + 64 * h),
                   acc[i, 4 * h], acc[i, 4 * h + 1], acc[i, 4 * h + 2], acc[i, 4 * h + 3])

@launched(64, 128, (32, 8))
@cuda.jit
def eight_by_four_without_shared(a, b, c):
    acc = cuda.local.array((8, 4), float32)
    x, y = cuda.grid(2)
    row, col = int64(y) * 8, int64(x) * 4
    for i in range(8):
        for j in range(4): acc[i, j] = 0
    for k in range(a.shape[1]):
        right = load4(b, (k, col))
        for i in range(8):
            left = a[row + i, k]
            for j in range(4): acc[i, j] += left * right[j]
    for i in range(8):
        store4(c, (row + i, col), acc[i, 0], acc[i, 1], acc[i, 2], acc[i, 3])

@launched(64, 64, (16, 8), least=16)
@cuda.jit
def only_c_in_fours(a, b, c):
    sa = cuda.shared.array((64, 17), float32)
    sb = cuda.shared.array((16, 64), float32)
    acc = cuda.local.array((8, 4), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row0, col0 = cuda.blockIdx.y * 64, cuda.blockIdx.x * 64
    for i in range(8):
        for j in range(4): acc[i, j] = 0
    k0 = 0
    while k0 < a.shape[1]:
        for i in range(8): sa[8 * i + y, x] = a[row0 + 8 * i + y, k0 + x]
        for i in range(2):
            for j in range(4): sb[8 * i + y, 16 * j + x] = b[k0 + 8 * i + y, col0 + 16 * j + x]
        cuda.syncthreads()
        for k in range(16):
            for j in range(4):
                right = sb[k, 4 * x + j]
                for i in range(8): acc[i, j] += sa[8 * i + y, k] * right
        cuda.syncthreads()
        k0 += 16
    for i in range(8):
        store4(c, (row0 + 8 * i + y, col0 + 4 * x), acc[i, 0], acc[i, 1], acc[i, 2], acc[i, 3])

@launched(128, 128, 256, least=8)
@cuda.jit
def crossed_columns(a, b, c):
    # lesson 8's harder exercise: rows 4 to 7 of A's tile lie with their columns crossed by 16
    sa = cuda.shared.array((8, 128), float32, alignment=16)
    sb = cuda.shared.array((8, 128), float32, alignment=16)
    acc = cuda.local.array((8, 8), float32)
    left, right = cuda.local.array(8, float32), cuda.local.array(8, float32)
    t = uint32(cuda.threadIdx.x)
    row0, col0 = cuda.blockIdx.y * 128, cuda.blockIdx.x * 128
    row, col = t // 16 * 8, t % 16 * 4
    for i in range(8):
        for j in range(8): acc[i, j] = float32(0)
    k0 = 0
    while k0 < a.shape[1]:
        ar, ac = t // 2, t % 2 * 4
        v = load4(a, (row0 + ar, k0 + ac))
        for q in range(4): sa[ac + q, ar ^ (ac * 4)] = v[q]
        store4(sb, (t // 32, t % 32 * 4), *load4(b, (k0 + t // 32, col0 + t % 32 * 4)))
        cuda.syncthreads()
        for k in range(8):
            cross = 16 if k > 3 else 0
            for i in range(0, 8, 4):
                v = load4(sa, (uint32(k), uint32((row + i) ^ cross)))
                for q in range(4): left[i + q] = v[q]
            for j in range(4):
                right[j], right[j + 4] = sb[k, col + j], sb[k, col + 64 + j]
            for i in range(8):
                for j in range(8): acc[i, j] += left[i] * right[j]
        cuda.syncthreads()
        k0 += 8
    for i in range(8):
        for h in range(2):
            store4(c, (row0 + row + i, col0 + col + 64 * h),
                   acc[i, 4 * h], acc[i, 4 * h + 1], acc[i, 4 * h + 2], acc[i, 4 * h + 3])

@launched(128, 128, (16, 16), least=16)
@cuda.jit
def four_quarters(a, b, c):
    # two groups of four rows and two of four columns, each 64 apart; 16 deep
    sa = cuda.shared.array((16, 132), float32, alignment=16)
    sb = cuda.shared.array((16, 128), float32, alignment=16)
    acc = cuda.local.array((8, 8), float32)
    x, y = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    t = uint32(y * 16 + x)
    row0, col0 = int64(cuda.blockIdx.y) * 128, int64(cuda.blockIdx.x) * 128
    for i in range(8):
        for j in range(8): acc[i, j] = float32(0)
    k0 = int64(0)
    while k0 < a.shape[1]:
        for p in range(2):
            r, q = uint32(t // 4 + 64 * p), uint32(t % 4 * 4)
            v = load4(a, (row0 + r, k0 + q))
            sa[q, r], sa[q + 1, r], sa[q + 2, r], sa[q + 3, r] = v
            r, q = uint32(t // 32 + 8 * p), uint32(t % 32 * 4)
            store4(sb, (r, q), *load4(b, (k0 + r, col0 + q)))
        cuda.syncthreads()
        k = uint32(0)
        while k < uint32(16):
            upper, lower = load4(sa, (k, uint32(y * 4))), load4(sa, (k, uint32(y * 4 + 64)))
            west, east = load4(sb, (k, uint32(x * 4))), load4(sb, (k, uint32(x * 4 + 64)))
            for i in range(4):
                for j in range(4):
                    acc[i, j] += upper[i] * west[j]
                    acc[i, j + 4] += upper[i] * east[j]
                    acc[i + 4, j] += lower[i] * west[j]
                    acc[i + 4, j + 4] += lower[i] * east[j]
            k = uint32(k + 1)
        cuda.syncthreads()
        k0 += 16
    for i in range(8):
        r = row0 + y * 4 + i // 4 * 64 + i % 4
        store4(c, (r, col0 + x * 4), acc[i, 0], acc[i, 1], acc[i, 2], acc[i, 3])
        store4(c, (r, col0 + x * 4 + 64), acc[i, 4], acc[i, 5], acc[i, 6], acc[i, 7])

@launched(64, 64, (32, 8), least=32)
@cuda.jit
def a_from_global_in_fours(a, b, c):
    # only B's tile is shared; A comes in fours along k. 8 rows × 2 columns a thread
    sb = cuda.shared.array((32, 64), float32, alignment=16)
    acc = cuda.local.array((8, 2), float32)
    left = cuda.local.array((8, 4), float32)
    x, y = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    row, col0 = int64(cuda.blockIdx.y * 64 + y * 8), int64(cuda.blockIdx.x * 64)
    for i in range(8): acc[i, 0] = acc[i, 1] = float32(0)
    for k0 in range(0, a.shape[1], 32):
        for p in range(4):
            v, w = load2(b, (k0 + y + 8 * p, col0 + 2 * x))
            store2(sb, (uint32(y + 8 * p), uint32(2 * x)), v, w)
        cuda.syncthreads()
        for k in range(0, 32, 4):
            for i in range(8):
                v = load4(a, (row + i, k0 + k))
                for q in range(4): left[i, q] = v[q]
            for q in range(4):
                v, w = load2(sb, (uint32(k + q), uint32(2 * x)))
                for i in range(8):
                    acc[i, 0] += left[i, q] * v
                    acc[i, 1] += left[i, q] * w
        cuda.syncthreads()
    for i in range(8): store2(c, (row + i, col0 + 2 * x), acc[i, 0], acc[i, 1])


# One who is at lessons 10 to 12: warps, and the next tile while this one is multiplied

@launched(64, 128, 128, least=8)
@cuda.jit
def four_warps_of_32x64(a, b, c):
    # a warp's lanes are 4 × 8; a thread has 8 rows and twice 4 columns
    sa = cuda.shared.array((8, 68), float32, alignment=16)
    sb = cuda.shared.array((8, 128), float32, alignment=16)
    acc = cuda.local.array((2, 8, 4), float32)
    left, right = cuda.local.array(8, float32), cuda.local.array(4, float32)
    t = uint32(cuda.threadIdx.x)
    warp, lane = uint32(t // 32), uint32(t % 32)
    row0, col0 = cuda.blockIdx.y * 64, cuda.blockIdx.x * 128
    row = uint32(warp // 2 * 32 + lane // 8 * 8)
    col = uint32(warp % 2 * 64 + lane % 8 * 4)
    for h in range(2):
        for i in range(8):
            for j in range(4): acc[h, i, j] = float32(0)
    for k0 in range(0, a.shape[1], 8):
        v = load4(a, (row0 + t // 2, k0 + t % 2 * 4))
        for q in range(4): sa[t % 2 * 4 + q, t // 2] = v[q]
        for p in range(2):
            store4(sb, (uint32(t // 32 + 4 * p), uint32(lane * 4)),
                   *load4(b, (k0 + t // 32 + 4 * p, col0 + lane * 4)))
        cuda.syncthreads()
        for k in range(8):
            for i in range(8): left[i] = sa[k, row + i]
            for h in range(2):
                for j in range(4): right[j] = sb[k, col + 32 * h + j]
                for i in range(8):
                    for j in range(4): acc[h, i, j] += left[i] * right[j]
        cuda.syncthreads()
    for h in range(2):
        for i in range(8):
            store4(c, (row0 + row + i, col0 + col + 32 * h),
                   acc[h, i, 0], acc[h, i, 1], acc[h, i, 2], acc[h, i, 3])

@launched(128, 128, 256, least=16)
@cuda.jit
def zigzag_lanes(a, b, c):
    # lanes in pairs of rows, as in a Z: 0 2 4 … above 1 3 5 …
    sa = cuda.shared.array((16, 132), float32, alignment=16)
    sb = cuda.shared.array((16, 128), float32, alignment=16)
    acc = cuda.local.array((8, 8), float32)
    left, right = cuda.local.array(8, float32), cuda.local.array(8, float32)
    t = uint32(cuda.threadIdx.x)
    warp, lane = uint32(t // 32), uint32(t % 32)
    lane_row = uint32(lane // 16 * 2 + lane % 2)
    lane_col = uint32(lane // 2 % 8)
    row0, col0 = int64(cuda.blockIdx.y * 128), int64(cuda.blockIdx.x * 128)
    row = uint32(warp // 2 * 32 + lane_row * 4)
    col = uint32(warp % 2 * 64 + lane_col * 4)
    for i in range(8):
        for j in range(8): acc[i, j] = float32(0)
    k0 = int64(0)
    while k0 < a.shape[1]:
        for p in range(2):
            v = load4(a, (row0 + t // 4 + 64 * p, k0 + t % 4 * 4))
            for q in range(4): sa[t % 4 * 4 + q, t // 4 + 64 * p] = v[q]
            store4(sb, (uint32(warp + 8 * p), uint32(lane * 4)),
                   *load4(b, (k0 + warp + 8 * p, col0 + lane * 4)))
        cuda.syncthreads()
        k = uint32(0)
        while k < uint32(16):
            for i in range(4):
                left[i], left[i + 4] = sa[k, row + i], sa[k, row + 16 + i]
                right[i], right[i + 4] = sb[k, col + i], sb[k, col + 32 + i]
            for i in range(8):
                for j in range(8): acc[i, j] += left[i] * right[j]
            k = uint32(k + 1)
        cuda.syncthreads()
        k0 += 16
    for i in range(8):
        for h in range(2):
            store4(c, (row0 + row + i // 4 * 16 + i % 4, col0 + col + 32 * h),
                   acc[i, 4 * h], acc[i, 4 * h + 1], acc[i, 4 * h + 2], acc[i, 4 * h + 3])

@launched(64, 64, (16, 16), least=16)
@cuda.jit
def if_else_buffers(a, b, c):
    # copies at the beginning of a step, into the tiles that aren't in use
    a0, a1 = cuda.shared.array((16, 65), float32), cuda.shared.array((16, 65), float32)
    b0, b1 = cuda.shared.array((16, 64), float32), cuda.shared.array((16, 64), float32)
    acc = cuda.local.array((4, 4), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row0, col0 = cuda.blockIdx.y * 64, cuda.blockIdx.x * 64
    for i in range(4):
        for j in range(4): acc[i, j] = 0
    for p in range(4):
        a0[x, y + 16 * p] = a[row0 + y + 16 * p, x]
        b0[y, x + 16 * p] = b[y, col0 + x + 16 * p]
    cuda.syncthreads()
    steps = a.shape[1] // 16
    for step in range(steps):
        k1 = step * 16 + 16
        if step % 2 == 0:
            if step + 1 < steps:
                for p in range(4):
                    a1[x, y + 16 * p] = a[row0 + y + 16 * p, k1 + x]
                    b1[y, x + 16 * p] = b[k1 + y, col0 + x + 16 * p]
            for k in range(16):
                for i in range(4):
                    for j in range(4): acc[i, j] += a0[k, y * 4 + i] * b0[k, x + 16 * j]
        else:
            if step + 1 < steps:
                for p in range(4):
                    a0[x, y + 16 * p] = a[row0 + y + 16 * p, k1 + x]
                    b0[y, x + 16 * p] = b[k1 + y, col0 + x + 16 * p]
            for k in range(16):
                for i in range(4):
                    for j in range(4): acc[i, j] += a1[k, y * 4 + i] * b1[k, x + 16 * j]
        cuda.syncthreads()
    for i in range(4):
        for j in range(4): c[row0 + y * 4 + i, col0 + x + 16 * j] = acc[i, j]

@launched(96, 64, (16, 16), least=16, grid=lambda m, n: (n // 64, (m + 95) // 96))
@cuda.jit
def next_tile_in_registers(a, b, c):
    # the next tile waits in registers while this one is multiplied. 6 × 4 results; rows may be missing
    sa = cuda.shared.array((96, 17), float32)
    sb = cuda.shared.array((16, 64), float32, alignment=16)
    acc = cuda.local.array((6, 4), float32)
    next_a = cuda.local.array(6, float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row0, col0 = cuda.blockIdx.y * 96, cuda.blockIdx.x * 64
    m, kk = a.shape[0], a.shape[1]
    for i in range(6):
        for j in range(4): acc[i, j] = 0
    for i in range(6): next_a[i] = a[min(row0 + y + 16 * i, m - 1), x]
    b0, b1, b2, b3 = load4(b, (y, col0 + 4 * x))
    for k0 in range(0, kk, 16):
        for i in range(6): sa[y + 16 * i, x] = next_a[i]
        store4(sb, (y, 4 * x), b0, b1, b2, b3)
        cuda.syncthreads()
        if k0 + 16 < kk:
            for i in range(6): next_a[i] = a[min(row0 + y + 16 * i, m - 1), k0 + 16 + x]
            b0, b1, b2, b3 = load4(b, (k0 + 16 + y, col0 + 4 * x))
        for k in range(16):
            p, q, r, s = load4(sb, (k, 4 * x))
            for i in range(6):
                v = sa[y + 16 * i, k]
                acc[i, 0] += v * p
                acc[i, 1] += v * q
                acc[i, 2] += v * r
                acc[i, 3] += v * s
        cuda.syncthreads()
    for i in range(6):
        if row0 + y + 16 * i < m:
            store4(c, (row0 + y + 16 * i, col0 + 4 * x), acc[i, 0], acc[i, 1], acc[i, 2], acc[i, 3])

@launched(128, 128, 256, least=8)
@cuda.jit
def two_stages_in_registers(a, b, c):
    # the next tile from global memory into registers, and the next step's values from shared memory, too
    sa = cuda.shared.array((2, 8, 132), float32, alignment=16)
    sb = cuda.shared.array((2, 8, 128), float32, alignment=16)
    acc = cuda.local.array((8, 8), float32)
    left, right = cuda.local.array((2, 8), float32), cuda.local.array((2, 8), float32)
    t = uint32(cuda.threadIdx.x)
    row0, col0 = int64(cuda.blockIdx.y * 128), int64(cuda.blockIdx.x * 128)
    ar, ac = uint32(t // 2), uint32(t % 2 * 4)
    br, bc = uint32(t // 32), uint32(t % 32 * 4)
    row, col = uint32(t // 16 * 4), uint32(t % 16 * 4)
    for i in range(8):
        for j in range(8): acc[i, j] = float32(0)
    v, w = load4(a, (row0 + ar, int64(ac))), load4(b, (int64(br), col0 + bc))
    for q in range(4): sa[0, ac + q, ar] = v[q]
    store4(sb, (0, br, bc), *w)
    cuda.syncthreads()
    for q in range(4):
        left[0, q], left[0, q + 4] = sa[0, 0, row + q], sa[0, 0, row + 64 + q]
        right[0, q], right[0, q + 4] = sb[0, 0, col + q], sb[0, 0, col + 64 + q]
    now = uint32(0)
    k0 = int64(8)
    while k0 <= a.shape[1]:
        if k0 < a.shape[1]:
            v, w = load4(a, (row0 + ar, k0 + ac)), load4(b, (k0 + br, col0 + bc))
        for k in range(7):
            this, that = k % 2, (k + 1) % 2
            for q in range(4):
                left[that, q], left[that, q + 4] = sa[now, k + 1, row + q], sa[now, k + 1, row + 64 + q]
                right[that, q], right[that, q + 4] = sb[now, k + 1, col + q], sb[now, k + 1, col + 64 + q]
            for i in range(8):
                for j in range(8): acc[i, j] += left[this, i] * right[this, j]
        now = uint32(now ^ 1)
        if k0 < a.shape[1]:
            for q in range(4): sa[now, ac + q, ar] = v[q]
            store4(sb, (now, br, bc), *w)
            cuda.syncthreads()
            for q in range(4):
                left[0, q], left[0, q + 4] = sa[now, 0, row + q], sa[now, 0, row + 64 + q]
                right[0, q], right[0, q + 4] = sb[now, 0, col + q], sb[now, 0, col + 64 + q]
        for i in range(8):
            for j in range(8): acc[i, j] += left[1, i] * right[1, j]
        k0 += 8
    for i in range(8):
        r = row0 + row + i // 4 * 64 + i % 4
        store4(c, (r, col0 + col), acc[i, 0], acc[i, 1], acc[i, 2], acc[i, 3])
        store4(c, (r, col0 + col + 64), acc[i, 4], acc[i, 5], acc[i, 6], acc[i, 7])

@launched(128, 64, (16, 16), least=8)
@cuda.jit
def two_buffers_number_by_number(a, b, c):
    sa = cuda.shared.array((2, 8, 130), float32)
    sb = cuda.shared.array((2, 8, 64), float32)
    acc = cuda.local.array((8, 4), float32)
    left, right = cuda.local.array(8, float32), cuda.local.array(4, float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    t = y * 16 + x
    row0, col0 = cuda.blockIdx.y * 128, cuda.blockIdx.x * 64
    for i in range(8):
        for j in range(4): acc[i, j] = 0
    buffer = 0
    for p in range(4): sa[0, t % 8, t // 8 + 32 * p] = a[row0 + t // 8 + 32 * p, t % 8]
    for p in range(2): sb[0, t // 64 + 4 * p, t % 64] = b[t // 64 + 4 * p, col0 + t % 64]
    cuda.syncthreads()
    for k0 in range(0, a.shape[1], 8):
        if k0 + 8 < a.shape[1]:
            for p in range(4):
                sa[1 - buffer, t % 8, t // 8 + 32 * p] = a[row0 + t // 8 + 32 * p, k0 + 8 + t % 8]
            for p in range(2):
                sb[1 - buffer, t // 64 + 4 * p, t % 64] = b[k0 + 8 + t // 64 + 4 * p, col0 + t % 64]
        for k in range(8):
            for i in range(8): left[i] = sa[buffer, k, y + 16 * i]
            for j in range(4): right[j] = sb[buffer, k, x + 16 * j]
            for i in range(8):
                for j in range(4): acc[i, j] += left[i] * right[j]
        cuda.syncthreads()
        buffer ^= 1
    for i in range(8):
        for j in range(4): c[row0 + y + 16 * i, col0 + x + 16 * j] = acc[i, j]

@launched(64, 64, 64, least=16)
@cuda.jit
def two_tiles_a_turn(a, b, c):
    # two tiles of 8 a turn, no if: one is copied while the other is multiplied. Two warps, 8 × 8 a thread
    a0 = cuda.shared.array((8, 68), float32, alignment=16)
    a1 = cuda.shared.array((8, 68), float32, alignment=16)
    b0 = cuda.shared.array((8, 64), float32, alignment=16)
    b1 = cuda.shared.array((8, 64), float32, alignment=16)
    acc = cuda.local.array((8, 8), float32)
    left, right = cuda.local.array(8, float32), cuda.local.array(8, float32)
    t = uint32(cuda.threadIdx.x)
    y, x = uint32(t // 8 * 8), uint32(t % 8 * 4)
    row, col = int64(cuda.blockIdx.y * 64 + t), int64(cuda.blockIdx.x * 64 + t % 16 * 4)
    for i in range(8):
        for j in range(8): acc[i, j] = float32(0)
    last = a.shape[1] - 8
    k0 = int64(0)
    for h in range(2):
        v = load4(a, (row, int64(4 * h)))
        for q in range(4): a0[4 * h + q, t] = v[q]
        store4(b0, (uint32(t // 16 + 4 * h), uint32(t % 16 * 4)), *load4(b, (int64(t // 16 + 4 * h), col)))
    cuda.syncthreads()
    while k0 < a.shape[1]:
        for h in range(2):
            v = load4(a, (row, k0 + 8 + 4 * h))
            for q in range(4): a1[4 * h + q, t] = v[q]
            store4(b1, (uint32(t // 16 + 4 * h), uint32(t % 16 * 4)),
                   *load4(b, (k0 + 8 + t // 16 + 4 * h, col)))
        for k in range(8):
            for i in range(8): left[i] = a0[k, y + i]
            for j in range(4): right[j], right[j + 4] = b0[k, x + j], b0[k, x + 32 + j]
            for i in range(8):
                for j in range(8): acc[i, j] += left[i] * right[j]
        cuda.syncthreads()
        k1 = min(k0 + 16, last)  # the last turn copies a tile that nobody needs
        for h in range(2):
            v = load4(a, (row, k1 + 4 * h))
            for q in range(4): a0[4 * h + q, t] = v[q]
            store4(b0, (uint32(t // 16 + 4 * h), uint32(t % 16 * 4)), *load4(b, (k1 + t // 16 + 4 * h, col)))
        for k in range(8):
            for i in range(8): left[i] = a1[k, y + i]
            for j in range(4): right[j], right[j + 4] = b1[k, x + j], b1[k, x + 32 + j]
            for i in range(8):
                for j in range(8): acc[i, j] += left[i] * right[j]
        cuda.syncthreads()
        k0 += 16
    row0, col0 = int64(cuda.blockIdx.y * 64 + y), int64(cuda.blockIdx.x * 64 + x)
    for i in range(8):
        store4(c, (row0 + i, col0), acc[i, 0], acc[i, 1], acc[i, 2], acc[i, 3])
        store4(c, (row0 + i, col0 + 32), acc[i, 4], acc[i, 5], acc[i, 6], acc[i, 7])

@launched(128, 64, 128, least=16)
@cuda.jit
def only_b_copied_asynchronously(a, b, c):
    # A goes through registers, since it's transposed; B by cp.async
    sa = cuda.shared.array((2, 16, 132), float32, alignment=16)
    sb = cuda.shared.array((2, 16, 64), float32, alignment=16)
    acc = cuda.local.array((8, 8), float32)
    left, right = cuda.local.array(8, float32), cuda.local.array(8, float32)
    on_its_way = cuda.local.array(16, float32)
    t = uint32(cuda.threadIdx.x)
    row0, col0 = int64(cuda.blockIdx.y * 128), int64(cuda.blockIdx.x * 64)
    y, x = uint32(t // 8 * 8), uint32(t % 8 * 4)
    r, q = uint32(t // 4), uint32(t % 4 * 4)
    for i in range(8):
        for j in range(8): acc[i, j] = float32(0)
    for p in range(2):
        at = uint32(t // 16 + 8 * p)
        cp_async(sb, (0, at, uint32(t % 16 * 4)), b, (int64(at), col0 + t % 16 * 4), 4, 4)
    cp_async_commit_group()
    for p in range(4):
        v = load4(a, (row0 + r + 32 * p, int64(q)))
        for e in range(4): sa[0, q + e, r + 32 * p] = v[e]
    now, k0 = uint32(0), int64(16)
    while k0 <= a.shape[1]:
        cp_async_wait_group(0)
        cuda.syncthreads()
        more = k0 < a.shape[1]
        if more:
            for p in range(2):
                at = uint32(t // 16 + 8 * p)
                cp_async(sb, (uint32(1 - now), at, uint32(t % 16 * 4)), b, (k0 + at, col0 + t % 16 * 4), 4, 4)
            for p in range(4):
                v = load4(a, (row0 + r + 32 * p, k0 + q))
                for e in range(4): on_its_way[4 * p + e] = v[e]
        cp_async_commit_group()
        k = uint32(0)
        while k < uint32(16):
            for i in range(8): left[i] = sa[now, k, y + i]
            for j in range(4): right[j], right[j + 4] = sb[now, k, x + j], sb[now, k, x + 32 + j]
            for i in range(8):
                for j in range(8): acc[i, j] += left[i] * right[j]
            k = uint32(k + 1)
        now = uint32(1 - now)
        if more:
            for p in range(4):
                for e in range(4): sa[now, q + e, r + 32 * p] = on_its_way[4 * p + e]
        k0 += 16
    for i in range(8):
        for h in range(2):
            store4(c, (row0 + y + i, col0 + x + 32 * h),
                   acc[i, 4 * h], acc[i, 4 * h + 1], acc[i, 4 * h + 2], acc[i, 4 * h + 3])


# One who has read it all, and tries other things

def at_every_step(bk):
    "The steps of a tile of this depth are written out."
    @cuda.jit
    @unrolled
    def kernel(a, b, c):
        sa = cuda.shared.array((bk, 64), float32, alignment=16)
        sb = cuda.shared.array((bk, 64), float32, alignment=16)
        acc = cuda.local.array((4, 4), float32)
        t = uint32(cuda.threadIdx.x)
        row0, col0 = int64(cuda.blockIdx.y * 64), int64(cuda.blockIdx.x * 64)
        y, x = uint32(t // 16 * 4), uint32(t % 16 * 4)
        for i in static(4):
            for j in static(4): acc[i, j] = float32(0)
        k0 = int64(0)
        while k0 < a.shape[1]:
            v = load4(a, (row0 + t // 4, k0 + t % 4 * 4))
            for e in static(4): sa[t % 4 * 4 + e, t // 4] = v[e]
            store4(sb, (uint32(t // 16), x), *load4(b, (k0 + t // 16, col0 + x)))
            cuda.syncthreads()
            for k in static(bk):
                p, q, r, s = load4(sb, (uint32(k), x))
                left = load4(sa, (uint32(k), y))
                for i in static(4):
                    acc[i, 0] += left[i] * p
                    acc[i, 1] += left[i] * q
                    acc[i, 2] += left[i] * r
                    acc[i, 3] += left[i] * s
            cuda.syncthreads()
            k0 += bk
        for i in static(4):
            store4(c, (row0 + y + i, col0 + x), acc[i, 0], acc[i, 1], acc[i, 2], acc[i, 3])
    return kernel

launched(64, 64, 256, least=16, name="all_steps_written_out")(at_every_step(16))

@launched(128, 128, (16, 16), least=8)
@cuda.jit
def two_steps_at_a_time(a, b, c):
    # A as it lies, read in pairs along k: two steps a turn
    sa = cuda.shared.array((128, 10), float32, alignment=16)
    sb = cuda.shared.array((8, 128), float32, alignment=16)
    acc = cuda.local.array((8, 8), float32)
    even, odd = cuda.local.array(8, float32), cuda.local.array(8, float32)
    x, y = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
    t = uint32(y * 16 + x)
    row0, col0 = int64(cuda.blockIdx.y * 128), int64(cuda.blockIdx.x * 128)
    for i in range(8):
        for j in range(8): acc[i, j] = float32(0)
    k0 = int64(0)
    while k0 < a.shape[1]:
        v = load4(a, (row0 + t // 2, k0 + t % 2 * 4))
        store2(sa, (uint32(t // 2), uint32(t % 2 * 4)), v[0], v[1])
        store2(sa, (uint32(t // 2), uint32(t % 2 * 4 + 2)), v[2], v[3])
        store4(sb, (uint32(t // 32), uint32(t % 32 * 4)), *load4(b, (k0 + t // 32, col0 + t % 32 * 4)))
        cuda.syncthreads()
        k = uint32(0)
        while k < uint32(8):
            for j in range(4):
                even[j], even[j + 4] = sb[k, x * 4 + j], sb[k, x * 4 + 64 + j]
                odd[j], odd[j + 4] = sb[k + 1, x * 4 + j], sb[k + 1, x * 4 + 64 + j]
            for i in range(8):
                v, w = load2(sa, (uint32(y + 16 * i), k))
                for j in range(8): acc[i, j] += v * even[j]
                for j in range(8): acc[i, j] += w * odd[j]
            k = uint32(k + 2)
        cuda.syncthreads()
        k0 += 8
    for i in range(8):
        for h in range(2):
            store4(c, (row0 + y + 16 * i, col0 + x * 4 + 64 * h),
                   acc[i, 4 * h], acc[i, 4 * h + 1], acc[i, 4 * h + 2], acc[i, 4 * h + 3])

@launched(128, 64, 128, least=8, grid=lambda m, n: 132)
@cuda.jit
def one_block_per_multiprocessor(a, b, c):
    # 132 blocks take tiles in turns, down the columns of C
    sa = cuda.shared.array((8, 132), float32, alignment=16)
    sb = cuda.shared.array((8, 64), float32, alignment=16)
    acc = cuda.local.array((8, 8), float32)
    left, right = cuda.local.array(8, float32), cuda.local.array(8, float32)
    t = uint32(cuda.threadIdx.x)
    y, x = uint32(t // 8 * 8), uint32(t % 8 * 8)
    down = c.shape[0] // 128
    tiles = down * (c.shape[1] // 64)
    tile = cuda.blockIdx.x
    while tile < tiles:
        row0, col0 = tile % down * 128, tile // down * 64
        for i in range(8):
            for j in range(8): acc[i, j] = float32(0)
        for k0 in range(0, a.shape[1], 8):
            for h in range(2):
                v = load4(a, (row0 + t, k0 + 4 * h))
                for q in range(4): sa[4 * h + q, t] = v[q]
            store4(sb, (uint32(t // 16), uint32(t % 16 * 4)), *load4(b, (k0 + t // 16, col0 + t % 16 * 4)))
            cuda.syncthreads()
            for k in range(8):
                for i in range(8): left[i] = sa[k, y + i]
                for j in range(8): right[j] = sb[k, x + j]
                for i in range(8):
                    for j in range(8): acc[i, j] += left[i] * right[j]
            cuda.syncthreads()
        for i in range(8):
            for j in range(0, 8, 4):
                store4(c, (row0 + y + i, col0 + x + j),
                       acc[i, j], acc[i, j + 1], acc[i, j + 2], acc[i, j + 3])
        tile += cuda.gridDim.x

@launched(32, 32, (32, 8), grid=lambda m, n: (m // 32) * (n // 32))
@cuda.jit
def tiles_in_eight_by_eight(a, b, c):
    # the grid is one-dimensional; 8 × 8 tiles of C are neighbors in it. 4 results a thread
    sa = cuda.shared.array((32, 32), float32)
    sb = cuda.shared.array((32, 32), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    across, down = c.shape[1] // 32, c.shape[0] // 32
    wide, high = min(8, across), min(8, down)
    group, inside = cuda.blockIdx.x // (wide * high), cuda.blockIdx.x % (wide * high)
    row0 = (group // (across // wide) * high + inside // wide) * 32
    col0 = (group % (across // wide) * wide + inside % wide) * 32
    s0, s1, s2, s3 = float32(0), float32(0), float32(0), float32(0)
    for k0 in range(0, a.shape[1], 32):
        for p in range(0, 32, 8):
            sa[p + y, x] = a[row0 + p + y, k0 + x]
            sb[p + y, x] = b[k0 + p + y, col0 + x]
        cuda.syncthreads()
        for k in range(32):
            v = sb[k, x]
            s0 += sa[4 * y, k] * v
            s1 += sa[4 * y + 1, k] * v
            s2 += sa[4 * y + 2, k] * v
            s3 += sa[4 * y + 3, k] * v
        cuda.syncthreads()
    c[row0 + 4 * y, col0 + x], c[row0 + 4 * y + 1, col0 + x] = s0, s1
    c[row0 + 4 * y + 2, col0 + x], c[row0 + 4 * y + 3, col0 + x] = s2, s3

@launched(64, 64, (16, 16), least=32, adds=True, grid=lambda m, n: (n // 64, m // 64, 2))
@cuda.jit
def two_blocks_a_tile(a, b, c):
    # each takes every other tile of k, and adds its sums to C
    sa = cuda.shared.array((16, 64), float32)
    sb = cuda.shared.array((16, 64), float32)
    acc = cuda.local.array((4, 4), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row0, col0 = cuda.blockIdx.y * 64, cuda.blockIdx.x * 64
    for i in range(4):
        for j in range(4): acc[i, j] = 0
    for k0 in range(16 * cuda.blockIdx.z, a.shape[1], 32):
        for p in range(4):
            sa[x, y + 16 * p] = a[row0 + y + 16 * p, k0 + x]
            sb[y, x + 16 * p] = b[k0 + y, col0 + x + 16 * p]
        cuda.syncthreads()
        for k in range(16):
            for i in range(4):
                v = sa[k, y * 4 + i]
                for j in range(4): acc[i, j] += v * sb[k, x * 4 + j]
        cuda.syncthreads()
    for i in range(4):
        for j in range(4): cuda.atomic.add(c, (row0 + y * 4 + i, col0 + x * 4 + j), acc[i, j])

@launched(32, 32, (32, 16))
@cuda.jit
def sums_in_shared(a, b, c):
    # the sums lie in shared memory; k is the outermost loop, and each thread adds to two of them
    sa = cuda.shared.array((32, 32), float32)
    sums = cuda.shared.array((32, 32), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row0, col = cuda.blockIdx.y * 32, cuda.blockIdx.x * 32 + x
    sums[y, x] = sums[y + 16, x] = 0
    for k0 in range(0, a.shape[1], 32):
        sa[y, x] = a[row0 + y, k0 + x]
        sa[y + 16, x] = a[row0 + y + 16, k0 + x]
        cuda.syncthreads()
        for k in range(32):
            v = b[k0 + k, col]
            sums[y, x] += sa[y, k] * v
            sums[y + 16, x] += sa[y + 16, k] * v
        cuda.syncthreads()
    c[row0 + y, col] = sums[y, x]
    c[row0 + y + 16, col] = sums[y + 16, x]

@launched(16, 32, (32, 4))
@cuda.jit
def a_by_shuffles(a, b, c):
    # a lane holds one of 32 neighbors in a row of A, and hands it to the others. 4 rows a warp
    lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 16 + warp * 4, cuda.blockIdx.x * 32 + lane
    s0 = s1 = s2 = s3 = float32(0)
    for k0 in range(0, a.shape[1], 32):
        a0, a1 = a[row, k0 + lane], a[row + 1, k0 + lane]
        a2, a3 = a[row + 2, k0 + lane], a[row + 3, k0 + lane]
        for k in range(32):
            v = b[k0 + k, col]
            s0 += cuda.shfl_sync(0xffffffff, a0, k) * v
            s1 += cuda.shfl_sync(0xffffffff, a1, k) * v
            s2 += cuda.shfl_sync(0xffffffff, a2, k) * v
            s3 += cuda.shfl_sync(0xffffffff, a3, k) * v
    c[row, col], c[row + 1, col], c[row + 2, col], c[row + 3, col] = s0, s1, s2, s3

@launched(256, 128, 256, least=8)
@cuda.jit
def sixteen_by_eight(a, b, c):
    # 128 results a thread, the columns in two groups; one buffer
    sa = cuda.shared.array((8, 260), float32, alignment=16)
    sb = cuda.shared.array((8, 128), float32, alignment=16)
    acc = cuda.local.array((16, 8), float32)
    left, right = cuda.local.array(16, float32), cuda.local.array(8, float32)
    t = uint32(cuda.threadIdx.x)
    row0, col0 = int64(cuda.blockIdx.y) * 256, int64(cuda.blockIdx.x) * 128
    y, x = uint32(t // 16 * 16), uint32(t % 16 * 4)
    for i in range(16):
        for j in range(8): acc[i, j] = float32(0)
    k0 = int64(0)
    while k0 < a.shape[1]:
        for h in range(2):
            v = load4(a, (row0 + t, k0 + 4 * h))
            for q in range(4): sa[4 * h + q, t] = v[q]
        store4(sb, (uint32(t // 32), uint32(t % 32 * 4)), *load4(b, (k0 + t // 32, col0 + t % 32 * 4)))
        cuda.syncthreads()
        k = uint32(0)
        while k < uint32(8):
            for i in range(16): left[i] = sa[k, y + i]
            for j in range(4): right[j], right[j + 4] = sb[k, x + j], sb[k, x + 64 + j]
            for i in range(16):
                for j in range(8): acc[i, j] += left[i] * right[j]
            k = uint32(k + 1)
        cuda.syncthreads()
        k0 += 8
    for i in range(16):
        for h in range(2):
            store4(c, (row0 + y + i, col0 + x + 64 * h),
                   acc[i, 4 * h], acc[i, 4 * h + 1], acc[i, 4 * h + 2], acc[i, 4 * h + 3])


KERNELS = {name: one.at(4096, 4096) for name, one in WRITTEN.items()}
