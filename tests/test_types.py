"""The simulator computes in the compiler's types: a table of expressions, in both.

The compiler's code runs on this machine's processor, so no GPU is needed."""
import ast
import math
import re
import sys

import agreement
import numpy as np
import pytest
from expressions import BINARY, BODIES, SMALL, UNARY, compiled, operands, simulated, table
from numba import cuda, float32, from_dtype
from numba.cuda import libdevice, libdevicefuncs
from on_this_cpu import same

from numba_matmul.compiler import CompileError, machine_code
from numba_matmul.process import in_child
from numba_matmul.sim.launch import diagnose, simulate
from numba_matmul.sim.scheduler import SimulatorError

ROWS = table()
# For a shift by too many bits or a division by 0, a GPU returns some number; an int64 variable may wrap. The
# simulator stops.
STOPS = "SimulatorError", "ZeroDivisionError", "OverflowError"


@pytest.mark.parametrize("first", SMALL)
def test_types_and_values_are_the_compilers(first):
    pytest.importorskip("numba_cuda")  # the compiler, which macOS lacks
    rows = [(text, kinds) for text, kinds in ROWS if kinds[0] == first]
    theirs = in_child(compiled, rows, simulator=False, timeout=100, keep=True)
    ours = in_child(simulated, rows, simulator=True, timeout=100, keep=True)
    wrong, refused = [], []
    for (text, kinds), (kind, values), (our_kind, our_values) in zip(rows, theirs, ours):
        if kind == "refused":
            if our_kind != "refused":
                wrong.append(f"{text} of {kinds}: {our_kind}, and the compiler refuses it")
        elif our_kind == "refused": refused.append(f"{text} of {kinds}: {our_values}")
        elif our_kind != kind: wrong.append(f"{text} of {kinds}: {our_kind}, not {kind}")
        else:
            for given, value, our in zip(operands(kinds), values or (), our_values):
                if isinstance(our, str) and our.startswith(STOPS): continue
                if not same(value, our): wrong.append(f"{text} of {given}, {kinds}: {our}, not {value}")
    assert not wrong, "\n".join(wrong[:60])
    assert sum(values is None for _, values in theirs) < len(rows) // 10  # things that only run on a GPU
    assert not refused, "\n".join(refused[:20])


def test_the_table_is_large(): assert len(BINARY | UNARY | BODIES) >= 100 and len(ROWS) > 500


KEPT = agreement.kept()
KERNELS = agreement.rows(KEPT["answers"])


def test_the_simulator_takes_what_the_compiler_takes_and_computes_the_same():
    found = in_child(agreement.simulated, list(KERNELS.values()), simulator=True, timeout=200, keep=True)
    walrus = sys.version_info[:2] != tuple(KEPT["python"])  # what gets lost depends on the bytecode
    said = [f"{row}: {text}" for (name, row), ours in zip(KERNELS.items(), found)
            if (text := agreement.differences(ours, KEPT["answers"][name], row))
            and not (walrus and ":=" in row[0])]
    assert not said, "\n".join(said[:60])


def test_the_kept_answers_are_the_compilers():
    pytest.importorskip("numba_cuda")  # the compiler, which macOS lacks
    names = list(KERNELS)[::50]
    found = in_child(agreement.compiled, [KERNELS[x] for x in names], simulator=False, timeout=200, keep=True)
    stale = [KERNELS[x] for x, theirs in zip(names, found) if agreement.answer(theirs) != KEPT["answers"][x]]
    assert not stale, f"python tests/agreement.py asks the compiler anew: {stale}"


