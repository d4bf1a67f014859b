"""A syntax tree for a function with no source.

A kernel made by `exec`, or typed at Python's own prompt, has no source to read. Numba's compiler reads
bytecode anyway, and its first step, which needs no types, turns it into blocks of simple statements. Here
they become Python statements in a loop that goes from block to block.
"""
import ast
import operator
from functools import cache

from .operators import NATIVE, assign, binary, call, constant, name
from .scheduler import SimulatorError


def _node(value, inlined):
    "A syntax tree for a value of Numba's intermediate representation. `None` if it isn't an expression."
    from numba.core import ir
    def var(x): return inlined.get(x.name) or name(x.name)
    if isinstance(value, ir.Var): return var(value)
    if isinstance(value, (ir.Global, ir.FreeVar)): return name(value.name)
    if isinstance(value, ir.Const): return constant(value.value)
    if not isinstance(value, ir.Expr): return None
    op = value.op
    if op in ("binop", "inplace_binop"):
        function = value.immutable_fn if op == "inplace_binop" else value.fn
        sign = SIGNS.get(function) or COMPARES[function]
        if issubclass(sign, ast.cmpop):
            return ast.Compare(var(value.lhs), [sign()], [var(value.rhs)])
        return binary(var(value.lhs), sign(), var(value.rhs))
    if op == "unary": return ast.UnaryOp(UNARY[value.fn](), var(value.value))
    if op in ("cast", "exhaust_iter"): return var(value.value)
    if op == "getattr": return ast.Attribute(var(value.value), value.attr, ast.Load())
    if op == "getitem": return ast.Subscript(var(value.value), var(value.index), ast.Load())
    # each loop step yields a pair: an item, and whether there was one
    if op in ("static_getitem", "pair_first", "pair_second"):
        at = value.index if op == "static_getitem" else op == "pair_second"
        return ast.Subscript(var(value.value), constant(int(at)), ast.Load())
    if op == "build_tuple": return ast.Tuple([var(x) for x in value.items], ast.Load())
    if op in ("getiter", "iternext"):
        return call("iter" if op == "getiter" else "next", var(value.value))
    if op == "call":
        function, args = var(value.func), [var(x) for x in value.args]
        if getattr(function, "id", "") == "slice":
            args = [None] + args if len(args) == 1 else args
            return ast.Slice(*(None if isinstance(x, ast.Constant) and x.value is None else x for x in args))
        if value.vararg is not None: args.append(ast.Starred(var(value.vararg), ast.Load()))
        return ast.Call(function, args, [ast.keyword(k, var(x)) for k, x in value.kws])
    # these are refused later, by name
    return {"build_list": ast.List([], ast.Load()), "build_map": ast.Dict([], []),
            "build_set": ast.Set([constant(0)])}.get(op)

SIGNS = {f: getattr(ast, x) for x, f in NATIVE.items() if x not in ("USub", "UAdd", "Invert")}
COMPARES = {operator.is_: ast.Is, operator.is_not: ast.IsNot, operator.contains: ast.In}
UNARY = {operator.neg: ast.USub, operator.pos: ast.UAdd, operator.invert: ast.Invert, operator.not_: ast.Not}

def _inlines(target, node):
    "Is this a compiler temporary whose value can be inlined?"
    kinds = ast.Constant, ast.Name, ast.Attribute, ast.Tuple, ast.Slice
    return target.startswith("$") and (isinstance(node, kinds)
                                       or getattr(getattr(node, "func", 0), "id", "") == "range")

def _interpreted(fn):
    "Numba's intermediate representation of a function."
    from numba.core import bytecode, interpreter
    identity = bytecode.FunctionIdentity.from_function(fn)
    return interpreter.Interpreter(identity).interpret(bytecode.ByteCode(func_id=identity))

