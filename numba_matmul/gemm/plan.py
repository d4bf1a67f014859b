"""A call as a value: which kernels it launches, with which arguments, and in which workspace.

A host function checks three matrices, chooses tile and blocks, finds the compiled kernel and packs its
arguments. That takes far longer than a launch, but depends only on shapes, types, alignments, alpha, beta and
options. So the first call of a kind builds a `Plan` and caches it with its arguments packed; later
calls only patch in addresses. Whether C overlaps A or B depends on the addresses, so every call checks that.
If anything is unusual, a new plan is made, or the call is rejected with the reason.
"""
import ctypes
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from threading import Lock
from typing import NamedTuple

import numpy as np
from numba import config

from ..arrays import OptIn, array_like, cdiv, current_gpu, is_torch
from ..ptx.hopper import MAP_WORDS, WORDS_BEFORE
from .args import gemm_args, refuse_others_overlap, refuse_overlap, span
from .limits import LAUNCH_NUMBERS, allow_shared_memory, launch_number, need_shared_memory
from .tensor_maps import TensorMapWords, ask_driver
from .watched import see_constants, when_a_constant_changes

SECONDS_SIMULATED = 1e-6  # per float32 multiply-add


class Launch(NamedTuple):
    "A kernel and its launch parameters."
    kernel: Callable      # as `@cuda.jit` made it
    blocks: int | tuple   # of the grid
    threads: int | tuple  # of a block
    args: tuple  # arrays, tuples of them, numpy scalars; `TensorMapWords`, first, `launch_number`
    shared_bytes: int = 0  # dynamic shared memory per block; may exceed 48 KB
    # do blocks wait for each other? Then they launch only if all fit at once
    cooperative: bool = False
    cluster: int = 1  # blocks that run together


class Plan(NamedTuple):
    "What a call does, for all matrices of these shapes and types."
    launches: Sequence = ()   # of `Launch`
    workspace: Sequence = ()  # arrays in their arguments other than A, B and C
    delegate: Callable = None  # a host function that multiplies instead of this one


def kernel_args(launch: Launch) -> list:
    "The arguments of a `Launch` as its kernel takes them. `TypeError` if tensor maps aren't first."
    if any(isinstance(arg, TensorMapWords) for arg in launch.args[1:]):
        raise TypeError("tensor maps must be the first argument: kernels look for them at the beginning of "
                        "their parameters")
    def given(arg):
        if hasattr(arg, "_fields"): return type(arg)(*map(given, arg))
        if isinstance(arg, tuple): return tuple(map(given, arg))
        return arg() if arg is launch_number else getattr(arg, "words", arg)
    return [given(arg) for arg in launch.args]


class LaunchConfig(NamedTuple):
    "How a host function launches its kernel, if an estimate decides."
    tile: tuple
    blocks: int       # of the grid
    split_k: int = 1  # parts that each sum is divided into
    padded: str = ""  # names of matrices to copy into longer rows first


# In the simulator

def simulate_plan(plan: Plan):
    "Launch all of a `Plan` in the simulator."
    for launch in plan.launches:
        need_shared_memory(launch.shared_bytes)
        size = OptIn(launch.shared_bytes) if launch.shared_bytes else 0
        configured = launch.kernel[launch.blocks, launch.threads, 0, size]
        configured.cluster = launch.cluster
        configured(*kernel_args(launch))


