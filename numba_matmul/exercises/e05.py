"""What `grade("05", my_2d)` asks of a kernel, what it accepts, and what it must catch.

`grade("05", my_2d)` launches a kernel `my_2d(a, b, c)` on random matrices, with tiles of 32×16, 8 steps of k
and 4×2 results per thread. All sizes differ, so a mix-up of any two shows. Sizes fit the tile, so no guard is
needed.

Four goals are counted, besides the verdicts that every kernel must pass:

- **global reads**: each element of both tiles once, and nothing else.
- **shared reads**: what the threads read from shared memory per multiply-add, in the source. The outer
  product needs 1/`TM` + 1/`TN`. A kernel that keeps only one of the two in registers stays above 1.
- **local memory**: its loads and stores in the machine code. 8 results and 6 factors easily fit into
  registers, if every index into them is a constant once the loops are unrolled.
- **float64**: no such instructions in the main loop.

You choose how a thread's results lie in the tile: side by side, or spread over it. Both are among the
solutions below.
"""
from textwrap import indent

from ..exercise import NO_FLOAT64, Exercise, Goal, Mutant, matmul_case
from ..source import reference_of, replaced
from ..kernels.k05_2d_blocktiling import short_2d
from .e03 import BETWEEN, global_reads, two_barriers
from .e04 import OF_THE_LOOP, shared_reads


REFERENCE = reference_of(short_2d, "my_2d")


SOLUTIONS = {
    "reference": REFERENCE,
    "one factor of A at a time": replaced(
        REFERENCE, ("            for i in range(TM): reg_m[i] = a_tile[row + i, dot]\n", ""),
        ("    reg_m = cuda.local.array(TM, float32)\n", ""),
        ("                for j in range(TN): acc[i, j] += reg_m[i] * reg_n[j]",
         "                a_value = a_tile[row + i, dot]\n"
         "                for j in range(TN): acc[i, j] += a_value * reg_n[j]")),
    "columns outside": replaced(
        REFERENCE, ("            for i in range(TM):\n                for j in range(TN): acc[i, j] +=",
                    "            for j in range(TN):\n                for i in range(TM): acc[i, j] +=")),
    "results spread over the tile": replaced(
        REFERENCE, ("thread // (BN // TN) * TM, thread % (BN // TN) * TN",
                    "thread // (BN // TN), thread % (BN // TN)"),
        ("row + i", "row + i * (BM // TM)"), ("col + j", "col + j * (BN // TN)")),
    "threads numbered down the columns": replaced(
        REFERENCE, ("thread // (BN // TN) * TM, thread % (BN // TN) * TN",
                    "thread % (BM // TM) * TM, thread // (BM // TM) * TN")),
    "the next factors after the products": replaced(
        REFERENCE, ("        dot = 0\n        while dot < BK:\n", "        dot = 0\n"),
        ("            for i in range(TM): reg_m", "        for i in range(TM): reg_m"),
        ("            for j in range(TN): reg_n[j] = b_tile[dot, col + j]\n",
         "        for j in range(TN): reg_n[j] = b_tile[dot, col + j]\n        while dot < BK:\n"),
        ("            dot += 1\n", """            dot += 1
            if dot < BK:
                for i in range(TM): reg_m[i] = a_tile[row + i, dot]
                for j in range(TN): reg_n[j] = b_tile[dot, col + j]
""")),
    "steps unrolled": replaced(REFERENCE, ("        dot = 0\n", ""), ("            dot += 1\n", ""),
                               ("while dot < BK", "for dot in range(BK)")),
}


def stored_early(reference):
    "Mistakes: C is stored in each tile, by all blocks or by all but the first."
    step = "        k0 += BK\n"
    early = step + indent(reference[reference.rindex("    for i in range(TM):"):], "    ")
    others = early.replace("range(TM)", "range(TM * (cuda.blockIdx.x + cuda.blockIdx.y > 0))")
    return (Mutant("C stored in each tile", step, early, "one store each"),
            Mutant("C stored in each tile, but not by the first block", step, others, "one store each"))

IN_FLOAT64 = Mutant("results in float64", "acc = cuda.local.array((TM, TN), float32)",
                    "acc = cuda.local.array((TM, TN), np.float64)", "float64")
