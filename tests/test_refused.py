"Wrong arguments, tiles and options are refused, with the reason, before anything is launched."
from fractions import Fraction
from functools import partial
from inspect import signature
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from products import each_kernel, good, random

from numba_matmul.arrays import to_d, to_h
from numba_matmul.bench.verify import assert_matmul_correct
from numba_matmul.gemm.args import LARGEST, device_matrix, gemm_args
from numba_matmul.gemm.plan import Launch, kernel_args
from numba_matmul.gemm.tensor_maps import TensorMapWords
from numba_matmul.gemm.tiles import MmaTile, Tile, WgmmaTile, check_tile
from numba_matmul.bench.search import configurations
from numba_matmul.kernels import k14_stream_k, k18_past_cublas_bf16
from numba_matmul.kernels.k13_planned_loop import MainloopSchedule
from numba_matmul.kernels.k16_tma_wgmma import bf16_gemm_tma_wgmma_kernel
from numba_matmul.kernels.k17_warp_specialized import (bf16_gemm_warp_specialized,
                                                       bf16_gemm_warp_specialized_kernel)
from numba_matmul.kernels.k18_past_cublas_bf16 import bf16_gemm_past_cublas, turned_tile
from numba_matmul.registry import ALL, KERNELS
from numba_matmul.sim.kernel import StrictKernel


REFUSED = {
    "shapes that do not fit": (lambda a, b: (a, a), ValueError, ["4×6", "as many columns"]),
    "host array": (lambda a, b: (to_h(a), b), TypeError, ["numpy.ndarray", "to_d(a)"]),
    "list": (lambda a, b: (a, [[1.0]]), TypeError, ["(list)", "to_d(b)"]),
    "float64": (lambda a, b: (to_d(np.ones((4, 6))), b), TypeError, ["float64", "pass to_d("]),
    "some columns of a matrix": (lambda a, b: (to_d(np.hstack([to_h(a)] * 2))[:, :6], b), ValueError,
                                 ["not row-major", "to_d(a)"]),
    "every other row": (lambda a, b: (a, to_d(np.vstack([to_h(b)] * 2))[::2]), ValueError,
                        ["b is not row-major"]),
    "one dimension": (lambda a, b: (to_d(to_h(a)[0]), b), ValueError, ["shape (6,)", "two dimensions"]),
    "c of another shape": (lambda a, b: (a, b, to_d(to_h(b)[:5, :4])), ValueError, ["5×4", "4×5"]),
    "c of another dtype": (lambda a, b: (a, b, to_d(np.zeros((4, 5), np.int32))), TypeError, ["c is int32"]),
    "beta without c": (lambda a, b: (a, b, None, 1.0, 2.0), ValueError, ["beta is 2.0", "pass the c"]),
    "a factor that is no number": (lambda a, b: (a, b, None, "2"), TypeError, ["alpha is '2'"]),
    "c is a": (lambda a, b: (to_d(to_h(a)[:, :4]),) * 3, ValueError, ["overlaps a"]),
}


@each_kernel()
def test_wrong_arguments_are_refused(kernel):
    "Every kernel checks all of its arguments, in one common place."
    for case, (arguments, error, texts) in REFUSED.items():
        # C has another type than A there, see test_fp8.py
        if kernel.dtype == "float8_e4m3fn" and case in ("c of another shape", "c is a"): continue
        with pytest.raises(error) as caught: kernel(*arguments(*good(kernel)))
        for text in texts: assert text in str(caught.value), case


@each_kernel(lambda kernel: kernel.dtype != "float8_e4m3fn")
def test_c_may_not_overlap_a_part_of_b(kernel):
    a, whole = to_d(random(6, 6, dtype=kernel.dtype)), to_d(random(12, 5, dtype=kernel.dtype))
    with pytest.raises(ValueError, match="overlaps b"): kernel(a, whole[:6], whole[4:10])
    kernel(a, whole[:6], whole[6:])  # adjacent arrays are fine


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
    with pytest.raises(ValueError, match="a matrix with two dimensions"):
        device_matrix("a", tensor_on(0), "float32")


