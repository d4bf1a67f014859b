"""The simulator's half of each PTX instruction: its Python body's results against the formulas in
`tests/instruction_kernels.py`; what both halves refuse; and the check that compares a GPU with the
simulator."""
import importlib.util
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import ROOT

if importlib.util.find_spec("numba_cuda") is None:
    pytest.skip("numba-cuda is not installed", allow_module_level=True)

import instruction_kernels
import instructions
from instructions import CASES, bound
from numba import cuda, float32, float64, uint32, uint64

from numba_matmul.compiler import CompileError, machine_code
from numba_matmul.process import ChildError, in_child
from numba_matmul.ptx.ampere import (
    cp_async, cp_async_at, cp_async_wait_group, cvt_rn_bf16x2_f32, cvt_rn_f16x2_f32, ldmatrix, mma_m16n8k16,
    move_eight, rcp_approx_ftz_f32, store_pair, store_pairs, unpack_bf16, unpack_f16x2)
from numba_matmul.ptx.core import (
    add_fours, add_outer, add_part, add_scaled, add_tuples, global_address, load2, load4, load_fours_at,
    shared_address, store2, store4, store_fours, store_relaxed, to_array)
from numba_matmul.ptx.hopper import (
    bar_sync, cp_async_bulk_tensor_2d_global_to_shared, cp_async_bulk_tensor_2d_multicast,
    cp_async_bulk_tensor_2d_shared_to_global,
    cp_async_bulk_wait_group_read, cvt_rn_satfinite_e4m3x4_f32, ld_shared_v4, mbarrier_arrive_expect_tx,
    mbarrier_init,
    mbarrier_wait, pack_scaled, st_async_v4, st_shared_v4, stmatrix, stmatrix_trans, tensor_map_address,
    wgmma_mma_async, wgmma_mma_async_e4m3, wgmma_mma_async_f16)
from numba_matmul.sim import typing
from numba_matmul.sim.launch import simulate
from numba_matmul.sim.scheduler import SimulatorError

SEEDS = 1, 2  # matrices of random numbers, and of whole numbers


def simulated(key, seed, **changed):
    "In a child: how far a case's results are from its formula, as text; with replaced Python bodies."
    kept = {function: getattr(instruction_kernels, function) for function in changed}
    for function, body in changed.items():
        body.instruction = kept[function].instruction  # operands and result type
        setattr(instruction_kernels, function, body)
    typing.forget()
    try: found = instructions.run(key, seed)
    finally:
        for function, body in kept.items(): setattr(instruction_kernels, function, body)
        typing.forget()
    formula = [getattr(x, "array", x) for x in CASES[key].operands(seed)[-1]]
    return instructions.differences(key, seed, found, formula, ("by the body", "by the formula"))


@pytest.mark.parametrize("key", CASES)
def test_python_bodies_agree_with_the_formulas(key):
    for seed in SEEDS: assert not in_child(simulated, key, seed, simulator=True, keep=True)


def cut_off(low, high):
    return np.array([low, high], np.float32).view(np.uint16)[1::2].copy().view(np.uint32)[0]


def nothing(*args): pass


