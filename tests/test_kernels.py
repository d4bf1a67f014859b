"Every kernel is right at any size, with any tile and any option."
from functools import cache, partial
from inspect import signature

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numba import types
from products import each_kernel, good, random

from numba_matmul.arrays import cdiv, rounded, to_d, to_h
from numba_matmul.bench.verify import assert_matmul_correct, check_matmul
from numba_matmul.gemm.args import gemm_args
from numba_matmul.gemm.limits import launch_number
from numba_matmul.gemm.plan import simulate_plan
from numba_matmul.gemm.tiles import Tile, WarpTile, WgmmaTile, check_tile
from numba_matmul.kernels import k14_stream_k
from numba_matmul.kernels.k09_autotuning import configurations
from numba_matmul.kernels.k13_planned_loop import TILES
from numba_matmul.kernels.k14_stream_k import plan_stream_k, sgemm_stream_k
from numba_matmul.kernels.k17_warp_specialized import bf16_gemm_warp_specialized
from numba_matmul.kernels.k18_past_cublas_bf16 import bf16_gemm_past_cublas
from numba_matmul.process import in_child
from numba_matmul.registry import KERNELS
from numba_matmul.sim.launch import StrictKernel
from numba_matmul.sim.types import INTEGERS


factor = st.one_of(st.sampled_from([0.0, 1.0, -1.0]), st.floats(-2, 2, width=32))


def nan_like(x):
    return rounded(np.full(x.shape, np.nan), "float32" if x.dtype == np.float32 else "bfloat16")


@each_kernel()
def test_a_block_of_rows_is_a_matrix(kernel):
    whole, b = good(kernel, 9, 5, 4)
    assert_matmul_correct(to_h(whole)[3:8], b, kernel(whole[3:8], b))


@cache
def small_tiles(kernel):
    "Every small tile that a kernel's rules let through."
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


PARTS = 2  # of the tiles of a kernel, so that all cores have work


@pytest.mark.first(1)
@pytest.mark.parametrize("part", range(PARTS))
@each_kernel(lambda kernel: kernel.tiles)
@settings(deadline=None, max_examples=24 // PARTS)
@given(data=st.data(), alpha=factor, beta=factor)
def test_every_tile_that_the_rules_let_through_works(kernel, part, data, alpha, beta):
    "Sizes at, below and above multiples of the tile; matrices that start anywhere in an array."
    tile = data.draw(st.sampled_from(small_tiles(kernel)[part::PARTS]))
    options = data.draw(st.sampled_from(kernel.tiles.variants))
    if options.get("epilogue") == "staged": beta = 0.0  # it does not read C
    def size(of): return data.draw(st.one_of(st.sampled_from([of, 2 * of]), st.integers(0, 2 * of + 1)))
    m, n, k = size(tile.bm), size(tile.bn), size(tile.bk)
    # two tiles of the large ones, for the simulator's time
    if tile.bm * tile.bn >= 4096 and m > tile.bm: n = min(n, tile.bn + 1)
    skips = [data.draw(st.integers(0, 4)) for _ in "abc"]
    if kernel.uses_tma and not (kernel.pads and data.draw(st.booleans())):
        (m, n, k), skips = kernel.fitted(m, n, k), [0, 0, 0]
    elif not kernel.pads: k = min(k, 50_000 // max(1, m * n))
    dtype = kernel.dtype
    a, b, before = (random(*shape, dtype=dtype) for shape in ((m, k), (k, n), (m, n)))
    if alpha == 0: a, b = nan_like(a), nan_like(b)
    def view(x, skip):
        return to_d(np.concatenate([random(skip, dtype=dtype), x.ravel()]))[skip:].reshape(x.shape)
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
    assert 0 < launch_number() != launch_number()


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.bm}×{tile.bn}")
@pytest.mark.parametrize("n", [264, 261])  # aligned rows, and others
@each_kernel(lambda kernel: kernel.number in (13, 14))
def test_each_tile_that_may_be_chosen_works(kernel, tile, n):
    a, b = random(75, 21), random(21, n)
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


def test_an_option_of_vectorized_that_costs_time_alone_is_taken():
    a, b = (to_d(random(32, 32)) for _ in "ab")
    c = KERNELS[6](a, b, tile=Tile(16, 8, 8, 8, 4), predicated=True, width=1)
    assert_matmul_correct(a, b, c)


@each_kernel(lambda kernel: "blocks" in signature(kernel.fn).parameters)
def test_blocks_may_be_a_number_of_numpy(kernel):
    a, b = good(kernel, 4, 8, 8)
    assert_matmul_correct(a, b, kernel(a, b, blocks=np.int32(3)))


def test_every_block_of_smem_blocking_that_can_be_is_taken():
    for bs in 1, 2, 31, 32, np.int64(4):
        a, b = good(KERNELS[3])
        assert_matmul_correct(a, b, KERNELS[3](a, b, bs=bs))


def wrong_in_large_matrices():
    """In a child: kernels of float32 that are wrong where uint32 and int32 have 16 bits, and a matrix more
    than 2¹⁶ elements. Of each launch only the first block is run and the last."""
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
            if kernel.number == 14:  # a block for each tile
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
    """What that does to a matrix of more than 2³² elements shows in a smaller one. (Kernels 15 to 18 keep
    pairs of bfloat16 in 32 bits: their large matrices are for `make gpu STAGE=check`.)"""
    assert in_child(wrong_in_large_matrices, simulator=True) == []
