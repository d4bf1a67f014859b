"""What `grade("18", my_estimate)` asks of a function, what it accepts, and what it must catch.

The first question is about one k tile, and each later one adds a rule: several k tiles, waves, tiles that
reach over the edges of C, parts. So the first verdict that fails names the rule. Each answer has to match the
lesson's, to a millionth and two cycles (answers may be rounded), and it has to be your own: a
function that calls the judge's or the library's is refused. If an answer stays wrong by the same amount when
rows arrive more slowly, the cost of adding is wrong and not the products, so *parts* fails, whatever the
question was. Finally the tile with the lowest estimate is looked up on the result card: how fast was it?
"""
from numbers import Real

from ..arrays import cdiv
from ..cards import load_cards
from ..exercise import Exercise, Mutant
from ..judge import Verdict
from ..gemm.tiles import WgmmaTile
from ..kernels.k17_warp_specialized import LARGE
from .e09 import borrowed_from, not_your_own
from ..kernels.k18_past_cublas_bf16 import CYCLES, MEDIUM, SMALL


def cycles(m, n, k, tile, split_k, sms, row_cycles):
    "What the lesson's rules say."
    work = split_k * cdiv(m, tile.bm) * cdiv(n, tile.bn)
    k_tile = max(CYCLES[tile], row_cycles * (tile.bm + tile.bn))
    adding = 1400 + tile.bm * tile.bn / 2 if split_k > 1 else 0
    return cdiv(work, sms) * (cdiv(cdiv(k, 64), split_k) * k_tile + adding)

ASKED = {  # verdict → arguments; each adds a rule to those before
    "a k tile": (
        (128, 256, 64, LARGE, 1, 1, 1.0), (64, 256, 64, MEDIUM, 1, 1, 1.7), (64, 128, 64, SMALL, 1, 1, 1.0),
        (64, 128, 64, SMALL, 1, 1, 2.8), (128, 256, 64, LARGE, 1, 1, 3.9), (64, 256, 64, MEDIUM, 1, 1, 3.9)),
    "k tiles": (
        (128, 256, 4096, LARGE, 1, 1, 1.0), (64, 128, 65, SMALL, 1, 1, 1.0), (128, 256, 1, LARGE, 1, 1, 1.0),
        (64, 256, 5000, MEDIUM, 1, 1, 3.9)),
    "waves": (
        (4096, 4096, 4096, LARGE, 1, 132, 1.0), (1024, 1024, 1024, SMALL, 1, 132, 1.0),
        (4096, 2048, 1024, MEDIUM, 1, 132, 1.7), (1024, 1024, 1024, LARGE, 1, 132, 1.0),
        (2048, 2048, 2048, LARGE, 1, 64, 1.0), (1024, 4096, 64, SMALL, 1, 1, 1.0)),
    "tiles": (
        (4000, 4096, 4096, LARGE, 1, 1, 1.0), (4096, 4000, 4096, SMALL, 1, 1, 1.0),
        (1, 1, 64, MEDIUM, 1, 1, 1.0), (300, 5000, 1024, MEDIUM, 1, 1, 1.0),
        (5000, 300, 1024, SMALL, 1, 1, 1.0), (5000, 5000, 5056, LARGE, 1, 114, 3.9)),
    "parts": (
        (256, 256, 65536, SMALL, 2, 132, 1.0), (300, 300, 769, MEDIUM, 3, 132, 1.0),
        (256, 256, 65536, SMALL, 16, 132, 1.0), (300, 300, 16384, MEDIUM, 7, 132, 1.0),
        (256, 256, 8192, SMALL, 8, 132, 1.7), (512, 512, 16384, MEDIUM, 7, 132, 1.7),
        (2048, 256, 8192, LARGE, 9, 132, 1.0))}
WHY = {"a k tile": (
           "this is one wave with one work tile of one k tile: it takes CYCLES[tile] or row_cycles times its "
           "bm + bn rows, whichever is larger"),
       "k tiles": "one work tile, now with a longer k: a k tile is 64 long, and the last one may be shorter",
       "waves": (
           "there's one work tile per tile of C, down and across. In a wave each of the sms "
           "multiprocessors gets one: how many waves begin?"),
       "tiles": "tiles reach over the edges of C: round up down and across, each by its own side of the tile",
       "parts": (
           "each part is a work tile of its own, and all of them share the waves. A part has its share of "
           "the k tiles, rounded up")}
ADDING = ("everything but the cost of the parts is right: each wave adds 1400 cycles and half a cycle per "
          "sum of a tile, but only if there's more than one part")

def near(said, true): return abs(said - true) <= 2 + 1e-6 * true  # it may be rounded

