"""The statements of a kernel, in the compiler's types.

Where two paths through a kernel meet, a variable has one type: an `int64` on one path and a `float32` on the
other make it a `float64`, converted on both paths, as in the compiler. Reading a variable that has a value on
only one path is an error if the other path was taken.
"""
import ast
from dataclasses import replace
from functools import reduce

from .calls import Calls
from .operators import (UNKNOWN, Value, assign, boxed, call, constant, converted, fitted, name, subscript,
                        unboxed)
from .types import (COMPLEX, FLOATS, INTEGERS, NONE, Array, Known, Record, Tuple, is_integer, is_number,
                    is_scalar, is_unsigned, unified)


def joined(a, b):
    "What is known about variables where two paths meet. `None` is a path that never gets there."
    if a is None or b is None: return b if a is None else a
    return {x: _either(a.get(x), b.get(x)) for x in {**a, **b} if x[0] != "<"}

def _either(a, b):
    if a is None or b is None: return replace(b if a is None else a, sure=False)
    kind, bounds, known = unified(a.type, b.type), None, UNKNOWN
    if kind == a.type == b.type:
        if a.bounds and b.bounds:
            bounds = min(a.bounds[0], b.bounds[0]), max(a.bounds[1], b.bounds[1])
        if a.known is b.known: known = a.known
    return Value(None, kind, bounds, known, a.literal and b.literal and known is not UNKNOWN,
                 a.sure and b.sure)

def conversions(before, after):
    "Statements that convert variables to their types after the paths meet."
    if before is None: return []
    return [_conversion(x, before[x], after[x].type) for x in before
            if x in after and before[x].type != after[x].type]

def _conversion(text, value, kind):
    here = Value(name(text), value.type, value.bounds)
    made = assign(text, converted(here, kind) if is_scalar(kind) else boxed(here))
    if value.sure: return made
    return ast.Try([made], [ast.ExceptHandler(name("UnboundLocalError"), None, [ast.Pass()])], [], [])


# Statements the compiler doesn't support → what to call them
REFUSED = {"Try": "try", "TryStar": "try", "With": "with", "ClassDef": "a class", "Import": "import",
           "Delete": "del", "ImportFrom": "import", "Nonlocal": "nonlocal"}


