"""What `grade("07", my_linearized)` and `grade("07b", my_wide)` expect, accept, and must catch.

`grade("07", my_linearized)` runs the kernel with three sets of sizes, small enough for the simulator: tiles
of 64×64×4 with 8×8 results per thread in one block, 64×64×8 with 4×8 in two blocks side by side, and
128×128×4 with 16×8 in two blocks one below the other. So a number where a name belongs doesn't
pass. Any order in shared memory will do, as long as the array is called `b_tile`. No float64 is allowed, and
three goals are counted:

- **barriers per tile**: two, once the tiles are full and once all threads have read them.
- **loads of B**: the wavefronts that a warp needs for its elements of B in one step, whatever the loads'
  width. A warp needs 64 different words, in two 128-bit loads or eight 32-bit ones, and either way eight
  wavefronts are enough. Kernel 6's order needs 16.
- **instructions**: how many the main loop has per multiply-add, in the machine code. If each thread reads its
  columns in an order of its own, there are no conflicts either. But then the index into `reg_n` differs from
  thread to thread, and registers can't be indexed.

`grade("07b", my_wide)` asks for more: two 128-bit loads of B per step (**loads per step**, from the machine
code, which counts two of A as well), and no conflict when the tile is filled (**stores of B**, four
wavefronts for a warp's one 128-bit request).
"""
from ..exercise import NO_FLOAT64, Exercise, Goal, Mutant, matmul_case
from ..kernels.k07_bank_conflicts_linearize import short_linearized
from ..source import reference_of, replaced
from .e03 import two_barriers
from .e04 import OF_THE_LOOP, instructions
from .e05 import IN_FLOAT64, stored_early


# How the goals are counted
#
# A block of the first case has 2 warps, 4 tiles along k and 4 steps in each.

# While it is graded, a page's names have these values.
# A copy of four elements per thread needs BM = BN, and two groups of four TN = 8.
CONSTANTS = dict(BM=64, BN=64, BK=4, TM=8, TN=8, THREADS=64, ACROSS=8)
WARPS, TILES, STEPS = 2, 4, 4  # of a block of the first case

def of_shared(view, array, operation):
    "The places that load from, or store to, an array in shared memory."
    found = [site for site in view.merged() if site.space == "shared"
             and (site.array, site.operation) == (array, operation)]
    if not found:
        where = "from" if operation == "load" else "to"
        raise ValueError(f"nothing {operation}s {where} a shared array called {array}: keep that name")
    return found

def loads_of(array, steps=WARPS * TILES * STEPS):
    "Wavefronts that a warp needs in one step; `steps`: of all warps of a block."
    return lambda view: sum(s.passes for s in of_shared(view, array, "load")) / steps

def stores_of(array, parts=WARPS * TILES):
    "Wavefronts that a warp needs to fill its part of a tile; `parts`: those of a block."
    return lambda view: sum(s.passes for s in of_shared(view, array, "store")) / parts

def loads_a_step(code):
    "Loads from shared memory for one step of a thread, in the main loop."
    loads = sum(number for kind, number in code.mix.items() if kind.startswith("LDS"))
    return loads * CONSTANTS["TM"] * CONSTANTS["TN"] / max(1, code.mix.get("FFMA", 0))


PREAMBLE = """from numba_matmul.ptx.core import load4, store4
BM, BN, BK, TM, TN = 128, 128, 8, 8, 8
THREADS, ACROSS = 256, 16
"""
REFERENCE = reference_of(short_linearized, "my_linearized")
SHAPE = "cuda.shared.array((BK, TN, ACROSS), float32)"
FILL = "        for q in range(4): b_tile[b_row, (b_col + q) % TN, (b_col + q) // TN] = x[q]\n"
READ = "            for j in range(TN): reg_n[j] = b_tile[dot, j, col // TN]\n"

def with_order(shape, fill, read, source=REFERENCE):
    "The same kernel with another order in shared memory."
    return replaced(source, (SHAPE, shape), (FILL, fill), (READ, read))


WIDE_READ = """            for j in range(0, TN, 4):
                x = load4(b_tile, (dot, col + j))
                for q in range(4): reg_n[j + q] = x[q]
"""
WIDE_ORDER = (  # columns 0 to 3 of each thread, then its columns 4 to 7
    "cuda.shared.array((BK, 2, HALF), float32, alignment=16)",
    "        store4(b_tile, (b_row, b_col // 4 % 2, b_col // 8 * 4), x[0], x[1], x[2], x[3])\n")
