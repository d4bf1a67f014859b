"""The judge is judged: correct solutions pass, and each wrong one fails with its own verdict.

`make grade` judges all of them. This test covers each exercise's correct solutions, and two mutants that
change from time to time."""
import hashlib
import json
import linecache
import re
from dataclasses import replace

import numpy as np
import pytest
from conftest import exercise_id, pages_of
from numba import cuda, float32, uint32

from numba_matmul import exercise, judge
from numba_matmul.exercise import Mutant, exercises, outcome
from numba_matmul.exercises import e09
from numba_matmul.gemm.tiles import GroupTile
from numba_matmul.judge import VERDICTS, verdicts
from numba_matmul.source import function_of, with_constants

ALL = exercises()


def some_mutants(one):
    "Two of them, chosen by a hash of the exercise."
    text = repr([one.solutions, [(m.name, m.old, m.new) for m in one.mutants]])
    def rank(mutant): return hashlib.sha256((text + mutant.name).encode()).digest()
    return sorted(one.mutants, key=rank)[:2]


CASES = [(one, variant) for one in ALL.values() for variant in [*one.solutions, *some_mutants(one)]]


@pytest.mark.parametrize("one,variant", CASES, ids=exercise_id)
def test_a_variant_comes_out_as_it_should(one, variant):
    ok, found = outcome(one, variant)
    assert ok, found


def test_a_kernel_that_never_ends_is_told_so(monkeypatch):
    "After 2 s here; a reader's kernel has 20."
    in_child = judge.in_child
    monkeypatch.setattr(judge, "in_child", lambda *args, timeout, **more: in_child(*args, timeout=2, **more))
    one, mutant = next((one, m) for one in ALL.values() for m in one.mutants if m.name == "never ends")
    ok, found = outcome(one, mutant)
    assert ok and mutant.verdict == "ends" and "within 2 s" in found, found


@pytest.mark.parametrize("one", ALL.values(), ids=exercise_id)
def test_an_exercise_is_whole(one):
    "Enough variants, all different. Each mutant changes a text that exists, and names an existing verdict."
    right, wrong = len(one.solutions), len(one.mutants)
    assert wrong >= 15 and right >= 3, f"{wrong} wrong and {right} correct solutions: 15 and 3 are needed"
    assert "reference" in one.solutions
    sources = [one.source(variant) for variant in exercise.variants(one)]
    assert len(set(sources)) == len(sources) and len({m.name for m in one.mutants}) == len(one.mutants)
    for goal in one.goals: assert goal.hint and any(m.verdict == goal.name for m in one.mutants), goal.name
    if one.judge is None:
        assert {m.verdict for m in one.mutants} <= {*VERDICTS, *(goal.name for goal in one.goals)}


