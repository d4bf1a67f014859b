"""The types of names, constants and operators in a kernel."""
import ast
import builtins
from difflib import get_close_matches
from enum import Enum
from functools import cache, reduce

import numpy as np
from greenlet import getcurrent
from .bytecode import loses_a_value
from .operators import (HELPERS, NATIVE, SMALL_STEP, UNKNOWN, Value, binary, boxed, call, compared, constant,
                        converted, fits, fitted, name, operation, plain_tuple)
from .places import line_text
from .scheduler import SimulatorError, Thread
from .types import (COMPLEX, FLOATS, INTEGERS, NONE, Array, Known, Record, Tuple, common, is_integer,
                    is_number, is_scalar, of_dtype, type_of, unified)
from .views import refuse_negative
from numba import cuda
from numba.core.registry import CPUDispatcher
from numba.cuda import cg, libdevice
from numba.cuda.simulator import kernel as numba_kernel
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray
from numba.cuda.simulator.kernel import FakeCUDAKernel
from numba.cuda.simulator.vector_types import vector_types


class Frozen:
    "A global array in a kernel: to the compiler, a constant frozen at compile time."
    def __init__(self, name, data): self.name, self.data = name, data
    def __len__(self): return len(self.data)
    def label(self, index): return self.name  # so messages name it
    def _of(self, value):
        return Frozen(self.name, value) if isinstance(value, np.ndarray) else value
    def __getattr__(self, name): return self._of(getattr(self.data, name))
    def field(self, name): return Frozen(self.name, self.data[name])
    def __getitem__(self, index):
        refuse_negative(index)
        return self._of(self.data[index])
    def __setitem__(self, index, value):
        raise SimulatorError(f"{self.name} is a global array, which is a constant to the compiler, and the "
                             "kernel writes to it: pass it as an argument")


# The names in `cuda` that a kernel may use, and the types they return. Others are refused by name.

DIMENSIONS = {"threadIdx": (0, 1023), "blockDim": (1, 1024), "blockIdx": (0, 2**31 - 2),
              "gridDim": (1, 2**31 - 1)}
FENCES = "syncthreads", "syncwarp", "threadfence", "threadfence_block", "threadfence_system", "nanosleep"

CUDA_TYPES = {  # result: a type, or the number of the argument whose type it has
    **dict.fromkeys(FENCES, NONE), "syncthreads_count": "int32", "syncthreads_and": "int32",
              "syncthreads_or": "int32",
    **dict.fromkeys(("shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync"), 1),
    "ballot_sync": "int32", "any_sync": "bool", "all_sync": "bool", "lanemask_lt": "uint32",
    "match_any_sync": "int32", "match_all_sync": Tuple(("int32", "bool"))}

SHUFFLED = "int32", "int64", "float32", "float64"
BITS = "popc", "clz", "ffs", "brev"
ATOMIC = ("add", "sub", "and_", "or_", "xor", "inc", "dec", "exch", "max", "min", "nanmax", "nanmin",
          "compare_and_swap", "cas")

SIMULATED = {*CUDA_TYPES, *BITS, *(f"atomic.{x}" for x in ATOMIC), "grid", "gridsize", "fma", "cbrt", "selp",
             "shared.array", "local.array", "const.array_like", "cg.this_grid"}
OF_CUDA = {*(path.partition(".")[0] for path in SIMULATED), *DIMENSIONS, "laneid", "warpsize"}


# What these names belong to when a kernel runs. (Python would find them in the module `cuda` only after a
# search.) Outside of a kernel the module tells why there is none.

def _thread():
    thread = getcurrent()
    return thread if isinstance(thread, Thread) else cuda

HELPERS |= {"<thread>": _thread, "<cuda>": lambda: numba_kernel._get_kernel_context() or cuda}


VECTORS = {name for kind, made in vector_types.items() for name in (kind, *made.aliases)}  # float32x4, float4

