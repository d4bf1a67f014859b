"""How a kernel is judged: what it does in the strict simulator, whether its results are correct, and whether
it reaches the exercise's goals. Each finding is a `Verdict`; the first failure ends it."""
import ast
import inspect
import io
import re
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from types import CodeType

import numpy as np
from .compiler import CompileError, machine_code
from .draw import number_text
from .microscope import Site, View, microscope
from .process import ChildError, has_compiler, in_child, kernel_parts
from .sim.arguments import all_arguments
from .sim.launch import WATCHABLE as WATCHABLE_KINDS
from .sim.launch import assigned_names, idle_statements, joined_first
from .sim.scheduler import SimulatorError
from .source import function_of, line_of, source_of, with_constants
from .syntax import parsed


@dataclass
class Verdict:
    "One line of a scoreboard."
    name: str
    ok: bool         # None: not judged
    found: str = ""
    hint: str = ""
    view: View = field(default=None, repr=False)    # in which a missed goal was counted
    mistake: tuple = field(default=(), repr=False)  # wrong results: the case, and what is wrong
    launch: tuple = field(default=(), repr=False)   # in which it failed, and its arguments

    @property
    def failed(self): return self.ok is False


VERDICTS = {  # name → the hint, unless an exercise has a better one
    "written": "replace the dots with lines of your own",
    "your own": "write it yourself: the library's version is there to compare with after you pass",
    "compiles: must be known to the compiler": "define the number above the kernel",
    "compiles: returns a value": "a kernel can't return a value: store it in an array",
    "compiles: missing": (
        "count the arguments of that call: load4 returns four numbers, and the star in *load4(…) passes them "
        "one by one"),
    "compiles: np.": (
        "numpy works on whole arrays on the host; a thread adds up numbers in a loop of its own"),
    "compiles: cannot unpack non-iterable int": "cuda.grid(1) returns one number, cuda.grid(2) a pair",
    "compiles: 'array' and 'array'": (
        "a kernel can't do arithmetic on whole arrays: write a loop over the elements"),
    "compiles: not associated with a value": (
        "assign the variable in every thread that uses it, before the loop or the branch"),
    "compiles: 'Float'": "float32 is a type, and float32(0) a number",
    "compiles: can't be indexed": (
        "x = … gives the name x another value; to store an element, write x[i] = …"),
    "compiles: is not defined": (
        "a kernel knows its arguments, its own variables, and what was defined or imported before it"),
    "compiles": "see the line in the message; the compiler for GPUs only supports a subset of Python",
    "ends: It's slow": "a thread computes only its own results: does a loop cover other threads' work too?",
    "ends": "does the loop counter change in every iteration, by a positive step?",
    "in bounds: is negative": "indices start at 0: what do you subtract, and can it be too large?",
    "in bounds": "compare the index with the shape of the array before you use it",
    "aligned": (
        "a 16-byte access starts at a multiple of four floats, and a shared array guarantees that with "
        "alignment=16"),
    "all written": "which thread writes this element? Is there a barrier between its write and this read?",
    "no races: with no flag": (
        "two blocks use this element: does the index depend on blockIdx?"),
    "no races: was read by": (
        "one thread is still reading this element when another writes its next value: put a barrier between "
        "the two, in every iteration"),
    "no races: and is written by": (
        "two threads write this element: does each one write only its own elements, and does this index "
        "belong to just one of them?"),
    "no races": "two threads access the same element: put a barrier between the write and the other access",
    "one writer": "several threads do the same work: give each element to one of them",
    "barriers": "all threads of the block must reach the same barrier: move it out of the branch",
    "one store each": "accumulate in a local variable and store it once, after all loops over k",
    "fences": "a copy is asynchronous, and sees what threads wrote only after a fence",
    "correct: in the wrong places": (
        "the sums are right but in the wrong place: are row and column swapped somewhere, or is the corner "
        "of the block's tile missing or wrong?"),
    "correct: was stored": (
        "result arrays are full of NaN before the launch, and NaN + x is NaN: did you write += where = "
        "belongs?"),
    "correct": "trace the first wrong element by hand: which thread computes it, and from what?"}
VERDICT_OF = {  # kind of a `SimulatorError` → the verdict that fails
    "race": "no races", "uninitialized": "all written", "barrier": "barriers", "deadlock": "ends",
    "fence": "fences", "unfinished": "ends", "descriptor": "correct",
    "alignment": "aligned", "bounds": "in bounds"}
