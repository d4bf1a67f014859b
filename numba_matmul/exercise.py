"""`grade` judges a kernel that you wrote, with no GPU: is it correct, does it race, and what does it ask of memory?"""
import ast
import difflib
import hashlib
import html
import inspect
import io
import linecache
import os
import pkgutil
import re
import sys
import textwrap
import tokenize
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from numbers import Real
from types import FunctionType

import numpy as np
from fastcore.script import Param, call_parse
from .bench.timing import measure_runtime
from .compiler import CompileError, machine_code
from .draw import Markdown, number_text
from .microscope import Site, View, microscope
from .process import ChildError, has_compiler, in_child, kernel_parts
from .source import parsed
from .sim.launch import all_arguments
from .sim.scheduler import SimulatorError
from numba import config, cuda


# A prediction

def _distance(said, found):
    "How far a prediction is from what was found, in words."
    if said == found: return "exactly"
    if said and found and (said > 0) == (found > 0):
        ratio = max(said / found, found / said)
        return "close" if ratio < 1.005 else f"off by a factor of {number_text(ratio)}"
    return f"off by {number_text(abs(said - found))}"

@dataclass
class Prediction:
    "What a reader expects, by quantity."
    question: str
    said: dict  # quantity → number, or `...`

    def _repr_markdown_(self):
        if all(value is ... for value in self.said.values()):
            return f"**{self.question}** Put your numbers in place of the dots."
        return f"**{self.question}** " + ", ".join(
            f"{name} {number_text(value)}".strip() for name, value in self.said.items() if value is not ...)

    def against(
        self,
        *found,   # the number, if one was asked for
        **named,  # the numbers by quantity
    ) -> Markdown:
        "A table of what was predicted and what was found."
        found = dict(zip(self.said, found)) | named
        if found.keys() != self.said.keys():
            raise TypeError(f"{self.question} asks for {', '.join(self.said) or 'one number'}, "
                            f"and found are {', '.join(found) or 'none'}")
        if all(value is ... for value in self.said.values()):
            values = " · ".join(f"{name} **{number_text(value)}**".strip() for name, value in found.items())
            return Markdown(f"{values} (no prediction: put numbers in place of the dots above)")
        rows = [f"| {name} | {'–' if said is ... else number_text(said)} | {number_text(found[name])} | "
                f"{'' if said is ... else _distance(said, found[name])} |"
                for name, said in self.said.items()]
        return Markdown("| | you said | it is | |\n|---|--:|--:|---|\n" + "\n".join(rows))

def ask(
    question,   # text
    *answer,    # one number; dots until the reader puts it there
    **answers,  # or several, by quantity
) -> Prediction:
    "A question to answer before the result is shown."
    if bool(answer) == bool(answers) or len(answer) > 1:
        raise TypeError("ask takes one answer, ask(question, 4), or named ones, ask(question, A=1, B=4)")
    for value in (*answer, *answers.values()):
        if value is not ... and not isinstance(value, Real):
            raise TypeError(f"{value!r} isn't a number: put one, such as 4, in place of the dots")
    return Prediction(question, dict(zip([""], answer)) | answers)


# What changed

def source_of(kernel):
    "The source of a kernel, or of a function, without the indentation around it."
    fn = (kernel_parts(kernel) or [kernel])[0]
    lines = linecache.getlines(fn.__code__.co_filename)[fn.__code__.co_firstlineno - 1:]
    return textwrap.dedent("".join(inspect.getblock(lines)))

def reference_of(
    kernel,  # a lesson's short kernel, which is an exercise's solution
    name,    # of the reader's function
) -> str:
    "Its source under that name, without comments and blank lines."
    source = source_of(kernel)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.start[1] for token in tokens if token.type == tokenize.COMMENT}
    lines = [line[:comments.get(number, len(line))].rstrip() for number, line in enumerate(source.splitlines(), 1)]
    text = "\n".join(line for line in lines if line)
    return re.sub(rf"\b{kernel_parts(kernel)[0].__name__}\b", name, text) + "\n"

class Changes:
    "The source of a kernel, with marks where it differs from another one."
    def __init__(self, lines): self.lines = lines  # (text, is it new?, the line that it replaces)

    def __repr__(self):
        return "\n".join(f"{'▌' if new else ' '} {text}{f'  # was: {was}' if was else ''}".rstrip()
                         for text, new, was in self.lines)

    def _repr_html_(self):
        rows = []
        for text, new, was in self.lines:
            was = f'<span style="opacity: .6">  # was: {html.escape(was)}</span>' if was else ""
            mark = "border-left: 4px solid #D55E00; background: rgba(230, 159, 0, .18)" if new else \
                "border-left: 4px solid transparent"
            rows.append(f'<div style="{mark}; padding-left: 8px">{html.escape(text) or " "}{was}</div>')
        return ('<div style="font: var(--jp-code-font-size, .9em) monospace; white-space: pre; '
                f'overflow-x: auto">{"".join(rows)}</div>')

