"""The fourth round: naive kernels and shared tiles, as readers of lessons 1 to 4 might write them; see
in_registers.py."""
import numba_matmul  # noqa: F401  first: this chooses between the GPU and the simulator
from numba import cuda, float32, float64, int32, uint32

from numba_matmul.ptx.core import load4, store4

from .written import collection

WRITTEN, launched = collection()


# Straight from global memory

@launched(32, 8, (8, 32), edges=True)
@cuda.jit
def leaves_early(A, B, C):
    row = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    col = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if row >= C.shape[0]: return
    if col >= C.shape[1]: return
    total = float32(0.0)
    for k in range(A.shape[1]): total = total + A[row, k] * B[k, col]
    C[row, col] = total

@launched(16, 16, (16, 16), grid=lambda m, n: (m // 16) * (n // 16))
@cuda.jit
def groups_of_8_block_rows(A, B, C):
    # blocks go down eight rows of tiles before they move to the right
    down, across = C.shape[0] // 16, C.shape[1] // 16
    first = cuda.blockIdx.x // (8 * across) * 8
    inside, height = cuda.blockIdx.x % (8 * across), min(down - first, 8)
    i = (first + inside % height) * 16 + cuda.threadIdx.y
    j = inside // height * 16 + cuda.threadIdx.x
    s = float32(0)
    for k in range(A.shape[1]): s += A[i, k] * B[k, j]
    C[i, j] = s

@launched(4, 64, (64, 4))
@cuda.jit
def two_steps_a_turn(A, B, C):
    j, i = cuda.grid(2)
    acc = float32(0)
    k = 0
    while k < A.shape[1]:
        acc += A[i, k] * B[k, j]
        acc += A[i, k + 1] * B[k + 1, j]
        k += 2
    C[i, j] = acc

@launched(8, 32, (32, 8))
@cuda.jit
def eight_sums_and_a_tree(A, B, C):
    x, y = cuda.grid(2)
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = float32(0)
    for k in range(0, A.shape[1], 8):
        s0 += A[y, k] * B[k, x]
        s1 += A[y, k + 1] * B[k + 1, x]
        s2 += A[y, k + 2] * B[k + 2, x]
        s3 += A[y, k + 3] * B[k + 3, x]
        s4 += A[y, k + 4] * B[k + 4, x]
        s5 += A[y, k + 5] * B[k + 5, x]
        s6 += A[y, k + 6] * B[k + 6, x]
        s7 += A[y, k + 7] * B[k + 7, x]
    C[y, x] = ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))

@launched(4, 96, (96, 4), edges=True)
@cuda.jit
def from_the_end_by_threes(A, B, C):
    col, row = cuda.grid(2)
    if row < C.shape[0] and col < C.shape[1]:
        s, k = float32(0), A.shape[1] - 1
        while k >= 2:
            s += A[row, k] * B[k, col] + A[row, k - 1] * B[k - 1, col] + A[row, k - 2] * B[k - 2, col]
            k -= 3
        while k >= 0:
            s += A[row, k] * B[k, col]
            k -= 1
        C[row, col] = s

@launched(16, 32, (32, 16), least=64)
@cuda.jit
def a_double_every_64(A, B, C):
    col, row = cuda.grid(2)
    total = float64(0)
    for k0 in range(0, A.shape[1], 64):
        part = float32(0)
        for k in range(k0, k0 + 64): part += A[row, k] * B[k, col]
        total += part
    C[row, col] = total

@launched(8, 32, (32, 8))
@cuda.jit
def neumaier(A, B, C):
    # like Kahan's sum, but right for a large addend, too
    col, row = cuda.grid(2)
    s = lost = float32(0)
    for k in range(A.shape[1]):
        x = A[row, k] * B[k, col]
        t = s + x
        if abs(s) >= abs(x): lost += (s - t) + x
        else: lost += (x - t) + s
        s = t
    C[row, col] = s + lost

