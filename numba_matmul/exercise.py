"""Exercises as the reader uses them: `ask` takes a prediction, `grade` judges what you wrote."""
import hashlib
import html
import linecache
import os
import pkgutil
import re
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from numbers import Real
from threading import Thread
from types import ModuleType

import numba_matmul.exercises as folder
import numpy as np
from fastcore.script import Param, call_parse
from .bench.timing import measure_runtime
from . import work
from .cards import card_of, load_cards
from .draw import Markdown, Message, number_text
from .judge import Verdict, accesses, first_of, limit_text, verdicts
from .play import play
from .predict import READERS_ERROR, compile_for, predict
from .process import kernel_parts
from .source import function_of
from numba import config


# A prediction

def distance(said, found):
    "How far a prediction is from the measured value, as text."
    if said == found: return "exactly"
    if said and found and (said > 0) == (found > 0):
        ratio = max(said / found, found / said)
        if ratio < 2 and said == int(said) and found == int(found):  # thread 122, not 123
            return f"off by {number_text(abs(said - found))}"
        return "close" if ratio < 1.005 else f"off by a factor of {number_text(ratio)}"
    return f"off by {number_text(abs(said - found))}"

class _Show:
    def __repr__(self): return "show"

show = _Show()  # instead of a prediction: shows the answer

UNSEEN = "The answer appears here once you put a number, or `show`, in place of the dots."
KEPT = "application/vnd.numba-matmul.answer+json"  # no front end shows it

class Answer(Markdown):
    "What a reader sees of an answer. The page keeps the answer, too: the website asks in a box of its own."
    def __new__(cls, text, question, found):
        made = super().__new__(cls, text)
        made.kept = {"question": question, "found": [[name, float(value)] for name, value in found.items()]}
        return made
    def __add__(self, text):
        return Answer(str(self) + text, self.kept["question"], dict(self.kept["found"]))
    def _repr_mimebundle_(self, **which):
        return {"text/markdown": str(self), "text/plain": repr(self), KEPT: self.kept}

@dataclass
class Prediction:
    "A reader's prediction, by quantity."
    question: str
    said: dict  # quantity → number, `show`, or `...`

    @property
    def untouched(self): return all(value is ... for value in self.said.values())

    def _repr_markdown_(self):
        if self.untouched:
            return f"**{self.question}** Put your numbers in place of the dots, or `show` to see the answer."
        return f"**{self.question}** " + ", ".join(
            f"{name} {number_text(value)}".strip() for name, value in self.said.items()
            if isinstance(value, Real))

    def against(
        self,
        *found,   # the number, if the question asked for one
        **named,  # the numbers by quantity
    ) -> Answer:
        "A table of predictions and measured values; empty until the reader has predicted."
        found = dict(zip(self.said, found)) | named
        if found.keys() != self.said.keys():
            raise TypeError(f"{self.question} asks for {', '.join(self.said) or 'one number'}, "
                            f"but got {', '.join(found) or 'none'}")
        if self.untouched:
            return Answer(UNSEEN, self.question, found)
        rows = []
        for name, said in self.said.items():
            guess = [number_text(said), distance(said, found[name])] if isinstance(said, Real) else ["–", ""]
            rows.append(f"| {name} | {guess[0]} | {number_text(found[name])} | {guess[1]} |")
        table = "| | you said | it is | |\n|---|--:|--:|---|\n" + "\n".join(rows)
        return Answer(table, self.question, found)

def ask(
    question: str,
    *answer: float,    # one number, or `show`; dots until the reader replaces them
    **answers: float,  # or several, by quantity
) -> Prediction:
    "A question to answer before the result is shown."
    if bool(answer) == bool(answers) or len(answer) > 1:
        raise TypeError("ask takes one answer, ask(question, 4), or named ones, ask(question, A=1, B=4)")
    for value in (*answer, *answers.values()):
        if value is not ... and value is not show and not isinstance(value, Real):
            raise TypeError(f"{value!r} isn't a number: replace the dots with one, such as 4, or with show")
    return Prediction(question, dict(zip([""], answer)) | answers)


# Definition of an exercise

