"""What `grade("16", my_tma_wgmma)` asks of a kernel, what it accepts, and what it must catch.

The kernel is graded with blocks of 128×64 (two warpgroups) and a ring of three stages: seven k tiles, which
is twice around the ring and one more, and a single one; then with blocks of 128×128 and three k tiles. The
factors are small whole numbers. So their sums are exact, and results must agree to the last bit. In the
simulator a copy lands when no thread can go on without it, and a product reads its factors at its wait,
so what is used or overwritten too early is caught every time. Two of its verdicts differ from
what a GPU does: where too few bytes are announced, the simulator's phase never ends, and a GPU's may end too
early; and a descriptor with any other swizzle is refused, while a GPU computes something else.

After that come these goals:

- **k tiles ahead**: how many k tiles are started between the copy of a k tile and the wait for it? With three
  stages at least one, for each k tile whose copy is issued in the loop. This is counted in a recorded run.
- **products in flight**: whenever a warpgroup waits for the next k tile, the products of a whole k tile
  should still be in flight, in however many calls.
- **barriers per tile**: one between each k tile and the next.
- **fences**: none in the main loop.
- **spills**: the sums stay in registers.
"""
from functools import partial

import numpy as np
from ..arrays import OptIn, from_bf16, to_bf16
from ..exercise import Case, Exercise, Goal, Mutant
from ..gemm.tensor_maps import map_of
from ..gemm.tiles import ROW
from ..kernels import k16_tma_wgmma as page
from ..source import cut, reference_of, replaced, with_constants
from .e04 import EXCHANGED
from .recorded import barriers_of, in_case, k_tiles_ahead, products_at_work, recorded_run
from numba import cuda


BN, STAGES = 64, 3

