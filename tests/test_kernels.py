"Every kernel: any size is right, and wrong arguments are refused."
from fractions import Fraction
from functools import partial
from inspect import signature
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from greenlet import getcurrent
from hypothesis import given, settings, strategies as st
from numba import types

from numba_matmul.arrays import cdiv, from_bf16, rounded, to_bf16, to_d, to_h
from numba_matmul.bench.search import configurations
from numba_matmul.bench.verify import assert_matmul_correct, check_matmul
from numba_matmul.gemm.args import LARGEST, device_matrix, gemm_args
from numba_matmul.gemm.limits import capable, launch_number, shared_memory_limit, with_shared_memory
from numba_matmul.gemm.plan import Launch, kernel_args, simulate_plan
from numba_matmul.gemm.tensor_maps import LONGEST, TensorMapWords, tma_counts
from numba_matmul.gemm.tiles import MmaTile, Tile, WarpTile, WgmmaTile, check_tile
from numba_matmul.kernels import k14_stream_k, k16_tma_wgmma, k18_past_cublas_bf16
from numba_matmul.kernels.k08_bank_conflicts_padding import sgemm_bank_conflicts_padding
from numba_matmul.kernels.k13_planned_loop import TILES, MainloopSchedule, choose_tile, sgemm_planned_loop
from numba_matmul.kernels.k14_stream_k import plan_stream_k, sgemm_stream_k
from numba_matmul.kernels.k16_tma_wgmma import bf16_gemm_tma_wgmma_kernel
from numba_matmul.kernels.k17_warp_specialized import (CONSUMER_REGISTERS, PRODUCER_REGISTERS, bf16_gemm_warp_specialized,
                                                       bf16_gemm_warp_specialized_kernel)
from numba_matmul.kernels.k18_past_cublas_bf16 import bf16_gemm_past_cublas
from numba_matmul.process import in_child
from numba_matmul.registry import ALL, KERNELS
from numba_matmul.sim import memory
from numba_matmul.sim.kernel import StrictKernel
from numba_matmul.sim.launch import launch_of
from numba_matmul.sim.types import INTEGERS

kernels = pytest.mark.parametrize("kernel", KERNELS.values(), ids=lambda k: k.name)
factor = st.one_of(st.sampled_from([0.0, 1.0, -1.0]), st.floats(-2, 2, width=32))


def random(*shape, dtype="float32"): return rounded(np.random.randn(*shape), dtype)


def nan_like(x): return rounded(np.full(x.shape, np.nan), "float32" if x.dtype == np.float32 else "bfloat16")


@kernels
def test_a_block_of_rows_is_a_matrix(kernel):
    whole, b = good(kernel, 9, 5, 4)
    assert_matmul_correct(to_h(whole)[3:8], b, kernel(whole[3:8], b))


def good(kernel, m=4, k=6, n=5): return tuple(to_d(random(*shape, dtype=kernel.dtype)) for shape in ((m, k), (k, n)))


REFUSED = {
    "shapes that do not fit": (lambda a, b: (a, a), ValueError, ["4×6", "as many columns"]),
    "host array": (lambda a, b: (to_h(a), b), TypeError, ["numpy.ndarray", "to_d(a)"]),
    "list": (lambda a, b: (a, [[1.0]]), TypeError, ["builtins.list", "to_d(b)"]),
    "float64": (lambda a, b: (to_d(np.ones((4, 6))), b), TypeError, ["float64", "pass to_d("]),
    "some columns of a matrix": (lambda a, b: (to_d(np.hstack([to_h(a)] * 2))[:, :6], b), ValueError,
                                 ["not row-major", "to_d(a)"]),
    "every other row": (lambda a, b: (a, to_d(np.vstack([to_h(b)] * 2))[::2]), ValueError, ["b is not row-major"]),
    "one dimension": (lambda a, b: (to_d(to_h(a)[0]), b), ValueError, ["shape (6,)", "two dimensions"]),
    "c of another shape": (lambda a, b: (a, b, to_d(to_h(b)[:5, :4])), ValueError, ["5×4", "4×5"]),
    "c of another dtype": (lambda a, b: (a, b, to_d(np.zeros((4, 5), np.int32))), TypeError, ["c is int32"]),
    "beta without c": (lambda a, b: (a, b, None, 1.0, 2.0), ValueError, ["beta is 2.0", "pass the c"]),
    "a factor that is no number": (lambda a, b: (a, b, None, "2"), TypeError, ["alpha is '2'"]),
    "c is a": (lambda a, b: (to_d(to_h(a)[:, :4]),) * 3, ValueError, ["overlaps a"]),
}


@kernels
def test_wrong_arguments_are_refused(kernel):
    "Every kernel checks all of its arguments, in the one place that does so."
    for case, (arguments, error, texts) in REFUSED.items():
        with pytest.raises(error) as caught: kernel(*arguments(*good(kernel)))
        for text in texts: assert text in str(caught.value), case


