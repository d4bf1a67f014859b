"""What `grade("01", my_naive)` asks of a kernel, what it accepts, and what it must catch.

The kernel runs on two shapes that don't fit the block, with more threads than elements, and C starts as NaN.
The sum has to stay in a register, so each element is stored once. Then come three goals: each thread computes
one element, no store is an atomic operation, and the main loop computes nothing in float64. The last two are
counted in the machine code.
"""
from ..exercise import NO_FLOAT64, Exercise, Goal, Mutant, matmul_case


def one_each(warps):
    "Stores to C per thread of block 0, which has this many warps."
    def stores(view):
        sites = [site for site in view.merged() if (site.array, site.operation) == ("c", "store")]
        return sum(site.requests for site in sites) / warps
    return Goal("one each", stores, most=1, unit="stores per thread",
                hint="a thread computes one element of C and stores it once")

HINTS = {  # of this exercise and the next
    "compiles: 'array' and 'array'": (
        "a thread adds up single elements, in a loop of its own: each array needs two indices"),
    "ends: It's slow": "a thread computes one element of C: does yours go through all rows, or all columns?",
    "float64": (
        "is the sum a float64? To the compiler, 0.0 and 1.0 are, and 0 is an integer: write float32(0). Or "
        "is the counter a uint64, as uint32(i) + uint32(1) is? Numba compares it with the signed a.shape[1] "
        "in float64: start the counter at 0")}


OF_BOTH = (  # mistakes that the next exercise's kernel can have, too
    Mutant("no guard", "if row < c.shape[0] and col < c.shape[1]:", "if True:", "in bounds"),
    Mutant("guard of the rows only", "row < c.shape[0] and col < c.shape[1]", "row < c.shape[0]",
           "in bounds"),
    Mutant("guard of the columns only", "row < c.shape[0] and col < c.shape[1]", "col < c.shape[1]",
           "in bounds"),
    Mutant("guard with rows and columns swapped", "row < c.shape[0] and col < c.shape[1]",
           "row < c.shape[1] and col < c.shape[0]", "in bounds"),
    Mutant("a column of A", "a[row, i]", "a[i, row]", "in bounds"),
    Mutant("C transposed", "c[row, col] = acc", "c[col, row] = acc", "in bounds"),
    Mutant("added to what C held", "c[row, col] = acc", "c[row, col] += acc", "correct"))

