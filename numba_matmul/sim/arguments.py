"""The arguments of a launch as the kernel sees them. Whatever a GPU would refuse is refused here."""
import numpy as np
from ..arrays import describe, is_torch
from . import host
from .memory import GlobalArray, Watch
from .scheduler import SimulatorError
from .types import Array, is_scalar
from numba import types, typeof
from numba.core import sigutils, typing
from numba.core.typeconv import Conversion
from numba.cuda.args import ArgHint, InOut
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray, sentry_contiguous
from numba.np import numpy_support

MAX_PARAMETERS = 32764  # bytes; an array takes 7 fields of 8 bytes, plus 2 per extra dimension


def all_arguments(fn, args):
    "The arguments of a launch, including defaults. Refuses too many and too few."
    code, defaults = fn.__code__, fn.__defaults__ or ()
    names = code.co_varnames[:code.co_argcount]
    if not 0 <= len(names) - len(args) <= len(defaults):
        raise TypeError(f"{fn.__name__} takes {len(names)} argument{'s' * (len(names) != 1)} "
                        f"({', '.join(names)}), but {len(args)} {'were' if len(args) != 1 else 'was'} given: "
                        "pass one per name")
    return (*args, *defaults[len(defaults) - len(names) + len(args):])

def check_parameters(fn, kinds):
    "Refuse argument lists larger than a GPU allows."
    # each argument is aligned to its size
    size = 0
    for kind in kinds:
        one = np.dtype(kind).itemsize if is_scalar(kind) else 8
        size = -(-size // one) * one + (40 + 16 * kind.ndim if isinstance(kind, Array) else one)
    if size > MAX_PARAMETERS:
        raise SimulatorError(f"the arguments of {fn.__name__} take {size} bytes, but a launch allows only "
                             f"{MAX_PARAMETERS}")

def _need_type(name, dtype):
    "Refuse numbers of a type the compiler doesn't know."
    if dtype.kind == "O":
        raise TypeError(f"{name} has elements of type object, but a kernel takes numbers")
    if not dtype.isnative:
        raise TypeError(f"{name} is in the other byte order ({dtype.str}): "
                        f"pass {name}.astype({dtype.newbyteorder('=').str[1:]!r})")
    try:
        numpy_support.from_dtype(dtype)
    except Exception:
        raise TypeError(f"{name} has type {dtype}, which GPUs don't have: convert it with "
                        f"{name}.astype('float64')") from None

def need_contiguous(name, array):
    "Refuse a numpy array that a launch can't copy to the GPU in one piece."
    try:
        sentry_contiguous(array)
    except ValueError:
        raise ValueError(f"{name} is a non-contiguous view, which a launch can't copy to the GPU: pass "
                         f"to_d({name}), or np.ascontiguousarray({name})") from None

def argument(
    arg,
    write_back,  # a list, for functions that copy results back after the launch
    name="",     # for messages
):
    "An argument of a launch as a kernel sees it."
    if isinstance(arg, tuple):
        parts = [argument(part, write_back, f"{name}[{i}]") for i, part in enumerate(arg)]
        return type(arg)(*parts) if hasattr(arg, "_fields") else tuple(parts)
    # a GPU reads a HostArray's memory directly
    if isinstance(arg, host.HostArray): arg = FakeCUDAArray(arg.view(np.ndarray))
    if isinstance(arg, np.ndarray):
        need_contiguous(name, arg)
        arg = InOut(arg)
    if isinstance(arg, ArgHint): arg = arg.to_device(write_back)
    if isinstance(arg, FakeCUDAArray):
        _need_type(name, arg.dtype)
        return GlobalArray(arg, name, watch=Watch(True))
    if isinstance(arg, float) and not isinstance(arg, np.generic):
        return np.float64(arg)  # as compiled
    if is_torch(arg) or isinstance(arg, list):
        raise TypeError(f"{name} is a {describe(arg)}, which a kernel can't take: pass to_d({name})")
    if not isinstance(arg, (int, complex, np.generic)):
        raise TypeError(f"{name} is a {describe(arg)}, but a kernel takes device arrays and numbers")
    if isinstance(arg, (np.str_, np.bytes_)):
        raise TypeError(f"{name} is a {describe(arg)}, but a kernel takes numbers")
    if isinstance(arg, np.generic): _need_type(name, arg.dtype)
    elif isinstance(arg, int) and not -2**63 <= arg < 2**64:
        raise TypeError(f"{name} is {arg}, which doesn't fit in 64 bits")
    return arg

def arrays_in(args):
    "The arrays among the arguments, including those inside tuples."
    for arg in args:
        if isinstance(arg, GlobalArray): yield arg
        elif isinstance(arg, tuple): yield from arrays_in(arg)


# Kernels with a signature: numbers are converted to its types; arrays must match them.

def declared(signature):
    "The argument types and the result type of each signature passed to `cuda.jit`."
    several = signature if isinstance(signature, list) else [signature]
    return [*map(sigutils.normalize_signature, several)]

def _numba_type(arg):
    "An argument's type as Numba's dispatcher sees it."
    if isinstance(arg, tuple): return types.BaseTuple.from_types([*map(_numba_type, arg)])
    if not isinstance(arg, GlobalArray): return typeof(arg)
    flags = arg.data.flags
    layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
    return types.Array(numpy_support.from_dtype(arg.dtype), arg.ndim, layout)

def _as(kind, arg):
    "A number converted to the signature's type; anything else unchanged."
    if isinstance(kind, types.BaseTuple): return tuple(map(_as, kind, arg))
    if not isinstance(kind, (types.Number, types.Boolean)): return arg
    try:
        return getattr(np, "bool_" if isinstance(kind, types.Boolean) else kind.name)(arg)
    except OverflowError:
        raise SimulatorError(f"{arg} isn't a valid {kind}, the type in the signature") from None

WORST_FIRST = Conversion.unsafe, Conversion.safe, Conversion.promote

def as_declared(name, signature, args):
    """The arguments of a launch, converted to the types of a kernel's signature. `TypeError` where a GPU
    would refuse the launch."""
    # with several signatures, pick the best match
    signatures, given = [kinds for kinds, _ in declared(signature)], tuple(map(_numba_type, args))
    can_convert, fitting = typing.Context().can_convert, {}
    for kinds in signatures:
        found = [can_convert(one, other) for one, other in zip(given, kinds)]
        if len(kinds) == len(given) and None not in found:
            # Numba's ranking: above all, as few lossy conversions as possible
            fitting.setdefault(tuple(map(found.count, WORST_FIRST)), []).append(kinds)
    best = fitting[min(fitting)] if fitting else []
    if len(best) != 1:
        wanted = " or ".join(f"({', '.join(map(str, kinds))})" for kinds in signatures)
        raise TypeError(
            f"{name} was compiled for {wanted}, but launched with ({', '.join(map(str, given))}): "
            + ("several match equally well" if best else "drop the signature, or pass those types"))
    return [*map(_as, best[0], args)]
