"""Calls on random data, checked against a reference.

A check is only as good as its data. With matrices of ones, a transposed or shifted product passes: every
element is k. Random data tells them apart, and a C full of NaN shows what is read or skipped.
"""
import sys
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import numpy as np

from ..arrays import dtype_of, result_dtype, rounded, to_d, to_h
from ..gemm import split, tiled
from ..gemm.kernel import Kernel
from ..sim import kernel as simulated
from ..sim.scheduler import SimulatorError
from .paths import Path
from .timing import assert_matmul_correct


def check_matmul(
    fn: Callable,  # host function (a, b, c, alpha, beta)
    m: int,        # rows of A
    n: int,        # columns of B
    k: int,        # columns of A, rows of B
    alpha: float = 1.0,  # factor of A·B
    beta: float = 0.0,   # factor of C
) -> float:        # relative error in the Frobenius norm
    "Run a host function on random data of its type; `AssertionError` if the result is wrong."
    shapes, dtype = ((m, k), (k, n), (m, n)), dtype_of(fn)
    kinds = dtype, dtype, result_dtype(dtype)
    a, b, before = (rounded(np.random.randn(*shape), kind) for shape, kind in zip(shapes, kinds))
    c = to_d(before if beta else rounded(np.full((m, n), np.nan), kinds[2]))
    fn(to_d(a), to_d(b), c, alpha, beta)
    return assert_matmul_correct(a, b, c, alpha, beta, c_before=before)


# The usual `abs(difference) > eps` lets NaN through, because every comparison with NaN is false.
#
# A kernel of the course declares which calls run all of its code: its paths. `check_paths` makes each of them
# once. Where A, B or C must not be read it is full of NaN, and the grid is as small as the path allows.

@contextmanager
def _meanwhile(
    kernel,     # a `Kernel`
    constants,  # see `Path`
):
    "Temporarily change constants. The simulator's grids then follow these limits."
    own = sys.modules[kernel.fn.__module__]
    changes = {module: {name: value for name, value in constants.items() if hasattr(module, name)}
               for module in (split, tiled, own)}
    height = constants.get("MAX_GRID_Y", simulated.MAX_GRID[1])
    changes[simulated] = dict(MAX_GRID=(simulated.MAX_GRID[0], height, simulated.MAX_GRID[2]))
    with ExitStack() as stack:
        for module, values in changes.items():
            if values: stack.enter_context(patch.multiple(module, **values))
        yield

def _take(kernel, path):
    (m, n, k), dtype, random = path.shape, kernel.dtype, np.random.default_rng(path.shape)
    kinds = dict(a=dtype, b=dtype, c=result_dtype(dtype))
    def matrix(name, rows, cols): return rounded(random.standard_normal((rows, cols)), kinds[name])
    a, b, c = given = matrix("a", m, k), matrix("b", k, n), matrix("c", m, n)
    unread = "ab" * (path.alpha == 0) + "c" * (path.beta == 0)
    for name, x in zip("abc", given):
        if name in unread: x[...] = rounded(np.full(x.shape, np.nan), kinds[name])
    for name, place, value in path.numbers: dict(zip("abc", given))[name][place] = rounded(value, kinds[name])
    flat = [to_d(np.concatenate([matrix(name, 1, skip).ravel(), x.ravel()]))
            for name, skip, x in zip("abc", path.skips, given)]
    # (on a GPU an empty array has no start address)
    views = [x[skip:].reshape(y.shape) if y.size else to_d(y) for x, skip, y in zip(flat, path.skips, given)]
    kept = [to_h(x).tobytes() for x in flat]
    if path.returned: views[2] = None
    mixed = simulated.interleaved(int(random.integers(2**32)))  # blocks run in any order on a GPU
    with _meanwhile(kernel, path.constants), mixed:
        result = kernel(*views, path.alpha, path.beta, **path.options)
    if not path.returned: assert result is views[2], "the host function returns an array other than c"
    ends = [None, None, path.skips[2] * c.itemsize]  # for C, what comes before it
    for name, x, before, end in zip("abc", flat, kept, ends):
        assert to_h(x).tobytes()[:end] == before[:end], f"{name} was changed where it mustn't be"
    return assert_matmul_correct(a, b, result, path.alpha, path.beta, c_before=c)

def check_path(
    kernel: Kernel,
    path: Path,  # one of its paths
) -> float:      # relative error, Frobenius norm
    "Make one call on random data. `AssertionError` names the path and what is wrong."
    try: return _take(kernel, path)
    except Exception as e:
        kind = "" if isinstance(e, (AssertionError, SimulatorError)) else f"{type(e).__name__}: "
        raise AssertionError(f"{path.name}, {'×'.join(map(str, path.shape))}: {kind}{e}") from e


def check_paths(
    kernel: Kernel,
    paths: list,  # some of its `Path`s
) -> list:        # relative errors, Frobenius norm
    "Make several calls. `AssertionError` at the first wrong one."
    return [check_path(kernel, path) for path in paths]
