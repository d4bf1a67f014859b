"""What the strict simulator accepts, and what it refuses. Everything runs in a child, so a GPU machine runs the same
tests."""
import ctypes
import fcntl
import importlib
import inspect
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
from conftest import ROOT, environment
from greenlet import getcurrent
from numba import config, cuda, float32, int32, types, uint16, uint32, uint64, vectorize

from numba_matmul import process
from numba_matmul.arrays import from_bf16, rounded, to_bf16, to_d
from numba_matmul.compiler import CompileError, machine_code
from numba_matmul.draw import Message
from numba_matmul.kernels.k01_naive import sgemm_naive
from numba_matmul.microscope import microscope
from numba_matmul.process import ChildError, end_idle_children, in_child
from numba_matmul.registry import KERNELS
from numba_matmul.ptx.ampere import mma_m16n8k16, ldmatrix, cvt_rn_bf16x2_f32, store_pair, unpack_bf16
from numba_matmul.gemm.limits import with_shared_memory
from numba_matmul.gemm.tiles import BOX
from numba_matmul.ptx.core import bind, load4, shared_address, store4, to_array
from numba_matmul.ptx.hopper import mbarrier_arrive, bar_sync, wgmma_wait_group
from numba_matmul.sim.async_copy import cp_async, cp_async_commit_group, cp_async_wait_group
from numba_matmul.sim.kernel import StrictKernel
from numba_matmul.sim.launch import _launch_in_several_orders, _on_host, diagnose, launch_of, simulate
from numba_matmul.sim.scheduler import SimulatorError

X = np.arange(64, dtype=np.float32)


@pytest.fixture
def new_children(monkeypatch):
    "Those that are kept are not asked."
    monkeypatch.setattr(process, "_idle", {False: [], True: []})


@pytest.fixture
def no_child(monkeypatch, new_children):
    "No child can be asked, or started."
    monkeypatch.setattr(process, "_Child", None)


def refused(launch, *args, match):
    with pytest.raises(SimulatorError, match=match): simulate(launch, *args)


def test_children_that_stay_can_be_ended(new_children):
    first, again = (in_child(os.getpid, simulator=True, keep=True) for _ in "ab")
    end_idle_children(simulator=False)
    assert first == again == in_child(os.getpid, simulator=True, keep=True)
    end_idle_children(simulator=True)
    with pytest.raises(ProcessLookupError): os.kill(first, 0)
    assert in_child(os.getpid, simulator=True, keep=True) != first


def test_warp_instructions():
    @cuda.jit
    def k(out):
        i = cuda.threadIdx.x
        lane = i % 32
        out[0, i] = cuda.shfl_sync(0xFFFFFFFF, lane, 5)
        out[1, i] = cuda.shfl_down_sync(0xFFFFFFFF, lane, 1)
        out[2, i] = cuda.shfl_up_sync(0xFFFFFFFF, lane, 1)
        out[3, i] = cuda.shfl_xor_sync(0xFFFFFFFF, lane, 1)
        out[4, i] = cuda.ballot_sync(0xFFFFFFFF, lane < 3)
        out[5, i] = cuda.any_sync(0xFFFFFFFF, lane == 7) + 2 * cuda.all_sync(0xFFFFFFFF, lane == 7)
        out[6, i] = cuda.laneid
    (out,) = simulate(k[1, 64], np.zeros((7, 64), np.int64))
    lane = np.arange(64) % 32
    assert np.array_equal(out, [lane * 0 + 5, np.minimum(lane + 1, 31), np.maximum(lane - 1, 0), lane ^ 1,
                                lane * 0 + 7, lane * 0 + 1, lane])


def test_block_votes_and_atomics():
    @cuda.jit
    def k(out):
        total = cuda.shared.array(1, int32)
        i = cuda.threadIdx.x
        if i == 0: total[0] = 0
        cuda.syncthreads()
        cuda.atomic.add(total, 0, i)
        cuda.atomic.max(out, 3, i)
        cuda.syncthreads()
        out[0] = total[0]
        out[1] = cuda.syncthreads_count(int32(i % 3 == 0))
        out[2] = cuda.syncthreads_or(int32(i == 5)) + 2 * cuda.syncthreads_and(int32(i == 5))
    (out,) = simulate(k[1, 40], np.zeros(4, np.int32))
    assert out.tolist() == [sum(range(40)), 14, 1, 39]


def test_atomic_against_plain_access_is_a_race():
    @cuda.jit
    def k(out):
        total = cuda.shared.array(1, int32)
        if cuda.threadIdx.x == 0: total[0] = 0
        cuda.syncthreads()
        cuda.atomic.add(total, 0, 1)
        out[cuda.threadIdx.x] = total[0]
    refused(k[1, 4], np.zeros(4, np.int32), match="race: total")


@pytest.mark.parametrize("reads", [True, False])
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


def test_copies_are_of_4_8_or_16_bytes():
    @cuda.jit
    def k(x):
        tile = cuda.shared.array(8, float32)
        cp_async(tile, 0, x, 0, 3, 3)
    refused(k[1, 1], X, match="4, 8 or 16 bytes, not 3 elements of 4")


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


def test_a_write_after_another_threads_read_is_a_race():
    @cuda.jit
    def k(x, out):
        tile = cuda.shared.array(8, float32)
        i = cuda.threadIdx.x
        tile[i] = x[i]
        cuda.syncthreads()
        out[i] = tile[0]
        if i == 7: tile[0] = 1
    refused(k[1, 8], X, X.copy(), match=r"race: tile\[0\] was read by thread \(0\).*written by thread \(7\)")


def test_memory_that_nobody_wrote_is_not_read():
    @cuda.jit
    def k(out, read):
        local = cuda.local.array((2, 2), float32)
        numbers = cuda.local.array(3, int32)
        if read == 1: out[0] = local[1, 1]
        if read == 2: out[0] = numbers[2]
        if read == 3: numbers[0] += 1
        if read == 4: local[0] = local[1, 0]
        local[1, 1], numbers[2] = 3, 4
        out[0] = local[1, 1] + numbers[2]
    refused(k[2, 1], X.copy(), 1, match=r"local\[1, 1\] is read before it was written, in thread .0. of block .0.")
    refused(k[2, 1], X.copy(), 2, match=r"numbers\[2\] is read before it was written.*if read == 2")
    refused(k[2, 1], X.copy(), 3, match=r"numbers\[0\] is read before it was written")
    refused(k[2, 1], X.copy(), 4, match="local.*is read before it was written")
    assert simulate(k[2, 1], X.copy(), 0)[0][0] == 7

    @cuda.jit
    def second_block_reads(out):
        tile = cuda.shared.array(1, float32)
        if cuda.blockIdx.x == 0: tile[0] = 1
        out[cuda.blockIdx.x] = tile[0]
    refused(second_block_reads[2, 1], np.zeros(2, np.float32),
            match="before it was written, in thread .0. of block .1.")


@pytest.mark.parametrize("space", ["global", "shared", "local"])
@pytest.mark.parametrize("index", [-1, 8])
def test_every_space_checks_both_ends(space, index):
    @cuda.jit
    def k(x, space, index):
        shared = cuda.shared.array(8, float32)
        local = cuda.local.array(8, float32)
        if space == 0: x[index] = 1
        elif space == 1: shared[index] = 1
        else: local[index] = 1
    refused(k[1, 1], X[:8].copy(), ["global", "shared", "local"].index(space), index,
            match="negative" if index < 0 else "out of bounds")


