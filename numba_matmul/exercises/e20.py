"""What `grade("20", my_block_scales)` asks of a kernel, what it accepts, and what it must catch.

The kernel is graded with one consumer, 64×64 tiles in three columns, a ring of two stages and five k tiles,
the last of which isn't whole; and with two consumers, 128×128 tiles, three stages and four k tiles. As in
exercise 17, copies land and products read their factors as late as possible. Every block of A and of B has
its own scale, so a wrong result can be recognized: whose scale is missing, or taken from elsewhere? Then come
the goals:

- **products**: a k tile is multiplied once. **barriers**, **fences**: none in the main loop.
- **spills**: each thread of a 128×128 tile has 64 sums and 64 products, and all stay in registers.
"""
from functools import partial

import numpy as np
from ..arrays import to_d, to_h
from ..exercise import Exercise, Goal, Mutant
from ..fp8 import from_fp8, to_fp8
from ..gemm.limits import with_shared_memory
from ..gemm.pipeline import barrier_init, pipeline_advance, storage_layout
from ..gemm.schedule import persistent_scheduler
from ..gemm.tensor_maps import TensorMapWords
from ..gemm.tiles import BOX
from ..kernels import k20_fp8 as page
from ..kernels.k16_tma_wgmma import OF_A, k_tile_loader
from ..kernels.k17_warp_specialized import with_producer
from ..ptx.hopper import MAP_WORDS, WORDS_BEFORE
from ..sim.scheduler import SimulatorError
from ..source import replaced
from ..static import static, unrolled
from .e16 import NO_FENCES
from .e19b import barriers, products
from .recorded import judge_ring
from numba import cuda, uint32, uint64


# What the skeleton is given

def descriptors_of(tile):
    "A device function: descriptors of a warpgroup's factors in a stage, both K-major."
    stage_bytes, bytes_a = tile.stage_bytes, tile.bytes_a

    @cuda.jit(device=True)
    def descriptors(storage, stage, warpgroup):
        a = uint32(storage.ab_tiles + stage * uint32(stage_bytes))
        b, a = uint32(a + uint32(bytes_a)), uint32(a + warpgroup * uint32(BOX))
        return OF_A | uint64(a >> uint32(4)), OF_A | uint64(b >> uint32(4))
    return descriptors

