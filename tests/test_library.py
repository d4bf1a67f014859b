"Small checks of modules that aren't shown on any page: each function's result for a known input."
import ast
from types import SimpleNamespace

import numpy as np
import pytest
from numba import config, cuda, float32
from products import matmul_1, random

from numba_matmul.arrays import cdiv, from_bf16, rounded, to_bf16, to_d
from numba_matmul.bench.experiment import Experiment
from numba_matmul.bench.paths import edge_paths, tile_paths
from numba_matmul.bench.timing import _find_kernel, _in_each_run, assert_matmul_correct, measure_runtime
from numba_matmul.draw import draw_matmul, draw_thread
from numba_matmul.gemm.args import gemm_args
from numba_matmul.gemm.limits import MAX_GRID_Y
from numba_matmul.gemm.tiled import row_strips
from numba_matmul.gemm.tiles import Tile, check_tile
from numba_matmul.process import ChildError, in_child
from numba_matmul.report.tables import cublas_tile, pivot
from numba_matmul.sim.bytecode import bytecode_tree
from numba_matmul.sim.launch import simulate
from numba_matmul.sim.libdevice import HELPERS
from numba_matmul.sim.operators import Value, name, operation
from numba_matmul.sim.resources import misfit
from numba_matmul.sim.types import common, operated, unified
from numba_matmul.sim.typing import run_typed


@cuda.jit
def no_product(x, out): out[0] = x[0]

@cuda.jit
def matmul_transposed(a, b, c):
    i, j = cuda.grid(2)
    if i < c.shape[1] and j < c.shape[0]:
        total = np.float32(0)
        for q in range(a.shape[1]): total += a[j, q] * b[q, i]
        if i < c.shape[0] and j < c.shape[1]: c[i, j] = total


def test_the_check_of_a_product():
    a, b = random(2, 50, 50)
    product, one_off = a @ b, a @ b
    assert 0 < assert_matmul_correct(a, b, product) < 1e-6
    one_off[7, 3] = np.nan
    assert not np.any(abs(one_off - product) > 1e-3)  # the usual test lets NaN through
    for wrong, said in ((one_off, "1 of 2500"), (product.T, "elements are wrong"),
                        (a[:, 1:] @ b[1:], "elements are wrong")):
        with pytest.raises(AssertionError, match=said): assert_matmul_correct(a, b, wrong)


@pytest.mark.parametrize("given,said", [
    (lambda a, b: (a.tolist(), b, a), "a is a list"),
    (lambda a, b: (a, b[0], a), r"b has shape \(50,\)"),
    (lambda a, b: (a, np.float32(1), a), r"b has shape \(\)"),
    (lambda a, b: (a * 1j, b, a), "complex"),
    (lambda a, b: (a, b[1:], a), "50×50 and b is 49×50"),
    (lambda a, b: (a, b, a, 1, 2), "pass c_before"),
    (lambda a, b: (a, b, a, 1, 2, a[1:]), r"c_before is \(49, 50\)")])
def test_the_check_refuses_what_is_no_product(given, said):
    with pytest.raises((TypeError, ValueError), match=said): assert_matmul_correct(*given(*random(2, 50, 50)))


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
    whole = (5, 5) if isinstance(pieces, tuple) else 5
    with pytest.raises(ValueError, match="expected 1 or more"): cdiv(whole, pieces)


@pytest.mark.parametrize("k", [1, 64])
def test_what_is_allowed_for_is_rounding_and_no_more(k):
    a, b = random(5, k), random(k, 6)
    right, scale = a.astype(np.float64) @ b, abs(a).astype(np.float64) @ abs(b)
    for factor, wrong in (0.9, False), (-0.9, False), (1.1, True), (-1.1, True):
        c = right.copy()
        c[2, 3] += factor * 4 * (k + 1) ** 0.5 * 2**-24 * scale[2, 3]
        if wrong:
            with pytest.raises(AssertionError, match="1 of 30 elements is wrong; the first is c.2, 3."):
                assert_matmul_correct(a, b, c)
        else: assert 0 < assert_matmul_correct(a, b, c) < 1e-4


