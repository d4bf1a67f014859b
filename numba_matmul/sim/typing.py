"""A kernel becomes a function of Python that computes in the compiler's types."""
import ast
import inspect
import linecache
import os
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import lru_cache, reduce
from types import CellType, FunctionType
from weakref import WeakKeyDictionary

import numpy as np
from ..process import TREES
from ..source import parsed
from .bytecode import bytecode_tree
from .calls import Calls
from .operators import (NARROW, UNKNOWN, Value, assign, boxed, call, constant,
                                        converted, fitted, function, name, unboxed, unboxed_value)
from .types import (COMPLEX, FLOATS, INTEGERS, NONE, Array, Known, Record, Tuple, is_integer,
                                    is_number, is_scalar, is_unsigned, type_of, unified)
from numba.cuda.simulator.kernel import FakeCUDAKernel


# Where two ways through a kernel meet, a variable has one type: an `int64` on one way and a `float32` on
# the other make it a `float64`, and it is converted on both, as the compiler does. A variable that has a
# value on one way only is an error where it is read without.

def joined(a, b):
    "What is known of variables where two ways meet; `None` is a way that nobody comes."
    if a is None or b is None: return b if a is None else a
    return {x: _either(a.get(x), b.get(x)) for x in {**a, **b} if x[0] != "<"}

def _either(a, b):
    if a is None or b is None: return replace(b if a is None else a, sure=False)
    kind = unified(a.type, b.type)
    same = kind == a.type == b.type
    bounds = (min(a.bounds[0], b.bounds[0]), max(a.bounds[1], b.bounds[1])) if same and a.bounds and b.bounds else None
    known = a.known if same and a.known is b.known else UNKNOWN
    return Value(None, kind, bounds, known, a.literal and b.literal and known is not UNKNOWN, a.sure and b.sure)

def conversions(before, after):
    "Statements that give variables the types that they have where ways meet, where the compiler converts them, too."
    if before is None: return []
    return [_conversion(x, before[x], after[x].type) for x in before if x in after and before[x].type != after[x].type]

def _conversion(text, value, kind):
    here = Value(name(text), value.type, value.bounds)
    made = assign(text, converted(here, kind) if is_scalar(kind) else boxed(here))
    if value.sure: return made
    return ast.Try([made], [ast.ExceptHandler(name("UnboundLocalError"), None, [ast.Pass()])], [], [])


# One method for each kind of statement, called `do_…`, returns the statements that take its place. The
# types at the head of a loop are found by trying: a round may change them, and then it is typed again.

