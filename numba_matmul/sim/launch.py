"""Launch a kernel in the strict simulator, in a child process, and find out what is wrong with it.

Numba can run a CUDA kernel in plain Python, without a GPU. The strict simulator, built on Numba's classes,
catches mistakes that a GPU lets through.
"""
import ast
import copy
import inspect
import re
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from math import prod
from numbers import Integral

import numpy as np
from ..arrays import dtype_of, is_torch, placed, rounded
from ..draw import Message
from ..process import ChildError, callees, has_compiler, in_child, kernel_parts
from .arguments import all_arguments, argument, declared, need_contiguous
from .float64 import float64_remark
from .host import unfilled
from .kernel import StrictKernel, interleaved
from .memory import GlobalArray
from .places import line_text
from .resources import full_capability, library_of, misfit, refused_line, registers_of
from .scheduler import SimulatorError
from .types import type_of
from .typing import as_frozen, nodes_of
from .views import index_text
from numba import cuda
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray


# What looks odd about a kernel that passes the simulator

def _differing(name, one, other):
    "A remark on results from two orders. Sums rounded in a different order differ a little; that's fine."
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
    return (f"the result depends on which thread or block comes first: {name}[{index_text(at)}] is {one[at]} "
            f"in one order and {other[at]} in another")

def _does_nothing(statement):
    "Is this an expression without a call whose value is unused? A docstring doesn't count."
    return (isinstance(statement, ast.Expr) and not isinstance(statement.value, ast.Constant)
            and not any(isinstance(node, ast.Call) for node in ast.walk(statement)))

def idle_statements(fn):
    "Remarks on statements of a function that do nothing."
    for node in nodes_of(fn):
        if not _does_nothing(node): continue
        cure = "is it a call or an assignment?"
        if isinstance(node.value, ast.Compare): cure = "assign with ="
        if isinstance(node.value, ast.Attribute): cure = f"call it, {ast.unparse(node.value)}()"
        yield f"{ast.unparse(node.value)} does nothing, at {line_text(fn.__code__, node.lineno)}; {cure}"

def joined_first(fn):
    "Remarks on `a < b & c < d`, where `b & c` comes first. A mask, as in `t & 31`, is meant to."
    for node in nodes_of(fn):
        for part in node.comparators[:-1] if isinstance(node, ast.Compare) else ():
            if (isinstance(part, ast.BinOp) and isinstance(part.op, (ast.BitAnd, ast.BitOr))
                    and not isinstance(part.right, ast.Constant)):
                words = "and, not &" if isinstance(part.op, ast.BitAnd) else "or, not |"
                yield (f"write {words}: {ast.unparse(part)} is computed before the comparisons, at "
                       f"{line_text(fn.__code__, node.lineno)}")

def assigned_names(fn, array):
    "Remarks on assignments to the name of an array, which store nothing in the array."
    for node in nodes_of(fn):
        if isinstance(node, ast.Name) and node.id == array and isinstance(node.ctx, ast.Store):
            where = line_text(fn.__code__, node.lineno)
            yield f"{array} = … only gives the name another value, at {where}; write {array}[…] = …"

def _looks_odd(fn, extents):
    "Remarks on the source of a kernel's function. extents: threads of the launch along x, y and z."
    nodes = nodes_of(fn)
    yield from idle_statements(fn)
    yield from joined_first(fn)
    # two dynamic arrays, and no slice that puts one after the other
    sliced = {id(node.value) for node in nodes if isinstance(node, ast.Subscript)}
    dynamic = [node for node in nodes if isinstance(node, ast.Call) and id(node) not in sliced and node.args
               and ast.unparse(node.func).endswith("shared.array")
               and getattr(node.args[0], "value", None) == 0]
    if len(dynamic) > 1:
        yield (f"{len(dynamic)} dynamic shared arrays of {fn.__name__} start at the same byte, the last at "
               f"{line_text(fn.__code__, dynamic[-1].lineno)}; slice one array, both[:n] and both[n:]")
    others = {node.attr for node in nodes if isinstance(node, ast.Attribute)} & {"y", "z"}
    for node in nodes:
        where = line_text(fn.__code__, node.lineno) if hasattr(node, "lineno") else ""
        # cuda.grid(n) in a launch that doesn't have n dimensions
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr == "grid" and node.args:
            axes = getattr(node.args[0], "value", 0)
            if axes in (2, 3) and extents[axes - 1] == 1 < extents[0]:
                yield (f"cuda.grid({axes}) in a launch with one thread along {'xyz'[axes - 1]}, where its "
                       f"index is always 0, at {where}; give the grid and the block {axes} numbers each")
            if axes == 1 and max(extents[1:]) > 1 and not others:
                yield (f"cuda.grid(1) only counts along x, so {extents[1] * extents[2]} threads of this "
                       f"launch share each of its values, at {where}")

