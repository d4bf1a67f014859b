"Every kernel is correct at any size, with any tile and any option; and a call launches what it should."
from dataclasses import replace
from functools import cache, partial
from inspect import signature
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from forked import in_fork
from greenlet import getcurrent
from hypothesis import given, settings, strategies as st
from numba import types
from products import each_kernel, good, random

from numba_matmul.arrays import cdiv, result_dtype, rounded, to_d, to_h
from numba_matmul.bench.search import configurations
from numba_matmul.bench.verify import assert_matmul_correct, check_matmul
from numba_matmul.gemm import limits
from numba_matmul.gemm.args import gemm_args
from numba_matmul.gemm.epilogue import with_room
from numba_matmul.gemm.limits import (MAX_GRID_X, MAX_GRID_Y, capable, launch_number, shared_memory_limit,
                                      sm_count, with_shared_memory)
from numba_matmul.gemm.plan import simulate_plan
from numba_matmul.gemm.tensor_maps import LONGEST, tma_counts
from numba_matmul.gemm.tiles import Tile, WarpTile, WgmmaTile, check_tile
from numba_matmul.kernels import k14_stream_k, k16_tma_wgmma
from numba_matmul.kernels.k08_bank_conflicts_padding import sgemm_bank_conflicts_padding
from numba_matmul.kernels.k13_planned_loop import TILES, MainloopSchedule
from numba_matmul.kernels.k14_stream_k import FEW_ROWS, plan_stream_k, sgemm_stream_k
from numba_matmul.kernels.k17_warp_specialized import (CONSUMER_REGISTERS, LARGE, PRODUCER_REGISTERS,
                                                       bf16_gemm_warp_specialized)
from numba_matmul.kernels.k18_past_cublas_bf16 import (
    PAIRS, bf16_gemm_past_cublas, plan_past_cublas, turned_tile)
from numba_matmul.registry import ALL, KERNELS
from numba_matmul.sim import memory
from numba_matmul.sim.hopper import MBarrier
from numba_matmul.sim.kernel import MAX_GRID, StrictKernel
from numba_matmul.sim.launch import launch_of
from numba_matmul.sim.types import INTEGERS

factor = st.one_of(st.sampled_from([0.0, 1.0, -1.0]), st.floats(-2, 2, width=32))


DTYPES = {4: "float32", 2: "bfloat16", 1: "float8_e4m3fn"}  # by the bytes of an element

def nan_like(x):
    return rounded(np.full(x.shape, np.nan), DTYPES[x.dtype.itemsize])


@each_kernel()
def test_a_block_of_rows_is_a_matrix(kernel):
    whole, b = good(kernel, 9, 5, 4)
    assert_matmul_correct(to_h(whole)[3:8], b, kernel(whole[3:8], b))


@cache
def small_tiles(kernel):
    "Every small tile that a kernel's rules allow."
    tiles, found = kernel.tiles, []
    kind = type(tiles.tile)
    values = {name: tiles.small.get(name, (kind._field_defaults.get(name, 1),)) for name in kind._fields}
    for configuration in configurations(values):
        tile = kind(**configuration)
        try: check_tile(tile, tiles.rules)
        except ValueError: continue
        if tile.threads <= tiles.threads: found.append(tile)
    return found


TILED = [kernel for kernel in KERNELS.values() if kernel.tiles]


def test_every_kernel_with_tiles_is_tried_with_small_ones():
    assert TILED == [kernel for kernel in KERNELS.values() if "tile" in signature(kernel.fn).parameters]
    assert all(len(small_tiles(kernel)) >= 5 for kernel in TILED)


PARTS = 2  # of a kernel's tiles, so that all cores have work


