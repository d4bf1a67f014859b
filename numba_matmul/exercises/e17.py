"""What `grade("17", my_warp_specialized)` asks of a kernel, what it accepts, and what it must catch.

The kernel is graded with two consumers: once with tiles of 128×128, a ring of two stages and six k tiles, and
once with tiles of 128×64, three stages, four k tiles and four blocks. A copy lands as late as it may, and
factors are read when their product has to be complete, so a missing wait or an early release is caught every
time. Each element of C is stored once. Then come the goals:

- **k tiles on their way**: how many k tiles are being copied at a time? At first, as many as the ring has
  stages; and the producer never waits for its own copy.
- **products in flight**: whenever a consumer waits for the next k tile, the products of this one are still
  in flight.
- **barriers per tile**: none; the mbarriers are enough. **fences**: none in the loops.
"""
from functools import partial

import numpy as np
from ..arrays import OptIn, from_bf16, rounded, to_bf16, to_d, to_h
from ..exercise import Exercise, Goal, Mutant
from ..gemm.tensor_maps import map_of
from ..gemm.tiles import BK, WgmmaTile
from ..kernels import k17_warp_specialized as page
from ..source import cut, reference_of, replaced
from .e16 import NO_FENCES, ring_of
from .recorded import barriers_of, judge_ring, k_tiles_on_their_way, products_at_work


TILE = WgmmaTile(128, 128, 2)

def names_of(tile):
    "The page's names with a tile."
    return ring_of(tile.bn, tile.stages)

CASES = (128, 128, 6 * BK, TILE), (256, 128, 4 * BK, WgmmaTile(128, 64, 3))  # m, n, k, tile

