"""make mutants: plant mistakes into the kernels, one at a time, and see whether a check finds each without a GPU.

Mistakes are made by rules over the syntax trees of the kernels' modules, and others are written by hand (mutants_by_hand).
Each runs in a forked child that has everything loaded but the module with the mistake and those that import it."""
import argparse
import ast
import hashlib
import importlib
import importlib.abc
import importlib.util
import linecache
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import cache
from itertools import islice, pairwise, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from mutants_by_hand import BY_HAND, EXCUSED

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT/"numba_matmul"
LIMIT = 15  # seconds for a path: one that takes longer never ends


class Mutant(NamedTuple):
    "One mistake."
    module: str  # dotted name
    rule: str
    line: int
    start: int   # bytes of the source
    end: int
    new: str     # what stands there instead

    @property
    def source(self): return source_of(self.module)

    @property
    def mutated(self):
        source = self.source
        return source[:self.start] + self.new.encode() + source[self.end:]

    @property
    def change(self):
        "The line, and what is changed in it: how the tables in mutants_by_hand know a mutant."
        old = self.source[self.start:self.end].decode()
        line = self.source[:self.start].rpartition(b"\n")[2].decode() + old
        line += self.source[self.end:].partition(b"\n")[0].decode()
        return " ".join(line.split()), f"{' '.join(old.split())} → {' '.join(self.new.split())}"

    @property
    def hash(self): return int(hashlib.sha256(repr((self.module, self.rule, self.change, self.line)).encode()).hexdigest(), 16)

    def __str__(self):
        line, change = self.change
        return f"{self.module.removeprefix('numba_matmul.')}:{self.line} [{self.rule}] {change}   in: {line}"


@cache
def source_of(module): return path_of(module).read_bytes()


def path_of(module): return ROOT.joinpath(*module.split(".")).with_suffix(".py")


# Not mutated: searches, estimates of time, what runs on a GPU alone, what only refuses, and texts of errors.
LEFT_OUT = set("""_view _external launch_stream _workspace span _Memory allow_shared_memory _allow_before _set_cooperative cooperative ask_driver _map_words TensorMapWords
    PackedLaunch PackedPlan _of_driver _launch _move_map workspace_of kept_plan _keep _first_call run _three _names _functions_of
    _constants_of _see_constants _warn_of_minutes remembered configurations candidates Tuning device_timer spilling autotune
    write_tuning recorded_tuning estimate select_config estimated_cycles k_tile_cycles choose_tile work_tiles tuned_tile launch_bounds capable
    need_capability refuse need_whole check_options""".split())
KERNELS = [f"numba_matmul.kernels.{path.stem}" for path in sorted((PACKAGE/"kernels").glob("k*.py"))]
MODULES = KERNELS + [f"numba_matmul.gemm.{name}" for name in ("args", "epilogue", "limits", "pipeline", "plan", "schedule", "tensor_maps", "tiled", "tiles")]

TWINS = {}
for pair in """row col|rows cols|m n|bm bn|tm tn|wm wn|a b|x y|a_row a_col|b_row b_col|thread_row thread_col|row0 col0
    a_from b_from|stride_a stride_b|now free|alpha beta|full empty|rows_a cols_b|copy_a copy_b|read_m read_n|reg_m reg_n
    a_tile b_tile|to_a to_b|next_x next_y|pass_a pass_b|step_m step_n|pitch_a pitch_b|my_row my_col|map_a map_b|of_a of_b
    tile_row tile_col|warp_row warp_col|read_a read_b|copied read_from|begin end|low high|left right|tx ty|start end
    bytes_a stage_bytes|state previous|tiles_ahead pending|store_a store_b|fetch_a fetch_b|next_a next_b""".replace("\n", "|").split("|"):
    one, other = pair.split()
    TWINS.setdefault(one, other), TWINS.setdefault(other, one)
COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
OPERATORS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "%", ast.Mod: "//", ast.BitXor: "+",
             ast.LShift: ">>", ast.RShift: "<<", ast.BitAnd: "|"}