class Statements(Calls):
    "Types statements. One method per kind, called `do_…`, returns the statements that replace it."
    exits = result = None  # the exits of the innermost loop; the return type

    def block(self, nodes):
        out = []
        for node in nodes:
            if self.scope is None: break  # code after a return, break or continue is unreachable
            out += self.statement(node)
        return out

    def statement(self, node):
        self.line = node.lineno
        made = getattr(self, f"do_{type(node).__name__}", self.do_other)(node)
        for x in made: ast.copy_location(x, node)
        return made

    def do_other(self, node):
        kind = type(node).__name__
        self.refuse(f"{REFUSED.get(kind, kind)} in a kernel: the compiler doesn't support it")

    def do_Pass(self, node): return [node]
    def do_AsyncFunctionDef(self, node): return [ast.Pass()]
    def do_FunctionDef(self, node):
        self.scope[node.name] = Value(None)
        return [node]
    def do_Raise(self, node):
        given = [*node.exc.args, *node.exc.keywords] if isinstance(node.exc, ast.Call) else []
        if any(not isinstance(x, ast.Constant) for x in given):
            self.refuse("an exception with a computed value: the compiler only takes constants")
        if node.cause: self.refuse("raise … from: the compiler doesn't support it")
        self.scope = None
        return [node]
    def do_Assert(self, node):
        if node.msg and not isinstance(node.msg, ast.Constant):
            self.refuse("a computed message: the compiler only takes a constant string")
        return [ast.Assert(self.truth(self.expr(node.test)), node.msg)]
    def do_Global(self, node):
        self.globals |= set(node.names)
        return []
    def do_Expr(self, node): return [ast.Expr(self.expr(node.value).node)]

    def do_Return(self, node):
        value = self.expr(node.value) if node.value else Value(constant(None), NONE, known=None)
        self.returned.append(value.type)
        self.scope = None
        return [ast.Return(self.as_type(value, self.result))]

    # Assignments

    def do_AnnAssign(self, node):
        return self.stored(node.target, self.expr(node.value)) if node.value else []

    def do_Assign(self, node):
        first, several = node.targets[0], len(node.targets) > 1
        # a, b = x, y: without a tuple in between, if each part is simple
        if isinstance(node.value, ast.Tuple) and isinstance(first, ast.Tuple) and not several:
            targets, values = first.elts, node.value.elts
            nested = any(isinstance(x, (ast.Starred, ast.Tuple, ast.List)) for x in targets)
            starred = any(isinstance(x, ast.Starred) for x in values)
            if len(targets) == len(values) and not nested and not starred:
                values = [self.expr(x) for x in values]
                pairs = [self.taken(target, value) for target, value in zip(targets, values)]
                return [ast.Assign([ast.Tuple([place for place, _ in pairs], ast.Store())],
                                   ast.Tuple([taken for _, taken in pairs], ast.Load()))]
        value, made = self.expr(node.value), []
        if several:  # compute the value once
            made, value = self.stored(ast.Name("<value>", ast.Store()), value), self.scope["<value>"]
            value = replace(value, node=name("<value>"))
        for target in node.targets: made += self.stored(target, value)
        return made

    def stored(self, target, value, inside=""):
        "Statements that assign a value. `inside` numbers a target nested in another."
        if isinstance(target, ast.Subscript) and isinstance(value.type, (Tuple, Record)):
            base = self.expr(target.value)
            kind = base.type if isinstance(base.type, Array) else None
            if kind and isinstance(value.type, Tuple):  # a row is assigned from a tuple number by number
                part = self.element(kind, self.index(target.slice, kind), base.node).type
                if isinstance(part, Array) and part.ndim == 1 and all(map(is_number, value.type.items)):
                    row = subscript(target.value, target.slice, target)
                    items = [subscript(row, ast.copy_location(constant(i), target), target, ast.Store())
                             for i in range(len(value.type.items))]
                    target = ast.copy_location(ast.Tuple(items, ast.Store()), target)
            elif kind and kind.dtype == value.type:  # an element with fields is copied
                return [ast.Expr(call("copy", base.node, self.index(target.slice, kind).node, value.node))]
        if not isinstance(target, (ast.Tuple, ast.List)):
            place, node = self.taken(target, value)
            return [ast.Assign([place], node)]
        # several targets: name the value's items first
        if any(isinstance(x, ast.Starred) for x in target.elts):
            self.refuse("a starred target: the compiler doesn't support it")
        items = value.type.items if isinstance(value.type, Tuple) else (None,) * len(target.elts)
        if len(items) != len(target.elts):
            self.refuse(f"{len(items)} values for {len(target.elts)} variables")
        names = [f"<item {inside}{i}>" for i in range(len(items))]
        made = [ast.Assign([ast.Tuple([ast.Name(x, ast.Store()) for x in names], ast.Store())], value.node)]
        for i, (x, kind) in enumerate(zip(target.elts, items)):
            made += self.stored(x, unboxed(name(names[i]), kind), f"{inside}{i}.")
        return made

    def taken(self, target, value):
        "A target other than a tuple, and the node assigned to it."
        if isinstance(target, ast.Name): return target, self.kept(target.id, value)
        # a field of an element
        base = self.expr(target.value)
        field = target.attr if isinstance(target, ast.Attribute) else getattr(target.slice, "value", None)
        if isinstance(base.type, Record) and isinstance(field, str):
            taken = self.field(base, field)
            if isinstance(taken.type, Array):
                self.refuse(f"the field {field} is a whole array: assign its elements one by one")
            if value.type in COMPLEX and is_scalar(taken.type):
                self.refuse("a complex number is assigned to a real field: write .real")
            # int(…) around it
            place = taken.node if isinstance(taken.node, ast.Subscript) else taken.node.args[0]
            place.ctx = ast.Store()
            node = converted(value, taken.type) if is_scalar(value.type) else boxed(value)
            return ast.copy_location(place, target), node
        if not isinstance(target, ast.Subscript):
            self.refuse("an attribute is assigned: the compiler doesn't support it")
        # an element of an array
        index = self.index(target.slice, base.type)
        place = subscript(base.node, index.node, target, ast.Store())
        if isinstance(base.type, Tuple):
            self.refuse("an item of a tuple is assigned: tuples are immutable")
        if not isinstance(base.type, Array): return place, boxed(value)
        self.writable(base.type)
        element = self.element(base.type, index, target).type
        if isinstance(element, Record):
            self.refuse("an element with fields is assigned: write x[i] = y[j], or assign field by field")
        if value.type in COMPLEX and is_scalar(element.dtype if isinstance(element, Array) else element):
            self.refuse("a complex number is assigned to a real element: write .real")
        if is_scalar(element):
            if value.type == NONE: self.refuse("None is assigned to an element")
            if isinstance(value.type, (Tuple, Array)): self.refuse("an element holds one number")
        # numpy converts floats as a GPU does; integers may have to be cut off or wrapped
        whole = is_scalar(element) and (is_integer(element) or is_integer(value.type))
        if is_scalar(value.type) and (whole or element in COMPLEX):
            return place, converted(value, element)
        return place, boxed(value)

    def do_AugAssign(self, node):
        operator, value, target = type(node.op).__name__, self.expr(node.value), node.target
        if isinstance(target, ast.Name):
            old = self.expr(ast.copy_location(ast.Name(target.id, ast.Load()), node))
            if isinstance(old.type, Tuple):
                self.refuse(f"{operator} in place on a tuple: unsupported by the compiler; write x = x + y")
            return self.stored(target, self.apply(operator, old, value))
        base = self.expr(target.value)
        if isinstance(base.type, Record) or isinstance(target, ast.Attribute):
            if isinstance(target, ast.Attribute):
                old = ast.Attribute(target.value, target.attr, ast.Load())
            else: old = ast.Subscript(target.value, target.slice, ast.Load())
            old = self.expr(ast.copy_location(old, node))
            return self.stored(target, self.apply(operator, old, value))
        index = self.index(target.slice, base.type)
        place = subscript(base.node, index.node, target, ast.Store())
        kind = self.element(base.type, index, place).type if isinstance(base.type, Array) else None
        # numpy adds floats in place as a GPU does
        floats = kind in FLOATS and value.type in FLOATS and operator != "Pow"
        if floats and unified(kind, value.type) == kind and not base.type.frozen:
            return [ast.AugAssign(place, node.op, value.node)]
        # compute the index and the value once
        made = [assign("<index>", index.node), assign("<more>", boxed(value))]
        at = subscript(target.value, ast.copy_location(name("<index>"), node), node)
        self.local |= {"<index>", "<more>"}
        self.scope |= {"<index>": Value(None, index.type), "<more>": Value(None, None)}
        more = name("<more>")
        more = unboxed(more, value.type) if is_scalar(value.type) else Value(more, value.type)
        return made + self.stored(at, self.apply(operator, self.expr(at), more))

    # Branches

    def do_If(self, node):
        test = self.expr(node.test)
        if test.known is not UNKNOWN:
            return self.block(node.body if test.known else node.orelse) or [ast.Pass()]
        # both branches start with what is known here
        start = dict(self.scope)
        body, after_body = self.block(node.body), self.scope
        self.scope = start
        orelse, after_orelse = self.block(node.orelse), self.scope
        self.scope = joined(after_body, after_orelse)
        if self.scope is not None:
            body += conversions(after_body, self.scope)
            orelse += conversions(after_orelse, self.scope)
        return [ast.If(self.truth(test), body or [ast.Pass()], orelse)]

    def do_Match(self, node):
        "As in the compiler: a chain of comparisons with numbers."
        subject = ast.copy_location(name("<subject>"), node)
        place = ast.copy_location(ast.Name("<subject>", ast.Store()), node)
        made, orelse = self.stored(place, self.expr(node.subject)), []
        self.local.add("<subject>")
        # from the last case on, each is the `else` of the one before
        for case in reversed(node.cases):
            pattern, before, test = case.pattern, [], case.guard
            if isinstance(pattern, ast.MatchValue):
                equal = ast.Compare(subject, [ast.Eq()], [pattern.value])
                test = ast.BoolOp(ast.And(), [equal, test]) if test else equal
            elif isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
                if pattern.name:
                    before = [ast.Assign([ast.Name(pattern.name, ast.Store())], subject)]
            else:
                self.refuse("match on anything but a number or a name: write if and elif")
            orelse = before + [ast.If(test, case.body, orelse)] if test else before + case.body
            for x in orelse: ast.fix_missing_locations(ast.copy_location(x, node))
        return made + self.block(orelse)

    # Loops. The types at the head of a loop are found by iteration: a round may change them, and then the
    # loop is typed again.

    def loop(self, make, orelse, endless=False):
        """The statements of a loop. `make` types one round; it returns a function that builds the loop from
        its statements and those of `else`, the statements, and what is known where the loop ends."""
        # type rounds until one leaves the head as it was
        entry, outside = self.scope, self.exits
        head = dict(entry)
        while True:
            self.exits = {ast.Break: [], ast.Continue: []}
            self.scope = dict(head)
            loop, body, at_test = make()
            ends = [self.scope, *(scope for scope, _ in self.exits[ast.Continue])]
            new = reduce(joined, ends, head)
            if all(self._holds(x, new, head) for x in new): break
            # whatever a round changed has no bounds at the head
            head = {x: v if self._holds(x, new, head) else
                    Value(None, v.type, None, v.known if x in head and head[x].known is v.known else UNKNOWN,
                          sure=v.sure) for x, v in new.items()}
        # every path back to the head ends with its types
        body = body + conversions(self.scope, head)
        for scope, hole in self.exits[ast.Continue]: hole[:] = conversions(scope, head) + hole
        breaks, self.exits = self.exits[ast.Break], outside
        # every exit ends with the types after the loop
        self.scope = None if endless else dict(at_test)
        last = self.block(orelse) if not endless else []
        normal, self.scope = self.scope, reduce(joined, [scope for scope, _ in breaks], self.scope)
        for scope, hole in breaks: hole[:] = conversions(scope, self.scope) + hole
        last = last + conversions(normal, self.scope or {})
        return [*conversions(entry, head), loop(body or [ast.Pass()], last)]

    @staticmethod
    def _holds(x, new, head):
        "Is what the head knows about a variable still true after a round?"
        if x not in head or new[x].type != head[x].type: return False
        value, old = new[x], head[x]
        inside = not value.bounds or (old.bounds and old.bounds[0] <= value.bounds[0]
                                      and value.bounds[1] <= old.bounds[1])
        return inside and (value.known is old.known or old.known is UNKNOWN)

    def leave(self, node):
        hole = [node]  # conversions are inserted once the types outside are known
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
        return self.loop(make, node.orelse,
                         endless=isinstance(node.test, ast.Constant) and bool(node.test.value))

    def do_For(self, node):
        taken = self.iterated(node.iter)
        def make():
            at_test = dict(self.scope)
            # an integer from an array or a tuple is a numpy integer, and becomes a Python one
            if isinstance(node.target, ast.Name):
                text = node.target.id
                self.scope[text] = Value(None, taken.type, taken.bounds)
                target, first = node.target, []
                if taken.known is True: first = [assign(text, unboxed(name(text), taken.type).node)]
            else:
                target = ast.Name("<taken>", ast.Store())
                first = self.stored(node.target, Value(name("<taken>"), taken.type))
            body = first + self.block(node.body)
            return lambda body, last: ast.For(target, taken.node, body, last), body, at_test
        return self.loop(make, node.orelse)

    def iterated(self, node):
        "What a `for` iterates over, with the item type. known: must items be unboxed?"
        if isinstance(node, ast.Call) and (callee := self.expr(node.func)).known is range:
            if node.keywords: self.refuse("range doesn't take keyword arguments in a kernel")
            plain = ast.copy_location(ast.Call(callee.node, [], []), node)
            return self.ranged(plain, [self.expr(x) for x in self.spread(node.args)])
        if isinstance(node, ast.List):
            node = ast.copy_location(ast.Tuple(node.elts, ast.Load()), node)
        value = self.expr(node)
        kind = value.type
        if is_number(kind):
            self.refuse(f"{ast.unparse(node)} is a number: loop over range({ast.unparse(node)})")
        if isinstance(kind, Known) or isinstance(value.known, (str, bytes)):
            self.refuse(f"a for loop over {ast.unparse(node)}: the compiler doesn't support it")
        # items of one known type
        item = None
        if isinstance(kind, Array) and kind.ndim == 1:
            if isinstance(kind.dtype, Record): return Value(call("records", value.node), kind.dtype)
            if is_number(kind.dtype): item = kind.dtype
        if isinstance(kind, Tuple):
            if len(set(kind.items)) > 1 and all(map(is_number, kind.items)):
                self.refuse("a for loop over a tuple of mixed types: the compiler needs a single type")
            if len(set(kind.items)) == 1: item = kind.items[0]
        return Value(boxed(value)) if item is None else Value(value.node, item, known=item in INTEGERS)

    def ranged(self, plain, limits):
        "A `range`, with the type of its numbers. Float limits are truncated, as in compiled code."
        if not 1 <= len(limits) <= 3:
            self.refuse(f"range takes one to three numbers, but got {len(limits)}")
        if any(v.type is not None and not is_scalar(v.type) for v in limits):
            self.refuse("range needs integers")
        limits = [Value(converted(v, "int64"), "int64") if v.type in FLOATS else v for v in limits]
        if not all(is_integer(v.type) for v in limits):
            given = [ast.copy_location(call("unboxed", boxed(v)), plain.func) for v in limits]
            return Value(ast.Call(plain.func, given, []), None)
        kinds, kind = {v.type for v in limits}, "int64"
        if all(map(is_unsigned, kinds)): kind = "uint64"
        elif kinds <= {"int8", "int16", "int32", "bool"}: kind = "int32"
        # its numbers lie between start and end, whichever is smaller
        low = 0 if len(limits) == 1 else limits[0].bounds[0]
        high = limits[min(len(limits), 2) - 1].bounds[1]
        step = limits[2].bounds if len(limits) > 2 else (1, 1)
        low = max(INTEGERS[kind][0], min(low, limits[1].bounds[0]) if step[0] < 0 else low)
        high = min(INTEGERS[kind][1], max(high, limits[0].bounds[1]) if step[0] < 0 else high)
        bounds = (low, high) if low <= high else None
        return Value(ast.Call(plain.func, [fitted(v) for v in limits], []), kind, bounds)
