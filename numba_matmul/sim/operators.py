"""A kernel's operators become Python operators with the compiler's results."""
import ast
import inspect
import operator
from dataclasses import dataclass, replace
from functools import cache
from types import FunctionType
from typing import NamedTuple

import numpy as np
from .scheduler import SimulatorError
from .types import (COMPLEX, FLOATS, INTEGERS, common, is_integer, is_number, is_scalar, is_unsigned,
                    operated, type_of)


# A kernel's syntax tree is rewritten. In the new one, integers of known type are plain Python integers,
# which are fast, and a result that may have left its type is wrapped: `(a - b) & 0xFFFFFFFFFFFFFFFF`.
# Whether it may is known from *bounds*: a thread index lies between 0 and 1023, so a sum of two indices
# can't overflow, and nothing needs wrapping. Most operators stay as they are.
#
# A `Value` is an expression in the new tree, and what is known about it before the kernel runs.

UNKNOWN = object()

@dataclass(slots=True)
class Value:
    "An expression, and what is known about its value before the kernel runs."
    node: ast.expr
    type: object = None      # see `type_of`; None: unknown before the kernel runs
    bounds: tuple = None     # for an integer
    known: object = UNKNOWN  # the value itself
    literal: bool = False    # does the compiler accept it as an array's shape?
    sure: bool = True        # for a variable: does it have a value on every path?

    def __post_init__(self):
        if self.bounds is None and is_integer(self.type):
            self.bounds = (0, 1) if self.type == "bool" else INTEGERS[self.type]

def constant(value): return ast.Constant(value)
def name(text): return ast.Name(text, ast.Load())
def call(helper, *args):
    return ast.Call(name(f"<{helper}>"), list(args), [])  # no variable has such a name
def binary(left, operator, right): return ast.BinOp(left, operator, right)
def assign(target, node): return ast.Assign([ast.Name(target, ast.Store())], node)
def subscript(array, index, near, context=None):
    "`array[index]`, on the line of the node `near`."
    return ast.copy_location(ast.Subscript(array, index, context or ast.Load()), near)


SMALL_STEP = 2**34  # an int64 variable that counts up is wrapped only if it may be this far past its range
# nothing marks a Python integer as one
NARROW = "int8", "int16", "uint8", "uint16", "uint32", "uint64"

def fits(value, kind, slack=0):
    "Does an integer fit this type?"
    low, high = INTEGERS[kind]
    return low - slack <= value.bounds[0] and value.bounds[1] <= high + slack

def wrapped(node, kind):
    "The node of an integer truncated to this type, as on overflow."
    low, high = INTEGERS[kind]
    if low == 0: return binary(node, ast.BitAnd(), constant(high))
    last = binary(binary(node, ast.Add(), constant(-low)), ast.BitAnd(), constant(high - low))
    return binary(last, ast.Sub(), constant(-low))

def within(value, kind):
    "An integer's value, wrapped if it may be outside this type."
    return value if fits(value, kind) else Value(wrapped(value.node, kind), kind)

def fitted(value, slack=0):
    "The node of a value. An integer that may have outgrown its type is wrapped."
    grown = value.type in INTEGERS and not fits(value, value.type, slack)
    return wrapped(value.node, value.type) if grown else value.node

def boxed(value):
    "The node of a value whose type is visible when the kernel runs, as elements of arrays and tuples are."
    return call(f"{value.type}", fitted(value)) if value.type in NARROW else fitted(value)

def unboxed(node, kind):
    "The value of a boxed node: integers of known type become Python integers."
    return Value(call("int", node) if kind in INTEGERS else node, kind)

def converted(value, kind):
    "The node of a value converted to another type, as the compiler does it."
    if value.type == kind: return fitted(value)
    if kind in COMPLEX: return call(kind, fitted(value))
    if value.type in COMPLEX and kind == "bool": return call("bool", value.node)
    if not is_scalar(value.type): return call("converted", boxed(value), constant(kind))
    if kind == "bool": return call("bool", fitted(value))
    if not is_integer(kind): return call(f"{kind}", fitted(value))
    if not is_integer(value.type): return call("truncated", value.node, constant(kind))
    node = call("int", value.node) if value.type == "bool" else value.node
    return node if fits(value, kind) else wrapped(node, kind)


# Float constants in the new code become numpy's `float64`: Python's would take on the type of a `float32`
# they meet. Where a type is unknown before the kernel runs, `apply_operator` checks the operands at run
# time.

NATIVE = {"Add": operator.add, "Sub": operator.sub, "Mult": operator.mul, "Div": operator.truediv,
          "FloorDiv": operator.floordiv, "Mod": operator.mod, "Pow": operator.pow, "LShift": operator.lshift,
          "RShift": operator.rshift, "BitAnd": operator.and_, "BitOr": operator.or_, "BitXor": operator.xor,
          "MatMult": operator.matmul, "USub": operator.neg, "UAdd": operator.pos, "Invert": operator.invert,
          "Eq": operator.eq, "NotEq": operator.ne, "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt,
          "GtE": operator.ge}

