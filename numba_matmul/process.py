"""Run a function in another Python process: by value, in its own mode, with a time limit.

A notebook runs in one of Numba's two modes. The compiler needs the real one; a deliberately wrong kernel
needs the simulator, because on a GPU it could hang or corrupt the context. So functions are sent to another
process, in the mode they need. `in_child(function, *arguments, simulator=…)` calls one in a fresh Python,
with the simulator on or off, and returns its value. Starting a child takes most of a second. With `keep=True`
a child that stays alive does the work; the instruments use that one.

What is sent to the child

The kernel is sent *by value*: the function you just ran in a cell, with its options, the values it closes
over, the device functions it calls, and its source lines for the messages. So an edit takes effect as soon
as you run its cell. An error in the child comes back as a `ChildError`, with its name and its text.

The child

A kernel is sent as its Python function and its options, from either mode to either mode. Source lines of
notebook cells are sent along, because the child has no cells. A process that hangs is killed along with
everything it started. It also looks after itself: when its parent is gone, for whatever reason, or when its
time is up, it exits.
"""
import dis
import faulthandler
import gc
import io
import linecache
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import suppress
from functools import _lru_cache_wrapper, cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import cloudpickle
import numba_matmul  # first: this chooses between the GPU and the simulator
from .arrays import OptIn, placed
from .cards import gpu_name
from numba import config, cuda
from numba.core.registry import CPUDispatcher
from numba.cuda.simulator import kernel as numba_kernel
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray


class ChildError(RuntimeError):
    "A function failed in a child process, or didn't answer in time."


def _rebuild(fn, options, configuration):
    "A kernel or device function in this process's mode, and its launch if it had one."
    options = dict(options)
    signature = options.pop("signature", None)  # for the simulator; the compiler gets the types from a launch
    kernel = cuda.jit(signature, **options)(fn) if config.ENABLE_CUDASIM else cuda.jit(**options)(fn)
    return kernel[configuration] if configuration else kernel

@lru_cache(1000)
def _device_function(pickled):
    "A device function; the same one for the same bytes, so that a long-lived child compiles it once."
    return _rebuild(*pickle.loads(pickled), None)

def kernel_parts(kernel):
    "Function, options and launch configuration of a kernel in either mode; `None` if it isn't one."
    if isinstance(kernel, numba_kernel.FakeCUDAKernel):
        grid = kernel.grid_dim
        configuration = grid and (grid, kernel.block_dim, 0, kernel.dynshared_size)
        return kernel.fn, getattr(kernel, "options", {"device": kernel._device}), configuration
    if isinstance(kernel, ModuleType): return None  # the simulator's cuda is slow to report missing names
    if isinstance(kernel, CPUDispatcher):  # @njit: in a kernel, the compiler makes it a device function
        return kernel.py_func, {"device": True}, None
    configuration, launch = None, getattr(kernel, "dispatcher", None)
    if launch is not None and hasattr(kernel, "griddim"):
        size = OptIn(kernel.sharedmem) if kernel.pre_launch_callbacks else kernel.sharedmem
        configuration, kernel = (kernel.griddim, kernel.blockdim, 0, size), launch
    if hasattr(kernel, "targetoptions") and hasattr(kernel, "py_func"):
        # lto is left at the child's default: it depends on the linker found there
        options = {k: v for k, v in kernel.targetoptions.items() if k != "lto"}
        return kernel.py_func, options, configuration

@cache
def global_names(code):
    "The global names this code uses."
    return [x.argval for x in dis.get_instructions(code) if x.opname == "LOAD_GLOBAL"]

def _called(fn):
    "The functions of the device functions a function refers to."
    values = [fn.__globals__.get(name) for name in global_names(fn.__code__)]
    found = map(kernel_parts, values + [cell.cell_contents for cell in fn.__closure__ or ()])
    return [parts[0] for parts in found if parts]

def callees(fn):
    "A kernel's function, and the functions of the device functions it calls, each once."
    found = [fn]
    for caller in found:
        found += [callee for callee in dict.fromkeys(_called(caller)) if callee not in found]
    return found

def recursion(fn, callers=()):
    "How a kernel, or a device function it calls, ends up calling itself; `None` if none does."
    callers = (*callers, fn)
    for callee in _called(fn):
        if callee in callers:
            turn = (*callers[callers.index(callee):], callee)
            return (f"{callee.__name__} calls itself ({' → '.join(f.__name__ for f in turn)}), "
                    "which the compiler for GPUs doesn't allow: use a loop")
        if found := recursion(callee, callers): return found


