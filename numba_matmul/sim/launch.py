"""Numba can run a CUDA kernel in plain Python, with no GPU. Here that simulator learns to catch the mistakes that a GPU lets pass."""
import ast
import copy
import gc
import inspect
import os
import re
import sys
import time
import warnings
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from math import prod
from numbers import Integral
from pathlib import Path
from threading import RLock
from types import SimpleNamespace

import numpy as np
from greenlet import getcurrent
from ..arrays import OptIn, describe, dtype_of, is_torch, placed, rounded
from ..draw import Message
from ..process import ChildError, callees, has_compiler, in_child, kernel_parts, recursion
from .hopper import check_end
from . import host
from .memory import (DYNAMIC_SHARED_LIMIT, STATIC_SHARED_LIMIT, Atomics, GlobalArray,
                                     LocalMemory, SharedMemory, Watch)
from . import memory
from .races import Elements
from .resources import full_capability, library_of, misfit, registers_of
from .scheduler import (FULL_WARP, Again, Block, Grid, SimulatorError, Thread, _line,
                                        _present)
from .types import NONE, Array, is_scalar, type_of
from .calls import ours
from .typing import as_frozen, changed, run_typed, source_tree, typed, unboxed_value
from numba import config, cuda, typeof, types
from numba.core import sigutils, typing
from numba.core.typeconv import Conversion
from numba.cuda.args import ArgHint, InOut
from numba.cuda.simulator import kernel as numba_kernel, kernelapi
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray, sentry_contiguous
from numba.np import numpy_support


# What a kernel sees as `cuda`

class StrictModule(kernelapi.FakeCUDAModule):
    "`cuda` inside a kernel."
    def __init__(self, grid_dim, block_dim):
        super().__init__(grid_dim, block_dim, 0)
        self._local, self._atomic, self._cg = LocalMemory(), Atomics(), CooperativeGroups()

    threadIdx = property(lambda self: getcurrent().threadIdx)
    blockIdx = property(lambda self: getcurrent().blockIdx)
    laneid = property(lambda self: getcurrent().lane)
    shared = property(lambda self: getcurrent().block.memory)

    def syncthreads(self): getcurrent().wait(sys._getframe(1))
    def threadfence(self): self._fence(True, sys._getframe(1))
    def threadfence_system(self): self._fence(True, sys._getframe(1))
    def threadfence_block(self): self._fence(False, sys._getframe(1))
    def _fence(self, whole_gpu, frame):
        thread = getcurrent()
        thread.block.grid.mix(thread, frame)
        thread.fence(whole_gpu)
    def nanosleep(self, ns): getcurrent().let_others_go_on(sys._getframe(1))

    def _count_in_block(self, value, frame):
        thread = getcurrent()
        thread.wait(frame, value=bool(value))
        count = sum(t.given for t in thread.block.threads)
        thread.wait(frame, value=bool(value))  # nobody votes again before all have counted
        return count
    def syncthreads_count(self, value): return self._count_in_block(value, sys._getframe(1))
    def syncthreads_and(self, value):
        return int(self._count_in_block(value, sys._getframe(1)) == len(getcurrent().block.threads))
    def syncthreads_or(self, value): return int(self._count_in_block(value, sys._getframe(1)) > 0)

    def syncwarp(self, mask=FULL_WARP): getcurrent().wait(sys._getframe(1), _present(mask))
    def shfl_sync(self, mask, value, lane):
        return self._shuffle(mask, value, int(lane) % 32, sys._getframe(1))
    def shfl_up_sync(self, mask, value, delta):
        return self._shuffle(mask, value, getcurrent().lane - delta, sys._getframe(1))
    def shfl_down_sync(self, mask, value, delta):
        return self._shuffle(mask, value, getcurrent().lane + delta, sys._getframe(1))
    def shfl_xor_sync(self, mask, value, lanes):
        return self._shuffle(mask, value, getcurrent().lane ^ lanes, sys._getframe(1))
    def all_sync(self, mask, value): return all(self._votes(mask, value, sys._getframe(1)).values())
    def any_sync(self, mask, value): return any(self._votes(mask, value, sys._getframe(1)).values())
    def ballot_sync(self, mask, value):
        votes = self._votes(mask, value, sys._getframe(1))
        return sum(1 << lane for lane, vote in votes.items() if vote)

    def match_any_sync(self, mask, value):
        votes = self._votes(mask, value, sys._getframe(1))
        return sum(1 << lane for lane, other in votes.items() if other == value)
    def match_all_sync(self, mask, value):
        votes = self._votes(mask, value, sys._getframe(1))
        same = all(other == value for other in votes.values())
        return (sum(1 << lane for lane in votes) if same else 0), same
    def lanemask_lt(self): return (1 << getcurrent().lane) - 1

    def _votes(self, mask, value, frame):
        return getcurrent().wait(frame, _present(mask), value, orders=False)
    def _shuffle(self, mask, value, lane, frame):
        given = self._votes(mask, value, frame)
        if not 0 <= lane < 32: return value  # shifted out of the warp: each keeps its own
        if lane not in given:
            why = "has returned" if int(mask) >> lane & 1 else f"is not in the mask {int(mask):#x}"
            raise SimulatorError(f"a shuffle takes the value of lane {lane}, which {why}")
        return given[lane]


