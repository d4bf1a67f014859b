"""Float32 in two parts of float16: what the split preserves of each number, which numbers it refuses, and
what kernel 19 computes from the parts."""
import gc
import weakref
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numba import cuda
from products import random

from numba_matmul.arrays import cdiv, to_d, to_h
from numba_matmul.gemm import split as gemm_split
from numba_matmul.gemm.split import split_rows_kernel
from numba_matmul.gemm.tiles import WgmmaTile
from numba_matmul.kernels import k19_float32_on_tensor_cores as k19
from numba_matmul.kernels.k06_vectorized import four_reader
from numba_matmul.kernels.k14_stream_k import sgemm_stream_k
from numba_matmul.kernels.k19_float32_on_tensor_cores import sgemm_tensor_cores, split

# infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in scalar:RuntimeWarning")
U = 2.0**-24
product = partial(sgemm_tensor_cores, tile=WgmmaTile(64, 64, 2, 1, parts=2))


# The split

def split_rows(x, k, factors=None, width=1, kept=4):
    "Parts and `inverse` of a matrix by the kernel, in float64."
    rows, cols = x.shape
    pitch = cdiv(cols, 64) * 64
    hi, lo = (cuda.device_array(rows * pitch, np.uint16) for _ in "hl")
    inverse = cuda.device_array(rows, np.float32)
    kernel = split_rows_kernel(four_reader(True, width), factors is not None, kept)
    factors = inverse if factors is None else to_d(factors)
    kernel[rows, 32](to_d(x.ravel()), np.uint32(cols), factors, hi, lo, np.uint32(pitch), inverse,
                     np.float32(2.0**-12 / k))
    hi, lo = (to_h(part).view(np.float16).reshape(rows, pitch).astype(float) for part in (hi, lo))
    assert not hi[:, cols:].any() and not lo[:, cols:].any()
    return hi[:, :cols], lo[:, :cols], to_h(inverse)


def expected_inverse(x, k, factors=None):
    "The same for the exact numbers: what the split guarantees."
    y = x.astype(float)
    with np.errstate(all="ignore"):
        if factors is not None:
            y = y * np.abs(factors.astype(float))
            y[(np.abs(y) < 2.0**-126) & (x != 0)] = np.nan
            y[np.abs(y) >= 2.0**128] = np.inf
        largest = np.abs(y).max(1)
        significand, exponent = np.frexp(largest)
        exponent += significand >= 1 - 2.0**-12  # rounded to 11 bits it becomes the next power of two
        power = np.where(largest == 0, 0, np.minimum(16 - exponent, 126))
        size = np.abs(np.ldexp(y, power[:, None]))
        small = (y != 0) & (size < 2.0**-14)
        out = np.isnan(y) | (size >= 65520) | small & (size < 2.0**-12 / k)
        inverse = np.ldexp(1.0, -power)
        if factors is None: inverse[small.any(1)] *= -1
        else: out |= small & (factors < 0)
    return np.where(out.any(1), np.nan, inverse).astype(np.float32)


def rows_of(exponents):
    "Rows of numbers of very different magnitude, with zeros, infinities, NaN and subnormal numbers."
    special = st.sampled_from([0.0, -0.0, np.inf, np.nan, 2.0**-149, -2.0**-126, 65519.0, 65520.0, 1.9999])
    number = st.builds(np.ldexp, st.floats(-1, 1, width=32), exponents)
    few = st.one_of(number, number, number, special)
    row = st.builds(lambda numbers, power: np.ldexp(numbers, power), st.lists(few, min_size=5, max_size=5),
                    st.sampled_from([0, 0, 0, -100, -140, 110]))
    def as_float32(rows):
        with np.errstate(over="ignore"): return np.array(rows, np.float32)
    return st.builds(as_float32, st.lists(row, min_size=4, max_size=8))


near = st.one_of(st.integers(-3, 0), st.integers(-45, 0))


