"""A call as a value: which kernels it launches, with what, and in which workspace.

A host function checks three matrices, chooses tile and blocks, finds the compiled kernel and packs its
arguments. That takes far longer than a launch, but follows from shapes, types, alignments, alpha, beta and
options alone. So `run` has it worked out at the first call of a kind, as a `Plan`, and keeps it with its
arguments packed: the next call only puts its addresses there. Whether C overlaps A or B depends on the
addresses, and is checked at each call. Where anything is unusual, a plan is made anew, or refused with the
reason.
"""
import ctypes
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import copy
from functools import lru_cache
from importlib import import_module
from threading import Lock
from types import CodeType, FunctionType, ModuleType
from typing import NamedTuple

import numpy as np
from numba import config

from ..arrays import OptIn, array_like, cdiv, current_gpu, is_torch
from ..ptx.hopper import MAP_WORDS, WORDS_BEFORE
from .args import gemm_args, span
from .limits import LAUNCH_NUMBERS, allow_shared_memory, launch_number, need_shared_memory
from .tensor_maps import TensorMapWords, ask_driver

SECONDS_SIMULATED = 1e-6  # for a multiply-add in float32


class Launch(NamedTuple):
    "A kernel and what it is launched with."
    kernel: Callable      # as `@cuda.jit` made it
    blocks: int | tuple   # of the grid
    threads: int | tuple  # of a block
    args: tuple  # arrays, tuples of them, numpy scalars; `TensorMapWords`, first, `launch_number`
    shared_bytes: int = 0      # dynamic shared memory per block; more than 48 KB, too
    cooperative: bool = False  # do blocks wait for each other? Then all of them start at once, or none yet


class Plan(NamedTuple):
    "What a call does, for all matrices of these shapes and types."
    launches: Sequence = ()   # of `Launch`
    workspace: Sequence = ()  # arrays in their arguments that are neither A nor B nor C
    delegate: Callable = None  # a host function that multiplies in place of this one


def kernel_args(launch: Launch) -> list:
    "The arguments of a `Launch` as its kernel takes them. `TypeError` for tensor maps behind others."
    if any(isinstance(arg, TensorMapWords) for arg in launch.args[1:]):
        raise TypeError("tensor maps are the second argument or a later one; expected them as the first: "
                        "kernels look for them at the beginning of their parameters")
    return [arg() if arg is launch_number else getattr(arg, "words", arg) for arg in launch.args]


class LaunchConfig(NamedTuple):
    "How a host function is to launch its kernel, where an estimate decides."
    tile: tuple
    blocks: int       # of the grid
    split_k: int = 1  # parts that each sum is cut into
    padded: str = ""  # names of matrices to copy into longer rows first


# In the simulator

def simulate_plan(plan: Plan):
    "Launch all of a `Plan` in the simulator."
    for launch in plan.launches:
        need_shared_memory(launch.shared_bytes)
        size = OptIn(launch.shared_bytes) if launch.shared_bytes else 0
        launch.kernel[launch.blocks, launch.threads, 0, size](*kernel_args(launch))


def _warn_of_minutes(g):
    "Say so where the simulator will take minutes."
    seconds = g.m * g.n * g.k * SECONDS_SIMULATED if g.alpha and g.a.dtype == np.float32 else 0
    if seconds > 60:
        warnings.warn(f"a product of {g.m}×{g.n}×{g.k} takes the simulator about {seconds / 60:,.0f} "
                      "minutes: try a smaller one", stacklevel=4)


# On a GPU

def _three(sizes):
    "Blocks or threads along x, y and z."
    sizes = tuple(map(int, np.atleast_1d(sizes)))
    return (*sizes, 1, 1)[:3]