def test_parts_of_local_arrays_are_set_as_the_compiler_sets_them():
    @cuda.jit
    def k(x, out):
        local, square = cuda.local.array(4, float32), cuda.local.array((2, 2), float32)
        local[:] = 7
        local[1:3] = x[0]
        square[0] = local[1]
        square[uint32(1), :] = 5
        for i in range(4): out[i], out[4 + i] = local[i], square[i // 2, i % 2]
    (_, out) = simulate(k[1, 1], np.array([1, 2], np.float32), np.zeros(8, np.float32))
    assert out.tolist() == [7, 1, 1, 7, 1, 1, 5, 5]


def test_a_part_of_a_local_array_is_no_copy_of_another_array():
    "The compiler would need memory of its own for that, and has none: NRT required but not enabled."
    @cuda.jit
    def from_global(x):
        local = cuda.local.array(4, float32)
        local[1:3] = x[:2]
        x[0] = local[1]

    @cuda.jit
    def from_local(x):
        local = cuda.local.array((2, 2), float32)
        local[:] = x[0]
        local[0] = local[1]
        x[0] = local[0, 0]

    @cuda.jit
    def to_global(x):
        local = cuda.local.array(2, float32)
        local[:] = 3
        x[:2] = local
    for k in from_global, from_local, to_global:
        refused(k[1, 1], X.copy(), match="a slice takes one number for all of its elements")
        if find_spec("numba_cuda"):
            with pytest.raises(CompileError, match="NRT"): machine_code(k, "void(float32[::1])")


def test_views_of_shared_arrays_are_checked_too():
    @cuda.jit
    def k(out, barrier):
        tile = cuda.shared.array((4, 4), float32)
        i = cuda.threadIdx.x
        row = tile[i]
        row[1] = i
        if barrier: cuda.syncthreads()
        out[i] = tile[(i + 3) % 4, 1]
    assert simulate(k[1, 4], X[:4].copy(), True)[0].tolist() == [3, 0, 1, 2]
    refused(k[1, 4], X[:4].copy(), False, match="race|before it was written")


def test_views_are_checked_as_the_array_itself():
    "Reshaped, transposed, of another type: a missing barrier, an index below 0 or past the end, what nobody wrote, sectors."
    @cuda.jit
    def viewed(x, out, space, sync, i, j):
        t = cuda.threadIdx.x
        s = cuda.shared.array(16, float32)
        y = s.reshape(4, 4) if space else x.reshape((4, 4))
        y.T[t, 0] = t
        if sync: cuda.syncthreads()
        out[t] = s.reshape(4, 4).T[i, j] if space else x.view(np.int32).reshape(4, 4).transpose()[i, j]
    @cuda.jit
    def local(out, i):
        y = cuda.local.array(8, float32)
        z = y.reshape(2, 4).T
        z[2, 1] = 5
        out[0], out[1], out[2], out[3] = y[6], z.strides[0] + z.itemsize, z.nbytes, z[i, 1]
    x, out = np.zeros(16, np.float32), np.zeros(4, np.float32)
    for space in 0, 1:
        for args, error in (((0, 0, 0), r"^race: (x|s)\[0, 0\] was written by thread \(0\)"), ((1, -1, 0), "index -1 is negative"),
                            ((1, 0, 4), "out of bounds")): refused(viewed[1, 4], x, out, space, *args, match=error)
    refused(viewed[1, 4], x, out, 1, 1, 1, 1, match="is read before it was written")
    assert simulate(viewed[1, 4], x, out, 1, 1, 3, 0)[1].tolist() == [3] * 4
    assert simulate(viewed[1, 4], x, out, 0, 1, 3, 0)[1].view(np.int32).tolist() == [np.float32(np.float32(3).view(np.int32)).view(np.int32)] * 4
    refused(local[1, 1], out, 0, match=r"y\[0, 1\] is read before it was written")
    refused(local[1, 1], out, -1, match="negative")
    assert simulate(local[1, 1], out, 2)[0].tolist()[:3] == [5, 8, 32]
    view = microscope(viewed[1, 4], np.zeros(16, np.float32), out, 0, 1, 3, 0)
    assert view.site("x", "store").cost == 1 and view.reads["x"] == {3: 4}


def test_what_a_view_cannot_be_is_refused_by_name():
    @cuda.jit
    def k(x, out, case):
        s, l = cuda.shared.array((2, 4), float32), cuda.local.array((2, 4), float32)
        l.fill(1)
        if case == 0: out[0] = x.view(np.int16)[0]
        elif case == 1: out[0] = s.view(np.int64)[0, 0]
        elif case == 2: out[0] = l.view(np.int32)[0, 0]
        elif case == 3: out[0] = l.T.reshape(8)[0]
        elif case == 4: out[0] = l[:, 1:].reshape(6)[0]
        elif case == 5: out[0] = x[::2].reshape(2, 2)[0, 0]
        elif case == 6: out[0] = x[4:].reshape(2, 2)[0, 0] + l[1].reshape(4, 1)[3, 0] + l.sum() + x.ndim
        else: out[0] = x.sum()
    x, out = np.arange(8, dtype=np.float32), np.zeros(1)
    for case, match in enumerate(["view of float32 as int16 here: pass x.view", "view of float32 as int64 here: dynamic shared memory",
                                  "view of float32 as int32 here: libdevice", "would copy", "reshape of a part", "reshape of a part"]):
        refused(k[1, 1], x, out, case, match=match)
    assert simulate(k[1, 1], x, out, 6)[1] == 4 + 1 + 8 + 1


def test_dynamic_shared_memory():
    @cuda.jit
    def k(x, out):
        tile = cuda.shared.array(0, float32)
        same = cuda.shared.array(0, float32)
        i = cuda.threadIdx.x
        tile[i] = x[i]
        cuda.syncthreads()
        out[i] = same[tile.shape[0] - 1 - i]
    assert np.array_equal(simulate(k[1, 16, 0, 64], X[:16], X[:16].copy())[1], X[:16][::-1])
    refused(k[1, 16, 0, 60], X[:16], X[:16].copy(), match="out of bounds")
    refused(k[1, 16, 0, 300_000], X[:16], X[:16].copy(), match="232448")


def test_a_wide_access_needs_a_shared_array_that_is_declared_for_it():
    def kernel(alignment):
        @cuda.jit
        def k(x, out):
            tile = cuda.shared.array(8, float32, alignment=alignment)
            store4(tile, 4 * cuda.threadIdx.x, *load4(x, 4 * cuda.threadIdx.x))
            cuda.syncthreads()
            out[cuda.threadIdx.x] = tile[7 * cuda.threadIdx.x]
        return k[1, 2]
    for alignment in 16, 32: assert np.array_equal(simulate(kernel(alignment), X[:8], np.zeros(2, np.float32))[1], X[[0, 7]])
    for alignment in None, 4, 8:
        with pytest.raises(SimulatorError, match=r"16 bytes to tile, which is declared for [48]: .*alignment=16"):
            simulate(kernel(alignment), X[:8], np.zeros(2, np.float32))


def test_asynchronous_copies_land_at_their_wait():
    @cuda.jit
    def k(x, out, commit, wait, barrier):
        tile = cuda.shared.array(8, float32, alignment=16)
        i = cuda.threadIdx.x
        if i < 2: cp_async(tile, 4 * i, x, 4 * i, 4)
        if commit: cp_async_commit_group()
        if wait: cp_async_wait_group(0)
        if barrier: cuda.syncthreads()
        out[i] = tile[7 - i]
    def run(*steps): return simulate(k[1, 8], X[:8], np.zeros(8, np.float32), *steps)
    assert np.array_equal(run(True, True, True)[1], X[:8][::-1])
    for steps in (True, False, True), (False, True, True), (True, True, False):
        with pytest.raises(SimulatorError, match="asynchronous copy|race|before it was written"): run(*steps)


def test_asynchronous_copies_wait_by_group():
    @cuda.jit
    def k(x, out, pending):
        tile = cuda.shared.array(2, float32)
        cp_async(tile, 0, x, 0, 1)
        cp_async_commit_group()
        cp_async(tile, 1, x, 1, 1)
        cp_async_commit_group()
        cp_async_wait_group(pending)
        out[0] = tile[0]
        if pending == 0: out[1] = tile[1]
        cp_async_wait_group(0)
        out[1] = tile[1]
    for pending in 0, 1: assert np.array_equal(simulate(k[1, 1], X[:2], np.zeros(2, np.float32), pending)[1], X[:2])
    refused(k[1, 1], X[:2], np.zeros(2, np.float32), 2, match=r"tile\[0\] is read while an asynchronous copy")


def test_options_of_the_compiler_are_accepted_and_typos_are_not():
    def body(out): out[0] = 1
    def options():
        from numba import cuda
        cuda.jit("void(float32[:])")(body)
        cuda.jit(launch_bounds=(128, 2), max_registers=64, lineinfo=True, fastmath=True, lto=True, opt=True,
                 cache=False)(body)
        try: cuda.jit(launch_bound=128)(body)
        except TypeError as e: return str(e)
    assert "launch_bound" in in_child(options, simulator=True)


@cuda.jit
def add(x, y, out):
    i = cuda.grid(1)
    if i < out.size: out[i] = x[i] + y[i]


@cuda.jit(device=True)
def half(x): return x / 2


def undecorated(x, out): out[cuda.grid(1)] = x[cuda.grid(1)]


@pytest.mark.parametrize("call", [simulate, diagnose])
@pytest.mark.parametrize("launch,args,error,match", [
    (True, (), TypeError, "True is no kernel: pass kernel"), (None, (), TypeError, "None is no kernel"),
    ("add", (), TypeError, "'add' is no kernel"), (1, ((64, 64, 64),), TypeError, "1 is no kernel"),
    (undecorated, (X, X), TypeError, "undecorated is no kernel.*@cuda.jit"),
    (add, (X, X, X), ValueError, r"needs a launch configuration: add\[grid, block\]"),
    (half[1, 1], (X,), TypeError, "half is a device function"),
    (add[1, 8], (X, X), TypeError, r"add takes 3 arguments \(x, y, out\), and 2 were given"),
    (add[1, 8], (X,) * 4, TypeError, "and 4 were given"),
])
def test_what_is_no_launch_is_refused_before_a_child_is_started(call, launch, args, error, match, no_child):
    with pytest.raises(error, match=match): call(launch, *args)


@pytest.mark.parametrize("fn,shape,error,match", [
    (True, (8, 8, 8), TypeError, "got True"), (None, (8, 8, 8), TypeError, "got None"),
    ("sgemm_naive", (8, 8, 8), TypeError, "got 'sgemm_naive'"), (add, (8, 8, 8), TypeError, "got the kernel add"),
    (add[1, 8], (8, 8, 8), TypeError, "got the kernel add"), (5, (8, 8, 8), TypeError, "got 5"),
    (add.py_func, (8, 8, 8), TypeError, r"add\(x, y, out\) is no host function.*@cuda.jit"),
    *((sgemm_naive, shape, ValueError, f"three whole numbers, got {re.escape(repr(shape))}")
      for shape in ((8, 8), 8, (8, 8, -8), (8, 8, 0.5))),
])
def test_what_launches_no_kernel_is_refused_before_a_child_is_started(fn, shape, error, match, no_child):
    with pytest.raises(error, match=match): launch_of(fn, shape)


def test_an_undecorated_kernel_is_told_what_it_lacks():
    with pytest.raises(ChildError, match="cuda.grid exists only inside a running kernel: "
                                         "decorate its function with @cuda.jit"):
        launch_of(undecorated, (8, 8, 8))


def test_recursion_is_refused_and_a_name_that_is_only_an_attribute_is_not():
    @cuda.jit
    def again(x):
        if x[0] > 1: again(x)
    @cuda.jit(device=True)
    def even(n): return n == 0 or odd(n - 1)
    @cuda.jit(device=True)
    def odd(n): return n != 0 and even(n - 1)
    @cuda.jit
    def k(x): x[0] = even(4)
    refused(again[1, 1], X, match=r"again calls itself \(again → again\).*use a loop")
    refused(k[1, 1], X, match=r"calls itself \((even → odd → even|odd → even → odd)\)")
    @cuda.jit
    def max(x): cuda.atomic.max(x, 0, 5)
    assert simulate(max[1, 1], X)[0][0] == 5


@pytest.mark.parametrize("grid,match", [
    ((2**31 - 1, 1, 1), "2,147,483,647 blocks of 32 threads would take"), ((40_000, 1), "about 2 minutes"),
    ((9, 65535, 65535), "limit")])
def test_a_launch_too_large_to_simulate_is_refused_at_once(grid, match):
    @cuda.jit
    def k(x): x[-1] = 0
    refused(k[grid, 32], X, match=match)
    refused(k[(31_000, 1), 32], X, match="negative")  # this one runs


def test_the_blocks_of_a_launch_are_not_listed():
    @cuda.jit
    def k(x): x[0] = -1 if cuda.blockIdx.x else 1 // 0
    def peak(launch):
        import resource
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try: launch(X.copy())
        except SimulatorError: return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    unit = 1 if sys.platform == "darwin" else 1024
    assert in_child(peak, k[10**6, 1], simulator=True) * unit < 50 * 2**20


def test_two_launch_configurations_of_one_kernel_are_two():
    def both():
        from numba import cuda
        @cuda.jit
        def k(out): out[cuda.grid(1)] = cuda.blockDim.x
        small, large = k[1, 2], k[1, 4]
        result = np.zeros(4, np.float32)
        small(result)
        return result.tolist()
    assert in_child(both, simulator=True) == [2, 2, 0, 0]


@pytest.mark.parametrize("given", [1, 4])
def test_a_launch_with_too_many_or_too_few_arguments_is_refused(given):
    def launch(given):
        from numba import cuda
        @cuda.jit
        def k(x, out, factor=2.0): out[0] = x[1] * factor
        out = np.zeros(1, np.float32)
        k[1, 1](X, out)
        assert out[0] == 2
        k[1, 1](*[X] * given)
    with pytest.raises(ChildError, match=rf"k takes 3 arguments \(x, out, factor\), and {given} were given: pass one"):
        in_child(launch, given, simulator=True)


def test_a_default_counts_as_if_it_were_given():
    @cuda.jit
    def product(out, x=0.1): out[0] = np.float32(1) * x
    assert simulate(product[1, 1], np.zeros(1))[0][0] == 0.1


def test_python_floats_are_float64_as_when_compiled():
    @cuda.jit
    def product(out, x): out[0] = np.float32(1) * x
    assert simulate(product[1, 1], np.zeros(1), 0.1)[0][0] == 0.1


def test_torch_tensors_are_refused_with_their_type():
    def launch():
        import torch
        from numba import cuda
        @cuda.jit
        def k(x): x[0] = 1
        k[1, 1](torch.zeros(3))
    with pytest.raises(ChildError, match=r"x is a torch.Tensor, .*pass to_d\(x\)"): in_child(launch, simulator=True)


def test_cuda_may_be_a_local_name():
    def launch():
        from numba import cuda as gpu
        @gpu.jit
        def k(out): out[gpu.grid(1)] = gpu.threadIdx.x
        out = np.zeros(4, np.int32)
        k[2, 2](out)
        try: gpu.threadIdx
        except AttributeError as e: return out.tolist(), str(e)
    assert in_child(launch, simulator=True) == (
        [0, 1, 0, 1],
        "cuda.threadIdx exists only inside a running kernel: decorate its function with @cuda.jit, and launch it")


def test_a_signature_is_what_a_launch_must_have():
    "As the dispatcher of Numba has it, which was asked on the CPU: numbers are converted, arrays are not."
    @cuda.jit("void(float32[:], float32[:], int32)")
    def k(x, out, n):
        i = cuda.grid(1)
        out[i] = x[i] + n
    out = X.copy()
    for n, added in ((3, 3), (3.7, 3), (True, 1), (np.int64(2), 2)):
        k[1, 64](X, out, n)
        assert np.array_equal(out, X + added)
    wide, square = X.astype(np.float64), X.reshape(8, 8)
    for args in (wide, out, 3), (square, out, 3), (X, out, out), (X, 5, 3):
        with pytest.raises(TypeError, match="k was compiled for .*int32.*, and is launched with .*pass those types"): k[1, 64](*args)
    assert "k was compiled for" in diagnose(k[1, 64], wide, out, 3) and diagnose(k[1, 64], X, out, 3).startswith("No mistake found.")
    refused(k[1, 64], X, out, 2**40, match="1099511627776 is no int32")
    assert machine_code(k, "void(float32[::1], float32[::1], int32)").registers > 0

    def store(out, x): out[0] = x
    narrow, both = "void(float64[::1], float32)", [types.void(types.float64[::1], float32), "void(float64[::1], float64)"]
    for signature, x, stored in ((narrow, 0.1, np.float32(0.1)), (both, 0.1, 0.1), (both, np.float32(0.1), np.float32(0.1)),
                                 (both, 2**24 + 1, 2**24 + 1)):  # as a float64 it loses nothing
        cuda.jit(signature)(store)[1, 1](wide, x)
        assert wide[0] == stored, (signature, x)
    @cuda.jit(["void(float32[::1], int32)", "void(float32[::1], float32)"])
    def either(out, n): out[0] = n
    with pytest.raises(TypeError, match="more than one fits"): either[1, 1](out, 1.5)
    with pytest.raises(TypeError, match="a kernel returns int32, and it cannot"): cuda.jit("int32(int32[:])")
    with pytest.raises(NameError, match="flot32"): cuda.jit("void(flot32[:])")


def test_an_exception_in_a_device_function_names_its_line():
    @cuda.jit(device=True)
    def half(x, i): return x[i + 100]
    @cuda.jit
    def k(x, out): out[0] = half(x, 3)
    refused(k[1, 1], X, X.copy(), match="out of bounds.*line 2 of half|out of bounds.*of half: def half")


def test_an_exception_in_a_function_of_the_library_names_the_readers_line_too():
    place = {"__name__": "numba_matmul.gemm.invented"}
    exec("def far(x, i): return x[i + 100]", place)
    far = cuda.jit(device=True)(place["far"])
    @cuda.jit
    def k(x, out):
        out[0] = x[0]
        out[0] = far(x, 3)
    refused(k[1, 1], X, X.copy(), match=r"out of bounds.* line 1 of far, called at line \d+ of k: out\[0\] = far\(x, 3\)$")


@pytest.mark.skipif(find_spec("numba_cuda") is None, reason="numba's own package has no intrinsics for CUDA")
def test_device_functions_and_intrinsics_travel_to_the_compiler():
    from numba.cuda.extending import intrinsic

    @intrinsic
    def number(context):
        "The number 12345, from LLVM."
        from numba import types
        def generate(context, builder, signature, args): return context.get_constant(types.int32, 12345)
        return types.int32(), generate

    @cuda.jit(device=True)
    def twice(x): return x + x

    def factory(offset):
        @cuda.jit(lineinfo=True)
        def k(out): out[cuda.grid(1)] = twice(number()) + offset
        return k

    def ptx(kernel):
        from types import SimpleNamespace
        from numba import cuda, types
        from numba.cuda import dispatcher
        dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=(9, 0))  # there may be no GPU
        return cuda.compile_ptx(kernel.py_func, types.void(types.int32[::1]), cc=(9, 0))[0]

    assert str(2 * 12345 + 7) in in_child(ptx, factory(7), simulator=False)


