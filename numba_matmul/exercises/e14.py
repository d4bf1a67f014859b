"""What `grade("14", my_stream_k)` asks of a kernel, what it accepts, and what it must catch.

What matters here is how parts of sums go from block to block. So the kernel is graded with a main loop that
reads the matrices without tiles in shared memory: that's quick, and has no barrier that could stand in for a
forgotten one. With tiles of 32×16×4, five blocks share two tiles, so a tile has up to three parts; and a
single block has one tile. With tiles of 8×32×2, seven blocks share six tiles.

Each case is launched twice, with different values in A and B, and with the flags and the workspace as the
first launch left them. The first one is run in six orders: the last block first, the first block first, and
mixed at fences and atomic operations in four ways. The verdicts:

- **ends**: no block waits forever.
- **no races**: a value goes from block to block by way of the writer's fence, a flag and the reader's fence.
  Between threads of one block, a barrier is enough.
- **correct**: the first launch.
- **one store each**: each element of C is stored once, and each block passes on one part at most.
- **equal parts**: each block goes through as many k tiles as the others, or one fewer.
- **barriers needed**: one for each piece of a tile, one for the part that is passed on, and one for each
  that is waited for.
- **second launch**: the same again. A flag that is still raised, or raised too often, shows here.
- **flags**: they are all lowered when the kernel ends.
"""
from collections import Counter

import numpy as np
from greenlet import getcurrent
from ..exercise import Exercise, Mutant
from ..judge import VERDICT_OF, Verdict, first_of, judge_code, unfit, verdict_and_text, wrong_elements
from ..kernels import k14_stream_k as page
from ..process import ChildError, in_child
from ..ptx.core import add_outer, load4, store4
from ..sim import memory
from ..sim.kernel import interleaved
from ..source import cut, reference_of, replaced, with_constants
from numba import cuda


ZEROS, BN = (np.float32(0),) * 8, 16

@cuda.jit(device=True)
def plain_loop(a_ring, b_ring, a, b, row0, col0, k0, end, thread):
    "Eight adjacent results of a thread, in one row."
    row, col, acc = row0 + thread // (BN // 8), col0 + thread % (BN // 8) * 8, ZEROS
    while k0 < end:
        acc = add_outer(acc, (a[row, k0],), load4(b, (k0, col)) + load4(b, (k0, col + 4)))
        k0 += 1
    return acc

@cuda.jit(device=True)
def plain_write(c, acc, row0, col0, thread):
    row, col = row0 + thread // (BN // 8), col0 + thread % (BN // 8) * 8
    store4(c, (row, col), acc[0], acc[1], acc[2], acc[3])
    store4(c, (row, col + 4), acc[4], acc[5], acc[6], acc[7])


def given(**numbers):
    "The page's names with these numbers."
    return numbers | dict(ZEROS=ZEROS, short_main_loop=with_constants(plain_loop, numbers),
                          short_write=with_constants(plain_write, numbers))

SMALL = given(BM=32, BN=16, BK=4, PADDED=36, STAGES=1, THREADS=64, RESULTS=8, PART=512, STEP=256)
OTHER = given(BM=8, BN=32, BK=2, PADDED=12, STAGES=2, THREADS=32, RESULTS=8, PART=256, STEP=128)
CASES = (SMALL, 32, 32, 24, 5), (OTHER, 24, 64, 8, 7), (SMALL, 32, 16, 8, 1)  # names, m, n, k, blocks
ORDERS = "backwards", None, 1, 2, 3, 4  # of the blocks: as they come, or mixed by a seed
def play(kernels, cases, orders):
    "In a child: all launches; the verdict that fails first and its text, or `None`."
    random = np.random.default_rng()
    for kernel, (numbers, m, n, k, blocks) in zip(kernels, cases):
        name = (f"{m}×{n}×{k} on {blocks} blocks with BM = {numbers['BM']}, BN = {numbers['BN']}, "
                f"BK = {numbers['BK']}")
        part, names = numbers["PART"], kernel.fn.__code__.co_varnames
        for order in orders if blocks == 5 else orders[:3]:
            workspace, flags = np.full(part * blocks, np.nan, np.float32), np.zeros(blocks, np.int32)
            for again in False, True:
                a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
                c, launch = np.full((m, n), np.nan, np.float32), kernel[blocks, numbers["THREADS"]]
                if failed := mistake(order, launch, names, a, b, c, workspace, flags):
                    verdict, text = failed
                    return "second launch" if again else verdict, f"{name}: {text}"
                stores, passed = (launch.grid.stores[names[i]] for i in (2, 3))
                if stores != m * n:
                    return "one store each", (f"{name}: {stores:,} stores to {names[2]}, which has {m * n:,} "
                                              "elements")
                if passed > part * blocks:
                    return "one store each", (f"{name}: {passed:,} stores to {names[3]}, and {blocks} blocks "
                                              f"have {part:,} values each to pass on")
            if raised := np.flatnonzero(flags).tolist():
                return "flags", f"{name}: flags[{raised[0]}] is {flags[raised[0]]} at the end"
        if blocks > 1 and (found := unequal(kernel, numbers, m, n, k, blocks)):
            return "equal parts", f"{name}: {found}"
        passed, most = launch.grid.barriers, barriers_needed(numbers, m, n, k, blocks)
        if passed > most:
            return "barriers needed", f"{name}: a block passes {passed} barriers, and {most} are enough"