def function(name, parameters, body, namespace, code=None):
    "A Python function from a syntax tree, with the line numbers of the function with this `code`."
    arguments = ast.arguments([], [ast.arg(x) for x in parameters], None, [], [], None, [])
    tree = ast.FunctionDef(name, arguments, body, [])
    tree.type_params, tree.lineno, tree.col_offset = [], code.co_firstlineno if code else 1, 0
    tree.end_lineno, tree.end_col_offset = tree.lineno, 0
    module = compile(ast.fix_missing_locations(ast.Module([tree], [])), code.co_filename if code else "typed",
                     "exec")
    made = next(x for x in module.co_consts if inspect.iscode(x))
    made = made.replace(co_consts=_float64(made.co_consts),
                        **(dict(co_qualname=code.co_qualname) if code else {}))
    return FunctionType(made, namespace, name)

def _float64(constants):
    "A code's constants, with floats as numpy floats: Python's would become float32 when they meet one."
    return tuple(_float64(x) if type(x) is tuple else
                 np.float64(x) if type(x) is float else x for x in constants)

@cache
def _operation_for(operator, kinds):
    "A function for an operator and its boxed operands' types."
    operands = [Value(call("unboxed", name(x)), kind) for x, kind in zip("ab", kinds)]
    result = operation(operator, *operands)
    return function("operation", "ab"[:len(kinds)], [ast.Return(boxed(result))], HELPERS)

def apply_operator(operator, *values):
    "An operator on boxed values, with types known only when the kernel runs."
    kinds = tuple(map(type_of, values))
    return (_operation_for(operator, kinds) if all(map(is_number, kinds)) else NATIVE[operator])(*values)

@cache
def _conversion_for(given, kind):
    operand = Value(call("unboxed", name("a")), given)
    return function("conversion", "a", [ast.Return(converted(operand, kind))], HELPERS)

def _converted(value, kind):
    "A boxed value as one of known type."
    given = type_of(value)
    if not is_scalar(given): raise TypeError(f"expected a number, got {type(value).__name__}")
    return _conversion_for(given, kind)(value)

def _truncated(number, kind):
    "A float as an integer."
    low, high = INTEGERS[kind]
    if low - 1 < number < high + 1: return int(number)
    raise SimulatorError(f"{number} doesn't fit in {kind}, and the result on a GPU is undefined")

def _shift(count):
    "The shift count of a shift. Refuses undefined shifts."
    if 0 <= count < 64: return count
    raise SimulatorError(f"a shift by {count} bits, and the result on a GPU is undefined")


def _power(base, exponent):
    "A power of integers. The compiler computes it in float64 and drops the fraction."
    try:
        result = int(float(base) ** float(exponent))
    except ArithmeticError:
        result = 2**53
    if abs(result) < 2**53: return result
    raise SimulatorError(f"{base} ** {exponent}: the compiler computes it in float64, where it isn't exact; "
                         "multiply")

class RecordAt(NamedTuple):
    "An element with fields, as a place in an array."
    array: object
    index: object

def _copied(array, index, record):
    "Copy an element, field by field."
    for name in (dtype := array.dtype).names:
        to, given = array.field(name), record.array.field(name)
        for at in np.ndindex(dtype.fields[name][0].shape):
            here, there = ((*(i if isinstance(i, tuple) else (i,)), *at) for i in (index, record.index))
            to[here if len(here) > 1 else here[0]] = given[there if len(there) > 1 else there[0]]

def plain_tuple(value):
    "A tuple with its 32-bit and 64-bit integers as Python integers."
    items = [plain_tuple(x) if isinstance(x, tuple) else
             int(x) if isinstance(x, (np.int32, np.int64)) else x for x in value]
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)

def unboxed_value(value):
    "A number as typed code represents it: integers and booleans are Python's."
    if isinstance(value, tuple): return plain_tuple(value)
    if isinstance(value, np.bool_): return bool(value)
    return int(value) if isinstance(value, np.integer) else value


HELPERS = {kind: getattr(np, kind) for kind in (*INTEGERS, *FLOATS, *COMPLEX)}

HELPERS |= dict(int=int, bool=bool, truncated=_truncated, shift=_shift, power=_power,
                unboxed=unboxed_value, converted=_converted, operation=apply_operator, record=RecordAt,
                field=lambda array, name: array.field(name), truth=np.bool_, copy=_copied,
                records=lambda array: (RecordAt(array, i) for i in range(len(array))))

HELPERS = {f"<{name}>": helper for name, helper in HELPERS.items()}


# The operators themselves. Anything undefined on a GPU, such as a shift by 64 bits, is refused.

GROWS = {"Add": lambda a, b: (a[0] + b[0], a[1] + b[1]), "Sub": lambda a, b: (a[0] - b[1], a[1] - b[0])}