class CudaName:
    "A name from the module `cuda` in a kernel."
    def __init__(self, path=""): self.path = path

    def node(self):
        "Its node, where a kernel has it under another name."
        found = call("cuda")
        for part in self.path.split("."): found = ast.Attribute(found, part, ast.Load())
        return found

    def attribute(self, typing, taken):
        "The value of an attribute: a number, or another name of `cuda`."
        path = f"{self.path}.{taken.attr}".lstrip(".")
        if not self.path: taken.value = call("thread" if path in ("threadIdx", "blockIdx") else "cuda")
        if self.path in DIMENSIONS and taken.attr in "xyz":
            return Value(taken, "int32", DIMENSIONS[self.path])
        if path == "laneid": return Value(taken, "int32", (0, 31))
        if path == "warpsize": return Value(taken, "int32", (32, 32), 32)
        if path in SIMULATED or path in DIMENSIONS or any(x.startswith(path + ".") for x in SIMULATED):
            return Value(taken, Known(found := CudaName(path)), known=found)
        if not self.path and path in VECTORS: return Value(taken)
        if path == "libdevice": return typing.frozen(taken, libdevice)
        why = ""
        if path == "activemask":
            why = ": the GPU decides which lanes run together; write the mask you mean"
        typing.refuse(f"cuda.{path} isn't supported by the simulator{why}")


@cache
def _as_device_function(dispatcher): return cuda.jit(device=True)(dispatcher.py_func)

def in_kernel(value):
    "What an object from outside is in a kernel: a function for the CPU, say, becomes a device function."
    if isinstance(value, CPUDispatcher): return _as_device_function(value)
    if value is cg: return CudaName("cg")
    return CudaName("cg.this_grid") if value is cg.this_grid else value


# Expressions the compiler doesn't support → what to call them
REFUSED = {"Dict": "a dict", "Set": "a set", "List": "a list", "JoinedStr": "an f-string",
           "ListComp": "a list", "DictComp": "a dict", "SetComp": "a set", "GeneratorExp": "a generator",
           "Yield": "a generator", "Await": "a coroutine"}


