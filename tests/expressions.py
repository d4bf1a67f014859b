"""Expressions with operands of many types: what Numba's compiler turns each one into, as type and values,
and what the strict simulator does. The compiler's LLVM code runs on this machine's processor, so no GPU is
needed."""
import ctypes
import itertools
import re

import numpy as np
from on_this_cpu import compile_for_gpu, engine_of, function, scalar

SMALL = {"bool": (False, True), "int8": (-128, -3, 0, 5, 127), "int16": (-32768, 7, 300),
         "int32": (-2**31, -7, 0, 3, 2**31 - 1),
         "int64": (-2**63, -5, 0, 2, 63, 2**53 + 1, 2**63 - 1), "uint8": (0, 3, 255), "uint16": (0, 9, 65535),
         "uint32": (0, 1, 7, 2**31, 2**32 - 1), "uint64": (0, 1, 5, 2**53 + 1, 2**63, 2**64 - 1),
         "float32": (-2.5, 0.0, 0.1, 3.0, 1e10), "float64": (-2.5, 0.0, 0.1, 7.0, 1e300)}
INTEGERS = [kind for kind in SMALL if "int" in kind]
FLOATS = ["float32", "float64"]
NUMBERS = list(SMALL)
SIGNED = ["int8", "int16", "int32", "int64"]

BINARY = {  # expression of a and b → the types that a and b may have
    **{f"a {sign} b": NUMBERS for sign in ("+", "-", "*", "/", "<", "<=", "==", "!=", ">", ">=")},
    **{f"a {sign} b": INTEGERS for sign in ("&", "|", "^", "//", "%", "<<", ">>")},
    "a // b + 0.5": INTEGERS + FLOATS, "a % b - a": FLOATS, "a ** 2 + b": INTEGERS + FLOATS,
    "a + b * a": INTEGERS, "a * b - b": NUMBERS, "(a - b) * (a + b)": INTEGERS, "a - b - b": INTEGERS,
    "(a + b) // 2": INTEGERS, "(a - b) >> 1": INTEGERS, "a * b % 7": INTEGERS, "-a + b": INTEGERS + FLOATS,
    "~a & b": INTEGERS,
    "int32(a) * int32(b)": INTEGERS, "uint32(a) - uint32(b)": INTEGERS, "int8(a) + int8(b)": INTEGERS,
    "uint8(a + b)": INTEGERS, "int16(a * b)": INTEGERS, "uint64(a) + b": INTEGERS, "int64(a) * b": INTEGERS,
    "float32(a) + b": NUMBERS, "float32(a) * float32(b)": INTEGERS + FLOATS, "float64(a) - b": NUMBERS,
    "float32(a) / b": INTEGERS,
    "min(a, b)": INTEGERS + FLOATS, "max(a, b)": INTEGERS + FLOATS, "min(a, b, 3)": INTEGERS,
    "max(a, 0) + b": SIGNED,
    "a if a > b else b": INTEGERS + FLOATS, "a if b else 0": NUMBERS,
    "1 if a < b else 0.5": INTEGERS + FLOATS,
    "a and b": ["bool"], "a or b": ["bool"], "not a": NUMBERS, "a < b and b < 10": INTEGERS + FLOATS,
    "a < b < 100": INTEGERS + FLOATS, "divmod(a, b)[0]": INTEGERS, "divmod(a, b)[1]": INTEGERS,
    "pow(a, 2) - b": FLOATS,
    "a + THREE - b": INTEGERS, "a * HALF + b": NUMBERS, "TABLE[a & 3] - b": INTEGERS,
    "TABLE[1] * a + b": INTEGERS,
    "math.sqrt(abs(a)) + b": FLOATS, "math.floor(a) + b": FLOATS, "(a, b)[0] * 2": INTEGERS + FLOATS,
}
UNARY = {
    "-a": INTEGERS + FLOATS, "~a": INTEGERS, "+a": NUMBERS, "abs(a)": INTEGERS + FLOATS,
    "int(a)": INTEGERS + FLOATS,
    "float(a)": INTEGERS + FLOATS, "a + 1": NUMBERS, "a * 2.0": NUMBERS, "a - 1": NUMBERS,
    "a / 2": INTEGERS + FLOATS,
    "a // 2": INTEGERS + FLOATS, "a % 3": INTEGERS + FLOATS, "a << 4": INTEGERS, "a >> 3": INTEGERS,
    "1 << (a & 31)": INTEGERS,
    "a & 0xFF": INTEGERS, "a ^ -1": INTEGERS, "a * a": NUMBERS, "a * a * a": INTEGERS, "a + 2**40": INTEGERS,
    "int32(1) << 40": ["int32"], "uint32(0) - uint32(1)": ["int32"], "int32(65536) * int32(65536)": ["int32"],
    "a * 1103515245 + 12345": INTEGERS,
    "int32(a)": INTEGERS + ["bool"], "uint8(a)": INTEGERS, "uint32(a) + 1": INTEGERS,
    "int64(uint32(a))": INTEGERS, "uint64(a) >> 1": INTEGERS,
    "float32(a)": NUMBERS, "float32(a) + 0.1": NUMBERS, "float32(a) * 3": INTEGERS, "round(a)": FLOATS,
    "math.exp(a * 0)": FLOATS, "math.fabs(a)": FLOATS, "math.isnan(a)": FLOATS, "a == 3": NUMBERS,
    "a > 0.5": NUMBERS,
    "cuda.popc(a)": ["int32", "uint32", "uint64"], "cuda.clz(a)": ["int32", "uint32"],
    "cuda.brev(a)": ["uint32", "uint64"],
}
BODIES = {  # several statements; they return something
    "x = a\nif b: x = 0.5\nreturn x": INTEGERS + FLOATS,
    "x = 0\nfor i in range(3): x += a\nreturn x + b": NUMBERS,
    "x = 0.0\nfor i in range(3): x += a\nreturn x - b": NUMBERS,
    "x = float32(0)\nfor i in range(3): x += float32(a) * float32(b)\nreturn x": INTEGERS + FLOATS,
    "x = float32(0)\nfor i in range(3): x += a * 0.5\nreturn x + b": FLOATS,
    "x = int32(a)\nx += b\nx -= 1\nreturn x": INTEGERS,
    "x = uint32(a)\nx = x - uint32(b)\nreturn x": INTEGERS,
    "x = uint32(a)\nwhile x > 10: x = x // 2\nreturn x + b": INTEGERS,
    "x, y = a, b\nx, y = y, x\nreturn x - y": INTEGERS + FLOATS,
    "pair = a, b\n(x, y), z = pair, a - b\nreturn x * 3 - y * 2 + z": INTEGERS + FLOATS,
    "x = a\nfor i in range(4): x = x * 3 + b\nreturn x": INTEGERS,
    "x = 1\nfor i in range(5): x = x * a\nreturn x": INTEGERS,
    "x = a\nx <<= 1\nx ^= b\nreturn x": INTEGERS,
    "x = a\nif a > b:\n    x = b\nelif a == b:\n    x = 1.5\nreturn x": INTEGERS + FLOATS,
    "x = 0\nfor i in range(10):\n    if i == a: break\n    x += i * b\nreturn x": INTEGERS,
}
PAIRS = 5  # type pairs per expression, chosen by a fixed seed


