"Which accesses the strict simulator reports as a race, and which results as depending on thread order."
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numba import cuda, float32, int32
from sim_cases import X, refused, refuses

from numba_matmul.arrays import from_bf16, rounded
from numba_matmul.process import in_child
from numba_matmul.registry import KERNELS
from numba_matmul.sim.launch import _launch_in_several_orders, simulate
from numba_matmul.sim.scheduler import SimulatorError


@pytest.mark.parametrize("reads", [True, False], ids=["a read", "a write"])
def test_a_thread_does_not_hide_the_atomic_operations_of_others(reads):
    @cuda.jit
    def k(out, reads, sync):
        total = cuda.shared.array(1, int32)
        i = cuda.threadIdx.x
        if i == 0: total[0] = 0
        cuda.syncthreads()
        cuda.atomic.add(total, 0, 1)
        if sync: cuda.syncthreads()
        if i == 63:
            if reads: out[0] = total[0]
            else: total[0] = 5
    refused(k[1, 64], np.zeros(1, np.int32), reads, False, match="race: total")
    simulate(k[1, 64], np.zeros(1, np.int32), reads, True)


def test_a_race_within_one_addition_names_what_adds_in_one_step():
    @cuda.jit
    def counts(x, bins):
        counted, i = cuda.shared.array(4, int32), cuda.threadIdx.x
        if i < 4: counted[i] = 0
        cuda.syncthreads()
        counted[i % 4] += 1
    @cuda.jit
    def adds(x, total): total[0] += x[cuda.grid(1)]
    @cuda.jit
    def neighbors(x, out):
        out[cuda.grid(1)] += out[cuda.grid(1) - 1] if cuda.grid(1) else 0
    out, cure = np.zeros(8, np.float32), r"; cuda.atomic.add\({}, …\) reads, adds and writes in one step"
    refused(counts[1, 8], X, out, match="^race: counted.*" + cure.format("counted"))
    refused(adds[2, 1], X, out, match="^race: total.*" + cure.format("total"))
    with pytest.raises(SimulatorError, match="^race: out") as caught: simulate(neighbors[1, 8], X, out)
    assert "atomic" not in str(caught.value)


def test_a_warp_barrier_orders_only_its_warp():
    @cuda.jit
    def k(x, out, reach):
        tile = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        tile[i] = x[i]
        cuda.syncwarp()
        out[i] = tile[(i + reach) % 64]
    out = np.zeros(64, np.float32)
    assert np.array_equal(simulate(k[1, 64], X, out, 0)[1], X)
    refused(k[1, 64], X, out, 32, match="race|before it was written")


@refuses(8, X, X.copy(), match=r"race: tile\[0\] was read by thread \(0\).*written by thread \(7\)")
@cuda.jit
def test_a_write_after_another_threads_read_is_a_race(x, out):
    tile = cuda.shared.array(8, float32)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    cuda.syncthreads()
    out[i] = tile[0]
    if i == 7: tile[0] = 1


@refuses(64, np.zeros(2, np.float32), match=r"race: tile\[0\] was read by thread \(0\)")
@cuda.jit
def test_a_read_in_another_warp_does_not_hide_an_earlier_one(out):
    tile = cuda.shared.array(1, float32)
    i = cuda.threadIdx.x
    if i == 0: tile[0] = 1
    cuda.syncthreads()
    if i == 0: out[0] = tile[0]   # warp 0 reads
    if i >= 32: cuda.syncwarp()   # warp 1 passes a barrier of its own,
    if i == 32: out[1] = tile[0]  # reads
    if i == 32: tile[0] = 2       # and writes: nothing orders that after warp 0's read


def test_a_result_that_depends_on_the_order_is_told():
    @cuda.jit
    def k(x, out, places, mode):
        i = cuda.grid(1)
        if mode == 0: cuda.atomic.exch(places, 1, i + 1)
        if mode == 1: out[cuda.atomic.add(places, 0, 1)] = x[i]
        if mode == 2: cuda.atomic.compare_and_swap(places[:1], 0, i + 1)
        if mode == 3: cuda.atomic.add(out, i % 2, x[i])
        if mode == 4: cuda.atomic.max(places, 1, i)
        if mode == 5:
            count = cuda.shared.array(1, int32)
            if cuda.threadIdx.x == 0: count[0] = 0
            cuda.syncthreads()
            out[cuda.blockIdx.x * 8 + cuda.atomic.add(count, 0, 1)] = x[i]
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    for mode, told in enumerate(("places", "out", "places", None, None, "out")):
        args = x, np.zeros(64, np.float32), np.zeros(2, np.int32), mode
        said = in_child(_launch_in_several_orders, k[8, 8], args, simulator=True, keep=True)
        found = re.findall(r"the result depends on which thread or block comes first: (\w+)\[",
                           "\n".join(said))
        assert found == [told] * bool(told)


def products_in_threads():
    "In a child: the results of eight threads that call four kernels at the same time."
    def product(number):
        fn, (m, n, k) = KERNELS[number], (64, 64, 64) if number > 14 else (33, 40, 17)
        a, b = (np.random.default_rng(number).integers(-2, 3, shape).astype(np.float32)
                for shape in ((m, k), (k, n)))
        c = fn(*(cuda.to_device(rounded(x, fn.dtype)) for x in (a, b))).copy_to_host()
        return np.array_equal(c if fn.dtype == "float32" else from_bf16(c), a @ b)
    with ThreadPoolExecutor(8) as threads: return [*threads.map(product, (1, 5, 13, 16, 1, 16, 1, 16))]


def test_kernels_can_be_launched_from_several_threads():
    assert all(in_child(products_in_threads, simulator=True, keep=True))
