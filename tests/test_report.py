"Numbers derived from a result card, checked by hand: an invented card with simple numbers."
import json
import re

import pytest
from conftest import minimal_card

from numba_matmul import cards, ncu
from numba_matmul.bench.timing import Runtime
from numba_matmul.draw import draw_matrix
from numba_matmul.gemm.plan import LaunchConfig
from numba_matmul.kernels import k18_past_cublas_bf16
from numba_matmul.registry import ALL, KERNELS
from numba_matmul.report import plots, readme, strip, tables
from numba_matmul.fingerprint import fingerprint

FLOP = 2 * 4096**3
# 64 columns
SMALL_TILES = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x128x8_stage3_execute_kernel__5x_cublas"
GPU = dict(gpu="Invented GPU", date="2030-01-02", multiprocessors=10, clock_mhz=1000.0, peak_gflops=2560.0,
           copy_gb_s=100.0, compute_capability="9.0")


def row(name, gflops, percent, m=4096, n=None, k=None):
    n, k = n or m, k or m
    ms = 2 * m * n * k / gflops / 1e6
    return dict(name=name, m=m, n=n, k=k, passed=True, code=fingerprint(name), runs=20, ms=ms, spread_ms=0.0,
                gflops=float(gflops),
                cublas_ms=ms * percent / 100, cublas_gflops=100 * gflops / percent, cublas_kernel=SMALL_TILES,
                percent=float(percent), error=1e-6, cublas_error=1e-6)


def invented(*speed, **more):
    card = minimal_card() | GPU | dict(speed=list(speed)) | more
    cards.check_card(card)
    return card


@pytest.fixture
def load(tmp_path, monkeypatch):
    "Makes these the only cards there are."
    monkeypatch.setattr(cards, "card_folder", lambda: tmp_path)
    def only(*all_of_them):
        for i, card in enumerate(all_of_them):
            (tmp_path/f"{i}.json").write_text(json.dumps(card), encoding="utf-8")
    return only


def test_speed_is_two_operations_for_each_product_and_a_share_of_cublas():
    runtime = Runtime("a kernel", 100, 200, 300, error=1e-6, ms=0.5, cublas_ms=0.4)
    assert (runtime.gflops, runtime.cublas_gflops, runtime.percent) == pytest.approx((24, 30, 80))
    untimed = Runtime("a kernel", 1, 2, 3, error=0.0)
    assert (untimed.gflops, untimed.cublas_gflops, untimed.percent) == (None,) * 3


def test_what_a_lesson_says_of_its_kernel(load):
    load(invented(row("sgemm_naive", 200, 12.5), row("sgemm_gmem_coalescing", 640, 40)),
         invented(row("sgemm_gmem_coalescing", 1280, 50)) | dict(gpu="Other GPU"))
    first, second = str(cards.recorded("sgemm_gmem_coalescing", before="sgemm_naive")).splitlines()
    assert first.strip() == (
        f"On one Invented GPU (2030-01-02) `sgemm_gmem_coalescing` takes {FLOP / 640e6:.4g} ms for "
        "4096×4096×4096: **640 GFLOP/s**, 40.0 % of cuBLAS and 25.0 % of the peak. It is 3.20 times as fast "
        "as `sgemm_naive`.")
    assert ("Other GPU" in second and "50.0 % of cuBLAS and 50.0 % of the peak." in second
            and "times" not in second)


def test_what_a_lesson_gains(load):
    def timed(unit, **values): return dict(unit=unit, values=values, date="2030-01-02")
    short = {"kernels 6 and 8 at 4096, short": timed("ms", old=FLOP / 200e6, new=FLOP / 640e6)}
    load(invented(row("sgemm_naive", 200, 12.5)) | dict(experiments=short | dict(
        one=timed("ms", new=FLOP / 640e6), many=timed("GFLOP/s", old=200, between=300, new=700),
        wrong=timed("µs", new=3))))
    assert str(cards.gain("kernels 6 and 8 at 4096, short")).startswith(
        "**200 → 640 GFLOP/s**, lesson 6's short kernel → lesson 8's, at 4096×4096×4096")
    assert str(cards.gain("one")).startswith("**640 GFLOP/s**, the short kernel, at 4096×4096×4096")
    assert str(cards.gain("many", what="all")).startswith("**200 → 700 GFLOP/s**, all, ")
    with pytest.raises(ValueError, match="'many'.*say what it compares"): cards.gain("many")
    told = str(cards.gain("many", of=("old", "between"), what="a and b"))
    assert told.startswith("**200 → 300 GFLOP/s**, a and b, at 4096×4096×4096")
    assert str(cards.gain("none")) == "none: not recorded yet."
    with pytest.raises(ValueError, match="'wrong' is in µs; expected ms or GFLOP/s"): cards.gain("wrong")