TREES = {}  # code of a function whose loops were unrolled → its syntax tree, which isn't in any file

def _with_filename(name, tree, make, args):
    """A code object with its file name restored, which cloudpickle 3.1.3 and later drop, and its unrolled
    loops."""
    code = make(*args).replace(co_filename=name)
    if tree: TREES[code] = tree
    return code

class Pickler(cloudpickle.Pickler):
    "Pickles kernels by value, device arrays as numpy arrays; keeps source that isn't in any file."
    def __init__(self, file):
        super().__init__(file)
        self.sources, self.copies = {}, {}  # copies: function of a kernel → its one copy
        self.device = {}  # device function → its pickle

    def reducer_override(self, obj):
        if isinstance(obj, type): return super().reducer_override(obj)
        if isinstance(obj, CodeType):
            return _with_filename, (obj.co_filename, TREES.get(obj), *self.dispatch_table[CodeType](obj))
        parts = kernel_parts(obj)
        if parts:  # a copy of the function that belongs to no module, so it's pickled by value
            fn, options, configuration = parts
            if fn not in self.copies:
                self.copies[fn] = FunctionType(fn.__code__, fn.__globals__, fn.__name__,
                                               fn.__defaults__, fn.__closure__)
            if options.get("device") and fn not in self.device:
                self.device[fn] = None  # for the time being: it may call itself
                self.device[fn] = self._alone((self.copies[fn], options))
            if pickled := self.device.get(fn): return _device_function, (pickled,)
            return _rebuild, (self.copies[fn], options, configuration)
        if getattr(obj, "__cuda_ndarray__", False) and not isinstance(obj, FakeCUDAArray):
            return placed, (host := obj.copy_to_host(), 0, host.shape, host.strides, host.dtype)
        if isinstance(obj, _lru_cache_wrapper) and obj.__module__ == "__main__":
            return cache, (obj.__wrapped__,)  # a notebook's cached factory
        if isinstance(obj, FunctionType):
            name = obj.__code__.co_filename
            if not os.path.exists(name): self.sources[name] = linecache.getlines(name)
        return super().reducer_override(obj)

    def _alone(self, obj):
        "A separate pickle."
        buffer = io.BytesIO()
        inner = type(self)(buffer)
        inner.sources, inner.copies, inner.device = self.sources, self.copies, self.device
        inner.dump(obj)
        return buffer.getvalue()

    @staticmethod
    def remember(sources):
        "In a child: make these source lines available to messages."
        for name, lines in sources.items(): linecache.cache[name] = len(lines), None, lines, name

    @classmethod
    def dumps(cls, obj):
        "`obj` pickled, and its source lines by file name."
        buffer = io.BytesIO()
        pickler = cls(buffer)
        pickler.dump(obj)
        return buffer.getvalue(), pickler.sources


def _end_with(parent):
    "In a child: when this parent is gone, end the child and everything it started."
    while os.getppid() == parent: time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)

class Late(BaseException):
    "In a child: its time is up. (Not an `Exception`, since a kernel's exceptions are reported as mistakes.)"

def _watch_time(timeout):
    "In a child: when its time is up, stop a running kernel and report its progress."
    half_way = iter([True])
    def alarm(_, frame):
        progress, half = getattr(numba_kernel._get_kernel_context(), "progress", None), next(half_way, False)
        if half and progress: progress.note()
        if not half: signal.setitimer(signal.ITIMER_REAL, 0)
        if not half and progress: raise Late(progress.why_late(frame))
    signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, timeout / 2, timeout / 2)
    faulthandler.dump_traceback_later(timeout + 2, exit=True)  # for when the parent is stopped

def _child(parent, printed):
    "A child's main loop: reads tasks from stdin, answers on stdout; prints go to the file `printed`."
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    gc.set_threshold(50_000, 20, 100)  # a compiler makes many objects and keeps nearly all of them
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(printed, 1)
    sys.stdout.reconfigure(line_buffering=True, encoding="utf-8")
    while True:
        try: path, timeout, task, sources = pickle.load(sys.stdin.buffer)
        except EOFError: return
        if timeout: _watch_time(timeout)
        sys.path[:] = path
        Pickler.remember(sources)
        try:
            fn, args = pickle.loads(task)
            result = "value", Pickler.dumps(fn(*args))[0]
        except Exception as e:
            result = "error", e if getattr(e, "travels", False) else ChildError(f"{type(e).__name__}: {e}")
        except Late as e: result = "error", ChildError(f"no answer within {timeout} s, {e}")
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        answer.write(pickle.dumps(result))
        answer.flush()


