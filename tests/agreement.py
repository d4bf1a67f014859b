"""Small kernels of every kind: does the compiler accept each one, does the strict simulator, and do both
compute the same?

The kernels are those of `agreement_kernels.py`, plus others assembled here. The compiler's answers are
stored in `agreement.json` (`python tests/agreement.py` regenerates it). The compiler's code for a kernel
runs on this machine's processor, so no GPU is needed."""
import builtins
import cmath
import ctypes
import hashlib
import json
import linecache
import math
import operator
import os
import re
import sys
import warnings
from contextlib import redirect_stdout
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from agreement_kernels import DTYPE_NAMES, DTYPES, HEAD, LOOSER, OUTSIDE, SLOTS, STATEMENTS, STRICTER
from on_this_cpu import compile_for_gpu, engine_of, function, same, scalar

KEPT = Path(__file__).with_name("agreement.json")
SCALARS = {"bool": True, **{f"{sign}int{bits}": 3 for bits in (8, 16, 32, 64) for sign in ("", "u")},
           "float16": 2.5, "float32": 2.5, "float64": 2.5, "complex64": 2.5 + 1j, "complex128": 2.5 + 1j}
POINT = np.dtype([("x", np.float32), ("n", np.int32), ("w", np.float32, (3,))], align=True)


def parameters(kind):
    "Possible arguments of a kernel: a name stands for its type."
    records = np.zeros(4, POINT)
    records["x"], records["n"], records["w"] = (1, 2, 3, 4), (4, 3, 2, 1), np.arange(12).reshape(4, 3)
    named = dict(out=np.zeros(8), x=np.arange(1, 9, dtype=np.float32),
                 m=np.arange(16, dtype=np.float32).reshape(4, 4), ints=np.arange(1, 9, dtype=np.int32),
                 bits=np.arange(8) % 2 == 0, points=records, z=np.arange(4) * (1 + 1j), n=np.int64(3),
                 i=np.int32(2),
                 t=np.float32(0.5), yes=np.bool_(True), pair=(np.int64(3), np.float64(0.5)),
                 twins=(np.int64(3), np.int64(4)))
    if kind: named |= dict(a=scalar(kind)(SCALARS[kind]), xs=np.array([SCALARS[kind], 1] * 2).astype(kind))
    return named


@cache
def outside():
    "The lines above each kernel."
    scope, file = {"__name__": "agreement"}, "above the kernels.py"
    linecache.cache[file] = len(HEAD), None, HEAD.splitlines(True), file
    exec(compile(HEAD, file, "exec"), scope)
    return scope


def made(text, kind=None):
    "A kernel's function, with source, and its arguments."
    head, _, body = text.rpartition("\n---\n")
    given, words = parameters(kind), set(re.findall(r"[A-Za-z_]\w*", body))
    names = ["out", *(x for x in given if x in words and x != "out")]
    source = f"{head}\ndef k({', '.join(names)}):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    return function("k", source, dict(outside())), [given[x] for x in names]


def simulated(rows):
    "For each row: the contents of `out`, or why the kernel is refused."
    from numba import cuda
    answers = []
    for text, kind in rows:
        try:
            fn, args = made(text, kind)
            with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"), redirect_stdout(None):
                cuda.jit(fn)[1, 1](*args)
            answers.append(["runs", args[0].tolist()])
        except Exception as e: answers.append([type(e).__name__, str(e)])
    return answers


def compiled(rows):
    "In a child with the compiler: the same for the compiled code."
    return [_compiled(*row) for row in rows]


def _compiled(text, kind):
    from numba import typeof, types
    try: fn, args = made(text, kind)
    except SyntaxError as e: return ["SyntaxError", str(e)]
    try: built = compile_for_gpu(fn, tuple(map(typeof, args)))
    except Exception as e: return ["refused", re.sub(r"\x1b\[[0-9;]*m", "", str(e))[:300]]
    if built.signature.return_type != types.none: return ["refused", "it returns a value"]
    return ["runs", _alone(lambda: _run(built, args))]


