"""What `grade("06", my_vectorized)` and `grade("06b", …)` ask of a kernel, accept, and must catch.

The kernel runs on random matrices with 32×32 tiles and 4×4 results per thread, so 64 threads copy each
tile in one pass. An access of four floats that doesn't begin at a multiple of 16 bytes ends the run, as it
would on a GPU. A correct kernel can still miss the point. Six counts show whether it does:

- **global reads**: each element of both tiles once, and nothing else.
- **sectors**: a warp that copies a tile requests 512 bytes at once. That's 16 sectors, if all of each sector
  is used.
- **copies**: all threads copy, so a warp makes one request for its part of A's tile, and one for its part of
  B's.
- **width**: the narrowest access to global memory in the machine code, which must be 128 bits. Four
  neighbors read one by one stay four loads.
- **spills**: nothing in local memory.
- **float64**: no such instructions in the main loop.

The shape of A's tile says that it's transposed. That isn't counted: with tiles this small the compiler finds
128-bit loads either way. With the lesson's tile it finds them only if A is transposed.

Fill a tile in one pass or in a loop, and compute the indices as you like.
"""
from dataclasses import replace

from ..exercise import NO_FLOAT64, Exercise, Goal, Mutant, matmul_case
from ..source import reference_of, replaced
from ..kernels.k06_vectorized import short_vectorized
from .e03 import BETWEEN, copies, global_reads, two_barriers
from .e04 import OF_THE_LOOP
from .e05 import IN_FLOAT64, stored_early


# What is counted

def sectors(view):
    "The load from global memory that touches the most sectors per request."
    loads = [site for site in view.merged() if (site.space, site.operation) == ("global", "load")]
    return max(loads, key=lambda site: site.cost)

def width(code):
    "Bits of the narrowest access to global memory, and its line."
    kinds = [(x.kind.split(), x.line) for x in code.instructions]
    return min(((int(kind[1]), line) for kind, line in kinds if kind[0] in ("LDG", "STG")), default=0)


REFERENCE = reference_of(short_vectorized, "my_vectorized")


COPY_A = ("        x = load4(a, (row0 + a_row, k0 + a_col))\n"
          "        for q in range(4): a_tile[a_col + q, a_row] = x[q]\n")
COPY_B = "        store4(b_tile, (b_row, b_col), *load4(b, (k0 + b_row, col0 + b_col)))\n"
ROW = "            for i in range(TM): reg_m[i] = a_tile[dot, row + i]\n"
COLUMN = "            for j in range(TN): reg_n[j] = b_tile[dot, col + j]\n"
SOLUTIONS = {
    "reference": REFERENCE,
    "the four by name": replaced(
        REFERENCE, (COPY_A, """        p, q, r, s = load4(a, (row0 + a_row, k0 + a_col))
        a_tile[a_col, a_row] = p
        a_tile[a_col + 1, a_row] = q
        a_tile[a_col + 2, a_row] = r
        a_tile[a_col + 3, a_row] = s
"""), (COPY_B, """        p, q, r, s = load4(b, (k0 + b_row, col0 + b_col))
        store4(b_tile, (b_row, b_col), p, q, r, s)
""")),
    "passes, for any number of threads": replaced(
        REFERENCE, ("    a_row, a_col = thread // (BK // 4), thread % (BK // 4) * 4\n"
                    "    b_row, b_col = thread // (BN // 4), thread % (BN // 4) * 4\n", ""),
        (COPY_A, """        for first in range(0, BM * BK, 4 * THREADS):
            at = first + 4 * thread
            x = load4(a, (row0 + at // BK, k0 + at % BK))
            for q in range(4): a_tile[at % BK + q, at // BK] = x[q]
"""), (COPY_B, """        for first in range(0, BK * BN, 4 * THREADS):
            at = first + 4 * thread
            store4(b_tile, (at // BN, at % BN), *load4(b, (k0 + at // BN, col0 + at % BN)))
""")),
    "B's tile stored one by one": replaced(
        REFERENCE, (COPY_B, """        y = load4(b, (k0 + b_row, col0 + b_col))
        for q in range(4): b_tile[b_row, b_col + q] = y[q]
""")),
    "wide loads of the factors": replaced(
        REFERENCE, (ROW, """            for i in range(0, TM, 4):
                x = load4(a_tile, (dot, row + i))
                for q in range(4): reg_m[i + q] = x[q]
"""), (COLUMN, """            for j in range(0, TN, 4):
                x = load4(b_tile, (dot, col + j))
                for q in range(4): reg_n[j + q] = x[q]
""")),
    "A's rows from the last": replaced(REFERENCE,
                                       ("a_row, a_col = thread", "a_row, a_col = BM - 1 - thread")),
    "the next four in registers": replaced(
        REFERENCE, (COPY_A + COPY_B, """        for q in range(4): a_tile[a_col + q, a_row] = x[q]
        store4(b_tile, (b_row, b_col), *y)
"""), ("    k0 = 0\n", """    k0 = 0
    x, y = load4(a, (row0 + a_row, a_col)), load4(b, (b_row, col0 + b_col))
"""),
        ("        dot = 0\n", """        if k0 + BK < a.shape[1]:
            x = load4(a, (row0 + a_row, k0 + BK + a_col))
            y = load4(b, (k0 + BK + b_row, col0 + b_col))
        dot = 0
""")),
    "both loads before both stores": replaced(
        REFERENCE, (COPY_A + COPY_B, """        x = load4(a, (row0 + a_row, k0 + a_col))
        y = load4(b, (k0 + b_row, col0 + b_col))
        for q in range(4): a_tile[a_col + q, a_row] = x[q]
        store4(b_tile, (b_row, b_col), y[0], y[1], y[2], y[3])
""")),
}


