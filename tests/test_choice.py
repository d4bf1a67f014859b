"What kernels 13, 14 and 18 choose for a product: a tile, blocks, parts of sums, copies."
import numpy as np
from hypothesis import given, strategies as st
from numba import cuda

from numba_matmul.arrays import cdiv
from numba_matmul.gemm.args import gemm_args
from numba_matmul.gemm.limits import sm_count
from numba_matmul.gemm.shared_sums import adds_together
from numba_matmul.kernels import k14_stream_k
from numba_matmul.kernels.k13_planned_loop import TILES, choose_tile
from numba_matmul.kernels.k14_stream_k import FEW_ROWS, WHOLE, launch_configs, plan_stream_k
from numba_matmul.kernels.k18_past_cublas_bf16 import (
    MIN_K_TILES, SMALL, may_split, select_config, turned_tile, work_tiles)


def test_planned_loop_takes_a_large_tile_for_a_large_matrix_and_a_small_one_for_a_small():
    sizes = [choose_tile(size, size, 132) for size in (64, 512, 1024, 4096, 10000)]
    results = [tile.bm * tile.bn for tile in sizes]
    assert results == sorted(results) and sizes[0] == TILES[-1] and sizes[-1] == TILES[0]


def test_stream_k_adds_three_equal_parts_of_a_tile_or_more_together():
    assert [adds_together(4, blocks, 10) for blocks in (4, 8, 12, 13, 40, 44)] == [
        False, False, True, False, True, False]


def test_stream_k_has_a_tile_for_few_rows_but_not_for_few_columns():
    def tile(*shape): return k14_stream_k.select_config(*shape, 132).tile
    assert [tile(m, 4096, 4096) for m in (1, 8)] == [*FEW_ROWS[:2]]
    others = tile(16, 4096, 4096), tile(17, 4096, 4096), tile(4096, 1, 4096), tile(4096, 8, 4096)
    assert not {*others} & {*FEW_ROWS}


def test_stream_k_is_launched_as_its_estimate_says():
    for shape in (64, 512, 512), (512, 64, 512):
        m, n, k = shape
        a, b = cuda.device_array((m, k), np.float32), cuda.device_array((k, n), np.float32)
        plan, best = plan_stream_k(gemm_args(a, b)), k14_stream_k.select_config(*shape, sm_count())
        assert (plan.launches[0].blocks, plan.launches[0].threads) == (best.blocks, best.tile.threads)


@given(m=st.integers(1, 20_000), n=st.integers(1, 20_000), k=st.integers(1, 20_000), sms=st.integers(1, 150),
       tile=st.sampled_from(k14_stream_k.TILES + FEW_ROWS))
def test_parts_of_stream_k_run_at_once_and_one_part_is_always_considered(m, n, k, sms, tile):
    configs, places = launch_configs(m, n, k, sms, tile), sms * tile.launch_bounds[1]
    tiles = cdiv(m, tile.bm) * cdiv(n, tile.bn)
    assert tiles in {config.blocks for config in configs if config.split_k == 1}
    for _, blocks, split_k, _ in configs:
        assert blocks in (tiles, places) or blocks % tiles == 0 and blocks <= places
        assert split_k in (1, blocks // tiles)
        assert tile in WHOLE or blocks == tiles or k // split_k >= (1 if tile in FEW_ROWS else 64)


def test_past_cublas_shares_long_sums_of_small_matrices():
    few, many = (select_config(64, 128, k, 132).split_k for k in (64, 16384))
    assert few == 1 < many


def test_past_cublas_copies_what_pays():
    def copied(*shape, **options): return select_config(*shape, 132, **options).padded
    assert {copied(m, n, k) for m in (512, 4096) for n in (1024, 4096) for k in (512, 4096)} == {""}
    # blocks that share rows don't need them copied; with a small tile a copy pays, if it's used often enough
    assert {copied(m, 5000, 4096) for m in (64, 512, 4096, 8192)} == {""}
    small = (SMALL,)
    assert [copied(m, 5000, 4096, tiles=small) for m in (64, 1024, 4096)] == ["", "b", "b"]
    assert copied(16384, 64, 8200) == ""
    assert copied(64, 8192, 8200) == copied(16384, 8192, 8200, tiles=small) == "a"
    assert copied(4096, 4095, 4096, padded=("bc", "abc")) == "bc"


def test_past_cublas_has_a_tile_for_few_rows():
    assert [select_config(m, 4096, 4096, 132).tile.bn for m in (1, 16, 17)] == [16, 16, 32]
    assert select_config(1, 4104, 4096, 132).tile.bn == 16, "rows that aren't whole sectors"


@given(m=st.integers(1, 20_000), n=st.integers(1, 20_000), k=st.integers(1, 20_000), sms=st.integers(1, 150),
       tiles=st.sampled_from((None, (turned_tile(192, 128, 5),))))
def test_blocks_of_past_cublas_have_as_few_waves_as_can_be(m, n, k, sms, tiles):
    tile, blocks, split_k, _, by_grid = select_config(m, n, k, sms, tiles)
    k_tiles, pairs = cdiv(k, tile.bk), work_tiles(m, n, tile, split_k)
    assert split_k == 1 or ((split_k - 1) * cdiv(k_tiles, split_k) < k_tiles
                            and cdiv(k_tiles, split_k) >= MIN_K_TILES)
    if split_k > 1:  # a cluster for each tile; or all blocks at once
        assert blocks == pairs and (blocks <= sms if by_grid else may_split(tile, split_k))
        return
    places, clusters = max(1, sms // tile.cluster), blocks // tile.cluster
    waves = cdiv(pairs, clusters)
    assert blocks % tile.cluster == 0 and 1 <= clusters <= min(pairs, places)
    assert waves == cdiv(pairs, places) and (clusters == 1 or cdiv(pairs, clusters - 1) > waves)
