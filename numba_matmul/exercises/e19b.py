"""What `grade("19b", my_three_products)` asks of a kernel, what it accepts, and what it must catch.

The kernel is graded with one consumer, 64×64 tiles, a ring of two stages and five k tiles, the last of
which isn't whole; and with two consumers, 128×64 tiles, three stages, four k tiles and two blocks. As in
exercise 17, copies land and products read their factors as late as possible. Since factors come in parts, a
wrong result can be taken apart: how often does it contain each of the four products? Then come the goals:

- **products**: three per k tile. The fourth, lo·lo, is too small to matter.
- **promoted**: hi·hi starts at zero in each k tile. The simulator's adder is exact and the tensor
  cores' isn't, so a sum that isn't promoted shows only here.
- **products at work**: whenever a consumer waits for products, two later ones are still running. So the
  tensor cores have something to do while sums are promoted, and during the wait for the next k tile.
- **barriers**, **fences**: none in the main loop.
- **spills**: each thread of a 128×128 tile has 192 accumulators, and all stay in registers.
"""
from functools import partial
from itertools import product

import numpy as np
from ..arrays import to_d, to_h
from ..draw import number_text
from ..exercise import Exercise, Goal, Mutant
from ..gemm.limits import with_shared_memory
from ..gemm.pipeline import barrier_init, pipeline_advance, storage_layout
from ..gemm.schedule import persistent_scheduler
from ..gemm.tensor_maps import TensorMapWords
from ..gemm.tiles import BK, BOX, ROW, WgmmaTile
from ..kernels import k19_float32_on_tensor_cores as page
from ..kernels.k16_tma_wgmma import OF_A, OF_B
from ..kernels.k17_warp_specialized import with_producer
from ..ptx.hopper import MAP_WORDS, WORDS_BEFORE
from ..source import replaced
from ..static import static, unrolled
from .e16 import NO_FENCES
from .recorded import K_TILE, judge_ring
from numba import cuda, uint32, uint64


# What the skeleton is given

def descriptors_of(tile):
    "A device function: descriptors of a warpgroup's factors in a stage."
    stage_bytes, bytes_a, bytes_b = tile.stage_bytes, tile.bytes_a, tile.bn * ROW

    @cuda.jit(device=True)
    def descriptors(storage, stage, warpgroup):
        a = uint32(storage.ab_tiles + stage * uint32(stage_bytes))
        b, a = uint32(a + uint32(2 * bytes_a)), uint32(a + warpgroup * uint32(BOX))
        return (OF_A | uint64(a >> uint32(4)), OF_A | uint64(uint32(a + uint32(bytes_a)) >> uint32(4)),
                OF_B | uint64(b >> uint32(4)), OF_B | uint64(uint32(b + uint32(bytes_b)) >> uint32(4)))
    return descriptors