@pytest.mark.parametrize("steps", [-2, -1, 1])
def test_in_bfloat16_the_neighbour_of_an_exact_product_is_wrong(steps):
    a, b = (rounded(np.full((1, 1), x), "bfloat16") for x in (2.0, 3.0))
    exact = rounded(np.full((1, 1), 6.0), "bfloat16")
    assert assert_matmul_correct(a, b, exact) == 0
    neighbour = (exact.astype(int) + steps).astype(np.uint16)
    with pytest.raises(AssertionError): assert_matmul_correct(a, b, neighbour)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_a_product_that_is_rounded_to_16_bits_is_right_and_its_neighbours_are_not(kind):
    """Each of some 300 elements is shifted by 2 units in the last place, one at a time. Values too large for
    the type become infinite."""
    narrow, wide = (to_bf16, from_bf16) if kind == "bfloat16" else (np.float16, np.asarray)
    normal = np.random.default_rng(3).standard_normal
    for k in 1, 8, 64, 512:
        a, b = (wide(narrow(normal(shape))) for shape in ((10, k), (k, 10)))
        exact = a.astype(np.float64) @ b
        c = narrow(exact)
        assert 0 < assert_matmul_correct(a, b, c) < 2**-8
        # the rounding error allowed for float32 sums
        sums = 4 * (k + 1) ** 0.5 * 2**-24 * (abs(a.astype(np.float64)) @ abs(b))
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
        with pytest.raises(AssertionError):
            assert_matmul_correct(np.ones((2, 4)), np.ones((4, 2)), narrow(np.full((2, 2), bad)))
    if kind == "float16":  # sums in float16 too
        a, b = (normal(shape).astype(np.float16) for shape in ((4, 64), (64, 4)))
        c = np.zeros((4, 4), np.float16)
        for q in range(64): c += a[:, q:q + 1] * b[q]
        with pytest.raises(AssertionError, match="unit_roundoff=2\\*\\*-11"): assert_matmul_correct(a, b, c)
        assert assert_matmul_correct(a, b, c, unit_roundoff=2**-11) < 0.02


def test_a_kernel_is_found_by_its_exact_name():
    names = ["matmul::matmul_10[abi:v1](Array<float>)", "matmul::matmul_1[abi:v1][abi:cw51](Array<float>)",
             "sm80_xmma_gemm_f32"]
    assert _find_kernel(names, "matmul_1") == names[1]
    with pytest.raises(ValueError, match="no kernel named matmul was profiled"): _find_kernel(names, "matmul")
    with pytest.raises(ValueError, match="more than one"):
        _find_kernel([*names, "other::matmul_1(int)"], "matmul_1")
    copies, split = "matmul::copy[abi:v1](Array<float>)", "splitKreduce_kernel"
    times = {copies: [1, 2, 3, 4], names[1]: [10, 20], names[2]: [50, 60], split: [5, 6]}
    assert _in_each_run(times, "matmul_1", 2) == ([13, 27], [55, 66], names[2])
    with pytest.raises(RuntimeError, match="1 times in 2 runs"):
        _in_each_run({**times, split: [5]}, "matmul_1", 2)


@pytest.mark.parametrize("given,said", [
    (dict(matmul=matmul_transposed, m=64, n=64, k=64), "elements are wrong"),
    (dict(matmul=matmul_1, runs=0), "runs is 0"),
    (dict(matmul=None), "expected a kernel"), (dict(matmul=5), "expected a kernel"),
    (dict(matmul="matmul_1"), "expected a kernel"),
    (dict(matmul=matmul_1[(1, 1), (8, 8)]), "the kernel itself"),
    (dict(matmul=matmul_1[(1, 1), (8, 8)], m=np.ones((9, 9))), "the kernel itself.*cuda_mean_runtime"),
    (dict(matmul=no_product), r"products, kernels \(a, b, c\), but no_product takes \(x, out\).*Prep 2")])
def test_nothing_wrong_is_timed(given, said):
    with pytest.raises((AssertionError, TypeError, ValueError), match=said): measure_runtime(**given)


def test_the_arguments_of_a_product():
    a, b, square = to_d(random(3, 4)), to_d(random(4, 5)), to_d(random(4, 4))
    g = gemm_args(a, b)
    assert (g.m, g.n, g.k) == (3, 5, 4)
    for given, said in (((a, a), "3×4 and b is 3×4"), ((np.ones((3, 4)), b), r"to_d\(a\)"),
                        ((to_d(np.ones((3, 4))), b), "float64"), ((a, b, to_d(random(2, 2))), "2×2"),
                        ((a, to_d(np.float32([1, 2]))), "two dimensions"), ((a, b, None, 1, 1), "pass the c"),
                        ((to_d(random(4, 4)), square, square), "overlaps b")):
        with pytest.raises((TypeError, ValueError), match=said): gemm_args(*given)


def test_a_high_matrix_is_cut_into_strips():
    high, one = to_d(np.ones((70000, 1), np.float32)), to_d(np.ones((1, 1), np.float32))
    strips = [a.shape for a, _ in row_strips(gemm_args(high, one), 1)]
    assert strips == [(MAX_GRID_Y, 1), (70000 - MAX_GRID_Y, 1)]


def test_paths_have_names_of_their_own():
    tile = SimpleNamespace(bm=8, bn=16, bk=8)
    paths = tile_paths(dict(tile=tile)) + edge_paths(dict(tile=tile))
    assert len({path.name for path in paths}) == len(paths) > 20


