"""The host's side of `numba.cuda`: device arrays, streams, events and devices behave like a GPU's.

A program around a kernel allocates, copies, waits and measures. Numba's simulator has only some of these
functions, and differs from a GPU in others: its arrays add like numpy's, a new one usually contains zeros,
and its device answers only one query. Here they do what a GPU's do, with the limits of an H100. A missing
name gets a clear explanation.
"""
import time
import warnings
from collections import namedtuple
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial, reduce
from numbers import Integral

import numpy as np
from ..arrays import placed
from .declared import DYNAMIC_SHARED_LIMIT
from numba import cuda
from numba.cuda.simulator import api, kernel as numba_kernel
from numba.cuda.simulator.cudadrv import devicearray, devices
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray


# A new device array holds whatever was there before. Here every byte is 0xFF, which is NaN in a float, so
# that forgotten elements show.

_bytes = partial(np.full, fill_value=0xFF, dtype=np.uint8)

@contextmanager
def unfilled():
    "New arrays hold zeros, which costs no time however large they are: for launches that nobody runs."
    global _bytes
    before, _bytes = _bytes, partial(np.zeros, dtype=np.uint8)
    try: yield
    finally: _bytes = before

class HostArray(np.ndarray):
    "A host array that kernels work on in place: `cuda.mapped_array` and `cuda.managed_array`."
    def copy_to_host(self, ary=None, stream=0):
        return FakeCUDAArray(self.view(np.ndarray)).copy_to_host(ary)
    def copy_to_device(self, ary, stream=0): self[...] = ary
    def is_c_contiguous(self): return self.flags.c_contiguous
    def is_f_contiguous(self): return self.flags.f_contiguous

def pinned_array(shape, dtype=np.float64, strides=None, order="C"):
    "A new host array, every byte 0xFF."
    shape, dtype = (shape,) if isinstance(shape, Integral) else tuple(shape), np.dtype(dtype)
    # with explicit strides an array may span more than its elements
    if strides is None: strides = np.empty(shape, dtype, order).strides
    ends = sum((n - 1) * step for n, step in zip(shape, strides)) + dtype.itemsize if 0 not in shape else 0
    return np.ndarray(shape, dtype, _bytes(ends), 0, strides)

def device_array(shape, dtype=np.float64, strides=None, order="C", stream=0):
    "A new device array, every byte 0xFF."
    return FakeCUDAArray(pinned_array(shape, dtype, strides, order), stream)

def mapped_array(shape, dtype=np.float64, strides=None, order="C", stream=0, portable=False, wc=False):
    "A new array shared by host and kernels, every byte 0xFF."
    return pinned_array(shape, dtype, strides, order).view(HostArray)

def managed_array(shape, dtype=np.float64, strides=None, order="C", stream=0, attach_global=True):
    "A new array shared by host and kernels, every byte 0xFF."
    return mapped_array(shape, dtype, strides, order)

def mapped_array_like(ary, stream=0, portable=False, wc=False):
    "A new array shared by host and kernels, with the shape, dtype and order of another."
    return devicearray.pinned_array_like(ary).view(HostArray)

@contextmanager
def mapped(*arrays, stream=0):
    "Device arrays that share these arrays' memory."
    found = [*map(FakeCUDAArray, arrays)]
    yield found[0] if len(found) == 1 else found

def to_device(obj, stream=0, copy=True, to=None):
    "Copy to the device: to a new array, or to the one given."
    if to is None: return obj if isinstance(obj, FakeCUDAArray) else _to_device(obj, stream)
    if copy: to.copy_to_device(obj, stream)
    return to
_to_device = devicearray.to_device

def is_cuda_array(obj):
    "Is this a device array?"
    return isinstance(obj, FakeCUDAArray)

def as_cuda_array(obj, sync=True):
    "A device array, unchanged. `TypeError` for anything on the host."
    if is_cuda_array(obj): return obj
    raise TypeError(f"as_cuda_array got a {type(obj).__name__}, which isn't on the device: copy it "
                    "there with to_d(x)")


# A device array has few of numpy's methods, and no arithmetic. Its transpose is a copy. Whatever numpy would
# silently copy, as `reshape` sometimes does, is refused.

