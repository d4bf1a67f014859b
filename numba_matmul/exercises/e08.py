"""What `grade("08", my_padded)` expects of a kernel, what it accepts, and what it must catch.

`grade("08", my_padded)` runs the kernel with three sets of sizes: 64×64×8 tiles with 4×8 results per
thread in one block, 32×32×4 with 4×8 in six blocks, and 128×128×4 with 16×8 in one. The tiles are called
`a_tile` and `b_tile`. No float64 is allowed, and six goals are counted:

- **barriers per tile**: two, once the tiles are full and once all threads have read them.
- **stores of A**: a warp stores 128 elements of A's tile, so four wavefronts are enough. Without padding it
  takes eight.
- **sectors of A**: sixteen per request. There are other ways to copy A without a bank conflict, but some
  cost more in global memory than they save here.
- **loads of B**: eight wavefronts for the eight columns of each thread of a warp, where kernel 6 needs
  sixteen.
- **narrow loads**: from shared memory, in the machine code. There are none if the rows of both tiles begin at
  multiples of 16 bytes, since the compiler then reads four neighbors at once.
- **width**: of the narrowest access to global memory, in the machine code. Four neighbors of A or B are
  loaded at once, and four of C are stored at once.
"""
from ..exercise import NO_FLOAT64, Exercise, Goal, Mutant, matmul_case
from ..kernels.k08_bank_conflicts_padding import short_padded
from ..source import reference_of, replaced
from .e03 import two_barriers
from .e04 import OF_THE_LOOP
from .e05 import IN_FLOAT64, stored_early
from .e06 import width
from .e07 import OF_BLOCKS, SIZES, TWO_BARRIERS, loads_of, stores_of


REFERENCE = "WIDE = BM + 4\n\n" + reference_of(short_padded, "my_padded")


STORE = "        for q in range(4): a_tile[a_col + q, a_row] = x[q]\n"
COLUMNS = "            for j in range(TN): reg_n[j] = b_tile[dot, col + j // 4 * GAP + j % 4]\n"
C_PLACE = "(row0 + row + i, col0 + col + j // 4 * GAP)"

def narrow_loads(code):
    "Loads of fewer than 128 bits from shared memory, in the main loop."
    return code.mix.get("LDS 32", 0) + code.mix.get("LDS 64", 0)

def changed(*pairs): return replaced(REFERENCE, *pairs)

SOLUTIONS = {
    "reference": REFERENCE,
    "12 words": changed(("WIDE = BM + 4", "WIDE = BM + 12")),
    "with the elements by name": changed((STORE, """        p, q, r, s = x
        a_tile[a_col, a_row] = p
        a_tile[a_col + 1, a_row] = q
        a_tile[a_col + 2, a_row] = r
        a_tile[a_col + 3, a_row] = s
""")),
    "the two groups by name": changed((COLUMNS, """            for j in range(4):
                reg_n[j] = b_tile[dot, col + j]
                reg_n[4 + j] = b_tile[dot, col + GAP + j]
""")),
    "B's rows padded by four as well": changed(
        ("WIDE = BM + 4", "WIDE, WIDE_B = BM + 4, BN + 4"),
        ("b_tile = cuda.shared.array((BK, BN)", "b_tile = cuda.shared.array((BK, WIDE_B)")),
    "columns loaded with load4": changed((COLUMNS, """            for group in range(2):
                x = load4(b_tile, (dot, col + group * GAP))
                for q in range(4): reg_n[4 * group + q] = x[q]
""")),
    "rows 4 to 7 in another order, no padding": changed(  # a swizzle
        ("WIDE = BM + 4", "WIDE = BM"), ("a_tile[a_col + q, a_row]", "a_tile[a_col + q, a_row ^ a_col * 4]"),
        ("            for i in range(TM): reg_m[i] = a_tile[dot, row + i]\n", """
            for i in range(0, TM, 4):
                x = load4(a_tile, (dot, (row + i) ^ dot // 4 * 16))
                for q in range(4): reg_m[i + q] = x[q]
""")),
}


