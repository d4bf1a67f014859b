"""What `grade("17", my_warp_specialized)` asks of a kernel, what it accepts, and what it must catch.

The kernel is graded with tiles of 128×128 and two consumers: once with a ring of two stages and six k tiles,
of which the last one is not whole, and once with three stages, two blocks and four k tiles. A copy lands as
late as it may, and factors are read when their product has to be complete, so a missing wait or an early
release is caught every time. Each element of C is sent once. Then come the goals:

- **k tiles on their way**: how many k tiles are being copied at a time? At first, as many as the ring has
  stages; and the producer never waits for its own copy.
- **products at work**: whenever a consumer waits for the next k tile, the products of this one are still at
  work.
- **barriers per tile**: none; the mbarriers are enough.
- **for the results**: one fence and one barrier after the loop. **fences**: none in it.
"""
from functools import partial
from textwrap import indent

import numpy as np
from ..arrays import from_bf16, rounded, to_d, to_h
from ..exercise import Exercise, Goal, Mutant
from ..gemm.args import gemm_args
from ..gemm.limits import with_shared_memory
from ..gemm.pipeline import pipeline_advance, storage_layout
from ..gemm.schedule import persistent_scheduler
from ..gemm.tensor_maps import TensorMapWords
from ..gemm.tiles import BK, BOX, WgmmaTile
from ..judge import Verdict, judge_code, reached, unfit
from ..kernels import k17_warp_specialized as page
from ..kernels.k16_tma_wgmma import k_tile_loader, wgmma_multiplier
from ..ptx.hopper import (
    MAP_WORDS, WORDS_BEFORE, cp_async_bulk_commit_group, cp_async_bulk_tensor_2d_shared_to_global,
    cp_async_bulk_wait_group_read, pack_scaled, stmatrix)
from ..source import replaced, with_constants
from .e16 import NO_FENCES
from .recorded import barriers_of, for_the_results, k_tiles_on_their_way, products_at_work, runs_of
from numba import cuda, float32, uint32


# What the skeleton has been given: the results on their way out, for tiles that are 128 columns wide.

@cuda.jit(device=True)
def stage_results(acc, store):
    "Round a warpgroup's results, 128 columns, and write them to its two boxes in shared memory."
    packed = pack_scaled(acc, float32(1))
    stmatrix(store.lane_row, store.swizzle, packed, 0, 4)
    stmatrix(uint32(store.lane_row + uint32(BOX)), store.swizzle, packed, 16, 4)

@cuda.jit(device=True)
def send_results(store, row, col):
    "Have the TMA bring both boxes to the warpgroup's part of C, and wait until it has read them."
    for box in range(2):
        start, across = uint32(store.first_box + uint32(BOX * box)), uint32(col + uint32(64 * box))
        cp_async_bulk_tensor_2d_shared_to_global(store.map_c, start, across, row)
    cp_async_bulk_commit_group()
    cp_async_bulk_wait_group_read(0)


TILE = WgmmaTile(128, 128, 2)

def ring_of(tile):
    "What the skeleton's names stand for, with a tile."
    work_grid, _, tile_origin = persistent_scheduler(tile, False)
    return dict(STAGES=tile.stages, CONSUMERS=tile.warpgroups, ZEROS=(np.float32(0),) * tile.results,
                shared_storage=storage_layout(tile, page.c_bytes(tile)),
                advance=pipeline_advance(tile.stages), load_k_tile=k_tile_loader(tile),
                mma=wgmma_multiplier(tile), work_grid=work_grid, tile_origin=tile_origin,
                stage_results=stage_results, send_results=send_results)

CASES = (128, 128, 5 * BK + 24, TILE), (128, 256, 4 * BK, TILE._replace(stages=3))  # m, n, k, tile

def multiply(kernel, m, n, k, tile):
    "In a child: launch a kernel; the verdict that fails and its text, or `None`."
    random = np.random.default_rng()
    a, b = (rounded(random.standard_normal(shape), "bfloat16") for shape in ((m, k), (k, n)))
    c = to_d(rounded(np.full((m, n), np.nan), "bfloat16"))
    g = gemm_args(to_d(a), to_d(b), c, dtype="bfloat16")
    launch = with_shared_memory(kernel, m // tile.bm * (n // tile.bn), page.with_producer(tile), 0,
                                page.shared_bytes(tile))
    maps = TensorMapWords((g.a, tile.bm), (g.b, BK), (g.c, 64))
    launch(maps.words, np.int64(m), np.int64(n), np.int64(k))
    exact, found = from_bf16(a).astype(float) @ from_bf16(b).astype(float), from_bf16(to_h(c)).astype(float)
    error = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
    if not error < 2e-3: return "correct", f"relative error {error:.2g}"

