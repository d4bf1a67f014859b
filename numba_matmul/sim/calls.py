"""The types of what functions return: of `cuda`, of `math`, of Python, of kernels and instructions."""
import ast
import builtins
import cmath
import inspect
import math
import operator
from functools import reduce
from types import FunctionType

import numpy as np
from .expressions import (BITS, CUDA_TYPES, OF_ARRAYS, SHUFFLED, SIZES, CudaName, Operators)
from .libdevice import FUNCTIONS, fused
from .operators import (HELPERS, NATIVE, UNKNOWN, Value, _operation, boxed, call, constant,
                                        converted, fits, fitted, name, unboxed)
from .types import (COMPLEX, FLOATS, INTEGERS, NONE, OPTIONAL, Array, Known, Record, Tuple, common,
                                    is_integer, is_number, is_scalar, named, of_dtype, type_of, unified)
from numba import types
from numba.core.errors import TypingError
from numba.cuda.simulator.kernel import FakeCUDAKernel
from numba.np import numpy_support


# Functions whose results a GPU and Python compute in different ways: of `math`, in the type of their
# argument; a multiply-add that rounds once; operations on bits.

def _bits(operation):
    "An operation on the bits of a number, given with its size."
    return lambda value, bits: operation(value & (2**bits - 1), bits)

def _sum(values, start=0): return reduce(lambda a, b: _operation("Add", a, b), values, start)

def _elementary(function):
    "A function of Python's `math` for numpy's floats."
    return lambda *values: type(values[0])(function(*values))

ELEMENTARY = {x: getattr(np, y) for x, y in dict(
    sqrt="sqrt", exp="exp", expm1="expm1", log="log", log2="log2", log10="log10", log1p="log1p", sin="sin", cos="cos",
    tan="tan", asin="arcsin", acos="arccos", atan="arctan", sinh="sinh", cosh="cosh", tanh="tanh", asinh="arcsinh",
    acosh="arccosh", atanh="arctanh", exp2="exp2", floor="floor", ceil="ceil", trunc="trunc", fabs="fabs", degrees="degrees",
    radians="radians").items()} | {x: _elementary(getattr(math, x)) for x in ("erf", "erfc", "gamma", "lgamma")}

ASKING = dict(isnan=np.isnan, isinf=np.isinf, isfinite=np.isfinite)
OF_TWO = dict(pow=np.power, atan2=np.arctan2, fmod=np.fmod, copysign=np.copysign, hypot=np.hypot, nextafter=np.nextafter,
              remainder=lambda a, b: type(a)(math.remainder(a, b) if b and not np.isinf(a) else np.nan))
HELPERS |= {f"<math.{name}>": f for name, f in (ELEMENTARY | ASKING | OF_TWO).items()}

HELPERS |= {"<fma>": fused, "<iter>": iter, "<next>": lambda over: next(((x, True) for x in over), (0, False)), "<cbrt>": np.cbrt, "<sum>": _sum, "<float of>": lambda x: x if isinstance(x, np.floating) else np.float64(x), "<popc>": _bits(lambda x, bits: x.bit_count()),
            "<clz>": _bits(lambda x, bits: bits - x.bit_length()), "<ffs>": _bits(lambda x, bits: (x & -x).bit_length()),
            "<brev>": _bits(lambda x, bits: int(f"{x:0{bits}b}"[::-1], 2))}

def _extreme(pick):
    "`max` or `min` of two floats, as a GPU has it: the one that is not NaN, and +0 above -0."
    known = np.fmax if pick is max else np.fmin
    return lambda a, b: (a if bool(np.signbit(a)) == (pick is min) else b) if a == b == 0 else known(a, b)

HELPERS |= {"<max>": _extreme(max), "<min>": _extreme(min)}