_FORWARDED = {"dtype", "strides", "size", "ndim", "flags"}
_LACKS = {"gpu_data", "as_cuda_arg", "device_ctypes_pointer", "get_ipc_handle", "__cuda_array_interface__"}

def _attribute(array, name):
    "An attribute that device arrays don't have."
    # Numba's own code in a kernel may use all of numpy
    if "_ary" in vars(array) and (name in _FORWARDED or numba_kernel._get_kernel_context()):
        return getattr(array._ary, name)
    if name in _LACKS:
        raise AttributeError(f"the simulator doesn't support {name}: its device arrays are in host memory")
    # protocols that Python probes for get no advice
    if name.startswith("__"): raise AttributeError(name)
    if hasattr(np.ndarray, name):
        raise AttributeError(f"a device array has no {name}: copy it to the host first, as in to_h(x).{name}")
    raise AttributeError(f"a device array has no {name}{_nearest(name, dir(FakeCUDAArray))}")

def _refused(symbol):
    def refuse(array, other):
        raise TypeError(f"device arrays don't support {symbol}: write a kernel, or copy them to the host "
                        "first, to_h(x)")
    return refuse

def _in_place(array, made):
    "A view of a device array; refused if numpy would need to copy."
    if made.size and not np.shares_memory(made, array._ary):
        raise NotImplementedError("operation requires copying")
    return FakeCUDAArray(made, array.stream)

def _transposed(array, axes=None):
    if axes and tuple(axes) == tuple(range(array.ndim)): return array
    if array.ndim != 2:
        raise NotImplementedError("transposing a non-2D DeviceNDArray isn't supported")
    return FakeCUDAArray(array._ary.T.copy("C"), array.stream)


def _getitem(array, index, stream=0):
    # numpy can gather elements by a list or array of indices, a device array can't
    for i in index if isinstance(index, tuple) else (index,):
        if not isinstance(i, (slice, str)) and not hasattr(i, "__index__") or getattr(i, "ndim", 0):
            raise TypeError(f"a device array takes integers and slices, not {i!r}: copy it to the host "
                            "first, to_h(x)")
    return _FORMER["__getitem__"](array, index)

def _copy_to_host(array, ary=None, stream=0):
    if any(step < 0 for step in array.strides):
        raise NotImplementedError(f"D->H copy not implemented for negative strides: {array.strides}")
    return _FORMER["copy_to_host"](array, ary, stream)

def _to_numpy(array, dtype=None, copy=None):
    if copy is False: raise ValueError("`copy=False` is not supported. A copy is always created.")
    return np.array(array._ary, dtype)

def _reduced(array):
    "How a device array is copied or pickled: with all of its memory, which other arrays may share."
    view = memory = array._ary
    if not isinstance(view, np.ndarray): return FakeCUDAArray, (view,)  # a record
    # the array that owns the memory, unless it has gaps
    while isinstance(memory.base, np.ndarray): memory = memory.base
    if not memory.flags.forc: view = memory = view.copy()
    offset = view.__array_interface__["data"][0] - memory.__array_interface__["data"][0] if view.size else 0
    return placed, (memory, offset, view.shape, view.strides, view.dtype)

_SYMBOLS = dict(add="+", sub="-", mul="*", floordiv="//", truediv="/", mod="%", pow="**", lt="<", le="<=",
                gt=">", ge=">=")
_METHODS = dict(
    __getattr__=_attribute, __array__=_to_numpy, __reduce__=_reduced, __getitem__=_getitem, getitem=_getitem,
    copy_to_host=_copy_to_host, transpose=_transposed, T=property(_transposed),
    setitem=lambda array, index, value, stream=0: array.__setitem__(index, value),
    squeeze=lambda array, axis=None, stream=0: _in_place(array, array._ary.squeeze(axis)),
    reshape=lambda array, *shape, **order: _in_place(array, array._ary.reshape(*shape, **order)),
    ravel=lambda array, order="C", stream=0: _in_place(array, array._ary.ravel(order)),
    __eq__=object.__eq__, __ne__=object.__ne__, __hash__=object.__hash__,
    **{f"__{name}__": _refused(symbol) for name, symbol in _SYMBOLS.items()})