def writer_of(tile):
    "A device function: undo the scales, and write a thread's results."
    cols = tile.bn // 8

    @cuda.jit(device=True)
    @unrolled
    def write(c, row, col, warpgroup, thread, sums, undo):
        row += 64 * warpgroup + thread % 128 // 32 * 16 + thread % 32 // 4
        col += thread % 4 * 2
        for j in static(cols):
            for i in static(4): c[row + i // 2 * 8, col + 8 * j + i % 2] = undo * sums[4 * j + i]
    return write

def names_of(tile):
    "What the skeleton's names stand for, with a tile."
    work_grid, _, tile_origin = persistent_scheduler(tile, False)
    return dict(shared_storage=storage_layout(tile), init=barrier_init(tile.stages, tile.warpgroups),
                work_grid=work_grid, tile_origin=tile_origin, load_k_tile=page.part_loader(tile),
                advance=pipeline_advance(tile.stages), descriptors=descriptors_of(tile),
                write=writer_of(tile), ZEROS=(np.float32(0),) * tile.results)

ONE = WgmmaTile(64, 64, 2, parts=2)  # consumer
TWO = WgmmaTile(128, 64, 3, parts=2)
CASES = (64, 64, 4 * BK + 24, ONE), (128, 128, 4 * BK, TWO)  # m, n, k, tile


# A run

def split(x):
    "hi and lo of a matrix, in float16, and what undoes its scale."
    scale = 2.0 ** (14 - np.floor(np.log2(abs(x).max())))
    hi = (x * scale).astype(np.float16)
    return (hi, ((x * scale - hi) * 2048).astype(np.float16)), 1 / scale

def multiply(kernel, m, n, k, tile):
    "In a child: launch a kernel; the verdict that fails and its text, or `None`."
    random = np.random.default_rng()
    (a, undo_a), (b, undo_b) = (split(random.standard_normal(shape).astype(np.float32).astype(float))
                                for shape in ((m, k), (k, n)))
    undo, c = np.float32(undo_a * undo_b), to_d(np.full((m, n), np.nan, np.float32))
    launch = with_shared_memory(kernel, m // tile.bm * (n // tile.bn), with_producer(tile), 0,
                                page.shared_bytes(tile))
    boxes = [(cuda.to_device(part.view(np.uint16)), rows) for parts, rows in ((a, tile.bm), (b, BK))
             for part in parts]
    launch(TensorMapWords(*boxes).words, c, undo, np.int64(m), np.int64(n), np.int64(k))
    parts = ([part.astype(float) for part in parts] for parts in (a, b))
    if wrong := taken_apart(to_h(c) / undo, *parts): return "correct", wrong
    stores = launch.grid.stores[kernel.py_func.__code__.co_varnames[1]]
    if stores != m * n: return "one store each", f"{stores:,} stores to C, which has {m * n:,} elements"

def taken_apart(found, a, b):
    "What's wrong with a product of parts, in a sentence; `None` if nothing is."
    names = [f"{x}·{y}" for x, y in product(("hi", "lo"), repeat=2)]
    k_tiles = [slice(start, start + BK) for start in range(0, a[0].shape[1], BK)]
    parts = np.array([[x[:, k] @ y[k] / 2048.0**(i + j) for k in k_tiles]
                      for (i, x), (j, y) in product(enumerate(a), enumerate(b))])
    exact = parts.sum(axis=(0, 1))
    error = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    if error < 1e-6: return None
    if missing := np.sum(~np.isfinite(found)): return f"{missing:,} of {found.size:,} results are NaN"
    # how often is each of them in it?
    columns = parts.reshape(-1, found.size).T
    sizes = np.linalg.norm(columns, axis=0)
    weights = np.linalg.lstsq(columns / sizes, found.ravel(), rcond=None)[0] / sizes
    rest = np.linalg.norm(found.ravel() - columns @ weights)
    text = f"relative error {error:.2g}"
    if rest > 1e-5 * np.linalg.norm(found): return text
    told = [often_in(*pair) for pair in zip(names, weights.reshape(4, -1))]
    return "; ".join([text, *filter(None, told)])

def often_in(name, weights):
    "How often C contains a product, if that isn't once. lo·lo is so small that only a multiple of it shows."
    same = np.allclose(weights, weights[0], rtol=0.01, atol=0.01)
    if name == "lo·lo" and not (same and abs(weights[0]) > 10): return ""
    if np.allclose(weights, 1, atol=0.01): return ""
    numbers = [number_text(float(f"{x:.4g}")) if abs(x) > 2e-4 else "0" for x in weights]
    if same: return f"{name} is in C {numbers[0]} times"
    return f"{name} is in C {', '.join(numbers)} times, k tile by k tile"


# Goals

CONSUMER = 128  # the first thread of the first consumer

def products(k_tiles, events):
    "Products of a consumer per k tile."
    steps = sum(number for what, who, number in events if (what, who) == ("product", CONSUMER))
    return steps / K_TILE / k_tiles

def unpromoted(tile, events):
    "The most k tiles of hi·hi that are added up before the sums start at zero again."
    ring = min(number for what, _, number in events if what == "ordered") - tile.stages * tile.stage_bytes
    steps, most = 0, 0
    own = iter([event for event in events if event[1] == CONSUMER])
    for what, _, number in own:
        if what != "product": continue
        at_a, at_b, from_zero = (next(own)[2] for _ in range(3))
        at_a, at_b = ((at - ring) % tile.stage_bytes for at in (at_a, at_b))
        if at_a >= tile.bytes_a or at_b >= 2 * tile.bytes_a + tile.bn * ROW: continue  # a cross product
        steps = number if from_zero else steps + number
        most = max(most, steps)
    return most / K_TILE

def products_left(events):
    "The fewest products running after a call that may wait, while there are more k tiles to copy."
    last = max((i for i, (what, *_) in enumerate(events) if what == "ordered"), default=0)
    own = [(what, number) for what, who, number in events[:last] if who == CONSUMER]
    waits = [i for i, (what, _) in enumerate(own) if what == "waits at"]
    return min(number for what, number in own[waits[1]:] if what == "products left") / K_TILE

def barriers(events):
    "Barriers that a consumer passes from its first product to its last."
    own = [what for what, who, _ in events if who == CONSUMER]
    return own[own.index("product"):len(own) - own[::-1].index("product")].count("barrier")

judge = partial(judge_ring, cases=CASES, names_of=names_of, multiply=multiply, arguments=6,
                signature=f"void(UniTuple(uint64, {WORDS_BEFORE + 4 * MAP_WORDS}), float32[:, ::1], float32, "
                          "int64, int64, int64)")


HEAD = """@cuda.jit(launch_bounds=(384, 1))
def my_three_products(tensor_maps, c, undo, m, n, k):
    thread = uint32(cuda.threadIdx.x)
    storage = shared_storage(cuda.shared.array(0, uint16, alignment=16))
    maps = PartMaps(
        tensor_map_address(tensor_maps, 0), tensor_map_address(tensor_maps, 1),
        tensor_map_address(tensor_maps, 2), tensor_map_address(tensor_maps, 3))
    init(storage, thread)
    cuda.syncthreads()
    grid = work_grid(m, n, k, uint32(1))
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
        state, previous = PipelineState(uint32(0), uint32(0)), uint32(0)
        warpgroup, sums, cross = uint32(thread // 128 - 1), ZEROS, ZEROS
        releases = thread % 32 == 0
        while k_tile < grid.k_tiles:
            consumer_wait(storage, state)
            a_hi, a_lo, b_hi, b_lo = descriptors(storage, state.stage, warpgroup)
"""
HI_HI = "            main = wgmma_mma_async_f16(ZEROS, a_hi, b_hi, NEXT_A, NEXT_B, 4, 1, 3, 0)\n"
LO_HI = "            cross = wgmma_mma_async_f16(cross, a_lo, b_hi, NEXT_A, NEXT_B, 4, 1, 3, 1)\n"
HI_LO = "            cross = wgmma_mma_async_f16(cross, a_hi, b_lo, NEXT_A, NEXT_B, 4, 1, 3, 1)\n"
CROSS = LO_HI + HI_LO
WAIT = "            main = wgmma_wait_prior(main, 2)\n"
PROMOTE = "            sums = add_tuples(sums, main)\n"
RELEASE = "            if k_tile > 0: consumer_release(storage, previous, releases)\n"
ON = "            previous, state, k_tile = state.stage, advance(state), uint32(k_tile + 1)\n"
LAST = "        cross = wgmma_wait_group(cross)\n"
ADD = "        sums = add_outer(sums, (float32(1 / 2048),), cross)\n"
WRITE = "        write(c, row, col, warpgroup, thread, sums, undo)\n"
BODY = HI_HI + CROSS + WAIT + PROMOTE + RELEASE
REFERENCE = HEAD + BODY + ON + LAST + ADD + WRITE


def body(*pairs): return HEAD + replaced(BODY, *pairs) + ON + LAST + ADD + WRITE
SOLUTIONS = {
    "reference": REFERENCE,
    "released before hi·hi is promoted": body((RELEASE, ""), (WAIT, RELEASE + WAIT)),
    "zeros to start with, hi·lo first, and the last call waits": body(
        ("4, 1, 3, 0)", "4, 1, 3, 1)"), (LO_HI, ""),
        (HI_LO, HI_LO + LO_HI.replace("4, 1, 3, 1)", "4, 1, 2, 1)"))),
    "a k tile in a function, and an outer product to promote it": """@cuda.jit(device=True)
def multiply_parts(sums, cross, storage, stage, warpgroup):
    a_hi, a_lo, b_hi, b_lo = descriptors(storage, stage, warpgroup)
""" + (HI_HI + CROSS).replace("            ", "    ") + """
    return add_outer(sums, wgmma_wait_prior(main, 2), (float32(1),)), cross

""" + HEAD[:HEAD.index("            a_hi")] + """
            sums, cross = multiply_parts(sums, cross, storage, state.stage, warpgroup)
""" + RELEASE + ON + LAST + ADD + WRITE,
    "hi·hi in two calls": body((HI_HI, """
            main = wgmma_mma_async_f16(ZEROS, a_hi, b_hi, NEXT_A, NEXT_B, 2, 1, 3, 0)
            main = wgmma_mma_async_f16(main, a_hi + 2 * NEXT_A, b_hi + 2 * NEXT_B, NEXT_A, NEXT_B, 2, 1, 4, 1)
""")),
    "the first k tile before the loop": HEAD[:HEAD.rindex("        while")] + """
        consumer_wait(storage, state)
        a_hi, a_lo, b_hi, b_lo = descriptors(storage, uint32(0), warpgroup)
""" + (HI_HI + LO_HI.replace("3, 1)", "3, 0)").replace("(cross", "(ZEROS") + HI_LO + WAIT
       + "            sums = main\n" + ON).replace("            ", "        ") + """
        while k_tile < grid.k_tiles:
            consumer_wait(storage, state)
            a_hi, a_lo, b_hi, b_lo = descriptors(storage, state.stage, warpgroup)
""" + BODY.replace("if k_tile > 0: ", "") + ON + LAST + ADD + WRITE,
    "arrivals by hand, and the last stage is released, too": HEAD + HI_HI + CROSS + WAIT + PROMOTE + """
            if releases and k_tile != 0: mbarrier_arrive(empty_barrier(storage, previous))
""" + ON + """        sums = add_outer(sums, wgmma_wait_group(cross), (float32(0.5**11),))
        consumer_release(storage, previous, releases)
""" + WRITE}


def mutant(name, old, new, verdict): return Mutant(name, BODY, replaced(BODY, (old, new)), verdict)
def with_more(name, calls, pending, factor):
    "The reference with a fourth set of sums."
    head = replaced(HEAD, ("sums, cross =", f"sums, {name}, cross ="), ("ZEROS\n", "ZEROS, ZEROS\n"))
    return (head + replaced(BODY, (HI_LO, calls), ("2)", pending)) + ON + LAST
            + LAST.replace("cross", name) + ADD
            + ADD.replace("cross", name).replace("float32(1 / 2048)", factor) + WRITE)

MUTANTS = (
    Mutant("not written", BODY, "            ...\n", "written"),
    Mutant("the library's products", REFERENCE,
           "from numba_matmul.gemm.tiles import WgmmaTile\n"
           "from numba_matmul.kernels.k19_float32_on_tensor_cores import part_multiplier\n"
           "mma = part_multiplier(WgmmaTile(64, 64, 2, parts=2), True)\n" + HEAD
           + "            cross, sums = mma((cross, sums), storage, state.stage, warpgroup)\n" + RELEASE + ON
           + LAST + ADD + WRITE, "your own"),
    # which products
    mutant("hi·hi alone", CROSS + WAIT, WAIT.replace("2)", "0)"), "correct"),
    mutant("no lo·hi", CROSS + WAIT, HI_LO + WAIT.replace("2)", "1)"), "correct"),
    mutant("no hi·lo", HI_LO + WAIT, WAIT.replace("2)", "1)"), "correct"),
    mutant("lo·hi twice", "a_hi, b_lo", "a_lo, b_hi", "correct"),
    mutant("lo·lo instead of hi·lo", "a_hi, b_lo", "a_lo, b_lo", "correct"),
    mutant("hi·hi twice", "a_lo, b_hi", "a_hi, b_hi", "correct"),
    mutant("lo·lo among the cross products", HI_LO + WAIT,
           HI_LO + HI_LO.replace("a_hi", "a_lo") + WAIT.replace("2)", "3)"), "correct"),
    Mutant("lo·lo, too", REFERENCE, with_more(
        "small", HI_LO + HI_LO.replace("cross", "small").replace("a_hi", "a_lo"), "3)", "float32(0.5**22)"),
        "products"),
    mutant("A and B exchanged", "ZEROS, a_hi, b_hi", "ZEROS, b_hi, a_hi", "correct"),
    mutant("half of the k tile", HI_HI, HI_HI.replace("4, 1", "2, 1"), "correct"),
    mutant("steps of A and B exchanged", HI_HI, HI_HI.replace("NEXT_A, NEXT_B", "NEXT_B, NEXT_A"), "correct"),
    # where they are added up
    mutant("all three in the same accumulators", "cross, a_lo", "main, a_lo", "correct"),
    mutant("hi·hi goes on, and is promoted all the same", HI_HI,
           replaced(HI_HI, ("ZEROS", "main if k_tile > 0 else ZEROS"), ("3, 0)", "3, 1)")), "correct"),
    mutant("never promoted", HI_HI + CROSS + WAIT + PROMOTE,
           replaced(HI_HI, ("main", "sums"), ("ZEROS", "sums"), ("3, 0)", "3, 1)")) + CROSS
           + WAIT.replace("main", "sums"), "promoted"),
    mutant("promoted every other k tile", HI_HI + CROSS + WAIT + PROMOTE,
           replaced(HI_HI, ("ZEROS", "main if k_tile % 2 else ZEROS"), ("3, 0)", "3, 1)")) + CROSS + WAIT
           + "            if k_tile % 2 or k_tile + 1 == grid.k_tiles: sums = add_tuples(sums, main)\n",
           "promoted"),
    mutant("the sums of lo·hi are not kept", "cross = wgmma_mma_async_f16(cross, a_lo",
           "wgmma_mma_async_f16(cross, a_lo", "correct"),
    mutant("the cross products are promoted instead", "add_tuples(sums, main)", "add_tuples(sums, cross)",
           "correct"),
    mutant("hi·hi is not added up", "add_tuples(sums, main)", "main", "correct"),
    mutant("promoted twice", PROMOTE, PROMOTE + PROMOTE, "correct"),
    mutant("lo·hi starts at zero in each k tile", LO_HI, LO_HI.replace("3, 1)", "3, 0)"), "correct"),
    mutant("hi·lo starts at zero", HI_LO, HI_LO.replace("3, 1)", "3, 0)"), "correct"),
    mutant("the cross products are promoted, too", PROMOTE,
           PROMOTE + "    " + LAST + "    " + ADD + "            cross = ZEROS\n", "products at work"),
    Mutant("each cross product in accumulators of its own", REFERENCE,
           with_more("other", HI_LO.replace("cross", "other"), "2)", "float32(1 / 2048)"), "spills"),
    # who waits
    mutant("nobody waits for hi·hi", WAIT, "", "correct"),
    mutant("the complete sums are not kept", "main = wgmma_wait_prior", "wgmma_wait_prior", "correct"),
    mutant("three calls may be at work", "wait_prior(main, 2)", "wait_prior(main, 3)", "correct"),
    mutant("promoted before the wait", WAIT + PROMOTE, PROMOTE + WAIT, "correct"),
    mutant("one call may be at work", "wait_prior(main, 2)", "wait_prior(main, 1)", "products at work"),
    mutant("all products are waited for", "wait_prior(main, 2)", "wait_group(main)", "products at work"),
    mutant("hi·hi waited for before the cross products", CROSS + WAIT, WAIT.replace("2)", "0)") + CROSS,
           "products at work"),
    mutant("the first call waits for all", "4, 1, 3, 0)", "4, 1, 0, 0)", "products at work"),
    mutant("the last call waits for all", HI_LO, HI_LO.replace("3, 1)", "0, 1)"), "products at work"),
    mutant("the cross products first", HI_HI + CROSS + WAIT, CROSS + HI_HI + WAIT.replace("2)", "0)"),
           "products at work"),
    mutant("lo·hi first", HI_HI + CROSS + WAIT, LO_HI + HI_HI + HI_LO + WAIT.replace("2)", "1)"),
           "products at work"),
    # stages
    mutant("this stage is released", RELEASE,
           "            consumer_release(storage, state.stage, releases)\n", "stages"),
    mutant("this stage is released, except the first time", "previous, releases", "state.stage, releases",
           "ends"),
    mutant("released before the products", BODY, RELEASE + BODY.removesuffix(RELEASE), "stages"),
    mutant("released after the first product", BODY,
           HI_HI + RELEASE + BODY.removesuffix(RELEASE).removeprefix(HI_HI), "stages"),
    mutant("the first k tile releases, too", "if k_tile > 0: ", "", "stages"),
    mutant("never released", RELEASE, "", "ends"),
    mutant("the second k tile releases nothing, either", "k_tile > 0", "k_tile > 1", "ends"),
    mutant("every other stage is released", "if k_tile > 0:", "if k_tile % 2:", "ends"),
    mutant("all threads release", "previous, releases", "previous, True", "arrivals"),
    mutant("one barrier per k tile", PROMOTE,
           PROMOTE + "            bar_sync(uint32(1 + warpgroup), uint32(128))\n", "barriers"),
    mutant("a fence for each k tile", PROMOTE, PROMOTE + "            fence_proxy_async()\n", "fences"),
    # the end
    Mutant("nobody waits at the end", LAST, "", "results"),
    Mutant("added before the wait", LAST + ADD, ADD + LAST, "correct"),
    Mutant("the cross products are not added", ADD, "", "correct"),
    Mutant("added at full size", "float32(1 / 2048)", "float32(1)", "correct"),
    Mutant("2048 times as large again", "float32(1 / 2048)", "float32(2048)", "correct"),
    Mutant("divided by 2048 twice", "float32(1 / 2048)", "float32(1 / 2048**2)", "correct"),
    Mutant("hi·hi divided instead", "add_outer(sums, (float32(1 / 2048),), cross)",
           "add_outer(cross, (float32(1 / 2048),), sums)", "correct"),
    Mutant("written twice", WRITE, WRITE + WRITE, "one store each"))
EXERCISES = (Exercise(
    "19b", "my_three_products", page=page, judge=judge, constants=names_of(page.LARGE),
    goals=(
        Goal("products", partial(products, 5), most=3, unit="per k tile", counted="events",
             hint="lo·lo is at most 2⁻²² of hi·hi: leave it out"),
        Goal("promoted", partial(unpromoted, ONE), most=1, unit="k tiles of hi·hi in one sum",
             counted="events",
             hint="the tensor cores' adder cuts off what it can't hold, so a long sum drifts: in each k "
                  "tile, start hi·hi at zero (scale_d = 0), and add it to `sums` with add_tuples"),
        Goal("products at work", products_left, least=2, unit="products", counted="events",
             hint="start hi·hi first, then both cross products, none of them with a wait (pending = 3). "
                  "Then wait for hi·hi alone: 2 later calls may still be running. Don't wait for cross "
                  "products before the loop ends"),
        Goal("barriers", barriers, most=0, unit="in the main loop", counted="events",
             hint="the mbarriers of the ring are enough"),
        Goal("spills", lambda code: code.spills + code.stack_bytes, most=0,
             unit="loads, stores and bytes of stack", counted="code",
             hint="with a 128×128 tile, a thread has 64 sums each in `main`, `cross` and `sums`: there's "
                  "no room for a fourth set, and each is a tuple that is passed on whole"),
        NO_FENCES),
    hints={
        "correct: NaN": (
            "here, sums are NaN as long as products may still be added to them. Before you add `main`, its "
            "product has to be complete: main = wgmma_wait_prior(main, calls that came after it). And "
            "`cross` is complete only after wgmma_wait_group(cross), after the loop"),
        "correct: lo·lo": "no product of lo and lo belongs in `cross`, where it would count 2048 times",
        "correct: in C 0.0": "only `cross` is divided by 2048, and only once",
        "correct: 2,048 times": (
            "each lo is 2048 times as large as what it stands for, and so is `cross`: sums + cross / 2048"),
        "correct: in C 4,19": "lo is 2048 times too large already, so divide `cross` by that",
        "correct: k tile by k tile": (
            "what starts at zero, and what goes on? hi·hi starts at zero in each k tile and is added to "
            "`sums`, once; the cross products go on from k tile to k tile (scale_d = 1, and `cross` passed "
            "back in)"),
        "correct: times": (
            "three products, each once: a_hi·b_hi in `main`, a_lo·b_hi and a_hi·b_lo in `cross`, and both "
            "sums in C"),
        "correct": (
            "each call takes a descriptor of A and then one of B, NEXT_A and NEXT_B, 4 steps, and 1 because "
            "B's rows lie along n"),
        "stages": (
            "a stage may be released when no product reads it anymore. While you promote hi·hi, this k "
            "tile's cross products still read this stage, but all products of the previous k tile are "
            "complete. So release `previous`, and nothing in the first k tile"),
        "ends": (
            "the producer waits for an empty stage: is `previous` released in every k tile but the first, "
            "and by one thread of each warp (releases)?"),
        "arrivals": (
            "one thread of each warp releases a stage, once for each k tile: "
            "consumer_release(storage, previous, releases)"),
        "results": (
            "the last cross products are still running when the loop ends: cross = wgmma_wait_group(cross)"),
        "one store each": "store results once, after all k tiles have been multiplied",
        "compiles": "the message names what is missing or has the wrong type"},
    preamble="""from numba import uint16
from numba_matmul.gemm.pipeline import (
    PipelineState, consumer_release, consumer_wait, empty_barrier, full_barrier, producer_acquire)
from numba_matmul.kernels.k16_tma_wgmma import NEXT_A, NEXT_B
from numba_matmul.kernels.k19_float32_on_tensor_cores import PartMaps
from numba_matmul.ptx.core import add_outer, add_tuples
from numba_matmul.ptx.hopper import (
    bar_sync, fence_proxy_async, mbarrier_arrive, mbarrier_wait, setmaxnreg_dec, setmaxnreg_inc,
    tensor_map_address, wgmma_mma_async_f16, wgmma_wait_group, wgmma_wait_prior)
""",
    solutions=SOLUTIONS, mutants=MUTANTS),)