def mistake(order, launch, names, a, b, c, *others):
    "The verdict and the text of what goes wrong in a launch; `None` if nothing does."
    if order == "backwards": launch.blocks = [(block, 0, 0) for block in reversed(range(launch.grid_dim[0]))]
    try:
        with interleaved(order if isinstance(order, int) else None): launch(a, b, c, *others)
    except Exception as e:
        return verdict_and_text(e, VERDICT_OF | {"uninitialized": "no races", "alignment": "in bounds"})
    if wrong := wrong_elements(names[2], c, a.astype(np.float64) @ b, launch.grid.stores[names[2]]):
        return "correct", wrong[1]

def unequal(kernel, numbers, m, n, k, blocks):
    "A sentence if a block goes through more k tiles than another, counted by what it reads of A."
    reads, name = Counter(), kernel.fn.__code__.co_varnames[0]
    def record(space, operation, array, *others):
        if (space, operation, array.name) == ("global", "load", name): reads[getcurrent().blockIdx.x] += 1
    arrays = [np.ones(shape, np.float32) for shape in ((m, k), (k, n), (m, n), numbers["PART"] * blocks)]
    memory.recorder = record
    try: kernel[blocks, numbers["THREADS"]](*arrays, np.zeros(blocks, np.int32))
    finally: memory.recorder = None
    tiles = [reads[block] / (numbers["THREADS"] * numbers["BK"]) for block in range(blocks)]
    work = m // numbers["BM"] * (n // numbers["BN"]) * (k // numbers["BK"])
    if sum(tiles) > work: return f"{sum(tiles):g} k tiles are multiplied, and there are {work}"
    if max(tiles) - min(tiles) > 1:
        return (f"one block goes through {max(tiles):g} k tiles and another through {min(tiles):g}; "
                f"equal parts of {work} are {work / blocks:.3g}")