def _alone(function):
    """A function's result, from a fork of this process: runaway code only ends the fork. `None` if there is
    no result."""
    inner, outer = os.pipe()
    if not (child := os.fork()):
        try: os.write(outer, json.dumps(function()).encode())
        finally: os._exit(0)
    os.close(outer)
    with os.fdopen(inner) as answer: text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text or "null")


def _run(built, args):
    "Run the compiler's code on this machine's processor; `None` if it needs a GPU."
    engine = engine_of(built)
    try: flat = [y for x in args for y in _flat(x)]
    except TypeError: return None
    if engine is None: return None
    result = ctypes.c_void_p()
    ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, *map(type, flat))(
        engine.get_function_address(built.fndesc.llvm_func_name))(ctypes.addressof(result), *flat)
    return args[0].tolist()


def _flat(x):
    "The parameters that one argument becomes in the compiled code."
    if isinstance(x, tuple): return [z for y in x for z in _flat(y)]
    if isinstance(x, np.ndarray):
        return [ctypes.c_void_p(0), ctypes.c_void_p(0), ctypes.c_int64(x.size), ctypes.c_int64(x.itemsize),
                ctypes.c_void_p(x.ctypes.data), *map(ctypes.c_int64, (*x.shape, *x.strides))]
    if x.dtype == np.float16 or x.dtype.kind == "c": raise TypeError
    return [np.ctypeslib.as_ctypes_type(x.dtype)(x)]


def lines(text): return [line.replace("\\n", "\n") for line in text.splitlines()]


NATIVE = {"int16": "i", "int32": "i", "int64": "n", "float32": "t", "float64": "out[1]"}


def libdevice_rows():
    from numba.cuda import libdevicefuncs
    for name, (result, given) in libdevicefuncs.functions.items():
        takes = [NATIVE[str(x.ty)] for x in given if not x.is_ptr]
        outs = [x for x in given if x.is_ptr]
        name = name.removeprefix("__nv_")
        head = "out[1], out[2], out[3] = 0.25, 0.75, -3.5\n"
        many = len(outs) + (str(result) != "none") > 1
        take = (lambda call: f"out[0], out[5] = {call}") if many else (lambda call: f"out[0] = {call}")
        yield "a function of libdevice", head + take(f"libdevice.{name}({', '.join(takes)})")
        for other in ("i", "out[3]", "yes", "n"):
            yield "libdevice", head + take(f"libdevice.{name}({', '.join([other] * len(takes))})")
        yield "libdevice", head + f"y = libdevice.{name}()"
        yield "libdevice", head + f"y = libdevice.{name}({', '.join(takes)}, 1)"


NOT_CALLED = {  # they read or write files, wait for input, or end the process
    builtins: ("exit", "quit", "copyright", "credits", "license", "help", "open", "input", "breakpoint"),
    np: ("save", "savez", "savez_compressed", "savetxt", "loadtxt", "load", "fromfile", "memmap",
         "genfromtxt", "test",
         "info", "show_config", "show_runtime", "f2py", "testing", "get_include")}


def public(module): return [x for x in dir(module) if x[0] != "_" and x not in NOT_CALLED.get(module, ())]
def does(expression): return f"y = {expression}\nout[0] = 1"


def attribute_rows():
    for name in public(np.ndarray):
        is_method = callable(getattr(np.ndarray, name))
        for of in ("x", "m"):
            yield does(f"{of}.{name}()")
            yield f"out[0] = {of}.{name}"
            for given in ("0", "1, 8", "x", "float32"): yield does(f"{of}.{name}({given})")
        for of in ("i", "t", "yes", "z[0]", *(() if is_method else ("x", "m", "z", "points", "TABLE"))):
            yield does(f"{of}.{name}")
    for name in [x for x in dir(tuple) if x[:2] != "__"] + ["x", "y", "_fields", "_asdict", "_replace"]:
        for of in ("twins", "PAIR", "ORIGIN"):
            yield does(f"{of}.{name}")
            yield does(f"{of}.{name}(1)")


