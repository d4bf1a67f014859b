"""What `grade("02", my_coalesced)` asks of a kernel, what it accepts, and what it must catch.

The lesson gives away the swap, so this exercise takes away what makes it work: blocks that are 32 threads
wide. A block has 256 threads in some other shape, and computes 8 rows and 32 columns of C; each warp must
still lie along a row. The reference is the lesson's kernel with another first line.

There are more blocks than needed, so that `cuda.grid(2)`, and kernel 1's mapping, are correct, too. They
fail because of their memory accesses: the goals count the sectors per request, in the first block. Two of
lesson 1's goals hold here as well: one store to C per thread, and nothing in float64.
"""
from ..exercise import NO_FLOAT64, Exercise, Goal, Mutant, matmul_case
from ..source import reference_of
from ..kernels.k02_gmem_coalescing import short_coalesced
from .e01 import HINTS, OF_BOTH, one_each


def load_of(name): return lambda view: view.site(name, "load")

SWAP = "    col, row = cuda.grid(2)\n"
PLACE = """\
    thread = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y
    warp, lane = thread // 32, thread % 32
    row, col = 8 * cuda.blockIdx.y + warp, 32 * cuda.blockIdx.x + lane
"""
REFERENCE = reference_of(short_coalesced, "my_coalesced").replace(SWAP, PLACE)

THREAD = "cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y"
WARP, ROW, COL = ("warp, lane = thread // 32, thread % 32", "8 * cuda.blockIdx.y + warp",
                  "32 * cuda.blockIdx.x + lane")