def multiply(kernel, m, n, k, tile):
    "In a child process: launch a kernel; the verdict that fails and its text, or `None`."
    random = np.random.default_rng()
    a, b = (to_d(rounded(random.standard_normal(shape), "bfloat16")) for shape in ((m, k), (k, n)))
    c = to_d(to_bf16(np.full((m, n), np.nan)))
    shared_bytes = OptIn(tile.stages * (tile.stage_bytes + 16) + 1024)
    launch = kernel[(n // tile.bn, m // tile.bm), tile.threads + 128, 0, shared_bytes]
    launch(map_of(a, tile.bm), map_of(b, BK), c, np.int64(k))
    exact, found = from_bf16(to_h(a)).astype(float) @ from_bf16(to_h(b)), from_bf16(to_h(c))
    error = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
    if not error < 2e-3: return "correct", f"relative error {error:.2g}"
    if (stores := sum(launch.grid.stores.values())) != m * n:
        return "one store each", f"{stores:,} elements were stored to C, which has {m * n:,}"

BOXES = 1 + TILE.bn // 64  # of a k tile
CONSUMER_THREADS = [128 * (1 + i) for i in range(TILE.warpgroups)]  # the first of each

def of_consumers(choose, measure):
    "The most or the least of what the first threads of the consumers do."
    return lambda events: choose(measure(events, thread) for thread in CONSUMER_THREADS)

judge = partial(judge_ring, cases=CASES, names_of=names_of, multiply=multiply, arguments=4,
                signature="void(uint64[::1], uint64[::1], uint16[:, ::1], int64)")


REFERENCE = reference_of(page.short_specialized, "my_warp_specialized")
HEAD, PRODUCE, ELSE, CONSUME, STORE = cut(
    REFERENCE, "            while k_tile < k_tiles:\n                mbarrier_wait(empty", "    else:",
    "        while k_tile < k_tiles:\n            mbarrier_wait(full", "        acc = wgmma_wait")
EMPTY = "                mbarrier_wait(empty + 8 * stage, 1 - phase)\n"
EXPECT = "                mbarrier_arrive_expect_tx(full + 8 * stage, STAGE_BYTES)\n"
COPY = ("                start_copies(ring + STAGE_BYTES * stage, full + 8 * stage, map_a, map_b, row, col, "
        "k_tile)\n")
FULL = "            mbarrier_wait(full + 8 * stage, phase)\n"
PRODUCT = "            acc = wgmma_mma_async(acc, a, b, NEXT_A, NEXT_B, 4, 1, 1, 1)\n"
RELEASE = "            if k_tile > 0 and releases: mbarrier_arrive(empty + 8 * previous)\n"
C_ON = "            k_tile, previous, stage = k_tile + 1, stage, stage + 1\n"
HERE = CONSUME[len("        while k_tile < k_tiles:\n" + FULL):CONSUME.index(PRODUCT)]  # and descriptors
OWN_COPY = "                mbarrier_wait(full + 8 * stage, phase)\n"


SOLUTIONS = {
    "reference": REFERENCE,
    "stage and phase from the number of the k tile": HEAD + """            for k_tile in range(k_tiles):
                stage, times = k_tile % STAGES, k_tile // STAGES
                mbarrier_wait(empty + 8 * stage, (times + 1) % 2)
""" + EXPECT + COPY + ELSE + """        for k_tile in range(k_tiles):
            stage, times = k_tile % STAGES, k_tile // STAGES
            mbarrier_wait(full + 8 * stage, times % 2)
""" + HERE + PRODUCT + """            if k_tile > 0 and releases:
                mbarrier_arrive(empty + 8 * ((k_tile - 1) % STAGES))
""" + STORE,
    "the first time around, no wait for an empty stage": HEAD + replaced(
        PRODUCE, (EMPTY, "    " + EMPTY), ("k_tiles:\n", "k_tiles:\n                if k_tile >= STAGES:\n")
        ) + ELSE + CONSUME + STORE,
    "copies and products in functions": """@cuda.jit(device=True)
def fill(ring, full, empty, stage, phase, map_a, map_b, row, col, k_tile):
    mbarrier_wait(empty + 8 * stage, 1 - phase)
    start_copies(ring + STAGE_BYTES * stage, full + 8 * stage, map_a, map_b, row, col, k_tile)
    mbarrier_arrive_expect_tx(full + 8 * stage, STAGE_BYTES)

@cuda.jit(device=True)
def multiply(acc, ring, full, stage, phase, warpgroup):
    mbarrier_wait(full + 8 * stage, phase)
    here = ring + STAGE_BYTES * stage
    a, b = OF_A | (here + BOX * warpgroup) >> 4, OF_B | (here + BYTES_A) >> 4
    return wgmma_mma_async(acc, a, b, NEXT_A, NEXT_B, 4, 1, 1, 1)

""" + HEAD + replaced(PRODUCE, (EMPTY, ""), (EXPECT, ""), (COPY, """
                fill(ring, full, empty, stage, phase, map_a, map_b, row, col, k_tile)
""")) + ELSE + replaced(CONSUME, (FULL + HERE, ""), (
        PRODUCT, "            acc = multiply(acc, ring, full, stage, phase, warpgroup)\n")) + STORE,
    "the first k tile before the loop": HEAD + PRODUCE + ELSE + (
        "    " + FULL + HERE + PRODUCT).replace("            ", "        ").replace("    " * 3, "    " * 2)
        + C_ON.replace("            ", "        ") + CONSUME.replace("k_tile > 0 and ", "") + STORE,
    "the last stage is released, too": HEAD + PRODUCE + ELSE + CONSUME + replaced(STORE, (
        "        short", "        if releases: mbarrier_arrive(empty + 8 * previous)\n        short")),
    "an arrival for each operand": replaced(HEAD, ("full + 8 * i, 1)", "full + 8 * i, 2)")) + replaced(
        PRODUCE, (EXPECT, """
                mbarrier_arrive_expect_tx(full + 8 * stage, BYTES_A)
                mbarrier_arrive_expect_tx(full + 8 * stage, STAGE_BYTES - BYTES_A)
""")) + ELSE + CONSUME + STORE,
    "256 arrivals, one per thread": replaced(HEAD, ("empty + 8 * i, 8)", "empty + 8 * i, 256)")) + PRODUCE
        + ELSE + replaced(CONSUME, (" and releases", "")) + STORE}


def produce(name, old, new, verdict): return Mutant(name, PRODUCE, replaced(PRODUCE, (old, new)), verdict)
def consume(name, old, new, verdict): return Mutant(name, CONSUME, replaced(CONSUME, (old, new)), verdict)
def both(name, old, new, verdict):
    return Mutant(name, REFERENCE, replaced(REFERENCE, (old, new)), verdict)


MUTANTS = (
    Mutant("not written", PRODUCE, "            ...\n", "written"),
    Mutant("the library's kernel", REFERENCE, "from numba_matmul.kernels.k17_warp_specialized import "
           "short_specialized as my_warp_specialized\n", "your own"),
    # waits
    produce("no wait for an empty stage", EMPTY, "", "arrivals"),
    produce("the producer begins with phase 0", "1 - phase)\n                mbarrier_arrive",
            "phase)\n                mbarrier_arrive", "ends"),
    produce("waits for an empty stage after the copies", EMPTY + EXPECT + COPY, EXPECT + COPY + EMPTY,
            "arrivals"),
    produce("the producer waits at `full`", "wait(empty", "wait(full", "stages"),
    produce("the producer waits for its own copy", COPY, COPY + OWN_COPY, "k tiles on their way"),
    produce("the producer waits for every other copy", COPY,
            COPY + "                if k_tile % 2: mbarrier_wait(full + 8 * stage, phase)\n",
            "k tiles on their way"),
    consume("no wait for the k tile", FULL, "", "stages"),
    consume("the consumer begins with phase 1", "stage, phase)", "stage, 1 - phase)", "stages"),
    consume("the consumer waits at `empty`", "wait(full", "wait(empty", "ends"),
    consume("the wait after the product", FULL + HERE + PRODUCT, HERE + PRODUCT + FULL, "stages"),
    # arrivals
    produce("nobody announces bytes", "arrive_expect_tx(full + 8 * stage, STAGE_BYTES)",
            "arrive(full + 8 * stage)", "stages"),
    produce("nobody arrives", EXPECT, "", "ends"),
    produce("bytes of A alone", "stage, STAGE_BYTES)", "stage, BYTES_A)", "ends"),
    produce("more bytes than arrive", "stage, STAGE_BYTES)", "stage, 2 * STAGE_BYTES)", "ends"),
    produce("numbers, not bytes", "stage, STAGE_BYTES)", "stage, STAGE_BYTES // 2)", "ends"),
    produce("copies signal the first mbarrier", "full + 8 * stage, map_a", "full, map_a", "ends"),
    Mutant("all threads of the warpgroup copy", "        if thread == 0:\n            while",
           "        if thread < 128:\n            while", "arrivals"),
    consume("nothing is released", RELEASE, "", "ends"),
    consume("the first k tile releases, too", "k_tile > 0 and releases", "releases", "stages"),
    consume("released before the products are complete", RELEASE,
            "            if releases: mbarrier_arrive(empty + 8 * stage)\n", "stages"),
    consume("released before it is multiplied", FULL + HERE + PRODUCT + RELEASE, FULL
            + "            if releases: mbarrier_arrive(empty + 8 * stage)\n" + HERE + PRODUCT, "stages"),
    consume("all threads release", " and releases", "", "arrivals"),
    consume("one thread of a warpgroup releases", "and releases", "and thread % 128 == 0", "ends"),
    consume("the first consumer releases alone", "and releases", "and releases and warpgroup == 0", "ends"),
    consume("`full` is released", "arrive(empty", "arrive(full", "ends"),
    consume("always the first stage is released", "empty + 8 * previous", "empty", "ends"),
    Mutant("the empty stage expects one consumer", "empty + 8 * i, 8)", "empty + 8 * i, 4)", "arrivals"),
    # around the ring
    produce("the producer's phase isn't flipped", "0, 1 - phase", "0, phase", "arrivals"),
    consume("the consumer's phase isn't flipped", "0, 1 - phase", "0, phase", "stages"),
    produce("the producer's stage stays", "k_tile + 1, stage + 1\n", "k_tile + 1, stage\n", "arrivals"),
    consume("the consumer's stage stays", "stage, stage + 1\n", "stage, stage\n", "stages"),
    produce("a number for the stages", "if stage == STAGES", "if stage == 2", "ends"),
    produce("into the first stage", "ring + STAGE_BYTES * stage, full", "ring, full", "stages"),
    # k tiles
    produce("always the first k tile", "row, col, k_tile)", "row, col, 0)", "correct"),
    produce("rows and columns swapped", "row, col, k_tile)", "col, row, k_tile)", "correct"),
    produce("A and B swapped", "map_a, map_b, row", "map_b, map_a, row", "stages"),
    produce("the producer ends a k tile early", "k_tile < k_tiles", "k_tile < k_tiles - 1", "ends"),
    consume("the consumer ends a k tile early", "k_tile < k_tiles", "k_tile < k_tiles - 1", "ends"),
    both("both end a k tile early", "k_tile < k_tiles", "k_tile < k_tiles - 1", "correct"),
    produce("one k tile too many", "k_tile < k_tiles", "k_tile <= k_tiles", "ends"),
    # products
    consume("both consumers multiply the same rows", "BOX * warpgroup", "0 * warpgroup", "correct"),
    consume("the previous stage is multiplied", "ring + STAGE_BYTES * stage", "ring + STAGE_BYTES * previous",
            "stages"),
    consume("B begins where A does", "here + BYTES_A", "here", "correct"),
    consume("two steps of four", "NEXT_B, 4,", "NEXT_B, 2,", "correct"),
    consume("the sums begin at zero in each k tile", "4, 1, 1, 1)", "4, 1, 1, 0)", "correct"),
    consume("two calls may be at work", "4, 1, 1, 1)", "4, 1, 2, 1)", "stages"),
    consume("no call may be at work", "4, 1, 1, 1)", "4, 1, 0, 1)", "products in flight"),
    consume("released when all products are complete", RELEASE,
            "            acc = wgmma_wait_group(acc)\n"
            "            if releases: mbarrier_arrive(empty + 8 * stage)\n", "products in flight"),
    consume("every other k tile is waited for", RELEASE,
            RELEASE + "            if k_tile % 2: acc = wgmma_wait_group(acc)\n", "products in flight"),
    Mutant("no wait for the last products", "        acc = wgmma_wait_group(acc)\n", "", "results"),
    # barriers, fences, C
    consume("a barrier of both consumers for each k tile", RELEASE,
            RELEASE + "            bar_sync(uint32(5), uint32(256))\n", "barriers per tile"),
    consume("a barrier of each consumer for each k tile", RELEASE,
            RELEASE + "            bar_sync(uint32(1 + warpgroup), uint32(128))\n", "barriers per tile"),
    consume("a barrier of both consumers for one k tile", RELEASE,
            RELEASE + "            if k_tile == 2: bar_sync(uint32(5), uint32(256))\n", "barriers per tile"),
    consume("a barrier of the block for each k tile", RELEASE, RELEASE + "            cuda.syncthreads()\n",
            "ends"),
    consume("a fence for each k tile", RELEASE, RELEASE + "            fence_proxy_async()\n", "fences"),
    consume("a memory fence for each k tile", RELEASE, RELEASE + "            cuda.threadfence()\n",
            "fences"),
    Mutant("no fence for the mbarriers", "        fence_mbarrier_init()\n", "", "arrivals"),
    Mutant("C stored for each k tile", CONSUME, CONSUME + "            short_epilogue(c, row + (thread - 128)"
           " // 32 * 16, col, wgmma_wait_group(acc))\n", "one store each"),
    Mutant("both consumers store the same rows", "(thread - 128) // 32", "thread % 128 // 32", "stages"))


BYTES = ("a k tile is in flight, and its stage never gets full: that takes one arrival, the producer's, "
         "which announces all bytes of the copies: STAGE_BYTES, at the same stage's `full`. And do "
         "both sides go around a ring of STAGES stages?")
EXERCISES = (Exercise(
    "17", "my_warp_specialized", page=page, judge=judge, constants=names_of(TILE),
    goals=(
        Goal("k tiles on their way", partial(k_tiles_on_their_way, BOXES), least=TILE.stages,
             unit="k tiles at a time", counted="events",
             hint="the producer mustn't wait for its own copy: it goes on to the next stage at once"),
        Goal("products in flight", of_consumers(min, products_at_work), least=1,
             unit="k tiles at the wait for the next one", counted="events",
             hint="with pending = 1, a call leaves the products of its k tile in flight and has completed "
                  "the previous one's: release that stage, and wait for all only after the loop"),
        Goal("barriers per tile", of_consumers(max, barriers_of), most=0, counted="events",
             hint="the consumers wait for a k tile at its mbarrier, and for nothing else: each goes on at "
                  "its own pace"),
        NO_FENCES),
    hints={
        "ends: 1 of 1 have arrived": BYTES,
        "ends: 0 of 1 have arrived": BYTES,
        "ends: 0 of 8 have arrived": (
            "the producer waits for an empty stage and the consumers for a full one, so none can go on. At "
            "first all stages are empty: which parity does the producer wait for then? Is each stage "
            "released (`previous`, the k tile before this one)? And do all go around the whole "
            "ring?"),
        "ends: of 8 have arrived": (
            "some of the consumers' warps have released this stage, and others haven't: one thread of each "
            "warp does (`releases`), in both consumers"),
        "ends: have arrived, 0 bytes are expected": (
            "a thread waits for a k tile that the producer doesn't copy: both sides go through all k_tiles, "
            "and each mbarrier gets as many arrivals as it was made for"),
        "ends: ends while copies": (
            "a k tile is copied that no thread waits for: do producer and consumers count the same k tiles?"),
        "ends": (
            "who waits for whom here? Follow k tiles 0, 1 and 2: which arrival does each wait need, and "
            "which thread makes it?"),
        "arrivals: its phase has ended": (
            "an mbarrier counts arrivals, not threads: one thread of each consumer warp releases a stage "
            "(`releases`), once per k tile, and the mbarrier is made for all eight warps"),
        "arrivals: more than 1 arrival": (
            "a k tile is copied into a stage whose copies are still in flight: does one thread issue them, "
            "does it wait until the stage is empty first, and does its phase flip?"),
        "arrivals": (
            "each phase of an mbarrier needs exactly the arrivals it was made for: one from the producer, "
            "or one from each consumer warp. Who arrives too often, or too early?"),
        "stages: race: c[": (
            "two consumers store the same element: the first has the upper 64 rows, thread 128 on, and the "
            "second the lower 64"),
        "stages: two asynchronous copies": (
            "two boxes overlap: the boxes of a k tile begin at ring + STAGE_BYTES * stage, and map_a comes "
            "before map_b"),
        "stages: multiplied while": (
            "this stage isn't full yet: before the product, wait at its `full` mbarrier, with phase 0 the "
            "first time around"),
        "stages: multiplied": (
            "a copy came into a stage that products were still reading. Is it released too early? When a "
            "call returns, only the previous call's products are complete (pending = 1): release that "
            "stage, and none after the first k tile. Or is a stage multiplied that isn't this k tile's, or "
            "with the phase of the previous trip around the ring?"),
        "stages": (
            "a stage is full once the phase of its `full` mbarrier has ended, and empty when no product "
            "reads it anymore: when a call returns, the previous call's products are complete"),
        "results": "the last products are still in flight: wgmma_wait_group(acc) before the results are used",
        "correct": (
            "is each k tile copied once, at row, col and its own number? Does each consumer multiply its "
            "own 64 rows, BOX * warpgroup into the stage, with B, which begins BYTES_A after A? Four steps, "
            "and the sums accumulate"),
        "one store each": "the results are stored once, after the loop over the k tiles",
        "compiles": "the message names what is missing or has the wrong type"},
    preamble="""from numba import uint16, uint64
from numba_matmul.gemm.tiles import BK, BOX
from numba_matmul.kernels.k16_tma_wgmma import BM, BYTES_A, NEXT_A, NEXT_B, OF_A, OF_B
from numba_matmul.ptx.core import global_address, shared_address
from numba_matmul.ptx.hopper import (
    bar_sync, fence_mbarrier_init, fence_proxy_async, fence_proxy_tensormap, mbarrier_arrive,
    mbarrier_arrive_expect_tx, mbarrier_init, mbarrier_wait, wgmma_mma_async, wgmma_wait_group)
""",
    solutions=SOLUTIONS, mutants=MUTANTS),)
