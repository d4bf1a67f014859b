"""What `grade("11", my_double_buffering)` asks of a kernel, what it accepts, and what it must catch.

The kernel is graded with tiles of 16×32×8, so that a run takes a fraction of a second: five k tiles, and a
single one in two blocks; then with tiles of 8×64×4, four k tiles in two blocks. A missing barrier shows up as
a race, or as a read of something no thread has written. After that come the goals. Global memory is read 16
bytes at a time, shared memory holds two tiles, not three, and there are no fences. Two more are about *when*
something happens, so they look at the first warp of a recorded run: its loads, stores and barriers, in order.

- **early loads**: between loading a tile and storing it, how much of a tile is multiplied? All of it, in the
  lesson's solution; half is enough to pass.
- **barriers per tile**: one between each k tile and the next.
- **loads per tile**: two, one of A and one of B.
"""
from textwrap import dedent, indent

from ..exercise import Exercise, Goal, Mutant
from ..kernels import k11_double_buffering as page
from ..source import cut, reference_of, replaced
from .e04 import EACH_STEP, EXCHANGED
from .e10 import NO_FENCES, case
from .recorded import barriers, first_warp


SMALL = dict(BM=16, BN=32, BK=8, WM=8, WN=32, TM=2, TN=4, THREADS=64, PADDED=36)
OTHER = dict(BM=8, BN=64, BK=4, WM=8, WN=32, TM=1, TN=8, THREADS=64, PADDED=68)

def overlap(run):
    "How much of a tile is multiplied between the loads from global memory and the stores that need them."
    whole = sum(kind == "shared load" for kind, _ in run.events) / run.tiles
    reads, asked, found = 0, None, []
    for kind, _ in run.events:
        if kind == "shared load": reads += 1
        elif kind == "global load": asked = reads
        elif kind == "shared store" and asked is not None:
            if reads: found.append((reads - asked) / whole)  # before that there is nothing to multiply
            asked = None
    return min(found, default=0)

def loads(run):
    "Loads from global memory per k tile; one k tile may be loaded twice."
    return sum(kind == "global load" for kind, _ in run.events) / (run.tiles + 1)

def narrowest(view):
    "Bytes of the narrowest load from global memory."
    return min(site.size for site in view.merged() if (site.space, site.operation) == ("global", "load"))

LOADS = """            x = load4(a, (row0 + a_row, k0 + a_col))
            y = load4(b, (k0 + b_row, col0 + b_col))
"""
REFERENCE = replaced(reference_of(page.short_double_buffering, "my_double_buffering"),
                     ("            x, y = load4(a, (row0 + a_row, k0 + a_col)), load4(b, (k0 + b_row, col0 "
                      "+ b_col))\n", LOADS))
HEAD, FIRST, LOOP, TAIL = cut(REFERENCE, "    x, y = load4", "    cuda.syncthreads()\n    k0",
                              "    for i in range(TM):\n        for j in range(0,")
MULTIPLY = cut(LOOP, "        dot = 0\n", "        now = 1")[1]