@kernels
def test_c_may_not_overlap_a_part_of_b(kernel):
    a, whole = to_d(random(6, 6, dtype=kernel.dtype)), to_d(random(12, 5, dtype=kernel.dtype))
    with pytest.raises(ValueError, match="overlaps b"): kernel(a, whole[:6], whole[4:10])
    kernel(a, whole[:6], whole[6:])  # neighbours are fine


def test_a_tensor_on_another_gpu_is_refused():
    import torch
    def tensor_on(number):
        class Tensor:
            is_cuda, device = True, torch.device("cuda", number)
            shape, dtype, is_contiguous = (2, 2, 2), torch.float32, lambda self: True
        Tensor.__module__ = "torch"
        return Tensor()
    with pytest.raises(ValueError, match="on cuda:1; expected an array on the current GPU, cuda:0"):
        device_matrix("a", tensor_on(1), "float32")
    with pytest.raises(ValueError, match="a matrix, two dimensions"): device_matrix("a", tensor_on(0), "float32")


def test_the_type_of_a_matrix_is_that_of_the_kernel():
    for kernel, wrong, text in ((ALL["sgemm_naive"], "bfloat16", "expected float32"),
                                (ALL["bf16_gemm_tensor_cores"], "float32", "to_d(to_bf16(a))")):
        with pytest.raises(TypeError) as caught: kernel(*(to_d(random(4, 4, dtype=wrong)) for _ in "ab"))
        assert text in str(caught.value)


def small_tiles(tiles):
    "Every small tile that a kernel's rules let through."
    kind, found = type(tiles.tile), []
    values = {name: tiles.small.get(name, (kind._field_defaults.get(name, 1),)) for name in kind._fields}
    for configuration in configurations(values):
        tile = kind(**configuration)
        try: check_tile(tile, tiles.rules)
        except ValueError: continue
        if tile.threads <= tiles.threads: found.append(tile)
    return found


TILED = {kernel.name: small_tiles(kernel.tiles) for kernel in KERNELS.values() if kernel.tiles}
SEARCHED = [kernel for kernel in KERNELS.values() if kernel.tiles and kernel.tiles.space]


def test_every_kernel_with_tiles_is_tried_with_small_ones():
    assert TILED.keys() == {kernel.name for kernel in KERNELS.values() if "tile" in signature(kernel.fn).parameters}
    assert all(len(found) >= 5 for found in TILED.values())


PARTS = 2  # of the tiles of a kernel, so that all cores have work