class Rules(ast.NodeVisitor):
    "Finds what can be changed in a module."
    def __init__(self, module):
        self.module, self.found, self.names = module, [], set()
        self.text = path_of(module).read_bytes()
        self.starts = [0]
        for line in self.text.splitlines(True): self.starts.append(self.starts[-1] + len(line))
        tree = ast.parse(self.text)
        for node in tree.body:
            short = getattr(node, "name", "").startswith(("short_", "start_", "ldmatrix_x4", "place"))  # a lesson's, for sizes that fit
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not short: self.visit(node)
            elif isinstance(node, ast.Assign) and any(t.id.isupper() for t in node.targets if isinstance(t, ast.Name)):
                if ast.unparse(node.targets[0]) in ("OF_A", "OF_B", "NEXT_A", "NEXT_B", "BOX", "ROW", "BK", "MAX_GRID_Y"):
                    self.visit(node.value)

    def span(self, node):
        return (self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset)

    def old(self, node): start, end = self.span(node); return self.text[start:end].decode()

    def add(self, rule, node, new, between=None):
        start, end = between or self.span(node)
        self.found.append(Mutant(self.module, rule, node.lineno, start, end, new))

    def visit_FunctionDef(self, node):
        if node.name in LEFT_OUT: return
        outer, self.names = self.names, {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | {
            a.arg for n in ast.walk(node) if isinstance(n, ast.FunctionDef) for a in n.args.args}
        for child in node.body: self.visit(child)
        self.names = outer

    def visit_ClassDef(self, node):
        if node.name not in LEFT_OUT:
            for child in node.body:
                if isinstance(child, ast.FunctionDef): self.visit(child)

    def visit_Raise(self, node): pass
    def visit_JoinedStr(self, node): pass

    def visit_Expr(self, node):
        if isinstance(node.value, ast.Call): self.add("left out", node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node):
        self.add("left out", node, "pass")
        value, target = self.old(node.value), self.old(node.target)
        self.add("operator", node, f"{target} {'-' if isinstance(node.op, ast.Add) else '+'}= {value}")
        self.visit(node.value)

    def visit_Assign(self, node):
        target, value = node.targets[0], node.value
        inside = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
        own = isinstance(target, ast.Name) and target.id in inside
        zero = isinstance(target, ast.Subscript) and self.old(value) in ("float32(0)", "0")
        if own or zero: self.add("left out", node, "pass")
        self.generic_visit(node)

    def visit_If(self, node): self.guard(node)
    def visit_IfExp(self, node): self.guard(node)

    def guard(self, node):
        self.add("guard", node.test, "True")
        self.add("guard", node.test, "False")
        self.generic_visit(node)

    def visit_BoolOp(self, node):
        for i in range(len(node.values)):
            word = " and " if isinstance(node.op, ast.And) else " or "
            rest = word.join(f"({self.old(value)})" for j, value in enumerate(node.values) if j != i)
            self.add("guard", node, f"({rest})")
        self.generic_visit(node)

    def visit_Constant(self, node):
        if type(node.value) is int:
            for value in (node.value + 1, node.value - 1): self.add("off by one", node, str(value) if value >= 0 else f"({value})")

    def visit_Compare(self, node):
        if len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
            left, right = node.left, node.comparators[0]
            self.add("comparison", node, f"{self.old(left)} {COMPARISONS[type(node.ops[0])]} {self.old(right)}")
            if not isinstance(right, ast.Constant): self.add("off by one", right, f"({self.old(right)} + 1)")
        self.generic_visit(node)

    def visit_BinOp(self, node):
        left, right = self.old(node.left), self.old(node.right)
        if new := OPERATORS.get(type(node.op)):
            between = self.span(node.left)[1], self.span(node.right)[0]
            gap = self.text[between[0]:between[1]].decode()
            symbol = gap.replace("(", "").replace(")", "").strip()
            self.add("operator", node, gap.replace(symbol, new), between)
        if isinstance(node.op, (ast.Sub, ast.FloorDiv, ast.Mod)): self.add("swapped", node, f"(({right}) {({ast.Sub: '-', ast.FloorDiv: '//', ast.Mod: '%'})[type(node.op)]} ({left}))")
        if isinstance(node.op, ast.Mult) and left.split(".")[-1] in ("alpha", "beta"): self.add("factor", node, f"({right})")
        self.generic_visit(node)

    def visit_Subscript(self, node):
        index = node.slice
        if isinstance(index, ast.Tuple) and len(index.elts) >= 2:
            for one, other in pairwise(index.elts):
                if self.old(one) != self.old(other):
                    between = self.span(one)[0], self.span(other)[1]
                    self.add("swapped", node, f"{self.old(other)}, {self.old(one)}", between)
        for part in index.elts if isinstance(index, ast.Tuple) else [index]:
            if not isinstance(part, (ast.Constant, ast.Slice)) and isinstance(node.ctx, ast.Load):
                self.add("off by one", part, f"{self.old(part)} + 1")
        self.generic_visit(node)

    def visit_Call(self, node):
        if isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "hasattr", "getattr", "print", "signature"): return
        if self.old(node.func) == "range":
            last = node.args[min(1, len(node.args) - 1)]
            if not isinstance(last, ast.Constant):
                for step in "+", "-": self.add("off by one", last, f"{self.old(last)} {step} 1")
        for one, other in pairwise(node.args):
            if isinstance(one, (ast.Name, ast.Attribute)) and isinstance(other, (ast.Name, ast.Attribute)) and self.old(one) != self.old(other):
                between = self.span(one)[0], self.span(other)[1]
                self.add("swapped", one, f"{self.old(other)}, {self.old(one)}", between)
        for part in (*node.args, *node.keywords): self.visit(part)

    def visit_Name(self, node):
        twin = TWINS.get(node.id)
        if isinstance(node.ctx, ast.Load) and twin in self.names: self.add("wrong name", node, twin)

    def visit_Attribute(self, node):
        if isinstance(node.ctx, ast.Load) and (twin := TWINS.get(node.attr)) and not (
                isinstance(node.value, ast.Name) and node.value.id in ("cuda", "np")):
            end = self.span(node)[1]
            self.add("wrong name", node, twin, (end - len(node.attr), end))
        self.visit(node.value)