SOLUTIONS = {
    "reference": REFERENCE,
    "the barrier comes first": HEAD + FIRST + """    k0, now = 0, 0
    while k0 < a.shape[1]:
        cuda.syncthreads()
        more = k0 + BK < a.shape[1]
        if more:
            y = load4(b, (k0 + BK + b_row, col0 + b_col))
            x = load4(a, (row0 + a_row, k0 + BK + a_col))
""" + MULTIPLY + """        if more:
            store4(b_tile, (1 - now, b_row, b_col), *y)
            for q in range(4): a_tile[1 - now, a_col + q, a_row] = x[q]
        now = 1 - now
        k0 += BK
""" + TAIL, "a separate test for the next k tile": HEAD + FIRST + """    cuda.syncthreads()
    k0, now = 0, 0
    while k0 < a.shape[1]:
        more = k0 + BK < a.shape[1]
        if more:
            x, y = load4(a, (row0 + a_row, k0 + BK + a_col)), load4(b, (k0 + BK + b_row, col0 + b_col))
""" + MULTIPLY + """        now = 1 - now
        if more:
            for q in range(4): a_tile[now, a_col + q, a_row] = x[q]
            store4(b_tile, (now, b_row, b_col), *y)
        cuda.syncthreads()
        k0 += BK
""" + TAIL, "the last tile on its own": HEAD + FIRST + """    cuda.syncthreads()
    k0, now = BK, 0
    while k0 < a.shape[1]:
        x = load4(a, (row0 + a_row, k0 + a_col))
        y = load4(b, (k0 + b_row, col0 + b_col))
""" + MULTIPLY + """        now ^= 1
        for q in range(4): a_tile[now, a_col + q, a_row] = x[q]
        store4(b_tile, (now, b_row, b_col), *y)
        cuda.syncthreads()
        k0 += BK
""" + indent(dedent(MULTIPLY), "    ") + TAIL, "two tiles ahead": HEAD + FIRST + """    if BK < a.shape[1]:
        x, y = load4(a, (row0 + a_row, BK + a_col)), load4(b, (BK + b_row, col0 + b_col))
    cuda.syncthreads()
    k0 = 0
    while k0 < a.shape[1]:
        now = k0 // BK % 2
        if k0 + BK < a.shape[1]:
            for q in range(4): a_tile[1 - now, a_col + q, a_row] = x[q]
            store4(b_tile, (1 - now, b_row, b_col), *y)
        if k0 + 2 * BK < a.shape[1]:
            x = load4(a, (row0 + a_row, k0 + 2 * BK + a_col))
            y = load4(b, (k0 + 2 * BK + b_row, col0 + b_col))
""" + MULTIPLY + """        cuda.syncthreads()
        k0 += BK
""" + TAIL, "loads in functions of their own": """@cuda.jit(device=True)
def of_a(a, row, k0): return load4(a, (row, k0))

@cuda.jit(device=True)
def keep(a_tile, b_tile, place, a_row, a_col, b_row, b_col, x, y):
    a_tile[place, a_col, a_row], a_tile[place, a_col + 1, a_row] = x[0], x[1]
    a_tile[place, a_col + 2, a_row], a_tile[place, a_col + 3, a_row] = x[2], x[3]
    store4(b_tile, (place, b_row, b_col), y[0], y[1], y[2], y[3])

""" + HEAD + FIRST + """    cuda.syncthreads()
    tiles, now = a.shape[1] // BK, 0
    for tile in range(1, tiles + 1):
        if tile < tiles:
            y = load4(b, (tile * BK + b_row, col0 + b_col))
            x = of_a(a, row0 + a_row, tile * BK + a_col)
""" + MULTIPLY + """        if tile == tiles: break
        now ^= 1
        keep(a_tile, b_tile, now, a_row, a_col, b_row, b_col, x, y)
        cuda.syncthreads()
""" + TAIL, "k0 counts down": HEAD + FIRST + """    cuda.syncthreads()
    left, now, at_a, at_b = a.shape[1], 0, a_col + BK, b_row + BK
    while left > 0:
        left -= BK
        if left:
            x, y = load4(a, (row0 + a_row, at_a)), load4(b, (at_b, col0 + b_col))
            at_a += BK
            at_b += BK
""" + MULTIPLY + """        now = 1 if now == 0 else 0
        if left:
            store4(b_tile, (now, b_row, b_col), *y)
            for q in range(4): a_tile[now, a_col + q, a_row] = x[q]
            cuda.syncthreads()
""" + TAIL, "the last tile is fetched twice": HEAD + FIRST + """    cuda.syncthreads()
    now = 0
    for tile in range(a.shape[1] // BK):
        k0 = min((tile + 1) * BK, a.shape[1] - BK)
        x = load4(a, (row0 + a_row, k0 + a_col))
        y = load4(b, (k0 + b_row, col0 + b_col))
""" + MULTIPLY + """        now = (tile + 1) % 2
        for q in range(4): a_tile[now, a_col + q, a_row] = x[q]
        store4(b_tile, (now, b_row, b_col), *y)
        cuda.syncthreads()
""" + TAIL, "the loads a quarter into the multiplication": HEAD + FIRST + """    cuda.syncthreads()
    k0, now = 0, 0
    while k0 < a.shape[1]:
        then = k0 + BK
""" + MULTIPLY.replace("        while dot < BK:\n", """        while dot < BK:
            if dot == BK // 4 and then < a.shape[1]:
                x, y = load4(a, (row0 + a_row, then + a_col)), load4(b, (then + b_row, col0 + b_col))
""") + """        now = 1 - now
        if then < a.shape[1]:
            for q in range(4): a_tile[now, a_col + q, a_row] = x[q]
            store4(b_tile, (now, b_row, b_col), *y)
        cuda.syncthreads()
        k0 = then
""" + TAIL}


STORES = """            for q in range(4): a_tile[now, a_col + q, a_row] = x[q]
            store4(b_tile, (now, b_row, b_col), *y)
"""
BETWEEN = MULTIPLY + "        now = 1 - now\n        if k0 < a.shape[1]:\n"