def _unwritten(launch):
    "Remarks on arrays that a launch left unwritten, or partly unwritten."
    nodes, elements = nodes_of(launch.fn), launch.grid.elements
    written = {array.name for array in launch.arrays if array.watch.stores}
    stored = {node.value.id for node in nodes
              if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
              and isinstance(node.value, ast.Name)}
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    for array in launch.arrays:
        name = array.name
        if name in stored - written:
            yield f"{name} was never written: no thread reached a line that writes to it"
        elif name.isidentifier() and nodes and name not in used: yield f"{name} is never used"
        if name not in written:
            yield from assigned_names(launch.fn, name)
            continue
        # elements are recorded by address, whichever name of the array wrote them
        first = array.first_byte + array.base
        places = first + np.tensordot(array.strides, np.indices(array.shape), 1).ravel()
        gaps = [i for i, place in enumerate(places.tolist())
                if place not in elements or elements[place].write is None]
        if gaps:
            were = "was" if len(gaps) == 1 else "were"
            yield (f"{len(gaps)} of {array.size} elements of {name} {were} never written: the first is "
                   f"{array.label(tuple(map(int, np.unravel_index(gaps[0], array.shape))))}")


# Simulate and diagnose

def _launch_in_several_orders(launch, args):
    """Remarks on a kernel. If its blocks communicate, they are interleaved in several ways, and the results
    compared."""
    first, found = None, set()
    for seed in (None, *range(1, 6)):
        given = copy.deepcopy(args)
        with interleaved(seed), redirect_stdout(None if seed else sys.stdout): launch(*given)
        if first is None:  # the default order
            first, dims = given, zip(launch.grid_dim, launch.block_dim)
            extents = [blocks * threads for blocks, threads in dims]
            found |= {text for fn in callees(launch.fn) for text in _looks_odd(fn, extents)}
            found |= {*_unwritten(launch)}
        else:
            names = launch.fn.__code__.co_varnames
            differ = [_differing(*pair) for pair in zip(names, first, given) if np.ndim(pair[1])]
            found |= {*filter(None, differ)}
            if any(differ): break
        if not launch.grid.talks: break  # then the order of blocks can't matter
    return sorted(found | {*launch.grid.remarks.values()})


class _InChild(tuple):
    "A placeholder for `placed`: in a child it becomes that array."
    def __reduce__(self): return placed, tuple(self)

def _on_host(args):
    "The device arrays among these arguments as arrays of a child, sharing memory as the originals do."
    args = [cuda.as_cuda_array(arg.detach()) if is_torch(arg) and arg.is_cuda else arg for arg in args]
    spans = {}  # argument number → start and end of its memory, and its first element
    for i, arg in enumerate(args):
        if getattr(arg, "__cuda_ndarray__", False) and not isinstance(arg, FakeCUDAArray) and arg.size:
            first = arg.__cuda_array_interface__["data"][0]
            ends = [(n - 1) * step for n, step in zip(arg.shape, arg.strides)]
            end = first + sum(max(0, x) for x in ends) + arg.dtype.itemsize
            spans[i] = first + sum(min(0, x) for x in ends), end, first
    # overlapping arrays are sent as one piece of memory
    groups, end = [], 0
    for i in sorted(spans, key=spans.get):
        if spans[i][0] >= end: groups.append([])
        groups[-1].append(i)
        end = max(end, spans[i][1])
    for group in groups:
        start, stop = spans[group[0]][0], max(spans[i][1] for i in group)
        whole = dict(shape=(stop - start,), typestr="|u1", data=(start, False), version=3)
        memory = cuda.from_cuda_array_interface(whole, args[group[0]]).copy_to_host()
        for i in group:
            arg, offset = args[i], spans[i][2] - start
            args[i] = _InChild((memory, offset, arg.shape, arg.strides, arg.dtype))
    return args


def check_launch(launch, args):
    """A launch and its arguments as a child receives them; the kernel keeps the outside values it was typed
    with. Refuses anything but a kernel with a configuration, and arguments that don't match."""
    parts = kernel_parts(launch)
    if parts is None:
        name = getattr(launch, "__name__", repr(launch))
        raise TypeError(f"{name} isn't a kernel: pass kernel[grid, block], where `kernel` is a "
                        "function decorated with @cuda.jit")
    fn, options, configuration = parts
    if options.get("device"):
        raise TypeError(f"{fn.__name__} is a device function: pass a kernel that calls it")
    if not configuration:
        raise ValueError(f"{fn.__name__} needs a launch configuration: {fn.__name__}[grid, block]")
    all_arguments(fn, args)
    for name, arg in zip(fn.__code__.co_varnames, args):
        # a child would receive a copy of a view, which a launch refuses
        if isinstance(arg, np.ndarray): need_contiguous(name, arg)
    if not isinstance(launch, StrictKernel): return launch, _on_host(args)
    frozen = copy.copy(launch)
    frozen.fn = as_frozen(fn, tuple(map(type_of, all_arguments(fn, args))))
    return frozen, args