# The functions of numpy that the compiler takes, of one number or of more; others have a namesake in `math`, or none.
OF_NUMPY = """abs angle arccos acos arccosh acosh arcsin asin arcsinh asinh arctan atan arctanh atanh cos cosh deg2rad degrees rad2deg
    radians log log10 log2 sin sinh sinc tan tanh isnan logical_and logical_or logical_not logical_xor conj conjugate real imag arctan2
    atan2 hypot bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift left_shift right_shift divide true_divide
    equal not_equal greater greater_equal less less_equal fmax fmin maximum minimum around round all any count_nonzero iscomplexobj
    isrealobj isscalar finfo iinfo ndindex nditer""".split()[1:]
OF_ARRAYS_TOO = "all", "any", "sum", "prod", "mean", "std", "var", "argmax", "argmin", "count_nonzero", "iscomplexobj", "isrealobj", "isscalar", "nditer", \
    "ndenumerate", "nansum", "nanprod", "nanmean", "nanstd", "nanvar", "average", "shape", "size", "asarray", "atleast_1d", "atleast_2d", "atleast_3d"
INSTEAD = dict(abs="abs(x)", absolute="abs(x)", exp="math.exp", sqrt="math.sqrt", power="x ** y", max="max(x, y)", min="min(x, y)",
               floor="math.floor", ceil="math.ceil", zeros="cuda.local.array", empty="cuda.local.array", sum="a loop", dot="a loop",
               arange="range", add="x + y", subtract="x - y", multiply="x * y", sign="math.copysign(1, x)")

BUILTINS = {range, enumerate, zip, print, len, slice, tuple, complex, abs, min, max, round, pow, divmod, sum}


def numba_type(kind):
    "Numba's own type for one of ours."
    if kind in COMPLEX: return getattr(types, kind)
    if isinstance(kind, Array): return types.Array(numba_type(kind.dtype), kind.ndim, "C")
    if isinstance(kind, Tuple): return types.Tuple([numba_type(x) for x in kind.items])
    return types.boolean if kind == "bool" else getattr(types, kind)

def ours(kind):
    "A type of Numba's as it is named here."
    if isinstance(kind, types.BaseTuple): return Tuple(tuple(map(ours, kind)))
    if isinstance(kind, types.Array): return Array(ours(kind.dtype), kind.ndim)
    if isinstance(kind, types.Record): return of_dtype(numpy_support.as_dtype(kind))
    return NONE if kind in (None, types.void) else named(kind)


# A call of a device function is typed for these arguments, as the compiler does it: the function that is
# called may be typed in several ways. An ordinary function of Python is called as it is, and the types of
# what it returns are looked at then; `diagnose` says that the compiler refuses it.