BARRIER = "        cuda.syncthreads()\n"
A_ROW, A_COL = "a_row, a_col = thread // (BK // 4)", "thread % (BK // 4) * 4"
B_ROW, B_COL = "b_row, b_col = thread // (BN // 4)", "thread % (BN // 4) * 4"
IN_A, IN_B = "load4(a, (row0 + a_row, k0 + a_col))", "load4(b, (k0 + b_row, col0 + b_col))"
ALONE = """        if thread == 0:
            for i in range(BM):
                for j in range(0, BK, 4):
                    x = load4(a, (row0 + i, k0 + j))
                    for q in range(4): a_tile[j + q, i] = x[q]
            for i in range(BK):
                for j in range(0, BN, 4): store4(b_tile, (i, j), *load4(b, (k0 + i, col0 + j)))
"""


STORES = REFERENCE[REFERENCE.rindex("    for i in range(TM):"):]


MUTANTS = (
    *OF_THE_LOOP, *stored_early(REFERENCE), IN_FLOAT64,
    Mutant("a barrier between the copies", "        store4(b_tile",
           "        cuda.syncthreads()\n        store4(b_tile", "barriers per tile"),
    Mutant("TM and TN exchanged", "thread // (BN // TN) * TM, thread % (BN // TN) * TN",
           "thread // (BN // TM) * TN, thread % (BN // TM) * TM", "in bounds"),
    Mutant("8 for BK in the loop", "while dot < BK", "while dot < 8", "in bounds"),
    Mutant("4 for TM", "(BN // TN) * TM", "(BN // TN) * 4", "correct"),
    Mutant("the four not passed one by one", "*load4(b", "load4(b", "compiles"),
    Mutant("added to what C held", STORES,
           "    for i in range(TM):\n"
           "        for j in range(TN): c[row0 + row + i, col0 + col + j] += acc[i, j]\n", "correct"),
    Mutant("one thread copies for all", COPY_A + COPY_B, ALONE, "copies"),
    Mutant("the dots left in", COPY_B, "        ...\n", "written"),
    Mutant("columns of A not times four", A_COL, "thread % (BK // 4)", "aligned"),
    Mutant("columns of B not times four", B_COL, "thread % (BN // 4)", "aligned"),
    Mutant("the first of four for all", "= x[q]", "= x[0]", "correct"),
    Mutant("k0 in the tile as well", "a_tile[a_col + q, a_row]", "a_tile[k0 + a_col + q, a_row]",
           "in bounds"),
    Mutant("next tile of A farther down", IN_A, "load4(a, (row0 + k0 + a_row, a_col))", "in bounds"),
    Mutant("four of A in one row of its tile, at once", COPY_A,
           f"        store4(a_tile, (a_col, a_row), *{IN_A})\n", "aligned"),
    Mutant("A copied in the first tile only", COPY_A,
           "        if k0 == 0:\n    " + COPY_A.replace("\n        for", "\n            for"), "correct"),
    Mutant("B copied twice", COPY_B, COPY_B + COPY_B, "global reads"),
    Mutant("loaded again for each of the four", COPY_A,
           f"        for q in range(4): a_tile[a_col + q, a_row] = {IN_A}[q]\n", "global reads"),
    Mutant("the place as two arguments", IN_A, "load4(a, row0 + a_row, k0 + a_col)", "compiles"),
    Mutant("one thread per column of A", A_COL, "thread % BK", "aligned"),
    Mutant("A read from its next column", IN_A, IN_A.replace("a_col", "a_col + 1"), "aligned"),
    Mutant("B stored one column to the right", "(b_row, b_col), *", "(b_row, b_col + 1), *", "aligned"),
    Mutant("rows of B's tile padded by one", "array((BK, BN)", "array((BK, 33)", "aligned"),
    Mutant("C stored from its next column", "col0 + col + j),", "col0 + col + j + 1),", "aligned"),
    Mutant("a row of A divided among BK threads", A_ROW, "a_row, a_col = thread // BK", "all written"),
    Mutant("a row of B divided among BN threads", B_ROW, "b_row, b_col = thread // BN", "all written"),
    Mutant("A's tile not transposed", "a_tile[a_col + q, a_row]", "a_tile[a_row, a_col + q]", "in bounds"),
    Mutant("all four of A in one place", "a_tile[a_col + q, a_row]", "a_tile[a_col, a_row]", "all written"),
    Mutant("four of A in one row of its tile", "a_tile[a_col + q, a_row]", "a_tile[a_col, a_row + q]",
           "no races"),
    Mutant("the four of A in reverse", "= x[q]", "= x[3 - q]", "correct"),
    Mutant("three of the four", "for q in range(4)", "for q in range(3)", "all written"),
    Mutant("B not copied", COPY_B, "", "all written"),
    Mutant("always the first tile of A", IN_A, IN_A.replace("k0 + ", ""), "correct"),
    Mutant("always the first tile of B", IN_B, IN_B.replace("k0 + ", ""), "correct"),
    Mutant("A without the block's row", IN_A, IN_A.replace("row0 + ", ""), "correct"),
    Mutant("B without the block's column", IN_B, IN_B.replace("col0 + ", ""), "correct"),
    Mutant("A with the block's column", IN_A, IN_A.replace("row0", "col0"), "in bounds"),
    Mutant("A's tile read as if not transposed", "a_tile[dot, row + i]", "a_tile[row + i, dot]", "in bounds"),
    Mutant("one more barrier for half of the threads", BARRIER + "        k0",
           "        if thread < 32: cuda.syncthreads()\n" + BARRIER + "        k0", "barriers"),
    Mutant("C in steps of one", "range(0, TN, 4)", "range(TN)", "in bounds"),
    Mutant("a warp down the rows of A", "a_row, a_col = thread // (BK // 4), thread % (BK // 4) * 4",
           "a_row, a_col = thread % BM, thread // BM * 4", "sectors"),
    Mutant("A read one by one", COPY_A,
           "        for q in range(4): a_tile[a_col + q, a_row] = a[row0 + a_row, k0 + a_col + q]\n",
           "width"),
    Mutant("B read one by one", COPY_B,
           "        for q in range(4): b_tile[b_row, b_col + q] = b[k0 + b_row, col0 + b_col + q]\n",
           "width"),
    Mutant("C stored one by one",
           "        for j in range(0, TN, 4):\n            store4(c, (row0 + row + i, col0 + col + j),\n"
           "                   acc[i, j], acc[i, j + 1], acc[i, j + 2], acc[i, j + 3])\n",
           "        for j in range(TN): c[row0 + row + i, col0 + col + j] = acc[i, j]\n", "width"),
    Mutant("each thread begins at a different row", "acc[i, j] += reg_m[i]",
           "acc[(i + thread) % TM, j] += reg_m[(i + thread) % TM]", "spills"),
)