EXERCISES = (Exercise(
    "01", "my_naive",
    cases=(matmul_case(33, 10, 9, (32, 4), (2, 9)), matmul_case(20, 35, 12, (8, 16), (5, 3))),
    goals=(one_each(warps=4), NO_FLOAT64,
           Goal("atomics", lambda code: sum(x.opcode.startswith(("RED", "ATOM")) for x in code.instructions),
                most=0, unit="instructions", counted="code",
                hint="no other thread writes this element, so an ordinary store is enough")),
    hints=HINTS | {
        "in bounds": (
            "row stays below c.shape[0], col below c.shape[1], and i below a.shape[1]: is each index on the "
            "axis it belongs to?"),
        "correct: never written": (
            "which thread stores this element? A block may have any shape: x goes with blockIdx.x and "
            "blockDim.x, y with blockIdx.y and blockDim.y"),
        "correct": (
            "C[row, col] is the sum of A[row, i] · B[i, col] over all i: does i take every value below "
            "a.shape[1], and does acc keep what it has added up?")},
    solutions={"reference": """@cuda.jit
def my_naive(a, b, c):
    row, col = cuda.grid(2)
    if row < c.shape[0] and col < c.shape[1]:
        acc = float32(0)
        for i in range(a.shape[1]):
            acc += a[row, i] * b[i, col]
        c[row, col] = acc
""", "a while loop, and a return": """@cuda.jit
def my_naive(a, b, c):
    row = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    col = cuda.threadIdx.y + cuda.blockIdx.y * cuda.blockDim.y
    if row >= c.shape[0] or col >= c.shape[1]: return
    acc, i = float32(0), 0
    while i < b.shape[0]:
        acc = acc + a[row, i] * b[i, col]
        i += 1
    c[row, col] = acc
""", "from the end": """@cuda.jit
def my_naive(a, b, c):
    m, n = c.shape
    k = a.shape[1]
    row, col = cuda.grid(2)
    if row >= m: return
    if col >= n: return
    acc, i = float32(0), uint32(k)
    while i > uint32(0):
        i -= uint32(1)
        acc += b[i, col] * a[row, i]
    c[row, col] = acc
""", "numbered in one dimension, and a device function": """@cuda.jit(device=True)
def dot(a, b, row, col):
    acc = a[row][0] * b[0][col]
    for i in range(1, len(b)): acc += a[row][i] * b[i][col]
    return acc

@cuda.jit
def my_naive(a, b, c):
    block = cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x
    thread = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    t = block * cuda.blockDim.x * cuda.blockDim.y + thread
    if t < c.size: c[t // c.shape[1], t % c.shape[1]] = dot(a, b, t // c.shape[1], t % c.shape[1])
""", "a row and a column as views": """@cuda.jit
def my_naive(A, B, C):
    row, col = cuda.grid(2)
    if not (row < C.shape[0] and col < C.shape[1]): return
    total = np.float32(0)
    for x, y in zip(A[row], B[:, col]): total += x * y
    C[row, col] = total
""", "on to the next if the grid is short": """@cuda.jit
def my_naive(a, b, c):
    row0, col0 = cuda.grid(2)
    rows, cols = cuda.gridsize(2)
    for row in range(row0, c.shape[0], rows):
        for col in range(col0, c.shape[1], cols):
            acc = float32(0)
            for i in range(a.shape[1]): acc = cuda.fma(a[row, i], b[i, col], acc)
            c[row, col] = acc
""", "columns along x": """@cuda.jit
def my_naive(a, b, c):
    col, row = cuda.grid(2)
    if row < c.shape[0] and col < c.shape[1]:
        acc = float32(0)
        for i in range(a.shape[1]): acc += a[row, i] * b[i, col]
        c[row, col] = acc
"""},
    mutants=(
        *OF_BOTH,
        Mutant("not written", "acc += a[row, i] * b[i, col]", "...", "written"),
        Mutant("<= in the guard", "row < c.shape[0]", "row <= c.shape[0]", "in bounds"),
        Mutant("or in the guard", "c.shape[0] and col", "c.shape[0] or col", "in bounds"),
        Mutant("& for and", "c.shape[0] and col", "c.shape[0] & col", "in bounds"),
        Mutant("a row of B", "b[i, col]", "b[col, i]", "in bounds"),
        Mutant("a loop over a number", "range(a.shape[1])", "a.shape[1]", "compiles"),
        Mutant("a type, not a number", "acc = float32(0)", "acc = float32", "compiles"),
        Mutant("a sum over the columns of C", "range(a.shape[1])", "range(c.shape[1])", "in bounds"),
        Mutant("the last step left out", "range(a.shape[1])", "range(a.shape[1] - 1)", "correct"),
        Mutant("the first step left out", "range(a.shape[1])", "range(1, a.shape[1])", "correct"),
        Mutant("one step too many", "range(a.shape[1])", "range(a.shape[1] + 1)", "in bounds"),
        Mutant("only the last product", "acc +=", "acc =", "correct"),
        Mutant("a sum, not a product", "a[row, i] * b[i, col]", "a[row, i] + b[i, col]", "correct"),
        Mutant("place in the block, not in the grid", "row, col = cuda.grid(2)",
               "row, col = cuda.threadIdx.x, cuda.threadIdx.y", "correct"),
        Mutant("the block's number left out of a row", "row, col = cuda.grid(2)",
               "row, col = cuda.threadIdx.x, cuda.grid(2)[1]", "correct"),
        Mutant("a sum in int32", "acc = float32(0)", "acc = int32(0)", "float64"),
        Mutant("a sum in float64", "acc = float32(0)", "acc = 0.0", "float64"),
        Mutant("a loop that never ends", "for i in range(a.shape[1]):",
               "i = 0\n        while i < a.shape[1]:", "ends"),
        Mutant("a result is returned", "c[row, col] = acc", "return acc", "compiles"),
        Mutant("stored in each step", "acc += a[row, i] * b[i, col]",
               "acc += a[row, i] * b[i, col]\n            c[row, col] = acc", "one store each"),
        Mutant("stored in each step, but not by the first block", "acc += a[row, i] * b[i, col]",
               "acc += a[row, i] * b[i, col]\n"
               "            if cuda.blockIdx.x + cuda.blockIdx.y > 0: c[row, col] = acc", "one store each"),
        Mutant("a 32 as the width of the block", "row, col = cuda.grid(2)",
               "row, col = cuda.blockIdx.x * 32 + cuda.threadIdx.x, cuda.grid(2)[1]", "correct"),
        Mutant("one thread per row", "if row < c.shape[0] and col < c.shape[1]:",
               "if row >= c.shape[0] or col > 0: return\n    for col in range(c.shape[1]):", "one each"),
        Mutant("the tail of an unrolled loop left out", "range(a.shape[1])", "range(a.shape[1] // 4 * 4)",
               "correct"),
        Mutant("a counter in uint64",
               "        for i in range(a.shape[1]):\n            acc += a[row, i] * b[i, col]\n",
               "        i = uint32(0)\n        while i < a.shape[1]:\n"
               "            acc += a[row, i] * b[i, col]\n            i += uint32(1)\n", "float64"),
        Mutant("stored by an atomic operation", "c[row, col] = acc", "cuda.atomic.nanmax(c, (row, col), acc)",
               "atomics"),
        Mutant("np.dot of a row and a column",
               "            acc += a[row, i] * b[i, col]\n        c[row, col] = acc\n",
               "            acc = np.dot(a[row], b[:, col])\n        c[row, col] = acc\n", "compiles"),
        Mutant("summed in C by atomic additions",
               "            acc += a[row, i] * b[i, col]\n        c[row, col] = acc\n",
               "            if i == 0: c[row, col] = acc\n"
               "            cuda.atomic.add(c, (row, col), a[row, i] * b[i, col])\n", "one store each"),
        Mutant("summed in C itself", "            acc += a[row, i] * b[i, col]\n        c[row, col] = acc\n",
               "            if i == 0: c[row, col] = acc\n            c[row, col] += a[row, i] * b[i, col]\n",
               "one store each")),
    short=("kernel 1 at 4096, short", "short"),
    launch=lambda m, n: ((-(-m // 32), -(-n // 32)), (32, 32))),)
