"""Play with each widget in a headless Chromium: `make site-check` does so before it opens the pages.

Their numbers must be the microscope's, the keys must work, and nothing may be fetched. Each problem is one
line."""
import ast
import json
import sys
from functools import partial
from itertools import product
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from util import explore_banks, explore_pipeline, explore_sectors, explore_tiles, play  # noqa: E402  first: it chooses the simulator

import numpy as np  # noqa: E402
from numba import cuda, float32  # noqa: E402
from numba_matmul import explore, toy  # noqa: E402
from numba_matmul.compiler import occupancy  # noqa: E402
from numba_matmul.draw import number_text  # noqa: E402
from numba_matmul.exercise import ask, distance  # noqa: E402
from numba_matmul.gemm.tiles import Tile  # noqa: E402
from numba_matmul.gpus import machine_called  # noqa: E402
from numba_matmul.kernels.k05_2d_blocktiling import sgemm_2d_blocktiling  # noqa: E402
from numba_matmul.microscope import microscope, wavefronts  # noqa: E402
from numba_matmul.widgets import box, script  # noqa: E402

NBS = Path(__file__).resolve().parent.parent/"nbs"
WIDTHS = 1400, 400
MODES = {"light": "background: white; color: #222", "dark": "background: #14181e; color: #ced6dd"}


