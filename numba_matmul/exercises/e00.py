"""What `grade("00a", my_saxpy)` and `grade("00b", my_scale_rows)` ask of a kernel, accept, and must catch.

Both kernels run on sizes that don't fit the block, in blocks of several shapes and with more threads than
elements. The output starts as NaN, so an element that nobody writes shows up. The data is random, and a
reference in float64 says what the result must be. The inputs are read-only.

There's one more goal. A single thread could walk through the whole array, and the result would be correct.
But then the other threads would have nothing to do. So each thread has to store one element, and a warp
stores those of all its threads with one instruction.
"""
import numpy as np
from ..exercise import Case, Exercise, Goal, Mutant


def saxpy_case(length, threads, blocks):
    def make(random):
        x, y = random.standard_normal((2, length)).astype(np.float32)
        alpha = np.float32(random.uniform(1.5, 3))
        out = np.full(length, np.nan, np.float32)
        return (alpha, x, y, out), {3: float(alpha) * x.astype(np.float64) + y}
    many = f"{length} element{'s' * (length > 1)}"
    return Case(f"{many}, {blocks} blocks of {threads}", (threads,), (blocks,), make)

def rows_case(shape, block, grid):
    def make(random):
        x, factors = (random.standard_normal(size).astype(np.float32) for size in (shape, shape[0]))
        return (x, factors, np.full(shape, np.nan, np.float32)), {2: factors[:, None] * x.astype(np.float64)}
    def text(numbers): return "×".join(map(str, numbers))
    return Case(f"{text(shape)}, {text(grid)} blocks of {text(block)}", block, grid, make)

def stores(view):
    "Stores to `out` of the one warp of block 0."
    return sum(s.requests for s in view.merged() if (s.array, s.operation) == ("out", "store"))

ONE_EACH = Goal("one each", stores, most=1, least=1, unit="stores per thread",
                hint="each thread stores only its own element, and stores it once")
HINTS = {  # of both
    "compiles: np.": "numpy works on whole arrays, on the host; a thread computes with single values",
    "compiles: setting an array element": "this stores a whole array where a single element belongs",
    "compiles: a slice": "a thread computes one element: index the arrays instead of slicing them",
    "in bounds: is negative": (
        "which index does the first thread use? A negative one would count from the array's end"),
    "correct: was changed": "the kernel may only write to out",
    "one writer": "each element belongs to one thread, and a thread without an element does nothing",
    "one store each": "compute the whole result first, then store it once"}