def changes(
    old,  # a kernel or function
    new,  # the one that came of it
) -> Changes:
    "The source of `new`, marked where it differs from `old`."
    names = [(kernel_parts(x) or [x])[0].__name__ for x in (old, new)]
    before, after = (source_of(x).rstrip().splitlines() for x in (old, new))
    def neutral(lines, name): return [line.partition("  #")[0].strip().replace(name, "kernel") for line in lines]
    matcher = difflib.SequenceMatcher(None, *map(neutral, (before, after), names), autojunk=False)
    lines = []
    for kind, a, a_end, b, b_end in matcher.get_opcodes():
        one_to_one = kind == "replace" and a_end - a == b_end - b <= 3
        lines += [(after[i], kind != "equal", before[a + i - b].strip() if one_to_one else None)
                  for i in range(b, b_end)]
    return Changes(lines)


# What an exercise is

@dataclass
class Verdict:
    "One line of a scoreboard."
    name: str
    ok: bool         # None: not judged
    found: str = ""
    hint: str = ""
    view: View = field(default=None, repr=False)  # what a goal that isn't reached was counted in, if the microscope did

    @property
    def failed(self): return self.ok is False

@dataclass(frozen=True)
class Case:
    "One launch of a kernel, and the result that it must have."
    name: str
    block: tuple    # threads
    grid: tuple     # blocks
    make: Callable  # function of a random generator → (arguments, {position: expected array})
    shared_bytes: int = 0   # of dynamic shared memory
    call: Callable = None   # in the simulator: (configured kernel, arguments); passes them on as they are if None
    signature: str = None   # types of the kernel's arguments, where they are not those of these
    constants: dict = None  # instead of the exercise's; empty: those of the page
    size: tuple = ()        # m, n, k of a product

@dataclass(frozen=True)
class Goal:
    "A number that a kernel is to reach, counted without a GPU."
    name: str
    measure: Callable      # of what `counted` names: a number, or a `Site`
    most: float = None     # its limits
    least: float = None
    unit: str = ""
    hint: str = ""
    counted: str = "accesses"  # of one block, in a `View`; "launches": in the `Counts` of a whole launch; "code": in a `MachineCode`

@dataclass(frozen=True)
class Counts:
    "What a whole launch did."
    stores: dict   # argument → how many elements were stored to it
    barriers: int  # that a thread of a block passed, at most

@dataclass(frozen=True)
class Mutant:
    "A correct solution with one mistake."
    name: str
    old: str      # text of the solution that occurs in it once …
    new: str      # … and what stands there instead
    verdict: str  # the one that must fail
    of: str = "reference"


@dataclass(frozen=True)
class Exercise:
    "What a reader is to write, how it is judged, and how the judge is judged."
    key: str
    name: str               # of the reader's function
    cases: tuple = ()       # the first one is cheap; the goals are counted in it
    goals: tuple = ()
    hints: dict = field(default_factory=dict)      # verdict, or "verdict: a text that it tells" → what to think about
    constants: dict = field(default_factory=dict)  # values that names of the page have while it is graded
    compiled: dict = None   # and those for the machine code, if others
    preamble: str = ""      # source before each solution
    solutions: dict = field(default_factory=dict)  # name → source; "reference" and at least two others
    mutants: tuple = ()
    launch: Callable = None  # (m, n) → grid, block of the page's own launch, for the speed on a GPU
    host: Callable = None    # kernel → host function (a, b, c), for the speed of one that takes more than a launch
    judge: Callable = None   # for what isn't a kernel: (exercise, subject) → list of `Verdict`s

    def source(self, variant):
        "The source of a solution by its name, or of a `Mutant`."
        if isinstance(variant, str): return self.solutions[variant]
        base = self.solutions[variant.of]
        if base.count(variant.old) != 1:
            raise ValueError(f"exercise {self.key}, {variant.name!r}: {variant.old!r} occurs "
                             f"{base.count(variant.old)} times in {variant.of!r}, not once")
        return base.replace(variant.old, variant.new)

    def build(self, variant):
        "What the source of a variant defines under the exercise's name."
        text = _PRELUDE + self.preamble + self.source(variant)
        file = f"<exercise {self.key}, {hashlib.sha256(text.encode()).hexdigest()[:12]}>"
        linecache.cache[file] = len(text), None, text.splitlines(True), file
        scope = {"__name__": f"exercise_{self.key}"} | self.constants
        exec(compile(text, file, "exec"), scope)
        return scope[self.name]

