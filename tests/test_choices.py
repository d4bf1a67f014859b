"What a call launches: which kernel, with which tile, how many blocks, and what they may ask for."
from functools import partial
from itertools import product
from types import SimpleNamespace

import pytest
from greenlet import getcurrent
from hypothesis import given, strategies as st
from products import each_kernel, good, random

from numba_matmul.arrays import cdiv, to_d
from numba_matmul.gemm.args import gemm_args
from numba_matmul.gemm.limits import capable, launch_number, shared_memory_limit, with_shared_memory
from numba_matmul.gemm.tensor_maps import LONGEST, tma_counts
from numba_matmul.gemm.tiles import Tile
from numba_matmul.kernels import k16_tma_wgmma, k18_past_cublas_bf16
from numba_matmul.kernels.k08_bank_conflicts_padding import sgemm_bank_conflicts_padding
from numba_matmul.kernels.k13_planned_loop import TILES, choose_tile
from numba_matmul.kernels.k14_stream_k import plan_stream_k
from numba_matmul.kernels.k17_warp_specialized import CONSUMER_REGISTERS, PRODUCER_REGISTERS
from numba_matmul.kernels.k18_past_cublas_bf16 import bf16_gemm_past_cublas
from numba_matmul.registry import ALL
from numba_matmul.sim import memory
from numba_matmul.sim.launch import launch_of


def launched(fn, shape, **options):
    "Name of the kernel that a host function launches, or what says that it launches several."
    try: return launch_of(partial(fn, **options), shape).kernel.py_func.__name__
    except ValueError as e: return str(e)


@each_kernel(lambda kernel: kernel.uses_tma)
def test_the_tma_copies_where_it_can(kernel):
    own, other = kernel.kernel_name, kernel.fallback.kernel_name
    assert [launched(kernel.fn, shape) for shape in ((1, 8, 8), (37, 48, 24), (256, 512, 64))] == [own] * 3
    assert launched(kernel.fn, (8, 8, 0)) == launched(kernel.fn, (8, 8, 8), alpha=0.0) == other
    copy = "copy_padded_kernel"
    for shape, copying in (((8, 9, 8), f"{copy}, {own}, {copy}"), ((8, 8, 9), f"{copy}, {own}"),
                           ((8, 9, 9), f"{copy}, {copy}, {own}, {copy}")):
        if kernel.pads: assert launched(kernel.fn, shape).endswith(f"not one: {copying}")
        else: assert launched(kernel.fn, shape) == other


def test_past_cublas_copies_what_it_is_told():
    own = "bf16_gemm_warp_specialized_kernel"
    assert launched(bf16_gemm_past_cublas, (4, 64, 8)) == own
    assert launched(bf16_gemm_past_cublas, (4096, 24, 8), padded="") == own
    both = f"not one: copy_padded_kernel, {own}"
    assert both in launched(bf16_gemm_past_cublas, (4, 64, 8), padded="b")
    # C must be copied, too
    assert launched(bf16_gemm_past_cublas, (8, 9, 8), padded="b") == "bf16_gemm_tensor_cores_kernel"


def test_past_cublas_copies_what_pays():
    def copied(*shape, **options): return k18_past_cublas_bf16.select_config(*shape, 132, **options).padded
    assert {copied(m, n, k) for m in (512, 4096) for n in (1024, 4096) for k in (512, 4096)} == {""}
    # the copy takes the same time for any m
    assert [copied(m, 5000, 4096) for m in (64, 512, 4096, 8192)] == ["", "", "b", "b"]
    small = (k18_past_cublas_bf16.SMALL,)
    assert copied(4096, 5000, 4096, tiles=small) == "b" == copied(512, 5000, 4096, tiles=small)
    assert copied(16384, 64, 8200) == ""
    assert copied(64, 8192, 8200) == copied(16384, 8192, 8200, tiles=small) == "a"
    assert copied(4096, 4095, 4096, padded=("bc", "abc")) == "bc"


def test_sizes_that_the_tma_cannot_count_are_left_to_tensor_cores():
    def counts(*shape): return bool(tma_counts(SimpleNamespace(**dict(zip("mnk", shape)), alpha=1.0)))
    assert counts(LONGEST, 8, 8) and counts(1, LONGEST, 1) and not any(
        counts(*shape) for shape in ((LONGEST + 1, 8, 8), (8, 2**32 - 8, 8), (1, 8, 2**31 + 64), (8, 0, 8)))
    assert LONGEST + 255 < 2**31  # the last tile begins, and ends, before that


def test_planned_loop_takes_a_large_tile_for_a_large_matrix_and_a_small_one_for_a_small():
    sizes = [choose_tile(size, size, 132) for size in (64, 512, 1024, 4096, 10000)]
    results = [tile.bm * tile.bn for tile in sizes]
    assert results == sorted(results) and sizes[0] == TILES[-1] and sizes[-1] == TILES[0]


@given(m=st.integers(1, 20_000), n=st.integers(1, 20_000), k=st.integers(1, 20_000),
       sms=st.integers(1, 150))
def test_blocks_of_past_cublas_have_as_few_waves_as_can_be(m, n, k, sms):
    tile, blocks, split_k, _ = k18_past_cublas_bf16.select_config(m, n, k, sms)
    k_tiles, tiles = cdiv(k, tile.bk), cdiv(m, tile.bm) * cdiv(n, tile.bn)
    assert split_k == 1 or (split_k * tiles <= sms and (split_k - 1) * cdiv(k_tiles, split_k) < k_tiles
                            and cdiv(k_tiles, split_k) >= k18_past_cublas_bf16.MIN_K_TILES)
    tiles *= split_k
    assert 1 <= blocks <= min(tiles, sms)
    waves = cdiv(tiles, blocks)
    assert waves == cdiv(tiles, sms) and (blocks == 1 or cdiv(tiles, blocks - 1) > waves)


def test_stream_k_launches_all_blocks_at_once_each_time_with_a_new_number():
    for stream_k in True, False:
        launch, = plan_stream_k(gemm_args(*good(ALL["sgemm_stream_k"])), stream_k=stream_k).launches
        assert launch.args[-1] is launch_number and launch.cooperative is stream_k


def test_columns_of_a_thread_of_bank_conflicts_padding():
    "Groups of four, as far apart as the threads of a row of them need; or neighbours."
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


def test_a_block_may_ask_for_all_shared_memory_and_for_no_byte_more():
    class Kernel:
        def __getitem__(self, configuration): return configuration
    assert with_shared_memory(Kernel(), 1, 2, 3, shared_memory_limit()) == (1, 2, 3, shared_memory_limit())
    with pytest.raises(RuntimeError, match="choose fewer stages"):
        with_shared_memory(Kernel(), 1, 2, 3, shared_memory_limit() + 1)


# number of a kernel: threads, registers or shared memory that its tile needs, worked out by hand
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
        assert 128 * (PRODUCER_REGISTERS + consumers * count) <= 65536
        assert 24 <= PRODUCER_REGISTERS < count <= 256  # PTX ISA, setmaxnreg
        assert PRODUCER_REGISTERS % 8 == count % 8 == 0