def writer_of(tile):
    "A device function: write a thread's results."
    cols = tile.bn // 8

    @cuda.jit(device=True)
    @unrolled
    def write(c, upper, col, thread, sums):
        col += thread % 4 * 2
        for j in static(cols):
            for i in static(4): c[upper + i // 2 * 8, col + 8 * j + i % 2] = sums[4 * j + i]
    return write

def names_of(tile):
    "What the skeleton's names stand for, with a tile."
    work_grid, _, tile_origin = persistent_scheduler(tile, False)
    return dict(shared_storage=storage_layout(tile), init=barrier_init(tile.stages, tile.warpgroups),
                work_grid=work_grid, tile_origin=tile_origin, load_k_tile=k_tile_loader(tile),
                advance=pipeline_advance(tile.stages), descriptors=descriptors_of(tile),
                write=writer_of(tile), ZEROS=(np.float32(0),) * tile.results)

LARGE = page.fp8_tile(128, 128, 6)
ONE = page.fp8_tile(64, 64, 2)  # consumer
TWO = page.fp8_tile(128, 128, 3)
CASES = (64, 192, 4 * 128 + 48, ONE), (128, 128, 4 * 128, TWO)  # m, n, k, tile


# A run

def arguments(m, n, k, tile):
    "Arguments of a launch, and A, B and both scales in float64."
    random = np.random.default_rng()
    a, b = (to_fp8(random.standard_normal(shape)) for shape in ((m, k), (n, k)))
    k_tiles = -(-k // 128)
    scale_a, scale_b = (2 ** random.uniform(-3, 3, shape).astype(np.float32)
                        for shape in ((m, k_tiles), (k_tiles, -(-n // 128))))
    c = to_d(np.full((m, n), np.nan, np.float32))
    maps = TensorMapWords((to_d(a), tile.bm), (to_d(b), tile.bn))
    given = maps.words, c, to_d(scale_a), to_d(scale_b), np.int64(m), np.int64(n), np.int64(k // 2)
    return maps, given, (from_fp8(a).astype(float), from_fp8(b).T.astype(float), scale_a.astype(float),
                         scale_b.astype(float))

def multiply(kernel, m, n, k, tile):
    "In a child: launch a kernel; the verdict that fails and its text, or `None`."
    maps, given, matrices = arguments(m, n, k, tile)  # (the maps keep A and B alive)
    launch = with_shared_memory(kernel, m // tile.bm * (n // tile.bn), with_producer(tile), 0,
                                page.shared_bytes(tile))
    try: launch(*given)
    except SimulatorError as e:
        kinds = {"bounds": "in bounds", "descriptor": "correct"}
        if e.kind not in kinds: raise
        return kinds[e.kind], str(e).splitlines()[0]
    if wrong := compared(to_h(given[1]).astype(float), *matrices): return "correct", wrong
    stores = launch.grid.stores[kernel.py_func.__code__.co_varnames[1]]
    if stores != m * n: return "one store each", f"{stores:,} stores to C, which has {m * n:,} elements"

def compared(found, a, b, scale_a, scale_b):
    "What's wrong with a product, in a sentence; `None` if nothing is."
    k_tiles = [slice(start, start + 128) for start in range(0, a.shape[1], 128)]
    parts = np.array([a[:, k] @ b[k] for k in k_tiles])
    rows, columns = scale_a.T[:, :, None], np.repeat(scale_b, 128, 1)[:, None, :b.shape[1]]
    def away(total): return np.linalg.norm(found - total) / np.linalg.norm(total)
    error = away((parts * rows * columns).sum(0))
    if error < 5e-4: return None
    if missing := np.sum(~np.isfinite(found)): return f"{missing:,} of {found.size:,} results are NaN"
    text, guesses = f"relative error {error:.2g}", guesses_of(parts, rows, columns)
    told = [name for name, total in guesses.items() if away(total) < 5e-4]
    return "; ".join([text, *told[:1]])

def guesses_of(parts, rows, columns):
    "Wrong results by what went wrong."
    upper = rows.copy()
    lower = np.arange(rows.shape[1]) // 8 % 2 == 1
    upper[:, lower] = rows[:, np.flatnonzero(lower) - 8]
    swapped = rows.reshape(len(rows), -1, 2, 8)[:, :, ::-1].reshape(rows.shape)
    both = rows * columns
    last = np.arange(len(parts)) == len(parts) - 1
    return {
        "no scale was applied": parts.sum(0), "B's scales are missing": (parts * rows).sum(0),
        "A's scales are missing": (parts * columns).sum(0),
        "both rows have the upper row's scale": (parts * upper * columns).sum(0),
        "the two rows' scales are exchanged": (parts * swapped * columns).sum(0),
        "each k tile has the scales of the first": (parts * both[:1]).sum(0),
        "each k tile has the scales of the last": (parts * both[-1:]).sum(0),
        "only the last k tile is in C": (parts * both)[last].sum(0),
        "each k tile is in C twice": 2 * (parts * both).sum(0),
        "a k tile's products also contain those before it": (np.cumsum(parts, 0) * both).sum(0),
        "products are divided by the scales": (parts / both).sum(0),
        "scales are added, not multiplied": (parts * (rows + columns)).sum(0),
        "B's scale was applied twice": (parts * both * columns).sum(0)}

judge = partial(judge_ring, cases=CASES, names_of=names_of, multiply=multiply, arguments=7,
                signature=f"void(UniTuple(uint64, {WORDS_BEFORE + 2 * MAP_WORDS}), float32[:, ::1], "
                          "float32[:, ::1], float32[:, ::1], int64, int64, int64)",
                counted=1)  # the second case has one block


HEAD = """@cuda.jit(launch_bounds=(384, 1))
def my_block_scales(tensor_maps, c, scale_a, scale_b, m, n, pairs):
    thread = uint32(cuda.threadIdx.x)
    storage = shared_storage(cuda.shared.array(0, uint16, alignment=16))
    maps = TensorMaps(tensor_map_address(tensor_maps, 0), tensor_map_address(tensor_maps, 1))
    init(storage, thread)
    cuda.syncthreads()
    grid = work_grid(m, n, pairs, uint32(1))
    k_tile, (row, col) = uint32(0), tile_origin(uint32(cuda.blockIdx.x), grid)
    if thread < 128:
        setmaxnreg_dec(40)
        state = PipelineState(uint32(0), uint32(1))
        while thread == 0 and k_tile < grid.k_tiles:
            producer_acquire(storage, state)
            load_k_tile(storage, state.stage, maps, row, col, k_tile)
            state, k_tile = advance(state), uint32(k_tile + 1)
    else:
        setmaxnreg_inc(232)
        state, sums = PipelineState(uint32(0), uint32(0)), ZEROS
        warpgroup, releases = uint32(thread // 128 - 1), thread % 32 == 0
        upper = row + (thread - 128) // 32 * 16 + thread % 32 // 4
        while k_tile < grid.k_tiles:
            consumer_wait(storage, state)
            a, b = descriptors(storage, state.stage, warpgroup)
"""
PRODUCTS = "            products = wgmma_mma_async_e4m3(ZEROS, a, b, NEXT_A, NEXT_A, 4, 0, 1, 0)\n"
OF_B = "            by = scale_b[k_tile, col // 128]\n"
FACTORS = "            above, below = scale_a[upper, k_tile] * by, scale_a[upper + 8, k_tile] * by\n"
WAIT = "            products = wgmma_wait_group(products)\n"
ADD = "            sums = add_scaled(sums, products, (above, above, below, below))\n"
RELEASE = "            consumer_release(storage, state.stage, releases)\n"
ON = "            state, k_tile = advance(state), uint32(k_tile + 1)\n"
WRITE = "        write(c, upper, col, thread, sums)\n"
BODY = PRODUCTS + OF_B + FACTORS + WAIT + ADD + RELEASE
REFERENCE = HEAD + BODY + ON + WRITE


def body(*pairs): return HEAD + replaced(BODY, *pairs) + ON + WRITE
SOLUTIONS = {
    "reference": REFERENCE,
    "scales after the wait, and released before the sum": body(
        (OF_B + FACTORS, ""), (WAIT, WAIT + RELEASE + OF_B + FACTORS), (ADD + RELEASE, ADD)),
    "zeros to start with, and the call waits itself": body(("4, 0, 1, 0)", "4, 0, 0, 1)")),
    "a k tile in two calls": body((PRODUCTS, """
            products = wgmma_mma_async_e4m3(ZEROS, a, b, NEXT_A, NEXT_A, 2, 0, 1, 0)
            products = wgmma_mma_async_e4m3(products, a + 2 * NEXT_A, b + 2 * NEXT_A, NEXT_A, NEXT_A, 2, 0,
                                            2, 1)
""")),
    "the scales in a function": """@cuda.jit(device=True)
def factors(scale_a, scale_b, upper, col, k_tile):
    by = scale_b[k_tile, col >> 7]
    above, below = by * scale_a[upper, k_tile], by * scale_a[upper + 8, k_tile]
    return above, above, below, below

""" + body((OF_B + FACTORS, "            by = factors(scale_a, scale_b, upper, col, k_tile)\n"),
           ("(above, above, below, below)", "by")),
    "arrivals by hand": body((RELEASE, """
            if releases: mbarrier_arrive(empty_barrier(storage, state.stage))
"""))}


def mutant(name, old, new, verdict): return Mutant(name, BODY, replaced(BODY, (old, new)), verdict)

MUTANTS = (
    Mutant("not written", BODY, "            ...\n", "written"),
    Mutant("the library's loop", REFERENCE,
           "from numba_matmul.kernels.k20_fp8 import block_mainloop, fp8_tile\n"
           "mma = block_mainloop(fp8_tile(64, 64, 2), 0).mma\n" + HEAD
           + "            sums, at = mma((sums, 0), storage, state.stage, warpgroup)\n" + RELEASE + ON
           + WRITE, "your own"),
    # products
    mutant("half of the k tile", "NEXT_A, 4,", "NEXT_A, 2,", "correct"),
    mutant("two k tiles' worth", "NEXT_A, 4,", "NEXT_A, 8,", "stages"),
    mutant("steps of B as if its rows ran along n", "NEXT_A, NEXT_A", "NEXT_A, NEXT_B", "stages"),
    mutant("B as if its rows ran along n", "4, 0, 1, 0)", "4, 1, 1, 0)", "correct"),
    mutant("A as if its rows ran along m", "4, 0, 1, 0)", "4, 2, 1, 0)", "correct"),
    mutant("A and B exchanged", "ZEROS, a, b", "ZEROS, b, a", "correct"),
    Mutant("products go on from k tile to k tile", REFERENCE, replaced(
        HEAD, ("sums = P", "sums, products = P"), (", ZEROS\n", ", ZEROS, ZEROS\n")) + replaced(
            BODY, ("(ZEROS", "(products"), ("1, 0)", "1, 1)")) + ON + WRITE, "correct"),
    mutant("multiplied twice", PRODUCTS, PRODUCTS + PRODUCTS, "products"),
    # scales
    mutant("never scaled", "(above, above, below, below)", "(float32(1),)", "correct"),
    mutant("A's scales alone", "upper, k_tile] * by, scale_a[upper + 8, k_tile] * by",
           "upper, k_tile], scale_a[upper + 8, k_tile]", "correct"),
    mutant("B's scales alone", FACTORS, "            above, below = by, by\n", "correct"),
    mutant("B's scale for the upper row alone", "8, k_tile] * by", "8, k_tile]", "correct"),
    mutant("the upper row's scale for both", "upper + 8", "upper", "correct"),
    mutant("the row below, not eight below", "upper + 8", "upper + 1", "correct"),
    mutant("the rows' scales exchanged", "(above, above, below, below)", "(below, below, above, above)",
           "correct"),
    mutant("above and below in turn", "(above, above, below, below)", "(above, below)", "correct"),
    mutant("the tile's first row", "scale_a[upper, k", "scale_a[row, k", "correct"),
    mutant("always the first k tile's scales", FACTORS, FACTORS.replace("k_tile", "0"), "correct"),
    mutant("always B's first k tile", "scale_b[k_tile,", "scale_b[0,", "correct"),
    mutant("the scales of the k tile after", "scale_b[k_tile,", "scale_b[(k_tile + 1) % grid.k_tiles,",
           "correct"),
    mutant("a k tile too far", "scale_b[k_tile,", "scale_b[k_tile + 1,", "in bounds"),
    mutant("the column, not its block", "col // 128", "col", "in bounds"),
    mutant("the column of tiles", "col // 128", "col // 64", "in bounds"),
    mutant("always the first column of blocks", "col // 128", "0", "correct"),
    mutant("k tile and column exchanged", "k_tile, col // 128", "col // 128, k_tile", "in bounds"),
    mutant("divided by the scales", "(above, above, below, below)",
           "(1 / above, 1 / above, 1 / below, 1 / below)", "correct"),
    mutant("scales are added", FACTORS, FACTORS.replace("*", "+"), "correct"),
    Mutant("scaled after the loop", REFERENCE, HEAD + replaced(
        BODY, (OF_B + FACTORS, ""), ("(above, above, below, below)", "(float32(1),)")) + ON
        + (OF_B + FACTORS).replace("            ", "        ").replace("k_tile", "grid.k_tiles - 1")
        + "        sums = add_scaled(ZEROS, sums, (above, above, below, below))\n" + WRITE, "correct"),
    # sums
    mutant("not added up", "add_scaled(sums,", "add_scaled(ZEROS,", "correct"),
    mutant("added twice", ADD, ADD + ADD, "correct"),
    mutant("the sums aren't kept", "sums = add", "total = add", "correct"),
    # waits
    mutant("no wait", WAIT, "", "stages"),
    mutant("the complete products aren't kept", "products = wgmma_wait", "wgmma_wait", "correct"),
    mutant("added before the wait", WAIT + ADD, ADD + WAIT, "correct"),
    # stages
    mutant("released before the wait", WAIT + ADD + RELEASE, RELEASE + WAIT + ADD, "stages"),
    mutant("released before the products", PRODUCTS, RELEASE + PRODUCTS, "stages"),
    mutant("never released", RELEASE, "", "ends"),
    mutant("always the first stage is released", "state.stage, releases", "uint32(0), releases", "arrivals"),
    mutant("every other stage is released", RELEASE, "            if k_tile % 2: " + RELEASE.strip() + "\n",
           "ends"),
    mutant("all threads release", "stage, releases", "stage, True", "arrivals"),
    mutant("one thread of a consumer releases", "stage, releases", "stage, thread % 128 == 0", "ends"),
    mutant("B's scales in a local array", OF_B, """
            of_b = cuda.local.array(8, float32)
            for i in range(8): of_b[i] = scale_b[min(i, grid.k_tiles - 1), col // 128]
            by = of_b[k_tile]
""", "spills"),
    # barriers, fences, C
    mutant("a barrier per k tile", WAIT, WAIT + "            bar_sync(uint32(1 + warpgroup), uint32(128))\n",
           "barriers"),
    mutant("a fence per k tile", WAIT, WAIT + "            fence_proxy_async()\n", "fences"),
    mutant("written for each k tile", ADD, ADD + "    " + WRITE, "one store each"))


EXERCISES = (Exercise(
    "20", "my_block_scales", page=page, judge=judge, constants=names_of(LARGE),
    goals=(
        Goal("products", partial(products, 4), most=1, unit="per k tile", counted="events",
             hint="one call multiplies the whole k tile"),
        Goal("barriers", barriers, most=0, unit="in the main loop", counted="events",
             hint="the mbarriers of the ring are enough"),
        Goal("spills", lambda code: code.spills + code.stack_bytes, most=0,
             unit="loads, stores and bytes of stack", counted="code",
             hint="with a 128×128 tile, a thread has 64 products and 64 sums: pass each tuple on whole"),
        NO_FENCES),
    hints={
        "correct: K-major": (
            "the machine multiplies numbers of 8 bits only if both operands are K-major, so the "
            "operand after "
            "the 4 steps, `transpose`, is 0"),
        "correct: NaN": (
            "products are NaN as long as they're being added up: products = wgmma_wait_group(products) "
            "before "
            "you use them"),
        "correct: also contain": "start the products of each k tile at zero: scale_d, the last operand, is 0",
        "correct: rows": (
            "add_scaled takes four factors in turn: two for the upper row, then two for the lower one"),
        "correct: the upper row's": "the lower row is `upper + 8`, and has its own scale",
        "correct: twice": "each k tile is added to the sums once, times its own scales",
        "correct: of the first": (
            "the scales change with k_tile, the second index of scale_a and the first of scale_b"),
        "correct: of the last": (
            "each k tile has its own scales, so apply them when you add its products to the sums, not after "
            "the loop"),
        "correct: only the last": "add to `sums`, and keep the result in `sums`",
        "correct": (
            "C's element is the sum over k tiles of (products of that k tile) · scale_a[its row, k_tile] · "
            "scale_b[k_tile, its column // 128], and a k tile is four steps of NEXT_A in both operands"),
        "in bounds": (
            "scale_a has a row per row of A and a column per k tile; scale_b has a row per k tile, and "
            "a column "
            "per 128 columns of B"),
        "stages": (
            "a stage may be released when no product reads it anymore: after wgmma_wait_group. And a k "
            "tile is four "
            "steps of NEXT_A in both operands: more would read another stage"),
        "ends": (
            "the producer waits for an empty stage: is each one released, state.stage, by one thread "
            "of each warp "
            "(releases)?"),
        "arrivals": (
            "one thread of each warp releases a stage: consumer_release(storage, state.stage, releases)"),
        "results": "wait for the products of each k tile: wgmma_wait_group",
        "one store each": "store results once, after all k tiles have been multiplied",
        "compiles": "the message names what is missing or has the wrong type"},
    preamble="""from numba import uint16
from numba_matmul.gemm.pipeline import (
    PipelineState, TensorMaps, consumer_release, consumer_wait, empty_barrier, producer_acquire)
from numba_matmul.kernels.k16_tma_wgmma import NEXT_A, NEXT_B
from numba_matmul.ptx.core import add_scaled
from numba_matmul.ptx.hopper import (
    bar_sync, fence_proxy_async, mbarrier_arrive, setmaxnreg_dec, setmaxnreg_inc, tensor_map_address,
    wgmma_mma_async_e4m3, wgmma_wait_group)
""",
    solutions=SOLUTIONS, mutants=MUTANTS),)