def test_a_device_function_of_the_library_goes_by_value(monkeypatch):
    from numba_matmul.gemm.schedule import rasterize
    from numba_matmul.process import Pickler
    before = Pickler.dumps(rasterize)[0]
    assert Pickler.dumps(rasterize)[0] == before
    monkeypatch.setattr(rasterize.py_func, "__code__", (lambda tile, rows, cols, group_m: (tile, rows)).__code__)
    assert Pickler.dumps(rasterize)[0] != before


def test_a_child_returns_values_and_errors():
    assert in_child(lambda x: x + 1, 41, simulator=False, timeout=None) == 42
    with pytest.raises(ChildError, match="ZeroDivisionError"): in_child(lambda: 1 // 0, simulator=True)
    with pytest.raises(ChildError, match="status 3.*last words"):
        in_child(lambda: (print("last words", flush=True), os._exit(3)), simulator=True)


def held(path):
    "Take a lock that goes when this process, and all to whom it hands it on, are gone."
    global lock
    lock = open(path, "w")
    fcntl.flock(lock, fcntl.LOCK_EX)


def with_a_command(path):
    "Hold the lock, and have a command that never ends hold it, too."
    held(path)
    os.set_inheritable(lock.fileno(), True)
    subprocess.run(["sleep", "100"], close_fds=False)


def wait_until(path, is_held, seconds):
    "Is that so of the lock, within so many seconds?"
    end = time.time() + seconds
    while time.time() < end:
        if path.exists():
            with open(path) as file:
                try: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError: found = True
                else: found = False
            if found == is_held: return True
        time.sleep(0.1)


def test_a_child_that_hangs_is_ended_with_its_own_children(tmp_path):
    with pytest.raises(ChildError, match="within 6 s"):
        in_child(with_a_command, tmp_path/"lock", simulator=True, timeout=6)
    assert wait_until(tmp_path/"lock", False, 1)


PARENT = """
import sys, time
from itertools import repeat
import numpy as np
from numba_matmul.process import in_child
from numba_matmul.ptx.core import bind
from numba_matmul.sim.launch import diagnose
from numba import cuda
from test_simulator import held, with_a_command

path, case = sys.argv[1:]

@bind("")  # kernels call instructions, and no other functions of Python
def hold(path): held(path)

@cuda.jit
def endless(out):
    hold(path)
    while out[0] == 0: pass

def never_interrupted():
    held(path)
    sum(repeat(0))

def with_a_child(): in_child(with_a_command, path, simulator=True)

if case == "diagnosis": diagnose(endless[1, 1], np.zeros(1, np.float32))
if case == "grandchild": in_child(with_a_child, simulator=True)
if case == "idle": in_child(held, path, simulator=True, keep=True)
if case == "out of time": in_child(never_interrupted, simulator=True, timeout=8)
time.sleep(100)
"""


@pytest.mark.parametrize("case,how", [
    ("diagnosis", signal.SIGKILL), ("diagnosis", signal.SIGINT), ("grandchild", signal.SIGKILL),
    ("idle", signal.SIGKILL), ("out of time", signal.SIGSTOP)], ids=lambda x: getattr(x, "name", x))
def test_a_child_ends_with_its_parent_and_at_its_time_limit(case, how, tmp_path):
    path = tmp_path/"lock"
    env = environment() | {"NUMBA_ENABLE_CUDASIM": "1"}
    env["PYTHONPATH"] += os.pathsep + str(ROOT/"tests")
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(path), case], env=env, stderr=subprocess.DEVNULL)
    try:
        assert wait_until(path, True, 30)
        parent.send_signal(how)
        assert wait_until(path, False, 14)
    finally: parent.kill(); parent.wait()


def test_a_child_that_is_kept_answers_the_task_that_it_was_asked():
    ask = partial(in_child, simulator=True, keep=True)
    first = ask(os.getpid)
    assert ask(os.getpid) == first != os.getpid()
    with pytest.raises(ChildError, match="within 1 s"): ask(time.sleep, 3, timeout=1)
    assert ask(lambda: 42) == 42 and ask(os.getpid) != first