_PRELUDE = "import numpy as np\nfrom numba import cuda, float32, int32, int64, uint32\n"


def matmul_case(
    m,      # rows of A
    n,      # columns of B
    k,      # columns of A, rows of B
    block,  # threads
    grid,   # blocks: enough to cover C whether its rows run along x or along y
    constants=None,  # see `Case`
) -> Case:
    "A launch (a, b, c) with random A and B, and NaN in C."
    def make(random):
        a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
        expected = a.astype(np.float64) @ b
        return (a, b, np.full((m, n), np.nan, np.float32)), {2: expected}
    shape = f", blocks of {'×'.join(map(str, block))}" if isinstance(block, tuple) and len(block) > 1 else ""
    return Case(f"{m}×{n}×{k}{shape}", block, grid, make, constants=constants, size=(m, n, k))

def in_float64(code): return sum(code.mix.get(kind, 0) for kind in ("DFMA", "float64"))

NO_FLOAT64 = Goal("float64", in_float64, most=0, unit="instructions in float64 in the main loop", counted="code",
                  hint="for the compiler 0.0 and 1.0 are float64, and 0 is an integer: write float32(0); and so is what comes of an unsigned and a signed number of 64 bits, and an array without float32")


# The verdicts

VERDICTS = {  # name → the hint, where an exercise has no better one
    "written": "replace the dots with lines of your own",
    "compiles: must be known to the compiler": "give the number a name above the kernel",
    "compiles: returns a value": "a kernel has no result: store it in an element of an array",
    "compiles: missing": "count the arguments of that call: load4 returns four numbers, and a star, *load4(…), passes them one by one",
    "compiles: np.": "numpy works on whole arrays on the host; a thread adds up numbers, in a loop of its own",
    "compiles: cannot unpack non-iterable int": "cuda.grid(1) returns one number, and cuda.grid(2) a pair",
    "compiles: 'array' and 'array'": "a kernel has no arithmetic on whole arrays: write a loop over their elements",
    "compiles: not associated with a value": "give the name a value in every thread that uses it, before the loop or the branch",
    "compiles": "the message names the line; a GPU's compiler knows only a part of Python",
    "ends: It's slow": "a thread computes only its own results: does a loop run over the work of others?",
    "ends": "does the loop's counter change in every turn, and by a positive step?",
    "in bounds: is negative": "an index counts from 0: what is subtracted, and may it be too large?",
    "in bounds": "compare the index with the shape of the array before you use it",
    "aligned": "an access of 16 bytes begins at a multiple of four floats, and a shared array promises that by alignment=16",
    "all written": "which thread writes this element, and is there a barrier between that and the read?",
    "no races: with no flag": "two blocks use this element: does the index say which block it is, by blockIdx?",
    "no races: was read by": "one thread still reads this element when another writes its next value: put a barrier between the two, in each turn",
    "no races: and is written by": "two threads write this element: does each write only what is its own, and does the index belong to one of them alone?",
    "no races": "two threads use one element: put a barrier between the write and the other access",
    "one writer": "several threads do the same work: give each element to one of them",
    "barriers": "all threads of the block must reach the same barrier: move it out of the branch",
    "one store each": "add up in a variable of your own, and store it once, after all loops over k",
    "fences": "a copy works on its own, and sees what threads have made only after a fence",
    "correct: in the wrong places": "the sums are right, and the place is not: are row and column exchanged somewhere, or is the corner of the block's "
                                    "tile missing or another block's?",
    "correct: was stored": "the arrays for results are full of NaN before the launch, and NaN + x is NaN: does += stand where = belongs?",
    "correct": "follow the first wrong element by hand: which thread computes it, from what?",
}
KINDS = (("no races", "race:", "is written while an asynchronous copy", "two asynchronous copies at once",
          "is multiplied still", "overwritten after the product", "where a store may still read"),
         ("all written", "before it was written", "while an asynchronous copy"),
         ("barriers", "barrier not reached", "swap values at different lines", "threads meet at", "mbarrier that thread",
          "no mbarrier", "at an mbarrier"),
         ("fences", "fence_mbarrier_init", "fence_proxy"),
         ("ends", "ends while copies", "has not waited for its products"),
         ("correct", "descriptors", "only the 128-byte swizzle"),
         ("aligned", "which is not a multiple of", "which is declared for"),
         ("in bounds", "out of bounds", "is negative"))