MUTANTS = (
    *OF_THE_LOOP, *stored_early(REFERENCE), IN_FLOAT64,
    Mutant("C stored in each step", "            dot += 1\n",
           "            dot += 1\n            for i in range(TM):\n"
           "                for j in range(TN): c[row0 + row + i, col0 + col + j] = acc[i, j]\n",
           "one store each"),
    Mutant("a barrier in each pass over A", "k0 + thread % BK]\n",
           "k0 + thread % BK]\n            cuda.syncthreads()\n", "barriers per tile"),
    Mutant("a barrier in each pass over B", "col0 + thread % BN]\n",
           "col0 + thread % BN]\n            cuda.syncthreads()\n", "barriers per tile"),
    Mutant("a barrier between the copies", "        for s in range(0, BK,",
           "        cuda.syncthreads()\n        for s in range(0, BK,", "barriers per tile"),
    Mutant("BM for BN in the block's column", "cuda.blockIdx.x * BN", "cuda.blockIdx.x * BM", "in bounds"),
    Mutant("8 for BK in the loop", "while dot < BK", "while dot < 8", "in bounds"),
    Mutant("4 for TM", "(BN // TN) * TM", "(BN // TN) * 4", "in bounds"),
    Mutant("64 for THREADS", "range(0, BM, THREADS // BK)", "range(0, BM, 64 // BK)", "all written"),
    Mutant("added to what C held", "col0 + col + j] = acc", "col0 + col + j] += acc", "correct"),
    Mutant("the block's square for the thread's", "c[row0 + row + i,", "c[row0 + i,", "no races"),
    Mutant("factors read once per tile",
           "            for i in range(TM): reg_m[i] = a_tile[row + i, dot]\n"
           "            for j in range(TN): reg_n[j] = b_tile[dot, col + j]\n",
           "            if dot == 0:\n                for i in range(TM): reg_m[i] = a_tile[row + i, dot]\n"
           "                for j in range(TN): reg_n[j] = b_tile[dot, col + j]\n", "correct"),
    Mutant("spread on the way in only", "a_tile[row + i, dot]", "a_tile[row // TM + i * (BM // TM), dot]",
           "correct"),
    Mutant("one barrier too many", "        k0 += BK\n", "        k0 += BK\n        cuda.syncthreads()\n",
           "barriers per tile"),
    Mutant("a row of results at once", "acc[i, j] +=", "acc[i] +=", "compiles"),
    Mutant("set to zero in each tile", "        cuda.syncthreads()\n        dot = 0\n",
           "        cuda.syncthreads()\n        for i in range(TM):\n"
           "            for j in range(TN): acc[i, j] = float32(0)\n        dot = 0\n", "correct"),
    Mutant("the dots left in", "acc[i, j] += reg_m[i] * reg_n[j]", "...", "written"),
    Mutant("a shape computed in the kernel", "acc = cuda.local.array((TM, TN)",
           "acc = cuda.local.array(TM * TN", "compiles"),
    Mutant("results not set to zero", "for j in range(TN): acc[i, j] = float32(0)", "pass", "all written"),
    Mutant("one column not set to zero", "for j in range(TN): acc[i, j] = float32(0)",
           "for j in range(TN - 1): acc[i, j] = float32(0)", "all written"),
    Mutant("only the last product kept", "acc[i, j] +=", "acc[i, j] =", "correct"),
    Mutant("results transposed", "acc[i, j] +=", "acc[j, i] +=", "in bounds"),
    Mutant("inner product", "reg_m[i] * reg_n[j]", "reg_m[i] * reg_n[i]", "in bounds"),
    Mutant("factors of A by column", "a_tile[row + i, dot]", "a_tile[row + dot, i]", "in bounds"),
    Mutant("factors of B by row", "b_tile[dot, col + j]", "b_tile[dot + j, col]", "in bounds"),
    Mutant("one factor of A for all rows", "reg_m[i] = a_tile[row + i, dot]", "reg_m[i] = a_tile[row, dot]",
           "correct"),
    Mutant("one factor of B not read", "for j in range(TN): reg_n[j]", "for j in range(TN - 1): reg_n[j]",
           "all written"),
    Mutant("one factor of A not multiplied",
           "            for i in range(TM):\n                for j in range(TN): acc",
           "            for i in range(1, TM):\n                for j in range(TN): acc", "correct"),
    Mutant("rows of threads TM too close", "thread // (BN // TN) * TM", "thread // (BN // TN)", "correct"),
    Mutant("columns of threads TN too close", "thread % (BN // TN) * TN", "thread % (BN // TN)", "correct"),
    Mutant("as many threads in a row as columns", "thread // (BN // TN) * TM, thread % (BN // TN) * TN",
           "thread // BN * TM, thread % BN * TN", "in bounds"),
    Mutant("a single pass for A's tile", "for s in range(0, BM, THREADS // BK)", "for s in range(0, 1)",
           "all written"),
    Mutant("a single pass for B's tile", "for s in range(0, BK, THREADS // BN)", "for s in range(0, 1)",
           "all written"),
    Mutant("passes that overlap", "for s in range(0, BM, THREADS // BK)", "for s in range(0, BM)",
           "in bounds"),
    Mutant("a step too many", "while dot < BK", "while dot <= BK", "in bounds"),
    Mutant("the step forgotten", "            dot += 1\n", "", "ends"),
    Mutant("a barrier for one warp", "        cuda.syncthreads()\n        k0",
           "        if thread < 32: cuda.syncthreads()\n        k0", "no races"),
    Mutant("stored without the block's column", "col0 + col + j] = acc", "col + j] = acc", "no races"),
    Mutant("one row not stored", "    for i in range(TM):\n        for j in range(TN): c[",
           "    for i in range(TM - 1):\n        for j in range(TN): c[", "correct"),
    Mutant("threads across counted by rows", "thread // (BN // TN) * TM, thread % (BN // TN) * TN",
           "thread // (BM // TM) * TM, thread % (BM // TM) * TN", "in bounds"),
    Mutant("TM and TN swapped", "thread // (BN // TN) * TM, thread % (BN // TN) * TN",
           "thread // (BN // TM) * TM, thread % (BN // TM) * TN", "in bounds"),
    Mutant("TM for BK in the steps", "while dot < BK", "while dot < TM", "correct"),
    Mutant("BK for TM in the results", "for i in range(TM): reg_m[i]", "for i in range(BK): reg_m[i]",
           "in bounds"),
    Mutant("factors read from A and B themselves", "reg_m[i] = a_tile[row + i, dot]",
           "reg_m[i] = a[row0 + row + i, k0 + dot]", "global reads"),
    Mutant("both tiles read for each product", "reg_m[i] * reg_n[j]",
           "a_tile[row + i, dot] * b_tile[dot, col + j]", "shared reads"),
    Mutant("A's tile read for each product", "reg_m[i] * reg_n[j]", "a_tile[row + i, dot] * reg_n[j]",
           "shared reads"),
    Mutant("factors of B read again for each row",
           "                for j in range(TN): acc[i, j] += reg_m",
           "                for j in range(TN): reg_n[j] = b_tile[dot, col + j]\n"
           "                for j in range(TN): acc[i, j] += reg_m", "shared reads"),
    Mutant("each thread starts at a different row", "acc[i, j] += reg_m[i]",
           "acc[(i + thread) % TM, j] += reg_m[(i + thread) % TM]", "local memory"),
)


