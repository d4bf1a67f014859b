"Asynchronous copies in the strict simulator: cp.async, and the TMA's."
import numpy as np
import pytest
from numba import cuda, float32, uint16, uint32, uint64
from sim_cases import X, refused, refused_cases, refuses

from numba_matmul.arrays import to_d, to_h
from numba_matmul.gemm.tensor_maps import map_of
from numba_matmul.process import in_child
from numba_matmul.ptx.core import global_address, shared_address
from numba_matmul.ptx.hopper import (
    cp_async_bulk_commit_group, cp_async_bulk_tensor_2d_global_to_shared,
    cp_async_bulk_tensor_2d_shared_to_global, cp_async_bulk_wait_group_read, fence_mbarrier_init,
    fence_proxy_tensormap, mbarrier_arrive_expect_tx, mbarrier_init, mbarrier_wait)
from numba_matmul.sim.async_copy import cp_async, cp_async_commit_group, cp_async_wait_group
from numba_matmul.sim.launch import simulate
from numba_matmul.sim.scheduler import SimulatorError


@refuses(1, X, match="4, 8 or 16 bytes, not 3 elements of 4")
@cuda.jit
def test_copies_are_of_4_8_or_16_bytes(x):
    tile = cuda.shared.array(8, float32)
    cp_async(tile, 0, x, 0, 3, 3)


def test_asynchronous_copies_land_at_their_wait():
    @cuda.jit
    def k(x, out, commit, wait, barrier):
        tile = cuda.shared.array(8, float32, alignment=16)
        i = cuda.threadIdx.x
        if i < 2: cp_async(tile, 4 * i, x, 4 * i, 4)
        if commit: cp_async_commit_group()
        if wait: cp_async_wait_group(0)
        if barrier: cuda.syncthreads()
        out[i] = tile[7 - i]
    args = k[1, 8], X[:8], np.zeros(8, np.float32)
    assert np.array_equal(simulate(*args, True, True, True)[1], X[:8][::-1])
    for steps in (True, False, True), (False, True, True), (True, True, False):
        refused(*args, *steps, match="asynchronous copy|race|before it was written")


def test_asynchronous_copies_wait_by_group():
    @cuda.jit
    def k(x, out, pending):
        tile = cuda.shared.array(2, float32)
        cp_async(tile, 0, x, 0, 1)
        cp_async_commit_group()
        cp_async(tile, 1, x, 1, 1)
        cp_async_commit_group()
        cp_async_wait_group(pending)
        out[0] = tile[0]
        if pending == 0: out[1] = tile[1]
        cp_async_wait_group(0)
        out[1] = tile[1]
    for pending in 0, 1:
        assert np.array_equal(simulate(k[1, 1], X[:2], np.zeros(2, np.float32), pending)[1], X[:2])
    early = r"tile\[0\] is read while an asynchronous copy"
    refused_cases(k[1, 1], X[:2], np.zeros(2, np.float32), cases={2: early, 3: early})  # 3: too many


@refuses(1, X, match="written while an asynchronous copy")
@cuda.jit
def test_a_write_under_ones_own_asynchronous_copy_is_refused(x):
    tile = cuda.shared.array(1, float32)
    cp_async(tile, 0, x, 0, 1)
    tile[0] = 1


def test_what_an_asynchronous_copy_reads_stays_until_the_wait():
    @cuda.jit
    def k(x, out, mode):
        tile = cuda.shared.array(64, float32, alignment=16)
        i = cuda.threadIdx.x
        if i == 40:
            cp_async(tile, 0, x, 0, 4, 4)
            cp_async_commit_group()
            if mode == 0: x[1] = 5
            if mode < 2: cp_async_wait_group(0)
            if mode == 1: x[1] = 5
        cuda.syncthreads()
        if mode == 2 and i == 0: x[1] = 5
        if mode == 3 and i == 50: x[1] = 5
        if i == 40: cp_async_wait_group(0)
        cuda.syncthreads()
        if mode == 4 and i == 0: x[1] = 5
        out[i] = tile[i % 4]
    for mode in (1, 4): assert simulate(k[1, 64], X.copy(), X.copy(), mode)[1][:4].tolist() == [0, 1, 2, 3]
    under_way = r"x\[1\] is written while an asynchronous copy from it, started by thread .40."
    refused_cases(k[1, 64], X.copy(), X.copy(), cases={
        0: under_way, 2: under_way, 3: r"race: x\[1\] was read by thread .40. at line .*cp_async_wait_group"})


def boxes_at_the_edges(row, column, shift=(8, 64)):
    "In a child: which part of a matrix the TMA loads, and where it stores the same numbers."
    @cuda.jit
    def copy_box(source, target, row, column, to_row, to_column):
        box = cuda.shared.array(2048, uint16, alignment=1024)
        start, barrier = shared_address(box, uint64(0)), uint32(2048)
        if cuda.threadIdx.x == 0:
            from_map, to_map = global_address(source, uint64(0)), global_address(target, uint64(0))
            fence_proxy_tensormap(from_map)
            fence_proxy_tensormap(to_map)
            mbarrier_init(barrier, uint32(1))
            fence_mbarrier_init()
            mbarrier_arrive_expect_tx(barrier, uint32(1024))
            cp_async_bulk_tensor_2d_global_to_shared(start, from_map, barrier, column, row)
            mbarrier_wait(barrier, uint32(0))
            cp_async_bulk_tensor_2d_shared_to_global(to_map, start, to_column, to_row)
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group_read(0)
    numbers = np.arange(1, 20 * 80 + 1, dtype=np.uint16).reshape(20, 80)
    source, target = to_d(numbers), to_d(np.zeros((28, 144), np.uint16))
    places = (uint32(x % 2**32) for x in (row, column, row + shift[0], column + shift[1]))
    copy_box[1, 32](map_of(source, 8), map_of(target, 8), *places)
    inside = np.zeros(numbers.shape, bool)
    inside[max(row, 0):max(row + 8, 0), max(column, 0):max(column + 64, 0)] = True
    wanted = np.pad(np.where(inside, numbers, 0), ((8, 0), (64, 0)))
    return np.array_equal(to_h(target), wanted)


@pytest.mark.parametrize(
    "row,column", [(0, 0), (3, 8), (16, 40), (-3, 0), (0, -8), (-8, 16), (30, 0), (17, 72)],
    ids=["corner", "inside", "over an edge", "from above", "from the left", "all above", "all below",
         "other corner"])
def test_the_tma_copies_what_is_inside(row, column):
    assert in_child(boxes_at_the_edges, row, column, simulator=True, keep=True)


def test_a_box_that_begins_where_a_gpu_cannot_is_refused():
    with pytest.raises(SimulatorError, match="starts at column 4: an illegal instruction"):
        in_child(boxes_at_the_edges, 0, 4, simulator=True, keep=True)
    for row, column in (-3, 0), (0, -8):
        with pytest.raises(SimulatorError, match=f"stored at row {row}, column {column}: an illegal"):
            in_child(boxes_at_the_edges, row, column, (0, 0), simulator=True, keep=True)