_FORMER = {name: getattr(FakeCUDAArray, name) for name in ("__getitem__", "copy_to_host")}


# Programs query the device's limits. These are an H100's, the GPU whose limits the simulator checks.

DEVICE = dict(
    WARP_SIZE=32, MULTIPROCESSOR_COUNT=132, COMPUTE_CAPABILITY_MAJOR=9, COMPUTE_CAPABILITY_MINOR=0,
    MAX_THREADS_PER_BLOCK=1024, MAX_BLOCK_DIM_X=1024, MAX_BLOCK_DIM_Y=1024, MAX_BLOCK_DIM_Z=64,
    MAX_GRID_DIM_X=2**31 - 1, MAX_GRID_DIM_Y=65535, MAX_GRID_DIM_Z=65535, MAX_THREADS_PER_MULTIPROCESSOR=2048,
    MAX_BLOCKS_PER_MULTIPROCESSOR=32, MAX_REGISTERS_PER_BLOCK=65536, MAX_REGISTERS_PER_MULTIPROCESSOR=65536,
    MAX_SHARED_MEMORY_PER_BLOCK=48 * 1024, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=DYNAMIC_SHARED_LIMIT,
    MAX_SHARED_MEMORY_PER_MULTIPROCESSOR=228 * 1024, RESERVED_SHARED_MEMORY_PER_BLOCK=1024,
    TOTAL_CONSTANT_MEMORY=65536, L2_CACHE_SIZE=50 * 2**20, CLOCK_RATE=1980000, MEMORY_CLOCK_RATE=2619000,
    GLOBAL_MEMORY_BUS_WIDTH=5120, SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO=2, ASYNC_ENGINE_COUNT=3,
    MAX_PITCH=2**31 - 1, TEXTURE_ALIGNMENT=512, GPU_OVERLAP=1, KERNEL_EXEC_TIMEOUT=0, INTEGRATED=0,
    CAN_MAP_HOST_MEMORY=1, COMPUTE_MODE=0, CONCURRENT_KERNELS=1, ECC_ENABLED=1, TCC_DRIVER=0,
    UNIFIED_ADDRESSING=1, MANAGED_MEMORY=1, CONCURRENT_MANAGED_ACCESS=1, COOPERATIVE_LAUNCH=1,
    STREAM_PRIORITIES_SUPPORTED=1, MULTI_GPU_BOARD=0, PCI_BUS_ID=0, PCI_DEVICE_ID=0, PCI_DOMAIN_ID=0)

class Device(devices.FakeCUDADevice):
    "The simulator's only device."
    id, name, compute_capability = 0, "Numba's simulator, with the limits of an H100", (9, 0)
    supports_float16, supports_bfloat16, supports_fp8 = True, False, False
    def get_device_identity(self): return dict(pci_domain_id=0, pci_bus_id=0, pci_device_id=0)
    def get_primary_context(self): return devices.gpus[0]
    def reset(self): pass
    release_primary_context = reset
    def __repr__(self): return f"<CUDA device 0 '{self.name}'>"
    def __getattr__(self, name):
        if name in DEVICE: return DEVICE[name]
        raise AttributeError(f"the simulator's device lacks {name}{_nearest(name, [*DEVICE, *dir(Device)])}")

MemoryInfo = namedtuple("MemoryInfo", "free,total")


class Context(devices.FakeCUDAContext):
    "Its context, which is also what `cuda.gpus[0]` returns."
    def __init__(self):
        super().__init__(0)
        self._device = Device()
    def get_memory_info(self): return MemoryInfo(80 * 2**30, 80 * 2**30)
    def synchronize(self): pass
    push = pop = prepare_for_use = synchronize
    def defer_cleanup(self): return api.defer_cleanup()
    def create_stream(self): return Stream()
    get_default_stream = get_legacy_default_stream = get_per_thread_default_stream = create_stream
    def create_event(self, timing=True): return Event(timing)
    def __getattr__(self, name):
        if name == "_device": raise AttributeError(name)
        if hasattr(self._device, name): return getattr(self._device, name)
        near = _nearest(name, [*dir(Context), *DEVICE, *dir(Device)])
        raise AttributeError(f"the simulator's context lacks {name}{near}")

