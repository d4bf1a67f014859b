"Children: what is sent to them and back, and when they end."
import ctypes
import fcntl
import os
import pickle
import signal
import subprocess
import sys
import time
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
from conftest import ROOT, environment
from numba import cuda, types
from on_this_cpu import compile_for_gpu
from sim_cases import X, refused

from numba_matmul.process import ChildError, end_idle_children, in_child
from numba_matmul.sim.launch import _on_host, diagnose, simulate


def test_children_that_stay_can_be_ended(new_children):
    first, again = (in_child(os.getpid, simulator=True, keep=True) for _ in "ab")
    end_idle_children(simulator=False)
    assert first == again == in_child(os.getpid, simulator=True, keep=True)
    end_idle_children(simulator=True)
    with pytest.raises(ProcessLookupError): os.kill(first, 0)
    assert in_child(os.getpid, simulator=True, keep=True) != first


@pytest.mark.skipif(find_spec("numba_cuda") is None, reason="numba's own package has no intrinsics for CUDA")
def test_device_functions_and_intrinsics_travel_to_the_compiler():
    from numba.cuda.extending import intrinsic

    @intrinsic
    def number(context):
        "The number 12345, from LLVM."
        def generate(context, builder, signature, args): return context.get_constant(types.int32, 12345)
        return types.int32(), generate

    @cuda.jit(device=True)
    def twice(x): return x + x

    def factory(offset):
        @cuda.jit(lineinfo=True)
        def k(out): out[cuda.grid(1)] = twice(number()) + offset
        return k

    def ptx(kernel):
        return compile_for_gpu(kernel.py_func, (types.int32[::1],)).library.get_asm_str(cc=(9, 0))

    assert str(2 * 12345 + 7) in in_child(ptx, factory(7), simulator=False)


def test_a_device_function_of_the_library_goes_by_value(monkeypatch):
    from numba_matmul.gemm.schedule import rasterize
    from numba_matmul.process import Pickler
    before = Pickler.dumps(rasterize)[0]
    assert Pickler.dumps(rasterize)[0] == before
    monkeypatch.setattr(rasterize.py_func, "__code__",
                        (lambda tile, rows, cols, group_m: (tile, rows)).__code__)
    assert Pickler.dumps(rasterize)[0] != before


def test_a_child_returns_values_and_errors():
    assert in_child(lambda x: x + 1, 41, simulator=False, timeout=None) == 42
    with pytest.raises(ChildError, match="ZeroDivisionError"): in_child(lambda: 1 // 0, simulator=True)
    with pytest.raises(ChildError, match="status 3.*last words"):
        in_child(lambda: (print("last words", flush=True), os._exit(3)), simulator=True)


def held(path):
    "Take a lock that is released when this process, and every process that inherits it, is gone."
    global lock
    lock = open(path, "w")
    fcntl.flock(lock, fcntl.LOCK_EX)


def with_a_command(path):
    "Hold the lock, and make a command that never ends hold it too."
    held(path)
    os.set_inheritable(lock.fileno(), True)
    subprocess.run(["sleep", "100"], close_fds=False)


def wait_until(path, is_held, seconds):
    "Does the lock get into this state within this many seconds?"
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
import signal, sys, time
import numpy as np
from numba_matmul.process import in_child
from numba_matmul.ptx.core import bind
from numba_matmul.sim.launch import diagnose
from numba import cuda
from test_process import held, with_a_command

path, case = sys.argv[1:]

@bind("")  # kernels call instructions, and no other functions of Python
def hold(path): held(path)

@cuda.jit
def endless(out):
    hold(path)
    while out[0] == 0: pass

def never_interrupted():
    held(path)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])  # as in a long call of a C function
    time.sleep(100)

def with_a_child(): in_child(with_a_command, path, simulator=True)

if case == "diagnosis": diagnose(endless[1, 1], np.zeros(1, np.float32))
if case == "grandchild": in_child(with_a_child, simulator=True)
if case == "idle": in_child(held, path, simulator=True, keep=True)
if case == "out of time": in_child(never_interrupted, simulator=True, timeout=4)
time.sleep(100)
"""


@pytest.mark.parametrize("case,how", [
    ("diagnosis", signal.SIGKILL), ("diagnosis", signal.SIGINT), ("grandchild", signal.SIGKILL),
    ("idle", signal.SIGKILL), ("out of time", signal.SIGSTOP)], ids=lambda x: getattr(x, "name", x))
def test_a_child_ends_with_its_parent_and_at_its_time_limit(case, how, tmp_path):
    path = tmp_path/"lock"
    env = environment() | {"NUMBA_ENABLE_CUDASIM": "1"}
    env["PYTHONPATH"] += os.pathsep + str(ROOT/"tests")
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(path), case], env=env,
                              stderr=subprocess.DEVNULL)
    try:
        assert wait_until(path, True, 30)
        parent.send_signal(how)
        assert wait_until(path, False, 14)
    finally:
        parent.kill()
        parent.wait()


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


def test_arrays_of_a_gpu_that_share_memory_share_it_in_a_child(monkeypatch):
    "With stand-ins for its arrays: host memory by address. Arrays that are merely adjacent are separate."
    class OnGpu:
        __cuda_ndarray__ = True
        def __init__(self, array):
            self.array, self.shape, self.strides = array, array.shape, array.strides
            self.dtype, self.size = array.dtype, array.size
            self.__cuda_array_interface__ = dict(data=(array.ctypes.data, False))
        def copy_to_host(self): return self.array.copy()
    def at(face, owner):
        return OnGpu(np.frombuffer(ctypes.string_at(face["data"][0], face["shape"][0]), np.uint8))
    monkeypatch.setattr(cuda, "from_cuda_array_interface", at, raising=False)
    x = np.arange(64, dtype=np.float32)
    given = x[40:], x[:20:2], 3, x.reshape(8, 8)[1:3, 2:], x[20:30].view(np.uint8), x[30:40]
    on_gpu = [OnGpu(v) if np.ndim(v) else v for v in given]
    flat, even, number, square, bits, apart = pickle.loads(pickle.dumps(_on_host(on_gpu)))
    for found, there in zip((flat, even, square, bits, apart), (v for v in given if np.ndim(v))):
        assert found.shape == there.shape and found.strides == there.strides
        assert np.array_equal(np.asarray(found), there)
    even[5], square[1, 4] = 50, 70
    assert (square[0, 0], even[5], number) == (50, 50, 3)
    assert np.asarray(bits)[8:12].tobytes() == np.float32(70).tobytes()
    assert np.asarray(apart).tolist() == x[30:40].tolist() and np.asarray(flat).tolist() == x[40:].tolist()


def test_a_child_runs_what_a_launch_here_runs(capsys):
    "With the values kernels and device functions have read: a number, and a device function decorated again."
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
    def inner(x): return x - number  # noqa: F811  `outer` was compiled with the first one
    with pytest.warns(UserWarning) as told: launch(x)
    assert [str(w.message).partition(",")[0] for w in told] == [
        "outer was compiled with an earlier inner", "inner was compiled with number = 3: it's now 5"]
    assert x[0] == 22 and simulate(launch, np.full(1, 2.0))[0] == 7
    assert "No mistake found." in diagnose(launch, np.full(1, 2.0))
    assert capsys.readouterr().out.split() == ["7.0", "22.0", "7.0", "7.0"]
