"""What `grade("31", my_port)` asks of kernel 3, ported from CUDA C++ with a mistake in it.

The mistake is a missing barrier at the end of the loop. The C++ compiler says nothing about it, and on a GPU
some elements come out wrong, or none; the simulator reports the race. The other mistakes are those that a
port invites: `/` divides integers in C++ and makes a float64 in Python, a block that's one row of threads has
no `y`, a conditional zero in Python makes a float64, and a thread that returns early misses its barriers.
During grading `TILE` is 16 or 8, and sizes needn't be multiples of it.
"""
from dataclasses import replace

from ..arrays import cdiv
from ..exercise import NO_FLOAT64, Exercise, Goal, Mutant, matmul_case
from .e10 import NO_FENCES
from .e03 import ONE_COPY, OF_TILES, costliest


def case(m, n, k, tile):
    "A launch of blocks of tile·tile threads in a row, x along the rows of C, with room for two tiles."
    plain = matmul_case(m, n, k, (tile * tile,), cdiv((m, n), (tile, tile)), dict(TILE=tile))
    return replace(plain, shared_bytes=2 * tile * tile * 4)


REFERENCE = """@cuda.jit
def my_port(a, b, c):
    tiles = cuda.shared.array(0, float32)
    ty, tx = cuda.threadIdx.x // TILE, cuda.threadIdx.x % TILE
    row, col = cuda.blockIdx.x * TILE + ty, cuda.blockIdx.y * TILE + tx
    m, n, k = c.shape[0], c.shape[1], a.shape[1]
    acc, k0 = float32(0), 0
    while k0 < k:
        tiles[ty * TILE + tx] = a[row, k0 + tx] if row < m and k0 + tx < k else float32(0)
        tiles[SQUARE + ty * TILE + tx] = b[k0 + ty, col] if k0 + ty < k and col < n else float32(0)
        cuda.syncthreads()  # full
        for i in range(TILE): acc += tiles[ty * TILE + i] * tiles[SQUARE + i * TILE + tx]
        cuda.syncthreads()  # free
        k0 += TILE
    if row < m and col < n: c[row, col] = acc
"""


SOLUTIONS = {"reference": REFERENCE, "two tiles of two dimensions": """@cuda.jit
def my_port(a, b, c):
    a_tile = cuda.shared.array((TILE, TILE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)
    thread = cuda.threadIdx.x
    ty, tx = thread // TILE, thread % TILE
    row, col = TILE * cuda.blockIdx.x + ty, TILE * cuda.blockIdx.y + tx
    acc, k0 = float32(0), 0
    while k0 < a.shape[1]:
        if row < a.shape[0] and k0 + tx < a.shape[1]: a_tile[ty, tx] = a[row, k0 + tx]
        else: a_tile[ty, tx] = 0
        if k0 + ty < b.shape[0] and col < b.shape[1]: b_tile[ty, tx] = b[k0 + ty, col]
        else: b_tile[ty, tx] = 0
        cuda.syncthreads()
        for i in range(TILE): acc += a_tile[ty, i] * b_tile[i, tx]
        cuda.syncthreads()
        k0 += TILE
    if row < c.shape[0] and col < c.shape[1]: c[row, col] = acc
""", "a barrier before each copy but the first": """@cuda.jit
def my_port(a, b, c):
    a_tile = cuda.shared.array(SQUARE, float32)
    b_tile = cuda.shared.array(SQUARE, float32)
    ty, tx = divmod(cuda.threadIdx.x, TILE)
    row, col = cuda.blockIdx.x * TILE + ty, cuda.blockIdx.y * TILE + tx
    acc = float32(0)
    for k0 in range(0, a.shape[1], TILE):
        if k0 > 0: cuda.syncthreads()
        x = y = float32(0)
        if row < a.shape[0] and k0 + tx < a.shape[1]: x = a[row, k0 + tx]
        if k0 + ty < b.shape[0] and col < b.shape[1]: y = b[k0 + ty, col]
        a_tile[cuda.threadIdx.x], b_tile[cuda.threadIdx.x] = x, y
        cuda.syncthreads()
        for i in range(TILE): acc += a_tile[ty * TILE + i] * b_tile[i * TILE + tx]
    if row < c.shape[0] and col < c.shape[1]: c[row, col] = acc
""", "a device function that guards": """@cuda.jit(device=True)
def element(x, i, j):
    if i < x.shape[0] and j < x.shape[1]: return x[i, j]
    return float32(0)

@cuda.jit
def my_port(x, y, z):
    tiles, thread = cuda.shared.array(0, float32), cuda.threadIdx.x
    left, right = tiles[:TILE * TILE], tiles[TILE * TILE:]
    ty, tx = divmod(thread, TILE)
    row, col, acc, k = cuda.blockIdx.x * TILE + ty, cuda.blockIdx.y * TILE + tx, float32(0), x.shape[1]
    for tile in range((k + TILE - 1) // TILE):
        left[thread], right[thread] = element(x, row, tile * TILE + tx), element(y, tile * TILE + ty, col)
        cuda.syncthreads()
        for i in range(min(TILE, k - tile * TILE)): acc += left[ty * TILE + i] * right[i * TILE + tx]
        cuda.syncthreads()
    if row < z.shape[0] and col < z.shape[1]: z[row, col] = acc
""", "A transposed, in padded rows": """@cuda.jit
def my_port(a, b, c):
    a_tile = cuda.shared.array((TILE, WIDE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)
    ty, tx = cuda.threadIdx.x // TILE, cuda.threadIdx.x % TILE
    row, col = cuda.blockIdx.x * TILE + ty, cuda.blockIdx.y * TILE + tx
    m, k = a.shape
    n = b.shape[1]
    acc, k0 = float32(0), 0
    while k0 < k:
        a_tile[tx, ty] = a[row, k0 + tx] if row < m and k0 + tx < k else float32(0)
        b_tile[ty, tx] = b[k0 + ty, col] if k0 + ty < k and col < n else float32(0)
        cuda.syncthreads()
        for i in range(TILE): acc += a_tile[i, ty] * b_tile[i, tx]
        cuda.syncthreads()
        k0 += TILE
    if row < m and col < n: c[row, col] = acc
"""}


