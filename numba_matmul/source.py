"""A kernel's source: read it, compare it with another's, run it with other constants."""
import ast
import difflib
import html
import inspect
import io
import linecache
import re
import textwrap
import tokenize
from types import FunctionType

from .process import kernel_parts
from .syntax import parsed
from numba import cuda


def function_of(subject):
    "A kernel's function; a plain function is returned unchanged."
    return (kernel_parts(subject) or [subject])[0]

def source_of(kernel):
    "The source of a kernel, or of a function, without the indentation around it."
    code = function_of(kernel).__code__
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1:]
    return textwrap.dedent("".join(inspect.getblock(lines)))

def line_of(fn, number):
    "Converts a line number in a function's or kernel's source to one in its file or cell."
    return function_of(fn).__code__.co_firstlineno + number - 1

def reference_of(
    kernel,  # a lesson's short kernel, the solution of an exercise
    name,    # of the reader's function
) -> str:
    "Its source under that name, without comments and blank lines."
    source = source_of(kernel)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.start[1] for token in tokens if token.type == tokenize.COMMENT}
    lines = [line[:comments.get(number, len(line))].rstrip()
             for number, line in enumerate(source.splitlines(), 1)]
    text = "\n".join(line for line in lines if line)
    return re.sub(rf"\b{function_of(kernel).__name__}\b", name, text) + "\n"

def cut(source, *starts):
    "A source in parts: each of these texts, in order, starts a new one."
    parts, rest = [], source
    for start in starts:
        at = rest.index(start)
        parts.append(rest[:at])
        rest = rest[at:]
    return [*parts, rest]

def replaced(source, *pairs):
    "A source with some texts replaced; each must occur in it."
    for old, new in pairs:
        if old not in source: raise ValueError(f"{old!r} doesn't occur in {source!r}")
        source = source.replace(old, new)
    return source


# What changed

class Changes:
    "A kernel's source, with marks where it differs from another's."
    def __init__(self, lines):
        self.lines = lines  # (text, is it new?, the line it replaces)

    def __repr__(self):
        return "\n".join(f"{'▌' if new else ' '} {text}{f'  # was: {was}' if was else ''}".rstrip()
                         for text, new, was in self.lines)

    def _repr_html_(self):
        rows = []
        for text, new, was in self.lines:
            was = f'<span style="opacity: .8">  # was: {html.escape(was)}</span>' if was else ""
            mark = "#D55E00; background: rgba(230, 159, 0, .18)" if new else "transparent"
            style = f"border-left: 4px solid {mark}; padding-left: 8px"
            rows.append(f'<div style="{style}">{html.escape(text) or " "}{was}</div>')
        return ('<div style="font: var(--jp-code-font-size, .9em) monospace; white-space: pre; '
                f'overflow-x: auto">{"".join(rows)}</div>')

def changes(
    old,  # a kernel or function
    new,  # its successor
) -> Changes:
    "The source of `new`, marked where it differs from `old`."
    names = [function_of(x).__name__ for x in (old, new)]
    before, after = (source_of(x).rstrip().splitlines() for x in (old, new))
    def neutral(lines, name):
        return [line.partition("  #")[0].strip().replace(name, "kernel") for line in lines]
    matcher = difflib.SequenceMatcher(None, *map(neutral, (before, after), names), autojunk=False)
    lines = []
    for kind, a, a_end, b, b_end in matcher.get_opcodes():
        one_to_one = kind == "replace" and a_end - a == b_end - b <= 3
        lines += [(after[i], kind != "equal", before[a + i - b].strip() if one_to_one else None)
                  for i in range(b, b_end)]
    return Changes(lines)


# A kernel with other constants

_ARITHMETIC = (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Constant, ast.Name, ast.Tuple,
               ast.Store, ast.Load)

def _computed(fn, constants):
    "Values computed above a kernel in its cell, such as `HALF = BN // 2`, recomputed from these constants."
    try: cell = parsed("".join(linecache.getlines(fn.__code__.co_filename)))
    except SyntaxError: return {}
    scope, found = fn.__globals__ | constants, {}
    for line in cell.body:
        if getattr(line, "name", None) == fn.__name__: break
        # an assignment of arithmetic with names
        if not isinstance(line, ast.Assign): continue
        inside = [node for node in ast.walk(line) if node is not line]
        if not all(isinstance(node, _ARITHMETIC) for node in inside): continue
        if not any(isinstance(node, ast.Name) for node in ast.walk(line.value)): continue
        made = {}
        try: exec(compile(ast.Module([line], []), "<constants>", "exec"), scope, made)
        except Exception: continue
        found |= {name: value for name, value in made.items() if name not in constants}
        scope |= found
    return found

def _in_scope(fn, scope):
    "The same function, with these globals."
    return FunctionType(fn.__code__, scope, fn.__name__, fn.__defaults__, fn.__closure__)

def with_constants(
    kernel,     # a kernel
    constants,  # dict: name → value
):
    "The same kernel with other values for its globals, and for values computed from them above it."
    fn, options, _ = kernel_parts(kernel)
    if not constants: return kernel
    scope = fn.__globals__ | constants | _computed(fn, constants)
    for name, value in fn.__globals__.items():  # the reader's own device functions use them too
        other, how, _ = kernel_parts(value) or (fn, {}, None)
        if how.get("device") and other.__globals__ is fn.__globals__ and name not in constants:
            scope[name] = cuda.jit(**how)(_in_scope(other, scope))
    # with line numbers, which verdicts name
    return cuda.jit(**{"lineinfo": not options.get("debug")} | options)(_in_scope(fn, scope))