class _Child:
    "A Python process that answers tasks."
    def __init__(self, simulator, gpu=None):
        home = str(Path(numba_matmul.__file__).parent.parent)
        path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        env = os.environ | {"NUMBA_ENABLE_CUDASIM": str(int(simulator)), "PYTHONPATH": path}
        if gpu: env |= {"MATMUL_GPU": gpu[0], "MATMUL_SMS": str(gpu[1])}
        elif not config.ENABLE_CUDASIM and cuda.is_available(): env["MATMUL_GPU"] = gpu_name()
        self.parent, self.said = os.getpid(), tempfile.TemporaryFile()
        self.printed, self.shown = tempfile.TemporaryFile(), 0
        command = [sys.executable, "-P", "-c",  # -P: a folder here may have this package's name
                   f"from numba_matmul.process import _child; _child({self.parent}, {self.printed.fileno()})"]
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stderr=self.said,
                                        stdout=subprocess.PIPE, start_new_session=True,
                                        pass_fds=[self.printed.fileno()])

    def ask(self, task, timeout):
        "The answer to a task. Raises `ChildError` if there is none."
        process, answer = self.process, self.process.stdout
        with suppress(BrokenPipeError):
            process.stdin.write(task)
            process.stdin.flush()
        # it reports its own timeout
        ready, _, _ = select.select([answer], [], [], timeout and timeout + 1)
        if not ready: raise ChildError(f"no answer within {timeout} s, so it was ended: "
                                       "is there an endless loop?")
        try: return pickle.load(answer)
        except (EOFError, pickle.UnpicklingError): process.wait()  # it exited by itself
        self.said.seek(0)
        last_words = (self.said.read()
                      + os.pread(self.printed.fileno(), 1 << 16, self.shown)).decode(errors="replace")[-2000:]
        raise ChildError(f"the child exited with status {process.returncode}: {last_words}")

    def show_printed(self):
        "Print its new output."
        while text := os.pread(self.printed.fileno(), 1 << 16, self.shown):
            self.shown += len(text)
            sys.stdout.write(text.decode(errors="replace"))

    def end(self):
        "End it and its children."
        with suppress(ProcessLookupError): os.killpg(self.process.pid, signal.SIGKILL)
        with suppress(BrokenPipeError): self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


_idle = defaultdict(list)  # idle long-lived children, by simulator or not, and by GPU

def _idle_child(*kind):
    "A long-lived child: an idle one, or else a new one."
    with suppress(IndexError):  # another thread may take the last one
        while child := _idle[kind].pop():
            if child.parent == os.getpid() and child.process.poll() is None: return child
    return _Child(*kind)

def children_at_once(
    simulator: bool,  # with the simulator, or with the compiler and a GPU?
) -> int:
    """How many children are worth using at the same time: one per core; on a GPU at most 16, each with 1 GB
    of its memory."""
    if simulator: return os.cpu_count()
    import torch
    return max(1, min(os.cpu_count(), 16, torch.cuda.mem_get_info()[0] // 2**30))

def end_idle_children(
    simulator: bool,  # those with the simulator, or those with the compiler?
):
    "End the idle long-lived children. They hold memory, including GPU memory."
    for kind in [kind for kind in _idle if kind[0] == simulator]:
        with suppress(IndexError):
            while child := _idle[kind].pop(): child.end()


def has_compiler():
    "Can a child compile? numba-cuda doesn't exist for macOS."
    return find_spec("numba_cuda") is not None


def in_child(
    fn,               # function to call, sent by value with everything it refers to
    *args,            # its arguments
    simulator: bool,  # run the child with the simulator, or with the compiler?
    timeout=60,       # seconds until the child is ended
    keep=False,       # use a long-lived child with Numba loaded instead of a fresh one?
    gpu=None,         # in the simulator: the GPU that kernels choose their tiles for, as name and
                      # number of multiprocessors; the parent's if None
):
    """`fn(*args)`, called in another Python process. Raises `ChildError` if it fails or doesn't answer in
    time; an error whose class has `travels = True` comes back unchanged."""
    task = pickle.dumps((sys.path, timeout, *Pickler.dumps((fn, args))))
    kind = bool(simulator), gpu
    child, answered = _idle_child(*kind) if keep else _Child(*kind), False
    try:
        said, value = child.ask(task, timeout)
        answered = True
    finally:  # after an interrupt, a late answer would be mistaken for the next task's
        child.show_printed()
        if keep and answered: _idle[kind].append(child)
        else: child.end()
    if said == "value": return pickle.loads(value)
    raise value
