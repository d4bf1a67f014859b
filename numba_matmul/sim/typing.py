"""A kernel becomes a Python function that computes in the compiler's types.

This happens once per list of argument types. As in a compiled kernel, names from outside keep the values they
had at that moment.
"""
import ast
import inspect
import linecache
import os
from contextlib import suppress
from copy import copy
from functools import lru_cache, reduce
from types import CellType, FunctionType
from weakref import WeakKeyDictionary

import numpy as np
from ..process import TREES
from ..syntax import parsed
from .bytecode import bytecode_tree
from .operators import NARROW, UNKNOWN, Value, function, unboxed_value
from .statements import Statements
from .types import NONE, Known, type_of, unified
from numba.cuda.simulator.kernel import FakeCUDAKernel

_made = WeakKeyDictionary()  # a kernel's function → argument types → what was built for them


@lru_cache(2000)
def _typed(fn, code, kinds):
    if fn.__code__.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS): return fn, None
    body, variables = source_tree(fn), ()
    if body is None: body, variables = bytecode_tree(fn)
    parameters, result, seen = code.co_varnames[:code.co_argcount], None, set()
    while True:  # until the type of the result is known
        # a result of several types is converted to one, which the last round knows from the start
        typing = Statements(fn, typed)
        typing.local.update(variables)
        typing.scope = {x: Value(None, kind, known=kind.value if isinstance(kind, Known) else UNKNOWN)
                        for x, kind in zip(parameters, kinds)}
        typing.result, typing.returned = result, []
        made = typing.block(body)
        returned = typing.returned + ([NONE] if typing.scope is not None else [])
        found = reduce(unified, returned) if returned else NONE
        if found == result or result in seen or found not in NARROW and set(returned) <= {found}:
            break
        seen.add(result)
        result = found
    made = function(fn.__name__, parameters, made or [ast.Pass()], typing.namespace, code)
    made.read = typing.read
    _made.setdefault(fn, {})[kinds] = made
    return made, found

def typed(
    fn,     # function of a kernel or a device function
    kinds,  # argument types, see `type_of`
):          # the same function with operators that compute in the compiler's types; the type of its result
    "A kernel's function for given argument types."
    return _typed(fn, fn.__code__, kinds)

def run_typed(fn, *args):
    "Call a kernel's function; the arguments determine the types."
    made, result = typed(fn, tuple(map(type_of, args)))
    value = made(*map(unboxed_value, args))
    return getattr(np, result)(value) if result in NARROW else value

def forget():
    "Retype kernels: a name they use has changed its meaning."
    _typed.cache_clear()
    _made.clear()


# Names from outside

def _now(fn, name):
    "What a name from outside a function means now."
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or ()))
    try:
        return cells[name].cell_contents if name in cells else fn.__globals__.get(name)
    except ValueError:
        return None

def _same(one, other):
    if isinstance(one, np.ndarray):
        return np.shape(one) == np.shape(other) and one.tobytes() == np.asarray(other, one.dtype).tobytes()
    return one is other or type(one) is type(other) and bool(one == other) or one != one

def changed(
    made,  # what `typed` built
):         # one sentence per name
    """Names from outside whose values have changed since a kernel was typed. As when compiled, it keeps the
    old values."""
    for (fn, name), was in made.read.items():
        if _same(was, now := _now(fn, name)): continue
        what, again = f" = {was!r}: it's now {now!r}", "decorate it again, or pass it as an argument"
        if isinstance(was, np.ndarray): what = " with different contents than it has now"
        if isinstance(was, FakeCUDAKernel):
            what, name, again = "", f"an earlier {name}", "decorate it again"
        yield (f"{fn.__name__} was compiled with {name}{what}, and a compiled kernel keeps the values it "
               f"read; {again}")

def as_frozen(
    fn,     # function of a kernel
    kinds,  # argument types, see `type_of`
):          # itself, or one with the same code
    """A function with the outside values that it and the device functions it calls were typed with, if any
    were."""
    found = _made.get(fn, {})
    made = found.get(kinds) or next(iter(found.values()), None)
    return _frozen(fn, made.read) if made else fn

def _frozen(fn, read):
    old = {}
    for (of, name), was in read.items():
        if of is not fn: continue
        # device functions it calls are frozen too
        if isinstance(was, FakeCUDAKernel) and (callee := _frozen(was.fn, read)) is not was.fn:
            was = copy(was)
            was.fn = callee
        if not _same(was, _now(fn, name)): old[name] = was
    if not old: return fn
    cells = tuple(CellType(old[x]) if x in old else cell
                  for x, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()))
    return FunctionType(fn.__code__, fn.__globals__ | old, fn.__name__, fn.__defaults__, cells)


# The syntax tree of a function is found in the file or cell it comes from.

@lru_cache(50)
def _functions(filename, text):
    "The functions of a file, by first line."
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

def _does(code):
    "What two codes of one function have in common."
    constants = [repr(x) for x in code.co_consts if not inspect.iscode(x)]
    return code.co_code, code.co_names, code.co_varnames, constants

def _source(fn):
    "The text of the file a function comes from; empty if an edit since then affects the function."
    code = fn.__code__
    for _ in range(2):
        text = "".join(linecache.getlines(code.co_filename, fn.__globals__))
        if not os.path.exists(code.co_filename): return text  # a cell of a notebook
        with suppress(SyntaxError):
            candidates = _compiled(code.co_filename, text).get((code.co_name, code.co_firstlineno), ())
            if any(_does(made) == _does(code) for made in candidates): return text
        linecache.checkcache(code.co_filename)  # the cache predates the edit
    return ""

def source_tree(fn):
    "The statements of a function, as syntax trees; `None` if its source can't be found, or was edited since."
    code = fn.__code__
    if code in TREES: return TREES[code].body
    try:
        found = _functions(code.co_filename, _source(fn))
    except SyntaxError:
        return None
    for node in found.get(code.co_firstlineno, ()):
        body = node.body
        if isinstance(node, ast.Lambda):
            body = [ast.copy_location(ast.Return(node.body), node.body)]
        parameters = tuple(x.arg for x in node.args.posonlyargs + node.args.args)
        if (parameters == code.co_varnames[:len(parameters)]
                and getattr(node, "name", "<lambda>") == code.co_name): return body

def nodes_of(fn):
    "All nodes of a function's syntax tree; none where its source can't be found."
    return [node for statement in source_tree(fn) or () for node in ast.walk(statement)]
