"""Functions of `math`, numpy and Python in a kernel: what they compute, and their result types."""
import ast
from functools import reduce

import numpy as np
from .libdevice import FLOAT, fused, reversed_bits
from .operators import (HELPERS, NATIVE, Value, apply_operator, boxed, call, constant, converted, fits,
                        fitted, name)
from .parts import SIZES, Composites
from .types import (COMPLEX, FLOATS, INTEGERS, NONE, Array, Known, Record, Tuple, common, is_integer,
                    is_number, is_scalar, named, of_dtype, type_of, unified)
from numba import types
from numba.np import numpy_support


# Functions whose results differ between a GPU and Python: those of `math`, computed in the type of their
# argument; a fused multiply-add; bit operations.

def _bits(operation):
    "A bit operation on a number, given its width."
    return lambda value, bits: operation(value & (2**bits - 1), bits)

def _extreme(pick):
    "`max` or `min` of two floats as on a GPU: prefers the one that isn't NaN, and +0 is above -0."
    known = np.fmax if pick is max else np.fmin
    def of_two(a, b):
        if a == b == 0: return a if bool(np.signbit(a)) == (pick is min) else b
        return known(a, b)
    return of_two

ELEMENTARY = {x: FLOAT[x] for x in """sqrt exp expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh
    tanh asinh acosh atanh exp2 floor ceil trunc fabs erf erfc lgamma""".split()}
ELEMENTARY |= dict(gamma=FLOAT["tgamma"], degrees=np.degrees, radians=np.radians)
ASKING = dict(isnan=np.isnan, isinf=np.isinf, isfinite=np.isfinite)
OF_TWO = {x: FLOAT[x] for x in ("pow", "atan2", "fmod", "copysign", "hypot", "nextafter", "remainder")}
OF_MATH = ELEMENTARY | ASKING | OF_TWO

HELPERS |= {f"<math.{name}>": f for name, f in OF_MATH.items()}
HELPERS |= {
    "<fma>": fused, "<cbrt>": np.cbrt, "<max>": _extreme(max), "<min>": _extreme(min),
    "<sum>": lambda values, start=0: reduce(lambda a, b: apply_operator("Add", a, b), values, start),
    "<float of>": lambda x: x if isinstance(x, np.floating) else np.float64(x),
    "<iter>": iter, "<next>": lambda over: next(((x, True) for x in over), (0, False)),
    "<popc>": _bits(lambda x, bits: x.bit_count()), "<clz>": _bits(lambda x, bits: bits - x.bit_length()),
    "<ffs>": _bits(lambda x, bits: (x & -x).bit_length()),
    "<brev>": reversed_bits}

# The numpy functions the compiler supports on numbers and arrays; what to write instead of others
OF_NUMPY = """angle arccos acos arccosh acosh arcsin asin arcsinh asinh arctan atan arctanh atanh cos cosh
    deg2rad degrees rad2deg radians log log10 log2 sin sinh sinc tan tanh isnan logical_and logical_or
    logical_not logical_xor conj conjugate real imag arctan2 atan2 hypot bitwise_and bitwise_or
    bitwise_xor bitwise_left_shift bitwise_right_shift left_shift right_shift divide true_divide equal
    not_equal greater greater_equal less less_equal fmax fmin maximum minimum around round all any
    count_nonzero iscomplexobj isrealobj isscalar finfo iinfo ndindex nditer""".split()
OF_ARRAYS_TOO = """all any sum prod mean std var argmax argmin count_nonzero iscomplexobj isrealobj
    isscalar nditer ndenumerate nansum nanprod nanmean nanstd nanvar average shape size asarray atleast_1d
    atleast_2d atleast_3d""".split()
INSTEAD = dict(abs="abs(x)", absolute="abs(x)", exp="math.exp", sqrt="math.sqrt", power="x ** y",
               max="max(x, y)", min="min(x, y)", floor="math.floor", ceil="math.ceil",
               zeros="cuda.local.array", empty="cuda.local.array", sum="a loop", dot="a loop", arange="range",
               add="x + y", subtract="x - y", multiply="x * y", sign="math.copysign(1, x)")

BUILTINS = {range, enumerate, zip, print, len, slice, tuple, complex, abs, min, max, round, pow, divmod, sum}
# arguments that may be passed by name
KEYWORDS = {enumerate: {"start"}, sum: {"start"}, complex: {"real", "imag"}}

# Functions of the module `operator`, such as `add` and `iadd` → the operator
OPERATORS = {f.__name__: x for x, f in NATIVE.items()} | {"not_": "Not"}
OPERATORS |= {f"i{f.__name__.strip('_')}": x for x, f in NATIVE.items()}
NO_OPERATORS = "abs", "concat", "countOf", "iconcat", "index", "indexOf", "inv", "length_hint", "call"


