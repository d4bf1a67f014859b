"""What `grade("10", my_warptiling)` asks of a map from threads to results, and which maps it must refuse.

Only the map is missing, and every map that gives each result to exactly one thread computes the right
product. It is graded with two sets of constants, which differ wherever the page's layout allows: a
block of 64×128 sums by four warps with 8×8 results per thread, and six blocks of 16×64 with 2×4. (The copy
reads as many rows of A as a tile has columns of B, so A gets a few more rows than C.) Then come these goals:

- **barriers per tile**: two, before a k tile is read and before the next one is stored.
- **loads per step**: the wavefronts that a warp's four 128-bit loads take in one step. Strips, and
  warptiles of 4×8 lanes row by row, take 20: more than the 16 cycles in which a multiprocessor can start the
  step's 64 multiply-adds. Twelve are enough: tiles of 8×4 lanes, or other orders of the lanes.
- **narrow loads**: none, since the count above is of 128 bits.
- **fences**: none; a barrier is enough.

The library's own kernel, or its map, isn't yours, and is refused.
"""
from dataclasses import replace

import numpy as np
from ..exercise import Exercise, Goal, Mutant, matmul_case
from ..kernels import k10_warptiling as page
from ..microscope import wavefronts
from ..source import reference_of
from .e04 import EACH_STEP, EXCHANGED
from .e07 import of_shared
from .e08 import narrow_loads


SMALL = dict(BM=64, BN=128, BK=4, TM=8, TN=8, THREADS=128, PADDED=132)
OTHER = dict(BM=16, BN=64, BK=8, TM=2, TN=4, THREADS=128, PADDED=68)

