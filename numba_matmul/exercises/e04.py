"""What `grade("04", my_1d)` asks of a kernel, what it accepts, and what it must catch.

`grade("04", my_1d)` launches a kernel `my_1d(a, b, c)` on random matrices, with two tiles smaller than the
lesson's. Sizes fit the tile, so no guard is needed. The machine code is compiled for the lesson's tile.

A correct kernel can still miss the point. These counts show whether it does:

- **global reads**: each element of both tiles once, and nothing else.
- **shared reads**: what the threads read from shared memory per multiply-add, in the source. With `TM`
  results per thread it is 1 + 1/`TM`. A kernel that reads the element of B again for each result stays at 2.
- **sectors of C**: a warp should write 32 neighbors in a row of C, which are four sectors. A warp that runs
  down a column touches 32.
- **local memory**: its loads and stores in the machine code. The results must stay in registers, and they
  do only if every index into `acc` is a constant once the loops are unrolled.
- **float64**: no such instructions in the main loop.
- **instructions**: how many the main loop has per multiply-add, in the machine code. A `range` around a
  `range` isn't unrolled completely, and then the loads stay narrow.
"""
from ..exercise import NO_FLOAT64, Exercise, Goal, Mutant, matmul_case
from ..source import reference_of, replaced
from ..kernels.k04_1d_blocktiling import short_1d
from .e03 import BETWEEN, global_reads, two_barriers

def shared_reads(products):
    "Values that the threads of a block read from shared memory, per multiply-add."
    def numbers(view):
        return [32 * site.requests * site.count for site in view.merged()
                if (site.space, site.operation) == ("shared", "load")]
    return lambda view: sum(numbers(view)) / products

def instructions(code):
    "Of the main loop, per multiply-add."
    return len(code.main_loop) / max(1, code.mix.get("FFMA", 0))


REFERENCE = reference_of(short_1d, "my_1d")


INNER = """        dot = 0
        while dot < BK:
            b_value = b_tile[dot, col]
            for i in range(TM): acc[i] += a_tile[row + i, dot] * b_value
            dot += 1
"""
STORE = "    for i in range(TM): c[row0 + row + i, col0 + col] = acc[i]\n"

SOLUTIONS = {
    "reference": REFERENCE,
    "a column of B first": replaced(
        REFERENCE, ("    thread = ", "    b_column = cuda.local.array(BK, float32)\n    thread = "),
        (INNER, """        for dot in range(BK): b_column[dot] = b_tile[dot, col]
        for i in range(TM):
            for dot in range(BK): acc[i] += a_tile[row + i, dot] * b_column[dot]
""")),
    "rows that are spread": replaced(REFERENCE, ("thread // BN * TM", "thread // BN"),
                                     ("row + i, dot", "row + i * (BM // TM), dot"),
                                     ("row0 + row + i,", "row0 + row + i * (BM // TM),")),
    "a row that is spread": replaced(
        REFERENCE, ("thread // BN * TM, thread % BN", "thread // (BN // TM), thread % (BN // TM)"),
        (INNER, """        dot = 0
        while dot < BK:
            a_value = a_tile[row, dot]
            for j in range(TM): acc[j] += a_value * b_tile[dot, col + j * (BN // TM)]
            dot += 1
"""), (STORE, "    for j in range(TM): c[row0 + row, col0 + col + j * (BN // TM)] = acc[j]\n")),
    "the steps from the last, in whole rows": replaced(
        REFERENCE, ("        dot = 0\n", "        dot = BK\n"),
        ("while dot < BK:\n", "while dot > 0:\n            dot -= 1\n"), ("            dot += 1\n", ""),
        ("    for i in range(TM): acc[i] = float32(0)\n", "    acc[:] = float32(0)\n"),
        ("a_tile[row + i, dot]", "a_tile[row + i][dot]")),
    "a zero of no type": replaced(REFERENCE, ("acc[i] = float32(0)", "acc[i] = 0")),
}


ZERO, BARRIER = "    for i in range(TM): acc[i] = float32(0)\n", "        cuda.syncthreads()\n"


EACH_STEP = Mutant("a barrier in each step", "            dot += 1\n",
                   "            dot += 1\n            cuda.syncthreads()\n", "barriers per tile")
EXCHANGED = Mutant("block indices swapped", "cuda.blockIdx.y * BM, cuda.blockIdx.x * BN",
                   "cuda.blockIdx.x * BM, cuda.blockIdx.y * BN", "in bounds")
