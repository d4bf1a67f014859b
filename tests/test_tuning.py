"The search: what it refuses, what it times, what it saves."
import json
from functools import partial
from importlib.util import find_spec

import pytest
from conftest import minimal_card

from numba_matmul import cards
from numba_matmul.bench import search
from numba_matmul.bench.search import autotune, candidates, recorded_tuning, spilling, write_tuning
from numba_matmul.gemm.tiles import GroupTile, tuned_tile
from numba_matmul.kernels.k01_naive import sgemm_naive
from numba_matmul.kernels.k09_autotuning import RULES, TILE, sgemm_autotuned

CHECKS = [(5, 6, 7), (9, 3, 4)]
tune = partial(autotune, name="sgemm_test", shapes=CHECKS)


def product(scale):
    "A host function that is right if `scale` is 1."
    def fn(a, b, c=None, alpha=1.0, beta=0.0): return sgemm_naive(a, b, c, scale * alpha, beta)
    return fn


def factory(x, scale=1):
    if x == 3: raise ValueError("GroupTile(3): x must not be 3; and more")
    fn = product(scale)
    fn.x = x
    return fn


def test_the_fastest_comes_first_and_the_refused_are_counted():
    found = tune(factory, dict(x=(1, 2, 3, 4)), size=100, timer=lambda fn: 10 / fn.x)
    assert found.best == {"x": 4} and [row["x"] for row in found.rows] == [4, 2, 1]
    assert found.rows[0]["gflops"] == pytest.approx(2 * 100**3 / 2.5e-3 / 1e9)
    assert found.refused == {"x must not be 3": 1} and found.left == 0
    assert "| 4 |" in found._repr_markdown_() and len(found.plot().axes) == 1


def test_a_wrong_candidate_is_never_timed():
    timed = []
    def timer(fn):
        timed.append(fn.x)
        return 1.0
    found = tune(lambda x, scale: factory(x, scale), dict(x=(1, 2), scale=(1, 1.5)), timer=timer)
    assert sorted(timed) == [1, 2] and all(row["scale"] == 1 for row in found.rows)
    assert found.refused == {"the result is wrong": 2}


def test_a_best_that_is_wrong_at_another_size_makes_room_for_the_next():
    def wrong_at_odd_sizes(x):
        def fn(a, b, c=None, alpha=1.0, beta=0.0):
            return sgemm_naive(a, b, c, 2 * alpha if x == 2 and a.shape[0] == 9 else alpha, beta)
        fn.x = x
        return fn
    found = tune(wrong_at_odd_sizes, dict(x=(1, 2)), timer=lambda fn: 1 / fn.x)
    assert found.best == {"x": 1} and found.refused == {"the result is wrong": 1}


def test_a_best_that_is_refused_makes_room_for_the_next():
    found = tune(factory, dict(x=(1, 2, 4)), timer=lambda fn: 1 / fn.x,
                     refuse=lambda fn: "it spills" if fn.x == 4 else "")
    assert found.best == {"x": 2} and found.refused == {"it spills": 1}


@pytest.mark.skipif(find_spec("numba_cuda") is None, reason="compiles")
def test_a_tile_whose_guard_spills_is_found_out(monkeypatch):
    monkeypatch.setattr(search, "gpu_target", lambda: "sm_90")
    tight = GroupTile(128, 128, 32, 8, 4, pad_a=4, unroll=8)
    assert spilling(partial(sgemm_autotuned, tile=tight)) == "it spills at 260×264×36"
    assert spilling(partial(sgemm_autotuned, tile=GroupTile(64, 64, 16, 4, 4))) == ""


def test_the_first_configuration_is_tried_first_and_once():
    tried = []
    def timer(fn):
        tried.append(fn.x)
        return 1.0
    found = tune(factory, dict(x=(1, 2, 4)), timer=timer, first={"x": 7})
    assert tried[0] == 7 and sorted(tried) == [1, 2, 4, 7] and found.best == {"x": 7}
    del tried[:]
    tune(factory, dict(x=(1, 2, 4)), timer=timer, first={"x": 4})
    assert tried[0] == 4 and sorted(tried) == [1, 2, 4]


def test_the_budget_ends_the_search():
    found = tune(factory, dict(x=(1, 2, 4)), timer=lambda fn: 1.0, budget=-1.0)
    assert found.rows == [] and found.left == 3 and found._repr_markdown_() == found.source


def test_after_half_of_the_budget_neighbours_of_the_best_come_first(monkeypatch):
    now, tried = iter(range(1000)), []
    monkeypatch.setattr(search.time, "monotonic", lambda: next(now))
    def any_factory(**x):
        fn = product(1)
        fn.x = tuple(x.values())
        return fn
    def timer(fn):
        tried.append(fn.x)
        return 1 + sum((i - 2) ** 2 for i in fn.x)
    space = dict(x=range(4), y=range(4), z=range(4))
    found = tune(any_factory, space, timer=timer, budget=30.5)
    assert len(tried) == len(found.rows) == 30 and found.left == 34
    def misses(later):
        return sum(sum(i != j for i, j in zip(x, min(tried[:n], key=lambda t: sum((i - 2) ** 2 for i in t))))
                   for n, x in enumerate(tried) if n and (n >= 15) == later)
    assert misses(True) < misses(False) / 1.3 and found.best == dict(x=2, y=2, z=2)


def test_without_a_gpu_it_refuses():
    with pytest.raises(RuntimeError, match="needs a GPU"): autotune(factory, dict(x=(1,)), "sgemm_test")


def test_what_was_found_is_kept_on_the_card_and_picked_up(tmp_path, monkeypatch):
    monkeypatch.setattr(cards, "card_folder", lambda: tmp_path)
    monkeypatch.setenv("MATMUL_GPU", "Test GPU")
    (tmp_path/"test-gpu.json").write_text(json.dumps(minimal_card("Test GPU")))
    tuned_tile.cache_clear()
    try:
        assert tuned_tile("sgemm_autotuned", TILE) == TILE
        configured = candidates(sgemm_autotuned, TILE, RULES)
        space = dict(bm=(64, 128), bn=(64,), bk=(8, 16), tm=(4,), tn=(4,))
        found = autotune(configured, space, "sgemm_autotuned", shapes=CHECKS,
                         timer=lambda fn: fn.keywords["tile"].bm)
        write_tuning(found)
        assert tuned_tile("sgemm_autotuned", TILE) == TILE._replace(**found.best) and found.best["bm"] == 64
        kept = recorded_tuning("sgemm_autotuned")
        assert kept.best == found.best and kept.refused == found.refused and len(kept.rows) == len(found.rows)
        assert recorded_tuning("sgemm_warptiling").rows == []
    finally: tuned_tile.cache_clear()