def unwritten(fn):
    "The verdict on a function or a kernel that still has dots, other than in an index; `None` if it has none."
    tree = parsed(source_of(fn))
    indices = {id(node) for part in ast.walk(tree) if isinstance(part, ast.Subscript)
               for node in ast.walk(part.slice)}
    lines = [node.lineno for node in ast.walk(tree)
             if isinstance(node, ast.Constant) and node.value is ... and id(node) not in indices]
    if not lines: return None
    return Verdict("written", False, f"not written yet: line {_line_of(fn, min(lines))} still has the dots")

def _line_of(fn, number):
    "The line of a file, or of a cell, that is this one of a function's or a kernel's source."
    return (kernel_parts(fn) or [fn])[0].__code__.co_firstlineno + number - 1

def _returns(kernel):
    "The line in which a kernel returns a value; `None` if it doesn't. A function inside it may."
    nodes = [*parsed(source_of(kernel)).body[0].body]
    while nodes:
        node = nodes.pop()
        if isinstance(node, (ast.FunctionDef, ast.Lambda)): continue
        if isinstance(node, ast.Return) and getattr(node.value, "value", node.value) is not None: return _line_of(kernel, node.lineno)
        nodes += ast.iter_child_nodes(node)


def _play(launches):
    "In a child: run the launches. What is left of each, or the number of one and its mistake; and what the kernel printed."
    left, printed = [], io.StringIO()
    with redirect_stdout(printed):
        for number, (launch, args, call) in enumerate(launches):
            try: call(launch, args) if call else launch(*args)
            except SimulatorError as e: return number, str(e), _shortened(printed.getvalue())
            except Exception as e: return number, f"{type(e).__name__}: {e}", _shortened(printed.getvalue())
            left.append((args, [*launch.grid.remarks.values()], Counts(launch.grid.stores, launch.grid.barriers)))
    return None, left, _shortened(printed.getvalue())

def _shortened(text, lines=10, columns=100):
    "The first lines of a text, and how many more there are."
    found = text.splitlines()
    shown = [line if len(line) <= columns else f"{line[:columns]}…" for line in found[:lines]]
    return "\n".join(shown + [f"… and {len(found) - lines:,} more lines"] * (len(found) > lines))

def without_source(
    message,  # of the simulator
    fn,       # a kernel or a function
) -> str:
    "The message without the lines of the source that it quotes."
    for line in sorted({line.strip() for line in source_of(fn).splitlines()}, key=len, reverse=True):
        if line: message = message.replace(f": {line}", "")
    return message

def kind_of(
    message,  # of the simulator
    kernel,   # whose it is
    kinds=KINDS,  # rows of a verdict and of the words by which it is known; the first that fits counts
    otherwise="compiles",
) -> str:
    "By which verdict a message of the simulator is told."
    told = without_source(message, kernel)
    return next((name for name, *words in kinds if any(word in told for word in words)), otherwise)


def _wrong(names, given, left, expected, stores):
    "What is wrong with the arrays that a launch left, in a sentence; `None` if nothing is."
    for i, (before, after) in enumerate(zip(given, left)):
        if not isinstance(before, np.ndarray): continue
        if i not in expected:
            if not np.array_equal(before, after): return f"{names[i]} was changed, and it is only to be read"
            continue
        limit = 1e-5 * (1 + np.max(abs(expected[i]), initial=0))
        bad = ~(abs(after.astype(np.float64) - expected[i]) <= limit)  # NaN, too
        if not bad.any(): continue
        where = tuple(int(x) for x in np.argwhere(bad)[0])
        def place(index): return f"{names[i]}[{', '.join(map(str, index))}]"
        if np.isnan(after[bad]).all():
            if stores.get(names[i], 0) + bad.sum() > bad.size: return f"{bad.sum():,} of {bad.size:,} elements are NaN, and each was stored: first {place(where)}"
            return f"{bad.sum():,} of {bad.size:,} elements were never written: first {place(where)}"
        at = np.argsort(expected[i], axis=None)
        sums, found = expected[i].ravel()[at], after[bad & ~np.isnan(after)]
        near = np.searchsorted((sums[1:] + sums[:-1]) / 2, found)  # of each wrong number the nearest right one
        if len(found) > 1 and not np.isnan(after[where]) and (abs(sums[near] - found) <= limit).all():
            home = np.unravel_index(at[near[0]], expected[i].shape)
            return (f"{len(found):,} of {bad.size:,} elements hold right numbers in the wrong places: first {place(where)}, "
                    f"which has what belongs into {place(home)}")
        return f"{bad.sum():,} of {bad.size:,} elements are wrong: first {place(where)} = {after[where]:.5g}, expected {expected[i][where]:.5g}"

