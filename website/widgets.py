"""Play with each widget in a headless Chromium: `make site-check` does so before it opens the pages.

Their numbers must be the microscope's, the keys must work, and nothing may be fetched. Each problem is one
line."""
import sys
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from util import explore_banks, explore_sectors, play  # noqa: E402  first: it chooses the simulator

import numpy as np  # noqa: E402
from numba import cuda, float32  # noqa: E402
from numba_matmul import toy  # noqa: E402
from numba_matmul.microscope import microscope, wavefronts  # noqa: E402

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
def product(a, b, c, swapped):
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
            view = microscope(product[1, (x, y)], *matrices, swapped)
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


def cycles(tab):
    "The toy machine's cycles, as they are computed."
    load, use = toy.Op("LDS", sets=0, service=4), toy.Op("FFMA", 4, (0,))
    kernels = [toy.Kernel(f"{warps} warps", (load, load, use), warps) for warps in (1, 5)]
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
    for check in banks, sectors, player, cycles:
        found += check(tab)
        for width in WIDTHS:
            tab.set_viewport_size(dict(width=width, height=900))
            for mode, style in MODES.items():
                tab.evaluate("style => { document.body.style.cssText = style }", style)
                wide = tab.evaluate("document.scrollingElement.scrollWidth")
                if wide > width: found.append(f"{check.__name__}: {wide} pixels wide at {width}, {mode}")
    tab.close()
    return found
