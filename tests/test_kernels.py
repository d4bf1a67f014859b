"Every kernel: any size is right, and wrong arguments are refused."
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from numba_matmul.ladder import KERNELS
from numba_matmul.util import assert_matmul_correct, to_d, to_h

kernels = pytest.mark.parametrize("kernel", KERNELS.values(), ids=lambda k: k.name)
factor = st.one_of(st.sampled_from([0.0, 1.0, -1.0]), st.floats(-2, 2, width=32))


def random(*shape): return np.random.randn(*shape).astype(np.float32)


@kernels
@settings(deadline=None, max_examples=25)
@example(m=0, n=5, k=3, alpha=1.0, beta=0.0)
@example(m=5, n=0, k=3, alpha=1.0, beta=1.0)
@example(m=3, n=2, k=0, alpha=1.0, beta=0.5)
@example(m=3, n=2, k=0, alpha=1.0, beta=0.0)
@example(m=33, n=40, k=35, alpha=0.0, beta=0.0)
@example(m=3, n=3, k=2, alpha=0.0, beta=2.0**-126)
@given(m=st.integers(0, 40), n=st.integers(0, 40), k=st.integers(0, 30), alpha=factor, beta=factor)
def test_any_size(kernel, m, n, k, alpha, beta):
    a, b, before = random(m, k), random(k, n), random(m, n)
    if alpha == 0: a[:], b[:] = np.nan, np.nan  # must not be read
    c = to_d(before if beta else np.full_like(before, np.nan))
    assert kernel(to_d(a), to_d(b), c, alpha, beta) is c
    assert_matmul_correct(a, b, c, alpha, beta, c_before=before)


@kernels
def test_makes_its_own_result(kernel):
    a, b = to_d(random(5, 6)), to_d(random(6, 7))
    c = kernel(a, b)
    assert type(c) is type(a) and c.shape == (5, 7) and c.dtype == np.float32
    assert_matmul_correct(a, b, c)


@kernels
def test_a_block_of_rows_is_a_matrix(kernel):
    whole, b = to_d(random(9, 5)), to_d(random(5, 4))
    assert_matmul_correct(to_h(whole)[3:8], b, kernel(whole[3:8], b))


def good(): return to_d(random(4, 6)), to_d(random(6, 5))


REFUSED = {
    "shapes that do not fit": (lambda a, b: (a, a), ValueError, ["4×6", "as many columns"]),
    "host array": (lambda a, b: (random(4, 6), b), TypeError, ["numpy.ndarray", "to_d(a)"]),
    "list": (lambda a, b: (a, [[1.0]]), TypeError, ["builtins.list", "to_d(b)"]),
    "float64": (lambda a, b: (to_d(np.ones((4, 6))), b), TypeError, ["float64", "astype(np.float32)"]),
    "some columns of a matrix": (lambda a, b: (to_d(random(4, 12))[:, :6], b), ValueError, ["not row-major", "to_d(a)"]),
    "every other row": (lambda a, b: (a, to_d(random(12, 5))[::2]), ValueError, ["b is not row-major"]),
    "one dimension": (lambda a, b: (to_d(random(6)), b), ValueError, ["1 dimensions", "(6,)"]),
    "c of another shape": (lambda a, b: (a, b, to_d(random(5, 4))), ValueError, ["5×4", "4×5"]),
    "c of another dtype": (lambda a, b: (a, b, to_d(np.zeros((4, 5), np.int32))), TypeError, ["c is int32"]),
    "beta without c": (lambda a, b: (a, b, None, 1.0, 2.0), ValueError, ["beta is 2.0", "pass the c"]),
    "a factor that is no number": (lambda a, b: (a, b, None, "2"), TypeError, ["alpha is '2'"]),
    "c is a": (lambda a, b: (to_d(random(4, 4)),) * 3, ValueError, ["overlaps a"]),
}


@kernels
@pytest.mark.parametrize("case", REFUSED)
def test_wrong_arguments_are_refused(kernel, case):
    arguments, error, texts = REFUSED[case]
    with pytest.raises(error) as caught: kernel(*arguments(*good()))
    for text in texts: assert text in str(caught.value)


@kernels
def test_c_may_not_overlap_a_part_of_b(kernel):
    whole = to_d(random(12, 5))
    with pytest.raises(ValueError, match="overlaps b"): kernel(to_d(random(6, 6)), whole[:6], whole[4:10])
    kernel(to_d(random(6, 6)), whole[:6], whole[6:])  # neighbours are fine
