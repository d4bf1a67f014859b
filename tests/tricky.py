"""Kernels that look wrong and are right, and others that look right and are wrong. The strict simulator must tell them
apart, and compute-sanitizer is asked, too (`make gpu STAGE=check`):
`tricky.py TIMES NAME…` runs them on a GPU, and prints in how many runs the result was wrong."""
import sys
from typing import NamedTuple

import numpy as np
from numba_matmul.ptx.hopper import bar_sync  # before numba: it chooses between the GPU and the simulator
from numba import cuda, float32, float64, int32

FULL = 0xFFFFFFFF
RIGHT, WRONG = {}, {}


class Case(NamedTuple):
    kernel: object
    grid: int
    block: int
    args: object          # function without arguments → the arrays and numbers, new ones
    expected: object      # function of them, as they were → what the last one must hold
    dynamic: int = 0      # bytes of shared memory
    sorted: bool = False  # are the results in any order?
    kind: str = ""
    says: str = ""        # of a wrong one: what the simulator says, a regular expression
    alarms: str = ""      # of a right one: the tool of compute-sanitizer that does not know what it does

    def launch(self): return self.kernel[self.grid, self.block, 0, self.dynamic]

    def is_right(self, before, after):
        "Is that what the last array should hold?"
        arrange = np.sort if self.sorted else np.asarray
        return np.array_equal(arrange(self.expected(*before)), arrange(after))


def _keep(cases, grid, block, args, expected=None, **fields):
    def keep(kernel):
        name = kernel.py_func.__name__
        assert name not in RIGHT and name not in WRONG, name
        cases[name] = Case(kernel, grid, block, args, expected, **fields)
        return kernel
    return keep


def right(*case, **fields): return _keep(RIGHT, *case, **fields)
def wrong(kind, says, *case, **fields): return _keep(WRONG, *case, kind=kind, says=says, **fields)


def numbers(n): return np.random.default_rng(n).integers(1, 100, n).astype(np.float32)
def whole(n): return np.random.default_rng(n).integers(0, 100, n).astype(np.int32)
def zeros(*shape, dtype=np.float32): return np.zeros(shape, dtype)
def one_in_one_out(n): return lambda: (numbers(n), zeros(n))
def counted(*shape): return lambda: (zeros(*shape, dtype=np.int32),)


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


@right(1, 64, lambda: (numbers(64),), lambda x: x[::-1])
@cuda.jit
def reversed_in_place(x):
    i = cuda.threadIdx.x
    mine = x[63 - i]
    cuda.syncthreads()
    x[i] = mine


@right(1, 32, lambda: (numbers(64),), lambda x: x[::-1])
@cuda.jit
def each_thread_swaps_its_pair(x):
    i = cuda.threadIdx.x
    x[i], x[63 - i] = x[63 - i], x[i]


@right(1, 64, lambda: (numbers(64),), lambda x: np.convolve(np.convolve(x, [1, 1])[:-1], [1, 1])[:-1])
@cuda.jit
def neighbours_in_place(x):
    i = cuda.threadIdx.x
    for _ in range(2):
        value = x[i]
        if i > 0: value += x[i - 1]
        cuda.syncthreads()
        x[i] = value
        cuda.syncthreads()


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


@right(1, 64, lambda: (numbers(64), zeros(64)), lambda x, out: np.r_[out[:32], x[:32]],
       alarms="racecheck")  # it knows barriers, and no flags
@cuda.jit
def a_flag_in_shared_memory(x, out):
    tile, flag = cuda.shared.array(32, float32), cuda.shared.array(1, int32)
    i = cuda.threadIdx.x
    if i == 0: flag[0] = 0
    cuda.syncthreads()
    if i < 32:
        tile[i] = x[i]
        cuda.threadfence_block()
        cuda.atomic.add(flag, 0, 1)
    else:
        while cuda.atomic.add(flag, 0, 0) < 32: pass
        cuda.threadfence_block()
        out[i] = tile[i - 32]


@right(1, 96, one_in_one_out(96), lambda x, out: np.r_[x[:64][::-1], out[64:]])
@cuda.jit
def two_warps_at_a_named_barrier(x, out):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i < 64:
        tile[i] = x[i]
        bar_sync(1, 64)
        out[i] = tile[63 - i]


