"""What `grade("13", my_main_loop)` asks of a main loop, what it accepts, and what it must catch.

The loop is graded in the lesson's short kernel, with tiles of 128×64×8 in a ring of four stages and 6 k tiles
(once around the ring and more), and with tiles of 128×16×8 and 2 k tiles (fewer than the ring has) or a
single one. Copies land as in exercise 12. A loop that calls the library's is told so. Then come the goals,
all but the last counted in the first warp of a recorded run:

- **barriers per tile**: one, from the first step to the last.
- **slack**: how many steps are there between the barrier and the one that reads from the k tile it waited
  for? At least three.
- **copies in a row**: between two steps a thread starts at most five of its nine.
- **time for a copy**: how many k tiles are multiplied between the start of a copy and the wait for it? With
  an early barrier it's one and a half, or more, for every copy while there are more to start.
- **fences**: none.
"""
from dataclasses import replace

from ..exercise import Exercise, Goal, Mutant, matmul_case
from ..judge import Verdict, constants_of, judge_kernel
from ..kernels import k13_planned_loop as page
from ..kernels.k12_async_copy import start_copies
from ..process import kernel_parts
from ..source import reference_of, with_constants
from .e10 import NO_FENCES
from .recorded import BARRIERS, first_warp, time_for_a_copy


STEP_LOADS, STEPS = 4, 8  # loads from shared memory in a step; steps of a k tile

def slack(run):
    "The fewest steps between a barrier and the first read of the k tile for which it waits."
    loads, found = 0, []
    for kind, _ in run.events:
        if kind == "shared load": loads += 1
        elif kind == "barrier" and loads: found.append(-loads % (STEP_LOADS * STEPS) / STEP_LOADS)
    return min(found[:run.tiles - 1], default=0)  # the last k tile waits for nothing

def barriers(run):
    "Barriers for each k tile, from the first step to the last."
    reads = [i for i, (kind, _) in enumerate(run.events) if kind == "shared load"]
    return sum(kind == "barrier" for kind, _ in run.events[reads[0]:reads[-1]]) / run.tiles

def together(run):
    "The most copies between two loads from shared memory, once the main loop has begun."
    most = now = begun = 0
    for kind, _ in run.events:
        if kind == "shared load": now, begun = 0, True
        elif kind == "copy" and begun: now += 1
        most = max(most, now)
    return most

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


HEAD = """@cuda.jit(device=True)
def my_main_loop(a_ring, b_ring, a, b, row0, col0, k0, end, thread):
    row, col = short_place(thread)
    for stage in range(STAGES - 1):
        if k0 + stage * BK < end:
            start_copies(a_ring, b_ring, stage, a, b, row0, col0, k0 + stage * BK, thread)
        cp_async_commit_group()
    cp_async_wait_group(2)
    cuda.syncthreads()
    acc, now, free = ZEROS, 0, STAGES - 1
    x, y = short_factors(a_ring, b_ring, now, 0, row, col)
    while k0 < end:
        ahead = k0 + (STAGES - 1) * BK
"""
TAIL = """        k0 += BK
        free = now
        if k0 < end: now = (now + 1) % STAGES
        acc, x, y = short_step(acc, x, y, a_ring, b_ring, now, 0, row, col)
    return acc
"""
BARRIER = """        cp_async_wait_group(1)
        cuda.syncthreads()
"""
COMMIT = "        cp_async_commit_group()\n"
PIECES = [f"        start_piece({piece}, a_ring, b_ring, free, a, b, row0, col0, ahead, end, thread)\n"
          for piece in range(3)]
STEP_LINES = [f"        acc, x, y = short_step(acc, x, y, a_ring, b_ring, now, {number}, row, col)\n"
              for number in range(8)]

def plan(**before):
    "The seven steps, with text before some of them: step2=…; and end=… behind the last."
    lines = [before.get(f"step{number}", "") + STEP_LINES[number] for number in range(1, 8)]
    return "".join(lines) + before.get("end", "")

PLAN = plan(step3=BARRIER + PIECES[0], step4=PIECES[1], step5=PIECES[2] + COMMIT)