SAXPY = Exercise(
    "00a", "my_saxpy",
    cases=(saxpy_case(10, 4, 3), saxpy_case(37, 4, 12), saxpy_case(1, 32, 2)),
    goals=(ONE_EACH,),
    hints=HINTS | {
        "compiles: 2 indices": "cuda.grid(1) returns one number, cuda.grid(2) a pair",
        "in bounds": (
            "there are more threads than elements, and the last element is out.shape[0] - 1: which threads "
            "pass your guard, and with which index?"),
        "no races: with no flag": (
            "two blocks write to one element: each thread has an i of its own, from cuda.grid(1)"),
        "no races: written by": (
            "two threads write to one element: each has an i of its own, from cuda.grid(1)"),
        "correct: never written": (
            "which thread stores this element? cuda.grid(1) counts through all blocks, from 0"),
        "correct: in the wrong places": (
            "the values are right, but they're in the wrong places: do x, y and out have the same index?"),
        "correct": "out[i] = alpha · x[i] + y[i], with the same i in all three"},
    solutions={"reference": """@cuda.jit
def my_saxpy(alpha, x, y, out):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = alpha * x[i] + y[i]
""", "by hand, and a return": """@cuda.jit
def my_saxpy(alpha, x, y, out):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i >= len(x): return
    out[i] = y[i] + x[i] * alpha
""", "a loop, for a grid that's too small": """@cuda.jit
def my_saxpy(alpha, x, y, out):
    i = cuda.grid(1)
    while i < out.size:
        out[i] = alpha * x[i] + y[i]
        i += cuda.gridsize(1)
""", "with a device function": """@cuda.jit(device=True)
def both(alpha, x, y): return alpha * x + y

@cuda.jit
def my_saxpy(alpha, x, y, out):
    n = len(out)
    for i in range(cuda.grid(1), n, cuda.gridsize(1)): out[i] = both(alpha, x[i], y[i])
""", "from the end": """@cuda.jit
def my_saxpy(alpha, x, y, out):
    i = out.shape[0] - 1 - cuda.grid(1)
    if i >= 0: out[i] = alpha * x[i] + y[i]
"""},
    mutants=(
        Mutant("not written", "out[i] = alpha * x[i] + y[i]", "...", "written"),
        Mutant("no guard", "if i < out.shape[0]:", "if True:", "in bounds"),
        Mutant("<= in the guard", "i < out", "i <= out", "in bounds"),
        Mutant("a guard for the place in the block", "if i <", "if cuda.threadIdx.x <", "in bounds"),
        Mutant("the last element left out", "out.shape[0]:", "out.shape[0] - 1:", "correct"),
        Mutant("the first element left out", "if i <", "if 0 < i <", "correct"),
        Mutant("counted from 1", "i = cuda.grid(1)", "i = cuda.grid(1) + 1", "correct"),
        Mutant("the guard after the use", "    if i < out.shape[0]:\n        out[i] = alpha * x[i] + y[i]",
               "    value = alpha * x[i] + y[i]\n    if i < out.shape[0]: out[i] = value", "in bounds"),
        Mutant("a return for only the first thread past the end", "    if i < out.shape[0]:\n        out",
               "    if i == out.shape[0]: return\n    if True:\n        out", "in bounds"),
        Mutant("a negative index", "x[i]", "x[-i]", "in bounds"),
        Mutant("idle threads compute the last element, too", "i = cuda.grid(1)",
               "i = min(cuda.grid(1), out.shape[0] - 1)", "one writer"),
        Mutant("a barrier inside the guard", "        out[i]", "        cuda.syncthreads()\n        out[i]",
               "barriers"),
        Mutant("the guard reversed", "if i <", "if not i <", "in bounds"),
        Mutant("a return for those who have work", "if i < out.shape[0]:\n        out",
               "if i < out.shape[0]: return\n    if True:\n        out", "in bounds"),
        Mutant("place in the block, not in the grid", "cuda.grid(1)", "cuda.threadIdx.x", "correct"),
        Mutant("the block's number alone", "cuda.grid(1)", "cuda.blockIdx.x", "correct"),
        Mutant("the place in the block left out", "cuda.grid(1)", "cuda.blockIdx.x * cuda.blockDim.x",
               "correct"),
        Mutant("the grid's size as the block's", "cuda.grid(1)",
               "cuda.blockIdx.x * cuda.gridDim.x + cuda.threadIdx.x", "correct"),
        Mutant("block and thread swapped", "cuda.grid(1)",
               "cuda.threadIdx.x * cuda.blockDim.x + cuda.blockIdx.x", "correct"),
        Mutant("y for x in the grid", "cuda.grid(1)",
               "cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y", "correct"),
        Mutant("a pair of numbers", "cuda.grid(1)", "cuda.grid(2)", "compiles"),
        Mutant("alpha left out", "alpha * x[i]", "x[i]", "correct"),
        Mutant("alpha applied to y", "alpha * x[i] + y[i]", "x[i] + alpha * y[i]", "correct"),
        Mutant("alpha times the sum", "alpha * x[i] + y[i]", "alpha * (x[i] + y[i])", "correct"),
        Mutant("alpha as an integer", "alpha * x", "int32(alpha) * x", "correct"),
        Mutant("minus y", "+ y[i]", "- y[i]", "correct"),
        Mutant("whole arrays", "alpha * x[i] + y[i]", "alpha * x + y", "compiles"),
        Mutant("the neighbor of x", "x[i]", "x[i + 1]", "in bounds"),
        Mutant("x at the place in the block", "x[i]", "x[cuda.threadIdx.x]", "correct"),
        Mutant("stored at the place in the block", "out[i] =", "out[cuda.threadIdx.x] =", "no races"),
        Mutant("all into one element", "out[i] =", "out[0] =", "no races"),
        Mutant("idle threads compute the first element, too", "    if i < out.shape[0]:\n",
               "    if i >= out.shape[0]: i = 0\n    if True:\n", "one writer"),
        Mutant("added to what out held", "out[i] =", "out[i] +=", "correct"),
        Mutant("the result stored in y", "out[i] = alpha", "y[i] = alpha", "correct"),
        Mutant("a result is returned", "out[i] = alpha * x[i] + y[i]", "return alpha * x[i] + y[i]",
               "compiles"),
        Mutant("every thread does all", "if i < out.shape[0]:", "for i in range(out.shape[0]):",
               "one writer"),
        Mutant("one thread does all", "    if i < out.shape[0]:\n        out[i] = alpha * x[i] + y[i]",
               "    if i == 0:\n        for j in range(out.shape[0]): out[j] = alpha * x[j] + y[j]",
               "one each"),
        Mutant("the last thread does all", "    if i < out.shape[0]:\n        out[i] = alpha * x[i] + y[i]",
               "    if i == cuda.gridsize(1) - 1:\n"
               "        for j in range(out.shape[0]): out[j] = alpha * x[j] + y[j]", "one each"),
        Mutant("one thread of each block", "    if i < out.shape[0]:\n        out[i] = alpha * x[i] + y[i]",
               "    if cuda.threadIdx.x == 0:\n"
               "        for j in range(i, min(i + cuda.blockDim.x, out.shape[0])):\n"
               "            out[j] = alpha * x[j] + y[j]", "one each"),
        Mutant("added up in two stores", "out[i] = alpha * x[i] + y[i]",
               "out[i] = y[i]\n        out[i] += alpha * x[i]", "one store each"),
        Mutant("stored twice, but not by the first block", "out[i] = alpha * x[i] + y[i]",
               "out[i] = alpha * x[i] + y[i]\n        if cuda.blockIdx.x > 0: out[i] = alpha * x[i] + y[i]",
               "one store each"),
        Mutant("a function that the compiler doesn't have", "alpha * x[i] + y[i]",
               "np.add.reduce((alpha * x[i], y[i]))", "compiles"),
    ))