@pytest.mark.parametrize("one", ALL.values(), ids=exercise_id)
def test_an_exercise_is_in_its_lesson(one):
    "Its page calls grade on a function of that name, in which there is a hole."
    for path in pages_of(one.key):
        cells = json.loads(path.read_text())["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        if any(f'grade("{one.key}"' in text for text in code): break
    else: pytest.fail(f'no page of lesson {one.key[:2]} has a cell with grade("{one.key}", {one.name})',
                      pytrace=False)
    assert any(f"def {one.name}(" in text and "..." in text for text in code)


def test_a_variant_that_cannot_be_judged_does_not_hide_the_others():
    one = next(iter(ALL.values()))
    twice, wrong = Mutant("twice", "c", "d", "correct"), rewritten(one, "def my_naive(:", "correct")
    assert outcome(one, twice)[0] is False and "'c' occurs" in outcome(one, twice)[1]
    assert outcome(one, wrong)[0] is False and "can't be built: SyntaxError" in outcome(one, wrong)[1]


def test_an_outcome_names_the_verdict_that_was_expected():
    one = ALL["01"]
    misnamed = replace(next(m for m in one.mutants if m.name == "a sum, not a product"), verdict="corect")
    assert outcome(one, misnamed)[1].startswith("fails 'correct', but must fail 'corect': ")


def test_a_hole_in_a_solution_is_told():
    one = next(iter(ALL.values()))
    assert outcome(one, rewritten(one, f"{one.solutions['reference'].rstrip()}\n    ...\n", "written"))[0]


def rewritten(one, source, verdict=""):
    "The reference with another source."
    return Mutant("rewritten", one.solutions["reference"], source, verdict)


def graded(key, source):
    "The verdict that fails for a kernel with this source."
    scope, file = dict(np=np, cuda=cuda, float32=float32, uint32=uint32), f"<graded {hash(source)}>"
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    exec(compile(source, file, "exec"), scope)
    return next(v for v in verdicts(ALL[key], scope[ALL[key].name]) if not v.ok)


def test_a_verdict_goes_by_the_mistake_and_not_by_the_words_of_the_line_that_has_it():
    found = graded("01", """@cuda.jit
def my_naive(a, b, c):
    row, col = cuda.grid(2)
    if row < c.shape[0] and cl < c.shape[1]: c[row, col] = 0  # never out of bounds
""")
    assert found.name == "compiles" and "cl is not defined" in found.found
    assert found.hint == VERDICTS["compiles: is not defined"]


ROW = "    i = cuda.grid(1)\n    if i < len(out): "
SHARED = """pass
    t = cuda.shared.array(4, float32)
    t[cuda.threadIdx.x] = 1
    cuda.syncthreads
    if i < len(out): out[i] = t[(i + 1) % 4]"""
LOCAL = "pass\n    t = cuda.local.array(1, float32)\n    "
SLIPS = {  # a line of my_saxpy → what the verdict says, and the hint
    "the name": ("out = alpha * x[i] + y[i]", "never written",
                 "out = … only gives the name another value, at line 4"),
    "==": ("out[i] == alpha * x[i] + y[i]", "never written", "does nothing, at line 4 of my_saxpy"),
    "no parentheses": (SHARED, "t[1] is read before it was written", "call it, cuda.syncthreads()"),
    "no cuda": ("out[i] = x[threadIdx.x]", "threadIdx is not defined: write cuda.threadIdx", ""),
    "a type": ("out[i] = uint8(alpha)", "uint8 is not defined: add `from numba import uint8`", ""),
    "misspelled": ("out[i] = alhpa * x[i] + y[i]", "alhpa is not defined, but alpha is, in line 4", ""),
    "unlike any": ("out[i] = beta * x[i] + y[i]", "the name beta is not defined, in line 4", ""),
    "& for and": ("pass\n    if i >= 0 & i < len(out): out[i] = x[i]", "out of bounds",
                  "write and, not &: 0 & i is computed before the comparisons, at line 5"),
    "a mask": ("pass\n    if 0 <= i & 15 < 13: out[i] = x[i]", "out of bounds",
               "which threads pass your guard"),
    "a number, not a range": ("pass\n    for q in len(out): out[q] = x[q]",
                              "loop over range(len(out))", ""),
    "a type, not a number": ("pass\n    acc = float32\n    out[0] = acc + x[0]", "'Float'",
                             "float32(0) a number"),
    "a local array's name": (LOCAL + "t = x[0]\n    out[0] = t[0]", "a float32 can't be indexed", "x[i] = …"),
    "in some threads": (LOCAL + "if i < 9: t = x[0]\n    out[0] = t[0]",
                        "a number can't be indexed, in thread", "x[i] = …"),
    "and written": (LOCAL + "if i < 9: t = x[0]\n    t[0] = 1", "a number can't be indexed, in thread",
                    "x[i] = …"),
}

@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_that_python_accepts_is_told(slip):
    line, text, hint = SLIPS[slip]
    found = graded("00a", f"@cuda.jit\ndef my_saxpy(alpha, x, y, out):\n{ROW}{line}\n")
    assert text in found.found and hint in found.hint, found


def test_grade_without_a_kernel_shows_how_to_call_it():
    kernel = ALL["00b"].build("reference")
    with pytest.raises(TypeError, match=r'as in grade\("00b", my_scale_rows\)'): exercise.grade(kernel)
    with pytest.raises(TypeError, match=r'as in grade\("01", my_naive\)'): exercise.grade("00b")


@pytest.mark.parametrize("said, found, text", [
    (123, 122, "off by 1"), (5, 4, "off by 1"), (1200, 1100.0, "off by 100"), (0, 1, "off by 1"),
    (35, 3, "off by a factor of 11.67"), (8, 16, "off by a factor of 2"),
    (1.5, 1.2, "off by a factor of 1.25"), (1.001, 1, "close"), (2, 2.0, "exactly")])
def test_how_far_a_prediction_is_off(said, found, text): assert exercise.distance(said, found) == text


def test_goals_are_told_in_english():
    told = {key: str(exercise.solutions(key)).partition("**")[0] for key in ALL}
    assert "exactly 1 store per thread" in told["00a"] and "at most 1 wavefront per request" in told["02b"]
    assert "none from shared memory" in told["08"] and "no loads or stores" in told["04"]
    for key, text in told.items():
        wrong = re.search(r"\b1 \w+s (per|at|of) |no (in|from|at) |no +\||no [^|]* and ", text)
        assert not wrong, (key, wrong)


def test_a_failed_case_tells_which_constants_it_had():
    found = graded("03", "@cuda.jit\ndef my_smem(a, b, c):\n    x, y = cuda.grid(2)\n    c[y, x] = 1\n")
    assert found.name == "correct" and "with TILE = 16" in found.found


@pytest.mark.parametrize("key", ["01", "09", "18", "30"], ids=exercise_id)
@pytest.mark.parametrize("subject", [None, 3, "my_naive"])
def test_what_isnt_a_function_is_told(key, subject):
    (found,) = verdicts(ALL[key], subject)
    assert not found.ok and "isn't a function" in found.found
    assert "isn't a function" in repr(exercise.grade(key, subject))


def test_a_device_function_isnt_a_kernel():
    *_, found = verdicts(ALL["01"], cuda.jit(device=True)(test_a_device_function_isnt_a_kernel))
    assert found.name == "compiles" and "device function" in found.found


def test_an_array_whose_accesses_are_counted_keeps_its_name():
    one = ALL["07"]
    source = one.solutions["reference"].replace("b_tile", "tile_of_b")
    found = graded("07", one.preamble + source)
    assert found.name == "loads of B" and "keep that name" in found.found


def test_a_scoreboard_says_what_passed_what_failed_and_what_is_left():
    one = ALL["01"]
    board = exercise.grade("01", one.build("reference"))
    lines = repr(board).splitlines()
    assert board.passed and all(line.startswith("✓ ") for line in lines)
    found = [line.split("  ")[0][2:] for line in lines]
    goals = [goal.name for goal in one.goals]
    assert [name for name in found if name not in goals] == ["written", "in bounds", "no races", "correct",
                                                             "compiles", "speed", "passed"], found
    assert set(goals) <= set(found)
    board = exercise.grade("01", one.build(next(m for m in one.mutants if m.name == "no guard")))
    lines = repr(board).splitlines()
    marks = ["✓", "✗", " ", " "] + ["·"] * (1 + len(one.goals))
    assert not board.passed and [line[0] for line in lines] == marks
    assert "in bounds" in lines[1] and lines[2].strip() == f"Hint: {one.hints['in bounds']}"
    assert lines[3].strip() == 'Watch it: grade("01", my_naive).play()'
    assert [line.split("  ")[0][2:] for line in lines[4:]] == ["correct", *(goal.name for goal in one.goals)]


NAIVE = """@cuda.jit
def my_naive(x, y, z):
    row, col = cuda.grid(2)
    if row >= z.shape[0] or col >= z.shape[1]: return
    acc = float32(0)
"""
SUM = "for i in range(x.shape[1]): acc += x[row, i] * y[i, col]\n    "
TOLD = {  # a body of kernel 1 → its verdict, its finding, and its hint
    "for i in range(x.shape[1]): acc += x[row, i] * y[i, z.shape[1] - 1 - col]\n    z[row, col] = acc":
        ("correct", "right numbers in the wrong places: first z[0, 0], which holds the value for z[0, 9]",
         "row and column swapped"),
    SUM + "z[row, col] += acc": ("correct", "NaN, and each was stored", "NaN + x is NaN"),
    "if row > 0: z[row, col] = acc": ("correct", "are wrong: first z[0, 0] = nan", ""),
    "if acc < 0: z[row, col] = acc":
        ("correct", "330 of 330 elements were never written", "which thread stores"),
    "z[row, col] = acc\n    return acc": ("compiles", "line 7 returns a value", "store it in an array"),
    SUM + "z[row, col] = np.dot(x[row], y[:, col])": ("compiles", "np.dot", "a loop of its own")}


@pytest.mark.parametrize("body", TOLD)
def test_a_mistake_is_told_by_what_it_is(body):
    name, text, hint = TOLD[body]
    found = graded("01", f"{NAIVE}    {body}\n")
    assert found.name == name and text in found.found and hint in found.hint
    if name == "compiles": assert "line " in found.found


NAMED = {  # exercise, mutant → the finding
    ("19", "2048 left out"): "the 2048 is missing",
    ("19", "what truncation would have lost"): "that's the rest of a truncated number",
    ("19", "a power of two too many"): "becomes -inf",
    ("19b", "no hi·lo"): "hi·lo is in C 0 times",
    ("19b", "hi·hi goes on, and is promoted all the same"): "hi·hi is in C 5, 4, 3, 2, 1 times",
    ("19b", "lo·lo among the cross products"): "lo·lo is in C 2,048 times"}


@pytest.mark.parametrize("key, name", NAMED)
def test_what_became_of_parts_is_told(key, name):
    ok, found = outcome(ALL[key], next(m for m in ALL[key].mutants if m.name == name))
    assert ok and NAMED[key, name] in found


def test_what_a_kernel_prints_is_shown_and_not_all_of_it():
    one = ALL["00a"]
    prints = rewritten(one, one.solutions["reference"] + "        print(i, alpha)\n")
    board = exercise.grade("00a", one.build(prints))
    lines = repr(board).splitlines()
    assert board.passed and sum(line.startswith("            ") for line in lines) == 10
    assert "… and 38 more lines" in repr(board)


def test_constants_of_an_exercise_win_over_what_its_page_computes():
    one = ALL["05"]
    kernel = one.build(rewritten(one, "BN = 2 * BM\nHALF = BN // 2\n" + one.solutions["reference"]))
    scope = function_of(with_constants(kernel, dict(BM=16, BN=48))).__globals__
    assert (scope["BM"], scope["BN"], scope["HALF"]) == (16, 48, 24)


WRONG = {  # by verdicts that only a careless judge would omit
    "one writer": """
    if i < out.shape[0]: out[i] = alpha * x[i] + y[i]
    if i == 1: out[0] = alpha * x[0] + y[0]
""", "correct": """
    if i < out.shape[0]:
        out[i] = alpha * x[i] + y[i]
        y[i] = 0
"""}


@pytest.mark.parametrize("verdict", WRONG)
def test_a_result_twice_and_a_changed_input_are_told(verdict):
    found = graded("00a", f"@cuda.jit\ndef my_saxpy(alpha, x, y, out):\n    i = cuda.grid(1){WRONG[verdict]}")
    assert found.name == verdict and ("read-only" in found.found) == (verdict == "correct")


@pytest.mark.parametrize("error, passes", [(3e-6, True), (1e-4, False)])
def test_a_result_may_be_off_by_rounding_alone(error, passes):
    off = Mutant("off", "alpha * x[i] + y[i]", f"(alpha * x[i] + y[i]) * float32({1 + error})", "correct")
    assert exercise.grade("00a", ALL["00a"].build(off)).passed == passes


@pytest.fixture
def no_compiler(monkeypatch):
    "macOS doesn't have numba-cuda."
    for module in judge, e09: monkeypatch.setattr(module, "has_compiler", lambda: False)
    monkeypatch.setattr(judge, "machine_code", None)


@pytest.mark.parametrize("key", ["02", "09"], ids=exercise_id)
def test_without_the_compiler_the_rest_is_judged(key, no_compiler):
    subject = ALL[key].build("reference")
    if key == "09": subject.__globals__["my_tile"] = GroupTile(128, 128, 16, 4, 4, 4)
    board = exercise.grade(key, subject)
    assert board.passed and "not judged: this is counted in the machine code" in repr(board)


@pytest.mark.parametrize("key, verdict", [
    ("03", "wavefronts"), ("11", "barriers per tile"), ("12", "barriers per tile"),
    ("15", "barriers per tile"), ("16", "barriers per tile")], ids=exercise_id)
def test_without_the_compiler_what_is_counted_otherwise_still_fails(key, verdict, no_compiler):
    ok, found = outcome(ALL[key], next(m for m in ALL[key].mutants if m.verdict == verdict))
    assert ok, found


@pytest.mark.parametrize("key, name", [
    ("09", "the library's own check"), ("18", "the judge's own estimate"),
    ("30", "matmul called, PyTorch's product returned"), ("10", "BM for BN"),
    ("13", "the library's main loop"), ("14", "whole tiles for each block"),
    ("16", "four calls, one of them at work"), ("17", "all threads release"),
    ("17", "a barrier of both consumers for each k tile"), ("19b", "never promoted"),
    ("30b", "one barrier per sum")], ids=exercise_id)
def test_a_cheat_is_refused_by_its_own_verdict(key, name):
    ok, found = outcome(ALL[key], next(m for m in ALL[key].mutants if m.name == name))
    assert ok, found


def test_a_function_of_the_readers_own_has_the_constants_of_each_case():
    one = ALL["11"]
    helper = "@cuda.jit(device=True)\ndef ahead(k0): return k0 + BK\n\n"
    source = helper + one.solutions["reference"].replace("        k0 += BK\n", "        k0 = ahead(k0)\n")
    assert outcome(one, rewritten(one, source))[1] == "passes, but must not"


def test_a_kernel_with_more_registers_than_its_pages_block_may_have_is_refused():
    "96 sums per thread, in a block of 1,024 threads."
    found = graded("01", """@cuda.jit
def my_naive(a, b, c):
    row, col = cuda.grid(2)
    acc = cuda.local.array(96, float32)
    for i in range(96): acc[i] = float32(0)
    if row < c.shape[0] and col < c.shape[1]:
        for k in range(a.shape[1]):
            for i in range(96): acc[i] += a[row, k] * b[k, (col + i) % c.shape[1]]
        for i in range(1, 96): acc[0] += float32(0) * acc[i]
        c[row, col] = acc[0]
""")
    assert found.name == "compiles" and "registers × 1024 threads" in found.found
