"""The types that Numba's compiler gives to numbers, and its rules for operators."""
from typing import NamedTuple

import numpy as np
from numba import types


# Python's integers are unbounded, and a Python float combined with a numpy `float32` stays `float32`. On a
# GPU, integers have 32 or 64 bits, and a constant such as `1.0` is a `float64`. A simulator that computed as
# Python does would silently give different results. So the simulator types a kernel before running it, as the
# compiler does. The rules for operators:
#
# - An operator on two integers computes in 64 bits, whatever their sizes: `int32 * int32` is an `int64`,
#   `uint32 - uint32` a `uint64`. One signed operand makes it signed.
# - An integer and a `float32` give what numpy's promotion says: `float64`, except for small integers.
# - `/` of integers is a `float64`. `//` and `%` stay integers.
# - A variable that is an integer on one path and a float on another is a float on both.

class Array(NamedTuple):
    "Type of an array, or of a slice of one."
    dtype: str
    ndim: int
    frozen: bool = False  # a global array, which is a constant to the compiler

class Tuple(NamedTuple):
    "Type of a tuple."
    items: tuple         # their types
    cls: type = tuple    # or a class of named tuples

class Known(NamedTuple):
    "Type of anything but a number: the object itself, known at compile time."
    value: object

class Record(NamedTuple):
    "Type of an element with fields."
    dtype: object        # numpy's

DIM3, NONE, OPTIONAL = "Dim3", "none", "a number or None"

INTEGERS = {f"{sign}int{bits}": (-(2**(bits - 1)), 2**(bits - 1) - 1) if not sign else (0, 2**bits - 1)
            for bits in (8, 16, 32, 64) for sign in ("", "u")}

FLOATS = "float16", "float32", "float64"
COMPLEX = "complex64", "complex128"
SCALARS = {"bool", *INTEGERS, *FLOATS}
OF_NUMPY = {getattr(np, kind): kind for kind in (*INTEGERS, *FLOATS, *COMPLEX)} | {np.bool_: "bool"}
def is_integer(kind): return kind == "bool" or kind in INTEGERS
def is_unsigned(kind): return kind in INTEGERS and kind[0] == "u"
def is_scalar(kind): return isinstance(kind, str) and kind in SCALARS
def is_number(kind): return is_scalar(kind) or kind in COMPLEX

def of_dtype(dtype):
    "Our type for the numpy `dtype` of an array's elements."
    dtype = np.dtype(dtype)
    return Record(dtype) if dtype.names else dtype.name


def unified(a, b):
    "The one type of a variable, or of `x if c else y`, that may be either. `None` if there isn't one."
    if a == b: return a
    if is_number(a) and is_number(b): return np.promote_types(a, b).name
    if NONE in (a, b) and is_number(a if b == NONE else b): return OPTIONAL
    if isinstance(a, Tuple) and isinstance(b, Tuple) and len(a.items) == len(b.items) and a.cls is b.cls:
        return Tuple(tuple(map(unified, a.items, b.items)), a.cls)

def common(a, b):
    "The type in which two numbers are compared, or computed with if one of them is a float."
    # 16 bits would fit, but Numba doesn't know that
    narrow = {a, b} in ({"uint16", "float16"}, {"uint16", "float32"})
    if {a, b} == {"uint8", "float16"}: return "float32"
    return "float64" if narrow else np.promote_types(a, b).name

def operated(operator, a, b):
    "The type of an operator's result, by its name in the syntax tree. `None` if the compiler refuses it."
    if a in COMPLEX or b in COMPLEX:
        return np.promote_types(a, b).name if operator in ("Add", "Sub", "Mult", "Div", "Pow") else None
    # two integers give a 64-bit one
    whole = is_integer(a) and is_integer(b)
    both = "uint64" if is_unsigned(a) and is_unsigned(b) else "int64"
    if operator in ("LShift", "RShift"):
        return ("uint64" if is_unsigned(a) else "int64") if whole else None
    if operator in ("BitAnd", "BitOr", "BitXor"):
        return None if not whole else "bool" if a == b == "bool" else both
    # division gives a float, and a float raised to an integer keeps its type
    if operator == "Div" and whole: return "float64"
    if operator == "Pow" and not is_integer(a) and is_integer(b):
        return "float32" if a == "float16" else a
    if operator == "MatMult": return None
    if whole: return both
    found = common(a, b)
    return "float32" if found == "float16" and operator in ("FloorDiv", "Mod", "Pow") else found

def type_of(value):
    "Type of a value in a running kernel."
    if name := OF_NUMPY.get(type(value)): return name
    if isinstance(value, bool): return "bool"
    if isinstance(value, np.generic): return value.dtype.name
    if isinstance(value, int): return "int64" if value < 2**63 else "uint64"
    if isinstance(value, float): return "float64"
    if isinstance(value, complex): return "complex128"
    if isinstance(value, tuple): return Tuple(tuple(map(type_of, value)), type(value))
    if value is None: return NONE
    if hasattr(value, "dtype") and hasattr(value, "ndim"):
        return Array(of_dtype(value.dtype), value.ndim)

def named(kind):
    "Our name for a number type of Numba, numpy or Python. `None` for any other type."
    if isinstance(kind, types.Boolean) or kind in (bool, np.bool_): return "bool"
    if isinstance(kind, (types.Integer, types.Float, types.Complex)): return kind.name
    if isinstance(kind, np.dtype) and is_number(kind.name): return kind.name
    if isinstance(kind, type) and issubclass(kind, np.generic) and is_number(np.dtype(kind).name):
        return np.dtype(kind).name
