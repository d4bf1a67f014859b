"""What the operators for PyTorch share: which tensors they take, and how they're differentiated."""
import torch
from numba import config
from torch.autograd import forward_ad
from torch.utils.flop_counter import register_flop_formula

from .arrays import describe

LIBRARY = torch.library.Library("numba_matmul", "FRAGMENT")


# What they take

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
DEVICE = "cpu" if config.ENABLE_CUDASIM else "cuda"

def need_tensors(**given):  # by name
    "`TypeError` for what isn't a dense tensor."
    for name, x in given.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} is a {describe(x)}; expected a torch tensor")
        if x.is_nested:
            raise TypeError(f"{name} is a nested tensor; expected a dense one: "
                            f"pass {name}.to_padded_tensor(0.0)")
        if x.layout != torch.strided:
            raise TypeError(f"{name} is {x.layout}; expected a dense tensor: pass {name}.to_dense()")
        if type(x).__name__ == "DTensor":
            raise TypeError(f"{name} is a DTensor, cut between GPUs; expected a tensor on one: use the "
                            f"layers of numba_matmul.tensor_parallel, or pass {name}.full_tensor()")

def check_tensors(
    autocast: bool = False,  # will types be made the same?
    **given,                 # tensors by name, the two factors first
):
    "`TypeError` or `ValueError`, unless they are of types that the kernels take, and on one device."
    (first, a), (second, b), *_ = given.items()
    for name, x in given.items():
        if x.dtype not in DTYPES and not (autocast and x.dtype == torch.float16):
            raise TypeError(f"{name} is {x.dtype}; expected float32 or bfloat16: "
                            f"pass {name}.float() or {name}.bfloat16()")
        if x.device != a.device:
            raise ValueError(f"{first} is on {a.device} and {name} on {x.device}: "
                             f"pass {name}.to({first}.device)")
    if a.dtype != b.dtype and not autocast:
        raise TypeError(f"{first} is {a.dtype} and {second} is {b.dtype}: "
                        f"pass {first}.to({second}.dtype), or use autocast")

def check_device(**given):  # tensors by name, on one device
    "`TypeError`, unless they are where kernels run."
    device, names = next(iter(given.values())).device, " and ".join(given)
    if device.type == DEVICE: return
    wanted, move = "expected tensors on a GPU", "cuda"
    if config.ENABLE_CUDASIM: wanted, move = "in the simulator kernels take tensors on the CPU", "cpu"
    raise TypeError(f"{names} are on {device}; {wanted}: "
                    f"pass {' and '.join(f'{name}.{move}()' for name in given)}")

def on_its_gpu(fn, x, *others):
    "Call a function while the GPU of `x` is the current one."
    # (`torch.cuda.current_device` takes longer, since it checks whether CUDA has been initialized)
    if config.ENABLE_CUDASIM or x.get_device() == torch._C._cuda_getDevice(): return fn(x, *others)
    with torch.cuda.device(x.device): return fn(x, *others)


# What PyTorch calls

def untraced(fn):
    """The function, which `torch.compile` will never trace, nor what it calls. In a compiled graph an
    operator is only a name, but one called after a graph break, or while `torch.func` transforms a compiled
    function, would be traced down to the kernels."""
    frames = torch._C._dynamo.eval_frame
    try: skip = frames._FrameAction.SKIP
    except AttributeError: return torch._disable_dynamo(fn)  # as good, but it imports the compiler
    frames.set_code_exec_strategy(fn.__code__, frames._FrameExecStrategy(skip, skip))
    return fn

def register(
    name: str,  # of an operator
    fn,
    key: str,   # a dispatch key
    **options,
):
    "What the operator does under a dispatch key, never traced."
    LIBRARY.impl(name, untraced(fn), key, **options)


def count_flops(
    op,       # an operator of two factors
    columns,  # the columns of the product, given the shape of the second factor
):
    "Register what PyTorch's `FlopCounterMode` counts; unknown operators count nothing."
    def flops(a, b, *_, **__): return 2 * a[0] * a[1] * columns(b)
    register_flop_formula(op.overloadpacket)(flops)


# Derivatives

def below(op, keys, *args):
    """The operator without its derivatives. Nor does PyTorch see that a result is a transposed view: it would
    refuse to change such a result in place, as `torch.nn.ReLU(inplace=True)` does."""
    with torch._C._AutoDispatchBelowADInplaceOrView():
        return op.redispatch(keys & torch._C._after_ADInplaceOrView_keyset, *args)

def levels_below(op, keys, *args):
    "The operator without its derivatives at this level of PyTorch's transforms."
    if not torch._C._are_functorch_transforms_active(): return below(op, keys, *args)
    # The levels below differentiate for themselves:
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True): return below(op, keys, *args)

# Does a compiled graph make tangents? It doesn't tell `forward_ad` of its level.
_GRAPHS = dict(tangents=False)

def while_compiled():
    """`RuntimeError` inside `forward_ad.dual_level`: Inductor's kernels would drop the tangents. What is
    compiled outside stays there."""
    from torch._dynamo import guards, symbolic_convert, variables
    if (translator := getattr(symbolic_convert.tls, "current_tx", None)) is None: return
    if translator.output.dual_level >= 0:
        raise RuntimeError("torch.compile drops the forward-mode tangents of the tensors it is given: "
                           "compile a function that calls torch.func.jvp itself, or don't compile this one")
    guards.install_guard(variables.ctx_manager.DualLevelContextManager._guards_singleton)
    if forward_ad._current_level >= 0: _GRAPHS["tangents"] = True

def forward_mode(*tensors):
    "Does a tensor carry a tangent?"
    return (forward_ad._current_level >= 0 or _GRAPHS["tangents"]) and any(
        torch._VF._unpack_dual(x, level=0).tangent is not None for x in tensors)

def reverse_mode(*tensors): return torch.is_grad_enabled() and torch._C._any_requires_grad(*tensors)