WIDE = with_order(
    *WIDE_ORDER, WIDE_READ.replace("(dot, col + j)", "(dot, j // 4, col // 2)"))
SOLUTIONS = {
    "reference": REFERENCE,
    "wide loads of A": replaced(REFERENCE, (
        "            for i in range(TM): reg_m[i] = a_tile[dot, row + i]\n",
        """            for i in range(0, TM, 4):
                x = load4(a_tile, (dot, row + i))
                for q in range(4): reg_m[i + q] = x[q]
""")),
    "flat, the place by a formula": "FLAT = BK * BN\n" + with_order(
        "cuda.shared.array(FLAT, float32)",
        """        for q in range(4):
            column = b_col + q
            b_tile[b_row * BN + column % TN * ACROSS + column // TN] = x[q]
""", "            for j in range(TN): reg_n[j] = b_tile[dot * BN + j * ACROSS + thread % ACROSS]\n"),
    "element 0 of all rows, then element 1": with_order(
        "cuda.shared.array((TN, BK, ACROSS), float32)",
        FILL.replace("b_row, (b_col + q) % TN, ", "(b_col + q) % TN, b_row, "),
        READ.replace("dot, j, ", "j, dot, ")),
    "padded between rows": with_order(
        "cuda.shared.array((BK, TN, 20), float32)", FILL, READ),
    "two halves, 128 bits": "HALF = BN // 2\n" + WIDE,
    "groups of four in an array of four dimensions": "GROUPS = TN // 4\n" + with_order(
        "cuda.shared.array((BK, GROUPS, ACROSS, 4), float32, alignment=16)",
        "        store4(b_tile, (b_row, b_col % TN // 4, b_col // TN, 0), *x)\n",
        WIDE_READ.replace("(dot, col + j)", "(dot, j // 4, col // TN, 0)")),
}


PLAIN = ("cuda.shared.array((BK, BN), float32, alignment=16)",
         "        store4(b_tile, (b_row, b_col), x[0], x[1], x[2], x[3])\n")

def other_order(name, shape, fill, read, verdict):
    "A mutant that changes the order everywhere."
    return Mutant(name, REFERENCE, with_order(shape, fill, read), verdict)


STORES = REFERENCE[REFERENCE.rindex("    for i in range(TM):"):]
CHEATS = (
    *stored_early(REFERENCE), *OF_THE_LOOP,
    Mutant("the same rows of B for each tile", "(k0 + b_row, col0 + b_col)", "(b_row, col0 + b_col)",
           "correct"),
    Mutant("a barrier between the copies", "        x = load4(b, ",
           "        cuda.syncthreads()\n        x = load4(b, ", "barriers per tile"),
    Mutant("a number for BK in the loop", "while dot < BK", "while dot < 4", "correct"),
    Mutant("a number for BK in the step", "k0 += BK", "k0 += 8", "correct"),
    Mutant("a number for TM", "thread // (BN // TN) * TM,", "thread // (BN // TN) * 8,", "in bounds"),
    Mutant("a number for BM", "cuda.blockIdx.y * BM", "cuda.blockIdx.y * 64", "correct"),
    Mutant("added to what C held", STORES,
           "    for i in range(TM):\n"
           "        for j in range(TN): c[row0 + row + i, col0 + col + j] += acc[i, j]\n", "correct"))