@dataclass(frozen=True)
class Case:
    "One launch of a kernel, and its expected result."
    name: str
    block: tuple    # threads
    grid: tuple     # blocks
    make: Callable  # function of a random generator → (arguments, {position: expected array})
    shared_bytes: int = 0   # of dynamic shared memory
    call: Callable = None   # in the simulator: (configured kernel, arguments); None: just call it
    signature: str = None   # types of the kernel's arguments, if they differ from these arguments'
    constants: dict = None  # instead of the exercise's; empty: the page's
    size: tuple = ()        # m, n, k of a product

@dataclass(frozen=True)
class Goal:
    "A number a kernel must reach, counted without a GPU."
    name: str
    measure: Callable      # from what `counted` names: a number, or a `Site`
    most: float = None     # its limits
    least: float = None
    unit: str = ""
    hint: str = ""
    # "accesses": of one block, in a `View`; "launches": in the `Counts` of a whole launch; "code": in a
    # `MachineCode`; "events": in what the exercise records
    counted: str = "accesses"

@dataclass(frozen=True)
class Mutant:
    "A correct solution with one mistake."
    name: str
    old: str      # text that occurs once in the solution …
    new: str      # … and its replacement
    verdict: str  # the one that must fail
    of: str = "reference"


@dataclass(frozen=True)
class Exercise:
    "What a reader writes, how it is judged, and how the judge is tested."
    key: str
    name: str               # of the reader's function
    cases: tuple = ()       # the first one is cheap; the goals are counted in it
    goals: tuple = ()
    hints: dict = field(default_factory=dict)      # verdict, or "verdict: words in it" → the hint
    constants: dict = field(default_factory=dict)  # values of the page's names during grading
    compiled: dict = None   # and the ones for the machine code, if different
    page: ModuleType = None  # the lesson's module: calling one of its functions doesn't count as a solution
    places: bool = True     # report right numbers in wrong places? not if they may be there by chance
    preamble: str = ""      # source before each solution
    solutions: dict = field(default_factory=dict)  # name → source; "reference" and at least two others
    mutants: tuple = ()
    launch: Callable = None  # (m, n) → grid, block of the page's own launch, for the speed on a GPU
    host: Callable = None    # kernel → host function (a, b, c), for solutions that need more than a launch
    short: tuple = ()        # the experiment that timed the lesson's own short kernel at 4096, and its label
    record: Callable = None  # (exercise, kernel) → what goals in "events" are measured on
    judge: Callable = None   # instead of `judge_kernel`: (exercise, subject) → `Verdict`s, one by one

    def source(self, variant):
        "The source of a solution, by name, or of a `Mutant`."
        if isinstance(variant, str): return self.solutions[variant]
        base = self.solutions[variant.of]
        if base.count(variant.old) != 1:
            raise ValueError(f"exercise {self.key}, {variant.name!r}: {variant.old!r} occurs "
                             f"{base.count(variant.old)} times in {variant.of!r}, not once")
        return base.replace(variant.old, variant.new)

    def build(self, variant):
        "The object a variant's source defines under the exercise's name."
        text = _PRELUDE + self.preamble + self.source(variant)
        file = f"<exercise {self.key}, {hashlib.sha256(text.encode()).hexdigest()[:12]}>"
        linecache.cache[file] = len(text), None, text.splitlines(True), file
        scope = {"__name__": f"exercise_{self.key}"} | self.constants
        exec(compile(text, file, "exec"), scope)
        return scope[self.name]

_PRELUDE = "import numpy as np\nfrom numba import cuda, float32, int32, int64, uint32\n"


def matmul_case(
    m: int,  # rows of A
    n: int,  # columns of B
    k: int,  # columns of A, rows of B
    block: int | tuple,  # threads
    grid: int | tuple,   # blocks: enough to cover C whether its rows run along x or along y
    constants: dict = None,  # see `Case`
) -> Case:
    "A launch (a, b, c) with random A and B, and NaN in C."
    def make(random):
        a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
        expected = a.astype(np.float64) @ b
        return (a, b, np.full((m, n), np.nan, np.float32)), {2: expected}
    shape = f", blocks of {'×'.join(map(str, block))}" if isinstance(block, tuple) and len(block) > 1 else ""
    return Case(f"{m}×{n}×{k}{shape}", block, grid, make, constants=constants, size=(m, n, k))