@settings(deadline=None, max_examples=40)
@given(x=rows_of(near), k=st.sampled_from([1, 5, 100, 4096]), balanced=st.booleans(), data=st.data())
def test_parts_keep_every_number_or_the_row_says_that_they_cannot(x, k, balanced, data):
    factors = None
    if balanced:
        factor = st.sampled_from([1.0, -1.0, 2.0**-30, 2.0**40, -2.0**-90, 2.0**100, np.nan])
        usual = st.sampled_from([1.0, 0.5, 8.0])
        some = st.lists(st.one_of(usual, usual, usual, factor), min_size=5, max_size=5)
        factors = np.array(data.draw(some), np.float32)
    hi, lo, inverse = split_rows(x, k, factors)
    assert np.array_equal(inverse, expected_inverse(x, k, factors), equal_nan=True)
    carried = ~np.isnan(inverse)
    scaled = x[carried].astype(float) / np.abs(inverse[carried, None].astype(float))
    if balanced: scaled *= np.abs(factors.astype(float))
    error = np.abs(hi[carried] + lo[carried] / 2048 - scaled)
    assert (error <= np.maximum(2.0**-23 * np.abs(scaled), 2.0**-36)).all()
    assert (error <= max(4, k) * U * np.abs(scaled)).all()


@pytest.mark.parametrize("cols,width,kept", [(200, 4, 2), (300, 4, 1), (131, 1, 1), (64, 4, 1), (7, 1, 1)])
def test_rows_of_any_length_are_split_whole(cols, width, kept):
    x = np.ldexp(random(2, cols), np.array([[-60], [70]])).astype(np.float32)
    x[0, -1] *= 100  # the largest
    hi, lo, inverse = split_rows(x, 4096, None, width, kept)
    assert (np.abs((hi + lo / 2048) * np.abs(inverse[:, None].astype(float)) / x - 1) <= 2.0**-22).all()
    assert (np.abs(hi).max(1) >= 2**15).all() and np.array_equal(inverse, expected_inverse(x, 4096))


@pytest.mark.parametrize("at", (1, 131, 270))  # that a thread reads first, that it keeps, and the rest
def test_a_small_number_that_meets_a_small_factor_has_no_parts(at):
    x, factors = np.ones((2, 280), np.float32), np.ones(280, np.float32)
    x[0, at] = 2.0**-35
    assert not np.isnan(split_rows(x, 4096, factors, 4, 2)[2]).any()
    factors[at] = -1
    assert np.isnan(split_rows(x, 4096, factors, 4, 2)[2]).tolist() == [True, False]


ORDINARY = {"normal": lambda rng, *shape: rng.standard_normal(shape, np.float32),
            "uniform from -1": lambda rng, *shape: 2 * rng.random(shape, np.float32) - 1,
            "uniform from 0": lambda rng, *shape: rng.random(shape, np.float32),
            "lognormal": lambda rng, *shape: np.exp(rng.standard_normal(shape, np.float32))}


@pytest.mark.parametrize("name", ORDINARY)
def test_parts_carry_ordinary_numbers(name):
    for seed, (m, n, k) in enumerate([(1500, 1500, 1500), (8, 3000, 300), (300, 8, 4000)]):
        rng = np.random.default_rng(seed)
        a, b = ORDINARY[name](rng, m, k), ORDINARY[name](rng, k, n)
        of_b = expected_inverse(b, k)
        assert not np.isnan(of_b).any() and not np.isnan(expected_inverse(a, k, of_b)).any()


# Products

def check_product(a, b, alpha=1.0, beta=0.0, **options):
    """Where parts can represent the numbers, each result is as accurate as promised; elsewhere it matches
    kernel 14's to the bit. Returns whether they could."""
    (m, k), n = a.shape, b.shape[1]
    c, declined = random(m, n), to_d(np.full(1, 7, np.int32))
    with np.errstate(all="ignore"):
        result = to_h(product(to_d(a), to_d(b), to_d(c), alpha, beta, declined=declined, **options))
        if to_h(declined)[0]:
            instead = to_h(sgemm_stream_k(to_d(a), to_d(b), to_d(c), alpha, beta))
            assert to_h(declined)[0] == 1 and np.array_equal(result, instead, equal_nan=True)
            return False
        right = alpha * (a.astype(float) @ b) + beta * c.astype(float)
        size = abs(alpha) * (np.abs(a).astype(float) @ np.abs(b)) + abs(beta) * np.abs(c)
        bound = (4 * k + 16) * U * size + 2.0**-148
        low, high = (right - bound).astype(np.float32), (right + bound).astype(np.float32)
    assert ((low <= result) & (result <= high)).all()
    return True