def barriers_needed(numbers, m, n, k, blocks):
    "The barriers of the block that needs most: one per piece, per part passed on, and per part waited for."
    k_tiles, across = k // numbers["BK"], n // numbers["BN"]
    starts = [block * m // numbers["BM"] * across * k_tiles // blocks for block in range(blocks + 1)]
    def needed(start, end):
        pieces = -(-end // k_tiles) - start // k_tiles
        stop = -(-end // k_tiles) * k_tiles  # of its last tile; others have the rest of it
        owns = end % k_tiles and (start % k_tiles == 0 or start // k_tiles < end // k_tiles)
        waits = sum(end <= other < stop for other in starts[:-1]) if owns else 0
        return pieces + (start % k_tiles > 0) + waits
    return max(needed(*pair) for pair in zip(starts, starts[1:]))

def judge(exercise, kernel):
    "The verdicts on a kernel, one by one."
    if verdict := unfit(kernel, (0,) * 5): yield verdict
    kernels = [with_constants(kernel, numbers) for numbers, *_ in CASES]
    try: failed = in_child(play, kernels, CASES, ORDERS, simulator=True, timeout=30, keep=True)
    except ChildError as e: failed = "ends", first_of(str(e))
    if failed:
        verdict, text = failed
        yield Verdict(verdict, False, text)
    yield Verdict("ends", True)
    yield Verdict("no races", True,
                  "every read of another block's values has a flag and two fences before it")
    yield Verdict("correct", True, f"{len(CASES)} cases, the first in {len(ORDERS)} orders of the blocks")
    yield Verdict("equal parts", True, "each block goes through as many k tiles as the others, or one fewer")
    yield Verdict("second launch", True, "with the flags and the workspace of the first")
    yield Verdict("flags", True, "all lowered at the end")
    matrix = "float32[:, ::1]"
    yield from judge_code((), kernels[0], f"void({matrix}, {matrix}, {matrix}, float32[::1], int32[::1])")


REFERENCE = reference_of(page.short_stream_k, "my_stream_k")
HEAD, STORE, FENCE, SYNC, RAISE, OWNER, WAIT, ADD, ON, WRITE, TAIL = cut(
    REFERENCE, "            store_fours", "            cuda.thread", "            cuda.sync",
    "            if thread", "        else", "                if thread", "                acc =",
    "                stop =", "            short_write", "        cuda.sync")
HAND = STORE + FENCE + SYNC + RAISE
REST = OWNER + WAIT + ADD + ON + WRITE + TAIL


SOLUTIONS = {
    "reference": REFERENCE,
    "the fence of one thread, after the barrier": HEAD + STORE + SYNC + """            if thread == 0:
                cuda.threadfence()
                cuda.atomic.exch(flags, block, 1)
""" + REST,
    "k tiles that are done": HEAD + HAND + """        else:
            done, other = stop, block + 1
            while done < k_tiles:
""" + WAIT + ADD + """                done = first_k_tile(other + 1, blocks, work) - tile * k_tiles
                other += 1
""" + WRITE + TAIL,
    "a loop over the blocks": HEAD + HAND + """        else:
            for other in range(block + 1, blocks):
                if first_k_tile(other, blocks, work) >= (tile + 1) * k_tiles: break
""" + WAIT + ADD + WRITE + TAIL,
    "waiting in a function": """@cuda.jit(device=True)
def wait_for(flags, other, thread):
    if thread == 0:
        while cuda.atomic.exch(flags, other, 0) == 0: cuda.nanosleep(20)
        cuda.threadfence()
    cuda.syncthreads()

@cuda.jit(device=True)
def pass_on(workspace, flags, block, thread, acc):
    store_fours(workspace, block * PART + 4 * thread, STEP, acc)
    cuda.threadfence()
    cuda.syncthreads()
    if thread == 0: cuda.atomic.exch(flags, block, 1)

""" + HEAD + """            pass_on(workspace, flags, block, thread, acc)
        else:
            for other in range(block + 1, blocks):
                if stop >= k_tiles: break
                wait_for(flags, other, thread)
                acc = add_fours(acc, workspace, other * PART + 4 * thread, STEP)
                stop = first_k_tile(other + 1, blocks, work) - tile * k_tiles
            stop = min(stop, k_tiles)
            short_write(c, acc, row0, col0, thread)
""" + TAIL,
    "looks first, then lowers": HEAD + HAND + OWNER + """                if thread == 0:
                    while cuda.atomic.add(flags, other, 0) == 0: cuda.nanosleep(100)
                    cuda.atomic.exch(flags, other, 0)
                cuda.syncthreads()
                cuda.threadfence()
""" + ADD + ON + WRITE + TAIL,
    "raised by all threads, and lowered when all have": HEAD + STORE + FENCE + """
            cuda.atomic.add(flags, block, 1)
""" + OWNER + """                if thread == 0:
                    while cuda.atomic.cas(flags, other, THREADS, 0) != THREADS: pass
                    cuda.threadfence()
                cuda.syncthreads()
""" + ADD + ON + WRITE + TAIL,
    "raised by adding one": HEAD + STORE + FENCE + SYNC + """
            if thread == 0: cuda.atomic.add(flags, block, 1)
""" + REST,
    "value by value": HEAD + """
            for i in range(RESULTS): workspace[block * PART + i * THREADS + thread] = acc[i]
""" + FENCE + SYNC + RAISE + OWNER + WAIT + """                parts = ZEROS
                for i in range(0, RESULTS, 8):
                    at = other * PART + i * THREADS + thread
                    parts = (workspace[at], workspace[at + THREADS],
                             workspace[at + 2 * THREADS], workspace[at + 3 * THREADS],
                             workspace[at + 4 * THREADS], workspace[at + 5 * THREADS],
                             workspace[at + 6 * THREADS], workspace[at + 7 * THREADS])
                acc = add_outer(acc, (float32(1),), parts)
""" + ON + WRITE + TAIL}


LOOK = "cuda.atomic.cas(flags, other, 1, 0) != 1"


MUTANTS = (
    Mutant("whole tiles for each block",
           "start, end = first_k_tile(block, blocks, work), first_k_tile(block + 1, blocks, work)",
           "start, end = block * (work // k_tiles) // blocks * k_tiles, (block + 1) * (work // k_tiles) // "
           "blocks * k_tiles", "equal parts"),
    Mutant("one block does it all",
           "start, end = first_k_tile(block, blocks, work), first_k_tile(block + 1, blocks, work)",
           "start, end = 0, work if block == 0 else 0\n    blocks = 1", "equal parts"),
    Mutant("each block multiplies whole tiles, and its owner stores them", REFERENCE,
           replaced(HEAD + "            pass\n        else:\n" + WRITE + TAIL,
                    ("begin * BK, stop * BK", "0, a.shape[1]")), "equal parts"),
    Mutant("C stored after each part", ADD, ADD + "                short_write(c, acc, row0, col0, thread)\n",
           "one store each"),
    Mutant("the part passed on twice", STORE, STORE + STORE, "one store each"),
    Mutant("a barrier too many for each tile", "        cuda.syncthreads()\n        start = tile",
           "        cuda.syncthreads()\n        cuda.syncthreads()\n        start = tile", "barriers needed"),
    Mutant("the judge's number for PART", STORE, STORE.replace("PART", "512"), "in bounds"),
    Mutant("the judge's number for STEP", STORE, STORE.replace("STEP", "256"), "no races"),
    Mutant("BN for BM", "c.shape[0] // BM * across", "c.shape[0] // BN * across", "in bounds"),
    Mutant("BK for 4", "other * PART + 4 * thread", "other * PART + BK * thread", "in bounds"),
    Mutant("the library's kernel", REFERENCE,
           "from numba_matmul.kernels.k14_stream_k import short_stream_k as my_stream_k\n", "your own"),
    Mutant("not written", HAND, "            ...\n", "written"),
    Mutant("no fence of the writer", FENCE + SYNC, SYNC, "no races"),
    Mutant("one thread of the writer fences", FENCE + SYNC,
           FENCE.replace("cuda.", "if thread == 0: cuda.") + SYNC, "no races"),
    Mutant("every thread waits",
           "                if thread == 0:\n"
           "                    while cuda.atomic.cas(flags, other, 1, 0) != 1: pass\n"
           "                    cuda.threadfence()\n",
           "                while cuda.atomic.cas(flags, other, 1, 0) != 1: pass\n"
           "                cuda.threadfence()\n", "ends"),
    Mutant("the other block's part begins at its number", "other * PART + 4 * thread", "other + 4 * thread",
           "in bounds"),
    Mutant("no fence of the reader", "                    cuda.threadfence()\n", "", "no races"),
    Mutant("a fence for the block only", FENCE + SYNC, FENCE.replace("fence", "fence_block") + SYNC,
           "no races"),
    Mutant("the writer's fence after the flag", HAND, STORE + SYNC + RAISE + FENCE, "no races"),
    Mutant("the reader's fence before the flag", WAIT,
           replaced(WAIT, ("                    cuda.threadfence()\n", ""),
                    ("                    while",
                     "                    cuda.threadfence()\n                    while")),
           "no races"),
    Mutant("the flag before the part", HAND, SYNC + RAISE + STORE + FENCE, "no races"),
    Mutant("no barrier before the flag", FENCE + SYNC + RAISE, FENCE + RAISE, "no races"),
    Mutant("no barrier after the wait", "                cuda.syncthreads()\n" + ADD, ADD, "no races"),
    Mutant("a flag that isn't atomic", "cuda.atomic.exch(flags, block, 1)", "flags[block] = 1", "no races"),
    Mutant("the flag is not lowered", LOOK, "cuda.atomic.add(flags, other, 0) != 1", "second launch"),
    Mutant("the flag is lowered by its own block", LOOK + ": pass",
           "cuda.atomic.add(flags, other, 0) != 1: pass\n"
           "                    cuda.atomic.exch(flags, block, 0)", "second launch"),
    Mutant("every thread raises the flag", "            if thread == 0: cuda.atomic.exch(flags, block, 1)",
           "            cuda.atomic.exch(flags, block, 1)", "flags"),
    Mutant("the owner's flag is raised", "exch(flags, block, 1)", "exch(flags, block - 1, 1)", "no races"),
    Mutant("waits for its own flag", LOOK, LOOK.replace("other", "block"), "no races"),
    Mutant("waits for a number that nobody writes", LOOK, LOOK.replace("1, 0) != 1", "2, 0) != 2"), "ends"),
    Mutant("waits for the flag to be down", LOOK, "cuda.atomic.add(flags, other, 0) != 0", "no races"),
    Mutant("does not wait", "                    while cuda.atomic.cas(flags, other, 1, 0) != 1: pass\n",
           "                    cuda.atomic.cas(flags, other, 1, 0)\n", "no races"),
    Mutant("the part at another block's place", STORE, STORE.replace("block *", "(blocks - 1 - block) *"),
           "no races"),
    Mutant("always the same place", STORE, STORE.replace("block * PART + ", ""), "no races"),
    Mutant("the owner reads its own place", ADD, ADD.replace("other", "block"), "correct"),
    Mutant("a part that is not in fours", STORE, STORE.replace("+ 4 * thread", "+ thread"), "in bounds"),
    Mutant("the part is not added", ADD, ADD.replace("acc =", "parts ="), "correct"),
    Mutant("the part is counted twice", ADD, ADD + ADD, "correct"),
    Mutant("only one other block", "            while stop < k_tiles:", "            if stop < k_tiles:",
           "correct"),
    Mutant("the next block is always the same", "                other += 1\n", "", "ends"),
    Mutant("first_k_tile one block too late", "first_k_tile(other + 1,", "first_k_tile(other + 2,",
           "correct"),
    Mutant("first_k_tile one block too early", "first_k_tile(other + 1,", "first_k_tile(other,", "ends"),
    Mutant("k tiles counted from the first tile of C",
           "first_k_tile(other + 1, blocks, work) - tile * k_tiles", "first_k_tile(other + 1, blocks, work)",
           "correct"),
    Mutant("the blocks before it, not those after", "            other = block + 1",
           "            other = block - 1", "in bounds"),
    Mutant("written by whoever has a part", STORE, STORE + WRITE, "no races"),
    Mutant("written before the parts are there", OWNER + WAIT + ADD + ON + WRITE,
          OWNER.replace("            while", WRITE + "            while") + WAIT + ADD + ON, "correct"))


OTHERS = ("does that block have a part of this tile? The owner has the first part, and the blocks after it "
          "have the others")
NOT_THERE = ("a NaN comes from a place in the workspace that no thread wrote: block `other`'s part begins at "
             "other * PART")
EXERCISES = (Exercise(
    "14", "my_stream_k",
    hints={
        "no races: race: flags[": "everything that touches a flag is atomic: cas, exch, or add",
        "no races: race: c[": "only the block that has a tile's beginning stores it",
        "no races: was read by": (
            "a part was read before it was there: one thread of the owner waits until the flag of block "
            "`other` is 1, a barrier holds the others back until then, and that block's part begins at "
            "other * PART"),
        "no races: and is read by": (
            "the flag alone orders nothing. The writer's side: values, fence, barrier, flag. The reader's "
            "side: flag, fence, barrier, values. The fence is cuda.threadfence(), and the flag is that of "
            "the block whose part is read"),
        "no races: and is written by": (
            "two blocks write one place: a block's part begins at its own number times PART, and a thread's "
            "next four values are STEP farther on"),
        "no races": (
            "who writes this value, and what tells the reader that it's there? The writer's side: values, "
            "fence, barrier, flag. The reader's side: flag, fence, barrier, values"),
        "ends": (
            "which thread raises the flag that another block waits for, and to which value? Which one lowers "
            "it? Is it read by an atomic operation, so that a new value is seen? Does `other` go on "
            "by one, does `stop` move to the end of that block's part, and is each part passed on once?"),
        "in bounds: flags": OTHERS,
        "in bounds: is negative": OTHERS,
        "in bounds: workspace": (
            "a block's part begins at its number times PART, a thread's four at 4 * thread in it, and the "
            "next four STEP farther on"),
        "in bounds": (
            "row0 and col0 are those of the block's tile, and its k tiles are those from begin to stop - 1"),
        "correct: NaN, and each": NOT_THERE,
        "correct: = nan": NOT_THERE,
        "correct: never written": (
            "each tile is stored once, by the block that has its beginning. A NaN comes from a place in "
            "the workspace that no thread wrote"),
        "correct": (
            "which blocks have a part of this tile, where does each of them end, and where in the workspace "
            "is it? Each part is added once, before the tile is stored"),
        "one store each": (
            "the owner stores a tile once, after all parts are added; another block passes its part on "
            "once"),
        "equal parts": (
            "that isn't stream-K: all k tiles of all tiles are dealt out in equal parts, from "
            "first_k_tile(block, …) to first_k_tile(block + 1, …), even if a tile then belongs to two "
            "blocks"),
        "barriers needed": (
            "one barrier before the flag is raised, one after a flag has been seen, and one at the end of "
            "each tile are enough"),
        "second launch": (
            "a flag that is still up from the first launch lets an owner read too early: whoever has seen a "
            "flag lowers it"),
        "flags": "whoever has seen a flag must lower it, and only one thread raises it"},
    constants=SMALL,
    preamble="from numba_matmul.kernels.k14_stream_k import first_k_tile\n"
             "from numba_matmul.ptx.core import add_fours, add_outer, store_fours\n",
    solutions=SOLUTIONS, mutants=MUTANTS, page=page, judge=judge),)