BOXES = 1 + TILE.bn // 64  # of a k tile
CONSUMER_THREADS = [128 * (1 + i) for i in range(TILE.warpgroups)]  # the first of each

def of_consumers(choose, measure):
    "The most or the least of what the first threads of the consumers do."
    return lambda events: choose(measure(events, thread) for thread in CONSUMER_THREADS)

def judge(exercise, kernel):
    "The verdicts on a kernel, one by one."
    if verdict := unfit(kernel, (0,) * 4): yield verdict
    runs = yield from runs_of(kernel, CASES, ring_of, multiply)
    for (m, n, k, tile), events in zip(CASES, runs):
        sent = sum(number for what, _, number in events if what == "sent")
        if sent != m * n:
            yield Verdict("one store each", False, f"{m}×{n}×{k}, {tile.stages} stages: {sent:,} elements "
                                                   f"were sent to C, which has {m * n:,}")
    yield Verdict("stages", True, "each stage is full when it is multiplied, and empty when it is filled")
    yield Verdict("correct", True, "; ".join(f"{m}×{n}×{k} with {tile}" for m, n, k, tile in CASES))
    for goal in exercise.goals:
        if goal.counted == "events": yield reached(goal, goal.measure(runs[0]))
    signature = f"void(UniTuple(uint64, {WORDS_BEFORE + 3 * MAP_WORDS}), int64, int64, int64)"
    yield from judge_code([NO_FENCES], with_constants(kernel, exercise.constants), signature)


HEAD = """@cuda.jit(launch_bounds=(384, 1))
def my_warp_specialized(tensor_maps, m, n, k):
    storage, thread = shared_storage(cuda.shared.array(0, uint16, alignment=16)), uint32(cuda.threadIdx.x)
    maps = TensorMaps(tensor_map_address(tensor_maps, 0), tensor_map_address(tensor_maps, 1))
    if thread == 0:
        for stage in range(STAGES):
            mbarrier_init(full_barrier(storage, stage), uint32(1))
            mbarrier_init(empty_barrier(storage, stage), uint32(4 * CONSUMERS))
        fence_mbarrier_init()
    cuda.syncthreads()
    grid = work_grid(m, n, k, uint32(1))
    row, col = tile_origin(uint32(cuda.blockIdx.x), grid)
"""
ACQUIRE = "            producer_acquire(storage, state)\n"
LOAD = "            load_k_tile(storage, state.stage, maps, row, col, k_tile)\n"
PRODUCE = """    if thread == 0:
        state, k_tile = PipelineState(uint32(0), uint32(1)), uint32(0)
        while k_tile < grid.k_tiles:
""" + ACQUIRE + LOAD + """            state, k_tile = advance(state), uint32(k_tile + 1)
"""
CONSUMER = """    elif thread >= 128:
        warpgroup = uint32(thread // 128 - 1)
        store = tma_store_of(thread, storage, tensor_map_address(tensor_maps, 2))
        acc, previous = ZEROS, uint32(0)
"""
CONSUME = """        state, k_tile = PipelineState(uint32(0), uint32(0)), uint32(0)
        while k_tile < grid.k_tiles:
            consumer_wait(storage, state)
            acc = mma(acc, storage, state.stage, warpgroup)
            if k_tile > 0: consumer_release(storage, previous, store.releases)
            previous, state, k_tile = state.stage, advance(state), uint32(k_tile + 1)
"""
RESULTS = """        acc = wgmma_wait_group(acc)
        stage_results(acc, store)
"""
SEE = """        fence_proxy_async()
        bar_sync(store.barrier, uint32(128))
"""
SEND = """        if store.elected: send_results(store, uint32(row + 64 * warpgroup), col)
"""
END = RESULTS + SEE + SEND