def current_context(devnum=0):
    "The context of a device."
    select_device(devnum)
    return devices.gpus[0]

def select_device(device_id=0):
    "The device with this number, which must be 0."
    if device_id:
        raise ValueError(f"there is no device {device_id}: the simulator only has device 0")
    return devices.gpus[0].device

def detect():
    "Print the devices. Returns whether any is supported."
    device = devices.gpus[0].device
    print(f"Found 1 CUDA devices\nid 0    {device.name}    [SUPPORTED]\n"
          f"{'Compute Capability':>40}: {device.compute_capability[0]}.{device.compute_capability[1]}\n"
          "Summary:\n\t1/1 devices are supported")
    return True


# Everything happens at once here, so a stream has nothing to wait for. An event records when it was reached.
# The time between two events is the simulator's, and comes with a warning that it says nothing about a GPU.

class Stream(api.stream):
    "A stream: whatever is submitted to it has already happened."
    def __int__(self): return 0
    def __repr__(self): return "<CUDA stream of the simulator>"
    @contextmanager
    def auto_synchronize(self): yield self
    def add_callback(self, callback, arg=None): callback(self, 0, arg)
    async def async_done(self): return self

class Event:
    "A point in time in the host program."
    def __init__(self, timing=True): self.timing, self.at = timing, None
    def record(self, stream=0): self.at = time.perf_counter()
    def query(self): return True
    def synchronize(self): pass
    def wait(self, stream=0): pass
    def elapsed_time(self, evtend): return event_elapsed_time(self, evtend)

def event_elapsed_time(evtstart, evtend):
    "The simulator's time between two events, in ms."
    for event in evtstart, evtend:
        if event.at is None:
            raise RuntimeError("an event has no time before it is recorded: call event.record() first")
        if not event.timing:
            raise RuntimeError("an event created by cuda.event(timing=False) has no time")
    warnings.warn("this is the simulator's own time, which says nothing about a GPU", stacklevel=2)
    return 1000 * (evtend.at - evtstart.at)

def profile_start(): "Does nothing."
profile_stop = profile_start

@contextmanager
def profiling():
    "Does nothing."
    yield

class Reduce:
    "`cuda.reduce`: reduces an array by a function of two numbers."
    def __init__(self, functor): self.functor = functor
    def __call__(self, arr, size=None, res=None, init=0, stream=0):
        if np.ndim(arr) != 1: raise TypeError("only support 1D array")
        values = np.asarray(arr)[:size]
        result = reduce(self.functor, values, values.dtype.type(init))
        if res is None: return result
        res[0] = result


# Names that `cuda` lacks: some exist only inside a kernel, some aren't in the simulator, the rest are
# typos.

_COMPILES = ("the simulator doesn't compile, so it doesn't have {}: machine_code(kernel, signature), in "
             "numba_matmul.compiler, compiles in a separate process; it reports registers and spills, and "
             "its .ptx and .sass show the code")
_NO_MEMORY = "the simulator doesn't have {}: there's no device memory to manage or share with other libraries"
_INSIDE = "the simulator doesn't have cuda.{}: it belongs to Numba's compiler or driver interface"
_IN_KERNEL = ("cuda.{} exists only inside a running kernel: decorate its function with @cuda.jit, and launch "
              "it")
_ABSENT = {  # names in the real module → the message for them
    **dict.fromkeys("compile compile_all compile_for_current_device compile_ptx "
                    "compile_ptx_for_current_device".split(),
                    _COMPILES.replace("{}", "cuda.{}")),
    **dict.fromkeys("""BaseCUDAMemoryManager GetIpcHandleMixin HostOnlyCUDAMemoryManager IpcHandle
        MappedMemory MemoryInfo MemoryPointer PinnedMemory set_memory_manager open_ipc_array
        from_cuda_array_interface""".split(),
                    _NO_MEMORY.replace("{}", "cuda.{}")),
    **dict.fromkeys("""CudaSupportError KernelRuntimeError api_util cache_hints cloudpickle codegen
        contextlib cpython cuda_paths decorators descriptor device_init devices driver extending flags
        initialize intrinsics itanium_mangler kernels launchconfig locks lowering mathimpl misc models
        nvvm nvvmutils os prepare_shape_strides_dtype serialize target ufuncs""".split(), _INSIDE),
    "declare_device": "the simulator can't link foreign code, so it doesn't have cuda.{}: write the function "
                      "in Python",
    **dict.fromkeys("""activemask eq_sync libdevice literal literal_unroll ldca ldcg ldcs ldcv ldlu stcg
        stcs stwb stwt""".split(), _IN_KERNEL)}