SCALE_ROWS = Exercise(
    "00b", "my_scale_rows",
    cases=(rows_case((5, 7), (4, 8), (3, 2)), rows_case((33, 6), (8, 4), (5, 9)),
           rows_case((6, 35), (8, 4), (5, 9))),
    goals=(ONE_EACH,),
    hints=HINTS | {
        "in bounds": (
            "there are more threads than elements in both directions: i counts rows and stays below "
            "x.shape[0], j below x.shape[1]; factors has one element per row"),
        "no races: with no flag": (
            "two blocks write to one element: each thread has a pair of its own, from cuda.grid(2)"),
        "no races: written by": (
            "two threads write to one element: each has a pair of its own, from cuda.grid(2)"),
        "correct: never written": (
            "which thread stores this element? If you compute i and j yourself: x goes with blockIdx.x and "
            "blockDim.x, y with blockIdx.y and blockDim.y"),
        "correct": (
            "out[i, j] = factors[i] · x[i, j]: which thread has the first wrong element, and what is its "
            "i?")},
    solutions={"reference": """@cuda.jit
def my_scale_rows(x, factors, out):
    i, j = cuda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        out[i, j] = factors[i] * x[i, j]
""", "columns along x": """@cuda.jit
def my_scale_rows(x, factors, out):
    j, i = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]: out[i, j] = x[i, j] * factors[i]
""", "by hand, and returns": """@cuda.jit
def my_scale_rows(x, factors, out):
    row = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    if row >= len(factors): return
    col = cuda.threadIdx.y + cuda.blockIdx.y * cuda.blockDim.y
    if col >= out.shape[1]: return
    factor = factors[row]
    out[row, col] = factor * x[row, col]
""", "numbered in one dimension": """@cuda.jit
def my_scale_rows(x, factors, out):
    block = cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x
    thread = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    i, j = divmod(block * cuda.blockDim.x * cuda.blockDim.y + thread, x.shape[1])
    if i < x.shape[0]: out[i][j] = factors[i] * x[i][j]
""", "a loop, for a grid that's too small": """@cuda.jit
def my_scale_rows(x, factors, out):
    start_i, start_j = cuda.grid(2)
    step_i, step_j = cuda.gridsize(2)
    for i in range(start_i, out.shape[0], step_i):
        for j in range(start_j, out.shape[1], step_j):
            out[i, j] = factors[i] * x[i, j]
"""},
    mutants=(
        Mutant("not written", "out[i, j] = factors[i] * x[i, j]", "...", "written"),
        Mutant("no guard", "if i < out.shape[0] and j < out.shape[1]:", "if True:", "in bounds"),
        Mutant("guard of the rows only", "i < out.shape[0] and j < out.shape[1]", "i < out.shape[0]",
               "in bounds"),
        Mutant("guard of the columns only", "i < out.shape[0] and j < out.shape[1]", "j < out.shape[1]",
               "in bounds"),
        Mutant("<= for the rows", "i < out", "i <= out", "in bounds"),
        Mutant("<= for the columns", "j < out", "j <= out", "in bounds"),
        Mutant("guard with rows and columns swapped", "i < out.shape[0] and j < out.shape[1]",
               "i < out.shape[1] and j < out.shape[0]", "in bounds"),
        Mutant("or in the guard", " and j", " or j", "in bounds"),
        Mutant("a return only if both are outside",
               "    if i < out.shape[0] and j < out.shape[1]:\n        out",
               "    if i >= out.shape[0] and j >= out.shape[1]: return\n    if True:\n        out",
               "in bounds"),
        Mutant("idle threads compute the last row or column, too", "i, j = cuda.grid(2)",
               "i, j = cuda.grid(2)\n    i, j = min(i, out.shape[0] - 1), min(j, out.shape[1] - 1)",
               "one writer"),
        Mutant("numbered in one dimension, with the height as the width", "i, j = cuda.grid(2)",
               "x0, y0 = cuda.grid(2)\n    i, j = divmod(x0 + y0 * cuda.gridsize(2)[0], out.shape[0])",
               "correct"),
        Mutant("a whole row of x", "* x[i, j]", "* x[i]", "compiles"),
        Mutant("a factor with two indices", "factors[i]", "factors[i, 0]", "compiles"),
        Mutant("a guard for the product", "i < out.shape[0] and j < out.shape[1]", "i * j < out.size",
               "in bounds"),
        Mutant("as many columns as factors", "j < out.shape[1]", "j < factors.shape[0]", "in bounds"),
        Mutant("the last column left out", "out.shape[1]", "out.shape[1] - 1", "correct"),
        Mutant("the first row left out", "if i <", "if 0 < i <", "correct"),
        Mutant("one factor per column", "factors[i]", "factors[j]", "in bounds"),
        Mutant("one factor for all", "factors[i]", "factors[0]", "correct"),
        Mutant("the factor at the place in the block", "factors[i]", "factors[cuda.threadIdx.x]", "correct"),
        Mutant("the factor of the row above", "factors[i]", "factors[i - 1]", "in bounds"),
        Mutant("x transposed", "x[i, j]", "x[j, i]", "in bounds"),
        Mutant("out transposed", "out[i, j]", "out[j, i]", "in bounds"),
        Mutant("a sum, not a product", "factors[i] * x", "factors[i] + x", "correct"),
        Mutant("added to what out held", "out[i, j] =", "out[i, j] +=", "correct"),
        Mutant("stored at the place in the block", "out[i, j] =",
               "out[cuda.threadIdx.x, cuda.threadIdx.y] =", "no races"),
        Mutant("all into the first column", "out[i, j] =", "out[i, 0] =", "no races"),
        Mutant("scaled in place", "out[i, j] = factors[i] * x[i, j]", "x[i, j] *= factors[i]", "correct"),
        Mutant("one index", "i, j = cuda.grid(2)", "i = j = cuda.grid(1)", "correct"),
        Mutant("a grid of one dimension", "i, j = cuda.grid(2)", "i, j = cuda.grid(1)", "compiles"),
        Mutant("place in the block, not in the grid", "cuda.grid(2)", "cuda.threadIdx.x, cuda.threadIdx.y",
               "correct"),
        Mutant("the block's number alone", "cuda.grid(2)", "cuda.blockIdx.x, cuda.blockIdx.y", "correct"),
        Mutant("the block's number left out of a column", "cuda.grid(2)",
               "cuda.grid(2)[0], cuda.threadIdx.y", "correct"),
        Mutant("x and y of the block swapped", "cuda.grid(2)",
               "(cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.y, "
               "cuda.threadIdx.y + cuda.blockIdx.y * cuda.blockDim.x)", "correct"),
        Mutant("blockDim.x for both", "cuda.grid(2)",
               "(cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x, "
               "cuda.threadIdx.y + cuda.blockIdx.y * cuda.blockDim.x)", "correct"),
        Mutant("every thread computes a whole row", "if i < out.shape[0] and j < out.shape[1]:",
               "for j in range(out.shape[1] * (i < out.shape[0])):", "one writer"),
        Mutant("one thread per row", "    if i < out.shape[0] and j < out.shape[1]:\n"
               "        out[i, j] = factors[i] * x[i, j]", "    if i < out.shape[0] and j == 0:\n"
               "        for q in range(out.shape[1]): out[i, q] = factors[i] * x[i, q]", "one each"),
        Mutant("one thread per column", "    if i < out.shape[0] and j < out.shape[1]:\n"
               "        out[i, j] = factors[i] * x[i, j]", "    if i == 0 and j < out.shape[1]:\n"
               "        for q in range(out.shape[0]): out[q, j] = factors[q] * x[q, j]", "one each"),
        Mutant("one thread does all", "    if i < out.shape[0] and j < out.shape[1]:\n"
               "        out[i, j] = factors[i] * x[i, j]", "    if i == 0 and j == 0:\n"
               "        for q in range(out.size):\n"
               "            row, col = q // out.shape[1], q % out.shape[1]\n"
               "            out[row, col] = factors[row] * x[row, col]", "one each"),
        Mutant("copied, then scaled", "out[i, j] = factors[i] * x[i, j]",
               "out[i, j] = x[i, j]\n        out[i, j] *= factors[i]", "one store each"),
        Mutant("copied, then scaled, but not by the first block", "out[i, j] = factors[i] * x[i, j]",
               "if cuda.blockIdx.x + cuda.blockIdx.y > 0: out[i, j] = x[i, j]\n"
               "        out[i, j] = factors[i] * x[i, j]", "one store each"),
        Mutant("a function that the compiler doesn't have", "factors[i] * x[i, j]",
               "np.prod((factors[i], x[i, j]))", "compiles"),
    ))


EXERCISES = SAXPY, SCALE_ROWS
