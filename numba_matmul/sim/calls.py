"""The types of calls in a kernel: to `cuda`, other kernels and instructions, and to an array's methods."""
import ast
import builtins
import cmath
import inspect
import math
import operator
from functools import reduce
from types import FunctionType

import numpy as np
from .expressions import BITS, CUDA_TYPES, SHUFFLED, CudaName
from .functions import BUILTINS, INSTEAD, OF_ARRAYS_TOO, OF_NUMPY, Functions, ours
from .libdevice import FUNCTIONS
from .operators import UNKNOWN, Value, boxed, call, constant, converted, fitted, name, unboxed
from .parts import OF_ARRAYS
from .types import (COMPLEX, FLOATS, INTEGERS, NONE, OPTIONAL, Array, Known, Record, Tuple, common,
                    is_integer, is_number, is_scalar, named)
from numba import types
from numba.core.errors import TypingError
from numba.cuda.simulator.kernel import FakeCUDAKernel
from numba.np import numpy_support


def _numba_type(kind):
    "Numba's type for one of ours."
    if kind in COMPLEX: return getattr(types, kind)
    if isinstance(kind, Array): return types.Array(_numba_type(kind.dtype), kind.ndim, "C")
    if isinstance(kind, Tuple): return types.Tuple([_numba_type(x) for x in kind.items])
    return types.boolean if kind == "bool" else getattr(types, kind)


VOTES = "any_sync", "all_sync", "ballot_sync"