class Calls(Operators):
    "Types calls."
    def expr_Call(self, node):
        if getattr(node.func, "id", "") in ("<iter>", "<next>"): return self.step(node)
        if isinstance(node.func, ast.Attribute) and isinstance(self.expr(node.func.value).type, Array): return self.method(node)
        callee = self.expr(node.func)
        target = callee.type.value if isinstance(callee.type, Known) else callee.known
        if isinstance(target, FakeCUDAKernel): return self.device_function(target, node)
        values = [self.expr(x) for x in self.spread(node.args)]
        keywords = {x.arg: self.expr(x.value) for x in node.keywords}
        plain = ast.Call(callee.node, [boxed(v) for v in values], [ast.keyword(k, boxed(v)) for k, v in keywords.items()])
        if any(isinstance(v.node, ast.Starred) for v in values) or target is UNKNOWN or target is None: return Value(plain)
        if isinstance(target, CudaName): return self.cuda_call(target.path, plain, values, keywords)
        if isinstance(target, np.dtype): self.refuse(f"a dtype is called: the compiler has no such call; write {target.name}(…)")
        kind = named(target) or {int: "int", float: "float"}.get(target)
        if kind: return self.cast(kind, values)
        if getattr(math, getattr(target, "__name__", ""), None) is target: return self.math_call(target.__name__, plain, values)
        if isinstance(target, type) and issubclass(target, tuple) and hasattr(target, "_fields"):
            return self.named_tuple(target, plain, values, keywords)
        if any(target is x for x in BUILTINS):
            allowed = {print: (), enumerate: ("start",), sum: ("start",), tuple: (), complex: ("real", "imag")}.get(target, ())
            if wrong := keywords.keys() - set(allowed): self.refuse(f"{target.__name__} takes no {', '.join(sorted(wrong))}= in a kernel")
            return self.builtin(target, plain, values)
        return self.other_call(target, plain, values)

    def step(self, node):
        "Of a loop that was read from bytecode: what it goes over, or what it takes next, and whether there was something."
        if node.func.id == "<iter>":
            taken = self.iterated(node.args[0])
            return Value(call("iter", taken.node), Known((taken.type, taken.bounds)))
        over = self.expr(node.args[0])
        kind, _ = over.type.value if isinstance(over.type, Known) else (None, None)
        return Value(call("next", over.node), Tuple((kind, "bool")))

    def other_call(self, target, plain, values):
        if hasattr(target, "instruction"): return self.instruction(plain, values, *target.instruction)
        text = getattr(target, "__name__", "this")
        if isinstance(target, FunctionType) and (found := FUNCTIONS.get(target)): return self.of_libdevice(f"libdevice.{text}", *found, values)
        if target is type and len(values) == 1 and is_number(values[0].type):
            kind = np.dtype(values[0].type).type
            return Value(self.named(kind.__name__, kind), Known(kind), known=kind)
        if target is isinstance: return self.is_instance(plain, values)
        if target is iter and len(values) == 1 and isinstance(values[0].type, (Array, Tuple)): return values[0]
        if target is np.dtype and len(values) == 1 and values[0].known is not UNKNOWN:
            kind = np.dtype(values[0].known)
            return Value(self.named("dtype", kind), Known(kind), known=kind)
        if getattr(operator, text, None) is target: return self.operator_function(text, plain, values)
        raises = isinstance(target, type) and issubclass(target, BaseException)
        if getattr(builtins, text, None) is target and not raises: self.refuse(f"the compiler has no {text} in a kernel")
        module = (getattr(target, "__module__", None) or "").split(".")[0]
        arrays = any(isinstance(v.type, Array) for v in values)
        fits_arrays = text in OF_ARRAYS_TOO and (len(values) == 1) != text.startswith("atleast") or isinstance(target, np.ufunc) and len(values) == target.nargs
        unknown = text not in (OF_ARRAYS_TOO if arrays and not isinstance(target, np.ufunc) else OF_NUMPY) or arrays and not fits_arrays
        wrong = any(v.type in COMPLEX for v in values) or text in ("maximum", "minimum") and any(v.type == "float16" for v in values)
        if getattr(np, text, None) is target and (unknown or wrong):
            instead = INSTEAD.get(text) or hasattr(math, text) and f"math.{text}"
            self.refuse(f"the compiler has no np.{text} in a kernel" + (f": write {instead}" if instead else ""))
        if getattr(cmath, text, None) is target and text != "isclose":
            if text[:2] != "is" and not any(v.type in COMPLEX or v.type is None for v in values): self.refuse(f"cmath.{text} takes a complex number; math.{text} a real one")
            return Value(plain)
        ours = module in ("numba", "numba_cuda", "numba_matmul") or type(target).__module__.split(".")[0] in ("numba", "numba_cuda")
        if raises or ours or getattr(np, text, None) is target: return Value(plain)
        if isinstance(target, FunctionType): self.refuse(f"{text} is a function of Python: for a kernel, decorate it with @cuda.jit(device=True)")
        if isinstance(target, type): self.refuse(f"{text} is a class, and the compiler knows none in a kernel")
        self.refuse(f"the compiler has no {ast.unparse(plain.func).strip('<>')} in a kernel")

    def method(self, node):
        "The call of what an array has."
        base, text = self.expr(node.func.value), node.func.attr
        values = [self.expr(x) for x in node.args]
        wanted = 1 if text in ("fill", "view") else len(values) if text == "reshape" and values else 0
        if text not in OF_ARRAYS or len(values) != wanted or node.keywords:
            self.refuse(f"the compiler has no {text}({', '.join(map(ast.unparse, node.args))}) of an array in a kernel: write a loop")
        given = [boxed(v) for v in values]
        if text == "view" and (kind := named(values[0].type.value if isinstance(values[0].type, Known) else values[0].known)):
            given = [self.named(kind, np.dtype(kind))]
            return Value(ast.Call(ast.Attribute(base.node, text, ast.Load()), given, []), base.type._replace(dtype=kind))
        kind = {"all": "bool", "any": "bool", "argmax": "int64", "argmin": "int64"}.get(text)
        if text == "item" and is_number(base.type.dtype): kind = base.type.dtype
        if text == "transpose": kind = base.type
        if text == "reshape": kind = base.type._replace(ndim=len(values[0].type.items if isinstance(values[0].type, Tuple) else values))
        made = ast.Call(ast.Attribute(base.node, text, ast.Load()), given, [])
        return unboxed(made, kind) if is_scalar(kind) else Value(made, kind)

    def of_libdevice(self, text, kinds, results, values):
        "A call of a function of libdevice; its arguments are converted, as the compiler converts them."
        if len(kinds) != len(values) or not all(is_scalar(v.type) or v.type is None for v in values):
            self.refuse(f"{text} takes ({', '.join(kinds)}), not ({', '.join(self.described(v.type) for v in values)})")
        node = call(text, *(converted(v, kind) for v, kind in zip(values, kinds)))
        if not results: return Value(node, NONE)
        return Value(node, results[0] if len(results) == 1 else Tuple(results))

    def is_instance(self, plain, values):
        "`isinstance` of a number: Python's `int` is int64 there, and `float` float64."
        if len(values) != 2: self.refuse("isinstance takes a value and a type")
        if values[0].type is None: return Value(plain, "bool")
        if is_number(values[1].type): self.refuse("isinstance takes a type")
        wanted = values[1].type.value if isinstance(values[1].type, Known) else values[1].known
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        if np.ndarray in wanted: self.refuse("isinstance of np.ndarray: the compiler knows no such type in a kernel")
        if not is_number(values[0].type): return Value(plain, "bool")
        kinds = [{int: "int64", float: "float64", complex: "complex128"}.get(x) or named(x) for x in wanted]
        return Value(constant(values[0].type in kinds), "bool", known=values[0].type in kinds)

    def operator_function(self, text, plain, values):
        "`operator.add` and its kin."
        known = {f.__name__: x for x, f in NATIVE.items()} | {f"i{f.__name__.strip('_')}": x for x, f in NATIVE.items()} | {"not_": "Not"}
        if text in known and all(is_number(v.type) for v in values) and len(values) == (1 if text in ("neg", "pos", "invert", "not_") else 2):
            return self.apply(known[text], *values)
        if text in ("not_", "truth") and values: self.truth(values[0])
        if text in ("abs", "concat", "countOf", "iconcat", "index", "indexOf", "inv", "length_hint", "call") or text == "truth" and values[0].type != "bool":
            self.refuse(f"the compiler has no operator.{text} in a kernel")
        return Value(plain)

    def instruction(self, plain, values, operands, result):
        "The call of an instruction that `bind` has bound."
        for letter, value in zip(operands, values):
            if letter == "n" and not value.literal and value.type is not None:
                text = ast.unparse(plain.func).strip("<>'")
                self.refuse(f"{text} takes a number here that the compiler knows before it computes anything: "
                            "write a plain number, or a name that stands above the kernel, and no expression")
        if result is None: return Value(plain, NONE)
        try:
            if not isinstance(result, types.Type):
                letters = operands.ljust(len(values), "-")
                result = result(*(v.known if letter == "n" else numba_type(v.type) for v, letter in zip(values, letters)))
            return unboxed(plain, ours(result))
        except TypingError as e: self.refuse(str(e))
        except (AttributeError, TypeError): return Value(plain)  # a type that is not known

    def cast(self, kind, values):
        if len(values) != 1: self.refuse(f"{kind} takes one number, and {len(values)} were given")
        (value,) = values
        if kind in COMPLEX:
            if not is_number(value.type) and value.type is not None: self.refuse(f"{kind} of what is no number")
            return Value(call(kind, boxed(value)), kind)
        if kind == "bool" and (isinstance(value.type, Tuple) or value.type in COMPLEX): return Value(call("bool", boxed(value)), "bool")
        if not is_scalar(value.type) and value.type is not None: self.refuse(f"{kind} of what is no number")
        if kind == "float" and value.type is None: return Value(call("float of", value.node))
        if kind == "float" and value.type == "bool": self.refuse("float of a bool: the compiler has none; write float64")
        if kind == "int": kind = "int64" if not is_integer(value.type) or value.type == "bool" else value.type
        if kind == "float": kind = "float64" if is_integer(value.type) else value.type
        folds = isinstance(value.known, (int, float, np.number)) and kind in FLOATS
        if folds: return self.frozen(value.node, getattr(np, kind)(value.known))
        bounds = value.bounds if kind in INTEGERS and value.bounds and fits(value, kind) else None
        return Value(converted(value, kind), kind, bounds)

    def named_tuple(self, cls, plain, values, keywords):
        given = dict(zip(cls._fields, values)) | keywords
        kinds = tuple(given[x].type if x in given else type_of(cls._field_defaults[x]) for x in cls._fields
                      if x in given or x in cls._field_defaults)
        if len(kinds) != len(cls._fields) or len(values) + len(keywords) > len(kinds):
            self.refuse(f"{cls.__name__} takes {', '.join(cls._fields)}")
        return Value(plain, Tuple(kinds, cls))

    def math_call(self, text, plain, values):
        kinds = [v.type for v in values]
        wanted = 2 if text in OF_TWO or text == "ldexp" else 1
        if text in ELEMENTARY | ASKING | OF_TWO and (len(values) != wanted or any(k in COMPLEX for k in kinds)):
            self.refuse(f"math.{text} takes {wanted} number{'s' * (wanted != 1)} in a kernel, and none is complex")
        if text == "ldexp" and len(values) == 2 and all(map(is_scalar, kinds)):
            kind = common(kinds[0], "float32")
            return Value(call("libdevice.ldexp", converted(values[0], kind), converted(values[1], "int32")), kind)
        if text not in ELEMENTARY | ASKING | OF_TWO and text not in ("frexp", "ldexp", "modf"):
            self.refuse(f"the compiler has no math.{text} in a kernel")
        if not all(map(is_scalar, kinds)): return Value(plain)
        if text in ASKING and len(kinds) == 1:
            return Value(call("bool", call(f"math.{text}", converted(values[0], common(kinds[0], "float32")))), "bool")
        if text in ELEMENTARY and len(kinds) == 1:
            kind = "float64" if is_integer(kinds[0]) else kinds[0]
        elif text in OF_TWO and len(kinds) == 2:
            kind = common(common(*kinds), "float32")
            if text == "pow" and not is_integer(kinds[0]) and kinds[1] in ("bool", "int8", "int16", "int32"): kind = kinds[0]
        else: return Value(plain)
        return Value(call(f"math.{text}", *(converted(v, kind) for v in values)), kind)

    def builtin(self, target, plain, values):
        kinds = [v.type for v in values]
        if target is len and len(kinds) != 1: self.refuse("len takes one array or tuple")
        if target is len and isinstance(kinds[0], (Tuple, Array)): return Value(plain, "int64", SIZES)
        if target is print: self.printed(values)
        if target in (slice, tuple) and any(isinstance(k, Array) for k in kinds) or target is slice and any(isinstance(k, Tuple) for k in kinds):
            self.refuse(f"{target.__name__} of an array or a tuple: the compiler has none")
        if target is complex:
            if not kinds or any(k in ("bool", "float16") for k in kinds): self.refuse("complex takes one or two numbers, no bool and no float16")
            return Value(plain, "complex64" if set(kinds) == {"float32"} else "complex128" if all(map(is_number, kinds)) else None)
        if target is range: return Value(self.ranged(plain, values).node)
        if target is abs and len(values) != 1: self.refuse("abs takes one number")
        if any(k in COMPLEX for k in kinds):
            if target is not abs: self.refuse(f"{target.__name__} of a complex number: the compiler has none")
            return Value(plain, "float32" if kinds[0] == "complex64" else "float64")
        if target is sum: return Value(ast.Call(name("<sum>"), plain.args, []))
        if not kinds or not all(map(is_scalar, kinds)): return Value(plain)
        if target is abs:
            kind, (low, high) = "int8" if kinds[0] == "bool" else kinds[0], values[0].bounds or (0, 0)
            result = Value(ast.Call(plain.func, [fitted(values[0])], []), kind, (0, max(-low, high)) if is_integer(kind) else None)
            return Value(fitted(result), kind)
        if target in (min, max) and len(kinds) > 1:
            kind = reduce(unified, kinds)
            if "bool" in kinds and kind != "bool": self.refuse(f"{target.__name__} of a bool and a number: the compiler has none")
            if target is min and kind in INTEGERS: bounds = min(v.bounds[0] for v in values), min(v.bounds[1] for v in values)
            elif kind in INTEGERS: bounds = max(v.bounds[0] for v in values), max(v.bounds[1] for v in values)
            else: bounds = None
            made = call(target.__name__) if len(kinds) == 2 and set(kinds) <= {"float32", "float64"} else ast.Call(plain.func, [], [])
            made.args = [converted(v, kind) for v in values]
            return Value(made, kind, bounds)
        if target is round and len(kinds) == 2 and kinds[1] in FLOATS: plain.args[1] = converted(values[1], "int64")
        if target is round and len(kinds) == 1:
            return Value(call("truncated", ast.Call(plain.func, [converted(values[0], common(kinds[0], "float32"))], []), constant("int64")), "int64")
        if target is round: return Value(call(kinds[0], plain), kinds[0]) if not is_integer(kinds[0]) else Value(plain)
        if target is pow and len(kinds) == 2: return self.apply("Pow", *values)
        if target is divmod:
            if common(*kinds) == "float64": values = [Value(converted(v, "float64"), "float64") for v in values]
            parts = [self.apply(x, *values) for x in ("FloorDiv", "Mod")]
            return Value(ast.Tuple([boxed(x) for x in parts], ast.Load()), Tuple(tuple(x.type for x in parts)))
        return Value(plain)

    def printed(self, values):
        "What a kernel prints: numbers, texts that stand there, and tuples of them."
        for v in values:
            text = isinstance(v.known, (str, bytes))
            if v.type == NONE or isinstance(v.type, (Array, Record)) or v.type in COMPLEX or text and not isinstance(v.node, ast.Constant):
                self.refuse(f"print of {self.described(v.type) if not text else 'a text that is no constant'}: the compiler prints numbers and constant texts")

    def device_function(self, kernel, node):
        "A call of another kernel function: typed for these arguments, it becomes a call of the result."
        given = [self.expr(x) for x in self.spread(node.args)], {x.arg: self.expr(x.value) for x in node.keywords}
        if any(isinstance(v.node, ast.Starred) for v in given[0]) or None in given[1]:
            return Value(ast.Call(self.named(kernel.fn.__name__, kernel), [boxed(v) for v in given[0]], []))
        try: bound = inspect.signature(kernel.fn).bind(*given[0], **given[1])
        except TypeError as e:
            self.refuse(f"{kernel.fn.__name__} takes ({', '.join(inspect.signature(kernel.fn).parameters)}), "
                        f"and this call does not fit: {e}")
        bound.apply_defaults()
        values = [v if isinstance(v, Value) else self.frozen(name("default"), v) for v in bound.arguments.values()]
        made, result = self.typed(kernel.fn, tuple(v.type for v in values))
        self.read |= getattr(made, "read", {})  # none where it has *args: it is as it was
        nodes = [boxed(v) if not is_scalar(v.type) else fitted(v) for v in values]
        return Value(ast.Call(self.named(kernel.fn.__name__, made), nodes, []), None if result == OPTIONAL else result)

    def cuda_call(self, path, plain, values, keywords):
        if path in ("grid", "gridsize") and "ndim" in keywords:
            values = [*values, keywords["ndim"]]
            plain = ast.Call(plain.func, [boxed(v) for v in values], [])
        kinds = [v.type for v in values]
        if any(k in COMPLEX for k in kinds) and path not in ("const.array_like", "selp"): self.refuse(f"cuda.{path} takes no complex number")
        if path in ("all_sync", "any_sync", "ballot_sync") and kinds[:1] == ["bool"]: self.refuse(f"cuda.{path} takes a mask: a bool is none")
        votes = path in ("any_sync", "all_sync", "ballot_sync") and kinds[1:] or path.startswith("syncthreads_") and kinds[:1]
        for kind in votes or ():
            if kind in FLOATS or kind == "bool" and path[0] == "s":
                self.refuse(f"cuda.{path} takes an int32, not {kind}: write int32(…) around it")
        if path == "ffs" and kinds and kinds[0] in ("bool", "int8", "uint8", "int16", "uint16"): self.refuse("cuda.ffs takes 32 or 64 bits: write uint32(…) around it")
        if path == "selp" and len(values) == 3 and any(k in ("bool", "int8", "uint8", "float16", *COMPLEX) for k in kinds[1:]):
            self.refuse(f"cuda.selp takes numbers of 16 bits or more, and no float16, not {kinds[1]}")
        if path in ("grid", "gridsize"):
            if len(values) != 1 or kinds[0] == "bool" or values[0].known not in (1, 2, 3): self.refuse(f"cuda.{path} takes 1, 2 or 3, written as a number")
            n = values[0].known
            return Value(plain, Tuple(("int64",) * n)) if n > 1 else Value(plain, "int64", (0, 2**41))
        if path in ("shared.array", "local.array"): return self.declared(path, plain, values, keywords)
        if path == "const.array_like": return Value(plain, kinds[0])
        if path.startswith("atomic."): return self.atomic(path, plain, values)
        if path in BITS and kinds and is_integer(kinds[0]):
            kind = "uint64" if path == "brev" and kinds[0] in ("int64", "uint64") else "uint32" if path in ("brev", "ffs") else kinds[0]
            bits = constant(64 if kind == "uint64" else 32 if path == "brev" else np.dtype(kinds[0]).itemsize * 8)
            return Value(call(path, fitted(values[0]), bits), kind)
        if path in ("fma", "cbrt") and all(map(is_scalar, kinds)):
            kind = common(reduce(common, kinds), "float32") if path == "fma" else "float32" if kinds[0] == "float32" else "float64"
            return Value(call(path, *(converted(v, kind) for v in values)), kind)
        if path == "selp" and len(values) == 3:
            if kinds[1] != kinds[2]: self.refuse(f"cuda.selp chooses between two of one type, not {kinds[1]} and {kinds[2]}")
            return Value(ast.IfExp(boxed(values[0]), fitted(values[1]), fitted(values[2])), kinds[1])
        if path in BITS: self.refuse(f"cuda.{path} takes an integer, of a type that is known: write uint32(…) around it")
        kind = CUDA_TYPES.get(path)
        if kind == 1:
            kind = kinds[1] if len(kinds) > 1 else None
            if is_scalar(kind) and kind not in SHUFFLED: self.refuse(f"cuda.{path} takes int32, int64, float32 or float64, not {kind}")
            return Value(plain, kind)
        if kind in INTEGERS and path != "lanemask_lt":
            result = Value(plain, kind, (0, 2**32 - 1) if "sync" in path[-4:] else (0, 1024))
            return Value(fitted(result), kind)
        return Value(plain, kind)

    def atomic(self, path, plain, values):
        array = values[0].type
        if not isinstance(array, Array) or not is_number(array.dtype): return Value(plain)
        if array.frozen: self.refuse("an array of the module is written: for the compiler it is a constant; pass it as an argument")
        operation = path.removeprefix("atomic.")
        takes = (("uint32", "uint64") if operation in ("inc", "dec") else ("int32", "uint32", "int64", "uint64")
                 + ("float32", "float64") * (operation in ("add", "sub", "max", "min", "nanmax", "nanmin")))
        if array.dtype not in takes: self.refuse(f"cuda.{path} works on {', '.join(takes)}, and this array is {array.dtype}")
        first = 1 if path.endswith("compare_and_swap") else 2
        if first == 2:
            at = values[1]
            if array.ndim == 1 and isinstance(at.type, Tuple): self.refuse(f"cuda.{path} takes a number as the index of an array of one dimension")
            plain.args[1] = converted(at, "int64") if at.type in FLOATS or at.type == "bool" else at.node
        for i in range(first, len(values)):
            if is_scalar(values[i].type): plain.args[i] = converted(values[i], array.dtype)
        return unboxed(plain, array.dtype)

    def declared(self, path, plain, values, keywords):
        given = dict(zip(("shape", "dtype", "alignment"), values)) | keywords
        shape, dtype = given.get("shape"), given.get("dtype")
        if shape is None or dtype is None: self.refuse(f"cuda.{path} takes a shape and a type")
        if not shape.literal:
            if isinstance(shape.known, (int, np.integer)) and not isinstance(shape.node, (ast.BinOp, ast.UnaryOp)):
                self.refuse(f"the shape of a {path[:-6]} array is a number of numpy's, and the compiler takes Python's: write int(…) above the kernel")
            self.refuse(f"the shape of a {path[:-6]} array must be known to the compiler: a number, or a variable from outside of "
                        "the kernel, and not computed in it")
        size = shape.known if isinstance(shape.known, tuple) else (shape.known,)
        if not all(isinstance(x, (int, np.integer)) for x in size): self.refuse(f"{shape.known!r} is no shape of an array")
        known = dtype.type.value if isinstance(dtype.type, Known) else dtype.known
        if known in (int, float, bool, complex): self.refuse(f"the compiler does not take {known.__name__} for an array's type: write int64, float64, boolean or complex128")
        record = known.dtype if isinstance(known, types.Array) else known
        if isinstance(record, types.Record) or isinstance(record, np.dtype) and record.names:
            kind = Record(record if isinstance(record, np.dtype) else numpy_support.as_dtype(record))
            plain = ast.Call(plain.func, [constant(shape.known), self.named("record", kind.dtype)], [])
            return Value(plain, Array(kind, len(size)))
        kind = named(known) or (known if is_scalar(known) else None)
        if kind is None and (known is None or known in (complex, str) or isinstance(known, type) and issubclass(known, np.generic)):
            self.refuse(f"the compiler has no array of {getattr(known, '__name__', known)}: write float32, int64 or the like")
        return Value(plain, Array(kind, len(size)))
