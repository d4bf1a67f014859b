"Each warp's memory accesses: sectors, banks and wavefronts, as counted on a GPU."
import os
from functools import partial

import numpy as np
import pytest
from numba import cuda, float32, uint32

from numba_matmul.arrays import to_d
from numba_matmul.compiler import CompileError, machine_code, occupancy
from numba_matmul.kernels.k14_stream_k import sgemm_stream_k
from numba_matmul.microscope import _copy_parts, _wide_copy_parts, microscope, sectors, wavefronts
from numba_matmul.timeline import time_line
from numba_matmul.ptx.core import load4, store4
from numba_matmul.registry import KERNELS
from numba_matmul.sim.launch import launch_of
from numba_matmul.sim.scheduler import SimulatorError


X, NAIVE = np.arange(8, dtype=np.float32), KERNELS[1].fn


@cuda.jit
def simple(x, out):
    i = cuda.grid(1)
    if i < out.size: out[i] = x[i] + x[i]


@cuda.jit
def endless(x): endless(x)


ONE, THREE = "void(float32[::1])", "void(float32[::1], float32[::1], float32[::1])"


@pytest.mark.parametrize("call,error,text", [
    (lambda: machine_code("sgemm_naive"), TypeError, "got 'sgemm"),  # plus whatever else `launch_of` refuses
    (lambda: machine_code(simple.py_func, ONE), TypeError, "a signature is for a kernel.*@cuda.jit"),
    (lambda: machine_code(5, ONE), TypeError, "leave the signature out"),
    (lambda: machine_code(endless, ONE), CompileError, "endless calls itself"),
    (lambda: machine_code(NAIVE, shape=(64, 64)), ValueError, "three whole numbers"),
    (lambda: microscope(None, (8, 8, 8)), TypeError, "got None"),
    (lambda: microscope(NAIVE), TypeError, "one shape"),
    (lambda: microscope(NAIVE, 8, 8, 8), TypeError, "one shape"),
    (lambda: microscope(NAIVE, (8, 8, 8), 5), TypeError, "one shape"),
    (lambda: microscope(simple.py_func, (8, 8, 8), 1), TypeError, "or a kernel and its arguments, micro"),
    (lambda: microscope(simple, X, X), ValueError, "needs a launch configuration"),
    (lambda: microscope(simple[1, 8], X), TypeError, "takes 2 arguments"),
    (lambda: microscope(simple[1, 8], X, X, blocks=[(0, 0)]), ValueError, r"one block \(x, y, z\)"),
    (lambda: microscope(counting[10**9, 8], X), SimulatorError, "1,000,000,000 blocks"),
])
@pytest.mark.usefixtures("no_child")
def test_what_is_no_kernel_is_refused_before_a_child_is_started(call, error, text):
    with pytest.raises(error, match=text): call()


@cuda.jit
def counting(x): cuda.atomic.add(x, 0, 1)


def test_a_large_launch_is_looked_at_by_some_of_its_blocks():
    view = microscope(counting[10**9, 8], X, blocks=[(5, 0, 0)])
    assert view.counts == {(5, 0, 0): 1}
    assert "atomic operations" in repr(view) and "| atomic operations |  |" in view._repr_markdown_()
    assert "atomic" not in repr(microscope(simple[1, 8], X, X))


def test_sectors_and_wavefronts_of_known_requests():
    neighbours = [4 * lane for lane in range(32)]
    assert sectors(neighbours, 4) == 4 and sectors([start + 4 for start in neighbours], 4) == 5
    assert sectors([32 * lane for lane in range(32)], 4) == 32 and sectors([0] * 32, 4) == 1
    for stride, passes in (1, 1), (2, 2), (3, 1), (4, 4), (32, 32), (33, 1):
        assert wavefronts({lane: 4 * stride * lane for lane in range(32)}, 4) == passes
    assert wavefronts({lane: 0 for lane in range(32)}, 4) == 1
    assert wavefronts({lane: 8 * lane for lane in range(32)}, 8) == 2
    assert wavefronts({lane: 16 * lane for lane in range(32)}, 16) == 4
    assert wavefronts({lane: 0 for lane in range(32)}, 8) == 1
    assert wavefronts({lane: 0 for lane in range(32)}, 16) == 2
    assert wavefronts({0: 0}, 16) == 1


def test_wide_accesses_count_once_and_must_be_aligned():
    @cuda.jit
    def k(x, out, offset):
        i = uint32(4 * cuda.threadIdx.x)
        store4(out, i, *load4(x, uint32(i + uint32(offset))))
    x = np.arange(140, dtype=np.float32)
    view = microscope(k[1, 32], x, np.zeros(128, np.float32), 8)
    assert (view.site("x").size, view.site("x").requests, view.site("x").cost) == (16, 1, 16)
    with pytest.raises(SimulatorError, match="16 bytes at x"):
        microscope(k[1, 32], x, np.zeros(128, np.float32), 2)


