"FP8: its numbers are those of torch, sums are rounded as a GPU rounds them, scales and casts are right."
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.autograd import forward_ad

from numba_matmul import torch_fp8, torch_rules
from numba_matmul.arrays import from_bf16, to_bf16, to_d, to_h
from numba_matmul.bench.verify import assert_matmul_correct
from numba_matmul.compiler import machine_code
from numba_matmul.fp8 import E4M3, E5M2, LARGEST, add_products, from_fp8, table, to_fp8
from numba_matmul.gemm import args, limits
from numba_matmul.gemm.fp8_cast import SCALES, SIDE, fp8_cast
from numba_matmul.gemm.plan import Plan, simulate_plan
from numba_matmul.gemm.fp8_cast import pad_launch, pitch_of, transpose_launch
from numba_matmul.kernels import k20_fp8
from numba_matmul.kernels.k20_fp8 import BLOCKS, KERNEL, epilogue_of, fp8_gemm, fp8_tile
from numba_matmul.ptx.hopper import cvt_rn_satfinite_e4m3x4_f32
from numba_matmul.torch_fp8 import fp8_linear
from numba_matmul.torch_ops import DEVICE

TYPES = {name: getattr(torch, name) for name in (E4M3, E5M2)}
SMALL = fp8_tile(64, 64, 2)


@pytest.mark.parametrize("dtype", TYPES)
def test_all_256_numbers_are_those_of_torch(dtype):
    bits = np.arange(256, dtype=np.uint8)
    right = torch.from_numpy(bits).view(TYPES[dtype]).float().numpy()
    assert np.array_equal(from_fp8(bits, dtype), right, equal_nan=True)
    numbers = ~np.isnan(right) & np.isfinite(right)
    assert np.array_equal(to_fp8(right, dtype)[numbers], bits[numbers])


@pytest.mark.parametrize("dtype", TYPES)
def test_rounding_is_that_of_torch_and_saturates(dtype):
    random, numbers = np.random.default_rng(0), table(dtype)
    finite = np.unique(numbers[np.isfinite(numbers)])
    middles = (finite[1:].astype(float) + finite[:-1]) / 2
    x = np.concatenate([random.standard_normal(20000) * 2.0 ** random.integers(-24, 20, 20000), middles,
                        np.nextafter(middles, 1e9), np.nextafter(middles, -1e9),
                        [1e9, -1e9, np.inf, -np.inf, -0.0]])
    x = x.astype(np.float32)
    most = LARGEST[dtype]
    right = torch.from_numpy(x).clamp(-most, most).to(TYPES[dtype]).view(torch.uint8).numpy()
    assert np.array_equal(to_fp8(x, dtype), right)
    assert np.isnan(from_fp8(to_fp8(np.float32([np.nan, -np.nan]), dtype), dtype)).all()
    assert abs(from_fp8(to_fp8(np.float32([1e9, -np.inf]), dtype), dtype)).tolist() == [most, most]


def test_bits_are_uint8_and_four_are_packed_low_first():
    with pytest.raises(TypeError, match="the bits are uint16"): from_fp8(np.zeros(3, np.uint16))
    word = cvt_rn_satfinite_e4m3x4_f32(np.float32(1), np.float32(-2), np.float32(1e9), np.float32(0))
    assert from_fp8(np.array([word], np.uint32).view(np.uint8)).tolist() == [1, -2, 448, 0]


def test_sums_are_rounded_as_an_h100_rounds_them():
    "Three products of 64×k and k×16 matrices, by kernel 20 on an H100 with fast=True."
    kept = json.loads((Path(__file__).parent / "fp8_sums.json").read_text())
    for one in kept:
        a, b = (from_fp8(np.array(one[name], np.uint8)).astype(float) for name in "ab")
        acc = np.zeros((len(a), len(b)))
        for start in range(0, a.shape[1], 32):
            acc = add_products(acc, a[:, None, start:start + 32], b[None, :, start:start + 32])
        assert np.array_equal(acc.astype(np.float32), np.array(one["c"], np.float32))