def products_are_right(fn, question, said):
    "Is an answer wrong by as much when rows are ten times slower? Then it's the cost of adding that's wrong."
    slower = (*question[:-1], 10 * question[-1])
    try: return near(fn(*slower) - said + cycles(*question), cycles(*slower))
    except Exception: return False

def told(m, n, k, tile, split_k, sms, row_cycles):
    "The question in words."
    return (f"{m}×{n}×{k}, tile {tile.bm}×{tile.bn}" + f", {split_k} parts" * (split_k > 1)
            + f", {sms} multiprocessor{'s' * (sms > 1)}, {row_cycles} cycles per row")

def chosen(fn):
    "How fast the tiles with the lowest estimates were, on the first card with the experiment."
    found = next((card["experiments"][name]["values"] for name in ["kernel 18, other tiles"]
                  for card in load_cards("experiments") if name in card["experiments"]), {})
    lines = []
    for size in (1024, 4096, 8192):
        tile = min(CYCLES, key=lambda tile: fn(size, size, size, tile, 1, 132, 1.7))
        percent = found.get(f"{tile.bm}×{tile.bn}, {size}")
        lines.append(f"{size}: {tile.bm}×{tile.bn}" + (f", {percent:.1f} % of cuBLAS" if percent else ""))
    return "; ".join(lines)


def judge(exercise, fn):
    "The verdicts on an estimate, one by one."
    for name, questions in ASKED.items():
        for question in questions:
            try: said, called = borrowed_from(fn, *question)
            except Exception as e: yield Verdict("runs", False, f"{told(*question)}: {type(e).__name__}: {e}")
            if called: yield not_your_own(fn, called)
            if not isinstance(said, Real) or isinstance(said, bool):
                yield Verdict("runs", False, f"{told(*question)}: it returned {said!r}, which isn't a number")
            true = cycles(*question)
            if not near(said, true):
                why = WHY[name]
                if products_are_right(fn, question, said): name, why = "parts", ADDING
                digits = 0 if f"{true:,.0f}" != f"{said:,.0f}" else 3
                answer = f"{true:,.{digits}f} cycles, you say {said:,.{digits}f}"
                yield Verdict(name, False, f"{told(*question)}: {answer}", why)
        yield Verdict(name, True, f"{len(questions)} products")
    yield Verdict("choice", True, chosen(fn))


SOLUTIONS = {
    "reference": """def my_estimate(m, n, k, tile, split_k, sms, row_cycles):
    work = split_k * cdiv(m, tile.bm) * cdiv(n, tile.bn)
    waves = cdiv(work, sms)
    k_tiles = cdiv(cdiv(k, 64), split_k)
    k_tile = max(CYCLES[tile], row_cycles * (tile.bm + tile.bn))
    adding = 1400 + tile.bm * tile.bn / 2 if split_k > 1 else 0
    return waves * (k_tiles * k_tile + adding)
""", "tiles handed out one by one": """def my_estimate(m, n, k, tile, split_k, sms, row_cycles):
    busy = [0] * sms
    part = -(-(-(-k // 64)) // split_k)
    one = CYCLES[tile]
    if (tile.bm + tile.bn) * row_cycles > one: one = (tile.bm + tile.bn) * row_cycles
    if split_k != 1: part_cycles = part * one + 1400 + tile.bm * tile.bn / 2
    else: part_cycles = part * one
    work = 0
    for row in range(0, m, tile.bm):
        for col in range(0, n, tile.bn):
            for _ in range(split_k):
                busy[work % sms] += part_cycles
                work += 1
    return max(busy)
""", "with math.ceil": """import math

def my_estimate(m, n, k, tile, split_k, sms, row_cycles):
    tiles = math.ceil(m / tile.bm) * math.ceil(n / tile.bn) * split_k
    longest = math.ceil(math.ceil(k / tile.bk) / split_k)
    cycles = longest * max(row_cycles * tile.bm + row_cycles * tile.bn, CYCLES[tile])
    if split_k > 1: cycles += 1400 + 0.5 * tile.bm * tile.bn
    return math.ceil(tiles / sms) * cycles
""", "by recursion and a table": """def up(x, y): return (x + y - 1) // y

def my_estimate(m, n, k, tile, split_k, sms, row_cycles):
    down, across = up(m, tile.bm), up(n, tile.bn)
    per_tile = {True: CYCLES[tile], False: row_cycles * (tile.bm + tile.bn)}
    slower = per_tile[CYCLES[tile] >= row_cycles * (tile.bm + tile.bn)]
    wave = up(up(k, 64), split_k) * slower
    if split_k > 1:
        wave = wave + 1400 + (tile.bm * tile.bn) / 2
    return float(up(down * across * split_k, sms) * wave)
""", "short names, rounded": """def my_estimate(m, n, k, t, parts, sms, row_cycles):
    waves = cdiv(parts * cdiv(m, t.bm) * cdiv(n, t.bn), sms)
    total = waves * cdiv(cdiv(k, 64), parts) * max(CYCLES[t], row_cycles * (t.bm + t.bn))
    if parts > 1: total += waves * (1400 + t.bm * t.bn // 2)
    return round(total)
""", "a loop over the waves": """def my_estimate(m, n, k, tile, split_k, sms, row_cycles):
    left, total = split_k * cdiv(m, tile.bm) * cdiv(n, tile.bn), 0
    while left > 0:
        total += cdiv(cdiv(k, tile.bk), split_k) * max((tile.bm + tile.bn) * row_cycles, CYCLES[tile])
        total += 0 if split_k <= 1 else 1400 + tile.bm * tile.bn / 2
        left -= sms
    return total
""", "whole waves and a rest": """def my_estimate(m, n, k, tile, split_k, sms, row_cycles):
    work = (1 + (m - 1) // tile.bm) * (1 + (n - 1) // tile.bn) * split_k
    waves, rest = divmod(work, sms)
    waves += rest > 0
    k_tiles = (k + 63) // 64
    share = (k_tiles + split_k - 1) // split_k
    products = waves * share * CYCLES[tile]
    rows = waves * share * row_cycles * (tile.bm + tile.bn)
    return max(products, rows) + waves * (split_k > 1) * (1400 + tile.bm * tile.bn / 2)
"""}