class CudaCalls(Functions):
    "Types calls to `cuda`."
    def cuda_call(self, path, plain, values, keywords):
        if path in ("grid", "gridsize") and "ndim" in keywords:
            values = [*values, keywords["ndim"]]
            plain = ast.Call(plain.func, [boxed(v) for v in values], [])
        kinds = [v.type for v in values]
        self._check_kinds(path, kinds)
        # a thread's place in the launch
        if path in ("grid", "gridsize"):
            if len(values) != 1 or kinds[0] == "bool" or values[0].known not in (1, 2, 3):
                self.refuse(f"cuda.{path} takes the literal 1, 2 or 3")
            n = values[0].known
            return Value(plain, Tuple(("int64",) * n)) if n > 1 else Value(plain, "int64", (0, 2**41))
        # memory
        if path in ("shared.array", "local.array"):
            return self.declared(path, plain, values, keywords)
        if path == "const.array_like": return Value(plain, kinds[0])
        if path.startswith("atomic."): return self.atomic(path, plain, values)
        # bit operations depend on the width
        if path in BITS:
            if not kinds or not is_integer(kinds[0]):
                self.refuse(f"cuda.{path} takes an integer of a known type: write uint32(…) "
                            "around it")
            kind = "uint32" if path in ("brev", "ffs") else kinds[0]
            if path == "brev" and kinds[0] in ("int64", "uint64"): kind = "uint64"
            bits = np.dtype(kind if path == "brev" else kinds[0]).itemsize * 8
            return Value(call(path, fitted(values[0]), constant(bits)), kind)
        # arithmetic
        if path in ("fma", "cbrt") and all(map(is_scalar, kinds)):
            if path == "fma": kind = common(reduce(common, kinds), "float32")
            else: kind = "float32" if kinds[0] == "float32" else "float64"
            return Value(call(path, *(converted(v, kind) for v in values)), kind)
        if path == "selp" and len(values) == 3:
            if kinds[1] != kinds[2]:
                self.refuse(f"cuda.selp needs both values of the same type, not {kinds[1]} and {kinds[2]}")
            return Value(ast.IfExp(boxed(values[0]), fitted(values[1]), fitted(values[2])), kinds[1])
        # barriers, votes and shuffles
        kind = CUDA_TYPES.get(path)
        if kind == 1:  # the type of the second argument
            kind = kinds[1] if len(kinds) > 1 else None
            if is_scalar(kind) and kind not in SHUFFLED:
                self.refuse(f"cuda.{path} takes int32, int64, float32 or float64, not {kind}")
            return Value(plain, kind)
        if kind in INTEGERS and path != "lanemask_lt":
            bounds = (0, 2**32 - 1) if path.endswith("sync") else (0, 1024)
            return Value(fitted(Value(plain, kind, bounds)), kind)
        return Value(plain, kind)

    def _check_kinds(self, path, kinds):
        "Refuse types the compiler's function doesn't take."
        if any(k in COMPLEX for k in kinds) and path not in ("const.array_like", "selp"):
            self.refuse(f"cuda.{path} doesn't take complex numbers")
        if path in VOTES and kinds[:1] == ["bool"]:
            self.refuse(f"cuda.{path} takes a mask, and a bool isn't one")
        voted = []
        if path in VOTES: voted = kinds[1:]
        if path.startswith("syncthreads_"): voted = kinds[:1]
        for kind in voted:
            if kind in FLOATS or kind == "bool" and path not in VOTES:
                self.refuse(f"cuda.{path} takes an int32, not {kind}: write int32(…) around it")
        if path == "ffs" and kinds and kinds[0] in ("bool", "int8", "uint8", "int16", "uint16"):
            self.refuse("cuda.ffs takes 32 or 64 bits: write uint32(…) around it")
        if path == "selp" and len(kinds) == 3:
            if any(k in ("bool", "int8", "uint8", "float16", *COMPLEX) for k in kinds[1:]):
                self.refuse(f"cuda.selp takes numbers of at least 16 bits other than float16, not {kinds[1]}")

    def atomic(self, path, plain, values):
        # the hardware's operations, by element type
        array = values[0].type
        if not isinstance(array, Array) or not is_number(array.dtype): return Value(plain)
        self.writable(array)
        operation = path.removeprefix("atomic.")
        if operation in ("inc", "dec"): takes = "uint32", "uint64"
        else: takes = "int32", "uint32", "int64", "uint64"
        if operation in ("add", "sub", "max", "min", "nanmax", "nanmin"):
            takes += "float32", "float64"
        if array.dtype not in takes:
            self.refuse(f"cuda.{path} works on {', '.join(takes)}, but this array is {array.dtype}")
        first = 1
        if operation != "compare_and_swap":  # all others have an index
            at, first = values[1], 2
            if array.ndim == 1 and isinstance(at.type, Tuple):
                self.refuse(f"cuda.{path} needs a plain number as the index of a 1D array")
            plain.args[1] = converted(at, "int64") if at.type in FLOATS or at.type == "bool" else at.node
        for i in range(first, len(values)):
            if is_scalar(values[i].type): plain.args[i] = converted(values[i], array.dtype)
        return unboxed(plain, array.dtype)

    def declared(self, path, plain, values, keywords):
        "`cuda.shared.array` or `cuda.local.array`."
        given = dict(zip(("shape", "dtype", "alignment"), values)) | keywords
        shape, dtype = given.get("shape"), given.get("dtype")
        if shape is None or dtype is None: self.refuse(f"cuda.{path} needs a shape and a type")
        # the compiler must know the shape
        if not shape.literal:
            computed = isinstance(shape.node, (ast.BinOp, ast.UnaryOp))
            if isinstance(shape.known, (int, np.integer)) and not computed:
                self.refuse(f"the shape of a {path[:-6]} array is a numpy number, but the compiler needs a "
                            "Python int: write int(…) above the kernel")
            self.refuse(f"the shape of a {path[:-6]} array must be known to the compiler: a number, or a "
                        "variable from outside the kernel, not one computed inside")
        size = shape.known if isinstance(shape.known, tuple) else (shape.known,)
        if not all(isinstance(x, (int, np.integer)) for x in size):
            self.refuse(f"{shape.known!r} isn't a valid array shape")
        # it takes its own types and numpy's, not Python's
        known = dtype.type.value if isinstance(dtype.type, Known) else dtype.known
        if known in (int, float, bool, complex):
            self.refuse(f"the compiler doesn't take {known.__name__} as an array's type: write int64, "
                        "float64, boolean or complex128")
        record = known.dtype if isinstance(known, types.Array) else known
        if isinstance(record, types.Record): record = numpy_support.as_dtype(record)
        if isinstance(record, np.dtype) and record.names:
            plain = ast.Call(plain.func, [constant(shape.known), self.named("record", record)], [])
            return Value(plain, Array(Record(record), len(size)))
        kind = named(known) or (known if is_scalar(known) else None)
        other = known is None or known is str or isinstance(known, type) and issubclass(known, np.generic)
        if kind is None and other:
            self.refuse(f"the compiler doesn't support arrays of {getattr(known, '__name__', known)}: write "
                        "float32, int64 and so on")
        return Value(plain, Array(kind, len(size)))