def test_the_type_of_a_matrix_is_that_of_the_kernel():
    for kernel, wrong, text in ((ALL["sgemm_naive"], "bfloat16", "expected float32"),
                                (ALL["bf16_gemm_tensor_cores"], "float32", "to_d(to_bf16(a))")):
        with pytest.raises(TypeError) as caught: kernel(*(to_d(random(4, 4, dtype=wrong)) for _ in "ab"))
        assert text in str(caught.value)


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_a_factor_is_any_number_that_float32_holds(name):
    a, b, c = (to_d(random(4, 4)) for _ in "abc")
    def taken(value): return getattr(gemm_args(a, b, c, **{name: value}), name)
    for value in (2, True, np.int64(-3), np.float64(0.5), Fraction(1, 4), LARGEST, -LARGEST, np.inf, -np.inf,
                  np.nan, 0.1):
        assert type(taken(value)) is np.float32, value
        assert np.array_equal(taken(value), np.float32(value), equal_nan=True), value
    beyond = np.nextafter(LARGEST, np.inf)
    for value in 1e300, -1e300, 10**400, -10**400, beyond, -beyond:
        with pytest.raises(ValueError, match=f"{name} is .*, which exceeds the range of"): taken(value)
    for value in "2", None, 1j, [1.0], np.array([2.0]), np.complex64(1), to_d(random(1)):
        with pytest.raises(TypeError, match=f"{name} is .*; expected a number"): taken(value)