WATCHABLE = {VERDICT_OF[kind] for kind in WATCHABLE_KINDS}


# Is it written, and is it the reader's own work?

def unwritten(fn):
    "The verdict on a function or kernel that still contains dots, other than in an index; else `None`."
    tree = parsed(source_of(fn))
    indices = {id(node) for part in ast.walk(tree) if isinstance(part, ast.Subscript)
               for node in ast.walk(part.slice)}
    lines = [node.lineno for node in ast.walk(tree)
             if isinstance(node, ast.Constant) and node.value is ... and id(node) not in indices]
    if lines:
        return Verdict("written", False,
                       f"not written yet: line {line_of(fn, min(lines))} still has the dots")

def _returns(kernel):
    "The line where a kernel returns a value; `None` if it doesn't. Nested functions may."
    nodes = [*parsed(source_of(kernel)).body[0].body]
    while nodes:
        node = nodes.pop()
        if isinstance(node, (ast.FunctionDef, ast.Lambda)): continue
        if isinstance(node, ast.Return) and getattr(node.value, "value", node.value) is not None:
            return line_of(kernel, node.lineno)
        nodes += ast.iter_child_nodes(node)

def _codes(code):
    "The instructions of a code object and of nested ones."
    return {code.co_code}.union(*(_codes(inner) for inner in code.co_consts if isinstance(inner, CodeType)))

def _is_the_librarys(fn, page):
    "Is a function from a kernel module, or redefined by a cell of the lesson? The name alone doesn't count."
    if (fn.__globals__.get("__name__") or "").startswith("numba_matmul.kernels."): return True
    theirs = getattr(page, _root(fn), None)  # itself, or the factory that made it
    code = getattr(function_of(theirs), "__code__", None)
    return bool(code) and fn.__code__.co_code in _codes(code)

def _root(fn):
    "The name of a function, or of the factory that made it."
    return fn.__qualname__.partition(".")[0]

def borrowed(exercise, subject):
    "The verdict on a subject that is, or calls, a library solution; `None` if it's the reader's own."
    given = function_of(exercise.build("reference")).__globals__
    left, seen = [(None, function_of(subject))], set()
    while left:
        caller, fn = left.pop()
        if fn in seen: continue
        seen.add(fn)
        if _is_the_librarys(fn, exercise.page):
            if _root(fn) in given: continue
            calls = f"{caller.__name__} calls {fn.__name__}, which" if caller else fn.__name__
            return Verdict("your own", False, f"{calls} is the library's own solution")
        # the exercise's constants are replaced anyway
        names = [name for name in fn.__code__.co_names if name not in exercise.constants]
        called = [kernel_parts(fn.__globals__.get(name)) for name in names]
        left += [(fn, parts[0]) for parts in called if parts]


# A run in the simulator

@dataclass(frozen=True)
class Counts:
    "What a whole launch did."
    stores: dict   # argument → how many elements were stored to it
    barriers: int  # the most passed by any thread of a block

def verdict_and_text(
    error: Exception,  # raised by a launch
    verdict_of: dict = VERDICT_OF,  # kind of a `SimulatorError` → verdict
) -> tuple:
    "The verdict an error belongs to, and its first mistake."
    text = first_of(str(error))
    if not isinstance(error, SimulatorError): return "compiles", f"{type(error).__name__}: {text}"
    return verdict_of.get(error.kind, "compiles"), text

def _play(launches):
    "In a child: each launch's results, or a launch's number and its mistake; and what the kernel printed."
    left, printed = [], io.StringIO()
    with redirect_stdout(printed):
        for number, (launch, args, call) in enumerate(launches):
            try:
                if call: call(launch, args)
                else: launch(*args)
            except Exception as e: return number, verdict_and_text(e), _shortened(printed.getvalue())
            left.append((args, [*launch.grid.remarks.values()],
                         Counts(launch.grid.stores, launch.grid.barriers)))
    return None, left, _shortened(printed.getvalue())

def _shortened(text, lines=10, columns=100):
    "The first lines of a text, and how many follow."
    found = text.splitlines()
    shown = [line if len(line) <= columns else f"{line[:columns]}…" for line in found[:lines]]
    return "\n".join(shown + [f"… and {len(found) - lines:,} more lines"] * (len(found) > lines))

def first_of(message):
    "The first of several mistakes, and how many follow."
    first, *more = message.splitlines() or [""]
    return first + (f" (and {len(more)} more)" if more else "")