class CooperativeGroups:
    "`cuda.cg` inside a kernel: the one group that Numba knows, all threads of the grid."
    def this_grid(self): return self
    def sync(self):
        thread = getcurrent()
        blocks, room = prod(thread.block.grid.grid_dim), thread.block.grid.room()
        if blocks > room:
            raise SimulatorError(f"a barrier of the grid needs all {blocks} blocks at once, and an H100 runs at most {room} "
                                 "with so many threads and so much shared memory: launch fewer blocks, with a loop in each")
        thread.wait_for_grid(sys._getframe(1))
        return 0


# The launch

MAX_THREADS, MAX_BLOCK, MAX_GRID = 1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535)
MAX_SIMULATED = 10**6  # threads of a launch: at 0.1 ms each, nearly two minutes
JIT_OPTIONS = {"device", "inline", "forceinline", "link", "debug", "opt", "lineinfo", "cache",
               "launch_bounds", "lto", "shared_memory_carveout", "fastmath", "max_registers",
               "extensions", "boundscheck"}

def check_size(
    blocks,   # how many are to be simulated
    threads,  # in each
):
    "Refuse a launch that would take too long here."
    if (size := int(blocks) * int(threads)) > MAX_SIMULATED:
        raise SimulatorError(f"{blocks:,} blocks of {threads:,} threads would take the simulator "
                             f"about {size / 600_000:,.0f} minutes, and {MAX_SIMULATED:,} threads "
                             "are its limit: choose a smaller shape (or, with the microscope, some "
                             "of the blocks: blocks=[(0, 0, 0)])")

def _is_whole(x): return isinstance(x, Integral) and not isinstance(x, (bool, np.timedelta64))

def _dimensions(what, given):
    "A grid or a block as three ints of Python, whichever integers were given: numpy's would overflow."
    dims = given if isinstance(given, (tuple, list)) else (given,)
    if len(dims) > 3: raise ValueError(f"the {what} is {given!r}; expected at most three numbers")
    if not all(map(_is_whole, dims)):
        quotient = ": / gives a float, cdiv(n, m) a whole number" if any(isinstance(n, (float, np.floating)) for n in dims) else ""
        raise TypeError(f"the {what} is {given!r}; expected a whole number, or a tuple of up to three{quotient}")
    return (*map(int, dims), *(1,) * (3 - len(dims)))

MAX_PARAMETERS = 32764  # bytes; an array takes 7 numbers of 8, and 2 more for each further dimension

def check_parameters(fn, kinds):
    "Refuse more arguments than a GPU has room for."
    size = 0
    for kind in kinds:
        one = 8 if isinstance(kind, Array) or kind is None else np.dtype(kind).itemsize if is_scalar(kind) else 8
        size = -(-size // one) * one + (40 + 16 * kind.ndim if isinstance(kind, Array) else one)
    if size > MAX_PARAMETERS:
        raise SimulatorError(f"the arguments of {fn.__name__} take {size} bytes, and a launch has room for {MAX_PARAMETERS}")

def all_arguments(fn, args):
    "The arguments of a launch, with the defaults of those left out. Refuses too many and too few."
    code, defaults = fn.__code__, fn.__defaults__ or ()
    names = code.co_varnames[:code.co_argcount]
    if not 0 <= len(names) - len(args) <= len(defaults):
        raise TypeError(f"{fn.__name__} takes {len(names)} argument{'s' * (len(names) != 1)} "
                        f"({', '.join(names)}), and {len(args)} were given: pass one for each name")
    return (*args, *defaults[len(defaults) - len(names) + len(args):])


_one_at_a_time = RLock()   # what runs is one for the process: the module `cuda` in kernels, and what is learned of them
_MASKED = set()            # codes of kernels in which some lanes of a warp meet without the others
_seed = ContextVar("seed", default=None)

@cache
def _stored(fn):
    "Parameters of a function that its text writes into, as far as that can be seen; a launch finds the others."
    names, found = {*fn.__code__.co_varnames[:fn.__code__.co_argcount]}, []
    try: outer = inspect.getclosurevars(fn)
    except ValueError: return names  # a name of an outer function has no value yet
    known = outer.globals | outer.nonlocals
    for node in (node for part in source_tree(fn) or () for node in ast.walk(part)):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store): found.append(node.value)
        if not isinstance(node, ast.Call) or (name := getattr(node.func, "id", "")) in outer.builtins: continue
        callee = known.get(name)
        if isinstance(callee, StrictKernel):
            given = dict(zip(callee.fn.__code__.co_varnames, node.args)) | {x.arg: x.value for x in node.keywords}
            found += [given[x] for x in _stored(callee.fn) & given.keys()]
        elif getattr(callee, "instruction", (None, None))[1] is None: found += node.args[:1]  # no load, which has a result
    return {node.id for node in found if isinstance(node, ast.Name)} & names

@cache
def _learned(fn):
    "Names of arrays that no launch of a kernel has written so far."
    return {*fn.__code__.co_varnames[:fn.__code__.co_argcount]} - _stored(fn)

def _overlap(arrays):
    "Do some of these arrays have memory in common?"
    bounds = sorted(np.lib.array_utils.byte_bounds(array) for array in arrays if array.size)
    return any(start < end for (_, end), (start, _) in zip(bounds, bounds[1:]))

@contextmanager
def interleaved(seed):
    "Launches of the simulator in this context mix their blocks at fences and atomic operations, by a seed."
    token = _seed.set(seed)
    try: yield
    finally: _seed.reset(token)