# For any `BK`
#
# With `BK = 16` the tiles have twice as many elements as the threads copy at once, so they take two passes.
# The second case takes four passes for A and eight for B.

PASSES_A = """        for s in range(0, BM, THREADS // (BK // 4)):
            x = load4(a, (row0 + a_row + s, k0 + a_col))
            for q in range(4): a_tile[a_col + q, a_row + s] = x[q]
"""
PASSES_B = """        for s in range(0, BK, THREADS // (BN // 4)):
            store4(b_tile, (b_row + s, b_col), *load4(b, (k0 + b_row + s, col0 + b_col)))
"""
IN_PASSES = replaced(REFERENCE, (COPY_A, PASSES_A), (COPY_B, PASSES_B))
PASS_SOLUTIONS = {
    "reference": IN_PASSES,
    "from one element to the next": SOLUTIONS["passes, for any number of threads"],
    "with while": replaced(IN_PASSES, (PASSES_A, """        s = 0
        while s < BM:
            x = load4(a, (row0 + a_row + s, k0 + a_col))
            for q in range(4): a_tile[a_col + q, a_row + s] = x[q]
            s += THREADS // (BK // 4)
""")),
    "starting at the thread's own row": replaced(
        IN_PASSES, (PASSES_A, """        for row_a in range(a_row, BM, 4 * THREADS // BK):
            x = load4(a, (row0 + row_a, k0 + a_col))
            for q in range(4): a_tile[a_col + q, row_a] = x[q]
"""), (PASSES_B, """        for row_b in range(b_row, BK, 4 * THREADS // BN):
            store4(b_tile, (row_b, b_col), *load4(b, (k0 + row_b, col0 + b_col)))
""")),
    "columns of A in passes": replaced(
        IN_PASSES, (PASSES_A, """        for s in range(0, BK, THREADS // BM * 4):
            x = load4(a, (row0 + thread // (THREADS // BM), k0 + thread % (THREADS // BM) * 4 + s))
            for q in range(4): a_tile[thread % (THREADS // BM) * 4 + s + q, thread // (THREADS // BM)] = x[q]
""")),
    "columns of B in passes": replaced(
        IN_PASSES, (PASSES_B, """        for s in range(0, BN, THREADS // BK * 4):
            row_b, col_b = thread // (THREADS // BK), thread % (THREADS // BK) * 4 + s
            store4(b_tile, (row_b, col_b), *load4(b, (k0 + row_b, col0 + col_b)))
"""))}
AS_BEFORE = (
    "C stored in each tile", "C stored in each tile, but not by the first block", "added to what C held",
    "columns of A not times four", "each thread begins at a different row", "TM and TN exchanged")