def test_an_addend_below_13_bits_is_cut_off():
    def total(*products):
        x = np.zeros(32)
        x[:len(products)] = products
        return float(add_products(np.array(0.0), x, np.where(x != 0, 1.0, 0.0)))
    assert total(1, 2.0**-9) == 1 + 2.0**-9
    one = add_products(np.array(1.0), np.full(32, 2.0**-7), np.full(32, 2.0**-7))
    assert one == 1  # each of 32 products is half a unit in the last place


def scaled(m, n, k, scaling, random):
    "Operands, scales, and the exact product."
    a, b = to_fp8(random.standard_normal((m, k))), to_fp8(random.standard_normal((n, k)))
    x, y = from_fp8(a).astype(float), from_fp8(b).astype(float)
    def draw(*shape): return random.uniform(0.5, 2, shape).astype(np.float32)
    if scaling == "one":
        sa, sb = draw(1), draw(1)
        exact = x @ y.T * (float(sa[0]) * float(sb[0]))
    elif scaling == "rows":
        sa, sb = draw(m), draw(n)
        exact = x @ y.T * sa[:, None] * sb
    elif scaling == "row and one":
        sa, sb = draw(m, 1), draw(1)
        exact = x @ y.T * sa * sb
    else:
        sa, sb = draw(m, -(-k // SIDE)), draw(-(-k // SIDE), -(-n // SIDE))
        exact = ((x * np.repeat(sa, SIDE, 1)[:, :k])
                 @ (y.T * np.repeat(np.repeat(sb, SIDE, 0), SIDE, 1)[:k, :n]))
    return a, b, to_d(sa), to_d(sb), exact


@pytest.mark.parametrize("scaling", ("one", "rows", "row and one", "blocks"))
@pytest.mark.parametrize("shape,options", (
    ((70, 136, 400), {}), ((37, 41, 139), dict(dtype_c="float32")), ((70, 72, 700), dict(split_k=3)),
    ((70, 72, 400), dict(epilogue="staged")), ((130, 136, 272), dict(tile=fp8_tile(128, 64, 2, cluster=2))),
    ((200, 72, 700), dict(tile=fp8_tile(256, 64, 2, wm=128))),
    ((70, 136, 1300), dict(blocks=1)), ((130, 400, 400), dict(tile=fp8_tile(128, 192, 3)))),
    ids=("by TMA", "odd, float32", "parts of sums", "staged", "a cluster", "128 rows per consumer",
         "several tiles, long sums", "192 columns"))
def test_scales(scaling, shape, options):
    a, b, sa, sb, exact = scaled(*shape, scaling, np.random.default_rng(1))
    options = dict(tile=SMALL) | options
    c = to_h(fp8_gemm(to_d(a), to_d(b), alpha=-0.75, scale_a=sa, scale_b=sb, k_major_b=True, **options))
    if c.dtype == np.uint16: c = from_bf16(c)
    assert np.linalg.norm(c + 0.75 * exact) < 3e-3 * np.linalg.norm(exact)


def test_consumers_only_read_factors_of_block_scales():
    "One load from shared memory per k tile, none from elsewhere, and no shuffles; and nothing spills."
    def host(tile):
        def fp8_gemm(a, b):
            (m, k), n = a.shape, b.shape[1]
            shapes = (m, k // SIDE), (k // SIDE, n // SIDE)
            of_a, of_b = (to_d(np.ones(shape, np.float32)) for shape in shapes)
            return k20_fp8.fp8_gemm(a, b, scale_a=of_a, scale_b=of_b, tile=tile, split_k=1)
        return fp8_gemm
    for tile in BLOCKS:
        code = machine_code(host(tile), shape=(256, 384, 2048))
        assert code.spills == 0 and code.stack_bytes == 0, code
        inner = [loop for loop in code.loops if not loop.inside]
        bodies = [[x.opcode.split(".")[0] for x in code.instructions[loop.start:loop.end]] for loop in inner]
        body, = [body for body in bodies if "QGMMA" in body]
        assert body.count("LDS") == 1 and not {"LD", "LDG", "SHFL"} & {*body}, body


@pytest.mark.parametrize("tile,text", ((fp8_tile(128, 128, 6), "their factors must fit"),
                                       (fp8_tile(192, 64, 2), "two consumers at most")))
def test_tiles_without_room_for_factors_are_refused(tile, text):
    a, b, sa, sb, _ = scaled(8, 16, 256, "blocks", np.random.default_rng(0))
    with pytest.raises(ValueError, match=text):
        fp8_gemm(to_d(a), to_d(b), scale_a=sa, scale_b=sb, k_major_b=True, tile=tile)


@pytest.mark.parametrize("dtype_c", ("bfloat16", "float32"))
@pytest.mark.parametrize("fast", (False, True))
def test_alpha_beta_and_both_types_of_c(dtype_c, fast):
    random = np.random.default_rng(2)
    a, b = to_fp8(random.standard_normal((37, 50))), to_fp8(random.standard_normal((50, 41)))
    before = random.standard_normal((37, 41)).astype(np.float32)
    if dtype_c == "bfloat16": before = to_bf16(before)
    c = to_d(before)
    assert fp8_gemm(to_d(a), to_d(b), c, 0.5, -1.5, fast=fast, tile=SMALL) is c
    assert_matmul_correct(a, b, c, 0.5, -1.5, c_before=before)


def test_results_overlap_the_next_tile_where_there_are_stages_and_registers():
    g = SimpleNamespace(c=np.zeros(1, np.uint16), beta=0, alignments=dict(c=16))
    def chosen(*sizes, split_k=1, **more): return epilogue_of(g, fp8_tile(*sizes, **more), split_k, None)
    assert chosen(64, 128, 2) == chosen(64, 256, 4) == "overlapped"
    assert chosen(64, 256, 3) == chosen(64, 64, 4) == chosen(256, 128, 4, wm=128) == "staged"
    g.beta = 1
    assert chosen(64, 128, 2) == "direct" and chosen(64, 128, 2, split_k=2) == "split_k"


@pytest.mark.parametrize("is_tensor, kind", ((True, "bfloat16"), (False, "uint16")))
def test_a_new_c_is_of_the_kind_of_a(monkeypatch, is_tensor, kind):
    def noted(a, shape, kind): raise InterruptedError(kind)
    monkeypatch.setattr(args, "array_like", noted)
    monkeypatch.setattr(args, "is_torch", lambda x: is_tensor)
    monkeypatch.setattr(args, "device_matrix", lambda name, x, dtype: x)
    a = to_d(np.zeros((16, 16), np.uint8))
    with pytest.raises(InterruptedError, match=kind): args.gemm_args(a, a, dtype=E4M3, dtype_c="bfloat16")


REFUSED = {
    "scale_b is missing": (dict(scale_a=np.ones(1, np.float32)), ValueError, "pass both"),
    "scales of float64": (dict(scale_a=np.ones(1), scale_b=np.ones(1)), TypeError, "scale_a is float64"),
    "too few scales": (dict(scale_a=np.ones(3, np.float32), scale_b=np.ones(5, np.float32)), ValueError,
                       "one per row"),
    "another type of C": (dict(dtype_c="float16"), ValueError, "dtype_c is 'float16'"),
    "C of another shape": (dict(c=np.zeros((5, 4), np.uint16)), ValueError, "4×5"),
    "C of e4m3": (dict(c=np.zeros((4, 5), np.uint8)), TypeError, "c is uint8"),
    "a row-major tile": (dict(tile=fp8_tile(64, 64, 2)._replace(k_major_b=0)), ValueError, "K-major"),
    "a tile too large to promote": (dict(tile=fp8_tile(128, 256, 3)), ValueError, "promoted sums"),
    "parts of sums, 128 rows per consumer": (dict(tile=fp8_tile(128, 64, 2, wm=128), split_k=2), ValueError,
                                            "there are none"),
    "rows of C that the TMA can't store": (dict(epilogue="staged"), ValueError, "there are direct"),
}

@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused(case):
    options, error, text = REFUSED[case]
    options = {name: to_d(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    a, b = to_d(to_fp8(np.ones((4, 288)))), to_d(to_fp8(np.ones((288, 5))))
    with pytest.raises(error, match=text): fp8_gemm(a, b, **options)


def test_a_scale_on_the_host_is_refused():
    a, one = to_d(to_fp8(np.ones((32, 32)))), np.ones(1, np.float32)
    for scales in dict(scale_a=one, scale_b=to_d(one)), dict(scale_a=to_d(one), scale_b=one):
        with pytest.raises(TypeError, match=r"scale_[ab] is .*numpy.ndarray.*to_d\(scale"):
            fp8_gemm(a, a, **scales)


def test_c_may_not_overlap_an_operand_or_a_scale():
    memory = to_d(np.zeros(4096, np.uint8))
    a, b = memory[:1024].reshape(32, 32), memory[1024:2048].reshape(32, 32)
    c = memory[512:2560].view(np.uint16)
    with pytest.raises(ValueError, match="c overlaps a"): fp8_gemm(a, b, c.reshape(32, 32))
    scale = memory[2048:2052].view(np.float32)
    with pytest.raises(ValueError, match="scale_a overlaps c"):
        fp8_gemm(a, b, memory[2048:4096].view(np.uint16).reshape(32, 32), scale_a=scale,
                 scale_b=to_d(np.ones(1, "f4")))


@pytest.mark.parametrize("kind", ("float32", "bfloat16"))
@pytest.mark.parametrize("scales", SCALES)
@settings(deadline=None, max_examples=6)
@given(rows=st.integers(1, 140), cols=st.integers(1, 300), seed=st.integers(0, 99))
def test_a_cast_divides_by_the_largest_and_rounds(kind, scales, rows, cols, seed):
    if scales == "row": rows = -(-rows // 10)  # each has a block of its own
    x = np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32)
    x[0] *= 1000
    given = to_d(x if kind == "float32" else to_bf16(x))
    if kind == "bfloat16": x = from_bf16(to_bf16(x))
    bits, scale = map(to_h, fp8_cast(given, scales))
    block = {"row": (1, cols), "1x128": (1, SIDE), "128x128": (SIDE, SIDE)}[scales]
    whole = scale.reshape(rows, 1) if scales == "row" else scale
    whole = np.repeat(np.repeat(whole, block[0], 0), block[1], 1)[:rows, :cols]
    assert np.array_equal(bits, to_fp8(x * (np.float32(1) / whole)))
    padded = np.zeros([-(-size // of) * of for size, of in zip(x.shape, block)], np.float32)
    padded[:rows, :cols] = abs(x)
    shape = padded.shape[0] // block[0], block[0], padded.shape[1] // block[1], block[1]
    largest = padded.reshape(shape).max((1, 3)).reshape(scale.shape)
    assert np.allclose(scale, largest / 448, rtol=1e-6)


@pytest.mark.parametrize("cols", (2100, 8200, 8203))  # more than a thread reads at once, and than it keeps
def test_long_rows_are_cast(cols):
    x = np.random.default_rng(cols).standard_normal((2, cols)).astype(np.float32)
    x[1] *= 1000  # a row knows nothing of the next one
    bits, scale = map(to_h, fp8_cast(to_d(x), "row"))
    assert np.allclose(scale, abs(x).max(1) / 448, rtol=1e-6)
    assert np.array_equal(bits, to_fp8(x * (np.float32(1) / scale.reshape(2, 1))))


def test_a_cast_hides_no_nan_or_infinity_and_zeros_stay_zeros():
    x = np.ones((3, 256), np.float32)
    x[0, 3], x[1, 200], x[2] = np.nan, np.inf, 0
    bits, scale = map(to_h, fp8_cast(to_d(x), "1x128"))
    assert np.array_equal(np.isnan(scale), [[True, False], [False, True], [False, False]])
    assert np.array_equal(np.isnan(from_fp8(bits)), np.repeat(np.isnan(scale), 128, 1))
    assert not from_fp8(bits[2]).any() and set(scale[2]) == {1}
    with pytest.raises(ValueError, match="expected 'row'"): fp8_cast(to_d(x), "column")
    with pytest.raises(TypeError, match="expected float32"): fp8_cast(to_d(np.ones((2, 2), int)))


@pytest.mark.filterwarnings("ignore:(overflow|invalid)")
@pytest.mark.parametrize("scales", (("row", "row"), ("1x128", "128x128")), ids=("rows", "blocks"))
@pytest.mark.parametrize("epilogue", ("staged", "direct"))
@pytest.mark.parametrize("sizes", ((1e37, 1e-5), (1e-5, 1e37), (1e37, 1e-37), (1e-15, 1e-15), (1e30, 1e5)))
def test_huge_and_tiny_numbers_are_multiplied_right(scales, epilogue, sizes):
    "A result is right, or it's infinite or NaN because the product of two scales is too large for float32."
    random = np.random.default_rng(3)
    x, w = (random.standard_normal((rows, 144)) * size for rows, size in zip((20, 16), sizes))
    x[3, 5], w[7] = 3e38, 0
    (a, scale_a), (b, scale_b) = (fp8_cast(to_d(np.float32(y)), kind) for y, kind in zip((x, w), scales))
    if scales[1] != "row": scale_b = to_d(np.ascontiguousarray(to_h(scale_b).T))
    c = from_bf16(to_h(fp8_gemm(a, b, scale_a=scale_a, scale_b=scale_b, k_major_b=True, tile=SMALL,
                                epilogue=epilogue)))
    right, most = x @ w.T, float(np.finfo(np.float32).max)
    rounding = 0.2 * np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(w, axis=1)
    fits = abs(right) + rounding < most
    if scales[1] == "row": fits &= to_h(scale_a)[:, None] * to_h(scale_b).astype(float) < most
    else: fits &= to_h(scale_a).max(1)[:, None] * float(to_h(scale_b).max()) < most
    assert fits.mean() > 0.8
    assert (abs(c - right) <= rounding)[fits].all()
    assert not np.isfinite(c[abs(right) - rounding > most]).any()

@pytest.mark.parametrize("wrong", (np.inf, -np.inf, np.nan))
def test_a_layer_shows_an_infinity_as_nan_where_its_scale_is_used(wrong):
    x, w = torch.randn(3, 160, device=DEVICE), torch.randn(130, 160, device=DEVICE)
    x[1, 7] = wrong
    assert torch.equal(fp8_linear(x, w).isnan().any(1), torch.tensor([False, True, False], device=DEVICE))
    assert fp8_linear(x, w)[1].isnan().all()
    x[1, 7], w[129, 7] = 0, wrong
    y = fp8_linear(x, w)
    assert y[:, 128:].isnan().all() and not y[:, :128].isnan().any()


@settings(deadline=None, max_examples=10)
@given(rows=st.integers(1, 270), cols=st.integers(1, 140), wide=st.booleans())
def test_operands_are_transposed_and_padded(rows, cols, wide):
    if wide: cols = -(-cols // 4) * 4
    x = np.random.default_rng(rows).integers(0, 256, (rows, cols)).astype(np.uint8)
    turned = to_d(np.full((cols, pitch_of(rows)), 99, np.uint8))
    padded = to_d(np.full((rows, pitch_of(cols)), 99, np.uint8))
    simulate_plan(Plan([transpose_launch(to_d(x), turned, 4 if wide else 1), pad_launch(to_d(x), padded)]))
    turned, padded = to_h(turned), to_h(padded)
    assert np.array_equal(turned[:, :rows], x.T) and not turned[:, rows:].any()
    assert np.array_equal(padded[:, :cols], x) and not padded[:, cols:].any()


def layer(m=5, n=24, k=40, dtype=torch.float32):
    return (torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_() for shape in ((2, m, k), (n, k)))

@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_a_linear_layer_and_its_gradients(dtype):
    x, w = layer(dtype=dtype)
    y, right = fp8_linear(x, w), x.double() @ w.double().t()
    assert y.dtype == torch.bfloat16 and y.shape == right.shape
    assert (y.double() - right).norm() < 0.06 * right.norm()
    dy = torch.randn_like(y)
    found, exact = torch.autograd.grad(y, (x, w), dy), torch.autograd.grad(right, (x, w), dy.double())
    for one, other in zip(found, exact):
        assert one.dtype == dtype and (one.double() - other.double()).norm() < 0.02 * other.double().norm()


def test_a_linear_layer_compiles_and_passes_opcheck():
    x, w = layer()
    torch.library.opcheck(torch.ops.numba_matmul.fp8_linear.default, (x[0], w), rtol=2e-2, atol=2e-2)
    compiled = torch.compile(fp8_linear, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, w), fp8_linear(x, w))


def test_a_layer_has_derivatives_in_every_mode():
    x, w = (z.detach() for z in layer(4, 6, 8))
    tx, tw = torch.randn_like(x), torch.randn_like(w)
    def close(found, right): return (found.double() - right.double()).norm() < 0.02 * right.double().norm()
    right = tx @ w.t() + x @ tw.t()
    y, tangent = torch.func.jvp(fp8_linear, (x, w), (tx, tw))
    assert torch.equal(y, fp8_linear(x, w)) and tangent.dtype == torch.bfloat16 and close(tangent, right)
    with forward_ad.dual_level():
        y = fp8_linear(x, forward_ad.make_dual(w, tw))
        assert close(forward_ad.unpack_dual(y).tangent, x @ tw.t())
    dw = torch.func.grad(lambda w: fp8_linear(x, w).float().sum())(w)
    assert close(dw, x.flatten(0, 1).sum(0).expand(6, 8))
    assert torch.equal(torch.vmap(fp8_linear, (0, None))(x, w), fp8_linear(x, w))
    assert torch.equal(torch.vmap(fp8_linear, (None, 0))(x[0], w[None]), fp8_linear(x[0], w)[None])


@pytest.mark.parametrize("m, n, k", ((0, 4, 8), (4, 0, 8), (4, 8, 0)))
def test_an_empty_layer_and_its_gradients(m, n, k):
    x, w = layer(m, n, k)
    y = fp8_linear(x, w)
    assert y.shape == (2, m, n) and not y.any()
    y.sum().backward()
    assert not x.grad.any() and not w.grad.any()


def test_under_autocast_the_types_may_differ():
    x, w = layer(4, 8, 8)
    short = x.detach().bfloat16()
    with torch.autocast(DEVICE, torch.bfloat16): y = fp8_linear(short, w)
    assert torch.equal(y, fp8_linear(short.float(), w))
    y.sum().backward()
    assert w.grad.dtype == torch.float32


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_a_layer_refuses_what_does_not_fit():
    x, w = layer()
    with pytest.raises(TypeError, match="w is torch.float64"): fp8_linear(x, w.double())
    with pytest.raises(TypeError, match="pass x.to"): fp8_linear(x.bfloat16(), w)
    with pytest.raises(ValueError, match="expected"): fp8_linear(x[..., :3], w)
    with pytest.raises(TypeError, match="w is torch.sparse_coo; .* w.to_dense"): fp8_linear(x, w.to_sparse())
    nested = torch.nested.nested_tensor([x[0].detach(), x[1, :2].detach()])
    with pytest.raises(TypeError, match="x is a nested tensor; .* x.to_padded_tensor"): fp8_linear(nested, w)


def test_a_layer_is_refused_before_anything_is_cast(monkeypatch):
    monkeypatch.setattr(torch_fp8, "fp8_cast", lambda *args: pytest.fail("cast"))
    x, w = (z.detach() for z in layer())
    with monkeypatch.context() as patch:
        patch.setattr(torch_rules, "DEVICE", "another")
        with pytest.raises(TypeError, match="x and w are on"): fp8_linear(x, w)
    monkeypatch.setattr(limits, "has_capability", lambda needs: needs != (9, 0, "a"))
    with pytest.raises(RuntimeError, match="fp8_linear needs a GPU of compute capability 9.0"):
        fp8_linear(x, w)


def test_another_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(limits, "has_capability", lambda needs: False)
    a = to_d(to_fp8(np.ones((32, 32))))
    with pytest.raises(RuntimeError, match="needs a GPU of compute capability 9.0"): KERNEL(a, a)
