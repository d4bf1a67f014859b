"Barriers, votes, shuffles and atomic operations in the strict simulator."
import numpy as np
import pytest
from numba import cuda, float32, int32, uint16, uint32, uint64
from sim_cases import refused_cases

from numba_matmul.arrays import to_d, to_h
from numba_matmul.gemm.limits import with_shared_memory
from numba_matmul.gemm.plan import Launch, Plan, simulate_plan
from numba_matmul.ptx.core import shared_address
from numba_matmul.ptx.hopper import (
    bar_sync, cluster_sync, fence_mbarrier_init, ld_shared_v4, mbarrier_arrive_expect_tx, mbarrier_init,
    mbarrier_wait, st_async_v4)
from numba_matmul.sim.launch import simulate
from numba_matmul.sim.scheduler import SimulatorError


def test_warp_instructions():
    @cuda.jit
    def k(out):
        i = cuda.threadIdx.x
        lane = i % 32
        out[0, i] = cuda.shfl_sync(0xFFFFFFFF, lane, 5)
        out[1, i] = cuda.shfl_down_sync(0xFFFFFFFF, lane, 1)
        out[2, i] = cuda.shfl_up_sync(0xFFFFFFFF, lane, 1)
        out[3, i] = cuda.shfl_xor_sync(0xFFFFFFFF, lane, 1)
        out[4, i] = cuda.ballot_sync(0xFFFFFFFF, lane < 3)
        out[5, i] = cuda.any_sync(0xFFFFFFFF, lane == 7) + 2 * cuda.all_sync(0xFFFFFFFF, lane == 7)
        out[6, i] = cuda.laneid
    (out,) = simulate(k[1, 64], np.zeros((7, 64), np.int64))
    lane = np.arange(64) % 32
    assert np.array_equal(out, [lane * 0 + 5, np.minimum(lane + 1, 31), np.maximum(lane - 1, 0), lane ^ 1,
                                lane * 0 + 7, lane * 0 + 1, lane])


def test_block_votes_and_atomics():
    @cuda.jit
    def k(out):
        total = cuda.shared.array(1, int32)
        i = cuda.threadIdx.x
        if i == 0: total[0] = 0
        cuda.syncthreads()
        cuda.atomic.add(total, 0, i)
        cuda.atomic.max(out, 3, i)
        cuda.syncthreads()
        out[0] = total[0]
        out[1] = cuda.syncthreads_count(int32(i % 3 == 0))
        out[2] = cuda.syncthreads_or(int32(i == 5)) + 2 * cuda.syncthreads_and(int32(i == 5))
    (out,) = simulate(k[1, 40], np.zeros(4, np.int32))
    assert out.tolist() == [sum(range(40)), 14, 1, 39]


@cuda.jit(device=True)
def all_wait(): cuda.syncthreads()


@cuda.jit(device=True)
def swapped(value): return cuda.shfl_xor_sync(0xFFFFFFFF, value, 1)


@cuda.jit(device=True)
def put(array, i, value): array[i] = value


def test_a_place_in_a_device_function_is_told_by_its_calls():
    @cuda.jit
    def k(out, mode):
        tile = cuda.shared.array(1, float32)
        i = cuda.threadIdx.x
        all_wait()
        if mode == 1:
            if i < 32: all_wait()
            else: all_wait()
        if mode == 2:
            if i < 16: out[i] = swapped(i)
            else: out[i] = swapped(i)
        if mode == 3: put(tile, 0, i)
        if out.shape[0] == 64: all_wait()
        else: all_wait()
        out[i] = swapped(i)
    assert simulate(k[1, 64], np.zeros(64, np.int32), 0)[0].tolist() == [i ^ 1 for i in range(64)]
    refused_cases(k[1, 64], np.zeros(64, np.int32), cases={
        1: "called at line .*if i < 32: all_wait.*called at line .*else: all_wait",
        2: "exchange values at different lines.*called at line .*if i < 16",
        3: "race: .*array.i. = value, called at line .*put.tile, 0, i., and is .*, "
           "called at line .*put.tile, 0, i."})