PASS_MUTANTS = (
    *OF_THE_LOOP, IN_FLOAT64, *(mutant for mutant in MUTANTS if mutant.name in AS_BEFORE),
    Mutant("one thread copies for all", PASSES_A + PASSES_B, ALONE, "copies"),
    Mutant("a barrier in each pass over A", "a_row + s] = x[q]\n",
           "a_row + s] = x[q]\n            cuda.syncthreads()\n", "barriers per tile"),
    Mutant("a barrier in each pass over B", "k0 + b_row + s, col0 + b_col)))\n",
           "k0 + b_row + s, col0 + b_col)))\n            cuda.syncthreads()\n", "barriers per tile"),
    Mutant("BM for BN in the block's column", "cuda.blockIdx.x * BN", "cuda.blockIdx.x * BM", "correct"),
    Mutant("BM for BN in the rows of B", "thread // (BN // 4), thread % (BN // 4)",
           "thread // (BM // 4), thread % (BM // 4)", "in bounds"),
    Mutant("THREADS // BK for A's passes", "range(0, BM, THREADS // (BK // 4))",
           "range(0, BM, THREADS // BK)", "in bounds"),
    Mutant("two passes for A, however many it needs", "range(0, BM, THREADS // (BK // 4))",
           "range(0, 2 * THREADS // (BK // 4), THREADS // (BK // 4))", "all written"),
    Mutant("B copied twice", PASSES_B, PASSES_B + PASSES_B, "global reads"),
    Mutant("four times as far apart in the tile", "a_tile[a_col + q, a_row + s]",
           "a_tile[a_col + q, a_row + 4 * s]", "in bounds"),
    Mutant("64 for THREADS", "range(0, BM, THREADS // (BK // 4))", "range(0, BM, 64 // (BK // 4))",
           "all written"),
    Mutant("16 for BK in the loop", "while dot < BK", "while dot < 16", "correct"),
    Mutant("not written", PASSES_B, "        ...\n", "written"),
    Mutant("one pass for A", "range(0, BM, THREADS // (BK // 4))", "range(1)", "all written"),
    Mutant("one pass for B", "range(0, BK, THREADS // (BN // 4))", "range(1)", "all written"),
    Mutant("A's passes a row apart", "range(0, BM, THREADS // (BK // 4))", "range(BM)", "in bounds"),
    Mutant("B's passes a row apart", "range(0, BK, THREADS // (BN // 4))", "range(BK)", "in bounds"),
    Mutant("A's passes as far apart as B's", "range(0, BM, THREADS // (BK // 4))",
           "range(0, BM, THREADS // (BN // 4))", "in bounds"),
    Mutant("B's passes as far apart as A's", "range(0, BK, THREADS // (BN // 4))",
           "range(0, BK, THREADS // (BK // 4))", "all written"),
    Mutant("the same rows of A in each pass", "row0 + a_row + s", "row0 + a_row", "correct"),
    Mutant("the same rows of B in each pass", "k0 + b_row + s", "k0 + b_row", "correct"),
    Mutant("A's passes into the same place", "a_tile[a_col + q, a_row + s]", "a_tile[a_col + q, a_row]",
           "all written"),
    Mutant("B's passes into the same place", "(b_row + s, b_col), *", "(b_row, b_col), *", "all written"),
    Mutant("A's passes along its columns", "(row0 + a_row + s, k0 + a_col)", "(row0 + a_row, k0 + a_col + s)",
           "in bounds"),
    Mutant("B's passes along its columns", "(k0 + b_row + s, col0 + b_col)", "(k0 + b_row, col0 + b_col + s)",
           "in bounds"),
    Mutant("A's tile not transposed", "a_tile[a_col + q, a_row + s]", "a_tile[a_row + s, a_col + q]",
           "in bounds"),
    Mutant("A without the block's row", "row0 + a_row + s", "a_row + s", "correct"),
    Mutant("B's tile not aligned", "(BK, BN), float32, alignment=16)", "(BK, BN), float32)", "aligned"),
    Mutant("a warp down the rows of A",
           "thread // (THREADS // BM), k0 + thread % (THREADS // BM) * 4 + s))\n"
           "            for q in range(4): a_tile[thread % (THREADS // BM) * 4 + s + q, thread // (THREADS "
           "// BM)] = x[q]",
           "thread % BM, k0 + thread // BM * 4 + s))\n"
           "            for q in range(4): a_tile[thread // BM * 4 + s + q, thread % BM] = x[q]", "sectors",
           of="columns of A in passes"),
    Mutant("A read one by one",
           "            x = load4(a, (row0 + a_row + s, k0 + a_col))\n"
           "            for q in range(4): a_tile[a_col + q, a_row + s] = x[q]\n",
           "            for q in range(4): a_tile[a_col + q, a_row + s] = a[row0 + a_row + s, k0 + a_col + "
           "q]\n", "width"))