OF_THE_LOOP = (  # mistakes that the kernels of the next lessons can have, too
    EACH_STEP, EXCHANGED,
    Mutant("two tiles, however many there are", "while k0 < a.shape[1]", "while k0 < min(a.shape[1], 2 * BK)",
           "correct"),
    Mutant("the first barrier in the first tile only", BARRIER + "        dot",
           "        if k0 == 0: cuda.syncthreads()\n        dot", "no races"),
    Mutant("the second barrier after the first two tiles only", BARRIER + "        k0",
           "        if k0 < 2 * BK: cuda.syncthreads()\n        k0", "no races"),
    Mutant("no barrier before use", BARRIER + "        dot", "        dot", "all written"),
    Mutant("no barrier after use", BARRIER + "        k0", "        k0", "no races"))

MUTANTS = (
    *OF_THE_LOOP,
    Mutant("C stored in each tile", "        k0 += BK\n", "        k0 += BK\n    " + STORE, "one store each"),
    Mutant("C stored in each step", "            dot += 1\n", "            dot += 1\n        " + STORE,
           "one store each"),
    Mutant("C stored in each tile, but not by the first block", "        k0 += BK\n",
           "        k0 += BK\n        if cuda.blockIdx.y > 0:\n        " + STORE, "one store each"),
    Mutant("a barrier between the copies", "        b_tile[thread",
           "        cuda.syncthreads()\n        b_tile[thread", "barriers per tile"),
    Mutant("TM for BK", "while dot < BK", "while dot < TM", "correct"),
    Mutant("BK for TM in the store", STORE, STORE.replace("range(TM)", "range(BK)"), "in bounds"),
    Mutant("8 for BK in the loop", "while dot < BK", "while dot < 8", "in bounds"),
    Mutant("8 for BK in the step", "k0 += BK", "k0 += 8", "correct"),
    Mutant("4 for TM", "thread // BN * TM", "thread // BN * 4", "in bounds"),
    Mutant("32 for BN", "cuda.blockIdx.x * BN", "cuda.blockIdx.x * 32", "in bounds"),
    Mutant("added to what C held", "col0 + col] = acc[i]", "col0 + col] += acc[i]", "correct"),
    Mutant("one row of threads for all", "c[row0 + row + i,", "c[row0 + i,", "no races"),
    Mutant("the block's column forgotten", "col0 + col] = acc[i]", "col] = acc[i]", "no races"),
    Mutant("the last result for all", "col0 + col] = acc[i]", "col0 + col] = acc[TM - 1]", "correct"),
    Mutant("a thread's results one by one", INNER, """        for i in range(TM):
            dot = 0
            while dot < BK:
                acc[i] += a_tile[row + i, dot] * b_tile[dot, col]
                dot += 1
""", "shared reads"),
    Mutant("one barrier too many", "        k0 += BK\n", "        k0 += BK\n        cuda.syncthreads()\n",
           "barriers per tile"),
    Mutant("the dots left in", "acc[i] += a_tile[row + i, dot] * b_value", "...", "written"),
    Mutant("results not set to zero", ZERO, "", "all written"),
    Mutant("set to zero in each tile", BARRIER + "        dot", BARRIER + "    " + ZERO + "        dot",
           "correct"),
    Mutant("only the last product kept", "acc[i] +=", "acc[i] =", "correct"),
    Mutant("all products in one result", "acc[i] +=", "acc[0] +=", "correct"),
    Mutant("one row of A for all results", "a_tile[row + i, dot]", "a_tile[row, dot]", "correct"),
    Mutant("threads TM rows apart overlap", "thread // BN * TM", "thread // BN", "correct"),
    Mutant("B read once for a whole tile", "b_tile[dot, col]", "b_tile[0, col]", "correct"),
    Mutant("row and column of A's tile swapped", "a_tile[row + i, dot]", "a_tile[dot, row + i]", "in bounds"),
    Mutant("B's tile read at the matrix's row", "b_tile[dot, col]", "b_tile[k0 + dot, col]", "in bounds"),
    Mutant("one step too many", "while dot < BK", "while dot <= BK", "in bounds"),
    Mutant("one step too few", "while dot < BK", "while dot < BK - 1", "correct"),
    Mutant("the step forgotten", "            dot += 1\n", "", "ends"),
    Mutant("next tile one column over", "k0 += BK", "k0 += 1", "in bounds"),
    Mutant("a barrier for one warp", BARRIER + "        k0",
           "        if thread < 32: cuda.syncthreads()\n        k0", "no races"),
    Mutant("one result not stored", STORE, STORE.replace("range(TM)", "range(TM - 1)"), "correct"),
    Mutant("results stored along a row", "c[row0 + row + i, col0 + col]", "c[row0 + row, col0 + col + i]",
           "no races"),
    Mutant("the block's row forgotten", "c[row0 + row + i,", "c[row + i,", "no races"),
    Mutant("steps as long as A is high", "while k0 < a.shape[1]", "while k0 < a.shape[0]", "in bounds"),
    Mutant("results as integers", "acc = cuda.local.array(TM, float32)",
           "acc = cuda.local.array(TM, int32)", "correct"),
    Mutant("a warp down the rows", "thread // BN * TM, thread % BN",
           "thread % (BM // TM) * TM, thread // (BM // TM)", "sectors of C"),
    Mutant("TM neighbors in a row", SOLUTIONS["a row that is spread"],
           replaced(SOLUTIONS["a row that is spread"], ("thread % (BN // TM)", "thread % (BN // TM) * TM"),
                    ("col + j * (BN // TM)", "col + j")), "sectors of C", of="a row that is spread"),
    Mutant("the element of B never read", "            b_value = b_tile[dot, col]\n", "", "compiles"),
    Mutant("A and B read for each result", "for i in range(TM): acc[i] += a_tile[row + i, dot] * b_value",
           "for i in range(TM): acc[i] += a_tile[row + i, dot] * b_tile[dot, col]", "shared reads"),
    Mutant("results in float64", "acc = cuda.local.array(TM, float32)",
           "acc = cuda.local.array(TM, np.float64)", "float64"),
    Mutant("a range around the range", INNER, """        for dot in range(BK):
            b_value = b_tile[dot, col]
            for i in range(TM): acc[i] += a_tile[row + i, dot] * b_value
""", "instructions"),
    Mutant("A read from global memory", "acc[i] += a_tile[row + i, dot] * b_value",
           "acc[i] += a[row0 + row + i, k0 + dot] * b_value", "global reads"),
    Mutant("each thread starts at a different result", "acc[i] += a_tile[row + i, dot]",
           "acc[(i + col) % TM] += a_tile[row + (i + col) % TM, dot]", "local memory"),
)


