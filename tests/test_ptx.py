"""The two bodies of each PTX instruction, without a GPU: what the compiler makes of the one, beside its form in the PTX
ISA; and what the other gives, beside the formulas in `tests/instructions.py`."""
import importlib.util
import re
import sys
from dataclasses import dataclass
from inspect import signature
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import ROOT

if importlib.util.find_spec("numba_cuda") is None: pytest.skip("numba-cuda is not installed", allow_module_level=True)

import instructions
from instructions import CASES, bound
from numba import cuda, float32, float64, uint16, uint32, uint64

from numba_matmul.compiler import CompileError, machine_code
from numba_matmul.process import ChildError, in_child
from numba_matmul.ptx.ampere import (
    cp_async, cp_async_at, cp_async_commit_group, cp_async_wait_group, cvt_rn_bf16x2_f32, ex2_approx_ftz_f32, ldmatrix,
    mma_m16n8k16, move_eight, rcp_approx_ftz_f32, store_pair, unpack_bf16)
from numba_matmul.ptx.core import (
    add_fours, add_outer, add_part, global_address, load2, load4, load_fours_at, shared_address, store2, store4,
    store_fours, store_relaxed, to_array)
from numba_matmul.ptx.hopper import (
    MAP_WORDS, WORDS_BEFORE, bar_sync, cp_async_bulk_commit_group, cp_async_bulk_tensor_2d_global_to_shared,
    cp_async_bulk_tensor_2d_shared_to_global, cp_async_bulk_wait_group_read, fence_mbarrier_init, fence_proxy_async,
    fence_proxy_tensormap, fence_proxy_tensormap_release, mbarrier_arrive, mbarrier_arrive_expect_tx, mbarrier_init,
    mbarrier_wait, pack_scaled, setmaxnreg_dec, setmaxnreg_inc, stmatrix, tensor_map_address,
    wgmma_mma_async, wgmma_wait_group)
from numba_matmul.sim.launch import simulate
from numba_matmul.sim import typing
from numba_matmul.sim.scheduler import SimulatorError

MOVE, SYNCHRONIZE = "Data Movement and Conversion: ", "Parallel Synchronization and Communication: "
WARP, WARPGROUP = "Warp Level Matrix Multiply-Accumulate: ", "Asynchronous Warpgroup Level Matrix Multiply-Accumulate: "
TARGETS = "sm_75", "sm_80", "sm_90", "sm_90a"


@dataclass
class Form:
    """What the PTX ISA has for a binding: a section of its chapter Instructions, and what stands there, filled in for a
    function that uses the binding. A parameter's name stands for its register, an array's for the address of its first
    element, out[1] for what the function stores there."""
    section: str
    ptx: tuple        # statements, in order
    types: str        # of the function's parameters
    probe: object     # the function
    volatile: bool    # must it neither vanish nor move across other accesses to memory?
    convergent: bool  # do lanes of a warp carry it out together?
    since: str        # the first target that has it


FORMS = {}


def form(name, since, section, *ptx, types="", volatile=True, convergent=False):
    "Decorator of the function that uses a binding."
    def keep(probe):
        FORMS[name] = Form(section, ptx, types, probe, volatile, convergent, since)
        return probe
    return keep


def outs(*values, size=32): return [f"st.global.b{size} [out+{size // 8 * i}], {x}" for i, x in enumerate(values)]


# Functions of the bindings that are one instruction

@form("cp_async_commit_group", "sm_80", MOVE + "cp.async.commit_group", "cp.async.commit_group")
def _(): cp_async_commit_group()


@form("cp_async_wait_group", "sm_80", MOVE + "cp.async.wait_group", "cp.async.wait_group 3")
def _(): cp_async_wait_group(3)


@form("mbarrier_init", "sm_80", SYNCHRONIZE + "mbarrier.init", "mbarrier.init.shared::cta.b64 [barrier], count",
      types="uint32, uint32")
def _(barrier, count): mbarrier_init(barrier, count)


@form("fence_mbarrier_init", "sm_90", SYNCHRONIZE + "membar / fence", "fence.mbarrier_init.release.cluster")
def _(): fence_mbarrier_init()


@form("mbarrier_arrive_expect_tx", "sm_90", SYNCHRONIZE + "mbarrier.arrive",
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], tx_count", types="uint32, uint32")
def _(barrier, tx_count): mbarrier_arrive_expect_tx(barrier, tx_count)


@form("mbarrier_arrive", "sm_80", SYNCHRONIZE + "mbarrier.arrive", "mbarrier.arrive.shared::cta.b64 _, [barrier]",
      types="uint32")
def _(barrier): mbarrier_arrive(barrier)