def test_the_kernels_have_all_of_pythons_syntax_and_all_of_libdevice():
    bodies = [text.rpartition("\n---\n")[2] for text, _ in KERNELS.values()]
    trees = [ast.parse("async def k():\n" + "".join(f"    {line}\n" for line in body.splitlines()))
             for body in bodies]
    there = {type(node) for tree in trees for node in ast.walk(tree)}
    newer = {"TypeAlias", "TemplateStr", "Interpolation"}  # newer than Python 3.11
    missing = {x.__name__ for kind in (ast.stmt, ast.expr, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
               for x in kind.__subclasses__() if x not in there} - newer
    assert not missing
    assert len(KERNELS) > 0.9 * len(KEPT["answers"]) > 3000  # numpy's names differ between versions
    called = set(re.findall(r"libdevice\.(\w+)\(", "".join(bodies)))
    assert all(name.removeprefix("__nv_") in called for name in libdevicefuncs.functions)


# What the compiler refuses, or can't be known: the simulator names it

REFUSED = {  # a kernel's body, and the simulator's message
    "writes an array of the module": ("TABLE[0] = 1\nout[0] = TABLE[0]", "a global array is a constant"),
    "computes a shape": (
        "size = out.shape[0] // 2\ns = cuda.shared.array(size, float32)\ns[0] = 1\nout[0] = s[0]",
        "must be known to the compiler"),
    "has a dict": ("out[0] = DICT['size']", "DICT is a dict"),
    "makes a dict": ("sizes = {'size': 4}\nout[0] = sizes['size']", "a dict in a kernel"),
    "tries": ("try: out[0] = 1\nexcept ValueError: out[0] = 2", "try in a kernel"),
    "returns": ("return out[0] + 1", "returns a value"),
    "has an index that is a float": ("out[out.shape[0] / 4] = 1", "an index is a float64"),
    "adds a tuple": ("out[0] = out[0] + (1, 2)", "doesn't support it|a sequence"),
    "has a name that is not there": ("out[0] = nowhere", "the name nowhere is not defined"),
    "calls a Python function": ("out[0] = math.prod((1, 2))", "prod"),
}
UNKNOWN = {  # the compiler isn't asked about these
    "reads what one branch wrote": ("if out[0] > 0: y = 1\nout[1] = y",
                                    "y.*has no value|y' where it is not associated"),
    "has an f-string": ("name = f'{out[0]}'\nout[0] = len(name)", "an f-string in a kernel"),
    "asks which lanes are active": ("out[0] = cuda.activemask()", "activemask.*write the mask you mean"),
}


@pytest.mark.parametrize("name", REFUSED | UNKNOWN)
def test_what_the_compiler_refuses_or_nobody_can_know_is_refused(name):
    text, said = (REFUSED | UNKNOWN)[name]
    fn, args = agreement.made(text)
    with pytest.raises(SimulatorError, match=said): simulate(cuda.jit(fn)[1, 32], *args)
    if name in REFUSED:
        with pytest.raises(CompileError): machine_code(cuda.jit(fn), "void(float64[::1])")


@cuda.jit
def matches(values, out):
    i = cuda.threadIdx.x
    out[i] = cuda.match_any_sync(0xFFFFFFFF, values[i])


def test_lanes_with_the_same_value_are_found():
    _, found = simulate(matches[1, 32], np.arange(32, dtype=np.int32) % 3, np.zeros(32, np.int64))
    assert [mask & 0xFFFFFFFF for mask in found.tolist()] == [
        sum(1 << lane for lane in range(32) if lane % 3 == i % 3) for i in range(32)]


def test_more_arguments_than_a_launch_has_room_for_are_refused():
    scope = dict(cuda=cuda)
    names = ", ".join(f"x{i}" for i in range(800))
    exec(f"@cuda.jit\ndef many({names}): x0[0] = 1", scope)
    with pytest.raises(SimulatorError,
                       match="800.*room for 32764|take .* bytes, but a launch allows only 32764"):
        simulate(scope["many"][1, 1], *[np.zeros(8)] * 800)


def test_nothing_is_called_good_that_does_not_compile():
    pytest.importorskip("numba_cuda")  # the compiler, which macOS lacks
    out = np.zeros(8, np.float32)
    message = diagnose(calls_what_only_the_simulator_has[1, 1], out)
    assert "the compiler refuses" in message and "No mistake found" not in message
    assert diagnose(fine[1, 1], out).startswith("No mistake found.")


@cuda.jit
def fine(out): out[0] = 1


@cuda.jit(device=True)
def unknown_to_the_compiler(x): return cuda.local.array(2, float32) if x > 0 else cuda.local.array(3, float32)


@cuda.jit
def calls_what_only_the_simulator_has(out):
    a = unknown_to_the_compiler(out[0])
    b = (out, a)
    for x in b: x[0] = 1
    out[1] = max(b[0][0], 1)
    complex(1, 2).conjugate()


WIDTH, EAGER, SLOT, BORDER = 4, 1, 0, np.arange(4, dtype=np.float32)


def test_names_from_outside_are_read_when_the_compiler_reads_them(monkeypatch):
    @cuda.jit("void(float32[:])")
    def eager(out): out[0] = EAGER
    @cuda.jit
    def lazy(out): out[0] = WIDTH + BORDER[1]
    first, second, here = np.zeros(1, np.float32), np.zeros(1, np.float32), sys.modules[__name__]
    lazy[1, 1](first)
    monkeypatch.setattr(here, "EAGER", 9)
    monkeypatch.setattr(here, "WIDTH", 8)
    with pytest.warns(UserWarning, match="lazy was compiled with WIDTH = 4: it's now 8"): lazy[1, 1](second)
    assert first[0] == second[0] == 5
    with pytest.warns(UserWarning, match="eager was compiled with EAGER = 1: it's now 9"):
        eager[1, 1](second)
    assert second[0] == 1
    with pytest.warns(UserWarning, match="BORDER with different contents"):
        monkeypatch.setattr(here, "WIDTH", 4)
        BORDER[1] += 1
        lazy[1, 1](second)
    assert second[0] == 5


def test_diagnose_takes_the_values_that_a_kernel_has_read(monkeypatch):
    @cuda.jit
    def reads(out): out[SLOT] = 1
    reads[1, 1](np.zeros(2, np.float32))
    monkeypatch.setattr(sys.modules[__name__], "SLOT", 5)
    assert "No mistake found" in diagnose(reads[1, 1], np.zeros(2, np.float32))


PAIR = np.dtype([("x", np.float32), ("n", np.int32)])


def test_fields_of_an_element_are_different_memory():
    kind = from_dtype(PAIR)
    @cuda.jit
    def apart(out):
        pairs, i = cuda.shared.array(1, kind), cuda.threadIdx.x
        if i == 0: pairs[0].x = 3
        else: pairs[0].n = 4
        cuda.syncthreads()
        out[i] = pairs[0].x + pairs[0].n
    @cuda.jit
    def together(pairs):
        pairs[0].n = cuda.threadIdx.x
    assert simulate(apart[1, 2], np.zeros(2, np.float32))[0].tolist() == [7, 7]
    with pytest.raises(SimulatorError, match="race"): simulate(together[1, 2], np.zeros(1, PAIR))


def test_libdevice_rounds_in_a_direction():
    @cuda.jit
    def thirds(out, one, three):
        out[0], out[1] = libdevice.fdiv_rd(one, three), libdevice.fdiv_ru(one, three)
        out[2], out[3] = libdevice.fsqrt_rz(three), libdevice.double2int_rn(2.5)
        out[4], out[5] = libdevice.sincospi(0.5)
        out[6] = libdevice.j0(1.0)
    out = np.zeros(8)
    thirds[1, 1](out, np.float32(1), np.float32(3))
    assert out[0] < 1 / 3 < out[1] == np.nextafter(np.float32(out[0]), np.float32(1))
    assert out[2] <= math.sqrt(3) and out[3] == 2 and tuple(out[4:6]) == (1, 0)
    assert math.isclose(out[6], 0.7651976865579666)