def test_where_a_reader_is(load):
    load(invented(row("sgemm_naive", 200, 12.5), row("sgemm_gmem_coalescing", 640, 40)))
    ax = strip.you_are_here("sgemm_gmem_coalescing", 40, "lesson 1").axes[0]
    assert ax.get_title(loc="left") == "You are here: 40 % of cuBLAS (the kernel for any size)"
    assert [list(line.get_xdata()) for line in ax.lines[2:]] == [[12.5], [40]]
    assert ax.get_xlabel() == "about 40 minutes · you need lesson 1"
    assert "at the start" in strip.you_are_here(None, 20).axes[0].get_title(loc="left")
    with pytest.raises(LookupError, match="sgemm_smem_blocking"): strip.you_are_here("sgemm_smem_blocking", 1)


def test_the_card_of_this_gpu_comes_first(load, monkeypatch):
    load(invented(row("sgemm_naive", 200, 12.5)),
         invented(row("sgemm_naive", 100, 5)) | dict(gpu="Other GPU"))
    for here, found in ("Other GPU", "Other GPU"), ("Third GPU", "Invented GPU"), (None, "Invented GPU"):
        monkeypatch.setattr(cards, "_here", lambda here=here: here)
        assert cards.pick_card(kernels=["sgemm_naive"])["gpu"] == found
    with pytest.raises(LookupError, match="sgemm_smem_blocking"):
        cards.pick_card(kernels=["sgemm_smem_blocking"])


def test_a_speed_of_other_code_is_shown_as_stale(load):
    tile = dict(best=dict(bm=64, bn=64, bk=8, tm=8, tn=8), size=4096, date="2030-01-02", left=0, refused={},
                names=["gflops"], rows=[[1]])
    same, searched = row("sgemm_naive", 200, 12.5), row("sgemm_autotuned", 400, 30)
    other = row("sgemm_2d_blocktiling", 300, 20) | dict(code="0" * 12)
    card = invented(same, other, searched, tuned=dict(sgemm_autotuned=tile))
    load(card)
    assert not tables.stale_kernels([cards.marked(card, same)])
    assert cards.code_of(invented(searched), "sgemm_autotuned") == searched["code"]  # before the search
    why = ("kernels 5 and 9 have changed since they were timed on the Invented GPU: make gpu "
           "STAGE=ladder")
    assert tables.stale_kernels() == why
    *lines, note = tables.table(plots.rows_at(card)).splitlines()
    assert [line.count("†") for line in lines[1:]] == [0, 3, 3] and note == f"† {why}"
    below = f"(†: {why.replace(': ', '. Run `')}` to time them again.)"
    one = tables.stale_below([dict(name="sgemm_naive", stale="Invented GPU")])
    assert one[0].endswith("on the Invented GPU. Run `make gpu STAGE=ladder` to time it again.)")
    assert "300 †" in readme.readme_ladder() and below in readme.readme_ladder()
    said = "has changed since it was timed on the Invented GPU: make gpu STAGE=ladder.**"
    assert str(cards.recorded(other["name"])).endswith(f"**But `{other['name']}` {said}")
    ax = plots.draw_panels(plots.panels(card)).axes[0]
    assert why in ax.get_xlabel().replace("\n", " ")
    assert [text.get_text()[-1] for text in ax.texts[:3]] == [")", "†", "†"]


def test_a_speed_is_stale_on_each_gpu_alone():
    pairs = ("A", "sgemm_naive"), ("B", "sgemm_naive"), ("C", "sgemm_triton")
    assert tables.stale_kernels([dict(name=name, stale=gpu) for gpu, name in pairs]) == (
        "kernel 1 has changed since it was timed on the A and the B; "
        "sgemm_triton has changed since it was timed on the C: make gpu STAGE=ladder")


def test_cycles_of_a_step():
    # ten multiprocessors: 32 multiply-adds each per nanosecond, which is one cycle
    card = invented(row("sgemm_naive", 640, 12.5))
    assert cards.cycles_per_step(card, "sgemm_naive") == pytest.approx(1)