STORES = REFERENCE[REFERENCE.rindex("    for i in range(TM):"):]


MUTANTS = (
    *stored_early(REFERENCE), *OF_THE_LOOP, IN_FLOAT64,
    Mutant("a barrier between the copies", "        store4(b_tile, ",
           "        cuda.syncthreads()\n        store4(b_tile, ", "barriers per tile"),
    Mutant("a number for BK in the loop", "while dot < BK", "while dot < 8", "in bounds"),
    Mutant("a number for BK in the step", "k0 += BK", "k0 += 8", "correct"),
    Mutant("a number for TM", "thread // (BN // TN) * TM,", "thread // (BN // TN) * 4,", "correct"),
    Mutant("a number for BM", "cuda.blockIdx.y * BM", "cuda.blockIdx.y * 64", "in bounds"),
    Mutant("added to what C held", STORES, """    for i in range(TM):
        for j in range(TN): c[row0 + row + i, col0 + col + j // 4 * GAP + j % 4] += acc[i, j]
""", "correct"),
    Mutant("a row of 68 words, right for one tile", "WIDE = BM + 4", "WIDE = 68", "in bounds"),
    Mutant("the four not passed one by one", "*load4(b", "load4(b", "compiles"),
    Mutant("not written", STORE, "        ...\n", "written"),
    Mutant("not transposed", "a_tile[a_col + q, a_row]", "a_tile[a_row, a_col + q]", "in bounds"),
    Mutant("one place for all four", "a_tile[a_col + q, a_row]", "a_tile[a_col, a_row]", "all written"),
    Mutant("the fourth element left out", STORE, STORE.replace("range(4)", "range(3)"), "all written"),
    Mutant("stored past the padding", "a_tile[a_col + q, a_row]", "a_tile[a_col + q, a_row + 4]",
           "all written"),
    Mutant("read past the padding", "a_tile[dot, row + i]", "a_tile[dot, row + i + 4]", "all written"),
    Mutant("the first row in each step", "a_tile[dot, row + i]", "a_tile[0, row + i]", "correct"),
    Mutant("the first group twice", "col + j // 4 * GAP + j % 4", "col + j % 4", "correct"),
    Mutant("a thread's column of results", "a_tile[dot, row + i]", "a_tile[dot, col + i]", "correct"),
    Mutant("threads in a row by TN", "thread // (BN // TN) * TM, thread % (BN // TN) * 4",
           "thread // TN * TM, thread % TN * 4", "in bounds"),
    Mutant("A's tile not aligned", "cuda.shared.array((BK, WIDE), float32, alignment=16)",
           "cuda.shared.array((BK, WIDE), float32)", "aligned",
           of="rows 4 to 7 in another order, no padding"),
    Mutant("B's tile not aligned", "cuda.shared.array((BK, BN), float32, alignment=16)",
           "cuda.shared.array((BK, BN), float32)", "aligned"),
    Mutant("one word of padding", "WIDE = BM + 4", "WIDE = BM + 1", "stores of A"),
    Mutant("two words", "WIDE = BM + 4", "WIDE = BM + 2", "stores of A"),
    Mutant("five words", "WIDE = BM + 4", "WIDE = BM + 5", "stores of A"),
    Mutant("a row too short", "WIDE = BM + 4", "WIDE = BM // 2 - 4", "in bounds"),
    Mutant("the same columns of A for each tile", "(row0 + a_row, k0 + a_col)", "(row0 + a_row, a_col)",
           "correct"),
    Mutant("the first block's rows", "(row0 + a_row, k0 + a_col)", "(a_row, k0 + a_col)", "correct"),
    Mutant("a load that starts anywhere", "a_col = thread // (BK // 4), thread % (BK // 4) * 4",
           "a_col = thread // (BK // 4), thread % (BK // 4)", "aligned"),
    Mutant("never ends", "        k0 += BK\n", "", "ends"),
    Mutant("no padding", "WIDE = BM + 4", "WIDE = BM", "stores of A"),
    Mutant("8 words", "WIDE = BM + 4", "WIDE = BM + 8", "stores of A"),
    Mutant("16 words", "WIDE = BM + 4", "WIDE = BM + 16", "stores of A"),
    Mutant("32 words", "WIDE = BM + 4", "WIDE = BM + 32", "stores of A"),
    Mutant("more rows, not longer ones", REFERENCE, changed(
        ("WIDE = BM + 4", "DEEP = BK + 4"), ("(BK, WIDE)", "(DEEP, BM)")), "stores of A"),
    Mutant("a thread's columns are neighbors, as in kernel 6", REFERENCE, changed(
        ("thread % (BN // TN) * 4", "thread % (BN // TN) * TN"), ("col + j // 4 * GAP + j % 4", "col + j"),
        (C_PLACE, "(row0 + row + i, col0 + col + j)")), "loads of B"),
    Mutant("the groups next to each other in the tile", "col + j // 4 * GAP + j % 4", "col + j", "correct"),
    Mutant("the groups next to each other in C", C_PLACE, "(row0 + row + i, col0 + col + j)", "no races"),
    Mutant("the threads still eight columns apart", "thread % (BN // TN) * 4", "thread % (BN // TN) * TN",
           "in bounds"),
    Mutant("the second group a row farther down", "b_tile[dot, col + j // 4 * GAP + j % 4]",
           "b_tile[dot + j // 4, col + j % 4]", "in bounds"),
    Mutant("groups of two", "col + j // 4 * GAP + j % 4", "col + j // 2 * GAP // 2 + j % 2", "in bounds"),
    Mutant("B padded in place of A", REFERENCE, changed(
        ("a_tile = cuda.shared.array((BK, WIDE)", "a_tile = cuda.shared.array((BK, BM)"),
        ("b_tile = cuda.shared.array((BK, BN)", "b_tile = cuda.shared.array((BK, WIDE)")), "stores of A"),
    Mutant("B padded by five as well", REFERENCE,
           changed(("WIDE = BM + 4", "WIDE, B_WIDE = BM + 4, BN + 5"),
                   ("b_tile = cuda.shared.array((BK, BN)", "b_tile = cuda.shared.array((BK, B_WIDE)"),
                   ("        store4(b_tile, (b_row, b_col), *load4(b, (k0 + b_row, col0 + b_col)))\n",
                    "        x = load4(b, (k0 + b_row, col0 + b_col))\n"
                    "        for q in range(4): b_tile[b_row, b_col + q] = x[q]\n")), "narrow loads"),
    Mutant("C stored one by one", """        for j in range(0, TN, 4):
            store4(c, (row0 + row + i, col0 + col + j // 4 * GAP),
                   acc[i, j], acc[i, j + 1], acc[i, j + 2], acc[i, j + 3])
""", """        for j in range(TN): c[row0 + row + i, col0 + col + j // 4 * GAP + j % 4] = acc[i, j]
""", "width"),
    Mutant("A copied one by one", STORE, STORE.replace("x[q]", "a[row0 + a_row, k0 + a_col + q]"),
           "width"),
    Mutant("a thread's rows spread over the tile", REFERENCE,
           changed(("thread // (BN // TN) * TM,", "thread // (BN // TN),"),
                   ("a_tile[dot, row + i]", "a_tile[dot, row + i * (BM // TM)]"),
                   ("row0 + row + i,", "row0 + row + i * (BM // TM),")), "narrow loads"),
    Mutant("a warp copies 32 rows", "a_col = thread // (BK // 4), thread % (BK // 4) * 4",
           "a_col = thread % BM, thread // BM * 4", "sectors of A"))


