"A table of kernels and nothing else: those that look wrong but are right."
import numpy as np
from numba_matmul.ptx.hopper import bar_sync  # before numba: this chooses between the GPU and the simulator
from numba import cuda, float32, float64, int32

from tricky_cases import FULL, counted, numbers, one_in_one_out, right, whole, zeros


# --- a warp, and some of its lanes ---

@right(1, 64, one_in_one_out(64), lambda x, out: np.repeat(x.reshape(2, 32).sum(1), 32))
@cuda.jit
def sum_by_butterfly(x, out):
    i = cuda.threadIdx.x
    value = x[i]
    for step in (16, 8, 4, 2, 1): value += cuda.shfl_xor_sync(FULL, value, step)
    out[i] = value


@right(1, 64, one_in_one_out(64), lambda x, out: x.reshape(2, 32).cumsum(1).ravel())
@cuda.jit
def scan_by_shuffles(x, out):
    i, lane = cuda.threadIdx.x, cuda.threadIdx.x % 32
    value = x[i]
    step = 1
    while step < 32:
        other = cuda.shfl_up_sync(FULL, value, step)
        if lane >= step: value += other
        step *= 2
    out[i] = value


@right(1, 32, one_in_one_out(32), lambda x, out: np.r_[np.full(16, x[3]), x[16:]])
@cuda.jit
def half_of_a_warp_shuffles(x, out):
    i = cuda.threadIdx.x
    value = x[i]
    if i < 16: value = cuda.shfl_sync(0xFFFF, value, 3)
    out[i] = value


@right(1, 32, one_in_one_out(32), lambda x, out: np.r_[np.full(16, x[1]), np.full(16, x[30])])
@cuda.jit
def each_half_shuffles_in_its_branch(x, out):
    i = cuda.threadIdx.x
    if i < 16: out[i] = cuda.shfl_sync(0xFFFF, x[i], 1)
    else: out[i] = cuda.shfl_sync(0xFFFF0000, x[i], 30)


@right(1, 32, one_in_one_out(32), lambda x, out: np.r_[x[:16][::-1], x[16:][::-1]])
@cuda.jit
def each_half_has_its_warp_barrier(x, out):
    tile = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    if i < 16:
        cuda.syncwarp(0xFFFF)
        out[i] = tile[15 - i]
    else:
        cuda.syncwarp(0xFFFF0000)
        out[i] = tile[47 - i]