SOLUTIONS = {
    "reference": HEAD + PRODUCE + CONSUMER + CONSUME + END,
    "stage and phase by hand": HEAD + """    if thread == 0:
        stage, phase = 0, 1
        for k_tile in range(grid.k_tiles):
            mbarrier_wait(empty_barrier(storage, uint32(stage)), uint32(phase))
            load_k_tile(storage, uint32(stage), maps, row, col, uint32(k_tile))
            stage += 1
            if stage == STAGES: stage, phase = 0, 1 - phase
""" + CONSUMER + """        stage, phase = 0, 0
        for k_tile in range(grid.k_tiles):
            mbarrier_wait(full_barrier(storage, uint32(stage)), uint32(phase))
            acc = mma(acc, storage, uint32(stage), warpgroup)
            if k_tile and store.releases: mbarrier_arrive(empty_barrier(storage, previous))
            previous = uint32(stage)
            stage += 1
            if stage == STAGES: stage, phase = 0, 1 - phase
""" + END,
    "stage and phase from the number of the k tile": HEAD + """    if thread == 0:
        for k_tile in range(grid.k_tiles):
            state = PipelineState(uint32(k_tile % STAGES), uint32(1 - k_tile // STAGES % 2))
            producer_acquire(storage, state)
            load_k_tile(storage, state.stage, maps, row, col, uint32(k_tile))
""" + CONSUMER + """        for k_tile in range(grid.k_tiles):
            state = PipelineState(uint32(k_tile % STAGES), uint32(k_tile // STAGES % 2))
            consumer_wait(storage, state)
            acc = mma(acc, storage, state.stage, warpgroup)
            if k_tile > 0: consumer_release(storage, uint32((k_tile - 1) % STAGES), store.releases)
""" + END,
    "the first time round nothing is acquired": HEAD + replaced(
        PRODUCE, ("uint32(1)), uint32(0)", "uint32(0)), uint32(0)"), (ACQUIRE, """
            if k_tile >= STAGES:
                producer_acquire(storage, PipelineState(state.stage, uint32(1) - state.phase))
""")) + CONSUMER + CONSUME + END,
    "a wait and a release in functions": """@cuda.jit(device=True)
def k_tile_of(storage, state, acc, warpgroup):
    consumer_wait(storage, state)
    return mma(acc, storage, state.stage, warpgroup)

""" + HEAD + PRODUCE.replace("if thread == 0", "if thread < 1") + CONSUMER + """
        state = PipelineState(uint32(0), uint32(0))
        for k_tile in range(grid.k_tiles):
            acc = k_tile_of(storage, state, acc, warpgroup)
            if k_tile >= 1 and store.releases: mbarrier_arrive(empty_barrier(storage, previous))
            previous = state.stage
            state = advance(state)
""" + END,
    "the first k tile before the loop": HEAD + PRODUCE + CONSUMER + """
        state = PipelineState(uint32(0), uint32(0))
        consumer_wait(storage, state)
        acc = mma(acc, storage, state.stage, warpgroup)
        for _ in range(1, grid.k_tiles):
            previous, state = state.stage, advance(state)
            consumer_wait(storage, state)
            acc = mma(acc, storage, state.stage, warpgroup)
            consumer_release(storage, previous, store.releases)
""" + END,
    "the last stage is released, too": HEAD + PRODUCE + CONSUMER + CONSUME + RESULTS.replace(
        "        stage_results",
        "        consumer_release(storage, previous, store.releases)\n        stage_results") + SEE + SEND,
    "the copies by hand": HEAD + PRODUCE.replace(LOAD, """
            full = full_barrier(storage, state.stage)
            to, k0 = uint32(storage.ab_tiles + state.stage * uint32(32768)), uint32(k_tile * uint32(64))
            mbarrier_arrive_expect_tx(full, uint32(32768))
            cp_async_bulk_tensor_2d_global_to_shared(to, maps.a, full, k0, row)
            for box in range(2):
                of_b, across = uint32(to + uint32(16384 + 8192 * box)), uint32(col + uint32(64 * box))
                cp_async_bulk_tensor_2d_global_to_shared(of_b, maps.b, full, across, k0)
""") + CONSUMER + CONSUME + END}


BY_HAND, EXPECT = "the copies by hand", "mbarrier_arrive_expect_tx(full, uint32(32768))"
def produce(name, old, new, verdict): return Mutant(name, PRODUCE, PRODUCE.replace(old, new), verdict)
def consume(name, old, new, verdict): return Mutant(name, CONSUME, CONSUME.replace(old, new), verdict)
WAIT = "            consumer_wait(storage, state)\n"
OWN_COPY = "            consumer_wait(storage, PipelineState(state.stage, uint32(1) - state.phase))\n"
MMA = "            acc = mma(acc, storage, state.stage, warpgroup)\n"
RELEASE = "            if k_tile > 0: consumer_release(storage, previous, store.releases)\n"


