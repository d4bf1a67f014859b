"""What `grade("13", my_main_loop)` asks of a main loop, what it accepts, and what it must catch.

The loop is graded in the lesson's short kernel, with tiles of 128×64×8 in a ring of four stages and 6 k tiles
(once around the ring and more), and with tiles of 128×16×8 and 2 k tiles (fewer than the ring has) or a
single one. Copies land as in exercise 12. A call to the library's loop is refused. Then come the goals,
all counted in the first warp of a recorded run:

- **read to use**: how many multiply-adds stand between the read of a step's factors and the first that needs
  them? Those before the loop jumps back don't count, since the compiler may move the read down to the jump,
  but no further. At least three quarters of a step, for every step.
- **reads per tile**: each step's factors are read once.
- **barriers per tile**: one, from the first step to the last.
- **time for a copy**: how many k tiles are multiplied between the start of a copy and the wait for it? One
  and a half, or more, for every copy while there are more to start.
- **fences**: none.
"""
import ast
import sys
from dataclasses import replace
from unittest.mock import patch

from greenlet import getcurrent
from ..exercise import Exercise, Goal, Mutant, matmul_case
from ..judge import Verdict, constants_of, judge_kernel
from ..kernels import k13_planned_loop as page
from ..kernels.k12_async_copy import start_copies
from ..process import kernel_parts
from ..ptx import core
from ..sim import memory
from ..source import cut, function_of, line_of, reference_of, source_of, with_constants
from ..syntax import parsed
from ..timeline import trace
from .e10 import NO_FENCES
from .recorded import BARRIERS, WarpRun, in_case, time_for_a_copy


# What the first warp does, with its products and the jumps of its loop

STEP_LOADS = 4  # loads from shared memory in a step

def loops_of(loop):
    "The first and last lines of each of a function's inner loops."
    outer = [node for node in ast.walk(parsed(source_of(loop))) if isinstance(node, (ast.For, ast.While))]
    inner = {node for other in outer for node in ast.walk(other) if node is not other} & {*outer}
    return [(line_of(loop, node.lineno), line_of(loop, node.end_lineno)) for node in inner]

def trace_products(launch, args, name, inner):
    """In a child process: what `timeline.trace` says of the first block, with "product 3 64" for 64 products
    of the factors that were read fourth, and "loop jump" where the function of that name goes back in its
    loop."""
    places, factors, last = core._places, [], [0, None]

    class Counted(list):
        def __getitem__(self, part):
            found, thread = super().__getitem__(part), getcurrent()
            if memory.recorder and thread.warp == thread.lane == 0: note(sys._getframe(1), len(found))
            return found

    def note(frame, count):
        x, called = frame.f_locals["x"], frame
        while frame and frame.f_code.co_name != name: called, frame = frame, frame.f_back
        line, before = frame.f_lineno if frame else 0, last[0]
        unrolled = any(first <= line <= before <= end for first, end in inner)
        if line <= before and called is not last[1] and not unrolled:
            memory.recorder("loop", "jump", None, None, 0, None)
        last[:] = line, called
        if any(x) and x not in factors: factors.append(x)
        number = factors.index(x) if any(x) else "no"  # zeros: there is nothing to finish yet
        memory.recorder("product", f"{number} {count}", None, None, 0, None)

    with patch.object(core, "_places", lambda *kind: Counted(places(*kind))):
        return trace(launch, args, (0, 0, 0))[0]