def untyped():
    "Kind, and text of a kernel's body."
    yield from libdevice_rows()
    values = [f"np.{'bool_' if kind == 'bool' else kind}({value})" for kind, value in SCALARS.items()]
    for line, value in product(lines(OUTSIDE), [*values, "True", "3", "2.5", "1j", "2**40", "-3", "2**63"]):
        yield "a value from outside", f"A = {value}\n---\n{line}"
    for line, dtype in product(lines(DTYPES), DTYPE_NAMES):
        yield "a type of an array", re.sub(r"\bD\b", dtype, line)
    for line in lines(STATEMENTS): yield "a statement", line
    for name in filter(str.islower, dir(builtins)):
        if name in NOT_CALLED[builtins]: continue
        for given in ("", "i", "x", "i, t", "twins"): yield "a builtin", does(f"{name}({given})")
    for module in (math, cmath, operator):
        for name, given in product(public(module),
                                   ("t", "i", "yes", "out[1]", "n", "t, t", "i, i", "t, i", "t, t, t", "x")):
            yield "math", f"out[:3] = 0.25\nout[0] = {module.__name__}.{name}({given})"
    for name in public(np):
        for given in ("t", "i, i", "x, out", "x", "x, x, out"): yield "numpy", does(f"np.{name}({given})")
        if not callable(getattr(np, name)): yield "numpy", does(f"np.{name}")
    for text in attribute_rows(): yield "an attribute", text


def every():
    "Kind, text of a kernel's body, and type of its argument `a`."
    for text, kind in product(lines(SLOTS), SCALARS): yield "a type in a slot", text, kind
    for kind, text in untyped(): yield kind, text, None


def name_of(row): return hashlib.sha256(repr(row).encode()).hexdigest()[:10]


def kept():
    "The versions used, and the answers: row → false, or true, or the contents of `out`."
    return json.loads(KEPT.read_text())


def rows(answers):
    "The rows with an answer: text and type of `a`, by name."
    named = {name_of(row): row for _, *row in every()}
    return {x: row for x, row in named.items() if x in answers}


def answer(found):
    "As it is stored."
    return found[0] == "runs" and (found[1] or True)


def differences(ours, theirs, row):
    "How simulator and compiler differ on a kernel: a sentence, or nothing."
    text = row[0].rpartition("\n---\n")[2]
    stricter = any(text in lines(x) for x in STRICTER.values())
    if theirs and ours[0] != "runs": return "" if stricter else f"refused: {ours[1]}"
    if not theirs and ours[0] == "runs":
        return "" if text in lines(LOOSER) else "runs, and the compiler refuses it"
    if not theirs and ours[0] not in ("SimulatorError", "TypeError", "SyntaxError"):
        return f"ends with {ours[0]}: {ours[1]}"
    if isinstance(theirs, list) and not stricter and not all(map(same, ours[1], theirs)):
        return f"{ours[1]}, not {theirs}"


# Ask the compiler again: kernels with stored answers, statements, libdevice, and an eighth of the others.
if __name__ == "__main__":
    from numba_matmul.process import in_child
    try: answers = kept()["answers"]
    except OSError: answers = {}
    named = {name_of(row): (kind, row) for kind, *row in every()}
    always = "a statement", "a function of libdevice"
    chosen = {x: row for x,
              (kind, row) in named.items() if x in answers or kind in always or int(x, 16) % 8 == 0}
    names, found = list(chosen), []
    for at in range(0, len(names), 500):
        found += in_child(compiled, [chosen[x] for x in names[at:at + 500]], simulator=False, timeout=600)
    table = dict(python=sys.version_info[:2], answers=dict(zip(names, map(answer, found))))
    KEPT.write_text(json.dumps(table, separators=(",", ":")).replace("],", "],\n") + "\n")