NO_FLOAT64 = Goal(
    "float64", lambda code: sum(code.mix.get(kind, 0) for kind in ("DFMA", "float64")), most=0,
    unit="float64 instructions in the main loop", counted="code",
    hint="for the compiler 0.0 and 1.0 are float64, and 0 is an integer: write float32(0). Combining an "
         "unsigned and a signed 64-bit integer gives float64 too, and so does an array without float32")


# The scoreboard

@dataclass
class Scoreboard:
    "The verdicts on what a reader wrote, one per line."
    verdicts: list
    left: tuple = ()  # names of verdicts that weren't reached
    beside: str = ""  # memory accesses of the reader's kernel and the reference, if the mistake is there
    after: str = ""   # what comes next, if everything passed
    call: str = ""    # what the reader wrote to get it

    @property
    def passed(self):
        "Did every verdict pass?"
        return not any(verdict.failed for verdict in self.verdicts)

    def play(
        self,
        **more,  # what `play` takes: `block=(1, 0)`, to watch another one
    ):
        "Watch the launch that failed, step by step. `ValueError` if none did."
        launch = self.verdicts[-1].launch
        if not launch: raise ValueError("there's nothing to watch: no launch failed")
        configured, args = launch
        return play(configured, *args, **more)

    @property
    def width(self):
        "Length of the longest name."
        return max(len(name) for name in (*(v.name for v in self.verdicts), *self.left))

    def __repr__(self):
        width, lines = self.width, []
        for v in self.verdicts:
            found = v.found.replace("\n", "\n" + " " * (width + 4))
            mark = {None: "·", True: "✓", False: "✗"}[v.ok]
            lines.append(f"{mark} {v.name:{width}}  {found}".rstrip())
            if v.failed and v.hint: lines.append(f"  {'':{width}}  Hint: {v.hint}")
            if v.launch and self.call: lines.append(f"  {'':{width}}  Watch it: {self.call}.play()")
        lines += [f"· {name:{width}}  not judged yet" for name in self.left]
        if self.after: lines.append(f"✓ {'passed':{width}}  {self.after}")
        return "\n".join([*lines, "", self.beside] if self.beside else lines)

    def _repr_html_(self):
        hang = self.width + 4  # a long line continues under its text
        style = ("font: var(--jp-code-font-size, 1em) monospace; "
                 f"padding-left: {hang}ch; text-indent: -{hang}ch")
        tints = {"✓": "46, 160, 67", "✗": "248, 81, 73"}  # seen on white and on black
        def row(line):
            tint = f"; background: rgba({tints[line[0]]}, .2)" if line[:1] in tints else ""
            return f'<div style="white-space: pre-wrap{tint}">{html.escape(line) or " "}</div>'
        return "\n".join([f'<div style="{style}">', *map(row, repr(self).splitlines()), "</div>"])

def exercises() -> dict:
    "All exercises by key."
    names = (module.name for module in pkgutil.iter_modules(folder.__path__))
    modules = sorted(name for name in names if re.fullmatch(r"e\d+[a-z]?", name))
    found = [import_module(f"{folder.__name__}.{name}").EXERCISES for name in modules]
    return {exercise.key: exercise for group in found for exercise in group}


def exercise_of(
    key: str | int,  # "02", or 2
) -> Exercise:
    "The exercise with this key. `ValueError` if there is none."
    known, number = exercises(), re.fullmatch(r"(\d+)([a-z]?)", str(key))
    if (padded := number and f"{int(number[1]):02}{number[2]}") not in known:
        raise ValueError(f"there is no exercise {key!r}; there are {', '.join(known)}")
    return known[padded]

def _host(exercise, kernel):
    "A host function (a, b, c) that launches a kernel as its page does; `None` if the page doesn't time it."
    if not kernel_parts(kernel): return None
    def launched(a, b, c): kernel[exercise.launch(*c.shape)](a, b, c)
    return exercise.host(kernel) if exercise.host else launched if exercise.launch else None