MUTANTS = (
    *CHEATS, IN_FLOAT64,
    Mutant("not written", READ, "            ...\n", "written"),
    Mutant("row and place swapped in the store", "(b_col + q) % TN, (b_col + q) // TN",
           "(b_col + q) // TN, (b_col + q) % TN", "in bounds"),
    Mutant("row and place swapped in the load", "dot, j, col // TN", "dot, col // TN, j", "in bounds"),
    Mutant("one place for all four", "(b_col + q) % TN, (b_col + q) // TN", "b_col % TN, b_col // TN",
           "all written"),
    Mutant("the fourth element left out", FILL, FILL.replace("range(4)", "range(3)"), "all written"),
    Mutant("all rows of B in one", "b_tile[b_row, (b_col", "b_tile[0, (b_col", "no races"),
    Mutant("the first row in each step", "b_tile[dot, j,", "b_tile[0, j,", "correct"),
    Mutant("a number for ACROSS, right in the first launch", "j, col // TN]", "j, thread % 8]", "correct"),
    Mutant("the four in reverse", FILL, FILL.replace("x[q]", "x[3 - q]"), "correct"),
    Mutant("B loaded again, one by one", FILL, FILL.replace("x[q]", "b[k0 + b_row, col0 + b_col + q]"),
           "instructions"),
    Mutant("a thread's column, not its number", "j, col // TN]", "j, col]", "in bounds"),
    Mutant("the thread's row of results", "j, col // TN]", "j, thread // ACROSS]", "in bounds"),
    Mutant("threads and columns swapped where it is filled", "(b_col + q) % TN, (b_col + q) // TN",
           "(b_col + q) % ACROSS, (b_col + q) // ACROSS", "in bounds"),
    Mutant("threads and columns swapped in the shape", "(BK, TN, ACROSS)", "(BK, ACROSS, TN)", "in bounds"),
    Mutant("the thread's number by TN", "j, col // TN]", "j, thread % TN]", "correct"),
    Mutant("A's tile not aligned", "cuda.shared.array((BK, BM), float32, alignment=16)",
           "cuda.shared.array((BK, BM), float32)", "aligned", of="wide loads of A"),
    Mutant("the same element for all columns", "b_tile[dot, j, col // TN]", "b_tile[dot, 0, col // TN]",
           "correct"),
    Mutant("every thread reads thread 0's elements", "b_tile[dot, j, col // TN]", "b_tile[dot, j, 0]",
           "correct"),
    Mutant("a tile with too few rows", "(BK, TN, ACROSS)", "(4, TN, ACROSS)", "in bounds"),
    Mutant("a barrier for those with few rows", "        cuda.syncthreads()\n        dot",
           "        if row < BM // 2: cuda.syncthreads()\n        dot", "all written"),
    Mutant("the first block's columns", "(k0 + b_row, col0 + b_col)", "(k0 + b_row, b_col)", "correct"),
    Mutant("a load that starts anywhere", "b_col = thread // (BN // 4), thread % (BN // 4) * 4",
           "b_col = thread // (BN // 4), thread % (BN // 4)", "aligned"),
    Mutant("never ends", "            dot += 1\n", "", "ends"),
    other_order("kernel 6's order", *PLAIN, WIDE_READ, "loads of B"),
    other_order("kernel 6's order, read one by one", *PLAIN,
                "            for j in range(TN): reg_n[j] = b_tile[dot, col + j]\n", "loads of B"),
    other_order("padding after each row", "cuda.shared.array((BK, 132), float32, alignment=16)", PLAIN[1],
                WIDE_READ, "loads of B"),
    other_order("transposed", "cuda.shared.array((BN, BK), float32)",
                "        for q in range(4): b_tile[b_col + q, b_row] = x[q]\n",
                "            for j in range(TN): reg_n[j] = b_tile[col + j, dot]\n", "loads of B"),
    other_order("a thread's elements side by side", "cuda.shared.array((BK, ACROSS, TN), float32)",
                "        for q in range(4): b_tile[b_row, (b_col + q) // TN, (b_col + q) % TN] = x[q]\n",
                "            for j in range(TN): reg_n[j] = b_tile[dot, col // TN, j]\n", "loads of B"),
    other_order("another order of reading in each thread", *PLAIN, """            for j in range(TN):
                turned = (j + thread) % TN
                reg_n[turned] = b_tile[dot, col + turned]
""", "instructions"))