class PackedLaunch:
    """A launch whose arguments are packed as the driver takes them, and which knows where the addresses in
    them come from."""
    def __init__(
        self,
        launch: Launch,
        buffers: list,  # (first, end) of each buffer that its arguments lie in, see `span`
        order: Sequence = None,  # number of the buffer of each array and tensor map; if None, by address
    ):
        from cuda.bindings import driver as b
        # the kernel, compiled
        need_shared_memory(launch.shared_bytes)
        compiled = launch.kernel.compile(tuple(map(launch.kernel.typeof_pyval, kernel_args(launch))))
        if launch.shared_bytes: allow_shared_memory(compiled, launch.shared_bytes)
        handle = compiled._codelibrary.get_cufunc().handle  # numba-cuda has no public way to it
        function = ask_driver(b.cuKernelGetFunction, handle) if isinstance(handle, b.CUkernel) else handle
        self.kept = compiled, function

        # how it is launched
        self.config = b.CUlaunchConfig()
        self.stream = None
        self.config.gridDimX, self.config.gridDimY, self.config.gridDimZ = _three(launch.blocks)
        self.config.blockDimX, self.config.blockDimY, self.config.blockDimZ = _three(launch.threads)
        self.config.sharedMemBytes = launch.shared_bytes
        if launch.cooperative:
            attribute = b.CUlaunchAttribute()
            attribute.id = b.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            self.config.attrs = [attribute]
            self.config.numAttrs = 1

        # its parameters, and where among them what changes from call to call is
        self.addresses, self.maps, self.numbers = [], [], []
        self._set_parameters(self._parameters_of(launch.args, buffers, order and iter(order)))
        self.arguments = self.config.getPtr(), int(function), ctypes.addressof(self.pointers), None

    def _parameters_of(self, args, buffers, order):
        "The arguments as Numba's kernels expect them: numbers of 8 bytes each."
        parameters = []
        def source(x):
            "The number of the buffer that an array lies in, and how far from its start."
            address, _ = span(x)
            if order: number = next(order)
            else: number = next(i for i, (first, end) in enumerate(buffers) if first <= address < end)
            return number, address - buffers[number][0]
        def pack(x):
            if isinstance(x, tuple):
                for part in x: pack(part)
            elif isinstance(x, TensorMapWords):
                for number, array in enumerate(x.arrays):
                    first = len(parameters) + WORDS_BEFORE + MAP_WORDS * number
                    self.maps.append([first, *source(array), None])
                parameters.extend(map(int, x.words))
            elif hasattr(x, "device_ctypes_pointer"):
                if x.nbytes: self.addresses.append((len(parameters) + 4, *source(x)))
                parameters.extend([0, 0, x.size, x.dtype.itemsize, 0, *x.shape, *x.strides])
            elif x is launch_number:
                self.numbers.append(len(parameters))
                parameters.append(0)
            else: parameters.append(int.from_bytes(np.asarray(x).tobytes(), "little"))
        pack(args)
        return parameters

    def _set_parameters(self, parameters):
        "Put them into memory where the driver can read them, tensor maps at multiples of 64 bytes."
        count = len(parameters)
        self.memory = ctypes.create_string_buffer(8 * count + 64)
        start = ctypes.addressof(self.memory)
        start += -(start + 8 * WORDS_BEFORE) % 64
        self.parameters = (ctypes.c_uint64 * count).from_address(start)
        self.parameters[:] = parameters
        self.pointers = (ctypes.c_void_p * count)(*(start + 8 * i for i in range(count)))
        for tensor_map in self.maps: tensor_map[0] = start + 8 * tensor_map[0]

    def __call__(
        self,
        buffers: Sequence,  # their addresses
        stream: int,
    ):
        parameters = self.parameters
        for at, number, offset in self.addresses: parameters[at] = buffers[number] + offset
        for tensor_map in self.maps:
            at, number, offset, last = tensor_map
            address = buffers[number] + offset
            if address != last:
                if _move_map(at, address): ask_driver(_move_map, at, address)
                tensor_map[3] = address
        for at in self.numbers: parameters[at] = next(LAUNCH_NUMBERS)
        if stream != self.stream: self.config.hStream = self.stream = stream
        if _launch(*self.arguments): ask_driver(_launch, *self.arguments)  # which takes longer


