"The compiler tool, the microscope and the reader of Nsight Compute's tables. None needs a GPU."
import os
import pickle
import shutil
import stat
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from types import CodeType

import cloudpickle
import numpy as np
import pytest
from conftest import ROOT, environment, minimal_card

if find_spec("numba_cuda") is None: pytest.skip("numba-cuda is not installed", allow_module_level=True)

from compiled import SHAPES, cases, targets
from numba import cuda, float32, uint32

from numba_matmul import compiler
from numba_matmul.arrays import to_d
from numba_matmul import ncu as ncu_module
from numba_matmul.compiler import TARGETS, CompileError, compare, machine_code, occupancy
from numba_matmul.kernels.k14_stream_k import sgemm_stream_k
from numba_matmul.registry import ALL, KERNELS
from numba_matmul.microscope import _copy_parts, _wide_copy_parts, microscope, sectors, wavefronts
from numba_matmul.timeline import time_line
from numba_matmul.ncu import (NcuError, _read, agreement, counted, merged_by_compiler, ncu,
                              shared_memory_bound, stalls)
from numba_matmul.sim.launch import launch_of
from numba_matmul.sim.scheduler import SimulatorError
from numba_matmul.cards import card_row, load_cards
from numba_matmul.process import Pickler
from numba_matmul.ptx.core import load4, store4


X, NAIVE = np.arange(8, dtype=np.float32), KERNELS[1].fn


@cuda.jit
def simple(x, out):
    i = cuda.grid(1)
    if i < out.size: out[i] = x[i] + x[i]


@pytest.mark.first(2)
@pytest.mark.parametrize("label,kernel,fn,shape", [pytest.param(*case, id=case[0]) for case in cases()])
def test_no_kernel_of_the_ladder_spills(label, kernel, fn, shape):
    """At sizes that fit, that do not, and whose rows are not aligned; with each tile; and where C is read, which needs
    registers, too."""
    launch, multiply = (launch_of(fn, shape),
                        "FFMA" if kernel.dtype == "float32" else "HGMMA" if kernel.uses_tma else "HMMA")
    older = {SHAPES[1]: ["sm_89"], SHAPES[2]: ["sm_80"]}.get(shape, []) if not fn.keywords else []  # each once
    for target in targets(kernel, ["sm_90", *older]):
        code = machine_code(launch.kernel, launch.signature, target)
        assert code.spills == 0 and code.stack_bytes == 0, code
        assert any(x.kind == multiply for x in code.instructions), code


@pytest.mark.parametrize("shape", [(256, 256, 64), (260, 264, 36), (259, 261, 37)])
def test_kernel_11_fetches_long_before_it_stores(shape):
    kinds = [x.kind.split()[0] for x in machine_code(KERNELS[11].fn, shape=shape).main_loop]
    last_load = max(place for place, kind in enumerate(kinds) if kind == "LDG")
    assert kinds.index("STS") - last_load > 250 and kinds.count("FFMA") >= 1024


@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS.values() if kernel.capability != (0, 0)],
                         ids=lambda kernel: kernel.name)
def test_a_gpu_without_its_instructions_cannot_have_a_kernel(kernel):
    "The newest target that is older than what it needs."
    target = max((name for name, capability in TARGETS.items() if capability < kernel.capability[:2]), key=TARGETS.get)
    with pytest.raises(CompileError): machine_code(kernel.fn, target=target)


@pytest.mark.parametrize("options", KERNELS[17].tiles.compiled)
def test_kernel_17_multiplies_four_times_a_turn(options):
    assert machine_code(partial(KERNELS[17].fn, **options)).mix["HGMMA"] == 4


@pytest.mark.parametrize("options", KERNELS[14].tiles.compiled)
def test_kernel_14_has_its_results_in_the_other_bank(options):
    code = machine_code(partial(sgemm_stream_k, **options))
    assert code.mix["LDGSTS 32"] >= 4 and code.mix["FFMA"] == 1024
    if options.get("width") != 1: assert len(code.main_loop) + code.port_conflicts < 1250


def test_conflicts_of_register_ports_are_counted():
    def ffma(operands): return compiler.Instruction(0, "FFMA", operands, 0, "")
    reads = compiler.register_reads([
        ffma("R0, R4.reuse, R8, R0"), ffma("R1, R4, R9, R1"), compiler.Instruction(0, "IADD3", "R2, R4, R6, RZ", 0, ""),
        ffma("R2, R4, R9.reuse, R2"), ffma("R3, R9, R9, R3"), ffma("R3, RZ, R6, R3")])
    assert reads == [{0, 4, 8}, {1, 9}, {2, 4, 9}, {3, 9}, {3, 6}]


