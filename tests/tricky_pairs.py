"A table of kernels and nothing else: each one is right as is, and wrong without one of its parts."
import numpy as np
from numba import cuda, float32, int32

from tricky_cases import RACE, broken, numbers, zeros


@broken("race between blocks", RACE + r"(box|parts|copied)\[", 2, 32,
        lambda: (numbers(32), zeros(32), zeros(1, dtype=np.int32), zeros(32)),
        lambda x, box, flag, out: x[::-1],
        as_it_is="a_flag_from_an_earlier_block", without_the_writers_fence=dict(fence=0),
        without_the_readers_fence=dict(reader_fence=0),
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


@broken("race between blocks", RACE + r"out\[", 4, 1, lambda: (zeros(1, dtype=np.int32), zeros(1)),
        lambda lock, out: np.full(1, 4),
        as_it_is="a_lock_by_swaps", without_its_first_fence=dict(first=False),
        without_its_last_fence=dict(last=False),
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


@broken("race between blocks", RACE + r"(x|out)\[", 4, 32, lambda: (numbers(128), zeros(128)),
        lambda x, out: 2 * x[::-1],
        as_it_is="a_barrier_of_the_grid", is_left_out=dict(barrier=0),
        is_only_one_of_the_block=dict(barrier=1))
def the_barrier_of_the_grid(barrier=2):
    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        x[i] *= 2
        if barrier == 2: cuda.cg.this_grid().sync()
        if barrier == 1: cuda.syncthreads()
        out[i] = x[127 - i]
    return kernel


@broken("race between blocks", RACE + r"out\[", 3, 16, lambda: (numbers(48), zeros(48)),
        lambda x, out: np.roll(x, 3), as_it_is="rounds_with_barriers_of_the_grid",
        with_one_barrier_of_the_grid=dict(second=False))
def rounds(second=True):
    @cuda.jit
    def kernel(x, out):
        i, grid = cuda.grid(1), cuda.cg.this_grid()
        for _ in range(3):
            out[(i + 1) % 48] = x[i]
            grid.sync()
            x[i] = out[i]
            if second: grid.sync()
    return kernel


@broken("race within a block", RACE + r"x\[", 1, 64, lambda: (numbers(64),), lambda x: x[::-1],
        as_it_is="reversed_in_place", without_a_barrier=dict(barrier=False))
def reversed_in_place(barrier=True):
    @cuda.jit
    def kernel(x):
        i = cuda.threadIdx.x
        mine = x[63 - i]
        if barrier: cuda.syncthreads()
        x[i] = mine
    return kernel


@broken("race within a block", RACE + r"x\[", 1, 64, lambda: (numbers(64),),
        lambda x: np.convolve(np.convolve(x, [1, 1])[:-1], [1, 1])[:-1],
        as_it_is="neighbors_in_place", without_the_first_barrier=dict(first=False),
        without_the_second_barrier=dict(second=False))
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


@broken("race within a block", RACE + "tile", 1, 64, lambda: (numbers(64), zeros(64)),
        lambda x, out: np.r_[out[:32], x[:32]],
        as_it_is="a_flag_in_shared_memory", alarms="racecheck",  # it understands barriers, but not flags
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