@cache
def all_mutants():
    "Every mistake that the rules make, each once."
    found = [mutant for module in MODULES for mutant in Rules(module).found]
    return tuple({(mutant.module, mutant.start, mutant.end, mutant.new): mutant for mutant in found}.values())


def is_python(mutant):
    "Can it be compiled?"
    try: return bool(ast.parse(mutant.mutated))
    except SyntaxError: return False


@cache
def hand_made():
    "Those of mutants_by_hand. A text that is not there exactly once is an error."
    found = []
    for module, old, new, _ in BY_HAND:
        module, text = f"numba_matmul.{module}", path_of(f"numba_matmul.{module}").read_bytes()
        if text.count(old.encode()) != 1: sys.exit(f"mutants_by_hand: {module} has {text.count(old.encode())} times {old!r}")
        start = text.index(old.encode())
        found.append(Mutant(module, "by hand", text[:start].count(b"\n") + 1, start, start + len(old.encode()), new))
    return tuple(found)


def sample(count):
    "So many of the rules' mutants, chosen by hash: of each module and rule in turn."
    cells = {}
    for mutant in sorted(all_mutants(), key=lambda mutant: mutant.hash): cells.setdefault((mutant.module, mutant.rule), []).append(mutant)
    rounds = (mutant for some in zip_longest(*cells.values()) for mutant in some if mutant and is_python(mutant))
    return list(islice(rounds, count))


def listed(mutant):
    "Why it cannot be found: that it changes nothing, or that only a GPU can see it."
    return EXCUSED.get((mutant.module.removeprefix("numba_matmul."), *mutant.change))


