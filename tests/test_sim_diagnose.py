"What diagnose reports about a launch, and what a long launch reports about itself."
import math
import re
import sys
import warnings
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda, float32
from sim_cases import X, last

from numba_matmul.arrays import to_d
from numba_matmul.compiler import CompileError, machine_code
from numba_matmul.draw import Message
from numba_matmul.kernels.k01_naive import sgemm_naive
from numba_matmul.sim.kernel import StrictKernel
from numba_matmul.sim.launch import diagnose, launch_of


def test_diagnose_is_the_launch(capsys):
    """Device arrays that share memory still do; a kernel's output is printed once; the report says what it
    doesn't cover, and what looks odd."""
    @cuda.jit
    def shift(a, b):
        i = cuda.grid(1)
        if i + 1 < a.size: b[i] = a[i + 1]
    d, host = to_d(X), X.copy()
    for args in (d, d), (d[1:], d[:-1]), (d, d.reshape(64)), (d[::2], d[::2]):
        assert diagnose(shift[2, 32], *args).startswith("race"), args
    # host arrays are copied separately
    for args in (d, to_d(X)), (d[:32], d[32:]), (host, host):
        assert diagnose(shift[2, 32], *args).startswith("No mistake found."), args
    @cuda.jit
    def slips(out):
        print("thread", cuda.grid(1))
        cuda.syncthreads  # noqa: B018  what a reader forgets, as below
        i, j = cuda.grid(2)
        j == 5  # noqa: B015
        if i < 1: out[i, 0] = X[3]
    @cuda.jit
    def forgets(x, y, z):
        one, two = cuda.shared.array(0, float32), cuda.shared.array(0, float32)
        if x[0] > 100: y[cuda.grid(1)] = one[0] + two[0]
    message = diagnose(slips[1, 2], np.zeros((2, 2)))
    assert capsys.readouterr().out == "thread 0\nthread 1\n"
    for text in ("No mistake found.", "assert_matmul_correct",
                 r"cuda.syncthreads does nothing.*cuda.syncthreads\(\)", "j == 5 does nothing.*assign",
                 r"cuda.grid\(2\) in a launch with one thread along y",
                 r"3 of 4 elements of out were never written: the first is out\[0, 1\]"):
        assert re.search(text, message), (text, message)
    @cuda.jit
    def unordered(out):
        both = cuda.shared.array(2, float32)
        both[cuda.threadIdx.x] = 1
        cuda.syncthreads  # noqa: B018
        out[cuda.threadIdx.x] = both[1 - cuda.threadIdx.x]
    message = diagnose(unordered[1, 2], np.zeros(2, np.float32))
    assert message.startswith("both[1] is read before") and "cuda.syncthreads does nothing" in message
    @cuda.jit
    def renames(out): out = cuda.grid(1)  # noqa: F841
    assert "out = … only gives the name another value" in diagnose(renames[1, 2], np.zeros(2, np.float32))
    odd = diagnose(forgets[1, (2, 2)], X, X, X)
    for text in ("2 dynamic shared arrays of forgets start at the same byte", "y was never written",
                 "z is never used", r"cuda.grid\(1\) only counts along x, so 2 threads"):
        assert re.search(text, odd), (text, odd)
    assert "By the way" not in diagnose(shift[2, 32], d[:33], to_d(X[:32]))


@cuda.jit
def slow(x):
    s = 0.0
    for i in range(20000): s += i
    x[cuda.grid(1)] = s


@cuda.jit
def stuck(x):
    while x[0] == 0: pass


@pytest.mark.parametrize("length, found", [(9, "index 9 is out of bounds"), (12, "No mistake found")])
def test_an_ampersand_between_comparisons_is_named_whatever_comes_of_it(length, found):
    @cuda.jit
    def twice(x):
        i = cuda.grid(1)
        if i >= 0 & i < x.shape[0]: x[i] *= 2

    message = diagnose(twice[3, 4], np.ones(length, np.float32))
    assert found in message
    assert "By the way: write and, not &: 0 & i is computed before the comparisons, at line" in message