MUTANTS = (
    consume("released when all products are complete", RELEASE, "            acc = wgmma_wait_group(acc)\n"
            "            consumer_release(storage, state.stage, store.releases)\n", "products at work"),
    consume("every other k tile is waited for", RELEASE,
            RELEASE + "            if k_tile % 2: acc = wgmma_wait_group(acc)\n", "products at work"),
    consume("a barrier of both consumers for each k tile", RELEASE,
            RELEASE + "            bar_sync(uint32(5), uint32(256))\n", "barriers per tile"),
    consume("a barrier of each consumer for each k tile", RELEASE,
            RELEASE + "            bar_sync(store.barrier, uint32(128))\n", "barriers per tile"),
    consume("a barrier of both consumers for one k tile", RELEASE,
            RELEASE + "            if k_tile == 2: bar_sync(uint32(5), uint32(256))\n", "barriers per tile"),
    consume("a fence for each k tile", RELEASE, RELEASE + "            fence_proxy_async()\n", "fences"),
    consume("a memory fence for each k tile", RELEASE, RELEASE + "            cuda.threadfence()\n",
            "fences"),
    Mutant("C stored for each k tile", CONSUME + END,
           CONSUME + indent(END, "    "), "one store each"),
    Mutant("C stored twice", SEND, SEND + SEND, "one store each"),
    produce("a number for the stages", "advance(state)",
            "PipelineState(uint32((state.stage + uint32(1)) % uint32(2)), uint32(state.phase ^ state.stage))",
            "ends"),
    produce("the producer waits for every other copy",
            LOAD, LOAD + "            if k_tile % 2:\n    " + OWN_COPY, "k tiles on their way"),
    produce("the producer ends after two k tiles", "k_tile < grid.k_tiles",
            "k_tile < min(grid.k_tiles, uint32(2))", "ends"),
    Mutant("the library's kernel", HEAD + PRODUCE + CONSUMER + CONSUME + END,
           """from numba_matmul.gemm.tiles import WgmmaTile
from numba_matmul.kernels.k16_tma_wgmma import k_tile_loader
from numba_matmul.kernels.k17_warp_specialized import producer_loop
TILE = WgmmaTile(128, 128, 2)
produce = producer_loop(TILE, False, k_tile_loader(TILE))
""" + HEAD + """    x, blocks = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x)
    if thread == 0: produce(storage, maps, grid, x, blocks)
""" + CONSUMER + CONSUME + END, "your own"),
    Mutant("not written", PRODUCE, "    if thread == 0:\n        ...\n", "written"),
    produce("the producer begins with phase 0", "uint32(1))", "uint32(0))", "ends"),
    consume("the consumer begins with phase 1", "uint32(0))", "uint32(1))", "stages"),
    produce("nothing is acquired", ACQUIRE, "", "arrivals"),
    consume("nothing is waited for", WAIT, "", "stages"),
    consume("nothing is released", RELEASE, "", "ends"),
    consume("released before the products are complete", RELEASE,
            "            consumer_release(storage, state.stage, store.releases)\n", "stages"),
    consume("released before it is multiplied", WAIT + MMA + RELEASE,
            WAIT + "            consumer_release(storage, state.stage, store.releases)\n" + MMA, "stages"),
    consume("the first k tile releases, too", "if k_tile > 0: ", "", "stages"),
    consume("all threads release", "previous, store.releases", "previous, True", "arrivals"),
    consume("one thread of a warpgroup releases", "previous, store.releases", "previous, store.elected",
            "ends"),
    consume("the first consumer releases alone", "if k_tile > 0:", "if k_tile > 0 and warpgroup == 0:",
            "ends"),
    Mutant("arrivals of one consumer", "uint32(4 * CONSUMERS)", "uint32(4)", "arrivals"),
    Mutant("an arrival for each thread", "uint32(4 * CONSUMERS)", "uint32(128 * CONSUMERS)", "ends"),
    Mutant("full waits for two arrivals", "full_barrier(storage, stage), uint32(1))",
           "full_barrier(storage, stage), uint32(2))", "ends"),
    produce("the producer's phase is not flipped", "advance(state)",
            "PipelineState(advance(state).stage, state.phase)", "arrivals"),
    consume("the consumer's phase is not flipped", "advance(state)",
            "PipelineState(advance(state).stage, state.phase)", "stages"),
    produce("the producer's stage stays", "advance(state), uint32(k_tile + 1)",
            "PipelineState(state.stage, uint32(1 - state.phase)), uint32(k_tile + 1)", "ends"),
    consume("the consumer's stage stays", "advance(state), uint32(k_tile + 1)",
            "PipelineState(state.stage, uint32(1 - state.phase)), uint32(k_tile + 1)", "ends"),
    produce("the last k tile is left out", "k_tile < grid.k_tiles", "k_tile < k // 64", "ends"),
    consume("the consumer leaves the last k tile out", "k_tile < grid.k_tiles", "k_tile < k // 64", "ends"),
    Mutant("both leave the last k tile out", PRODUCE + CONSUMER + CONSUME,
           (PRODUCE + CONSUMER + CONSUME).replace("grid.k_tiles", "k // 64"), "correct"),
    produce("one k tile too many", "k_tile < grid.k_tiles", "k_tile <= grid.k_tiles", "ends"),
    produce("always the first k tile", "row, col, k_tile)", "row, col, uint32(0))", "correct"),
    produce("rows and columns swapped", "row, col, k_tile)", "col, row, k_tile)", "correct"),
    produce("all threads of the warpgroup copy", "if thread == 0:", "if thread < 128:", "arrivals"),
    produce("the producer waits for its own copy",
            ACQUIRE + LOAD, ACQUIRE + LOAD + OWN_COPY, "k tiles on their way"),
    consume("both consumers multiply the same rows", "state.stage, warpgroup)", "state.stage, uint32(0))",
            "correct"),
    consume("the previous stage is multiplied", "acc = mma(acc, storage, state.stage",
            "acc = mma(acc, storage, previous", "stages"),
    Mutant("no wait for the last products", "        acc = wgmma_wait_group(acc)\n", "", "results"),
    Mutant("no proxy fence", "        fence_proxy_async()\n", "", "results"),
    Mutant("fence and barrier twice", SEE, SEE + SEE, "for the results"),
    Mutant("one thread fences", "        fence_proxy_async()\n",
           "        if store.elected: fence_proxy_async()\n", "results"),
    Mutant("one named barrier for both consumers", "bar_sync(store.barrier,", "bar_sync(uint32(1),",
           "results"),
    Mutant("a barrier of the block for the results", "bar_sync(store.barrier, uint32(128))",
           "cuda.syncthreads()", "ends"),
    consume("always the first stage is released",
            "previous, state, k_tile = state.stage, advance(state), uint32(k_tile + 1)",
            "state, k_tile = advance(state), uint32(k_tile + 1)", "ends"),
    produce("acquired after the copies", ACQUIRE + LOAD, LOAD + ACQUIRE, "arrivals"),
    Mutant("the proxy fence after the barrier", SEE,
           "        bar_sync(store.barrier, uint32(128))\n        fence_proxy_async()\n", "results"),
    Mutant("the proxy fence before the results", RESULTS + SEE,
           "        acc = wgmma_wait_group(acc)\n        fence_proxy_async()\n"
           "        stage_results(acc, store)\n        bar_sync(store.barrier, uint32(128))\n", "results"),
    Mutant("no barrier before the results are sent", "        bar_sync(store.barrier, uint32(128))\n", "",
           "results"),
    Mutant("the other consumer's rows", "64 * warpgroup), col)", "64 * (1 - warpgroup)), col)", "correct"),
    Mutant("no bytes expected", EXPECT, "mbarrier_arrive(full)", "stages", BY_HAND),
    Mutant("bytes of A alone", EXPECT, EXPECT.replace("32768", "16384"), "ends", BY_HAND),
    Mutant("more bytes than come", EXPECT, EXPECT.replace("32768", "49152"), "ends", BY_HAND),
    Mutant("one box of B", "for box in range(2):", "for box in range(1):", "ends", BY_HAND),
    Mutant("told of the other stage's mbarrier", "full = full_barrier(storage, state.stage)",
           "full = full_barrier(storage, uint32(1) - state.stage)", "stages", BY_HAND))