def _launch(launch, args):
    launch(*args)
    return tuple(np.asarray(arg) for arg in args if isinstance(arg, (np.ndarray, FakeCUDAArray)))

def _compiled(launch, args, signature):
    """In a child with the compiler: why the compiler or the driver refuses a kernel, in one line, `None` if
    neither does; and a remark on what it compiles to, or `None`."""
    from numba.cuda.cudadrv.error import CudaSupportError
    fn, options, (_, block, *_) = kernel_parts(launch)
    if not options.get("debug"): launch.dispatcher.targetoptions["lineinfo"] = True
    if signature: several = [kinds for kinds, _ in declared(signature)]
    else: several = [tuple(map(launch.dispatcher.typeof_pyval, args))]
    try:
        libraries = [library_of(launch.dispatcher, kinds, (9, 0)) for kinds in several]
    except CudaSupportError:
        return None, None  # it needs a driver, and there is none
    except Exception as e:
        # from the compiler's long message, the first informative line; for a call, with the types it was
        # given
        text = re.sub(r"\x1b\[[0-9;]*m", "", str(e))
        lines = [line.strip() for line in text.splitlines() if line.strip() and "pipeline (step:" not in line]
        where = [*re.findall(r", line (\d+)", text), refused_line(e, fn)]
        told = 2 if lines and lines[0].endswith("signature:") else 1
        what = " ".join(lines[:told]) or type(e).__name__
        line = f", in {line_text(fn.__code__, int(where[0]))}" if where[0] else ""
        return f"the compiler refuses {fn.__name__}: {what}{line}", None
    # the driver refuses a block that needs more registers than there are
    for library in libraries if prod(block) > 256 else ():  # else each thread can use the maximum of 255
        if found := misfit(prod(block), registers_of(library.get_cubin(cc=full_capability((9, 0))).code)):
            return f"{fn.__name__} can't be launched: {found}", None
    return None, float64_remark(libraries[0], fn, several[0])

def simulate(
    launch,      # a kernel with its configuration: `kernel[grid, block]`
    *args,       # arrays (numpy or device) and numbers
    timeout=60,  # seconds
):
    "Launch in a child; returns the arrays as the kernel left them. Raises `SimulatorError` at a mistake."
    return in_child(_launch, *check_launch(launch, args), simulator=True, timeout=timeout, keep=True)

def as_written(dims):
    "A grid or a block as one writes it: `8`, or `(8, 4)`."
    used = tuple(dims)[:1 + max([0, *(i for i, n in enumerate(dims) if n > 1)])]
    return str(used) if len(used) > 1 else str(used[0])

WATCHABLE = {"race", "uninitialized", "bounds", "barrier"}  # kinds of mistakes that a player shows

def _offer(launch):
    "The line that says how to watch a mistake."
    fn, _, (grid, block, _, dynamic) = kernel_parts(launch)
    shared = f", 0, {dynamic}" if dynamic else ""
    launched = f"{fn.__name__}[{as_written(grid)}, {as_written(block)}{shared}]"
    return f"\nTo watch it step by step: play({launched}, …), with the same arguments."

PROMISE = ("This covers only this launch, and the result wasn't checked: for a product, "
           "use assert_matmul_correct(a, b, c).")


def diagnose(
    launch,      # a kernel with its configuration: `kernel[grid, block]`
    *args,       # arrays (numpy or device) and numbers
    timeout=60,  # seconds
):
    """Launch in a child with the strict simulator and report what is wrong with the kernel, as text. If
    nothing is, a second child compiles it for these argument types. The kernel's printed output is shown."""
    launch, given = check_launch(launch, args)
    in_simulator = dict(simulator=True, timeout=timeout, keep=True)
    try:
        remarks = in_child(_launch_in_several_orders, launch, given, **in_simulator)
    except SimulatorError as e:
        fn = kernel_parts(launch)[0]
        remarks = "".join(f"\nBy the way: {remark}." for remark in (*idle_statements(fn), *joined_first(fn)))
        return Message(f"{e}{remarks}{_offer(launch) if e.kind in WATCHABLE else ''}")
    except ChildError as e:
        return Message(e)
    remarks = [PROMISE, *(f"By the way: {remark}." for remark in remarks)]
    if not has_compiler():
        return Message("\n".join(["No mistake found. It wasn't compiled: numba-cuda is not installed.",
                                  *remarks]))
    fn, options, _ = kernel_parts(launch)
    # the compiler only needs the argument types, so empty arrays will do
    args = [np.empty((0,) * arg.ndim, arg.dtype) if getattr(arg, "ndim", 0) else arg
            for arg in all_arguments(fn, args)]
    refused, remark = in_child(_compiled, launch, args, options.get("signature"), simulator=False,
                               timeout=timeout, keep=True)
    if remark: remarks.append(f"By the way: {remark}.")
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
    args: tuple  # empty unless requested
    others: int = 0     # launches by the same call

    def __repr__(self):
        return (f"{self.kernel.py_func.__name__}[{self.grid}, {self.block}] with "
                f"{self.dynamic_bytes} bytes of dynamic shared memory, {self.signature}")
    @property
    def configured(self): return self.kernel[self.grid, self.block, 0, self.dynamic_bytes]

