"""The types of names, elements and attributes in a kernel."""
import ast
import builtins
from dataclasses import replace
from enum import Enum
from functools import reduce
from types import ModuleType

import numpy as np
from .bytecode import loses_a_value
from .operators import (HELPERS, NARROW, NATIVE, UNKNOWN, Value, binary, boxed, call,
                                        compared, constant, converted, fits, fitted, name, operation,
                                        SMALL_STEP, plain_tuple, unboxed)
from .scheduler import SimulatorError, _line
from .types import (COMPLEX, FLOATS, INTEGERS, NONE, Array, Known, Record, Tuple, common, is_integer,
                                    is_number, is_scalar, of_dtype, type_of, unified)
from numba import cuda
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray
from numba.cuda.simulator.kernel import FakeCUDAKernel
from numba.cuda.simulator.vector_types import vector_types


# What is not a variable of the kernel is a constant for the compiler: a number of the module, a function,
# an array. Such an array cannot be written, and the simulator refuses that, too.

class Frozen:
    "A module's array in a kernel: for the compiler a constant, as it was when the kernel was compiled."
    def __init__(self, name, data): self.name, self.data = name, data
    shape = property(lambda self: self.data.shape)
    size = property(lambda self: self.data.size)
    ndim = property(lambda self: self.data.ndim)
    dtype = property(lambda self: self.data.dtype)
    def __len__(self): return len(self.data)
    def __getattr__(self, name):
        value = getattr(self.data, name)
        return Frozen(self.name, value) if isinstance(value, np.ndarray) else value
    def field(self, name): return Frozen(self.name, self.data[name])
    def __getitem__(self, index):
        if any(type(i) is not slice and i < 0 for i in (index if type(index) is tuple else (index,))):
            raise SimulatorError(f"index {index} is negative, which would count from the array's end", "bounds", negative=True)
        value = self.data[index]
        return Frozen(self.name, value) if isinstance(value, np.ndarray) else value
    def __setitem__(self, index, value):
        raise SimulatorError(f"{self.name} is written, and is an array of the module: for the compiler a constant; pass it as an argument")

SIZES = 0, 2**48 - 1  # of arrays
DIMENSIONS = {"threadIdx": (0, 1023), "blockDim": (1, 1024), "blockIdx": (0, 2**31 - 2), "gridDim": (1, 2**31 - 1)}


# The names of `cuda` that a kernel may use, and what their results are. Others are refused by name.

FENCES = "syncthreads", "syncwarp", "threadfence", "threadfence_block", "threadfence_system", "nanosleep"

CUDA_TYPES = {  # result: its type, or which argument's type it has
    **dict.fromkeys(FENCES, NONE), "syncthreads_count": "int32", "syncthreads_and": "int32", "syncthreads_or": "int32",
    **dict.fromkeys(("shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync"), 1),
    "ballot_sync": "int32", "any_sync": "bool", "all_sync": "bool", "lanemask_lt": "uint32",
    "match_any_sync": "int32", "match_all_sync": Tuple(("int32", "bool"))}

SHUFFLED = "int32", "int64", "float32", "float64"
BITS = "popc", "clz", "ffs", "brev"
ATOMIC = ("add", "sub", "and_", "or_", "xor", "inc", "dec", "exch", "max", "min", "nanmax", "nanmin", "compare_and_swap", "cas")

SIMULATED = {*CUDA_TYPES, *BITS, *(f"atomic.{x}" for x in ATOMIC), "grid", "gridsize", "fma", "cbrt", "selp", "shared.array",
             "local.array", "const.array_like", "cg.this_grid"}

