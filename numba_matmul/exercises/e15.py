"""What `grade("15", my_tensor_cores)` asks of a kernel, what it accepts, and what it must catch.

The kernel is graded with blocks of two warps, which compute 32×64 sums, and with 5 k tiles (two more than the
ring has stages) or a single one; then with the page's own blocks of four warps. A and B are random numbers in
bfloat16, C is float32 and may be off by no more than float32 sums are. So a sum that is rounded to bfloat16
along the way is caught. If sums are wrong, the judge tries A = 1 and then B = 1 everywhere, and says which
of the two still fails. Then come the goals:

- **wavefronts per step**: all loads from shared memory of a warp for one step, which is 16 columns of A's
  tile and 16 rows of B's. Two `ldmatrix` for A and two for B load 16 8×8 matrices, and with the swizzle
  each is one wavefront. A kernel that loads a fragment twice, pair by pair, or in a different order of rows
  needs more. **products per load**: in the machine code, two matrix products for each `ldmatrix`.
- **time for a copy**, **barriers per tile**, **fences**: as in exercise 12. With three stages, two k tiles
  are multiplied while one is in flight.
- **local memory**: a thread's sums are a tuple, and stay in registers as long as every index into it is a
  constant.
- **shared memory**: three stages, and no more.
"""
from textwrap import indent

import numpy as np
from ..arrays import from_bf16, to_bf16
from ..exercise import Case, Exercise, Goal, Mutant
from ..judge import judge_kernel
from ..kernels import k15_tensor_cores as page
from ..source import cut, reference_of, replaced, with_constants
from .e04 import EXCHANGED
from .e10 import NO_FENCES
from .recorded import copy_order, first_warp, in_case


def bf16_case(
    m, n, k,  # of A, B and C
    block,    # threads
    grid,     # blocks
    constants=None,  # see `Case`
) -> Case:
    "A launch (a, b, c) with random A and B in bfloat16, and NaN in C, which is float32."
    def make(random):
        a, b = (to_bf16(random.standard_normal(shape)) for shape in ((m, k), (k, n)))
        expected = from_bf16(a).astype(np.float64) @ from_bf16(b)
        return (a, b, np.full((m, n), np.nan, np.float32)), {2: expected}
    return Case(f"{m}×{n}×{k}", block, grid, make, constants=constants, size=(m, n, k))

def wavefronts_a_step(view):
    "Wavefronts of a warp's loads from shared memory per step: a block has 2 warps, and 5 k tiles of 4 steps."
    loads = [site for site in view.merged() if (site.space, site.operation) == ("shared", "load")]
    return sum(site.passes for site in loads) / (2 * 5 * 4)

def with_ones(launch, args, operand):
    "In a child process, with A (0), B (1) or neither all ones: is C right, or are its sums in other places?"
    if operand is not None: args[operand][...] = to_bf16(np.ones(1))[0]
    a, b, c = args
    launch(a, b, c)
    exact = from_bf16(a).astype(np.float64) @ from_bf16(b)
    found, expected = np.sort(c, axis=None), np.sort(exact, axis=None)
    return np.allclose(c, exact, atol=1e-3), np.allclose(found, expected, atol=1e-3)

def looked_into(exercise, kernel, case, mistake):
    "Where the mistake in wrong sums is: the end of a sentence."
    def tried(operand): return in_case(exercise, kernel, case, with_ones, operand)
    if mistake == "elsewhere": return "" if tried(None)[1] else "; some of the right sums are missing"
    a, b = (tried(operand)[0] for operand in (0, 1))
    if a and b: return "; everything is right if A is 1 everywhere, and if B is"
    if a or b: return f"; everything is right if {'A' if a else 'B'} is 1 everywhere"
    return "; they are wrong even if A or B is 1 everywhere"

def judge(exercise, kernel):
    "The usual verdicts; wrong sums are investigated."
    for verdict in judge_kernel(exercise, kernel):
        case, mistake = verdict.mistake or (None, "")
        if mistake in ("elsewhere", "wrong"): verdict.found += looked_into(exercise, kernel, case, mistake)
        yield verdict


REFERENCE = reference_of(page.short_tensor_cores, "my_tensor_cores")
HEAD, ACC, FIRST, BEGIN, WAIT, AHEAD, STEPS, ON, END = cut(
    REFERENCE, "    here, half", "    for stage", "    k0, now", "        cp_async_wait", "        ahead",
    "        for k in", "        free", "    for i in range(2)")