@right(1, 128, lambda: (whole(512) % 16, zeros(16, dtype=np.int32)), lambda x, out: np.bincount(x, minlength=16))
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

@right(4, 64, lambda: (whole(512) % 16, zeros(16, dtype=np.int32)), lambda x, out: np.bincount(x, minlength=16))
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


@right(2, 32, lambda: (numbers(32), zeros(32), zeros(1, dtype=np.int32), zeros(32)), lambda x, box, flag, out: x[::-1])
@cuda.jit
def a_flag_from_an_earlier_block(x, box, flag, out):
    i = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        box[i] = x[i]
        cuda.syncthreads()
        if i == 0:
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
    else:
        if i == 0:
            while cuda.atomic.add(flag, 0, 0) == 0: pass
            cuda.threadfence()
        cuda.syncthreads()
        out[i] = box[31 - i]


@right(2, 32, lambda: (numbers(32), zeros(32), zeros(1, dtype=np.int32), zeros(32)), lambda x, box, flag, out: x[::-1])
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


@right(6, 1, lambda: (numbers(6), zeros(7), zeros(7, dtype=np.int32), zeros(6)), lambda x, sums, flags, out: x.cumsum())
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


@right(4, 1, lambda: (zeros(1, dtype=np.int32), zeros(1)), lambda lock, out: np.full(1, 4))
@cuda.jit
def a_lock_by_swaps(lock, out):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0: pass
    cuda.threadfence()
    out[0] += 1
    cuda.threadfence()
    cuda.atomic.exch(lock, 0, 0)


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


@right(4, 32, lambda: (numbers(128), zeros(128)), lambda x, out: 2 * x[::-1])
@cuda.jit
def a_barrier_of_the_grid(x, out):
    i = cuda.grid(1)
    x[i] *= 2
    cuda.cg.this_grid().sync()
    out[i] = x[127 - i]


@right(3, 16, lambda: (numbers(48), zeros(48)), lambda x, out: np.roll(x, 3))
@cuda.jit
def rounds_with_barriers_of_the_grid(x, out):
    i, grid = cuda.grid(1), cuda.cg.this_grid()
    for _ in range(3):
        out[(i + 1) % 48] = x[i]
        grid.sync()
        x[i] = out[i]
        grid.sync()


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


# --- what is wrong: the same kernels with one part left out ---

def broken(kind, says, grid, block, args, expected=None, **variants):
    "Keep what a factory makes with each of these arguments. It is wrong."
    def keep(factory):
        for name, options in variants.items():
            kernel = factory(**options)
            kernel.py_func.__name__ = f"{factory.__name__}_{name}"
            wrong(kind, says, grid, block, args, expected)(kernel)
        return factory
    return keep


RACE = "^race: "


@broken("race between blocks", RACE + r"(box|parts|copied)\[", 2, 32,
        lambda: (numbers(32), zeros(32), zeros(1, dtype=np.int32), zeros(32)), lambda x, box, flag, out: x[::-1],
        without_the_writers_fence=dict(fence=0), without_the_readers_fence=dict(reader_fence=0),
        with_a_fence_for_the_block=dict(fence=1), with_a_readers_fence_for_the_block=dict(reader_fence=1),
        without_the_writers_barrier=dict(barrier=0), without_the_readers_barrier=dict(reader_barrier=0),
        without_waiting=dict(waits=0), with_the_flag_first=dict(flag_first=1))
def a_flag_between_blocks(fence=2, reader_fence=2, barrier=1, reader_barrier=1, waits=1, flag_first=0):
    @cuda.jit
    def kernel(x, box, flag, out):
        i = cuda.threadIdx.x
        if cuda.blockIdx.x == 0:
            if not flag_first: box[i] = x[i]
            if barrier: cuda.syncthreads()
            if i == 0:
                if fence == 2: cuda.threadfence()
                if fence == 1: cuda.threadfence_block()
                cuda.atomic.exch(flag, 0, 1)
            if flag_first: box[i] = x[i]
        else:
            if i == 0:
                if waits:
                    while cuda.atomic.add(flag, 0, 0) == 0: pass
                if reader_fence == 2: cuda.threadfence()
                if reader_fence == 1: cuda.threadfence_block()
            if reader_barrier: cuda.syncthreads()
            out[i] = box[31 - i]
    return kernel


