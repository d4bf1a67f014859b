"Do the estimates by which kernels 14 and 18 choose fit the times that were recorded on GPUs?"
from statistics import median

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numba import cuda

from numba_matmul.arrays import cdiv
from numba_matmul.cards import load_cards
from numba_matmul.gemm.args import gemm_args
from numba_matmul.gemm.limits import sm_count
from numba_matmul.kernels import k14_stream_k, k18_past_cublas_bf16
from numba_matmul.kernels.k14_stream_k import (
    FEW_ROWS, WHOLE, estimated_cycles, launch_configs, select_config, sgemm_stream_k)

SMS = 132  # of the H100 and the H200
CARDS = [card for card in load_cards() if card["multiprocessors"] == SMS]
each_card = pytest.mark.parametrize("card", CARDS, ids=[card["gpu"] for card in CARDS])


def need_fit(options, most):
    "Of (estimated, measured) pairs: each fits the others, and the least estimate is about the fastest."
    per_cycle = median(measured / estimated for estimated, measured in options)
    for estimated, measured in options: assert 1 / most < measured / estimated / per_cycle < most
    assert min(options)[1] < 1.03 * min(measured for _, measured in options)


@each_card
def test_stream_k_estimates_each_way_to_share_a_product(card):
    measured = card["experiments"]["kernel 14, model and truth"]["values"]
    shape, options = (890, 257, 305), []
    for tile in k14_stream_k.TILES:
        for config in launch_configs(*shape, SMS, tile):
            shared = f"blocks: {config.blocks}" if tile in WHOLE else f"parts: {config.split_k}"
            us = measured.get(f"{tile.bm}×{tile.bn}, {shared}")
            if us: options.append((estimated_cycles(*shape, SMS, config), us))
    assert len(options) == len(measured)
    need_fit(options, 1.15)


@each_card
def test_past_cublas_estimates_its_tiles_parts_and_copies(card):
    def shown(tile): return "×".join(map(str, (tile.bn, tile.bm) if tile.m_major_c else (tile.bm, tile.bn)))
    tiles, by_shape = {shown(tile): tile for tile in k18_past_cublas_bf16.TILES}, {}
    for name, us in card["experiments"]["kernel 18, six tiles"]["values"].items():
        shape, tile, parts, copied = name.split(", ")
        parts, sizes = int(parts.split()[1]), map(int, shape.split("×"))
        cycles = k18_past_cublas_bf16.estimate(*sizes, SMS, tiles[tile], copied.strip("–"), parts, parts > 1)
        by_shape.setdefault(shape, []).append((cycles, us))
    assert len(by_shape) == 7
    for options in by_shape.values(): need_fit(options, 1.25)


def test_stream_k_has_a_tile_for_few_rows_but_not_for_few_columns():
    def tile(*shape): return select_config(*shape, SMS).tile
    assert [tile(m, 4096, 4096) for m in (1, 8)] == [*FEW_ROWS[:2]]
    others = tile(16, 4096, 4096), tile(17, 4096, 4096), tile(4096, 1, 4096), tile(4096, 8, 4096)
    assert not {*others} & {*FEW_ROWS}


def test_stream_k_is_launched_as_its_estimate_says():
    for shape in (64, 512, 512), (512, 64, 512):
        m, n, k = shape
        a, b = cuda.device_array((m, k), np.float32), cuda.device_array((k, n), np.float32)
        plan, best = sgemm_stream_k.plan(gemm_args(a, b)), select_config(*shape, sm_count())
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