def _speed(exercise, kernel, host):
    "On a GPU: the kernel's speed."
    name = function_of(kernel).__name__
    try: time = measure_runtime(host, 4096, 4096, 4096, do_print=False, kernel_name=name)
    except (AssertionError, RuntimeError, ValueError) as e:
        return Verdict("speed", False, f"at 4096: {first_of(str(e))}")
    return Verdict("speed", True, f"{time.gflops:,.0f} GFLOP/s at 4096, {time.percent:.1f} % of cuBLAS")

def _predicted_for(exercise):
    "The GPU that speeds are predicted for: the one whose speeds the page shows."
    card = (exercise.short and card_of(exercise.short[0])) or next(iter(load_cards()), None)
    return card and card["gpu"]

def _prediction(exercise, kernel, host, gpu):
    "Without a GPU: the kernel's predicted speed beside that of the lesson's short kernel; `None` if unknown."
    found = predict(host, 4096, 4096, 4096, gpu=gpu)
    if not found.sure: return None
    error = max(found.sure, READERS_ERROR)
    text = (f"about {found.gflops:,.0f} GFLOP/s at 4096 on one {gpu} (predicted, ±{100 * error:.0f} %), "
            f"limited by {found.limit}")
    kept, goal = card_of(exercise.short[0]) if exercise.short else None, None
    if kept:
        entry = kept["experiments"][exercise.short[0]]
        goal = entry["values"][exercise.short[1]]
        if entry["unit"] == "ms": goal = 2 * 4096**3 / goal / 1e6
        text += f"; the lesson's short kernel: {goal:,.0f} measured"
    reached = goal is None or found.gflops > 0.9 * goal
    if not reached and found.limit in INDEXING and "range" in function_of(kernel).__code__.co_names:
        text += ". Does your loop over k use range? Lesson 1 shows its price, in \"What Numba's habits cost\""
    return Verdict("speed", True if reached else None, text)

INDEXING = "issue slots", "the uniform unit"  # what too many instructions for an index need

def _beside(exercise, view):
    "Memory accesses of a reader's kernel and of the reference solution, in the first case."
    case, kernel = exercise.cases[0], exercise.build("reference")
    launch = kernel[case.grid, case.block, 0, case.shared_bytes]
    reference = accesses(exercise, launch, case.make(np.random.default_rng())[0])
    return f"Your kernel, {case.name}:\n{view!r}\n\nThe reference solution:\n{reference!r}"

def _next(exercise):
    "What a reader does after an exercise."
    keys = list(exercises())
    later = keys[keys.index(exercise.key) + 1:]
    return f"the next exercise is {later[0]}" if later else "that was the last exercise"

def mine(
    key: str | int,  # of the exercise: "05", or 5
) -> Message:
    "Your kernel for an exercise, the accepted one if there is one. In Jupyter: in a new cell below."
    return work.mine(exercise_of(key).key)

def so_far() -> Message:
    "Which exercises you passed in this copy of the course, and which one is next."
    return work.so_far(list(exercises()))

def grade(
    key: str | int,            # of the exercise, which is the lesson's number: "02", or 2
    subject: Callable = ...,   # what you wrote
) -> Scoreboard:
    """Judge what you wrote, without a GPU. If everything passes, time it as well, or without a GPU predict
    its speed."""
    if subject is ...:
        name = getattr(key, "__name__", "")
        named = next((one for one in exercises().values() if name and one.name == name), None)
        shown = f'grade("{named.key}", {name})' if named else 'grade("01", my_naive)'
        raise TypeError(f"grade takes an exercise and what you wrote, as in {shown}")
    exercise, found = exercise_of(key), []
    host, gpu = _host(exercise, subject), config.ENABLE_CUDASIM and _predicted_for(exercise)
    compiles = Thread(target=compile_for, args=(host, 4096, 4096, 4096, gpu), daemon=True)
    def correct():  # what a prediction needs is compiled while goals are counted, and not before
        if host and gpu: compiles.start()
    try: verdicts(exercise, subject, found, correct)
    except KeyboardInterrupt: found.append(Verdict("ends", False, "you stopped it"))
    board = Scoreboard(found, call=f'grade("{exercise.key}", {getattr(subject, "__name__", "…")})')
    if found[0].ok: work.keep(exercise.key, subject, board.passed)  # it is written
    if board.passed:
        board.after = _next(exercise)
        try:
            if host and not config.ENABLE_CUDASIM: found.append(_speed(exercise, subject, host))
            elif host and gpu:
                if compiles.ident: compiles.join()
                found += filter(None, [_prediction(exercise, subject, host, gpu)])
        except KeyboardInterrupt: found.append(Verdict("speed", None, "you stopped it; all else has passed"))
        return board
    if exercise.cases:
        reached = {verdict.name for verdict in found}
        names = "correct", *(goal.name for goal in exercise.goals)
        board.left = tuple(name for name in names if name not in reached)
    if found[-1].view: board.beside = _beside(exercise, found[-1].view)
    return board