@broken("race between blocks", RACE + r"(flag|box)\[", 2, 1, lambda: (zeros(1), zeros(1, dtype=np.int32), zeros(1)),
        that_is_set_by_a_plain_store=dict(plain_store=True), that_is_read_once_by_a_plain_load=dict(plain_load=True))
def a_flag(plain_store=False, plain_load=False):
    @cuda.jit
    def kernel(box, flag, out):
        if cuda.blockIdx.x == 0:
            box[0] = 7
            cuda.threadfence()
            if plain_store: flag[0] = 1
            else: cuda.atomic.exch(flag, 0, 1)
        else:
            if plain_load: found = flag[0]
            else:
                found = 0
                for _ in range(1000): found = max(found, cuda.atomic.add(flag, 0, 0))
            cuda.threadfence()
            if found: out[0] = box[0]
    return kernel


@broken("race between blocks", RACE + r"parts\[", 6, 32,
        lambda: (numbers(192), zeros(6), zeros(1, dtype=np.int32), zeros(1)),
        lambda x, parts, count, out: x.sum(keepdims=True),
        without_the_writers_fence=dict(fence=False), without_the_readers_fence=dict(reader_fence=False),
        and_counts_before_it_writes=dict(late=True))
def the_last_block_adds_up(fence=True, reader_fence=True, late=False):
    @cuda.jit
    def kernel(x, parts, count, out):
        if cuda.threadIdx.x == 0:
            total = float32(0)
            for i in range(32): total += x[32 * cuda.blockIdx.x + i]
            if not late: parts[cuda.blockIdx.x] = total
            if fence: cuda.threadfence()
            place = cuda.atomic.add(count, 0, 1)
            if late: parts[cuda.blockIdx.x] = total
            if reader_fence: cuda.threadfence()
            if place == 5:
                total = float32(0)
                for b in range(6): total += parts[b]
                out[0] = total
    return kernel


@broken("race between blocks", RACE + r"out\[", 4, 1, lambda: (zeros(1, dtype=np.int32), zeros(1)),
        lambda lock, out: np.full(1, 4),
        without_its_first_fence=dict(first=False), without_its_last_fence=dict(last=False),
        that_nobody_takes=dict(taken=False))
def a_lock(first=True, last=True, taken=True):
    @cuda.jit
    def kernel(lock, out):
        if taken:
            while cuda.atomic.cas(lock, 0, 0, 1) != 0: pass
        if first: cuda.threadfence()
        out[0] += 1
        if last: cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)
    return kernel


@wrong("waits for ever", "wait for what never comes", 2, 1, lambda: (zeros(1, dtype=np.int32), zeros(1)))
@cuda.jit
def a_lock_that_is_not_given_back(lock, out):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0: pass
    cuda.threadfence()
    out[0] += 1


@wrong("waits for ever", "wait for what never comes", 2, 32, lambda: (zeros(1, dtype=np.int32),))
@cuda.jit
def a_flag_that_nobody_sets(flag):
    if cuda.blockIdx.x == 1 and cuda.threadIdx.x == 0:
        while cuda.atomic.add(flag, 0, 0) == 0: pass


@wrong("waits for ever", "grid's barrier is not reached by all", 4, 32, lambda: (numbers(128),))
@cuda.jit
def a_barrier_of_the_grid_in_one_block(x):
    if cuda.blockIdx.x < 2: cuda.cg.this_grid().sync()
    x[cuda.grid(1)] = 0


@broken("race between blocks", RACE + r"(x|out)\[", 4, 32, lambda: (numbers(128), zeros(128)),
        lambda x, out: 2 * x[::-1],
        is_left_out=dict(barrier=0), is_only_one_of_the_block=dict(barrier=1))
def the_barrier_of_the_grid(barrier=2):
    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        x[i] *= 2
        if barrier == 2: cuda.cg.this_grid().sync()
        if barrier == 1: cuda.syncthreads()
        out[i] = x[127 - i]
    return kernel


