"""Loops that are unrolled before a compiler sees them: `for i in static(n)`, in a function with `@unrolled`.

The idea comes from CuTe DSL's `range_constexpr`: in each copy of the body, `i` is a constant. An instruction
can use it where it needs a literal, a tuple can be indexed by it, and an `if` that depends on it keeps only
one branch.
"""
import ast
import builtins
import dis
import inspect
import linecache
import re
from types import CellType, CodeType, FunctionType

from .process import TREES
from .syntax import parsed

MOST_TURNS = 1024  # iterations; more than this is a mistake


def static(
    *limits,  # as for `range`: literals, variables of the enclosing function, and of static loops
):
    """The iterations of a static loop. It is only valid in `for i in static(…)`, in a function with
    `@unrolled`."""
    raise TypeError("static(…) only works in a loop, for i in static(n), in a function with @unrolled below "
                    "@cuda.jit")


def unrolled(
    fn,  # the function that `@cuda.jit` turns into a kernel or device function
):
    """The function with its static loops unrolled. Line numbers are preserved.

    Variables of the enclosing function are fixed here. Globals are fixed only when the kernel is compiled, so
    they can't be limits. Raises `TypeError` for a loop that can't be unrolled."""
    if not inspect.isfunction(fn):
        raise TypeError(f"@unrolled takes a function, not {fn!r}: put it below @cuda.jit")
    around = _variables_around(fn)
    tree = _definition(fn)
    if _outline(_compiled(tree, around, fn.__code__)) != _outline(fn.__code__):
        raise TypeError(f"the source of {fn.__name__} has changed since it was compiled: import it again")
    unroller = _Unroller(fn, around)
    tree = unroller.visit(tree)
    unroller.refuse_leftovers(tree)
    around |= unroller.picked
    code = _compiled(tree, around, fn.__code__)
    cells = tuple(CellType(around[x]) for x in code.co_freevars)
    made = FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, cells)
    for name in "__kwdefaults__", "__doc__", "__annotations__", "__module__", "__qualname__":
        setattr(made, name, getattr(fn, name))
    TREES[code] = tree
    return made


def _variables_around(fn):
    "The variables a function uses from its enclosing function, and their values."
    found = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
        try: found[name] = cell.cell_contents
        except ValueError:
            raise TypeError(f"{fn.__name__} uses {name}, which is only set further down") from None
    return found


def _definition(fn):
    "The syntax tree of a function, with the line and column numbers of its file."
    code = fn.__code__
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1:]
    if not lines:
        raise TypeError(f"unrolling the loops of {fn.__name__} needs its source, "
                        "which isn't in any file or cell")
    before = "if True:\n" if lines[0][0].isspace() else "\n"
    tree = parsed(before + "".join(inspect.getblock(lines)))
    found = next(x for x in ast.walk(tree) if isinstance(x, (ast.FunctionDef, ast.Lambda)))
    if isinstance(found, ast.Lambda): raise TypeError("@unrolled takes a function made by def, not a lambda")
    return ast.increment_lineno(found, code.co_firstlineno - 2)


def _compiled(tree, around, code):
    "The code of the function with this tree and these enclosing variables."
    outer = parsed(f"def around({', '.join(around)}): pass").body[0]
    outer.body = [tree]  # with its decorators: a function's lines are counted from the first one
    module = ast.fix_missing_locations(ast.Module([outer], []))
    made = compile(module, code.co_filename, "exec", dont_inherit=True)
    for name in "around", code.co_name:
        made = next(x for x in made.co_consts if isinstance(x, CodeType) and x.co_name == name)
    return made.replace(co_qualname=code.co_qualname)


def _outline(code):
    """What a code object computes with. (How it calls `cuda.syncthreads` depends on where `cuda` was
    imported.)"""
    kinds = "BINARY", "COMPARE", "UNARY", "STORE", "LOAD_CONST", "LOAD_DEREF", "LOAD_FAST"
    return [(x.opname, x.argrepr) for x in dis.get_instructions(code)
            if x.opname.startswith(kinds) and not isinstance(x.argval, CodeType)]


