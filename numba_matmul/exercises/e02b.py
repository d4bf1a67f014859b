"""What `grade("02b", my_reverse)` asks of a kernel, what it accepts, and what it must catch.

The last block that has elements is never full, and the block after it has none. The goals are counted in a
short block. There a warp that reads or stores backward begins in the middle of a sector, and touches one more
than a warp that goes forward. So the elements have to be reversed in shared memory.
"""
import numpy as np
from ..exercise import Case, Exercise, Goal, Mutant


def reverse_case(length, threads, blocks):
    def make(random):
        x = random.standard_normal(length).astype(np.float32)
        expected = x.astype(np.float64)
        for start in range(0, length, threads):
            expected[start:start + threads] = expected[start:start + threads][::-1].copy()
        return (x, np.full(length, np.nan, np.float32)), {1: expected}
    return Case(f"{length} elements, {blocks} blocks of {threads}", (threads,), (blocks,), make,
                constants=dict(THREADS=threads))

def shared(view):
    sites = [site for site in view.merged() if site.space == "shared"]
    if not sites: raise ValueError("no shared memory is used")
    return max(sites, key=lambda site: site.cost)

def accesses(view):
    "Loads from x or stores to out, whichever are more, by each of the four warps of block 0."
    def requests(array): return sum(site.requests for site in view.merged() if site.array == array)
    return max(requests("x"), requests("out")) / 4

GAPLESS = """cuda.shared.array(THREADS, float32)
    t, start = cuda.threadIdx.x, cuda.blockIdx.x * THREADS
    count = min(THREADS, x.shape[0] - start)
    if t < count: numbers[t] = x[start + t]
    cuda.syncthreads()
    if t < count: out[start + t] = numbers[count - 1 - t]
"""
WITH_GAPS = (GAPLESS.replace("array(THREADS", "array(TWICE").replace("numbers[t]", "numbers[2 * t]")
             .replace("numbers[count - 1 - t]", "numbers[2 * (count - 1 - t)]"))