SOLUTIONS = {
    "reference": HEAD + PLAN + TAIL,
    "the barrier first of all": HEAD + plan(
        step1=BARRIER, step2=PIECES[0], step3=PIECES[1], step4=PIECES[2] + COMMIT) + TAIL,
    "B first, and the group closed at the end": HEAD + plan(
        step2=BARRIER + PIECES[2], step3=PIECES[1], step5=PIECES[0], end=COMMIT) + TAIL,
    "two pieces at once": HEAD + plan(step3=BARRIER + PIECES[0], step4=PIECES[1] + PIECES[2] + COMMIT) + TAIL,
    "a function that is called as one of the library's": """@cuda.jit(device=True)
def in_sequence():
    cp_async_wait_group(1)
    cuda.syncthreads()

""" + HEAD + plan(step3="        in_sequence()\n" + PIECES[0], step4=PIECES[1], step6=PIECES[2], end=COMMIT)
    + TAIL,
    "the wait a step before the barrier": HEAD + plan(
        step2="        cp_async_wait_group(1)\n", step3="        cuda.syncthreads()\n" + PIECES[0],
        step4=PIECES[1], step5=PIECES[2] + COMMIT) + TAIL,
    "a loop with tests": HEAD + """        for number in range(1, BK):
            if number == 3:
                cp_async_wait_group(1)
                cuda.syncthreads()
            if 3 <= number < 6 and ahead < end:
                start_piece(number - 3, a_ring, b_ring, free, a, b, row0, col0, ahead, end, thread)
            if number == 5: cp_async_commit_group()
            acc, x, y = short_step(acc, x, y, a_ring, b_ring, now, number, row, col)
""" + TAIL,
    "pieces by a loop in a function": """@cuda.jit(device=True)
def start_later(number, a_ring, b_ring, free, a, b, row0, col0, ahead, end, thread):
    if ahead < end and number >= 3 and number < 6:
        start_piece(number - 3, a_ring, b_ring, free, a, b, row0, col0, ahead, end, thread)

""" + HEAD + """        for number in range(1, 8):
            if number == 2: cp_async_wait_group(1)
            if number == 2: cuda.syncthreads()
            start_later(number, a_ring, b_ring, free, a, b, row0, col0, ahead, end, thread)
            acc, x, y = short_step(acc, x, y, a_ring, b_ring, now, number, row, col)
        cp_async_commit_group()
""" + TAIL,
    "no barrier for the last k tile": HEAD + plan(step3="""        if k0 + BK < end:
            cp_async_wait_group(1)
            cuda.syncthreads()
""" + PIECES[0], step4=PIECES[1], step5=PIECES[2] + COMMIT) + TAIL,
    "factors and products by themselves": HEAD + PLAN.replace(STEP_LINES[6], """
        next_x, next_y = short_factors(a_ring, b_ring, now, 6, row, col)
        acc = add_outer(acc, x, y)
        x, y = next_x, next_y
""") + TAIL,
    "rotated": reference_of(page.short_main_loop, "my_main_loop")}


def wrong(name, verdict, change=None, **before):
    "A mutant: another plan, or the reference's with a change (old, new)."
    return Mutant(name, PLAN, PLAN.replace(*change) if change else plan(**before), verdict)