def test_a_child_does_not_take_a_folder_of_that_name_for_the_package(monkeypatch, tmp_path):
    (tmp_path/"numba_matmul").mkdir()
    (tmp_path/"numba_matmul"/"__init__.py").write_text("raise ImportError('the wrong one')")
    monkeypatch.chdir(tmp_path)
    assert in_child(os.getcwd, simulator=True) == str(tmp_path)


def test_nothing_is_left_in_the_temporary_folder(temporary_folder, new_children):
    @cuda.jit
    def k(out): out[-1] = 0
    refused(k[1, 1], X.copy(), match="negative")
    assert not os.listdir(temporary_folder)


def test_a_message_is_left_to_the_reader_to_break_into_lines():
    message = Message("x[i] < 0 " * 30)
    assert repr(message) == str(message) == message
    html = message._repr_html_()
    # a browser breaks words in a pre
    assert html.count("x[i] &lt; 0 ") == 30 and "\n" not in html and "<pre" not in html


def test_a_launch_is_shown_without_its_matrices():
    assert repr(launch_of(sgemm_naive, (40, 33, 9))) == (
        "sgemm_naive_kernel[(2, 2, 1), (32, 32, 1)] with 0 bytes of dynamic shared memory, "
        "void(float32[:, ::1], float32[:, ::1], float32[:, ::1], uint64, float32, float32)")


def test_the_order_of_threads_is_always_the_same():
    @cuda.jit
    def k(out, place):
        i = cuda.atomic.add(place, 0, 1)
        out[i] = cuda.grid(1)
    runs = [simulate(k[4, 16], np.zeros(64, np.int32), np.zeros(1, np.int32))[0].tolist() for _ in range(2)]
    assert runs[0] == runs[1] == list(range(64))


@pytest.mark.skipif(not config.ENABLE_CUDASIM, reason="with a GPU the simulator is off here")
def test_the_simulator_here_is_the_strict_one():
    @cuda.jit
    def k(x): x[-1] = 0
    assert isinstance(k, StrictKernel)
    with pytest.raises(SimulatorError): k[1, 1](X.copy())
    @cuda.jit
    def fine(x): x[cuda.threadIdx.x] = uint32(7)
    y = X.copy()
    fine[1, 8](y)  # the simulator is in order after an error
    assert y[:9].tolist() == [7] * 8 + [8]


def test_a_read_in_another_warp_does_not_hide_an_earlier_one():
    @cuda.jit
    def k(out):
        tile = cuda.shared.array(1, float32)
        i = cuda.threadIdx.x
        if i == 0: tile[0] = 1
        cuda.syncthreads()
        if i == 0: out[0] = tile[0]   # warp 0 reads
        if i >= 32: cuda.syncwarp()   # warp 1 passes a barrier of its own,
        if i == 32: out[1] = tile[0]  # reads
        if i == 32: tile[0] = 2       # and writes: nothing orders that after warp 0's read
    refused(k[1, 64], np.zeros(2, np.float32), match=r"race: tile\[0\] was read by thread \(0\)")


def test_more_pending_groups_than_there_are_lets_none_land():
    @cuda.jit
    def k(x, out):
        tile = cuda.shared.array(1, float32)
        cp_async(tile, 0, x, 0, 1)
        cp_async_commit_group()
        cp_async_wait_group(3)
        out[0] = tile[0]
    refused(k[1, 1], X, X.copy(), match="asynchronous copy")


def test_a_write_under_ones_own_asynchronous_copy_is_refused():
    @cuda.jit
    def k(x):
        tile = cuda.shared.array(1, float32)
        cp_async(tile, 0, x, 0, 1)
        tile[0] = 1
    refused(k[1, 1], X, match="written while an asynchronous copy")


