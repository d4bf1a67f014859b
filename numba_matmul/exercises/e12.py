"""What `grade("12", my_async_copy)` asks of a kernel, what it accepts, and what it must catch.

The kernel is graded with tiles of 16×32×8 in a ring of four stages, and with 9 k tiles (twice around the ring
and one more), 3 (fewer than the ring has) and a single one; then with tiles of 32×32×4 and 5 k tiles. A copy
lands at the wait for it and not a moment before, so reading too early is caught every time, as is a copy into
a stage that some thread still reads. Then come the goals:

- **time for a copy**: how many k tiles are multiplied between the start of a copy and the wait for it? With
  four stages it can be three, and that's required of the loop's copies as long as there are more to start.
  This is counted in the first warp of a recorded run.
- **barriers per tile**: one between each k tile and the next.
- **shared memory**: four stages, and no more.
- **fences**: none.
"""
from textwrap import indent

from ..exercise import Exercise, Goal, Mutant, matmul_case
from ..kernels import k12_async_copy as page
from ..source import cut, reference_of, with_constants
from .e04 import EXCHANGED
from .e10 import NO_FENCES
from .e11 import TAIL
from .recorded import copy_order, first_warp


REFERENCE = reference_of(page.short_async_copy, "my_async_copy")
HEAD, FIRST, BEGIN, WAIT, AHEAD, MULTIPLY, ON, _ = cut(
    REFERENCE, "    for stage", "    k0, now", "        cp_async_wait", "        ahead", "        dot = 0",
    "        free", TAIL)


COMMIT = "        cp_async_commit_group()\n"

SOLUTIONS = {
    "reference": REFERENCE,
    "the wait at the end": HEAD + FIRST + """    cp_async_wait_group(2)
    cuda.syncthreads()
""" + BEGIN + AHEAD + MULTIPLY + WAIT + ON + TAIL,
    "stages by the number of the tile": HEAD + FIRST + """    for tile in range(a.shape[1] // BK):
""" + WAIT + """        if (tile + 3) * BK < a.shape[1]:
            start_copies(a_ring, b_ring, (tile + 3) % 4, a, b, row0, col0, (tile + 3) * BK, thread)
        cp_async_commit_group()
        now = tile % 4
""" + MULTIPLY + TAIL,
    "no empty groups": HEAD + FIRST.replace(COMMIT, "    " + COMMIT) + BEGIN + """
        if k0 + 2 * BK < a.shape[1]: cp_async_wait_group(2)
        elif k0 + BK < a.shape[1]: cp_async_wait_group(1)
        else: cp_async_wait_group(0)
        cuda.syncthreads()
""" + AHEAD.replace(COMMIT, "    " + COMMIT) + MULTIPLY + ON + TAIL,
    "now and free each wrap around": HEAD + FIRST + BEGIN + WAIT + AHEAD + MULTIPLY + """
        now = (now + 1) % STAGES
        free = (free + 1) % STAGES
        k0 += BK
""" + TAIL,
    "two groups for each k tile": HEAD + FIRST.replace(COMMIT, COMMIT + COMMIT) + BEGIN
                                  + WAIT.replace("2", "4") + AHEAD.replace(COMMIT, COMMIT + COMMIT)
                                  + MULTIPLY + ON + TAIL,
    "copies in a function of their own": """@cuda.jit(device=True)
def start_if_any(a_ring, b_ring, stage, a, b, row0, col0, k0, thread):
    if k0 >= a.shape[1]: return
    start_copies(a_ring, b_ring, stage, a, b, row0, col0, k0, thread)

""" + HEAD + FIRST + "    k0, now = 0, 0\n    while k0 < a.shape[1]:\n" + WAIT + """
        start_if_any(a_ring, b_ring, (now + 3) & 3, a, b, row0, col0, k0 + 3 * BK, thread)
        cp_async_commit_group()
""" + MULTIPLY + """        now, k0 = (now + 1) & 3, k0 + BK
""" + TAIL,
    "the last tiles wait for all copies": HEAD + FIRST + BEGIN + """
        if k0 + 3 * BK < a.shape[1]: cp_async_wait_group(2)
        else: cp_async_wait_group(0)
        cuda.syncthreads()
""" + AHEAD + MULTIPLY + ON + TAIL,
    "a counter for each stage": HEAD + FIRST.replace("stage * BK", "BK * stage") + """
    left, now = a.shape[1] // BK, 0
    while left > 0:
""" + WAIT + """        free = now + STAGES - 1
        if free >= STAGES: free -= STAGES
        if left > STAGES - 1:
            ahead = a.shape[1] - (left - STAGES + 1) * BK
            start_copies(a_ring, b_ring, free, a, b, row0, col0, ahead, thread)
        cp_async_commit_group()
""" + MULTIPLY + """        now += 1
        if now == STAGES: now = 0
        left -= 1
""" + TAIL}