def request(width, padding, group, step, rows, first, bits, swizzle):
    "Lane → first byte, and the bytes of each, for a pattern of the bank explorer."
    starts = {}
    for lane in range(32):
        along, across = lane % group, lane // group
        row, column = (across * rows, along * step) if first == "row" else (along * rows, across * step)
        if swizzle: column = (column // 4 ^ row % 8) * 4 + column % 4
        starts[lane] = 4 * (row * (width + padding) + column)
    return starts, bits // 8


def banks(tab):
    "The bank explorer's wavefronts against the microscope's, for patterns at random."
    random = Random(7)
    open_widget(tab, explore_banks())
    for _ in range(300):
        given = dict(width=random.choice((32, 64, 128)), padding=random.choice((0, 1, 4, 5)),
                     group=random.choice((1, 2, 4, 8, 16, 32)), step=random.choice((1, 2, 4, 8)),
                     rows=random.choice((0, 1, 4)), first=random.choice(("row", "column")),
                     bits=random.choice((32, 64, 128)), swizzle=random.random() < 0.3)
        starts, size = request(**given)
        aligned = all(start % size == 0 for start in starts.values())
        expected = wavefronts(starts, size) if aligned else None
        found = tab.evaluate("given => document.querySelector('.nm').set(given)", given)
        if found != expected: yield f"the bank explorer counts {found}, the microscope {expected}: {given}"
    tab.select_option("select[aria-label=example]", "a column of a 32×32 tile")
    padding = tab.get_by_label("padding")
    padding.focus()
    padding.press("ArrowRight")
    if "1 wavefront for" not in tab.inner_text("[role=status]"):
        yield "the bank explorer's slider does nothing"


@cuda.jit
def matmul(a, b, c, swapped):
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = (x, y) if swapped else (y, x)
    if row < 32 and col < 32:
        total = float32(0)
        for k in range(1): total += a[row, k] * b[k, col]
        c[row, col] = total


def sectors(tab):
    "The coalescing explorer's sectors against the microscope's."
    matrices = [np.ones((32, 32), np.float32) for _ in "abc"]
    open_widget(tab, explore_sectors())
    for x, y in (32, 1), (16, 2), (8, 4), (4, 8), (2, 16), (1, 32), (4, 4):
        for swapped in False, True:
            found = tab.evaluate("given => document.querySelector('.nm').set(given)",
                                 dict(x=x, y=y, swapped=swapped))
            view = microscope(matmul[1, (x, y)], *matrices, swapped)
            expected = {name: view.site(name.lower()).cost for name in "ABC"}
            if found != expected: yield f"the coalescing explorer counts {found}, the microscope {expected}"
    tab.check("input[type=checkbox]")
    tab.get_by_label("threads along x").press("ArrowLeft")
    if "Block (2, 4)" not in tab.inner_text("[role=status]"):
        yield "the coalescing explorer's slider does nothing"


@cuda.jit
def reverse(x, out):
    numbers = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    numbers[t] = 2 * x[t]
    cuda.syncthreads()
    if t == 5: print("five", x[t])
    out[t] = numbers[255 - t]
    numbers[t] = 0


def player(tab):
    "The player: steps, barriers, values, the mistake, what is printed."
    def status(): return tab.inner_text("p[role=status] >> nth=0")
    x = np.arange(256, dtype=np.float32)
    open_widget(tab, play(reverse[1, 256], x, np.zeros_like(x)))
    if "race: numbers[" not in tab.inner_text(".nm-bad"): yield "the player doesn't show the race"
    tab.get_by_role("slider", name="step").focus()
    for key, text in (("Home", "Step 1 of 6, before any barrier: line"), ("ArrowRight", "Step 2 of 6"),
                      ("n", "Step 3 of 6, after barrier 1"), ("End", "Step 6 of 6")):
        tab.keyboard.press(key)
        if text not in status(): yield f"the player's key {key} leads to {status()}"
    if "five 5.0" not in tab.inner_text("pre[aria-label=printed]"): yield "the player doesn't print"
    tab.get_by_role("button", name="go to step").first.click()
    if "Here is the mistake" not in status(): yield f"the mistake isn't at {status()}"
    tab.get_by_role("slider", name="step").press("Home")
    tab.keyboard.press("ArrowRight")
    tab.locator("svg[role=application]").nth(1).focus()
    tab.keyboard.press("ArrowRight")
    if "numbers[1] = 2, from thread (1) in step 2" not in tab.inner_text("p[role=status] >> nth=1"):
        yield f"the value is missing: {tab.inner_text('p[role=status] >> nth=1')}"
    tab.get_by_role("button", name="play").click()
    tab.wait_for_function("document.querySelector('input[type=range]').value == 5", timeout=10_000)


def prediction(tab):
    "The prediction box: nothing is shown before; then, the words and numbers of `ask`."
    question = ask("How many?", A=..., wide=...)
    kept = question.against(A=32, wide=0.5).kept
    page = box("prediction", "Your prediction", kept | dict(place=0)) + '<p data-answer="0">Later.</p>'
    tab.set_content(f"<!doctype html><meta charset=utf-8><body>{page}<script>{script('prediction')}</script>")
    tab.wait_for_selector(".nm[data-on] input")
    check = tab.get_by_role("button", name="Check my prediction")
    check.click()
    if "Type a number first" not in tab.inner_text(".nm"): yield "the prediction box accepts nothing"
    if "32" in tab.inner_text("body"): yield "the prediction box shows the answer too early"
    tab.get_by_label("A", exact=True).fill("many")
    check.click()
    if "isn't a number" not in tab.inner_text(".nm"): yield "the prediction box takes words for numbers"
    tab.get_by_label("A", exact=True).fill("1,024")
    tab.keyboard.press("Enter")
    rows = [line.split("\t") for line in tab.inner_text("tbody >> nth=0").splitlines()]
    if rows != [["A", "1,024", "32", "off by a factor of 32"], ["wide", "–", "0.5", ""]]:
        yield f"the prediction box shows {rows}"
    if tab.inner_text("[data-answer] tbody td >> nth=2") != "32": yield "the answer isn't where it belongs"
    random, numbers = Random(5), [0, 1, -1, 1000, 0.5, 12345.6, 1e-5]
    numbers += [random.choice((1, -1)) * random.uniform(1, 10) * 10 ** random.randint(-6, 6)
                for _ in range(200)]
    for said, found in zip(numbers, random.sample(numbers, len(numbers))):
        expected = [number_text(said), number_text(found), distance(said, found)]
        made = tab.evaluate("([x, y]) => [numberText(x), numberText(y), distanceText(x, y)]", [said, found])
        if made != expected: yield f"the prediction box says {made}, ask says {expected}"


def tiles(tab):
    "The tile explorer against the library: rules, occupancy, the microscope's counts of reads."
    open_widget(tab, explore_tiles())
    def shown(tile):
        return tab.evaluate("given => document.querySelector('.nm').set(given)", tile._asdict())
    random, taken = Random(3), set(explore.tiles())
    for tile in random.sample(explore.every_tile(), 200):
        found = shown(tile)
        if tile not in taken:
            if found != dict(refused=explore.refused(tile)): yield f"the tile explorer takes {tile}"
            continue
        held = occupancy(tile.threads, found["registers"], tile.shared_bytes)
        expected = dict(threads=tile.threads, shared=tile.shared_bytes, blocks=held.blocks,
                        limiter=held.limiter)
        waves = 4096**2 / (tile.bm * tile.bn) / (held.blocks * machine_called(explore.GPU).sms)
        if found | expected != found or abs(found["waves"] - waves) > 1e-9:
            yield f"the tile explorer shows {found} for {tile}"
    for tile in Tile(32, 64, 8, 4, 2), Tile(64, 32, 16, 2, 8):
        found, shape = shown(tile), (tile.bm, tile.bn, tile.bk)
        sites = microscope(partial(sgemm_2d_blocktiling, tile=tile), shape).merged()
        for space in "shared", "global":
            reads = sum(32 * site.requests * site.count for site in sites
                        if (site.space, site.operation) == (space, "load"))
            if abs(found[f"{space}_reads"] - reads / (tile.bm * tile.bn * tile.bk)) > 1e-9:
                yield f"{space} reads of {tile}: the microscope counts {reads}, the explorer {found}"
    tab.select_option("select[aria-label=example]", "lesson 5: 128×128, eight by eight")
    tab.get_by_label("TM, rows per thread").press("ArrowRight")
    if "16×8 results per thread" not in tab.inner_text("[role=status]"):
        yield "the tile explorer's slider does nothing"


def pipeline(tab):
    "The pipeline stepper against lesson 17's time line, its races, its keys."
    open_widget(tab, explore_pipeline())
    def shown(**given): return tab.evaluate("given => document.querySelector('.nm').set(given)", given)
    timeline = of_notebook("17_warp_specialized", "timeline")
    for stages, copy, multiply in product(range(1, 7), (1, 3, 7, 12), (1, 2, 6)):
        found = shown(stages=stages, copy=copy, multiply=multiply, landed=True, empty=True)
        if found["rows"] != [[*row] for row in timeline(stages, 8, copy, multiply)] or found["races"]:
            yield f"the pipeline stepper differs from lesson 17: {stages} stages, {copy}, {multiply}"
    for landed, word in (False, "read k tile 0"), (True, "overwrites"):
        found = shown(stages=2, copy=6, multiply=3, landed=landed, empty=not landed)
        if not found["races"] or word not in tab.inner_text(".nm-bad"): yield f"no race: {found}"
        tab.get_by_role("button", name="go there").click()
        if not tab.inner_text("[role=status]").startswith(f"Time {found['races'][0][0]}."):
            yield f"the race at time {found['races'][0][0]} isn't where the stepper goes"
    tab.select_option("select[aria-label=example]", "slower copies")
    tab.get_by_role("slider", name="time", exact=True).press("ArrowRight")
    says = tab.inner_text("[role=status]")
    if "Time 1. In flight: k tiles 0, 1. The producer waits until stage 0 is empty" not in says:
        yield f"the pipeline stepper says {says}"


def of_notebook(page, name):
    "A function that a page defines for itself."
    cells = json.loads((NBS/f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]
    source = next(text for cell in cells if f"def {name}(" in (text := "".join(cell["source"])))
    node = next(node for node in ast.parse(source).body if getattr(node, "name", "") == name)
    exec(ast.unparse(node), found := {})
    return found[name]


def cycles(tab):
    "The toy machine's cycles, as they are computed."
    load, use = toy.Op("LDS", sets=0, service=4), toy.Op("FFMA", 4, (0,))
    kernels = [toy.ToyKernel(f"{warps} warps", (load, load, use), warps) for warps in (1, 5)]
    open_widget(tab, toy.watch(*kernels, cycles=30))
    for number, kernel in enumerate(kernels):
        for now, cycle in enumerate(toy.run(kernel, 30)):
            found = tab.evaluate("given => document.querySelector('.nm').set(given)",
                                 dict(kernel=number, now=now))
            if found != [cycle.states, cycle.served]: yield f"cycle {now} of {kernel.name} shows {found}"
    tab.get_by_role("slider", name="cycle").press("ArrowLeft")
    if not tab.inner_text("[role=status]").startswith("Cycle 28."): yield "the cycles' slider does nothing"


def open_widget(tab, made):
    tab.set_content(f"<!doctype html><meta charset=utf-8><body>{made}", wait_until="load")
    tab.wait_for_selector(".nm[data-on] input")


def problems(browser):
    "What is wrong with the widgets, line by line."
    tab, found = browser.new_page(), []
    tab.on("pageerror", lambda error: found.append(f"a widget fails: {error}"))
    tab.on("request", lambda request: found.append(f"a widget fetches {request.url}"))
    for check in banks, sectors, player, prediction, tiles, pipeline, cycles:
        found += check(tab)
        for width in WIDTHS:
            tab.set_viewport_size(dict(width=width, height=900))
            for mode, style in MODES.items():
                tab.evaluate("style => { document.body.style.cssText = style }", style)
                wide = tab.evaluate("document.scrollingElement.scrollWidth")
                if wide > width: found.append(f"{check.__name__}: {wide} pixels wide at {width}, {mode}")
    tab.close()
    return found
