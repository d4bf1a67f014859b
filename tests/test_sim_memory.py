"Indices, views, and unwritten memory, in the strict simulator."
from importlib.util import find_spec

import agreement
import numpy as np
import pytest
from numba import cuda, float32, int32
from sim_cases import X, refused, refused_cases

from numba_matmul.compiler import CompileError, machine_code
from numba_matmul.microscope import microscope
from numba_matmul.ptx.core import load4, store4
from numba_matmul.sim.launch import simulate

ONES = "s = cuda.local.array((2, 4), float32)\ns.fill(1)\n"
COPIED, UNWRITTEN = "a slice can only be assigned a single number", "is read before it was written"
REFUSED = {  # body of a kernel for one thread (x has 8 elements, i is 2), and the simulator's message
    # Indices
    "global array below": ("x[i - 3] = 1", "negative"),
    "global array past": ("x[i + 6] = 1", "out of bounds"),
    "shared array below": ("s = cuda.shared.array(8, float32)\ns[i - 3] = 1", "negative"),
    "shared array past": ("s = cuda.shared.array(8, float32)\ns[i + 6] = 1", "out of bounds"),
    "local array below": ("s = cuda.local.array(8, float32)\ns[i - 3] = 1", "negative"),
    "local array past": ("s = cuda.local.array(8, float32)\ns[i + 6] = 1", "out of bounds"),
    # Unwritten memory
    "unwritten element": ("s = cuda.local.array((2, 2), float32)\nout[0] = s[1, 1]",
                          rf"s\[1, 1\] {UNWRITTEN}, in thread .0. of block .0."),
    "unwritten element, its line": ("s = cuda.local.array(3, int32)\nif i == 2: out[0] = s[2]",
                                    rf"s\[2\] {UNWRITTEN}.*if i == 2"),
    "unwritten element, added to": ("s = cuda.local.array(3, int32)\ns[0] += 1", rf"s\[0\] {UNWRITTEN}"),
    "unwritten element, to a row": ("s = cuda.local.array((2, 2), float32)\ns[0] = s[1, 0]",
                                    f"s.*{UNWRITTEN}"),
    # The compiler would need to allocate memory for that, but can't: NRT required but not enabled
    "copy to local array": ("s = cuda.local.array(4, float32)\ns[1:3] = x[:2]\nx[0] = s[1]", COPIED),
    "copy within local array": (
        "s = cuda.local.array((2, 2), float32)\ns[:] = x[0]\ns[0] = s[1]\nx[0] = s[0, 0]", COPIED),
    "copy from local array": ("s = cuda.local.array(2, float32)\ns[:] = 3\nx[:2] = s", COPIED),
    # Views
    "shorter type": ("out[0] = x.view(np.int16)[0]", "view float32 as int16 here: pass x.view"),
    "longer type of shared": ("s = cuda.shared.array((2, 4), float32)\nout[0] = s.view(np.int64)[0, 0]",
                              "view float32 as int64 here: declare dynamic shared memory"),
    "other type of local": (ONES + "out[0] = s.view(np.int32)[0, 0]",
                            "view float32 as int32 here: libdevice"),
    "reshape of transposed": (ONES + "out[0] = s.T.reshape(8)[0]", "would copy"),
    "reshape of columns": (ONES + "out[0] = s[:, 1:].reshape(6)[0]", "reshape of a slice"),
    "reshape of every second": ("out[0] = x[::2].reshape(2, 2)[0, 0]", "reshape of a slice"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_with_memory_is_refused(name):
    text, match = REFUSED[name]
    fn, args = agreement.made(text)
    refused(cuda.jit(fn)[1, 1], *args, match=match)
    if match == COPIED and find_spec("numba_cuda"):
        with pytest.raises(CompileError, match="NRT"):
            machine_code(cuda.jit(fn), "void(float64[::1], float32[::1])")


RIGHT = {  # and its contents of `out`
    "reshapes and sums": (
        ONES + "out[0] = x[4:].reshape(2, 2)[0, 0]\nout[1] = s[1].reshape(4, 1)[3, 0] + s.sum() + x.ndim",
        [5, 10]),
    "one element": ("s = cuda.local.array((2, 2), float32)\ns[1, 1] = 3\nout[0] = s[1, 1]", [3]),
    "numbers to parts of local arrays": (
        "row = cuda.local.array(4, float32)\ns = cuda.local.array((2, 2), float32)\n"
        "row[:] = 7\nrow[1:3] = x[0]\ns[0] = row[1]\ns[uint32(1), :] = 5\n"
        "for j in range(4): out[j], out[4 + j] = row[j], s[j // 2, j % 2]", [7, 1, 1, 7, 1, 1, 5, 5]),
    "indices of views of local arrays": (
        "row = cuda.local.array(4, int32)\ns = cuda.local.array((2, 3), float32)\n"
        "for j in range(4): row[::-1][j] = j\ns[:, :] = 7\ns[1][2] = 5\n"
        "for j in range(4): out[j] = row[j]\nout[4], out[5], out[6] = s[1, 2], s[:, 1][1], row[1:][0]",
        [3, 2, 1, 0, 5, 7, 2]),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_with_memory_is_computed(name):
    text, expected = RIGHT[name]
    fn, args = agreement.made(text)
    assert simulate(cuda.jit(fn)[2, 1], *args)[0][:len(expected)].tolist() == expected


def test_what_another_block_has_written_is_not_there():
    @cuda.jit
    def k(out):
        tile = cuda.shared.array(1, float32)
        if cuda.blockIdx.x == 0: tile[0] = 1
        out[cuda.blockIdx.x] = tile[0]
    refused(k[2, 1], np.zeros(2, np.float32), match="before it was written, in thread .0. of block .1.")


def test_views_of_shared_arrays_are_checked_too():
    @cuda.jit
    def k(out, barrier):
        tile = cuda.shared.array((4, 4), float32)
        i = cuda.threadIdx.x
        row = tile[i]
        row[1] = i
        if barrier: cuda.syncthreads()
        out[i] = tile[(i + 3) % 4, 1]
    assert simulate(k[1, 4], X[:4].copy(), True)[0].tolist() == [3, 0, 1, 2]
    refused(k[1, 4], X[:4].copy(), False, match="race|before it was written")


def test_views_are_checked_as_the_array_itself():
    """Reshaped, transposed, of another type: a missing barrier, an index below 0 or past the end, unwritten
    memory, sectors."""
    @cuda.jit
    def viewed(x, out, space, sync, i, j):
        t = cuda.threadIdx.x
        s = cuda.shared.array(16, float32)
        y = s.reshape(4, 4) if space else x.reshape((4, 4))
        y.T[t, 0] = t
        if sync: cuda.syncthreads()
        out[t] = s.reshape(4, 4).T[i, j] if space else x.view(np.int32).reshape(4, 4).transpose()[i, j]
    @cuda.jit
    def local(out, i):
        y = cuda.local.array(8, float32)
        z = y.reshape(2, 4).T
        z[2, 1] = 5
        out[0], out[1], out[2], out[3] = y[6], z.strides[0] + z.itemsize, z.nbytes, z[i, 1]
    x, out = np.zeros(16, np.float32), np.zeros(4, np.float32)
    for space in 0, 1:
        for args, error in (((0, 0, 0), r"^race: (x|s)\[0, 0\] was written by thread \(0\)"),
                            ((1, -1, 0), "index -1 is negative"), ((1, 0, 4), "out of bounds")):
            refused(viewed[1, 4], x, out, space, *args, match=error)
    refused(viewed[1, 4], x, out, 1, 1, 1, 1, match="is read before it was written")
    assert simulate(viewed[1, 4], x, out, 1, 1, 3, 0)[1].tolist() == [3] * 4
    assert simulate(viewed[1, 4], x, out, 0, 1, 3,
                    0)[1].tolist() == [np.float32(np.float32(3).view(np.int32))] * 4
    refused_cases(local[1, 1], out, cases={0: r"y\[0, 1\] is read before it was written", -1: "negative"})
    assert simulate(local[1, 1], out, 2)[0].tolist()[:3] == [5, 8, 32]
    view = microscope(viewed[1, 4], np.zeros(16, np.float32), out, 0, 1, 3, 0)
    assert view.site("x", "store").cost == 1 and view.reads["x"] == {3: 4}


def test_dynamic_shared_memory():
    @cuda.jit
    def k(x, out):
        tile = cuda.shared.array(0, float32)
        same = cuda.shared.array(0, float32)
        i = cuda.threadIdx.x
        tile[i] = x[i]
        cuda.syncthreads()
        out[i] = same[tile.shape[0] - 1 - i]
    assert np.array_equal(simulate(k[1, 16, 0, 64], X[:16], X[:16].copy())[1], X[:16][::-1])
    refused(k[1, 16, 0, 60], X[:16], X[:16].copy(), match="out of bounds")
    refused(k[1, 16, 0, 300_000], X[:16], X[:16].copy(), match="232448")


def test_dynamic_arrays_are_one_memory():
    @cuda.jit
    def k(x, out, mode):
        one, other = cuda.shared.array(0, float32), cuda.shared.array(0, float32)
        words = cuda.shared.array(0, int32)
        if mode < 2: a, b = (one[:64], one[64:]) if mode == 0 else (one, other)
        i = cuda.threadIdx.x
        if mode < 2:
            a[i], b[i] = x[i], x[i] + 1
            cuda.syncthreads()
            out[i] = b[i ^ 1] + a[i ^ 1]
        if mode == 2:  # the bits of floats, in memory that held integers before, which were read or are 0
            words[i] = 0
            one[i] = x[i]
            cuda.syncthreads()
            out[i] = words[i ^ 1] >> 23
            cuda.syncthreads()
            words[i] = i + 5
            cuda.syncthreads()
            out[i] += words[i ^ 1]
    other = X.reshape(-1, 2)[:, ::-1].ravel()
    assert np.array_equal(simulate(k[1, 64, 0, 512], X, X.copy(), 0)[1], 2 * other + 1)
    refused(k[1, 64, 0, 512], X, X.copy(), 1,
            match="written through one, then overwritten through other .*at line .*start at the same byte")
    assert np.array_equal(simulate(k[1, 64, 0, 512], X, X.copy(), 2)[1],
                          (other.view(np.int32) >> 23) + (np.arange(64) ^ 1) + 5)


def test_a_wide_access_needs_a_shared_array_that_is_declared_for_it():
    def kernel(alignment):
        @cuda.jit
        def k(x, out):
            tile = cuda.shared.array(8, float32, alignment=alignment)
            store4(tile, 4 * cuda.threadIdx.x, *load4(x, 4 * cuda.threadIdx.x))
            cuda.syncthreads()
            out[cuda.threadIdx.x] = tile[7 * cuda.threadIdx.x]
        return k[1, 2]
    for alignment in 16, 32:
        assert np.array_equal(simulate(kernel(alignment), X[:8], np.zeros(2, np.float32))[1], X[[0, 7]])
    for alignment in None, 4, 8:
        refused(kernel(alignment), X[:8], np.zeros(2, np.float32),
                match=r"16 bytes to tile, which is only aligned to [48]: .*alignment=16")


def test_an_index_out_of_bounds_comes_with_the_name_of_its_array():
    @cuda.jit
    def k(x, way, i):
        y, array = cuda.local.array(4, float32), cuda.shared.array(4, float32)
        if way == 0: x[0] = x[i]
        if way == 1: array[i] = 0
        if way == 2: y[i] = 0
        if way == 3: cuda.atomic.add(array, i, 1)
        if way == 4: x[0] = x[1:][i]
    for way, name in enumerate(("x", "array", "y", "array", "x")):
        cases = {-1: f"^{name}: index -1 is negative", 9: f"^{name}: index 9 is out of bounds"}
        refused_cases(k[1, 1], X[:8], way, cases=cases)

def test_several_elements_before_the_start_or_past_the_end_are_refused():
    @cuda.jit
    def k(x, shared, at):
        s = cuda.shared.array(8, float32, alignment=16)
        for i in range(8): s[i] = x[i]
        x[:4] = load4(s, at)[0] if shared else load4(x, at)[0]
    for shared in 0, 1:
        cases = {-4: "index -4 is negative", 8: "index 8 is out of bounds", 7: "isn't a multiple of 16 bytes"}
        refused_cases(k[1, 1], X[:8], shared, cases=cases)
    @cuda.jit
    def part(x, at): x[0] = load4(x[:6], at)[3]
    refused(part[1, 1], X[:8], 4, match="index 6 is out of bounds")