@wrong("race between blocks", RACE + r"out\[", 3, 16, lambda: (numbers(48), zeros(48)),
       lambda x, out: np.roll(x, 3))
@cuda.jit
def rounds_with_one_barrier_of_the_grid(x, out):
    i, grid = cuda.grid(1), cuda.cg.this_grid()
    for _ in range(3):
        out[(i + 1) % 48] = x[i]
        grid.sync()
        x[i] = out[i]


@wrong("race between blocks", RACE + r"out\[", 4, 32, lambda: (whole(128) % 8, zeros(8, dtype=np.int32)),
       lambda x, out: np.bincount(x, minlength=8))
@cuda.jit
def a_histogram_without_atomic_operations(x, out): out[x[cuda.grid(1)]] += 1


@wrong("race between blocks", RACE + r"out\[", 4, 32, lambda: (whole(128), zeros(1, dtype=np.int32)),
       lambda x, out: x.max(keepdims=True))
@cuda.jit
def a_maximum_that_is_asked_for_first(x, out):
    i = cuda.grid(1)
    if x[i] > out[0]: out[0] = x[i]


@wrong("race between blocks", RACE + r"out\[", 3, 33, lambda: (numbers(96), zeros(96)))
@cuda.jit
def blocks_that_overlap_by_one(x, out):
    i = 32 * cuda.blockIdx.x + cuda.threadIdx.x
    if i < 96: out[i] = x[i] + cuda.blockIdx.x


@wrong("race within a block", RACE + r"x\[", 1, 64, lambda: (numbers(64),), lambda x: x[::-1])
@cuda.jit
def reversed_in_place_without_a_barrier(x):
    i = cuda.threadIdx.x
    x[i] = x[63 - i]


@broken("race within a block", RACE + r"x\[", 1, 64, lambda: (numbers(64),),
        lambda x: np.convolve(np.convolve(x, [1, 1])[:-1], [1, 1])[:-1],
        without_the_first_barrier=dict(first=False), without_the_second_barrier=dict(second=False))
def neighbours(first=True, second=True):
    @cuda.jit
    def kernel(x):
        i = cuda.threadIdx.x
        for _ in range(2):
            value = x[i]
            if i > 0: value += x[i - 1]
            if first: cuda.syncthreads()
            x[i] = value
            if second: cuda.syncthreads()
    return kernel