class Expressions:
    """Types the expressions of one function, for given argument types. One method per kind of syntax node,
    called `expr_…`, returns its `Value`."""
    def __init__(self, fn, typed):
        self.fn, self.code, self.line = fn, fn.__code__, fn.__code__.co_firstlineno
        self.typed = typed  # types the functions this one calls
        self.local = {*self.code.co_varnames, *self.code.co_cellvars}
        self.outer = dict(zip(self.code.co_freevars, fn.__closure__ or ()))
        self.namespace = {**HELPERS, "__builtins__": builtins, "__name__": fn.__globals__.get("__name__")}
        self.read = {}  # function and name from outside → the value it had
        self.scope, self.globals = {}, set()  # variable → `Value`; names in a `global` statement

    def refuse(self, text):
        raise SimulatorError(f"{text}, in {line_text(self.code, self.line)}")

    def truth(self, value):
        "The node for a condition."
        if isinstance(value.type, Array):
            self.refuse("a whole array can't be a condition: write x[i]")
        return boxed(value)

    def writable(self, array):
        if array.frozen:
            self.refuse("a global array is a constant to the compiler and can't be written: pass it as an "
                        "argument")

    def expr(self, node):
        # messages name the line of the innermost expression
        self.line = getattr(node, "lineno", self.line)
        value = getattr(self, f"expr_{type(node).__name__}", self.expr_other)(node)
        ast.copy_location(value.node, node)
        return value

    def expr_other(self, node):
        kind = type(node).__name__
        self.refuse(f"{REFUSED.get(kind, f'this ({kind})')} in a kernel: the compiler doesn't support it")

    def expr_Lambda(self, node): return Value(node)
    def expr_Starred(self, node): return Value(ast.Starred(boxed(self.expr(node.value)), node.ctx))
    def expr_Slice(self, node):
        values = [part and self.expr(part) for part in (node.lower, node.upper, node.step)]
        parts = [v and (converted(v, "int64") if v.type in FLOATS else fitted(v)) for v in values]
        return Value(ast.Slice(*parts), Known(slice))
    def expr_Constant(self, node): return self.frozen(node, node.value)

    # Names. Whatever isn't a variable of the kernel is a constant to the compiler: a global number, function
    # or array. Such an array can't be written, and the simulator refuses that too.

    def expr_Name(self, node):
        if node.id in self.local:
            kept = self.scope.get(node.id) or Value(None)
            return Value(node, kept.type, kept.bounds, kept.known, kept.literal)
        if node.id in self.outer:
            try:
                return self.taken_over(node, self.outer[node.id].cell_contents)
            except ValueError:
                self.refuse(f"the name {node.id} has no value yet")
        # looked up as Python does
        for scope in self.fn.__globals__, vars(builtins):
            if node.id in scope: return self.taken_over(node, scope[node.id])
        self.refuse(f"the name {node.id} is not defined{self.instead_of(node.id)}")

    def instead_of(self, missing):
        "What a reader may have meant by a name that isn't defined."
        if missing in OF_CUDA: return f": write cuda.{missing}"
        if missing in (*INTEGERS, *FLOATS): return f": add `from numba import {missing}`"
        near = get_close_matches(missing, {*self.local, *self.outer, *self.fn.__globals__}, 1, 0.8)
        return f", but {near[0]} is" if near else ""

    def taken_over(self, node, value):
        """The value of a name from outside. Values that may change are recorded: numbers, tuples, arrays,
        device functions."""
        if isinstance(value, FakeCUDAArray): self.read[self.fn, node.id] = value.copy_to_host()
        elif isinstance(value, np.ndarray): self.read[self.fn, node.id] = value.copy()
        elif isinstance(value, (np.generic, bool, int, float, complex, tuple, FakeCUDAKernel)):
            self.read[self.fn, node.id] = value
        return self.frozen(node, value)

    def frozen(self, node, value):
        "A constant, or the value of a name from outside, which is a constant to the compiler."
        value = in_kernel(value)
        if isinstance(value, CudaName): return Value(value.node(), Known(value), known=value)
        # numbers and arrays
        if value is None: return Value(constant(None), NONE, known=None)
        number = isinstance(value, (np.number, np.bool_, bool, int, float, complex))
        if number and is_number(kind := type_of(value)): return self._frozen_number(value, kind)
        text = getattr(node, "id", "this")
        if isinstance(value, (np.ndarray, FakeCUDAArray)) and value.ndim:
            key = f"<array {id(value)}>"
            if key not in self.namespace:  # its present value
                copy = value.copy_to_host() if isinstance(value, FakeCUDAArray) else value.copy()
                copy.setflags(write=False)
                self.namespace[key] = Frozen(text, copy)
            return Value(name(key), Array(of_dtype(value.dtype), value.ndim, True))
        # objects the compiler refuses
        advice = ""
        if isinstance(value, (dict, list, set)): advice = "use a tuple, or pass an array"
        elif isinstance(node, ast.Constant): return Value(node, known=value, literal=True)
        elif type(value).__module__ == self.fn.__globals__.get("__name__"):
            if not callable(value) and not isinstance(value, (tuple, Enum)):
                advice = "assign its numbers to names above the kernel"
        if advice:
            self.refuse(f"{text} is a {type(value).__name__}, which the compiler doesn't support in a "
                        f"kernel: {advice}")
        # tuples may be an array's shape; anything else stands for itself
        if not isinstance(value, tuple):
            return Value(self.named(text, value), Known(value), known=value)
        kind, value = type_of(value), plain_tuple(value)
        return Value(self.named(text, value), kind, known=value, literal=True)

    def _frozen_number(self, value, kind):
        literal = not isinstance(value, np.integer)  # the compiler treats np.int32(3) as a variable
        if is_integer(kind):
            value = bool(value) if kind == "bool" else int(value)
            if not -2**63 <= value < 2**64: self.refuse(f"{value} doesn't fit in 64 bits")
            return Value(constant(value), kind, (value, value), value, literal)
        if type(value) in (float, complex):
            return Value(constant(value), kind, None, value, literal)
        self.namespace[f"<{value!r}>"] = value
        return Value(name(f"<{value!r}>"), kind, None, value, literal)

    def named(self, text, value):
        "A name for a value that doesn't have one in a kernel."
        # no variable has such a name; a second value of that name gets a mark
        text = f"<{text}>"
        while self.namespace.setdefault(text, value) is not value: text += "'"
        return name(text)

    def expr_NamedExpr(self, node):
        if loses_a_value(self.fn):
            self.refuse(f"{ast.unparse(node)}: the compiler loses the value of this :=; write "
                        f"{node.target.id} = … on a line of its own")
        value = self.expr(node.value)
        return Value(ast.NamedExpr(node.target, self.kept(node.target.id, value)), value.type, value.bounds)

    def kept(self, target, value):
        "The node of a value assigned to a variable. Records what is known about it."
        if target in self.globals:
            self.refuse(f"the global variable {target} is assigned: the compiler reads it only once")
        # a variable's value fits its type, give or take the growth of a counter
        if value.type in INTEGERS and not fits(value, value.type):
            value = Value(fitted(value, SMALL_STEP), value.type)
        self.scope[target] = Value(None, value.type, value.bounds, value.known, value.literal)
        return value.node

    # Operators

    def apply(self, operator, *values):
        "The value of an operator. If a type is unknown, the operands are checked when the kernel runs."
        if all(is_number(value.type) for value in values):
            try:
                return operation(operator, *values)
            except TypeError as e:
                self.refuse(f"{e}: the compiler doesn't support this operator")
        # tuples can be concatenated, arrays compute as in numpy
        tuples = [isinstance(value.type, Tuple) for value in values]
        if all(tuples) and operator == "Add":
            return Value(self.native(operator, values), Tuple(sum((v.type.items for v in values), ())))
        texts = any(isinstance(value.known, (str, bytes)) for value in values)
        if any(tuples) or texts and not all(isinstance(value.node, ast.Constant) for value in values):
            self.refuse(f"{operator} on a {'tuple' if any(tuples) else 'string'}: the compiler doesn't "
                        "support it")
        if any(isinstance(value.type, Array) for value in values):
            return Value(self.native(operator, values))
        return Value(call("operation", constant(operator), *map(boxed, values)))

    def native(self, operator, values):
        "The node of an operator as in Python and numpy."
        sign, nodes = getattr(ast, operator)(), [boxed(x) for x in values]
        return binary(nodes[0], sign, nodes[1]) if len(nodes) == 2 else ast.UnaryOp(sign, nodes[0])

    def expr_BinOp(self, node):
        a, b, operator = self.expr(node.left), self.expr(node.right), type(node.op).__name__
        result = self.apply(operator, a, b)
        if a.literal and b.literal and result.type in INTEGERS:
            try:
                result.known = NATIVE[operator](a.known, b.known)
            except Exception:
                return result
            # the compiler folds expressions without names
            plain = ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop
            result.bounds = (result.known,) * 2
            result.literal = all(isinstance(x, plain) for x in ast.walk(node))
        return result

    def expr_UnaryOp(self, node):
        a, operator = self.expr(node.operand), type(node.op).__name__
        if operator == "Not":
            if isinstance(a.type, Tuple):
                self.refuse("`not` on a tuple: the compiler doesn't support it")
            known = UNKNOWN if a.known is UNKNOWN else not a.known
            return Value(ast.UnaryOp(node.op, self.truth(a)), "bool", known=known)
        result = self.apply(operator, a)
        if a.literal and operator == "USub" and result.type in INTEGERS:
            result.known, result.literal = -a.known, True
        return result

    def expr_Compare(self, node):
        values = [self.expr(x) for x in (node.left, *node.comparators)]
        names, known = [type(sign).__name__ for sign in node.ops], UNKNOWN
        first, native, two = names[0], names[0] in NATIVE, len(values) == 2
        if two and native and all(v.known is not UNKNOWN for v in values):
            known = bool(NATIVE[first](values[0].known, values[1].known))
        # compared as in Python, for types known only when the kernel runs
        plain = ast.Compare(boxed(values[0]), node.ops, [boxed(v) for v in values[1:]])
        # complex numbers, arrays, strings
        if any(v.type in COMPLEX for v in values):
            if any(x in ("Lt", "LtE", "Gt", "GtE") for x in names):
                self.refuse("complex numbers have no order: the compiler compares them only with == and "
                            "!=")
            if two and native: return self.apply(first, *values)
        arrays = [v.type for v in values if isinstance(v.type, Array)]
        if arrays and first in ("Eq", "NotEq") and any(v.type == NONE for v in values):
            return Value(constant(first == "NotEq"), "bool", known=first == "NotEq")
        if arrays and native: return Value(plain, Array("bool", max(x.ndim for x in arrays)))
        if arrays and first in ("In", "NotIn") and not isinstance(values[1].type, Array):
            self.refuse("`in` with an array on its left: the compiler only compares numbers")
        # numbers
        if all(is_scalar(v.type) for v in values) and all(x in NATIVE for x in names):
            nodes = [compared(values[0], values[1])]
            for i in range(1, len(values)):  # the middle one is compared with both sides
                around = [values[i - 1], *values[i + 1:i + 2]]
                widest = max(around, key=lambda x: common(values[i].type, x.type) == "float64")
                nodes.append(compared(values[i], widest))
            return Value(ast.Compare(nodes[0], node.ops, nodes[1:]), "bool", known=known)
        if two and native and not all(isinstance(v.type, Tuple) for v in values):
            return Value(call("operation", constant(first), *map(boxed, values)), "bool", known=known)
        if names in (["Is"], ["IsNot"]):
            decided = [v.type == NONE for v in values]
            if any(decided) and all(v.type is not None for v in values):
                known = all(decided) == (first == "Is")
        return Value(plain, "bool", known=known)

    def expr_BoolOp(self, node):
        values = [self.expr(x) for x in node.values]
        for v in values[:-1]: self.truth(v)
        kind = self.one_of(values)
        # one value that decides makes the others irrelevant
        known = [v.known for v in values]
        decides = isinstance(node.op, ast.Or)
        value = (any if decides else all)(known) if UNKNOWN not in known else UNKNOWN
        if any(k is not UNKNOWN and bool(k) == decides for k in known) and kind == "bool":
            value = decides
        return Value(ast.BoolOp(node.op, [self.as_type(v, kind) for v in values]), kind, known=value)

    def expr_IfExp(self, node):
        test = self.expr(node.test)
        # a branch never taken needn't have a type
        if test.known is not UNKNOWN: return self.expr(node.body if test.known else node.orelse)
        values = self.expr(node.body), self.expr(node.orelse)
        kind = self.one_of(values)
        return Value(ast.IfExp(self.truth(test), *(self.as_type(v, kind) for v in values)), kind)

    def one_of(self, values):
        "The type of a value that may be any of these."
        kinds = [v.type for v in values]
        kind = reduce(unified, kinds)
        if kind is None and None not in kinds and NONE not in kinds:
            self.refuse(f"one of {', '.join(map(self.described, kinds))}: the compiler needs one type for "
                        "both branches")
        return kind

    def as_type(self, value, kind):
        if is_scalar(kind) or is_number(kind) and is_number(value.type):
            return converted(value, kind)
        return boxed(value)

    @staticmethod
    def a_number(kind): return f"a{'n' * str(kind).startswith('int')} {kind}"

    @staticmethod
    def described(kind):
        "A description of a type."
        if isinstance(kind, Array):
            return f"an array of {kind.dtype} with {kind.ndim} dimension{'s' * (kind.ndim != 1)}"
        if isinstance(kind, Tuple): return f"a tuple of {len(kind.items)}"
        if isinstance(kind, Record): return "an element with fields"
        if isinstance(kind, Known): return getattr(kind.value, "__name__", "this")
        return "None" if kind == NONE else str(kind)