def _bounds(operator, a, b):
    "The bounds of an operator's result, given those of its operands. `None`: anywhere in its type."
    if operator in GROWS: return GROWS[operator](a, b)
    if operator == "Mult":
        products = [x * y for x in a for y in b]
        return min(products), max(products)
    if operator == "LShift" and b[1] < 64: return min(a[0], a[0] << b[1]), max(a[1], a[1] << b[1])
    if operator == "FloorDiv" and b[0] > 0:
        return min(a[0] // x for x in b), max(a[1] // x for x in b)
    if operator == "Mod" and b[0] > 0: return 0, min(b[1] - 1, a[1]) if a[0] >= 0 else b[1] - 1
    if operator == "RShift" and a[0] >= 0: return 0, a[1]
    if operator == "BitAnd" and (a[0] >= 0 or b[0] >= 0):
        return 0, min(x[1] for x in (a, b) if x[0] >= 0)
    if operator in ("BitOr", "BitXor") and a[0] >= 0 and b[0] >= 0:
        return 0, 2**max(a[1].bit_length(), b[1].bit_length()) - 1

def operation(operator, a, b=None):
    "The value of an operator, by its name in the syntax tree. Raises `TypeError` if unsupported."
    sign = getattr(ast, operator)()
    if b is None: return _unary(operator, sign, a)
    if operator in ("Eq", "NotEq", "Lt", "LtE", "Gt", "GtE"):
        if a.type in COMPLEX or b.type in COMPLEX:
            if operator not in ("Eq", "NotEq"):
                raise TypeError(f"{operator} of {a.type} and {b.type}")
            return Value(ast.Compare(fitted(a), [sign], [fitted(b)]), "bool")
        return Value(ast.Compare(compared(a, b), [sign], [compared(b, a)]), "bool")
    kind = operated(operator, a.type, b.type)
    if kind in COMPLEX: return Value(binary(converted(a, kind), sign, converted(b, kind)), kind)
    if kind is None: raise TypeError(f"{operator} of {a.type} and {b.type}")
    if not is_integer(kind):
        return Value(binary(_as_float(a, kind, operator), sign, _as_float(b, kind, operator, a)), kind)
    if kind == "bool": return Value(binary(a.node, sign, b.node), kind)
    # integers: a bool counts as 0 or 1; anything undefined on a GPU is refused when the kernel runs
    a, b = (Value(call("int", x.node), x.type, x.bounds) if x.type == "bool" else x for x in (a, b))
    if operator == "Pow":
        return Value(wrapped(call("power", converted(a, kind), fitted(b)), kind), kind)
    if operator in ("LShift", "RShift") and not (0 <= b.bounds[0] and b.bounds[1] < 64):
        b = Value(call("shift", fitted(b)), "int64", (0, 63))
    # these use all bits of their operands, which must be in range first
    bounds = _bounds(operator, a.bounds, b.bounds)
    if operator in ("FloorDiv", "Mod", "RShift") or operator.startswith("Bit") and bounds is None:
        a, b = within(a, kind), within(b, kind)
        bounds = _bounds(operator, a.bounds, b.bounds)
    result = Value(binary(a.node, sign, b.node), kind, bounds)
    # these may grow: they're wrapped where it matters
    exact = kind == "int64" and operator in ("Add", "Sub")
    return result if exact else within(result, kind)


def _unary(operator, sign, a):
    if operator == "Not": return Value(ast.UnaryOp(sign, fitted(a)), "bool")
    if a.type == "bool" and operator == "Invert":
        return Value(ast.UnaryOp(ast.Not(), a.node), "bool")
    if not is_integer(a.type):
        if operator == "Invert": raise TypeError(f"~ of {a.type}")
        return Value(ast.UnaryOp(sign, a.node), a.type)
    kind, (low, high) = "uint64" if is_unsigned(a.type) else "int64", a.bounds
    node = call("int", a.node) if a.type == "bool" else a.node
    bounds = {"UAdd": (low, high), "USub": (-high, -low), "Invert": (~high, ~low)}[operator]
    # negation happens in the number's own type
    if operator != "UAdd" and a.type != "bool":  # in its own type, before it becomes one of 64 bits
        result = Value(ast.UnaryOp(sign, node), a.type, bounds)
        return replace(result if a.type == "int64" else within(result, a.type), type=kind)
    result = Value(ast.UnaryOp(sign, node), kind, bounds)
    return result if kind == "int64" else within(result, kind)

def _as_float(value, kind, operator, other=None):
    "The node of an operand, for a float result of this type."
    if operator == "Pow" and other is not None and is_integer(value.type) and not is_integer(other.type):
        return fitted(value)  # a float raised to an integer
    if is_integer(value.type) or kind == "float32" and value.type == "float16":
        return converted(value, kind)
    return value.node  # numpy widens floats as the compiler does

def compared(value, other):
    "The node of a value that is compared with another one: as a float if the compiler compares floats."
    kind = common(value.type, other.type)
    if is_integer(kind) or not is_integer(value.type): return fitted(value, SMALL_STEP)
    exact = 2**24 if "float32" in (value.type, other.type) else 2**53  # integers up to here are exact
    small = [is_integer(x.type) and max(map(abs, x.bounds)) < exact for x in (value, other)]
    if small[0] and other.type != "float16" or is_integer(other.type) and small[1]:
        return fitted(value)
    return converted(value, kind)