class CudaName:
    "A name of the module `cuda` in a kernel."
    def __init__(self, path=""): self.path = path

    def attribute(self, typing, taken):
        path = f"{self.path}.{taken.attr}".lstrip(".")
        if self.path in DIMENSIONS and taken.attr in "xyz": return Value(taken, "int32", DIMENSIONS[self.path])
        if path == "laneid": return Value(taken, "int32", (0, 31))
        if path == "warpsize": return Value(taken, "int32", (32, 32), 32)
        if path in SIMULATED or path in DIMENSIONS or any(x.startswith(path + ".") for x in SIMULATED):
            return Value(taken, Known(found := CudaName(path)), known=found)
        if not self.path and path in vector_types: return Value(taken)
        why = ": which lanes run together is up to the GPU; write the mask that you mean" if path == "activemask" else ""
        typing.refuse(f"cuda.{path} is not known to the simulator{why}")


# One method for each kind of node in a syntax tree, called `expr_…`, gives its `Value`.

class Expressions:
    "Types the expressions of one function, for arguments of certain types."
    def __init__(self, fn, kinds):
        self.fn, self.code, self.line = fn, fn.__code__, fn.__code__.co_firstlineno
        self.local = {*self.code.co_varnames, *self.code.co_cellvars}
        self.outer = dict(zip(self.code.co_freevars, fn.__closure__ or ()))
        self.namespace = {**HELPERS, "__builtins__": builtins, "__name__": fn.__globals__.get("__name__")}
        self.read = {}  # function and name from outside → the value that it had
        self.scope, self.globals = {}, set()  # variable → `Value`; names that a `global` statement has

    def truth(self, value):
        "The node of a condition."
        if isinstance(value.type, Array): self.refuse("a whole array is no condition: the compiler takes a number; write x[i]")
        return boxed(value)

    def refuse(self, text):
        raise SimulatorError(f"{text}, in {_line(self.code, self.line)}")

    def expr(self, node):
        self.line = getattr(node, "lineno", self.line)
        value = getattr(self, f"expr_{type(node).__name__}", self.expr_other)(node)
        ast.copy_location(value.node, node)
        return value

    def expr_other(self, node):
        what = {"Dict": "a dict", "Set": "a set", "List": "a list", "JoinedStr": "an f-string", "ListComp": "a list",
                "DictComp": "a dict", "SetComp": "a set", "GeneratorExp": "a generator", "Yield": "a generator",
                "Await": "a coroutine"}.get(type(node).__name__, f"this ({type(node).__name__})")
        self.refuse(f"{what} in a kernel: the compiler has none there")

    def expr_Lambda(self, node): return Value(node)
    def expr_Starred(self, node): return Value(ast.Starred(boxed(self.expr(node.value)), node.ctx))
    def expr_Slice(self, node):
        values = [part and self.expr(part) for part in (node.lower, node.upper, node.step)]
        parts = [v and (converted(v, "int64") if v.type in FLOATS else fitted(v)) for v in values]
        return Value(ast.Slice(*parts), Known(slice))
    def expr_Constant(self, node): return self.frozen(node, node.value)

    def expr_Name(self, node):
        if node.id in self.local:
            kept = self.scope.get(node.id) or Value(None)
            return Value(node, kept.type, kept.bounds, kept.known, kept.literal)
        if node.id in self.outer:
            try: return self.taken_over(node, self.outer[node.id].cell_contents)
            except ValueError: self.refuse(f"the name {node.id} has no value yet")
        for scope in self.fn.__globals__, vars(builtins):
            if node.id in scope: return self.taken_over(node, scope[node.id])
        self.refuse(f"the name {node.id} is not defined")

    def taken_over(self, node, value):
        "The value of a name from outside; note what may change: numbers, tuples, arrays, device functions."
        if isinstance(value, FakeCUDAArray): self.read[self.fn, node.id] = value.copy_to_host()
        elif isinstance(value, np.ndarray): self.read[self.fn, node.id] = value.copy()
        elif isinstance(value, (np.generic, bool, int, float, complex, tuple, FakeCUDAKernel)): self.read[self.fn, node.id] = value
        return self.frozen(node, value)

    def frozen(self, node, value):
        "What is not a variable of the kernel is a constant for the compiler."
        if value is None: return Value(constant(None), NONE, known=None)
        if isinstance(value, (np.number, np.bool_, bool, int, float, complex)) and is_number(kind := type_of(value)):
            whole, literal = is_integer(kind), not isinstance(value, np.integer)  # for the compiler np.int32(3) is a variable's value
            if whole: value = bool(value) if kind == "bool" else int(value)
            if whole and not -2**63 <= value < 2**64: self.refuse(f"{value} has more than 64 bits")
            plain = whole or type(value) in (float, complex)
            if not plain: self.namespace[f"<{value!r}>"] = value
            return Value(constant(value) if plain else name(f"<{value!r}>"), kind, (value, value) if whole else None, value, literal)
        if isinstance(value, (np.ndarray, FakeCUDAArray)) and value.ndim:
            text = f"<array {id(value)}>"
            if text not in self.namespace:
                copy = value.copy_to_host() if isinstance(value, FakeCUDAArray) else value.copy()
                copy.setflags(write=False)
                self.namespace[text] = Frozen(getattr(node, "id", "this"), copy)
            return Value(name(text), Array(of_dtype(value.dtype), value.ndim, True))
        if isinstance(value, (dict, list, set)):
            self.refuse(f"{getattr(node, 'id', 'this')} is a {type(value).__name__}, and the compiler knows none in a kernel: "
                        "use a tuple, or pass an array")
        if isinstance(node, ast.Constant): return Value(node, known=value, literal=True)
        if type(value).__module__ == self.fn.__globals__.get("__name__") and not callable(value) and not isinstance(value, (tuple, Enum)):
            self.refuse(f"{getattr(node, 'id', 'this')} is a {type(value).__name__}, and the compiler knows none in a kernel: "
                        "give its numbers names of their own above the kernel")
        kind = type_of(value) if isinstance(value, tuple) else Known(value)
        if isinstance(value, tuple): value = plain_tuple(value)
        return Value(self.named(getattr(node, "id", "this"), value), kind, known=value, literal=isinstance(value, tuple))

    def named(self, text, value):
        "A name for a value that has none in a kernel."
        text = f"<{text}>"
        while self.namespace.setdefault(text, value) is not value: text += "'"
        return name(text)

    def expr_NamedExpr(self, node):
        if loses_a_value(self.fn):
            self.refuse(f"{ast.unparse(node)}: the compiler loses the value of this :=; write {node.target.id} = … on a line of its own")
        value = self.expr(node.value)
        return Value(ast.NamedExpr(node.target, self.kept(node.target.id, value)), value.type, value.bounds)

    def kept(self, target, value):
        "The node of a value that a variable takes, and note what is known of it."
        if target in self.globals: self.refuse(f"the global variable {target} is written: the compiler reads such a name only once")
        if value.type in INTEGERS and not fits(value, value.type):
            value = Value(fitted(value, SMALL_STEP), value.type)
        self.scope[target] = Value(None, value.type, value.bounds, value.known, value.literal)
        return value.node

    def one_of(self, values):
        "The type of what is one of these values."
        kind = self.unified(values)
        kinds = [v.type for v in values]
        if kind is None and None not in kinds and NONE not in kinds:
            self.refuse(f"one of {', '.join(map(self.described, kinds))}: the compiler takes no value that may be either")
        return kind

    @staticmethod
    def described(kind):
        "A type in words."
        if isinstance(kind, Array): return f"an array of {kind.dtype} with {kind.ndim} dimension{'s' * (kind.ndim != 1)}"
        if isinstance(kind, Tuple): return f"a tuple of {len(kind.items)}"
        if isinstance(kind, Record): return "an element with fields"
        return getattr(kind.value, "__name__", "this") if isinstance(kind, Known) else "None" if kind == NONE else str(kind)