@form("mbarrier_wait", "sm_90", SYNCHRONIZE + "mbarrier.test_wait / mbarrier.try_wait",
      "again:", "mbarrier.try_wait.parity.shared::cta.b64 done, [barrier], parity", "@done bra end", "bra again",
      "end:", types="uint32, uint32")
def _(barrier, parity): mbarrier_wait(barrier, parity)


@form("fence_proxy_tensormap", "sm_90", SYNCHRONIZE + "membar / fence",
      "fence.proxy.tensormap::generic.acquire.sys [tensor_map], 128", types="uint64")
def _(tensor_map): fence_proxy_tensormap(tensor_map)


@form("fence_proxy_tensormap_release", "sm_90", SYNCHRONIZE + "membar / fence",
      "fence.proxy.tensormap::generic.release.gpu")
def _(): fence_proxy_tensormap_release()


@form("fence_proxy_async", "sm_90", SYNCHRONIZE + "membar / fence", "fence.proxy.async.shared::cta")
def _(): fence_proxy_async()


@form("cp_async_bulk_tensor_2d_global_to_shared", "sm_90", MOVE + "cp.async.bulk.tensor",
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[target], [tensor_map, {column, row}], [barrier]", types="uint32, uint64, uint32, uint32, uint32")
def _(target, tensor_map, barrier, column, row):
    cp_async_bulk_tensor_2d_global_to_shared(target, tensor_map, barrier, column, row)


@form("cp_async_bulk_tensor_2d_shared_to_global", "sm_90", MOVE + "cp.async.bulk.tensor",
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [tensor_map, {column, row}], [source]",
      types="uint64, uint32, uint32, uint32")
def _(tensor_map, source, column, row): cp_async_bulk_tensor_2d_shared_to_global(tensor_map, source, column, row)


@form("cp_async_bulk_commit_group", "sm_90", MOVE + "cp.async.bulk.commit_group", "cp.async.bulk.commit_group")
def _(): cp_async_bulk_commit_group()


@form("cp_async_bulk_wait_group_read", "sm_90", MOVE + "cp.async.bulk.wait_group", "cp.async.bulk.wait_group.read 1")
def _(): cp_async_bulk_wait_group_read(1)


@form("bar_sync", "sm_75", SYNCHRONIZE + "bar / barrier", "bar.sync number, threads",
      types="uint32, uint32", convergent=True)
def _(number, threads): bar_sync(number, threads)


@form("setmaxnreg_dec", "sm_90a", "Miscellaneous: setmaxnreg", "setmaxnreg.dec.sync.aligned.u32 40", convergent=True)
def _(): setmaxnreg_dec(40)


@form("setmaxnreg_inc", "sm_90a", "Miscellaneous: setmaxnreg", "setmaxnreg.inc.sync.aligned.u32 232", convergent=True)
def _(): setmaxnreg_inc(232)


@form("cvt_rn_bf16x2_f32", "sm_80", MOVE + "cvt", "cvt.rn.bf16x2.f32 out[0], high, low",
      types="float32, float32, uint32[::1]",
      volatile=False)  # the first source becomes the upper half
def _(low, high, out): out[0] = cvt_rn_bf16x2_f32(low, high)


@form("ex2_approx_ftz_f32", "sm_75", "Floating Point: ex2", "ex2.approx.ftz.f32 out[0], x",
      types="float32, float32[::1]", volatile=False)
def _(x, out): out[0] = ex2_approx_ftz_f32(x)


@form("rcp_approx_ftz_f32", "sm_75", "Floating Point: rcp", "rcp.approx.ftz.f32 out[0], x",
      types="float32, float32[::1]", volatile=False)
def _(x, out): out[0] = rcp_approx_ftz_f32(x)


# Of those that are several, or accesses to arrays

@form("load2", "sm_75", MOVE + "ld", "ld.global.v2.b32 {out[0], out[1]}, [a+24]", types="float32[::1], float32[::1]",
      volatile=False)
def _(a, out): out[0], out[1] = load2(a, uint64(6))


@form("load4", "sm_75", MOVE + "ld", "ld.global.v4.b32 {out[0], out[1], out[2], out[3]}, [a+32]",
      "ld.shared.v4.b32 {out[4], out[5], out[6], out[7]}, [memory+48]",
      "ld.global.v4.b32 {out[8], out[9], out[10], out[11]}, [b+16]",
      types="float32[::1], float32[:, ::1], float32[::1]", volatile=False)
def _(a, b, out):
    memory = cuda.shared.array(64, float32, alignment=16)
    found = load4(a, uint64(8)) + load4(memory, uint32(12)) + load4(b, (uint32(0), uint32(4)))
    for i in range(12): out[i] = found[i]


@form("store2", "sm_75", MOVE + "st", "st.global.v2.b32 [a+24], {x, y}",
      types="float32[::1], float32, float32", volatile=False)
def _(a, x, y): store2(a, uint64(6), x, y)


@form("store4", "sm_75", MOVE + "st", "st.global.v4.b32 [a+32], {x, y, z, w}",
      "st.shared.v4.b32 [memory+48], {w, z, y, x}",
      types="float32[::1], float32, float32, float32, float32", volatile=False)
def _(a, x, y, z, w):
    memory = cuda.shared.array(64, float32, alignment=16)
    store4(a, uint64(8), x, y, z, w)
    store4(memory, uint32(12), w, z, y, x)


@form("shared_address", "sm_75", MOVE + "cvta", *outs("memory+12"), types="uint32[::1]", volatile=False)
def _(out):
    memory = cuda.shared.array(64, float32, alignment=16)
    out[0] = shared_address(memory, uint32(3))


@form("global_address", "sm_75", MOVE + "cvta", *outs("a+20", size=64),
      types="float32[::1], uint64[::1]", volatile=False)
def _(a, out): out[0] = global_address(a, uint64(5))


@form("load_fours_at", "sm_75", MOVE + "ld", "ld.shared.v4.b32 {out[0], out[1], out[2], out[3]}, [address+32]",
      "ld.shared.v4.b32 {out[4], out[5], out[6], out[7]}, [address+96]", types="uint32, float32[::1]", volatile=False)
def _(address, out):
    memory = cuda.shared.array(64, float32, alignment=16)
    found = load_fours_at(memory, address, 32, 64, 8)
    for i in range(8): out[i] = found[i]


@form("add_outer", "sm_75", "Floating-Point: fma", "fma.rn.f32 out[0], x, z, a", "fma.rn.f32 out[1], w, x, b",
      "fma.rn.f32 out[2], y, z, c", "fma.rn.f32 out[3], w, y, d", types="float32, " * 8 + "float32[::1]",
      volatile=False)
def _(a, b, c, d, x, y, z, w, out):
    acc = add_outer((a, b, c, d), (x, y), (z, w))
    for i in range(4): out[i] = acc[i]


@form("add_part", "sm_75", "Floating-Point: fma", "fma.rn.f32 out[1], w, x, b", "fma.rn.f32 out[3], w, y, d",
      "st.global.b32 [out+0], a", "st.global.b32 [out+8], c", types="float32, " * 8 + "float32[::1]", volatile=False)
def _(a, b, c, d, x, y, z, w, out):
    acc = add_part((a, b, c, d), (x, y), (z, w), 1, 3, 1)
    for i in range(4): out[i] = acc[i]


@form("store_fours", "sm_75", MOVE + "st", "st.global.v4.b32 [array+16], {a, b, c, d}",
      "st.global.v4.b32 [array+80], {d, c, b, a}",
      types="float32, " * 4 + "float32[::1]", volatile=False)
def _(a, b, c, d, array): store_fours(array, uint64(4), 16, (a, b, c, d, d, c, b, a))


@form("add_fours", "sm_75", "Floating-Point: add", "ld.global.v4.b32 {v0, v1, v2, v3}, [array+16]",
      "ld.global.v4.b32 {v4, v5, v6, v7}, [array+80]",
      *(f"add.f32 out[{i}], {'abcddcba'[i]}, v{i}" for i in range(8)),
      types="float32, " * 4 + "float32[::1], float32[::1]", volatile=False)
def _(a, b, c, d, array, out):
    found = add_fours((a, b, c, d, d, c, b, a), array, uint64(4), 16)
    for i in range(8): out[i] = found[i]


@form("to_array", "sm_75", MOVE + "st", *outs("b", "a", "c"),
      types="float32, float32, float32, float32[::1]", volatile=False)
def _(a, b, c, out):  # an array whose indices are known lies in registers
    own = cuda.local.array((2, 2), float32)
    to_array((a, b, c, a), own, 2)
    out[0], out[1], out[2] = own[0, 1], own[1, 1], own[1, 0]


@form("store_relaxed", "sm_75", MOVE + "st", "st.relaxed.gpu.global.b64 [array+16], value", types="uint64[::1], uint64")
def _(array, value): store_relaxed(array, uint64(2), value)


@form("cp_async", "sm_80", MOVE + "cp.async", "cp.async.cg.shared.global [memory+16], [a+32], 16, inside<<2",
      "cp.async.ca.shared.global [memory+32], [a+8], 8, inside<<2",
      "cp.async.ca.shared.global [memory+48], [a+4], 4, inside<<2", types="float32[::1], uint32")
def _(a, inside):
    memory = cuda.shared.array(64, float32, alignment=16)
    cp_async(memory, uint32(4), a, uint64(8), 4, inside)
    cp_async(memory, uint32(8), a, uint64(2), 2, inside)
    cp_async(memory, uint32(12), a, uint64(1), 1, inside)


@form("cp_async_at", "sm_80", MOVE + "cp.async", "cp.async.cg.shared.global [to+32], [start], 16, inside<<1",
      types="uint16[::1], uint32, uint64, uint32")
def _(a, to, start, inside):
    memory = cuda.shared.array(64, uint16, alignment=16)
    cp_async_at(memory, to, 32, a, start, 8, inside)


@form("unpack_bf16", "sm_75", "Logic and Shift: shl, and", *outs("bits<<16", "bits&-65536"),
      types="uint32, float32[::1]",
      volatile=False)
def _(bits, out): out[0], out[1] = unpack_bf16(bits)


@form("pack_scaled", "sm_80", MOVE + "cvt", "cvt.rn.bf16x2.f32 out[0], y*alpha, x*alpha",
      "cvt.rn.bf16x2.f32 out[1], w*alpha, z*alpha",
      types="float32, " * 5 + "uint32[::1]", volatile=False)
def _(x, y, z, w, alpha, out): out[0], out[1] = pack_scaled((x, y, z, w), alpha)


@form("ldmatrix", "sm_75", WARP + "ldmatrix",
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {out[0], out[1], out[2], out[3]}, [address+64]",
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {out[4], out[5], out[6], out[7]}, [address+96]",
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {out[8], out[9], out[10], out[11]}, [address+64]",
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {out[12], out[13], out[14], out[15]}, [address+64^32]",
      types="uint32, uint32[::1]", convergent=True)
def _(address, out):
    memory = cuda.shared.array(64, uint16, alignment=16)
    found = ldmatrix(memory, address, 64, 32, 0, 2, 0) + ldmatrix(memory, address, 64, 32, 1, 2, 1)
    for i in range(16): out[i] = found[i]


@form("mma_m16n8k16", "sm_80", WARP + "mma", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{c0, c1, c2, c3}, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}", *outs("c0", "c1", "c2", "c3"),
      types="float32, " * 4 + "uint32, " * 6 + "float32[::1]", volatile=False, convergent=True)