def _warn_of_minutes(g):
    "Warn if the simulator will take minutes."
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
    """A launch with its arguments packed as the driver needs them. It knows where the addresses in them come
    from."""
    def __init__(
        self,
        launch: Launch,
        buffers: list,  # (first, end) of each buffer its arguments are in, see `span`
        # buffer number of each array and tensor map, if operands may be the same array (a layer's); if None,
        # the first buffer containing the array's address
        order: Sequence = None,
    ):
        from cuda.bindings import driver as b
        # the kernel, compiled
        need_shared_memory(launch.shared_bytes)
        compiled = launch.kernel.compile(tuple(map(launch.kernel.typeof_pyval, kernel_args(launch))))
        if launch.shared_bytes: allow_shared_memory(compiled, launch.shared_bytes)
        handle = compiled._codelibrary.get_cufunc().handle  # numba-cuda has no public API for it
        function = ask_driver(b.cuKernelGetFunction, handle) if isinstance(handle, b.CUkernel) else handle
        self.kept = compiled, function

        # the launch configuration
        self.config = b.CUlaunchConfig()
        self.stream = None
        self.config.gridDimX, self.config.gridDimY, self.config.gridDimZ = _three(launch.blocks)
        self.config.blockDimX, self.config.blockDimY, self.config.blockDimZ = _three(launch.threads)
        self.config.sharedMemBytes = launch.shared_bytes
        attributes = []
        if launch.cooperative:
            attribute = b.CUlaunchAttribute()
            attribute.id = b.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            attributes.append(attribute)
        if launch.cluster > 1:
            attribute = b.CUlaunchAttribute()
            attribute.id = b.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attribute.value.clusterDim.x = launch.cluster
            attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1
            attributes.append(attribute)
        if attributes: self.config.attrs, self.config.numAttrs = attributes, len(attributes)

        # its parameters, and the positions of those that change from call to call
        self.addresses, self.maps, self.numbers = [], [], []
        self._set_parameters(self._parameters_of(launch.args, buffers, order and iter(order)))
        self.arguments = self.config.getPtr(), int(function), ctypes.addressof(self.pointers), None

    def _parameters_of(self, args, buffers, order):
        "The arguments as Numba's kernels expect them: 8-byte words."
        parameters = []
        def source(x):
            "The number of the buffer an array is in, and its offset from the start."
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
                # Numba's array: meminfo, parent, nitems, itemsize, data, shape, strides
                header = [0, 0, x.size, x.dtype.itemsize]
                if x.nbytes: self.addresses.append((len(parameters) + len(header), *source(x)))
                parameters.extend([*header, 0, *x.shape, *x.strides])
            elif x is launch_number:
                self.numbers.append(len(parameters))
                parameters.append(0)
            else: parameters.append(int.from_bytes(np.asarray(x).tobytes(), "little"))
        pack(args)
        return parameters

    def _set_parameters(self, parameters):
        "Put them in memory where the driver can read them, tensor maps aligned to 64 bytes."
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
        # after an error, try again: `ask_driver` gives a new thread its context, or reports the error
        if _launch(*self.arguments): ask_driver(_launch, *self.arguments)