@launched(32, 32, (32, 32))
@cuda.jit
def fused_by_hand(A, B, C):
    col, row = uint32(cuda.grid(2)[0]), uint32(cuda.grid(2)[1])
    s, k = float32(0), uint32(0)
    while k < uint32(A.shape[1]):
        s = cuda.fma(A[row, k], B[k, col], s)
        k = uint32(k + 1)
    C[row, col] = s

@launched(1, 256, 256, edges=True)
@cuda.jit
def starts_at_its_row(A, B, C):
    # so that blocks don't all read the same row of B
    i, j, length = cuda.blockIdx.y, cuda.blockIdx.x * 256 + cuda.threadIdx.x, A.shape[1]
    if j < C.shape[1]:
        s = float32(0)
        for p in range(length):
            k = int32(p + i) % int32(length)
            s += A[i, k] * B[k, j]
        C[i, j] = s

@launched(64, 64, 64)
@cuda.jit
def down_a_column_piece(A, B, C):
    # 64 results of a column, each with a loop of its own
    j = cuda.blockIdx.x * 64 + cuda.threadIdx.x
    for i in range(cuda.blockIdx.y * 64, cuda.blockIdx.y * 64 + 64):
        s = float32(0)
        for k in range(A.shape[1]): s += A[i, k] * B[k, j]
        C[i, j] = s

@launched(8, 96, (32, 8), edges=True)
@cuda.jit
def three_neighbors_guarded(A, B, C):
    col, row = cuda.grid(2)
    col *= 3
    p, q, r = float32(0), float32(0), float32(0)
    if row < A.shape[0]:
        for k in range(A.shape[1]):
            x = A[row, k]
            if col < B.shape[1]: p += x * B[k, col]
            if col + 1 < B.shape[1]: q += x * B[k, col + 1]
            if col + 2 < B.shape[1]: r += x * B[k, col + 2]
        if col < C.shape[1]: C[row, col] = p
        if col + 1 < C.shape[1]: C[row, col + 1] = q
        if col + 2 < C.shape[1]: C[row, col + 2] = r

@launched(64, 32, (32, 8))
@cuda.jit
def eight_rows_from_global(a, b, c):
    sums = cuda.local.array(8, float32)
    x, first = cuda.grid(2)
    first *= 8
    for i in range(8): sums[i] = 0
    for k in range(a.shape[1]):
        v = b[k, x]
        for i in range(8): sums[i] += a[first + i, k] * v
    for i in range(8): c[first + i, x] = sums[i]

@launched(64, 64, (16, 16))
@cuda.jit
def fours_of_both_from_global(a, b, c):
    acc = cuda.local.array((4, 4), float32)
    col, row = 4 * cuda.grid(2)[0], 4 * cuda.grid(2)[1]
    for i in range(4):
        for j in range(4): acc[i, j] = float32(0)
    for k in range(0, a.shape[1], 4):
        x0, x1 = load4(b, (k, col)), load4(b, (k + 1, col))
        x2, x3 = load4(b, (k + 2, col)), load4(b, (k + 3, col))
        for i in range(4):
            p, q, r, s = load4(a, (row + i, k))
            for j in range(4): acc[i, j] += p * x0[j] + q * x1[j] + r * x2[j] + s * x3[j]
    for i in range(4): store4(c, (row + i, col), acc[i, 0], acc[i, 1], acc[i, 2], acc[i, 3])

@launched(1, 32, (8, 32))
@cuda.jit
def eight_lanes_per_result(A, B, C):
    lane, row, col = cuda.threadIdx.x, cuda.blockIdx.y, cuda.blockIdx.x * 32 + cuda.threadIdx.y
    s = float32(0)
    for k in range(lane, A.shape[1], 8): s += A[row, k] * B[k, col]
    s += cuda.shfl_xor_sync(0xffffffff, s, 4)
    s += cuda.shfl_xor_sync(0xffffffff, s, 2)
    s += cuda.shfl_xor_sync(0xffffffff, s, 1)
    if lane == 0: C[row, col] = s

