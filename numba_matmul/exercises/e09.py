"""What `grade("09", my_rule)` expects of a rule and of a tile, what it accepts, and what it must catch.

A rule may be written in any way: it's judged by the tiles it accepts and refuses. All tiles listed here
follow the given rules, but some don't work. To find out which, lesson 9's kernel, without any rules, was run
with each in the strict simulator, and compiled for sm_90. A tile fails if the kernel leaves its arrays,
declares more shared memory than a block can have, or makes the compiler *spill*, that is, move accumulators
from registers to local memory. With 128 results per thread it never spills, and with 256 it does. In
between there are tiles that spill only in some variants of the kernel, and the judge uses none of them. A
rule that calls the library's own check isn't yours, and is refused.
"""
import sys
from functools import partial

from ..cards import load_cards
from ..compiler import machine_code, occupancy
from ..exercise import Exercise, Mutant
from ..judge import NO_COMPILER, Verdict
from ..gemm.tiles import GroupTile, check_tile
from ..kernels.k09_autotuning import RULES, sgemm_autotuned
from ..microscope import microscope
from ..process import has_compiler


WORK = [GroupTile(*sizes) for sizes in (
    (128, 128, 16, 8, 8), (128, 128, 16, 4, 4, 4, 16), (128, 128, 8, 8, 8), (128, 128, 32, 4, 4),
    (64, 64, 16, 4, 4), (64, 64, 16, 4, 4, 4, 16), (64, 64, 64, 4, 4), (64, 64, 32, 4, 4, 4, 8),
    (64, 128, 16, 4, 8), (128, 64, 16, 8, 4), (192, 64, 16, 4, 4), (192, 128, 16, 4, 4, 4),
    (192, 128, 32, 4, 4), (320, 64, 16, 4, 4), (384, 64, 16, 8, 4), (448, 64, 16, 4, 4), (256, 64, 16, 4, 4),
    (64, 256, 16, 4, 4), (256, 128, 8, 8, 8), (128, 256, 8, 8, 8), (512, 64, 16, 4, 4), (64, 512, 16, 4, 4),
    (256, 128, 32, 8, 8), (128, 256, 32, 8, 4, 0, 8), (256, 64, 32, 4, 4, 60))]
FAIL = {name: [GroupTile(*sizes) for sizes in tiles] for name, tiles in {
    "whole passes": (
        (64, 64, 8, 4, 4), (64, 128, 8, 4, 4), (128, 128, 4, 4, 4), (192, 64, 8, 4, 4), (192, 128, 8, 4, 4),
        (64, 512, 8, 4, 4), (256, 64, 8, 4, 4), (128, 64, 8, 8, 4), (512, 64, 8, 4, 4)),
    "whole rows": (
        (128, 128, 24, 4, 4), (64, 64, 48, 4, 4), (128, 64, 48, 4, 4), (64, 192, 16, 4, 4),
        (128, 192, 16, 4, 4), (64, 384, 16, 4, 4)),
    "shared memory": (
        (128, 128, 64, 8, 8), (64, 64, 128, 4, 4), (64, 512, 32, 4, 4), (256, 128, 32, 8, 8, 4),
        (128, 256, 32, 4, 4, 4), (256, 64, 32, 4, 4, 68)),
    "registers": (
        (256, 256, 16, 8, 8), (256, 256, 8, 8, 8), (512, 128, 8, 8, 8), (128, 512, 8, 4, 4))}.items()}
WHY = {"whole passes": (
           "a pass of 256 threads copies 1,024 elements; is each of the two tiles a whole number of passes?"),
       "whole rows": (
           "the next pass starts 1,024 // bk (or bn) rows farther down; what if the division leaves a "
           "remainder?"),
       "shared memory": "48 KB for both tiles together, in float32; does the padding count?",
       "registers": (
           "256 threads share the bm × bn sums of a block: how many does each keep? Allow 128; factors and "
           "addresses need the rest of its 255 registers")}