# Testing the judge

def outcome(
    exercise: Exercise,
    variant: str | Mutant,  # the name of a solution, or a mistake
) -> tuple:                 # (was the outcome as expected, what was found)
    "Judge a variant: a correct solution must pass, a mutant must fail with its own verdict."
    try: subject = exercise.build(variant)
    except Exception as e: return False, f"can't be built: {type(e).__name__}: {e}"
    *_, last = verdicts(exercise, subject)
    expected = None if isinstance(variant, str) else variant.verdict
    if not last.failed: return expected is None, "passes" if expected is None else "passes, but must not"
    if last.name == expected: return True, f"{last.name}: {last.found}"
    wanted = f"fail {expected!r}" if expected else "pass"
    return False, f"fails {last.name!r}, but must {wanted}: {last.found}"

def variants(exercise: Exercise) -> list:
    "The correct solutions by name, and the mutants."
    return [*exercise.solutions, *exercise.mutants]

def table(
    exercise: Exercise,
) -> Markdown:
    "The mistakes an exercise catches, and the verdict on each."
    rows = [f"| {mutant.name.replace('|', chr(92) + '|')} | {mutant.verdict} |"
            for mutant in exercise.mutants]
    return Markdown("| mistake | verdict |\n|---|---|\n" + "\n".join(rows))

def solutions(
    key: str | int,  # of the exercise: "02", or 2
) -> Markdown:
    "An exercise's goals, correct solutions, and the mistakes it catches. Spoilers."
    exercise = exercise_of(key)
    goals = [f"| {goal.name} | {limit_text(goal, goal.unit)} |" for goal in exercise.goals]
    parts = ["| goal | |\n|---|---|\n" + "\n".join(goals)] if goals else []
    parts += [f"**{name[0].upper()}{name[1:]}**\n\n```python\n{source.strip()}\n```"
              for name, source in exercise.solutions.items()]
    return Markdown("\n\n".join([*parts, "**Mistakes it catches**", table(exercise)]))

def _grade_all(keys):
    "Judge every variant of the exercises; returns how many had an unexpected outcome."
    known = exercises()
    if unknown := set(keys) - set(known):
        sys.exit(f"no exercise {', '.join(map(repr, sorted(unknown)))}; there are {', '.join(known)}")
    tasks = [(known[key], variant) for key in keys or known for variant in variants(known[key])]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with ThreadPoolExecutor(cores) as pool: results = list(pool.map(lambda task: outcome(*task), tasks))
    counts = Counter()
    for (exercise, variant), (ok, found) in zip(tasks, results):
        counts[exercise.key, isinstance(variant, str)] += 1
        name = getattr(variant, "name", variant)
        if not ok or len(keys) == 1: print(f"{'ok   ' if ok else 'WRONG'} {exercise.key} {name}: {found}")
    for key in keys or known:
        print(f"{key}: {counts[key, True]} correct, {counts[key, False]} wrong solutions")
    wrong = sum(not ok for ok, _ in results)
    print(f"{len(results) - wrong} of {len(results)} variants had the expected outcome")
    return wrong


@call_parse
def main(
    keys: Param("of exercises, as in 02 03; all if none", str, nargs="*"),
):
    "Judge correct and wrong solutions of exercises. The exit status is 1 if any outcome is unexpected."
    empty = [""] * ("" in sys.orig_argv[1:])  # fastcore drops it if it comes first
    sys.exit(bool(_grade_all([*(keys or ()), *empty])))