WIDE_PADDED = WIDE.replace("my_linearized", "my_wide")
PADDED = "HALF = BN // 2 + 16\n"
WIDE_SOLUTIONS = {
    "reference": PADDED + WIDE_PADDED,
    "the second half in another order": "HALF = BN // 2\n" + WIDE_PADDED.replace(
        "b_col // 8 * 4)", "(b_col // 8 ^ b_col // 4 % 2 * 4) * 4)").replace(
        "col // 2)", "(thread % ACROSS ^ j) * 4)"),
    "read one by one": PADDED + with_order(
        *WIDE_ORDER, "            for j in range(TN): reg_n[j] = b_tile[dot, j // 4, col // 2 + j % 4]\n"
    ).replace("my_linearized", "my_wide"),
    "one row, its second half farther on": "ROW = BN + 16\n" + with_order(
        "cuda.shared.array((BK, ROW), float32, alignment=16)",
        "        store4(b_tile, (b_row, b_col % TN // 4 * (BN // 2 + 16) + b_col // TN * 4), *x)\n",
        WIDE_READ.replace("(dot, col + j)", "(dot, j // 4 * (BN // 2 + 16) + col // TN * 4)")
    ).replace("my_linearized", "my_wide"),
    "other columns for each thread": with_order(
        *PLAIN, WIDE_READ.replace("col + j", "col + j * ACROSS"),
        replaced(REFERENCE, ("thread % (BN // TN) * TN", "thread % (BN // TN) * 4"),
                 ("col0 + col + j", "col0 + col + j * ACROSS"))
    ).replace("my_linearized", "my_wide"),
}

def other_wide_order(name, shape, fill, read, verdict):
    "A mutant that changes the order everywhere."
    return Mutant(name, WIDE_SOLUTIONS["reference"],
                  with_order(shape, fill, read).replace("my_linearized", "my_wide"), verdict)


WIDE_MUTANTS = (
    *CHEATS,
    Mutant("not written", "x = load4(b_tile, (dot, j // 4, col // 2))", "...", "written"),
    Mutant("halves swapped in the load", "(dot, j // 4, col // 2)", "(dot, 1 - j // 4, col // 2)", "correct"),
    Mutant("always the first half", "(dot, j // 4, col // 2)", "(dot, 0, col // 2)", "correct"),
    Mutant("the second four over the first", "reg_n[j + q] = x[q]", "reg_n[q] = x[q]", "all written"),
    Mutant("j, not the half", "(dot, j // 4, col // 2)", "(dot, j, col // 2)", "in bounds"),
    Mutant("a thread's number, not its words", "(dot, j // 4, col // 2)", "(dot, j // 4, col // TN)",
           "aligned"),
    Mutant("the first column, not the first word", "(dot, j // 4, col // 2)", "(dot, j // 4, col)",
           "all written"),
    Mutant("the first row in each step", "(dot, j // 4, col // 2)", "(0, j // 4, col // 2)", "correct"),
    Mutant("all rows of B in one", "(b_row, b_col // 4 % 2,", "(0, b_col // 4 % 2,", "no races"),
    Mutant("stored at a group's number", "b_col // 8 * 4)", "b_col // 8)", "aligned"),
    Mutant("left and right half of the tile", "b_col // 4 % 2, b_col // 8 * 4",
           "b_col // (BN // 2), b_col % (BN // 2)", "correct"),
    Mutant("both halves in one", "b_col // 4 % 2, b_col // 8 * 4", "0, b_col // 8 * 4", "no races"),
    Mutant("rows of 81 words", "HALF = BN // 2 + 16", "HALF = BN // 2 + 17", "aligned"),
    Mutant("a tile that is not aligned", "HALF), float32, alignment=16)", "HALF), float32)", "aligned"),
    Mutant("a number in place of the name, right for one tile", "HALF = BN // 2 + 16", "HALF = 48",
           "in bounds"),
    Mutant("no padding between the halves", "HALF = BN // 2 + 16", "HALF = BN // 2", "stores of B"),
    Mutant("8 words of padding", "HALF = BN // 2 + 16", "HALF = BN // 2 + 8", "stores of B"),
    other_wide_order("kernel 6's order", *PLAIN, WIDE_READ, "loads of B"),
    other_wide_order("kernel 7's order", SHAPE, FILL, READ, "stores of B"),
    Mutant("a thread's columns far apart", WIDE_SOLUTIONS["reference"],
           replaced(with_order(
               *PLAIN, "            for j in range(TN): reg_n[j] = b_tile[dot, col + j * ACROSS]\n"),
                    ("my_linearized", "my_wide"), ("thread % (BN // TN) * TN", "thread % (BN // TN)"),
                    (STORES, """    for i in range(TM):
        for j in range(TN): c[row0 + row + i, col0 + col + j * ACROSS] = acc[i, j]
""")), "loads per step"))


CASES = (matmul_case(64, 64, 16, 64, 1),
         matmul_case(64, 128, 16, 128, (2, 1), dict(BM=64, BN=64, BK=8, TM=4, TN=8, THREADS=128, ACROSS=8)),
         matmul_case(256, 128, 4, 128, (1, 2),
                     dict(BM=128, BN=128, BK=4, TM=16, TN=8, THREADS=128, ACROSS=16)))
