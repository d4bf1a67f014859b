"""`cuda.jit` of the strict simulator: kernels, and how they launch."""
import ast
import copy
import gc
import inspect
import sys
import time
import warnings
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from functools import cache
from math import prod
from numbers import Integral
from threading import RLock

import numpy as np
from greenlet import getcurrent
from ..arrays import OptIn
from ..process import recursion
from . import host, memory
from .arguments import all_arguments, argument, arrays_in, as_declared, check_parameters, declared
from .cells import shell
from .cuda_module import StrictModule
from .declared import DYNAMIC_SHARED_LIMIT, STATIC_SHARED_LIMIT, SharedMemory
from .functions import ours
from .grid import Grid
from .hopper import check_end
from .operators import unboxed_value
from .places import INSIDE, line_text
from .races import Elements
from .scheduler import Again, Block, SimulatorError, Thread
from .types import NONE, type_of
from .typing import changed, nodes_of, run_typed, typed
from numba import config, cuda, types
from numba.cuda.simulator import kernel as numba_kernel


# Limits of a launch

MAX_THREADS, MAX_BLOCK, MAX_GRID = 1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535)
MAX_SIMULATED = 10**6  # threads of a launch: at 0.1 ms each, nearly two minutes

def check_size(
    blocks,   # how many to simulate
    threads,  # in each
):
    "Refuse a launch that would take too long to simulate."
    if (size := int(blocks) * int(threads)) > MAX_SIMULATED:
        raise SimulatorError(f"{blocks:,} blocks of {threads:,} threads would take the simulator "
                             f"about {size / 600_000:,.0f} minutes, and {MAX_SIMULATED:,} threads "
                             "are its limit: choose a smaller shape (or, with the microscope, some "
                             "of the blocks: blocks=[(0, 0, 0)])")

def _is_whole(x): return isinstance(x, Integral) and not isinstance(x, (bool, np.timedelta64))

def _dimensions(what, given):
    "A grid or a block as three ints of Python, whatever integers were given: numpy's would overflow."
    dims = given if isinstance(given, (tuple, list)) else (given,)
    if len(dims) > 3: raise ValueError(f"the {what} is {given!r}; expected at most three numbers")
    if not all(map(_is_whole, dims)):
        quotient = any(isinstance(n, (float, np.floating)) for n in dims)
        raise TypeError(f"the {what} is {given!r}; expected a whole number, or a tuple of up to three"
                        + ": / returns a float; use cdiv(n, m) for a whole number" * quotient)
    return (*map(int, dims), *(1,) * (3 - len(dims)))


# Taking notes costs time, so a launch takes none on arrays that nothing writes. What a kernel writes
# is first read from its source. If that misses something, the launch starts over and notes more, and the
# kernel's next launch knows.

_one_at_a_time = RLock()   # launches share the module `cuda`, and what is learned about kernels
_MASKED = set()            # code of kernels in which some lanes of a warp meet without the others
_seed = ContextVar("seed", default=None)

def _parameters(fn): return {*fn.__code__.co_varnames[:fn.__code__.co_argcount]}

@cache
def _stored(fn):
    "Parameters that a function's source writes to, as far as that can be seen. A launch finds the others."
    names, found = _parameters(fn), []
    try:
        outer = inspect.getclosurevars(fn)
    except ValueError:
        return names  # a name in an outer function has no value yet
    known = outer.globals | outer.nonlocals
    for node in nodes_of(fn):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            found.append(node.value)
        if not isinstance(node, ast.Call) or (name := getattr(node.func, "id", "")) in outer.builtins:
            continue
        callee = known.get(name)
        if isinstance(callee, StrictKernel):
            given = dict(zip(callee.fn.__code__.co_varnames, node.args))
            given |= {x.arg: x.value for x in node.keywords}
            found += [given[x] for x in _stored(callee.fn) & given.keys()]
        # an instruction that returns something is a load
        elif getattr(callee, "instruction", (None, None))[1] is None: found += node.args[:1]
    return {node.id for node in found if isinstance(node, ast.Name)} & names

@cache
def _learned(fn):
    "Names of arrays that no launch of a kernel has written so far."
    return _parameters(fn) - _stored(fn)

def _overlap(arrays):
    "Do any of these arrays share memory?"
    bounds = sorted(np.lib.array_utils.byte_bounds(array) for array in arrays if array.size)
    return any(start < end for (_, end), (start, _) in zip(bounds, bounds[1:]))