def _(c0, c1, c2, c3, a0, a1, a2, a3, b0, b1, out):
    acc = mma_m16n8k16((c0, c1, c2, c3), (a0, a1, a2, a3), (b0, b1))
    for i in range(4): out[i] = acc[i]


@form("store_pair", "sm_75", MOVE + "st", "st.global.b32 [array+8], pair", types="uint16[::1], uint32", volatile=False)
def _(array, pair): store_pair(array, uint64(4), pair)


@form("move_eight", "sm_75", MOVE + "ld, st", "ld.global.v4.b32 {v0, v1, v2, v3}, [source+16]",
      "st.global.v4.b32 [target+32], {v0, v1, v2, v3}", types="uint16[::1], uint16[::1]", volatile=False)
def _(target, source): move_eight(target, uint64(16), source, uint64(8))


@form("wgmma_mma_async", "sm_90a", WARPGROUP + "wgmma.fence, wgmma.mma_async, wgmma.commit_group, wgmma.wait_group",
      "wgmma.fence.sync.aligned",
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {out[0], out[1], out[2], out[3]}, a+0, b+0, 0, 1, 1, 0, 1",
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {out[0], out[1], out[2], out[3]}, a+2, b+128, 1, 1, 1, 0, 1",
      "wgmma.commit_group.sync.aligned", "wgmma.wait_group.sync.aligned 1",
      "wgmma.fence.sync.aligned",
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {out[0], out[1], out[2], out[3]}, b+0, a+0, 1, 1, 1, 0, 0",
      "wgmma.commit_group.sync.aligned", "wgmma.wait_group.sync.aligned 0",
      types="uint64, uint64, float32[::1]", convergent=True)