SIZES = ("the previous launch was right, but this one has other sizes or more blocks: is there a number "
         "where a name belongs, or a name that had the same value there? And is every index into a, b and c "
         "relative to the block's corner, row0 and col0?")
TWO_BARRIERS = ("a k tile needs two barriers that all threads reach: one once the tiles are full, and one "
                "once all threads have read them")
OF_BLOCKS = ("the rows of a block begin at row0, from blockIdx.y, its columns at col0, from blockIdx.x, and "
             "a k tile at k0: is each of them where it belongs?")
HINTS = {
    f"correct: {CASES[1].name}": SIZES, f"correct: {CASES[2].name}": SIZES,
    "correct: in the wrong places": "the sums are right, but they belong in other columns or rows. Follow "
                                    "one column of B: where in b_tile does it go, which thread reads it "
                                    "there, and as which of its own columns?",
    "correct": "follow one sum along k: does each k tile begin at k0, and is each of its BK steps "
               "multiplied once? Is row dot read in step dot? Then follow B[k, x]: where does it go, and "
               "which thread reads it?",
    "in bounds: b_tile": "go through the indices one by one: what does each count, and does the shape have "
                         "the same dimensions in the same order? Use names, not numbers: BK, TN and "
                         "ACROSS differ from launch to launch",
    "in bounds: a_tile": "the page's lines for A are right as they are: did you replace BK, BM or TM with a "
                         "number, or with another name?",
    "in bounds": OF_BLOCKS,
    "all written: reg_": "a step fills all TM elements of reg_m and all TN of reg_n: does each get its "
                         "value?",
    "all written: b_tile": "a thread copies four elements of B: each needs a place of its own, and is read "
                           "from where it was stored, after a barrier",
    "all written": "another thread stores this element: do all threads meet at a barrier between that and "
                   "the first read?",
    "no races: was read by": TWO_BARRIERS, "no races: and is read by": TWO_BARRIERS,
    "loads of B: keep that name": "reg_n is filled from b_tile, in shared memory, and grade counts those "
                                  "loads by its name",
    "stores of B: keep that name": "B goes to b_tile, in shared memory, and grade counts those stores by "
                                   "its name"}

EXERCISES = (Exercise(
    "07", "my_linearized", cases=CASES, constants=CONSTANTS, preamble=PREAMBLE, hints=HINTS,
    goals=(two_barriers(TILES),
           Goal("loads of B", loads_of("b_tile"), most=8, unit="wavefronts per step of a warp",
                hint="which words do threads 0, 1, 2 … read at the same time? Put those next to one another"),
           NO_FLOAT64,
           Goal("instructions", instructions, most=1.55, unit="in the main loop per FFMA",
                counted="code",
                hint="reg_n stays in registers only if the compiler knows every index into it. And does "
                     "the loop do anything it doesn't need to, such as loading from global memory twice?")),
    solutions=SOLUTIONS, mutants=MUTANTS,
    short=("kernels 6 and 7 at 4096, short", "short_linearized"),
    launch=lambda m, n: ((n // 128, m // 128), 256)),
    Exercise(
    "07b", "my_wide", cases=CASES, constants=CONSTANTS, preamble=PREAMBLE, hints=HINTS,
    goals=(two_barriers(TILES),
           Goal("loads of B", loads_of("b_tile"), most=8, unit="wavefronts per step of a warp",
                hint="a quarter of a warp, 8 threads, is served at a time: its 32 words must be in 32 "
                     "banks"),
           Goal("loads per step", loads_a_step, most=4, unit="instructions, of A and of B", counted="code",
                hint="a 128-bit load needs four neighbors, and the compiler must see that they're neighbors: "
                     "which four columns of a thread stay together? Where a formula hides it, as ^ does, "
                     "call load4"),
           Goal("stores of B", stores_of("b_tile"), most=4, unit="wavefronts per warp and tile",
                hint="eight neighboring threads store 32 neighbors of B: where does every second group of "
                     "four go, and what would move it by 16 banks? And store all four with one store4")),
    solutions=WIDE_SOLUTIONS, mutants=WIDE_MUTANTS,
    launch=lambda m, n: ((n // 128, m // 128), 256)))