@pytest.mark.first(1)
@pytest.mark.parametrize("part", range(PARTS))
@each_kernel(lambda kernel: kernel.tiles)
@settings(deadline=None, max_examples=24 // PARTS)
@given(data=st.data(), alpha=factor, beta=factor)
def test_every_tile_that_the_rules_let_through_works(kernel, part, data, alpha, beta):
    "Sizes at, below and above multiples of the tile; matrices that start anywhere in an array."
    tile = data.draw(st.sampled_from(small_tiles(kernel)[part::PARTS]))
    options = data.draw(st.sampled_from(kernel.tiles.variants))
    if options.get("epilogue") == "staged": beta = 0.0  # it doesn't read C
    def size(of): return data.draw(st.one_of(st.sampled_from([of, 2 * of]), st.integers(0, 2 * of + 1)))
    m, n, k = size(tile.bm), size(tile.bn), size(tile.bk)
    # tiles in one direction, to limit the simulator's time: test_paths.py has them in both
    if m > tile.bm: n = min(n, tile.bn)
    if getattr(tile, "parts", 1) > 1:
        m, k = min(m, tile.bm + 1), min(k, tile.bk + 1)
        n = min(n, 9 if m > tile.bm else tile.bn + 1)
    skips = [data.draw(st.integers(0, 4)) for _ in "abc"]
    if kernel.uses_tma and not (kernel.pads and data.draw(st.booleans())):
        (m, n, k), skips = kernel.fitted(m, n, k), [0, 0, 0]
    elif not kernel.pads: k = min(k, 50_000 // max(1, m * n))
    dtype = kernel.dtype
    a, b = (random(*shape, dtype=dtype) for shape in ((m, k), (k, n)))
    before = random(m, n, dtype=result_dtype(dtype))
    if alpha == 0: a, b = nan_like(a), nan_like(b)
    def view(x, skip):
        before = random(skip, dtype=DTYPES[x.dtype.itemsize])
        return to_d(np.concatenate([before, x.ravel()]))[skip:].reshape(x.shape)
    c = view(before if beta else nan_like(before), skips[2])
    kernel(view(a, skips[0]), view(b, skips[1]), c, alpha, beta, tile=tile, **options)
    assert_matmul_correct(a, b, c, alpha, beta, c_before=before)


def test_blocks_of_stream_k_that_share_tiles_give_the_same_result_each_time_and_leave_nothing_behind():
    tile = WarpTile(32, 64, 8, 32, 64, 2, 4, 4, 4, unroll=8, zigzag=1, stages=3)
    a, b = to_d(random(40, 61)), to_d(random(61, 70))
    results = [to_h(sgemm_stream_k(a, b, tile=tile, blocks=5)) for _ in range(3)]
    assert_matmul_correct(a, b, results[0])
    assert all(np.array_equal(results[0], other) for other in results[1:])
    plan = plan_stream_k(gemm_args(a, b), tile, blocks=5)
    simulate_plan(plan)
    flags = to_h(plan.workspace[-1])
    assert len(flags) == 5 and set(flags) == {0}  # a CUDA graph launches again with the same number
    plan = plan_stream_k(gemm_args(a, b), tile, blocks=12)  # three parts of each tile
    simulate_plan(plan)
    assert set(to_h(plan.workspace[-1])[:12]) == {0}
    assert_matmul_correct(a, b, to_h(plan.launches[0].args[2]))
    assert 0 < launch_number() != launch_number()


def sliced_tiles():
    "Small tiles with slices, and a schedule for as many steps as they have."
    values = k14_stream_k.SMALL_TILES | dict(bk=(16, 32), slices=(2, 4))
    for tile in (WarpTile(**found) for found in configurations(values) if found["unroll"] == found["bk"]):
        try: check_tile(tile, k14_stream_k.SLICED_RULES)
        except ValueError: continue
        if tile.threads <= 128: yield dict(tile=tile, schedule=MainloopSchedule(tile.steps // 4, 1))


SLICED = list(sliced_tiles())


@settings(deadline=None, max_examples=24)
@given(data=st.data(), alpha=factor, beta=factor)
def test_slices_and_parts_of_sums_add_up(data, alpha, beta):
    "Sizes at, below and above multiples of the tile; rows that aren't aligned; parts without a k tile."
    options = data.draw(st.sampled_from(SLICED)) | dict(split_k=data.draw(st.integers(1, 4)))
    def size(of): return data.draw(st.one_of(st.sampled_from([of, 2 * of]), st.integers(0, of + 3)))
    m, n, k = size(options["tile"].bm), size(options["tile"].bn), size(options["tile"].bk)
    a, b, before = random(m, k), random(k, n), random(m, n)
    c = to_d(before if beta else nan_like(before))
    sgemm_stream_k(to_d(a), to_d(b), c, alpha, beta, **options)
    assert_matmul_correct(a, b, c, alpha, beta, c_before=before)


def check_twice(plan, a, b, c):
    "Launch a plan twice, the second time with the flags of the first: both are right, and no flag is left."
    results = []
    for _ in range(2):
        simulate_plan(plan)
        results.append(to_h(c).reshape(a.shape[0], b.shape[1]).copy())
    assert_matmul_correct(a, b, results[0])
    assert np.array_equal(*results) and not to_h(plan.workspace[-1])[:plan.launches[0].blocks].any()


def test_blocks_of_stream_k_that_add_parts_up_together_leave_nothing_behind():
    a, b = to_d(random(40, 64)), to_d(random(64, 70))
    for tile, parts in (k14_stream_k.SPLIT["tile"], 3), (k14_stream_k.FEW, 2):
        plan = plan_stream_k(gemm_args(a, b), tile, split_k=parts)
        check_twice(plan, a, b, plan.launches[0].args[2])


def test_blocks_of_past_cublas_that_add_parts_up_leave_nothing_behind():
    a, b = (to_d(random(*shape, dtype="bfloat16")) for shape in ((40, 576), (576, 104)))
    g = gemm_args(a, b, dtype="bfloat16")
    plan = plan_past_cublas(g, turned_tile(64, 64, 2), split_k=9, epilogue="split_grid")
    check_twice(plan, a, b, plan.launches[0].args[1][0])


@pytest.mark.parametrize("tile", FEW_ROWS)
def test_few_rows_of_stream_k_have_room_for_long_sums(tile):
    a, b = random(tile.bm, 3 * tile.bk + 1), random(3 * tile.bk + 1, 33)
    assert_matmul_correct(a, b, sgemm_stream_k(to_d(a), to_d(b), tile=tile, split_k=1))


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.bm}×{tile.bn}")
@pytest.mark.parametrize("more", [8, 5])  # aligned rows, and misaligned ones
@each_kernel(lambda kernel: kernel.number in (13, 14))
def test_each_tile_that_may_be_chosen_works(kernel, tile, more):
    a, b = random(75, 21), random(21, tile.bn + more)
    assert_matmul_correct(a, b, to_h(kernel(to_d(a), to_d(b), tile=tile)))


@pytest.mark.parametrize("epilogue", ("split_k", "direct"))
def test_past_cublas_adds_parts_of_sums_or_not(epilogue):
    fn = partial(bf16_gemm_past_cublas, tile=WgmmaTile(64, 128, 2), epilogue=epilogue)
    check_matmul(fn, 20, 64, 3000, alpha=-0.5, beta=2.0)
    check_matmul(fn, 70, 8, 64)


def test_warp_specialized_with_a_guard_where_c_is_read_in_vain():
    fn = partial(bf16_gemm_warp_specialized, tile=WgmmaTile(64, 128, 2), read_c=True)
    check_matmul(fn, 70, 8, 64, beta=2.0)


@pytest.mark.parametrize("padded", ("", "a", "b", "bc", "abc", "cab"))
def test_past_cublas_is_right_whatever_is_copied(padded):
    check_matmul(partial(bf16_gemm_past_cublas, padded=padded), 70, 72, 136, alpha=-0.5, beta=2.0)
    check_matmul(partial(bf16_gemm_past_cublas, padded=padded), 20, 264, 40)


@each_kernel(lambda kernel: kernel.uses_tma)
def test_a_view_that_begins_between_16_bytes_is_right(kernel):
    whole, b = good(kernel, 3, 24, 8)
    a = to_d(np.ravel(to_h(whole)))[4:52].reshape(2, 24)
    assert_matmul_correct(to_h(a), b, kernel(a, b))


def test_an_option_of_vectorized_that_costs_time_alone_or_is_implied_is_taken():
    a, b = (to_d(random(32, 32)) for _ in "ab")
    for options in dict(predicated=True, width=1), dict(predicated=False, read_c=False, width=4):
        c = KERNELS[6](a, b, tile=Tile(16, 8, 8, 8, 4), **options)
        assert_matmul_correct(a, b, c)


@each_kernel(lambda kernel: "blocks" in signature(kernel.fn).parameters)
def test_blocks_may_be_a_number_of_numpy(kernel):
    a, b = good(kernel, 4, 8, 8)
    assert_matmul_correct(a, b, kernel(a, b, blocks=np.int32(3)))


def test_blocks_of_past_cublas_are_whole_pairs():
    a, b = good(KERNELS[18], 64, 512, 64)
    plan = bf16_gemm_past_cublas.plan(gemm_args(a, b, dtype="bfloat16"), tile=PAIRS[0], blocks=3)
    assert plan.launches[-1].blocks == 4


def test_every_block_of_smem_blocking_that_can_be_is_taken():
    for bs in 1, 2, 31, 32, np.int64(4):
        a, b = good(KERNELS[3])
        assert_matmul_correct(a, b, KERNELS[3](a, b, bs=bs))


def wrong_in_large_matrices():
    """In a child: float32 kernels that go wrong if uint32 and int32 have 16 bits and a matrix more than 2¹⁶
    elements. Only the first and the last block of each launch are run."""
    for name, low, high, narrow in (("uint32", 0, 2**16 - 1, np.uint16),
                                    ("int32", -2**15, 2**15 - 1, np.int16)):
        INTEGERS[name], getattr(types, name).in_numpy = (low, high), narrow
    call, wrong = StrictKernel.__call__, []
    def at_the_ends(launch, *args):
        launch.blocks = launch.grid_dim and [(0, 0, 0), tuple(size - 1 for size in launch.grid_dim)]
        return call(launch, *args)
    StrictKernel.__call__ = at_the_ends
    for kernel in KERNELS.values():
        if kernel.dtype != "float32": continue
        options = dict(next((path.options for path in kernel.paths if path.options), {}))
        for m, n, k in (8200, 9, 9), (9, 8200, 9):
            a, b, c = random(m, k), random(k, n), to_d(np.full((m, n), np.nan, np.float32))
            if kernel.number == 14:  # one block per tile
                options["blocks"] = blocks = cdiv(m, options["tile"].bm) * cdiv(n, options["tile"].bn)
                k14_stream_k.sm_count = partial(int, blocks)
            try:
                kernel(to_d(a), to_d(b), c, **options)
                result, right = to_h(c), a.astype(np.float64) @ b
                done = ~np.isnan(result)
                assert done[0, 0] and done[-1, -1] and np.allclose(result[done], right[done], 1e-4, 1e-4)
            except Exception as error: wrong.append((kernel.number, (m, n, k), repr(error)))
    return wrong


def test_no_index_of_a_large_matrix_is_kept_in_32_bits():
    """The effect on a matrix of more than 2³² elements shows in a smaller one. (Kernels 15 to 18 keep pairs
    of bfloat16 in 32 bits: their large matrices are for `make gpu STAGE=check`.)"""
    assert in_fork(wrong_in_large_matrices) == []


# What a call launches

def launched(fn, shape, **options):
    "Name of the kernel that a host function launches, or the error that it launches several."
    try: return launch_of(partial(fn, **options), shape).kernel.py_func.__name__
    except ValueError as e: return str(e)


@each_kernel(lambda kernel: kernel.uses_tma and kernel.fallback)
def test_the_tma_copies_where_it_can(kernel):
    own, other = kernel.kernel_name, kernel.fallback.kernel_name
    copied = partial(launched, partial(kernel.fn, tile=kernel.tiles.tile))
    assert [copied(shape) for shape in ((1, 8, 16), (37, 48, 24), (256, 512, 64))] == [own] * 3
    assert copied((8, 8, 0)) == copied((8, 8, 8), alpha=0.0) == other
    if kernel.multiple == 1: return
    copy = "copy_padded_kernel"
    for shape in (8, 9, 8), (8, 8, 9), (8, 9, 9):
        if kernel.pads: assert launched(kernel.fn, shape).endswith(f"not one: {copy}, {own}")
        else: assert launched(kernel.fn, shape) == other


@each_kernel(lambda kernel: kernel.tiles)
def test_the_tile_that_is_given_is_launched(kernel):
    a, b = good(kernel, 64, 64, 64)
    g = gemm_args(a, b, dtype=kernel.dtype, dtype_c=result_dtype(kernel.dtype))
    options = dict(next(path.options for path in kernel.paths if "tile" in path.options))
    def own(tile):
        launches = kernel.fn.plan(g, **options | dict(tile=tile)).launches
        return {launch.kernel for launch in launches if launch.kernel.__name__ == kernel.kernel_name}
    one, other = kernel.tiles.tile, options["tile"]
    assert own(one) and own(one) == own(one) and not own(one) & own(other)


def test_a_grid_has_as_many_blocks_as_the_simulator_allows():
    assert (MAX_GRID_X, MAX_GRID_Y) == MAX_GRID[:2]


def test_blocks_of_warp_specialized_have_as_few_tiles_as_can_be():
    fn = partial(bf16_gemm_warp_specialized, tile=WgmmaTile(64, 128, 2))
    for rows, cols in (3, 5), (40, 7), (7, 40):
        blocks, *_ = launch_of(fn, (64 * rows, 128 * cols, 64)).grid
        each = cdiv(rows * cols, sm_count())
        assert cdiv(rows * cols, blocks) == each and (blocks == 1 or cdiv(rows * cols, blocks - 1) > each)


def test_the_first_consumer_of_warp_specialized_arrives_once_at_the_order_barrier(monkeypatch):
    arrive, arrivals = MBarrier.arrive, []
    def noted(barrier, size=0):
        if barrier.count == 1 and not size: arrivals.append(barrier)
        arrive(barrier, size)
    monkeypatch.setattr(MBarrier, "arrive", noted)
    a, b = good(KERNELS[17], 256, 256, 256)
    bf16_gemm_warp_specialized(a, b, tile=WgmmaTile(128, 128, 2), blocks=1)  # four tiles
    assert len(arrivals) == 1


def test_past_cublas_copies_what_it_is_told():
    own = "bf16_gemm_warp_specialized_kernel"
    assert launched(bf16_gemm_past_cublas, (4, 64, 8)) == own
    assert launched(bf16_gemm_past_cublas, (4096, 24, 8), padded="") == own
    both = f"not one: copy_padded_kernel, {own}"
    assert both in launched(bf16_gemm_past_cublas, (4, 64, 8), padded="b")
    # threads can store C's rows wherever they start, but the TMA can't
    assert both in launched(bf16_gemm_past_cublas, (8, 9, 8), padded="b")
    assert launched(bf16_gemm_past_cublas, (4096, 24, 8), padded="", tile=LARGE) == own
    row_major = launched(bf16_gemm_past_cublas, (8, 9, 8), padded="b", tile=LARGE)
    assert row_major == "bf16_gemm_tensor_cores_kernel"
    by_tma = partial(launched, bf16_gemm_past_cublas, (8, 9, 8), epilogue="staged")
    assert by_tma(padded="b") == "bf16_gemm_tensor_cores_kernel"
    assert by_tma(padded="bc").endswith(f"not one: copy_padded_kernel, {own}, copy_padded_kernel")


@pytest.mark.parametrize("beta", (0.0, 1.0, -1.5))
@each_kernel(lambda kernel: kernel.number in (18, 20))
def test_a_tile_that_is_chosen_has_registers_enough_to_read_c(kernel, beta):
    a, b = good(kernel, 64, 64, 64)
    c = to_d(random(64, 64, dtype="bfloat16"))
    g = gemm_args(a, b, c, beta=beta, dtype=kernel.dtype, dtype_c="bfloat16")
    for size in 4096, 5000:
        plan = kernel.fn.plan(replace(g, m=size, n=size, k=size))
        assert plan.launches[-1].kernel.__name__ == kernel.kernel_name


@each_kernel(lambda kernel: kernel.number in (18, 20))
def test_parts_of_sums_fit_into_shared_memory_beside_the_ring(kernel):
    a, b = good(kernel, 64, 64, 64)
    g = replace(gemm_args(a, b, dtype=kernel.dtype, dtype_c="bfloat16"), k=8192)
    sizes = []
    for tile, parts in product({options["tile"] for options in kernel.tiles.compiled}, (2, 3, 8)):
        try: sizes.append(kernel.fn.plan(g, tile=tile, split_k=parts).launches[-1].shared_bytes)
        except ValueError: pass  # too little room, or too few registers
    assert len(sizes) >= 6 and max(sizes) <= shared_memory_limit()
    with pytest.raises(ValueError, match="2 parts of sums leave room for only 2 stages"): with_room(LARGE, 2)


def test_sizes_that_the_tma_cannot_count_are_left_to_tensor_cores():
    def counts(*shape): return bool(tma_counts(SimpleNamespace(**dict(zip("mnk", shape)), alpha=1.0)))
    assert counts(LONGEST, 8, 8) and counts(1, LONGEST, 1) and not any(
        counts(*shape) for shape in ((LONGEST + 1, 8, 8), (8, 2**32 - 8, 8), (1, 8, 2**31 + 64), (8, 0, 8)))
    assert LONGEST + 255 < 2**31  # the last tile starts, and ends, before that


def test_stream_k_launches_all_blocks_at_once_each_time_with_a_new_number():
    for stream_k in True, False:
        g = gemm_args(*good(ALL["sgemm_stream_k"]))
        launch, = plan_stream_k(g, blocks=2, stream_k=stream_k).launches  # for one tile
        assert launch.args[-2] is launch_number and launch.cooperative is stream_k


def test_columns_of_a_thread_of_bank_conflicts_padding():
    "Groups of four, as far apart as a row's threads require; or adjacent."
    a, b = to_d(random(16, 8)), to_d(random(8, 64))
    def columns(**options):
        seen = set()
        def record(space, operation, array, index, *_):
            stores = (space, operation, array.name) == ("global", "store", "c")
            if stores and getcurrent().linear == 0: seen.add(index)
        memory.recorder = record
        try: sgemm_bank_conflicts_padding(a, b, tile=Tile(16, 64, 8, 8, 8), **options)
        finally: memory.recorder = None
        return sorted({index[1] for index in seen})
    assert columns() == [0, 4 * 64 // 8] and columns(split=False) == [0, 4]


def test_a_capability_with_an_a_is_that_of_one_gpu_alone():
    gpus = (8, 0), (8, 9), (9, 0), (9, 1), (10, 0)
    for capability, needs in product(gpus, ((8, 0), (9, 0), (9, 0, "a"))):
        assert capable(capability, needs) == (capability == (9, 0) if len(needs) > 2 else capability >= needs)


@each_kernel(lambda kernel: kernel.capability > (0, 0))
def test_a_gpu_without_the_instructions_is_refused(kernel, monkeypatch):
    monkeypatch.setattr(limits, "has_capability", lambda needs: False)
    with pytest.raises(RuntimeError, match="needs a GPU of compute"): kernel(*good(kernel, 8, 8, 16))


def test_a_block_may_ask_for_all_shared_memory_and_for_no_byte_more():
    class Kernel:
        def __getitem__(self, configuration): return configuration
    assert with_shared_memory(Kernel(), 1, 2, 3, shared_memory_limit()) == (1, 2, 3, shared_memory_limit())
    with pytest.raises(RuntimeError, match="choose fewer stages"):
        with_shared_memory(Kernel(), 1, 2, 3, shared_memory_limit() + 1)


# kernel number: the threads, registers or shared memory its tile needs, computed by hand
NEEDS = {4: (512, (512, 1), 4096), 6: (256, (256, 2), 8192), 9: (256, (256, 2), 16384),
         10: (128, (128, 2), 16384), 12: (128, (128, 2), 33280), 14: (256, (256, 1), 37248),
         15: (256, (256, 1), 196608), 17: (256, None, 197696)}


@each_kernel(lambda kernel: kernel.number in NEEDS)
def test_what_a_tile_needs(kernel):
    tile = kernel.tiles.tile
    assert (tile.threads, getattr(tile, "launch_bounds", None), tile.shared_bytes) == NEEDS[kernel.number]


def test_descriptors_have_the_bits_of_the_ptx_isa():
    # no leading distance; 1024 bytes; 128-byte swizzle
    assert k16_tma_wgmma.OF_A == 1 << 16 | 64 << 32 | 1 << 62
    assert k16_tma_wgmma.OF_B == 512 << 16 | 64 << 32 | 1 << 62  # boxes of 8192 bytes


def test_registers_that_warps_of_warp_specialized_give_back_are_enough_for_the_others():
    for consumers, count in CONSUMER_REGISTERS.items():
        producer = PRODUCER_REGISTERS[consumers]
        assert 128 * (producer + consumers * count) <= 65536
        assert 24 <= producer < count <= 256  # PTX ISA, setmaxnreg
        assert producer % 8 == count % 8 == 0
