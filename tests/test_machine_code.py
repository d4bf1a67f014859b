"What the compiler makes of a kernel, without a GPU: its registers, its spills, and its main loop."
import importlib
import inspect
import pickle
import re
from functools import partial
from types import CodeType, SimpleNamespace

import cloudpickle
import numpy as np
import pytest
from compiled import SHAPES, cases, targets
from numba import cuda, float32
from products import each_kernel

from numba_matmul import compiler, sass
from numba_matmul.compiler import TARGETS, CompileError, compare, machine_code, occupancy
from numba_matmul.kernels.k03_smem_blocking import sgemm_smem_blocking_kernel
from numba_matmul.kernels.k14_stream_k import sgemm_stream_k
from numba_matmul.process import Pickler
from numba_matmul.registry import KERNELS
from numba_matmul.sass import instructions_of, loops_of, main_loop_of
from numba_matmul.sim.launch import launch_of


@cuda.jit
def simple(x, out):
    i = cuda.grid(1)
    if i < out.size: out[i] = x[i] + x[i]


@pytest.mark.first(2)
@pytest.mark.parametrize("label,kernel,fn,shape", [pytest.param(*case, id=case[0]) for case in cases()])
def test_no_kernel_of_the_ladder_spills(label, kernel, fn, shape):
    """At sizes that fit, at sizes that don't, and with misaligned rows; with each tile; and with C read,
    which needs more registers."""
    launch = launch_of(fn, shape)
    multiply = "HGMMA" if kernel.uses_tma else "FFMA" if kernel.dtype == "float32" else "HMMA"
    if kernel.number == 20: multiply = "QGMMA"
    # each older GPU once
    older = [] if fn.keywords else {SHAPES[1]: ["sm_89"], SHAPES[2]: ["sm_80"]}.get(shape, [])
    for target in targets(kernel, ["sm_90", *older]):
        code = machine_code(launch.kernel, launch.signature, target)
        assert code.spills == 0 and code.stack_bytes == 0, code
        assert any(x.kind == multiply for x in code.instructions), code


@pytest.mark.parametrize("shape", [(256, 256, 64), (260, 264, 36), (259, 261, 37)])
def test_double_buffering_fetches_long_before_it_stores(shape):
    kinds = [x.kind.split()[0] for x in machine_code(KERNELS[11].fn, shape=shape).main_loop]
    last_load = max(place for place, kind in enumerate(kinds) if kind == "LDG")
    assert kinds.index("STS") - last_load > 250 and kinds.count("FFMA") >= 1024


@each_kernel(lambda kernel: kernel.capability != (0, 0))
def test_a_gpu_without_its_instructions_cannot_have_a_kernel(kernel):
    "The newest target that is too old for it."
    older = [name for name, capability in TARGETS.items() if capability < kernel.capability[:2]]
    fn = partial(kernel.fn, tile=kernel.tiles.tile)
    with pytest.raises(CompileError): machine_code(fn, target=max(older, key=TARGETS.get))


@pytest.mark.parametrize("options", KERNELS[17].tiles.compiled, ids=str)
def test_warp_specialized_multiplies_four_times_a_turn(options):
    assert machine_code(partial(KERNELS[17].fn, **options)).mix["HGMMA"] == 4


@pytest.mark.parametrize("options", KERNELS[14].tiles.compiled, ids=str)
def test_stream_k_has_its_results_in_the_other_bank(options):
    code = machine_code(partial(sgemm_stream_k, **options))
    assert code.mix["LDGSTS 32"] >= 4 and code.mix["FFMA"] == 1024
    if options.get("width") != 1: assert len(code.main_loop) + code.port_conflicts < 1250


SASS = """
.text.kernel:
        /*0000*/                   S2R R0, SR_TID.X ;                              /* 0x0000000000007919 */
                                                                                   /* 0x000e220000002100 */
.L_x_0:
	//## File "a.py", line 7
        /*0010*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64+0x10] ;           /* 0x0000000402047981 */
                                                                                   /* 0x001ea8000c1e1d00 */
.L_x_1:
        /*0020*/                   FFMA R8, R4.reuse, R5, R8 ;                     /* 0x0000000504087223 */
                                                                                   /* 0x004fe20000000008 */
        /*0030*/               @P1 BRA `(.L_x_1) ;                                 /* 0xfffffffc00f01947 */
                                                                                   /* 0x000fea000383ffff */
        /*0040*/               @P0 BRA `(.L_x_0) ;                                 /* 0xfffffffc00d00947 */
                                                                                   /* 0x000fea000383ffff */
        /*0050*/                   EXIT ;                                          /* 0x000000000000794d */
                                                                                   /* 0x000fea0003800000 */
"""