def _refusal(message, kernel):
    "Why the compiler refuses a kernel, in one line, and in which line of the source: where it names a function, the line that calls it."
    called = re.search(r">>> (\w+)(\(.*\))|<ufunc '(\w+)'>", message)
    if called:
        name = called[1] or called[3]
        for node in ast.walk(parsed(source_of(kernel))):
            if isinstance(node, ast.Call) and name == getattr(node.func, "attr", getattr(node.func, "id", None)):
                return f"the compiler has no {ast.unparse(node.func)}{called[2] or ''}, in line {_line_of(kernel, node.lineno)}"
    line = re.search(r"^line (\d+):", message, re.MULTILINE)
    return message.partition("\n")[0] + (f", in line {line[1]}" if line else "")

def _first(message):
    "The first of several mistakes, and how many more there are."
    first, *more = message.splitlines() or [""]
    return first + (f" (and {len(more)} more)" if more else "")

_SINGULAR = {"copies": "copy", "k tiles are": "k tile is", "k tiles": "k tile", "loads and stores": "load or store",
             "loads, stores and bytes": "load, store or byte"}

def _amount(value, unit):
    "A number with its unit: `36,864 bytes`, `1 sector per request`."
    if value == 1:
        many = next((words for words in _SINGULAR if unit.startswith(words)), unit.split(" ")[0])
        unit = _SINGULAR.get(many, many.removesuffix("s")) + unit[len(many):]
    return f"{number_text(value)} {unit}".rstrip()


def reached(
    goal,   # a `Goal`
    value,  # what was counted: a number, or a `Site`, or a number and the line that it is of
) -> Verdict:
    "Is a goal reached?"
    where = ""
    if isinstance(value, Site): where, value = f"; line {value.line}: {value.text}", value.cost
    elif isinstance(value, tuple): value, where = value[0], f"; line {value[1]}"
    ok = not (goal.most is not None and value > goal.most + 1e-9
              or goal.least is not None and value < goal.least - 1e-9)
    text = _amount(value, goal.unit)
    return Verdict(goal.name, ok, text if ok else f"{text}, the goal is {_limit(goal)}{where}", goal.hint)

def _limit(goal):
    "The limits of a goal, in words."
    if goal.most == goal.least: return f"exactly {number_text(goal.most)}"
    if goal.most == 0: return "none"
    limits = ("at least", goal.least), ("at most", goal.most)
    return " and ".join(f"{word} {number_text(x)}" for word, x in limits if x is not None)

def _signature(args):
    "Types of a kernel's arguments."
    def kind(x):
        if not isinstance(x, np.ndarray): return "int64" if isinstance(x, int) else str(np.asarray(x).dtype)
        return f"{x.dtype}[{', '.join([':'] * (x.ndim - 1) + ['::1'])}]"
    return f"void({', '.join(map(kind, args))})"

_ARITHMETIC = (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Constant, ast.Name, ast.Tuple, ast.Store, ast.Load)

def _computed(fn, constants):
    "Names that stand above a kernel in its cell and are computed from others, as in `HALF = BN // 2`, computed anew from these constants."
    try: cell = parsed("".join(linecache.getlines(fn.__code__.co_filename)))
    except SyntaxError: return {}
    scope, found = fn.__globals__ | constants, {}
    for line in cell.body:
        if getattr(line, "name", None) == fn.__name__: break
        if not isinstance(line, ast.Assign) or any(not isinstance(node, _ARITHMETIC) for node in ast.walk(line) if node is not line): continue
        if not any(isinstance(node, ast.Name) for node in ast.walk(line.value)): continue
        made = {}
        try: exec(compile(ast.Module([line], []), "<constants>", "exec"), scope, made)
        except Exception: continue
        found |= {name: value for name, value in made.items() if name not in constants}
        scope |= found
    return found

def with_constants(
    kernel,     # a kernel
    constants,  # dict: name → value
):
    "The same kernel, with different values for global names that it uses, and what is computed from them above it."
    fn, options, _ = kernel_parts(kernel)
    if not constants: return kernel
    scope = fn.__globals__ | constants | _computed(fn, constants)
    for name, value in fn.__globals__.items():  # the reader's own device functions use them, too
        other, how, _ = kernel_parts(value) or (fn, {}, None)
        if how.get("device") and other.__globals__ is fn.__globals__ and name not in constants:
            scope[name] = cuda.jit(**how)(FunctionType(other.__code__, scope, other.__name__, other.__defaults__, other.__closure__))
    copy = FunctionType(fn.__code__, scope, fn.__name__, fn.__defaults__, fn.__closure__)
    return cuda.jit(**{"lineinfo": not options.get("debug")} | options)(copy)  # verdicts name lines


def constants_of(exercise, case):
    "The values that names of the page have in a case."
    return exercise.constants if case.constants is None else case.constants

