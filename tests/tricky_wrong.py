"A table of kernels and nothing else: those that look right but are wrong. Most lack a part of a right one."
import numpy as np
from numba import cuda, float32, float64

from tricky_cases import FULL, RACE, broken, numbers, one_in_one_out, whole, wrong, zeros


@broken("race between blocks", RACE + r"(flag|box)\[", 2, 1,
        lambda: (zeros(1), zeros(1, dtype=np.int32), zeros(1)),
        that_is_set_by_a_plain_store=dict(plain_store=True),
        that_is_read_once_by_a_plain_load=dict(plain_load=True))
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


@wrong("waits for ever", "something that never happens", 2, 1, lambda: (zeros(1, dtype=np.int32), zeros(1)))
@cuda.jit
def a_lock_that_is_not_given_back(lock, out):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0: pass
    cuda.threadfence()
    out[0] += 1


@wrong("waits for ever", "something that never happens", 2, 32, lambda: (zeros(1, dtype=np.int32),))
@cuda.jit
def a_flag_that_nobody_sets(flag):
    if cuda.blockIdx.x == 1 and cuda.threadIdx.x == 0:
        while cuda.atomic.add(flag, 0, 0) == 0: pass


@wrong("waits for ever", "not all threads reach the grid's barrier", 4, 32, lambda: (numbers(128),))
@cuda.jit
def a_barrier_of_the_grid_in_one_block(x):
    if cuda.blockIdx.x < 2: cuda.cg.this_grid().sync()
    x[cuda.grid(1)] = 0


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


@wrong("race within a block", RACE + r"out\[", 1, 64, lambda: (numbers(64), zeros(64)))
@cuda.jit
def a_scatter_that_meets(x, out): out[cuda.threadIdx.x // 2] = x[cuda.threadIdx.x]


@wrong("race within a block", RACE + r"dynamic shared memory\[", 1, 64, lambda: (numbers(8), zeros(8)),
       dynamic=64)
@cuda.jit
def two_types_that_overlap_in_dynamic_memory(x, out):
    wide, narrow = cuda.shared.array(0, float64), cuda.shared.array(0, float32)
    i = cuda.threadIdx.x
    if i < 8: wide[i] = float64(i)
    cuda.syncthreads()
    if i < 8: narrow[8 + i] = x[i]  # the upper half of `wide`
    out[i % 8] = wide[i % 8]


@broken("race within a warp", RACE + "tile|before it was written", 1, 32, one_in_one_out(32),
        lambda x, out: x[::-1],
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


@wrong("race within a warp", RACE + "tile|before it was written", 1, 32, one_in_one_out(32),
       lambda x, out: x[::-1])
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


@wrong("race within a warp", RACE + "tile|before it was written", 1, 32, one_in_one_out(32),
       lambda x, out: x[::-1])
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


@wrong("masks", "different lines|not all threads reach", 1, 32, one_in_one_out(32))
@cuda.jit
def all_lanes_are_named_in_two_branches(x, out):
    i = cuda.threadIdx.x
    if i < 16: out[i] = cuda.shfl_sync(FULL, x[i], 1)
    else:
        out[i] = cuda.shfl_sync(FULL, x[i], 30)


@wrong("masks", "exchange values at different lines", 1, 32, one_in_one_out(32))
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
