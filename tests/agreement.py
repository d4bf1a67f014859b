"""Small kernels of every kind: does the compiler take each of them, does the strict simulator, and do both compute the same?

The compiler's answers are kept in `agreement.json` (`python tests/agreement.py` makes it anew). What it made of a kernel
runs on this machine's processor, so no GPU is needed."""
import ast
import ctypes
import json
import linecache
import math
import os
import re
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np

KEPT = Path(__file__).with_name("agreement.json")
SCALARS = {"bool": True, **{f"{sign}int{bits}": 3 for bits in (8, 16, 32, 64) for sign in ("", "u")},
           "float16": 2.5, "float32": 2.5, "float64": 2.5, "complex64": 2.5 + 1j, "complex128": 2.5 + 1j}
POINT = np.dtype([("x", np.float32), ("n", np.int32), ("w", np.float32, (3,))], align=True)


def parameters(kind):
    "What a kernel may have as an argument: a name stands for its type."
    records = np.zeros(4, POINT)
    records["x"], records["n"], records["w"] = (1, 2, 3, 4), (4, 3, 2, 1), np.arange(12).reshape(4, 3)
    named = dict(out=np.zeros(8), x=np.arange(1, 9, dtype=np.float32), m=np.arange(16, dtype=np.float32).reshape(4, 4),
                 ints=np.arange(1, 9, dtype=np.int32), bits=np.arange(8) % 2 == 0, points=records, z=np.arange(4) * (1 + 1j),
                 n=np.int64(3), i=np.int32(2), t=np.float32(0.5), yes=np.bool_(True), pair=(np.int64(3), np.float64(0.5)), twins=(np.int64(3), np.int64(4)))
    if kind: named |= dict(a=getattr(np, kind if kind != "bool" else "bool_")(SCALARS[kind]), xs=np.array([SCALARS[kind], 1] * 2).astype(kind))
    return named


HEAD = """import math, cmath, operator, random, functools, collections, numpy as np, numba
from math import pi, sqrt
from numba import cuda, types, void, boolean, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float32, float64, complex64
from numba.cuda import libdevice
ONE, THREE, HALF, YES, NOTHING, TEXT, LIST, DICT, SET, PAIR = 1, 3, 0.5, True, None, "abc", [1, 2], {"n": 1}, {1, 2}, (3, 4)
NP3, NPHALF, TABLE, MATRIX = np.int32(3), np.float32(0.5), np.arange(4, dtype=np.float32), np.arange(4.0).reshape(2, 2)
BYTES, NESTED = b"abc", (1, (2, 3.5))
DEVICE = cuda.to_device(np.arange(4, dtype=np.float32)) if numba.config.ENABLE_CUDASIM else np.arange(4, dtype=np.float32)
POINT = np.dtype([("x", np.float32), ("n", np.int32), ("w", np.float32, (3,))], align=True)
RECORD = numba.from_dtype(POINT)
Point = collections.namedtuple("Point", "x y")
ORIGIN = Point(1, 2.5)
class Plain:
    number = 3
PLAIN = Plain()
def python_function(x): return x + 1
@cuda.jit(device=True)
def twice(x): return x * 2
@cuda.jit(device=True)
def added(x, y=1): return x + y
@cuda.jit(device=True)
def stores(x, v): x[0] = v
@cuda.jit(device=True)
def both(x): return x, x + 1
@cuda.jit
def undeclared(x): return x * 3
"""


def made(text, kind, at=[0]):
    "A kernel's function, whose source is known, and the names of its arguments."
    head, _, body = text.rpartition("\n---\n")
    words = set(re.findall(r"[A-Za-z_]\w*", body))
    names = ["out", *(x for x in parameters(kind) if x in words and x != "out")]
    source = HEAD + head + f"\ndef k({', '.join(names)}):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    at[0] += 1
    file, scope = f"agreement {at[0]}.py", {"__name__": "agreement"}
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    exec(compile(source, file, "exec"), scope)
    return scope["k"], [parameters(kind)[x] for x in names]


def simulated(rows):
    "For each row: what the kernel left in `out`, or why it is refused."
    from numba import cuda
    answers = []
    for text, kind in rows:
        try:
            fn, args = made(text, kind)
            with np.errstate(all="ignore"): cuda.jit(fn)[1, 1](*args)
            answers.append(["runs", args[0].tolist()])
        except Exception as e: answers.append([type(e).__name__, str(e)])
    return answers


def compiled(rows):
    "In a child with the compiler: the same of its code."
    import llvmlite.binding as llvm
    from types import SimpleNamespace
    from numba.cuda import dispatcher
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=(9, 0))
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return [_compiled(llvm, *row) for row in rows]


def _compiled(llvm, text, kind):
    from numba import typeof, types
    from numba.cuda.compiler import compile_cuda
    try: fn, args = made(text, kind)
    except SyntaxError as e: return ["SyntaxError", str(e)]
    try: built = compile_cuda(fn, None, tuple(map(typeof, args)), cc=(9, 0))
    except Exception as e: return ["refused", re.sub(r"\x1b\[[0-9;]*m", "", str(e))[:300]]
    if built.signature.return_type != types.none: return ["refused", "it returns a value"]
    return ["runs", _alone(lambda: _run(llvm, built, args))]


def _alone(function):
    "A function's result, from a fork of this process: code that runs into the wild ends that alone. `None`: there is none."
    inner, outer = os.pipe()
    if not (child := os.fork()):
        try: os.write(outer, json.dumps(function()).encode())
        finally: os._exit(0)
    os.close(outer)
    with os.fdopen(inner) as answer: text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text or "null")


def _run(llvm, built, args):
    "Run the compiler's code on this machine's processor; `None` if it needs a GPU."
    text = re.sub(r'target triple = ".*"', f'target triple = "{llvm.get_default_triple()}"',
                  re.sub(r'target datalayout = ".*"\n', "", built.library.get_llvm_str()))
    first, *more = (llvm.parse_assembly(part) for part in re.split(r"(?=; ModuleID)", text) if part.strip())
    for module in more: first.link_in(module)
    library = ctypes.CDLL("libm.so.6")
    for f in first.functions:
        if not f.is_declaration or f.name.startswith("llvm.") and "nvvm" not in f.name: continue
        name = f.name.removeprefix("__nv_")
        if name == f.name or not hasattr(library, name): return None
        llvm.add_symbol(f.name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
    engine = llvm.create_mcjit_compiler(first, llvm.Target.from_default_triple().create_target_machine())
    engine.finalize_object()
    flat = []
    def pass_(x):
        if isinstance(x, tuple): return [pass_(y) for y in x]
        if isinstance(x, np.ndarray):
            flat.extend([ctypes.c_void_p(0), ctypes.c_void_p(0), ctypes.c_int64(x.size), ctypes.c_int64(x.itemsize), ctypes.c_void_p(x.ctypes.data)])
            flat.extend(map(ctypes.c_int64, (*x.shape, *x.strides)))
        elif x.dtype == np.float16 or x.dtype.kind == "c": raise TypeError
        else: flat.append(np.ctypeslib.as_ctypes_type(x.dtype)(x))
    try:
        for x in args: pass_(x)
    except TypeError: return None
    result = ctypes.c_void_p()
    ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, *map(type, flat))(
        engine.get_function_address(built.fndesc.llvm_func_name))(ctypes.addressof(result), *flat)
    return args[0].tolist()