def _(a, b, out):
    zeros = (float32(0), float32(0), float32(0), float32(0))
    acc = wgmma_mma_async(zeros, a, b, 2, 128, 2, 1, 1, 0)
    acc = wgmma_mma_async(acc, b, a, 2, 128, 1, 0, 0, 1)
    for i in range(4): out[i] = acc[i]


@form("wgmma_wait_group", "sm_90a", WARPGROUP + "wgmma.wait_group", "wgmma.wait_group.sync.aligned 0", *outs("a", "b"),
      types="float32, float32, float32[::1]", convergent=True)
def _(a, b, out): out[0], out[1] = wgmma_wait_group((a, b))


@form("stmatrix", "sm_90", WARP + "stmatrix",
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [swizzle+address], {a, b, c, d}",
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [swizzle^32+address], {d, c, b, a}",
      types="uint32, uint32, uint32, uint32, uint32, uint32", convergent=True)
def _(address, swizzle, a, b, c, d): stmatrix(address, swizzle, (d, a, b, c, d, d, c, b, a), 1, 2)


# The compiler's half

def kernel_of(name):
    "A kernel that does what a form says: twice where it has effects only, so that one of two cannot vanish."
    probe, names = FORMS[name].probe, ", ".join(signature(FORMS[name].probe).parameters)
    scope = dict(probe=cuda.jit(device=True)(probe))
    exec(f"def {name}({names}): {'; '.join([f'probe({names})'] * times(name))}", scope)
    return scope[name]