@right(1, 64, one_in_one_out(64), lambda x, out: x.reshape(-1, 2)[:, ::-1].ravel())
@cuda.jit
def pairs_of_lanes_meet(x, out):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    cuda.syncwarp(3 << i % 32 // 2 * 2)
    out[i] = tile[i ^ 1]


@right(1, 32, one_in_one_out(32), lambda x, out: x[::-1])
@cuda.jit
def what_a_half_has_learned_the_warp_learns(x, out):
    tile = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    if i < 16: cuda.syncwarp(0xFFFF)
    cuda.syncwarp()
    out[i] = tile[31 - i]


@right(1, 32, lambda: (zeros(32, dtype=np.int32),), lambda out: np.where(np.arange(32) < 7, 7, 0))
@cuda.jit
def vote_in_a_branch(out):
    i = cuda.threadIdx.x
    if i < 7: out[i] = cuda.popc(cuda.ballot_sync(0x7F, True))


@right(1, 32, one_in_one_out(32), lambda x, out: np.r_[x.sum(), out[1:]])
@cuda.jit
def sum_in_shared_memory_by_one_warp(x, out):
    tile = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    cuda.syncwarp()
    step = 16
    while step > 0:
        value = tile[i]
        if i < step: value += tile[i + step]
        cuda.syncwarp()
        tile[i] = value
        cuda.syncwarp()
        step //= 2
    if i == 0: out[0] = tile[0]


@right(1, 20, one_in_one_out(20), lambda x, out: x[::-1])
@cuda.jit
def a_warp_that_is_not_full(x, out):
    tile = cuda.shared.array(20, float32)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    cuda.syncwarp()
    out[i] = tile[19 - i]


@right(1, 32, one_in_one_out(20), lambda x, out: x[::-1])
@cuda.jit
def lanes_that_have_returned(x, out):
    tile = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    if i >= 20: return
    tile[i] = x[i]
    cuda.syncwarp()
    out[i] = tile[19 - i]


@right(1, 64, one_in_one_out(64), lambda x, out: np.repeat(x.reshape(-1, 8).max(1), 8))
@cuda.jit
def eight_lanes_and_their_mask(x, out):
    i = cuda.threadIdx.x
    value, mask = x[i], 0xFF << i % 32 // 8 * 8
    for step in (4, 2, 1): value = max(value, cuda.shfl_xor_sync(mask, value, step))
    out[i] = value


@right(1, 32, lambda: (whole(32), zeros(32)), lambda x, out: x[(np.arange(32) * 5 + 3) % 32])
@cuda.jit
def each_lane_asks_another(x, out):
    i = cuda.threadIdx.x
    out[i] = cuda.shfl_sync(FULL, x[i], (i * 5 + 3) % 32)


# --- a block ---

@right(1, 64, one_in_one_out(256), lambda x, out: x.reshape(4, 64)[:, ::-1].ravel())
@cuda.jit
def two_buffers_and_one_barrier_a_round(x, out):
    tile = cuda.shared.array((2, 64), float32)
    i = cuda.threadIdx.x
    for r in range(4):
        tile[r % 2, i] = x[64 * r + i]
        cuda.syncthreads()
        out[64 * r + i] = tile[r % 2, 63 - i]


@right(1, 32, lambda: (numbers(64),), lambda x: x[::-1])
@cuda.jit
def each_thread_swaps_its_pair(x):
    i = cuda.threadIdx.x
    x[i], x[63 - i] = x[63 - i], x[i]


@right(1, 96, counted(3), lambda out: np.array([96, 32, 1]))
@cuda.jit
def counts_in_three_ways(out):
    i = cuda.threadIdx.x
    n, third = cuda.syncthreads_count(1), cuda.syncthreads_count(int32(i % 3 == 0))
    one = cuda.syncthreads_or(int32(i == 50))
    if i == 0: out[0], out[1], out[2] = n, third, one


@right(1, 64, lambda: (numbers(8), zeros(8)), lambda x, out: np.arange(8) + x, dynamic=8 * 8 + 8 * 4)
@cuda.jit
def two_types_side_by_side_in_dynamic_memory(x, out):
    wide, narrow = cuda.shared.array(0, float64), cuda.shared.array(0, float32)
    i = cuda.threadIdx.x
    if i < 8: wide[i], narrow[16 + i] = float64(i), x[i]
    cuda.syncthreads()
    if i < 8: out[i] = wide[7 - i] * 0 + i + narrow[16 + i]


@right(1, 64, lambda: (zeros(1, dtype=np.int32),), lambda out: np.ones(1))
@cuda.jit
def all_write_the_same(out): out[0] = 1


@right(1, 96, one_in_one_out(96), lambda x, out: np.r_[x[:64][::-1], out[64:]])
@cuda.jit
def two_warps_at_a_named_barrier(x, out):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i < 64:
        tile[i] = x[i]
        bar_sync(1, 64)
        out[i] = tile[63 - i]


@right(1, 128, lambda: (whole(512) % 16, zeros(16, dtype=np.int32)),
       lambda x, out: np.bincount(x, minlength=16))
@cuda.jit
def histogram_in_shared_memory(x, out):
    bins = cuda.shared.array(16, int32)
    i = cuda.threadIdx.x
    if i < 16: bins[i] = 0
    cuda.syncthreads()
    for j in range(i, x.size, 128): cuda.atomic.add(bins, x[j], 1)
    cuda.syncthreads()
    if i < 16: cuda.atomic.add(out, i, bins[i])


# --- several blocks ---

@right(4, 64, lambda: (whole(512) % 16, zeros(16, dtype=np.int32)),
       lambda x, out: np.bincount(x, minlength=16))
@cuda.jit
def histogram_in_global_memory(x, out):
    for j in range(cuda.grid(1), x.size, 256): cuda.atomic.add(out, x[j], 1)


@right(4, 32, lambda: (whole(128), zeros(1, dtype=np.int32)), lambda x, out: x.max(keepdims=True))
@cuda.jit
def maximum_by_swaps(x, out):
    mine, old = x[cuda.grid(1)], cuda.atomic.add(out, 0, 0)
    while mine > old:
        found = cuda.atomic.cas(out, 0, old, mine)
        if found == old: break
        old = found


@right(4, 32, lambda: (whole(128), zeros(1, dtype=np.int32), zeros(128, dtype=np.int32)),
       lambda x, place, out: np.where(x % 2 == 1, x, 0), sorted=True)
@cuda.jit
def compaction(x, place, out):
    i = cuda.grid(1)
    if x[i] % 2: out[cuda.atomic.add(place, 0, 1)] = x[i]


@right(3, 1, lambda: (numbers(50), zeros(1, dtype=np.int32), zeros(50)), lambda x, next, out: 2 * x)
@cuda.jit
def tasks_from_a_queue(x, next, out):
    task = cuda.atomic.add(next, 0, 1)
    while task < x.size:
        out[task] = 2 * x[task]
        task = cuda.atomic.add(next, 0, 1)


@right(6, 32, lambda: (numbers(192), zeros(6), zeros(1, dtype=np.int32), zeros(1)),
       lambda x, parts, count, out: x.sum(keepdims=True))
@cuda.jit
def the_last_block_adds(x, parts, count, out):
    last = cuda.shared.array(1, int32)
    value, thread = x[cuda.grid(1)], cuda.threadIdx.x
    for step in (16, 8, 4, 2, 1): value += cuda.shfl_down_sync(FULL, value, step)
    if thread == 0:
        parts[cuda.blockIdx.x] = value
        cuda.threadfence()
        last[0] = cuda.atomic.add(count, 0, 1)
        cuda.threadfence()
    cuda.syncthreads()
    if last[0] == 5 and thread == 0:
        total = float32(0)
        for b in range(6): total += parts[b]
        out[0] = total


@right(4, 32, lambda: (numbers(128), zeros(128), zeros(1, dtype=np.int32), zeros(1)),
       lambda x, copied, count, out: x.sum(keepdims=True))
@cuda.jit
def all_threads_fence_and_one_counts(x, copied, count, out):
    last = cuda.shared.array(1, int32)
    i, thread = cuda.grid(1), cuda.threadIdx.x
    copied[i] = x[i]
    cuda.threadfence()
    cuda.syncthreads()
    if thread == 0: last[0] = cuda.atomic.add(count, 0, 1)
    cuda.syncthreads()
    cuda.threadfence()
    if last[0] == 3 and thread == 0:
        total = float32(0)
        for j in range(128): total += copied[j]
        out[0] = total


@right(2, 32, lambda: (numbers(32), zeros(32), zeros(1, dtype=np.int32), zeros(32)),
       lambda x, box, flag, out: x[::-1])
@cuda.jit
def a_flag_from_a_later_block(x, box, flag, out):
    i = cuda.threadIdx.x
    if cuda.blockIdx.x == 1:
        box[i] = x[i]
        cuda.threadfence()
        cuda.syncthreads()
        if i == 0: cuda.atomic.exch(flag, 0, 1)
    else:
        while cuda.atomic.cas(flag, 0, 1, 1) != 1: pass
        cuda.threadfence()
        out[i] = box[31 - i]


@right(3, 1, lambda: (zeros(1), zeros(2, dtype=np.int32), zeros(1)), lambda box, flags, out: np.full(1, 7))
@cuda.jit
def a_flag_handed_on_by_a_third_block(box, flags, out):
    if cuda.blockIdx.x == 0:
        box[0] = 7
        cuda.threadfence()
        cuda.atomic.exch(flags, 0, 1)
    elif cuda.blockIdx.x == 1:
        while cuda.atomic.add(flags, 0, 0) == 0: pass
        cuda.threadfence()
        cuda.atomic.exch(flags, 1, 1)
    else:
        while cuda.atomic.add(flags, 1, 0) == 0: pass
        cuda.threadfence()
        out[0] = box[0]


@right(6, 1, lambda: (numbers(6), zeros(7), zeros(7, dtype=np.int32), zeros(6)),
       lambda x, sums, flags, out: x.cumsum())
@cuda.jit
def each_block_waits_for_the_one_before(x, sums, flags, out):
    b = cuda.blockIdx.x
    if b > 0:
        while cuda.atomic.add(flags, b, 0) == 0: pass
        cuda.threadfence()
    total = x[b] + sums[b]
    sums[b + 1] = total
    cuda.threadfence()
    cuda.atomic.exch(flags, b + 1, 1)
    out[b] = total


@right(6, 1, lambda: (numbers(6), zeros(6), zeros(6), zeros(6, dtype=np.int32), zeros(6)),
       lambda x, own, upto, state, out: x.cumsum())
@cuda.jit
def look_back(x, own, upto, state, out):
    b = cuda.blockIdx.x
    own[b] = x[b]
    cuda.threadfence()
    cuda.atomic.exch(state, b, 1)
    total, before = x[b], b - 1
    while before >= 0:
        known = cuda.atomic.add(state, before, 0)
        if known == 0: continue
        cuda.threadfence()
        if known == 2:
            total += upto[before]
            break
        total += own[before]
        before -= 1
    upto[b] = total
    cuda.threadfence()
    cuda.atomic.exch(state, b, 2)
    out[b] = total


@right(4, 32, lambda: (zeros(1, dtype=np.int32), zeros(1)), lambda lock, out: np.full(1, 4))
@cuda.jit
def a_lock_for_one_thread_of_each_block(lock, out):
    if cuda.threadIdx.x == 0:
        while cuda.atomic.exch(lock, 0, 1) != 0: pass
        cuda.threadfence()
        out[0] += 1
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)