# The tile's judge counts *wavefronts* of shared memory, loads and stores, per multiply-add
# instruction of a warp. A multiprocessor can start four such instructions per cycle, and serve one
# wavefront. So at 0.25 the two are in balance, and above that the arithmetic has to wait. The default
# needs 0.35.

MOST, WARPS = 0.22, 16  # wavefronts per FFMA of a warp; warps of a multiprocessor

def wavefronts(tile):
    "Wavefronts of shared memory per multiply-add of a warp."
    view = microscope(partial(sgemm_autotuned, tile=tile), (tile.bm, tile.bn, tile.bk))
    passes = sum(site.passes for site in view.merged() if site.space == "shared")
    return passes * 32 / (tile.bm * tile.bn * tile.bk)

def recorded_speed(tile):
    "What the recorded searches say about a tile, in a sentence."
    for card in load_cards():
        kept = card.get("tuned", {}).get("sgemm_autotuned", dict(names=[], rows=[]))
        for row in kept["rows"]:
            values = dict(zip(kept["names"], row))
            gflops = values.pop("gflops")
            if GroupTile(**values) == tile: return f"{gflops:,} GFLOP/s in the search on one {card['gpu']}"
    return "no recorded search has timed it"


def borrowed_from(fn, *args):
    "What a function returns, and which of the library's it called. A tile's methods and rules don't count."
    called, before = [], sys.getprofile()
    def note(frame, event, _):
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
        answers = module.startswith("numba_matmul.") and module != "numba_matmul.arrays"
        if event == "call" and answers and name.isidentifier(): called.append(name)
    sys.setprofile(note)
    try: return fn(*args), called
    finally: sys.setprofile(before)

def not_your_own(fn, called):
    return Verdict("your own", False, f"{fn.__name__} calls {called[0]}, which is the library's own answer")

def judge_rule(rule):
    "The verdicts on a rule, one by one."
    answers = {name: [] for name in (*FAIL, "accepts")}
    try:
        for name, tiles in (FAIL | {"accepts": WORK}).items():
            for tile in tiles:
                reason, called = borrowed_from(rule, tile)
                if called: yield not_your_own(rule, called)
                if reason is not None and not (isinstance(reason, str) and reason):
                    raise TypeError(f"it returned {reason!r}, not a reason in words, or None")
                answers[name].append((tile, reason))
    except Exception as e: yield Verdict("runs", False, f"{type(e).__name__}: {e}")
    wrong = [(tile, reason) for tile, reason in answers.pop("accepts") if reason]
    yield Verdict("accepts", not wrong, f"{len(WORK)} tiles that work" if not wrong else
                  f"{wrong[0][0]} works, but your rule says: {wrong[0][1]}")
    for name, found in answers.items():
        passed = [tile for tile, reason in found if not reason]
        more = f" (and {len(passed) - 1} more)" if passed[1:] else ""
        text = f"{passed[0]} gets through, and would fail{more}" if passed else f"{len(found)} tiles refused"
        yield Verdict(name, not passed, text, WHY[name])


def judge_tile(tile):
    "The verdicts on a tile."
    try: check_tile(tile, RULES, GroupTile)
    except (TypeError, ValueError) as e: yield Verdict("my_tile works", False, str(e))
    yield Verdict("my_tile works", True, str(tuple(tile)))
    count = wavefronts(tile)
    yield Verdict("wavefronts", count <= MOST, f"{count:.3g} per multiply-add" + (
        "" if count <= MOST else f", the goal is at most {MOST}"))
    if not has_compiler():
        yield Verdict("warps", None, NO_COMPILER)
        return
    code = machine_code(partial(sgemm_autotuned, tile=tile), shape=(8 * tile.bm, 8 * tile.bn, 8 * tile.bk))
    warps = occupancy(tile.threads, code.registers, code.shared_bytes, "sm_90").warps
    yield Verdict("warps", warps >= WARPS, f"{warps} on a multiprocessor" + (
        f"; {recorded_speed(tile)}" if warps >= WARPS else f", the goal is at least {WARPS}"))