def warp_product(rows, columns, sync=True, skew=0, swizzle=0):
    """A kernel: one warp multiplies 16·rows×16 by 16×8·columns from shared memory, and writes the sums as pairs. B may
    be swizzled."""
    width, a_size = 8 * columns, 256 * rows
    zeros, shape, size = (np.float32(0),) * (4 * rows * columns), (2 * rows * columns, 2), a_size + 16 * width
    pairs = columns // 2

    @cuda.jit
    def k(a, b, c):
        tile, sums, lane = (cuda.shared.array(size, uint16, alignment=16), cuda.local.array(shape, float32),
                            uint32(cuda.threadIdx.x))
        for i in range(lane, a_size, 32): tile[i] = a[i]
        for i in range(lane, 16 * width, 32): tile[a_size + (i ^ i // width % 8 * 8 * swizzle)] = b[i]
        if sync: cuda.syncthreads()
        row, half = lane % 16, lane // 16 * 8
        x = ldmatrix(tile, shared_address(tile, uint64(row * 16 + half + skew)), 0, 512, 0, rows, 0)
        at_b = shared_address(tile, uint64(a_size + row * width + (half ^ row % 8 * 8 * swizzle)))
        y = ldmatrix(tile, at_b, 0, 32, swizzle, pairs, 1)
        to_array(mma_m16n8k16(zeros, x, y), sums, 2)
        for i in range(rows):
            for j in range(columns):
                for q in range(2):
                    at = (16 * i + 8 * q + lane // 4) * width + 8 * j + lane % 4 * 2
                    n = (i * columns + j) * 2 + q
                    store_pair(c, uint64(at), cvt_rn_bf16x2_f32(sums[n, 0], sums[n, 1]))
    return k


def bf16_pair(rows, columns):
    return to_bf16(np.random.randn(16 * rows, 16)), to_bf16(np.random.randn(16, 8 * columns))


@pytest.mark.parametrize("rows,columns,swizzle", [(1, 2, 0), (2, 4, 0), (4, 2, 0), (2, 8, 1)])
def test_a_warp_multiplies_matrices(rows, columns, swizzle):
    a, b = bf16_pair(rows, columns)
    c = simulate(warp_product(rows, columns, swizzle=swizzle)[1, 32], a.ravel(), b.ravel(),
                 np.zeros(128 * rows * columns, np.uint16))[2]
    right = from_bf16(a).astype(float) @ from_bf16(b).astype(float)
    assert np.array_equal(c.reshape(right.shape), to_bf16(right))


@pytest.mark.parametrize("options,match", [(dict(sync=False), "race"), (dict(skew=4), "not a multiple of 16")])
def test_a_wrong_load_of_matrices_is_refused(options, match):
    a, b = bf16_pair(1, 2)
    refused(warp_product(1, 2, **options)[1, 32], a.ravel(), b.ravel(), np.zeros(256, np.uint16), match=match)


def test_a_warp_that_is_not_complete_cannot_multiply():
    @cuda.jit
    def k(a):
        z, u = np.float32(0), np.uint32(0)
        if cuda.threadIdx.x < 31: mma_m16n8k16((z, z, z, z), (u, u, u, u), (u, u))
    refused(k[1, 32], np.zeros(1), match="needs all 32 lanes, and 31 are there")


def rounded_pairs(x): return [int(cvt_rn_bf16x2_f32(*pair)) for pair in x.reshape(-1, 2)]


def test_two_numbers_are_rounded_to_bfloat16_as_many_are():
    "Ties to even, the largest number to infinity, every NaN to one."
    special = [0, 1, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000]
    bits = np.array([x | sign << 31 for x in special for sign in (0, 1)], np.uint32)
    both = np.concatenate([bits, np.random.default_rng(0).integers(0, 2**32, 1000, np.uint32)]).view(np.float32)
    found = in_child(rounded_pairs, both, simulator=True, keep=True)
    assert np.array(found, np.uint32).view(np.uint16).tolist() == to_bf16(both).tolist()
    assert [found[i] for i in (2, 3, 6, 8)] == [0x80000000, 0x80000000, 0xFF807F80, 0x7FFF7FFF]


def test_rounding_to_bfloat16_is_that_of_torch():
    bits = np.random.randint(0, 2**32, 20000, dtype=np.uint64).astype(np.uint32)
    ties = np.arange(0x3F800000, 0x3F900000, 0x8000, dtype=np.uint32)
    x = np.concatenate((bits, ties, ties - 1, ties + 1)).view(np.float32)
    import torch
    expected = torch.from_numpy(x.copy()).to(torch.bfloat16)
    back = from_bf16(to_bf16(x))
    assert np.array_equal(back, expected.float().numpy(), equal_nan=True)
    for low, high in x[:500].reshape(-1, 2):
        pair = unpack_bf16(cvt_rn_bf16x2_f32(low, high))
        assert np.array_equal(pair, from_bf16(to_bf16([low, high])), equal_nan=True)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_shuffle_does_not_order_memory_and_a_warp_barrier_does(ordered):
    @cuda.jit
    def k(out):
        tile, lane = cuda.shared.array(32, float32), cuda.threadIdx.x
        tile[lane] = lane
        if ordered: cuda.syncwarp()
        else: cuda.shfl_sync(0xFFFFFFFF, lane, 0)
        out[lane] = tile[31 - lane]
    if ordered: assert np.array_equal(simulate(k[1, 32], X[:32].copy())[0], X[:32][::-1])
    else: refused(k[1, 32], X[:32].copy(), match="race")


def change(module, functions):
    "In a child: put other functions in the place of a module's. Those that are no kernels stand for instructions."
    for name, function in functions.items():
        if inspect.isfunction(function): function = bind("", result=types.undefined)(function)
        setattr(import_module(f"numba_matmul.{module}"), name, function)


def hopper_product(number, module="kernels.k16_tma_wgmma", **changed):
    """In a child: kernel 16 or 17 with functions that a module uses changed; several tiles, several times round the
    ring."""
    from numba_matmul.kernels import k16_tma_wgmma, k17_warp_specialized
    from numba_matmul.bench.verify import check_matmul
    change(module, changed)
    tile = k16_tma_wgmma.WgmmaTile(64, 128, 2)
    if number == 16: return check_matmul(partial(k16_tma_wgmma.bf16_gemm_tma_wgmma, tile=tile), 72, 136, 264)
    return check_matmul(partial(k17_warp_specialized.bf16_gemm_warp_specialized, tile=tile, blocks=1), 136, 264, 264)


def nothing(*args): pass


def waits_less(acc, a, b, step_a, step_b, steps, transpose_b, pending, scale_d):
    from numba_matmul.ptx.hopper import wgmma_mma_async
    return wgmma_mma_async(acc, a, b, step_a, step_b, steps, transpose_b, pending + 2, scale_d)


@pytest.mark.parametrize("number", [15, 16])
def test_kernels_of_tma_and_wgmma_run(number): assert 0 < in_child(hopper_product, number, simulator=True) < 2e-3


K16, K17 = "kernels.k16_tma_wgmma", "kernels.k17_warp_specialized"


@pytest.mark.parametrize("number,module,name,function,match", [
    (16, K16, "consumer_wait", nothing, "is multiplied while an asynchronous copy into it"),
    (16, K16, "fence_mbarrier_init", nothing, "fence_mbarrier_init"),
    (16, K16, "mbarrier_arrive_expect_tx", nothing, "At an mbarrier 0 of 1 have arrived"),
    (16, K16, "wgmma_mma_async", waits_less, "overwritten after the product was started"),
    (16, K16, "wgmma_wait_group", lambda acc: acc, "has not waited for its products"),
    (17, K17, "consumer_wait", nothing, "is multiplied"),
    (17, K17, "producer_acquire", nothing, "more than 1 arrival at an mbarrier"),
    (17, K17, "consumer_release", nothing, "At an mbarrier 0 of 1 have arrived"),
    (17, K16, "wgmma_mma_async", waits_less, "overwritten after the product was started"),
    (17, "gemm.epilogue", "fence_proxy_async", nothing, "may not be seen yet: fence_proxy_async"),
    (17, "gemm.epilogue", "bar_sync", nothing, "may not be seen yet: fence_proxy_async"),
    (17, "gemm.epilogue", "cp_async_bulk_wait_group_read", nothing, "is written while a store may still read it"),
    (17, K17, "cp_async_bulk_wait_group_read", nothing, "its stores may still read shared memory"),
    (17, K17, "fence_mbarrier_init", nothing, "fence_mbarrier_init"),
], ids=lambda x: x if isinstance(x, (int, str)) else "")
def test_what_a_kernel_of_tma_and_wgmma_lacks_is_found(number, module, name, function, match):
    with pytest.raises((SimulatorError, ChildError), match=match):
        in_child(partial(hopper_product, number, module, **{name: function}), simulator=True)


def product_of_stored_factors(fenced, met):
    "In a child: `wgmma` with factors that threads have stored, each its own row of both."
    from numba_matmul.ptx.hopper import fence_proxy_async, wgmma_mma_async, wgmma_wait_group
    from numba_matmul.kernels.k16_tma_wgmma import OF_A, OF_B
    sums = (np.float32(0),) * 32

    @cuda.jit
    def k(out):
        memory, t = cuda.shared.array(8192, uint16, alignment=1024), cuda.threadIdx.x
        for i in range(64): memory[64 * t + i] = uint16(0x3F80)
        if fenced: fence_proxy_async()
        if met: cuda.syncthreads()
        acc = wgmma_mma_async(sums, OF_A, OF_B | uint64(512), 2, 128, 4, 1, 1, 1)
        acc = wgmma_wait_group(acc)
        out[t] = acc[0]
    out = np.zeros(128, np.float32)
    k[1, 128](out)
    return set(out.tolist())


@pytest.mark.parametrize("fenced,met", [(True, True), (False, True), (True, False), (False, False)])
def test_factors_that_threads_have_stored_are_fenced_before_a_product(fenced, met):
    if fenced and met: assert in_child(product_of_stored_factors, fenced, met, simulator=True) == {64.0}
    else:
        with pytest.raises(SimulatorError, match="a factor is multiplied that .* has stored.*fence_proxy_async"):
            in_child(product_of_stored_factors, fenced, met, simulator=True)


def changed_kernel_17(consumers=1, bn=128, module=K17, **changed):
    "In a child: kernel 17 with functions of a module changed, in one block."
    from numba_matmul.bench.verify import check_matmul
    from numba_matmul.gemm.tiles import WgmmaTile
    from numba_matmul.kernels import k17_warp_specialized
    change(module, changed)
    tile = WgmmaTile(64 * consumers, bn, 2)
    return check_matmul(partial(k17_warp_specialized.bf16_gemm_warp_specialized, tile=tile, blocks=1), 136, 264, 264)


@cuda.jit(device=True)
def released_too_early(acc, storage, previous, elected):
    if elected: mbarrier_arrive(uint32(storage.empty + uint32(8) * previous))
    return wgmma_wait_group(acc)


def meets_every_other_time(barrier, threads, met=Counter()):
    "The barrier before a box is written is left out, and the one behind it stays."
    met[getcurrent()] += 1
    if met[getcurrent()] % 2 == 0: bar_sync(barrier, threads)


@cuda.jit(device=True)
def box_of_the_other(storage, warpgroup): return uint32(storage.ab_tiles + uint32(1 - warpgroup) * uint32(BOX))


def odd_boxes_allowed():
    from numba_matmul.kernels.k17_warp_specialized import RULES
    return {text: rule for text, rule in RULES.items() if "multiple of 128" not in text}


EPILOGUE = "gemm.epilogue"


@pytest.mark.parametrize("changed,match", [
    # a stage is released while its k tile is multiplied
    (dict(mma_tail=released_too_early), "overwritten after the product was started|is multiplied"),
    (dict(module=EPILOGUE, bar_sync=meets_every_other_time), "is written while a store may still read it"),
    (dict(RULES=odd_boxes_allowed(), bn=64), "is written while a store may still read it"),
    (dict(module=EPILOGUE, bar_sync=lambda barrier, threads: bar_sync(barrier + 16, threads)), "named barrier 17"),
    # the first consumer waits for k tiles that the second holds up
    (dict(consumers=2, stagger_distance=lambda stages: stages), "At an mbarrier 0 of 1 have arrived"),
    (dict(consumers=2, module=EPILOGUE, drain_box=box_of_the_other), "race|overwritten|elements"),
], ids=["stage", "box", "odd boxes", "number", "distance", "room"])
def test_kernel_17_with_a_part_that_is_wrong_is_refused(changed, match):
    with pytest.raises((SimulatorError, ChildError), match=match):
        in_child(partial(changed_kernel_17, **changed), simulator=True)


def boxes_at_the_edges(row, column, shift=(8, 64)):
    "In a child: what the TMA brings of a matrix, and where it puts the same numbers."
    from numba_matmul.gemm.tensor_maps import map_of
    from numba_matmul.ptx.core import global_address, shared_address
    from numba_matmul.ptx.hopper import (
        cp_async_bulk_commit_group, cp_async_bulk_tensor_2d_global_to_shared, cp_async_bulk_tensor_2d_shared_to_global,
        cp_async_bulk_wait_group_read, fence_mbarrier_init, fence_proxy_tensormap, mbarrier_arrive_expect_tx,
        mbarrier_init, mbarrier_wait)
    from numba_matmul.arrays import to_d, to_h

    @cuda.jit
    def copy_box(source, target, row, column, to_row, to_column):
        box = cuda.shared.array(2048, uint16, alignment=1024)
        start, barrier = shared_address(box, uint64(0)), uint32(2048)
        if cuda.threadIdx.x == 0:
            fence_proxy_tensormap(global_address(source, uint64(0)))
            fence_proxy_tensormap(global_address(target, uint64(0)))
            mbarrier_init(barrier, uint32(1))
            fence_mbarrier_init()
            mbarrier_arrive_expect_tx(barrier, uint32(1024))
            cp_async_bulk_tensor_2d_global_to_shared(start, global_address(source, uint64(0)), barrier, column, row)
            mbarrier_wait(barrier, uint32(0))
            cp_async_bulk_tensor_2d_shared_to_global(global_address(target, uint64(0)), start, to_column, to_row)
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group_read(0)
    numbers = np.arange(1, 20 * 80 + 1, dtype=np.uint16).reshape(20, 80)
    source, target = to_d(numbers), to_d(np.zeros((28, 144), np.uint16))
    places = (uint32(x % 2**32) for x in (row, column, row + shift[0], column + shift[1]))
    copy_box[1, 32](map_of(source, 8), map_of(target, 8), *places)
    inside = np.zeros(numbers.shape, bool)
    inside[max(row, 0):max(row + 8, 0), max(column, 0):max(column + 64, 0)] = True
    wanted = np.pad(np.where(inside, numbers, 0), ((8, 0), (64, 0)))
    return np.array_equal(to_h(target), wanted)


@pytest.mark.parametrize("row,column", [(0, 0), (3, 8), (16, 40), (-3, 0), (0, -8), (-8, 16), (30, 0), (17, 72)])
def test_the_tma_copies_what_is_inside(row, column):
    assert in_child(boxes_at_the_edges, row, column, simulator=True, keep=True)


def test_a_box_that_begins_where_a_gpu_cannot_is_refused():
    with pytest.raises(SimulatorError, match="begins at column 4: an illegal instruction"):
        in_child(boxes_at_the_edges, 0, 4, simulator=True, keep=True)
    for row, column in (-3, 0), (0, -8):
        with pytest.raises(SimulatorError, match=f"stored from row {row} and column {column} on: an illegal instr"):
            in_child(boxes_at_the_edges, row, column, (0, 0), simulator=True, keep=True)


def test_a_host_function_that_launches_several_kernels_is_told_with_their_names():
    @cuda.jit
    def first(a): pass
    @cuda.jit
    def second(a): pass
    def both(a, b, times=1):
        first[1, 1](a)
        for _ in range(times): second[1, 1](b)
    with pytest.raises(ValueError, match="both launches 3 kernels for 2×2×2, not one: first, second, second"):
        launch_of(partial(both, times=2), (2, 2, 2))
    with pytest.raises(ValueError, match="launches 0 kernels.*: none"): launch_of(lambda a, b: None, (2, 2, 2))


def test_a_range_between_numbers_that_are_not_known_is_typed():
    @cuda.jit
    def k(x):
        first, _ = cuda.grid(2)
        for i in range(first, first + 1): x[i] = i
    x = np.full(4, -1)
    k[1, (4, 1)](x)
    assert list(x) == [0, 1, 2, 3]


def test_a_lambda_is_a_device_function_as_when_compiled():
    double = cuda.jit(device=True)(lambda x: x + x)
    @cuda.jit
    def k(x): x[0] = double(x[0])
    x = np.array([3.0], np.float32)
    k[1, 1](x)
    assert x[0] == 6


@pytest.mark.parametrize("reloaded", [True, False])
def test_a_file_that_was_edited_does_not_change_what_was_loaded(reloaded, tmp_path, monkeypatch):
    "What runs is the code that is loaded, as when compiled, and not what its file says by now."
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path/"edited_kernel.py"
    def write(number):
        path.write_text(f"from numba import cuda\n@cuda.jit\ndef k(x): x[0] = {number}\n")
        os.utime(path, (number, number))  # another time, whatever the clock's steps are
    def found():
        x = np.zeros(1)
        edited_kernel.k[1, 1](x)
        return x[0], simulate(edited_kernel.k[1, 1], np.zeros(1))[0][0]
    write(1)
    monkeypatch.delitem(sys.modules, "edited_kernel", raising=False)
    edited_kernel = import_module("edited_kernel")
    assert found() == (1, 1)
    write(2)
    if reloaded: edited_kernel = importlib.reload(edited_kernel)
    assert found() == (1 + reloaded,) * 2


def products_in_threads():
    "In a child: what eight threads find that call four kernels at the same time."
    def product(number):
        fn, (m, n, k) = KERNELS[number], (64, 64, 64) if number > 14 else (33, 40, 17)
        a, b = (np.random.default_rng(number).integers(-2, 3, shape).astype(np.float32) for shape in ((m, k), (k, n)))
        c = fn(*(cuda.to_device(rounded(x, fn.dtype)) for x in (a, b))).copy_to_host()
        return np.array_equal(c if fn.dtype == "float32" else from_bf16(c), a @ b)
    with ThreadPoolExecutor(8) as threads: return [*threads.map(product, (1, 5, 13, 16, 1, 16, 1, 16))]


def test_kernels_can_be_launched_from_several_threads():
    assert all(in_child(products_in_threads, simulator=True, keep=True))


@cuda.jit(device=True)
def all_wait(): cuda.syncthreads()


@cuda.jit(device=True)
def swapped(value): return cuda.shfl_xor_sync(0xFFFFFFFF, value, 1)


@cuda.jit(device=True)
def put(array, i, value): array[i] = value


def test_a_place_in_a_device_function_is_told_by_its_calls():
    @cuda.jit
    def k(out, mode):
        tile = cuda.shared.array(1, float32)
        i = cuda.threadIdx.x
        all_wait()
        if mode == 1:
            if i < 32: all_wait()
            else: all_wait()
        if mode == 2:
            if i < 16: out[i] = swapped(i)
            else: out[i] = swapped(i)
        if mode == 3: put(tile, 0, i)
        if out.shape[0] == 64: all_wait()
        else: all_wait()
        out[i] = swapped(i)
    assert simulate(k[1, 64], np.zeros(64, np.int32), 0)[0].tolist() == [i ^ 1 for i in range(64)]
    refused(k[1, 64], np.zeros(64, np.int32), 1, match="called at line .*if i < 32: all_wait.*called at line .*else: all_wait")
    refused(k[1, 64], np.zeros(64, np.int32), 2, match="swap values at different lines.*called at line .*if i < 16")
    refused(k[1, 64], np.zeros(64, np.int32), 3,
            match="race: .*array.i. = value, called at line .*put.tile, 0, i., and is .*, called at line .*put.tile, 0, i.")


def test_two_barriers_on_one_line_are_two_places():
    @cuda.jit
    def k(x, case):
        s, i = cuda.shared.array(64, float32), cuda.threadIdx.x
        s[i] = i
        if case == 0: all_wait(); x[i] = s[63 - i]; all_wait(); s[i] = 2 * i; all_wait(); x[i] += s[63 - i]
        elif case == 1: all_wait() if i < 32 else all_wait()
        elif case == 2: x[i] = cuda.syncthreads_or(1) if i < 32 else cuda.syncthreads_or(0)
        elif case == 3: i < 32 and cuda.syncthreads_or(1); cuda.syncthreads_or(1)
        elif case == 4: x[i] = swapped(i) if i % 32 < 16 else swapped(-i)
        elif case == 5:
            while cuda.syncthreads_or(int32(x[i] < i % 4)):
                x[i] += 1
                if x[i] > i % 4: x[i] = i % 4
        else: bar_sync(uint32(1), uint32(32)) if i < 32 else bar_sync(uint32(2), uint32(32)); x[i] = 5
    x = np.zeros(64, np.int32)
    assert simulate(k[1, 64], x, 0)[0].tolist() == [3 * (63 - i) for i in range(64)]
    for case, match in ((1, r"not reached by all.* 32 of 64 .*column 17, called at column 25\); 32 of 64.*called at column 51"),
                        (2, r"syncthreads_or\(0\) \(column 32\).*\(column 70\).*different columns of one line"),
                        (3, "32 of 64 threads wait at .*column 36.*32 of 64"), (4, "swap values at different columns of one line")):
        refused(k[1, 64], x, case, match=match)
    assert simulate(k[1, 64], x, 5)[0].tolist() == [i % 4 for i in range(64)]
    assert set(simulate(k[1, 64], x, 6)[0]) == {5}


def test_dynamic_arrays_are_one_memory():
    @cuda.jit
    def k(x, out, mode):
        one, other = cuda.shared.array(0, float32), cuda.shared.array(0, float32)
        words = cuda.shared.array(0, int32)
        if mode < 2: a, b = (one[:64], one[64:]) if mode == 0 else (one, other)
        i = cuda.threadIdx.x
        if mode < 2:
            a[i], b[i] = x[i], x[i] + 1
            cuda.syncthreads()
            out[i] = b[i ^ 1] + a[i ^ 1]
        if mode == 2:  # the bits of floats, in memory that held integers before, which were read or are 0
            words[i] = 0
            one[i] = x[i]
            cuda.syncthreads()
            out[i] = words[i ^ 1] >> 23
            cuda.syncthreads()
            words[i] = i + 5
            cuda.syncthreads()
            out[i] += words[i ^ 1]
    other = X.reshape(-1, 2)[:, ::-1].ravel()
    assert np.array_equal(simulate(k[1, 64, 0, 512], X, X.copy(), 0)[1], 2 * other + 1)
    refused(k[1, 64, 0, 512], X, X.copy(), 1, match="written through one, and overwritten through other .*at line .*begin at the same byte")
    assert np.array_equal(simulate(k[1, 64, 0, 512], X, X.copy(), 2)[1], (other.view(np.int32) >> 23) + (np.arange(64) ^ 1) + 5)


def test_what_an_asynchronous_copy_reads_stays_until_the_wait():
    @cuda.jit
    def k(x, out, mode):
        tile = cuda.shared.array(64, float32, alignment=16)
        i = cuda.threadIdx.x
        if i == 40:
            cp_async(tile, 0, x, 0, 4, 4)
            cp_async_commit_group()
            if mode == 0: x[1] = 5
            if mode < 2: cp_async_wait_group(0)
            if mode == 1: x[1] = 5
        cuda.syncthreads()
        if mode == 2 and i == 0: x[1] = 5
        if mode == 3 and i == 50: x[1] = 5
        if i == 40: cp_async_wait_group(0)
        cuda.syncthreads()
        if mode == 4 and i == 0: x[1] = 5
        out[i] = tile[i % 4]
    for mode in (1, 4): assert simulate(k[1, 64], X.copy(), X.copy(), mode)[1][:4].tolist() == [0, 1, 2, 3]
    for mode in (0, 2): refused(k[1, 64], X.copy(), X.copy(), mode, match=r"x\[1\] is written while an asynchronous copy from it, started by thread .40.")
    refused(k[1, 64], X.copy(), X.copy(), 3, match=r"race: x\[1\] was read by thread .40. at line .*cp_async_wait_group")


def test_more_blocks_than_there_is_room_for_do_not_wait_for_each_other():
    @cuda.jit
    def k(flags, step):
        i = cuda.blockIdx.x
        if step == 0: cuda.cg.this_grid().sync()
        elif 0 <= i + step < cuda.gridDim.x:
            while cuda.atomic.add(flags, i + step, 0) == 0: pass
        cuda.threadfence()
        cuda.atomic.add(flags, i, 1)
    whole = 200 * 1024  # bytes, so that a multiprocessor has room for one block
    flags = np.zeros(140, np.int32)
    refused(with_shared_memory(k, 140, 1, 0, whole), flags, 0, match="needs all 140 blocks at once, and an H100 runs at most 132")
    refused(with_shared_memory(k, 140, 1, 0, whole), flags, 1, match="wait for what never comes.*132 blocks of this size run at once on an H100")
    assert (simulate(with_shared_memory(k, 140, 1, 0, whole), flags, -1)[0] == 1).all() and (simulate(k[140, 1], flags, 1)[0] == 1).all()


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
        said = in_child(_launch_in_several_orders, k[8, 8], (x, np.zeros(64, np.float32), np.zeros(2, np.int32), mode),
                        simulator=True, keep=True)
        assert [re.match(r"the result depends on which thread or block comes first: (\w+)\[0?", x)[1] for x in said if x.startswith("the result")] == [told] * bool(told)


def test_views_of_local_arrays_have_indices_of_their_own():
    @cuda.jit
    def k(out):
        local, table = cuda.local.array(4, int32), cuda.local.array((2, 3), float32)
        for i in range(4): local[::-1][i] = i
        table[:, :] = 7
        table[1][2] = 5
        for i in range(4): out[i] = local[i]
        out[4], out[5], out[6] = table[1, 2], table[:, 1][1], local[1:][0]
    assert simulate(k[1, 1], np.zeros(7))[0].tolist() == [3, 2, 1, 0, 5, 7, 2]
SCALARS = [*{np.dtype(code).type for code in np.typecodes["All"] if code not in "OV"}]  # every scalar type of numpy


def test_every_scalar_type_of_numpy_in_every_slot_of_a_launch():
    "Whole numbers count as Python's do, in every width; all else is refused before a thread runs."
    def launches():
        @cuda.jit
        def k(sizes, *_): pass
        @cuda.jit
        def dims(sizes):
            sizes[0] = cuda.gridDim.x * 200 + cuda.blockDim.x * 100
            sizes[1] = cuda.gridDim.y * cuda.blockDim.y
        def slots(n):
            return [(n, 2), ((n, 2), 2), ((2, n), 2), ((1, 1, n), 2), (2, n), (2, (n, 2)), (2, (2, n)), (2, (1, 1, n)),
                    (1, 1, 0, n), ([n], [n])]
        found = {}
        for kind in (*SCALARS, int, float, bool, str, type(None)):
            value = None if kind is type(None) else kind(*["3"] if kind is np.str_ else [3, "s"] if kind in (np.datetime64, np.timedelta64) else [3])
            for i, (slot, same) in enumerate(zip(slots(value), slots(3))):
                sizes, expected = cuda.to_device(np.zeros((2, 2), np.int64))
                try: dims[slot](sizes)
                except Exception as e: found[kind.__name__, i] = type(e).__name__, str(e)
                else:
                    dims[same](expected)
                    found[kind.__name__, i] = sizes.copy_to_host().tolist(), expected.copy_to_host().tolist()
        return found
    found = in_child(launches, simulator=True, keep=True)
    whole = {kind.__name__ for kind in SCALARS if issubclass(kind, np.integer) and kind is not np.timedelta64} | {"int"}
    assert len(whole) >= 9 and len(found) >= 10 * 26
    for (name, slot), (one, other) in found.items():
        if name in whole: assert one == other and one[0] >= 300, (name, slot, one, other)
        else: assert one == "TypeError" and "expected" in other, (name, slot, one, other)
    for slot, match in (((0, 1), "at least 1"), ((-1, 1), "at least 1"), ((2**31, 1), "at most"), ((1, (1, 0)), "at least 1"),
                        ((1, (1, 1, 65)), "at most"), ((1, 1, 0, -1), "-1 bytes"), ((1, 1, 0, 48 * 1024 + 1), "49153 bytes.* 49152"),
                        ((1, 1, 0, 2**40), "1099511627776 bytes")):
        refused(last[slot], X, match=match)
    for slot, error in ((1, ValueError), ((1,), ValueError), ((1, 1, 0, 0, 0), ValueError), (((1, 1, 1, 1), 1), ValueError)):
        with pytest.raises(error): last[slot]


@cuda.jit
def last(x): x[x.size - 1] = 3


@cuda.jit
def last_of_both(pair, n): pair[0][int(n)] = pair[1][int(n)]


def test_arguments_that_a_gpu_has_no_type_for_are_refused_by_name_and_the_others_run():
    def launches():
        import torch
        bad = [np.array([1, None]), np.zeros(3, ">f4"), np.zeros(3, np.longdouble), [1.0], "text", np.str_("text"), None,
               np.longdouble(1), 2**64, torch.zeros(3), (torch.zeros(3),), cuda.to_device(np.zeros(3, ">i4")), {}]
        def told(x):
            try: last[1, 1](x)
            except Exception as e: return f"{type(e).__name__}: {e}"
        good = []
        for kind in SCALARS:
            if np.dtype(kind).kind in "biufc" and kind not in (np.longdouble, np.clongdouble):
                x = np.zeros(2, kind)
                last[1, 1](x)
                good.append(x[1] == (3 if kind is not np.bool_ else 1))
        pair = np.zeros(2), cuda.to_device(np.arange(2.0))
        last_of_both[1, 1](pair, 1)
        zero = np.zeros(())
        @cuda.jit
        def of_no_dimension(x): x[()] = 5
        of_no_dimension[1, 1](zero)
        return [*map(told, bad)], good, pair[0].tolist(), float(zero)
    told, good, pair, zero = in_child(launches, simulator=True, keep=True)
    words = ["object", "other byte order.*astype", "float128|longdouble|float64", r"list.*to_d\(x\)", "str", "str_", "NoneType",
             "float128|longdouble|float64", "64 bits", r"torch.Tensor.*to_d\(x\)", r"torch.Tensor.*to_d\(x\[0\]\)", "byte order", "dict"]
    for text, match in zip(told, words, strict=True): assert text and re.search(f"^TypeError: x.*({match})", text), (text, match)
    assert all(good) and len(good) >= 13 and pair == [0, 1] and zero == 5


def test_what_nobody_wrote_shows():
    def look():
        like, columns = np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32, order="F")
        made = [cuda.device_array(3), cuda.device_array((2, 3), np.float16), cuda.device_array_like(like), cuda.pinned_array(3),
                cuda.device_array(3, np.complex64, strides=(16,)), cuda.mapped_array(3), cuda.managed_array((3, 1), np.float32),
                cuda.mapped_array_like(like), cuda.pinned_array_like(columns), cuda.device_array_like(columns), cuda.device_array(())]
        whole = cuda.device_array((2, 2), np.int32), cuda.device_array(np.int64(2), np.uint8)
        return [bool(np.isnan(np.asarray(x)).all()) for x in made], [np.asarray(x).ravel().tolist() for x in whole], made[-2].is_f_contiguous()
    nan, whole, columns = in_child(look, simulator=True, keep=True)
    assert all(nan) and len(nan) == 11 and whole == [[-1] * 4, [255] * 2] and columns


def test_a_device_array_does_what_a_gpus_does():
    "What the real one lacks is refused, what it copies is a copy, and what numpy would copy in silence is refused."
    def look():
        d = cuda.to_device(np.arange(12, dtype=np.float32).reshape(3, 4))
        other, transposed = cuda.to_device(np.ones((3, 4), np.float32)), d.T
        transposed[0, 0] = 99
        on_host = np.asarray(d)
        on_host[0, 1] = 99
        refusals = {}
        for name, f in {"+": lambda: d + d, "<": lambda: d < 1, "sum": lambda: d.sum(), "fill": lambda: d.fill(0), "mask": lambda: d[d.copy_to_host() > 1],
                        "list": lambda: d[[0, 1]], "None": lambda: d[None], "ravel": lambda: d[:, 1:].ravel(), "reshape": lambda: d[:, 1:].reshape(9),
                        "back": lambda: d[::-1].copy_to_host(), "gpu_data": lambda: d.gpu_data, "shap": lambda: d.shap,
                        "as_cuda_array": lambda: cuda.as_cuda_array(np.zeros(2))}.items():
            try: refusals[name] = f() and None
            except Exception as e: refusals[name] = f"{type(e).__name__}: {e}"
        return (d.copy_to_host().tolist(), transposed.shape, transposed.is_c_contiguous(), d == other, d == d, d in {d}, d.nbytes, d.reshape(4, -1).shape,
                d[1, 1], cuda.to_device(np.zeros((3, 4), np.float32), to=d) is d, d[:, 1].copy_to_host().tolist(), cuda.as_cuda_array(d) is d), refusals
    (values, *rest), refusals = in_child(look, simulator=True, keep=True)
    assert values == np.arange(12).reshape(3, 4).tolist()
    assert rest == [(4, 3), True, False, True, True, 48, (4, 3), 5, True, [0, 0, 0], True]
    words = {"+": r"no \+.*to_h", "<": "no <", "sum": r"to_h\(x\).sum", "fill": "to_h", "mask": "integers and slices", "list": "integers and slices",
             "None": "integers and slices", "ravel": "requires copying", "reshape": "requires copying", "back": "negative strides",
             "gpu_data": "simulator has no gpu_data", "shap": "did you mean shape", "as_cuda_array": "to_d"}
    for name, match in words.items(): assert re.search(match, refusals[name] or ""), (name, refusals[name])


REAL_NAMES = """
import json
from numba import cuda
from numba.cuda.cudadrv import devicearray, driver, devices
def public(x): return [name for name in dir(x) if name[0] != "_"]
@cuda.jit
def k(x): pass
print(json.dumps([public(cuda), public(k), public(devicearray.DeviceNDArray), public(driver.Stream), public(driver.Event), public(driver.Device)]))
"""


@pytest.mark.skipif(find_spec("numba_cuda") is None, reason="numba-cuda is not installed")
def test_every_public_name_of_numba_cuda_is_there_or_is_told_apart():
    "A name of a kernel, one that the simulator lacks, a typo: each has an answer of its own."
    done = subprocess.run([sys.executable, "-c", REAL_NAMES], env=environment() | {"NUMBA_ENABLE_CUDASIM": "0"}, capture_output=True, text=True)
    names, of_kernel, of_array, *others = json.loads(done.stdout)
    def look():
        from numba_matmul.sim.cuda_module import StrictModule
        def told(x, name):
            try: value = getattr(x, name)
            except AttributeError as e: return str(e)
            return "None" if value is None else ""
        @cuda.jit
        def k(x): pass
        inside, d = {*dir(StrictModule((1, 1, 1), (1, 1, 1)))}, cuda.to_device(np.zeros((2, 2)))
        objects = cuda.stream(), cuda.event(), cuda.get_current_device()
        return ({name: told(cuda, name) for name in names}, inside, {name: told(k, name) for name in of_kernel},
                {name: told(d, name) for name in of_array}, [(name, told(x, name)) for x, some in zip(objects, others) for name in some],
                {name: told(cuda, name) for name in ("syncronize", "to_devise", "devicearray", "threadidx", "jti", "qqqqq", "shfl_snyc")})
    answers, inside, kernel, array, rest, typos = in_child(look, simulator=True, keep=True)
    def lacks(text): return "the simulator has no" in text or "the simulator compiles nothing" in text or "can't link" in text
    known = {name for name, text in answers.items() if not text}
    assert {"event_elapsed_time", "profile_start", "profiling", "as_cuda_array", "is_cuda_array", "mapped", "managed_array", "reduce",
            "default_stream", "select_device", "detect", "synchronize"} <= known
    for name in answers.keys() - known - {"alias", "fp16", "bf16"}:
        in_kernel = "only inside a running kernel" in answers[name]
        assert in_kernel != lacks(answers[name]), (name, answers[name])
        assert in_kernel or name not in inside, name
    for name, text in (*kernel.items(), *array.items()): assert not text or lacks(text), (name, text)
    assert {"forall", "configure", "specialize", "overloads", "py_func"} & kernel.keys() <= {name for name, text in kernel.items() if not text}
    assert [name for name, text in rest if text] == ["from_identity"] or not [name for name, text in rest if text]
    assert "did you mean cuda.synchronize?" in typos["syncronize"] and "cuda.to_device" in typos["to_devise"] and "cuda.threadIdx" in typos["threadidx"]
    assert typos["qqqqq"] == "numba.cuda has no qqqqq" and "cuda.shfl_sync" in typos["shfl_snyc"]


def test_the_hosts_side_answers_as_a_gpus_does():
    def look():
        device, stream, seen = cuda.get_current_device(), cuda.stream(), []
        start, end = cuda.event(), cuda.event(timing=True)
        start.record(stream), end.record(stream), stream.add_callback(lambda s, status, arg: seen.append((s is stream, status, arg)), 7)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            ms = cuda.event_elapsed_time(start, end), start.elapsed_time(end)
        with stream.auto_synchronize() as same, cuda.profiling(), cuda.defer_cleanup(), cuda.pinned(X): pass
        errors = []
        for f in (lambda: cuda.event_elapsed_time(cuda.event(), end), lambda: cuda.select_device(1), lambda: device.WARP_SIZ,
                  lambda: vectorize(["float32(float32)"], target="cuda")(lambda x: x), lambda: cuda.compile_ptx(last, ()), lambda: last.inspect_asm(),
                  lambda: cuda.current_context().get_memory_inf):
            try: f()
            except Exception as e: errors.append(str(e))
        out, wide = np.zeros(5), np.zeros(300)
        @cuda.jit
        def every(x):
            i = cuda.grid(1)
            if i < x.size: x[i] += 1
        every.forall(5)(out), every.forall(300, tpb=64)(wide), every.forall(0)(out)
        with cuda.mapped(out) as on_device: every[1, 5](on_device)
        shared = cuda.mapped_array(2)
        shared[:] = 0
        every[1, 2](shared)
        total = cuda.reduce(lambda a, b: a + b)
        room = cuda.to_device(np.zeros(1))
        return (device.WARP_SIZE, device.MULTIPROCESSOR_COUNT, device.compute_capability, cuda.gpus[0].name == device.name, min(ms) >= 0,
                len(told), "nothing about a GPU" in str(told[0].message), same is stream, seen, out.tolist(), wide.sum(), shared.tolist(),
                total(np.arange(10.0)), total(X, size=3, init=1), total(X, res=room), room[0], cuda.select_device(0) is device), errors
    found, errors = in_child(look, simulator=True, keep=True)
    assert found == (32, 132, (9, 0), True, True, 2, True, True, [(True, 0, 7)], [2] * 5, 300, [1, 1], 45, 4, None, X.sum(), True)
    for text, match in zip(errors, ["record", "no device 1", "WARP_SIZE", "vectorize", "machine_code", r"machine_code\(last", "get_memory_info"], strict=True):
        assert re.search(match, text), text


def test_diagnose_is_the_launch(capsys):
    "Device arrays that share memory still do; what a kernel prints is shown once; it says what it doesn't promise, and what looks odd."
    @cuda.jit
    def shift(a, b):
        i = cuda.grid(1)
        if i + 1 < a.size: b[i] = a[i + 1]
    d, host = to_d(X), X.copy()
    for args in (d, d), (d[1:], d[:-1]), (d, d.reshape(64)), (d[::2], d[::2]): assert diagnose(shift[2, 32], *args).startswith("race"), args
    for args in (d, to_d(X)), (d[:32], d[32:]), (host, host):  # arrays of the host are copied, each for itself
        assert diagnose(shift[2, 32], *args).startswith("No mistake found."), args
    def captures():
        @cuda.jit
        def k(out):
            print("thread", cuda.grid(1))
            cuda.syncthreads
            i, j = cuda.grid(2)
            j == 5
            if i < 1: out[i, 0] = X[3]
        return k
    @cuda.jit
    def forgets(x, y, z):
        one, two = cuda.shared.array(0, float32), cuda.shared.array(0, float32)
        if x[0] > 100: y[cuda.grid(1)] = one[0] + two[0]
    message, odd = diagnose(captures()[1, 2], np.zeros((2, 2))), diagnose(forgets[1, (2, 2)], X, X, X)
    assert capsys.readouterr().out == "thread 0\nthread 1\n"
    for text in ("No mistake found.", "assert_matmul_correct", r"cuda.syncthreads does nothing.*cuda.syncthreads\(\)", "j == 5 does nothing.*assign",
                 r"cuda.grid\(2\) in a launch with one thread along y", r"3 of 4 elements of out were never written: the first is out\[0, 1\]"):
        assert re.search(text, message), (text, message)
    for text in "2 dynamic shared arrays of forgets begin at the same byte", "y was never written", "z is never used", r"cuda.grid\(1\) counts along x alone, and 2 threads": assert re.search(text, odd), (text, odd)
    assert "By the way" not in diagnose(shift[2, 32], d[:33], to_d(X[:32]))


def test_arrays_of_a_gpu_that_share_memory_share_it_in_a_child(monkeypatch):
    "With what stands for its arrays: host memory by address. Those that only lie side by side are apart."
    class OnGpu:
        __cuda_ndarray__ = True
        def __init__(self, array):
            self.array, self.shape, self.strides, self.dtype, self.size = array, array.shape, array.strides, array.dtype, array.size
            self.__cuda_array_interface__ = dict(data=(array.ctypes.data, False))
        def copy_to_host(self): return self.array.copy()
    def at(face, owner): return OnGpu(np.frombuffer(ctypes.string_at(face["data"][0], face["shape"][0]), np.uint8))
    monkeypatch.setattr(cuda, "from_cuda_array_interface", at, raising=False)
    x = np.arange(64, dtype=np.float32)
    given = x[40:], x[:20:2], 3, x.reshape(8, 8)[1:3, 2:], x[20:30].view(np.uint8), x[30:40]
    flat, even, number, square, bits, apart = pickle.loads(pickle.dumps(_on_host([OnGpu(v) if np.ndim(v) else v for v in given])))
    for found, there in zip((flat, even, square, bits, apart), (v for v in given if np.ndim(v))):
        assert found.shape == there.shape and found.strides == there.strides and (np.asarray(found) == there).all()
    even[5], square[1, 4] = 50, 70
    assert (square[0, 0], even[5], number) == (50, 50, 3) and np.asarray(bits)[8:12].tobytes() == np.float32(70).tobytes()
    assert np.asarray(apart).tolist() == x[30:40].tolist() and np.asarray(flat).tolist() == x[40:].tolist()


def test_a_child_runs_what_a_launch_here_runs(capsys):
    "With what kernel and device functions have read: a number, and a device function that has been decorated anew."
    number = 3
    @cuda.jit(device=True)
    def inner(x): return x * number
    @cuda.jit(device=True)
    def outer(x): return inner(x) + 1
    @cuda.jit
    def k(out):
        out[0] = outer(out[0])
        print(out[0])
    launch, x = k[1, 1], np.full(1, 2.0)
    launch(x)
    number = 5
    @cuda.jit(device=True)
    def inner(x): return x - number
    with pytest.warns(UserWarning) as told: launch(x)
    assert [str(w.message).partition(",")[0] for w in told] == ["outer was compiled with an earlier inner",
                                                                "inner was compiled with number = 3: it is 5 now"]
    assert x[0] == 22 and simulate(launch, np.full(1, 2.0))[0] == 7
    assert "No mistake found." in diagnose(launch, np.full(1, 2.0))
    assert capsys.readouterr().out.split() == ["7.0", "22.0", "7.0", "7.0"]


@cuda.jit
def slow(x):
    s = 0.0
    for i in range(20000): s += i
    x[cuda.grid(1)] = s


@cuda.jit
def stuck(x):
    while x[0] == 0: pass


def test_slow_is_told_from_stuck():
    message = diagnose(slow[1000, 4], np.zeros(4000), timeout=2)
    assert re.search(r"no answer within 2 s, block \d+ of 1000 after 2 s, about \d+ s in all. It's slow, but.*smaller shape", message), message
    message = diagnose(stuck[3, 4], np.zeros(4), timeout=2)
    assert re.search(r"block 1 of 3 .*does a loop never end\? It's at line \d+ of stuck: while x\[0\] == 0", message), message


def test_a_long_launch_says_how_far_it_is(capsys, monkeypatch):
    from numba_matmul.sim import kernel
    monkeypatch.setattr(kernel.time, "perf_counter", iter(range(0, 10**6, 7)).__next__)  # each look at the clock is 7 s later
    last[40, 1](X.copy())
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("last")]
    assert 2 <= len(lines) <= 6 and re.fullmatch(r"last in the simulator: block 2 of 40 after \d+ s, about \d+ s in all. A smaller shape takes less.", lines[0])


@pytest.mark.skipif(find_spec("numba_cuda") is None, reason="numba-cuda is not installed")
def test_more_registers_than_there_are_is_named():
    "158 for each of 1024 threads; also for a launch_bounds that is kept, and by the signature that the decorator has."
    size = 8
    def heavy(A, B, out):
        acc = cuda.local.array((size, size), float32)
        t = cuda.threadIdx.x
        for i in range(size):
            for j in range(size): acc[i, j] = 0
        for q in range(A.shape[0]):
            for i in range(size):
                for j in range(size): acc[i, j] += A[q, i * 1024 + t] * B[q, j * 1024 + t]
        for i in range(size):
            for j in range(size): out[i, j, t] = acc[i, j]
    signature = "void(float32[:, ::1], float32[:, ::1], float32[:, :, ::1])"
    plain, bounded = cuda.jit(signature)(heavy), cuda.jit(signature, launch_bounds=1024)(heavy)
    args = np.ones((1, size * 1024), np.float32), np.ones((1, size * 1024), np.float32), np.zeros((size, size, 1024), np.float32)
    assert re.search(r"heavy can't be launched: 1\d\d registers × 1024 threads.*max_registers=64", diagnose(plain[1, 1024], *args, timeout=200))
    with pytest.raises(CompileError, match="registers × 1024 threads"): machine_code(plain[1, 1024])
    code = machine_code(plain)
    assert code.registers > 128 and code.most_threads == 384 and "blocks of at most 384 threads" in repr(code)
    assert machine_code(bounded[1, 1024]).registers <= 64


def test_a_product_that_takes_minutes_says_so_before_it_begins(monkeypatch):
    monkeypatch.setattr(StrictKernel, "__call__", lambda *args: None)
    big, small = to_d(np.zeros((512, 512), np.float32)), to_d(np.zeros((64, 64), np.float32))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        sgemm_naive(small, small), sgemm_naive(big, big, alpha=0.0), sgemm_naive(big, big)
    assert [str(one.message) for one in told] == ["a product of 512×512×512 takes the simulator about 2 minutes: try a smaller one"]