@right(4, 1, lambda: (zeros(2, dtype=np.int32), zeros(1)), lambda lock, out: np.full(1, 4))
@cuda.jit
def a_lock_by_tickets(lock, out):
    mine = cuda.atomic.add(lock, 0, 1)
    while cuda.atomic.add(lock, 1, 0) != mine: pass
    cuda.threadfence()
    out[0] += 1
    cuda.threadfence()
    cuda.atomic.add(lock, 1, 1)


@right(8, 1, lambda: (zeros(3, dtype=np.int32), zeros(3)), lambda locks, out: np.array([3, 3, 2]))
@cuda.jit
def a_lock_for_each_bin(locks, out):
    i = cuda.blockIdx.x % 3
    while cuda.atomic.cas(locks, i, 0, 1) != 0: cuda.nanosleep(20)
    cuda.threadfence()
    out[i] += 1
    cuda.threadfence()
    cuda.atomic.exch(locks, i, 0)


@right(4, 32, lambda: (numbers(128), zeros(1, dtype=np.int32), zeros(128)), lambda x, count, out: x[::-1] + 1)
@cuda.jit
def a_barrier_of_the_grid_made_by_hand(x, count, out):
    i = cuda.grid(1)
    x[i] += 1
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.threadfence()
        cuda.atomic.add(count, 0, 1)
        while cuda.atomic.add(count, 0, 0) < 4: pass
        cuda.threadfence()
    cuda.syncthreads()
    out[i] = x[127 - i]


@right(4, 32, lambda: (whole(128), np.full(8, 1000, np.int32)), lambda x, out: x.reshape(-1, 8).min(0))
@cuda.jit
def minima_by_atomic_operations(x, out):
    i = cuda.grid(1)
    cuda.atomic.min(out, i % 8, x[i])