RING_OF_COPIES = FIRST + BEGIN + WAIT + AHEAD
POINTS_AT = "here, half = lane % 16, lane // 16 * 8"


SOLUTIONS = {
    "reference": REFERENCE,
    "16 rows at a time": HEAD + "    upper, lower = ZEROS[:16], ZEROS[:16]\n" + RING_OF_COPIES + """
        for step in range(4):
            column, at_a, at_b = 16 * step + lane // 16 * 8, now * A_TILE, now * B_TILE
            left = ldmatrix_x4_trans(b_ring, at_b + place(16 * step + lane % 16, col + lane // 16 * 8))
            right = ldmatrix_x4_trans(b_ring, at_b + place(16 * step + lane % 16, col + 16 + lane // 16 * 8))
            top, below = place(row + lane % 16, column), place(row + 16 + lane % 16, column)
            upper = mma_m16n8k16(upper, ldmatrix_x4(a_ring, at_a + top), left + right)
            lower = mma_m16n8k16(lower, ldmatrix_x4(a_ring, at_a + below), left + right)
""" + ON + """    r, s = row0 + row + lane // 4, col0 + col + lane % 4 * 2
    for j in range(4):
        for half in range(2):
            c[r + 8 * half, s + 8 * j] = upper[4 * j + 2 * half]
            c[r + 8 * half, s + 8 * j + 1] = upper[4 * j + 2 * half + 1]
            c[r + 8 * half + 16, s + 8 * j] = lower[4 * j + 2 * half]
            c[r + 8 * half + 16, s + 8 * j + 1] = lower[4 * j + 2 * half + 1]
""",
    "16 columns at a time": HEAD + "    left, right = ZEROS[:16], ZEROS[:16]\n" + RING_OF_COPIES + """
        for k in range(0, BK, 16):
            at_a, at_b = now * A_TILE, now * B_TILE + place(k + lane % 16, lane // 16 * 8)
            x = ldmatrix_x4(a_ring, at_a + place(row + lane % 16, k + lane // 16 * 8))
            x = x + ldmatrix_x4(a_ring, at_a + place(row + 16 + lane % 16, k + lane // 16 * 8))
            left = mma_m16n8k16(left, x, ldmatrix_x4_trans(b_ring, at_b ^ col))
            right = mma_m16n8k16(right, x, ldmatrix_x4_trans(b_ring, at_b ^ (col + 16)))
""" + ON + """    for q in range(16):
        r = row0 + row + q // 8 * 16 + q % 4 // 2 * 8 + lane // 4
        s = col0 + col + q % 8 // 4 * 8 + lane % 4 * 2 + q % 2
        c[r, s] = left[q]
        c[r, s + 16] = right[q]
""",
    "one address, and an xor for each step": HEAD + ACC + """    at_a = place(row + lane % 16, lane // 16 * 8)
    at_b = place(lane % 16, col + lane // 16 * 8)
""" + RING_OF_COPIES + """        k = 0
        while k < BK:
            a_now, b_now = now * A_TILE + (at_a ^ k), now * B_TILE + at_b + 64 * k
            x = ldmatrix_x4(a_ring, a_now) + ldmatrix_x4(a_ring, a_now + 16 * 64)
            y = ldmatrix_x4_trans(b_ring, b_now) + ldmatrix_x4_trans(b_ring, b_now ^ 16)
            acc = mma_m16n8k16(acc, x, y)
            k += 16
""" + ON + END,
    "B's matrices in another order": HEAD + ACC + RING_OF_COPIES + """
        for k in range(0, BK, 16):
            a_row, a_col = row + lane % 16, k + lane // 16 * 8
            x = (ldmatrix_x4(a_ring, now * A_TILE + place(a_row, a_col))
                 + ldmatrix_x4(a_ring, now * A_TILE + place(a_row + 16, a_col)))
            b_row, b_col = k + lane % 8 + lane // 16 * 8, col + lane // 8 % 2 * 8
            p = ldmatrix_x4_trans(b_ring, now * B_TILE + place(b_row, b_col))
            q = ldmatrix_x4_trans(b_ring, now * B_TILE + place(b_row, b_col + 16))
            acc = mma_m16n8k16(acc, x, (p[0], p[2], p[1], p[3], q[0], q[2], q[1], q[3]))
""" + ON + END,
    "addresses in a function": """@cuda.jit(device=True)
def at(stage, tile, row, col, lane): return stage * tile + place(row + lane % 16, col + lane // 16 * 8)

""" + HEAD + ACC + RING_OF_COPIES + """
        for step in range(BK // 16):
            k = 16 * step
            x = (ldmatrix_x4(a_ring, at(now, A_TILE, row, k, lane))
                 + ldmatrix_x4(a_ring, at(now, A_TILE, row + 16, k, lane)))
            y = (ldmatrix_x4_trans(b_ring, at(now, B_TILE, k, col, lane))
                 + ldmatrix_x4_trans(b_ring, at(now, B_TILE, k, col + 16, lane)))
            acc = mma_m16n8k16(acc, x, y)
""" + ON + END,
    "the wait at the end": HEAD + ACC + FIRST + WAIT.replace("        ", "    ") + BEGIN + AHEAD + STEPS
                           + WAIT + ON + END,
    "factors a step ahead": HEAD + ACC + RING_OF_COPIES + """
        at_a, at_b = now * A_TILE, now * B_TILE
        x = (ldmatrix_x4(a_ring, at_a + place(row + here, half))
             + ldmatrix_x4(a_ring, at_a + place(row + 16 + here, half)))
        y = (ldmatrix_x4_trans(b_ring, at_b + place(here, col + half))
             + ldmatrix_x4_trans(b_ring, at_b + place(here, col + 16 + half)))
        for k in range(16, BK, 16):
            next_x = (ldmatrix_x4(a_ring, at_a + place(row + here, k + half))
                      + ldmatrix_x4(a_ring, at_a + place(row + 16 + here, k + half)))
            next_y = (ldmatrix_x4_trans(b_ring, at_b + place(k + here, col + half))
                      + ldmatrix_x4_trans(b_ring, at_b + place(k + here, col + 16 + half)))
            acc = mma_m16n8k16(acc, x, y)
            x, y = next_x, next_y
        acc = mma_m16n8k16(acc, x, y)
""" + ON + END,
    "stages by the number of the tile": HEAD + ACC + FIRST + """    for tile in range(a.shape[1] // BK):
""" + WAIT + """        if (tile + 2) * BK < a.shape[1]:
            start_copies(a_ring, b_ring, (tile + 2) % 3, a, b, row0, col0, (tile + 2) * BK, thread)
        cp_async_commit_group()
        now = tile % 3
""" + STEPS + END}