MUTANTS = (
    EACH_STEP, EXCHANGED,
    Mutant("not written", LOADS + BETWEEN + STORES, "            pass\n        ...\n", "written"),
    Mutant("no test before the loads", "if k0 < a.shape[1]:\n            x =", "if True:\n            x =",
           "in bounds"),
    Mutant("<= before the loads", "if k0 < a.shape[1]:\n            x =",
           "if k0 <= a.shape[1]:\n            x =", "in bounds"),
    Mutant("no barrier in the loop", "        cuda.syncthreads()\n" + TAIL, TAIL, "all written"),
    Mutant("no barrier before the loop", "    cuda.syncthreads()\n    k0, now", "    k0, now", "all written"),
    Mutant("the barrier before the stores", MULTIPLY + "        now = 1 - now\n",
           MULTIPLY + "        cuda.syncthreads()\n        now = 1 - now\n", "barriers per tile"),
    Mutant("the barrier before the stores, and none after them",
           BETWEEN + STORES + "        cuda.syncthreads()\n",
           MULTIPLY + "        cuda.syncthreads()\n        now = 1 - now\n        if k0 < a.shape[1]:\n"
           + STORES, "all written"),
    Mutant("each half of the block has its own barrier", "        cuda.syncthreads()\n" + TAIL,
           "        if thread < THREADS // 2: cuda.syncthreads()\n        else: cuda.syncthreads()\n" + TAIL,
           "barriers"),
    Mutant("a barrier for half of the threads", "        cuda.syncthreads()\n" + TAIL,
           "        if thread < THREADS // 2: cuda.syncthreads()\n" + TAIL, "no races"),
    Mutant("now never changes", "now = 1 - now", "now = now", "no races"),
    Mutant("now changes after the stores", BETWEEN + STORES,
           MULTIPLY + "        if k0 < a.shape[1]:\n" + STORES + "        now = 1 - now\n", "no races"),
    Mutant("A is always read from the first tile", "a_tile[now, dot, row + i]", "a_tile[0, dot, row + i]",
           "no races"),
    Mutant("B is always read from the second tile", "b_tile[now, dot, col + j]", "b_tile[1, dot, col + j]",
           "all written"),
    Mutant("B is stored where it is read", "store4(b_tile, (now,", "store4(b_tile, (1 - now,", "no races"),
    Mutant("the loads after the multiplication", LOADS + BETWEEN, "            pass\n" + BETWEEN + LOADS,
           "early loads"),
    Mutant("the stores before the multiplication", LOADS + BETWEEN + STORES,
           LOADS + STORES.replace("[now", "[1 - now").replace("(now", "(1 - now") + MULTIPLY
           + "        now = 1 - now\n", "early loads"),
    Mutant("only A early", LOADS + BETWEEN + STORES,
           LOADS.splitlines(True)[0] + BETWEEN + STORES.splitlines(True)[0] + LOADS.splitlines(True)[1]
           + STORES.splitlines(True)[1], "early loads"),
    Mutant("A of the current tile loaded again", LOADS, LOADS.replace("k0 + a_col", "k0 - BK + a_col"),
           "correct"),
    Mutant("B is fetched once", LOADS, LOADS.splitlines(True)[0], "correct"),
    Mutant("the block's row left out", LOADS, LOADS.replace("row0 + a_row", "a_row"), "correct"),
    Mutant("A is stored without transposing", "a_tile[now, a_col + q, a_row] = x[q]",
           "a_tile[now, a_row, a_col + q] = x[q]", "in bounds"),
    Mutant("A's elements in the wrong order", "a_tile[now, a_col + q, a_row] = x[q]",
           "a_tile[now, a_col + q, a_row] = x[3 - q]", "correct"),
    Mutant("three of four elements stored", STORES, STORES.replace("range(4)", "range(3)"), "all written"),
    Mutant("every other tile", "        k0 += BK\n", "        k0 += 2 * BK\n", "correct"),
    Mutant("the last tile is left out", "while k0 < a.shape[1]:", "while k0 < a.shape[1] - BK:", "correct"),
    Mutant("a sum is set to zero in each k tile", "        now = 1 - now\n",
           "        now = 1 - now\n        acc[0, 0] = float32(0)\n", "correct"),
    Mutant("element by element", LOADS,
           LOADS.replace("load4(b, (k0 + b_row, col0 + b_col))",
                         "(b[k0 + b_row, col0 + b_col], b[k0 + b_row, col0 + b_col + 1], b[k0 + b_row, col0 "
                         "+ b_col + 2], b[k0 + b_row, col0 + b_col + 3])"), "wide loads"),
    Mutant("B's tile not aligned", "b_tile = cuda.shared.array((2, BK, BN), float32, alignment=16)",
           "b_tile = cuda.shared.array((2, BK, BN), float32)", "aligned"),
    Mutant("a third tile", "a_tile = cuda.shared.array((2,", "a_tile = cuda.shared.array((3,",
           "shared memory"),
    Mutant("an extra barrier in every other k tile", "        cuda.syncthreads()\n" + TAIL,
           "        if k0 // BK % 2 == 0: cuda.syncthreads()\n        cuda.syncthreads()\n" + TAIL,
           "barriers per tile"),
    Mutant("a barrier in the first k tile only", "        cuda.syncthreads()\n" + TAIL,
           "        if k0 == BK: cuda.syncthreads()\n" + TAIL, "no races"),
    Mutant("a fence for each k tile", "        cuda.syncthreads()\n" + TAIL,
           "        cuda.threadfence()\n        cuda.syncthreads()\n" + TAIL, "fences"),
    Mutant("C stored in each k tile", "        cuda.syncthreads()\n" + TAIL,
           "        cuda.syncthreads()\n" + indent(TAIL, "    "), "one store each"),
    Mutant("the loop ends after two k tiles", "    while k0 < a.shape[1]:", "    while k0 < 2 * BK:",
           "all written"),
    Mutant("BM for BN", "cuda.blockIdx.x * BN", "cuda.blockIdx.x * BM", "correct"),
    Mutant("a number for BK", "        k0 += BK\n", "        k0 += 8\n", "correct"),
    Mutant("a second barrier", "        cuda.syncthreads()\n" + TAIL,
           "        cuda.syncthreads()\n        cuda.syncthreads()\n" + TAIL, "barriers per tile"),
    Mutant("A is loaded twice", LOADS, LOADS + LOADS.splitlines(True)[0], "loads per tile"),
    Mutant("the library's kernel", SOLUTIONS["reference"],
           "from numba_matmul.kernels.k11_double_buffering import short_double_buffering as "
           "my_double_buffering\n", "your own"))