def _type_text(arg):
    "The type of a kernel's argument, in Numba's signature notation."
    if isinstance(arg, GlobalArray):
        axes = [":"] * arg.ndim
        if arg.data.flags.c_contiguous: axes[-1] = "::1"
        return f"{arg.dtype}[{', '.join(axes)}]"
    if isinstance(arg, tuple):
        kinds = [_type_text(part) for part in arg]
        if len(set(kinds)) == 1: return f"UniTuple({kinds[0]}, {len(kinds)})"
        return f"Tuple(({', '.join(kinds)}))"
    if isinstance(arg, (bool, np.bool_)): return "boolean"
    if isinstance(arg, int): return "int64"
    return str(np.asarray(arg).dtype)

def _note_launches(fn, shape, dtype, with_args):
    "In a child: call `fn(a, b)`, and return the launches it makes, without running them."
    (m, n, k), kind = shape, rounded(np.zeros(1), dtype).dtype
    # the kernel may depend on shape and types, but not on the numbers
    a, b = (rounded(np.random.randn(*size), dtype) if with_args else np.zeros(size, kind)
            for size in ((m, k), (k, n)))
    noted, call = [], StrictKernel.__call__
    def note(launch, *args):
        if launch.grid_dim is None: return launch.fn(*args)
        args = all_arguments(launch.fn, args)
        types = ", ".join(_type_text(argument(arg, [])) for arg in args)
        noted.append(NotedLaunch(StrictKernel(launch.fn, launch.options), launch.grid_dim, launch.block_dim,
                                 launch.dynshared_size, f"void({types})", args if with_args else ()))
    # The host function runs unchanged, except that its launches do nothing, and that memory nobody looks at
    # isn't filled: for large matrices that would take seconds.
    if not with_args: a, b = FakeCUDAArray(a), FakeCUDAArray(b)
    StrictKernel.__call__ = note
    try:
        with unfilled() if not with_args else nullcontext(): fn(cuda.to_device(a), cuda.to_device(b))
    finally: StrictKernel.__call__ = call
    return noted

def _name_of(fn): return getattr(fn, "func", fn).__name__


def launch_of(
    fn,     # host function (a, b)
    shape,  # m, n, k
    with_args: bool = False,  # include its arguments? Large matrices take seconds to transfer
    gpu: tuple = None,  # for which it chooses tiles: see `process.in_child`
) -> NotedLaunch:
    """The kernel a host function launches for matrices of this shape; if it launches several, the one named
    after it."""
    kernel = kernel_parts(fn)
    if kernel or not callable(fn):
        given = f"the kernel {kernel[0].__name__}" if kernel else repr(fn)
        raise TypeError(f"expected a host function, which launches a kernel, got {given}")
    try:
        inspect.signature(fn).bind("a", "b")
    except TypeError:
        raise TypeError(f"{_name_of(fn)}{inspect.signature(fn)} isn't a host function, which takes two "
                        "matrices (a, b): if it is a kernel, decorate it with @cuda.jit") from None
    if np.shape(shape) != (3,) or not all(isinstance(x, Integral) and x >= 0 for x in shape):
        raise ValueError(f"expected a shape (m, n, k), three whole numbers, got {shape!r}")
    noted = in_child(_note_launches, fn, tuple(shape), dtype_of(fn), with_args, simulator=True, keep=True,
                     gpu=gpu)
    # if several, the one with the host function's name
    own = [launch for launch in noted if launch.kernel.py_func.__name__ == f"{_name_of(fn)}_kernel"]
    if len(own) == 1: return replace(own[0], others=len(noted) - 1)
    if len(noted) != 1:
        names = ", ".join(launch.kernel.py_func.__name__ for launch in noted) or "none"
        raise ValueError(f"{_name_of(fn)} launches {len(noted)} kernels for {'×'.join(map(str, shape))}, "
                         f"not one: {names}")
    return noted[0]
