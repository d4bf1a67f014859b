"Launches that the strict simulator accepts, and launches it refuses before a thread runs."
import importlib
import os
import re
import resource
import sys
from functools import partial

import numpy as np
import pytest
from numba import config, cuda, float32, njit, types, uint32
from numba.cuda import cg
from numba.cuda.cg import this_grid
from numba.cuda.random import xoroshiro128p_dtype, xoroshiro128p_uniform_float32
from sim_cases import X, error_of, refused

from numba_matmul.compiler import machine_code
from numba_matmul.kernels.k01_naive import sgemm_naive
from numba_matmul.process import ChildError, in_child
from numba_matmul.sim.kernel import StrictKernel
from numba_matmul.sim.launch import diagnose, launch_of, simulate
from numba_matmul.sim.scheduler import SimulatorError


def test_options_of_the_compiler_are_accepted_and_typos_are_not():
    def body(out): out[0] = 1
    def options():
        cuda.jit("void(float32[:])")(body)
        cuda.jit(launch_bounds=(128, 2), max_registers=64, lineinfo=True, fastmath=True, lto=True, opt=True,
                 cache=False)(body)
        return error_of(lambda: cuda.jit(launch_bound=128))
    assert re.match("TypeError: .*launch_bound", in_child(options, simulator=True, keep=True))


def test_a_vectors_fields_have_its_type():
    @cuda.jit
    def vectors(x, out, n):
        real, small = cuda.float32x4(0.1, x[0], 3, 4), cuda.uint8x2(n, 1)
        mixed, pair = cuda.float4(small.x, real.z, 1, 1), cuda.int32x2(n, n)
        out[0], out[1], out[2] = real.x, real.x * real.y, small.x
        out[3], out[4], out[5] = mixed.x * x[0], pair.x * pair.y, cuda.float32x4(mixed.z, pair.x, 2, x[0]).w
    x, f = np.full(1, 0.3, np.float32), np.float32
    assert diagnose(vectors[1, 1], x, np.zeros(6), 300).startswith("No mistake found.")
    found = simulate(vectors[1, 1], x, np.zeros(6), 300)[1]
    assert found.tolist() == [f(0.1), f(0.1) * f(0.3), 44, f(44) * f(0.3), 90000, f(0.3)]


@njit
def plus_one(x): return x + 1

def test_a_kernel_reaches_its_functions_under_any_of_their_names():
    "The grid's barrier, functions of libdevice, functions for the CPU, and Numba's random numbers."
    def kernel(grid_of):
        @cuda.jit
        def waits(x, out):
            i, g = cuda.grid(1), grid_of()
            out[i] = plus_one(x[i])
            g.sync()
            x[i] = cuda.libdevice.rsqrtf(out[out.size - 1 - i])
        return waits
    @cuda.jit
    def from_module(x, out):
        i = cuda.grid(1)
        out[i] = x[i]
        cg.this_grid().sync()
        x[i] = out[out.size - 1 - i]
    @cuda.jit
    def draws(states, out): out[cuda.grid(1)] = xoroshiro128p_uniform_float32(states, cuda.grid(1))
    x, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    found, _ = simulate(kernel(this_grid)[2, 4], x, out)
    assert np.allclose(found, 1 / np.sqrt(x[::-1] + 1), rtol=1e-6)
    for launch in kernel(this_grid)[2, 4], from_module[2, 4]:
        assert diagnose(launch, x, out).startswith("No mistake found."), launch
    assert np.array_equal(simulate(from_module[2, 4], x, out)[0], x[::-1])
    rng = np.random.default_rng(0)
    states = np.array([*zip(*rng.integers(0, 2**64, (2, 4), np.uint64))], xoroshiro128p_dtype)
    assert diagnose(draws[1, 4], states, out[:4]).startswith("No mistake found.")
    drawn = [((int(a) + int(b)) % 2**64 >> 11) / 2**53 for a, b in states]
    assert np.array_equal(simulate(draws[1, 4], states, out[:4])[1], np.float32(drawn))


@cuda.jit
def add(x, y, out):
    i = cuda.grid(1)
    if i < out.size: out[i] = x[i] + y[i]