@launched(8, 32, (32, 8), flat=True, more=lambda m, n, k: (n, k))
@cuda.jit
def flat_pointers_down_b(a, b, c, n, k):
    col, row = cuda.grid(2)
    at_a, at_b, end, s = row * k, col, row * k + k, float32(0)
    while at_a != end:
        s += a[at_a] * b[at_b]
        s += a[at_a + 1] * b[at_b + n]
        s += a[at_a + 2] * b[at_b + 2 * n]
        s += a[at_a + 3] * b[at_b + 3 * n]
        at_a += 4
        at_b += 4 * n
    c[row * n + col] = s


# One of the matrices through shared memory

@launched(128, 1, 128, least=128, grid=lambda m, n: (n, m // 128))
@cuda.jit
def a_column_of_b_in_shared(A, B, C):
    column = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    col, row, s = cuda.blockIdx.x, cuda.blockIdx.y * 128 + t, float32(0)
    for k0 in range(0, A.shape[1], 128):
        column[t] = B[k0 + t, col]
        cuda.syncthreads()
        for k in range(128): s += A[row, k0 + k] * column[k]
        cuda.syncthreads()
    C[row, col] = s

@launched(4, 128, 128, least=128)
@cuda.jit
def four_rows_of_a_in_shared(A, B, C):
    rows = cuda.shared.array((4, 128), float32)
    t, row, col = cuda.threadIdx.x, cuda.blockIdx.y * 4, cuda.blockIdx.x * 128 + cuda.threadIdx.x
    p = q = r = s = float32(0)
    for k0 in range(0, A.shape[1], 128):
        for i in range(4): rows[i, t] = A[row + i, k0 + t]
        cuda.syncthreads()
        for k in range(128):
            v = B[k0 + k, col]
            p += rows[0, k] * v
            q += rows[1, k] * v
            r += rows[2, k] * v
            s += rows[3, k] * v
        cuda.syncthreads()
    C[row, col], C[row + 1, col], C[row + 2, col], C[row + 3, col] = p, q, r, s

@launched(16, 64, (64, 4))
@cuda.jit
def panel_of_b_in_shared(A, B, C):
    panel = cuda.shared.array((32, 64), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 16 + y, cuda.blockIdx.x * 64 + x
    s0, s1, s2, s3 = float32(0), float32(0), float32(0), float32(0)
    for k0 in range(0, A.shape[1], 32):
        for k in range(y, 32, 4): panel[k, x] = B[k0 + k, col]
        cuda.syncthreads()
        for k in range(32):
            v = panel[k, x]
            s0 += A[row, k0 + k] * v
            s1 += A[row + 4, k0 + k] * v
            s2 += A[row + 8, k0 + k] * v
            s3 += A[row + 12, k0 + k] * v
        cuda.syncthreads()
    C[row, col], C[row + 4, col], C[row + 8, col], C[row + 12, col] = s0, s1, s2, s3


# Tiles of both in shared memory

def square(size, depth, name, reverse=False, wide=float32, barriers=1, pad=0, steps=1):
    """size × size threads, tiles `depth` deep. `reverse`: the tiles from the last to the first; `wide`: the
    type of the sum; `barriers`: how many of them in a row; `steps`: of the inner loop's range."""
    row_of_a, row_of_b = depth + pad, size + pad

    @cuda.jit(max_registers=64)  # 32 × 32 threads can't have more
    def kernel(A, B, C):
        tile_a = cuda.shared.array((size, row_of_a), float32)
        tile_b = cuda.shared.array((depth, row_of_b), float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        row, col = cuda.blockIdx.y * size + ty, cuda.blockIdx.x * size + tx
        total, tiles = wide(0), A.shape[1] // depth
        for tile in range(tiles):
            k0 = (tiles - 1 - tile if reverse else tile) * depth
            for k in range(tx, depth, size): tile_a[ty, k] = A[row, k0 + k]
            for k in range(ty, depth, size): tile_b[k, tx] = B[k0 + k, col]
            for _ in range(barriers): cuda.syncthreads()
            for k in range(0, depth, steps):
                for q in range(steps): total += wide(tile_a[ty, k + q]) * wide(tile_b[k + q, tx])
            for _ in range(barriers): cuda.syncthreads()
        C[row, col] = total
    launched(size, size, (size, size), name=name, least=depth)(kernel)

square(32, 64, "square_32_64_deep")
square(16, 8, "square_16_half_of_the_threads_copy")
square(4, 4, "square_4")
square(32, 32, "square_32_three_barriers", barriers=3)
square(16, 32, "square_16_from_the_last_tile", reverse=True, pad=1)
square(16, 16, "square_16_double_sums", wide=float64)
square(32, 16, "square_32_16_deep_by_eights", steps=8)

@launched(16, 16, (16, 16), least=16)
@cuda.jit
def two_buffers_of_16(A, B, C):
    sa, sb = cuda.shared.array((2, 16, 16), float32), cuda.shared.array((2, 16, 16), float32)
    x, y, now, s = cuda.threadIdx.x, cuda.threadIdx.y, 0, float32(0)
    j, i = cuda.grid(2)
    for k0 in range(0, A.shape[1], 16):
        sa[now, y, x], sb[now, y, x] = A[i, k0 + x], B[k0 + y, j]
        cuda.syncthreads()  # one is enough: the other buffer is free
        for k in range(16): s += sa[now, y, k] * sb[now, k, x]
        now = 1 - now
    C[i, j] = s

@launched(32, 32, (32, 32))
@cuda.jit
def b_transposed_and_padded(A, B, C):
    sa, sb = cuda.shared.array((32, 32), float32), cuda.shared.array((32, 33), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    j, i = cuda.grid(2)
    s = float32(0)
    for k0 in range(0, A.shape[1], 32):
        sa[y, x], sb[x, y] = A[i, k0 + x], B[k0 + y, j]
        cuda.syncthreads()
        for k in range(32): s += sa[y, k] * sb[x, k]
        cuda.syncthreads()
    C[i, j] = s

@launched(32, 32, 1024, flat=True, more=lambda m, n, k: (uint32(n), uint32(k)))
@cuda.jit
def one_flat_array_for_both(a, b, c, n, k):
    both = cuda.shared.array(2048, float32)
    t = uint32(cuda.threadIdx.x)
    x, y = t & uint32(31), t >> uint32(5)
    at_a, at_b = uint32((cuda.blockIdx.y * 32 + y) * k + x), uint32(y * n + cuda.blockIdx.x * 32 + x)
    to, s, left = uint32((cuda.blockIdx.y * 32 + y) * n + cuda.blockIdx.x * 32 + x), float32(0), k
    while left > uint32(0):
        both[t], both[t + uint32(1024)] = a[at_a], b[at_b]
        cuda.syncthreads()
        for q in range(32): s += both[y * 32 + q] * both[1024 + q * 32 + x]
        cuda.syncthreads()
        at_a, at_b, left = uint32(at_a + 32), uint32(at_b + 32 * n), uint32(left - 32)
    c[to] = s

@launched(28, 28, (28, 28), edges=True)
@cuda.jit
def tile_28_with_edges(A, B, C):
    sa, sb = cuda.shared.array((28, 28), float32), cuda.shared.array((28, 28), float32)
    x, y, s = cuda.threadIdx.x, cuda.threadIdx.y, float32(0)
    j, i = cuda.grid(2)
    for t in range((A.shape[1] + 27) // 28):
        sa[y, x] = sb[y, x] = float32(0)
        if i < A.shape[0] and t * 28 + x < A.shape[1]: sa[y, x] = A[i, t * 28 + x]
        if t * 28 + y < B.shape[0] and j < B.shape[1]: sb[y, x] = B[t * 28 + y, j]
        cuda.syncthreads()
        for k in range(28): s += sa[y, k] * sb[k, x]
        cuda.syncthreads()
    if i < C.shape[0] and j < C.shape[1]: C[i, j] = s

@launched(16, 16, (16, 16, 4), least=64)
@cuda.jit
def four_layers_of_threads(A, B, C):
    # each layer has tiles of its own; the first adds what all have
    sa, sb = cuda.shared.array((4, 16, 16), float32), cuda.shared.array((4, 16, 16), float32)
    x, y, z, s = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z, float32(0)
    i, j = cuda.blockIdx.y * 16 + y, cuda.blockIdx.x * 16 + x
    for k0 in range(16 * z, A.shape[1], 64):
        sa[z, y, x], sb[z, y, x] = A[i, k0 + x], B[k0 + y, j]
        cuda.syncthreads()
        for k in range(16): s += sa[z, y, k] * sb[z, k, x]
        cuda.syncthreads()
    sa[z, y, x] = s
    cuda.syncthreads()
    if z == 0: C[i, j] = sa[0, y, x] + sa[1, y, x] + sa[2, y, x] + sa[3, y, x]

@launched(16, 16, (16, 16), least=64, adds=True, grid=lambda m, n: (n // 16, m // 16, 4))
@cuda.jit
def quarters_added_by_atomics(A, B, C):
    sa, sb = cuda.shared.array((16, 17), float32), cuda.shared.array((16, 17), float32)
    x, y, part, s = cuda.threadIdx.x, cuda.threadIdx.y, A.shape[1] // 4, float32(0)
    i, j = cuda.blockIdx.y * 16 + y, cuda.blockIdx.x * 16 + x
    for k0 in range(cuda.blockIdx.z * part, (cuda.blockIdx.z + 1) * part, 16):
        sa[y, x], sb[y, x] = A[i, k0 + x], B[k0 + y, j]
        cuda.syncthreads()
        for k in range(16): s += sa[y, k] * sb[k, x]
        cuda.syncthreads()
    cuda.atomic.add(C, (i, j), s)

@launched(16, 16, (16, 16))
@cuda.jit
def row_of_a_in_a_local_array(A, B, C):
    # each lane starts elsewhere, so the array can't be in registers
    sa, sb = cuda.shared.array((16, 16), float32), cuda.shared.array((16, 16), float32)
    mine = cuda.local.array(16, float32)
    x, y, s = cuda.threadIdx.x, cuda.threadIdx.y, float32(0)
    j, i = cuda.grid(2)
    for k0 in range(0, A.shape[1], 16):
        sa[y, x], sb[y, x] = A[i, k0 + x], B[k0 + y, j]
        cuda.syncthreads()
        for k in range(16): mine[k] = sa[y, k]
        for k in range(16): s += mine[(k + x) % 16] * sb[(k + x) % 16, x]
        cuda.syncthreads()
    C[i, j] = s

@launched(32, 32, (32, 32), grid=lambda m, n: 264)
@cuda.jit
def diagonals_for_264_blocks(A, B, C):
    sa, sb = cuda.shared.array((32, 32), float32), cuda.shared.array((32, 32), float32)
    x, y, across = cuda.threadIdx.x, cuda.threadIdx.y, C.shape[1] // 32
    for tile in range(cuda.blockIdx.x, C.shape[0] // 32 * across, cuda.gridDim.x):
        i, j = tile // across * 32 + y, (tile % across + tile // across) % across * 32 + x
        s = float32(0)
        for k0 in range(0, A.shape[1], 32):
            sa[y, x], sb[y, x] = A[i, k0 + x], B[k0 + y, j]
            cuda.syncthreads()
            for k in range(32): s += sa[y, k] * sb[k, x]
            cuda.syncthreads()
        C[i, j] = s


KERNELS = {name: one.at(4096, 4096) for name, one in WRITTEN.items()}