TWO, PADDED = "two tiles of two dimensions", "A transposed, in padded rows"


MUTANTS = (
    *OF_TILES,
    Mutant("C stored in each tile", "        k0 += TILE\n",
           "        k0 += TILE\n        if row < m and col < n: c[row, col] = acc\n", "one store each"),
    Mutant("C stored in each tile, but not by the first block", "        k0 += TILE\n",
           "        k0 += TILE\n        if cuda.blockIdx.x > 0 and row < m and col < n: c[row, col] = acc\n",
           "one store each"),
    Mutant("a barrier in each step", "acc += tiles[ty * TILE + i] * tiles[SQUARE + i * TILE + tx]",
           "\n            acc += tiles[ty * TILE + i] * tiles[SQUARE + i * TILE + tx]\n"
           "            cuda.syncthreads()", "barriers per tile"),
    Mutant("a barrier between the copies", "        tiles[SQUARE + ty",
           "        cuda.syncthreads()\n        tiles[SQUARE + ty", "barriers per tile"),
    Mutant("two tiles, however many there are", "while k0 < k:", "while k0 < min(k, 2 * TILE):", "correct"),
    Mutant("a warp's width for TILE", "cuda.threadIdx.x // TILE, cuda.threadIdx.x % TILE",
           "cuda.threadIdx.x // 32, cuda.threadIdx.x % 32", "no races"),
    Mutant("not written", "    if row < m and col < n: c[row, col] = acc", "    ...", "written"),
    Mutant("ported as it is", "        cuda.syncthreads()  # free\n", "", "no races"),
    Mutant("the other barrier missing", "        cuda.syncthreads()  # full\n", "", "all written"),
    Mutant("a return before the barriers", "    acc, k0 = float32(0), 0\n",
           "    acc, k0 = float32(0), 0\n    if row >= m or col >= n: return\n", "barriers"),
    Mutant("the last barrier inside the guard", "        cuda.syncthreads()  # free\n",
           "        if row < m and col < n: cuda.syncthreads()\n", "no races"),
    Mutant("/ as in C++", "cuda.threadIdx.x // TILE", "cuda.threadIdx.x / TILE", "compiles"),
    Mutant("x counts the columns of blocks", "cuda.blockIdx.x * TILE + ty, cuda.blockIdx.y * TILE + tx",
           "cuda.blockIdx.y * TILE + ty, cuda.blockIdx.x * TILE + tx", "correct"),
    Mutant("a block's row by blockDim.x", "cuda.blockIdx.x * TILE + ty",
           "cuda.blockIdx.x * cuda.blockDim.x + ty", "correct"),
    Mutant("a block's column by blockDim.y", "cuda.blockIdx.y * TILE + tx",
           "cuda.blockIdx.y * cuda.blockDim.y + tx", "correct"),
    Mutant("the row of a thread by threadIdx.y", "cuda.threadIdx.x // TILE", "cuda.threadIdx.y",
           "all written"),
    Mutant("the column of a thread without %", "cuda.threadIdx.x % TILE", "cuda.threadIdx.x", "no races"),
    Mutant("x runs down the columns", "ty, tx = cuda.threadIdx.x // TILE, cuda.threadIdx.x % TILE",
           "tx, ty = cuda.threadIdx.x // TILE, cuda.threadIdx.x % TILE", "sectors"),
    Mutant("no guard at the store", "if row < m and col < n: c[row, col] = acc", "c[row, col] = acc",
           "in bounds"),
    Mutant("only half of the guard at the store", "if row < m and col < n: c", "if row < m: c", "in bounds"),
    Mutant("no guard for the rows of A", "if row < m and k0 + tx < k", "if k0 + tx < k", "in bounds"),
    Mutant("no guard for the columns of A", "if row < m and k0 + tx < k", "if row < m", "in bounds"),
    Mutant("no guard for the rows of B", "if k0 + ty < k and col < n", "if col < n", "in bounds"),
    Mutant("no guard for the columns of B", "if k0 + ty < k and col < n", "if k0 + ty < k", "in bounds"),
    Mutant("|| for &&", "if row < m and k0 + tx < k", "if row < m or k0 + tx < k", "in bounds"),
    Mutant("one row too many", "if row < m and k0", "if row <= m and k0", "in bounds"),
    Mutant("the guard with m and n swapped", "    if row < m and col < n: c", "    if row < n and col < m: c",
           "in bounds"),
    Mutant("nothing is put where the matrix ends", "        else: a_tile[ty, tx] = 0\n", "", "all written",
           TWO),
    Mutant("the guard of A for B", "if k0 + ty < b.shape[0] and col < b.shape[1]",
           "if row < a.shape[0] and k0 + tx < a.shape[1]", "in bounds", TWO),
    Mutant("the last part of k left out", "while k0 < k:", "while k0 + TILE <= k:", "correct"),
    Mutant("A's tile in rows of the wrong pitch", "        tiles[ty * TILE + tx] =",
           "        tiles[ty * (TILE + 1) + tx] =", "no races"),
    Mutant("both tiles at the same place", "tiles[SQUARE + ty * TILE + tx] =", "tiles[ty * TILE + tx] =",
           "all written"),
    Mutant("B's tile begins a row after A's", "tiles[SQUARE + ty * TILE + tx] =",
           "tiles[TILE + ty * TILE + tx] =", "no races"),
    Mutant("room for one tile", "cuda.shared.array(0, float32)", "cuda.shared.array(SQUARE, float32)",
           "in bounds"),
    Mutant("the tile of B read by columns", "tiles[SQUARE + i * TILE + tx]", "tiles[SQUARE + tx * TILE + i]",
           "correct"),
    Mutant("rows and columns of A's copy swapped", "a[row, k0 + tx] if", "a[row, k0 + ty] if", "in bounds"),
    Mutant("one index for two, as in C++", "a[row, k0 + tx] if", "a[row * k + k0 + tx] if", "compiles"),
    Mutant("the first tile again and again", "b[k0 + ty, col] if", "b[ty, col] if", "correct"),
    Mutant("added to what is in C", "c[row, col] = acc", "c[row, col] += acc", "correct"),
    Mutant("a literal's float64 in the sum", "acc, k0 = float32(0), 0", "acc, k0 = 0.0, 0", "float64"),
    Mutant("0 as in C++", "< k and col < n else float32(0)", "< k and col < n else 0", "float64"),
    Mutant("a fence in each tile", "        k0 += TILE\n",
           "        cuda.threadfence_block()\n        k0 += TILE\n", "fences"),
    Mutant("k taken from C", "c.shape[1], a.shape[1]", "c.shape[1], c.shape[1]", "correct"),
    Mutant("B read from global memory", "* tiles[SQUARE + i * TILE + tx]",
           "* (b[k0 + i, col] if k0 + i < k and col < n else float32(0))", "global reads"),
    Mutant("one thread copies for all",
           """        if row < a.shape[0] and k0 + tx < a.shape[1]: a_tile[ty, tx] = a[row, k0 + tx]
        else: a_tile[ty, tx] = 0
        if k0 + ty < b.shape[0] and col < b.shape[1]: b_tile[ty, tx] = b[k0 + ty, col]
        else: b_tile[ty, tx] = 0
""", """        if thread == 0:
            for i in range(TILE):
                for j in range(TILE):
                    a_tile[i, j] = b_tile[i, j] = float32(0)
                    if row + i < a.shape[0] and k0 + j < a.shape[1]: a_tile[i, j] = a[row + i, k0 + j]
                    if k0 + i < b.shape[0] and col + j < b.shape[1]: b_tile[i, j] = b[k0 + i, col + j]
""", "copies", TWO),
    Mutant("no padding", "(TILE, WIDE)", "(TILE, TILE)", "wavefronts", PADDED))