VECTORIZED = Exercise(
    key="06",
    name="my_vectorized",
    # a copy of four elements per thread needs BM = BN
    constants=dict(BM=32, BN=32, BK=8, TM=4, TN=4, THREADS=64),
    preamble="from numba_matmul.ptx.core import load4, store4\n",
    cases=(matmul_case(32, 32, 32, 64, 1),
           matmul_case(64, 32, 8, 32, (1, 2), dict(BM=32, BN=32, BK=4, TM=8, TN=4, THREADS=32)),
           matmul_case(32, 48, 8, 16, (3, 2), dict(BM=16, BN=16, BK=4, TM=4, TN=4, THREADS=16))),
    goals=(two_barriers(4),
           Goal("global reads", global_reads(32 * 32 * 32), most=1 / 32 + 1 / 32, unit="per multiply-add",
                hint="load each element of A and B once per tile: keep the four that load4 returns in a "
                     "variable"),
           Goal("sectors", sectors, most=16, unit="sectors per request",
                hint="two adjacent threads should read neighbors: together they fill a sector of 32 "
                     "bytes"),
           # two warps, four tiles; `width` tells 8 from 2
           Goal("copies", copies(2 * 4), most=8, unit="requests of a warp per tile",
                hint="let each thread copy four elements of A and four of B: then a warp makes one request "
                     "for each tile"),
           Goal("width", width, least=128, unit="bits", counted="code",
                hint="nobody promised the compiler that a matrix is aligned, so it never widens accesses to "
                     "global memory: call load4 and store4"),
           Goal("spills", lambda code: code.spills, most=0, unit="loads and stores of local memory",
                counted="code",
                hint="every index into reg_m, reg_n and acc must be a constant once the loops are unrolled"),
           NO_FLOAT64),
    hints={
        "compiles: load4() takes": "the place is one argument: load4(array, (row, column))",
        "in bounds: a_tile: index": (
            "a_tile has BK rows of BM elements: its first index is the column in A, its second the row"),
        "in bounds": (
            "you need no guard, since all sizes fit: A's tile begins at row0 and k0, B's at k0 and col0, "
            "and b_tile has BK rows of BN elements"),
        "all written": (
            "the threads, with four elements each, fill a tile exactly: which four are yours? And put a "
            "barrier between filling a tile and reading it"),
        "no races: was read by": BETWEEN,
        "no races: is read by": BETWEEN,
        "no races: written by": (
            "two threads fill the same place in a tile: the four elements of A go to four rows of one column "
            "of a_tile"),
        "correct: in the wrong places": (
            "each of these sums is right, but for a different element of C: is the block's row0 or col0 "
            "missing in a copy?"),
        "correct": (
            "follow one element of A and one of B in the second tile: where is it in the matrix, and where "
            "in the tile?")},
    solutions=SOLUTIONS,
    mutants=MUTANTS,
    short=("kernels 5 and 6 at 4096, short", "short_vectorized"),
    launch=lambda m, n: ((n // 128, m // 128), 256))
IN_TWO_PASSES = {
    "copies": dict(most=16, hint="let each thread copy four elements of A and of B in each of two passes"),
    "global reads": dict(measure=global_reads(32 * 32 * 64))}
EXERCISES = (VECTORIZED, replace(
    VECTORIZED, key="06b", constants=VECTORIZED.constants | dict(BK=16),
    solutions=PASS_SOLUTIONS, mutants=PASS_MUTANTS,
    cases=(matmul_case(32, 32, 64, 64, 1),
           matmul_case(48, 64, 64, 32, (2, 3), dict(BM=16, BN=32, BK=32, TM=2, TN=8, THREADS=32))),
    goals=tuple(replace(goal, **IN_TWO_PASSES.get(goal.name, {})) for goal in VECTORIZED.goals),
    hints=VECTORIZED.hints | {
        "in bounds: a_tile: index": (
            "a_tile has BK rows of BM elements: its first index is the column in A, its second the row. "
            "Where does the next pass begin?"),
        "in bounds": (
            "you need no guard, since all sizes fit: A's tile begins at row0 and k0, B's at k0 and col0, "
            "and b_tile has BK rows of BN elements. How many rows farther on is the next pass?"),
        "all written": (
            "a pass copies four elements per thread: how many rows farther on is the next one, and how many "
            "passes fill the tile? And put a barrier between filling a tile and reading it"),
        "correct: in the wrong places": (
            "each of these sums is right, but for a different element of C: is the block's row0 or col0, or "
            "the row where the pass begins, missing in a copy?"),
        "correct": (
            "follow one element of each pass in the second tile: where is it in the matrix, and where in the "
            "tile?")}))