_OF_DISPATCHER = """doc func_code specializations targetctx typingctx add_overload call compile
    compile_device disable_compile dump enable_caching fold_argument_types get_annotation_info
    get_call_template get_compile_result get_const_mem_size get_function_type get_local_mem_per_thread
    get_max_threads_per_block get_metadata get_overload get_regs_per_thread get_shared_mem_per_block
    inspect_asm inspect_cfg inspect_disasm_cfg inspect_llvm inspect_lto_ptx inspect_sass inspect_sass_cfg
    inspect_types is_compiling mark_launch_config_sensitive nopython_signatures recompile signatures
    specialized stats targetdescr targetoptions typeof_pyval""".split()

def _nearest(name, names):
    "A suggestion for a name with a typo, or nothing."
    found = get_close_matches(name, [x for x in names if not x.startswith("_")], 1)
    return f": did you mean {found[0]}?" if found else ""

def no_name_of_cuda(
    name,
    in_kernel,  # names `cuda` has in a running kernel
) -> str:
    "Why `cuda` doesn't have this name on the host, and what to do."
    if name in in_kernel: return _IN_KERNEL.format(name)
    if name in _ABSENT: return _ABSENT[name].format(name)
    near = _nearest(name, {*dir(cuda), *in_kernel, *_ABSENT})
    return f"numba.cuda doesn't have {name}" + near.replace("did you mean ", "did you mean cuda.")

def no_name_of_kernel(
    kernel,
    name,
) -> str:
    "Why a kernel doesn't have this attribute here, and what to do."
    if name in _OF_DISPATCHER:
        return _COMPILES.format(name).replace("(kernel", f"({kernel.__name__}")
    near = _nearest(name, [*dir(kernel), *_OF_DISPATCHER])
    return f"{kernel.__name__} is a kernel and doesn't have {name}{near}"

def _no_ufunc(self, *args, **options):
    raise NotImplementedError("the simulator doesn't support target='cuda' in vectorize and guvectorize: "
                              "write a kernel with @cuda.jit, or use numba.vectorize without a target, which "
                              "compiles for the CPU")


def install():
    "Install all of this in `numba.cuda`."
    # arrays, devices, streams
    for name, method in _METHODS.items(): setattr(FakeCUDAArray, name, method)
    devices.gpus.lst = (Context(),)
    devices.get_context = current_context
    api.stream, api.event = Stream, Event
    for name in "device_array", "pinned_array", "mapped_array":
        setattr(devicearray, name, globals()[name])
    ours = (device_array, pinned_array, mapped_array, managed_array, mapped_array_like, mapped, to_device,
            is_cuda_array, as_cuda_array, current_context, select_device, detect, event_elapsed_time,
            profile_start, profiling)
    for function in ours: setattr(cuda, function.__name__, function)
    cuda.profile_stop, cuda.event, cuda.reduce, cuda.Reduce = profile_stop, Event, Reduce, Reduce
    for name in "stream", "default_stream", "legacy_default_stream", "per_thread_default_stream":
        setattr(cuda, name, Stream)
    # the simulator has names the real module lacks, or that are only None
    gone = {name for name, value in vars(cuda).items() if value is None and not name.startswith("_")}
    for name in gone | {"Event", "auto_device", "reset", "declare_device", "is_signature", "contextmanager"}:
        if hasattr(cuda, name): delattr(cuda, name)
    # ufuncs compiled for a GPU
    from numba.cuda import vectorizers
    vectorizers.CUDAVectorize.__init__ = vectorizers.CUDAGUFuncVectorize.__init__ = _no_ufunc
    # it overflows on purpose, and is never compiled
    warnings.filterwarnings("ignore", module=r".*numba.cuda.random$")
