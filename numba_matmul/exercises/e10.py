"""What `grade("10", my_warptiling)` asks of a map from threads to results, and which maps it must refuse.

Only the map is missing, and every map that gives each result to exactly one thread computes the right
product. It is graded with two sets of numbers, no two of them equal where the page's layout leaves them free:
a block of 32×64 sums by four warps of 16×32, with 2×8 results per thread, and one of 16×16 by two warps of
8×16, with 1×4. (The copy brings as many rows of A as a tile has columns of B, so A gets some more rows than C
where a tile is wider than high.) Then come these goals:

- **barriers per tile**: two, before a k tile is read and before the next one is stored.
- **numbers per step**: how many different numbers does a warp read in a step? A warp with a tile of its own
  reads 16 of A and 32 of B, and a strip more.
- **fences**: none; a barrier is enough.

The library's own kernel, or its map, isn't yours, and is refused.
"""
from dataclasses import replace

import numpy as np
from ..exercise import Exercise, Goal, Mutant, matmul_case
from ..kernels import k10_warptiling as page
from ..source import reference_of
from .e04 import EACH_STEP, EXCHANGED


SMALL = dict(BM=32, BN=64, BK=8, WM=16, WN=32, TM=2, TN=8, THREADS=128, PADDED=68)
OTHER = dict(BM=16, BN=16, BK=16, WM=8, WN=16, TM=1, TN=4, THREADS=64, PADDED=20)