MUTANTS = (
    Mutant("a block adds up all of C", "1400 + tile.bm * tile.bn", "1400 + m * n", "parts"),
    Mutant("the judge's own estimate", "    work = split_k",
           "    from numba_matmul.exercises.e18 import cycles\n"
           "    return cycles(m, n, k, tile, split_k, sms, row_cycles)\n    work = split_k", "your own"),
    Mutant("the library's own estimate", "    work = split_k",
           "    from numba_matmul.kernels.k18_past_cublas_bf16 import estimate\n"
           "    return estimate(m, n, k, sms, tile, '', split_k)\n    work = split_k", "your own"),
    Mutant("the library's work tiles", "    work = split_k * cdiv(m, tile.bm) * cdiv(n, tile.bn)",
           "    from numba_matmul.kernels.k18_past_cublas_bf16 import work_tiles\n"
           "    work = work_tiles(m, n, tile, split_k)", "your own"),
    Mutant("not written", "    return waves * (k_tiles * k_tile + adding)\n", "    ...\n", "written"),
    Mutant("tiles rounded down, across", "cdiv(n, tile.bn)", "(n // tile.bn)", "tiles"),
    Mutant("tiles rounded down, down", "cdiv(m, tile.bm)", "(m // tile.bm)", "tiles"),
    Mutant("rounded once for both", "cdiv(m, tile.bm) * cdiv(n, tile.bn)", "cdiv(m * n, tile.bm * tile.bn)",
           "tiles"),
    Mutant("rows and columns of a tile swapped", "cdiv(m, tile.bm) * cdiv(n, tile.bn)",
           "cdiv(m, tile.bn) * cdiv(n, tile.bm)", "a k tile"),
    Mutant("m twice", "cdiv(n, tile.bn)", "cdiv(m, tile.bn)", "waves"),
    Mutant("only tiles down", "cdiv(m, tile.bm) * cdiv(n, tile.bn)", "cdiv(m, tile.bm)", "waves"),
    Mutant("a last wave that counts for what it has", "waves = cdiv(work, sms)", "waves = work / sms",
           "waves"),
    Mutant("the last wave is forgotten", "waves = cdiv(work, sms)", "waves = max(1, work // sms)", "waves"),
    Mutant("always one wave more", "waves = cdiv(work, sms)", "waves = work // sms + 1", "a k tile"),
    Mutant("every tile is a wave", "waves = cdiv(work, sms)", "waves = work", "waves"),
    Mutant("one wave for all", "waves = cdiv(work, sms)", "waves = 1", "waves"),
    Mutant("always 132 multiprocessors", "waves = cdiv(work, sms)", "waves = cdiv(work, 132)", "waves"),
    Mutant("waves of parts, rounded before",
           "work = split_k * cdiv(m, tile.bm) * cdiv(n, tile.bn)\n    waves = cdiv(work, sms)",
           "waves = split_k * cdiv(cdiv(m, tile.bm) * cdiv(n, tile.bn), sms)", "parts"),
    Mutant("parts make no work tiles", "work = split_k * cdiv", "work = cdiv", "parts"),
    Mutant("k tiles rounded down", "cdiv(cdiv(k, 64), split_k)", "cdiv(k // 64, split_k)", "k tiles"),
    Mutant("steps of k, no tiles", "cdiv(cdiv(k, 64), split_k)", "cdiv(k, split_k)", "a k tile"),
    Mutant("k tiles of 128", "cdiv(cdiv(k, 64), split_k)", "cdiv(cdiv(k, 128), split_k)", "k tiles"),
    Mutant("a fraction of a k tile", "cdiv(cdiv(k, 64), split_k)", "k / 64 / split_k", "k tiles"),
    Mutant("a part's share rounded down", "cdiv(cdiv(k, 64), split_k)", "cdiv(k, 64) // split_k", "parts"),
    Mutant("each part has the whole sum", "cdiv(cdiv(k, 64), split_k)", "cdiv(k, 64)", "parts"),
    Mutant("rows forgotten", "max(CYCLES[tile], row_cycles * (tile.bm + tile.bn))", "CYCLES[tile]",
           "a k tile"),
    Mutant("only rows", "max(CYCLES[tile], row_cycles * (tile.bm + tile.bn))",
           "row_cycles * (tile.bm + tile.bn)", "a k tile"),
    Mutant("products and rows added", "max(CYCLES[tile], row_cycles * (tile.bm + tile.bn))",
           "CYCLES[tile] + row_cycles * (tile.bm + tile.bn)", "a k tile"),
    Mutant("the faster of the two", "max(CYCLES", "min(CYCLES", "a k tile"),
    Mutant("rows of A alone", "(tile.bm + tile.bn)", "tile.bm", "a k tile"),
    Mutant("rows of B alone", "(tile.bm + tile.bn)", "tile.bn", "a k tile"),
    Mutant("one row per result", "(tile.bm + tile.bn)", "(tile.bm * tile.bn)", "a k tile"),
    Mutant("rows as the largest tile has them", "(tile.bm + tile.bn)", "384", "a k tile"),
    Mutant("adding forgotten", "+ adding", "", "parts"),
    Mutant("adding where there is one part", " if split_k > 1 else 0", "", "parts"),
    Mutant("its start where there is one part",
           "1400 + tile.bm * tile.bn / 2 if split_k > 1 else 0",
           "1400 + (tile.bm * tile.bn / 2 if split_k > 1 else 0)", "parts"),
    Mutant("adding costs nothing but its start", "1400 + tile.bm * tile.bn / 2", "1400", "parts"),
    Mutant("adding without its start", "1400 + tile.bm * tile.bn", "tile.bm * tile.bn", "parts"),
    Mutant("each block adds up whole tiles", "1400 + tile.bm", "1400 + split_k * tile.bm", "parts"),
    Mutant("adding once, whatever the waves", "waves * (k_tiles * k_tile + adding)",
           "waves * k_tiles * k_tile + adding", "parts"),
    Mutant("a cycle for each sum", "tile.bm * tile.bn / 2", "tile.bm * tile.bn", "parts"),
    Mutant("k shared out before k tiles are counted, rounded down", "cdiv(cdiv(k, 64), split_k)",
           "cdiv(k // split_k, 64)", "parts"),
    Mutant("adding only from three parts on", "if split_k > 1", "if split_k > 2", "parts"),
    Mutant("adding for all parts but the first", "1400 + tile.bm", "1400 + (split_k - 1) * tile.bm", "parts"),
    Mutant("bytes, not sums", "1400 + tile.bm", "1400 + 4 * tile.bm", "parts"),
    Mutant("only the sums that go to other blocks", "1400 + tile.bm * tile.bn",
           "1400 + tile.bm * tile.bn * (split_k - 1) / split_k", "parts"),
    Mutant("nothing is returned", "    return waves * (k_tiles * k_tile + adding)\n",
           "    total = waves * (k_tiles * k_tile + adding)\n", "runs"),
    Mutant("a name that a tile does not have", "row_cycles * (tile.bm", "row_cycles * (tile.rows", "runs"),
    Mutant("cycles of a tile by its number", "CYCLES[tile]", "CYCLES[0]", "runs"))


EXERCISES = (Exercise(
    "18", "my_estimate", judge=judge,
    hints={
        "runs": "a tile has bm and bn, and CYCLES[tile] is a number",
        "runs: it returned": "return one number, the cycles of the whole product"},
    constants=dict(CYCLES=CYCLES, cdiv=cdiv, WgmmaTile=WgmmaTile), solutions=SOLUTIONS, mutants=MUTANTS),)