def test_two_barriers_on_one_line_are_two_places():
    @cuda.jit
    def k(x, case):
        s, i = cuda.shared.array(64, float32), cuda.threadIdx.x
        s[i] = i
        # E702 is off: this test is about barriers on one line
        if case == 0: all_wait(); x[i] = s[63 - i]; all_wait(); s[i] = 2 * i; all_wait(); x[i] += s[63 - i]  # noqa: E702
        elif case == 1: all_wait() if i < 32 else all_wait()
        elif case == 2: x[i] = cuda.syncthreads_or(1) if i < 32 else cuda.syncthreads_or(0)
        elif case == 3: i < 32 and cuda.syncthreads_or(1); cuda.syncthreads_or(1)  # noqa: E702
        elif case == 4: x[i] = swapped(i) if i % 32 < 16 else swapped(-i)
        elif case == 5:
            while cuda.syncthreads_or(int32(x[i] < i % 4)):
                x[i] += 1
                if x[i] > i % 4: x[i] = i % 4
        else: bar_sync(uint32(1), uint32(32)) if i < 32 else bar_sync(uint32(2), uint32(32)); x[i] = 5  # noqa: E702
    x = np.zeros(64, np.int32)
    assert simulate(k[1, 64], x, 0)[0].tolist() == [3 * (63 - i) for i in range(64)]
    refused_cases(k[1, 64], x, cases={
        1: r"not all threads.* 32 of 64 .*column 17, called at column 25\); 32 of 64.*called at column 51",
        2: r"syncthreads_or\(0\) \(column 32\).*\(column 70\).*different columns of one line",
        3: "32 of 64 threads wait at .*column 36.*32 of 64",
        4: "exchange values at different columns of one line"})
    assert simulate(k[1, 64], x, 5)[0].tolist() == [i % 4 for i in range(64)]
    assert set(simulate(k[1, 64], x, 6)[0]) == {5}


def test_more_blocks_than_there_is_room_for_do_not_wait_for_each_other():
    @cuda.jit
    def k(flags, step):
        i = cuda.blockIdx.x
        if step == 0: cuda.cg.this_grid().sync()
        elif 0 <= i + step < cuda.gridDim.x:
            while cuda.atomic.add(flags, i + step, 0) == 0: pass
        cuda.threadfence()
        cuda.atomic.add(flags, i, 1)
    flags = np.zeros(140, np.int32)
    large = with_shared_memory(k, 140, 1, 0, 200 * 1024)  # bytes: one block fits on a multiprocessor
    refused_cases(large, flags, cases={
        0: "needs all 140 blocks resident at once, but an H100 runs at most 132",
        1: "wait for something that never happens.*132 blocks of this size fit on an H100"})
    for launch, step in (large, -1), (k[140, 1], 1): assert (simulate(launch, flags, step)[0] == 1).all()


def test_blocks_of_a_cluster_store_to_each_others_shared_memory():
    @cuda.jit
    def k(out, mode):
        memory = cuda.shared.array(1088, uint16, alignment=16)
        thread, block = uint32(cuda.threadIdx.x), uint32(cuda.blockIdx.x)
        start, barrier = shared_address(memory, uint64(0)), shared_address(memory, uint64(1024))
        if thread == 0:
            mbarrier_init(barrier, uint32(1))
            mbarrier_arrive_expect_tx(barrier, uint32(2048 if mode != 5 else 2064))
            fence_mbarrier_init()
        if mode != 1: cluster_sync()
        if mode == 3 and block % 2 == 0: return
        at = uint32(start + uint32(16) * thread + uint32(8 if mode == 4 else 0))
        other = uint32(2) if mode == 2 else uint32(uint32(1) - block % uint32(2))
        x = float32(1000 * block + thread)
        st_async_v4(at, other, (x, x, x, x), barrier)
        if mode == 7: st_async_v4(at, other, (x, x, x, x), barrier)
        if mode != 6: mbarrier_wait(barrier, uint32(0))
        out[block, thread] = ld_shared_v4(at)[3]

    def launched(mode):
        out = to_d(np.zeros((4, 128), np.float32))
        simulate_plan(Plan([Launch(k, 4, 128, (out, mode), cluster=2)]))
        return to_h(out)
    assert np.array_equal(launched(0), 1000 * np.array([1, 0, 3, 2])[:, None] + np.arange(128))
    for mode, why in {1: "no mbarrier|without a block barrier|only if a block has one shared array",
                      2: "there is no block 2 in a cluster of 2",
                      3: "block 0 of the cluster has ended, and its shared memory with it",
                      4: "must be aligned to its size", 5: "2064 bytes are expected, and 2048 are in flight",
                      6: "while an asynchronous copy into it.*is in flight|before it was written",
                      7: "is the target of two asynchronous copies at once"}.items():
        with pytest.raises(SimulatorError, match=why): launched(mode)