@contextmanager
def interleaved(seed):
    "Simulated launches in this context interleave their blocks at fences and atomic operations, from a seed."
    token = _seed.set(seed)
    try:
        yield
    finally:
        _seed.reset(token)


# What is reported about a launch while it runs

class PrintedOnce:
    "Where a launch prints. A launch that starts over would print the same again; that is suppressed."
    def __init__(self, out): self.out, self.shown, self.at = out, 0, 0
    def write(self, text):
        new, self.at = text[max(0, self.shown - self.at):], self.at + len(text)
        self.shown = max(self.shown, self.at)
        if self.out: self.out.write(new)  # a program may have no stdout
    def again(self): self.at = 0
    def __getattr__(self, name): return getattr(self.out, name)


class Progress:
    "A launch's progress. A long one reports on stderr now and then."
    def __init__(self, launch):
        self.launch, self.begun, self.since = launch, 0, time.perf_counter()
        self.blocks, self.said, self.half_way = len(launch.blocks or ()) or prod(launch.grid_dim), 0, None

    @property
    def seconds(self): return time.perf_counter() - self.since

    def next_block(self):
        "A block starts. Report a launch that takes over a minute, and again each time its duration doubles."
        seconds, done = self.seconds, self.begun
        self.begun += 1
        if not done or seconds <= 2 * self.said: return
        if seconds > 10 or not self.said and seconds * self.blocks > 60 * done:
            self.said = seconds
            print(f"{self.launch.__name__} in the simulator: {self}. A smaller shape is faster.",
                  file=sys.stderr)

    def note(self):
        "Half the time limit has passed. Remember the state, to see later whether the launch is stuck."
        self.half_way = self._state()

    def _state(self):
        threads = [thread for block in self.launch.grid.started for thread in block.threads]
        return self.begun, sum(thread.dead for thread in threads), sum(thread.barriers for thread in threads)

    def __str__(self):
        done = self.begun - 1
        estimate = f", about {self.seconds * self.blocks / done:,.0f} s in total" if done > 0 else ""
        return f"block {self.begun} of {self.blocks} after {self.seconds:.0f} s{estimate}"

    def why_late(self, frame):
        "Timeout: what to consider, and the line where the launch is."
        # the kernel's line, not the simulator's
        while frame and (frame.f_globals.get("__name__") or "").startswith((*INSIDE, "numba.", "numpy.")):
            frame = frame.f_back
        line = ""
        if isinstance(getcurrent(), Thread) and frame:
            line = f" It's at {line_text(frame.f_code, frame.f_lineno)}"
        if self._state() == self.half_way:
            return f"{self}, and nothing changed for half that time: is there an endless loop?{line}"
        return (f"{self}. It's slow but still progressing: launch a smaller shape, or allow more time, "
                f"timeout=….{line}")