@cuda.jit(device=True)
def half(x): return x / 2


def undecorated(x, out): out[cuda.grid(1)] = x[cuda.grid(1)]


@pytest.mark.parametrize("call", [simulate, diagnose], ids=["simulate", "diagnose"])
@pytest.mark.parametrize("launch,args,error,match", [
    (True, (), TypeError, "True isn't a kernel: pass kernel"), (None, (), TypeError, "None isn't a kernel"),
    ("add", (), TypeError, "'add' isn't a kernel"), (1, ((64, 64, 64),), TypeError, "1 isn't a kernel"),
    (undecorated, (X, X), TypeError, "undecorated isn't a kernel.*@cuda.jit"),
    (add, (X, X, X), ValueError, r"needs a launch configuration: add\[grid, block\]"),
    (half[1, 1], (X,), TypeError, "half is a device function"),
    (add[1, 8], (X, X), TypeError, r"add takes 3 arguments \(x, y, out\), but 2 were given"),
    (add[1, 8], (X,) * 4, TypeError, "but 4 were given"),
], ids=["a boolean", "None", "a name", "a number and a shape", "no decorator", "no configuration",
        "a device function", "too few arguments", "too many arguments"])
def test_what_is_no_launch_is_refused_before_a_child_is_started(call, launch, args, error, match, no_child):
    with pytest.raises(error, match=match): call(launch, *args)


@pytest.mark.parametrize("fn,shape,error,match", [
    (True, (8, 8, 8), TypeError, "got True"), (None, (8, 8, 8), TypeError, "got None"),
    ("sgemm_naive", (8, 8, 8), TypeError, "got 'sgemm_naive'"),
    (add, (8, 8, 8), TypeError, "got the kernel add"),
    (add[1, 8], (8, 8, 8), TypeError, "got the kernel add"), (5, (8, 8, 8), TypeError, "got 5"),
    (add.py_func, (8, 8, 8), TypeError, r"add\(x, y, out\) isn't a host function.*@cuda.jit"),
    *((sgemm_naive, shape, ValueError, f"three whole numbers, got {re.escape(repr(shape))}")
      for shape in ((8, 8), 8, (8, 8, -8), (8, 8, 0.5))),
], ids=["a boolean", "None", "a name", "a kernel", "a launch", "a number", "no decorator", "two sizes",
        "one size", "a negative size", "half a row"])
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
    ((9, 65535, 65535), "limit")], ids=["largest", "minutes", "past the limit"])
def test_a_launch_too_large_to_simulate_is_refused_at_once(grid, match):
    @cuda.jit
    def k(x): x[-1] = 0
    refused(k[grid, 32], X, match=match)
    refused(k[(31_000, 1), 32], X, match="negative")  # this one runs


def test_the_blocks_of_a_launch_are_not_listed():
    @cuda.jit
    def k(x): x[0] = -1 if cuda.blockIdx.x else 1 // 0
    def peak(launch):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert "SimulatorError" in error_of(launch, X.copy())
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    unit = 1 if sys.platform == "darwin" else 1024
    assert in_child(peak, k[10**6, 1], simulator=True) * unit < 50 * 2**20


def test_two_launch_configurations_of_one_kernel_are_two():
    def both():
        @cuda.jit
        def k(out): out[cuda.grid(1)] = cuda.blockDim.x
        small, _ = k[1, 2], k[1, 4]
        result = np.zeros(4, np.float32)
        small(result)
        return result.tolist()
    assert in_child(both, simulator=True, keep=True) == [2, 2, 0, 0]