@settings(deadline=None, max_examples=20)
@given(a=rows_of(near), b=rows_of(near), alpha=st.sampled_from([1.0, -0.5]), beta=st.sampled_from([0.0, 2.0]),
       columns=st.integers(1, 5))
def test_a_product_is_as_near_as_promised_or_that_of_kernel_14(a, b, alpha, beta, columns):
    k = min(5, len(b))
    # four times in a row: shorter sums go to kernel 14
    check_product(np.tile(a[:, :k], 4), np.tile(b[:k, :columns], (4, 1)), alpha, beta)


def with_number(value, at=(1, 2), of=None):
    x = random(6, 20) if of is None else of
    x[at] = value
    return x


def scaled(x, exponents): return np.ldexp(x, exponents).astype(np.float32)


CARRIED = {  # A, B → can parts represent them?
    "ordinary": (random(6, 20), random(20, 7), True),
    "rows of very different size": (scaled(random(6, 20), 20 * np.arange(-3, 3)[:, None]), random(20, 7),
                                    True),
    "scales that cancel along k": (scaled(random(6, 20), 8 * np.arange(-10, 10)),
                                   scaled(random(20, 7), -8 * np.arange(-10, 10)[:, None]), True),
    "rows of B of very different size": (random(6, 20),
                                         scaled(random(20, 7), 8 * np.arange(-10, 10)[:, None]), False),
    "near the largest": (scaled(random(6, 20), 120), scaled(random(20, 7), -30), True),
    "subnormal": (random(6, 20), scaled(random(20, 7), -128), False),
    "an infinity": (with_number(np.inf), random(20, 7), False),
    "NaN": (with_number(np.nan), random(20, 7), False),
    "an infinity in B": (random(5, 20), with_number(-np.inf, of=random(20, 7)), False),
    "a tiny number": (with_number(2.0**-60), random(20, 7), False),
    "a tiny number that is multiplied by 0": (with_number(2.0**-60), np.zeros((20, 7), np.float32), False),
    "one that is 0 once it is scaled": (random(5, 20), with_number(2.0**-140, of=scaled(random(20, 7), 100)),
                                        False),
    "zeros": (np.zeros((6, 20), np.float32), random(20, 7), True),
    "a zero row in B": (random(5, 20), with_number(0.0, at=3, of=random(20, 7)), True)}


@pytest.mark.parametrize("name", CARRIED)
def test_what_parts_carry(name):
    a, b, carried = CARRIED[name]
    assert check_product(a, b) == carried


def test_split_k_adds_parts_that_are_as_near_and_leaves_c_to_kernel_14():
    assert check_product(random(5, 70), random(70, 6), 0.5, -1.5, split_k=2)
    a = random(5, 70)
    a[3, 66] = np.inf
    assert not check_product(a, random(70, 6), 0.5, -1.5, split_k=2)


# A call's arguments, and what it reports

A, B = to_d(random(5, 20)), to_d(random(20, 6))
ODD = to_d(with_number(np.nan))


def decision(*args, **options):
    "What a call of the host function reports about the numbers."
    declined = to_d(np.full(1, 7, np.int32))
    sgemm_tensor_cores(*args, declined=declined, **options)
    return to_h(declined)[0]


def test_the_decision_is_told():
    tile = product.keywords
    assert decision(A, B, **tile) == 0 == decision(A, B, range="trust", **tile)
    assert decision(ODD, to_d(random(20, 6)), **tile) == 1
    # kernel 14 multiplies, whatever the numbers are
    assert decision(A, B) == -1 == decision(ODD, to_d(random(20, 6)), range="refuse")
    assert decision(A, B, None, 0.0, **tile) == -1 == decision(to_d(random(0, 20)), B, **tile)


def test_numbers_out_of_range_are_refused_and_c_stays_as_it_is():
    c = to_d(random(6, 6))
    before = to_h(c)
    with pytest.raises(ValueError, match="two float16 parts can't represent a or b"):
        product(ODD, to_d(random(20, 6)), c, range="refuse")
    assert np.array_equal(to_h(c), before)
    assert np.array_equal(to_h(product(A, B, range="refuse")), to_h(product(A, B)))