@cache
def loses_a_value(fn):
    "Does Numba's IR use a variable that it never sets? That happens after some uses of `:=`."
    from numba.core import errors, ir
    try:
        blocks = _interpreted(fn).blocks
    except errors.NumbaError:
        return True
    statements = [x for block in blocks.values() for x in block.body]
    set_ = {x.target.name for x in statements if isinstance(x, ir.Assign)}
    return any(v.name not in set_ for x in statements if not isinstance(x, ir.Del) for v in x.list_vars())


def bytecode_tree(fn):
    "Statements equivalent to a function's bytecode, and the names of its variables."
    from numba.core import errors, ir
    from numba.core.ssa import reconstruct_ssa
    try:
        blocks = reconstruct_ssa(_interpreted(fn)).blocks
    except errors.NumbaError as e:
        raise SimulatorError(f"the compiler refuses {fn.__name__}: {str(e).splitlines()[0]}") from None
    # inlined values; statements by block; variables that depend on the previous block
    inlined, made, phis = {}, {}, {}
    for label, block in blocks.items():
        out = made[label] = []
        for x in block.body:
            before = len(out)
            if isinstance(x, ir.Assign):
                # a phi gets its value at the end of the preceding blocks
                if isinstance(x.value, ir.Expr) and x.value.op == "phi":
                    for at, old in zip(x.value.incoming_blocks, x.value.incoming_values):
                        if old is not ir.UNDEFINED and old.name != x.target.name:
                            phis.setdefault(at, []).append((x.target.name, old.name))
                elif isinstance(x.value, ir.Arg): pass
                elif (node := _node(x.value, inlined)) is None:
                    raise SimulatorError(f"{x.value} in a kernel: the compiler doesn't support it")
                elif _inlines(x.target.name, node): inlined[x.target.name] = node
                else: out.append(assign(x.target.name, node))
            elif isinstance(x, ir.SetItem):
                place = ast.Subscript(_node(x.target, inlined), _node(x.index, inlined), ast.Store())
                out.append(ast.Assign([place], _node(x.value, inlined)))
            elif isinstance(x, ir.Return): out.append(ast.Return(_node(x.value, inlined)))
            elif isinstance(x, ir.Jump): out.append(assign("block.", constant(x.target)))
            elif isinstance(x, ir.Branch):
                out.append(assign("block.",
                                  ast.IfExp(_node(x.cond, inlined), constant(x.truebr), constant(x.falsebr))))
            elif isinstance(x, (ir.Raise, ir.StaticRaise)):
                out.append(ast.Raise(name("RuntimeError")))
            elif not isinstance(x, ir.Del):
                raise SimulatorError(f"{x} in a kernel: the compiler doesn't support it")
            # messages name the line the bytecode came from
            for node in out[before:]:
                node.lineno = node.end_lineno = x.loc.line
                node.col_offset = node.end_col_offset = 0
    for label, pairs in phis.items():
        # all at once, before the jump at the end of the block
        targets = ast.Tuple([ast.Name(x, ast.Store()) for x, _ in pairs], ast.Store())
        olds = ast.Tuple([inlined.get(x) or name(x) for _, x in pairs], ast.Load())
        made[label].insert(-1, ast.copy_location(ast.Assign([targets], olds), made[label][-1]))
    # the name `block.` holds the next block
    variables = {x.target.name for block in blocks.values() for x in block.body if isinstance(x, ir.Assign)}
    if len(made) == 1: return next(iter(made.values())), variables
    # several blocks: a loop goes from one to the next until a statement returns
    first = fn.__code__.co_firstlineno
    body = [ast.If(ast.Compare(name("block."), [ast.Eq()], [constant(label)]), out, [])
            for label, out in made.items()]
    tree = [assign("block.", constant(next(iter(made)))), ast.While(constant(True), body, [])]
    place = ast.Pass(lineno=first, end_lineno=first, col_offset=0, end_col_offset=0)
    for node in tree: ast.fix_missing_locations(ast.copy_location(node, place))
    return tree, variables | {"block."}