class Statements(Calls):
    "Types statements: each method returns those that take its place."
    exits = result = None  # the ways out of the innermost loop; the type of what is returned

    @staticmethod
    def typed(fn, kinds): return typed(fn, kinds)

    def block(self, nodes):
        out = []
        for node in nodes:
            if self.scope is None: break  # nobody comes here
            out += self.statement(node)
        return out

    def statement(self, node):
        self.line = node.lineno
        made = getattr(self, f"do_{type(node).__name__}", self.do_other)(node)
        for x in made: ast.copy_location(x, node)
        return made

    def do_other(self, node):
        what = {"Try": "try", "TryStar": "try", "With": "with", "ClassDef": "a class", "Import": "import", "Delete": "del",
                "ImportFrom": "import", "Global": "a global variable that is written", "Nonlocal": "nonlocal"}
        self.refuse(f"{what.get(type(node).__name__, type(node).__name__)} in a kernel: the compiler has none there")

    def do_Pass(self, node): return [node]
    def do_FunctionDef(self, node):
        self.scope[node.name] = Value(None)
        return [node]
    def do_Raise(self, node):
        given = [*node.exc.args, *node.exc.keywords] if isinstance(node.exc, ast.Call) else []
        if any(not isinstance(x, ast.Constant) for x in given): self.refuse("an exception with a value that is computed: the compiler takes constants")
        if node.cause: self.refuse("raise … from: the compiler has none")
        self.scope = None
        return [node]
    def do_Assert(self, node):
        if node.msg and not isinstance(node.msg, ast.Constant): self.refuse("a message that is computed: the compiler takes a constant text")
        return [ast.Assert(self.truth(self.expr(node.test)), node.msg)]
    def do_Global(self, node):
        self.globals |= set(node.names)
        return []
    def do_AsyncFunctionDef(self, node): return [ast.Pass()]
    def do_Expr(self, node): return [ast.Expr(self.expr(node.value).node)]

    def do_Return(self, node):
        value = self.expr(node.value) if node.value else Value(constant(None), NONE, known=None)
        self.returned.append(value.type)
        self.scope = None
        return [ast.Return(self.as_type(value, self.result))]

    def do_AnnAssign(self, node):
        return self.stored(node.target, self.expr(node.value)) if node.value else []

    def do_Assign(self, node):
        several = len(node.targets) > 1
        if isinstance(node.value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple) and not several:
            targets, values = node.targets[0].elts, node.value.elts
            nested = any(isinstance(x, (ast.Starred, ast.Tuple, ast.List)) for x in targets)
            if len(targets) == len(values) and not nested and not any(isinstance(x, ast.Starred) for x in values):
                return self.pairwise(targets, [self.expr(x) for x in values])
        value, made = self.expr(node.value), []
        if several:  # the value is computed once
            made, value = self.stored(ast.Name("<value>", ast.Store()), value), self.scope["<value>"]
            value = Value(name("<value>"), value.type, value.bounds, value.known, value.literal)
        for target in node.targets: made += self.stored(target, value)
        return made

    def pairwise(self, targets, values):
        "`a, b = x, y`"
        nodes = [self.taken(target, value) for target, value in zip(targets, values)]
        return [ast.Assign([ast.Tuple([x for x, _ in nodes], ast.Store())], ast.Tuple([x for _, x in nodes], ast.Load()))]

    def stored(self, target, value, inside=""):
        "Statements that assign a value; a target inside another one has items of its own."
        if isinstance(target, ast.Subscript) and isinstance(value.type, Tuple):
            base = self.expr(target.value)
            part = self.element(base.type, self.index(target.slice, base.type), base.node).type if isinstance(base.type, Array) else None
            if isinstance(part, Array) and part.ndim == 1 and all(map(is_number, value.type.items)):
                part = ast.copy_location(ast.Subscript(target.value, target.slice, ast.Load()), target)
                items = [ast.copy_location(ast.Subscript(part, ast.copy_location(constant(i), target), ast.Store()), target)
                         for i in range(len(value.type.items))]
                return self.stored(ast.copy_location(ast.Tuple(items, ast.Store()), target), value, inside)
        if isinstance(value.type, Record) and isinstance(target, ast.Subscript):
            base = self.expr(target.value)
            if isinstance(base.type, Array) and base.type.dtype == value.type:
                return [ast.Expr(call("copy", base.node, self.index(target.slice, base.type).node, value.node))]
        if not isinstance(target, (ast.Tuple, ast.List)): return [ast.Assign([x], y) for x, y in [self.taken(target, value)]]
        if any(isinstance(x, ast.Starred) for x in target.elts): self.refuse("a starred target: the compiler has none")
        items = value.type.items if isinstance(value.type, Tuple) else (None,) * len(target.elts)
        if len(items) != len(target.elts): self.refuse(f"{len(items)} values for {len(target.elts)} variables")
        names = [f"<item {inside}{i}>" for i in range(len(items))]
        made = [ast.Assign([ast.Tuple([ast.Name(x, ast.Store()) for x in names], ast.Store())], value.node)]
        for i, (x, kind) in enumerate(zip(target.elts, items)):
            made += self.stored(x, unboxed(name(names[i]), kind), f"{inside}{i}.")
        return made

    def taken(self, target, value):
        "A target other than a tuple, and the node that it takes."
        if isinstance(target, ast.Name): return target, self.kept(target.id, value)
        base = self.expr(target.value)
        field = target.attr if isinstance(target, ast.Attribute) else getattr(target.slice, "value", None)
        if isinstance(base.type, Record) and isinstance(field, str):
            taken = self.field(base, field)
            if isinstance(taken.type, Array): self.refuse(f"the field {field} is a whole array: set its elements one by one")
            if value.type in COMPLEX and is_scalar(taken.type): self.refuse("a real field is set to a complex number: write .real")
            place = taken.node if isinstance(taken.node, ast.Subscript) else taken.node.args[0]  # int(…) around it
            place.ctx = ast.Store()
            return ast.copy_location(place, target), converted(value, taken.type) if is_scalar(value.type) else boxed(value)
        if not isinstance(target, ast.Subscript): self.refuse("an attribute is set: the compiler cannot")
        index = self.index(target.slice, base.type)
        place = ast.copy_location(ast.Subscript(base.node, index.node, ast.Store()), target)
        if isinstance(base.type, Tuple): self.refuse("an item of a tuple is set: a tuple cannot change")
        if not isinstance(base.type, Array): return place, boxed(value)
        if base.type.frozen:
            self.refuse("an array of the module is written: for the compiler it is a constant; pass it as an argument")
        element = self.element(base.type, index, target).type
        if isinstance(element, Record): self.refuse("a whole element with fields is set: x[i] = y[j], or field by field")
        if value.type in COMPLEX and (is_scalar(element) or isinstance(element, Array) and is_scalar(element.dtype)):
            self.refuse("a real element is set to a complex number: write .real")
        if element in COMPLEX and is_scalar(value.type): return place, converted(value, element)
        if is_scalar(element) and value.type == NONE: self.refuse("an element is set to None")
        if is_scalar(element) and isinstance(value.type, (Tuple, Array)): self.refuse("an element takes one number")
        whole = is_scalar(element) and is_scalar(value.type) and (is_integer(element) or is_integer(value.type))
        return place, converted(value, element) if whole else boxed(value)

    def do_AugAssign(self, node):
        operator, value = type(node.op).__name__, self.expr(node.value)
        if isinstance(node.target, ast.Name):
            old = self.expr(ast.copy_location(ast.Name(node.target.id, ast.Load()), node))
            if isinstance(old.type, Tuple): self.refuse(f"{operator} in place of a tuple: the compiler has none; write x = x + y")
            return self.stored(node.target, self.apply(operator, old, value))
        base = self.expr(node.target.value)
        if isinstance(base.type, Record) or isinstance(node.target, ast.Attribute):
            old = ast.copy_location((ast.Attribute if isinstance(node.target, ast.Attribute) else ast.Subscript)(
                node.target.value, node.target.attr if isinstance(node.target, ast.Attribute) else node.target.slice, ast.Load()), node)
            return self.stored(node.target, self.apply(operator, self.expr(old), value))
        index = self.index(node.target.slice, base.type)
        place = ast.copy_location(ast.Subscript(base.node, index.node, ast.Store()), node.target)
        kind = self.element(base.type, index, place).type if isinstance(base.type, Array) else None
        floats = kind in FLOATS and value.type in FLOATS and operator != "Pow"
        if floats and unified(kind, value.type) == kind and not base.type.frozen:
            return [ast.AugAssign(place, node.op, value.node)]
        made = [assign("<index>", index.node), assign("<more>", boxed(value))]
        at = ast.copy_location(ast.Subscript(node.target.value, ast.copy_location(name("<index>"), node), ast.Load()), node)
        self.local |= {"<index>", "<more>"}
        self.scope |= {"<index>": Value(None, index.type), "<more>": Value(None, None)}
        more = unboxed(name("<more>"), value.type) if is_scalar(value.type) else Value(name("<more>"), value.type)
        return made + self.stored(at, self.apply(operator, self.expr(at), more))

    def do_If(self, node):
        test = self.expr(node.test)
        if test.known is not UNKNOWN: return self.block(node.body if test.known else node.orelse) or [ast.Pass()]
        start = dict(self.scope)
        body, after_body = self.block(node.body), self.scope
        self.scope = start
        orelse, after_orelse = self.block(node.orelse), self.scope
        self.scope = joined(after_body, after_orelse)
        if self.scope is not None:
            body, orelse = body + conversions(after_body, self.scope), orelse + conversions(after_orelse, self.scope)
        return [ast.If(self.truth(test), body or [ast.Pass()], orelse)]

    def do_Match(self, node):
        "As the compiler reads it: a chain of comparisons with numbers."
        subject = ast.copy_location(name("<subject>"), node)
        made, orelse = self.stored(ast.copy_location(ast.Name("<subject>", ast.Store()), node), self.expr(node.subject)), []
        self.local.add("<subject>")
        for case in reversed(node.cases):
            pattern, before, test = case.pattern, [], case.guard
            if isinstance(pattern, ast.MatchValue):
                equal = ast.Compare(subject, [ast.Eq()], [pattern.value])
                test = ast.BoolOp(ast.And(), [equal, test]) if test else equal
            elif isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
                if pattern.name: before = [ast.Assign([ast.Name(pattern.name, ast.Store())], subject)]
            else: self.refuse("match with a pattern other than a number or a name: write if and elif")
            orelse = before + [ast.If(test, case.body, orelse)] if test else before + case.body
            for x in orelse: ast.fix_missing_locations(ast.copy_location(x, node))
        return made + self.block(orelse)

    def loop(self, make, orelse, endless=False):
        """The statements of a loop; `make` types one round, and returns a function of its statements and
        of those of `else` that makes the loop. The types at its head are found by trying: a variable that
        a round changes has there what both ways unify to."""
        entry, outside = self.scope, self.exits
        head = dict(entry)
        while True:
            self.exits = {ast.Break: [], ast.Continue: []}
            self.scope = dict(head)
            loop, body, at_test = make()
            ends = [self.scope, *(scope for scope, _ in self.exits[ast.Continue])]
            new = reduce(joined, ends, head)
            if all(x in head and new[x].type == head[x].type and self._within(new[x], head[x]) for x in new): break
            head = {x: v if x in head and head[x].type == v.type and self._within(v, head[x]) else
                    Value(None, v.type, None, v.known if x in head and head[x].known is v.known else UNKNOWN, sure=v.sure) for x, v in new.items()}
        body = body + conversions(self.scope, head)
        for scope, hole in self.exits[ast.Continue]: hole[:] = conversions(scope, head) + hole
        breaks, self.exits = self.exits[ast.Break], outside
        self.scope = None if endless else dict(at_test)
        last = self.block(orelse) if not endless else []
        normal, self.scope = self.scope, reduce(joined, [scope for scope, _ in breaks], self.scope)
        for scope, hole in breaks: hole[:] = conversions(scope, self.scope) + hole
        last = last + conversions(normal, self.scope or {})
        return [x for x in conversions(entry, head)] + [loop(body or [ast.Pass()], last)]

    @staticmethod
    def _within(new, old):
        inside = not new.bounds or old.bounds and old.bounds[0] <= new.bounds[0] and new.bounds[1] <= old.bounds[1]
        return inside and (new.known is old.known or old.known is UNKNOWN)

    def leave(self, node):
        hole = [node]
        self.exits[type(node)].append((self.scope, hole))
        self.scope = None
        return [ast.If(constant(True), hole, [])]
    do_Break = do_Continue = leave

    def do_While(self, node):
        def make():
            test = self.expr(node.test)
            at_test = dict(self.scope)
            body = self.block(node.body)
            return lambda body, last: ast.While(self.truth(test), body, last), body, at_test
        return self.loop(make, node.orelse, endless=isinstance(node.test, ast.Constant) and bool(node.test.value))

    def do_For(self, node):
        taken = self.iterated(node.iter)
        def make():
            at_test = dict(self.scope)
            if isinstance(node.target, ast.Name):
                self.scope[node.target.id] = Value(None, taken.type, taken.bounds)
                target, first = node.target, []
                if taken.known is True: first = [assign(node.target.id, unboxed(name(node.target.id), taken.type).node)]
            else:
                target = ast.Name("<taken>", ast.Store())
                first = self.stored(node.target, Value(name("<taken>"), taken.type))
            body = first + self.block(node.body)
            return lambda body, last: ast.For(target, taken.node, body, last), body, at_test
        return self.loop(make, node.orelse)

    def iterated(self, node):
        "What a `for` goes over, with the type of what it takes from there; known: does that have to be unboxed?"
        if isinstance(node, ast.Call) and (callee := self.expr(node.func)).known is range:
            if node.keywords: self.refuse("range takes no names of arguments in a kernel")
            return self.ranged(ast.copy_location(ast.Call(callee.node, [], []), node), [self.expr(x) for x in self.spread(node.args)])
        if isinstance(node, ast.List): node = ast.copy_location(ast.Tuple(node.elts, ast.Load()), node)
        value = self.expr(node)
        if isinstance(value.type, Known) or isinstance(value.known, (str, bytes)) or is_number(value.type):
            self.refuse(f"for goes over {ast.unparse(node)}: the compiler has no such loop")
        if isinstance(value.type, Tuple) and len(set(value.type.items)) > 1 and all(map(is_number, value.type.items)):
            self.refuse("for goes over a tuple of several types: the compiler takes one type")
        if isinstance(value.type, Array) and value.type.ndim == 1 and isinstance(value.type.dtype, Record):
            return Value(call("records", value.node), value.type.dtype)
        if isinstance(value.type, Array) and value.type.ndim == 1 and is_number(value.type.dtype):
            return Value(value.node, value.type.dtype, known=value.type.dtype in INTEGERS)
        if isinstance(value.type, Tuple) and len(set(value.type.items)) == 1:
            return Value(value.node, value.type.items[0], known=value.type.items[0] in INTEGERS)
        return Value(boxed(value))

    def ranged(self, plain, limits):
        "A `range`, with the type of its numbers. A limit that is a float loses what follows the point, as when compiled."
        if not 1 <= len(limits) <= 3: self.refuse(f"range takes one to three numbers, and {len(limits)} were given")
        if any(v.type is not None and not is_scalar(v.type) for v in limits): self.refuse("range takes integers")
        limits = [Value(converted(v, "int64"), "int64") if v.type in FLOATS else v for v in limits]
        if not all(is_integer(v.type) for v in limits):
            return Value(ast.Call(plain.func, [ast.copy_location(call("unboxed", boxed(v)), plain.func) for v in limits], []), None)
        kinds = {v.type for v in limits}
        kind = "uint64" if all(map(is_unsigned, kinds)) else "int32" if kinds <= {"int8", "int16", "int32", "bool"} else "int64"
        low = 0 if len(limits) == 1 else limits[0].bounds[0]
        high = limits[min(len(limits), 2) - 1].bounds[1]
        step = limits[2].bounds if len(limits) > 2 else (1, 1)
        low = max(INTEGERS[kind][0], min(low, limits[1].bounds[0]) if step[0] < 0 else low)
        high = min(INTEGERS[kind][1], max(high, limits[0].bounds[1]) if step[0] < 0 else high)
        return Value(ast.Call(plain.func, [fitted(v) for v in limits], []), kind, (low, high) if low <= high else None)