def _declared(signature):
    "The types of arguments that `cuda.jit` was given, and of the result, for each signature."
    several = signature if isinstance(signature, list) else [signature]
    return [*map(sigutils.normalize_signature, several)]

def _numba_type(arg):
    "The type of an argument as Numba's dispatcher sees it."
    if isinstance(arg, tuple): return types.BaseTuple.from_types([*map(_numba_type, arg)])
    if not isinstance(arg, GlobalArray): return typeof(arg)
    there = arg._item
    layout = "C" if there.is_c_contiguous() else "F" if there.is_f_contiguous() else "A"
    return types.Array(numpy_support.from_dtype(there.dtype), there.ndim, layout)

def _need_type(name, dtype):
    "Refuse numbers that the compiler has no type for."
    if dtype.kind == "O": raise TypeError(f"{name} has elements of type object, and a kernel takes numbers")
    if not dtype.isnative:
        raise TypeError(f"{name} has numbers in the other byte order ({dtype.str}): "
                        f"pass {name}.astype({dtype.newbyteorder('=').str[1:]!r})")
    try: numpy_support.from_dtype(dtype)
    except Exception: raise TypeError(f"{name} is of type {dtype}, which no GPU has: convert it, as in {name}.astype('float64')") from None

def _arrays_in(args):
    "The arrays among arguments, those in tuples too."
    for arg in args:
        if isinstance(arg, GlobalArray): yield arg
        elif isinstance(arg, tuple): yield from _arrays_in(arg)

def _as(kind, arg):
    "A number as the type that a signature gives it; all else as it is."
    if isinstance(kind, types.BaseTuple): return tuple(map(_as, kind, arg))
    if not isinstance(kind, (types.Number, types.Boolean)): return arg
    try: return getattr(np, "bool_" if isinstance(kind, types.Boolean) else kind.name)(arg)
    except OverflowError: raise SimulatorError(f"{arg} is no {kind}, which the signature asks for") from None

WORST_FIRST = Conversion.unsafe, Conversion.safe, Conversion.promote


def as_declared(name, signature, args):
    """The arguments of a launch as the signature of a kernel has them: numbers get its types, arrays must have them.
    `TypeError` where a GPU would refuse the launch."""
    declared, given = [kinds for kinds, _ in _declared(signature)], tuple(map(_numba_type, args))
    can_convert, fitting = typing.Context().can_convert, {}
    for kinds in declared:
        found = [can_convert(one, other) for one, other in zip(given, kinds)]
        if len(kinds) == len(given) and None not in found:  # as Numba rates them: first, that few lose something
            fitting.setdefault(tuple(map(found.count, WORST_FIRST)), []).append(kinds)
    best = fitting[min(fitting)] if fitting else []
    if len(best) != 1:
        wanted = " or ".join(f"({', '.join(map(str, kinds))})" for kinds in declared)
        raise TypeError(f"{name} was compiled for {wanted}, and is launched with ({', '.join(map(str, given))}): "
                        + ("more than one fits as well" if best else "leave the signature out, or pass those types"))
    return [*map(_as, best[0], args)]


class _PrintedOnce:
    "Where a launch prints: one that starts over prints the same again, which is left out."
    def __init__(self, out): self.out, self.shown, self.at = out, 0, 0
    def write(self, text):
        new, self.at = text[max(0, self.shown - self.at):], self.at + len(text)
        self.shown = max(self.shown, self.at)
        if self.out: self.out.write(new)  # a program may have no stdout
    def again(self): self.at = 0
    def __getattr__(self, name): return getattr(self.out, name)


class Progress:
    "How far a launch has come. A long one says so on stderr, now and then."
    def __init__(self, launch):
        self.launch, self.begun, self.since = launch, 0, time.perf_counter()
        self.blocks, self.said, self.half_way = len(launch.blocks or ()) or prod(launch.grid_dim), 0, None

    @property
    def seconds(self): return time.perf_counter() - self.since

    def next_block(self):
        seconds, done = self.seconds, self.begun
        self.begun += 1
        if done and seconds > 2 * self.said and (seconds > 10 or not self.said and seconds * self.blocks > 60 * done):
            self.said = seconds
            print(f"{self.launch.__name__} in the simulator: {self}. A smaller shape takes less.", file=sys.stderr)

    def note(self):
        "In the middle of the time that there is: what will have changed, unless it is stuck?"
        self.half_way = self._state()

    def _state(self):
        threads = [thread for block in self.launch.grid.started for thread in block.threads]
        return self.begun, sum(thread.dead for thread in threads), sum(thread.barriers for thread in threads)

    def __str__(self):
        all_of_it, done = self.seconds * self.blocks / max(1, self.begun - 1), self.begun - 1
        estimate = f", about {all_of_it:,.0f} s in all" if done else ""
        return f"block {self.begun} of {self.blocks} after {self.seconds:.0f} s{estimate}"

    def why_late(self, frame):
        "What to think about, when its time is over, and where it is."
        while frame and (frame.f_globals.get("__name__") or "").startswith(("numba_matmul.sim.", "numba_matmul.ptx.")): frame = frame.f_back
        line = f" It's at {_line(frame.f_code, frame.f_lineno)}" if isinstance(getcurrent(), Thread) and frame else ""
        if self._state() == self.half_way:
            return f"{self}, and nothing has changed for half of that time: does a loop never end?{line}"
        return f"{self}. It's slow, but it goes on: launch a smaller shape, or give it more time, timeout=….{line}"