@pytest.mark.first(1)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", TILED)
@settings(deadline=None, max_examples=24 // PARTS)
@given(data=st.data(), alpha=factor, beta=factor)
def test_every_tile_that_the_rules_let_through_works(name, part, data, alpha, beta):
    "Sizes at, below and above multiples of the tile; matrices that start anywhere in an array."
    kernel = ALL[name]
    tile, options = (data.draw(st.sampled_from(TILED[name][part::PARTS])),
                     data.draw(st.sampled_from(kernel.tiles.variants)))
    if options.get("epilogue") == "staged": beta = 0.0  # it does not read C
    def size(of): return data.draw(st.one_of(st.sampled_from([of, 2 * of]), st.integers(0, 2 * of + 1)))
    m, n, k = size(tile.bm), size(tile.bn), size(tile.bk)
    if tile.bm * tile.bn >= 4096 and m > tile.bm: n = min(n, tile.bn + 1)  # two tiles, for the simulator's time
    skips = [data.draw(st.integers(0, 4)) for _ in "abc"]
    if kernel.uses_tma and not (kernel.pads and data.draw(st.booleans())):
        (m, n, k), skips = kernel.fitted(m, n, k), [0, 0, 0]
    elif not kernel.pads: k = min(k, 50_000 // max(1, m * n))
    dtype = kernel.dtype
    a, b, before = (random(*shape, dtype=dtype) for shape in ((m, k), (k, n), (m, n)))
    if alpha == 0: a, b = nan_like(a), nan_like(b)
    def view(x, skip): return to_d(np.concatenate([random(skip, dtype=dtype), x.ravel()]))[skip:].reshape(x.shape)
    c = view(before if beta else nan_like(before), skips[2])
    kernel(view(a, skips[0]), view(b, skips[1]), c, alpha, beta, tile=tile, **options)
    assert_matmul_correct(a, b, c, alpha, beta, c_before=before)


@pytest.mark.parametrize("name,tile,text", [
    ("sgemm_1d_blocktiling", Tile(64, 64, 16, 8), "one number for each thread to copy"),
    ("sgemm_1d_blocktiling", Tile(60, 64, 8, 8), "multiple of tm"),
    ("sgemm_1d_blocktiling", Tile(64, 64, 64, 1), "at most 1024 threads"),
    ("sgemm_2d_blocktiling", Tile(32, 128, 8, 8, 8), "fill whole rows of B's tile"),
    ("sgemm_2d_blocktiling", Tile(4, 4, 4, 8, 8), "multiple of tm"),
    ("sgemm_2d_blocktiling", Tile(128, 128, 128, 8, 8), "48 KB"),
    ("sgemm_vectorized", Tile(128, 128, 8, 8, 6), "tn of 4"),
    ("sgemm_vectorized", Tile(128, 128, 6, 8, 8), "bk must be a multiple of 4"),
    ("sgemm_bank_conflicts_linearize", Tile(128, 128, 0, 8, 8), "bk must be at least 1"),
    ("sgemm_bank_conflicts_padding", Tile(24, 16, 4, 4, 4), "B's tile must be a whole number of passes"),
    ("bf16_gemm_tensor_cores", MmaTile(256, 256, 64, 64, 64, 4), "227 KB"),
    ("bf16_gemm_tensor_cores", MmaTile(64, 64, 16, 32, 32, 3), "at least 32"),
    ("bf16_gemm_tensor_cores", MmaTile(32, 32, 32, 8, 32, 3), "multiples of 16"),
])
def test_a_tile_that_cannot_work_is_refused_with_the_reason(name, tile, text):
    with pytest.raises(ValueError) as caught: ALL[name](*good(ALL[name]), tile=tile)
    assert text in str(caught.value) and str(tile) in str(caught.value)


def test_a_padding_that_would_break_wide_loads_is_refused():
    with pytest.raises(ValueError, match="pad_a"):
        sgemm_bank_conflicts_padding(*good(ALL["sgemm_bank_conflicts_padding"]), pad_a=5)


@pytest.mark.parametrize("kernel", SEARCHED, ids=lambda kernel: kernel.name)
def test_the_space_of_a_kernel_holds_many_tiles_and_none_that_breaks_a_rule_without_a_word(kernel):
    tile, rules, works = kernel.tiles.tile, kernel.tiles.rules, 0
    for configuration in configurations(kernel.tiles.space):
        try: check_tile(tile._replace(**configuration), rules)
        except ValueError as e: assert str(e).split(": ", 1)[1].split("; ")[0] in rules
        else: works += 1
    assert works >= 50
    check_tile(tile, rules)


def test_blocks_that_share_tiles_give_the_same_result_each_time_and_leave_nothing_behind():
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


def test_more_blocks_than_can_run_at_once_are_refused_where_blocks_wait_for_each_other():
    a, b = to_d(random(40, 61)), to_d(random(61, 70))
    with pytest.raises(ValueError, match="blocks is 1000000; expected at most"): sgemm_stream_k(a, b, blocks=10**6)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("n", [264, 261])  # aligned rows, and others
def test_each_tile_that_may_be_chosen_works(tile, n):
    a, b = random(75, 21), random(21, n)
    for kernel in sgemm_planned_loop, sgemm_stream_k:
        assert_matmul_correct(a, b, to_h(kernel(to_d(a), to_d(b), tile=tile)))


def test_kernel_13_takes_a_large_tile_for_a_large_matrix_and_a_small_one_for_a_small():
    sizes = [choose_tile(size, size, 132) for size in (64, 512, 1024, 4096, 10000)]
    results = [tile.bm * tile.bn for tile in sizes]
    assert results == sorted(results) and sizes[0] == TILES[-1] and sizes[-1] == TILES[0]


@pytest.mark.parametrize("changes", [dict(barrier_step=7), dict(barrier_step=5, copy_groups=3), dict(copy_groups=0),
                                     dict(barrier_step=-1), dict(carried=4), dict(hidden=2)])
def test_a_schedule_that_cannot_work_is_refused(changes):
    with pytest.raises(ValueError, match="MainloopSchedule"):
        sgemm_stream_k(*good(ALL["sgemm_stream_k"]), schedule=MainloopSchedule(**changes))
    with pytest.raises(ValueError, match="MainloopSchedule"):
        sgemm_planned_loop(*good(ALL["sgemm_planned_loop"]), schedule=MainloopSchedule(**changes))


HOPPER = pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS.values() if kernel.uses_tma],
                                 ids=lambda kernel: kernel.name)


def launched(fn, shape, **options):
    "Name of the kernel that a host function launches, or what says that it launches several."
    try: return launch_of(partial(fn, **options), shape).kernel.py_func.__name__
    except ValueError as e: return str(e)


@HOPPER
def test_the_tma_copies_where_it_can(kernel):
    own, other = kernel.kernel_name, kernel.fallback.kernel_name
    assert [launched(kernel.fn, shape) for shape in ((1, 8, 8), (37, 48, 24), (256, 512, 64))] == [own] * 3
    assert launched(kernel.fn, (8, 8, 0)) == launched(kernel.fn, (8, 8, 8), alpha=0.0) == other
    copy = "copy_padded_kernel"
    for shape, copying in (((8, 9, 8), f"{copy}, {own}, {copy}"), ((8, 8, 9), f"{copy}, {own}"),
                           ((8, 9, 9), f"{copy}, {copy}, {own}, {copy}")):
        if kernel.pads: assert launched(kernel.fn, shape).endswith(f"not one: {copying}")
        else: assert launched(kernel.fn, shape) == other