WRONG = {  # binding, and what is wrong if there are several → its Python body with that mistake
    "load2": lambda a, i: load2(a, i)[::-1],
    "load4": lambda a, i: (*load2(a, i), *load2(a, i)),
    "store2": lambda a, i, x, y: store2(a, i, y, x),
    "store4": lambda a, i, x, y, z, w: store4(a, i, x, y, w, z),
    "shared_address": lambda array, index: shared_address(array, int(index) // 2),
    "global_address": lambda array, index: global_address(array, int(index) & 0xFFFFFFFF),
    "load_fours_at, no offset": lambda array, address, offset, step, count:
        load_fours_at(array, address, 0, step, count),
    "load_fours_at, step": lambda array, address, offset, step, count:
        load_fours_at(array, address, offset, 16, count),
    "add_outer": lambda acc, x, y: add_outer(acc, x[::-1], y),
    "add_part, no serpentine": lambda acc, x, y, first, last, serpentine: add_part(acc, x, y, first, last, 0),
    "add_part, one more": lambda acc, x, y, first, last, serpentine:
        add_part(acc, x, y, first, last + 1, serpentine),
    "store_fours": lambda array, index, step, values: store_fours(array, index, 4, values),
    "add_fours": lambda values, array, index, step: add_fours(values, array, index, 4),
    "to_array": lambda values, array, columns: to_array(values[::-1], array, columns),
    "store_relaxed": lambda array, index, value: store_relaxed(array, index, int(value) & 0xFFFFFFFF),
    "cp_async": lambda to, at, source, start, count, inside: cp_async(to, at, source, start, count, count),
    "cp_async_at": lambda to, at, offset, source, start, count, inside:
        cp_async_at(to, at, offset, source, start, count, min(inside, count - 1)),
    "cp_async_commit_group": nothing,
    "cp_async_wait_group": lambda pending: cp_async_wait_group(pending + 1),
    "cvt_rn_bf16x2_f32, cut off": cut_off,
    "cvt_rn_bf16x2_f32, halves": lambda low, high: cvt_rn_bf16x2_f32(high, low),
    "cvt_rn_f16x2_f32, NaN": lambda low, high:
        np.array([low, high], np.float32).astype(np.float16).view(np.uint32)[0],
    "cvt_rn_f16x2_f32, halves": lambda low, high: cvt_rn_f16x2_f32(high, low),
    "ex2_approx_ftz_f32": lambda x: np.exp(x),  # not np.exp itself, which would then become an instruction
    "rcp_approx_ftz_f32": lambda x: -rcp_approx_ftz_f32(x),
    "unpack_bf16": lambda bits: unpack_bf16(bits)[::-1],
    "unpack_f16x2": lambda bits: unpack_f16x2(bits)[::-1],
    "float_as_uint": lambda x: np.uint32(abs(x)),
    "uint_as_float": lambda bits: np.float32(bits),
    "add_scaled": lambda sums, x, factors: add_scaled(sums, x, factors[::-1]),
    "cvt_rn_satfinite_e4m3x4_f32": lambda x, y, z, w: cvt_rn_satfinite_e4m3x4_f32(y, x, z, w),
    "add_tuples": lambda x, y: add_tuples(x, x),
    "pack_scaled": lambda acc, alpha: pack_scaled(acc, 1),
    "ldmatrix, transpose": lambda *args: ldmatrix(*args[:-1], 1 - args[-1]),
    "ldmatrix, flip": lambda array, address, offset, step, flip, *others:
        ldmatrix(array, address, offset, step, 1 - flip, *others),
    "mma_m16n8k16, factor": lambda acc, x, y: mma_m16n8k16(acc, (x[0], x[2], x[1], *x[3:]), y),
    "mma_m16n8k16, sums": lambda acc, x, y: mma_m16n8k16((acc[1], acc[0], *acc[2:]), x, y),
    "store_pair": lambda array, index, pair: store_pair(array, index, int(pair) >> 16),
    "store_pairs": lambda array, index, first, second: store_pairs(array, index, second, first),
    "move_eight": lambda to, at, source, start: move_eight(to, at, source, int(start) ^ 8),
    "mbarrier_init": lambda barrier, count: mbarrier_init(barrier, count - 1),
    "fence_mbarrier_init": nothing,
    "mbarrier_arrive_expect_tx": lambda barrier, tx_count: mbarrier_arrive_expect_tx(barrier, tx_count // 2),
    "mbarrier_arrive": nothing,
    "mbarrier_wait": lambda barrier, parity: mbarrier_wait(barrier, 1 - parity),
    "fence_proxy_tensormap": nothing,
    "tensor_map_address": lambda maps, number: tensor_map_address(maps, 2 - number),
    "cp_async_bulk_tensor_2d_global_to_shared": lambda to, tensor_map, barrier, column, row:
        cp_async_bulk_tensor_2d_global_to_shared(to, tensor_map, barrier, row, column),
    "wgmma_mma_async, scale": lambda *args: wgmma_mma_async(*args[:-1], 0),
    "wgmma_mma_async, step": lambda acc, a, b, step_a, step_b, *others:
        wgmma_mma_async(acc, a, b, step_b, step_b, *others),
    "wgmma_mma_async, transpose b": lambda *args: wgmma_mma_async(*args[:6], args[6] ^ 1, *args[7:]),
    "wgmma_mma_async, transpose a": lambda *args: wgmma_mma_async(*args[:6], args[6] ^ 2, *args[7:]),
    "wgmma_mma_async_e4m3, scale": lambda *args: wgmma_mma_async_e4m3(*args[:-1], 1),
    "wgmma_mma_async_e4m3, type": wgmma_mma_async,
    "wgmma_mma_async_f16, scale": lambda *args: wgmma_mma_async_f16(*args[:-1], 1),
    "wgmma_mma_async_f16, type": wgmma_mma_async,
    "wgmma_wait_prior": lambda acc, pending: acc,
    "wgmma_wait_group": lambda acc: acc,
    "stmatrix, swizzle": lambda address, swizzle, *others: stmatrix(address, 0, *others),
    "stmatrix, order": lambda address, swizzle, packed, first, count:
        stmatrix(address, swizzle, packed[::-1], first, count),
    "cp_async_bulk_tensor_2d_multicast": lambda to, tensor_map, barrier, column, row, blocks:
        cp_async_bulk_tensor_2d_multicast(to, tensor_map, barrier, row, column, blocks),
    "mbarrier_arrive_cluster": nothing,
    "cluster_sync": nothing,
    "st_async_v4": lambda address, block, values, barrier: st_async_v4(address, block, values[::-1], barrier),
    "st_shared_v4": lambda address, values: st_shared_v4(address, values[::-1]),
    "ld_shared_v4": lambda address: ld_shared_v4(address)[::-1],
    "stmatrix_trans, step": lambda address, step, *others: stmatrix_trans(address, 1024, *others),
    "stmatrix_trans, order": lambda address, step, packed, first, count:
        stmatrix_trans(address, step, packed[::-1], first, count),
    "stmatrix_trans, rows": lambda address, step, packed, first, count:
        stmatrix(address, 0, packed, first, count),
    "fence_proxy_async": nothing,
    "cp_async_bulk_tensor_2d_shared_to_global": lambda tensor_map, source, column, row:
        cp_async_bulk_tensor_2d_shared_to_global(tensor_map, source, row, column),
    "cp_async_bulk_commit_group": nothing,
    "cp_async_bulk_wait_group_read": lambda pending: cp_async_bulk_wait_group_read(pending + 1),
    "bar_sync": nothing,
}
# their bodies do nothing, or nothing that a single block notices
SILENT = {"setmaxnreg_dec", "setmaxnreg_inc", "prefetch_tensormap", "fence_proxy_async_global"}


def binding_of(mistake): return mistake.partition(",")[0]


def is_noticed(mistake):
    "In a child: does a case detect this wrong body?"
    name, body = binding_of(mistake), WRONG[mistake]
    for key, case in CASES.items():
        try:
            if name in case.instructions and simulated(key, SEEDS[0], **{name: body}): return True
        except SimulatorError as e:
            return not re.match(r"\w+Error:", str(e))  # raised by the body itself, not by Python
    return False


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_python_body_is_noticed(mistake):
    assert in_child(is_noticed, mistake, simulator=True, keep=True)


def test_every_python_body_that_does_something_was_tried_wrong():
    assert set(map(binding_of, WRONG)) == bound() - SILENT


class FramesOfKernels:
    "Replaces the module `sys` in the Python bodies: the frame they record must be a kernel's."
    def _getframe(depth):
        frame = sys._getframe(depth + 1)
        assert frame.f_code.co_filename == instruction_kernels.__file__, frame
        return frame


def frames_noted():
    "In a child: run all cases with that."
    modules = {sys.modules[getattr(instruction_kernels, name).__module__] for name in bound()}
    for module in modules: module.sys = FramesOfKernels
    try:
        for key in CASES: instructions.run(key, 0)
    finally:
        for module in modules: module.sys = sys


def test_python_bodies_note_the_line_of_the_kernel(): in_child(frames_noted, simulator=True, keep=True)


# What both bodies refuse

FOR_FLOAT32, ZERO = "float32, not for float64", float32(0)
REFUSED = {  # a kernel whose array has float64, and what both bodies say
    "load2": (lambda a: load2(a, uint64(0)), FOR_FLOAT32),
    "load4": (lambda a: load4(a, uint64(0)), FOR_FLOAT32),
    "store2": (lambda a: store2(a, uint64(0), ZERO, ZERO), FOR_FLOAT32),
    "store4": (lambda a: store4(a, uint64(0), ZERO, ZERO, ZERO, ZERO), FOR_FLOAT32),
    "cp_async": (lambda a: cp_async(cuda.shared.array(8, float64, alignment=16), uint32(0), a, uint64(0), 3,
                                    uint32(3)),
                 "not 3 elements of 8"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_both_bodies_refuse_what_the_instruction_cannot(name):
    kernel, said = cuda.jit(REFUSED[name][0]), REFUSED[name][1]
    with pytest.raises(SimulatorError, match=said): simulate(kernel[1, 1], np.zeros(8))
    with pytest.raises(CompileError, match=said): machine_code(kernel, "void(float64[::1])")


@cuda.jit
def meet(number, threads): bar_sync(number, threads)


@pytest.mark.parametrize("number,threads", [(0, 32), (16, 32), (1, 48)],
                         ids=["first number", "number past the last", "half a warp"])
def test_a_named_barrier_that_a_gpu_has_not_is_refused(number, threads):
    with pytest.raises(SimulatorError, match=f"named barrier {number} for {threads} threads"):
        simulate(meet[1, 96], np.uint32(number), np.uint32(threads))


# The check on a GPU

@pytest.fixture
def check_gpu(monkeypatch):
    """tools/check_gpu.py with three cases. The stand-in for a GPU returns wrong bits in one, and never ends
    in another."""
    spec = importlib.util.spec_from_file_location("check_gpu", ROOT/"tools"/"check_gpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def in_child_or_on_gpu(fn, key, seed, simulator, **how):
        if not simulator and key == "handed_over": raise ChildError("no answer within 90 s")
        found = in_child(instructions.run, key, seed, simulator=True, keep=True)
        if not simulator and key == "load_two": found[0].view(np.uint32)[3, 1] ^= 1
        return found
    monkeypatch.setattr(module, "in_child", in_child_or_on_gpu)
    monkeypatch.setattr(instructions, "CASES",
                        {key: CASES[key] for key in ("load_two", "handed_over", "store_two")})
    return module


@pytest.mark.parametrize("capability", [(9, 0), (8, 0)], ids=["hopper", "ampere"])
def test_the_check_names_what_differs_or_never_ends_and_goes_on(check_gpu, monkeypatch, capability):
    monkeypatch.setattr(check_gpu, "current_gpu", lambda: SimpleNamespace(compute_capability=capability))
    found = check_gpu.instructions_part([])
    cases = 3 if capability == (9, 0) else 2  # the case that never ends needs a 9.0
    assert found["runs"] == cases and len(found["failed"]) == cases - 1
    differ, *others = found["failed"]
    assert re.search(r"load2.*result 0 at \(3, 1\): .* on the GPU, .* in the simulator\n"
                     r"  1 of 192 are different\n  operands \(seed \d+\): ", differ)
    if others: assert re.search("mbarrier_wait.*no answer", *others)


def test_an_error_ends_the_child_that_has_the_gpu():
    with pytest.raises(ChildError, match="KeyError: 'no case'"):
        in_child(instructions.run_on_gpu, "no case", 0, simulator=True, keep=True)


def test_an_asynchronous_store_needs_a_launch_with_clusters():
    "On a GPU it's an illegal instruction elsewhere."
    kernel, _, args, _ = instructions.CASES["fours_in_a_cluster"].operands(0)
    with pytest.raises(SimulatorError, match="st.async in a launch without clusters"):
        simulate(kernel[1, 128], *(getattr(arg, "array", arg) for arg in args))