def _told(exercise, case):
    "A case in words, with its constants."
    return f"{case.name}{_with(constants_of(exercise, case))}"

def _with(constants):
    values = [f"{name} = {value}" for name, value in constants.items() if isinstance(value, int)]
    return f" with {', '.join(values)}" if values else ""

def _all_told(exercise):
    "All cases in words, with their constants where those are the same for all."
    used = [constants_of(exercise, case) for case in exercise.cases]
    same = _with(used[0]) if all(one == used[0] for one in used) else ", each with constants of its own"
    return f"{'; '.join(case.name for case in exercise.cases)}{same}; random data"


def judge_kernel(
    exercise,  # an `Exercise`
    kernel,    # what the reader wrote
):
    "The verdicts on a kernel, one by one, up to the first that fails."
    parts = kernel_parts(kernel)
    if not parts:
        yield Verdict("compiles", False, f"{getattr(kernel, '__name__', kernel)!r} isn't a kernel",
                      "put @cuda.jit above its def")
        return
    if line := _returns(kernel):
        yield Verdict("compiles", False, f"line {line} returns a value, and a kernel can't")
        return
    if parts[1].get("device"):
        yield Verdict("compiles", False, f"{parts[0].__name__} is a device function, which only a kernel can call",
                      "put @cuda.jit above its def, without device=True")
        return
    random = np.random.default_rng()
    kernels = {id(case): with_constants(kernel, constants_of(exercise, case)) for case in exercise.cases}
    made = [case.make(random) for case in exercise.cases]
    try: all_arguments(parts[0], made[0][0])
    except TypeError as e:
        yield Verdict("compiles", False, str(e), "a kernel takes the arguments that the page shows, in that order")
        return
    launches = [(kernels[id(case)][case.grid, case.block, 0, case.shared_bytes], args, case.call)
                for case, (args, _) in zip(exercise.cases, made)]
    try: number, result, printed = in_child(_play, launches, simulator=True, timeout=TIMEOUT, keep=True)
    except ChildError as e:
        yield Verdict("ends", False, _first(str(e)))
        return
    if printed: yield Verdict("printed", None, printed)
    if number is not None:
        name = kind_of(result, kernel)
        told = exercise.cases[number].name if name == "compiles" else _told(exercise, exercise.cases[number])
        yield Verdict(name, False, f"{told}: {_first(result)}")
        return
    names = parts[0].__code__.co_varnames
    for case, (args, expected), (left, remarks, counts) in zip(exercise.cases, made, result):
        if wrong := _wrong(names, args, left, expected, {} if remarks else counts.stores):
            yield Verdict("correct", False, f"{_told(exercise, case)}: {wrong}")
            return
    if remarks := [text for _, remarks, _ in result for text in remarks]:
        yield Verdict("one writer", False, _first("\n".join(remarks)))
        return
    for case, (_, expected), (*_, counts) in zip(exercise.cases, made, result):
        for i, values in expected.items():
            if (stores := counts.stores[names[i]]) != values.size:
                yield Verdict("one store each", False, f"{_told(exercise, case)}: {stores:,} stores to {names[i]}, "
                                                       f"which has {values.size:,} elements")
                return
    yield Verdict("in bounds", True)
    yield Verdict("no races", True, "every element written before it is read, all barriers reached")
    yield Verdict("correct", True, _all_told(exercise))
    yield from _judge_goals(exercise, kernels[id(exercise.cases[0])], launches[0][0], made[0][0], result[0][-1])


def _judge_goals(exercise, kernel, configured, args, counts):
    "The goals, the cheap ones first, and whether the kernel compiles."
    found = {"launches": counts}
    def see(counted):
        "What the goals of a kind are counted in."
        if counted == "accesses": found[counted] = found.get(counted) or _accesses(exercise, configured, args)
        elif counted not in found:
            compiled = with_constants(kernel, exercise.compiled)
            if exercise.launch: compiled = compiled[exercise.launch(4096, 4096)]  # has a multiprocessor so many registers?
            found[counted] = machine_code(compiled, exercise.cases[0].signature or _signature(args))
        return found[counted]
    for kind in "launches", "accesses", "code":
        goals = [goal for goal in exercise.goals if goal.counted == kind]
        if kind == "code":
            if not has_compiler():
                yield from (Verdict(goal.name, None, NO_COMPILER) for goal in goals)
                return
            try: see("code")
            except CompileError as e: yield Verdict("compiles", False, _refusal(str(e), kernel))
            else: yield Verdict("compiles", True)
            if "code" not in found: return
        for goal in goals:
            try: verdict = reached(goal, goal.measure(see(kind)))
            except (ValueError, SimulatorError) as e: verdict = Verdict(goal.name, False, str(e), goal.hint)
            if verdict.failed and kind == "accesses": verdict.view = found.get(kind)
            yield verdict
            if verdict.failed: return