def test_kernel_18_copies_what_it_is_told():
    own, both = "bf16_gemm_warp_specialized_kernel", "not one: copy_padded_kernel, bf16_gemm_warp_specialized_kernel"
    assert (launched(bf16_gemm_past_cublas, (4, 64, 8))
            == launched(bf16_gemm_past_cublas, (4096, 24, 8), padded="") == own
            and both in launched(bf16_gemm_past_cublas, (4, 64, 8), padded="b"))
    # C must be copied, too
    assert launched(bf16_gemm_past_cublas, (8, 9, 8), padded="b") == "bf16_gemm_tensor_cores_kernel"


def test_kernel_18_copies_what_pays():
    def copied(*shape, **options): return k18_past_cublas_bf16.select_config(*shape, 132, **options).padded
    assert {copied(m, n, k) for m in (512, 4096) for n in (1024, 4096) for k in (512, 4096)} == {""}
    # the copy takes the same time for any m
    assert [copied(m, 5000, 4096) for m in (64, 512, 4096, 8192)] == ["", "", "b", "b"]
    small = (k18_past_cublas_bf16.SMALL,)
    assert copied(4096, 5000, 4096, tiles=small) == "b" == copied(512, 5000, 4096, tiles=small)
    assert copied(16384, 64, 8200) == "" and copied(64, 8192, 8200) == copied(16384, 8192, 8200, tiles=small) == "a"
    assert copied(4096, 4095, 4096, padded=("bc", "abc")) == "bc"


def test_sizes_that_the_tma_cannot_count_are_left_to_kernel_15():
    def counts(*shape): return bool(tma_counts(SimpleNamespace(**dict(zip("mnk", shape)), alpha=1.0)))
    longest = LONGEST
    assert counts(longest, 8, 8) and counts(1, longest, 1) and not any(
        counts(*shape) for shape in ((longest + 1, 8, 8), (8, 2**32 - 8, 8), (1, 8, 2**31 + 64), (8, 0, 8)))
    assert longest + 255 < 2**31  # the last tile begins, and ends, before that


@pytest.mark.parametrize("epilogue", ("split_k", "direct"))
def test_parts_of_sums_can_be_asked_for_or_not(epilogue):
    fn = partial(bf16_gemm_past_cublas, tile=WgmmaTile(64, 128, 2), epilogue=epilogue)
    check_matmul(fn, 20, 64, 3000, alpha=-0.5, beta=2.0)
    check_matmul(fn, 70, 8, 64)


def test_kernel_17_leaves_parts_of_sums_to_kernel_18():
    with pytest.raises(ValueError, match="call bf16_gemm_past_cublas"):
        bf16_gemm_warp_specialized(*good(ALL["bf16_gemm_warp_specialized"], 8, 8, 8), epilogue="split_k")


def test_an_epilogue_that_does_not_read_c_is_refused_where_it_must():
    a, b, c = (to_d(random(8, 8, dtype="bfloat16")) for _ in "abc")
    for epilogue in "overlapped", "staged":
        with pytest.raises(ValueError, match=f"beta is 2.0, and the {epilogue} epilogue does not read C"):
            bf16_gemm_warp_specialized(a, b, c, beta=2.0, epilogue=epilogue)


def test_an_epilogue_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="epilogue is 'late'; there are overlapped, staged, direct, split_k"):
        bf16_gemm_past_cublas(*good(ALL["bf16_gemm_past_cublas"]), epilogue="late")


def test_kernel_17_with_a_guard_where_c_is_read_in_vain():
    check_matmul(partial(bf16_gemm_warp_specialized, tile=WgmmaTile(64, 128, 2), read_c=True), 70, 8, 64, beta=2.0)


@pytest.mark.parametrize("padded", ("", "a", "b", "bc", "abc", "cab"))
def test_kernel_18_is_right_whatever_is_copied(padded):
    check_matmul(partial(bf16_gemm_past_cublas, padded=padded), 70, 72, 136, alpha=-0.5, beta=2.0)
    check_matmul(partial(bf16_gemm_past_cublas, padded=padded), 20, 264, 40)


@pytest.mark.parametrize("padded", ("x", "abd", True, False, 0))
def test_kernel_18_refuses_to_copy_what_is_no_matrix(padded):
    a, b = (to_d(random(8, 8, dtype="bfloat16")) for _ in "ab")
    with pytest.raises(ValueError, match="expected some of the letters a, b and c"):
        bf16_gemm_past_cublas(a, b, padded=padded)


