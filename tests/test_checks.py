"The check of a product accepts what rounding explains, and nothing else."
import numpy as np
import pytest
from products import random

from numba_matmul.arrays import cdiv, from_bf16, rounded, to_bf16
from numba_matmul.bench.verify import assert_matmul_correct


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
    (lambda a, b: (a.tolist(), b, a), "a is a builtins.list"),
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
    """Each of some 300 elements is moved by 2 units in the last place, one at a time. What is too large
    for the type is infinite."""
    narrow, wide = (to_bf16, from_bf16) if kind == "bfloat16" else (np.float16, np.asarray)
    normal = np.random.default_rng(3).standard_normal
    for k in 1, 8, 64, 512:
        a, b = (wide(narrow(normal(shape))) for shape in ((10, k), (k, 10)))
        exact = a.astype(np.float64) @ b
        c = narrow(exact)
        assert 0 < assert_matmul_correct(a, b, c) < 2**-8
        # what adding in float32 may cost
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
    if kind == "float16":  # sums in float16, too
        a, b = (normal(shape).astype(np.float16) for shape in ((4, 64), (64, 4)))
        c = np.zeros((4, 4), np.float16)
        for q in range(64): c += a[:, q:q + 1] * b[q]
        with pytest.raises(AssertionError, match="unit_roundoff=2\\*\\*-11"): assert_matmul_correct(a, b, c)
        assert assert_matmul_correct(a, b, c, unit_roundoff=2**-11) < 0.02