@pytest.mark.parametrize("name,tile,text", [
    ("sgemm_1d_blocktiling", Tile(64, 64, 16, 8), "so that each thread copies one element"),
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


@pytest.mark.parametrize("factory,tile,text", [
    (bf16_gemm_tma_wgmma_kernel, WgmmaTile(96, 128, 4), "multiple of 64"),
    (bf16_gemm_tma_wgmma_kernel, WgmmaTile(128, 320, 3), "256 at most"),
    (bf16_gemm_tma_wgmma_kernel, WgmmaTile(256, 256, 2), "65,536 registers"),
    (bf16_gemm_tma_wgmma_kernel, WgmmaTile(128, 256, 5), "227 KB"),
    (bf16_gemm_tma_wgmma_kernel, WgmmaTile(128, 256, 1), "at least 2"),
    (bf16_gemm_tma_wgmma_kernel, WgmmaTile(64, 128, 2, cluster=2, shared_b=1), "shared_b is 0"),
    (bf16_gemm_warp_specialized_kernel, WgmmaTile(192, 128, 4), "64 or 128"),
    (bf16_gemm_warp_specialized_kernel, WgmmaTile(128, 128, 7), "two boxes"),
    (bf16_gemm_warp_specialized_kernel, WgmmaTile(64, 192, 4), "multiple of 128"),
    (bf16_gemm_warp_specialized_kernel, WgmmaTile(128, 128, 4, 0), "group_m must be at least 1"),
])
def test_a_tile_that_wgmma_cannot_have_is_refused(factory, tile, text):
    with pytest.raises(ValueError) as caught: factory(tile)
    assert text in str(caught.value) and str(tile) in str(caught.value)


@each_kernel(lambda kernel: kernel.tiles)
def test_a_tile_that_breaks_a_rule_is_refused_by_kernel_and_factory(kernel):
    "For each rule, a tile that breaks it because one or two of its sizes are wrong."
    tile, rules, broken = kernel.tiles.tile, kernel.tiles.rules, {}
    fields = [name for name in tile._fields if name != "m_major_c"]
    for one, other in product(fields, repeat=2):
        for first, second in product((1, 3, 96, 512), (1, 2, 96)):
            wrong = tile._replace(**{one: first} | {other: second})
            for rule in rules:
                if rule not in broken and not rules[rule](wrong): broken[rule] = wrong
    assert broken
    a, b = good(kernel, 16, 16, 16)
    functions = [lambda tile: kernel(a, b, tile=tile)]
    if "tile" in signature(kernel.factory).parameters: functions.append(kernel.factory)
    for wrong, refuses in product(broken.values(), functions):
        with pytest.raises(ValueError) as caught: refuses(wrong)
        assert str(caught.value).startswith(f"{wrong}: ")


@each_kernel(lambda kernel: kernel.tiles)
def test_a_tile_that_is_none_is_refused_before_anything_is_kept(kernel):
    a, b = good(kernel, 16, 16, 16)
    tile = kernel.tiles.tile
    field = tile._fields[0]
    for wrong, error, text in (
            (tuple(tile), TypeError, f"expected a {type(tile).__name__}"),
            (SimpleNamespace(bm=8), TypeError, "expected a"),
            (tile._replace(**{field: float(tile[0])}), TypeError, f"{field} must be a whole number"),
            (tile._replace(**{field: 0}), ValueError, f"{field} must be at least 1")):
        with pytest.raises(error, match=text): kernel(a, b, tile=wrong)
    assert_matmul_correct(a, b, kernel(a, b, tile=None))  # the default; no float is left in a cache


@each_kernel(lambda kernel: kernel.tiles and kernel.tiles.space)
def test_the_space_of_a_kernel_holds_many_tiles_and_none_that_breaks_a_rule_without_a_word(kernel):
    tile, rules, works = kernel.tiles.tile, kernel.tiles.rules, 0
    for configuration in configurations(kernel.tiles.space):
        try: check_tile(tile._replace(**configuration), rules)
        except ValueError as e: assert str(e).split(": ", 1)[1].split("; ")[0] in rules
        else: works += 1
    assert works >= 50
    check_tile(tile, rules)


@pytest.mark.parametrize("changes", [
    dict(barrier_step=7), dict(barrier_step=5, copy_steps=3), dict(copy_steps=0), dict(barrier_step=-1),
    dict(carried=4), dict(hidden=2)], ids=str)
@each_kernel(lambda kernel: kernel.number in (13, 14))
def test_a_schedule_that_cannot_work_is_refused(kernel, changes):
    with pytest.raises(ValueError, match="MainloopSchedule"):
        kernel(*good(kernel), schedule=MainloopSchedule(**changes))


def test_an_epilogue_of_warp_specialized_that_does_not_read_c_is_refused_where_it_must():
    a, b, c = (to_d(random(8, 8, dtype="bfloat16")) for _ in "abc")
    for epilogue in "overlapped", "staged":
        with pytest.raises(ValueError, match=f"beta is 2.0, and the {epilogue} epilogue does not read C"):
            bf16_gemm_warp_specialized(a, b, c, beta=2.0, epilogue=epilogue)


@pytest.mark.parametrize("tile", [turned_tile(192, 64, 3), turned_tile(128, 64, 3, wm=128)],
                         ids=["three warpgroups", "128 rows each"])
def test_results_of_two_tiles_of_warp_specialized_need_registers(tile):
    with pytest.raises(ValueError, match="enough registers for the results of two tiles"):
        bf16_gemm_warp_specialized_kernel(tile, "overlapped")


def has_option(kernel, name):
    if name == "predicated" and kernel.number in (17, 18): return False  # the TMA doesn't need a predicate
    return name in signature(kernel.factory).parameters


# alpha, beta, and an option that doesn't match them
UNFIT = ((1.0, 2.0, dict(read_c=False)), (1.0, 0.0, dict(read_c="no")), (1.0, 0.0, dict(predicated=False)),
         (1.0, 0.0, dict(width=3)), (2.0, 0.0, dict(scaled=False)))


@pytest.mark.parametrize("kernel, alpha, beta, option", [
    pytest.param(kernel, alpha, beta, option, id=f"{kernel.name}, {option}")
    for kernel in KERNELS.values() if kernel.tiles
    for alpha, beta, option in UNFIT if has_option(kernel, *option)])
def test_an_option_that_would_make_the_result_wrong_is_refused(kernel, alpha, beta, option):
    (name,) = option
    a, b = good(kernel, 24, 24, 40) if kernel.multiple > 1 else good(kernel, 9, 17, 7)
    c = to_d(random(a.shape[0], b.shape[1], dtype=kernel.dtype))
    with pytest.raises(ValueError, match=f"{name} is .*; expected"):
        kernel(a, b, c, alpha, beta, tile=kernel.tiles.tile, **option)


@each_kernel(lambda kernel: kernel.uses_tma and not kernel.tiles.tile.k_major_b)
@pytest.mark.parametrize("change", [dict(k_major_b=1), dict(m_major_a=1)], ids=str)
def test_host_functions_take_row_major_matrices_alone(kernel, change):
    with pytest.raises(ValueError, match="row-major here"):
        kernel(*good(kernel, 16, 16, 16), tile=WgmmaTile(64, 128, 2)._replace(**change))


@each_kernel()
def test_options_that_cannot_be_are_refused_before_anything_is_launched(kernel, monkeypatch):
    "By every host function that has them, whether it does the work, another one does, or there is no work."
    def launched(launch, *args): raise AssertionError("launched")
    monkeypatch.setattr(StrictKernel, "__call__", launched)
    options = signature(kernel.fn).parameters
    factory = signature(kernel.factory).parameters if kernel.factory else {}
    cases = [(TypeError, "foo", [1, None], "foo")]
    def number(name, *wrong, none=False):
        others = ["3", 2.0, np.float64(2), True, np.True_, [3], (2, 2), None][:7 if none else 8]
        cases.append((TypeError, name, others, f"{name} is .*; expected .*whole number"))
        cases.append((ValueError, name, wrong, f"{name} is .*; expected"))
    if "bs" in options: number("bs", 0, np.int64(0), -1, 33)
    if "blocks" in options: number("blocks", 0, np.int64(-1), 2**31, none=True)
    if "tile" in options:
        cases.append((TypeError, "tile", [0, (), "", False, (8, 8), [8], 64], "tile is .*; expected a"))
    if "padded" in options:
        wrong = ["x", "abd", True, False, 0, ["d"]]
        cases.append((ValueError, "padded", wrong, "expected some of the letters"))
    for name in {"pad_a", "pad_b", "shift"} & factory.keys(): number(name, -4, np.int64(-1))
    if "max_registers" in factory: number("max_registers", 0, -3, none=True)
    for name in {"split", "stream_k", "staged", "copies_first", "stagger_consumers"} & factory.keys():
        wrong = ["no", "", 2, -1, 0.0, 1.0, [True], None]
        cases.append((ValueError, name, wrong, f"{name} is .*; expected True or False"))
    if "schedule" in factory:
        cases.append((ValueError, "schedule", ["fast", None, (2, 3, 1, 3, 1), [1]], "a MainloopSchedule"))
    if "epilogue" in factory:
        wrong = ["fused", "fused_bias", "late", "", None, 1, ["staged"]]
        cases.append((ValueError, "epilogue", wrong, "expected overlapped or staged or direct"))
    for shape in (4, 8, 8), (4, 6, 5), (0, 8, 8), (4, 8, 0):
        a, b = good(kernel, *shape)
        for error, name, values, text in cases:
            for value in values:
                with pytest.raises(error, match=text) as caught: kernel(a, b, **{name: value})
                assert name in str(caught.value), value


SLICED = k14_stream_k.SPLIT["tile"]


@pytest.mark.parametrize("name,option,text", [
    ("sgemm_bank_conflicts_padding", dict(pad_a=5), "pad_a"),
    ("sgemm_bank_conflicts_padding", dict(pad_a=10**4), "48 KB"),
    ("sgemm_bank_conflicts_padding", dict(pad_b=10**4), "48 KB"),
    ("sgemm_stream_k", dict(shift=128), "from 0 to 127"),
    ("sgemm_stream_k", dict(blocks=10**6), "blocks is 1000000; expected at most"),
    ("sgemm_stream_k", dict(split_k=10**6), "split_k is 1000000, so there are 1000000 blocks"),
    ("sgemm_stream_k", dict(tile=k14_stream_k.LARGE, blocks=2, together=True), "together is True; expected"),
    ("sgemm_stream_k", dict(tile=k14_stream_k.LARGE, split_k=2), "split_k is 2; expected None for a tile"),
    ("sgemm_stream_k", dict(tile=k14_stream_k.FEW, blocks=2), "blocks is 2; expected None: it follows"),
    ("sgemm_stream_k", dict(tile=SLICED._replace(slices=3)), "bk must be a multiple of slices"),
    ("sgemm_planned_loop", dict(tile=SLICED), "slices must be 1"),
    ("bf16_gemm_warp_specialized", dict(epilogue="split_k"), "call bf16_gemm_past_cublas"),
    ("bf16_gemm_past_cublas", dict(blocks=4, split_k=2), "blocks is 4; expected None"),
    ("bf16_gemm_past_cublas", dict(split_k=9), "split_k is 9; expected"),
    ("bf16_gemm_past_cublas", dict(split_k=2, epilogue="staged"), "staged epilogue doesn't add up parts"),
    ("sgemm_vectorized", dict(width=0), "width is 0; expected"),
    ("bf16_gemm_past_cublas", dict(split_k=17, epilogue="split_grid"), "split_k is 17; expected"),
    ("bf16_gemm_past_cublas", dict(epilogue="late"),
     "epilogue is 'late'; expected overlapped or staged or direct or split_k"),
], ids=str)
def test_an_option_that_cannot_work_is_refused_with_the_reason(name, option, text):
    with pytest.raises(ValueError, match=text): ALL[name](*good(ALL[name], 8, 8, 8), **option)


@pytest.mark.parametrize("tile,text", [
    (turned_tile(128, 16, 2, cluster=2), "shares tiles of A, or sums"),
    (turned_tile(128, 24, 2, wm=128), "there aren't enough registers")], ids=["a cluster", "two products"])
def test_a_tile_whose_sums_cannot_be_shared_is_refused(tile, text):
    operands = good(KERNELS[18], 8, 200, 8)
    with pytest.raises(ValueError, match=text): bf16_gemm_past_cublas(*operands, tile=tile, split_k=2)


def test_as_many_blocks_of_stream_k_as_run_at_once_may_share_sums(monkeypatch):
    monkeypatch.setattr(k14_stream_k, "sm_count", lambda: 2)
    share = partial(ALL["sgemm_stream_k"], tile=k14_stream_k.LARGE)
    a, b = good(KERNELS[14], 8, 64, 3 * k14_stream_k.LARGE.bn)  # three tiles
    assert_matmul_correct(a, b, share(a, b, blocks=2))
    with pytest.raises(ValueError, match="blocks is 4; expected at most 2"): share(a, b, blocks=4)


def test_sums_that_stream_k_cannot_count_are_refused(monkeypatch):
    monkeypatch.setattr(k14_stream_k, "MOST_K", 15)
    with pytest.raises(ValueError, match="k is 16; expected"):
        ALL["sgemm_stream_k"](*good(KERNELS[14], 8, 16, 8), tile=k14_stream_k.LARGE)


def test_parts_of_past_cublas_that_cannot_all_run_at_once_are_refused(monkeypatch):
    monkeypatch.setattr(k18_past_cublas_bf16, "sm_count", lambda: 5)
    share = partial(bf16_gemm_past_cublas, tile=turned_tile(64, 16, 2), epilogue="split_grid")
    operands = good(KERNELS[18], 8, 256, 128)
    assert_matmul_correct(*operands, share(*operands, split_k=2))  # four blocks
    with pytest.raises(ValueError, match="split_k is 3, and no tile"): share(*operands, split_k=3)


def test_tensor_maps_are_the_first_argument_or_none_is():
    maps, other = TensorMapWords.__new__(TensorMapWords), np.int64(0)
    for args in (other, maps), (other, other, maps), (maps, maps), (maps, other, maps):
        with pytest.raises(TypeError, match="must be the first argument"):
            kernel_args(Launch(None, 1, 32, args))


def test_a_plain_tuple_is_no_tile():
    with pytest.raises(TypeError, match=r"tile is \(8, 8\); expected a Tile"): check_tile((8, 8), {})