def test_where_a_kernel_loses_and_what_the_tiles_say():
    name = "sgemm_async_copy"
    one = invented(row(name, 1000, 97, 4096), row(name, 1000, 98, 2048), row(name, 1000, 60, 1290, 640, 64))
    smaller = dict(cublas_kernel=SMALL_TILES.replace("64x128x8", "32x32x8"))  # a different choice at 2048
    other = invented(row(name, 1000, 99, 4096),
                     row(name, 1000, 97.5, 2048) | smaller) | dict(gpu="NVIDIA Other GPU")
    found = ALL[name]
    assert tables.losing([one, other], found) == [(1290, 640, 64), (4096, 4096, 4096), (2048, 2048, 2048)]
    assert tables.losing([one, other], found, below=90) == [(1290, 640, 64)]
    before = invented(row(name, 1000, 90, 2048) | dict(code="0" * 12))  # timed, and then the kernel changed
    assert tables.losing([before], found) == [(2048, 2048, 2048)]
    assert not tables.losing([before], found, stale=False)
    *_, line, _, note = str(tables.lost([before], found)).splitlines()
    assert line.startswith("| 2048 | 90 † | ") and note.startswith("(†: kernel 12 has changed since")
    lines = str(tables.lost([one, other], found)).splitlines()
    assert "%: Invented · Other" in lines[0]
    # tiles of 128 rows and 64 columns: 11 × 10 of them, on ten multiprocessors; 1/128 + 1/64 to 1/128 + 1/256
    assert lines[2] == "| 1290×640×64 | 60 · – | – · 128×64 | – · 11.00 | – · 2.00 |  |"
    assert lines[3].startswith("| 4096 | 97 · 99 | – · 128×64 |")
    assert lines[4] == "| 2048 | 98 · 98 | – · 128×64 or 32×32 | – · 51.20 or 409.60 | – · 2.00 or 5.33 |  |"
    assert tables.size_text(7, 7, 7) == "7" and tables.size_text(7, 7, 8) == "7×7×8"


def test_a_turned_tile_is_shown_as_rows_and_columns_of_c(monkeypatch):
    tile = k18_past_cublas_bf16.turned_tile(256, 160, 4, wm=128, cluster=2)
    config = LaunchConfig(tile, 10)
    monkeypatch.setattr(k18_past_cublas_bf16, "select_config", lambda *sizes: config)
    found = ALL["bf16_gemm_past_cublas"]
    assert str(tables.lost([invented(row(found.name, 1000, 99, 3000))], found)) == (
        f"Kernel {found.number} doesn't fall behind at any of them.")
    *_, line = str(tables.lost([invented(row(found.name, 1000, 60, 3000))], found)).splitlines()
    # 19 rows of tiles, but clusters of two make 20; 12 columns of tiles; ten multiprocessors
    assert re.match(r"\| 3000 \| 60 \| 160×256 · .* \| 24.00 · .* \| 0.60 · ", line), line


def test_what_is_kept_at_a_size_that_fits_no_tile():
    card = invented(*(row("sgemm_naive", gflops, 50, size) for size, gflops in
                      ((4092, 300), (4096, 200), (6000, 150), (6144, 300), (2048, 200))))
    head, _, line, *_ = str(tables.kept(card, "float32")).splitlines()
    assert head == "| Invented GPU, float32 | 4092 / 4096 | 6000 / 6144 | 2047 / 2048 | 4097 / 4096 |"
    assert line == "| 1 | 150 | 50 | – | – |"


def counts(**more):
    return {name: 0 for names in (*plots.CAUSES.values(), *plots.WAITS.values()) for name in names} | more