def test_slow_is_told_from_stuck():
    message = diagnose(slow[1000, 4], np.zeros(4000), timeout=2)
    assert re.search(r"no answer within 2 s, block \d+ of 1000 after 2 s, about \d+ s in total. "
                     "It's slow but.*smaller shape", message), message
    message = diagnose(stuck[3, 4], np.zeros(4), timeout=2)
    assert re.search(r"block 1 of 3 .*an endless loop\? It's at line \d+ of stuck: while x\[0\] == 0",
                     message), message


def test_a_stuck_launch_is_at_the_kernels_line_even_if_numba_is_looking_up_a_shape(monkeypatch):
    from numba.cuda.simulator.cudadrv.devicearray import FakeShape
    from numba_matmul.sim import kernel
    monkeypatch.setattr(kernel, "Thread", object)
    progress = kernel.Progress(SimpleNamespace(blocks=[0], grid=SimpleNamespace(started=[])))
    found = []
    class Index(int):
        def __lt__(self, other):  # FakeShape asks, so its frame is the next one
            found.append(progress.why_late(sys._getframe(1)))
            return False
    assert FakeShape((5,))[Index(0)] == 5
    assert "of test_a_stuck_launch" in found[0]


def test_a_long_launch_says_how_far_it_is(capsys, monkeypatch):
    from numba_matmul.sim import kernel
    # each look at the clock is 7 s later
    monkeypatch.setattr(kernel.time, "perf_counter", iter(range(0, 10**6, 7)).__next__)
    last[40, 1](X.copy())
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("last")]
    assert 2 <= len(lines) <= 6
    assert re.fullmatch(r"last in the simulator: block 2 of 40 after \d+ s, about \d+ s in total. "
                        "A smaller shape is faster.", lines[0])


@pytest.mark.skipif(find_spec("numba_cuda") is None, reason="numba-cuda is not installed")
def test_more_registers_than_there_are_is_named():
    "158 per thread for 1024 threads; also with launch_bounds that fit, and with the decorator's signature."
    size = 8
    def heavy(A, B, out):
        acc = cuda.local.array((size, size), float32)
        t = cuda.threadIdx.x
        for i in range(size):
            for j in range(size): acc[i, j] = 0
        for q in range(A.shape[0]):
            for i in range(size):
                for j in range(size): acc[i, j] += A[q, i * 1024 + t] * B[q, j * 1024 + t]
        for i in range(size):
            for j in range(size): out[i, j, t] = acc[i, j]
    signature = "void(float32[:, ::1], float32[:, ::1], float32[:, :, ::1])"
    plain, bounded = cuda.jit(signature)(heavy), cuda.jit(signature, launch_bounds=1024)(heavy)
    factor = np.ones((1, size * 1024), np.float32)
    args = factor, factor.copy(), np.zeros((size, size, 1024), np.float32)
    assert re.search(r"heavy can't be launched: 1\d\d registers × 1024 threads.*max_registers=64",
                     diagnose(plain[1, 1024], *args, timeout=200))
    with pytest.raises(CompileError, match="registers × 1024 threads"): machine_code(plain[1, 1024])
    code = machine_code(plain)
    assert code.registers > 128 and code.most_threads == 384 and "blocks of at most 384 threads" in repr(code)
    assert machine_code(bounded[1, 1024]).registers <= 64