def _accesses(exercise, configured, args):
    "What a block asks of memory. The arguments have the names that the goals know, whatever the reader calls them."
    canonical = re.search(rf"def {exercise.name}\((.*?)\)", exercise.solutions["reference"])[1].split(", ")
    names = kernel_parts(configured)[0].__code__.co_varnames
    return microscope(configured, *args, blocks=[(0, 0, 0)]).renamed(dict(zip(names, canonical)))

NO_COMPILER = "not judged: it is counted in the machine code, which needs numba-cuda"
TIMEOUT = 20  # seconds for all cases of a kernel

def verdicts(
    exercise,  # an `Exercise`
    subject,   # what the reader wrote: a kernel
) -> list:     # of `Verdict`s
    "Judge a subject, up to the first verdict that fails."
    if not kernel_parts(subject) and not inspect.isfunction(subject):
        return [Verdict("written", False, f"{subject!r} isn't a function", "pass your function or kernel itself, without calling it")]
    if dots := unwritten(subject): found = [dots]
    else: found = [Verdict("written", True), *(exercise.judge or judge_kernel)(exercise, subject)]
    for verdict in found:
        if not verdict.failed: continue
        told = without_source(verdict.found, subject)
        def hinted(hints, for_words):
            "The hint to this verdict alone, or to words in it."
            return next((hint for key, hint in hints.items() for name, _, word in [key.partition(": ")]
                         if name == verdict.name and bool(word) == for_words and word in told), "")
        of = exercise.hints
        verdict.hint = (hinted(of, True) or hinted(VERDICTS, True) or hinted(of, False) or verdict.hint
                        or hinted(VERDICTS, False))
    return found


@dataclass
class Scoreboard:
    "The verdicts on what a reader wrote, a line each."
    verdicts: list
    left: tuple = ()  # names of verdicts that were not reached
    beside: str = ""  # what the reader's kernel asks of memory, and what the reference does, where that is the mistake

    @property
    def passed(self):
        "Is all as it should be?"
        return not any(verdict.failed for verdict in self.verdicts)

    @property
    def width(self):
        "Characters of the longest name."
        return max(len(name) for name in (*(v.name for v in self.verdicts), *self.left))

    def __repr__(self):
        width, lines = self.width, []
        for v in self.verdicts:
            found = v.found.replace("\n", "\n" + " " * (width + 4))
            lines.append(f"{'·' if v.ok is None else '✓' if v.ok else '✗'} {v.name:{width}}  {found}".rstrip())
            if v.failed and v.hint: lines.append(f"  {'':{width}}  Hint: {v.hint}")
        lines += [f"· {name:{width}}  not judged yet" for name in self.left]
        return "\n".join([*lines, "", self.beside] if self.beside else lines)

    def _repr_html_(self):
        style, hang = "font: var(--jp-code-font-size, 1em) monospace", self.width + 4  # a long line goes on under its text
        rows = [f'<div style="white-space: pre-wrap">{html.escape(line) or " "}</div>' for line in repr(self).splitlines()]
        return "\n".join([f'<div style="{style}; padding-left: {hang}ch; text-indent: -{hang}ch">', *rows, "</div>"])

def exercises():
    "All exercises by key."
    import numba_matmul.exercises as folder
    modules = sorted(module.name for module in pkgutil.iter_modules(folder.__path__))
    found = [import_module(f"{folder.__name__}.{name}").EXERCISES for name in modules]
    return {exercise.key: exercise for group in found for exercise in group}


def exercise_of(
    key,  # "02", or 2
) -> Exercise:
    "The exercise of a key. `ValueError` if there is none."
    known, number = exercises(), re.fullmatch(r"(\d+)([a-z]?)", str(key))
    if (padded := number and f"{int(number[1]):02}{number[2]}") not in known:
        raise ValueError(f"there is no exercise {key!r}; there are {', '.join(known)}")
    return known[padded]

def _speed(exercise, kernel):
    "On a GPU: how fast the kernel is, in the launch of its page."
    def host(a, b, c): kernel[exercise.launch(*c.shape)](a, b, c)
    if exercise.host: host = exercise.host(kernel)
    try: time = measure_runtime(host, 4096, 4096, 4096, do_print=False, kernel_name=kernel_parts(kernel)[0].__name__)
    except (AssertionError, RuntimeError, ValueError) as e: return Verdict("speed", False, f"at 4096: {_first(str(e))}")
    return Verdict("speed", True, f"{time.gflops:,.0f} GFLOP/s at 4096, {time.percent:.1f} % of cuBLAS")

