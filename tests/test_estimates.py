"Do the estimates by which kernels 14 and 18 choose fit the times that were recorded on GPUs?"
from statistics import median

import pytest

from numba_matmul.cards import load_cards
from numba_matmul.kernels import k14_stream_k, k18_past_cublas_bf16
from numba_matmul.kernels.k14_stream_k import WHOLE, estimated_cycles, launch_configs

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