def _of_driver(name, count):
    "A function of the driver that takes plain addresses."
    found = getattr(ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"), name)
    found.argtypes, found.restype = [ctypes.c_void_p] * count, ctypes.c_int
    return found


def _launch(*arguments):
    "The driver's cuLaunchKernelEx. (The first call finds it; the others are that function.)"
    global _launch
    _launch = _of_driver("cuLaunchKernelEx", 4)
    return _launch(*arguments)


def _move_map(*arguments):
    "The driver's cuTensorMapReplaceAddress: a tensor map, and the matrix's new address."
    global _move_map
    _move_map = _of_driver("cuTensorMapReplaceAddress", 2)
    return _move_map(*arguments)


LARGEST_WORKSPACE = 2**26  # bytes that a stream keeps
_WORKSPACES = {}           # by GPU and stream
_WORKSPACE_LOCK = Lock()   # launches of two calls that share a workspace do not mix


def workspace_of(
    stream: int,
    size: int,  # bytes
):              # a torch tensor
    """Memory for what the launches of a call leave for each other. A stream keeps it: what comes later there
    comes after all that has used it. A CUDA graph gets its own, and so does a call that needs much; torch
    takes that back in the order of the stream."""
    import torch
    capturing = torch.cuda.is_current_stream_capturing()
    key = torch.cuda.current_device(), stream
    found = None if capturing else _WORKSPACES.get(key)
    if found is None or found.nbytes < size:
        elsewhere = torch.cuda.current_stream().cuda_stream != stream
        with torch.cuda.stream(torch.cuda.default_stream()) if elsewhere else nullcontext():
            found = torch.empty(size, dtype=torch.uint8, device="cuda")
        if not capturing and size <= LARGEST_WORKSPACE: _WORKSPACES[key] = found
    return found


class PackedPlan:
    "A plan whose launches are packed, for matrices of these shapes and types, wherever they lie."
    def __init__(
        self,
        plan: Plan,
        operands: Sequence,      # the arrays whose addresses a call gives: A, B and C
        order: Sequence = None,  # see `PackedLaunch`
    ):
        self.offsets, self.size = [], 0  # of the arrays in the workspace; bytes of it
        for x in plan.workspace:
            self.offsets.append(self.size)
            self.size += cdiv(x.nbytes, 256) * 256
        buffers = [span(x) for x in (*operands, *plan.workspace)]
        self.launches = [PackedLaunch(launch, buffers, order) for launch in plan.launches]
        self.sizes = [x.nbytes for x in operands]
        self.shape = operands[-1].shape
        self.delegate = plan.delegate
        self.lock = _WORKSPACE_LOCK if self.size else Lock()

    def __call__(
        self,
        operands: Sequence,  # their addresses
        stream: int,
    ):
        with self.lock:
            buffers = operands
            if self.size:
                workspace = workspace_of(stream, self.size)
                start = workspace.data_ptr()
                buffers = *operands, *(start + offset for offset in self.offsets)
            for launch in self.launches: launch(buffers, stream)


# Plans that are kept

MAX_PLANS = 5000
_PLANS = {}       # what a call depends on → `PackedPlan`
_TENSORS = set()  # torch's types of tensors, once torch is there
_CHOICES = []     # functions with `@remembered`


def remembered(
    choose: Callable,  # function of sizes, the GPU and constants
) -> Callable:
    "Decorate what chooses tile and blocks: its choices are kept as long as plans are."
    choose = lru_cache(1000)(choose)
    _CHOICES.append(choose)
    return choose


def forget_plans():
    "Work out every call anew: what was chosen for it may be chosen differently by now."
    _PLANS.clear()
    for choose in _CHOICES: choose.cache_clear()


def kept_plan(
    key: tuple,      # what the plan depends on
    make: Callable,  # function () → arguments of `PackedPlan`, for a call that has none yet
) -> PackedPlan:
    "The plan of a call."
    return _PLANS.get(key) or _keep(key, PackedPlan(*make()))


def _keep(key, packed):
    "Keep a plan for the calls to come."
    if len(_PLANS) >= MAX_PLANS: _PLANS.clear()
    _PLANS[key] = packed
    return packed


def stream_of(device: int) -> int:
    "Torch's current stream. (Its public way takes longer than all the rest of a call.)"
    return sys.modules["torch"]._C._cuda_getCurrentRawStream(device)


# What changes a plan besides the call

def _names(code):
    "The names that a function's code reads, and that of functions inside it."
    return {*code.co_names}.union(*(_names(x) for x in code.co_consts if isinstance(x, CodeType)))


def _functions_of(plan):
    "A plan's function, and those of `gemm` and of the kernels that it calls."
    packages = __package__, f"{__package__.rpartition('.')[0]}.kernels"
    found = [plan]
    for fn in found:
        cells = [cell.cell_contents for cell in fn.__closure__ or ()]
        for value in [*map(fn.__globals__.get, _names(fn.__code__)), *cells]:
            value = getattr(value, "__wrapped__", value)
            ours = isinstance(value, FunctionType) and value.__module__.startswith(packages)
            if ours and value not in found: found.append(value)
    return found


class _Watched(ModuleType):
    "A module with constants that plans follow from."
    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name.isupper(): forget_plans()

    def __reduce__(self): return import_module, (self.__name__,)  # cloudpickle knows only Python's own class


def _constants_of(plan):
    """Constants that a plan's function and those that it calls read, as (globals, name), where they are a
    notebook's. Modules are watched instead: to compare constants takes longer than the rest of a call."""
    found = {}
    for fn in _functions_of(plan):
        module, scope = sys.modules.get(fn.__module__), fn.__globals__
        if fn.__module__ != "__main__" and vars(module) is scope: module.__class__ = _Watched
        else:
            names = [name for name in sorted(_names(fn.__code__)) if name.isupper() and name in scope]
            found |= {(id(scope), name): (scope, name) for name in names}
    return [*found.values()]


_CONSTANTS = {}  # plan's function → its constants
_SEEN = {}       # plan's function → their values


def _see_constants(plan):
    "Forget all plans where a constant of a notebook has changed; those of modules are watched from now on."
    constants = _CONSTANTS.get(plan)  # (a cached function would make torch.compile warn)
    if constants is None: constants = _CONSTANTS[plan] = _constants_of(plan)
    if constants:
        values = [scope[name] for scope, name in constants]
        values = [copy(x) if isinstance(x, (dict, list)) else x for x in values]  # they may change in place
        if _SEEN.setdefault(plan, values) != values:
            forget_plans()
            _SEEN[plan] = values


# A call

def run(
    plan: Callable,  # function (`Gemm`, given, options) → `Plan`
    a, b, c, alpha, beta,  # as `gemm_args` takes them
    *given,          # to the plan
    dtype: str = "float32",  # see `gemm_args`
    **options,       # of the plan
):                   # C
    """C ← alpha·A·B + beta·C by the launches of a plan, which is made at the first call of a kind. Raises
    what `gemm_args` and the plan do."""
    _see_constants(plan)

    # in the simulator each call is planned
    if config.ENABLE_CUDASIM:
        g = gemm_args(a, b, c, alpha, beta, dtype)
        made = plan(g, *given, **options)
        if made.delegate: return made.delegate(a, b, g.result, alpha, beta)
        _warn_of_minutes(g)
        simulate_plan(made)
        return g.result

    # on a GPU: has there been a call like this one?
    key = packed = None
    try:
        if type(a) in _TENSORS:
            at_a = a.data_ptr()
            at_b = b.data_ptr()
            device, stream = a.get_device(), stream_of
            key = (a.shape, a.dtype, a.is_contiguous(), b.shape, b.dtype, b.is_contiguous(), b.get_device(),
                   sys.modules["torch"]._C._cuda_getDevice())  # current_device() without its check
            if c is None: at_c = 0
            else:
                at_c = c.data_ptr()
                key += c.shape, c.dtype, c.is_contiguous(), c.get_device()
        else:
            at_a = a.device_ctypes_pointer.value
            at_b = b.device_ctypes_pointer.value
            device, stream = -1, None
            key = a.shape, a.dtype, a.strides, b.shape, b.dtype, b.strides, current_gpu().id
            if c is None: at_c = 0
            else:
                at_c = c.device_ctypes_pointer.value
                key += c.shape, c.dtype, c.strides
        low = at_a | at_b | at_c
        key += (plan, given, device, alpha, beta, type(alpha), type(beta), at_a == at_b,
                low & 15 and (at_a & 15, at_b & 15, at_c & 15))
        if options: key += tuple(options.items())
        packed = _PLANS.get(key)
    except (AttributeError, TypeError): key = None  # these aren't matrices, or the options can't be kept
    if packed is None: return _first_call(key, plan, a, b, c, alpha, beta, dtype, given, options)
    if packed.delegate: return packed.delegate(a, b, c, alpha, beta)

    # there has: only addresses are new
    if c is None:
        c = array_like(a, packed.shape)
        at_c = c.data_ptr() if stream else c.device_ctypes_pointer.value
    else:
        size_a, size_b, size_c = packed.sizes
        end = at_c + size_c
        if at_c < at_a + size_a and at_a < end or at_c < at_b + size_b and at_b < end:
            gemm_args(a, b, c, alpha, beta, dtype)  # which refuses it
    packed((at_a, at_b, at_c), stream(device) if stream else 0)
    return c


def _first_call(key, plan, a, b, c, alpha, beta, dtype, given, options):
    "Make a plan, carry it out, and keep it for the next call like this one."
    g = gemm_args(a, b, c, alpha, beta, dtype)
    made = plan(g, *given, **options)
    packed = PackedPlan(made, (g.a, g.b, g.c))
    tensors = [x for x in (a, b, c) if is_torch(x)]
    if tensors: _TENSORS.update((sys.modules["torch"].Tensor, sys.modules["torch"].nn.Parameter))
    spans = [span(x) for x in (g.a, g.b, g.c)]
    (first_a, end_a), (first_b, end_b), _ = spans
    apart = spans[0] == spans[1] or max(first_a, first_b) >= min(end_a, end_b)
    alike = len(tensors) in (0, 2 + (c is not None))
    if key is not None and g.m and g.n and g.k and apart and alike: _keep(key, packed)
    g.workspace = None  # it told the sizes; its memory is free for the workspace of the stream
    if made.delegate: return made.delegate(a, b, g.result, alpha, beta)
    packed([first for first, _ in spans], stream_of(tensors[0].get_device()) if tensors else 0)
    return g.result