EXERCISES = (Exercise(
    "11", "my_double_buffering",
    cases=(case(16, 32, 40, SMALL), case(16, 64, 8, SMALL), case(16, 64, 16, OTHER)),
    goals=(Goal("wide loads", narrowest, least=16, unit="bytes in the narrowest load",
                hint="load4 reads four elements at once"),
           Goal("shared memory", lambda code: code.shared_bytes, most=4 * 2 * 8 * (36 + 32), unit="bytes",
                counted="code", hint="two tiles of A and two of B are enough"),
           NO_FENCES,
           Goal("early loads", overlap, least=0.5, unit="k tiles multiplied while the next one is in flight",
                counted="events",
                hint="load the next k tile before you multiply this one, and store it after that"),
           Goal("barriers per tile", barriers, most=1, counted="events",
                hint="with two tiles, no thread stores where others still read: one barrier per k tile, "
                     "after the stores, is enough"),
           Goal("loads per tile", loads, most=2, unit="per thread, from global memory", counted="events",
                hint="a thread loads four elements of A and four of B per k tile, each once")),
    hints={
        "in bounds: a: index": (
            "after the last k tile there is no next one to load: test for that. And rows of A begin at "
            "row0, which comes from blockIdx.y"),
        "in bounds: b: index": (
            "after the last k tile there is no next one to load: test for that. And columns of B begin at "
            "col0, which comes from blockIdx.x"),
        "in bounds: a_tile": (
            "a_tile[place, step, row]: A is transposed on its way into shared memory, and there are two "
            "places, 0 and 1"),
        "in bounds: b_tile": "b_tile[place, step, column], and there are two places, 0 and 1",
        "no races: _tile[": (
            "one place is read while the other is stored: which is which? And do all threads meet at a "
            "barrier in each pass, between the two accesses named here?"),
        "all written: 16×64×8": (
            "here A is a single k tile: there's nothing more to load or store, and the loop ends after it"),
        "all written": (
            "a k tile is complete once every thread has stored its eight elements. Is it read from the place "
            "where it was stored, is there a barrier in between, and is the last k tile stored at all?"),
        "correct: never written": (
            "some places in C belong to no thread: are row0 and col0, row and col still as they were given?"),
        "correct: 16×64×16": (
            "the earlier launches were right. This one has smaller tiles, BK = 4, and two blocks one below "
            "the other: is there a number where a name belongs, and do A's rows begin at row0?"),
        "correct": (
            "follow one k tile: which columns of A and rows of B do x and y hold, in which of the two "
            "places do they end up, and is each k tile multiplied exactly once?")},
    constants=SMALL, preamble="from numba_matmul.ptx.core import load4, store4\n",
    solutions=SOLUTIONS, mutants=MUTANTS, page=page, record=first_warp,
    short=("kernels 10 and 11 at 4096, short", "short_double_buffering"),
    launch=lambda m, n: ((n // 128, m // 128), 256)),)