def _beside(exercise, view):
    "What a reader's kernel asks of memory, and what the reference solution does, in the first case."
    case, kernel = exercise.cases[0], exercise.build("reference")
    launch = kernel[case.grid, case.block, 0, case.shared_bytes]
    reference = _accesses(exercise, launch, case.make(np.random.default_rng())[0])
    return f"Your kernel, {case.name}:\n{view!r}\n\nThe reference solution:\n{reference!r}"

def grade(
    key,      # of the exercise, the lesson's number: "02", or 2
    subject,  # what you wrote
) -> Scoreboard:
    "Judge what you wrote, without a GPU; on a GPU, once all is right, time it as well."
    exercise = exercise_of(key)
    found = verdicts(exercise, subject)
    reached = {verdict.name for verdict in found}
    left = () if not exercise.cases or not any(v.failed for v in found) else tuple(
        name for name in ("correct", *(goal.name for goal in exercise.goals)) if name not in reached)
    wrong = next((v.view for v in found if v.view), None)
    board = Scoreboard(found, left, wrong and _beside(exercise, wrong) or "")
    timed = exercise.launch or exercise.host
    if board.passed and timed and not config.ENABLE_CUDASIM: found.append(_speed(exercise, subject))
    return board


# Who judges the judge?

def outcome(
    exercise,  # an `Exercise`
    variant,   # the name of a solution, or a `Mutant`
) -> tuple:    # (did it come out as it should, what was found)
    "Judge a variant: a correct solution must pass, a mutant fail by its own verdict."
    found = verdicts(exercise, exercise.build(variant))
    failed = next((verdict for verdict in found if verdict.failed), None)
    if isinstance(variant, str): return failed is None, f"{failed.name}: {failed.found}" if failed else "passes"
    if failed is None: return False, "passes, and must not"
    return failed.name == variant.verdict, f"{failed.name}: {failed.found}"

def variants(exercise):
    "The correct solutions by name, and the mutants."
    return [*exercise.solutions, *exercise.mutants]

def table(
    exercise,  # an `Exercise`
) -> Markdown:
    "The mistakes that an exercise catches, and the verdict on each."
    rows = [f"| {mutant.name.replace('|', chr(92) + '|')} | {mutant.verdict} |" for mutant in exercise.mutants]
    return Markdown("| mistake | verdict |\n|---|---|\n" + "\n".join(rows))

def solutions(
    key,  # of the exercise: "02", or 2
) -> Markdown:
    "The goals of an exercise, correct solutions, and the mistakes that it catches. They give it away."
    exercise = exercise_of(key)
    goals = [f"| {goal.name} | {_limit(goal).replace('none', 'no')} {goal.unit} |" for goal in exercise.goals]
    parts = ["| goal | |\n|---|---|\n" + "\n".join(goals)] if goals else []
    parts += [f"**{name[0].upper()}{name[1:]}**\n\n```python\n{exercise.solutions[name].strip()}\n```" for name in exercise.solutions]
    return Markdown("\n\n".join([*parts, "**Mistakes that it catches**", table(exercise)]))

def _grade_all(keys):
    "Judge every variant of the exercises; how many did not come out as they should."
    known = exercises()
    if unknown := set(keys) - set(known):
        sys.exit(f"no exercise {', '.join(map(repr, sorted(unknown)))}; there are {', '.join(known)}")
    tasks = [(known[key], variant) for key in keys or known for variant in variants(known[key])]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()) as pool:
        results = list(pool.map(lambda task: outcome(*task), tasks))
    counts = Counter()
    for (exercise, variant), (ok, found) in zip(tasks, results):
        counts[exercise.key, isinstance(variant, str)] += 1
        if not ok or len(keys) == 1: print(f"{'ok   ' if ok else 'WRONG'} {exercise.key} {getattr(variant, 'name', variant)}: {found}")
    for key in keys or known:
        print(f"{key}: {counts[key, True]} correct, {counts[key, False]} wrong solutions")
    wrong = sum(not ok for ok, _ in results)
    print(f"{len(results) - wrong} of {len(results)} variants came out as they should")
    return wrong


@call_parse
def main(
    keys: Param("of exercises, as in 02 03; all if none", str, nargs="*"),
):
    "Judge every correct and every wrong solution of the exercises; the exit status is 1 unless each comes out as it should."
    from numba_matmul import exercise  # the module itself: its classes are those of the exercises
    empty = [""] * ("" in sys.orig_argv[1:])  # fastcore drops it where it comes first
    sys.exit(bool(exercise._grade_all([*(keys or ()), *empty])))