def test_every_target_compiles():
    for target in compiler.TARGETS:
        assert machine_code(simple, "void(float32[::1], float32[::1])", target).registers > 0


def test_an_edited_kernel_is_compiled_anew_and_the_second_time_comes_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    def kernel(factor):
        @cuda.jit
        def k(x): x[0] = x[0] * float32(factor)
        return k
    built = []
    build = compiler._build
    monkeypatch.setattr(compiler, "_build", lambda *args: built.append(args) or build(*args))
    first, again, other = [machine_code(kernel(factor), "void(float32[::1])") for factor in (3, 3, 5)]
    assert first.sass == again.sass != other.sass and len(built) == 2
    assert len(list((tmp_path/"numba_matmul").iterdir())) == 2


def test_without_a_folder_to_keep_it_in_a_kernel_is_compiled_all_the_same(tmp_path, monkeypatch):
    (tmp_path/"file").write_text("where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path/"file"))
    monkeypatch.setattr(compiler, "_build", lambda *args: dict(sass="", usage="REG:7 STACK:8 SHARED:1024"))
    assert machine_code(simple, "void(float32[::1], float32[::1])").registers == 7


def test_line_numbers_and_loop():
    code = machine_code(KERNELS[3].fn)
    lines = {x.line for x in code.main_loop}
    source, first = compiler_source(code)
    assert any("acc +=" in source[line - first] for line in lines if line)
    assert code.mix["FFMA"] == 32 and code.mix["BAR"] == 2 and code.loop.count("\n") == len(code.main_loop) - 1
    assert "FFMA" in code.sass and ".version" in code.ptx
    assert any(x.guard and x.guard in code.loop for x in code.main_loop if x.opcode.startswith("BRA"))


def compiler_source(code):
    import inspect
    from numba_matmul.kernels.k03_smem_blocking import sgemm_smem_blocking_kernel
    return inspect.getsourcelines(sgemm_smem_blocking_kernel(32, predicated=False).py_func)


def test_spills_and_stack_are_seen():
    @cuda.jit(max_registers=24)
    def hungry(x, out):
        acc = cuda.local.array(64, float32)
        i = cuda.grid(1)
        for q in range(64): acc[q] = x[i + q]
        for step in range(x.size):
            for q in range(64): acc[q] = acc[q] * x[step] + acc[(q * 7 + step) % 64]
        total = float32(0)
        for q in range(64): total += acc[q]
        out[i] = total
    code = machine_code(hungry, "void(float32[::1], float32[::1])")
    assert code.stack_bytes >= 256 and code.spills > 0


def test_comparing_puts_kernels_side_by_side():
    text = compare(machine_code(KERNELS[1].fn), machine_code(KERNELS[2].fn), names=["one", "two"])
    assert "one | two" in text and "FFMA share" in text


@pytest.mark.parametrize("call,text", [
    (lambda: machine_code(simple, "void(float32[::1])"), "takes 2 arguments"),
    (lambda: machine_code(simple, "nonsense"), "not a signature"),
    (lambda: machine_code(simple, "void(float32[::1], float32[::1])", "sm_1"), "unknown target 'sm_1'"),
    (lambda: machine_code(simple), "needs a signature"),
])
def test_what_the_compiler_tool_refuses(call, text):
    with pytest.raises((CompileError, ValueError), match=text): call()


@cuda.jit
def endless(x): endless(x)


ONE, THREE = "void(float32[::1])", "void(float32[::1], float32[::1], float32[::1])"


@pytest.mark.parametrize("call,error,text", [
    (lambda: machine_code("sgemm_naive"), TypeError, "got 'sgemm"),  # and what else `launch_of` refuses
    (lambda: machine_code(simple.py_func, ONE), TypeError, "a signature is for a kernel.*@cuda.jit"),
    (lambda: machine_code(5, ONE), TypeError, "5 is none"),
    (lambda: machine_code(endless, ONE), CompileError, "endless calls itself"),
    (lambda: machine_code(NAIVE, shape=(64, 64)), ValueError, "three whole numbers"),
    (lambda: microscope(None, (8, 8, 8)), TypeError, "got None"),
    (lambda: microscope(NAIVE), TypeError, "one shape"), (lambda: microscope(NAIVE, 8, 8, 8), TypeError, "one shape"),
    (lambda: microscope(NAIVE, (8, 8, 8), 5), TypeError, "one shape"),
    (lambda: microscope(simple.py_func, (8, 8, 8), 1), TypeError, "or a kernel and its arguments, microscope"),
    (lambda: microscope(simple, X, X), ValueError, "needs a launch configuration"),
    (lambda: microscope(simple[1, 8], X), TypeError, "takes 2 arguments"),
    (lambda: microscope(simple[1, 8], X, X, blocks=[(0, 0)]), ValueError, r"blocks are \(x, y, z\)"),
    (lambda: microscope(counting[10**9, 8], X), SimulatorError, "1,000,000,000 blocks"),
])
def test_what_is_no_kernel_is_refused_before_a_child_is_started(call, error, text, no_child):
    with pytest.raises(error, match=text): call()


@cuda.jit
def counting(x): cuda.atomic.add(x, 0, 1)


def test_a_large_launch_is_looked_at_by_some_of_its_blocks():
    assert microscope(counting[10**9, 8], X, blocks=[(5, 0, 0)]).counts == {(5, 0, 0): 1}


def test_a_kernel_that_does_not_compile_is_answered_with_its_line():
    @cuda.jit
    def wrong(x, out): out[0] = x[0].nothing_like_that
    with pytest.raises(CompileError, match="nothing_like_that") as caught:
        machine_code(wrong, "void(float32[::1], float32[::1])")
    assert "line" in str(caught.value) and "/" not in str(caught.value).replace("//", "")


@pytest.mark.parametrize("arguments,blocks,limiter", [
    (dict(threads=1024, registers=32), 2, "threads"), (dict(threads=1024, registers=33), 1, "registers"),
    (dict(threads=256, registers=128, shared_bytes=16384), 2, "registers"),
    (dict(threads=256, registers=255), 1, "registers"), (dict(threads=32, registers=16), 32, "blocks"),
    (dict(threads=128, registers=32, shared_bytes=48 * 1024), 4, "shared memory"),
    (dict(threads=256, registers=32, shared_bytes=32 * 1024, target="sm_75"), 2, "shared memory"),
])
def test_occupancy_by_hand(arguments, blocks, limiter):
    found = occupancy(**arguments)
    assert (found.blocks, found.limiter) == (blocks, limiter)


def test_sectors_and_wavefronts_of_known_requests():
    neighbours = [4 * lane for lane in range(32)]
    assert sectors(neighbours, 4) == 4 and sectors([start + 4 for start in neighbours], 4) == 5
    assert sectors([32 * lane for lane in range(32)], 4) == 32 and sectors([0] * 32, 4) == 1
    for stride, passes in (1, 1), (2, 2), (3, 1), (4, 4), (32, 32), (33, 1):
        assert wavefronts({lane: 4 * stride * lane for lane in range(32)}, 4) == passes
    assert wavefronts({lane: 0 for lane in range(32)}, 4) == 1
    assert wavefronts({lane: 8 * lane for lane in range(32)}, 8) == 2
    assert wavefronts({lane: 16 * lane for lane in range(32)}, 16) == 4
    assert wavefronts({lane: 0 for lane in range(32)}, 8) == 1 and wavefronts({lane: 0 for lane in range(32)}, 16) == 2
    assert wavefronts({0: 0}, 16) == 1


def test_wide_accesses_count_once_and_must_be_aligned():
    @cuda.jit
    def k(x, out, offset):
        i = uint32(4 * cuda.threadIdx.x)
        store4(out, i, *load4(x, uint32(i + uint32(offset))))
    x = np.arange(140, dtype=np.float32)
    view = microscope(k[1, 32], x, np.zeros(128, np.float32), 8)
    assert (view.site("x").size, view.site("x").requests, view.site("x").cost) == (16, 1, 16)
    with pytest.raises(SimulatorError, match="16 bytes at x"): microscope(k[1, 32], x, np.zeros(128, np.float32), 2)


@cuda.jit
def copy(x, out):
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]: out[i, j] = x[i, j]