def test_control_bits_and_loops_are_read():
    "The scoreboards that a load sets are the ones that its users wait for."
    s2r, load, ffma, inner, outer, last = instructions_of(SASS)
    assert (load.guard, load.name, load.width, load.line, load.label) == ("@!P0", "LDG", 16, 7, ".L_x_0")
    assert s2r.result == 0 and load.waits == (0,) and load.result == 2 and ffma.waits == (2,)
    assert (s2r.stall, load.stall, ffma.stall, last.stall) == (1, 4, 1, 5)
    assert ffma.result is ffma.source is None and inner.target == ".L_x_1" and last.target is None
    around, inside = loops_of([s2r, load, ffma, inner, outer, last])
    assert (around.start, around.end, inside.start, inside.end) == (1, 5, 2, 4)
    assert around.inside == [inside] and around.holds(inside) and not inside.holds(around)
    assert main_loop_of([s2r, load, ffma, inner, outer, last], [around, inside]) is inside


@pytest.mark.parametrize("number", [3, 6, 13])
def test_whatever_takes_its_time_is_waited_for(number):
    "In a k loop every scoreboard that an instruction waits for is set by another one, of loads too."
    code = machine_code(KERNELS[number].fn, shape=(256, 256, 256))
    assert all(0 <= x.stall <= 15 for x in code.instructions)
    outer = max((loop for loop in code.loops if loop == code.main or loop.holds(code.main)),
                key=lambda loop: loop.end - loop.start)
    body = code.instructions[outer.start:outer.end]
    awaited = {board for x in body for board in x.waits}
    held = {board for x in code.instructions for board in (x.result, x.source)}
    assert awaited and awaited <= held
    assert any(x.result is not None for x in body if x.name in ("LDG", "LDS", "LDGSTS"))


def test_conflicts_of_register_ports_are_counted():
    def ffma(operands): return sass.Instruction(0, "FFMA", operands, 0, "")
    reads = sass.register_reads([
        ffma("R0, R4.reuse, R8, R0"), ffma("R1, R4, R9, R1"),
        sass.Instruction(0, "IADD3", "R2, R4, R6, RZ", 0, ""),
        ffma("R2, R4, R9.reuse, R2"), ffma("R3, R9, R9, R3"), ffma("R3, RZ, R6, R3")])
    assert reads == [{0, 4, 8}, {1, 9}, {2, 4, 9}, {3, 9}, {3, 6}]


def test_multiply_adds_between_a_load_and_its_use_are_counted_around_the_loop():
    def instruction(opcode, operands): return sass.Instruction(0, opcode, operands, 0, "")
    unused = instruction("LDS.128", "R20, [R2]")
    loop = [instruction("FFMA", "R0, R4, R8, R0"), instruction("LDS.128", "R8, [R2+0x10]"), unused,
            instruction("FFMA", "R1, R5, R6, R1"), instruction("FFMA", "R1, R5, R11.reuse, R1"),
            instruction("LDS", "R4, [R3]")]
    assert sass.until_use(loop) == [(1, 1), (5, 0)]


def test_every_target_compiles():
    for target in compiler.TARGETS:
        assert machine_code(simple, "void(float32[::1], float32[::1])", target).registers > 0


@pytest.fixture
def kept(tmp_path, monkeypatch):
    "The files in the cache, which starts out empty."
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return lambda: [*(tmp_path/"numba_matmul").iterdir()]


def code_of_product(factor):
    @cuda.jit
    def k(x): x[0] = x[0] * float32(factor)
    return machine_code(k, "void(float32[::1])")


def test_an_edited_kernel_is_compiled_anew_and_the_second_time_comes_from_the_cache(kept, monkeypatch):
    build, built = compiler._build, []
    monkeypatch.setattr(compiler, "_build", lambda *args: built.append(args) or build(*args))
    first, again, other = map(code_of_product, (3, 3, 5))
    assert first.sass == again.sass != other.sass and len(built) == len(kept()) == 2


@pytest.mark.parametrize("number", [10, 13, 15])
def test_a_kernel_made_twice_is_one_in_the_cache(number):
    "Their pickles differ."
    kernel = KERNELS[number]
    def made(): return repr(compiler._content(launch_of(kernel.fn, SHAPES[0]).kernel))
    first = made()
    importlib.import_module(kernel.fn.__module__).__dict__[f"{kernel.name}_kernel"].cache_clear()
    assert made() == first