HINTS = {
    "correct: 64×96×8": SIZES,
    "correct: 128×128×4": SIZES,
    "correct: in the wrong places": (
        "the sums are right, but they belong in other columns or rows: are the columns that a thread reads "
        "from b_tile those that it stores to c, four at col and four at col + GAP? And the rows of "
        "a_tile?"),
    "correct: never written": (
        "a thread stores TM rows, and in each of them two groups of four, at col and at col + GAP"),
    "correct": (
        "follow one sum along k: does each k tile begin at k0, and is it multiplied once? Is row dot read "
        "in step dot? A[r, k] belongs in row k, column r of the tile. And which columns of B are a "
        "thread's second group?"),
    "in bounds: a_tile": (
        "a_tile[k, r] holds A[r, k]: BK rows, each with room for BM elements and the padding after them. "
        "Use the names, and make WIDE from BM: their values differ from launch to launch"),
    "in bounds: b_tile": (
        "the threads in a row share BN columns: their first groups of four are side by side in "
        "the left half, and the second groups are GAP farther right, in the same row. Use the names: "
        "their values differ from launch to launch"),
    "in bounds": OF_BLOCKS,
    "all written: reg_": (
        "a step fills all TM elements of reg_m and all TN of reg_n: does each get its value?"),
    "all written": (
        "each of the four elements of A that a thread copies goes into its own row of the tile, and "
        "what is stored in column x is read from column x. And all threads meet at a barrier between "
        "filling a tile and reading it"),
    "no races: was read by": TWO_BARRIERS,
    "no races: and is read by": TWO_BARRIERS,
    "no races: race: c[": (
        "two threads store the same element of C: a thread stores to the columns that it reads from b_tile"),
    "stores of A: keep that name": (
        "A goes to a_tile, in shared memory, and grade counts those stores by its name"),
    "loads of B: keep that name": (
        "reg_n is filled from b_tile, in shared memory, and grade counts those loads by its name")}