@cuda.jit
def copy(x, out):
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]: out[i, j] = x[i, j]


def test_the_parts_of_a_launch_add_up_to_all_of_it():
    x = np.zeros((37, 32), np.float32)
    launch, grid = partial(microscope, copy[(5, 4), (8, 8)], x, x.copy()), (5, 4, 1)
    by_parts, every = launch(), launch(blocks=list(np.ndindex(*grid)))
    assert len(by_parts.counts) == 9 and max(by_parts.counts.values()) == 6 and len(every.counts) == 20
    assert by_parts.totals() == every.totals()


def test_a_view_is_printed_as_the_table_that_a_notebook_shows():
    view = microscope(tiled[1, 32], np.arange(64, dtype=np.float32))
    assert "sample" not in repr(view.site("x"))
    printed, table = str(view).splitlines(), view._repr_markdown_().splitlines()
    words = [line.replace("|", " ").replace("`", "").split() for line in (table[0], *table[2:])]
    assert [line.split() for line in printed] == words
    assert [line.split("  ", 2)[-1].lstrip() for line in printed] == [
        "array  bits  requests  per request  used", "x        32         1    8 sectors   50%",
        "tile     32         1  1 wavefront"]


@cuda.jit
def tiled(x):
    tile = cuda.shared.array(32, float32)
    tile[cuda.threadIdx.x] = x[2 * cuda.threadIdx.x]


def test_wide_accesses_are_for_float32():
    @cuda.jit
    def k(x, out): store4(out, 0, *load4(x, 0))
    with pytest.raises(SimulatorError, match="for float32, not for float64"):
        microscope(k[1, 1], np.zeros(4), np.zeros(4, np.float32))
    with pytest.raises(CompileError, match="for float32, not for float64"):
        machine_code(k, "void(float64[::1], float32[::1])")


def test_a_kernel_that_races_or_hangs_is_named():
    @cuda.jit
    def past_the_end(x): x[cuda.threadIdx.x + 1] = 0
    waiting = microscope(sgemm_stream_k, (64, 64, 64))  # partial sums go from one block to another
    assert len(waiting.counts) == launch_of(sgemm_stream_k, (64, 64, 64)).grid[0] > 1
    with pytest.raises(SimulatorError, match="out of bounds.*past_the_end"):
        microscope(past_the_end[1, 8], np.zeros(8, np.float32))
    with pytest.raises(ValueError, match="it accesses out, x"):
        microscope(simple[1, 8], np.zeros(8, np.float32), np.zeros(8, np.float32)).site("nothing")


@pytest.mark.parametrize("lines,row,counted", [
    # lines of global memory; words per row in shared memory; wavefronts, by ncu, on an H200
    (1, 33, 1), (1, 2, 2), (1, 8, 8), (1, 32, 32), (2, 0, 2), (4, 0, 4), (4, 132, 4), (4, 136, 5),
    (4, 128, 11), (8, 0, 8), (8, 136, 8), (8, 128, 11), (16, 0, 16), (32, 0, 32)])