def test_without_a_folder_to_keep_it_in_a_kernel_is_compiled_all_the_same(tmp_path, monkeypatch):
    (tmp_path/"file").write_text("where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path/"file"))
    answer = dict(usage=dict(REG=7, STACK=8, SHARED=1024), instructions=[])
    monkeypatch.setattr(compiler, "_build", lambda *args: answer)
    assert machine_code(simple, "void(float32[::1], float32[::1])").registers == 7


@pytest.mark.parametrize("text", ["", "{"])
def test_a_broken_file_of_the_cache_is_made_anew(text, kept):
    first, (path,) = code_of_product(7), kept()
    path.write_text(text)
    assert code_of_product(7).sass == first.sass and len(path.read_text()) > len(text)


def test_code_with_other_settings_of_the_compiler_is_not_taken_from_the_cache(kept, monkeypatch):
    code_of_product(7)
    monkeypatch.setenv("NUMBA_CUDA_DEBUGINFO", "1")
    code_of_product(7)
    assert len(kept()) == 2


def test_line_numbers_and_the_loop_of_smem_blocking():
    code = machine_code(KERNELS[3].fn)
    lines = {x.line for x in code.main_loop}
    source, first = inspect.getsourcelines(sgemm_smem_blocking_kernel(32, predicated=False).py_func)
    assert any("acc +=" in source[line - first] for line in lines if line)
    assert code.mix["FFMA"] == 32 and code.mix["BAR"] == 2
    assert code.loop.count("\n") == len(code.main_loop) - 1
    assert "FFMA" in code.sass and ".version" in code.ptx
    assert any(x.guard and x.guard in code.loop for x in code.main_loop if x.opcode.startswith("BRA"))


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


def test_only_what_is_nothing_else_counts_as_integer():
    @cuda.jit
    def votes_and_counts(x, h, out):
        i = cuda.grid(1)
        total = float32(0)
        for q in range(x.shape[0]):
            half = x[q, i]
            cuda.atomic.add(out, i % 64, 1)
            total += cuda.shfl_xor_sync(0xFFFFFFFF, max(half, total), 1)
            if cuda.any_sync(0xFFFFFFFF, total > 1): h[i] = h[i] * h[i]
        x[0, i] = total
    code = machine_code(votes_and_counts, "void(float32[:, ::1], float16[::1], int32[::1])")
    kinds = {x.name: x.kind for x in code.instructions}
    for name, kind in dict(SHFL="shuffle or vote", VOTE="shuffle or vote", FMNMX="other float32",
                           HMUL2="float16", IMAD="integer").items():
        assert kinds.get(name, kind) == kind, (name, kinds)
    assert {"atomic", "shuffle or vote", "float16"} <= {*kinds.values()}, kinds


def test_comparing_puts_kernels_side_by_side():
    text = compare(machine_code(KERNELS[1].fn), machine_code(KERNELS[2].fn), names=["one", "two"])
    assert "one | two" in text and "FFMA share" in text
    # rows with the same count stand in the order of the code, in every process
    kinds = [f"kind {number}" for number in range(20)]
    code = SimpleNamespace(mix=dict.fromkeys(kinds, 1), registers=1, shared_bytes=0, stack_bytes=0, spills=0,
                           main_loop=[])
    assert re.findall(r"kind \d+", compare(code, names=["one"])) == kinds


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

WIDTH = 4


def test_a_kernel_that_does_not_compile_is_answered_with_its_line():
    @cuda.jit
    def wrong(x, out): out[0] = x[0].nothing_like_that
    with pytest.raises(CompileError, match="nothing_like_that") as caught:
        machine_code(wrong, "void(float32[::1], float32[::1])")
    assert "line" in str(caught.value) and "/" not in str(caught.value).replace("//", "")
    # Numba's own message has no line for these
    @cuda.jit
    def computed(x, out):
        s = cuda.shared.array((WIDTH + 2, 4), float32)
        out[0] = s[0, 0]
    @cuda.jit
    def exponential(x, out):
        out[0] = 1
        out[0] = np.exp(x[0])
    for kernel, line in (computed, "s = cuda"), (exponential, "out[0] = np.exp"):
        with pytest.raises(CompileError) as caught: machine_code(kernel, "void(float32[::1], float32[::1])")
        said = str(caught.value)
        assert re.search(rf"line \d+ of {kernel.py_func.__name__}: {re.escape(line)}", said)
        assert "candidate" not in said and "/" not in said


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


@pytest.mark.parametrize("text,together", [
    ("bar.sync $0, $1;", True), ("wgmma.wait_group.sync.aligned 0;", True),
    ("setmaxnreg.dec.sync.aligned.u32 40;", True), ("cp.async.commit_group;", False),
    ("mbarrier.arrive.shared::cta.b64 _, [$0];", False)])
def test_what_lanes_do_together_is_convergent(text, together):
    from llvmlite import ir
    from numba_matmul.ptx.core import _assembly
    word, module = ir.IntType(32), ir.Module()
    fn = ir.Function(module, ir.FunctionType(ir.VoidType(), [word] * text.count("$")), "f")
    _assembly(ir.IRBuilder(fn.append_basic_block()), text, ",".join("r" * text.count("$")), fn.args)
    assert ("convergent" in str(fn)) == together


def test_a_pickled_kernel_knows_its_file(monkeypatch):
    "Messages and array names come from there, but some releases of cloudpickle drop it."
    def nameless(code, reduce=cloudpickle.Pickler.dispatch_table[CodeType]):
        return reduce(code.replace(co_filename="<somewhere>"))
    def outer():
        def inner(): return None
        return inner
    monkeypatch.setitem(cloudpickle.Pickler.dispatch_table.maps[0], CodeType, nameless)
    text, _ = Pickler.dumps(outer)
    copy = pickle.loads(text)
    assert copy.__code__.co_filename == copy().__code__.co_filename == __file__