def ours(kind):
    "Our name for a Numba type."
    if isinstance(kind, types.BaseTuple): return Tuple(tuple(map(ours, kind)))
    if isinstance(kind, types.Array): return Array(ours(kind.dtype), kind.ndim)
    if isinstance(kind, types.Record): return of_dtype(numpy_support.as_dtype(kind))
    return NONE if kind in (None, types.void) else named(kind)


class Functions(Composites):
    "Types calls to `math`, to Python's built-ins, and to types."
    def cast(self, kind, values):
        "`float32(x)` and similar, and `int(x)` and `float(x)`."
        if len(values) != 1: self.refuse(f"{kind} takes one number, but got {len(values)}")
        (value,) = values
        given = value.type
        complex_ = given in COMPLEX
        if kind == "bool" and (isinstance(given, Tuple) or complex_):
            return Value(call("bool", boxed(value)), "bool")
        if not is_scalar(given) and given is not None and not (complex_ and kind in COMPLEX):
            self.refuse(f"{kind} needs a number")
        if kind in COMPLEX: return Value(call(kind, boxed(value)), kind)
        if kind == "float" and given is None: return Value(call("float of", value.node))
        if kind == "float" and given == "bool":
            self.refuse("float of a bool: the compiler doesn't support it; write float64")
        # Python's `int` and `float` keep the type of an integer or a float
        if kind == "int": kind = given if is_integer(given) and given != "bool" else "int64"
        if kind == "float": kind = "float64" if is_integer(given) else given
        # the compiler folds a constant
        if isinstance(value.known, (int, float, np.number)) and kind in FLOATS:
            return self.frozen(value.node, getattr(np, kind)(value.known))
        bounds = value.bounds if kind in INTEGERS and value.bounds and fits(value, kind) else None
        return Value(converted(value, kind), kind, bounds)

    def named_tuple(self, cls, plain, values, keywords):
        # fields that are left out have a default
        given = dict(zip(cls._fields, values)) | keywords
        kinds = tuple(given[x].type if x in given else type_of(cls._field_defaults[x]) for x in cls._fields
                      if x in given or x in cls._field_defaults)
        if len(kinds) != len(cls._fields) or len(values) + len(keywords) > len(kinds):
            self.refuse(f"{cls.__name__} takes {', '.join(cls._fields)}")
        return Value(plain, Tuple(kinds, cls))

    def math_call(self, text, plain, values):
        kinds = [v.type for v in values]
        if text not in OF_MATH and text not in ("frexp", "ldexp", "modf"):
            self.refuse(f"the compiler doesn't support math.{text} in a kernel")
        wanted = 2 if text in OF_TWO else 1
        if text in OF_MATH and (len(values) != wanted or any(k in COMPLEX for k in kinds)):
            self.refuse(f"math.{text} takes {wanted} number{'s' * (wanted != 1)} in a kernel, none "
                        "complex")
        # values of unknown type are checked when the kernel runs
        if not all(map(is_scalar, kinds)) or text in ("frexp", "modf"): return Value(plain)
        if text == "ldexp":
            if len(values) != 2: return Value(plain)
            kind = common(kinds[0], "float32")
            node = call("libdevice.ldexp", converted(values[0], kind), converted(values[1], "int32"))
            return Value(node, kind)
        # integers become floats first
        if text in ASKING:
            node = call(f"math.{text}", converted(values[0], common(kinds[0], "float32")))
            return Value(call("bool", node), "bool")
        # the others compute in their arguments' type, integers in float64
        if text in ELEMENTARY: kind = "float64" if is_integer(kinds[0]) else kinds[0]
        else:
            kind = common(common(*kinds), "float32")
            if text == "pow" and not is_integer(kinds[0]) and kinds[1] in ("bool", "int8", "int16", "int32"):
                kind = kinds[0]
        return Value(call(f"math.{text}", *(converted(v, kind) for v in values)), kind)

    # Python's built-ins

    def builtin(self, target, plain, values, keywords):
        kinds, text = [v.type for v in values], target.__name__
        if wrong := keywords.keys() - KEYWORDS.get(target, set()):
            self.refuse(f"{text} doesn't take {', '.join(sorted(wrong))}= in a kernel")
        # functions of whole arrays and tuples, or of any type
        if target is len:
            if len(kinds) != 1: self.refuse("len needs one array or tuple")
            if isinstance(kinds[0], (Tuple, Array)): return Value(plain, "int64", SIZES)
        if target is print: self.printed(values)
        refused = {slice: (Array, Tuple), tuple: Array}.get(target, ())
        if any(isinstance(k, refused) for k in kinds):
            self.refuse(f"{text} of an array or a tuple: the compiler doesn't support it")
        if target is complex:
            if not kinds or any(k in ("bool", "float16") for k in kinds):
                self.refuse("complex takes one or two numbers, not bool or float16")
            kind = "complex128" if all(map(is_number, kinds)) else None
            return Value(plain, "complex64" if set(kinds) == {"float32"} else kind)
        if target is range: return Value(self.ranged(plain, values).node)
        if target is abs and len(values) != 1: self.refuse("abs takes one number")
        # for complex numbers the compiler only supports the absolute value
        if any(k in COMPLEX for k in kinds):
            if target is not abs: self.refuse(f"{text} of a complex number: the compiler doesn't support it")
            return Value(plain, "float32" if kinds[0] == "complex64" else "float64")
        if target is sum: return Value(ast.Call(name("<sum>"), plain.args, []))
        if not kinds or not all(map(is_scalar, kinds)): return Value(plain)
        return self.of_numbers(target, plain, values)

    def of_numbers(self, target, plain, values):
        "A Python built-in applied to numbers of known types."
        kinds, first = [v.type for v in values], values[0]
        if target is abs:
            kind, (low, high) = "int8" if kinds[0] == "bool" else kinds[0], first.bounds or (0, 0)
            bounds = (0, max(-low, high)) if is_integer(kind) else None
            return Value(fitted(Value(ast.Call(plain.func, [fitted(first)], []), kind, bounds)), kind)
        if target in (min, max) and len(kinds) > 1:
            kind, bounds = reduce(unified, kinds), None
            if "bool" in kinds and kind != "bool":
                self.refuse(f"{target.__name__} of a bool and a number: the compiler doesn't support it")
            if kind in INTEGERS: bounds = tuple(target(v.bounds[i] for v in values) for i in (0, 1))
            # Python's differ from a GPU's for NaN and -0
            two_floats = len(kinds) == 2 and set(kinds) <= {"float32", "float64"}
            made = call(target.__name__) if two_floats else ast.Call(plain.func, [], [])
            made.args = [converted(v, kind) for v in values]
            return Value(made, kind, bounds)
        # an integer with one argument; the number's own type if digits are given
        if target is round:
            if len(kinds) == 1:
                plain.args = [converted(first, common(kinds[0], "float32"))]
                return Value(call("truncated", plain, constant("int64")), "int64")
            if len(kinds) == 2 and kinds[1] in FLOATS: plain.args[1] = converted(values[1], "int64")
            return Value(plain) if is_integer(kinds[0]) else Value(call(kinds[0], plain), kinds[0])
        if target is pow and len(kinds) == 2: return self.apply("Pow", *values)
        # both parts follow the rules for operators
        if target is divmod:
            if common(*kinds) == "float64":
                values = [Value(converted(v, "float64"), "float64") for v in values]
            parts = [self.apply(x, *values) for x in ("FloorDiv", "Mod")]
            return Value(ast.Tuple([boxed(x) for x in parts], ast.Load()),
                         Tuple(tuple(x.type for x in parts)))
        return Value(plain)

    def printed(self, values):
        "A kernel can print numbers, constant strings, and tuples of them."
        for v in values:
            text = isinstance(v.known, (str, bytes))
            other = v.type == NONE or isinstance(v.type, (Array, Record)) or v.type in COMPLEX
            if other or text and not isinstance(v.node, ast.Constant):
                what = "a string that isn't a constant" if text else self.described(v.type)
                self.refuse(f"print of {what}: a kernel can only print numbers and constant strings")

    def is_instance(self, plain, values):
        "`isinstance` of a number: Python's `int` means int64 here, and `float` means float64."
        if len(values) != 2: self.refuse("isinstance needs a value and a type")
        given, kind = (v.type for v in values)
        if given is None: return Value(plain, "bool")
        if is_number(kind): self.refuse("isinstance needs a type")
        # anything but a number is checked when the kernel runs
        wanted = kind.value if isinstance(kind, Known) else values[1].known
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        if np.ndarray in wanted:
            self.refuse("isinstance of np.ndarray: the compiler doesn't support that type in a kernel")
        if not is_number(given): return Value(plain, "bool")
        plain_types = {int: "int64", float: "float64", complex: "complex128"}
        answer = given in [plain_types.get(x) or named(x) for x in wanted]
        return Value(constant(answer), "bool", known=answer)

    def operator_function(self, text, plain, values):
        "`operator.add` and similar."
        wanted = 1 if text in ("neg", "pos", "invert", "not_") else 2
        if text in OPERATORS and len(values) == wanted and all(is_number(v.type) for v in values):
            return self.apply(OPERATORS[text], *values)
        if text in ("not_", "truth") and values: self.truth(values[0])
        if text in NO_OPERATORS or text == "truth" and values[0].type != "bool":
            self.refuse(f"the compiler doesn't support operator.{text} in a kernel")
        return Value(plain)
