"Static loops match Python's own line by line; loops that can't be unrolled are refused by name and line."
import ast
import inspect
import linecache

import numpy as np
import pytest
from numba import cuda, float32

from numba_matmul import static as module
from numba_matmul.compiler import machine_code
from numba_matmul.process import TREES, in_child
from numba_matmul.sim.scheduler import SimulatorError
from numba_matmul.static import static, unrolled

LENGTH = 3


def in_python(fn):
    "The function with `range` instead of `static`: Python's version of its loops."
    around = inspect.getclosurevars(fn).nonlocals
    tree = module._definition(fn)
    tree.decorator_list = []
    scope = fn.__globals__ | around | {"static": range}
    exec(compile(ast.Module([tree], []), "<plain>", "exec"), scope)
    return scope[fn.__name__]


def makers():
    "Functions with static loops, by their factory's numbers."
    def sums(n, m):
        def f(x):
            total = 0
            for i in static(n):
                for j in static(i, m): total = 3 * total + x[i * m + j]
            return total
        return f

    def decided(n, m):
        def f(x):
            total = 0
            for i in static(n):
                if i == 0: total += 5
                elif i == 1 and x[0] > 0: total += x[1]
                elif not (i == 2 or x[1] > 2): total -= x[i % 4]
                total += x[2] if i > m or x[3] > 1 else x[1] if i % 2 else 7
                while total > 100:
                    if i: total -= 50
                    else: total -= 60
            return total
        return f

    def picked(n, m):
        fs, offsets = [abs, lambda v: v * 2, lambda v: v - 1] * n, tuple(range(5, 5 + n))
        def f(x):
            total = ()
            for i in static(n):
                total += (fs[i](x[i]), offsets[i], -i, i / 2, offsets[:i])
            return total
        return f

    def backwards(n, m):
        def f(x):
            total = 1
            for i in static(n - 1, -1, -1):
                for k in range(m):
                    if k == 1: continue
                    total = 2 * total + x[i] * k
            for _ in static(0): total = None
            return total
        return f
    return dict(sums=sums, decided=decided, picked=picked, backwards=backwards)


@pytest.mark.parametrize("name", makers())
def test_an_unrolled_loop_does_what_the_loop_does(name):
    for n in range(5):
        for m in range(5):
            fn = makers()[name](n, m)
            flat = unrolled(fn)
            for _ in range(5):
                x = [int(v) for v in np.random.randint(-9, 9, 32)]
                assert flat(x) == in_python(fn)(x)
    names = {node.id for node in ast.walk(TREES[flat.__code__]) if isinstance(node, ast.Name)}
    assert "static" not in names


def scaled_sum(n, factor):
    @cuda.jit(device=True)
    @unrolled
    def scaled(
        x,
        at,
    ):
        total = float32(0)
        for i in static(n):
            if i % 2 == 0: total += x[at, i] * float32(factor)
            else: total -= x[at, i]
        return total

    @cuda.jit
    def kernel(x, y):
        at = cuda.threadIdx.x
        y[at] = scaled(x, at)
    return kernel


def launched(kernel, x, threads=None):
    y = np.full(len(x), np.nan, np.float32)
    kernel[1, threads or len(x)](x, y)
    return y


def test_a_kernel_with_static_loops_runs_and_compiles():
    pytest.importorskip("numba_cuda")  # the compiler, which a Mac lacks
    x = np.random.randn(32, 5).astype(np.float32)
    expected = 3 * x[:, ::2].sum(1) - x[:, 1::2].sum(1)
    kernel = scaled_sum(5, 3)
    assert np.allclose(launched(kernel, x), expected, atol=1e-5)
    by_value = in_child(launched, kernel, x, simulator=True, keep=True)
    assert np.allclose(by_value, expected, atol=1e-5)
    code = machine_code(kernel, "void(float32[:, ::1], float32[::1])")
    assert sum(x.opcode.startswith("LDG") for x in code.instructions) == 5
    assert not any(x.opcode == "BRA" and x.guard for x in code.instructions)


def test_a_mistake_has_its_line():
    kernel = scaled_sum(6, 1)
    lines, first = inspect.getsourcelines(scaled_sum)
    line = next(i for i, text in enumerate(lines, first) if "else: total" in text)
    with pytest.raises(SimulatorError, match=rf"index 5 is out of bounds .*line {line} of scaled"):
        launched(kernel, np.zeros((2, 5), np.float32))


def test_a_global_is_fixed_when_the_kernel_is_compiled():
    scope = dict(cuda=cuda, static=static, unrolled=unrolled, factor=2)
    text = ("@cuda.jit\n@unrolled\ndef kernel(x, y):\n    for i in static(2): y[i] = x[i] * factor\n")
    linecache.cache["<global>"] = len(text), None, text.splitlines(True), "<global>"
    exec(compile(text, "<global>", "exec"), scope)
    scope["factor"] = 3
    x = np.float32([1, 2])
    assert list(launched(scope["kernel"], x, 1)) == [3, 6]