# A kernel is typed once for each list of argument types, and kept. Names that it uses have then the values
# of that moment, as in a compiled kernel.

@lru_cache(50)
def _functions(filename, text):
    "The functions of a file, by the line at which each begins."
    found = {}
    for node in ast.walk(parsed(text)):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            first = min([node.lineno, *(x.lineno for x in getattr(node, "decorator_list", ()))])
            found.setdefault(first, []).append(node)
    return found

@lru_cache(50)
def _compiled(filename, text):
    "The code of a file's functions, by name and first line."
    found, open_ = {}, [compile(text, filename, "exec", dont_inherit=True)]
    while open_:
        code = open_.pop()
        found.setdefault((code.co_name, code.co_firstlineno), []).append(code)
        open_ += [x for x in code.co_consts if inspect.iscode(x)]
    return found

def _source(fn):
    "The text of the file that a function comes from; \"\" where that is another by now, as far as this function goes."
    code = fn.__code__
    for _ in range(2):
        text = "".join(linecache.getlines(code.co_filename, fn.__globals__))
        if not os.path.exists(code.co_filename): return text  # a cell of a notebook
        with suppress(SyntaxError):
            for made in _compiled(code.co_filename, text).get((code.co_name, code.co_firstlineno), ()):
                if (made.co_code, made.co_names, made.co_varnames) == (code.co_code, code.co_names, code.co_varnames) and (
                        [repr(x) for x in made.co_consts if not inspect.iscode(x)]
                        == [repr(x) for x in code.co_consts if not inspect.iscode(x)]): return text
        linecache.checkcache(code.co_filename)  # it was read before it was edited
    return ""