def products_of_first_warp(exercise, kernel):
    "What the first warp of the first case does."
    first = exercise.cases[0]
    loop = constants_of(exercise, first)["short_main_loop"]
    events = in_case(exercise, kernel, first, trace_products, function_of(loop).__name__, loops_of(loop))
    return WarpRun(events, first.size[2] // constants_of(exercise, first)["BK"])

def read_to_use(run):
    "The fewest products between a read and the first product that needs it, after the last jump."
    loads, products, jump, read, used, found = 0, 0, 0, {}, set(), []
    for kind, _ in run.events:
        what, *numbers = kind.split()
        if kind == "shared load":
            loads += 1
            if loads % STEP_LOADS == 0: read[str(loads // STEP_LOADS - 1)] = products
        elif kind == "loop jump": jump = products
        elif what == "product":
            step, count = numbers
            if step not in used | {"no", "0"}: found.append(products - max(read.get(step, 0), jump))
            used.add(step)
            products += int(count)
    return min(found, default=0)

def barriers(run):
    "Barriers per k tile, from the first step to the last."
    reads = [i for i, (kind, _) in enumerate(run.events) if kind == "shared load"]
    return sum(kind == "barrier" for kind, _ in run.events[reads[0]:reads[-1]]) / run.tiles

def reads(run):
    "Loads from shared memory per k tile, with those before the loop."
    return sum(kind == "shared load" for kind, _ in run.events) / run.tiles

def judge(exercise, loop):
    "The verdicts on a main loop, in the lesson's short kernel."
    _, options, _ = kernel_parts(loop) or (None, {}, None)
    if not options.get("device"):
        yield Verdict("compiles", False, f"{getattr(loop, '__name__', loop)!r} isn't a device function",
                      "put @cuda.jit(device=True) above its def")
    # the page's kernel calls the reader's loop by this name, with the constants of each case
    def with_loop(case):
        constants = constants_of(exercise, case)
        return replace(case, constants=constants | dict(short_main_loop=with_constants(loop, constants)))
    cases = tuple(map(with_loop, exercise.cases))
    inside = replace(exercise, cases=cases, constants=cases[0].constants)
    yield from judge_kernel(inside, page.short_planned_loop)


REFERENCE = reference_of(page.short_main_loop, "my_main_loop")
HEAD, ZERO, LOOP, TOP, STEPS, ON, END, TAIL = cut(
    REFERENCE, "    acc, x, y, now", "    while k0 < end", "        acc = add_part(acc, x, y, LEFT",
    "        acc, x, y = short_step(acc, x, y, a_ring, b_ring, now, 2", "        k0 += BK",
    "        next_x, next_y = short_factors", "    return")
BARRIER = """        cp_async_wait_group(1)
        cuda.syncthreads()
"""
WAIT, SYNC = BARRIER.splitlines(True)
COMMIT = "        cp_async_commit_group()\n"
REST, FIRST = TOP.splitlines(True)  # what the last pass has left; step 0
READ, QUARTER = END.splitlines(True)
PIECES = [f"        start_piece({piece}, a_ring, b_ring, free, a, b, row0, col0, ahead, end, thread)\n"
          for piece in range(3)]
SECOND, SEVENTH = (f"        acc, x, y = short_step(acc, x, y, a_ring, b_ring, now, {number}, row, col)\n"
                   for number in (2, 7))

NOT_ROTATED = {  # the loop with which the reader begins
    ZERO: """    acc, now, free = ZEROS, 0, STAGES - 1
    x, y = short_factors(a_ring, b_ring, now, 0, row, col)
""",
    TOP: "        acc, x, y = short_step(acc, x, y, a_ring, b_ring, now, 1, row, col)\n",
    END: "        acc, x, y = short_step(acc, x, y, a_ring, b_ring, now, 0, row, col)\n",
    TAIL: "    return acc\n"}

def loop(*pairs):
    "The reference with some of its texts replaced, each of which occurs in it once."
    found = REFERENCE
    for old, new in pairs:
        if found.count(old) != 1: raise ValueError(f"{old!r} occurs {found.count(old)} times")
        found = found.replace(old, new)
    return found

def left(first):
    "The reference with the products from this one on left for the next pass."
    return REFERENCE.replace("LEFT", first)


SOLUTIONS = {
    "reference": REFERENCE,
    "a number for LEFT": left("16"),
    "seven eighths are left": left("8"),
    "nothing to finish in the first pass": loop(
        (LOOP, "    first = k0\n" + LOOP), (REST, "        if k0 > first: " + REST.lstrip())),
    "the factors are read after the jump": loop(
        ("    next_x, next_y = short_factors(a_ring, b_ring, now, 0, row, col)\n    while", "    while"),
        (REST, READ + REST), (READ + QUARTER, QUARTER)),
    "two pairs of factors that change places": loop(
        (ZERO, ZERO.replace("next_x, next_y", "u, v")), (FIRST, FIRST.replace("next_x, next_y", "u, v")),
        (END, END.replace("next_x, next_y", "u, v"))),
    "reading and multiplying separately": loop((FIRST, """
        x, y = short_factors(a_ring, b_ring, now, 1, row, col)
        acc = add_outer(acc, next_x, next_y)
""")),
    "in serpentines": REFERENCE.replace("RESULTS, 0)", "RESULTS, 1)").replace("LEFT, 0)", "LEFT, 1)"),
    "the leftovers in two pieces": loop((REST, """
        acc = add_part(acc, x, y, LEFT, 32, 0)
        acc = add_part(acc, x, y, 32, RESULTS, 0)
""")),
    "the barrier a step earlier": loop((SECOND + BARRIER, BARRIER + SECOND)),
    "a function for the beginning of a pass": """@cuda.jit(device=True)
def begin_pass(acc, x, y, next_x, next_y, a_ring, b_ring, now, row, col):
    acc = add_part(acc, x, y, LEFT, RESULTS, 0)
    return short_step(acc, next_x, next_y, a_ring, b_ring, now, 1, row, col)

""" + loop((TOP, "        acc, x, y = begin_pass(acc, x, y, next_x, next_y, a_ring, b_ring, now, row, "
                     "col)\n")),
    "a loop with tests": loop((STEPS, """        for number in range(2, BK):
            if number == 3:
                cp_async_wait_group(1)
                cuda.syncthreads()
            if 3 <= number < 6 and ahead < end:
                start_piece(number - 3, a_ring, b_ring, free, a, b, row0, col0, ahead, end, thread)
            if number == 5: cp_async_commit_group()
            acc, x, y = short_step(acc, x, y, a_ring, b_ring, now, number, row, col)
"""))}


def wrong(name, verdict, *pairs): return Mutant(name, REFERENCE, loop(*pairs), verdict)

MUTANTS = (
    wrong("not written", "written", (END, "        ...\n")),
    # what is left, and when it is multiplied
    wrong("not rotated", "read to use", *NOT_ROTATED.items()),
    wrong("read early, and all multiplied before the jump", "read to use", (REST, ""),
          (QUARTER, "        acc = add_outer(acc, x, y)\n"), (TAIL, "    return acc\n")),
    Mutant("a quarter is left", REFERENCE, left("48"), "read to use"),
    Mutant("half is left", REFERENCE, left("32"), "read to use"),
    wrong("everything is left", "read to use", (REST, "        acc = add_outer(acc, x, y)\n"),
          (QUARTER, ""), (TAIL, "    return add_outer(acc, x, y)\n")),
    wrong("step 0 is read twice", "reads per tile", (FIRST, READ + FIRST)),
    wrong("left until after step 7", "correct", (REST, ""), (SEVENTH, SEVENTH + REST)),
    wrong("the leftovers are forgotten", "correct", (REST, "")),
    wrong("the last pass's leftovers are forgotten", "correct", (TAIL, "    return acc\n")),
    wrong("the first quarter is forgotten", "correct", (QUARTER, "")),
    wrong("the first quarter twice", "correct", (REST, REST.replace("LEFT, RESULTS", "0, RESULTS"))),
    wrong("all before the jump, and the leftovers again", "correct",
          (QUARTER, QUARTER.replace("LEFT", "RESULTS"))),
    wrong("all of step 7 after the loop", "correct", (TAIL, TAIL.replace("LEFT, RESULTS", "0, RESULTS"))),
    wrong("one product twice", "correct", (QUARTER, QUARTER.replace("LEFT", "17"))),
    wrong("one product left out", "correct", (REST, REST.replace("LEFT", "17"))),
    wrong("the leftovers with the new factors", "correct", (REST, REST.replace("x, y", "next_x, next_y"))),
    wrong("the first quarter with the new factors", "correct",
          (QUARTER, QUARTER.replace("x, y", "next_x, next_y"))),
    wrong("the last leftovers with the new factors", "correct",
          (TAIL, TAIL.replace("x, y", "next_x, next_y"))),
    wrong("the leftovers after step 0", "correct", (TOP, FIRST + REST)),
    wrong("step 0 with the old factors", "correct", (FIRST, FIRST.replace("next_x, next_y", "x, y"))),
    wrong("the new factors overwrite the old", "correct", (READ, READ.replace("next_x, next_y", "x, y"))),
    wrong("step 0 is not read again", "correct", (READ, "")),
    wrong("step 0 of the same k tile", "correct", (READ, ""), (SEVENTH, SEVENTH + READ)),
    wrong("step 1 twice, step 0 never", "correct", (READ, READ.replace("now, 0", "now, 1"))),
    wrong("a first step that multiplies", "correct",
          (ZERO, ZERO.replace("ZEROS, NO_X, NO_Y", "ZEROS, ZEROS[:8], ZEROS[:8]").replace(
              "    next_x", "    x, y = short_factors(a_ring, b_ring, now, 0, row, col)\n    next_x"))),
    # the barrier, the wait and the copies
    wrong("no wait", "all written", (WAIT, "")),
    wrong("two groups may be in flight, as in lesson 12", "all written", (WAIT, WAIT.replace("1", "2"))),
    wrong("no group may be in flight", "time for a copy", (WAIT, WAIT.replace("1", "0"))),
    wrong("no barrier", "all written", (BARRIER, WAIT)),
    wrong("the barrier before the wait", "all written", (BARRIER, SYNC + WAIT)),
    wrong("a barrier for one warp", "no races",
          (BARRIER, WAIT + SYNC.replace("cuda.sync", "if thread < 32: cuda.sync"))),
    wrong("a barrier before the jump, too", "barriers per tile", (QUARTER, QUARTER + SYNC)),
    wrong("a barrier in the first k tile only", "all written",
          (BARRIER, WAIT + SYNC.replace("cuda.sync", "if ahead == (STAGES - 1) * BK: cuda.sync"))),
    wrong("the barrier after the read", "all written", (BARRIER, ""), (READ, READ + BARRIER)),
    wrong("waits for all copies at the end of a k tile", "time for a copy",
          (QUARTER, QUARTER + "        cp_async_wait_group(0)\n")),
    wrong("a fence for each k tile", "fences", (BARRIER, BARRIER + "        cuda.threadfence()\n")),
    wrong("the loop ends after two k tiles", "correct", ("while k0 < end:", "while k0 < 2 * BK:")),
    wrong("copies before the barrier", "no races", (PIECES[0], ""), (BARRIER, PIECES[0] + BARRIER)),
    wrong("no group closed", "all written", (PIECES[2] + COMMIT, PIECES[2])),
    wrong("half of A is forgotten", "all written", (PIECES[1], "")),
    Mutant("the library's main loop", REFERENCE,
           """from numba_matmul.kernels.k13_planned_loop import short_main_loop

@cuda.jit(device=True)
def my_main_loop(a_ring, b_ring, a, b, row0, col0, k0, end, thread):
    return short_main_loop(a_ring, b_ring, a, b, row0, col0, k0, end, thread)
""", "your own"))


SMALL = dict(BM=128, BN=64, BK=8, WM=32, WN=64, TM=8, TN=8, THREADS=128, PADDED=132, STAGES=4)
OTHER = dict(BM=128, BN=16, BK=8, WM=128, WN=16, TM=8, TN=8, THREADS=32, PADDED=132, STAGES=4)

def fixed(constants):
    "The page's names with these numbers: its device functions, too."
    functions = start_copies, page.start_piece, page.short_factors, page.short_place, page.short_step
    found = constants | {function.__name__: with_constants(function, constants) for function in functions}
    return found | dict(short_write=with_constants(page.short_write, found))

EXERCISES = (Exercise(
    "13", "my_main_loop",
    cases=(matmul_case(128, 64, 48, (128,), (1, 1)), matmul_case(128, 48, 16, (32,), (3, 1), fixed(OTHER)),
           matmul_case(256, 16, 8, (32,), (1, 2), fixed(OTHER))),
    goals=(NO_FENCES,
           Goal("reads per tile", reads, most=33, unit="loads from shared memory", counted="events",
                hint="read the factors of each step once"),
           Goal("read to use", read_to_use, least=48,
                unit="multiply-adds between a read and its first use, in one pass", counted="events",
                hint="step 0 of the next k tile is read at the end of a pass. Leave three quarters of the "
                     "last step's products for the beginning of the next pass, before step 0's. The first "
                     "quarter stays: it makes the compiler read the last step's factors early"),
           replace(BARRIERS, measure=barriers),
           Goal("time for a copy", time_for_a_copy, least=1.5, unit="k tiles multiplied in the meantime",
                counted="events",
                hint="leave the copies, their group and the wait as they are")),
    hints={
        "all written: asynchronous copy": (
            "when is the next k tile read for the first time? Before that, each thread has to wait for its "
            "own groups, counted from the newest, and then to meet the others at a barrier. A group is "
            "closed in each k tile, after its three pieces, even if it's empty"),
        "all written": (
            "no thread has started this copy yet: do all threads meet at a barrier before they read? If so, "
            "is each piece, 0, 1 and 2, started once per k tile, into `free`?"),
        "no races: two asynchronous copies": "is each piece, 0, 1 and 2, started once?",
        "no races: and is read by": (
            "a thread waits only for its own copies. Between that wait and the first read of the next k "
            "tile, all threads meet at a barrier"),
        "no races: ring[": (
            "the copy goes into `free`, the previous k tile's stage. Which barrier guarantees that no "
            "thread reads it anymore, and does every thread reach it?"),
        "correct": (
            "each product counts once: those of steps 0 to 6, the first quarter of step 7, and the "
            "rest, with the factors of step 7, in the same order. Where are the last k tile's added?"),
        "barriers": "all threads of the block must reach the same barrier"},
    constants=fixed(SMALL),
    preamble="from numba_matmul.kernels.k13_planned_loop import LEFT, NO_X, NO_Y, RESULTS, ZEROS\n"
             "from numba_matmul.ptx.ampere import cp_async_commit_group, cp_async_wait_group\n"
             "from numba_matmul.ptx.core import add_outer, add_part\n",
    solutions=SOLUTIONS, mutants=MUTANTS, page=page, record=products_of_first_warp,
    judge=judge),)
