"""A fingerprint of the source that a kernel's machine code is made from, so a result card knows which code it
timed.

Nothing is compiled or run: this only reads the package's source files. So a fingerprint is the same with or
without a GPU or a compiler, on every Python, and with every version of Numba. Starting from the definition of
a host function, it follows names to definitions in `kernels`, `ptx` and `gemm`, and on from those. Comments,
line breaks, docstrings, type hints, checks and their messages don't count. A refactoring that leaves the
machine code unchanged does count: `make same-code BASE=… STAMP=1` compares the machine code and updates the
fingerprints on the cards."""
import ast
import hashlib
from functools import cache
from pathlib import Path

from .syntax import parsed

PACKAGE = Path(__file__).parent
ROOMS = "kernels", "ptx", "gemm"  # where machine code comes from …
# … but not from these
HOST = {f"gemm/{name}.py" for name in ("args", "kernel", "limits", "plan", "tensor_maps", "tiled")}


class _MachineCode(ast.NodeTransformer):
    "Keeps only what machine code can depend on."
    def visit_FunctionDef(self, node):
        if ast.get_docstring(node) is not None: del node.body[0]
        # The Python body of an instruction is for the simulator; the compiler emits what the decorator says.
        if any(ast.unparse(x).startswith("bind(") for x in node.decorator_list): node.body = []
        # PTX is in decorators, so their strings stay.
        decorators, node.decorator_list, node.returns = node.decorator_list, [], None
        self.generic_visit(node)
        node.decorator_list = decorators
        return node

    def visit_ClassDef(self, node):
        if ast.get_docstring(node) is not None: del node.body[0]
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
        return node if node.body or node.orelse else None  # a guard is dropped along with its raise

    def visit_Expr(self, node):
        "Drops calls that only check something."
        return None if ast.unparse(node).startswith(("check_", "need_")) else self.generic_visit(node)

    def visit_Call(self, node):
        "In `Kernel(…)` only its two functions count."
        if ast.unparse(node.func) == "Kernel": node.args, node.keywords = node.args[4:6], []
        return self.generic_visit(node)

    def visit_JoinedStr(self, node): return ast.Constant("")

    def visit_Constant(self, node):
        "A string with a space is meant for people."
        return ast.Constant("") if isinstance(node.value, str) and " " in node.value else node


def _defined(node):
    "The names a statement defines. (`a.plan = …` belongs to a.)"
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)): return [node.name]
    targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", ())
    return [x.id for target in targets for x in ast.walk(target) if isinstance(x, ast.Name)]


@cache
def _module(path):
    """What a source file defines, name → statements, and what it imports from others of the package, name →
    file and name there, which is empty for a module."""
    definitions, imports = {}, {}
    for node in parsed(path.read_text(encoding="utf-8")).body:
        for name in _defined(node): definitions.setdefault(name, []).append(node)
        if not isinstance(node, ast.ImportFrom): continue
        whole, _, inside = (node.module or "").partition(".")
        # nbdev leaves some of a page's imports with the package's name
        if node.level: folder = path.parents[node.level - 1]/(node.module or "").replace(".", "/")
        elif whole == PACKAGE.name: folder = PACKAGE/inside.replace(".", "/")
        else: continue
        for alias in node.names:
            found = folder/f"{alias.name}.py", ""
            if not found[0].exists(): found = folder.with_suffix(".py"), alias.name
            imports[alias.asname or alias.name] = found
    return definitions, imports


@cache
def _home_of(name):
    "The file of `kernels` that defines this host function; `None` if none does."
    return next((path for path in sorted((PACKAGE/"kernels").glob("*.py")) if name in _module(path)[0]), None)


def _named(node):
    "The names a tree uses, each with the attribute accessed on it."
    for x in ast.walk(node):
        if isinstance(x, ast.Attribute) and isinstance(x.value, ast.Name): yield x.value.id, x.attr
        elif isinstance(x, ast.Name): yield x.id, ""


def _plain(x):
    "A tree as tuples that are the same on every Python."
    if isinstance(x, list): return [_plain(one) for one in x]
    if not isinstance(x, ast.AST): return x
    fields = [(name, _plain(value)) for name, value in ast.iter_fields(x)
              if value not in (None, []) and name not in ("ctx", "kind", "type_comment", "type_params")]
    return type(x).__name__, fields


@cache
def _reached(path, name):
    "The text of a definition's relevant statements, and the outside names they use."
    trees = [_MachineCode().visit(node) for node in _module(path)[0][name]]
    return repr(_plain(trees)), {pair for tree in trees for pair in _named(tree)}


def definitions(
    name,  # name of a host function
) -> dict:  # (file, name) → text
    "Every definition a host function's machine code comes from; empty if no kernel has this name."
    found, todo = {}, [(_home_of(name), name)] if _home_of(name) else []
    while todo:
        path, one = todo.pop()
        file = path.relative_to(PACKAGE).as_posix()
        if (file, one) in found or not file.startswith(ROOMS) or file in HOST: continue
        defined, imports = _module(path)
        if one in imports: todo.append(imports[one])
        if one not in defined: continue
        found[file, one], names = _reached(path, one)
        for other, attribute in names:
            target, there = imports.get(other, (path, other))
            todo.append((target, there or attribute))
    return found


@cache
def fingerprint(
    name,     # name of a host function
    tile=(),  # (name, value) of each size that a search found
) -> str:
    "A fingerprint of the source of its machine code: 12 hex digits that change with it."
    return hashlib.sha256(repr((sorted(definitions(name).items()), sorted(tile))).encode()).hexdigest()[:12]