@HOPPER
def test_a_view_that_begins_between_16_bytes_is_right(kernel):
    whole, b = good(kernel, 3, 24, 8)
    a = to_d(np.ravel(to_h(whole)))[4:52].reshape(2, 24)
    assert_matmul_correct(to_h(a), b, kernel(a, b))


@pytest.mark.parametrize("factory,tile,text", [
    (bf16_gemm_tma_wgmma_kernel, WgmmaTile(96, 128, 4), "multiple of 64"),
    (bf16_gemm_tma_wgmma_kernel, WgmmaTile(128, 320, 3), "256 at most"),
    (bf16_gemm_tma_wgmma_kernel, WgmmaTile(256, 256, 2), "65,536 registers"),
    (bf16_gemm_tma_wgmma_kernel, WgmmaTile(128, 256, 5), "227 KB"),
    (bf16_gemm_tma_wgmma_kernel, WgmmaTile(128, 256, 1), "at least 2"),
    (bf16_gemm_warp_specialized_kernel, WgmmaTile(192, 128, 4), "64 or 128"),
    (bf16_gemm_warp_specialized_kernel, WgmmaTile(128, 128, 7), "two boxes"),
    (bf16_gemm_warp_specialized_kernel, WgmmaTile(64, 192, 4), "multiple of 128"),
    (bf16_gemm_warp_specialized_kernel, WgmmaTile(128, 128, 4, 0), "group_m must be at least 1"),
])
def test_a_tile_that_wgmma_cannot_have_is_refused(factory, tile, text):
    with pytest.raises(ValueError) as caught: factory(tile)
    assert text in str(caught.value) and str(tile) in str(caught.value)


@given(m=st.integers(1, 20_000), n=st.integers(1, 20_000), k=st.integers(1, 20_000),
       sms=st.integers(1, 150))
def test_blocks_of_kernel_18_have_as_few_waves_as_can_be(m, n, k, sms):
    tile, blocks, split_k, _ = k18_past_cublas_bf16.select_config(m, n, k, sms)
    k_tiles, tiles = cdiv(k, tile.bk), cdiv(m, tile.bm) * cdiv(n, tile.bn)
    assert split_k == 1 or (split_k * tiles <= sms and (split_k - 1) * cdiv(k_tiles, split_k) < k_tiles
                            and cdiv(k_tiles, split_k) >= k18_past_cublas_bf16.MIN_K_TILES)
    tiles *= split_k
    assert 1 <= blocks <= min(tiles, sms)
    waves = cdiv(tiles, blocks)
    assert waves == cdiv(tiles, sms) and (blocks == 1 or cdiv(tiles, blocks - 1) > waves)


def test_a_block_may_ask_for_all_shared_memory_and_for_no_byte_more():
    class Kernel:
        def __getitem__(self, configuration): return configuration
    assert with_shared_memory(Kernel(), 1, 2, 3, shared_memory_limit()) == (1, 2, 3, shared_memory_limit())
    with pytest.raises(RuntimeError, match="choose fewer stages"): with_shared_memory(Kernel(), 1, 2, 3, shared_memory_limit() + 1)


# threads, registers or shared memory that a tile needs, worked out by hand
NEEDS = [(KERNELS[4].tiles.tile, (512, (512, 1), 4096)), (KERNELS[6].tiles.tile, (256, (256, 2), 8192)),
         (KERNELS[9].tiles.tile, (256, (256, 2), 16384)), (KERNELS[10].tiles.tile, (128, (128, 2), 16384)),
         (KERNELS[12].tiles.tile, (128, (128, 2), 33280)), (KERNELS[14].tiles.tile, (256, (256, 1), 37248)),
         (KERNELS[15].tiles.tile, (256, (256, 1), 196608)), (KERNELS[17].tiles.tile, (256, None, 197696))]


@pytest.mark.parametrize("tile,needs", NEEDS)
def test_what_a_tile_needs(tile, needs):
    assert (tile.threads, getattr(tile, "launch_bounds", None), tile.shared_bytes) == needs


def test_descriptors_have_the_bits_of_the_ptx_isa():
    assert k16_tma_wgmma.OF_A == 1 << 16 | 64 << 32 | 1 << 62  # no leading distance; 1024 bytes; 128-byte swizzle
    assert k16_tma_wgmma.OF_B == 512 << 16 | 64 << 32 | 1 << 62  # boxes of 8192 bytes


with_tiles = pytest.mark.parametrize("kernel", [k for k in KERNELS.values() if k.tiles], ids=lambda k: k.name)


@with_tiles
def test_a_tile_that_is_none_is_refused_before_anything_is_kept(kernel):
    a, b = good(kernel, 16, 16, 16)
    tile = kernel.tiles.tile
    field = tile._fields[0]
    for wrong, error, text in ((tuple(tile), TypeError, f"expected a {type(tile).__name__}"), (SimpleNamespace(bm=8), TypeError, "expected a"),
                               (tile._replace(**{field: float(tile[0])}), TypeError, f"{field} must be a whole number"),
                               (tile._replace(**{field: 0}), ValueError, f"{field} must be at least 1")):
        with pytest.raises(error, match=text): kernel(a, b, tile=wrong)
    assert_matmul_correct(a, b, kernel(a, b))  # no float is left in a cache


