"""What `grade("03", my_smem)` asks of a kernel, what it accepts, and what it must catch.

While it's graded, `TILE` is 16. The simulator reports a race, a read of something nobody has written, and a
barrier that not all threads reach. The goals are the lesson's point: all threads copy, each element of a tile
is read from global memory once, along its rows, and shared memory serves each request without bank conflicts.
(Two wavefronts are accepted: with `TILE = 16` a warp has two rows of the tile, and in rows of 17 or 32 words
these conflict. With `TILE = 32` a warp has one row, and nothing conflicts.) Nothing may be computed in
float64.
"""
from ..exercise import NO_FLOAT64, Exercise, Goal, Mutant, matmul_case
from ..source import reference_of
from ..kernels.k03_smem_blocking import short_smem


def global_reads(products):
    "Elements of A and B that a block reads, per multiply-add; `products`: how many multiply-adds it does."
    return lambda view: sum(sum(view.reads.get(name, {}).values()) for name in "ab") / products

def copies(requests):
    "A block's requests for elements of A and B, relative to those it needs."
    def wanted(site): return site.space == "global" and site.array in ("a", "b")
    return lambda view: sum(site.requests for site in view.merged() if wanted(site)) / requests

def two_barriers(tiles):
    "Two barriers per k tile; `tiles`: how many the first case has. One more, outside the loop, is free."
    return Goal("barriers per tile", lambda counts: -(-(counts.barriers - 1) // tiles), most=2,
                counted="launches",
                hint="two are enough: one when the tiles are full, and one when all threads have read "
                     "them. Is one of them in an inner loop?")

ONE_COPY = (  # of each element, in the first case: 16×16 results, four tiles along k, eight warps
    two_barriers(4),
    Goal("global reads", global_reads(16 * 16 * 64), most=2 / 16, unit="per multiply-add, with 16×16 tiles",
         hint="each thread copies one element of A and one of B per tile; the inner loop reads only the "
              "tiles"),
    Goal("copies", copies(8 * 4), most=2, unit="requests of a warp per tile",
         hint="let each thread copy one element of A and one of B: then a warp makes one request for each"))

BETWEEN = ("one thread reads a tile while another fills it: in each step, all threads must reach a barrier "
           "after the copies, and another barrier after the products")

def costliest(space):
    def measure(view):
        sites = [site for site in view.merged() if site.space == space and site.array != "c"]
        if not sites: raise ValueError(f"no {space} memory is used")
        return max(sites, key=lambda site: site.cost)
    return measure


# the barriers have names, so that a mistake can be made at one of them
BEFORE, USED, STORED = reference_of(short_smem, "my_smem").split("cuda.syncthreads()")
REFERENCE = f"{BEFORE}cuda.syncthreads()  # full{USED}cuda.syncthreads()  # free{STORED}"

OF_TILES = (  # mistakes that kernel 3 can have when it comes from CUDA C++, too
    Mutant("the second barrier after the first two tiles only", "cuda.syncthreads()  # free",
           "if k0 < 2 * TILE: cuda.syncthreads()", "no races"),
    Mutant("16 for TILE in the loop", "for i in range(TILE):", "for i in range(16):", "in bounds"),
    Mutant("a barrier for the warp only", "cuda.syncthreads()  # free", "cuda.syncwarp()", "no races"),
    Mutant("the sum starts over with each tile", "        for i in range(TILE): acc +=",
           "        acc = float32(0)\n        for i in range(TILE): acc +=", "correct"))

EXERCISES = (Exercise(
    "03", "my_smem", constants=dict(TILE=16),
    preamble="WIDE, ONE_MORE, BOTH = TILE + 2, TILE + 1, 2 * TILE\n",
    cases=(matmul_case(16, 32, 64, (16, 16), (2, 1)), matmul_case(24, 16, 16, (8, 8), (2, 3), dict(TILE=8))),
    goals=(*ONE_COPY,
           Goal("sectors", costliest("global"), most=4, unit="sectors per request",
                hint="neighboring threads (threadIdx.x) should copy neighboring columns, of A and of B"),
           # with rows of 17 or 32 words the two rows of a warp share banks, and nothing does when TILE is 32
           Goal("wavefronts", costliest("shared"), most=2, unit="wavefronts per request",
                hint="some threads of a warp need different words from the same bank: let threadIdx.x run "
                     "along a row of the tile, or pad its rows"),
           NO_FLOAT64),
    hints={
        "in bounds": (
            "no guard is needed, since all sizes fit: tx, ty and i count within a tile, row, col and k0 "
            "within A, B and C; and k0 takes steps of TILE up to a.shape[1]"),
        "all written": (
            "a thread reads what its neighbors copy: does each element of the tile get its value, and is "
            "there a barrier between the copies and the products?"),
        "no races: was read by": BETWEEN,
        "no races: is read by": BETWEEN,
        "correct: never written": (
            "every thread stores one element of C: all sizes fit, so no guard is needed"),
        "correct": (
            "in which column of A and which row of B does the tile at k0 begin? Which row of a_tile and "
            "which column of b_tile belong to c[row, col]? Does acc collect all TILE products of every "
            "tile?")},
    solutions={"reference": REFERENCE, "a barrier before each copy but the first": """@cuda.jit
def my_smem(a, b, c):
    a_tile = cuda.shared.array((TILE, TILE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * TILE + ty, cuda.blockIdx.x * TILE + tx
    acc = float32(0)
    for k0 in range(0, b.shape[0], TILE):
        if k0 > 0: cuda.syncthreads()
        b_tile[ty, tx] = b[k0 + ty, col]
        a_tile[ty, tx] = a[row, k0 + tx]
        cuda.syncthreads()
        i = 0
        while i < TILE:
            acc += a_tile[ty, i] * b_tile[i, tx]
            i += 1
    c[row, col] = acc
""", "A transposed, in padded rows": """@cuda.jit
def my_smem(a, b, c):
    a_tile = cuda.shared.array((TILE, WIDE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    acc, k0 = float32(0), 0
    while k0 < a.shape[1]:
        a_tile[tx, ty] = a[row, k0 + tx]
        b_tile[ty, tx] = b[k0 + ty, col]
        cuda.syncthreads()
        for i in range(TILE): acc += a_tile[i, ty] * b_tile[i, tx]
        cuda.syncthreads()
        k0 += TILE
    c[row, col] = acc
""", "A transposed, in rows longer by one": """@cuda.jit
def my_smem(a, b, c):
    a_tile = cuda.shared.array((TILE, ONE_MORE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    acc = float32(0)
    for k0 in range(0, a.shape[1], TILE):
        a_tile[tx, ty], b_tile[ty, tx] = a[row, k0 + tx], b[k0 + ty, col]
        cuda.syncthreads()
        for i in range(TILE): acc += a_tile[i, ty] * b_tile[i, tx]
        cuda.syncthreads()
    c[row, col] = acc
""", "tiles side by side in one array": """@cuda.jit
def my_smem(a, b, c):
    tiles = cuda.shared.array((TILE, BOTH), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    acc, k0 = float32(0), 0
    while k0 < a.shape[1]:
        tiles[ty, tx] = a[row, k0 + tx]
        tiles[ty, TILE + tx] = b[k0 + ty, col]
        cuda.syncthreads()
        for i in range(TILE): acc += tiles[ty, i] * tiles[i, TILE + tx]
        cuda.syncthreads()
        k0 += TILE
    c[row, col] = acc
""", "one array for both tiles": """@cuda.jit
def my_smem(a, b, c):
    tiles = cuda.shared.array((BOTH, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    acc = float32(0)
    for step in range(a.shape[1] // TILE):
        tiles[ty, tx] = a[row, step * TILE + tx]
        tiles[TILE + ty, tx] = b[step * TILE + ty, col]
        cuda.syncthreads()
        for i in range(TILE): acc += tiles[ty, i] * tiles[TILE + i, tx]
        cuda.syncthreads()
    c[row, col] = acc
"""},
    mutants=(
        *OF_TILES,
        Mutant("C stored in each tile", "        k0 += TILE\n",
               "        k0 += TILE\n        c[row, col] = acc\n", "one store each"),
        Mutant("C stored in each step", "acc += a_tile[ty, i] * b_tile[i, tx]",
               "\n            acc += a_tile[ty, i] * b_tile[i, tx]\n            c[row, col] = acc",
               "one store each"),
        Mutant("C stored in each tile, but not by the first block", "        k0 += TILE\n",
               "        k0 += TILE\n        if cuda.blockIdx.y > 0: c[row, col] = acc\n", "one store each"),
        Mutant("a barrier in each step", "acc += a_tile[ty, i] * b_tile[i, tx]",
               "\n            acc += a_tile[ty, i] * b_tile[i, tx]\n            cuda.syncthreads()",
               "barriers per tile"),
        Mutant("a barrier between the copies", "        b_tile[ty, tx] =",
               "        cuda.syncthreads()\n        b_tile[ty, tx] =", "barriers per tile"),
        Mutant("the first barrier in the first tile only", "cuda.syncthreads()  # full",
               "if k0 == 0: cuda.syncthreads()", "no races"),
        Mutant("two tiles, however many there are", "while k0 < a.shape[1]:", "while k0 < 2 * TILE:",
               "correct"),
        Mutant("as many steps as A is high", "while k0 < a.shape[1]:", "while k0 < a.shape[0]:", "in bounds"),
        Mutant("block indices swapped", "col, row = cuda.grid(2)",
               "col, row = cuda.blockIdx.y * TILE + tx, cuda.blockIdx.x * TILE + ty", "in bounds"),
        Mutant("16 for TILE in the step", "k0 += TILE", "k0 += 16", "correct"),
        Mutant("each thread copies a whole row of A's tile", "        a_tile[ty, tx] = a[row, k0 + tx]\n",
               "        for i in range(TILE): a_tile[ty, i] = a[row, k0 + i]\n", "one writer"),
        Mutant("the second barrier for half of the threads", "cuda.syncthreads()  # free",
               "if tx < 8: cuda.syncthreads()", "no races"),
        Mutant("the first row of threads copies",
               "        a_tile[ty, tx] = a[row, k0 + tx]\n        b_tile[ty, tx] = b[k0 + ty, col]\n",
               "        if ty == 0:\n            for i in range(TILE):\n"
               "                a_tile[i, tx], b_tile[i, tx] = a[row + i, k0 + tx], b[k0 + i, col]\n",
               "copies"),
        Mutant("a tile in local memory", "a_tile = cuda.shared.array", "a_tile = cuda.local.array",
               "all written"),
        Mutant("not written", "a_tile[ty, tx] = a[row, k0 + tx]", "...", "written"),
        Mutant("no barrier before the tiles are read", "        cuda.syncthreads()  # full\n", "",
               "all written"),
        Mutant("no barrier before the next copy", "        cuda.syncthreads()  # free\n", "", "no races"),
        Mutant("a barrier for some threads", "cuda.syncthreads()  # full", "if ty < 8: cuda.syncthreads()",
               "no races"),
        Mutant("a return before the barriers", "    acc, k0 = float32(0), 0\n",
               "    acc, k0 = float32(0), 0\n    if row > 14: return\n", "barriers"),
        Mutant("A is not copied", "        a_tile[ty, tx] = a[row, k0 + tx]\n", "", "all written"),
        Mutant("only the diagonal of B is copied", "        b_tile[ty, tx] = b",
               "        if tx == ty: b_tile[ty, tx] = b", "all written"),
        Mutant("the first tile again and again", "a[row, k0 + tx]", "a[row, tx]", "correct"),
        Mutant("B's first tile again and again", "b[k0 + ty, col]", "b[ty, col]", "correct"),
        Mutant("one element for all threads", "a[row, k0 + tx]", "a[row, k0]", "correct"),
        Mutant("the tile of A is transposed by mistake", "a_tile[ty, tx] = a", "a_tile[tx, ty] = a",
               "correct"),
        Mutant("the place in the block as the column", "b[k0 + ty, col]", "b[k0 + ty, tx]", "correct"),
        Mutant("the place in the block as the row", "a[row, k0 + tx]", "a[ty, k0 + tx]", "correct"),
        Mutant("the last product of a tile left out", "for i in range(TILE):", "for i in range(TILE - 1):",
               "correct"),
        Mutant("one product too many", "for i in range(TILE):", "for i in range(TILE + 1):", "in bounds"),
        Mutant("steps of 1", "k0 += TILE", "k0 += 1", "in bounds"),
        Mutant("a tile too many", "while k0 < a.shape[1]:", "while k0 <= a.shape[1]:", "in bounds"),
        Mutant("a sum in float64", "acc, k0 = float32(0), 0", "acc, k0 = 0.0, 0", "float64"),
        Mutant("B from global memory", "* b_tile[i, tx]", "* b[k0 + i, col]", "global reads"),
        Mutant("A from global memory", "a_tile[ty, i] *", "a[row, k0 + i] *", "global reads"),
        Mutant("both tiles copied twice", "        cuda.syncthreads()  # full\n",
               "        a_tile[ty, tx] = a[row, k0 + tx]\n        b_tile[ty, tx] = b[k0 + ty, col]\n"
               "        cuda.syncthreads()\n", "global reads"),
        Mutant("x is the row", "tx, ty = cuda.threadIdx.x, cuda.threadIdx.y\n    col, row = cuda.grid(2)",
               "ty, tx = cuda.threadIdx.x, cuda.threadIdx.y\n"
               "    row, col = cuda.blockIdx.y * TILE + ty, cuda.blockIdx.x * TILE + tx", "sectors"),
        Mutant("x is the row, of blocks, too",
               "tx, ty = cuda.threadIdx.x, cuda.threadIdx.y\n    col, row = cuda.grid(2)",
               "ty, tx = cuda.threadIdx.x, cuda.threadIdx.y\n    row, col = cuda.grid(2)", "in bounds"),
        Mutant("x is the row in the copy of A", "a_tile[ty, tx] = a[row, k0 + tx]",
               "a_tile[tx, ty] = a[cuda.blockIdx.y * TILE + tx, k0 + ty]", "sectors"),
        Mutant("one thread copies for all",
               "        a_tile[ty, tx] = a[row, k0 + tx]\n        b_tile[ty, tx] = b[k0 + ty, col]\n",
               "        if tx == 0 and ty == 0:\n            for i in range(TILE):\n"
               "                for j in range(TILE):\n"
               "                    a_tile[i, j], b_tile[i, j] = a[row + i, k0 + j], b[k0 + i, col + j]\n",
               "copies"),
        Mutant("no padding", "(TILE, WIDE)", "(TILE, TILE)", "wavefronts", of="A transposed, in padded rows"),
        Mutant("B's tile transposed", "b_tile[ty, tx] = b[k0 + ty, col]\n        cuda.syncthreads()  # full\n"
               "        for i in range(TILE): acc += a_tile[ty, i] * b_tile[i, tx]",
               "b_tile[tx, ty] = b[k0 + ty, col]\n        cuda.syncthreads()\n"
               "        for i in range(TILE): acc += a_tile[ty, i] * b_tile[tx, i]", "wavefronts")),
    short=("kernels 2 and 3 at 4096, short", "smem"),
    launch=lambda m, n: ((n // 32, m // 32), (32, 32))),)
