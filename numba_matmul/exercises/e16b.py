"""What `grade("16b", my_staging)` asks of a kernel, what it accepts, and what it must catch.

Four warps write a tile of 64 rows to shared memory, and the TMA copies it to C. A row of the tile has 128, 64
or 32 bytes, and the tensor map of C has the swizzle of that name, so each width is a case of its own. Each of
two blocks stores its box of C. A store by the TMA is refused if it comes too early: each thread that wrote
needs a fence first, and then all need a barrier. Then comes one goal:

- **wavefronts**: 16 columns of a warp's 16 rows are four matrices of 8×8, and one `stmatrix` writes them. If
  each matrix takes one wavefront, that makes four.
"""
from collections import Counter, defaultdict
from functools import partial
from unittest.mock import patch

import numpy as np
from greenlet import getcurrent
from ..arrays import from_bf16, to_bf16
from ..exercise import Case, Exercise, Goal, Mutant
from ..gemm.tensor_maps import map_of
from ..kernels import k16_tma_wgmma as page
from ..microscope import wavefronts
from ..sim import hopper, memory
from ..source import cut, function_of, replaced
from .recorded import in_case
from numba import cuda


def call(row_bytes, launch, args):
    "In the simulator: C becomes a tensor map, whose swizzle is as wide as a row of the tile."
    results, c = args
    bits, send, sent = cuda.to_device(to_bf16(c)), hopper.store_box, []
    def store_box(*box):
        send(*box)
        sent.append(getcurrent().sends[-1][-1][0][0].size)
    with patch.object(hopper, "store_box", store_box): launch(results, map_of(bits, 64, row_bytes))
    c[...] = from_bf16(bits.copy_to_host())
    launch.grid.stores[function_of(launch).__code__.co_varnames[1]] = sum(sent)

def fragments(c):
    "What each thread of a block of four warps has of 64 rows: pairs of neighbors, as wgmma leaves the sums."
    pairs = to_bf16(c).view(np.uint32).reshape(4, 2, 8, -1, 4)  # warp, half, lane // 4, 8 columns, lane % 4
    return np.ascontiguousarray(pairs.transpose(0, 2, 4, 3, 1).reshape(128, -1))