def test_nothing_is_refused_while_a_graph_is_captured(monkeypatch):
    monkeypatch.setattr(gemm_split, "is_captured", lambda: True)
    product(A, B)
    with pytest.raises(RuntimeError, match="CUDA graph capture"): product(A, B, range="refuse")


REFUSED = {  # message → kind of error, options
    "range is 'maybe'; expected 'check', 'trust' or 'refuse'": (ValueError, dict(range="maybe")),
    "range is None": (ValueError, dict(range=None)),
    "declined is a host object": (TypeError, dict(declined=np.zeros(1, np.int32))),
    "declined is int64; expected int32": (TypeError, dict(declined=to_d(np.zeros(1, np.int64)))),
    r"declined has shape \(1, 1\)": (ValueError, dict(declined=to_d(np.zeros((1, 1), np.int32)))),
    "declined overlaps b in memory": (ValueError, dict(declined=B.reshape(-1)[:1].view(np.int32))),
    "is_split from split_k": (TypeError, dict(is_split=True)),
    "checked follows from range": (TypeError, dict(checked=False)),
    "parts must be 2": (ValueError, dict(tile=WgmmaTile(64, 64, 2)))}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_is_refused(text):
    error, options = REFUSED[text]
    with pytest.raises(error, match=text): sgemm_tensor_cores(A, B, **options)


def test_a_matrix_that_is_split_ahead_gives_the_same_bits():
    ahead = split(B)
    for alpha, beta in (1.0, 0.0), (0.5, -1.5):
        c = random(5, 6)
        results = [to_h(product(A, b, to_d(c), alpha, beta, split_k=1)) for b in (B, ahead)]
        assert np.array_equal(*results)
    # if kernel 14 multiplies, it takes the matrix
    assert np.array_equal(to_h(sgemm_tensor_cores(A, ahead)), to_h(sgemm_stream_k(A, B)))
    assert decision(A, ahead, **product.keywords) == 0
    assert decision(A, split(to_d(with_number(np.nan, of=random(20, 6)))), **product.keywords) == 1


def test_a_matrix_without_numbers_is_split():
    for shape in (0, 6), (20, 0):
        result = to_h(product(to_d(random(5, shape[0])), split(to_d(random(*shape)))))
        assert result.shape == (5, shape[1]) and not result.any()


def test_parts_are_freed_with_the_split_matrix():
    ahead = split(B)
    product(A, ahead)
    kept = [weakref.ref(part) for part in ahead.parts]
    del ahead
    gc.collect()
    assert not any(part() is not None for part in kept)


@pytest.mark.parametrize("b,error,text", [
    (to_d(np.zeros((3, 4))), TypeError, "b is float64; expected float32"),
    (to_d(np.zeros(4, np.float32)), ValueError, "expected a matrix"),
    (np.zeros((3, 4), np.float32), TypeError, "b is a host object"),
    (to_d(np.zeros((4, 4), np.float32))[:, :2], ValueError, "not row-major"),
], ids=["type", "vector", "host", "view"])
def test_what_cannot_be_split_is_refused(b, error, text):
    with pytest.raises(error, match=text): split(b)


def test_a_matrix_that_the_tma_cannot_count_is_not_split(monkeypatch):
    monkeypatch.setattr(gemm_split, "LONGEST", 19)
    with pytest.raises(ValueError, match="b is 20×6; expected at most 19 rows and columns"): split(B)


def test_the_estimate_leaves_out_a_split_that_is_paid_already():
    m, n, k = 64, 4096, 4096
    assert k19.select_config(m, n, k, 132).tile is None
    assert k19.select_config(m, n, k, 132, b_is_split=True).tile is not None


def test_a_gpu_without_wgmma_multiplies_by_kernel_14_and_says_so(monkeypatch):
    monkeypatch.setattr(k19, "has_capability", lambda needs: False)
    with pytest.warns(UserWarning, match="sgemm_tensor_cores needs wgmma.*sgemm_stream_k multiplies"):
        result = to_h(product(A, B))
    assert np.array_equal(result, to_h(sgemm_stream_k(A, B)))