def source_tree(fn):
    "The syntax tree of a function; `None` where its source is not to be had, or is another by now."
    code = fn.__code__
    if code in TREES: return TREES[code].body
    try: found = _functions(code.co_filename, _source(fn))
    except SyntaxError: return None
    for node in found.get(code.co_firstlineno, ()):
        body = node.body if isinstance(node, ast.FunctionDef) else [ast.copy_location(ast.Return(node.body), node.body)]
        if _parameters(node) == code.co_varnames[:len(_parameters(node))] and getattr(node, "name", "<lambda>") == code.co_name:
            return body

def _parameters(node):
    return tuple(x.arg for x in node.args.posonlyargs + node.args.args)


@lru_cache(2000)
def _typed(fn, code, kinds):
    if fn.__code__.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS): return fn, None
    body, variables = source_tree(fn), ()
    if body is None: body, variables = bytecode_tree(fn)
    parameters, result, seen = code.co_varnames[:code.co_argcount], None, set()
    while True:  # until the type of the result is known
        typing = Statements(fn, kinds)
        typing.local.update(variables)
        typing.scope = {x: Value(None, kind, known=kind.value if isinstance(kind, Known) else UNKNOWN) for x, kind in zip(parameters, kinds)}
        typing.result, typing.returned = result, []
        made = typing.block(body)
        returned = typing.returned + ([NONE] if typing.scope is not None else [])
        found = reduce(unified, returned) if returned else NONE
        if found == result or result in seen or found not in NARROW and set(returned) <= {found}: break
        seen.add(result)
        result = found
    made = function(fn.__name__, parameters, made or [ast.Pass()], typing.namespace, code)
    made.read = typing.read
    _made.setdefault(fn, {})[kinds] = made
    return made, found