BYTES = ("a k tile is on its way, and its stage never gets full: that takes one arrival, the producer's, "
         "which announces all bytes that the copies bring, those of A and those of all boxes of B")
OWN = "each consumer has a barrier of its own for its 128 threads: bar_sync(store.barrier, uint32(128))"
EXERCISES = (Exercise(
    "17", "my_warp_specialized", page=page, judge=judge, constants=ring_of(TILE),
    goals=(
        Goal("k tiles on their way", partial(k_tiles_on_their_way, BOXES), least=TILE.stages,
             unit="k tiles at a time", counted="events",
             hint="the producer must not wait for its own copy: it acquires the next stage at once"),
        Goal("products at work", of_consumers(min, products_at_work), least=1,
             unit="k tiles at the wait for the next one", counted="events",
             hint="mma leaves the products of its k tile at work and has completed those of the one before: "
                  "release that stage, and wait for all only after the loop"),
        Goal("barriers per tile", of_consumers(max, barriers_of), most=0, counted="events",
             hint="the consumers wait for a k tile at its mbarrier, and for nobody else: each goes on at its "
                  "own pace"),
        Goal("for the results", of_consumers(max, for_the_results), most=1,
             unit="barriers or fences of a thread", counted="events",
             hint="one fence of each thread that has written, and one barrier of its consumer's, are enough"),
        NO_FENCES),
    hints={
        "ends: 1 of 1 have arrived": BYTES,
        "ends: 1 of 2 have arrived": BYTES,
        "ends: named barrier": OWN,
        "ends: have returned": OWN,
        "results: named barrier": OWN,
        "ends: 0 of 8 have arrived": (
            "the producer waits for an empty stage and the consumers for a full one, and none of them goes "
            "on. At first all stages are empty: which phase does the producer begin with? Is each stage "
            "released (`previous`, that of the k tile before)? And do stage and phase both go on with each "
            "k tile, on both sides?"),
        "ends: of 8 have arrived": (
            "some of the consumers' warps have released this stage, and others haven't: one lane of each "
            "warp does, that's what store.releases says, in both consumers"),
        "ends: have arrived, 0 bytes are expected": (
            "somebody waits for a k tile that the producer doesn't copy: both sides go through all "
            "grid.k_tiles, and each mbarrier gets as many arrivals as it was made for"),
        "ends: ends while copies": (
            "nobody waits for a k tile that is copied: do producer and consumers count the same k tiles?"),
        "ends": (
            "who waits for whom here? Follow k tiles 0, 1 and 2: which arrival does each wait need, and who "
            "makes it?"),
        "arrivals: its phase has ended": (
            "an mbarrier counts arrivals, not threads: of each warp that consumes, one lane releases a "
            "stage (store.releases), once for each k tile, and the mbarrier is made for all those warps"),
        "arrivals: more than 1 arrival": (
            "a k tile is copied into a stage whose copies are still under way: does one thread issue them, "
            "does it acquire the stage first, and does its phase flip?"),
        "arrivals": (
            "each phase of an mbarrier needs exactly the arrivals it was made for: one from the producer, "
            "or one from each consumer warp. Who arrives too often, or too early?"),
        "stages: multiplied while": (
            "this stage isn't full yet: before mma, wait for it with its phase, 0 the first time around"),
        "stages: multiplied": (
            "a copy came into a stage that products were still reading. Is it released too early? When mma "
            "returns, only the products of the call before are complete: release that stage, and none after "
            "the first k tile. Or is a stage multiplied that isn't this k tile's, or with the phase of the "
            "time before?"),
        "stages": (
            "a stage is full once its mbarrier's phase has ended, and empty when no product reads it "
            "anymore: when mma returns, the products of the call before are complete"),
        "results: waited for": (
            "the last products are still at work: wgmma_wait_group(acc) before the results are used"),
        "results": (
            "the TMA sees what threads have written only after fence_proxy_async, in each thread that "
            "wrote, behind its writes; then they all meet at the barrier"),
        "correct": (
            "is each of the grid.k_tiles k tiles copied once, at row, col and its own number, is it "
            "multiplied once, and does each consumer multiply and send its own 64 rows?"),
        "one store each": (
            "the results leave once, after the loop over the k tiles, by one thread of each consumer"),
        "compiles": "the message names what is missing or has the wrong type"},
    preamble="""from numba import uint16
from numba_matmul.gemm.epilogue import tma_store_of
from numba_matmul.gemm.pipeline import (
    PipelineState, TensorMaps, consumer_release, consumer_wait, empty_barrier, full_barrier, producer_acquire)
from numba_matmul.ptx.hopper import (
    bar_sync, cp_async_bulk_tensor_2d_global_to_shared, fence_mbarrier_init, fence_proxy_async,
    mbarrier_arrive, mbarrier_arrive_expect_tx, mbarrier_init, mbarrier_wait, tensor_map_address,
    wgmma_wait_group)
""",
    solutions=SOLUTIONS, mutants=MUTANTS),)