PROFILES = {"sgemm_naive": counts(**{"global load sectors": FLOP // 32,
                                     "bytes read from the GPU's memory": FLOP // 8 - 5,
                                     "bytes written to it": 5}),
            "sgemm_smem_blocking": counts(**{"global load sectors": FLOP // 128,
                                             "bytes read from the GPU's memory": FLOP // 64,
                                             "bytes written to it": 0,
                                             "shared load wavefronts": 4096**3 // 32,
                                             "shared store wavefronts": 4096**3 // 32}),
            "bf16_gemm_past_cublas": counts(**{"bytes read from the GPU's memory": FLOP // 512,
                                               "bytes written to it": 0})}


def profiles():
    return invented(*(row(name, 400 * i, 50) for i, name in enumerate(PROFILES, 1)), profiles=PROFILES)


def test_operations_for_each_byte():
    card = profiles()
    assert [found.number for found in tables.profiled(card)] == [1, 3, 18]
    others = dict(sgemm_tensor_cores={}, fp8_gemm={})  # neither roof holds for them
    assert tables.profiled(dict(profiles=card["profiles"] | others)) == tables.profiled(card)
    by_hand, asked, delivered = tables.intensities(card, KERNELS[1])
    assert by_hand == 32 * 2 / (33 * 32) and asked == pytest.approx(1) and delivered == pytest.approx(8)
    # 32 rows and 32 columns of 4 bytes, 2 · 32 · 32 operations
    by_hand, asked, delivered = tables.intensities(card, KERNELS[3])
    assert by_hand == 8 and asked == pytest.approx(4) and delivered == pytest.approx(64)
    by_hand, asked, delivered = tables.intensities(card, KERNELS[18])
    rows, columns = tables.tile_at(card, KERNELS[18])[:2]
    assert by_hand == pytest.approx(rows * columns / (rows + columns))
    assert asked is None and delivered == pytest.approx(512)
    assert str(tables.in_bytes(card)).startswith("| Invented GPU, kernel | by hand |")
    assert str(tables.in_bytes(card)).splitlines()[3] == "| 3 | 8.00 | 4.00 | 64.00 |"


def test_the_roof_and_the_marks_under_it():
    # ten multiprocessors, 2048 multiply-adds per cycle each, 1 GHz
    assert plots.peaks(invented(row("sgemm_naive", 200, 50))) == [2560, 40960]
    assert plots.peaks(invented(row("sgemm_naive", 200, 50)) | dict(compute_capability="7.5")) == [2560]
    ax = plots.draw_roofline(profiles()).axes[0]
    roofs = [line.get_xydata().tolist() for line in ax.lines[:2]]
    assert [roof[1] for roof in roofs] == [[25.6, 2560], [409.6, 40960]]  # a byte per 0.01 ns
    assert all(y == pytest.approx(100 * x) for (x, y), *_ in roofs)
    marks = [line.get_xydata().tolist() for line in ax.lines[2:] if line.get_marker() != "None"]
    by_hand = tables.intensities(profiles(), KERNELS[18])[0]
    assert marks[:2] == [[[by_hand, 1200]], [[512, 1200]]]
    assert marks[2:] == [[[4, 800]], [[64, 800]], [[1, 400]], [[8, 400]]]


def test_how_much_shared_memory_allows(load):
    load(profiles())
    names = "sgemm_smem_blocking", "sgemm_naive", "sgemm_vectorized"
    lines = str(ncu.shared_memory_bound(*names)).splitlines()
    # two wavefronts per FFMA, and time for a quarter of one while four are issued: an eighth
    assert lines[2] == "| sgemm_smem_blocking | 2.000 | 12% | 31% |"
    assert lines[3] == "| sgemm_naive | 0.000 | 100% | 16% |"
    assert lines[4] == "| sgemm_vectorized | not counted yet | | |"


def test_sustained_products():
    values = {"kernel 18, 4096: ms": FLOP / 800e9 * 1e3, "cuBLAS, 4096: ms": FLOP / 1000e9 * 1e3,
              "kernel 18, 4096: cycles, counted": FLOP / 800e9 * 1e3 * 1500e3, "kernel 18, 8192: ms": 1.0}
    card = dict(experiments={"kernel 18 and cuBLAS, sustained": dict(values=values),
                             "another": dict(values={"x": 1})})
    found = tables.sustained(card)
    assert list(found) == [("bfloat16", 4096)]  # at 8192 cuBLAS was not timed
    expected = dict(gflops=800, cublas_gflops=1000, percent=80, mhz=1500)
    assert found["bfloat16", 4096] == pytest.approx(expected)


def test_random_shapes_are_of_two_kinds():
    values = {"64×128×192": 90.0, "64×128×160": 80.0, "640×64×64": 70.0}
    card = dict(experiments={
        "kernel 14, 3 shapes drawn at random": dict(values=values),
        "kernel 18, shapes drawn at random": dict(values={"seed 1: 1×64×64": 60.0}),
        "kernel 14, the choice": dict(values={"64×64×64": 50.0})})
    assert tables.random_shapes(card) == {("float32", True): [90, 70], ("float32", False): [80],
                                          ("bfloat16", False): [60]}
    assert tables.random_shapes({}) == {}


def test_what_a_call_costs():
    def call(name, what, size, us, torch_us):
        return dict(name=name, what=what, size=size, us=us, torch_us=torch_us)
    card = dict(gpu="Invented GPU", calls=dict(rows=[
        call("sgemm_naive", "host", 256, [9.0, 5.0, 7.0], [10.0, 10.0, 20.0]),
        call("sgemm_naive", "wall clock", 512, [8.0, 8.0, 30.0], [10.0, 16.0, 20.0])]))
    lines = str(tables.call_costs(card)).splitlines()
    assert (lines[2] == "| kernel 1 | 7 / 10 (0.90) |"
            and lines[-1] == "| kernel 1 / torch.mm | 8 / 16 (1.50) |")
    assert list(tables.wall_clock(card)["sgemm_naive"]) == [512]


def test_pictures_have_a_panel_for_each_type_and_red_dots_where_we_lose():
    card = invented(row("sgemm_gmem_coalescing", 300, 60), row("sgemm_naive", 200, 40),
                    row("bf16_gemm_past_cublas", 900, 99),
                    row("bf16_gemm_past_cublas", 900, 101, 2048))
    assert [(title, [r["name"] for r in rows]) for title, rows in plots.panels(card)] == [
        ("Invented GPU, 4096×4096×4096, float32", ["sgemm_naive", "sgemm_gmem_coalescing"]),
        ("Invented GPU, 4096×4096×4096, bfloat16", ["bf16_gemm_past_cublas"])]
    ax = plots.draw_panels(plots.panels(card)).axes[0]
    assert [bar.get_width() for bar in ax.patches] == [200, 300, 0, 0]  # no short kernel was timed
    assert ax.lines[0].get_xdata()[0] == 500  # cuBLAS's, the same beside both
    found = plots.percents([card], KERNELS[18])
    assert found == {"4096": {"Invented GPU": 99}, "2048": {"Invented GPU": 101}}
    dots = [line for line in plots.draw_shapes({"bfloat16": found}).axes[0].lines
            if len(line.get_xdata()) == 1]
    red = {dot.get_xdata()[0]: dot.get_color() == plots.COLORS[6] for dot in dots}
    assert red == {101: False, 99: True}


def test_the_ladder_shows_short_kernels_and_behind_them_those_for_any_size():
    def timed(unit, **values): return dict(unit=unit, values=values, date="2030-01-02")
    card = invented(*(row(name, 100 * i, 10 * i) for i, name in enumerate(
        ("sgemm_naive", "sgemm_gmem_coalescing", "sgemm_smem_blocking"), 1)), experiments={
            "kernel 1 at 4096, short": timed("ms", short=FLOP / 90e6),
            "kernels 1 and 2 at 4096, short": timed("GFLOP/s", naive=90, coalesced=150),
            "kernel 3 at 4096, short": timed("ms", short=1, other=2),  # another experiment's name
            "kernels 2 and 3 at 1024": timed("ms", x=1, y=2),
            "kernels 3 and 4 at 4096, short": timed("%", z=1)})
    assert tables.short_speeds(card) == pytest.approx({1: 90, 2: 150})
    figure = plots.draw_panels(plots.panels(card))
    ax, = figure.axes
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([100, 200, 300, 90, 150, 0])
    assert [text.get_text() for text in ax.texts[:3]] == [
        "90 → 100 (10.0 %)", "150 → 200 (20.0 %)", "300 (30.0 %)"]
    assert len(figure.legends) == 1 and not plots.draw_panels([("measured now", plots.rows_at(card))]).legends


def test_a_picture_of_nothing_is_refused_in_words():
    from matplotlib import pyplot as plt
    small, dots = invented(row("sgemm_naive", 200, 50, 1000)), {"4096": {"Invented GPU": 99}}
    for draw, match in ((lambda: plots.plot_rows([], "Invented GPU", None), "Invented GPU has no rows"),
                        (lambda: plots.draw_panels(plots.panels(small)), "no panels"),
                        (lambda: plots.draw_sizes([], "float32"), "no card has float32 speeds"),
                        (lambda: plots.draw_sizes([small], "float32"),
                         "no card has float32 speeds at powers of two"),
                        (lambda: plots.draw_shapes({}), "no panel"),
                        (lambda: plots.draw_shapes({"all": {"4096": {}}}), "no panel"),
                        (lambda: plots.draw_roofline(small), "no profiles"),
                        (lambda: plots.draw_causes(small), "no profiles of float32"),
                        (lambda: draw_matrix(plt.gca(), [], ""), "shape (0,)"),
                        (lambda: draw_matrix(plt.gca(), [[]], ""), "shape (1, 0)")):
        with pytest.raises(ValueError, match=re.escape(match)): draw()
    # a gap next to something is only a gap
    both = plots.draw_shapes({"one": dots | {"2048": {}}, "other": {}})
    assert [len(ax.get_yticks()) for ax in both.axes] == [1, 0]