def judge(exercise, rule):
    "The verdicts on `my_rule`, and on `my_tile`, which is defined next to it."
    yield from judge_rule(rule)
    tile = rule.__globals__.get("my_tile", ...)
    if tile is ...: yield Verdict("my_tile", False, "the rule is complete; now choose my_tile")
    else: yield from judge_tile(tile)


REFERENCE = """my_tile = GroupTile(128, 128, 16, 4, 4, pad_a=4)

def my_rule(t):
    one_pass = 4 * 256
    if t.bm * t.bk % one_pass or t.bk * t.bn % one_pass: return "a tile isn't a whole number of passes"
    if one_pass % t.bk or one_pass % t.bn: return "a pass isn't a whole number of rows"
    if 4 * t.bk * (t.bm + t.pad_a + t.bn) > 48 * 1024: return "more than 48 KB of shared memory"
    if t.bm // 16 * (t.bn // 16) > 128: return "too many results for the registers"
"""
SOLUTIONS = {"reference": REFERENCE, "pass by pass": """my_tile = TILE._replace(bk=8, tn=4)

def my_rule(tile):
    for what, rows, width in ("A", tile.bm, tile.bk), ("B", tile.bk, tile.bn):
        places = [divmod(4 * thread, width) for thread in range(256)]
        below = 1024 // width
        if places[-1] != (below - 1, width - 4): return f"a pass of {what} doesn't end with a row"
        if rows % below: return f"the last pass leaves the tile of {what}"
    if tile.shared_bytes > 49152: return "shared memory"
    rows, cols = tile.shape
    if rows * cols + rows + cols > 200: return "registers"
    return None
""", "one condition after the other": """my_tile = GroupTile(128, 128, 16, 4, 4, 4)

def whole(numbers, width): return numbers % 1024 == 0

def my_rule(t):
    for rows, width in ((t.bm, t.bk), (t.bk, t.bn)):
        if not whole(rows * width, width): return f"{rows} rows of {width} aren't whole passes"
        if width & width - 1 or width > 1024: return f"{width} doesn't divide a pass"
    floats = t.bk * (t.bm + t.pad_a) + t.bk * t.bn
    if floats * 4 > 49152: return "too large for shared memory"
    return "too many sums" if t.bm * t.bn > 128 * 256 else None
""", "the rules of the library": """from numba_matmul.gemm.tiles import TUNED_RULES
my_tile = GroupTile(128, 128, 32, 8, 4, pad_a=4, unroll=8)._replace(bk=16)

def my_rule(tile):
    broken = [text for text, holds in TUNED_RULES.items() if not holds(tile)]
    return "; ".join(broken) or None
""", "remainders in a list": """my_tile = GroupTile(bm=128, bn=128, bk=16, tm=8, tn=4, pad_a=4, unroll=16)

def my_rule(t):
    reasons = {"passes": (t.bm * t.bk | t.bk * t.bn) % 1024 != 0,
               "rows": 1024 % t.bk + 1024 % t.bn > 0,
               "shared": (t.bm + t.bn + t.pad_a) * t.bk > 12 * 1024,
               "registers": t.results >= 192}
    return next((reason for reason, broken in reasons.items() if broken), None)
"""}


TILE_TEXT = "GroupTile(128, 128, 16, 4, 4, pad_a=4)"