OVERWRITTEN = ("this may be the original's mistake: who still reads the tiles when the next ones are "
               "written? And does every thread reach that barrier?")
EXERCISES = (Exercise(
    "31", "my_port", constants=dict(TILE=16), preamble="SQUARE, WIDE = TILE * TILE, TILE + 2\n",
    cases=(case(16, 16, 64, 16), case(37, 20, 21, 8)),
    goals=(*ONE_COPY,
           Goal("sectors", costliest("global"), most=4, unit="sectors per request",
                hint="neighboring threads should copy neighboring columns: tx is threadIdx.x % TILE"),
           Goal("wavefronts", costliest("shared"), most=1, unit="wavefronts per request",
                hint="the threads of a warp need different words of one bank: keep the layout of the "
                     "original"),
           NO_FLOAT64, NO_FENCES),
    hints={
        "no races: was read by": OVERWRITTEN,
        "no races: and is read by": OVERWRITTEN,
        "no races: and is written by": (
            "two threads write one place: ty and tx, the quotient and the remainder of threadIdx.x by TILE, "
            "are below TILE. A thread's place in A's tile is ty * TILE + tx. Its place in B's tile is "
            "TILE * TILE elements later"),
        "all written": (
            "a thread writes ty * TILE + tx of A's tile and, TILE * TILE elements later, of B's: a zero "
            "where the matrix ends. ty and tx both come from threadIdx.x. Then comes a barrier, and only "
            "then are the tiles read"),
        "barriers": (
            "no thread may return before it has reached every barrier: guard the loads and the store "
            "instead"),
        "in bounds: dynamic shared memory": (
            "both tiles together have 2 * TILE * TILE numbers: does an index go past them, or does a loop "
            "end at a number other than TILE?"),
        "in bounds": (
            "sizes aren't multiples of TILE, so three accesses need guards: the elements of A, of B and of "
            "C, each against the sizes of its own matrix, row and column. If the message names a tile: is "
            "there room for both?"),
        "correct: never written": (
            "a block is one row of threads, and covers TILE rows and TILE columns of C: blockIdx.x counts "
            "its rows, and blockDim isn't TILE"),
        "correct: are wrong": (
            "each place has a sum, but the wrong one: are all tiles added, even the last one, which "
            "may be partial? Does acc go on from tile to tile? Does step i take column i of A's tile and row "
            "i of B's?"),
        "correct": (
            "a block is one row of threads: which of x and y does each of threadIdx and blockIdx have here?"),
        "compiles: an index is a float": "C++ divides integers with /, Python with //",
        "compiles: dimension": (
            "a pointer takes one index, a[row * k + col], an array one per dimension, a[row, col]")},
    solutions=SOLUTIONS, mutants=MUTANTS,
    launch=lambda m, n: ((m // 32, n // 32), 32 * 32, 0, 2 * 32 * 32 * 4)),)