def test_the_parts_of_a_launch_add_up_to_all_of_it():
    x = np.zeros((37, 32), np.float32)
    launch, grid = partial(microscope, copy[(5, 4), (8, 8)], x, x.copy()), (5, 4, 1)
    by_parts, every = launch(), launch(blocks=list(np.ndindex(*grid)))
    assert len(by_parts.counts) == 9 and max(by_parts.counts.values()) == 6 and len(every.counts) == 20
    assert by_parts.totals() == every.totals()


def test_a_view_is_printed_as_the_table_that_a_notebook_shows():
    view = microscope(tiled[1, 32], np.arange(64, dtype=np.float32))
    assert "sample" not in repr(view.site("x"))
    printed, table = str(view).splitlines(), view._repr_markdown_().splitlines()
    words = [line.replace("|", " ").replace("`", "").split() for line in (table[0], *table[2:])]
    assert [line.split() for line in printed] == words
    assert [line.split("  ", 2)[-1].lstrip() for line in printed] == [
        "array  bits  requests  per request  used", "x        32         1    8 sectors   50%",
        "tile     32         1  1 wavefront"]


@cuda.jit
def tiled(x):
    tile = cuda.shared.array(32, float32)
    tile[cuda.threadIdx.x] = x[2 * cuda.threadIdx.x]