def test_a_signature_is_what_a_launch_must_have():
    "As in Numba's dispatcher, which was queried on the CPU: numbers are converted, arrays aren't."
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
        with pytest.raises(TypeError,
                           match="k was compiled for .*int32.*, but launched with .*pass those"):
            k[1, 64](*args)
    assert "k was compiled for" in diagnose(k[1, 64], wide, out, 3)
    assert diagnose(k[1, 64], X, out, 3).startswith("No mistake found.")
    refused(k[1, 64], X, out, 2**40, match="1099511627776 isn't a valid int32")
    assert machine_code(k, "void(float32[::1], float32[::1], int32)").registers > 0

    def store(out, x): out[0] = x
    narrow = "void(float64[::1], float32)"
    both = [types.void(types.float64[::1], float32), "void(float64[::1], float64)"]
    for signature, x, stored in ((narrow, 0.1, np.float32(0.1)), (both, 0.1, 0.1),
                                 (both, np.float32(0.1), np.float32(0.1)),
                                 (both, 2**24 + 1, 2**24 + 1)):  # lossless as a float64
        cuda.jit(signature)(store)[1, 1](wide, x)
        assert wide[0] == stored, (signature, x)
    @cuda.jit(["void(float32[::1], int32)", "void(float32[::1], float32)"])
    def either(out, n): out[0] = n
    with pytest.raises(TypeError, match="several match"): either[1, 1](out, 1.5)
    with pytest.raises(TypeError, match="returns int32, which kernels can't"): cuda.jit("int32(int32[:])")
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
    refused(k[1, 1], X, X.copy(),
            match=r"out of bounds.* line 1 of far, called at line \d+ of k: out\[0\] = far\(x, 3\)$")


@pytest.mark.skipif(not config.ENABLE_CUDASIM, reason="with a GPU the simulator is off here")
def test_the_simulator_here_is_the_strict_one():
    @cuda.jit
    def k(x): x[-1] = 0
    assert isinstance(k, StrictKernel)
    with pytest.raises(SimulatorError): k[1, 1](X.copy())
    @cuda.jit
    def fine(x): x[cuda.threadIdx.x] = uint32(7)
    y = X.copy()
    fine[1, 8](y)  # the simulator works again after an error
    assert y[:9].tolist() == [7] * 8 + [8]


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
    with pytest.raises(ValueError, match="launches 0 kernels.*: none"):
        launch_of(lambda a, b: None, (2, 2, 2))


def test_a_lambda_is_a_device_function_as_when_compiled():
    double = cuda.jit(device=True)(lambda x: x + x)
    @cuda.jit
    def k(x): x[0] = double(x[0])
    assert simulate(k[1, 1], np.array([3.0], np.float32))[0][0] == 6


def test_a_range_between_numbers_that_are_not_known_is_typed():
    @cuda.jit
    def k(x):
        first, _ = cuda.grid(2)
        for i in range(first, first + 1): x[i] = i
    assert simulate(k[1, (4, 1)], np.full(4, -1))[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("reloaded", [True, False], ids=["reloaded", "not reloaded"])
def test_a_file_that_was_edited_does_not_change_what_was_loaded(reloaded, tmp_path, monkeypatch):
    "The loaded code runs, as when compiled, not the present contents of its file."
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path/"edited_kernel.py"
    def write(number):
        path.write_text(f"from numba import cuda\n@cuda.jit\ndef k(x): x[0] = {number}\n")
        os.utime(path, (number, number))  # a different time, whatever the clock's resolution
    def found():
        x = np.zeros(1)
        edited_kernel.k[1, 1](x)
        return x[0], simulate(edited_kernel.k[1, 1], np.zeros(1))[0][0]
    write(1)
    monkeypatch.delitem(sys.modules, "edited_kernel", raising=False)
    edited_kernel = importlib.import_module("edited_kernel")
    assert found() == (1, 1)
    write(2)
    if reloaded: edited_kernel = importlib.reload(edited_kernel)
    assert found() == (1 + reloaded,) * 2


def test_cuda_may_be_a_local_name():
    def launch():
        from numba import cuda as gpu
        @gpu.jit
        def k(out): out[gpu.grid(1)] = gpu.threadIdx.x
        out = np.zeros(4, np.int32)
        k[2, 2](out)
        return out.tolist(), error_of(lambda: gpu.threadIdx)
    found, said = in_child(launch, simulator=True, keep=True)
    assert found == [0, 1, 0, 1]
    assert said == ("AttributeError: cuda.threadIdx exists only inside a running kernel: "
                    "decorate its function with @cuda.jit, and launch it")