def has_option(kernel, name):
    return name in signature(kernel.factory).parameters and not (name == "predicated" and kernel.number > 16)  # the TMA needs none


@pytest.mark.parametrize("kernel, factors, option", [
    pytest.param(kernel, factors, option, id=f"{kernel.name}, {option}") for kernel in KERNELS.values() if kernel.tiles
    for factors, option in (((1.0, 2.0), dict(read_c=False)), ((1.0, 0.0), dict(read_c="no")), ((1.0, 0.0), dict(predicated=False)),
                            ((1.0, 0.0), dict(width=3)), ((2.0, 0.0), dict(scaled=False))) if has_option(kernel, *option)])
def test_an_option_that_would_make_the_result_wrong_is_refused(kernel, factors, option):
    (name,) = option
    a, b = good(kernel, 24, 24, 40) if kernel.multiple > 1 else good(kernel, 9, 11, 7)
    c = to_d(random(a.shape[0], b.shape[1], dtype=kernel.dtype))
    with pytest.raises(ValueError, match=f"{name} is .*; expected"): kernel(a, b, c, *factors, **option)


def test_an_option_that_costs_time_alone_is_taken():
    a, b = (to_d(random(32, 32)) for _ in "ab")
    c = KERNELS[6](a, b, tile=Tile(16, 8, 8, 8, 4), predicated=True, width=1)
    assert_matmul_correct(a, b, c)


