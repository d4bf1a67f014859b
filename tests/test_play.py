"The player and the other widgets: what they are given is right, small, and needs nothing from outside."
import base64
import json
import re
import zlib

import numpy as np
import pytest
from conftest import ROOT
from numba import cuda, float32

from numba_matmul import explore, widgets
from numba_matmul.exercise import KEPT, ask, grade
from numba_matmul.gemm.tiles import Tile
from numba_matmul.play import MOST_BYTES, play
from numba_matmul.ptx.core import load4, store4
from numba_matmul.sim.launch import diagnose
from numba_matmul.sim.scheduler import SimulatorError

T = 16
A, B = np.random.default_rng(3).standard_normal((2, 48, 48)).astype(np.float32)
C = np.full((48, 48), np.nan, np.float32)


def given(made):
    "What a widget is given."
    return json.loads(zlib.decompress(base64.b64decode(re.search('data-with="(.*?)"', made)[1])))

def touched(step):
    "Thread → the element it touches in a step."
    _, _, _, _, _, ranges, deltas, *_ = step
    threads = [first + i for first, n in zip(ranges[::2], ranges[1::2]) for i in range(n)]
    return dict(zip(threads, np.cumsum(deltas).tolist()))


def tiled_kernel(barriers):
    @cuda.jit
    def tiled(a, b, c):
        tile = cuda.shared.array((T, T), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        row, col = cuda.blockIdx.y * T + y, cuda.blockIdx.x * T + x
        acc = float32(0)
        for k in range(0, a.shape[1], T):
            tile[y, x] = a[row, k + x]
            cuda.syncthreads()
            for i in range(T): acc += tile[y, i] * b[k + i, col]
            if barriers == 2: cuda.syncthreads()
        if x == 0 and y == 0: print("sum", acc)
        c[row, col] = acc
    return tiled


def test_a_right_kernel_is_told_step_by_step():
    made = play(tiled_kernel(2)[(3, 3), (T, T)], A, B, C, block=(1, 2))
    told = given(made)
    assert len(made) < MOST_BYTES and told["mistake"] is None and not told["cut"]
    assert [(array["name"], array["space"], array["shape"]) for array in told["arrays"]] == [
        ("a", "global", [48, 48]), ("tile", "shared", [T, T]), ("b", "global", [48, 48]),
        ("c", "global", [48, 48])]
    steps, tiles = told["steps"], 48 // T
    assert len(steps) == tiles * (2 + 2 * T) + 1 and steps[-1][0] == 2 * tiles
    phases = [phase for phase, *_ in steps]
    assert phases == sorted(phases)
    # the first load of A, its costs, and what it held
    _, line, array, operation, count, *_, costs = steps[0]
    assert (array, operation, count, costs) == (0, "load", 1, [4] * 8) and "tile[y, x] = a[" in told["lines"][
        line - told["first"]]
    assert touched(steps[0]) == {y * T + x: (2 * T + y) * 48 + x for y in range(T) for x in range(T)}
    assert told["arrays"][0]["values"][48] == pytest.approx(A[1, 0], rel=1e-3)
    # what is stored to C
    assert np.allclose(np.array(steps[-1][7]).reshape(T, T), (A @ B)[2 * T:, T:2 * T], 1e-2, 1e-2)
    ((step, thread, text),) = told["printed"]
    assert (step, thread) == (len(steps) - 1, 0) and float(text.removeprefix("sum ")) == pytest.approx(
        steps[-1][7][0], rel=1e-3)


def test_a_race_is_shown_at_both_accesses():
    told = given(play(tiled_kernel(1)[(3, 3), (T, T)], A, B, C))
    wrong = told["mistake"]
    assert wrong["text"].startswith("race: tile[") and len(wrong["steps"]) == 2
    array, element = wrong["at"]
    assert told["arrays"][array]["name"] == "tile"
    assert {told["steps"][step][3] for step in wrong["steps"]} == {"load", "store"}
    assert all(element in touched(told["steps"][step]).values() for step in wrong["steps"])


def test_the_block_with_the_mistake_is_watched_to_the_next_barrier():
    @cuda.jit
    def past_the_end(x, out):
        i = cuda.grid(1)
        out[i] = 2 * x[i]
    x = np.arange(100, dtype=np.float32)
    launch = past_the_end[2, 64]
    told = given(play(launch, x, np.zeros_like(x)))
    (step,) = told["mistake"]["steps"]
    assert told["index"] == "(1)" and told["steps"][step][3] == "fails"
    assert touched(told["steps"][step]) == {} and told["steps"][step][5] == [36, 28]
    assert "To watch it step by step: play(past_the_end[2, 64], …)" in diagnose(launch, x, np.zeros_like(x))


def test_a_race_of_two_blocks_in_global_memory_is_told():
    @cuda.jit
    def all_store(out): out[cuda.threadIdx.x] = cuda.blockIdx.x
    wrong = given(play(all_store[2, 8], np.zeros(8)))["mistake"]
    assert "race" in wrong["text"] and wrong["steps"] == [0]


def test_views_of_an_array_are_told_as_the_array():
    @cuda.jit
    def halves(x, out):
        half, i = x[4:], cuda.threadIdx.x
        out[0, i] = half[i]
    told = given(play(halves[1, 4], np.arange(8, dtype=np.float32), np.zeros((1, 4), np.float32).T.copy().T))
    assert list(touched(told["steps"][0]).values()) == [4, 5, 6, 7]


def test_wide_accesses_and_long_kernels_fit():
    @cuda.jit
    def copies(x, out):
        i = 4 * cuda.threadIdx.x
        for _ in range(700): store4(out, i, *load4(x, i))
    x = np.random.randn(1024).astype(np.float32)
    made = play(copies[1, 256], x, np.zeros_like(x))
    told = given(made)
    assert len(made) <= MOST_BYTES and told["cut"] and told["steps"][0][4] == 4


def test_what_cannot_be_watched_is_refused():
    @cuda.jit
    def idle(x): pass
    @cuda.jit
    def refused(x): x.append(1)
    with pytest.raises(ValueError, match="nothing to play: block .0, 0, 0. of idle"): play(idle[1, 32], A)
    for block in 4, (0, 1), -1:
        with pytest.raises(ValueError, match="there is no block.*idle is launched with .4, 1, 1. blocks"):
            play(idle[4, 32], A, block=block)
    with pytest.raises(SimulatorError, match="append"): play(refused[1, 32], A)


def test_grade_offers_the_launch_that_failed():
    @cuda.jit
    def my_reverse(x, out):
        numbers = cuda.shared.array(128, float32)
        t, start = cuda.threadIdx.x, cuda.blockIdx.x * 128
        count = min(128, x.shape[0] - start)
        if t < count: numbers[t] = x[start + t]
        if t < count: out[start + t] = numbers[count - 1 - t]
    board = grade("02b", my_reverse)
    assert 'Watch it: grade("02b", my_reverse).play()' in repr(board)
    assert "before it was written" in given(board.play())["mistake"]["text"]
    @cuda.jit
    def unwritten(x, out): ...
    board = grade("02b", unwritten)
    assert "Watch it" not in repr(board)
    with pytest.raises(ValueError, match="nothing to watch"): board.play()


@pytest.mark.parametrize("name", [path.stem for path in widgets.STATIC.glob("*.js")])
def test_scripts_are_small_and_need_nothing(name):
    text = (widgets.STATIC / f"{name}.js").read_text(encoding="utf-8")
    assert len(text) < 25_000 and "</script" not in text
    addresses = set(re.findall(r"https?://[^\"'\s]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"} and not re.search(r"\b(import|fetch|XMLHttp)\b", text)


def test_pages_have_the_scripts_of_today():
    played = [path for path in (ROOT/"nbs").rglob("*.ipynb") if "data-widget" in path.read_text("utf-8")]
    assert len(played) > 5
    for path in played:
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            for output in cell.get("outputs", []):
                text = "".join(output.get("data", {}).get("text/html", ""))
                for name in re.findall(r'data-widget="(\w+)"', text):
                    assert widgets.script(name) in text, f"{path.name}: run make pages"


def test_the_tile_explorer_shows_what_the_compiler_gives(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT/"tools"))
    from tile_registers import registers
    kept = dict(zip(explore.tiles(), explore.REGISTERS, strict=True))
    for tile in Tile(128, 128, 8, 8, 8), Tile(64, 64, 8, 8, 1), Tile(256, 256, 16, 16, 16):
        count, spills = registers(tile)
        assert abs(count - int(kept[tile].rstrip("s"))) <= 8, tile  # compilers differ a little
        assert spills == kept[tile].endswith("s"), tile
    told = given(explore.explore_tiles(tm=4))
    assert told["given"]["tm"] == 4 and len(told["found"]) == len(explore.every_tile())
    assert sum(isinstance(entry, list) for entry in told["found"]) == len(kept)


def test_an_answer_keeps_what_the_website_asks_for():
    answer = ask("How many?", A=..., wide=...).against(A=32, wide=0.5) + "\n\nMeasured."
    bundle = answer._repr_mimebundle_()
    shown = bundle["text/markdown"] + bundle["text/plain"]
    assert "32" not in shown and "Measured." in shown
    assert bundle[KEPT] == {"question": "How many?", "found": [["A", 32.0], ["wide", 0.5]]}
    assert "close" in ask("", 4).against(4.01)


def test_a_widget_prints_as_its_title():
    made = widgets.explore_banks(padding=1)
    assert repr(made) == "Bank-conflict explorer (shown in a notebook)" and given(made)["padding"] == 1
    assert made._repr_html_().count("<script") == made.count("</script>") == 1 and len(made) < 25_000


@pytest.mark.parametrize("explorer, given, match", [
    (widgets.explore_banks, dict(width="x"), "width is 'x'"),
    (widgets.explore_banks, dict(group=33), "group is 33; expected a whole number from 1 to 32"),
    (widgets.explore_banks, dict(bits=8), "bits is 8; expected one of 32, 64, 128"),
    (widgets.explore_banks, dict(first="rows"), "first is 'rows'"),
    (widgets.explore_sectors, dict(x=64), "2048 threads"), (widgets.explore_sectors, dict(y=0), "y is 0"),
    (explore.explore_tiles, dict(bm=48), "bm is 48"), (explore.explore_tiles, dict(size=0.5), "size is 0.5"),
    (explore.explore_pipeline, dict(stages=7), "stages is 7")])
def test_an_explorer_refuses_what_it_cannot_show(explorer, given, match):
    with pytest.raises(ValueError, match=match): explorer(**given)