EXERCISES = (Exercise(
    "08", "my_padded",
    cases=(matmul_case(64, 64, 32, 128, 1),  # as in lesson 7, BM = BN and TN = 8
           matmul_case(64, 96, 8, 32, (3, 2), dict(BM=32, BN=32, BK=4, TM=4, TN=8, THREADS=32, GAP=16)),
           matmul_case(128, 128, 4, 128, 1, dict(BM=128, BN=128, BK=4, TM=16, TN=8, THREADS=128, GAP=64))),
    constants=dict(BM=64, BN=64, BK=8, TM=4, TN=8, THREADS=128, GAP=32),
    preamble="""from numba_matmul.ptx.core import load4, store4
BM, BN, BK, TM, TN = 128, 128, 8, 8, 8
GAP = BN // 2
""",
    goals=(two_barriers(4),
           Goal("stores of A", stores_of("a_tile", 4 * 4), most=4, unit="wavefronts per warp and tile",
                hint="which threads store to the same bank, and how many rows of the tile lie between their "
                     "places?"),
           Goal("sectors of A", lambda view: view.site("a", "load"), most=16, unit="sectors per request",
                hint="two neighboring threads should read eight neighbors of A, which is a whole sector"),
           Goal("loads of B", loads_of("b_tile", 4 * 4 * 8), most=8, unit="wavefronts per step of a warp",
                hint="eight adjacent threads read four neighbors each: are these 32 words in 32 "
                     "banks?"),
           Goal("narrow loads", narrow_loads, most=0, unit="from shared memory in the main loop",
                counted="code",
                hint="a row of a tile must begin at a multiple of 16 bytes, and a thread's elements must be "
                     "neighbors in it. The compiler must see both, and that no index can be negative, as an "
                     "int64 or a difference can. Where it doesn't, use load4"),
           Goal("width", width, least=128, unit="bits", counted="code",
                hint="the compiler never widens accesses to global memory: load A and B with load4, and "
                     "store C with store4, in groups of four neighbors"),
           NO_FLOAT64),
    hints=HINTS,
    solutions=SOLUTIONS, mutants=MUTANTS,
    short=("kernels 6 and 8 at 4096, short", "short_padded"),
    launch=lambda m, n: ((n // 128, m // 128), 256)),)