LOOP = BEGIN + WAIT + AHEAD + MULTIPLY + ON
def loop(name, new, verdict): return Mutant(name, LOOP, new, verdict)

MUTANTS = (
    EXCHANGED,
    loop("not written", BEGIN + "        ...\n" + MULTIPLY + ON, "written"),
    loop("no wait", LOOP.replace("        cp_async_wait_group(2)\n", ""), "all written"),
    loop("three groups may be in flight", LOOP.replace("group(2)", "group(3)"), "all written"),
    loop("as many as the ring has stages", LOOP.replace("group(2)", "group(4)"), "all written"),
    loop("one group may be in flight", LOOP.replace("group(2)", "group(1)"), "time for a copy"),
    loop("no group may be in flight", LOOP.replace("group(2)", "group(0)"), "time for a copy"),
    loop("no barrier", LOOP.replace("        cuda.syncthreads()\n", ""), "all written"),
    loop("the barrier before the wait",
         BEGIN + "        cuda.syncthreads()\n        cp_async_wait_group(2)\n" + AHEAD + MULTIPLY + ON,
         "all written"),
    loop("a barrier for one warp", LOOP.replace("cuda.syncthreads()", "if thread < 32: cuda.syncthreads()"),
         "no races"),
    loop("each warp has its own barrier",
         LOOP.replace("        cuda.syncthreads()\n",
                      "        if thread < 32: cuda.syncthreads()\n        else: cuda.syncthreads()\n"),
         "barriers"),
    loop("two barriers", LOOP.replace(ON, "        cuda.syncthreads()\n" + ON), "barriers per tile"),
    loop("the copy before the barrier",
         BEGIN + "        cp_async_wait_group(2)\n" + AHEAD + "        cuda.syncthreads()\n" + MULTIPLY + ON,
         "all written"),
    loop("the copy before the wait", BEGIN + AHEAD + WAIT.replace("2", "3") + MULTIPLY + ON, "all written"),
    loop("the copy after the multiplication", BEGIN + WAIT + MULTIPLY + AHEAD + ON, "time for a copy"),
    loop("into the stage that is multiplied", LOOP.replace("b_ring, free,", "b_ring, now,"), "all written"),
    loop("into the stage of the next tile", LOOP.replace("b_ring, free,", "b_ring, (now + 1) % STAGES,"),
         "no races"),
    loop("the free stage stays where it was", LOOP.replace("free, now = now,", "now ="), "no races"),
    loop("the stage doesn't wrap around", LOOP.replace("(now + 1) % STAGES", "now + 1"), "in bounds"),
    loop("a ring of three", LOOP.replace("(now + 1) % STAGES", "(now + 1) % 3"), "all written"),
    loop("no test for the last tiles", LOOP.replace("if ahead < a.shape[1]:", "if True:"), "in bounds"),
    loop("<= in the test for the last tiles", LOOP.replace("ahead <", "ahead <="), "in bounds"),
    loop("no group closed", LOOP.replace("        cp_async_commit_group()\n", ""), "all written"),
    loop("a group is closed only if it is not empty",
         LOOP.replace("        cp_async_commit_group()", "            cp_async_commit_group()"),
         "all written"),
    loop("the tile after the next one", LOOP.replace("(STAGES - 1) * BK", "BK"), "correct"),
    loop("a tile too far ahead", LOOP.replace("(STAGES - 1) * BK", "STAGES * BK"), "correct"),
    loop("the last tile is left out", LOOP.replace("while k0 <", "while k0 + BK <"), "correct"),
    loop("always the first stage", LOOP.replace("[now,", "[0,"), "all written"),
    loop("waits for all copies in every other k tile",
         LOOP.replace(WAIT, WAIT + "        if k0 // BK % 2: cp_async_wait_group(0)\n"), "time for a copy"),
    loop("waits for all copies at the end of a k tile",
         LOOP.replace(ON, "        cp_async_wait_group(0)\n" + ON),
         "time for a copy"),
    loop("an extra barrier in every other k tile",
         LOOP.replace(ON, "        if k0 // BK % 2: cuda.syncthreads()\n" + ON), "barriers per tile"),
    loop("a barrier in each step", LOOP.replace("dot += 1\n", "dot += 1\n            cuda.syncthreads()\n"),
         "barriers per tile"),
    loop("a barrier in the first k tile only",
         LOOP.replace("cuda.syncthreads", "if k0 == 0: cuda.syncthreads"), "all written"),
    loop("a fence for each k tile", LOOP.replace(WAIT, WAIT + "        cuda.threadfence_block()\n"),
         "fences"),
    loop("the loop ends after two k tiles",
         LOOP.replace("k0 < a.shape[1]:\n" + WAIT, "k0 < 2 * BK:\n" + WAIT), "all written"),
    loop("a number for BK", LOOP.replace("k0 += BK", "k0 += 8"), "correct"),
    Mutant("C stored in each k tile", ON + TAIL, indent(TAIL, "    ") + ON, "one store each"),
    Mutant("no groups before the loop", FIRST, FIRST.replace("        cp_async_commit_group()\n", ""),
           "all written"),
    Mutant("one group for everything before the loop", FIRST,
           FIRST.replace("        cp_async_commit_group", "    cp_async_commit_group"), "all written"),
    Mutant("only one tile started before the loop", FIRST, FIRST.replace("range(STAGES - 1)", "range(1)"),
           "all written"),
    Mutant("the whole ring started before the loop", FIRST,
           FIRST.replace("range(STAGES - 1)", "range(STAGES)"), "no races"),
    Mutant("each stage gets the first tile", FIRST, FIRST.replace("col0, stage * BK", "col0, 0"), "correct"),
    Mutant("the library's kernel", SOLUTIONS["reference"],
           "from numba_matmul.kernels.k12_async_copy import short_async_copy as my_async_copy\n", "your own"),
    Mutant("a fifth stage", "a_ring = cuda.shared.array((STAGES,", "a_ring = cuda.shared.array((5,",
           "shared memory"))