_made = WeakKeyDictionary()  # function of a kernel → types of its arguments → what was made for them

def forget():
    "Type kernels anew: a name that they use means something else now."
    _typed.cache_clear()
    _made.clear()

def typed(
    fn,     # function of a kernel, or of a device function
    kinds,  # types of its arguments, see `type_of`
):          # the same function with operators that compute in the compiler's types; the type of its result
    "A kernel's function for arguments of certain types."
    return _typed(fn, fn.__code__, kinds)


def _now(fn, name):
    "What a name from outside of a function means now."
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or ()))
    try: return cells[name].cell_contents if name in cells else fn.__globals__.get(name)
    except ValueError: return None

def _same(one, other):
    if isinstance(one, np.ndarray): return np.shape(one) == np.shape(other) and one.tobytes() == np.asarray(other, one.dtype).tobytes()
    return one is other or type(one) is type(other) and bool(one == other) or one != one

def changed(
    made,  # what `typed` made
):         # a sentence for each
    "Names from outside whose values have changed since a kernel was typed. As when compiled, it keeps the old ones."
    for (fn, name), was in made.read.items():
        if _same(was, now := _now(fn, name)): continue
        keeps, again = "and a compiled kernel keeps what it read", "decorate it again"
        if isinstance(was, FakeCUDAKernel): yield f"{fn.__name__} was compiled with an earlier {name}, {keeps}; {again}"
        elif isinstance(was, np.ndarray):
            yield f"{fn.__name__} was compiled with {name} of other numbers than it has now, {keeps}; {again}, or pass it as an argument"
        else: yield f"{fn.__name__} was compiled with {name} = {was!r}: it is {now!r} now, {keeps}; {again}, or pass it as an argument"

def as_frozen(
    fn,     # function of a kernel
    kinds,  # types of its arguments, see `type_of`
):          # itself, or one with the same code
    "A function with the values from outside that it and the device functions it calls were typed with, if it was."
    found = _made.get(fn, {})
    made = found.get(kinds) or next(iter(found.values()), None)
    return _frozen(fn, made.read) if made else fn

def _frozen(fn, read):
    old = {}
    for (of, name), was in read.items():
        if of is not fn: continue
        if isinstance(was, FakeCUDAKernel) and (callee := _frozen(was.fn, read)) is not was.fn:
            was = copy(was)
            was.fn = callee
        if not _same(was, _now(fn, name)): old[name] = was
    if not old: return fn
    cells = tuple(CellType(old[x]) if x in old else cell for x, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()))
    return FunctionType(fn.__code__, fn.__globals__ | old, fn.__name__, fn.__defaults__, cells)


def run_typed(fn, *args):
    "Call a kernel's function with arguments that tell their types."
    made, result = typed(fn, tuple(map(type_of, args)))
    value = made(*map(unboxed_value, args))
    return getattr(np, result)(value) if result in NARROW else value