class StrictKernel(numba_kernel.FakeCUDAKernel):
    "What `@cuda.jit` returns in the strict simulator."
    def __init__(self, fn, options):
        device, fastmath = options.get("device", False), options.get("fastmath", False)
        super().__init__(fn, device=device, fastmath=fastmath)
        self.options, self.blocks = options, None  # blocks: run only these
        self.cluster = 1  # blocks along x that run together

    def __getitem__(self, configuration):
        if not isinstance(configuration, tuple) or len(configuration) not in (2, 3, 4):
            raise ValueError(f"{self.__name__}[{configuration!r}] isn't a valid launch: write "
                             f"{self.__name__}[grid, block], optionally followed by a stream and the bytes "
                             "of dynamic shared memory")
        grid, block, stream, size = (*configuration, 0, 0)[:4]
        launch = copy.copy(self)  # so that two configurations of one kernel stay separate
        launch.grid_dim, launch.block_dim = _dimensions("grid", grid), _dimensions("block", block)
        if stream and not isinstance(stream, host.Stream):
            raise TypeError(f"the stream is {stream!r}; expected cuda.stream(), or 0")
        if not _is_whole(size):
            raise TypeError(f"the dynamic shared memory is {size!r}; expected bytes, a whole number")
        launch.dynshared_size = size if isinstance(size, OptIn) else int(size)
        return launch

    def configure(self, *configuration): return self[configuration]
    def forall(self, ntasks, tpb=0, stream=0, sharedmem=0):
        if ntasks < 0: raise ValueError(f"Can't create ForAll with negative task count: {ntasks}")
        threads = tpb or 128  # on a GPU, the driver picks a number
        return self[-(-ntasks // threads), threads, stream, sharedmem] if ntasks else lambda *args: None

    def __getattr__(self, name):
        if "fn" in vars(self) and not name.startswith("__"):
            name = host.no_name_of_kernel(self, name)
        raise AttributeError(name)

    def __call__(self, *args):
        if self._device or isinstance(getcurrent(), Thread): return run_typed(self.fn, *args)
        _announce()
        with _one_at_a_time: self._simulate(args)

    def _simulate(self, args):
        self._check_limits()
        args, write_back = all_arguments(self.fn, args), []
        args = [argument(arg, write_back, name) for arg, name in zip(args, self.fn.__code__.co_varnames)]
        if signature := self.options.get("signature"):
            args = as_declared(self.__name__, signature, args)
        # the kernel typed as the compiler would, for these arguments
        typed_launch, kinds = copy.copy(self), tuple(map(type_of, args))
        check_parameters(self.fn, kinds)
        typed_launch.fn, result = typed(self.fn, kinds)
        for text in changed(typed_launch.fn): warnings.warn(text, stacklevel=3)
        if result not in (NONE, None):
            raise SimulatorError(f"{self.__name__} returns a value, which a kernel can't: write it to an "
                                 "array")
        args = [unboxed_value(arg) for arg in args]
        arrays = [*arrays_in(args)]
        before = [array.data.copy() for array in arrays]
        printed = PrintedOnce(sys.stdout)
        while True:
            try:
                with redirect_stdout(printed): self._run(typed_launch, args, arrays)
            except Again as e:  # start over, and note what wasn't noted
                printed.again()
                _learned(self.fn).discard(str(e))
                if str(e) == "masked": _MASKED.add(self.fn.__code__)
                for array, values in zip(arrays, before): array.data[...] = values
            else:
                break
        for copy_back in write_back: copy_back()

    def _run(self, launch, args, arrays):
        "Run the blocks once. No notes are taken on arrays that no launch has written so far."
        # the caller finds the last grid here, and what was stored
        self.grid = grid = Grid(launch, Elements(), _seed.get())
        self.arrays = arrays
        grid.masked, learned = self.fn.__code__ in _MASKED, _learned(self.fn)
        # where two arrays overlap, one may be written through the other
        all_noted = _overlap(array.data for array in arrays)
        for array in arrays:
            array.begin(not memory.recorder and (all_noted or array.name not in learned))
        indices = iter(self.blocks or (index[::-1] for index in np.ndindex(*reversed(self.grid_dim))))
        clusters = zip(*[indices] * self.cluster)
        cuda_here = StrictModule(self.grid_dim, self.block_dim)
        progress = cuda_here.progress = Progress(self)
        # blocks start when there is room for them, and finish one by one
        def start(indices):
            progress.next_block()
            return Block(grid, indices, args, [SharedMemory(self.dynshared_size) for _ in indices])
        def end(block):
            self._check_shared(block.memory.static_bytes)
            check_end(block)
            block.forget()
        collector = gc.get_threshold()
        gc.set_threshold(50_000, 20, 20)  # a block's notes are many small objects, few of them garbage
        try:
            with numba_kernel._push_kernel_context(cuda_here): grid.run(clusters, start, end)
        except SimulatorError as e:  # after the races; a new one, without what the traceback holds
            grid.races[None] = SimulatorError(str(e), e.kind, **e.data)
        finally:
            gc.set_threshold(*collector)
        if grid.races:
            first = next(iter(grid.races.values()))
            raise SimulatorError("\n".join(filter(None, map(str, grid.races.values()))), first.kind,
                                 **first.data)
        grid.stores = {array.name: array.watch.stores for array in arrays}
        if not self.blocks and not memory.recorder:
            learned.update(array.name for array in arrays if not array.watch.stores)

    def _check_limits(self):
        if self.grid_dim is None:
            raise ValueError(f"launch {self.__name__} as {self.__name__}[grid, block](…)")
        if found := recursion(self.fn): raise SimulatorError(found)
        # the hardware's limits, and those promised to the decorator
        threads, bounds = prod(self.block_dim), self.options.get("launch_bounds")
        bound = bounds[0] if isinstance(bounds, tuple) else bounds
        if threads > MAX_THREADS:
            raise SimulatorError(f"a block of {threads} threads exceeds the limit of {MAX_THREADS}")
        limits = ("grid", self.grid_dim, MAX_GRID), ("block", self.block_dim, MAX_BLOCK)
        for what, dims, most in limits:
            if not all(0 < n <= limit for n, limit in zip(dims, most)):
                raise SimulatorError(f"a {what} of {tuple(dims)}: "
                                     f"each dimension must be at least 1 and at most {most}")
        if bound and threads > bound:
            raise SimulatorError(f"a block of {threads} threads breaks the promise launch_bounds={bounds}")
        if not 0 <= self.dynshared_size <= DYNAMIC_SHARED_LIMIT:
            raise SimulatorError(f"{self.dynshared_size} bytes of dynamic shared memory, "
                                 f"but a block on sm_90 may use at most {DYNAMIC_SHARED_LIMIT}")
        self._check_shared(0)
        if self.grid_dim[0] % self.cluster or threads % 128 and self.cluster > 1:
            raise SimulatorError(f"clusters of {self.cluster} blocks need a grid that is a multiple of "
                                 f"{self.cluster} along x, and blocks of whole warpgroups")
        check_size(len(self.blocks) if self.blocks else prod(self.grid_dim), threads)

    def _check_shared(self, static):
        # more than a plain launch may use is an error unless the host opted in
        if not self.dynshared_size or isinstance(self.dynshared_size, OptIn): return
        if (both := static + self.dynshared_size) > STATIC_SHARED_LIMIT:
            raise SimulatorError(f"{both} bytes of shared memory, {static} of them static, exceed the "
                                 f"{STATIC_SHARED_LIMIT} of a plain launch: for more, up to "
                                 f"{DYNAMIC_SHARED_LIMIT} on an H100, the host must opt in, as "
                                 "with_shared_memory in numba_matmul.gemm.limits does")


JIT_OPTIONS = {"device", "inline", "forceinline", "link", "debug", "opt", "lineinfo", "cache",
               "launch_bounds", "lto", "shared_memory_carveout", "fastmath", "max_registers", "extensions",
               "boundscheck"}

def jit(function_or_signature=None, **options):
    "`cuda.jit` of the strict simulator. It accepts and keeps all of the compiler's options."
    unknown = options.keys() - JIT_OPTIONS
    if unknown: raise TypeError(f"cuda.jit doesn't have the option {', '.join(sorted(unknown))}")
    if inspect.isfunction(function_or_signature):
        return StrictKernel(function_or_signature, options)
    signatures = []
    if function_or_signature is not None:
        signatures = declared(function_or_signature)  # refused right away if it isn't a signature
        for _, result in signatures:
            if result not in (None, types.void) and not options.get("device"):
                raise TypeError(f"the signature says the kernel returns {result}, which kernels can't: start "
                                "it with void(")
        options["signature"] = function_or_signature
    def decorate(fn):
        for kinds, _ in signatures:
            # as in the compiler, names from outside are read now
            with suppress(SimulatorError): typed(fn, tuple(map(ours, kinds)))
        return StrictKernel(fn, options)
    return decorate


# Installation

def _of_the_running_kernel(name):
    "The module `cuda`'s answer for a name it has only inside a kernel."
    running = numba_kernel._get_kernel_context()
    if running is None:
        raise AttributeError(host.no_name_of_cuda(name, dir(StrictModule((1, 1, 1), (1, 1, 1)))))
    return getattr(running, name)

def _cast(kind, *args):
    "`uint32(x)` and the like in a kernel. Numba's own path is slow, and kernels use these a lot."
    if len(args) == 1:
        value, in_numpy = args[0], kind.__dict__.get("in_numpy")
        if type(value) is in_numpy: return value
        if isinstance(value, (int, float, complex, np.generic)):
            return in_numpy(value) if in_numpy else kind.cast_python_value(value)
    return types.Type.__call__(kind, *args)

_to_say = []  # printed at the first launch

def _announce():
    while _to_say: print(_to_say.pop(), file=sys.stderr)

def install(
    # for stderr: shown immediately in an interactive session, at the first launch in a program
    announcement=None,
):
    "Make the simulator strict. Kernels decorated from now on are checked."
    if not config.ENABLE_CUDASIM:
        raise RuntimeError("the simulator is off: set NUMBA_ENABLE_CUDASIM=1 before numba is first imported")
    if announcement: _to_say.append(announcement)
    if shell() or hasattr(sys, "ps1"): _announce()
    # from here on `cuda` is ours, on the host and in kernels
    host.install()
    cuda.jit = jit
    cuda.__getattr__ = _of_the_running_kernel
    types.Number.__call__ = _cast
    for kind in types.integer_domain | types.real_domain: kind.in_numpy = getattr(np, kind.name)
