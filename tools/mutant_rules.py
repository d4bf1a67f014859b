"""Which mistakes are planted: some by rules over the syntax trees of the kernels' modules, some by hand. See
tools/mutants.py."""
import ast
import hashlib
import sys
from functools import cache
from itertools import islice, pairwise, zip_longest
from pathlib import Path
from typing import NamedTuple

from mutants_by_hand import BY_HAND, EXCUSED

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT/"numba_matmul"


class Mutant(NamedTuple):
    "One mistake."
    module: str  # dotted name
    rule: str
    line: int
    start: int   # bytes in the source
    end: int
    new: str     # the replacement

    @property
    def source(self): return source_of(self.module)

    @property
    def mutated(self):
        source = self.source
        return source[:self.start] + self.new.encode() + source[self.end:]

    @property
    def change(self):
        "The line and its change: the key of a mutant in the tables of mutants_by_hand."
        old = self.source[self.start:self.end].decode()
        line = self.source[:self.start].rpartition(b"\n")[2].decode() + old
        line += self.source[self.end:].partition(b"\n")[0].decode()
        return " ".join(line.split()), f"{' '.join(old.split())} → {' '.join(self.new.split())}"

    @property
    def hash(self):
        what = repr((self.module, self.rule, self.change, self.line))
        return int(hashlib.sha256(what.encode()).hexdigest(), 16)

    def __str__(self):
        line, change = self.change
        return f"{self.module.removeprefix('numba_matmul.')}:{self.line} [{self.rule}] {change}   in: {line}"


@cache
def source_of(module): return path_of(module).read_bytes()


def path_of(module): return ROOT.joinpath(*module.split(".")).with_suffix(".py")


# Functions and classes not mutated: code that only runs on a GPU, time estimates, and what they're used for.
LEFT_OUT = set("""
    _view _external launch_stream span _Memory allow_shared_memory _allow_before _set_cooperative cooperative
    ask_driver _map_words driver_function _launch _move_map
    estimate select_config estimated_cycles k_tile_cycles choose_tile work_tiles turned_tile launch_bounds
    launch_configs tiles_for by_kernel_14 _warn_of_minutes
    """.split())
# Not mutated either: modules that don't change what a kernel or its launch computes.
OTHERS = "__init__", "kernel", "watched"
KERNELS = [f"numba_matmul.kernels.{path.stem}" for path in sorted((PACKAGE/"kernels").glob("k*.py"))]
MODULES = KERNELS + [f"numba_matmul.gemm.{path.stem}" for path in sorted((PACKAGE/"gemm").glob("*.py"))
                     if path.stem not in OTHERS]

TWINS = {}
PAIRS = """
    row col|rows cols|m n|bm bn|tm tn|wm wn|a b|x y|a_row a_col|b_row b_col|thread_row thread_col
    row0 col0|a_from b_from|stride_a stride_b|now free|alpha beta|full empty|rows_a cols_b|copy_a copy_b
    read_m read_n|reg_m reg_n|a_tile b_tile|to_a to_b|next_x next_y|pass_a pass_b|step_m step_n
    pitch_a pitch_b|my_row my_col|map_a map_b|of_a of_b|tile_row tile_col|warp_row warp_col|read_a read_b
    copied read_from|begin end|low high|left right|tx ty|start end|bytes_a stage_bytes|state previous
    tiles_ahead pending|store_a store_b|fetch_a fetch_b|next_a next_b
    source_a source_b|stage_at free_at|open_groups tiles_ahead
    """.strip()
for pair in PAIRS.replace("\n", "|").split("|"):
    one, other = pair.split()
    TWINS.setdefault(one, other), TWINS.setdefault(other, one)
COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
OPERATORS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "%", ast.Mod: "//", ast.BitXor: "+",
             ast.LShift: ">>", ast.RShift: "<<", ast.BitAnd: "|"}


# Not planted, since it costs time and nothing else: a narrower access than could be, a check where all is
# inside, other threads that store what each of them has.
WIDTHS = "width == 4", "b_width == 4", "width > 1"
INSIDE = "not predicated"
THREADS = "thread", "lane", "thread % 32"


CONSTANTS = "OF_A", "OF_B", "NEXT_A", "NEXT_B", "BOX", "ROW", "BK", "MAX_GRID_Y"  # the ones to mutate