class StrictKernel(numba_kernel.FakeCUDAKernel):
    "What `@cuda.jit` returns in the strict simulator."
    def __init__(self, fn, options):
        device, fastmath = options.get("device", False), options.get("fastmath", False)
        super().__init__(fn, device=device, fastmath=fastmath)
        self.options, self.blocks = options, None  # blocks: run only these

    def __getitem__(self, configuration):
        if not isinstance(configuration, tuple) or len(configuration) not in (2, 3, 4):
            raise ValueError(f"{self.__name__}[{configuration!r}] is no launch: it takes {self.__name__}[grid, block], "
                             "and after those, if you want, a stream and the bytes of dynamic shared memory")
        grid, block, stream, size = (*configuration, 0, 0)[:4]
        launch = copy.copy(self)  # so that two configurations of one kernel are two
        launch.grid_dim, launch.block_dim = _dimensions("grid", grid), _dimensions("block", block)
        if stream and not isinstance(stream, host.Stream):
            raise TypeError(f"the stream is {stream!r}; expected cuda.stream(), or 0")
        if not _is_whole(size):
            raise TypeError(f"the dynamic shared memory is {size!r}; expected bytes, a whole number")
        launch.dynshared_size = size if isinstance(size, OptIn) else int(size)
        return launch

    def __call__(self, *args):
        if self._device or isinstance(getcurrent(), Thread): return run_typed(self.fn, *args)
        _announce()
        with _one_at_a_time: self._simulate(args)

    def _simulate(self, args):
        self._check_limits()
        args, write_back = all_arguments(self.fn, args), []
        args = [self._argument(arg, write_back, name)
                for arg, name in zip(args, self.fn.__code__.co_varnames)]
        if signature := self.options.get("signature"): args = as_declared(self.__name__, signature, args)
        typed_launch, kinds = copy.copy(self), tuple(map(type_of, args))
        check_parameters(self.fn, kinds)
        typed_launch.fn, result = typed(self.fn, kinds)
        for text in changed(typed_launch.fn): warnings.warn(text, stacklevel=3)
        if result not in (NONE, None):
            raise SimulatorError(f"{self.__name__} returns a value, and a kernel cannot: "
                                 "write it into an array")
        args = [unboxed_value(arg) for arg in args]
        arrays = [*_arrays_in(args)]
        before = [array._item._ary.copy() for array in arrays]
        printed = _PrintedOnce(sys.stdout)
        while True:
            try:
                with redirect_stdout(printed): self._run(typed_launch, args, arrays)
            except Again as e:  # start over, and note what was not noted
                printed.again()
                _learned(self.fn).discard(str(e))
                if str(e) == "masked": _MASKED.add(self.fn.__code__)
                for array, values in zip(arrays, before): array._item._ary[...] = values
            else: break
        for copy_back in write_back: copy_back()

    def _run(self, launch, args, arrays):
        "Run the blocks once. Of arrays that no launch has written so far, nothing is noted."
        self.grid = grid = Grid(launch, Elements(), _seed.get())
        self.arrays = arrays
        grid.masked, learned = self.fn.__code__ in _MASKED, _learned(self.fn)
        all_noted = _overlap(array._item._ary for array in arrays)
        for array in arrays:
            array.begin(noted=not memory.recorder and (all_noted or array.name not in learned))
        indices = self.blocks or (index[::-1] for index in np.ndindex(*reversed(self.grid_dim)))
        cuda_here, collector = StrictModule(self.grid_dim, self.block_dim), gc.get_threshold()
        progress = cuda_here.progress = Progress(self)
        def start(index):
            progress.next_block()
            return Block(grid, index, args, SharedMemory(self.dynshared_size))
        def end(block):
            self._check_shared(block.memory.static_bytes)
            check_end(block)
        gc.set_threshold(50_000, 20, 20)  # a block's notes are many small objects, hardly any of them garbage
        try:
            with numba_kernel._push_kernel_context(cuda_here): grid.run(indices, start, end)
        except SimulatorError as e: grid.races[None] = SimulatorError(str(e), e.kind, **e.data)  # without its traceback
        finally: gc.set_threshold(*collector)
        if grid.races:
            first = next(iter(grid.races.values()))  # what ended the launch comes last
            raise SimulatorError("\n".join(filter(None, map(str, grid.races.values()))), first.kind, **first.data)
        grid.stores = {array.name: array.watch.stores for array in arrays}
        if not self.blocks and not memory.recorder:
            learned.update(array.name for array in arrays if not array.watch.stores)

    configure = lambda self, *configuration: self[configuration]
    def forall(self, ntasks, tpb=0, stream=0, sharedmem=0):
        if ntasks < 0: raise ValueError(f"Can't create ForAll with negative task count: {ntasks}")
        threads = tpb or 128  # a GPU asks its driver for a number
        return self[-(-ntasks // threads), threads, stream, sharedmem] if ntasks else lambda *args: None
    def __getattr__(self, name):
        raise AttributeError(host.no_name_of_kernel(self, name) if "fn" in vars(self) and name[:2] != "__" else name)

    def _check_limits(self):
        if self.grid_dim is None:
            raise ValueError(f"launch {self.__name__} as {self.__name__}[grid, block](…)")
        if found := recursion(self.fn): raise SimulatorError(found)
        threads, bounds = prod(self.block_dim), self.options.get("launch_bounds")
        bound = bounds[0] if isinstance(bounds, tuple) else bounds
        if threads > MAX_THREADS:
            raise SimulatorError(f"a block of {threads} threads, and the most is {MAX_THREADS}")
        limits = ("grid", self.grid_dim, MAX_GRID), ("block", self.block_dim, MAX_BLOCK)
        for what, dims, most in limits:
            if not all(0 < n <= limit for n, limit in zip(dims, most)):
                raise SimulatorError(f"a {what} of {tuple(dims)}: "
                                     f"each dimension must be at least 1 and at most {most}")
        if bound and threads > bound:
            raise SimulatorError(f"a block of {threads} threads "
                                 f"breaks the promise launch_bounds={bounds}")
        if not 0 <= self.dynshared_size <= DYNAMIC_SHARED_LIMIT:
            raise SimulatorError(f"{self.dynshared_size} bytes of dynamic shared memory, "
                                 f"and a block of sm_90 may have {DYNAMIC_SHARED_LIMIT}")
        self._check_shared(0)
        check_size(len(self.blocks) if self.blocks else prod(self.grid_dim), threads)

    def _check_shared(self, static):
        if not self.dynshared_size or isinstance(self.dynshared_size, OptIn): return
        if (both := static + self.dynshared_size) > STATIC_SHARED_LIMIT:
            raise SimulatorError(f"{both} bytes of shared memory, {static} of them static, and a plain launch may have "
                                 f"{STATIC_SHARED_LIMIT}: for more, up to {DYNAMIC_SHARED_LIMIT} on an H100, the driver "
                                 "must be told first, as with_shared_memory in numba_matmul.gemm.limits does")

    def _argument(self, arg, write_back, name=""):
        "`arg` as the kernel sees it."
        if isinstance(arg, tuple):
            parts = [self._argument(part, write_back, f"{name}[{i}]") for i, part in enumerate(arg)]
            return type(arg)(*parts) if hasattr(arg, "_fields") else tuple(parts)
        if isinstance(arg, host.HostArray): arg = FakeCUDAArray(arg.view(np.ndarray))  # the GPU reads that memory itself
        if isinstance(arg, np.ndarray): arg = InOut(arg)
        if isinstance(arg, ArgHint): arg = arg.to_device(write_back)
        if isinstance(arg, FakeCUDAArray):
            _need_type(name, arg.dtype)
            return GlobalArray(arg, name, watch=Watch(True))
        if isinstance(arg, float) and not isinstance(arg, np.generic): return np.float64(arg)  # as compiled
        if is_torch(arg) or isinstance(arg, list):
            raise TypeError(f"{name} is a {describe(arg)}, which a kernel can't take: pass to_d({name})")
        if not isinstance(arg, (int, complex, np.generic)):
            raise TypeError(f"{name} is a {describe(arg)}, and a kernel takes device arrays and numbers")
        if isinstance(arg, (np.str_, np.bytes_)): raise TypeError(f"{name} is a {describe(arg)}, and a kernel takes numbers")
        if isinstance(arg, np.generic): _need_type(name, arg.dtype)
        elif isinstance(arg, int) and not -2**63 <= arg < 2**64:
            raise TypeError(f"{name} is {arg}, and the largest integers have 64 bits")
        return arg


def jit(function_or_signature=None, **options):
    "`cuda.jit` of the strict simulator. It accepts every option of the compiler and keeps it."
    unknown = options.keys() - JIT_OPTIONS
    if unknown: raise TypeError(f"cuda.jit has no option {', '.join(sorted(unknown))}")
    if inspect.isfunction(function_or_signature):
        return StrictKernel(function_or_signature, options)
    if function_or_signature is not None:
        for _, result in _declared(function_or_signature):  # refused at once, if it is no signature
            if result not in (None, types.void) and not options.get("device"):
                raise TypeError(f"the signature says that a kernel returns {result}, and it cannot: begin with void(")
        options["signature"] = function_or_signature
    def decorate(fn):
        for kinds, _ in _declared(options["signature"]) if "signature" in options else ():
            with suppress(SimulatorError): typed(fn, tuple(map(ours, kinds)))  # now it reads the names from outside
        return StrictKernel(fn, options)
    return decorate

def _of_the_running_kernel(name):
    "What the module `cuda` answers for a name that it has only inside a kernel."
    running = numba_kernel._get_kernel_context()
    if running is None: raise AttributeError(host.no_name_of_cuda(name, dir(StrictModule((1, 1, 1), (1, 1, 1)))))
    return getattr(running, name)

def _cast(kind, *args):
    "`uint32(x)` in a kernel, and all its kin: Numba's own way is long, and kernels are full of these."
    if len(args) == 1:
        value, in_numpy = args[0], kind.__dict__.get("in_numpy")
        if type(value) is in_numpy: return value
        if isinstance(value, (int, float, complex, np.generic)):
            return in_numpy(value) if in_numpy else kind.cast_python_value(value)
    return types.Type.__call__(kind, *args)

_to_say = []  # at the first launch

def _announce():
    while _to_say: print(_to_say.pop(), file=sys.stderr)

def _ipython(): return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()

def install(
    announcement=None,  # for stderr: who works interactively sees it at once, a program when it launches a kernel
):
    "Make the simulator strict. Kernels decorated from now on are checked."
    if not config.ENABLE_CUDASIM:
        raise RuntimeError("the simulator is off: "
                           "set NUMBA_ENABLE_CUDASIM=1 before numba is first imported")
    if announcement: _to_say.append(announcement)
    if _ipython() or hasattr(sys, "ps1"): _announce()
    host.install()
    cuda.jit = jit
    cuda.__getattr__ = _of_the_running_kernel
    types.Number.__call__ = _cast
    for kind in types.integer_domain | types.real_domain: kind.in_numpy = getattr(np, kind.name)


# Cells that cannot run here

def _read_only(lines):
    "What to say of a `%%writefile` cell whose file cannot be written; an empty list for all else."
    magic, *words = "".join(lines[:1]).split() or [""]
    path = Path(words[-1] if words else ".")
    place = path if path.exists() else path.parent
    if magic != "%%writefile" or not place.exists() or os.access(place, os.W_OK): return []
    what = "file" if place == path else "folder"
    return [f"{Path(*path.parts[-2:])} was not written: the {what} is read-only."]

def skip_cells():
    "Under IPython, replace cells that cannot run here by one line that says so."
    missing = {"#|cuda": "a GPU"} if config.ENABLE_CUDASIM else {}
    if not has_compiler(): missing["#|compiler"] = "numba-cuda, which is not installed"
    shell = _ipython()
    if shell is None: return
    def skip(lines):
        marks = {line.replace(" ", "").strip() for line in lines} & missing.keys()
        said = [f"Skipped: this cell needs {missing[mark]}." for mark in marks] or _read_only(lines)
        return [f"print({text!r})\n" for text in said] or lines
    shell.input_transformers_cleanup.append(skip)


# Simulate and diagnose

def _launch_in_several_orders(launch, args):
    "Remarks on a kernel. If its blocks talk to each other, they are mixed in a few ways, and results compared."
    first, odd = None, []
    for seed in (None, *range(1, 6)):
        given = copy.deepcopy(args)
        with interleaved(seed), redirect_stdout(None if seed else sys.stdout): launch(*given)
        if not seed:
            first, extents = given, [blocks * threads for blocks, threads in zip(launch.grid_dim, launch.block_dim)]
            odd = [text for fn in callees(launch.fn) for text in _looks_odd(fn, extents)] + [*_unwritten(launch)]
        if not launch.grid.talks: break
        differ = [_differ(*pair) for pair in zip(launch.fn.__code__.co_varnames, first, given) if np.ndim(pair[1])]
        if any(differ): return sorted({*launch.grid.remarks.values(), *odd, *filter(None, differ)})
    return sorted({*launch.grid.remarks.values(), *odd})

def _differ(name, one, other):
    "What to say of results of two orders that differ by more than sums do that are rounded in another order."
    one, other = (x.copy_to_host() if isinstance(x, FakeCUDAArray) else x for x in (one, other))
    if one.dtype.kind not in "fiub": return
    if one.dtype.kind == "f":
        near = np.finfo(one.dtype).eps ** 0.6
        scale = np.abs(one[np.isfinite(one)]).max(initial=0)
        same = np.isclose(one, other, near, near * scale, equal_nan=True)
    elif one.dtype == np.uint16: same = np.abs(one.astype(int) - other) <= 1  # perhaps bfloat16
    else: same = one == other
    if same.all(): return
    at = tuple(map(int, np.argwhere(~same)[0]))
    return (f"the result depends on which thread or block comes first: {name}[{', '.join(map(str, at))}] is {one[at]} "
            f"in one order and {other[at]} in another")


class _InChild(tuple):
    "What `placed` takes: in a child it is that array."
    def __reduce__(self): return placed, tuple(self)

def _on_host(args):
    "A GPU's arrays among these arguments as arrays of a child, which share memory where these do."
    args = [cuda.as_cuda_array(arg.detach()) if is_torch(arg) and arg.is_cuda else arg for arg in args]
    spans, end = {}, 0
    for i, arg in enumerate(args):
        if getattr(arg, "__cuda_ndarray__", False) and not isinstance(arg, FakeCUDAArray) and arg.size:
            first = arg.__cuda_array_interface__["data"][0]
            ends = [(n - 1) * step for n, step in zip(arg.shape, arg.strides)]
            spans[i] = first + sum(min(0, x) for x in ends), first + sum(max(0, x) for x in ends) + arg.dtype.itemsize, first
    groups = []
    for i in sorted(spans, key=spans.get):
        if spans[i][0] >= end: groups.append([])
        groups[-1].append(i)
        end = max(end, spans[i][1])
    for group in groups:
        start, stop = spans[group[0]][0], max(spans[i][1] for i in group)
        whole = dict(shape=(stop - start,), typestr="|u1", data=(start, False), version=3)
        memory = cuda.from_cuda_array_interface(whole, args[group[0]]).copy_to_host()
        for i in group: args[i] = _InChild((memory, spans[i][2] - start, args[i].shape, args[i].strides, args[i].dtype))
    return args


def check_launch(launch, args):
    """A launch as it would run, with what its kernel has read, and its arguments, for a child. Refuses what is no kernel with
    its configuration, or has other arguments."""
    parts = kernel_parts(launch)
    if parts is None:
        name = getattr(launch, "__name__", repr(launch))
        raise TypeError(f"{name} is no kernel: pass kernel[grid, block], where `kernel` is a "
                        "function decorated with @cuda.jit")
    fn, options, configuration = parts
    if options.get("device"):
        raise TypeError(f"{fn.__name__} is a device function: pass a kernel that calls it")
    if not configuration:
        raise ValueError(f"{fn.__name__} needs a launch configuration: {fn.__name__}[grid, block]")
    all_arguments(fn, args)
    for arg in args:  # a child would get a copy of a view, and a launch takes none
        if isinstance(arg, np.ndarray): sentry_contiguous(arg)
    if not isinstance(launch, StrictKernel): return launch, _on_host(args)
    frozen = copy.copy(launch)
    frozen.fn = as_frozen(fn, tuple(map(type_of, all_arguments(fn, args))))
    return frozen, args

def _launch(launch, args):
    launch(*args)
    return tuple(np.asarray(arg) for arg in args if isinstance(arg, (np.ndarray, FakeCUDAArray)))

def _says_nothing(statement):
    "Is this an expression that calls nothing, and whose value nobody takes? The text of a document string is none."
    return (isinstance(statement, ast.Expr) and not isinstance(statement.value, ast.Constant)
            and not any(isinstance(node, ast.Call) for node in ast.walk(statement)))

def _looks_odd(fn, extents):
    "Remarks on the source of a function of a kernel. extents: threads of the launch along x, y and z."
    nodes = [node for statement in source_tree(fn) or () for node in ast.walk(statement)]
    sliced = {id(node.value) for node in nodes if isinstance(node, ast.Subscript)}
    dynamic = [node for node in nodes if isinstance(node, ast.Call) and id(node) not in sliced and node.args
               and ast.unparse(node.func).endswith("shared.array") and getattr(node.args[0], "value", None) == 0]
    if len(dynamic) > 1:
        yield (f"{len(dynamic)} dynamic shared arrays of {fn.__name__} begin at the same byte, the last at "
               f"{_line(fn.__code__, dynamic[-1].lineno)}; slice one array, both[:n] and both[n:]")
    others = {node.attr for node in nodes if isinstance(node, ast.Attribute)} & {"y", "z"}
    for node in nodes:
        where = _line(fn.__code__, node.lineno) if hasattr(node, "lineno") else ""
        if _says_nothing(node):
            cure = ("assign by =" if isinstance(node.value, ast.Compare) else
                    f"call it, {ast.unparse(node.value)}()" if isinstance(node.value, ast.Attribute) else "is it a call or an assignment?")
            yield f"{ast.unparse(node.value)} does nothing, at {where}; {cure}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "grid" and node.args:
            axes = getattr(node.args[0], "value", 0)
            if axes in (2, 3) and extents[axes - 1] == 1 < extents[0]:
                yield (f"cuda.grid({axes}) in a launch with one thread along {'xyz'[axes - 1]}, where its index is always 0, "
                       f"at {where}; give grid and block {axes} numbers each")
            if axes == 1 and max(extents[1:]) > 1 and not others:
                yield (f"cuda.grid(1) counts along x alone, and {extents[1] * extents[2]} threads of this launch have "
                       f"each of its values, at {where}")


def _unwritten(launch):
    "Remarks on arrays that a launch was given and has not written, or not wholly."
    fn, written = launch.fn, {array.name for array in launch.arrays if array.watch.stores}
    nodes = [node for statement in source_tree(fn) or () for node in ast.walk(statement)]
    stored = {node.value.id for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
              and isinstance(node.value, ast.Name)}
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    for array in launch.arrays:
        if array.name in stored - written: yield f"{array.name} was never written: no thread came to a line that does"
        elif array.name.isidentifier() and nodes and array.name not in used: yield f"{array.name} is never used"
        if array.name not in written: continue
        first = array.first_byte + array.base
        places = first + np.tensordot(array.strides, np.indices(array.shape), 1).ravel()
        elements = launch.grid.elements
        gaps = [i for i, place in enumerate(places.tolist()) if place not in elements or elements[place].write is None]
        if gaps:
            index = ", ".join(map(str, np.unravel_index(gaps[0], array.shape)))
            were = "was" if len(gaps) == 1 else "were"
            yield f"{len(gaps)} of {array.size} elements of {array.name} {were} never written: the first is {array.name}[{index}]"

def _refused(launch, args, signature):
    "In a child with the compiler: why it, or the driver, refuses a kernel, in a line; `None` if neither does."
    from numba.cuda.cudadrv.error import CudaSupportError
    fn, _, (_, block, *_) = kernel_parts(launch)
    several = [kinds for kinds, _ in _declared(signature)] if signature else [tuple(map(launch.dispatcher.typeof_pyval, args))]
    try: libraries = [library_of(launch.dispatcher, kinds, (9, 0)) for kinds in several]
    except CudaSupportError: return  # it asks for a driver, and there is none
    except Exception as e:
        text = re.sub(r"\x1b\[[0-9;]*m", "", str(e))
        lines = [line.strip() for line in text.splitlines() if line.strip() and "pipeline (step:" not in line]
        where = re.findall(r", line (\d+)", text)
        what = " ".join(lines[:2] if lines and lines[0].endswith("signature:") else lines[:1]) or type(e).__name__
        line = f", in {_line(fn.__code__, int(where[0]))}" if where else ""
        return f"the compiler refuses {fn.__name__}: {what}{line}"
    if prod(block) <= 256: return  # each may have all of the 255 registers that a thread can have
    for library in libraries:
        if found := misfit(prod(block), registers_of(library.get_cubin(cc=full_capability((9, 0))).code)):
            return f"{fn.__name__} can't be launched: {found}"

def simulate(
    launch,      # a kernel with its configuration: `kernel[grid, block]`
    *args,       # arrays (numpy or device) and numbers
    timeout=60,  # seconds
):
    "Launch in a child; returns the arrays as the kernel left them. `SimulatorError` at a mistake."
    return in_child(_launch, *check_launch(launch, args), simulator=True, timeout=timeout, keep=True)

PROMISE = ("That's for this launch alone, and the result wasn't checked: for a product, "
           "assert_matmul_correct(a, b, c) does that.")


def diagnose(
    launch,      # a kernel with its configuration: `kernel[grid, block]`
    *args,       # arrays (numpy or device) and numbers
    timeout=60,  # seconds
):
    """Launch in a child with the strict simulator and say what is wrong with the kernel, as text. If
    nothing is, a second child compiles it, for arguments of these types. What the kernel prints is shown."""
    launch, given = check_launch(launch, args)
    in_simulator = dict(simulator=True, timeout=timeout, keep=True)
    try: remarks = in_child(_launch_in_several_orders, launch, given, **in_simulator)
    except (SimulatorError, ChildError) as e: return Message(e)
    remarks = [PROMISE, *(f"By the way: {remark}." for remark in remarks)]
    if not has_compiler():
        return Message("\n".join(["No mistake found. It was not compiled: numba-cuda is not installed.", *remarks]))
    fn, options, _ = kernel_parts(launch)
    args = [np.empty((0,) * arg.ndim, arg.dtype) if getattr(arg, "ndim", 0) else arg
            for arg in all_arguments(fn, args)]
    refused = in_child(_refused, launch, args, options.get("signature"), simulator=False, timeout=timeout, keep=True)
    return Message("\n".join([refused, *remarks[1:]] if refused else ["No mistake found.", *remarks]))


# Which kernel does a function launch?

@dataclass
class NotedLaunch:
    "What a host function asks the GPU to do."
    kernel: object
    grid: tuple
    block: tuple
    dynamic_bytes: int  # of shared memory
    signature: str      # types of the arguments
    args: tuple

    def __repr__(self):
        return (f"{self.kernel.py_func.__name__}[{self.grid}, {self.block}] with "
                f"{self.dynamic_bytes} bytes of dynamic shared memory, {self.signature}")
    @property
    def configured(self): return self.kernel[self.grid, self.block, 0, self.dynamic_bytes]

def _type_text(arg):
    "The type of a kernel's argument, as Numba writes it in a signature."
    if isinstance(arg, GlobalArray):
        axes = [":"] * arg.ndim
        if arg._item.is_c_contiguous(): axes[-1] = "::1"
        return f"{arg.dtype}[{', '.join(axes)}]"
    if isinstance(arg, tuple):
        kinds = [_type_text(part) for part in arg]
        return f"UniTuple({kinds[0]}, {len(kinds)})" if len(set(kinds)) == 1 else f"Tuple(({', '.join(kinds)}))"
    if isinstance(arg, (bool, np.bool_)): return "boolean"
    if isinstance(arg, int): return "int64"
    return str(np.asarray(arg).dtype)

def _note_launches(fn, args):
    "In a child: call `fn(*args)`, and return the launches that it asks for."
    noted, call = [], StrictKernel.__call__
    def note(launch, *args):
        if launch.grid_dim is None: return launch.fn(*args)
        args = all_arguments(launch.fn, args)
        types = ", ".join(_type_text(launch._argument(arg, [])) for arg in args)
        noted.append(NotedLaunch(StrictKernel(launch.fn, launch.options), launch.grid_dim,
                            launch.block_dim, launch.dynshared_size, f"void({types})", args))
    StrictKernel.__call__ = note
    try: fn(*(cuda.to_device(arg) if isinstance(arg, np.ndarray) else arg for arg in args))
    finally: StrictKernel.__call__ = call
    return noted

def _name_of(fn): return getattr(fn, "func", fn).__name__


def launch_of(
    fn,     # host function (a, b)
    shape,  # m, n, k
) -> NotedLaunch:
    "The kernel that a host function launches for matrices of this shape."
    kernel = kernel_parts(fn)
    if kernel or not callable(fn):
        given = f"the kernel {kernel[0].__name__}" if kernel else repr(fn)
        raise TypeError(f"expected a host function, which launches a kernel, got {given}")
    try: inspect.signature(fn).bind("a", "b")
    except TypeError:
        raise TypeError(f"{_name_of(fn)}{inspect.signature(fn)} is no host function, which takes two "
                        "matrices (a, b): if it is a kernel, decorate it with @cuda.jit") from None
    if np.shape(shape) != (3,) or not all(isinstance(x, Integral) and x >= 0 for x in shape):
        raise ValueError(f"expected a shape (m, n, k), three whole numbers, got {shape!r}")
    m, n, k = shape
    a, b = (rounded(np.random.randn(*size), dtype_of(fn)) for size in ((m, k), (k, n)))
    noted = in_child(_note_launches, fn, (a, b), simulator=True, keep=True)
    if len(noted) != 1:
        names = ", ".join(launch.kernel.py_func.__name__ for launch in noted) or "none"
        raise ValueError(f"{_name_of(fn)} launches {len(noted)} kernels for {m}×{n}×{k}, "
                         f"not one: {names}")
    return noted[0]