def wrong_elements(name, found, expected, stores=0, places=True):
    """What is wrong with an array: one word and a sentence; `None` if nothing is.

    Right numbers in wrong places are reported unless `places` is false: they may be there by chance."""
    limit = 1e-5 * (1 + np.max(abs(expected), initial=0))
    bad = ~(abs(found.astype(np.float64) - expected) <= limit)  # NaN too
    if not bad.any(): return None
    where = tuple(np.argwhere(bad)[0].tolist())
    count, first = f"{bad.sum():,} of {bad.size:,} elements", f"first {name}{[*where]}"
    if np.isnan(found[bad]).all():
        if stores + bad.sum() > bad.size: return "NaN", f"{count} are NaN, and each was stored: {first}"
        return "never written", f"{count} were never written: {first}"
    # the expected number closest to each wrong one
    order = np.argsort(expected, axis=None)
    sums, numbers = expected.ravel()[order], found[bad & ~np.isnan(found)]
    near = np.searchsorted((sums[1:] + sums[:-1]) / 2, numbers)
    moved = len(numbers) > 1 and not np.isnan(found[where]) and (abs(sums[near] - numbers) <= limit).all()
    if places and moved:
        home = np.unravel_index(order[near[0]], expected.shape)
        count = f"{len(numbers):,} of {bad.size:,} elements"
        return "elsewhere", (f"{count} hold right numbers in the wrong places: {first}, "
                             f"which holds the value for {name}{[*map(int, home)]}")
    return "wrong", f"{count} are wrong: {first} = {found[where]:.5g}, expected {expected[where]:.5g}"

def _wrong(names, given, left, expected, stores, places):
    "What is wrong with the arrays after a launch: one word and a sentence; `None` if nothing is."
    for i, (before, after) in enumerate(zip(given, left)):
        if i in expected:
            wrong = wrong_elements(names[i], after, expected[i], stores.get(names[i], 0), places)
            if wrong: return wrong
        elif isinstance(before, np.ndarray) and not np.array_equal(before, after):
            return "changed", f"{names[i]} was changed, but it's read-only"


# Goals

_SINGULAR = {"copies": "copy",
             "k tiles are": "k tile is",
             "k tiles": "k tile",
             "loads and stores": "load or store",
             "global loads or stores": "global load or store",
             "loads, stores and bytes": "load, store or byte"}

def _unit(value, unit):
    "The unit of a number: `bytes`, or `sector per request` of 1."
    if value != 1: return unit
    many = next((words for words in _SINGULAR if unit.startswith(words)), unit.split(" ")[0])
    return _SINGULAR.get(many, many.removesuffix("s")) + unit[len(many):]

def _amount(value, unit):
    "A number with its unit: `36,864 bytes`, `1 sector per request`."
    return f"{number_text(value)} {_unit(value, unit)}".rstrip()

def reached(
    goal,   # a `Goal`
    value: float | Site | tuple,  # what was counted: a number, or a `Site`, or a number and its line
) -> Verdict:
    "The verdict on a goal."
    where = ""
    if isinstance(value, Site): value, where = value.cost, f"; line {value.line}: {value.text}"
    elif isinstance(value, tuple):  # the compiler may not know the line
        value, where = value[0], f"; line {value[1]}" * bool(value[1])
    ok = not (goal.most is not None and value > goal.most + 1e-9
              or goal.least is not None and value < goal.least - 1e-9)
    text = _amount(value, goal.unit)
    return Verdict(goal.name, ok, text if ok else f"{text}, the goal is {limit_text(goal)}{where}", goal.hint)

def limit_text(goal, unit=""):
    "The limits of a goal, as text, with the unit of the last one if given."
    if goal.most == goal.least: return f"exactly {_amount(goal.most, unit)}"
    if goal.most == 0:
        if not unit or unit.startswith(("in ", "from ")): return f"none {unit}".rstrip()
        return f"no {unit.replace(' and ', ' or ')}"
    limits = [(word, x) for word, x in (("at least", goal.least), ("at most", goal.most)) if x is not None]
    text = " and ".join(f"{word} {number_text(x)}" for word, x in limits)
    return f"{text} {_unit(limits[-1][1], unit)}".rstrip()

def _signature(args):
    "Types of a kernel's arguments."
    def kind(x):
        if not isinstance(x, np.ndarray): return "int64" if isinstance(x, int) else str(np.asarray(x).dtype)
        return f"{x.dtype}[{', '.join([':'] * (x.ndim - 1) + ['::1'])}]"
    return f"void({', '.join(map(kind, args))})"