def test_wide_accesses_are_for_float32():
    @cuda.jit
    def k(x, out): store4(out, 0, *load4(x, 0))
    with pytest.raises(SimulatorError, match="for float32, not for float64"):
        microscope(k[1, 1], np.zeros(4), np.zeros(4, np.float32))
    with pytest.raises(CompileError, match="for float32, not for float64"):
        machine_code(k, "void(float64[::1], float32[::1])")


def test_a_kernel_that_races_or_hangs_is_named():
    @cuda.jit
    def past_the_end(x): x[cuda.threadIdx.x + 1] = 0
    waiting = microscope(sgemm_stream_k, (64, 64, 64))  # parts of sums go from one block to another
    assert len(waiting.counts) == launch_of(sgemm_stream_k, (64, 64, 64)).grid[0] > 1
    with pytest.raises(SimulatorError, match="out of bounds.*past_the_end"):
        microscope(past_the_end[1, 8], np.zeros(8, np.float32))
    with pytest.raises(ValueError, match="it touches out, x"):
        microscope(simple[1, 8], np.zeros(8, np.float32), np.zeros(8, np.float32)).site("nothing")


@pytest.mark.parametrize("lines,row,counted", [  # of global memory; words of a row in shared memory; by ncu, on an H200
    (1, 33, 1), (1, 2, 2), (1, 8, 8), (1, 32, 32), (2, 0, 2), (4, 0, 4), (4, 132, 4), (4, 136, 5), (4, 128, 11),
    (8, 0, 8), (8, 136, 8), (8, 128, 11), (16, 0, 16), (32, 0, 32)])