EXERCISES = (Exercise(
    key="04",
    name="my_1d",
    constants=dict(BM=32, BN=32, BK=8, TM=4, THREADS=256),  # a copy of one element per thread needs BM = BN
    compiled=dict(BM=64, BN=64, BK=8, TM=8,
                  THREADS=512),   # with few results the compiler treats both loops alike
    cases=(matmul_case(64, 32, 32, 256, (1, 2)),
           matmul_case(16, 24, 8, 32, (3, 2), dict(BM=8, BN=8, BK=4, TM=2, THREADS=32))),
    goals=(two_barriers(4),
           Goal("global reads", global_reads(32 * 32 * 32), most=1 / 32 + 1 / 32, unit="per multiply-add",
                hint="read the factors from the tiles, not from a and b"),
           Goal("shared reads", shared_reads(32 * 32 * 32), most=1 + 1 / 4, unit="per multiply-add",
                hint="read the element of B once, before the loop over the results"),
           Goal("sectors of C", lambda view: view.site("c", "store"), most=4, unit="sectors per request",
                hint="neighboring threads should have neighboring columns of C"),
           Goal("local memory", lambda code: code.spills, most=0, unit="loads and stores", counted="code",
                hint="loop over acc with range(TM), so that every index is a constant once unrolled"),
           NO_FLOAT64,
           Goal("instructions", instructions, most=2.5, unit="in the main loop per FFMA", counted="code",
                hint="with a range around range(TM), this compiler unrolls only two steps and loads A one "
                     "element at a time: write the loop over the steps with while")),
    hints={
        "in bounds": (
            "you need no guard, since all sizes fit: row and col stay within the tile, i below TM and dot "
            "below BK; row0, col0 and k0 are for A, B and C only"),
        "all written: acc[": "set all TM elements of acc to zero before the first tile",
        "all written": "put a barrier between filling the tiles and reading them",
        "no races: with no flag": (
            "two blocks store the same element of C: does its row begin at row0, and its column at col0?"),
        "no races: race: c[": (
            "does each element of C belong to one thread? thread // BN counts rows of threads, and each "
            "covers TM rows of C"),
        "no races: was read by": BETWEEN,
        "no races: is read by": BETWEEN,
        "correct: never written": (
            "a row of threads covers TM rows of C: where does the next one begin? And does each thread store "
            "all TM results?"),
        "correct: in the wrong places": (
            "each of these sums belongs in another element of C: is an i missing from an index, or the "
            "block's row0 or col0?"),
        "correct": (
            "compare with lesson 3, this kernel with TM = 1: which indices need an i? And acc is set "
            "to zero once, before the first tile; each of the BK steps of every tile adds to it")},
    solutions=SOLUTIONS,
    mutants=MUTANTS,
    short=("kernels 3 and 4 at 4096, short", "short_1d"),
    launch=lambda m, n: ((n // 64, m // 64), 512)),)