def accesses(exercise, configured, args):
    "A block's memory accesses. Arguments get the names the goals use, not the reader's."
    canonical = re.search(rf"def {exercise.name}\((.*?)\)", exercise.solutions["reference"])[1].split(", ")
    names = function_of(configured).__code__.co_varnames
    return microscope(configured, *args, blocks=[(0, 0, 0)]).renamed(dict(zip(names, canonical)))

def _refusal(message, kernel):
    "Why the compiler refuses a kernel, and on which line: the call's, if it names a function."
    if called := re.search(r">>> (\w+)(\(.*\))|<ufunc '(\w+)'>", message):
        name = called[1] or called[3]
        for node in ast.walk(parsed(source_of(kernel))):
            if not isinstance(node, ast.Call): continue
            if name == getattr(node.func, "attr", getattr(node.func, "id", None)):
                refused = f"{ast.unparse(node.func)}{called[2] or ''}"
                return f"the compiler doesn't support {refused}, in line {line_of(kernel, node.lineno)}"
    line = re.search(r"^line (\d+):", message, re.MULTILINE)
    return message.partition("\n")[0] + (f", in line {line[1]}" if line else "")

NO_COMPILER = "not judged: this is counted in the machine code, which needs numba-cuda"

def judge_code(goals, kernel, signature):
    "Does a kernel compile, and does its machine code reach these goals?"
    if not has_compiler():
        for name in [goal.name for goal in goals] or ["compiles"]: yield Verdict(name, None, NO_COMPILER)
        return
    try: code = machine_code(kernel, signature)
    except CompileError as e: yield Verdict("compiles", False, _refusal(str(e), kernel))
    yield Verdict("compiles", True)
    for goal in goals: yield reached(goal, goal.measure(code))

def _judge_goals(exercise, kernel, configured, args, counts):
    "The goals, the cheap ones first, and whether the kernel compiles."
    def goals(counted): return [goal for goal in exercise.goals if goal.counted == counted]
    for goal in goals("launches"): yield reached(goal, goal.measure(counts))
    view = None
    for goal in goals("accesses"):
        try:
            view = view or accesses(exercise, configured, args)
            verdict = reached(goal, goal.measure(view))
        except (ValueError, SimulatorError) as e: verdict = Verdict(goal.name, False, str(e), goal.hint)
        if verdict.failed: verdict.view = view
        yield verdict
    compiled = with_constants(kernel, exercise.compiled)
    # in the page's launch: a multiprocessor must have enough registers
    if exercise.launch: compiled = compiled[exercise.launch(4096, 4096)]
    yield from judge_code(goals("code"), compiled, exercise.cases[0].signature or _signature(args))
    if exercise.record:
        events = exercise.record(exercise, kernel)
        for goal in goals("events"): yield reached(goal, goal.measure(events))


# A kernel

def constants_of(exercise, case):
    "The values of the page's names in a case."
    return exercise.constants if case.constants is None else case.constants

def told(exercise, case):
    "A case as text, with its constants."
    return f"{case.name}{_with(constants_of(exercise, case))}"

def _with(constants):
    values = [f"{name} = {value}" for name, value in constants.items() if isinstance(value, int)]
    return f" with {', '.join(values)}" if values else ""

def _all_told(exercise):
    "All cases as text, with their constants if those are the same for all."
    used = [constants_of(exercise, case) for case in exercise.cases]
    same = _with(used[0]) if all(one == used[0] for one in used) else ", each with its own constants"
    return f"{'; '.join(case.name for case in exercise.cases)}{same}; random data"

def unfit(kernel, arguments):
    "The verdict on something that can't be launched with these arguments; `None` if it can."
    parts = kernel_parts(kernel)
    if not parts:
        return Verdict("compiles", False, f"{getattr(kernel, '__name__', kernel)!r} isn't a kernel",
                       "put @cuda.jit above its def")
    fn, options, _ = parts
    if line := _returns(kernel):
        return Verdict("compiles", False, f"line {line} returns a value, and a kernel can't")
    if options.get("device"):
        return Verdict("compiles", False, f"{fn.__name__} is a device function, which only a kernel can call",
                       "put @cuda.jit above its def, without device=True")
    try: all_arguments(fn, arguments)
    except TypeError as e:
        return Verdict("compiles", False, str(e),
                       "a kernel takes the arguments shown on the page, in that order")