def test_copies_of_4_bytes_arrive_line_by_line(lines, row, counted):
    lanes, across = range(32), 32 // lines
    to = {lane: 4 * (lane % across * row + lane // across if row else lane) for lane in lanes}
    source = {lane: 4096 * (lane // across) + 4 * (lane % across) for lane in lanes}
    assert len(_copy_parts(to, source)) == counted


def test_copies_of_one_word_to_several_places_take_turns():  # counted too
    source = {lane: lane // 4 * 4 for lane in range(32)}
    assert len(_copy_parts({lane: 4 * lane for lane in range(32)}, source)) == 4


@pytest.mark.parametrize("source,target,counted", [(16, 16, 4), (4096, 16, 32), (16, 32, 32), (16, 64, 32)])
def test_copies_of_16_bytes_share_a_wavefront_if_they_keep_their_distance(source, target, counted):
    assert len(_wide_copy_parts({lane: target * lane for lane in range(32)},
                                {lane: source * lane for lane in range(32)})) == counted


@pytest.mark.parametrize("pieces,row,change,counted", [
    # 16-byte pieces per row; words from one row to the next; place of a piece
    (8, 32, "stay", 4), (8, 36, "stay", 10), (8, 40, "stay", 7), (8, 48, "stay", 6), (8, 64, "stay", 4),
    (8, 32, "swizzle", 4), (8, 32, "rotate", 6), (16, 64, "stay", 4), (16, 68, "stay", 8),
    (16, 72, "stay", 6), (16, 64, "swizzle", 4), (4, 16, "stay", 4), (4, 20, "stay", 15), (2, 8, "stay", 4),
    (2, 12, "stay", 24), (1, 4, "stay", 4), (1, 8, "stay", 32), (1, 36, "stay", 32)])
def test_copies_of_16_bytes_are_dear_where_a_line_is_torn_apart(pieces, row, change, counted):
    def place(r, p): return {"stay": p, "swizzle": p ^ r % 8, "rotate": (p + r) % pieces}[change]
    to = {lane: 4 * row * (lane // pieces) + 16 * place(lane // pieces, lane % pieces) for lane in range(32)}
    assert len(_wide_copy_parts(to, {lane: 16 * lane for lane in range(32)})) == counted


@pytest.mark.parametrize("shift,start,counted", [(16, 0, 12), (64, 0, 8), (0, 16, 12)])
def test_a_line_that_is_shifted_by_16_bytes_takes_three_wavefronts(shift, start, counted):
    to, source = ({lane: first + 16 * lane for lane in range(32)} for first in (shift, start))
    assert len(_wide_copy_parts(to, source)) == counted


def test_zeros_that_land_have_no_line():
    source = {lane: 4 * lane if lane < 5 else None for lane in range(32)}
    assert len(_copy_parts({lane: 4 * lane for lane in range(32)}, source)) == 2


def test_pictures_are_drawn():
    view = microscope(KERNELS[3].fn, (32, 32, 32))
    for array, operation in ("a", "load"), ("c", "store"), ("a_tile", "store"), ("b_tile", "load"):
        assert view.draw(array, operation).axes
    assert view.heat_map("b").axes


@pytest.mark.usefixtures("new_children")
def test_nothing_is_left_in_the_temporary_folder(monkeypatch, tmp_path, temporary_folder):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    machine_code(simple, "void(float32[::1], float32[::1])")
    microscope(simple[1, 8], np.zeros(8, np.float32), np.zeros(8, np.float32))
    assert not os.listdir(temporary_folder)


def test_the_microscope_sees_views_as_they_lie_in_memory():
    "Sectors of a warp's request along a row, along a column, with stride 2, and from mid-sector."
    @cuda.jit
    def copy(x, out):
        i, j = cuda.grid(2)
        out[j, i] = x[j, i]
    square, out = np.arange(32 * 64, dtype=np.float32).reshape(32, 64), np.zeros((32, 32), np.float32)
    columns, device = np.asfortranarray(square), to_d(square)
    for x, cost in ((square, 4), (columns, 32), (cuda.to_device(columns), 32), (device[:, ::2], 8),
                    (device[:, 3:35], 5), (device[:, :31:-1], 4)):
        view = microscope(copy[(np.uint8(1), 32), 32], x, out, blocks=[(np.int64(0), np.uint8(2), 0)])
        assert view.site("x").cost == cost
        assert sorted(view.reads["x"]) == [2 * x.shape[1] + i for i in range(32)]
        assert view.heat_map("x").axes and (view.draw("x").axes[0].get_xlabel()[:3] == "row") == (cost == 32)
    with pytest.raises(ValueError, match=r"x is a non-contiguous view.*np.ascontiguousarray\(x\)"):
        microscope(copy[(1, 32), 32], square[:, ::2], out)


def test_a_time_line_of_nothing_is_refused_in_words():
    @cuda.jit
    def idle(x): pass
    with pytest.raises(ValueError, match="block .0, 0, 0. of idle touches no array"):
        time_line(idle[1, 32], np.zeros(4))


@pytest.mark.parametrize("call, text", [
    (lambda: sectors([0], 128), "expected 1 to 16"), (lambda: sectors([0], 0), "expected 1 to 16"),
    (lambda: wavefronts({0: 0}, 32), "expected 1 to 16"),
    (lambda: wavefronts({40: 0}, 4), "lanes are 0 to 31"),
    (lambda: occupancy(256, -5), "255 registers at most"),
    (lambda: occupancy(256, 300), "255 registers at most"),
    (lambda: occupancy(256, 64, -1), "0 bytes of shared memory or more")])
def test_what_no_gpu_has_is_refused(call, text):
    with pytest.raises(ValueError, match=text): call()


@cuda.jit
def loops_in_loops(x, out):
    t, total = cuda.threadIdx.x, float32(0)
    for _ in range(2):
        for r in range(t, 96, 32):
            for q in range(5): total += x[r, q]
        r = 0
        while r < 3:
            for q in range(5): total += x[r, q]
            r += 1
        cuda.syncthreads()
    out[t] = total

def test_it_counts_how_often_an_inner_for_begins():
    "Not inside a `while`, whose turns it doesn't see."
    x, out = np.ones((96, 8), np.float32), np.zeros(64, np.float32)
    view = microscope(loops_in_loops[1, 64], x, out)
    first, second = (site for site in view.merged() if site.array == "x")
    assert (first.requests, first.rounds) == (2 * (3 + 2) * 5, 2 * (3 + 2))
    assert (second.requests, second.rounds) == (2 * 2 * 3 * 5, 0)