# What an array has in a kernel: to look at, and to call.
WITHOUT_CALL = "T", "ctypes", "dtype", "flat", "itemsize", "nbytes", "ndim", "real", "shape", "size", "strides"
OF_ARRAYS = "all", "any", "argmax", "argmin", "fill", "item", "mean", "prod", "reshape", "std", "sum", "transpose", "var", "view"


class Operators(Expressions):
    "Types operators, elements and attributes."
    def apply(self, operator, *values):
        "The value of an operator; looked at when the kernel runs, if a type is not known."
        if all(is_number(value.type) for value in values):
            try: return operation(operator, *values)
            except TypeError as e: self.refuse(f"{e}: the compiler has no such operator")
        tuples = [isinstance(value.type, Tuple) for value in values]
        if all(tuples) and operator == "Add": return Value(self.native(operator, values), Tuple(sum((v.type.items for v in values), ())))
        texts = any(isinstance(value.known, (str, bytes)) for value in values)
        if any(tuples) or texts and not all(isinstance(value.node, ast.Constant) for value in values):
            self.refuse(f"{operator} of a {'tuple' if any(tuples) else 'text'}: the compiler has no such operator")
        if any(isinstance(value.type, Array) for value in values): return Value(self.native(operator, values))
        return Value(call("operation", constant(operator), *map(boxed, values)))

    def native(self, operator, values, compares=()):
        sign = getattr(ast, operator)()
        if compares: return ast.Compare(boxed(values[0]), compares, [boxed(x) for x in values[1:]])
        return binary(boxed(values[0]), sign, boxed(values[1])) if len(values) == 2 else ast.UnaryOp(sign, boxed(values[0]))

    def expr_BinOp(self, node):
        a, b, operator = self.expr(node.left), self.expr(node.right), type(node.op).__name__
        folded = all(isinstance(x, (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)) for x in ast.walk(node))
        result = self.apply(operator, a, b)
        if a.literal and b.literal and result.type in INTEGERS:
            try: result.known = NATIVE[operator](a.known, b.known)
            except Exception: return result
            result.bounds, result.literal = (result.known,) * 2, folded
        return result

    def expr_UnaryOp(self, node):
        a, operator = self.expr(node.operand), type(node.op).__name__
        if operator == "Not":
            if isinstance(a.type, Tuple): self.refuse("not of a tuple: the compiler has no such operator")
            self.truth(a)
            known = UNKNOWN if a.known is UNKNOWN else not a.known
            return Value(ast.UnaryOp(node.op, boxed(a)), "bool", known=known)
        result = self.apply(operator, a)
        if a.literal and operator == "USub" and result.type in INTEGERS:
            result.known, result.literal = -a.known, True
        return result

    def expr_Compare(self, node):
        values = [self.expr(x) for x in (node.left, *node.comparators)]
        names, parts = [type(sign).__name__ for sign in node.ops], []
        known = UNKNOWN
        if len(values) == 2 and all(v.known is not UNKNOWN for v in values) and names[0] in NATIVE:
            known = bool(NATIVE[names[0]](values[0].known, values[1].known))
        if any(v.type in COMPLEX for v in values) and any(x in ("Lt", "LtE", "Gt", "GtE") for x in names):
            self.refuse("a complex number is compared by size: the compiler compares it with == and != alone")
        if len(values) == 2 and any(v.type in COMPLEX for v in values) and names[0] in NATIVE: return self.apply(names[0], *values)
        arrays = [v.type for v in values if isinstance(v.type, Array)]
        if arrays and names[0] in ("Eq", "NotEq") and any(v.type == NONE for v in values):
            return Value(constant(names[0] == "NotEq"), "bool", known=names[0] == "NotEq")
        if arrays and names[0] in NATIVE:
            return Value(self.native(names[0], values, node.ops), Array("bool", max(x.ndim for x in arrays)))
        if names[0] in ("In", "NotIn") and (arrays or any(isinstance(v.known, str) for v in values)) and not isinstance(values[1].type, Array):
            if arrays: self.refuse("in with an array on its left: the compiler compares numbers")
        numbers = [is_scalar(value.type) for value in values]
        if all(numbers) and all(x in NATIVE for x in names):
            nodes = [compared(values[0], values[1])]
            for i in range(1, len(values)):  # what stands in the middle is compared on both sides
                around = [x for x in (values[i - 1], *values[i + 1:i + 2])]
                nodes.append(compared(values[i], max(around, key=lambda x: common(values[i].type, x.type) == "float64")))
            return Value(ast.Compare(nodes[0], node.ops, nodes[1:]), "bool", known=known)
        if len(values) == 2 and names[0] in NATIVE and not all(isinstance(v.type, Tuple) for v in values):
            return Value(call("operation", constant(names[0]), *map(boxed, values)), "bool", known=known)
        if names == ["Is"] or names == ["IsNot"]:
            decided = [v.type == NONE for v in values]
            if any(decided) and all(v.type is not None for v in values): known = all(decided) == (names == ["Is"])
        return Value(ast.Compare(boxed(values[0]), node.ops, list(map(boxed, values[1:]))), "bool", known=known)

    def expr_BoolOp(self, node):
        values = [self.expr(x) for x in node.values]
        for v in values[:-1]: self.truth(v)
        kind = self.one_of(values)
        known = [v.known for v in values]
        decides = isinstance(node.op, ast.Or)
        value = (any if decides else all)(known) if UNKNOWN not in known else UNKNOWN
        if any(k is not UNKNOWN and bool(k) == decides for k in known) and kind == "bool": value = decides
        return Value(ast.BoolOp(node.op, [self.as_type(v, kind) for v in values]), kind, known=value)

    def expr_IfExp(self, node):
        test = self.expr(node.test)
        if test.known is not UNKNOWN: return self.expr(node.body if test.known else node.orelse)
        values = self.expr(node.body), self.expr(node.orelse)
        kind = self.one_of(values)
        return Value(ast.IfExp(self.truth(test), *(self.as_type(v, kind) for v in values)), kind)

    def unified(self, values): return reduce(unified, [v.type for v in values])
    def as_type(self, value, kind): return converted(value, kind) if is_number(kind) and is_number(value.type) or is_scalar(kind) else boxed(value)

    def spread(self, nodes):
        "What stands between parentheses, with the items of each `*x` whose number is known."
        out = []
        for node in nodes:
            inner = self.expr(node.value) if isinstance(node, ast.Starred) else None
            if inner and isinstance(inner.type, Tuple) and isinstance(node.value, (ast.Name, ast.Attribute)):
                out += [ast.copy_location(ast.Subscript(node.value, ast.copy_location(constant(i), node), ast.Load()), node)
                        for i in range(len(inner.type.items))]
            else: out.append(node)
        return out

    def expr_Tuple(self, node):
        values = [self.expr(x) for x in self.spread(node.elts)]
        known = tuple(v.known for v in values)
        literal = all(v.literal for v in values)
        return Value(ast.Tuple([boxed(v) for v in values], node.ctx), Tuple(tuple(v.type for v in values)),
                     known=known if literal else UNKNOWN, literal=literal)

    def expr_Subscript(self, node):
        base = self.expr(node.value)
        if isinstance(base.type, (Array, Record)) and isinstance(getattr(node.slice, "value", None), str):
            return self.field(base, node.slice.value)
        if isinstance(base.type, Known) and not isinstance(base.type.value, bytes): self.refuse(f"{ast.unparse(node.value)} has no elements")
        if isinstance(base.type, Array) and getattr(node.slice, "value", 0) in (..., None):
            self.refuse(f"{ast.unparse(node)}: the compiler has no such part of an array; write x[:]")
        index = self.index(node.slice, base.type)
        taken = ast.Subscript(base.node, index.node, node.ctx)
        if isinstance(base.type, Tuple):
            value = self.item(base, index, taken)
            if getattr(node.value, "attr", "") == "shape" and value.type == "int64": value.bounds = SIZES
            return value
        if isinstance(base.type, Array): return self.element(base.type, index, taken)
        if is_number(base.type): self.refuse(f"a {base.type} has no elements")
        return Value(taken)

    def index(self, node, array=None):
        "What stands between the brackets; a tuple's integers as they are, unboxed. Of an array: `...` stands for whole axes."
        parts = list(node.elts) if isinstance(node, ast.Tuple) else [node]
        dots = [i for i, x in enumerate(parts) if getattr(x, "value", None) is ...]
        if dots and isinstance(array, Array):
            axes = array.ndim - sum(getattr(x, "value", ...) is not None and getattr(x, "attr", "") != "newaxis" for x in parts) + 1
            parts[dots[0]:dots[0] + 1] = [ast.copy_location(ast.Slice(None, None, None), node) for _ in range(axes)]
            node = parts[0] if len(parts) == 1 else ast.copy_location(ast.Tuple(parts, ast.Load()), node)
        if not isinstance(node, ast.Tuple): return self.checked(self.expr(node))
        values = [self.checked(self.expr(x)) for x in node.elts]
        return Value(ast.copy_location(ast.Tuple([v.node for v in values], ast.Load()), node),
                     Tuple(tuple(v.type for v in values)))

    def checked(self, value):
        if value.type == "bool" or is_scalar(value.type) and not is_integer(value.type):
            self.refuse(f"an index is a {value.type}, and the compiler takes integers: use // instead of /, or int(…)")
        return value

    def item(self, base, index, taken):
        items = base.type.items
        if isinstance(index.node, ast.Slice):
            bounds = [x and getattr(x, "value", UNKNOWN) for x in (index.node.lower, index.node.upper, index.node.step)]
            return Value(taken, None if UNKNOWN in bounds else Tuple(items[slice(*bounds)]))
        if isinstance(index.known, int):
            if not -len(items) <= index.known < len(items): self.refuse(f"a tuple of {len(items)} has no item {index.known}")
            kind, known = items[index.known], base.known[index.known] if base.literal else UNKNOWN
            value = unboxed(taken, kind) if kind in NARROW else Value(taken, kind)
            if isinstance(known, int): value.bounds = (int(known),) * 2
            value.known, value.literal = known, base.literal
            return value
        if len(set(items)) > 1 and all(map(is_number, items)):
            self.refuse("an item of a tuple of several types, by an index that the compiler does not know: write a number")
        kind = items[0] if len(set(items)) == 1 else None
        return unboxed(taken, kind) if kind in NARROW else Value(taken, kind)

    def element(self, array, index, taken):
        kinds = index.type.items if isinstance(index.type, Tuple) else (index.type,)
        if len(kinds) > array.ndim and all(k in INTEGERS for k in kinds): self.refuse(f"{len(kinds)} indices, for an array of {array.ndim} dimensions")
        if any(k not in INTEGERS and k != Known(slice) for k in kinds): return Value(taken)
        left = array.ndim - sum(k in INTEGERS for k in kinds)
        if left: return Value(taken, Array(array.dtype, left, array.frozen))
        if isinstance(array.dtype, Record): return Value(call("record", taken.value, taken.slice), array.dtype)
        if array.dtype in COMPLEX: return Value(taken, array.dtype)
        return unboxed(taken, array.dtype if is_scalar(array.dtype) else None)

    def field(self, base, text):
        "A field of an element, or of all elements of an array, by its name."
        array = base.type if isinstance(base.type, Record) else base.type.dtype
        fields = array.dtype.fields if isinstance(array, Record) else {}
        if text not in fields: self.refuse(f"no field {text!r}: there are {', '.join(fields)}" if fields else f"an array of {array} has no fields")
        inner = fields[text][0]
        of, shape = inner.subdtype or (inner, ())
        if isinstance(base.type, Array):
            return Value(call("field", base.node, constant(text)), Array(of_dtype(of), base.type.ndim + len(shape), base.type.frozen))
        made = getattr(base.node, "func", None)
        if getattr(made, "id", "") == "<record>": holder, at = base.node.args
        else: holder, at = (ast.Attribute(base.node, x, ast.Load()) for x in ("array", "index"))
        taken = ast.Subscript(call("field", holder, constant(text)), at, ast.Load())
        return Value(taken, Array(of_dtype(of), len(shape))) if shape else unboxed(taken, of_dtype(of))

    def expr_Attribute(self, node):
        base = self.expr(node.value)
        taken = ast.Attribute(base.node, node.attr, node.ctx)
        if isinstance(base.type, Record): return self.field(base, node.attr)
        if isinstance(base.type, Array) and isinstance(base.type.dtype, Record) and node.attr in base.type.dtype.dtype.names:
            return self.field(base, node.attr)
        if is_number(base.type): return self.of_number(base, node.attr)
        if isinstance(base.type, Tuple) and node.attr not in (*["index"][:base.type.cls is tuple], *getattr(base.type.cls, "_fields", ())):
            self.refuse(f"a tuple has no {node.attr} in a kernel")
        if isinstance(base.known, (str, bytes)): self.refuse(f"a text has no {node.attr} in a kernel")
        if isinstance(base.type, Array):
            known = {*OF_ARRAYS, *WITHOUT_CALL, *(("imag",) * (base.type.dtype in COMPLEX))} - ({"real"} if isinstance(base.type.dtype, Record) else set())
            if node.attr not in known: self.refuse(f"an array has no {node.attr} in a kernel")
            if node.attr == "T" or node.attr == "real" and base.type.dtype not in COMPLEX: return Value(taken, base.type)
            if node.attr in ("itemsize", "nbytes"): return Value(taken, "int64", SIZES)
            if node.attr == "strides": return Value(taken, Tuple(("int64",) * base.type.ndim))
            if node.attr == "ndim" and getattr(node.value, "id", "") in self.code.co_varnames[:self.code.co_argcount]:
                return self.frozen(taken, base.type.ndim)  # the compiler decides by it which branch it has
            if node.attr in ("size", "ndim"): return Value(taken, "int64", SIZES)
            if node.attr == "shape": return Value(taken, Tuple(("int64",) * base.type.ndim))
            if node.attr == "dtype" and is_scalar(base.type.dtype): return Value(taken, known=np.dtype(base.type.dtype), literal=True)
        if isinstance(base.type, Tuple) and node.attr in getattr(base.type.cls, "_fields", ()):
            return replace(self.item(base, Value(None, known=base.type.cls._fields.index(node.attr)), taken), literal=False)
        if isinstance(base.type, Known): return self.attribute(base.type.value, taken)
        return Value(taken)

    def of_number(self, base, text):
        "An attribute of a number."
        if text in ("real", "imag") and base.type != "bool":
            if base.type in COMPLEX: return Value(ast.Attribute(base.node, text, ast.Load()), "float32" if base.type == "complex64" else "float64")
            return base if text == "real" else Value(call(base.type, constant(0)) if not is_integer(base.type) else constant(0), base.type)
        if text == "bit_count" and base.type in INTEGERS: return Value(ast.Attribute(fitted(base), text, ast.Load()))
        if text not in ("item", "view", "conjugate") or base.type == "bool" and text != "item" or base.type in COMPLEX and text == "view":
            self.refuse(f"a {base.type} has no {text} in a kernel")
        return Value(ast.Attribute(call("truth" if base.type == "bool" else base.type, fitted(base)), text, ast.Load()))

    def attribute(self, owner, taken):
        "Of what is known when the kernel is compiled."
        if isinstance(owner, CudaName): return owner.attribute(self, taken)
        if owner is cuda: return CudaName().attribute(self, taken)
        if isinstance(owner, type) and not issubclass(owner, (Enum, np.generic, tuple)):
            self.refuse(f"{owner.__name__} is a class, and the compiler knows none in a kernel")
        if not isinstance(owner, (ModuleType, type)) and not isinstance(owner, tuple): return Value(taken)
        if not hasattr(owner, taken.attr): self.refuse(f"{getattr(owner, '__name__', 'this')} has no {taken.attr}")
        value = getattr(owner, taken.attr)
        if value is None or isinstance(value, (bool, int, float, complex, np.number, np.bool_)): return self.frozen(taken, value)
        if owner is np and not callable(value) and not isinstance(value, ModuleType): self.refuse(f"the compiler has no np.{taken.attr} in a kernel")
        return Value(taken, Known(value), known=value)