def times(name): return 2 if FORMS[name].volatile and "out" not in signature(FORMS[name].probe).parameters else 1


def compiled_forms():
    "In a child in real mode: for each form PTX, the lines of LLVM's inline assembly, and the targets that assemble it."
    from numba.cuda import codegen, dispatcher
    from numba.cuda.core.sigutils import normalize_signature
    target, found = (9, 0, "a"), {}
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=target[:2])
    codegen.CUDACodeLibrary._ensure_cc = lambda self, cc: cc or target
    for name in FORMS:
        types, _ = normalize_signature(f"void({FORMS[name].types})")
        library = dispatcher._Kernel(kernel_of(name), types)._codelibrary
        assembly = [line for line in library.get_llvm_str().splitlines() if " asm " in line]
        ptx = "\n".join(library.get_asm_strs(cc=target))
        found[name] = ptx, assembly, [target for target in TARGETS if assembles(ptx, target)]
    return found


def assembles(ptx, target):
    "Does the assembler take this PTX for a target?"
    from cuda.bindings import nvjitlink
    text, handle = ptx.replace(".target sm_90a", f".target {target}").encode(), nvjitlink.create(1, [f"-arch={target}"])
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, text, len(text), "form")
        nvjitlink.complete(handle)
        return True
    except nvjitlink.nvJitLinkError: return False
    finally: nvjitlink.destroy(handle)


OPERATORS = {"add": "+", "xor": "^", "shl": "<<", "and": "&", "mul": "*"}


def parameters(name):
    "What each parameter of a compiled kernel is: an array comes as several, the fifth of them its address."
    kinds, found = re.findall(r"\w+(?:\[[^]]*])?", FORMS[name].types), []
    for parameter, kind in zip(signature(FORMS[name].probe).parameters, kinds):
        dimensions = kind.count(",") + 1
        found += [None] * 4 + [parameter] + [None] * 2 * dimensions if "[" in kind else [parameter]
    return found


def statements(name, ptx):
    "What a kernel does, with expressions of its parameters for registers."
    names, values, kept = parameters(name), {}, []
    def filled(text): return re.sub(r"%\w+|\b[ab]\b", lambda x: values.get(x[0], x[0]), text)  # a, b: in the assembly
    body = re.sub(r"//.*", "", ptx[ptx.index("\n{") + 2:ptx.rindex("}")])
    body = re.sub(r"[{}] *(\.reg\b|$)", r"\1", re.sub(r"(\w:)\s", r"\1;", body), flags=re.M)  # blocks of assembly
    for text in map(str.strip, body.split(";")):
        opcode, operands = re.fullmatch(r"(\S*)\s*(.*)", text, re.S).groups()
        first, *others = re.split(r",\s*(?![^{[]*[]}])", operands)
        kind = opcode.split(".")[0]
        if opcode.startswith("ld.param"): values[first] = names[int(re.search(r"_param_(\d+)", operands)[1])]
        elif kind in ("mov", "cvta") or opcode in ("cvt.u32.u64", "cvt.u64.u32"): values[first] = filled(others[0])
        elif kind in OPERATORS and opcode != "add.f32": values[first] = OPERATORS[kind].join(map(filled, others))
        elif opcode and opcode != "ret" and not opcode.startswith("."):
            kept.append(f"{opcode} {filled(operands)}".strip())
    return results_named(kept)


def results_named(kept):
    "Statements, in which a register that is stored to `out` is called so, and others have numbers."
    for pattern, text in ((r"_cudapy_smem_\w+", "memory"), (r"\[out]", "[out+0]"),
                          (r"^((?:ld|st)\.\S*\.)[fus](32|64)\b", r"\1b\2"),  # compilers differ in the type of a move
                          (r"\+(\d+)\+(\d+)", lambda x: f"+{int(x[1]) + int(x[2])}")):
        kept = [re.sub(pattern, text, x) for x in kept]
    values = {}
    for text in list(kept):
        if stored := re.fullmatch(r"st\.global\.b(32|64) \[out\+(\d+)], (%\w+)", text):
            values[stored[3]] = f"out[{int(stored[2]) * 8 // int(stored[1])}]"
            kept.remove(text)
    def named(x): return values.setdefault(x[0], f"v{sum(value[0] == 'v' for value in values.values())}")
    return [sorted_factors(re.sub(r"%\w+", named, text)) for text in kept]