EXERCISES = (Exercise(
    "02", "my_coalesced",
    cases=(matmul_case(12, 56, 9, (8, 32), (7, 2)), matmul_case(19, 30, 12, (64, 4), (2, 8))),
    goals=(one_each(warps=8),
           Goal("sectors of A", load_of("a"), most=1, unit="sectors per request",
                hint="your warp reads A from several rows. A warp is 32 threads with consecutive numbers, "
                     "and in this block they don't all have the same threadIdx.y"),
           Goal("sectors of B", load_of("b"), most=4, unit="sectors per request",
                hint="neighboring lanes should read neighboring elements in a row of B"),
           Goal("sectors of C", lambda view: view.site("c", "store"), most=4, unit="sectors per request",
                hint="neighboring lanes should store neighboring elements in a row of C"),
           NO_FLOAT64),
    hints=HINTS | {
        "in bounds": (
            "row stays below c.shape[0], col below c.shape[1], and i below a.shape[1]: is each index on the "
            "axis it belongs to?"),
        "one writer": (
            "a block's tile has 8 rows and 32 columns, and the next block's tile begins where this one ends"),
        "correct: never written": (
            "which thread stores this element? A tile has 8 rows and 32 columns: blockIdx.y counts tiles "
            "down, blockIdx.x counts them across. And a block has 256 threads, but not always 8 along x"),
        "correct: in the wrong places": (
            "the sums are right, but they're in the wrong places: do a, b and c use the same row and col?"),
        "correct": "C[row, col] is still the sum of A[row, i] · B[i, col] over all i"},
    solutions={"reference": REFERENCE, "shifts and masks, and a return": """@cuda.jit
def my_coalesced(a, b, c):
    t = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    row = (cuda.blockIdx.y << 3) + (t >> 5)
    col = (cuda.blockIdx.x << 5) + (t & 31)
    if row >= c.shape[0] or col >= c.shape[1]: return
    acc = float32(0)
    for i in range(b.shape[0]): acc += b[i, col] * a[row, i]
    c[row, col] = acc
""", "two sums, and as many warps as there are": """@cuda.jit
def my_coalesced(a, b, c):
    width, height = cuda.blockDim.x, cuda.blockDim.y
    warp, lane = divmod(cuda.threadIdx.y * width + cuda.threadIdx.x, 32)
    y = cuda.blockIdx.y * (width * height // 32) + warp
    x = cuda.blockIdx.x * 32 + lane
    if y < c.shape[0] and x < c.shape[1]:
        even, odd, i = float32(0), float32(0), 0
        while i + 1 < a.shape[1]:
            even += a[y, i] * b[i, x]
            odd += a[y, i + 1] * b[i + 1, x]
            i += 2
        if i < a.shape[1]: even += a[y, i] * b[i, x]
        c[y, x] = even + odd
""", "lanes from right to left, warps from the bottom up": """@cuda.jit
def my_coalesced(a, b, c):
    thread = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y
    row = 8 * cuda.blockIdx.y + 7 - thread // 32
    col = 32 * cuda.blockIdx.x + 31 - thread % 32
    if row < c.shape[0] and col < c.shape[1]:
        acc = float32(0)
        for i in range(a.shape[1]): acc += a[row, i] * b[i, col]
        c[row, col] = acc
""", "lanes in another order, and B as a view": """@cuda.jit
def my_coalesced(A, B, C):
    bt = B.T
    thread = cuda.blockDim.x * cuda.threadIdx.y + cuda.threadIdx.x
    row, col = cuda.blockIdx.y * 8 + thread // 32, cuda.blockIdx.x * 32 + thread * 5 % 32
    if row < C.shape[0] and col < C.shape[1]:
        acc = float32(0)
        for i in range(A.shape[1]): acc += A[row, i] * bt[col, i]
        C[row, col] = acc
""", "on to the next tile if the grid is short": """@cuda.jit
def my_coalesced(a, b, c):
    t = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y
    for row in range(cuda.blockIdx.y * 8 + t // 32, c.shape[0], cuda.gridDim.y * 8):
        for col in range(cuda.blockIdx.x * 32 + t % 32, c.shape[1], cuda.gridDim.x * 32):
            acc = float32(0)
            for i in range(a.shape[1]): acc = cuda.fma(a[row, i], b[i, col], acc)
            c[row, col] = acc
""", "stored by way of shared memory": """@cuda.jit
def my_coalesced(a, b, c):
    sums = cuda.shared.array((8, 32), float32)
    thread = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y
    y, x = thread // 32, thread % 32
    row0, col0 = 8 * cuda.blockIdx.y, 32 * cuda.blockIdx.x
    if row0 + y < c.shape[0] and col0 + x < c.shape[1]:
        acc = float32(0)
        for i in range(a.shape[1]): acc += a[row0 + y, i] * b[i, col0 + x]
        sums[y, x] = acc
    cuda.syncthreads()
    if row0 + y < c.shape[0] and col0 + x < c.shape[1]:
        c[row0 + y, col0 + x] = sums[y, x]
"""},
    mutants=(
        *OF_BOTH,
        Mutant("not written", THREAD, "...", "written"),
        Mutant("cuda.grid(2), as in blocks 32 threads wide", PLACE, SWAP, "sectors of A"),
        Mutant("kernel 1: x is the row", PLACE, "    row, col = cuda.grid(2)\n", "sectors of A"),
        Mutant("numbered with y running fastest", THREAD,
               "cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.x", "sectors of A"),
        Mutant("half a warp per row", PLACE, PLACE.replace("32", "16").replace("8 *", "16 *"),
               "sectors of A"),
        Mutant("a warp for half of two rows", ROW + ", " + COL,
               "8 * cuda.blockIdx.y + warp // 2 * 2 + lane // 16, "
               "32 * cuda.blockIdx.x + warp % 2 * 16 + lane % 16", "sectors of A"),
        Mutant("lanes in turn over two rows", ROW + ", " + COL,
               "8 * cuda.blockIdx.y + warp // 2 * 2 + lane % 2, "
               "32 * cuda.blockIdx.x + warp % 2 * 16 + lane // 2", "sectors of A"),
        Mutant("neighboring lanes as many columns apart as there are blocks", COL,
               "lane * cuda.gridDim.x + cuda.blockIdx.x", "sectors of B"),
        Mutant("two warps share their columns in turn", ROW + ", " + COL,
               "8 * cuda.blockIdx.y + warp // 2, 64 * cuda.blockIdx.x + lane * 2 + warp % 2", "correct"),
        Mutant("64 columns and 4 rows", PLACE, PLACE.replace("32", "64").replace("8 *", "4 *"), "correct"),
        Mutant("an 8 as the width of the block", "cuda.blockDim.x", "8", "correct"),
        Mutant("a 32 as the width of the block", "cuda.blockDim.x", "32", "correct"),
        Mutant("numbered with the block's height", "cuda.blockDim.x", "cuda.blockDim.y", "correct"),
        Mutant("warp and lane exchanged", WARP, "warp, lane = thread % 32, thread // 32", "correct"),
        Mutant("% for //", "thread // 32", "thread % 32", "correct"),
        Mutant("blockIdx.x and blockIdx.y exchanged", ROW + ", " + COL,
               "8 * cuda.blockIdx.x + warp, 32 * cuda.blockIdx.y + lane", "correct"),
        Mutant("place in the block, not in the grid", ROW + ", " + COL, "warp, lane", "correct"),
        Mutant("the tile's height where its width belongs", COL, "8 * cuda.blockIdx.x + lane", "one writer"),
        Mutant("the block's height as the tile's", ROW,
               "cuda.blockDim.y * cuda.blockIdx.y + warp", "correct"),
        Mutant("one thread for two columns, one in each half", "if row < c.shape[0] and col < c.shape[1]:",
               "half = c.shape[1] // 2\n    if row >= c.shape[0] or col >= half: return\n"
               "    for col in range(col, c.shape[1], half):", "one each"),
        Mutant("B's column by row", "b[i, col]", "b[i, row]", "correct"),
        Mutant("<= in the guard", "col < c.shape[1]", "col <= c.shape[1]", "in bounds"),
        Mutant("A and B transposed instead", "a[row, i] * b[i, col]", "a[col, i] * b[i, row]", "in bounds"),
        Mutant("the last step left out", "while i < a.shape[1]:", "while i < a.shape[1] - 1:", "correct"),
        Mutant("only the last product", "acc += a", "acc = a", "correct"),
        Mutant("a sum in float64", "acc, i = float32(0), 0", "acc, i = 0.0, 0", "float64"),
        Mutant("stored in each step", "            i += 1\n",
               "            i += 1\n            c[row, col] = acc\n", "one store each"),
        Mutant("a step of 2", "i += 1", "i += 2", "correct"),
        Mutant("no step", "            i += 1\n", "", "ends"),
        Mutant("the neighbor's column of B", "b[i, col]", "b[i, col ^ 1]", "correct"),
        Mutant("a warp stores a few columns of all eight rows",
               "    if row0 + y < c.shape[0] and col0 + x < c.shape[1]:\n        c[row0",
               "    y, x = thread % 8, thread // 8\n"
               "    if row0 + y < c.shape[0] and col0 + x < c.shape[1]:\n        c[row0", "sectors of C",
               of="stored by way of shared memory")),
    short=("kernels 1 and 2 at 4096, short", "coalesced"),
    launch=lambda m, n: ((-(-n // 32), -(-m // 8)), (8, 32))),)
