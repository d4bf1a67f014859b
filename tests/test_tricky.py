"Kernels that look wrong but are right must pass, and kernels that look right but are wrong must be refused."
import copy
import re
from functools import partial

import numpy as np
import pytest
import tricky
from numba import cuda, float32

from numba_matmul.arrays import OptIn
from numba_matmul.process import in_child
from numba_matmul.sim.kernel import interleaved
from numba_matmul.sim.launch import simulate
from numba_matmul.sim.scheduler import SimulatorError

SEEDS = None, 1, 2, 3


def outcome(name):
    "In a child: the simulator's message about a kernel with its blocks in several orders."
    case, said = (tricky.RIGHT | tricky.WRONG)[name], []
    for seed in SEEDS:
        args, launch = case.args(), case.launch()
        before = copy.deepcopy(args)
        try:
            with interleaved(seed): launch(*args)
        except SimulatorError as e: said.append(str(e))
        else: said.append("right" if not case.expected or case.is_right(before, args[-1]) else f"{args[-1]}")
    return said


def test_there_are_many(): assert len(tricky.RIGHT) >= 40 <= len(tricky.WRONG)


@pytest.mark.parametrize("name", tricky.RIGHT)
def test_a_tricky_kernel_passes_in_every_order(name):
    assert in_child(outcome, name, simulator=True, keep=True) == ["right"] * len(SEEDS)


@pytest.mark.parametrize("name", tricky.WRONG)
def test_a_wrong_kernel_is_refused_in_every_order(name):
    for said in in_child(outcome, name, simulator=True, keep=True):
        assert re.search(tricky.WRONG[name].says, said), said


def races(launch, *args):
    "In a child: the message of a launch that must race."
    with pytest.raises(SimulatorError) as caught: launch(*args)
    return str(caught.value)


def a_kernel_that_writes_what_earlier_launches_only_read():
    @cuda.jit
    def k(x, out, back):
        i = cuda.grid(1)
        out[i] = x[31 - i]
        if back: x[i] = 0
    x, out = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    k[1, 32](x, out, False)
    said = races(k[1, 32], x, out, True)
    k[1, 32](x, out, False)
    return said, x.tolist(), out.tolist()


def test_an_array_that_is_written_after_all_is_noted():
    said, x, out = in_child(a_kernel_that_writes_what_earlier_launches_only_read, simulator=True, keep=True)
    assert said.startswith("race: x[")
    assert out == x[::-1] == [*range(31, -1, -1)]  # nothing is left of the wrong launch


def test_two_names_of_one_array_are_one_array():
    @cuda.jit
    def k(x, y): y[cuda.threadIdx.x] = x[cuda.threadIdx.x + 1]
    def run():
        x = cuda.to_device(np.zeros(9, np.float32))
        k[1, 8](x, cuda.to_device(np.zeros(8, np.float32)))
        return races(k[1, 8], x, x[:8])
    assert "race: " in in_child(run, simulator=True, keep=True)


def test_a_race_is_reported_once_for_each_pair_of_lines():
    @cuda.jit
    def k(x, y):
        i = cuda.threadIdx.x
        y[0] = i
        x[i // 2] = i
        x[i // 4] = i
    said = in_child(partial(races, k[4, 64], np.zeros(32, np.float32), np.zeros(1, np.float32)),
                    simulator=True, keep=True)
    pairs = [tuple(sorted(re.findall(r"line (\d+) of k", race))) for race in said.splitlines()]
    assert len(pairs) == len(set(pairs)) == 4  # y with itself, each x with itself, one x with the other


def test_static_and_dynamic_shared_memory_count_together():
    @cuda.jit
    def k(out):
        tile = cuda.shared.array(4096, float32)
        tile[0] = out[0] = 1
    said = in_child(partial(races, k[1, 1, 0, OptIn(216 * 2**10 + 16)], np.zeros(1)), simulator=True,
                    keep=True)
    assert said.startswith("237584 bytes of shared memory, static plus dynamic")
    simulate(k[1, 1, 0, OptIn(211 * 2**10)], np.zeros(1))


def test_a_seed_gives_the_same_order_each_time_and_another_one_another():
    @cuda.jit
    def k(place, out): out[cuda.atomic.add(place, 0, 1)] = cuda.grid(1)
    def order(seed):
        out = np.zeros(24, np.int32)
        with interleaved(seed): k[8, 3](np.zeros(1, np.int32), out)
        return out.tolist()
    first, *others = [in_child(order, seed, simulator=True, keep=True)
                      for seed in (1, 1, 2, 3, 4, None, None)]
    assert first == others[0] and len({str(other) for other in others}) >= 4
    assert others[-2:] == [list(range(24))] * 2  # without a seed