@pytest.mark.parametrize("fn", [k.fn for k in KERNELS.values() if k.uses_tma], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("change", [dict(k_major_b=1), dict(m_major_a=1)], ids=str)
def test_host_functions_take_row_major_matrices_alone(fn, change):
    a, b = (to_d(random(16, 16, dtype="bfloat16")) for _ in "ab")
    with pytest.raises(ValueError, match="row-major here"): fn(a, b, tile=WgmmaTile(64, 128, 2)._replace(**change))


@kernels
def test_options_that_cannot_be_are_refused_before_anything_is_launched(kernel, monkeypatch):
    "By every host function that has them, whether it does the work, another one does, or there is nothing to do."
    def launched(launch, *args): raise AssertionError("launched")
    monkeypatch.setattr(StrictKernel, "__call__", launched)
    options, factory = signature(kernel.fn).parameters, signature(kernel.factory).parameters if kernel.factory else {}
    cases = [(TypeError, "foo", [1, None], "foo")]
    def number(name, *wrong, none=False):
        others = ["3", 2.0, np.float64(2), True, np.True_, [3], (2, 2), None][:7 if none else 8]
        cases.extend([(TypeError, name, others, f"{name} is .*; expected .*whole number"), (ValueError, name, wrong, f"{name} is .*; expected")])
    if "bs" in options: number("bs", 0, np.int64(0), -1, 33)
    if "blocks" in options: number("blocks", 0, np.int64(-1), 2**31, none=True)
    if "tile" in options: cases.append((TypeError, "tile", [0, (), "", False, (8, 8), [8], 64], "tile is .*; expected a"))
    if "padded" in options: cases.append((ValueError, "padded", ["x", "abd", True, 0, ["d"]], "expected some of the letters"))
    for name in {"pad_a", "pad_b", "shift"} & factory.keys(): number(name, -4, np.int64(-1))
    if "max_registers" in factory: number("max_registers", 0, -3, none=True)
    for name in {"split", "stream_k", "staged", "copies_first", "stagger_consumers"} & factory.keys():
        cases.append((ValueError, name, ["no", "", 2, -1, 0.0, 1.0, [True], None], f"{name} is .*; expected True or False"))
    if "schedule" in factory: cases.append((ValueError, "schedule", ["fast", None, (2, 3, 1, 3, 1), [1]], "a MainloopSchedule"))
    if "epilogue" in factory:
        wrong = ["fused", "fused_bias", "late", "", None, 1, ["staged"]]
        cases.append((ValueError, "epilogue", wrong, "there are overlapped, staged, direct"))
    for shape in (4, 8, 8), (4, 6, 5), (0, 8, 8), (4, 8, 0):
        a, b = good(kernel, *shape)
        for error, name, values, text in cases:
            for value in values:
                with pytest.raises(error, match=text) as caught: kernel(a, b, **{name: value})
                assert name in str(caught.value), value


@pytest.mark.parametrize("number,option,text", [(8, dict(pad_a=10**4), "48 KB"), (8, dict(pad_b=10**4), "48 KB"),
                                                (14, dict(shift=128), "from 0 to 31")], ids=str)
def test_an_option_beyond_what_a_tile_can_have_is_refused(number, option, text):
    with pytest.raises(ValueError, match=text): KERNELS[number](*good(KERNELS[number]), **option)


def test_blocks_may_be_a_number_of_numpy():
    for number in 14, 17, 18:
        a, b = good(KERNELS[number], 4, 8, 8)
        assert_matmul_correct(a, b, KERNELS[number](a, b, blocks=np.int32(3)))


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_a_factor_is_any_number_that_float32_holds(name):
    a, b, c = (to_d(random(4, 4)) for _ in "abc")
    def taken(value): return getattr(gemm_args(a, b, c, **{name: value}), name)
    for value in (2, True, np.int64(-3), np.float64(0.5), Fraction(1, 4), LARGEST, -LARGEST, np.inf, -np.inf, np.nan, 0.1):
        assert type(taken(value)) is np.float32 and np.array_equal(taken(value), np.float32(value), equal_nan=True), value
    for value in 1e300, -1e300, 10**400, -10**400, np.nextafter(LARGEST, np.inf), -np.nextafter(LARGEST, np.inf):
        with pytest.raises(ValueError, match=f"{name} is .*, which is beyond float32"): taken(value)
    for value in "2", None, 1j, [1.0], np.array([2.0]), np.complex64(1), to_d(random(1)):
        with pytest.raises(TypeError, match=f"{name} is .*; expected a number"): taken(value)


def test_every_block_of_kernel_3_that_can_be_is_taken():
    for bs in 1, 2, 31, 32, np.int64(4):
        a, b = good(KERNELS[3])
        assert_matmul_correct(a, b, KERNELS[3](a, b, bs=bs))


def test_a_capability_with_an_a_is_that_of_one_gpu_alone():
    for capability, needs in product(((8, 0), (8, 9), (9, 0), (9, 1), (10, 0)), ((8, 0), (9, 0), (9, 0, "a"))):
        assert capable(capability, needs) == (capability == (9, 0) if len(needs) > 2 else capability >= needs)


def test_tensor_maps_are_the_first_argument_or_none_is():
    maps, other = TensorMapWords.__new__(TensorMapWords), np.int64(0)
    for given in (other, maps), (other, other, maps), (maps, maps), (maps, other, maps):
        with pytest.raises(TypeError, match="expected them as the first"): kernel_args(Launch(None, 1, 32, given))


def test_registers_that_warps_of_kernel_17_give_back_are_enough_for_the_others():
    for consumers, count in CONSUMER_REGISTERS.items():
        assert 128 * (PRODUCER_REGISTERS + consumers * count) <= 65536
        assert 24 <= PRODUCER_REGISTERS < count <= 256 and PRODUCER_REGISTERS % 8 == count % 8 == 0  # PTX ISA, setmaxnreg


def test_kernel_14_launches_all_blocks_at_once_each_time_with_a_new_number():
    for stream_k in True, False:
        launch, = plan_stream_k(gemm_args(*good(ALL["sgemm_stream_k"])), stream_k=stream_k).launches
        assert launch.args[-1] is launch_number and launch.cooperative is stream_k


def test_columns_of_a_thread_of_kernel_8():
    "Groups of four, as far apart as the threads of a row of them need; or neighbours."
    a, b = to_d(random(16, 8)), to_d(random(8, 64))
    def columns(**options):
        seen = set()
        memory.recorder = lambda space, operation, array, index, *_: (
            getcurrent().linear == 0 and (space, operation, array.name) == ("global", "store", "c") and seen.add(index))
        try: sgemm_bank_conflicts_padding(a, b, tile=Tile(16, 64, 8, 8, 8), **options)
        finally: memory.recorder = None
        return sorted({index[1] for index in seen})
    assert columns() == [0, 4 * 64 // 8] and columns(split=False) == [0, 4]


def wrong_in_large_matrices():
    """In a child: kernels of float32 that are wrong where uint32 and int32 have 16 bits and a matrix more than 2¹⁶ elements.
    Of each launch only the first block is run and the last."""
    for name, low, high, narrow in ("uint32", 0, 2**16 - 1, np.uint16), ("int32", -2**15, 2**15 - 1, np.int16):
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
                options["blocks"] = cdiv(m, options["tile"].bm) * cdiv(n, options["tile"].bn)
                k14_stream_k.sm_count = lambda: options["blocks"]
            try:
                kernel(to_d(a), to_d(b), c, **options)
                result, right = to_h(c), a.astype(np.float64) @ b
                done = ~np.isnan(result)
                assert done[0, 0] and done[-1, -1] and np.allclose(result[done], right[done], 1e-4, 1e-4)
            except Exception as error: wrong.append((kernel.number, (m, n, k), repr(error)))
    return wrong


def test_no_index_of_a_large_matrix_is_kept_in_32_bits():
    """What that does to a matrix of more than 2³² elements shows in a smaller one. (Kernels 15 to 18 keep pairs of bfloat16
    in 32 bits: their large matrices are for `make gpu STAGE=check`.)"""
    assert in_child(wrong_in_large_matrices, simulator=True) == []


@pytest.mark.parametrize("c", [5.0, -np.inf, np.nan])
def test_where_the_product_is_infinite_nothing_else_is_right(c):
    a, b = np.array([[np.inf, 1.0], [1.0, 2.0]], np.float32), np.array([[1.0], [2.0]], np.float32)
    assert assert_matmul_correct(a, b, np.array([[np.inf], [5.0]], np.float32)) == 0
    with pytest.raises(AssertionError, match="1 of 2 elements is wrong; the first is c.0, 0."):
        assert_matmul_correct(a, b, np.array([[c], [5.0]], np.float32))


@pytest.mark.parametrize("bits", [[1.5, 2.0], np.array([1], np.int32)], ids=str)
def test_what_is_no_bits_of_bfloat16_is_refused(bits):
    with pytest.raises(TypeError, match="expected uint16"): from_bf16(bits)


@pytest.mark.parametrize("pieces", [0, -2, (1, 0)], ids=str)
def test_pieces_of_nothing_cover_nothing(pieces):
    with pytest.raises(ValueError, match="expected 1 or more"): cdiv((5, 5) if isinstance(pieces, tuple) else 5, pieces)


@pytest.mark.parametrize("k", [1, 64])
def test_what_is_allowed_for_is_rounding_and_no_more(k):
    a, b = random(5, k), random(k, 6)
    right, scale = a.astype(np.float64) @ b, abs(a).astype(np.float64) @ abs(b)
    for factor, wrong in (0.9, False), (-0.9, False), (1.1, True), (-1.1, True):
        c = right.copy()
        c[2, 3] += factor * 4 * (k + 1) ** 0.5 * 2**-24 * scale[2, 3]
        if not wrong: assert 0 < assert_matmul_correct(a, b, c) < 1e-4
        else:
            with pytest.raises(AssertionError, match="1 of 30 elements is wrong; the first is c.2, 3."): assert_matmul_correct(a, b, c)


@pytest.mark.parametrize("steps", [-2, -1, 1])
def test_in_bfloat16_the_neighbour_of_an_exact_product_is_wrong(steps):
    a, b = (rounded(np.full((1, 1), x), "bfloat16") for x in (2.0, 3.0))
    assert assert_matmul_correct(a, b, rounded(np.full((1, 1), 6.0), "bfloat16")) == 0
    with pytest.raises(AssertionError):
        assert_matmul_correct(a, b, (rounded(np.full((1, 1), 6.0), "bfloat16").astype(int) + steps).astype(np.uint16))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_a_product_that_is_rounded_to_16_bits_is_right_and_its_neighbours_are_not(kind):
    "Each of some 300 elements is moved by 2 units in the last place, one at a time; and what is too large for the type is infinite."
    narrow, wide = (to_bf16, from_bf16) if kind == "bfloat16" else (np.float16, np.asarray)
    random = np.random.default_rng(3)
    for k in 1, 8, 64, 512:
        a, b = (wide(narrow(random.standard_normal(shape))) for shape in ((10, k), (k, 10)))
        exact = a.astype(np.float64) @ b
        c = narrow(exact)
        assert 0 < assert_matmul_correct(a, b, c) < 2**-8
        sums = 4 * (k + 1) ** 0.5 * 2**-24 * (abs(a.astype(np.float64)) @ abs(b))  # what adding in float32 may cost
        large_enough = np.flatnonzero(2**-11 * abs(exact) > sums)
        assert len(large_enough) > 60
        for i in large_enough:
            wrong = c.copy()
            wrong.view(np.uint16).ravel()[i] += 2 if i % 2 else -2 & 0xFFFF
            with pytest.raises(AssertionError, match="^1 of 100"): assert_matmul_correct(a, b, wrong)
    large = np.full((2, 4), 2.0**64 if kind == "bfloat16" else 200, np.float32)
    with np.errstate(over="ignore"): infinite = narrow(large.astype(np.float64) @ large.T * 4)
    assert assert_matmul_correct(large, large.T * 4, infinite) == 0
    for bad in np.inf, -np.inf, np.nan:
        with pytest.raises(AssertionError): assert_matmul_correct(np.ones((2, 4)), np.ones((4, 2)), narrow(np.full((2, 2), bad)))
    if kind == "float16":  # sums in float16, too
        a, b = (random.standard_normal(shape).astype(np.float16) for shape in ((4, 64), (64, 4)))
        c = np.zeros((4, 4), np.float16)
        for q in range(64): c += a[:, q:q + 1] * b[q]
        with pytest.raises(AssertionError, match="unit_roundoff=2\\*\\*-11"): assert_matmul_correct(a, b, c)
        assert assert_matmul_correct(a, b, c, unit_roundoff=2**-11) < 0.02