MUTANTS = (
    Mutant("not written", 'return "too many results for the registers"', "...", "written"),
    Mutant("A's passes forgotten", "t.bm * t.bk % one_pass or ", "", "whole passes"),
    Mutant("B's passes forgotten", " or t.bk * t.bn % one_pass", "", "whole passes"),
    Mutant("and for or", "one_pass or t.bk", "one_pass and t.bk", "whole passes"),
    Mutant("only: at least one pass", "if t.bm * t.bk % one_pass or t.bk * t.bn % one_pass",
           "if t.bm * t.bk < one_pass or t.bk * t.bn < one_pass", "whole passes"),
    Mutant("one element per thread", "one_pass = 4 * 256", "one_pass = 256", "accepts"),
    Mutant("passes of four times the size", "one_pass = 4 * 256", "one_pass = 16 * 256", "accepts"),
    Mutant("A·B, not the tile of A", "t.bm * t.bk % one_pass", "t.bm * t.bn % one_pass", "whole passes"),
    Mutant("the other way around", "if t.bm * t.bk % one_pass or t.bk * t.bn % one_pass",
           "if one_pass % (t.bm * t.bk) or one_pass % (t.bk * t.bn)", "accepts"),
    Mutant("rows forgotten", "if one_pass % t.bk or one_pass % t.bn", "if False", "whole rows"),
    Mutant("A's rows forgotten", "one_pass % t.bk or ", "", "whole rows"),
    Mutant("B's rows forgotten", " or one_pass % t.bn", "", "whole rows"),
    Mutant("A's rows as long as the tile is high", "one_pass % t.bk or", "one_pass % t.bm or", "accepts"),
    Mutant("powers of two only", "if one_pass % t.bk or one_pass % t.bn",
           "if any(x & (x - 1) for x in (t.bm, t.bn, t.bk))", "accepts"),
    Mutant("padding forgotten", "t.bm + t.pad_a + t.bn", "t.bm + t.bn", "shared memory"),
    Mutant("padding counted once, not once per row", "t.bk * (t.bm + t.pad_a + t.bn)",
           "(t.bk * (t.bm + t.bn) + t.pad_a)", "shared memory"),
    Mutant("padding after each column of B", "t.bk * (t.bm + t.pad_a + t.bn)",
           "(t.bk * (t.bm + t.bn) + t.bn * t.pad_a)", "accepts"),
    Mutant("exactly 48 KB is refused", "> 48 * 1024", ">= 48 * 1024", "accepts"),
    Mutant("KB of 1000 bytes", "48 * 1024", "48 * 1000", "accepts"),
    Mutant("elements, not bytes", "if 4 * t.bk *", "if t.bk *", "shared memory"),
    Mutant("float64", "if 4 * t.bk *", "if 8 * t.bk *", "accepts"),
    Mutant("the limit of a multiprocessor", "48 * 1024", "227 * 1024", "shared memory"),
    Mutant("each of the two tiles checked separately", "t.bm + t.pad_a + t.bn", "max(t.bm + t.pad_a, t.bn)",
           "shared memory"),
    Mutant("shared memory forgotten", "if 4 * t.bk * (t.bm + t.pad_a + t.bn) > 48 * 1024:", "if False:",
           "shared memory"),
    Mutant("registers forgotten",
           "    if t.bm // 16 * (t.bn // 16) > 128: return \"too many results for the registers\"\n", "",
           "registers"),
    Mutant("one group of results", "t.bm // 16 * (t.bn // 16) > 128", "t.tm * t.tn > 128", "registers"),
    Mutant("every register a result", "(t.bn // 16) > 128", "(t.bn // 16) > 256", "registers"),
    Mutant("64 results, for two blocks", "(t.bn // 16) > 128", "(t.bn // 16) > 64", "accepts"),
    Mutant("rows and columns added", "t.bm // 16 * (t.bn // 16)", "t.bm // 16 + t.bn // 16", "registers"),
    Mutant("True or False, not a reason", "def my_rule(t):",
           "def my_rule(t): return not broken(t)\n\ndef broken(t):", "runs"),
    Mutant("raises, and returns nothing", 'return "more than 48 KB of shared memory"',
           'raise ValueError("more than 48 KB of shared memory")', "runs"),
    Mutant("a name that a tile does not have", "t.pad_a", "t.pad", "runs"),
    Mutant("the library's own check", REFERENCE, """from numba_matmul.gemm.tiles import check_tile
from numba_matmul.kernels.k09_autotuning import RULES
my_tile = GroupTile(128, 128, 16, 4, 4, pad_a=4)

def my_rule(t):
    try: check_tile(t, RULES, GroupTile)
    except ValueError as e: return str(e)
""", "your own"),
    Mutant("whatever the judge's own check says", REFERENCE, """from numba_matmul.exercises import e09
my_tile = GroupTile(128, 128, 16, 4, 4, pad_a=4)

def refused(t):
    first = next(e09.judge_tile(t))
    return first.found if first.failed else None
def my_rule(t): return refused(t)
""", "your own"),
    Mutant("the kernel's factory asked", REFERENCE,
           """from numba_matmul.kernels.k09_autotuning import sgemm_autotuned_kernel
my_tile = GroupTile(128, 128, 16, 4, 4, pad_a=4)

def my_rule(t):
    try: sgemm_autotuned_kernel(t)
    except Exception as e: return str(e)
""", "your own"),
    Mutant("a tile that is not chosen", TILE_TEXT, "...", "my_tile"),
    Mutant("a tuple, not a tile", TILE_TEXT, "128, 128, 16, 4, 4, 4", "my_tile works"),
    Mutant("half a pass", TILE_TEXT, "GroupTile(64, 128, 8, 4, 4, pad_a=4)", "my_tile works"),
    Mutant("groups that don't fit", TILE_TEXT, "GroupTile(128, 64, 16, 4, 8, pad_a=4)", "my_tile works"),
    Mutant("padding that breaks rows of 16 bytes", TILE_TEXT, "GroupTile(128, 128, 16, 4, 4, pad_a=2)",
           "my_tile works"),
    Mutant("the default", TILE_TEXT, "TILE", "wavefronts"),
    Mutant("only padded", TILE_TEXT, "TILE._replace(pad_a=4)", "wavefronts"),
    Mutant("groups of four rows, of eight columns", TILE_TEXT, "TILE._replace(tm=4, pad_a=4)", "wavefronts"),
    Mutant("groups of four, not padded", TILE_TEXT, "TILE._replace(tm=4, tn=4)", "wavefronts"),
    Mutant("unrolled only", TILE_TEXT, "TILE._replace(unroll=16)", "wavefronts"),
    Mutant("few results per thread", TILE_TEXT, "GroupTile(64, 64, 16, 4, 4, pad_a=4)", "wavefronts"),
    Mutant("few warps", TILE_TEXT, "GroupTile(256, 128, 8, 4, 4, pad_a=4)", "warps"),
    Mutant("few warps, the other way", TILE_TEXT, "GroupTile(128, 256, 8, 8, 4)", "warps"))


EXERCISES = (Exercise(
    "09", "my_rule", judge=judge,
    hints={
        "runs": (
            "return None if the tile works, and the reason as text if it can't; a tile has bm, bn, bk, tm, "
            "tn, pad_a"),
        "accepts": "what would go wrong with this tile? If nothing does, your rule is too strict",
        "my_tile": (
            "try GroupTile(128, 128, 16, 8, 8)._replace(…): which value moves B's columns apart, and which "
            "moves A's rows?"),
        "my_tile works: expected a": "my_tile has to be a GroupTile(…)",
        "my_tile works": "the kernel itself refuses this tile: the message says which rule it breaks",
        "wavefronts": (
            "lesson 8: groups of four neighbors for the loads of B, padding for the stores of A (how many "
            "words?). And a thread with more results reads fewer elements for each of them"),
        "warps": "with more than 64 results per thread there is room for only one block"},
    preamble="from numba_matmul.gemm.tiles import GroupTile\nTILE = GroupTile(128, 128, 16, 8, 8)\n",
    solutions=SOLUTIONS, mutants=MUTANTS),)