def case(row_bytes, blocks):
    "Some boxes of 64 rows side by side, each from its own block."
    def make(random):
        c = from_bf16(to_bf16(random.standard_normal((64, blocks * row_bytes // 2))))
        parts = np.concatenate([fragments(np.ascontiguousarray(x)) for x in np.split(c, blocks, 1)])
        return (parts, np.full(c.shape, np.nan, np.float32)), {1: c.astype(float)}
    return Case(f"rows of {row_bytes} bytes", (128,), (blocks,), make, call=partial(call, row_bytes),
                signature="void(uint32[:, ::1], uint64[::1])", 
                constants=dict(ROW_BYTES=row_bytes, NUMBERS=32 * row_bytes))

CASES = case(128, 2), case(64, 2), case(32, 2)

def stores(launch, args, call):
    "In a child process: the stores to shared memory, (warp, number, bytes) → lane → first byte."
    turn, found = Counter(), defaultdict(dict)
    def record(space, operation, array, index, count, *_):
        if (space, operation) != ("shared", "store"): return
        thread = getcurrent()
        turn[thread] += 1
        request = tuple(thread.blockIdx), thread.warp, turn[thread], count * array.dtype.itemsize
        found[request][thread.lane] = array.byte(index)
    memory.recorder = record
    try: call(launch, args)
    finally: memory.recorder = None
    return dict(found)

def record(exercise, kernel):
    "Wavefronts of a warp's stores, for 16 columns: the maximum over all cases."
    def of(case):
        found = in_case(exercise, kernel, case, stores, case.call)
        columns = sum(size * len(lanes) for (*_, size), lanes in found.items()) / (2 * 4 * 16 * 2)
        return sum(wavefronts(lanes, size) for (*_, size), lanes in found.items()) / (2 * 4 * columns / 16)
    return max(map(of, exercise.cases))


REFERENCE = """@cuda.jit
def my_staging(results, map_c):
    tile = cuda.shared.array(NUMBERS, uint16, alignment=1024)
    thread, block = uint32(cuda.threadIdx.x), uint32(cuda.blockIdx.x)
    start, map_c = shared_address(tile, uint64(0)), global_address(map_c, uint64(0))
    if thread == 0: fence_proxy_tensormap(map_c)
    mine, lane, first = 128 * block + thread, thread % 32, thread // 32 * 16
    for group in range(ROW_BYTES // 32):
        four = (results[mine, 4 * group], results[mine, 4 * group + 1],
                results[mine, 4 * group + 2], results[mine, 4 * group + 3])
        row, chunk = first + lane % 16, 2 * group + lane // 16
        place = chunk ^ row * ROW_BYTES // 128 % (ROW_BYTES // 16)
        stmatrix(uint32(start + row * ROW_BYTES + 16 * place), uint32(0), four, 0, 1)
    fence_proxy_async()
    cuda.syncthreads()
    if thread == 0:
        cp_async_bulk_tensor_2d_shared_to_global(map_c, start, block * (ROW_BYTES // 2), 0)
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group_read(0)
"""
HEAD, LOOP, WHICH, PLACE, STORE, SEE, SEND = cut(
    REFERENCE, "    for group", "        row, chunk", "        place", "        stmatrix",
    "    fence_proxy_async", "    if thread == 0:\n        cp")
XOR = "row * ROW_BYTES // 128 % (ROW_BYTES // 16)"


SOLUTIONS = {
    "reference": REFERENCE,
    "an xor of address bits": HEAD + LOOP + WHICH + """        at = row * ROW_BYTES + chunk * 16
        at ^= (at >> 7 & ROW_BYTES // 16 - 1) << 4
        stmatrix(uint32(start + at), uint32(0), four, 0, 1)
""" + SEE + SEND,
    "the swizzle of a row, and stmatrix moves on": HEAD + LOOP + WHICH.replace(
        "2 * group + ", "") + PLACE + """
        stmatrix(uint32(start + row * ROW_BYTES), uint32(16 * place ^ 32 * group), four, 0, 1)
""" + SEE + SEND,
    "offsets in a function, and another thread sends": """@cuda.jit(device=True)
def offset(row, chunk):
    line = row * ROW_BYTES // 128
    if ROW_BYTES == 128: return row * 128 + (chunk ^ line % 8) * 16
    if ROW_BYTES == 64: return row * 64 + (chunk ^ line % 4) * 16
    return row * 32 + (chunk ^ line % 2) * 16

""" + HEAD.replace("thread == 0", "thread == 64") + LOOP + WHICH + """
        stmatrix(uint32(start + offset(row, chunk)), uint32(0), four, 0, 1)
""" + SEE + SEND.replace("thread == 0", "thread == 64")}


def which(name, old, new, verdict="all written"):
    return Mutant(name, WHICH, replaced(WHICH, (old, new)), verdict)
def place(name, new, verdict="correct"): return Mutant(name, XOR, new, verdict)
def see(name, new, verdict="fences"): return Mutant(name, SEE, new, verdict)
def send(name, old, new, verdict): return Mutant(name, SEND, replaced(SEND, (old, new)), verdict)
FENCE, MEET = SEE.splitlines(True)
BY_PAIRS = """        for i in range(4):
            row, chunk = first + lane // 4 + i % 2 * 8, 2 * group + i // 2
    """ + PLACE + """            at = (row * ROW_BYTES + 16 * place + lane % 4 * 4) // 2
            tile[at], tile[at + 1] = four[i] & 0xFFFF, four[i] >> 16
"""


MUTANTS = (
    Mutant("not written", WHICH + PLACE + STORE, "        ...\n", "written"),
    # the swizzle
    Mutant("no swizzle", PLACE, "        place = chunk\n", "correct"),
    place("the 128-byte swizzle for all", "row % 8", "in bounds"),
    place("the row, not its line of 128 bytes", "row % (ROW_BYTES // 16)"),
    place("the line of 128 bytes, not wrapped around the row", "row * ROW_BYTES // 128 % 8", "in bounds"),
    place("the pattern repeats after 1,024 bytes only", "row * ROW_BYTES // 128", "in bounds"),
    place("lines of 64 bytes", "row * ROW_BYTES // 64 % (ROW_BYTES // 16)"),
    place("by the chunk", "chunk * ROW_BYTES // 128 % (ROW_BYTES // 16)", "all written"),
    Mutant("moved, not exchanged", PLACE, PLACE.replace("^", "+").replace("= chunk", "= (chunk")
           .rstrip() + ") % (ROW_BYTES // 16)\n", "correct"),
    # what a lane points at
    which("the left half for all lanes", " + lane // 16", ""),
    which("halves taken in turn", "lane // 16", "lane % 2"),
    which("matrices in reading order", "first + lane % 16, 2 * group + lane // 16",
          "first + lane // 16 * 8 + lane % 8, 2 * group + lane // 8 % 2", "correct"),
    which("the lane's own sums", "first + lane % 16, 2 * group + lane // 16",
          "first + lane // 4, 2 * group + lane % 2", "no races"),
    Mutant("always the first 16 columns", "2 * group + lane", "lane", "all written"),
    Mutant("all warps write the first 16 rows", "first + lane % 16", "lane % 16", "no races"),
    Mutant("rows of 128 bytes for all", "start + row * ROW_BYTES", "start + row * 128", "in bounds"),
    Mutant("numbers, not bytes", "+ 16 * place", "+ 8 * place", "no races"),
    Mutant("number by number", WHICH + PLACE + STORE, BY_PAIRS, "wavefronts"),
    # the fence and the barrier
    see("no fence", MEET), see("no barrier", FENCE), see("the fence after the barrier", MEET + FENCE),
    see("one thread fences", "    if thread == 0: fence_proxy_async()\n" + MEET),
    see("a barrier of a warp", FENCE + "    cuda.syncwarp()\n"),
    see("a memory fence", "    cuda.threadfence_block()\n" + MEET),
    Mutant("the fence before the stores", LOOP + WHICH + PLACE + STORE + FENCE,
           FENCE + LOOP + WHICH + PLACE + STORE, "fences"),
    # the copy
    send("all threads send", "if thread == 0", "if thread < 128", "one store each"),
    send("the group stays open", "        cp_async_bulk_commit_group()\n", "", "ends"),
    send("no wait for the read", "        cp_async_bulk_wait_group_read(0)\n", "", "ends"),
    send("one group may still be read", "read(0)", "read(1)", "ends"),
    send("always the first box of C", "block * (ROW_BYTES // 2)", "0", "correct"),
    send("bytes, not columns", "(ROW_BYTES // 2)", "ROW_BYTES", "correct"),
    send("row and column exchanged", "block * (ROW_BYTES // 2), 0)", "0, block * (ROW_BYTES // 2))",
         "correct"))


EXERCISES = (Exercise(
    "16b", "my_staging", page=page, cases=CASES, record=record,
    goals=(Goal("wavefronts", lambda found: found, most=4, unit="for 16 columns of a warp", counted="events",
                hint="stmatrix writes an 8×8 matrix at a time, and the swizzle spreads its eight rows over "
                     "all banks"),),
    hints={
        "correct": (
            "is everything there, but in the wrong places? Start with rows of 128 bytes: chunk c of row r "
            "goes to place c xor r % 8. Then, for the narrower ones: which bits of the address does the "
            "swizzle xor with which? And column block * (ROW_BYTES // 2) of C is where a block's box begins"),
        "all written": (
            "some chunk of the tile was never written. A lane points at row lane % 16 of its warp's 16, and "
            "lane // 16 picks one of the group's two chunks, left or right"),
        "in bounds": (
            "a chunk stays in its own row, which has ROW_BYTES // 16 chunks: so xor a chunk's number only "
            "with numbers below that"),
        "no races": (
            "two lanes write the same bytes: each points at its own row and chunk, rows are ROW_BYTES "
            "apart, chunks 16 bytes, and each warp has its own 16 rows"),
        "fences: tensor map": "the thread that sends the box has to fence the tensor map, as thread 0 does",
        "fences": (
            "each thread that wrote fences its own stores, after them: fence_proxy_async(). Then all meet at "
            "the barrier, and then one thread sends the box"),
        "ends": (
            "the thread that sends commits its group, cp_async_bulk_commit_group(), and waits until the TMA "
            "has read the tile: cp_async_bulk_wait_group_read(0). When a block ends before that, its "
            "shared memory is gone"),
        "one store each": "one thread of each block sends the box, once"},
    preamble="""from numba import uint16, uint64
from numba_matmul.ptx.core import global_address, shared_address
from numba_matmul.ptx.hopper import (
    cp_async_bulk_commit_group, cp_async_bulk_tensor_2d_shared_to_global, cp_async_bulk_wait_group_read,
    fence_proxy_async, fence_proxy_tensormap, stmatrix)
""",
    solutions=SOLUTIONS, mutants=MUTANTS),)