class Calls(CudaCalls):
    "Types calls."
    def expr_Call(self, node):
        if getattr(node.func, "id", "") in ("<iter>", "<next>"): return self.step(node)
        if isinstance(node.func, ast.Attribute) and isinstance(self.expr(node.func.value).type, Array):
            return self.method(node)
        # what is called, and with what?
        callee = self.expr(node.func)
        target = callee.type.value if isinstance(callee.type, Known) else callee.known
        if isinstance(target, FakeCUDAKernel): return self.device_function(target, node)
        values = [self.expr(x) for x in self.spread(node.args)]
        keywords = {x.arg: self.expr(x.value) for x in node.keywords}
        named_nodes = [ast.keyword(k, boxed(v)) for k, v in keywords.items()]
        plain = ast.Call(callee.node, [boxed(v) for v in values], named_nodes)
        starred = any(isinstance(v.node, ast.Starred) for v in values)
        # known only when the kernel runs
        if starred or target is UNKNOWN or target is None: return Value(plain)
        if isinstance(target, CudaName): return self.cuda_call(target.path, plain, values, keywords)
        if isinstance(target, np.dtype):
            self.refuse(f"calling a dtype isn't supported by the compiler; write {target.name}(…)")
        # types, and functions known by name
        kind = named(target) or {int: "int", float: "float"}.get(target)
        if kind: return self.cast(kind, values)
        text = getattr(target, "__name__", "")
        if getattr(math, text, None) is target: return self.math_call(text, plain, values)
        if isinstance(target, type) and issubclass(target, tuple) and hasattr(target, "_fields"):
            return self.named_tuple(target, plain, values, keywords)
        if any(target is x for x in BUILTINS): return self.builtin(target, plain, values, keywords)
        return self.other_call(target, plain, values)

    def step(self, node):
        "A step of a loop read from bytecode: `<iter>` creates the iterator, `<next>` takes an item from it."
        if node.func.id == "<iter>":
            taken = self.iterated(node.args[0])
            return Value(call("iter", taken.node), Known((taken.type, taken.bounds)))
        over = self.expr(node.args[0])
        kind, _ = over.type.value if isinstance(over.type, Known) else (None, None)
        return Value(call("next", over.node), Tuple((kind, "bool")))  # the item; was there one?

    def other_call(self, target, plain, values):
        if hasattr(target, "instruction"):
            return self.instruction(plain, values, *target.instruction)
        kinds, text = [v.type for v in values], getattr(target, "__name__", "this")
        function = isinstance(target, FunctionType)
        if function and (found := FUNCTIONS.get(target)):
            return self.of_libdevice(f"libdevice.{text}", *found, values)
        if target is isinstance: return self.is_instance(plain, values)
        if target is iter and len(values) == 1 and isinstance(kinds[0], (Array, Tuple)):
            return values[0]
        # number types
        kind = None
        if target is type and len(values) == 1 and is_number(kinds[0]):
            kind = np.dtype(kinds[0]).type
        if target is np.dtype and len(values) == 1 and values[0].known is not UNKNOWN:
            kind = np.dtype(values[0].known)
        if kind is not None:
            return Value(self.named(getattr(kind, "__name__", "dtype"), kind), Known(kind), known=kind)
        if getattr(operator, text, None) is target:
            return self.operator_function(text, plain, values)
        raises = isinstance(target, type) and issubclass(target, BaseException)
        if getattr(builtins, text, None) is target and not raises:
            self.refuse(f"the compiler doesn't support {text} in a kernel")
        # Python's library functions
        of_numpy = getattr(np, text, None) is target
        if of_numpy and not self._in_numpy(target, text, kinds):
            instead = INSTEAD.get(text) or hasattr(math, text) and f"math.{text}"
            advice = f": write {instead}" if instead else ""
            self.refuse(f"the compiler doesn't support np.{text} in a kernel{advice}")
        if getattr(cmath, text, None) is target and text != "isclose":
            if not text.startswith("is") and not any(k in COMPLEX or k is None for k in kinds):
                self.refuse(f"cmath.{text} takes a complex number; math.{text} a real one")
            return Value(plain)
        # Numba's, ours and exceptions are called as they are
        package, of_type = (str(getattr(x, "__module__", "")).split(".")[0] for x in (target, type(target)))
        known = package in ("numba", "numba_cuda", "numba_matmul") or of_type in ("numba", "numba_cuda")
        if raises or of_numpy or known: return Value(plain)
        if function:
            self.refuse(f"{text} is a plain Python function: to call it in a kernel, decorate it with "
                        "@cuda.jit(device=True)")
        if isinstance(target, type):
            self.refuse(f"{text} is a class, which the compiler doesn't support in a kernel")
        self.refuse(f"the compiler doesn't support {ast.unparse(plain.func).strip('<>')} in a kernel")

    @staticmethod
    def _in_numpy(target, text, kinds):
        "Does the compiler support this numpy function for these argument types?"
        if any(k in COMPLEX for k in kinds): return False
        if text in ("maximum", "minimum") and "float16" in kinds: return False
        arrays, ufunc = any(isinstance(k, Array) for k in kinds), isinstance(target, np.ufunc)
        if arrays and not ufunc:
            return text in OF_ARRAYS_TOO and (len(kinds) == 1) != text.startswith("atleast")
        # with arrays, the last argument of a ufunc receives the results
        return text in OF_NUMPY and (not arrays or len(kinds) == target.nargs)

    def method(self, node):
        "A call to an array's method."
        base, text = self.expr(node.func.value), node.func.attr
        array, values = base.type, [self.expr(x) for x in node.args]
        wanted = 1 if text in ("fill", "view") else len(values) if text == "reshape" and values else 0
        if text not in OF_ARRAYS or len(values) != wanted or node.keywords:
            self.refuse(f"the compiler doesn't support {text}({', '.join(map(ast.unparse, node.args))}) on "
                        "arrays in a kernel: write a loop")
        # the type of its result
        given = [boxed(v) for v in values]
        kind = {"all": "bool", "any": "bool", "argmax": "int64", "argmin": "int64"}.get(text)
        if text == "view":
            viewed = values[0].type.value if isinstance(values[0].type, Known) else values[0].known
            if dtype := named(viewed):
                kind, given = array._replace(dtype=dtype), [self.named(dtype, np.dtype(dtype))]
        if text == "item" and is_number(array.dtype): kind = array.dtype
        if text == "transpose": kind = array
        if text == "reshape":
            shape = values[0].type.items if isinstance(values[0].type, Tuple) else values
            kind = array._replace(ndim=len(shape))
        made = ast.Call(ast.Attribute(base.node, text, ast.Load()), given, [])
        return unboxed(made, kind) if is_scalar(kind) else Value(made, kind)

    def of_libdevice(self, text, kinds, results, values):
        "A call to a libdevice function. Its arguments are converted as the compiler would."
        if len(kinds) != len(values) or not all(is_scalar(v.type) or v.type is None for v in values):
            self.refuse(f"{text} takes ({', '.join(kinds)}), not "
                        f"({', '.join(self.described(v.type) for v in values)})")
        node = call(text, *(converted(v, kind) for v, kind in zip(values, kinds)))
        if not results: return Value(node, NONE)
        return Value(node, results[0] if len(results) == 1 else Tuple(results))

    def instruction(self, plain, values, operands, result):
        "A call to an instruction created by `bind`."
        # literals become part of the instruction
        for letter, value in zip(operands, values):
            if letter == "n" and not value.literal and value.type is not None:
                text = ast.unparse(plain.func).strip("<>'")
                self.refuse(f"{text} needs a compile-time constant here: write a plain number, or a name "
                            "defined above the kernel, and no "
                            "expression")
        if result is None: return Value(plain, NONE)
        try:
            if not isinstance(result, types.Type):  # a function of the argument types, or of literals
                letters = operands.ljust(len(values), "-")
                result = result(*(v.known if letter == "n" else _numba_type(v.type)
                                  for v, letter in zip(values, letters)))
            return unboxed(plain, ours(result))
        except TypingError as e:
            self.refuse(str(e))
        except (AttributeError, TypeError):
            return Value(plain)  # unknown type

    def device_function(self, kernel, node):
        """A call to another function of a kernel. It is typed once per list of argument types, as when
        compiled."""
        args, fn = [self.expr(x) for x in self.spread(node.args)], kernel.fn
        keywords = {x.arg: self.expr(x.value) for x in node.keywords}
        if any(isinstance(v.node, ast.Starred) for v in args) or None in keywords:
            return Value(ast.Call(self.named(fn.__name__, kernel), [boxed(v) for v in args], []))
        # one value per parameter
        signature = inspect.signature(fn)
        try:
            bound = signature.bind(*args, **keywords)
        except TypeError as e:
            self.refuse(f"{fn.__name__} takes ({', '.join(signature.parameters)}), and this call doesn't "
                        f"match: {e}")
        bound.apply_defaults()
        values = [v if isinstance(v, Value) else self.frozen(name("default"), v)
                  for v in bound.arguments.values()]
        made, result = self.typed(fn, tuple(v.type for v in values))
        self.read |= getattr(made, "read", {})  # none where it has *args: left unchanged
        nodes = [fitted(v) if is_scalar(v.type) else boxed(v) for v in values]
        return Value(ast.Call(self.named(fn.__name__, made), nodes, []),
                     None if result == OPTIONAL else result)