RING = dict(BM=16, BN=32, BK=8, WM=8, WN=32, TM=2, TN=4, THREADS=64, PADDED=20, STAGES=4)
OTHER = dict(BM=32, BN=32, BK=4, WM=32, WN=32, TM=4, TN=8, THREADS=32, PADDED=36, STAGES=4)

def ring_of(constants): return constants | dict(start_copies=with_constants(page.start_copies, constants))

EXERCISES = (Exercise(
    "12", "my_async_copy",
    cases=(matmul_case(16, 32, 72, (64,), (1, 1)), matmul_case(32, 32, 24, (64,), (1, 2)),
           matmul_case(16, 64, 8, (64,), (2, 1)), matmul_case(32, 64, 20, (32,), (2, 1), ring_of(OTHER))),
    goals=(Goal("shared memory", lambda code: code.shared_bytes, most=4 * 4 * 8 * (20 + 32), unit="bytes",
                counted="code", hint="a ring of STAGES tiles is enough"),
           NO_FENCES, *copy_order(3)),
    hints={
        "all written: asynchronous copy": (
            "either this k tile hasn't landed: each thread waits for its own groups, counted from the "
            "newest, and then meets the others at a barrier. Close a group per k tile, even an empty one, "
            "or the count is off. Or the copy of a later k tile into this stage has begun: does it go into "
            "`free`, after the barrier, and does `now` go through all STAGES?"),
        "all written: 16×64×8": "here A is a single k tile: the loop ends after it",
        "all written": (
            "no thread has started this copy yet: do all threads meet at a barrier before they read? If so, "
            "does every thread start its copies of each k tile, into the stage it's read from later?"),
        "no races: two asynchronous": (
            "the stage is filled twice: is it `free`, does `free` move on with each k tile, and are no more "
            "than STAGES - 1 k tiles copied before the loop?"),
        "no races: ring[": (
            "all threads must have met at a barrier between the wait for a copy and the first read of it, "
            "and between the last read of a stage and the next copy into it: do all of them reach it, in "
            "each k tile, and is `free` that stage?"),
        "in bounds: start_copies": (
            "after the last k tile there is nothing to copy: test for that before you start one. And "
            "start_copies takes a, b, row0 and col0 in this order; row0 comes from blockIdx.y, col0 from "
            "blockIdx.x"),
        "in bounds": "stages are counted from 0 to STAGES - 1, and then from 0 again",
        "correct: 32×64×20": (
            "the earlier launches were right. This one has different tiles, BK = 4, in two blocks side by "
            "side: is there a number where a name belongs, and do B's columns begin at col0?"),
        "correct": (
            "which k tile goes into which stage, from which stage is it read, and is each one multiplied "
            "exactly once?")},
    constants=ring_of(RING),
    preamble="from numba_matmul.ptx.ampere import cp_async_commit_group, cp_async_wait_group\n"
             "from numba_matmul.ptx.core import store4\n",
    solutions=SOLUTIONS, mutants=MUTANTS, page=page, record=first_warp,
    short=("kernels 11 and 12 at 4096, short", "short_async_copy"),
    launch=lambda m, n: ((n // 128, m // 128), 256)),)