@pytest.mark.skipif(find_spec("numba_cuda") is None, reason="numba-cuda is not installed")
def test_float64_that_the_compiler_keeps_is_told_with_its_line():
    @cuda.jit
    def total(x, out):
        acc = 0.0
        for i in range(x.size): acc += x[i]
        out[0] = acc
    @cuda.jit
    def scaled(x, out, s): out[0] = s * x[0] + x[1]
    @cuda.jit
    def indexed(x, out): out[cuda.grid(1)] = x[0] * cuda.grid(1)
    # rounded to float32 at once; float64 only inside sin; exact types
    @cuda.jit
    def half(x, out): out[0] = x[0] * 0.5
    @cuda.jit
    def sine(x, out): out[0] = math.sin(x[0])
    @cuda.jit("void(float32[::1], float32[::1], float32)")
    def declared(x, out, s): out[0] = s * x[0] + x[1]
    out = X[:1].copy()
    for kernel, args, line in ((total, (), "acc += x"), (scaled, (2.0,), "def scaled"),
                               (indexed, (), "def indexed")):
        told = diagnose(kernel[1, 1], X, out, *args)
        assert told.startswith("No mistake found.") and told.count("computes in float64") == 1
        where = rf"line \d+ of {kernel.py_func.__name__}: .*{re.escape(line)}"
        assert re.search(f"although it gets no float64 array, first at {where}", told)
    for kernel, args in (half, ()), (sine, ()), (declared, (2.0,)), (scaled, (float32(2),)):
        told = diagnose(kernel[1, 1], X, out, *args)
        assert told.startswith("No mistake found.") and "float64" not in told
    assert "float64" not in diagnose(total[1, 1], X.astype(np.float64), out)


def test_a_product_that_takes_minutes_says_so_before_it_begins(monkeypatch):
    monkeypatch.setattr(StrictKernel, "__call__", lambda *args: None)
    big, small = to_d(np.zeros((512, 512), np.float32)), to_d(np.zeros((64, 64), np.float32))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for x, alpha in (small, 1.0), (big, 0.0), (big, 1.0): sgemm_naive(x, x, alpha=alpha)
    assert [str(one.message) for one in told] == [
        "a product of 512×512×512 takes the simulator about 2 minutes: try a smaller one"]


TABLE = np.ones(3, np.float32)

def test_what_a_message_names_is_what_the_reader_wrote():
    "The array of constants, the launch with its dynamic shared memory, an exception without a text."
    @cuda.jit
    def looks_up(x, first):
        table, i = cuda.const.array_like(TABLE), cuda.threadIdx.x
        x[i] = table[i + first]
    @cuda.jit
    def dynamic(x): cuda.shared.array(0, float32)[cuda.threadIdx.x] = x[0]
    @cuda.jit
    def gives_up(x):
        if x[0] == 0: raise ValueError
    @cuda.jit
    def indexes(x, i): x[i.bit_length()] = i[0]
    zeros = np.zeros(8, np.float32)
    for launch, args, told in [
            (looks_up[1, 8], [zeros, 0], "TABLE: index 3 is out of bounds"),
            (looks_up[1, 8], [zeros, -1], "TABLE: index -1 is negative"),
            (dynamic[1, 8, 0, 16], [zeros], r"(?s)index 4 is out.*play\(dynamic\[1, 8, 0, 16\], …\)"),
            (dynamic[1, 8], [zeros], r"(?s)index 0 is out.*play\(dynamic\[1, 8\], …\)"),
            (gives_up[1, 1], [zeros], "^ValueError, in thread"),
            (indexes[1, 1], [zeros, 3], "an int64 ")]:
        message = diagnose(launch, *args)
        assert re.search(told, message), (told, message)


def test_a_message_is_left_to_the_reader_to_break_into_lines():
    message = Message("x[i] < 0 " * 30)
    assert repr(message) == str(message) == message
    html = message._repr_html_()
    # a browser breaks words in a pre
    assert html.count("x[i] &lt; 0 ") == 30 and "\n" not in html and "<pre" not in html


def test_a_launch_is_shown_without_its_matrices():
    assert repr(launch_of(sgemm_naive, (40, 33, 9))) == (
        "sgemm_naive_kernel[(2, 2, 1), (32, 32, 1)] with 0 bytes of dynamic shared memory, "
        "void(float32[:, ::1], float32[:, ::1], float32[:, ::1], uint64, float32, float32)")