class Planted(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    "Loads one module from a text of its own."
    def __init__(self, module, text): self.module, self.text = module, text
    def find_spec(self, name, path=None, target=None):
        if name == self.module: return importlib.util.spec_from_loader(name, self, origin=str(path_of(name)))
    def exec_module(self, module):
        name = module.__file__ = str(path_of(self.module))
        linecache.cache[name] = len(self.text), None, self.text.decode().splitlines(True), name
        exec(compile(self.text, name, "exec"), module.__dict__)


@cache
def importers():
    "Module → those that import it, directly or not."
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")
             if path.name not in ("__init__.py", "_modidx.py")}
    direct = {}
    for name, path in names.items():
        direct[name] = set()
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(node, ast.ImportFrom): continue
            base = ".".join([*name.split(".")[:-node.level], *filter(None, [node.module])]) if node.level else node.module
            direct[name] |= {base, *(f"{base}.{alias.name}" for alias in node.names)} & names.keys()
    def reach(name, seen):
        for other, used in direct.items():
            if name in used and other not in seen: reach(other, seen.add(other) or seen)
        return seen
    return {name: reach(name, set()) for name in names}


def plant(module, text):
    "Load the package's modules anew that see this one, with this text for it."
    for name in importers()[module] | {module}:
        if loaded := sys.modules.pop(name, None):
            parent, _, last = name.rpartition(".")
            if getattr(sys.modules[parent], last, None) is loaded: delattr(sys.modules[parent], last)
    sys.meta_path.insert(0, Planted(module, text))


def kernels_of(module):
    "The modules of the kernels that a mistake in this module may reach: its own, those that import it, all others."
    reached = (importers()[module] | {module}) & set(KERNELS)
    short = module.rpartition(".")[2]
    return sorted(reached, key=lambda name: (name != module, f"{short} import" not in path_of(name).read_text("utf-8"), name))


def in_order(kernel):
    "Its paths, those first that find most."
    def key(path): return (not path.options and kernel.tiles is not None, "mnk" not in path.name, np.prod(np.maximum(path.shape, 1)))
    return [(kernel, path) for path in sorted(kernel.paths, key=key)]


def judge(mutant):
    "In a child: the message of the first path that fails, or nothing."
    plant(mutant.module, mutant.mutated)
    try:
        check_path = importlib.import_module("numba_matmul.bench.verify").check_path
        kernels = [importlib.import_module(name).KERNEL for name in kernels_of(mutant.module)]
    except Exception as e: return f"import: {type(e).__name__}: {e}"
    first = 1 if mutant.module in KERNELS else len(kernels)  # the kernel of its own, or all of them by turns
    turns = [call for calls in zip_longest(*map(in_order, kernels[:first])) for call in calls if call]
    for kernel, path in turns + [call for kernel in kernels[first:] for call in in_order(kernel)]:
        signal.alarm(LIMIT)
        try: check_path(kernel, path)
        except Exception as e: return f"{kernel.name}, {e}"
    return ""


def fork(mutant, log):
    "Start to judge a mutant in a child; its number."
    child = os.fork()
    if child: return child
    sys.stderr = open(os.devnull, "w")
    message = judge(mutant)
    Path(log).write_text(message)
    os._exit(1 if message else 0)


def run(mutants, jobs=os.cpu_count()):
    "Yield (mutant, message, seconds): empty if it survives every path."
    with TemporaryDirectory() as folder:
        waiting, running = list(mutants)[::-1], {}
        while waiting or running:
            while waiting and len(running) < jobs:
                mutant = waiting.pop()
                log = f"{folder}/{len(waiting)}"
                running[fork(mutant, log)] = mutant, log, time.monotonic()
            child, status = os.wait()
            mutant, log, start = running.pop(child)
            message = Path(log).read_text() if os.WIFEXITED(status) else f"no end within {LIMIT} s"
            yield mutant, message, time.monotonic() - start