LOOP = BEGIN + WAIT + AHEAD + STEPS + ON
def loop(name, old, new, verdict): return Mutant(name, LOOP, replaced(LOOP, (old, new)), verdict)
def end(name, old, new, verdict="correct"): return Mutant(name, END, replaced(END, (old, new)), verdict)

X, Y = "".join(STEPS.splitlines(True)[1:3]), "".join(STEPS.splitlines(True)[3:5])
ODD_EVEN = replaced(STEPS, ("row + here", "row + 2 * here"), ("row + 16 + here", "row + 1 + 2 * here"))
PAIRS = """            b0, b1, b2, b3 = uint32(0), uint32(0), uint32(0), uint32(0)
            p, s = k + lane % 4 * 2, col + lane // 4
            for u in range(4):
                word = (uint32(b_ring[now * B_TILE + place(p, s + 8 * u) + s % 8])
                        | uint32(b_ring[now * B_TILE + place(p + 1, s + 8 * u) + s % 8]) << uint32(16))
                more = (uint32(b_ring[now * B_TILE + place(p + 8, s + 8 * u) + s % 8])
                        | uint32(b_ring[now * B_TILE + place(p + 9, s + 8 * u) + s % 8]) << uint32(16))
                if u == 0: y0, y1 = word, more
                elif u == 1: y2, y3 = word, more
                elif u == 2: y4, y5 = word, more
                else: y6, y7 = word, more
            y = (y0, y1, y2, y3, y4, y5, y6, y7)
"""
MUTANTS = (
    loop("not written", STEPS, "        for k in range(0, BK, 16):\n            ...\n", "written"),
    Mutant("lanes in reading order", POINTS_AT, "here, half = lane // 2, lane % 2 * 8", "correct"),
    Mutant("only eight rows", POINTS_AT, "here, half = lane % 8, lane // 16 * 8", "correct"),
    loop("A and B swapped", "mma_m16n8k16(acc, x, y)", "mma_m16n8k16(acc, y, x)", "correct"),
    loop("B isn't transposed", Y, Y.replace("_trans", ""), "correct"),
    loop("A is transposed, too", X, X.replace("ldmatrix_x4", "ldmatrix_x4_trans"), "correct"),
    loop("the lower rows of A begin 8 rows down", "row + 16 + here", "row + 8 + here", "correct"),
    loop("the upper rows of A twice", "row + 16 + here", "row + here", "correct"),
    loop("the right columns of B begin 8 columns on", "col + 16 + half", "col + 8 + half", "correct"),
    loop("always the first step of A", X, X.replace("k + half", "half"), "correct"),
    loop("k and col swapped in B", "place(k + here, col + half)", "place(col + here, k + half)", "correct"),
    loop("every other step", "range(0, BK, 16)", "range(0, BK, 32)", "correct"),
    loop("no swizzle", "place(row + here, k + half)", "(row + here) * 64 + k + half", "correct"),
    loop("registers of A in another order", "acc = mma_m16n8k16(acc, x, y)",
         "acc = mma_m16n8k16(acc, (x[0], x[2], x[1], x[3]) + x[4:], y)", "correct"),
    loop("the sum starts over in each step", "mma_m16n8k16(acc, x, y)", "mma_m16n8k16(ZEROS, x, y)",
         "correct"),
    loop("a sum is rounded in each step", "mma_m16n8k16(acc, x, y)",
         "mma_m16n8k16(unpack_bf16(cvt_rn_bf16x2_f32(acc[0], acc[1])) + acc[2:], x, y)", "correct"),
    loop("always the first stage", "            x = (ldmatrix_x4(a_ring, now * A_TILE +",
         "            x = (ldmatrix_x4(a_ring,", "all written"),
    Mutant("odd and even rows, stored where they belong", STEPS + ON + END,
           ODD_EVEN + ON + replaced(
               END, ("row0 + row + 16 * i + lane // 4", "row0 + row + i + lane // 4 * 2"),
               ("r + 8", "r + 16")),
           "wavefronts per step"),
    loop("A loaded for each half of B", "            acc = mma_m16n8k16(acc, x, y)\n",
         "            acc = mma_m16n8k16(acc, x, y)\n" + X.replace("x =", "z =")
         + "            if z[0] == uint32(0x7F817F81): acc = ZEROS\n", "wavefronts per step"),
    loop("each product computed twice", "            acc = mma_m16n8k16(acc, x, y)\n",
         "            acc = mma_m16n8k16(acc, x, y)\n            again = mma_m16n8k16(acc, x, y)\n"
         "            if again[0] == float32(12345.678): acc = again\n", "products per load"),
    loop("the lower rows of A come first", "mma_m16n8k16(acc, x, y)", "mma_m16n8k16(acc, x[4:] + x[:4], y)",
         "correct"),
    Mutant("the right half begins one element on, not eight", POINTS_AT, "here, half = lane % 16, lane // 16",
           "correct"),
    loop("B pair by pair", Y, PAIRS, "wavefronts per step"),
    EXCHANGED,
    loop("no wait", "        cp_async_wait_group(1)\n", "", "all written"),
    loop("no group may be in flight", "group(1)", "group(0)", "time for a copy"),
    loop("waits for all copies in every other k tile", WAIT,
         WAIT + "        if k0 // BK % 2: cp_async_wait_group(0)\n", "time for a copy"),
    loop("waits for all copies at the end of a k tile", ON, "        cp_async_wait_group(0)\n" + ON,
         "time for a copy"),
    loop("a second barrier in one k tile", ON, "        if k0 == BK: cuda.syncthreads()\n" + ON,
         "barriers per tile"),
    loop("a barrier in each step", "            acc = mma_m16n8k16(acc, x, y)\n",
         "            acc = mma_m16n8k16(acc, x, y)\n            cuda.syncthreads()\n", "barriers per tile"),
    loop("a barrier in the first k tile only", "        cuda.sync", "        if k0 == 0: cuda.sync",
         "no races"),
    loop("a fence for each k tile", ON, "        cuda.threadfence_block()\n" + ON, "fences"),
    Mutant("the loop ends after two k tiles", "while k0 < a.shape[1]:", "while k0 < min(a.shape[1], 2 * BK):",
           "correct"),
    Mutant("C stored in each k tile", ON + END, indent(END, "    ") + ON, "one store each"),
    Mutant("BM for BN", "warp // (BN // WN) * WM, warp % (BN // WN)",
           "warp // (BM // WN) * WM, warp % (BM // WN)", "all written"),
    loop("no barrier", "        cuda.syncthreads()\n", "", "no races"),
    loop("the barrier before the wait", WAIT, "        cuda.syncthreads()\n        cp_async_wait_group(1)\n",
         "no races"),
    loop("two barriers", ON, "        cuda.syncthreads()\n" + ON, "barriers per tile"),
    loop("the copy after the multiplication", AHEAD + STEPS, STEPS + AHEAD, "time for a copy"),
    loop("the copy before the barrier", WAIT + AHEAD,
         "        cp_async_wait_group(1)\n" + AHEAD + "        cuda.syncthreads()\n", "no races"),
    loop("no test for the last tiles", "if ahead < a.shape[1]:", "if True:", "in bounds"),
    loop("into the stage that is multiplied", "b_ring, free,", "b_ring, now,", "all written"),
    loop("the free stage stays where it was", "free, now = now,", "now =", "no races"),
    loop("a ring of two", "% STAGES", "% 2", "all written"),
    loop("no group closed", "        cp_async_commit_group()\n", "", "all written"),
    Mutant("the warps' columns for their rows", "row, col = warp // (BN // WN) * WM, warp % (BN // WN) * WN",
           "row, col = warp % (BN // WN) * WM, warp // (BN // WN) * WN", "all written"),
    end("sums to every fourth column", "lane % 4 * 2", "lane % 4", "no races"),
    end("sums to rows by lane % 8", "lane // 4", "lane % 8", "no races"),
    end("matrices column by column", "16 * i + 4 * j\n", "4 * i + 8 * j\n"),
    end("the lower sums in the next row", "r + 8", "r + 1", "no races"),
    end("the matrices lie 16 columns apart", "8 * j", "16 * j", "no races"),
    end("the block's row left out", "row0 + row", "row", "no races"),
    end("the block's column left out", "col0 + col", "col", "no races"),
    Mutant("the lower half is not written", END, "".join(END.splitlines(True)[:-1]), "correct"),
    Mutant("each lane begins with a different sum", END, """    sums = cuda.local.array(32, float32)
    for q in range(32): sums[q] = acc[q]
    for v in range(32):
        q = (v + lane) % 32
        r, s = row + q // 16 * 16 + q % 4 // 2 * 8 + lane // 4, col + q % 16 // 4 * 8 + lane % 4 * 2 + q % 2
        c[row0 + r, col0 + s] = sums[q]
""", "local memory"),
    loop("the warp's rows of A left out", STEPS,
         STEPS.replace("row + here", "here").replace("row + 16", "16"), "correct"),
    Mutant("the library's kernel", REFERENCE,
           "from numba_matmul.kernels.k15_tensor_cores import short_tensor_cores as my_tensor_cores\n",
           "your own"),
    Mutant("a fourth stage", "a_ring = cuda.shared.array(A_RING,", "a_ring = cuda.shared.array(12288,",
           "shared memory"))