def case(m, n, k, constants):
    "A launch (a, b, c). The lesson's copy reads BN rows of A; if a tile has fewer, A is extended to that."
    plain = matmul_case(m, n, k, (constants["THREADS"], 1), (n // constants["BN"], m // constants["BM"]),
                        constants)
    def make(random):
        (a, b, c), expected = plain.make(random)
        below = random.standard_normal((constants["BN"] - constants["BM"], k)).astype(np.float32)
        return (np.concatenate((a, below)), b, c), expected
    return replace(plain, name=f"{m}×{n}×{k}", make=make)

def loads_per_step(view):
    "Wavefronts of a warp's loads in a step, if the compiler reads four neighbors at once."
    count = 0
    for array, numbers in ("a_tile", SMALL["TM"]), ("b_tile", SMALL["TN"]):
        first = of_shared(view, array, "load")[0].sample
        starts = {lane: byte // 16 * 16 for lane, (byte, *_) in first.items()}
        count += numbers // 4 * wavefronts(starts, 16)
    return count

NO_FENCES = Goal("fences",
                 lambda code: sum(x.opcode.startswith(("MEMBAR", "FENCE")) for x in code.instructions),
                 most=0, counted="code",
                 hint="a barrier already orders what the threads of a block read and write in shared memory")

LANES = "WM, WN = 8 * TM, 4 * TN\n\n"  # a warp's tile, with 8×4 lanes
PLACE = """    warp, lane = thread // 32, thread % 32
    row = warp // (BN // WN) * WM + lane // (WN // TN) * TM
    col = warp % (BN // WN) * WN + lane % (WN // TN) * TN
"""
REFERENCE = LANES + reference_of(page.short_warptiling, "my_warptiling")

def placed(text, lanes=LANES):
    "The kernel with a different map."
    return REFERENCE.replace(PLACE, text).replace(LANES, lanes)

WIDE = "WM, WN = 4 * TM, 8 * TN\n\n"  # 4×8 lanes


EXERCISES = (Exercise(
    "10", "my_warptiling", constants=SMALL,
    compiled=dict(BM=128, BN=128, BK=8, TM=8, TN=8, THREADS=256, PADDED=132),
    preamble="from numba_matmul.ptx.core import load4, store4\n",
    cases=(case(64, 128, 16, SMALL), case(32, 192, 32, OTHER)),
    goals=(Goal("barriers per tile", lambda counts: counts.barriers / 4, most=2, counted="launches",
                hint="one barrier before the k tile is read and one before the next is stored: a third "
                     "adds nothing"),
           Goal("loads per step", loads_per_step, most=12,
                unit="wavefronts of a warp, in 128-bit loads",
                hint="eight lanes in a row are served together. Lanes in neighboring columns are eight words "
                     "apart in b_tile: how many of them fit into 32 banks? So let the eight share columns"),
           Goal("narrow loads", narrow_loads, most=0, unit="from shared memory in the main loop",
                counted="code",
                hint="a thread's rows and columns are neighbors, and its first row and column multiples of "
                     "four: then the compiler reads four elements at once. If your formula hides that "
                     "from it, call load4"),
           NO_FENCES),
    hints={
        "all written: _tile[": (
            "either a thread reads a row or a column that the block doesn't have: row must stay below BM "
            "and col below BN, even for the last thread, and in each launch. So compute WM and WN from TM "
            "and TN. Or not all threads meet at a barrier after the copy"),
        "correct: never written": (
            "some places belong to no thread. How far is it from one lane to the next, down and across? TM "
            "rows and TN columns. From one warp to the next? WM rows and WN columns"),
        "correct: are wrong": (
            "each place in C gets a sum, so look at what is multiplied: a thread reads a_tile at its rows "
            "and b_tile at its columns, the same ones that it stores to, in each step of each k tile"),
        "no races: _tile[": (
            "a k tile may be read only after all threads have stored it, and overwritten only after all have "
            "read it: does every thread reach both barriers, in each k tile?"),
        "no races: race: c[": (
            "two threads write the same element of C: do two lanes, or two warps, share a place? Did you add "
            "row0 and col0?"),
        "aligned": (
            "a thread stores four neighbors at once, so its first column must be a multiple of four: "
            "neighboring lanes are TN columns apart. Or are row and col swapped?"),
        "in bounds: a: index": (
            "A's rows are read from row0 on, and row0 comes from blockIdx.y"),
        "in bounds": (
            "row and col count from the block's corner: row must stay below BM and col below BN, even for "
            "the last thread. How many lanes does a warp have side by side, and how many warps does a block "
            "have? Use the names, not the page's numbers: BM, TM and the others differ from launch to "
            "launch")},
    solutions={
        "reference": REFERENCE,
        "zig-zag": placed("""    warp, lane = thread // 32, thread % 32
    across = WN // TN
    row = warp // (BN // WN) * WM + (lane // (2 * across) * 2 + lane % 2) * TM
    col = warp % (BN // WN) * WN + lane // 2 % across * TN
""", WIDE),
        "squares of four lanes, read by load4": placed("""    warp, lane = thread // 32, thread % 32
    row = warp // (BN // WN) * WM + (lane // 8 % 2 * 2 + lane % 2) * TM
    col = warp % (BN // WN) * WN + (lane // 16 * 4 + lane // 2 % 4) * TN
""", WIDE).replace("            for j in range(TN): reg_n[j] = b_tile[dot, col + j]\n", """
            for j in range(0, TN, 4):
                x = load4(b_tile, (dot, col + j))
                for q in range(4): reg_n[j + q] = x[q]
"""),
        "strips in zig-zag": placed("""    warp, lane = thread // 32, thread % 32
    row = (warp * 2 + lane % 2) * TM
    col = lane // 2 * TN
""", ""),
        "lanes in columns": placed("""    warp, lane = thread // 32, thread % 32
    row = warp // (BN // WN) * WM + lane % (WM // TM) * TM
    col = warp % (BN // WN) * WN + lane // (WM // TM) * TN
""", WIDE),
        "warps in columns": placed("""    warp, lane = thread // 32, thread % 32
    row = warp % (BM // WM) * WM + lane // (WN // TN) * TM
    col = warp // (BM // WM) * WN + lane % (WN // TN) * TN
"""),
        "places of warps and lanes, then their sum": placed("""    warp, lane = thread // 32, thread % 32
    down, across = divmod(warp, uint32(BN // WN))
    row, col = down * WM, across * WN
    row += lane // (WN // TN) * TM
    col += lane % (WN // TN) * TN
"""),
        "with a function": """@cuda.jit(device=True)
def down_across(number, width): return number // width, number % width

""" + placed("""    warp_row, warp_col = down_across(thread // 32, BN // WN)
    lane_row, lane_col = down_across(thread % 32, WN // TN)
    row, col = warp_row * WM + lane_row * TM, warp_col * WN + lane_col * TN
""")},
    mutants=(
        EACH_STEP, EXCHANGED,
        Mutant("not written", PLACE, "    ...\n", "written"),
        Mutant("lesson 8's strips", PLACE,
               "    row = thread // (BN // TN) * TM\n    col = thread % (BN // TN) * TN\n",
               "loads per step"),
        Mutant("warptiles of 4×8 lanes, row by row", LANES, WIDE, "loads per step"),
        Mutant("the warps' columns interleaved", "warp % (BN // WN) * WN + lane % (WN // TN) * TN",
               "(lane % (WN // TN) * (BN // WN) + warp % (BN // WN)) * TN", "loads per step"),
        Mutant("lanes far apart", PLACE,
               "    row = thread * 11 % THREADS // (BN // TN) * TM\n"
               "    col = thread * 11 % (BN // TN) * TN\n", "loads per step"),
        Mutant("the warp's row forgotten", REFERENCE,
               placed(PLACE.replace("warp // (BN // WN) * WM + ", ""), WIDE), "correct"),
        Mutant("the warp's column forgotten", "col = warp % (BN // WN) * WN + lane", "col = lane", "correct"),
        Mutant("WM and WN exchanged", REFERENCE,
               placed(PLACE.replace("(BN // WN) * WM", "(BN // WN) * WN"), WIDE), "in bounds"),
        Mutant("the step between warps across is WM", "warp % (BN // WN) * WN", "warp % (BN // WN) * WM",
               "in bounds"),
        Mutant("lanes one result apart, down", "lane // (WN // TN) * TM", "lane // (WN // TN)", "correct"),
        Mutant("lanes one result apart, across", "lane % (WN // TN) * TN", "lane % (WN // TN)", "aligned"),
        Mutant("counted in elements, not in lanes", "lane // (WN // TN) * TM", "lane // WN * TM", "correct"),
        Mutant("lanes across counted by rows", "lane % (WN // TN) * TN", "lane % (WM // TM) * TN",
               "in bounds"),
        Mutant("lanes down counted by rows", "lane // (WN // TN) * TM", "lane // (WM // TM) * TM", "correct"),
        Mutant("warps counted by rows of the block", "warp // (BN // WN) * WM + lane",
               "warp // (BM // WM) * WM + lane", "all written"),
        Mutant("all warps on the diagonal", REFERENCE,
               placed(PLACE.replace("col = warp % (BN // WN)", "col = warp // (BN // WN)"), WIDE), "correct"),
        Mutant("all warps in one column", "warp // (BN // WN) * WM", "warp * WM", "all written"),
        Mutant("a warp of 16", "warp, lane = thread // 32, thread % 32",
               "warp, lane = thread // 16, thread % 16", "in bounds"),
        Mutant("warp and lane exchanged", "warp, lane = thread // 32, thread % 32",
               "lane, warp = thread // 32, thread % 32", "all written"),
        Mutant("row and column exchanged", "row0 + row + i, col0 + col + j", "row0 + col + i, col0 + row + j",
               "in bounds"),
        Mutant("A read at the column", "a_tile[dot, row + i]", "a_tile[dot, col + i]", "correct"),
        Mutant("B read at the row", "b_tile[dot, col + j]", "b_tile[dot, row + j]", "correct"),
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
        Mutant("TN for TM", "lane // (WN // TN) * TM", "lane // (WN // TN) * TN", "in bounds"),
        Mutant("a thread's rows spread over the tile", REFERENCE, REFERENCE.replace(PLACE, """
    warp, lane = thread // 32, thread % 32
    row = warp // (BN // WN) * WM + lane // (WN // TN)
    col = warp % (BN // WN) * WN + lane % (WN // TN) * TN
""").replace("row + i]", "row + i * 8]").replace("row0 + row + i,", "row0 + row + i * 8,"), "narrow loads"),
        Mutant("numbers for WM and WN, right in the first launch", LANES, "WM, WN = 64, 32\n\n",
               "all written"),
        Mutant("the page's numbers in place of names", PLACE, """    warp, lane = thread // 32, thread % 32
    row = warp // 4 * 64 + lane // 4 * 8
    col = warp % 4 * 32 + lane % 4 * 8
""", "in bounds"),
        Mutant("the library's kernel", REFERENCE,
               "from numba_matmul.kernels.k10_warptiling import short_warptiling as my_warptiling\n",
               "your own"),
        Mutant("the library's map", REFERENCE, """from numba_matmul.gemm.tiles import WarpTile
from numba_matmul.kernels.k10_warptiling import thread_place
place = thread_place(WarpTile(bm=64, bn=128, bk=4, wm=64, wn=32, wniter=1, tm=8, tn=8))

""" + placed("    row, col = place(thread)\n", ""), "your own")),
    page=page, short=("kernel 10 at 4096, short, strips and warptiles", "warptiles"),
    launch=lambda m, n: ((n // 128, m // 128), (256, 1))),)