def case(m, n, k, constants):
    "A launch (a, b, c). The lesson's copy brings BN rows of A, so A has some more below if a tile has fewer."
    plain = matmul_case(m, n, k, (constants["THREADS"], 1), (n // constants["BN"], m // constants["BM"]),
                        constants)
    def make(random):
        (a, b, c), expected = plain.make(random)
        below = random.standard_normal((constants["BN"] - constants["BM"], k)).astype(np.float32)
        return (np.concatenate((a, below)), b, c), expected
    return replace(plain, name=f"{m}×{n}×{k}", make=make)

def numbers_per_step(view):
    "How many different numbers a warp reads from both tiles in a step: 4 warps, 32 steps."
    sites = [site for site in view.merged() if site.space == "shared" and site.operation == "load"]
    if not sites: raise ValueError("nothing is read from shared memory")
    return sum(site.wanted for site in sites) / 4 / (4 * 32)

NO_FENCES = Goal("fences",
                 lambda code: sum(x.opcode.startswith(("MEMBAR", "FENCE")) for x in code.instructions),
                 most=0, counted="code",
                 hint="a barrier already orders what the threads of a block read and write in shared memory")

REFERENCE = reference_of(page.short_warptiling, "my_warptiling")
PLACE = """    warp, lane = thread // 32, thread % 32
    row = warp // (BN // WN) * WM + lane // (WN // TN) * TM
    col = warp % (BN // WN) * WN + lane % (WN // TN) * TN
"""

def placed(text):
    "The kernel with a different map."
    return REFERENCE.replace(PLACE, text)


EXERCISES = (Exercise(
    "10", "my_warptiling", constants=SMALL,
    preamble="from numba_matmul.ptx.core import load4, store4\n",
    cases=(case(32, 64, 32, SMALL), case(16, 48, 32, OTHER)),
    goals=(Goal("barriers per tile", lambda counts: counts.barriers / 4, most=2, counted="launches",
                hint="one barrier before the k tile is read and one before the next is stored: a third "
                     "orders nothing more"),
           Goal("numbers per step", numbers_per_step, most=48, unit="for a warp",
                hint="32 lanes with TM × TN results each: let them form a rectangle of WM × WN, not a "
                     "strip, and read each number once in a step"),
           NO_FENCES),
    hints={
        "all written: _tile[": (
            "either a thread reads a row or a column that the block doesn't have: row must stay below BM "
            "and col below BN, even for the last thread. Or not all threads meet at a barrier after the "
            "copy"),
        "correct: never written": (
            "some places belong to no thread. How far is it from one lane to the next, down and across? TM "
            "rows and TN columns. From one warp to the next? WM rows and WN columns"),
        "correct: are wrong": (
            "each place in C gets a sum, so look at what is multiplied: a thread reads a_tile at its rows "
            "and b_tile at its columns, the same ones that it stores to, in each step of each k tile"),
        "no races: _tile[": (
            "a k tile is read only when all threads have stored it, and stored over only when all have read "
            "it: does every thread reach both barriers, in each k tile?"),
        "no races: race: c[": (
            "two threads write the same element of C: do two lanes, or two warps, share a place? Are row0 "
            "and col0 added?"),
        "aligned": (
            "a thread stores four neighbors at once, so its first column must be a multiple of four: from "
            "lane to lane it is TN columns. And is it the row that counts down, and the column that counts "
            "across?"),
        "in bounds: a: index": (
            "A is read at rows of the block's tile, from row0 on, and row0 comes from blockIdx.y"),
        "in bounds": (
            "row and col count from the block's corner: row must stay below BM and col below BN, even for "
            "the last thread. How many lanes does a warp have side by side, and how many warps does a block "
            "have? Count by the names, not by the page's numbers: BM, WM, TM and the others differ from "
            "launch to launch")},
    solutions={
        "reference": REFERENCE,
        "lanes in columns": placed("""    warp, lane = thread // 32, thread % 32
    row = warp // (BN // WN) * WM + lane % (WM // TM) * TM
    col = warp % (BN // WN) * WN + lane // (WM // TM) * TN
"""),
        "warps in columns": placed("""    warp, lane = thread // 32, thread % 32
    row = warp % (BM // WM) * WM + lane // (WN // TN) * TM
    col = warp // (BM // WM) * WN + lane % (WN // TN) * TN
"""),
        "zig-zag": placed("""    warp, lane = thread // 32, thread % 32
    row = warp // (BN // WN) * WM + (lane // (2 * (WN // TN)) * 2 + lane % 2) * TM
    col = warp % (BN // WN) * WN + lane // 2 % (WN // TN) * TN
"""),
        "tall warptiles": placed("""    warp, lane = thread // 32, thread % 32
    row = warp // (BN // WM) * WN + lane // (WM // TN) * TM
    col = warp % (BN // WM) * WM + lane % (WM // TN) * TN
"""),
        "places of warps and lanes, then their sum": placed("""    warp, lane = thread // 32, thread % 32
    down, across = divmod(warp, uint32(BN // WN))
    row, col = down * WM, across * WN
    row += lane // (WN // TN) * TM
    col += lane % (WN // TN) * TN
"""),
        "the warps' columns in turns, with a function": """@cuda.jit(device=True)
def down_across(number, width): return number // width, number % width

""" + placed("""    warp_row, warp_col = down_across(thread // 32, BN // WN)
    lane_row, lane_col = down_across(thread % 32, WN // TN)
    row = warp_row * WM + lane_row * TM
    col = (lane_col * (BN // WN) + warp_col) * TN
"""),
        "with divmod's parts by name": placed("""    lanes_across, warps_across = WN // TN, BN // WN
    warp_row, warp_col = thread // 32 // warps_across, thread // 32 % warps_across
    lane_row, lane_col = thread % 32 // lanes_across, thread % lanes_across
    row, col = warp_row * WM + lane_row * TM, warp_col * WN + lane_col * TN
""")},
    mutants=(
        EACH_STEP, EXCHANGED,
        Mutant("not written", PLACE, "    ...\n", "written"),
        Mutant("lesson 8's strip", PLACE,
               "    row = thread // (BN // TN) * TM\n    col = thread % (BN // TN) * TN\n",
               "numbers per step"),
        Mutant("32 lanes far apart", PLACE,
               "    row = thread * 11 % THREADS // (BN // TN) * TM\n"
               "    col = thread * 11 % (BN // TN) * TN\n", "numbers per step"),
        Mutant("the warp's row forgotten", "row = warp // (BN // WN) * WM + lane", "row = lane", "correct"),
        Mutant("the warp's column forgotten", "col = warp % (BN // WN) * WN + lane", "col = lane", "correct"),
        Mutant("WM and WN exchanged", "warp // (BN // WN) * WM + lane", "warp // (BN // WN) * WN + lane",
               "in bounds"),
        Mutant("the step between warps across is WM", "warp % (BN // WN) * WN", "warp % (BN // WN) * WM",
               "correct"),
        Mutant("lanes one result apart, down", "lane // (WN // TN) * TM", "lane // (WN // TN)", "correct"),
        Mutant("lanes one result apart, across", "lane % (WN // TN) * TN", "lane % (WN // TN)", "aligned"),
        Mutant("counted in numbers, not in lanes", "lane // (WN // TN) * TM", "lane // WN * TM", "correct"),
        Mutant("lanes across counted by rows", "lane % (WN // TN) * TN", "lane % (WM // TM) * TN",
               "in bounds"),
        Mutant("lanes down counted by rows", "lane // (WN // TN) * TM", "lane // (WM // TM) * TM", "correct"),
        Mutant("warps across counted by rows of lanes", "warp // (BN // WN)", "warp // (WN // TN)",
               "correct"),
        Mutant("warps counted by rows of the block", "warp // (BN // WN) * WM + lane",
               "warp // (BM // WM) * WM + lane", "correct"),
        Mutant("all warps on the diagonal", "col = warp % (BN // WN)", "col = warp // (BN // WN)",
               "in bounds"),
        Mutant("all warps below each other", "warp // (BN // WN) * WM", "warp * WM", "in bounds"),
        Mutant("a warp of 16", "warp, lane = thread // 32, thread % 32",
               "warp, lane = thread // 16, thread % 16", "in bounds"),
        Mutant("warp and lane exchanged", "warp, lane = thread // 32, thread % 32",
               "lane, warp = thread // 32, thread % 32", "all written"),
        Mutant("row and column exchanged", "row0 + row + i, col0 + col + j", "row0 + col + i, col0 + row + j",
               "aligned"),
        Mutant("A read at the column", "a_tile[dot, row + i]", "a_tile[dot, col + i]", "correct"),
        Mutant("B read at the row", "b_tile[dot, col + j]", "b_tile[dot, row + j]", "in bounds"),
        Mutant("no barrier before the next copy", "            dot += 1\n        cuda.syncthreads()\n",
               "            dot += 1\n", "no races"),
        Mutant("a barrier in the first k tile only", "            dot += 1\n        cuda.syncthreads()\n",
               "            dot += 1\n        if k0 == 0: cuda.syncthreads()\n", "no races"),
        Mutant("a third barrier", "            dot += 1\n",
               "            dot += 1\n        cuda.syncthreads()\n", "barriers per tile"),
        Mutant("a fence before the barrier", "            dot += 1\n",
               "            dot += 1\n        cuda.threadfence()\n", "fences"),
        Mutant("the loop ends after two k tiles", "while k0 < a.shape[1]:", "while k0 < 2 * BK:", "correct"),
        Mutant("C stored in each k tile",
               "        k0 += BK\n    for i in range(TM):\n        for j in range(0, TN, 4):\n",
               "        k0 += BK\n        for i in range(TM):\n          for j in range(0, TN, 4):\n",
               "one store each"),
        Mutant("BM for BN", "warp // (BN // WN) * WM + lane", "warp // (BM // WN) * WM + lane", "in bounds"),
        Mutant("BM for BN, across", "warp % (BN // WN) * WN", "warp % (BM // WN) * WN", "correct"),
        Mutant("TM for TN", "lane % (WN // TN) * TN", "lane % (WN // TN) * TM", "aligned"),
        Mutant("TN for TM", "lane // (WN // TN) * TM", "lane // (WN // TN) * TN", "all written"),
        Mutant("the judge's numbers for the names", PLACE, """    warp, lane = thread // 32, thread % 32
    row = warp // 2 * 16 + lane // 4 * 2
    col = warp % 2 * 32 + lane % 4 * 8
""", "in bounds"),
        Mutant("the page's numbers for the names", PLACE, """    warp, lane = thread // 32, thread % 32
    row = warp // 2 * 32 + lane // 8 * 8
    col = warp % 2 * 64 + lane % 8 * 8
""", "in bounds"),
        Mutant("the library's kernel", REFERENCE,
               "from numba_matmul.kernels.k10_warptiling import short_warptiling as my_warptiling\n",
               "your own"),
        Mutant("the library's map", REFERENCE, """from numba_matmul.gemm.tiles import WarpTile
from numba_matmul.kernels.k10_warptiling import thread_place
place = thread_place(WarpTile(bm=32, bn=64, bk=8, wm=16, wn=32, wniter=1, tm=2, tn=8))

""" + placed("    row, col = place(thread)\n"), "your own")),
    page=page, launch=lambda m, n: ((n // 128, m // 128), (256, 1))),)