EXERCISES = (Exercise(
    key="05",
    name="my_2d",
    # all different, so that a mix-up of any two shows
    constants=dict(BM=32, BN=16, BK=8, TM=4, TN=2, THREADS=64),
    cases=(matmul_case(32, 32, 32, 64, (2, 1)),
           matmul_case(48, 64, 8, 32, (2, 3), dict(BM=16, BN=32, BK=4, TM=2, TN=8, THREADS=32))),
    goals=(two_barriers(4),
           Goal("global reads", global_reads(32 * 16 * 32), most=1 / 32 + 1 / 16, unit="per multiply-add",
                hint="read the factors from the tiles, not from a and b"),
           Goal("shared reads", shared_reads(32 * 16 * 32), most=1 / 4 + 1 / 2, unit="per multiply-add",
                hint="read each factor once per step, into reg_m or reg_n: the products then touch "
                     "registers only"),
           Goal("local memory", lambda code: code.spills, most=0, unit="loads and stores", counted="code",
                hint="loop over acc with range(TM) and range(TN), so that every index is a constant once "
                     "unrolled"),
           NO_FLOAT64),
    hints={
        "in bounds": (
            "you need no guard, since all sizes fit: row and col stay within the tile, i below TM, j below "
            "TN and dot below BK; row0, col0 and k0 are for A, B and C only"),
        "compiles: a slice": "acc has two indices, and each product is one value: acc[i, j] += …",
        "all written: acc[": "set all TM × TN elements of acc to zero before the first tile",
        "all written: reg_": "fill all of reg_m and reg_n in each step, before the products",
        "all written": (
            "put a barrier between filling the tiles and reading them. And do the passes fill the whole "
            "tile?"),
        "no races: with no flag": (
            "two blocks store the same element of C: does its row begin at row0, and its column at col0?"),
        "no races: race: c[": (
            "each element of C belongs to one thread: BN // TN threads form a row of threads, and that row "
            "covers TM rows of C"),
        "no races: was read by": BETWEEN,
        "no races: is read by": BETWEEN,
        "correct: never written": (
            "a square begins at a multiple of TM and a multiple of TN: which thread owns this element, and "
            "does it store its whole square?"),
        "correct: in the wrong places": (
            "each of these sums belongs in another element of C: is i, j, row0 or col0 missing from an "
            "index, or are the results spread in one place but not in another?"),
        "correct": (
            "which row of A and which column of B does acc[i, j] belong to? And each of the BK steps of "
            "every tile adds to it")},
    solutions=SOLUTIONS,
    mutants=MUTANTS,
    short=("kernels 4 and 5 at 4096, short", "short_2d"),
    launch=lambda m, n: ((n // 128, m // 128), 256)),)