def sorted_factors(text):
    "A sum or product with the two that may change places in alphabetical order."
    opcode, _, operands = text.partition(" ")
    if opcode not in ("fma.rn.f32", "add.f32"): return text
    to, *factors = operands.split(", ")
    return f"{opcode} {', '.join((to, *sorted(factors[:2]), *factors[2:]))}"


def test_every_instruction_has_a_form_and_a_case():
    assert bound() == FORMS.keys() | {"tensor_map_address"} == {name for case in CASES.values() for name in case.instructions}
    assert len(bound()) > 40


def test_instructions_have_the_form_that_the_ptx_isa_gives_them():
    """The statements with all their operands; none vanishes; what has effects stays where it is, what lanes do together
    is not moved into a branch; and the assembler takes it from the first target on that has the instruction."""
    for name, (ptx, assembly, targets) in in_child(compiled_forms, simulator=False, keep=True).items():
        wanted = FORMS[name]
        assert statements(name, ptx) == list(wanted.ptx) * times(name), (name, wanted.section)
        assert targets == list(TARGETS[TARGETS.index(wanted.since):]), name
        assert bool(assembly) or not (wanted.volatile or wanted.convergent), name
        for line in assembly:
            assert ("~{memory}" in line) == ("asm sideeffect" in line) == wanted.volatile, line
            assert line.endswith(" convergent") == wanted.convergent, line


def maps_kernel(maps, out):
    out[0], out[1], out[2] = tensor_map_address(maps, 0), tensor_map_address(maps, 1), tensor_map_address(maps, 2)


def test_tensor_maps_among_the_parameters_begin_at_multiples_of_64():
    """No instruction, but the address of a parameter, of the kernel that asks. The machine code tells where parameters
    begin: the pointer in the array behind the maps is 58 words on."""
    code = machine_code(cuda.jit(maps_kernel), f"void(UniTuple(uint64, {WORDS_BEFORE + 3 * MAP_WORDS}), uint64[::1])", "sm_90")
    operands, start = " ".join(x.operands for x in code.instructions), 0x210
    assert f"c[0x0][{start + 8 * (WORDS_BEFORE + 3 * MAP_WORDS + 4):#x}]" in operands
    assert all((start + 8 * (WORDS_BEFORE + MAP_WORDS * i)) % 64 == 0 for i in range(3))
    generic = [int(x, 16) for x in re.findall(r"UP?\d?,? ?UR\d+, (0x[0-9a-f]+), URZ", operands)]
    assert generic and all((b - a) % (8 * MAP_WORDS) == 0 for a, b in zip(generic, generic[1:]))


def test_cases_ask_for_a_gpu_that_has_their_instructions():
    for case in CASES.values():
        newest = max((FORMS[name].since for name in case.instructions if name in FORMS), key=TARGETS.index, default="sm_90a")
        assert case.needs >= {"sm_75": (0, 0), "sm_80": (8, 0)}.get(newest, (9, 0, "a")), case.name


# The simulator's half

SEEDS = 1, 2  # matrices of random numbers, and of whole ones


def simulated(key, seed, **changed):
    "In a child: how far the results of a case are from its formula, as text; with other Python bodies."
    kept = {function: getattr(instructions, function) for function in changed}
    for function, body in changed.items():
        body.instruction = kept[function].instruction  # operands and type of the result
        setattr(instructions, function, body)
    typing.forget()
    try: found = instructions.run(key, seed)
    finally:
        for function, body in kept.items(): setattr(instructions, function, body)
        typing.forget()
    formula = [getattr(x, "array", x) for x in CASES[key].operands(seed)[-1]]
    return instructions.differences(key, seed, found, formula, ("by the body", "by the formula"))


@pytest.mark.parametrize("key", CASES)
def test_python_bodies_agree_with_the_formulas(key):
    for seed in SEEDS: assert not in_child(simulated, key, seed, simulator=True, keep=True)


def cut_off(low, high): return np.array([low, high], np.float32).view(np.uint16)[1::2].copy().view(np.uint32)[0]


def nothing(*args): pass


