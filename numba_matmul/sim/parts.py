"""The types of tuples, elements and attributes in a kernel."""
import ast
from dataclasses import replace
from enum import Enum
from types import ModuleType

import numpy as np
from .expressions import CudaName, Expressions
from .operators import NARROW, UNKNOWN, Value, boxed, call, constant, fitted, subscript, unboxed
from .types import (COMPLEX, INTEGERS, Array, Known, Record, Tuple, is_integer, is_number, is_scalar,
                    of_dtype)
from numba import cuda

SIZES = 0, 2**48 - 1  # array sizes

# What an array offers in a kernel: attributes, and methods
WITHOUT_CALL = ("T",
                "ctypes", "dtype", "flat", "itemsize", "nbytes", "ndim", "real", "shape", "size", "strides")
OF_ARRAYS = ("all",
             "any", "argmax", "argmin", "fill", "item", "mean", "prod", "reshape", "std", "sum", "transpose",
             "var", "view")


class Composites(Expressions):
    "Types tuples, elements and attributes."

    # Tuples

    def spread(self, nodes):
        "The items of a tuple or a call. `*x` expands to its items if their number is known."
        out = []
        for node in nodes:
            inner = self.expr(node.value) if isinstance(node, ast.Starred) else None
            if inner and isinstance(inner.type, Tuple) and isinstance(node.value, (ast.Name, ast.Attribute)):
                out += [subscript(node.value, ast.copy_location(constant(i), node), node)
                        for i in range(len(inner.type.items))]
            else: out.append(node)
        return out

    def expr_Tuple(self, node):
        values = [self.expr(x) for x in self.spread(node.elts)]
        literal = all(v.literal for v in values)
        return Value(ast.Tuple([boxed(v) for v in values], node.ctx), Tuple(tuple(v.type for v in values)),
                     known=tuple(v.known for v in values) if literal else UNKNOWN, literal=literal)

    # Elements

    def expr_Subscript(self, node):
        base = self.expr(node.value)
        kind, at = base.type, getattr(node.slice, "value", 0)
        if isinstance(kind, (Array, Record)) and isinstance(at, str): return self.field(base, at)
        # things that can't be indexed, and parts the compiler doesn't know
        if isinstance(kind, Known) and not isinstance(kind.value, bytes):
            self.refuse(f"{ast.unparse(node.value)} can't be indexed")
        if isinstance(kind, Array) and at in (..., None):
            self.refuse(f"{ast.unparse(node)}: the compiler doesn't support this kind of index; write x[:]")
        index = self.index(node.slice, kind)
        taken = ast.Subscript(base.node, index.node, node.ctx)
        if isinstance(kind, Tuple):
            value = self.item(base, index, taken)
            if getattr(node.value, "attr", "") == "shape" and value.type == "int64":
                value.bounds = SIZES
            return value
        if isinstance(kind, Array): return self.element(kind, index, taken)
        if is_number(kind): self.refuse(f"a {kind} can't be indexed")
        return Value(taken)

    def index(self, node, array=None):
        """One or several indices. Integers in a tuple are not boxed. In an array's index, `...` expands to
        whole axes."""
        parts = list(node.elts) if isinstance(node, ast.Tuple) else [node]
        dots = [i for i, x in enumerate(parts) if getattr(x, "value", None) is ...]
        if dots and isinstance(array, Array):
            # None and newaxis don't use up an axis
            taken = [x for x in parts
                     if getattr(x, "value", ...) is not None and getattr(x, "attr", "") != "newaxis"]
            parts[dots[0]:dots[0] + 1] = [ast.copy_location(ast.Slice(None, None, None), node)
                                          for _ in range(array.ndim - len(taken) + 1)]
            node = parts[0] if len(parts) == 1 else ast.copy_location(ast.Tuple(parts, ast.Load()), node)
        if not isinstance(node, ast.Tuple): return self.checked(self.expr(node))
        values = [self.checked(self.expr(x)) for x in node.elts]
        return Value(ast.copy_location(ast.Tuple([v.node for v in values], ast.Load()), node),
                     Tuple(tuple(v.type for v in values)))

    def checked(self, value):
        if value.type == "bool" or is_scalar(value.type) and not is_integer(value.type):
            self.refuse(f"an index is a {value.type}, but the compiler needs an integer: use // instead of "
                        "/, or int(…)")
        return value

    def item(self, base, index, taken):
        "The item or slice of a tuple at an index."
        items = base.type.items
        # a slice with literal bounds has a type
        if isinstance(index.node, ast.Slice):
            bounds = [x and getattr(x, "value", UNKNOWN)
                      for x in (index.node.lower, index.node.upper, index.node.step)]
            return Value(taken, None if UNKNOWN in bounds else Tuple(items[slice(*bounds)]))
        # an item at a known index has its own type; otherwise all items need a common type
        kind, known = items[0] if len(set(items)) == 1 else None, UNKNOWN
        if isinstance(index.known, int):
            if not -len(items) <= index.known < len(items):
                self.refuse(f"index {index.known} is out of range for a tuple of {len(items)}")
            kind = items[index.known]
            if base.literal: known = base.known[index.known]
        elif len(set(items)) > 1 and all(map(is_number, items)):
            self.refuse("indexing a tuple of mixed types needs an index that the compiler knows: "
                        "write a number")
        value = unboxed(taken, kind) if kind in NARROW else Value(taken, kind)
        if isinstance(index.known, int): value.known, value.literal = known, base.literal
        if isinstance(known, int): value.bounds = (int(known),) * 2
        return value

    def element(self, array, index, taken):
        "The element or slice of an array at an index."
        # each integer removes an axis, each slice keeps one
        kinds = index.type.items if isinstance(index.type, Tuple) else (index.type,)
        numbers = sum(k in INTEGERS for k in kinds)
        if numbers == len(kinds) > array.ndim:
            dimensions = f"{array.ndim} dimension{'s' * (array.ndim > 1)}"
            self.refuse(f"{len(kinds)} indices for an array of {dimensions}")
        if any(k not in INTEGERS and k != Known(slice) for k in kinds): return Value(taken)
        if numbers != array.ndim:
            return Value(taken, Array(array.dtype, array.ndim - numbers, array.frozen))
        if isinstance(array.dtype, Record):
            return Value(call("record", taken.value, taken.slice), array.dtype)
        if array.dtype in COMPLEX: return Value(taken, array.dtype)
        return unboxed(taken, array.dtype if is_scalar(array.dtype) else None)

    def field(self, base, text):
        "A field of an element, or of all elements of an array, by its name."
        array = base.type if isinstance(base.type, Record) else base.type.dtype
        fields = array.dtype.fields if isinstance(array, Record) else {}
        if text not in fields and fields:
            self.refuse(f"no field {text!r}: the fields are {', '.join(fields)}")
        if text not in fields: self.refuse(f"an array of {array} doesn't have fields")
        # a field may be an array itself
        inner = fields[text][0]
        of, shape = inner.subdtype or (inner, ())
        if isinstance(base.type, Array):
            return Value(call("field", base.node, constant(text)),
                         Array(of_dtype(of), base.type.ndim + len(shape), base.type.frozen))
        # a field of an element is an element of the field
        made = getattr(base.node, "func", None)
        if getattr(made, "id", "") == "<record>": holder, at = base.node.args
        else: holder, at = (ast.Attribute(base.node, x, ast.Load()) for x in ("array", "index"))
        taken = ast.Subscript(call("field", holder, constant(text)), at, ast.Load())
        return Value(taken, Array(of_dtype(of), len(shape))) if shape else unboxed(taken, of_dtype(of))

    # Attributes

    def expr_Attribute(self, node):
        base, text = self.expr(node.value), node.attr
        taken, kind = ast.Attribute(base.node, text, node.ctx), base.type
        # a field of an element, or of all elements of an array
        record = kind.dtype if isinstance(kind, Array) else kind
        if isinstance(record, Record) and (record is kind or text in record.dtype.names):
            return self.field(base, text)
        if is_number(kind): return self.of_number(base, text)
        # a named tuple has its fields, any other tuple only `index`
        if isinstance(kind, Tuple):
            fields = getattr(kind.cls, "_fields", ())
            if text in fields:
                return replace(self.item(base, Value(None, known=fields.index(text)), taken), literal=False)
            if text != "index" or kind.cls is not tuple:
                self.refuse(f"a tuple doesn't have {text} in a kernel")
        if isinstance(base.known, (str, bytes)): self.refuse(f"a string doesn't have {text} in a kernel")
        if isinstance(kind, Array): return self.of_array(base, taken, node.value)
        if isinstance(kind, Known): return self.attribute(kind.value, taken)
        return Value(taken)

    def of_array(self, base, taken, node):
        "An attribute of the array at `node`."
        array, text = base.type, taken.attr
        complex_, record = array.dtype in COMPLEX, isinstance(array.dtype, Record)
        if text not in (*OF_ARRAYS, *WITHOUT_CALL, *["imag"] * complex_) or record and text == "real":
            self.refuse(f"an array doesn't have {text} in a kernel")
        # views keep the type, sizes are integers
        if text == "T" or text == "real" and not complex_: return Value(taken, array)
        if text == "ndim" and getattr(node, "id", "") in self.code.co_varnames[:self.code.co_argcount]:
            return self.frozen(taken, array.ndim)  # the compiler uses it to pick branches
        if text in ("itemsize", "nbytes", "size", "ndim"): return Value(taken, "int64", SIZES)
        if text in ("strides", "shape"): return Value(taken, Tuple(("int64",) * array.ndim))
        if text == "dtype" and is_scalar(array.dtype):
            return Value(taken, known=np.dtype(array.dtype), literal=True)
        return Value(taken)

    def of_number(self, base, text):
        "An attribute of a number."
        kind = base.type
        if text in ("real", "imag") and kind != "bool":
            if kind in COMPLEX:
                return Value(ast.Attribute(base.node, text, ast.Load()),
                             "float32" if kind == "complex64" else "float64")
            if text == "real": return base
            return Value(constant(0) if is_integer(kind) else call(kind, constant(0)), kind)
        # numpy's methods of numbers
        if text == "bit_count" and kind in INTEGERS:
            return Value(ast.Attribute(fitted(base), text, ast.Load()))
        missing = kind == "bool" and text != "item" or kind in COMPLEX and text == "view"
        if missing or text not in ("item", "view", "conjugate"):
            self.refuse(f"a {kind} doesn't have {text} in a kernel")
        holder = call("truth" if kind == "bool" else kind, fitted(base))
        return Value(ast.Attribute(holder, text, ast.Load()))

    def attribute(self, owner, taken):
        "An attribute of something known at compile time."
        if owner is cuda: owner = CudaName()
        if isinstance(owner, CudaName): return owner.attribute(self, taken)
        text = taken.attr
        if isinstance(owner, type) and not issubclass(owner, (Enum, np.generic, tuple)):
            self.refuse(f"{owner.__name__} is a class, which the compiler doesn't support in a kernel")
        if not isinstance(owner, (ModuleType, type, tuple)): return Value(taken)
        if not hasattr(owner, text):
            self.refuse(f"{getattr(owner, '__name__', 'this')} doesn't have {text}")
        # numbers are constants, other objects stand for themselves
        value = getattr(owner, text)
        if value is None or isinstance(value, (bool, int, float, complex, np.number, np.bool_)):
            return self.frozen(taken, value)
        if owner is np and not callable(value) and not isinstance(value, ModuleType):
            self.refuse(f"the compiler doesn't support np.{text} in a kernel")
        return Value(taken, Known(value), known=value)