def driver_function(
    name: str,   # as libcuda exports it
    count: int,  # of its arguments: addresses and integers
) -> Callable:
    "A driver function, called without a wrapper."
    found = getattr(ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"), name)
    found.argtypes, found.restype = [ctypes.c_void_p] * count, ctypes.c_int
    return found


def _launch(*arguments):
    "The driver's cuLaunchKernelEx. (The first call looks it up; later calls use it directly.)"
    global _launch
    _launch = driver_function("cuLaunchKernelEx", 4)
    return _launch(*arguments)


def _move_map(*arguments):
    "The driver's cuTensorMapReplaceAddress: takes a tensor map and the matrix's new address."
    global _move_map
    _move_map = driver_function("cuTensorMapReplaceAddress", 2)
    return _move_map(*arguments)


LARGEST_WORKSPACE = 2**26  # bytes cached per stream
_WORKSPACES = {}           # by GPU and stream
_WORKSPACE_LOCK = Lock()   # launches of two calls that share a workspace mustn't interleave


def workspace_of(
    stream: int,
    size: int,  # bytes
):              # a torch tensor
    """Scratch memory shared by one call's launches. Cached per stream, since work on a stream runs in order;
    a CUDA graph or a large request gets its own, which torch reclaims in stream order."""
    import torch
    capturing = is_captured()
    key = torch.cuda.current_device(), stream
    found = None if capturing else _WORKSPACES.get(key)
    if found is None or found.nbytes < size:
        elsewhere = torch.cuda.current_stream().cuda_stream != stream
        with torch.cuda.stream(torch.cuda.default_stream()) if elsewhere else nullcontext():
            found = torch.empty(size, dtype=torch.uint8, device="cuda")
        if not capturing and size <= LARGEST_WORKSPACE: _WORKSPACES[key] = found
    return found


class PackedPlan:
    "A plan with packed launches, for matrices of these shapes and types at any address."
    def __init__(
        self,
        plan: Plan,
        operands: Sequence,      # the arrays whose addresses a call supplies: A, B, C and others
        order: Sequence = None,  # see `PackedLaunch`
    ):
        self.offsets, self.size = [], 0  # of the arrays in the workspace; its size in bytes
        for x in plan.workspace:
            self.offsets.append(self.size)
            self.size += cdiv(x.nbytes, 256) * 256
        buffers = [span(x) for x in (*operands, *plan.workspace)]
        self.launches = [PackedLaunch(launch, buffers, order) for launch in plan.launches]
        self.sizes = [x.nbytes for x in operands]
        self.shapes = [x.shape for x in operands]
        self.delegate = plan.delegate
        self.dtype_c = None  # of a new C, unless it's that of A
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


# Cached plans

MAX_PLANS = 5000
_PLANS = {}       # what a call depends on → `PackedPlan`
_TENSORS = set()  # torch's tensor types, once torch is imported
_CHOICES = []     # functions with `@remembered`


def remembered(
    choose: Callable,  # function of sizes, the GPU and constants
) -> Callable:
    "Decorator for a function that chooses tile and blocks: its choices are cached as long as plans are."
    choose = lru_cache(1000)(choose)
    _CHOICES.append(choose)
    return choose


@when_a_constant_changes
def forget_plans():
    "Drop all cached plans and choices: a constant they depend on has changed."
    _PLANS.clear()
    for choose in _CHOICES: choose.cache_clear()


def kept_plan(
    key: tuple,      # what the plan depends on
    make: Callable,  # function () → arguments of `PackedPlan`, for a call without a plan
) -> PackedPlan:
    "The plan of a call that builds its own key: a layer's, in `torch_layer`."
    return _PLANS.get(key) or _keep(key, PackedPlan(*make()))


def _keep(key, packed):
    "Cache a plan for later calls."
    if len(_PLANS) >= MAX_PLANS: _PLANS.clear()
    _PLANS[key] = packed
    return packed


def stream_of(device: int) -> int:
    "Torch's current stream. (The public API takes longer than the rest of a call.)"
    return sys.modules["torch"]._C._cuda_getCurrentRawStream(device)


def is_captured() -> bool:
    "Is torch's current stream capturing a CUDA graph?"
    if config.ENABLE_CUDASIM: return False
    import torch
    return torch.cuda.is_current_stream_capturing()


# A call

def run(
    make_plan: Callable,   # function (`Gemm`, given, options) → `Plan`
    a, b, c, alpha, beta,  # as in `gemm_args`
    *given,                # to `make_plan`
    dtype: str = "float32",  # see `gemm_args`
    # name → an additional contiguous device array, whose address may change in each call; see `Gemm`
    others: dict = None,
    dtype_c: str = None,      # see `gemm_args`
    k_major_b: bool = False,  # the same; `make_plan` must be given it, too
    **options,             # for `make_plan`
):                         # C
    """C ← alpha·A·B + beta·C by the launches of a plan, which is made in the first call of a kind. Raises
    whatever `gemm_args` and `make_plan` raise."""
    see_constants(make_plan)  # has one changed that it depends on? Then there are no cached plans

    # in the simulator every call is planned
    if config.ENABLE_CUDASIM:
        g = gemm_args(a, b, c, alpha, beta, dtype, others, dtype_c, k_major_b)
        plan = make_plan(g, *given, **options)
        if plan.delegate: return plan.delegate(a, b, g.result, alpha, beta)
        _warn_of_minutes(g)
        simulate_plan(plan)
        return g.result

    # on a GPU: was there a call like this one before?
    if not _TENSORS and (torch := sys.modules.get("torch")):
        _TENSORS.update((torch.Tensor, torch.nn.Parameter))
    is_tensor = type(a) in _TENSORS
    key = packed = None
    try:
        if is_tensor:
            at_a = a.data_ptr()
            at_b = b.data_ptr()
            device = a.get_device()
            key = (a.shape, a.dtype, a.is_contiguous(), b.shape, b.dtype, b.is_contiguous(), b.get_device(),
                   sys.modules["torch"]._C._cuda_getDevice())  # current_device() without its check
            if c is None: at_c = 0
            else:
                at_c = c.data_ptr()
                key += c.shape, c.dtype, c.is_contiguous(), c.get_device()
        else:
            at_a = a.device_ctypes_pointer.value
            at_b = b.device_ctypes_pointer.value
            device = -1
            key = a.shape, a.dtype, a.strides, b.shape, b.dtype, b.strides, current_gpu().id
            if c is None: at_c = 0
            else:
                at_c = c.device_ctypes_pointer.value
                key += c.shape, c.dtype, c.strides
        low = at_a | at_b | at_c
        # A packed launch finds by address which matrix an argument is in. If A and B are the same memory, it
        # finds A for both, so the plan fits only calls where they are the same again.
        key += (make_plan, given, device, alpha, beta, type(alpha), type(beta), at_a == at_b,
                low & 15 and (at_a & 15, at_b & 15, at_c & 15))
        at_others = ()
        if others:
            at_others, layouts = _others_of(others, is_tensor)
            key += layouts
        if options: key += tuple(options.items())
        packed = _PLANS.get(key)
    except (AttributeError, TypeError): key = None  # these aren't matrices, or the options can't be cached
    if packed is None:
        g = gemm_args(a, b, c, alpha, beta, dtype, others, dtype_c, k_major_b)
        return _first_call(key, g, make_plan(g, *given, **options), a, b, c, alpha, beta, others or {})
    if packed.delegate: return packed.delegate(a, b, c, alpha, beta)

    # there was: only the addresses are new
    if c is not None:
        size_a, size_b, size_c, *_ = packed.sizes
        end_a, end_b, end_c = at_a + size_a, at_b + size_b, at_c + size_c
        if at_c < end_a and at_a < end_c or at_c < end_b and at_b < end_c:
            refuse_overlap((at_a, end_a), (at_b, end_b), (at_c, end_c))
    else:
        c = array_like(a, packed.shapes[2], packed.dtype_c)
        at_c = c.data_ptr() if is_tensor else c.device_ctypes_pointer.value
    operands = at_a, at_b, at_c, *at_others
    if others:
        spans = [(first, first + size) for first, size in zip(operands, packed.sizes)]
        refuse_others_overlap(["a", "b", "c", *others], spans)
    packed(operands, stream_of(device) if is_tensor else 0)
    return c


def _others_of(others, is_tensor):
    "Addresses of a call's additional arrays, and whatever else about them its plan depends on."
    addresses, layouts = [], []
    for name, x in others.items():
        if is_tensor:
            address = x.data_ptr()
            layout = x.is_contiguous(), x.get_device()
        else: address, layout = x.device_ctypes_pointer.value, x.strides
        addresses.append(address)
        layouts += name, x.shape, x.dtype, layout, address & 15
    return tuple(addresses), tuple(layouts)


def _first_call(key, g, plan, a, b, c, alpha, beta, others):
    "Pack a new plan, execute it, and cache it for the next call like this one."
    operands = g.a, g.b, g.c, *g.others.values()
    packed = PackedPlan(plan, operands)
    if g.result.dtype != a.dtype: packed.dtype_c = str(g.result.dtype).removeprefix("torch.")
    # If A and B partly overlap, an address doesn't identify an argument's matrix: don't cache.
    (first_a, end_a), (first_b, end_b), _ = g.spans
    same_or_apart = g.spans[0] == g.spans[1] or max(first_a, first_b) >= min(end_a, end_b)
    if key is not None and g.m and g.n and g.k and same_or_apart: _keep(key, packed)
    # The plan's own workspace was made only to learn its sizes. Its memory is freed here: every call,
    # including this one, uses the stream's from `workspace_of`.
    g.workspace = None
    if plan.delegate: return plan.delegate(a, b, g.result, alpha, beta)
    # a single tensor is enough to launch on torch's stream
    tensors = [x for x in (a, b, c, *others.values()) if is_torch(x)]
    packed([span(x)[0] for x in operands], stream_of(tensors[0].get_device()) if tensors else 0)
    return g.result