EXERCISES = (Exercise(
    "02b", "my_reverse", preamble="TWICE = 2 * THREADS\n", constants=dict(THREADS=128),
    cases=(reverse_case(124, 128, 2), reverse_case(1000, 64, 17), reverse_case(35, 32, 2)),
    goals=(Goal("one barrier", lambda counts: counts.barriers, most=1, unit="barriers", counted="launches",
                hint="everything is written before the barrier and read after it, so one is enough"),
           Goal("one each", accesses, most=1, unit="global loads or stores per thread",
                hint="each thread loads one element of x, and stores one of out"),
           Goal("sectors of x", lambda view: view.site("x", "load"), most=4, unit="sectors per request",
                hint="read x forward: thread t reads the element at start + t. Reverse the order in shared "
                     "memory"),
           Goal("sectors of out", lambda view: view.site("out", "store"), most=4,
                unit="sectors per request",
                hint="store forward: thread t stores at start + t. Reverse the order in shared memory"),
           Goal("wavefronts", shared, most=1, unit="wavefronts per request",
                hint="32 neighboring words are in 32 different banks: leave no gaps between them")),
    hints={
        "in bounds": (
            "only threads with t < count have an element, and count - 1 - t is the mirror position of t"),
        "all written": (
            "a thread reads what another one writes: is there a barrier between the two, and is every "
            "element that's read also written?"),
        "no races": "a thread reads what another one writes: put a barrier between the two",
        "barriers": (
            "threads without an element must reach the barrier, too: put it between two ifs, not inside one"),
        "correct: never written": "every thread with t < count stores one element, out[start + t]",
        "correct: in the wrong places": (
            "the last block may be short: its first element changes places with element count - 1"),
        "correct": "thread t takes the value that thread count - 1 - t has put into shared memory"},
    solutions={"reference": f"""@cuda.jit
def my_reverse(x, out):
    numbers = {GAPLESS}""", "reversed on the way in": """@cuda.jit
def my_reverse(x, out):
    numbers = cuda.shared.array(THREADS, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    count = min(THREADS, out.shape[0] - cuda.blockIdx.x * THREADS)
    if i < x.size: numbers[count - t - 1] = x[i]
    cuda.syncthreads()
    if i < x.size: out[i] = numbers[t]
""", "from the array's end": """@cuda.jit
def my_reverse(x, out):
    room = cuda.shared.array(THREADS, float32)
    t, start = cuda.threadIdx.x, cuda.blockIdx.x * THREADS
    last = min(start + THREADS, len(x)) - 1
    mine = x[start + t] if start + t <= last else float32(0)
    room[t] = mine
    cuda.syncthreads()
    if start + t > last: return
    out[start + t] = room[last - start - t]
""", "empty blocks leave early": """@cuda.jit
def my_reverse(x, out):
    numbers = cuda.shared.array(THREADS, float32)
    t, start = cuda.threadIdx.x, cuda.blockIdx.x * cuda.blockDim.x
    if start >= x.shape[0]: return
    count = x.shape[0] - start
    if count > THREADS: count = THREADS
    if t < count: numbers[t] = x[start + t]
    cuda.syncthreads()
    if t < count: out[start + t] = numbers[count - 1 - t]
""", "at the far end of the shared array": """@cuda.jit
def my_reverse(x, out):
    numbers = cuda.shared.array(THREADS, float32)
    t, start = cuda.threadIdx.x, cuda.blockIdx.x * THREADS
    count = min(THREADS, x.shape[0] - start)
    if t < count: numbers[THREADS - 1 - t] = x[start + t]
    cuda.syncthreads()
    if t < count: out[start + t] = numbers[THREADS - count + t]
"""},
    mutants=(
        Mutant("not written", "out[start + t] = numbers[count - 1 - t]", "...", "written"),
        Mutant("no barrier", "    cuda.syncthreads()\n", "", "all written"),
        Mutant("a barrier for the warp only", "cuda.syncthreads()", "cuda.syncwarp()", "no races"),
        Mutant("the barrier after the store", "    cuda.syncthreads()\n"
               "    if t < count: out[start + t] = numbers[count - 1 - t]\n",
               "    if t < count: out[start + t] = numbers[count - 1 - t]\n    cuda.syncthreads()\n",
               "all written"),
        Mutant("the barrier inside the if", "numbers[t] = x[start + t]\n    cuda.syncthreads()",
               "\n        numbers[t] = x[start + t]\n        cuda.syncthreads()", "barriers"),
        Mutant("threads without an element leave before the barrier", "    if t < count: numbers[t]",
               "    if t >= count: return\n    numbers[t]", "barriers"),
        Mutant("one barrier too many", "    cuda.syncthreads()\n",
               "    cuda.syncthreads()\n    cuda.syncthreads()\n",
               "one barrier"),
        Mutant("no guard at the load", "if t < count: numbers[t]", "numbers[t]", "in bounds"),
        Mutant("no guard at the store", "    if t < count: out", "    out", "in bounds"),
        Mutant("<= in the guard", "if t < count: numbers", "if t <= count: numbers", "in bounds"),
        Mutant("every block is treated as full", "min(THREADS, x.shape[0] - start)", "THREADS", "in bounds"),
        Mutant("reversed as in a full block", "numbers[count - 1 - t]", "numbers[THREADS - 1 - t]",
               "all written"),
        Mutant("off by one", "numbers[count - 1 - t]", "numbers[count - t]", "all written"),
        Mutant("a negative index", "numbers[count - 1 - t]", "numbers[-1 - t]", "in bounds"),
        Mutant("not reversed", "numbers[count - 1 - t]", "numbers[t]", "correct"),
        Mutant("reversed twice", "numbers[t] = x", "numbers[count - 1 - t] = x", "correct"),
        Mutant("each warp reversed by itself", "numbers[count - 1 - t]",
               "numbers[min(t ^ 31, count - 1)]", "correct"),
        Mutant("the whole array is reversed", "x[start + t]", "x[x.shape[0] - 1 - start - t]",
               "correct"),
        Mutant("the place in the block, not in the array", "x[start + t]", "x[t]", "correct"),
        Mutant("every block stores at the beginning", "out[start + t]", "out[t]", "no races"),
        Mutant("the last element left out", "if t < count: out", "if t < count - 1: out", "correct"),
        Mutant("added to what out held", "out[start + t] =", "out[start + t] +=", "correct"),
        Mutant("straight from global memory", "numbers[count - 1 - t]", "x[start + count - 1 - t]",
               "one each"),
        Mutant("shared memory left out", "    if t < count: numbers[t] = x[start + t]\n"
               "    cuda.syncthreads()\n"
               "    if t < count: out[start + t] = numbers[count - 1 - t]\n",
               "    if t < count: out[start + t] = x[start + count - 1 - t]\n", "sectors of x"),
        Mutant("the load goes backward", "    if t < count: numbers[t] = x[start + t]\n",
               "    if t < count: numbers[count - 1 - t] = x[start + count - 1 - t]\n", "sectors of x"),
        Mutant("the store goes backward", "out[start + t] = numbers[count - 1 - t]",
               "out[start + count - 1 - t] = numbers[t]", "sectors of out"),
        Mutant("one thread reverses all", "    if t < count: out[start + t] = numbers[count - 1 - t]\n",
               "    if t == 0:\n        for i in range(count): out[start + i] = numbers[count - 1 - i]\n",
               "one each"),
        Mutant("one thread loads for all", "    if t < count: numbers[t] = x[start + t]\n",
               "    if t == 0:\n        for i in range(count): numbers[i] = x[start + i]\n", "one each"),
        Mutant("every other place stays empty", GAPLESS, WITH_GAPS, "wavefronts"),
    )),)