def table():
    "Rows: expression or body, and the types of its operands."
    rows, random = [], np.random.default_rng(20)
    for kinds_of in (BINARY, BODIES):
        for text, kinds in kinds_of.items():
            pairs = list(itertools.product(kinds, repeat=2))
            for i in sorted(random.permutation(len(pairs))[:PAIRS]): rows.append((text, pairs[i]))
    for text, kinds in UNARY.items():
        for kind in kinds: rows.append((text, (kind, "int64")))
    return rows


HEAD = """import math
import numpy as np
from numba import cuda, boolean, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float32, float64
THREE, HALF, TABLE = 3, 0.5, np.arange(5, dtype=np.uint8)
"""


def function_of(expression):
    "A function `(a, b)` with source, like a kernel's."
    body = expression if "return" in expression else f"return {expression}"
    scope = {}
    exec(HEAD, scope)
    return function("f", "def f(a, b):\n" + "".join(f"    {line}\n" for line in body.splitlines()), scope)


def operands(kinds): return list(itertools.product(*(SMALL[kind] for kind in kinds)))


def compiled(table):
    "In a child with the compiler: type and values of each, or why there are none."
    return [_compiled(*row) for row in table]


def _compiled(expression, kinds):
    from numba.cuda import types
    numba_types = tuple(types.boolean if kind == "bool" else getattr(types, kind) for kind in kinds)
    try: made = compile_for_gpu(function_of(expression), numba_types, abi="c", abi_info={"abi_name": "f"})
    except Exception as e: return "refused", str(e)
    result, engine = re.sub(r"Literal\[int\].*", "int64", str(made.signature.return_type)), engine_of(made)
    if engine is None or result not in SMALL: return result, None
    c_result, *c_kinds = map(np.ctypeslib.as_ctypes_type, (result, *kinds))
    call = ctypes.CFUNCTYPE(c_result, *c_kinds)(engine.get_function_address("f"))
    return result, [call(*values) for values in operands(kinds)]


def simulated(table):
    "In a child with the simulator: the same."
    return [_simulated(*row) for row in table]


def _simulated(expression, kinds):
    from numba_matmul.sim.operators import unboxed_value
    from numba_matmul.sim.typing import typed
    from numba_matmul.sim.scheduler import SimulatorError
    try: f, result = typed(function_of(expression), tuple(kinds))
    except SimulatorError as e: return "refused", str(e)
    def value(*given):
        try:
            found = f(*(unboxed_value(scalar(kind)(x)) for kind, x in zip(kinds, given)))
            return found if result is None else scalar(result)(found).item()
        except Exception as e: return f"{type(e).__name__}: {e}"
    with np.errstate(all="ignore"): return result, [value(*values) for values in operands(kinds)]