def test_every_broken_rule_of_a_tile_is_told():
    rules = {"bm must be a multiple of bk": lambda t: t.bm % t.bk == 0,
             "bk must be 8": lambda t: t.bk == 8, "bn must be 64": lambda t: t.bn == 64}
    with pytest.raises(ValueError, match="bm must be a multiple of bk; bk must be 8$"):
        check_tile(Tile(60, 64, 16, 8), rules)


def mode(): return "simulator" if config.ENABLE_CUDASIM else "compiler"


def fails(): raise ValueError("no such luck")


@cuda.jit(device=True)
def squared(v): return v * v


def scaled_squares_kernel(scale):
    @cuda.jit
    def scaled_squares(x, out):
        i = cuda.grid(1)
        if i < x.size: out[i] = scale * squared(x[i])
    return scaled_squares


def test_a_child_has_a_mode_of_its_own_and_gets_kernels_by_value():
    assert [in_child(mode, simulator=one) for one in (True, False)] == ["simulator", "compiler"]
    with pytest.raises(ChildError, match="no such luck"): in_child(fails, simulator=True)
    x = random(10)
    _, found = simulate(scaled_squares_kernel(np.float32(3))[2, 8], x, np.zeros_like(x))
    assert np.allclose(found, 3 * x * x)


@cuda.jit
def swap_pairs(x, out):
    a = cuda.shared.array(4, float32); b = cuda.shared.array(4, float32)  # noqa: E702  one line, as the test says
    i = cuda.threadIdx.x
    a[i], b[i] = x[2 * i], x[2 * i + 1]
    cuda.syncthreads()
    out[2 * i], out[2 * i + 1] = b[i], a[i]


def test_shared_arrays_of_one_line_are_apart():
    x = random(8)
    swapped = simulate(swap_pairs[1, 4], x, np.zeros_like(x))[1]
    assert np.array_equal(swapped.reshape(4, 2), x.reshape(4, 2)[:, ::-1])


def test_types_of_the_simulator():
    assert operated("Mult", "int32", "int32") == "int64" and operated("Sub", "uint32", "uint32") == "uint64"
    assert operated("Add", "float32", "float64") == "float64" and unified("int64", "float32") == "float64"
    assert common("int32", "float32") == operated("Div", "int64", "int64") == "float64"
    def written(operator, kind):
        return ast.unparse(operation(operator, *(Value(name(x), kind) for x in "ab")).node)
    assert "a * b" in written("Mult", "int32") and written("Sub", "uint32") != "a - b"


def product(n): return n * n
def difference(a, b): return a - b
def constant_meets_float32(x): return x + 0.1
def add_one(x):
    if x > 3: return x + 1
    return x


def test_functions_are_run_with_the_compiler_s_types():
    assert run_typed(product, np.int32(2**16)) == 2**32
    assert run_typed(difference, np.uint32(0), np.uint32(1)) == 2**64 - 1
    assert run_typed(constant_meets_float32, np.float32(1)) == 1.1
    tree, _ = bytecode_tree(add_one)
    assert "x + 1" in "\n".join(map(ast.unparse, tree))


def test_libdevice_rounds_as_it_is_told():
    low, high = (HELPERS[f"<libdevice.fdiv_{way}>"](np.float32(1), np.float32(3)) for way in ("rd", "ru"))
    assert float(low) < 1 / 3 < float(high) and HELPERS["<libdevice.popc>"](255) == 8


def test_registers_that_fit_a_multiprocessor():
    assert misfit(256, 255) is None and misfit(1024, 64) is None
    assert "at most 64 per thread" in misfit(1024, 65)


def test_tables_and_pictures():
    tiles = {
        "nvjet_sm90_tst_256x152_64x4_2x1_v_bz_coopA_NNT": ((256, 152), (2, 1)),
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>": ((256, 128), (1, 1)),
        "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_nn_align1>":
            ((256, 128), (1, 1)),
        "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x128x8_stage3": ((64, 128), (1, 1)),
        "some_other_kernel": None}
    for kernel, found in tiles.items(): assert cublas_tile(kernel) == found
    toy = Experiment("toy", "µs", {"a: x": 1, "a: y": 2, "b: y": 3}, "made up")
    assert str(pivot(toy)).splitlines()[2:4] == ["| a | 1 | 2 |", "| b | – | 3 |"]
    assert toy.plot() is not None
    a, b, c = np.zeros((4, 6), int), np.zeros((6, 5), int), np.zeros((4, 5), int)
    assert draw_matmul(a, b, c, "One element of C") is not None
    fig = draw_thread([[0], [1]], [[0, 1]], [[0, 1], [0, 1]], thread=1, step=0)
    _, ax_b, ax_a, _ = fig.axes
    assert [ax.patches[0].get_bbox().bounds for ax in (ax_a, ax_b)] == [(0, 0, 1, 2), (1, 0, 1, 1)]
