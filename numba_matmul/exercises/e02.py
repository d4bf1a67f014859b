"""What `grade("02", my_coalesced)` asks of a kernel, what it accepts, and what it must catch.

The grid is wide enough both ways, so a kernel that maps x to the rows is correct, too. It fails by what it
asks of memory: the goals count the sectors of a request, in the first block. Two of lesson 1's goals hold
here as well: one store to C per thread, and nothing in float64.
"""
from ..exercise import NO_FLOAT64, Exercise, Goal, Mutant, matmul_case
from ..source import reference_of
from ..kernels.k02_gmem_coalescing import short_coalesced
from .e01 import HINTS, OF_BOTH, ONE_EACH


def load_of(name): return lambda view: view.site(name, "load")


EXERCISES = (Exercise(
    "02", "my_coalesced",
    cases=(matmul_case(10, 64, 9, (32, 4), (2, 16)), matmul_case(20, 34, 12, (16, 2), (3, 17))),
    goals=(ONE_EACH,
           Goal("sectors of A", load_of("a"), most=1, unit="sectors per request",
                hint="your 32 threads read A from different rows: which of x and y runs fastest within a "
                     "warp?"),
           Goal("sectors of B", load_of("b"), most=4, unit="sectors per request",
                hint="neighbouring threads should read neighbouring numbers of a row of B"),
           Goal("sectors of C", lambda view: view.site("c", "store"), most=4, unit="sectors per request",
                hint="neighbouring threads should store neighbouring numbers of a row of C"),
           NO_FLOAT64),
    hints=HINTS | {
        "in bounds": (
            "if row and col have changed places, have all of their uses? row stays below c.shape[0], col "
            "below c.shape[1], and i below a.shape[1]"),
        "correct: never written": (
            "which thread stores this element? blockIdx.x goes with blockDim.x and threadIdx.x, and "
            "likewise for y; a block may have any shape, not only 32 by 32"),
        "correct: in the wrong places": (
            "the sums are right, and their places are not: do a, b and c use the same row and the same col?"),
        "correct": "only the mapping changes: C[row, col] is still the sum of all A[row, i] · B[i, col]"},
    solutions={"reference": reference_of(short_coalesced, "my_coalesced"), "indices by hand": """@cuda.jit
def my_coalesced(a, b, c):
    col = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    row = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    if row >= c.shape[0] or col >= c.shape[1]: return
    acc = float32(0)
    for i in range(b.shape[0]): acc += b[i, col] * a[row, i]
    c[row, col] = acc
""", "two sums": """@cuda.jit
def my_coalesced(a, b, c):
    x, y = cuda.grid(2)
    if y < c.shape[0] and x < c.shape[1]:
        even, odd, i = float32(0), float32(0), 0
        while i + 1 < a.shape[1]:
            even += a[y, i] * b[i, x]
            odd += a[y, i + 1] * b[i + 1, x]
            i += 2
        if i < a.shape[1]: even += a[y, i] * b[i, x]
        c[y, x] = even + odd
""", "a warp takes the columns backwards": """@cuda.jit
def my_coalesced(a, b, c):
    width = cuda.blockDim.x
    col = cuda.blockIdx.x * width + (width - 1 - cuda.threadIdx.x)
    row = cuda.grid(2)[1]
    if row < c.shape[0] and col < c.shape[1]:
        acc = float32(0)
        for i in range(a.shape[1]): acc += a[row, i] * b[i, col]
        c[row, col] = acc
""", "numbered in one dimension": """@cuda.jit
def my_coalesced(a, b, c):
    thread = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    block = cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x
    row, col = divmod(block * cuda.blockDim.x * cuda.blockDim.y + thread, c.shape[1])
    if row >= c.shape[0]: return
    acc = float32(0)
    for x, y in zip(a[row], b[:, col]): acc += x * y
    c[row, col] = acc
""", "B transposed by a view": """@cuda.jit
def my_coalesced(A, B, C):
    bt = B.T
    col, row = cuda.grid(2)
    if row < C.shape[0] and col < C.shape[1]:
        acc = float32(0)
        for i in range(A.shape[1]): acc += A[row, i] * bt[col, i]
        C[row, col] = acc
""", "stored by way of shared memory": """@cuda.jit
def my_coalesced(a, b, c):
    sums = cuda.shared.array((32, 32), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col0, row0 = cuda.blockIdx.x * cuda.blockDim.x, cuda.blockIdx.y * cuda.blockDim.y
    if row0 + ty < c.shape[0] and col0 + tx < c.shape[1]:
        acc = float32(0)
        for i in range(a.shape[1]): acc += a[row0 + ty, i] * b[i, col0 + tx]
        sums[ty, tx] = acc
    cuda.syncthreads()
    x, y = tx, ty
    if row0 + y < c.shape[0] and col0 + x < c.shape[1]:
        c[row0 + y, col0 + x] = sums[y, x]
"""},
    mutants=(
        *OF_BOTH,
        Mutant("not written", "col, row = cuda.grid(2)", "col, row = ...", "written"),
        Mutant("kernel 1: x is the row", "col, row = cuda.grid(2)", "row, col = cuda.grid(2)",
               "sectors of A"),
        Mutant("x is the row, by hand", "col, row = cuda.grid(2)",
               "row = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x\n"
               "    col = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y", "sectors of A"),
        Mutant("swapped in the block only", "col, row = cuda.grid(2)",
               "col = cuda.blockIdx.x * 32 + cuda.threadIdx.y\n"
               "    row = cuda.blockIdx.y * 4 + cuda.threadIdx.x % 4", "correct"),
        Mutant("neighbours eight columns apart", "col, row = cuda.grid(2)",
               "x, row = cuda.grid(2)\n    col = x // 8 + x % 8 * (cuda.gridDim.x * cuda.blockDim.x // 8)",
               "sectors of B"),
        Mutant("columns with a stride of 5", "col, row = cuda.grid(2)",
               "x, row = cuda.grid(2)\n    col = x * 5 % (cuda.gridDim.x * cuda.blockDim.x)", "sectors of B"),
        Mutant("pairs of rows", "col, row = cuda.grid(2)",
               "x, y = cuda.grid(2)\n"
               "    col, row = x // 2 + cuda.gridDim.x * cuda.blockDim.x // 2 * (y % 2), y // 2 * 2 + x % 2",
               "sectors of A"),
        Mutant("a thread for two columns, one of each half", "if row < c.shape[0] and col < c.shape[1]:",
               "half = c.shape[1] // 2\n    if row >= c.shape[0] or col >= half: return\n"
               "    for col in range(col, c.shape[1], half):", "one each"),
        Mutant("B's column by row", "b[i, col]", "b[i, row]", "correct"),
        Mutant("<= in the guard", "col < c.shape[1]", "col <= c.shape[1]", "in bounds"),
        Mutant("A and B transposed instead", "a[row, i] * b[i, col]", "a[col, i] * b[i, row]", "in bounds"),
        Mutant("block and thread swapped", "col, row = cuda.grid(2)",
               "col = cuda.threadIdx.x * cuda.blockDim.x + cuda.blockIdx.x\n    row = cuda.grid(2)[1]",
               "correct"),
        Mutant("place in the block, not in the grid", "col, row = cuda.grid(2)",
               "col, row = cuda.threadIdx.x, cuda.threadIdx.y", "correct"),
        Mutant("the last step left out", "while i < a.shape[1]:", "while i < a.shape[1] - 1:", "correct"),
        Mutant("only the last product", "acc += a", "acc = a", "correct"),
        Mutant("a sum in float64", "acc, i = float32(0), 0", "acc, i = 0.0, 0", "float64"),
        Mutant("stored in each step", "            i += 1\n",
               "            i += 1\n            c[row, col] = acc\n", "one store each"),
        Mutant("a 32 for the width of a block", "col, row = cuda.grid(2)",
               "col, row = cuda.blockIdx.x * 32 + cuda.threadIdx.x, cuda.grid(2)[1]", "correct"),
        Mutant("a step of 2", "i += 1", "i += 2", "correct"),
        Mutant("no step", "            i += 1\n", "", "ends"),
        Mutant("the neighbour's column of B", "acc += a[row, i] * b[i, col]",
               "acc += a[row, i] * b[i, col ^ 1]", "correct"),
        Mutant("a warp stores four rows", "x, y = tx, ty",
               "height = cuda.blockDim.y\n    some = cuda.blockDim.x // height\n"
               "    x, y = tx % some * height + ty, tx // some", "sectors of C",
               of="stored by way of shared memory")),
    launch=lambda m, n: ((-(-n // 32), -(-m // 32)), (32, 32))),)
