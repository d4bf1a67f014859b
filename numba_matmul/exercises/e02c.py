"""What `grade("02c", my_transpose)` asks of a kernel, what it accepts, and what it must catch.

The threads of a block are numbered in one dimension, and there are fewer of them than a tile has elements; in
the last case their number doesn't divide the tile, so in the last round some have none. The goals: one
barrier, each element read once, and both global accesses along rows. How many wavefronts shared memory takes
isn't judged: that comes in lessons 7 and 8.
"""
import numpy as np
from ..exercise import Case, Exercise, Goal, Mutant


def transpose_case(m, n, rows, cols, threads):
    def make(random):
        x = random.standard_normal((m, n)).astype(np.float32)
        return (x, np.full((n, m), np.nan, np.float32)), {1: x.T.astype(np.float64)}
    return Case(f"{m}×{n}", (threads,), (n // cols, m // rows), make,
                constants=dict(ROWS=rows, COLS=cols, THREADS=threads))

def turns(array):
    "Requests to an array in global memory, in all rounds, by each of the eight warps of block 0."
    return lambda view: sum(site.requests for site in view.merged() if site.array == array) / 8

# the reference's two loops, with the beginning of their bodies
RANGE = "cuda.threadIdx.x, ROWS * COLS, THREADS"
LOADING, STORING = (f"for i in range({RANGE}):\n        {order} =" for order in ("row, col", "col, row"))

EXERCISES = (Exercise(
    "02c", "my_transpose", preamble="WIDE, ALL = COLS + 2, ROWS * COLS\n",
    constants=dict(ROWS=16, COLS=64, THREADS=256),
    cases=(transpose_case(16, 128, 16, 64, 256), transpose_case(16, 72, 8, 24, 32),
           transpose_case(30, 14, 5, 7, 32)),
    goals=(Goal("one barrier", lambda counts: counts.barriers, most=1, unit="barriers", counted="launches",
                hint="the whole tile is written before the barrier and read after it, so one is enough; put "
                     "it between the loops"),
           Goal("loads", turns("x"), most=4, unit="requests per warp",
                hint="1,024 elements for 256 threads: each thread loads four, all of them different"),
           Goal("stores", turns("out"), most=4, unit="requests per warp",
                hint="1,024 elements for 256 threads: each thread stores four, all of them different"),
           Goal("sectors of x", lambda view: view.site("x", "load"), most=4, unit="sectors per request",
                hint="in one round, threads i and i + 1 should load neighbors in a row of x"),
           Goal("sectors of out", lambda view: view.site("out", "store"), most=4,
                unit="sectors per request",
                hint="in one round, threads i and i + 1 should store neighbors in a row of out: number the "
                     "elements along the rows of out, which have ROWS elements in this tile")),
    hints={
        "in bounds": (
            "row runs up to ROWS, col up to COLS, i up to ROWS * COLS; x is indexed by row and col, out by "
            "col and row"),
        "all written": (
            "does every element of the tile get its value, and is there a barrier between the two loops? A "
            "block has a tile of its own, so i starts at threadIdx.x and goes up by THREADS"),
        "no races": (
            "does each thread have elements of its own, and do all threads pass one barrier, between the "
            "loops?"),
        "barriers": "put the barrier between the two loops: inside one, some threads finish early",
        "ends": "i goes up by THREADS in each round",
        "correct: never written": (
            "i starts at the thread's index, goes up by THREADS, and ends before ROWS * COLS; the tile's "
            "corner in out is at [left, top]"),
        "correct: in the wrong places": (
            "the tile comes from x[top + row, left + col] and goes to out[left + col, top + row], and there "
            "it has COLS rows of ROWS elements: what do you divide by?"),
        "correct": "out[left + col, top + row] is tile[row, col]"},
    solutions={"reference": """@cuda.jit
def my_transpose(x, out):
    tile = cuda.shared.array((ROWS, COLS), float32)
    top, left = cuda.blockIdx.y * ROWS, cuda.blockIdx.x * COLS
    for i in range(cuda.threadIdx.x, ROWS * COLS, THREADS):
        row, col = divmod(i, COLS)
        tile[row, col] = x[top + row, left + col]
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, ROWS * COLS, THREADS):
        col, row = divmod(i, ROWS)
        out[left + col, top + row] = tile[row, col]
""", "while loops, // and %": """@cuda.jit
def my_transpose(x, out):
    tile = cuda.shared.array((ROWS, COLS), float32)
    i = cuda.threadIdx.x
    while i < ROWS * COLS:
        tile[i // COLS, i % COLS] = x[cuda.blockIdx.y * ROWS + i // COLS, cuda.blockIdx.x * COLS + i % COLS]
        i += THREADS
    cuda.syncthreads()
    i = cuda.threadIdx.x
    while i < ROWS * COLS:
        out[cuda.blockIdx.x * COLS + i // ROWS, cuda.blockIdx.y * ROWS + i % ROWS] = tile[i % ROWS, i // ROWS]
        i += THREADS
""", "transposed on the way in": """@cuda.jit
def my_transpose(x, out):
    turned = cuda.shared.array((COLS, ROWS), float32)
    top, left = cuda.blockIdx.y * ROWS, cuda.blockIdx.x * COLS
    for i in range(cuda.threadIdx.x, turned.size, cuda.blockDim.x):
        row, col = divmod(i, COLS)
        turned[col, row] = x[top + row, left + col]
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, turned.size, cuda.blockDim.x):
        row, col = divmod(i, ROWS)
        out[left + row, top + col] = turned[row, col]
""", "a flat tile": """@cuda.jit
def my_transpose(x, out):
    tile = cuda.shared.array(ALL, float32)
    t, top, left = cuda.threadIdx.x, cuda.blockIdx.y * ROWS, cuda.blockIdx.x * COLS
    for turn in range((ALL + THREADS - 1) // THREADS):
        i = turn * THREADS + t
        if i < ALL: tile[i] = x[top + i // COLS, left + i % COLS]
    cuda.syncthreads()
    for turn in range((ALL + THREADS - 1) // THREADS):
        i = turn * THREADS + t
        if i < ALL: out[left + i // ROWS, top + i % ROWS] = tile[i % ROWS * COLS + i // ROWS]
""", "padded rows, from the end": """@cuda.jit
def my_transpose(x, out):
    tile = cuda.shared.array((ROWS, WIDE), float32)
    top, left = cuda.blockIdx.y * ROWS, cuda.blockIdx.x * COLS
    i = ALL - 1 - cuda.threadIdx.x
    while i >= 0:
        row, col = divmod(i, COLS)
        tile[row, col] = x[top + row, left + col]
        i -= THREADS
    cuda.syncthreads()
    i = ALL - 1 - cuda.threadIdx.x
    while i >= 0:
        col, row = divmod(i, ROWS)
        out[left + col, top + row] = tile[row, col]
        i -= THREADS
"""},
    mutants=(
        Mutant("not written", "        col, row = divmod(i, ROWS)\n", "        ...\n", "written"),
        Mutant("no barrier", "    cuda.syncthreads()\n", "", "all written"),
        Mutant("a barrier for the warp only", "cuda.syncthreads()", "cuda.syncwarp()", "no races"),
        Mutant("a barrier in each round", "        tile[row, col] = x[top + row, left + col]\n"
               "    cuda.syncthreads()\n",
               "        tile[row, col] = x[top + row, left + col]\n        cuda.syncthreads()\n", "no races"),
        Mutant("a barrier before the loops, too", "    top, left =",
               "    cuda.syncthreads()\n    top, left =", "one barrier"),
        Mutant("one element per thread loaded", LOADING, LOADING.replace("ROWS * COLS, ", ""), "all written"),
        Mutant("one element per thread stored", STORING, STORING.replace("ROWS * COLS, ", ""), "correct"),
        Mutant("all elements by all threads", LOADING, LOADING.replace(RANGE, "ROWS * COLS"), "one writer"),
        Mutant("the loop ends too early", STORING, STORING.replace("COLS,", "COLS - THREADS,"), "correct"),
        Mutant("the same number of rounds for all", LOADING, LOADING.replace(
            f"i in range({RANGE}):", "turn in range(-(-ROWS * COLS // THREADS)):\n"
            "        i = cuda.threadIdx.x + turn * THREADS"), "in bounds"),
        Mutant("only full rounds", LOADING, LOADING.replace(
            f"i in range({RANGE}):", "turn in range(ROWS * COLS // THREADS):\n"
            "        i = cuda.threadIdx.x + turn * THREADS"), "all written"),
        Mutant("steps of 1", LOADING, LOADING.replace(", THREADS", ""), "one writer"),
        Mutant("steps of a row", LOADING, LOADING.replace("THREADS", "COLS"), "one writer"),
        Mutant("no step", LOADING, LOADING.replace(
            f"for i in range({RANGE}):", "i = cuda.threadIdx.x\n    while i < ROWS * COLS:"), "ends"),
        Mutant("divided by the number of rows", "divmod(i, COLS)", "divmod(i, ROWS)", "in bounds"),
        Mutant("row and col swapped", "row, col = divmod(i, COLS)", "col, row = divmod(i, COLS)",
               "in bounds"),
        Mutant("divided by the number of threads", "divmod(i, COLS)", "divmod(i, THREADS)", "in bounds"),
        Mutant("a 64 for COLS", "divmod(i, COLS)", "divmod(i, 64)", "in bounds"),
        Mutant("a float as the quotient", "row, col = divmod(i, COLS)", "row, col = i / COLS, i % COLS",
               "compiles"),
        Mutant("not transposed", "out[left + col, top + row] = tile[row, col]",
               "out[top + row, left + col] = tile[row, col]", "in bounds"),
        Mutant("the corner not transposed", "out[left + col, top + row]", "out[top + col, left + row]",
               "in bounds"),
        Mutant("every block stores at the corner", "out[left + col, top + row]", "out[col, row]", "no races"),
        Mutant("every block reads the corner", "x[top + row, left + col]", "x[row, col]", "correct"),
        Mutant("the tile transposed twice", "= tile[row, col]", "= tile[col % ROWS, row]", "correct"),
        Mutant("the block's x counts rows", "top, left = cuda.blockIdx.y * ROWS, cuda.blockIdx.x * COLS",
               "top, left = cuda.blockIdx.x * ROWS, cuda.blockIdx.y * COLS", "in bounds"),
        Mutant("stored along the rows of x", "col, row = divmod(i, ROWS)", "row, col = divmod(i, COLS)",
               "sectors of out"),
        Mutant("loaded along the columns of x", "row, col = divmod(i, COLS)", "col, row = divmod(i, ROWS)",
               "sectors of x"),
        Mutant("each thread takes its own neighbors", "        row, col = divmod(i, COLS)\n",
               "        turns = ROWS * COLS // THREADS\n"
               "        if turns * THREADS == ROWS * COLS: i = i % THREADS * turns + i // THREADS\n"
               "        row, col = divmod(i, COLS)\n", "sectors of x"),
        Mutant("shared memory left out", "= tile[row, col]", "= x[top + row, left + col]", "loads"),
        Mutant("one thread loads the tile", LOADING,
               LOADING.replace(RANGE, "ROWS * COLS * (cuda.threadIdx.x == 0)"), "loads"),
        Mutant("one thread stores the tile", STORING,
               STORING.replace(RANGE, "ROWS * COLS * (cuda.threadIdx.x == 0)"), "stores")
    )),)