WAIT, SYNC = BARRIER.splitlines(True)
MUTANTS = (
    wrong("not written", "written", step7="        ...\n"),
    wrong("no wait", "all written", (WAIT, "")),
    wrong("two groups may be in flight, as in lesson 12", "all written", ("group(1)", "group(2)")),
    wrong("three groups may be in flight", "all written", ("group(1)", "group(3)")),
    wrong("no group may be in flight", "time for a copy", ("group(1)", "group(0)")),
    wrong("no barrier", "all written", (SYNC, "")),
    wrong("the barrier before the wait", "all written", (BARRIER, SYNC + WAIT)),
    wrong("a barrier for one warp", "no races",
          (SYNC, SYNC.replace("cuda.sync", "if thread < 32: cuda.sync"))),
    wrong("a barrier of each warp", "no races", (SYNC, SYNC.replace("syncthreads", "syncwarp"))),
    wrong("the wait after the copies", "all written", step3=SYNC + PIECES[0], step4=PIECES[1],
          step5=PIECES[2], step6=WAIT + COMMIT),
    wrong("two barriers", "barriers per tile", step2=SYNC, step3=BARRIER + PIECES[0], step4=PIECES[1],
          step5=PIECES[2] + COMMIT),
    wrong("waits for all at the end of a k tile", "time for a copy", step3=BARRIER + PIECES[0],
          step4=PIECES[1], step5=PIECES[2] + COMMIT, end="        cp_async_wait_group(0)\n"),
    wrong("waits for all in every other k tile", "time for a copy",
          step3=BARRIER + "        if k0 // BK % 2: cp_async_wait_group(0)\n" + PIECES[0], step4=PIECES[1],
          step5=PIECES[2] + COMMIT),
    wrong("a second barrier in every other k tile", "barriers per tile", step3=BARRIER + PIECES[0],
          step4=PIECES[1], step5=PIECES[2] + COMMIT, end="        if k0 // BK % 2: cuda.syncthreads()\n"),
    wrong("a barrier in each step", "barriers per tile", **{f"step{number}": SYNC for number in (1, 2, 6, 7)},
          step3=BARRIER + PIECES[0], step4=PIECES[1], step5=PIECES[2] + COMMIT),
    wrong("a barrier in the first k tile only", "all written",
          (SYNC, SYNC.replace("cuda.sync", "if ahead == (STAGES - 1) * BK: cuda.sync"))),
    wrong("a fence for each k tile", "fences", (SYNC, "        cuda.threadfence()\n" + SYNC)),
    Mutant("the loop ends after two k tiles", "while k0 < end:", "while k0 < 2 * BK:", "correct"),
    Mutant("the library's main loop", HEAD + PLAN + TAIL,
           """from numba_matmul.kernels.k13_planned_loop import short_main_loop

@cuda.jit(device=True)
def my_main_loop(a_ring, b_ring, a, b, row0, col0, k0, end, thread):
    return short_main_loop(a_ring, b_ring, a, b, row0, col0, k0, end, thread)
""", "your own"),
    wrong("the barrier before the last step", "slack",
          end=BARRIER + PIECES[0] + PIECES[1] + PIECES[2] + COMMIT),
    wrong("the barrier two steps before the end", "slack", step6=BARRIER + PIECES[0], step7=PIECES[1],
          end=PIECES[2] + COMMIT),
    wrong("all copies at once", "copies in a row", step3=BARRIER + "".join(PIECES) + COMMIT),
    wrong("all of A at once", "copies in a row", step3=BARRIER + PIECES[0] + PIECES[1],
          step4=PIECES[2] + COMMIT),
    wrong("copies before the barrier", "no races", step1=PIECES[0], step2=PIECES[1],
          step3=PIECES[2] + COMMIT + BARRIER),
    wrong("one piece before the barrier", "no races", step2=PIECES[2], step3=BARRIER + PIECES[0],
          step4=PIECES[1] + COMMIT),
    wrong("the group closed before the last piece", "all written", (PIECES[2] + COMMIT, COMMIT + PIECES[2])),
    wrong("a group for each piece", "time for a copy", step3=BARRIER + PIECES[0] + COMMIT,
          step4=PIECES[1] + COMMIT, step5=PIECES[2] + COMMIT),
    wrong("no group closed", "all written", (COMMIT, "")),
    wrong("a group is closed only if it is not empty", "all written",
          (COMMIT, COMMIT.replace("cp_async", "if ahead < end: cp_async"))),
    wrong("B is forgotten", "all written", (PIECES[2], "")),
    wrong("half of A is forgotten", "all written", (PIECES[1], "")),
    wrong("the same half twice", "no races", (PIECES[1], PIECES[0])),
    wrong("into the stage that is multiplied", "no races", (PIECES[0], PIECES[0].replace("free,", "now,"))),
    wrong("the k tile that is multiplied", "correct", (PIECES[0], PIECES[0].replace("ahead,", "k0,"))),
    wrong("B of the next k tile", "correct", (PIECES[2], PIECES[2].replace("ahead,", "k0 + BK,"))),
    wrong("the copies at the end", "time for a copy", step3=BARRIER, step7=PIECES[0],
          end=PIECES[1] + PIECES[2] + COMMIT),
    wrong("a step left out", "correct", (STEP_LINES[6], "")),
    wrong("a step done twice", "correct", (STEP_LINES[6], STEP_LINES[6] + STEP_LINES[6])))


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
           replace(BARRIERS, measure=barriers),
           Goal("slack", slack, least=3, unit="steps between the barrier and the first read",
                counted="events",
                hint="the barrier may come as early as you like: which steps read only from this k tile?"),
           Goal("copies in a row", together, most=5, unit="copies between two steps", counted="events",
                hint="put a step between the pieces"),
           Goal("time for a copy", time_for_a_copy, least=1.5, unit="k tiles multiplied meanwhile",
                counted="events",
                hint="start the copies soon after the barrier, in one group per k tile, and wait only for "
                     "the group that you need: how many younger groups may still be under way?")),
    hints={
        "all written: asynchronous copy": (
            "when is the next k tile read for the first time? Before that, each thread has to wait for its "
            "own groups, counted from the youngest, and then to meet the others at a barrier. A group is "
            "closed in each k tile, after its three pieces, even if it's empty"),
        "all written": (
            "nobody has started this copy yet: do all threads meet at a barrier before they read? If so, is "
            "each piece, 0, 1 and 2, started once for each k tile, into `free`?"),
        "no races: two asynchronous copies": "is each piece, 0, 1 and 2, started once?",
        "no races: and is read by": (
            "a thread's wait is for its own copies: between that and the first read of the next k tile all "
            "threads meet at a barrier"),
        "no races: ring[": (
            "the copy goes into `free`, the stage of the k tile before. Which barrier tells you that nobody "
            "reads it anymore, and does every thread reach it?"),
        "correct": (
            "which k tile is copied, into which stage, and is each piece of it? And is each step done once?"),
        "barriers": "all threads of the block must reach the same barrier"},
    constants=fixed(SMALL),
    preamble="from numba_matmul.kernels.k13_planned_loop import LEFT, NO_X, NO_Y, RESULTS, ZEROS\n"
             "from numba_matmul.ptx.ampere import cp_async_commit_group, cp_async_wait_group\n"
             "from numba_matmul.ptx.core import add_outer, add_part\n",
    solutions=SOLUTIONS, mutants=MUTANTS, page=page, record=first_warp, judge=judge),)