def ring_of(bn, stages=STAGES):
    "The page's names with tiles of 128×bn and a ring of `stages`."
    found = dict(BN=bn, STAGES=stages, STAGE_BYTES=(page.BM + bn) * ROW, ZEROS=(np.float32(0),) * (bn // 2),
                 PAIRS=(bn // 4, 2), UNSET=(np.float32(np.nan),) * (bn // 2))
    return found | dict(start_copies=with_constants(page.start_copies, found),
                        short_epilogue=with_constants(page.short_epilogue, found))

SMALL, WIDE = ring_of(BN), ring_of(2 * BN)

def call(launch, args):
    "In the simulator: matrices become tensor maps, and bits of bfloat16."
    a, b, c, k = args
    bits_a, bits_b, bits_c = (cuda.to_device(to_bf16(x)) for x in (a, b, c))
    launch(map_of(bits_a, page.BM), map_of(bits_b, page.BK), bits_c, k)
    c[...] = from_bf16(bits_c.copy_to_host())

def case(m, n, k, grid, constants=SMALL):
    def make(random):
        a, b = (random.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))
        return (a, b, np.full((m, n), np.nan, np.float32), k), {2: from_bf16(to_bf16(a @ b)).astype(float)}
    return Case(f"{m}×{n}×{k}", (page.THREADS,), grid, make,
                OptIn(STAGES * (constants["STAGE_BYTES"] + 8) + 1024), call,
                "void(uint64[::1], uint64[::1], uint16[:, ::1], int64)", constants, (m, n, k))


NO_FENCES = Goal("fences", lambda code: sum(x.opcode.startswith(("MEMBAR", "FENCE")) for x in code.main_loop),
                 most=0, unit="in the main loop", counted="code",
                 hint="threads write nothing in the loop that a copy or another thread would have to see")
def record(exercise, kernel):
    "What happens in a run of the first case."
    return in_case(exercise, kernel, exercise.cases[0], partial(recorded_run, call))


REFERENCE = reference_of(page.short_tma_wgmma, "my_tma_wgmma")
HEAD, PROLOGUE, BEGIN, WAIT, MULTIPLY, MEET, AHEAD, ON, TAIL = cut(
    REFERENCE, "    if elected:", "    acc, k_tile", "        mbarrier_wait", "        here",
    "        cuda.sync", "        ahead", "        free, stage", "    acc = wgmma_wait")
LOOP = BEGIN + WAIT + MULTIPLY + MEET + AHEAD + ON
PRODUCT = "        acc = wgmma_mma_async(acc, a, b, NEXT_A, NEXT_B, 4, 1, 1, 1)\n"
FOUR_PRODUCTS = """        acc = wgmma_mma_async(acc, a, b, NEXT_A, NEXT_B, 1, 1, 4, 1)
        acc = wgmma_mma_async(acc, a + NEXT_A, b + NEXT_B, NEXT_A, NEXT_B, 1, 1, 4, 1)
        acc = wgmma_mma_async(acc, a + 2 * NEXT_A, b + 2 * NEXT_B, NEXT_A, NEXT_B, 1, 1, 4, 1)
        acc = wgmma_mma_async(acc, a + 3 * NEXT_A, b + 3 * NEXT_B, NEXT_A, NEXT_B, 1, 1, 4, 1)
"""


SOLUTIONS = {
    "reference": REFERENCE,
    "stage and phase by the number of the k tile": HEAD + PROLOGUE + """    acc, k_tile = ZEROS, 0
    while k_tile < k_tiles:
        stage, phase, free = k_tile % STAGES, k_tile // STAGES % 2, (k_tile + STAGES - 1) % STAGES
""" + WAIT + MULTIPLY + MEET + AHEAD + """        k_tile += 1
""" + TAIL,
    "the first product begins at zero": HEAD + PROLOGUE + """    mbarrier_wait(full, 0)
    a, b = OF_A | (ring + BOX * warpgroup) // 16, OF_B | (ring + BYTES_A) // 16
    acc = wgmma_mma_async(UNSET, a, b, NEXT_A, NEXT_B, 4, 1, 1, 0)
    cuda.syncthreads()
    k_tile, stage, phase, free = 0, 0, 0, STAGES - 1
""" + AHEAD.replace("\n    ", "\n").removeprefix("    ") + """    k_tile, stage, free = 1, 1, 0
    while k_tile < k_tiles:
""" + WAIT + MULTIPLY + MEET + AHEAD + ON + TAIL,
    "a different thread is elected": HEAD.replace("thread == 0", "thread == 128") + PROLOGUE + LOOP + TAIL,
    "an arrival for each operand": HEAD + PROLOGUE.replace("8 * stage, 1)", "8 * stage, 2)").replace(
        "                mbarrier_arrive_expect_tx(full + 8 * stage, STAGE_BYTES)\n",
        "                mbarrier_arrive_expect_tx(full + 8 * stage, BYTES_A)\n"
        "                mbarrier_arrive_expect_tx(full + 8 * stage, BN * ROW)\n") + LOOP.replace(
        "            mbarrier_arrive_expect_tx(full + 8 * free, STAGE_BYTES)\n",
        "            mbarrier_arrive_expect_tx(full + 8 * free, BYTES_A)\n"
        "            mbarrier_arrive_expect_tx(full + 8 * free, BN * ROW)\n") + TAIL,
    "the last k tiles in a loop of their own": HEAD + PROLOGUE + """
    acc, k_tile, stage, phase = ZEROS, 0, 0, 0
    while k_tile + STAGES - 1 < k_tiles:
""" + WAIT + MULTIPLY + MEET + """        free, ahead = (stage + STAGES - 1) % STAGES, k_tile + STAGES - 1
        if elected:
            mbarrier_arrive_expect_tx(full + 8 * free, STAGE_BYTES)
            start_copies(ring + STAGE_BYTES * free, full + 8 * free, map_a, map_b, row, col, ahead)
        stage = (stage + 1) % STAGES
        if stage == 0: phase ^= 1
        k_tile += 1
    while k_tile < k_tiles:
""" + WAIT + MULTIPLY + """        stage = (stage + 1) % STAGES
        if stage == 0: phase ^= 1
        k_tile += 1
""" + TAIL,
    "four calls, four of them at work":
        HEAD + PROLOGUE + replaced(LOOP, (PRODUCT, FOUR_PRODUCTS)) + TAIL,
    "copies in a function": """@cuda.jit(device=True)
def fill(ring, full, stage, map_a, map_b, row, col, k_tile):
    mbarrier_arrive_expect_tx(full + 8 * stage, STAGE_BYTES)
    start_copies(ring + STAGE_BYTES * stage, full + 8 * stage, map_a, map_b, row, col, k_tile)

""" + HEAD + PROLOGUE + """    acc, stage, turns = ZEROS, 0, 0
    for k_tile in range(k_tiles):
        mbarrier_wait(full + 8 * stage, turns & 1)
        here = ring + STAGE_BYTES * stage
        a, b = OF_A | (here + BOX * warpgroup) >> 4, OF_B | (here + BYTES_A) >> 4
        acc = wgmma_mma_async(acc, a, b, NEXT_A, NEXT_B, 4, 1, 1, 1)
        cuda.syncthreads()
        free, ahead = stage - 1 if stage > 0 else STAGES - 1, k_tile + STAGES - 1
        if ahead < k_tiles and elected: fill(ring, full, free, map_a, map_b, row, col, ahead)
        stage += 1
        if stage == STAGES:
            stage = 0
            turns += 1
""" + TAIL,
    "a function for descriptors, and a barrier only if something is copied": """@cuda.jit(device=True)
def descriptor(of, address): return of | address >> 4

""" + HEAD + PROLOGUE + """    acc = ZEROS
    for i in range(k_tiles):
        times, stage = divmod(i, STAGES)
        mbarrier_wait(full + 8 * stage, times % 2)
        base, ahead = ring + stage * STAGE_BYTES, i + STAGES - 1
        a, b = descriptor(OF_A, base + warpgroup * BOX), descriptor(OF_B, base + BYTES_A)
        acc = wgmma_mma_async(acc, a, b, NEXT_A, NEXT_B, 4, 1, 1, 1)
        if ahead < k_tiles:
            cuda.syncthreads()
            if thread == 0:
                free = ahead % STAGES
                start_copies(ring + free * STAGE_BYTES, full + 8 * free, map_a, map_b, row, col, ahead)
                mbarrier_arrive_expect_tx(full + 8 * free, STAGE_BYTES)
""" + TAIL,
    "the free stage before the products": HEAD + PROLOGUE + """    acc, k_tile, stage, phase = ZEROS, 0, 0, 0
    while k_tile < k_tiles:
        free, bar = (stage + 2) % 3, full + 8 * stage
        mbarrier_wait(bar, phase)
        a = OF_A + uint64((ring + stage * STAGE_BYTES + warpgroup * 64 * ROW) >> 4)
        b = OF_B + uint64((ring + stage * STAGE_BYTES + BM * ROW) >> 4)
        acc = wgmma_mma_async(acc, a, b, NEXT_A, NEXT_B, 4, 1, 1, 1)
        cuda.syncthreads()
        if elected:
            if k_tile + 2 < k_tiles:
                start_copies(ring + free * STAGE_BYTES, full + 8 * free, map_a, map_b, row, col, k_tile + 2)
                mbarrier_arrive_expect_tx(full + 8 * free, STAGE_BYTES)
        if stage == 2: phase = 1 - phase
        stage = (stage + 1) % 3
        k_tile += 1
""" + TAIL}


ALL = PROLOGUE + LOOP
def loop(name, new, verdict): return Mutant(name, LOOP, new, verdict)
def start(name, new, verdict): return Mutant(name, PROLOGUE, new, verdict)
def changed(name, old, new, verdict): return Mutant(name, LOOP, replaced(LOOP, (old, new)), verdict)


MUTANTS = (
    EXCHANGED,
    loop("not written", BEGIN + "        ...\n" + ON, "written"),
    changed("no wait for the k tile", WAIT, "", "all written"),
    loop("the wait after the products", BEGIN + MULTIPLY + WAIT + MEET + AHEAD + ON, "all written"),
    changed("parity begins at 1", "ZEROS, 0, 0, 0,", "ZEROS, 0, 0, 1,", "all written"),
    changed("the phase never flips", "0, 1 - phase", "0, phase", "all written"),
    changed("the phase flips with each k tile", "if stage == STAGES: stage, phase = 0, 1 - phase",
            "phase = 1 - phase\n        if stage == STAGES: stage = 0", "all written"),
    changed("the phase flips a stage too early", "if stage == STAGES: stage, phase = 0, 1 - phase",
            "if stage == STAGES - 1: phase = 1 - phase\n        if stage == STAGES: stage = 0",
            "all written"),
    changed("waits at the mbarrier of the free stage", "wait(full + 8 * stage", "wait(full + 8 * free",
            "barriers"),
    changed("waits at the first mbarrier only", "wait(full + 8 * stage", "wait(full", "all written"),
    changed("announces A alone", "free, STAGE_BYTES)\n", "free, BYTES_A)\n", "barriers"),
    changed("announces B alone", "free, STAGE_BYTES)\n", "free, BN * ROW)\n", "barriers"),
    changed("announces too many bytes", "free, STAGE_BYTES)\n", "free, 2 * STAGE_BYTES)\n", "barriers"),
    changed("announces elements, not bytes", "free, STAGE_BYTES)\n", "free, STAGE_BYTES // 2)\n", "barriers"),
    changed("nobody arrives", "            mbarrier_arrive_expect_tx(full + 8 * free, STAGE_BYTES)\n", "",
            "barriers"),
    changed("arrives at the mbarrier of this stage", "expect_tx(full + 8 * free",
            "expect_tx(full + 8 * stage", "barriers"),
    changed("all threads arrive", "if elected and ahead", "if ahead", "barriers"),
    changed("one thread of each warp arrives", "if elected and ahead", "if thread % 32 == 0 and ahead",
            "barriers"),
    changed("into the stage that is multiplied", "STAGE_BYTES * free", "STAGE_BYTES * stage", "no races"),
    changed("the free stage stays where it was", "free, stage = stage, stage + 1", "stage += 1", "barriers"),
    changed("no guard for the last k tiles", "if elected and ahead < k_tiles:", "if elected:", "ends"),
    changed("<= in the guard", "ahead < k_tiles", "ahead <= k_tiles", "ends"),
    changed("a k tile too far ahead", "ahead = k_tile + STAGES - 1", "ahead = k_tile + STAGES", "barriers"),
    changed("the same k tile again", "row, col, ahead)", "row, col, k_tile)", "correct"),
    changed("the stage doesn't wrap around", "if stage == STAGES: stage, phase",
            "if stage > STAGES: stage, phase", "barriers"),
    changed("no barrier", MEET, "", "no races"),
    loop("the barrier before the products", BEGIN + WAIT + MEET + MULTIPLY + AHEAD + ON, "no races"),
    loop("the copy before the barrier", BEGIN + WAIT + MULTIPLY + AHEAD + MEET + ON, "no races"),
    changed("a barrier for one warpgroup", MEET, "        if warpgroup == 0: cuda.syncthreads()\n",
            "barriers"),
    changed("two calls may be at work", "4, 1, 1, 1)", "4, 1, 2, 1)", "no races"),
    changed("no call may be at work", "4, 1, 1, 1)", "4, 1, 0, 1)", "products in flight"),
    changed("each product is waited for", MEET, "        acc = wgmma_wait_group(acc)\n" + MEET,
            "products in flight"),
    changed("two barriers", "        free, stage =", "        cuda.syncthreads()\n        free, stage =",
            "barriers per tile"),
    changed("four calls, one of them at work", PRODUCT, FOUR_PRODUCTS.replace("1, 1, 4, 1)", "1, 1, 1, 1)"),
            "products in flight"),
    changed("every other k tile is waited for", MEET,
            "        if k_tile % 2: acc = wgmma_wait_group(acc)\n" + MEET, "products in flight"),
    changed("an extra barrier in every other k tile", "        free, stage =",
            "        if k_tile % 2: cuda.syncthreads()\n        free, stage =", "barriers per tile"),
    changed("a named barrier for each k tile", "        free, stage =",
            "        bar_sync(uint32(1), uint32(256))\n        free, stage =", "barriers per tile"),
    changed("a barrier in the first k tile only", MEET, "        if k_tile == 0: cuda.syncthreads()\n",
            "no races"),
    changed("a fence for each k tile", MEET, "        cuda.threadfence_block()\n" + MEET, "fences"),
    changed("a fence between the proxies for each k tile", MEET, "        fence_proxy_async()\n" + MEET,
            "fences"),
    changed("waits for the newest copy as well", AHEAD,
            AHEAD + "        if ahead < k_tiles: mbarrier_wait(full + 8 * free, (ahead // STAGES) % 2)\n",
            "k tiles ahead"),
    changed("the loop ends after two k tiles", "while k_tile < k_tiles", "while k_tile < min(k_tiles, 2)",
            "ends"),
    Mutant("C stored in each k tile", MEET + AHEAD + ON,
           MEET + AHEAD + "        short_epilogue(c, row + thread // 32 * 16, col, wgmma_wait_group(acc))\n"
           + ON, "one store each"),
    changed("BM for BN", "(here + BYTES_A) // 16", "(here + BN * ROW) // 16", "correct"),
    Mutant("a number for STAGE_BYTES", "full = ring + STAGE_BYTES * STAGES", "full = ring + 24576 * STAGES",
           "no races"),
    Mutant("the library's kernel", REFERENCE,
           "from numba_matmul.kernels.k16_tma_wgmma import short_tma_wgmma as my_tma_wgmma\n", "your own"),
    changed("row and column exchanged", "row, col, ahead)", "col, row, ahead)", "correct"),
    changed("A's tensor map for B", "map_a, map_b, row, col, ahead)", "map_b, map_a, row, col, ahead)",
            "no races"),
    changed("each k tile copied twice", "row, col, ahead)\n",
            "row, col, ahead)\n"
            "            start_copies(ring + STAGE_BYTES * free, full + 8 * free, map_a, map_b, row, col, "
            "ahead)\n", "no races"),
    changed("eight steps", "NEXT_B, 4,", "NEXT_B, 8,", "in bounds"),
    changed("each k tile begins at zero", "4, 1, 1, 1)", "4, 1, 1, 0)", "correct"),
    changed("a quarter of the k tile", "NEXT_B, 4,", "NEXT_B, 1,", "correct"),
    changed("B is not transposed", "4, 1, 1, 1)", "4, 0, 1, 1)", "in bounds"),
    changed("steps of A and B exchanged", "NEXT_A, NEXT_B", "NEXT_B, NEXT_A", "correct"),
    changed("B's step is A's", "NEXT_A, NEXT_B", "NEXT_A, NEXT_A", "correct"),
    changed("a different swizzle in A's descriptor", "a = OF_A |", "a = OF_A ^ uint64(3) << uint64(62) |",
            "correct"),
    changed("both warpgroups take the first rows", "(here + BOX * warpgroup)", "here", "correct"),
    changed("each warp takes rows of its own", "BOX * warpgroup", "16 * ROW * (thread // 32)", "correct"),
    changed("B's tile is A's", "(here + BYTES_A) // 16", "here // 16", "correct"),
    changed("an address, not sixteenths of it", "(here + BYTES_A) // 16", "(here + BYTES_A)", "in bounds"),
    changed("the last k tile is left out", "while k_tile < k_tiles", "while k_tile + 1 < k_tiles", "ends"),
    Mutant("no wait for the last product", TAIL, TAIL.replace("    acc = wgmma_wait_group(acc)\n", ""),
           "ends"),
    Mutant("sums indexed by a number known only at run time", TAIL, """    acc = wgmma_wait_group(acc)
    sums = cuda.local.array(PAIRS, float32)
    to_array(acc, sums, 2)
    for part in range(BN // 8):
        i, lane = (part + thread) % (BN // 8), thread % 32
        for half in range(2):
            pair = cvt_rn_bf16x2_f32(sums[2 * i + half, 0], sums[2 * i + half, 1])
            store_pair(c, (row + thread // 32 * 16 + lane // 4 + 8 * half, col + lane % 4 * 2 + 8 * i), pair)
""", "spills"),
    Mutant("the first product adds to what was there", "UNSET, a, b, NEXT_A, NEXT_B, 4, 1, 1, 0)",
           "UNSET, a, b, NEXT_A, NEXT_B, 4, 1, 1, 1)", "correct", "the first product begins at zero"),
    start("no fence_mbarrier_init", PROLOGUE.replace("        fence_mbarrier_init()\n", ""), "fences"),
    start("the fence before the mbarriers",
          replaced(PROLOGUE, ("        fence_mbarrier_init()\n", ""),
                   ("    if elected:\n", "    if elected:\n        fence_mbarrier_init()\n")), "fences"),
    start("B's tensor map is not fenced", PROLOGUE.replace("        fence_proxy_tensormap(map_b)\n", ""),
          "fences"),
    start("no barrier after the mbarriers are made", PROLOGUE.replace("    cuda.syncthreads()\n", ""),
          "barriers"),
    start("all threads make the mbarriers", PROLOGUE.replace("    if elected:\n", "    if True:\n"),
          "barriers"),
    start("as many arrivals as threads", PROLOGUE.replace("8 * stage, 1)", "8 * stage, THREADS)"),
          "barriers"),
    start("an mbarrier too few", PROLOGUE.replace("in range(STAGES): mb", "in range(STAGES - 1): mb"),
          "barriers"),
    start("no guard before the loop", PROLOGUE.replace("if stage < k_tiles:", "if True:"), "ends"),
    start("the whole ring filled before the loop", PROLOGUE.replace("range(STAGES - 1)", "range(STAGES)"),
          "barriers"),
    Mutant("one k tile ahead", ALL,
           replaced(ALL, ("range(STAGES - 1)", "range(1)"), ("0, STAGES - 1\n", "0, 1\n"),
                    ("k_tile + STAGES - 1", "k_tile + 1"),
                    ("free, stage = stage, stage + 1\n", "free, stage = (stage + 2) % STAGES, stage + 1\n")),
           "k tiles ahead"))


EXERCISES = (Exercise(
    "16", "my_tma_wgmma",
    cases=(case(128, 64, 448, (1, 1)), case(256, 128, 192, (1, 2), WIDE), case(128, 128, 64, (2, 1))),
    goals=(Goal("spills", lambda code: code.spills + code.stack_bytes, most=0,
                unit="loads, stores and bytes of stack", counted="code",
                hint="the sums are one tuple: pass it on whole"),
           NO_FENCES,
           Goal("k tiles ahead", k_tiles_ahead, least=1, unit="started meanwhile", counted="events",
                hint="issue the copies of a k tile as soon as its stage is free, STAGES - 1 ahead of the "
                     "one that you multiply, and wait only for that one"),
           Goal("products in flight", products_at_work, least=1, unit="k tiles at the wait for the next one",
                counted="events",
                hint="one call for the four steps of a k tile, with pending = 1, leaves them in flight while "
                     "you wait for the next one; the previous k tile's are complete"),
           Goal("barriers per tile", barriers_of, most=1, counted="events",
                hint="one barrier says that both warpgroups are done with the previous k tile: its stage is "
                     "the one to fill, and no other barrier is needed")),
    hints={
        "all written": (
            "a product may start once the phase of its stage's mbarrier has ended: does each thread wait "
            "for that, before the product, at the mbarrier of the stage that it multiplies? Which parity is "
            "that the first time around the ring, and which the second?"),
        "no races: over an mbarrier": (
            "the stages are STAGE_BYTES apart, and the mbarriers follow the last one: is a number written "
            "where STAGE_BYTES or STAGES belongs? And map_a comes before map_b"),
        "no races: two asynchronous copies": (
            "a stage is filled twice: is each k tile copied once, and does `free` move on?"),
        "no races": (
            "a stage may be filled again once the products of its k tile are complete, in both warpgroups. "
            "With pending = 1, the previous k tile's are complete when a call returns: does the "
            "barrier come after that call and before the copy, in each k tile, and does the copy go into "
            "`free`?"),
        "barriers: 128 of 256": (
            "the warpgroups wait for each other at different places. All threads must go through the same "
            "barriers and mbarriers"),
        "barriers: of 256 have arrived": (
            "one thread arrives in each phase, but this mbarrier was made for more arrivals"),
        "barriers: more than": (
            "a phase of this mbarrier ends with one arrival: has one thread been elected to arrive, and "
            "does `free` move on with each k tile, so that no stage is filled twice?"),
        "barriers: there is no mbarrier": (
            "there are STAGES mbarriers, 8 bytes each, from `full` on: is one made for each stage, and does "
            "`stage` begin again at 0?"),
        "barriers: 0 of 1 have arrived, 0 bytes are expected, and 0": (
            "no copy has been issued for the phase that a thread waits for: is it the right stage's "
            "mbarrier, with the right parity, and is the k tile STAGES - 1 ahead copied?"),
        "barriers: 0 of 1 have arrived": (
            "copies are in flight, but no thread has arrived at the mbarrier that they signal: "
            "mbarrier_arrive_expect_tx, at the same stage's"),
        "barriers: are expected": (
            "the bytes announced and the bytes in flight aren't the same: count both tiles of one stage, "
            "in bytes. And do the copies signal the mbarrier at which the thread has arrived?"),
        "barriers: mbarrier": (
            "one thread initializes each mbarrier once, for one arrival. The others wait for it at a barrier "
            "before they use one"),
        "in bounds: c: index": "the tile of C begins at blockIdx.y * BM and blockIdx.x * BN",
        "in bounds": (
            "wgmma reads past shared memory: are both descriptors in units of 16 bytes, do B's rows run "
            "along n, and are there four steps?"),
        "fences: in the main loop": (
            "in the loop, threads write nothing that a copy or another thread would have to see"),
        "fences": (
            "the thread that issues copies has to fence the mbarriers that it initialized and the two tensor "
            "maps that it uses"),
        "ends: copies": (
            "past the last k tile, there's nothing to copy; and every k tile copied must be waited for"),
        "ends: products": "after the loop, one call may still be in flight",
        "correct: NaN, and each": (
            "the sums began with something that was never set: ZEROS, or scale_d = 0 for the first product"),
        "correct: never written": (
            "where does the block's tile begin in C, and which 16 rows of it does a warp store?"),
        "correct: descriptors": (
            "both descriptors keep the page's OF_A and OF_B and get an address in units of 16 bytes; all "
            "threads of a warpgroup pass the same one"),
        "correct: swizzle": "both descriptors keep the page's OF_A and OF_B: add only the address",
        "correct": (
            "if only the lower 64 rows of each tile are wrong, it's the second warpgroup's part of A: BOX * "
            "warpgroup into the tile. If only blocks other than the first are: are row and col the tile's? "
            "If nearly everything is wrong: where does B's tile begin (BYTES_A after A's), how far is it to "
            "the next 16 of k in A and in B, are there four steps, do the sums accumulate (scale_d), and "
            "which k tile goes into which stage?")},
    constants=SMALL,
    preamble="""from numba_matmul.ptx.ampere import cvt_rn_bf16x2_f32, store_pair
from numba_matmul.gemm.tiles import BK, BOX, ROW
from numba_matmul.kernels.k16_tma_wgmma import BM, BYTES_A, NEXT_A, NEXT_B, OF_A, OF_B, THREADS
from numba_matmul.ptx.core import global_address, shared_address, to_array
from numba_matmul.ptx.hopper import (
    fence_mbarrier_init, fence_proxy_tensormap, mbarrier_arrive_expect_tx, mbarrier_init, mbarrier_wait,
    bar_sync, fence_proxy_async, wgmma_mma_async, wgmma_wait_group)
from numba import uint16, uint64
""",
    solutions=SOLUTIONS, mutants=MUTANTS, page=page, places=False, record=record,
    short=("kernel 16 at 4096, short", "short"), host=page.short_host),)