def test_copies_of_4_bytes_arrive_line_by_line(lines, row, counted):
    lanes, across = range(32), 32 // lines
    to = {lane: 4 * (lane % across * row + lane // across if row else lane) for lane in lanes}
    assert len(_copy_parts(to, {lane: 4096 * (lane // across) + 4 * (lane % across) for lane in lanes})) == counted


def test_copies_of_one_word_to_several_places_take_turns():  # counted, too
    assert len(_copy_parts({lane: 4 * lane for lane in range(32)}, {lane: lane // 4 * 4 for lane in range(32)})) == 4


@pytest.mark.parametrize("source,target,counted", [(16, 16, 4), (4096, 16, 32), (16, 32, 32), (16, 64, 32)])
def test_copies_of_16_bytes_share_a_wavefront_if_they_keep_their_distance(source, target, counted):
    assert len(_wide_copy_parts({lane: target * lane for lane in range(32)},
                                {lane: source * lane for lane in range(32)})) == counted


@pytest.mark.parametrize("pieces,row,change,counted", [
    # of 16 bytes in a row; words from one to the next; place of a piece
    (8, 32, "stay", 4), (8, 36, "stay", 10), (8, 40, "stay", 7), (8, 48, "stay", 6), (8, 64, "stay", 4),
    (8, 32, "swizzle", 4), (8, 32, "rotate", 6), (16, 64, "stay", 4), (16, 68, "stay", 8), (16, 72, "stay", 6),
    (16, 64, "swizzle", 4), (4, 16, "stay", 4), (4, 20, "stay", 15),
    (2, 8, "stay", 4), (2, 12, "stay", 24), (1, 4, "stay", 4), (1, 8, "stay", 32), (1, 36, "stay", 32)])
def test_copies_of_16_bytes_are_dear_where_a_line_is_torn_apart(pieces, row, change, counted):
    def place(r, p): return {"stay": p, "swizzle": p ^ r % 8, "rotate": (p + r) % pieces}[change]
    to = {lane: 4 * row * (lane // pieces) + 16 * place(lane // pieces, lane % pieces) for lane in range(32)}
    assert len(_wide_copy_parts(to, {lane: 16 * lane for lane in range(32)})) == counted


@pytest.mark.parametrize("shift,start,counted", [(16, 0, 12), (64, 0, 8), (0, 16, 12)])
def test_a_line_that_is_shifted_by_16_bytes_takes_three_wavefronts(shift, start, counted):
    to, source = ({lane: first + 16 * lane for lane in range(32)} for first in (shift, start))
    assert len(_wide_copy_parts(to, source)) == counted


def test_zeros_that_land_have_no_line():
    source = {lane: 4 * lane if lane < 5 else None for lane in range(32)}
    assert len(_copy_parts({lane: 4 * lane for lane in range(32)}, source)) == 2


def test_pictures_are_drawn():
    view = microscope(KERNELS[3].fn, (32, 32, 32))
    for array, operation in ("a", "load"), ("c", "store"), ("a_tile", "store"), ("b_tile", "load"):
        assert view.draw(array, operation).axes
    assert view.heat_map("b").axes


def test_predictions_agree_with_what_was_counted():
    cards = load_cards("ncu")
    for card in cards:
        timed = {kernel.name for kernel in KERNELS.values() if card_row(card, kernel.name, 4096)}
        assert timed == card["profiles"].keys() and timed <= {row["kernel"] for row in card["ncu"]}
    rows = [row for card in cards for row in card["ncu"]]
    assert rows
    for row in rows:
        if row["predicted"] == pytest.approx(row["counted"], rel=0.01): continue
        assert row["kernel"] in ALL and merged_by_compiler(ALL[row["kernel"]].fn, row["counter"]), row


def show(monkeypatch, *cards):
    "Let the tables find these cards, in this order."
    monkeypatch.setattr(ncu_module, "load_cards",
                        lambda *fields: [card for card in cards if card.keys() >= set(fields)])


@pytest.mark.parametrize("first", [True, False])
def test_a_card_with_the_required_fields_alone_changes_no_table(first, monkeypatch):
    cards = load_cards()
    def tables():
        return (agreement(NAIVE, KERNELS[3].fn), counted("sgemm_naive", "cycles"),
                shared_memory_bound("sgemm_smem_blocking"))
    before = tables()
    show(monkeypatch, *([minimal_card(), *cards] if first else [*cards, minimal_card()]))
    assert tables() == before and stalls("sgemm_naive").axes


def test_without_a_profile_the_tables_say_so(monkeypatch):
    card = minimal_card()
    show(monkeypatch, card)
    assert agreement(NAIVE) == "Not counted yet: sgemm_naive." and "0 predictions" in agreement(NAIVE, differing=True)
    for call in (lambda: counted("sgemm_naive", "cycles"), lambda: shared_memory_bound("sgemm_naive"),
                 lambda: stalls("sgemm_naive")):
        with pytest.raises(NcuError, match="no profile is recorded: run make gpu STAGE=ncu"): call()
    profile = {"shared load wavefronts": 0, "shared store wavefronts": 0, "cycles": 1}
    card |= dict(profiles=dict(sgemm_naive=profile), speed=[])
    assert "| sgemm_naive | not counted yet" in shared_memory_bound("sgemm_naive")  # no speed at that size
    card["speed"] = [dict(name="sgemm_naive", m=4096, n=4096, k=4096, gflops=card["peak_gflops"] / 4)]
    assert "| sgemm_naive | 0.000 | 100% | 25% |" in shared_memory_bound("sgemm_naive")
    assert "| sgemm_smem_blocking | not counted yet" in shared_memory_bound("sgemm_smem_blocking")


@pytest.mark.parametrize("says,text", [
    ("echo '==ERROR== ERR_NVGPUCTRPERM'; exit 1", "NVreg_RestrictProfilingToAdminUsers"),
    ("echo '==WARNING== No kernels were profiled.'", "no kernel of that name"),
    ("echo broken >&2; exit 7", "status 7"),
])
def test_errors_of_ncu_come_with_their_remedy(tmp_path, says, text):
    fake, script = tmp_path/"ncu", tmp_path/"script.py"
    fake.write_text(f"#!/bin/sh\n{says}\n")
    fake.chmod(fake.stat().st_mode | stat.S_IEXEC)
    script.write_text("")
    with pytest.raises(NcuError, match=text): ncu(script, command=str(fake))
    with pytest.raises(NcuError, match="no file"): ncu(tmp_path/"nothing.py", command=str(fake))
    with pytest.raises(NcuError, match="not found"): ncu(script, command="no-such-program")


HEAD, UNITS = '"ID","Kernel Name","cycles.avg"', '"","","cycle"'


@pytest.mark.parametrize("lines,text", [
    ([], "no table"), (["==PROF== Connected", "some last words"], "no table.*some last words"), ([HEAD], "no table"),
    ([HEAD, UNITS], "no table"), ([HEAD, UNITS, '"0","k[1](A)","n/a"'], "says n/a of cycles.avg.*--query-metrics"),
    ([HEAD, UNITS, '"0","k[1](A)"'], "says nothing of cycles.avg"),
    (['"ID","Kernel Name","other.sum"', UNITS, '"0","k[1](A)","7"'], "says nothing of cycles.avg"),
    (['"ID"', '""', '"0"'], "says nothing of cycles.avg"),
])
def test_a_table_that_cannot_be_read_is_shown(lines, text, tmp_path):
    fake, report = tmp_path/"ncu", tmp_path/"a.ncu-rep"
    fake.write_text("#!/bin/sh\ncat <<'END'\n" + "".join(f"{line}\n" for line in lines) + "END\n")
    fake.chmod(0o755)
    report.touch()
    with pytest.raises(NcuError, match=f"(?s){text}"): ncu(report, counters={"cycles": "cycles.avg"}, command=str(fake))


def test_launches_of_a_kernel_are_averaged():
    rows = ('"0","m::k[1](A)","1,000.5"', '"1","m::k[1](A)","2,000"', '"2","other(A)","7"')
    read = _read("\n".join(("==PROF==", HEAD, UNITS, *rows)), {"cycles": "cycles.avg"})
    assert read == {"k": {"cycles": 1500.25}, "other": {"cycles": 7}}


def profile_tool(folder, *numbers, **env):
    "What tools/profile_kernels.py answers in a copy of the project, and what it leaves in the folder."
    for name in ("tools", "profiling_scripts"):
        shutil.copytree(ROOT/name, folder/name, ignore=shutil.ignore_patterns("__pycache__"))
    before = set(folder.iterdir())
    done = subprocess.run([sys.executable, "tools/profile_kernels.py", *numbers], cwd=folder, env=environment() | env,
                          capture_output=True, text=True)
    return done, {path.name for path in set(folder.iterdir()) - before}


@pytest.mark.parametrize("numbers,text", [
    (["05"], "ncu was not found"), (["x", "5"], "no script for 'x'; there are 01, 02"),
    (["05", "005", "9999"], "for '005' '9999';"), ([], "for nothing;")])
def test_profiling_that_cannot_be_ends_in_one_line_and_leaves_nothing(numbers, text, tmp_path):
    done, left = profile_tool(tmp_path, *numbers, PATH="")
    assert done.returncode == 1 and text in done.stderr and len(done.stderr.splitlines()) == 1 and not left


def test_a_kernel_is_profiled_under_its_number_with_or_without_the_zero(tmp_path):
    fake = tmp_path/"ncu"
    fake.write_text("#!/bin/sh\necho $* >> said\n")
    fake.chmod(0o755)
    done, left = profile_tool(tmp_path, "5", PATH=f"{tmp_path}:/bin")
    said = (tmp_path/"said").read_text().splitlines()
    assert said[0] == "--version" and said[1].endswith("profiling_scripts/05_2d_blocktiling.py") and "profiles" in left
    assert done.returncode == 1 and "there is no file" in done.stderr  # this ncu writes none


def test_nothing_is_left_in_the_temporary_folder(monkeypatch, tmp_path, temporary_folder, new_children):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    machine_code(simple, "void(float32[::1], float32[::1])")
    microscope(simple[1, 8], np.zeros(8, np.float32), np.zeros(8, np.float32))
    assert not os.listdir(temporary_folder)


@pytest.mark.parametrize("text,together", [
    ("bar.sync $0, $1;", True), ("wgmma.wait_group.sync.aligned 0;", True), ("setmaxnreg.dec.sync.aligned.u32 40;", True),
    ("cp.async.commit_group;", False), ("mbarrier.arrive.shared::cta.b64 _, [$0];", False)])
def test_what_lanes_do_together_is_convergent(text, together):
    from llvmlite import ir
    from numba_matmul.ptx.core import _assembly
    word, module = ir.IntType(32), ir.Module()
    fn = ir.Function(module, ir.FunctionType(ir.VoidType(), [word] * text.count("$")), "f")
    _assembly(ir.IRBuilder(fn.append_basic_block()), text, ",".join("r" * text.count("$")), fn.args)
    assert ("convergent" in str(fn)) == together


def test_a_pickled_kernel_knows_its_file(monkeypatch):
    "Messages and names of arrays come from there, and some releases of cloudpickle leave it out."
    def nameless(code, reduce=cloudpickle.Pickler.dispatch_table[CodeType]):
        return reduce(code.replace(co_filename="<somewhere>"))
    def outer():
        def inner(): return None
        return inner
    monkeypatch.setitem(cloudpickle.Pickler.dispatch_table.maps[0], CodeType, nameless)
    text, _ = Pickler.dumps(outer)
    copy = pickle.loads(text)
    assert copy.__code__.co_filename == copy().__code__.co_filename == __file__


def test_the_microscope_sees_views_as_they_lie_in_memory():
    "Sectors of a warp's request along a row: of rows, of columns, of every other column, from the middle of a sector on."
    @cuda.jit
    def copy(x, out):
        i, j = cuda.grid(2)
        out[j, i] = x[j, i]
    square, out = np.arange(32 * 64, dtype=np.float32).reshape(32, 64), np.zeros((32, 32), np.float32)
    columns, device = np.asfortranarray(square), to_d(square)
    for x, cost in ((square, 4), (columns, 32), (cuda.to_device(columns), 32), (device[:, ::2], 8), (device[:, 3:35], 5),
                    (device[:, :31:-1], 4)):
        view = microscope(copy[(np.uint8(1), 32), 32], x, out, blocks=[(np.int64(0), np.uint8(2), 0)])
        assert view.site("x").cost == cost and sorted(view.reads["x"]) == [2 * x.shape[1] + i for i in range(32)]
        assert view.heat_map("x").axes and (view.draw("x").axes[0].get_xlabel()[:3] == "row") == (cost == 32)
    with pytest.raises(ValueError, match="non-contiguous"): microscope(copy[(1, 32), 32], square[:, ::2], out)


def test_a_time_line_of_nothing_is_refused_in_words():
    @cuda.jit
    def idle(x): pass
    with pytest.raises(ValueError, match="block .0, 0, 0. of idle touches no array"): time_line(idle[1, 32], np.zeros(4))


@pytest.mark.parametrize("text", ["", "{"])
def test_a_broken_file_of_the_cache_is_made_anew(text, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    @cuda.jit
    def k(x): x[0] = float32(7)
    first = machine_code(k, "void(float32[::1])")
    (path,) = (tmp_path/"numba_matmul").iterdir()
    path.write_text(text)
    assert machine_code(k, "void(float32[::1])").sass == first.sass and len(path.read_text()) > len(text)


def test_code_with_other_settings_of_the_compiler_is_not_taken_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    @cuda.jit
    def k(x): x[0] = float32(7)
    machine_code(k, "void(float32[::1])")
    monkeypatch.setenv("NUMBA_CUDA_DEBUGINFO", "1")
    machine_code(k, "void(float32[::1])")
    assert len(list((tmp_path/"numba_matmul").iterdir())) == 2


@pytest.mark.parametrize("call, text", [
    (lambda: sectors([0], 128), "expected 1 to 16"), (lambda: sectors([0], 0), "expected 1 to 16"),
    (lambda: wavefronts({0: 0}, 32), "expected 1 to 16"), (lambda: wavefronts({40: 0}, 4), "lanes are 0 to 31"),
    (lambda: occupancy(256, -5), "255 registers at most"), (lambda: occupancy(256, 300), "255 registers at most"),
    (lambda: occupancy(256, 64, -1), "0 bytes of shared memory or more")])
def test_what_no_gpu_has_is_refused(call, text):
    with pytest.raises(ValueError, match=text): call()