def judge_kernel(
    exercise,  # an `Exercise`
    kernel,    # what the reader wrote
):
    "The verdicts on a kernel, one by one. The caller stops after a failure."
    random = np.random.default_rng()
    made = [case.make(random) for case in exercise.cases]
    if verdict := unfit(kernel, made[0][0]): yield verdict
    # a single run for all verdicts up to `correct`
    kernels = [with_constants(kernel, constants_of(exercise, case)) for case in exercise.cases]
    launches = [(one[case.grid, case.block, 0, case.shared_bytes], args, case.call)
                for one, case, (args, _) in zip(kernels, exercise.cases, made)]
    try: number, result, printed = in_child(_play, launches, simulator=True, timeout=20, keep=True)
    except ChildError as e: yield Verdict("ends", False, first_of(str(e)))
    if printed: yield Verdict("printed", None, printed)
    if number is not None:
        name, text = result
        case = exercise.cases[number]
        yield Verdict(name, False, f"{case.name if name == 'compiles' else told(exercise, case)}: {text}",
                      launch=launches[number][:2] * (name in WATCHABLE and not case.call))
    # the results
    names = function_of(kernel).__code__.co_varnames
    for case, (args, expected), (left, remarks, counts), launch in zip(exercise.cases, made, result,
                                                                       launches):
        stores = {} if remarks else counts.stores
        if wrong := _wrong(names, args, left, expected, stores, exercise.places):
            word, text = wrong
            yield Verdict("correct", False, f"{told(exercise, case)}: {text}", mistake=(case, word),
                          launch=launch[:2] * (not case.call))
    # who stored them, and how often
    if remarks := [text for _, remarks, _ in result for text in remarks]:
        yield Verdict("one writer", False, first_of("\n".join(remarks)))
    for case, (_, expected), (*_, counts) in zip(exercise.cases, made, result):
        for i, values in expected.items():
            if (stores := counts.stores[names[i]]) != values.size:
                text = f"{stores:,} stores to {names[i]}, which has {values.size:,} elements"
                yield Verdict("one store each", False, f"{told(exercise, case)}: {text}")
    yield Verdict("in bounds", True)
    yield Verdict("no races", True, "every element written before it is read, all barriers reached")
    yield Verdict("correct", True, _all_told(exercise))
    yield from _judge_goals(exercise, kernels[0], launches[0][0], made[0][0], result[0][-1])


def _hint(exercise, verdict, subject):
    "The hint for a verdict: hints for words in it before hints for its name; the exercise's own first."
    told = verdict.found
    if verdict.name == "in bounds":
        for slip in joined_first(function_of(subject)): return slip
    if verdict.name in ("all written", "no races", "correct"):
        fn, lacks = function_of(subject), re.search(r"were never written: first (\w+)\[", told)
        for slip in (*idle_statements(fn), *(assigned_names(fn, lacks[1]) if lacks else ())): return slip
    for line in sorted({line.strip() for line in source_of(subject).splitlines()}, key=len, reverse=True):
        if line: told = told.replace(f": {line}", "")  # words of the source don't belong to the message
    def hinted(hints, for_words):
        for key, hint in hints.items():
            name, _, word = key.partition(": ")
            if name == verdict.name and bool(word) == for_words and word in told: return hint
    of = exercise.hints
    return (hinted(of, True) or hinted(VERDICTS, True) or hinted(of, False) or verdict.hint
            or hinted(VERDICTS, False) or "")

def verdicts(
    exercise,  # an `Exercise`
    subject,   # what the reader wrote: a kernel
    listed=None,  # a list to add the verdicts to, one by one
    correct=None,  # is called once its results are right
) -> list:        # of `Verdict`s
    "Judge a subject, up to the first verdict that fails."
    listed = [] if listed is None else listed
    if not kernel_parts(subject) and not inspect.isfunction(subject):
        listed.append(Verdict("written", False, f"{subject!r} isn't a function",
                              "pass your function or kernel itself, without calling it"))
        return listed
    def found():
        if dots := unwritten(subject): yield dots
        yield Verdict("written", True)
        if exercise.page and (theirs := borrowed(exercise, subject)): yield theirs
        yield from (exercise.judge or judge_kernel)(exercise, subject)
    for verdict in found():
        listed.append(verdict)
        if verdict.failed:
            verdict.hint = _hint(exercise, verdict, subject)
            break
        if verdict.name == "correct" and correct: correct()
    return listed