def _jumps(body):
    "The `break` and `continue` statements of the loop with this body."
    for node in body:
        if isinstance(node, (ast.Break, ast.Continue)): yield node
        elif isinstance(node, (ast.For, ast.While)): yield from _jumps(node.orelse)
        elif isinstance(node, ast.If): yield from _jumps(node.body + node.orelse)


_COMPUTED = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Subscript, ast.Slice,
             ast.Attribute, ast.Tuple, ast.Constant, ast.Name, ast.operator, ast.unaryop, ast.boolop,
             ast.cmpop, ast.expr_context)


class _Unroller:
    """Makes a new tree, with copies of the bodies in place of static loops, and values in place of
    expressions that depend on their variables."""
    def __init__(self, fn, around):
        self.fn, self.around = fn, around
        self.names, self.codes = {}, {}  # expression → names in it, `None` if it can't be decided; its code
        self.checked = set()             # static loops
        self.values = {}  # values of the variables of the static loops around a node
        self.loops = {}   # variable of a static loop → its line
        self.picked = {}  # new enclosing variables: what loops pick, as in `copies[i]`

    def refuse(self, node, why): raise TypeError(f"line {node.lineno} of {self.fn.__name__}: {why}")

    def is_static(self, node):
        "Is this the name `static`, under whatever name it was imported?"
        if not isinstance(node, ast.Name) or node.id in self.fn.__code__.co_varnames: return False
        return self.around.get(node.id, self.fn.__globals__.get(node.id)) is static

    def visit_For(self, node):
        if not (isinstance(node.iter, ast.Call) and self.is_static(node.iter.func)): return self.remade(node)
        if node not in self.checked: self.check_loop(node)
        self.checked.add(node)
        outside, copies = self.values, []
        for value in self.turns(node.iter):
            self.values = outside | {node.target.id: value}
            copies += self.visited(node.body)
        self.values = outside
        self.loops[node.target.id] = node.lineno
        return copies or ast.copy_location(ast.Pass(), node)

    def visited(self, value):
        "What replaces a part of a node: a node, a list, or anything else."
        if isinstance(value, ast.AST): return self.visit(value)
        if not isinstance(value, list): return value
        made = [self.visited(node) for node in value]
        return [x for one in made for x in (one if isinstance(one, list) else [one])]

    def remade(self, node, **parts):
        "A node once more, with some parts given and what replaces the others."
        if not node._fields: return node  # an operator
        made = type(node)()
        for name, value in vars(node).items(): setattr(made, name, parts.get(name) or self.visited(value))
        return made

    def check_loop(self, node):
        "Refuse a static loop whose meaning unrolling would change."
        if not isinstance(node.target, ast.Name): self.refuse(node, "a static loop has one variable")
        if node.orelse: self.refuse(node, "a static loop has no else")
        for jump in _jumps(node.body):
            self.refuse(jump, "a static loop can't contain break or continue: "
                              "put the rest of the body under an if")
        for x in (x for part in node.body for x in ast.walk(part)):
            if isinstance(x, ast.Name) and x.id == node.target.id and not isinstance(x.ctx, ast.Load):
                self.refuse(x, f"{x.id} is the loop variable and is assigned in the static loop")

    def turns(self, call):
        "The range of a static loop."
        def refuse(why): self.refuse(call, f"{ast.unparse(call)}: {why}")
        known = self.around | self.values
        for x in ast.walk(call):
            if not isinstance(x, ast.Name) or x is call.func or x.id in known: continue
            if x.id in self.fn.__code__.co_varnames:
                refuse(f"{x.id} is known only when {self.fn.__name__} runs: use range")
            if x.id in self.fn.__globals__ or not hasattr(builtins, x.id):
                refuse(f"{x.id} is a global, which is only fixed when a kernel is compiled: wrap "
                       f"{self.fn.__name__} in a function that takes {x.id} as a parameter")
        if call.keywords: refuse("static takes up to three numbers, as range does")
        try: turns = range(*map(self.evaluated, call.args))
        except Exception as e: refuse(e)
        if len(turns) > MOST_TURNS: refuse(f"{len(turns):,} iterations exceed {MOST_TURNS:,}: use range")
        return turns

    def evaluated(self, node):
        "The value of an expression. The copies of a loop's body share its code."
        if node not in self.codes:
            whole = ast.fix_missing_locations(ast.Expression(node))
            self.codes[node] = compile(whole, "<static>", "eval")
        return eval(self.codes[node], {}, self.around | self.values)

    def visit(self, node):
        "An expression that depends only on static loop variables and constants becomes its value."
        if not self.is_decided(node):
            return getattr(self, f"visit_{type(node).__name__}", self.remade)(node)
        try: value = self.evaluated(node)
        except Exception as e:
            turn = ", ".join(f"{name} = {value}" for name, value in self.values.items())
            self.refuse(node, f"{ast.unparse(node)} in a static loop, {turn}: {e}")
        if type(value) in (int, bool, float): return ast.copy_location(ast.Constant(value), node)
        return ast.copy_location(ast.Name(self.name_of(value, node), ast.Load()), node)

    def is_decided(self, node):
        "Is this a call-free expression of a static loop's variable and fixed values?"
        if not self.values or not isinstance(node, ast.expr) or isinstance(node, ast.Slice): return False
        if node not in self.names:
            parts = [*ast.walk(node)]
            loaded = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
            computed = loaded and all(isinstance(x, _COMPUTED) for x in parts)
            self.names[node] = {x.id for x in parts if isinstance(x, ast.Name)} if computed else None
        names = self.names[node]
        return bool(names) and not names.isdisjoint(self.values) and all(
            x in self.values or x in self.around for x in names)

    def name_of(self, value, node):
        "A new enclosing variable, for a value that has no literal form."
        taken = {*self.fn.__code__.co_varnames, *self.fn.__code__.co_names, *self.around}
        name = re.sub(r"\W+", "_", f"{ast.unparse(node)}_{'_'.join(map(str, self.values.values()))}")
        while name in taken or self.picked.get(name, value) is not value: name += "_"
        self.picked[name] = value
        return name

    def visit_If(self, node):
        test = self.decided(node.test)
        if not self.values or not isinstance(test, ast.Constant): return self.remade(node, test=test)
        return self.visited(node.body if test.value else node.orelse) or ast.copy_location(ast.Pass(), node)

    def visit_IfExp(self, node):
        test = self.decided(node.test)
        if not self.values or not isinstance(test, ast.Constant): return self.remade(node, test=test)
        return self.visit(node.body if test.value else node.orelse)

    def decided(self, test):
        "A condition without the already decided parts of an `and` or `or`."
        if not self.values: return self.visit(test)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            operand = self.decided(test.operand)
            if not isinstance(operand, ast.Constant): return self.remade(test, operand=operand)
            return ast.copy_location(ast.Constant(not operand.value), test)
        if not isinstance(test, ast.BoolOp): return self.visit(test)
        ends, left = isinstance(test.op, ast.Or), []  # the value of a part that decides the whole
        for part in map(self.decided, test.values):
            if not isinstance(part, ast.Constant): left.append(part)
            elif bool(part.value) == ends:
                left.append(part)
                break
        if not left: return ast.copy_location(ast.Constant(not ends), test)
        return left[0] if len(left) == 1 else ast.copy_location(ast.BoolOp(test.op, left), test)

    def refuse_leftovers(self, tree):
        "Refuse names that lost their meaning when the loops were unrolled."
        for x in ast.walk(tree):
            if not isinstance(x, ast.Name): continue
            if self.is_static(x): self.refuse(x, "static(…) only works in a loop, for i in static(n)")
            if x.id in self.loops:
                self.refuse(x, f"{x.id} is the variable of the static loop in line {self.loops[x.id]} and "
                               "can't be used for anything else")