WRONG = [
    ("load2", lambda a, i: load2(a, i)[::-1]),
    ("load4", lambda a, i: (*load2(a, i), *load2(a, i))),
    ("store2", lambda a, i, x, y: store2(a, i, y, x)),
    ("store4", lambda a, i, x, y, z, w: store4(a, i, x, y, w, z)),
    ("shared_address", lambda array, index: shared_address(array, int(index) // 2)),
    ("global_address", lambda array, index: global_address(array, int(index) & 0xFFFFFFFF)),
    ("load_fours_at", lambda array, address, offset, step, count: load_fours_at(array, address, 0, step, count)),
    ("load_fours_at", lambda array, address, offset, step, count: load_fours_at(array, address, offset, 16, count)),
    ("add_outer", lambda acc, x, y: add_outer(acc, x[::-1], y)),
    ("add_part", lambda acc, x, y, first, last, serpentine: add_part(acc, x, y, first, last, 0)),
    ("add_part", lambda acc, x, y, first, last, serpentine: add_part(acc, x, y, first, last + 1, serpentine)),
    ("store_fours", lambda array, index, step, values: store_fours(array, index, 4, values)),
    ("add_fours", lambda values, array, index, step: add_fours(values, array, index, 4)),
    ("to_array", lambda values, array, columns: to_array(values[::-1], array, columns)),
    ("store_relaxed", lambda array, index, value: store_relaxed(array, index, int(value) & 0xFFFFFFFF)),
    ("cp_async", lambda to, at, source, start, count, inside: cp_async(to, at, source, start, count, count)),
    ("cp_async_at", lambda to, at, offset, source, start, count, inside:
        cp_async_at(to, at, offset, source, start, count, min(inside, count - 1))),
    ("cp_async_commit_group", nothing),
    ("cp_async_wait_group", lambda pending: cp_async_wait_group(pending + 1)),
    ("cvt_rn_bf16x2_f32", cut_off),
    ("cvt_rn_bf16x2_f32", lambda low, high: cvt_rn_bf16x2_f32(high, low)),
    ("ex2_approx_ftz_f32", lambda x: np.exp(x)),  # not np.exp itself: it would be an instruction from then on
    ("rcp_approx_ftz_f32", lambda x: -rcp_approx_ftz_f32(x)),
    ("unpack_bf16", lambda bits: unpack_bf16(bits)[::-1]),
    ("pack_scaled", lambda acc, alpha: pack_scaled(acc, 1)),
    ("ldmatrix", lambda *args: ldmatrix(*args[:-1], 1 - args[-1])),
    ("ldmatrix", lambda array, address, offset, step, flip, *others:
        ldmatrix(array, address, offset, step, 1 - flip, *others)),
    ("mma_m16n8k16", lambda acc, x, y: mma_m16n8k16(acc, (x[0], x[2], x[1], *x[3:]), y)),
    ("mma_m16n8k16", lambda acc, x, y: mma_m16n8k16((acc[1], acc[0], *acc[2:]), x, y)),
    ("store_pair", lambda array, index, pair: store_pair(array, index, int(pair) >> 16)),
    ("move_eight", lambda to, at, source, start: move_eight(to, at, source, int(start) ^ 8)),
    ("mbarrier_init", lambda barrier, count: mbarrier_init(barrier, count - 1)),
    ("fence_mbarrier_init", nothing),
    ("mbarrier_arrive_expect_tx", lambda barrier, tx_count: mbarrier_arrive_expect_tx(barrier, tx_count // 2)),
    ("mbarrier_arrive", nothing),
    ("mbarrier_wait", lambda barrier, parity: mbarrier_wait(barrier, 1 - parity)),
    ("fence_proxy_tensormap", nothing),
    ("tensor_map_address", lambda maps, number: tensor_map_address(maps, 2 - number)),
    ("cp_async_bulk_tensor_2d_global_to_shared", lambda to, tensor_map, barrier, column, row:
        cp_async_bulk_tensor_2d_global_to_shared(to, tensor_map, barrier, row, column)),
    ("wgmma_mma_async", lambda *args: wgmma_mma_async(*args[:-1], 0)),
    ("wgmma_mma_async", lambda acc, a, b, step_a, step_b, *others: wgmma_mma_async(acc, a, b, step_b, step_b, *others)),
    ("wgmma_mma_async", lambda *args: wgmma_mma_async(*args[:6], args[6] ^ 1, *args[7:])),
    ("wgmma_mma_async", lambda *args: wgmma_mma_async(*args[:6], args[6] ^ 2, *args[7:])),
    ("wgmma_wait_group", lambda acc: acc),
    ("stmatrix", lambda address, swizzle, *others: stmatrix(address, 0, *others)),
    ("stmatrix", lambda address, swizzle, packed, first, count: stmatrix(address, swizzle, packed[::-1], first, count)),
    ("fence_proxy_async", nothing),
    ("cp_async_bulk_tensor_2d_shared_to_global", lambda tensor_map, source, column, row:
        cp_async_bulk_tensor_2d_shared_to_global(tensor_map, source, row, column)),
    ("cp_async_bulk_commit_group", nothing),
    ("cp_async_bulk_wait_group_read", lambda pending: cp_async_bulk_wait_group_read(pending + 1)),
    ("bar_sync", nothing),
]
SILENT = {"setmaxnreg_dec", "setmaxnreg_inc", "fence_proxy_tensormap_release"}  # their bodies do nothing


def is_noticed(number):
    "In a child: does a case find that this body is wrong?"
    name, body = WRONG[number]
    for key, case in CASES.items():
        try:
            if name in case.instructions and simulated(key, SEEDS[0], **{name: body}): return True
        except SimulatorError as e: return not re.match(r"\w+Error:", str(e))  # of the body itself, not one of Python
    return False


@pytest.mark.parametrize("number", range(len(WRONG)), ids=[name for name, _ in WRONG])
def test_a_wrong_python_body_is_noticed(number):
    assert in_child(is_noticed, number, simulator=True, keep=True)


def test_every_python_body_that_does_something_was_tried_wrong():
    assert {name for name, _ in WRONG} == bound() - SILENT


class FramesOfKernels:
    "Stands for the module `sys` of the Python bodies: the frame that they note must be a kernel's."
    def _getframe(depth):
        frame = sys._getframe(depth + 1)
        assert frame.f_code.co_filename == instructions.__file__, frame
        return frame


def frames_noted():
    "In a child: run all cases with that."
    modules = {sys.modules[getattr(instructions, name).__module__] for name in bound()}
    for module in modules: module.sys = FramesOfKernels
    try:
        for key in CASES: instructions.run(key, 0)
    finally:
        for module in modules: module.sys = sys


def test_python_bodies_note_the_line_of_the_kernel(): in_child(frames_noted, simulator=True, keep=True)


# What both bodies refuse

@cuda.jit
def load_two(a): load2(a, uint64(0))


@cuda.jit
def load_four(a): load4(a, uint64(0))


@cuda.jit
def store_two(a): store2(a, uint64(0), float32(0), float32(0))


@cuda.jit
def store_four(a): store4(a, uint64(0), float32(0), float32(0), float32(0), float32(0))


@cuda.jit
def copy_three(a): cp_async(cuda.shared.array(8, float64, alignment=16), uint32(0), a, uint64(0), 3, uint32(3))


@pytest.mark.parametrize("kernel", [load_two, load_four, store_two, store_four, copy_three],
                         ids=lambda kernel: kernel.__name__)
def test_both_bodies_refuse_what_the_instruction_cannot(kernel):
    said = "not 3 elements of 8" if kernel is copy_three else "float32, not for float64"
    with pytest.raises(SimulatorError, match=said): simulate(kernel[1, 1], np.zeros(8))
    with pytest.raises(CompileError, match=said): machine_code(kernel, "void(float64[::1])")


@cuda.jit
def meet(number, threads): bar_sync(number, threads)


@pytest.mark.parametrize("number,threads", [(0, 32), (16, 32), (1, 48)])
def test_a_named_barrier_that_a_gpu_has_not_is_refused(number, threads):
    with pytest.raises(SimulatorError, match=f"named barrier {number} for {threads} threads"):
        simulate(meet[1, 96], np.uint32(number), np.uint32(threads))


# The check on a GPU

@pytest.fixture
def check_gpu(monkeypatch):
    "tools/check_gpu.py with three cases. What stands for a GPU has wrong bits in one, and never ends in another."
    spec = importlib.util.spec_from_file_location("check_gpu", ROOT/"tools"/"check_gpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def in_child_or_on_gpu(fn, key, seed, simulator, **how):
        if not simulator and key == "handed_over": raise ChildError("no answer within 90 s")
        found = in_child(instructions.run, key, seed, simulator=True, keep=True)
        if not simulator and key == "load_two": found[0].view(np.uint32)[3, 1] ^= 1
        return found
    monkeypatch.setattr(module, "in_child", in_child_or_on_gpu)
    monkeypatch.setattr(instructions, "CASES", {key: CASES[key] for key in ("load_two", "handed_over", "store_two")})
    return module


@pytest.mark.parametrize("capability", [(9, 0), (8, 0)])
def test_the_check_names_what_differs_or_never_ends_and_goes_on(check_gpu, monkeypatch, capability):
    monkeypatch.setattr(check_gpu, "current_gpu", lambda: SimpleNamespace(compute_capability=capability))
    found, cases = check_gpu.instructions_part([]), 3 if capability == (9, 0) else 2  # what never ends needs a 9.0
    assert found["runs"] == cases and len(found["failed"]) == cases - 1
    differ, *others = found["failed"]
    assert re.search(r"load2.*result 0 at \(3, 1\): .* on the GPU, .* in the simulator\n  1 of 192 are different\n"
                     r"  operands \(seed \d+\): ", differ)
    if others: assert re.search("mbarrier_wait.*no answer", *others)


def test_an_error_ends_the_child_that_has_the_gpu():
    with pytest.raises(ChildError, match="KeyError: 'no case'"):
        in_child(instructions.run_on_gpu, "no case", 0, simulator=True, keep=True)