def load():
    "What all children share."
    sys.path.insert(0, str(ROOT))
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    import numba_matmul.bench.verify, numba_matmul.registry  # noqa: E401, F401


def tests_find(mutant):
    "Do the kernels' tests fail, in a copy of the project with the mistake?"
    first = min(kernels_of(mutant.module), key=lambda name: name.rpartition(".k")[2])
    own = importlib.import_module(first).KERNEL
    from numba_matmul.registry import KERNELS as known
    bf16 = [kernel.name for kernel in known.values() if kernel.dtype == "bfloat16"]  # as in tests/test_paths.py
    group = "-".join(bf16) if own.name in bf16 or "gemm" in mutant.module else own.name
    with TemporaryDirectory() as folder:
        copy = Path(folder)/"project"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__"))
        (copy/path_of(mutant.module).relative_to(ROOT)).write_bytes(mutant.mutated)
        files = [f"tests/test_{name}.py" for name in ("kernels", "refused")]
        for selection in [*files, "-k", "not every_tile"], [f"tests/test_paths.py::test_paths[{group}]"]:
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *selection]
            done = subprocess.run(command, cwd=copy, env=os.environ | {"PYTHONPATH": str(copy)}, capture_output=True, text=True)
            if done.returncode: return next((line for line in done.stdout.splitlines() if line.startswith("FAILED")), "a test fails")
    return ""


def table(title, key, mutants, survivors):
    "How many of each kind there were, and how many were not found."
    counts, left = Counter(map(key, mutants)), Counter(map(key, survivors))
    print(f"{title:<32} planted  not found")
    for name, count in sorted(counts.items()): print(f"  {name:<30} {count:7} {left[name]:10}")


def whole(least):
    "What argparse makes of a text: a number that is not too small."
    def number(text):
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, {least} or more")
        return int(text)
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=whole(0), default=240, help="of the mutants that the rules make; 0: all of them")
    parser.add_argument("--jobs", type=whole(1), default=os.cpu_count())
    parser.add_argument("--tests", action="store_true", help="let the tests look for those that no path finds")
    parser.add_argument("--sample", action="store_true", help="only twelve of the cheap kernels, for a test")
    parser.add_argument("--only", default="", help="part of a module's name")
    args = parser.parse_args()
    load()
    known = {(mutant.module.removeprefix("numba_matmul."), *mutant.change) for mutant in all_mutants() + hand_made()}
    if stale := [entry for entry in EXCUSED if entry not in known]: sys.exit(f"mutants_by_hand: there is no such mutant any more: {stale}")
    chosen = list(hand_made()) if args.sample else sample(args.count or None) + list(hand_made())
    chosen = [mutant for mutant in chosen if args.only in mutant.module]
    mutants = [mutant for mutant in chosen if not listed(mutant)]
    if not chosen: sys.exit(f"no module's name has {args.only!r} in it")
    if not mutants: sys.exit("all that were chosen are listed as not to be found")
    if args.sample: mutants = [mutant for mutant in sorted(mutants, key=lambda mutant: mutant.hash) if mutant.module in KERNELS][:12]
    print(f"{len(all_mutants())} mutants by rules, {len(hand_made())} by hand; {len(chosen)} chosen, "
          f"{len(chosen) - len(mutants)} of them listed as not to be found", flush=True)
    survivors, start = [], time.monotonic()
    for mutant, message, _ in run(mutants, args.jobs):
        if message: continue
        found = tests_find(mutant) if args.tests else ""
        print(f"{'only a test finds' if found else 'SURVIVES'} {mutant}   {found}", flush=True)
        if not found: survivors.append(mutant)
    table("rule", lambda mutant: mutant.rule, mutants, survivors)
    table("module", lambda mutant: mutant.module.removeprefix("numba_matmul."), mutants, survivors)
    percent = 100 * (1 - len(survivors) / len(mutants))
    print(f"{percent:.1f} % of {len(mutants)} found, in {time.monotonic() - start:.0f} s")
    sys.exit(percent < 95)


if __name__ == "__main__": main()