class Rules(ast.NodeVisitor):
    "Finds the possible changes in a module."
    def __init__(self, module):
        self.module, self.found, self.names = module, [], set()
        self.text = path_of(module).read_bytes()
        self.starts = [0]
        for line in self.text.splitlines(True): self.starts.append(self.starts[-1] + len(line))
        tree = ast.parse(self.text)
        for node in tree.body:
            # a lesson's kernel for sizes that fit
            short = getattr(node, "name", "").startswith(("short_", "start_", "ldmatrix_x4", "place"))
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not short: self.visit(node)
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in CONSTANTS:
                self.visit(node.value)

    def span(self, node):
        return (self.starts[node.lineno - 1] + node.col_offset,
                self.starts[node.end_lineno - 1] + node.end_col_offset)

    def old(self, node): return self.text[slice(*self.span(node))].decode()

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
        if self.old(node.test) not in WIDTHS: self.add("guard", node.test, "False")
        self.generic_visit(node)

    def visit_BoolOp(self, node):
        for i, one in enumerate(node.values):
            if self.old(one) == INSIDE: continue
            word = " and " if isinstance(node.op, ast.And) else " or "
            rest = word.join(f"({self.old(value)})" for j, value in enumerate(node.values) if j != i)
            self.add("guard", node, f"({rest})")
        self.generic_visit(node)

    def visit_Constant(self, node):
        if type(node.value) is int:
            for value in (node.value + 1, node.value - 1):
                self.add("off by one", node, str(value) if value >= 0 else f"({value})")

    def visit_Compare(self, node):
        if self.old(node) in WIDTHS: return
        same = isinstance(node.ops[0], ast.Eq) and self.old(node.left) in THREADS
        if len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
            left, right = node.left, node.comparators[0]
            operator = COMPARISONS[type(node.ops[0])]
            if not same: self.add("comparison", node, f"{self.old(left)} {operator} {self.old(right)}")
            if not isinstance(right, ast.Constant):
                self.add("off by one", right, f"({self.old(right)} + 1)")
        self.generic_visit(node)

    def visit_BinOp(self, node):
        left, right = self.old(node.left), self.old(node.right)
        if new := OPERATORS.get(type(node.op)):
            between = self.span(node.left)[1], self.span(node.right)[0]
            gap = self.text[between[0]:between[1]].decode()
            symbol = gap.replace("(", "").replace(")", "").strip()
            self.add("operator", node, gap.replace(symbol, new), between)
        if isinstance(node.op, (ast.Sub, ast.FloorDiv, ast.Mod)):
            operator = {ast.Sub: "-", ast.FloorDiv: "//", ast.Mod: "%"}[type(node.op)]
            self.add("swapped", node, f"(({right}) {operator} ({left}))")
        if isinstance(node.op, ast.Mult) and left.split(".")[-1] in ("alpha", "beta"):
            self.add("factor", node, f"({right})")
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
        spared = "isinstance", "hasattr", "getattr", "print", "signature"
        if isinstance(node.func, ast.Name) and node.func.id in spared: return
        if self.old(node.func) == "range":
            last = node.args[min(1, len(node.args) - 1)]
            if not isinstance(last, ast.Constant):
                for step in "+", "-": self.add("off by one", last, f"{self.old(last)} {step} 1")
        ordered = self.old(node.func) not in ("min", "max", "gcd")
        for one, other in pairwise(node.args if ordered else []):
            named = all(isinstance(x, (ast.Name, ast.Attribute)) for x in (one, other))
            texts = self.old(one), self.old(other)
            if named and len({*texts}) == 2 and texts != ("predicated", "width"):
                between = self.span(one)[0], self.span(other)[1]
                self.add("swapped", one, f"{texts[1]}, {texts[0]}", between)
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


def names_gone():
    "What is in LEFT_OUT in vain: no function or class is called so."
    nodes = (node for module in MODULES for node in ast.walk(ast.parse(path_of(module).read_bytes())))
    named = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    return sorted(LEFT_OUT - named)


@cache
def all_mutants():
    "Every mistake the rules make, each once."
    found = [mutant for module in MODULES for mutant in Rules(module).found]
    return tuple({(mutant.module, mutant.start, mutant.end, mutant.new): mutant for mutant in found}.values())


def is_python(mutant):
    "Does it compile?"
    try: return bool(ast.parse(mutant.mutated))
    except SyntaxError: return False


@cache
def hand_made():
    "The mutants of mutants_by_hand. A text that doesn't occur exactly once is an error."
    found = []
    for module, old, new, _ in BY_HAND:
        module, text = f"numba_matmul.{module}", path_of(f"numba_matmul.{module}").read_bytes()
        if text.count(old.encode()) != 1:
            sys.exit(f"mutants_by_hand: {module} has {text.count(old.encode())} occurrences of {old!r}")
        start = text.index(old.encode())
        found.append(Mutant(module, "by hand", text[:start].count(b"\n") + 1, start,
                            start + len(old.encode()), new))
    return tuple(found)


def sample(count):
    "This many of the rules' mutants, chosen by hash, from each module and rule in turn."
    cells = {}
    for mutant in sorted(all_mutants(), key=lambda mutant: mutant.hash):
        cells.setdefault((mutant.module, mutant.rule), []).append(mutant)
    rounds = (mutant for some in zip_longest(*cells.values()) for mutant in some
              if mutant and is_python(mutant))
    return list(islice(rounds, count))


def listed(mutant):
    "Why it can't be found: it changes nothing, or only a GPU can see it."
    return EXCUSED.get((mutant.module.removeprefix("numba_matmul."), *mutant.change))
