"""Which source makes a kernel's machine code? A fingerprint of it, so that a result card knows the code that
it timed.

Nothing is compiled or run: the source files of the package are read. So a fingerprint is the same with and
without a GPU or a compiler, on every Python and with every version of Numba. From the definition of a host
function it follows names to definitions in `kernels`, `ptx` and `gemm`, and from those further. Comments,
line breaks, docstrings, type hints, checks and their messages don't count. A refactoring that leaves the
machine code alone does count: `make same-code BASE=… STAMP=1` compares the machine code and renews the
fingerprints on the cards."""
import ast
import hashlib
import threading
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent
ROOMS = "kernels", "ptx", "gemm"  # where machine code comes from …
# … but not from these
HOST = {f"gemm/{name}.py" for name in ("args", "kernel", "limits", "plan", "tensor_maps", "tiled")}

_PARSING = threading.Lock()  # Python 3.11 loses count of a tree's depth where two threads make one at once


def parsed(
    source,  # text
) -> ast.Module:
    "Its syntax tree."
    with _PARSING: return ast.parse(source)


class _MachineCode(ast.NodeTransformer):
    "Leaves only what machine code can depend on."
    def visit_FunctionDef(self, node):
        node.returns, node.body = None, _without_docstring(node.body)
        # The Python body of an instruction is for the simulator; the compiler puts what the decorator says.
        if any(isinstance(x, ast.Call) and ast.unparse(x.func) == "bind" for x in node.decorator_list):
            node.body = []
        decorators, node.decorator_list = node.decorator_list, []
        self.generic_visit(node)
        node.decorator_list = decorators
        return node

    def visit_ClassDef(self, node):
        node.body = _without_docstring(node.body)
        return self.generic_visit(node)

    def visit_arg(self, node):
        node.annotation = None
        return node

    def visit_AnnAssign(self, node):
        node.annotation = ast.Constant("")
        return self.generic_visit(node)

    def visit_Raise(self, node): return None
    def visit_Assert(self, node): return None

    def visit_If(self, node):
        self.generic_visit(node)
        return node if node.body or node.orelse else None  # a guard is gone with what it raised

    def visit_Expr(self, node):
        "Calls that only check something are left out."
        name = ast.unparse(node.value.func) if isinstance(node.value, ast.Call) else ""
        return None if name.startswith(("check_", "need_")) else self.generic_visit(node)

    def visit_Call(self, node):
        "Of `Kernel(…)` only its two functions count."
        if ast.unparse(node.func) == "Kernel": node.args, node.keywords = node.args[4:6], []
        return self.generic_visit(node)

    def visit_JoinedStr(self, node): return ast.Constant("")
    def visit_Constant(self, node):
        "A string with a space is for people. (PTX stands in decorators, which aren't visited.)"
        return ast.Constant("") if isinstance(node.value, str) and " " in node.value else node


def _without_docstring(body):
    first = body[0]
    said = isinstance(first, ast.Expr) and isinstance(first.value,
                                                      ast.Constant) and isinstance(first.value.value, str)
    return body[said:]


class _Module:
    "The definitions of a source file, and what it imports from others of the package."
    def __init__(self, path):
        # name → statements; name → path and name there, "" for the module itself
        self.definitions, self.imports = {}, {}
        for node in parsed(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.level: self.note_import(path, node)
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)): self.define(node.name, node)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for x in (x for target in targets for x in ast.walk(target)):
                    if isinstance(x, ast.Name): self.define(x.id, node)  # a.plan = … belongs to a

    def define(self, name, node): self.definitions.setdefault(name, []).append(node)

    def note_import(self, path, node):
        folder = path.parents[node.level - 1]/(node.module or "").replace(".", "/")
        for alias in node.names:
            as_module = folder/f"{alias.name}.py"
            found = (as_module, "") if as_module.exists() else (folder.with_suffix(".py"), alias.name)
            self.imports[alias.asname or alias.name] = found


@cache
def _module(path): return _Module(path)


@cache
def _home_of(name):
    "The file of `kernels` that defines this host function; `None` if none does."
    return next((path for path in sorted((PACKAGE/"kernels").glob("*.py"))
                 if name in _module(path).definitions), None)


def _named(node):
    "The names that a tree uses, each with the attribute that is asked of it."
    for x in ast.walk(node):
        if isinstance(x, ast.Attribute) and isinstance(x.value, ast.Name): yield x.value.id, x.attr
        elif isinstance(x, ast.Name): yield x.id, ""


def _plain(x):
    "A tree as tuples that are the same for every Python."
    if isinstance(x, list): return [_plain(one) for one in x]
    if not isinstance(x, ast.AST): return x
    fields = [(name, _plain(value)) for name, value in ast.iter_fields(x)
              if value not in (None, []) and name not in ("ctx", "kind", "type_comment", "type_params")]
    return type(x).__name__, fields


@cache
def _reached(path, name):
    "The text of a definition's statements without what doesn't count, and the names from outside in them."
    trees = [_MachineCode().visit(node) for node in _module(path).definitions.get(name, ())]
    return repr(_plain(trees)), {pair for tree in trees for pair in _named(tree)}


def definitions(
    name,  # of a host function
) -> dict:  # (file, name) → text
    "Every definition that a host function's machine code comes from; empty if no kernel has this name."
    found, todo = {}, [(_home_of(name), name)] if _home_of(name) else []
    while todo:
        path, one = todo.pop()
        file = path.relative_to(PACKAGE).as_posix()
        if (file, one) in found or not file.startswith(ROOMS) or file in HOST: continue
        if one in _module(path).imports: todo.append(_module(path).imports[one])
        if one not in _module(path).definitions: continue
        found[file, one], names = _reached(path, one)
        for other, attribute in names:
            target, there = _module(path).imports.get(other, (path, other))
            todo.append((target, there or attribute))
    return found


@cache
def fingerprint(
    name,     # of a host function
    tile=(),  # (name, value) of each size that a search found
) -> str:
    "Of the source that its machine code comes from: 12 digits that change with it."
    return hashlib.sha256(repr((sorted(definitions(name).items()), sorted(tile))).encode()).hexdigest()[:12]