def refused():
    "Functions that can't be unrolled, and the messages."
    n = 4
    def break_in_it(x):
        for i in static(n):
            if x[i]: break
    def continue_in_it(x):
        for i in static(n):
            if x[i]:
                continue
    def has_an_else(x):
        for i in static(n): x[i] = 0
        else: x[0] = 1
    def two_variables(x):
        for i, j in static(n): x[i] = j
    def sets_it(x):
        for i in static(n): i += 1
    def shadows_it(x):
        for i in static(n):
            for i in range(3): x[i] = 0
    def used_after_it(x):
        for i in static(n): x[i] = 0
        return i
    def an_argument(x, k):
        for i in static(k): x[i] = 0
    def a_local(x):
        k = 3
        for i in static(k): x[i] = 0
    def a_global(x):
        for i in static(LENGTH): x[i] = 0
    def a_float(x):
        for i in static(n / 2): x[i] = 0
    def no_limit(x):
        for i in static(): x[i] = 0
    def step_zero(x):
        for i in static(0, n, 0): x[i] = 0
    def a_keyword(x):
        for i in static(stop=n): x[i] = 0
    def too_many(x):
        for i in static(n * 1000): x[i] = 0
    def not_a_loop(x): return x[static(n)]
    def a_comprehension(x): return [x[i] for i in static(n)]
    def past_the_end(x, y=(1, 2)):
        for i in static(n): x[i] = pair[i]
    pair = 1, 2
    return {
        break_in_it: "line {2} of break_in_it: a static loop can't contain break or continue",
        continue_in_it: "line {3} of continue_in_it: a static loop can't contain break or continue",
        has_an_else: "line {1} of has_an_else: a static loop has no else",
        two_variables: "line {1} of two_variables: a static loop has one variable",
        sets_it: "line {1} of sets_it: i is the loop variable and is assigned in the static loop",
        shadows_it: "line {2} of shadows_it: i is the loop variable",
        used_after_it:
            "line {2} of used_after_it: i is the variable of the static loop in line {1} "
            "and can't be used for anything else",
        an_argument: "static(k): k is known only when an_argument runs: use range",
        a_local: "static(k): k is known only when a_local runs: use range",
        a_global: "static(LENGTH): LENGTH is a global, which is only fixed when a kernel is compiled",
        a_float: "static(n / 2): 'float' object cannot be interpreted as an integer",
        no_limit: "static(): range expected at least 1 argument",
        step_zero: "static(0, n, 0): range() arg 3 must not be zero",
        a_keyword: "static(stop=n): static takes up to three numbers",
        too_many: "static(n * 1000): 4,000 iterations exceed 1,024: use range",
        not_a_loop: "static(…) only works in a loop",
        a_comprehension: "static(…) only works in a loop",
        past_the_end: "line {1} of past_the_end: pair[i] in a static loop, i = 2: tuple index out of range",
    }


@pytest.mark.parametrize("fn", refused(), ids=lambda fn: fn.__name__)
def test_what_cannot_be_unrolled_is_refused(fn):
    fn, said = next((f, said) for f, said in refused().items() if f.__name__ == fn.__name__)
    for offset in range(1, 4): said = said.replace(f"{{{offset}}}", str(fn.__code__.co_firstlineno + offset))
    with pytest.raises(TypeError) as e: unrolled(fn)
    assert said in str(e.value)


def test_decorators_in_the_wrong_place_are_refused():
    with pytest.raises(TypeError, match="put it below @cuda.jit"): unrolled(cuda.jit(lambda x: None))
    with pytest.raises(TypeError, match="not a lambda"): unrolled(lambda x: None)
    with pytest.raises(TypeError, match="in any file or cell"):
        exec("def f(): pass\nunrolled(f)", dict(unrolled=unrolled))

    def early(x): return late(x)
    with pytest.raises(TypeError, match="early uses late, which is only set further down"): unrolled(early)
    def late(x): return x


def test_static_without_unrolled_is_refused():
    @cuda.jit
    def kernel(x, y):
        for i in static(2): y[i] = x[i]
    with pytest.raises((TypeError, SimulatorError), match=r"with @unrolled below @cuda\.jit"):
        launched(kernel, np.zeros(2, np.float32), 1)


def test_a_source_that_has_changed_is_refused():
    text = "def f(x):\n    for i in static(2): x[i] = 1\n"
    scope = dict(static=static)
    exec(compile(text, "<edited>", "exec"), scope)
    changed = text.replace("= 1", "= 2")
    linecache.cache["<edited>"] = len(changed), None, changed.splitlines(True), "<edited>"
    with pytest.raises(TypeError, match="the source of f has changed"): unrolled(scope["f"])