RING = dict(BM=32, BN=64, BK=64, WM=32, WN=32, STAGES=3, THREADS=64, A_TILE=32 * 64, B_TILE=64 * 64,
            A_RING=3 * 32 * 64, B_RING=3 * 64 * 64)
EXERCISES = (Exercise(
    "15", "my_tensor_cores",
    cases=(bf16_case(32, 64, 320, (64,), (1, 1)), bf16_case(64, 64, 64, (64,), (1, 2)),
           bf16_case(64, 128, 64, (128,), (2, 1), constants={})),
    goals=(Goal("wavefronts per step", wavefronts_a_step, most=16,
                hint="16 8×8 matrices are enough for a step: two ldmatrix_x4 for A and two for B, each "
                     "matrix from eight neighboring rows"),
           Goal("products per load", lambda code: code.mix.get("HMMA", 0) / max(1, code.mix.get("LDSM", 0)),
                most=2, counted="code",
                hint="one mma_m16n8k16 per step takes all of x and y: eight 16×8 products for four "
                     "ldmatrix_x4"),
           Goal("local memory", lambda code: code.stack_bytes, most=0, unit="bytes", counted="code",
                hint="the sums stay in registers if every index into acc is a constant once the loops are "
                     "unrolled: range with literal bounds"),
           Goal("shared memory", lambda code: code.shared_bytes, most=2 * 3 * (32 * 64 + 64 * 64),
                unit="bytes", counted="code", hint="a ring of STAGES tiles is enough"),
           NO_FENCES, *copy_order(2)),
    hints={
        "correct: never written": (
            "a lane has four sums of each 16×8 matrix: two neighbors in one row, and the same two "
            "columns eight rows down. Does each of its 32 sums have its own place?"),
        "correct: right sums are missing": (
            "some rows of A or columns of B were multiplied twice, and others not at all. The second "
            "ldmatrix_x4 of A begins 16 rows below the first, that of B 16 columns to the right; the first "
            "begins in the warp's row and column, and a lane points at row lane % 16 of 16. Or the epilogue "
            "stores some of acc twice: number 16 * i + 4 * j and the next three"),
        "correct: in the wrong places": (
            "all sums are there, but not where they belong. In the epilogue, add up four places: the block's "
            "tile in C, the warp's part of that tile, the 16×8 matrix in that part, and a lane's four sums "
            "in the matrix. If they're right, look at x and y: A's upper rows and B's left columns come "
            "first"),
        "correct: and if B is": (
            "each operand has the right values, but they're paired wrongly: both loads need the same k, "
            "and each address goes through place(row, column)"),
        "correct: right if A is": (
            "so B is read correctly, and A isn't: of 16 rows, a lane points at row lane % 16, and lane // 16 "
            "says which half of the 16 columns, in the warp's rows, from column k on; the upper 16 rows "
            "come first, and x is passed on as it was loaded"),
        "correct: right if B is": (
            "so A is read correctly, and B isn't: its rows run along n, so ldmatrix_x4_trans "
            "transposes the matrices. A lane points at row k + lane % 16, and lane // 16 says which half "
            "of the 16 columns, from the warp's column on"),
        "correct": (
            "either both operands are read wrongly: does a lane point at row lane % 16 of 16, in the half "
            "of the 16 columns that lane // 16 says? Or the multiplication is wrong: A comes first, acc is "
            "kept through all k tiles, and k goes through all of BK in steps of 16"),
        "all written: asynchronous copy": (
            "if the wait and the barrier are as they were given, look at the address: it's in the stage "
            "`now`, now * A_TILE or now * B_TILE, `free` is another stage, and the warp's rows end before "
            "BM, its columns before BN"),
        "all written": (
            "no thread has copied this: the address is now * A_TILE or now * B_TILE, plus place(row, column) "
            "within the tile, row and column below its size"),
        "no races: two asynchronous copies": (
            "a stage is filled twice: do `free` and `now` move on with each k tile?"),
        "no races: and is read by": (
            "a thread waits only for its own copies: after that, in each k tile, all threads meet at the "
            "barrier before any of them reads"),
        "no races: race: c[": (
            "two lanes write one element of C: which rows and columns does a lane have in each 16×8 matrix, "
            "and where does the matrix begin, in the block's tile and in C?"),
        "no races: ring[": (
            "a stage may be filled again once no warp reads it anymore: which barrier ensures that, and does "
            "every thread reach it in each k tile?"),
        "in bounds: start_copies": (
            "after the last k tile there is nothing to copy: test for that. And the block's rows begin at "
            "blockIdx.y * BM, its columns at blockIdx.x * BN"),
        "in bounds: c: index": (
            "a place in C: the block's row0 and col0, the warp's row and col, the matrix's, and then the "
            "lane's"),
        "in bounds": "rows and columns are those of the tile: below BM, BN or BK"},
    constants=RING | dict(start_copies=with_constants(page.start_copies, RING), ZEROS=page.ZEROS,
                          place=page.place, ldmatrix_x4=page.ldmatrix_x4,
                          ldmatrix_x4_trans=page.ldmatrix_x4_trans),
    preamble="from numba_matmul.kernels.k15_tensor_cores import (A_RING, A_TILE, B_RING, B_TILE, BK, BM, "
             "BN, STAGES, THREADS, WM, WN,\n"
             "                                                    start_copies)\nfrom numba import uint16\n"
             "from numba_matmul.ptx.ampere import (cp_async_commit_group, cp_async_wait_group, "
             "cvt_rn_bf16x2_f32,\n                                     mma_m16n8k16, unpack_bf16)\n",
    solutions=SOLUTIONS, mutants=MUTANTS, page=page, record=first_warp, judge=judge),)