@wrong("race within a block", RACE + r"out\[", 1, 64, lambda: (numbers(64), zeros(64)))
@cuda.jit
def a_scatter_that_meets(x, out): out[cuda.threadIdx.x // 2] = x[cuda.threadIdx.x]


@broken("race within a block", RACE + "tile", 1, 64, lambda: (numbers(64), zeros(64)),
        lambda x, out: np.r_[out[:32], x[:32]],
        without_the_writers_fence=dict(fence=False), without_the_readers_fence=dict(reader_fence=False))
def a_flag_in_a_block(fence=True, reader_fence=True):
    @cuda.jit
    def kernel(x, out):
        tile, flag = cuda.shared.array(32, float32), cuda.shared.array(1, int32)
        i = cuda.threadIdx.x
        if i == 0: flag[0] = 0
        cuda.syncthreads()
        if i < 32:
            tile[i] = x[i]
            if fence: cuda.threadfence_block()
            cuda.atomic.add(flag, 0, 1)
        else:
            while cuda.atomic.add(flag, 0, 0) < 32: pass
            if reader_fence: cuda.threadfence_block()
            out[i] = tile[i - 32]
    return kernel


@wrong("race within a block", RACE + r"dynamic shared memory\[", 1, 64, lambda: (numbers(8), zeros(8)), dynamic=64)
@cuda.jit
def two_types_that_overlap_in_dynamic_memory(x, out):
    wide, narrow = cuda.shared.array(0, float64), cuda.shared.array(0, float32)
    i = cuda.threadIdx.x
    if i < 8: wide[i] = float64(i)
    cuda.syncthreads()
    if i < 8: narrow[8 + i] = x[i]  # the upper half of `wide`
    out[i % 8] = wide[i % 8]


@broken("race within a warp", RACE + "tile|before it was written", 1, 32, one_in_one_out(32), lambda x, out: x[::-1],
        of_the_upper_half=dict(mask=0xFFFF0000, first=16), of_the_lower_half=dict(mask=0xFFFF, first=0))
def a_warp_barrier(mask, first):
    @cuda.jit
    def kernel(x, out):
        tile = cuda.shared.array(32, float32)
        i = cuda.threadIdx.x
        tile[i] = x[i]
        if first <= i < first + 16: cuda.syncwarp(mask)
        out[i] = tile[31 - i]
    return kernel


@wrong("race within a warp", RACE + "tile|before it was written", 1, 32, one_in_one_out(32), lambda x, out: x[::-1])
@cuda.jit
def halves_that_meet_apart_and_read_across(x, out):
    tile = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    if i < 16: cuda.syncwarp(0xFFFF)
    else: cuda.syncwarp(0xFFFF0000)
    out[i] = tile[31 - i]


@wrong("race within a warp", RACE + "tile", 1, 32, one_in_one_out(32),
       lambda x, out: np.r_[x.sum(), out[1:]])
@cuda.jit
def a_sum_with_one_warp_barrier_a_step(x, out):
    tile = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    cuda.syncwarp()
    for step in (16, 8, 4, 2, 1):
        if i < step: tile[i] += tile[i + step]
    if i == 0: out[0] = tile[0]


@wrong("race within a warp", RACE + "tile|before it was written", 1, 32, one_in_one_out(32), lambda x, out: x[::-1])
@cuda.jit
def a_shuffle_in_place_of_a_barrier(x, out):
    tile = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    cuda.shfl_sync(FULL, i, 0)
    out[i] = tile[31 - i]


@wrong("masks", "not in the mask", 1, 32, one_in_one_out(32))
@cuda.jit
def a_lane_outside_the_mask_is_asked(x, out):
    i = cuda.threadIdx.x
    if i < 16: out[i] = cuda.shfl_sync(0xFFFF, x[i], 20)


@wrong("masks", "lane 16 is not in the mask", 1, 32, one_in_one_out(32))
@cuda.jit
def a_lane_names_others_only(x, out):
    i = cuda.threadIdx.x
    out[i] = cuda.shfl_sync(0xFFFF, x[i], 3)


@wrong("masks", "different lines|not reached by all", 1, 32, one_in_one_out(32))
@cuda.jit
def all_lanes_are_named_in_two_branches(x, out):
    i = cuda.threadIdx.x
    if i < 16: out[i] = cuda.shfl_sync(FULL, x[i], 1)
    else:
        out[i] = cuda.shfl_sync(FULL, x[i], 30)


@wrong("masks", "swap values at different lines", 1, 32, one_in_one_out(32))
@cuda.jit
def all_lanes_are_named_in_one_branch(x, out):
    i = cuda.threadIdx.x
    if i < 16: out[i] = cuda.shfl_sync(FULL, x[i], 1)
    cuda.syncwarp()


@wrong("masks", "has returned", 1, 32, one_in_one_out(20))
@cuda.jit
def a_lane_that_has_returned_is_asked(x, out):
    i = cuda.threadIdx.x
    if i < 20: out[i] = cuda.shfl_sync(FULL, x[i], 25)


@wrong("memory", "before it was written", 1, 32, one_in_one_out(32), lambda x, out: x[::-1])
@cuda.jit
def half_of_a_tile_is_loaded(x, out):
    tile = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    if i < 16: tile[i] = x[i]
    cuda.syncthreads()
    out[i] = tile[31 - i]


@wrong("memory", "out of bounds", 2, 32, lambda: (numbers(50), zeros(50)))
@cuda.jit
def one_past_the_end(x, out): out[cuda.grid(1)] = x[cuda.grid(1)]


def run(name):
    "Run it once on a GPU: is the result wrong?"
    case = (RIGHT | WRONG)[name]
    args = case.args()
    on_gpu = [cuda.to_device(arg) for arg in args]
    case.launch()(*on_gpu)
    cuda.synchronize()
    return bool(case.expected) and not case.is_right(args, on_gpu[-1].copy_to_host())


if __name__ == "__main__": print(sum(run(name) for name in sys.argv[2:] for _ in range(int(sys.argv[1]))))
