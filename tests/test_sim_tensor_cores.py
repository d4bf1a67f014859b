"""Matrix instructions in the strict simulator, and the TMA and wgmma kernels with a part missing or wrong."""
import inspect
import sys
from collections import Counter
from functools import partial
from importlib import import_module

import numpy as np
import pytest
from forked import in_fork
from greenlet import getcurrent
from numba import cuda, float32, types, uint16, uint32, uint64
from sim_cases import refused, refuses

from numba_matmul.arrays import from_bf16, to_bf16
from numba_matmul.bench.verify import check_matmul
from numba_matmul.gemm.tensor_maps import map_of
from numba_matmul.gemm.tiles import BOX, WgmmaTile
from numba_matmul.kernels.k16_tma_wgmma import OF_A, OF_B, wgmma_multiplier
from numba_matmul.process import ChildError, in_child
from numba_matmul.ptx.ampere import cvt_rn_bf16x2_f32, ldmatrix, mma_m16n8k16, store_pair, unpack_bf16
from numba_matmul.ptx.core import bind, global_address, shared_address, to_array
from numba_matmul.ptx.hopper import (
    bar_sync, cp_async_bulk_tensor_2d_global_to_shared, fence_mbarrier_init, fence_proxy_async,
    fence_proxy_tensormap, mbarrier_arrive_expect_tx, mbarrier_init, mbarrier_wait, wgmma_mma_async,
    wgmma_wait_group, wgmma_wait_prior)
from numba_matmul.registry import KERNELS
from numba_matmul.sim.launch import simulate
from numba_matmul.sim.scheduler import SimulatorError


def warp_product(rows, columns, sync=True, skew=0, swizzle=0):
    """A kernel: one warp multiplies 16·rows×16 by 16×8·columns from shared memory, and stores the
    accumulators as pairs. B may be swizzled."""
    width, a_size = 8 * columns, 256 * rows
    zeros, shape, size = (np.float32(0),) * (4 * rows * columns), (2 * rows * columns, 2), a_size + 16 * width
    pairs = columns // 2

    @cuda.jit
    def k(a, b, c):
        tile, sums, lane = (cuda.shared.array(size, uint16, alignment=16), cuda.local.array(shape, float32),
                            uint32(cuda.threadIdx.x))
        for i in range(lane, a_size, 32): tile[i] = a[i]
        for i in range(lane, 16 * width, 32): tile[a_size + (i ^ i // width % 8 * 8 * swizzle)] = b[i]
        if sync: cuda.syncthreads()
        row, half = lane % 16, lane // 16 * 8
        x = ldmatrix(tile, shared_address(tile, uint64(row * 16 + half + skew)), 0, 512, 0, rows, 0)
        at_b = shared_address(tile, uint64(a_size + row * width + (half ^ row % 8 * 8 * swizzle)))
        y = ldmatrix(tile, at_b, 0, 32, swizzle, pairs, 1)
        to_array(mma_m16n8k16(zeros, x, y), sums, 2)
        for i in range(rows):
            for j in range(columns):
                for q in range(2):
                    at = (16 * i + 8 * q + lane // 4) * width + 8 * j + lane % 4 * 2
                    n = (i * columns + j) * 2 + q
                    store_pair(c, uint64(at), cvt_rn_bf16x2_f32(sums[n, 0], sums[n, 1]))
    return k


def bf16_pair(rows, columns):
    return to_bf16(np.random.randn(16 * rows, 16)), to_bf16(np.random.randn(16, 8 * columns))


@pytest.mark.parametrize("rows,columns,swizzle", [(1, 2, 0), (2, 4, 0), (4, 2, 0), (2, 8, 1)],
                         ids=["16 by 16", "32 by 32", "64 by 16", "32 by 64, swizzled"])
def test_a_warp_multiplies_matrices(rows, columns, swizzle):
    a, b = bf16_pair(rows, columns)
    c = simulate(warp_product(rows, columns, swizzle=swizzle)[1, 32], a.ravel(), b.ravel(),
                 np.zeros(128 * rows * columns, np.uint16))[2]
    right = from_bf16(a).astype(float) @ from_bf16(b).astype(float)
    assert np.array_equal(c.reshape(right.shape), to_bf16(right))


@pytest.mark.parametrize("options,match",
                         [(dict(sync=False), "race"), (dict(skew=4), "isn't a multiple of 16")],
                         ids=["no barrier", "skew"])
def test_a_wrong_load_of_matrices_is_refused(options, match):
    a, b = bf16_pair(1, 2)
    refused(warp_product(1, 2, **options)[1, 32], a.ravel(), b.ravel(), np.zeros(256, np.uint16), match=match)


@refuses(32, np.zeros(1), match="needs all 32 lanes, but only 31 are here")
@cuda.jit
def test_a_warp_that_is_not_complete_cannot_multiply(a):
    z, u = np.float32(0), np.uint32(0)
    if cuda.threadIdx.x < 31: mma_m16n8k16((z, z, z, z), (u, u, u, u), (u, u))


def rounded_pairs(x):
    "In a child: the bits of two numbers, and the unpacked numbers."
    pairs = [int(cvt_rn_bf16x2_f32(*pair)) for pair in x.reshape(-1, 2)]
    return pairs, [unpack_bf16(np.uint32(pair)) for pair in pairs]


def test_rounding_to_bfloat16_is_that_of_torch_and_that_of_two_numbers_is_the_same():
    "Ties to even, the largest number to infinity, every NaN to one."
    import torch  # not in every child
    special = [0, 1, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000]
    signed = np.array([x | sign << 31 for x in special for sign in (0, 1)], np.uint32)
    bits = np.random.default_rng(0).integers(0, 2**32, 20000, np.uint32)
    ties = np.arange(0x3F800000, 0x3F900000, 0x8000, dtype=np.uint32)
    x = np.concatenate((signed, bits, ties, ties - 1, ties + 1)).view(np.float32)
    found = to_bf16(x)
    assert np.array_equal(from_bf16(found), torch.from_numpy(x.copy()).bfloat16().float(), equal_nan=True)
    pairs, unpacked = in_child(rounded_pairs, x[:1020], simulator=True, keep=True)
    assert np.array(pairs, np.uint32).view(np.uint16).tolist() == found[:1020].tolist()
    assert [pairs[i] for i in (2, 3, 6, 8)] == [0x80000000, 0x80000000, 0xFF807F80, 0x7FFF7FFF]
    assert np.array_equal(np.ravel(unpacked), from_bf16(found[:1020]), equal_nan=True)


BUILDERS = "numba_matmul.gemm", "numba_matmul.kernels"


def change(module, functions):
    "In a child: replace functions of a module. Functions that aren't kernels stand for instructions."
    for name, function in functions.items():
        if inspect.isfunction(function): function = bind("", result=types.undefined)(function)
        setattr(import_module(f"numba_matmul.{module}"), name, function)
    # this child may have built such a kernel earlier, without the mistake
    for ours in [found for name, found in sys.modules.items() if name.startswith(BUILDERS)]:
        for value in vars(ours).values(): getattr(value, "cache_clear", bool)()


def product_of_stored_factors(fenced, met):
    "In a child: `wgmma` with operands stored by threads, each its own row of both."
    sums = (np.float32(0),) * 32

    @cuda.jit
    def k(out):
        memory, t = cuda.shared.array(8192, uint16, alignment=1024), cuda.threadIdx.x
        for i in range(64): memory[64 * t + i] = uint16(0x3F80)
        if fenced: fence_proxy_async()
        if met: cuda.syncthreads()
        acc = wgmma_mma_async(sums, OF_A, OF_B | uint64(512), 2, 128, 4, 1, 1, 1)
        acc = wgmma_wait_group(acc)
        out[t] = acc[0]
    out = np.zeros(128, np.float32)
    k[1, 128](out)
    return set(out.tolist())


@pytest.mark.parametrize("fenced,met", [(True, True), (False, True), (True, False), (False, False)],
                         ids=["both", "barrier only", "fence only", "neither"])
def test_factors_that_threads_have_stored_are_fenced_before_a_product(fenced, met):
    if fenced and met: assert in_fork(product_of_stored_factors, fenced, met) == {64.0}
    else:
        with pytest.raises(SimulatorError,
                           match="wgmma reads an operand that .* stored.*fence_proxy_async"):
            in_fork(product_of_stored_factors, fenced, met)


def hopper_product(number, module="ptx.hopper", consumers=1, bn=128, **changed):
    """In a child: kernel 16, or 17 in one block, or 19, with modified functions in a module; several tiles,
    several rounds of the ring."""
    change(module, changed)
    options = dict(blocks=1) if number == 17 else {}
    shape = {16: (72, 136, 264), 17: (136, 264, 264), 19: (9, 20, 200)}[number]
    tile = WgmmaTile(64 * consumers, bn, 2, parts=2 if number == 19 else 1)
    return check_matmul(partial(KERNELS[number].fn, tile=tile, **options), *shape)


@pytest.mark.parametrize("number", [16, 17], ids=["tma_wgmma", "warp_specialized"])
def test_kernels_of_tma_and_wgmma_run(number):
    assert 0 < in_fork(hopper_product, number) < 2e-3


def nothing(*args): pass


def waits_less(*args, pending=1, **options):
    return wgmma_multiplier(*args, pending=pending + 2, **options)


def one_more_pending(acc, pending): return wgmma_wait_prior(acc, pending + 1)


MET = Counter()


def meets_every_other_time(barrier, threads):
    "The barrier before a box is written is missing, the one after it stays."
    MET[getcurrent()] += 1
    if MET[getcurrent()] % 2 == 0: bar_sync(barrier, threads)


@cuda.jit(device=True)
def box_of_the_other(storage, warpgroup):
    return uint32(storage.ab_tiles + uint32(1 - warpgroup) * uint32(BOX))


K16, K17, EPILOGUE = "kernels.k16_tma_wgmma", "kernels.k17_warp_specialized", "gemm.epilogue"
K19, UNWAITED = "kernels.k19_float32_on_tensor_cores", "has not waited for its products"
UNSEEN, READ = "may not be visible yet: fence_proxy_async", "is written while a store may still read it"
NEVER, OVERWRITTEN = "At an mbarrier 0 of 1 have arrived", "an operand still being multiplied was overwritten"
MISTAKES = {  # kernel, module, what is changed in it, and the simulator's message
    # Missing parts
    "tma_wgmma, consumer_wait": (16, K16, dict(consumer_wait=nothing),
                                 "is multiplied while an asynchronous copy into it"),
    "tma_wgmma, fence_mbarrier_init": (16, K16, dict(fence_mbarrier_init=nothing), "fence_mbarrier_init"),
    "tma_wgmma, mbarrier_arrive_expect_tx": (16, K16, dict(mbarrier_arrive_expect_tx=nothing), NEVER),
    "tma_wgmma, waits less": (16, K16, dict(wgmma_multiplier=waits_less), OVERWRITTEN),
    "tma_wgmma, wgmma_wait_group": (16, K16, dict(wgmma_wait_group=lambda acc: acc),
                                    UNWAITED),
    "warp_specialized, first consumer_wait": (17, "gemm.mainloop", dict(consumer_wait=nothing),
                                              "is multiplied"),
    "warp_specialized, consumer_wait": (17, K17, dict(consumer_wait=nothing), "is still being multiplied"),
    "warp_specialized, producer_acquire": (17, K17, dict(producer_acquire=nothing),
                                           "more than 1 arrival at an mbarrier"),
    "warp_specialized, consumer_release": (17, "gemm.pipeline", dict(mbarrier_arrive=nothing), NEVER),
    "warp_specialized, waits less": (17, K17, dict(wgmma_multiplier=waits_less), OVERWRITTEN),
    "warp_specialized, fence_proxy_async": (17, EPILOGUE, dict(fence_proxy_async=nothing), UNSEEN),
    "warp_specialized, bar_sync": (17, EPILOGUE, dict(bar_sync=nothing), UNSEEN),
    "warp_specialized, wait_group_read": (17, EPILOGUE, dict(cp_async_bulk_wait_group_read=nothing), READ),
    "warp_specialized, last wait_group_read": (17, K17, dict(cp_async_bulk_wait_group_read=nothing),
                                               "its stores may still read shared memory"),
    "warp_specialized, fence_mbarrier_init": (17, "gemm.pipeline", dict(fence_mbarrier_init=nothing),
                                              "fence_mbarrier_init"),
    # Wrong parts: the last stage is released while its k tile is multiplied
    "warp_specialized, stage": (17, K17, dict(wgmma_wait_group=lambda acc: acc),
                                f"{OVERWRITTEN}|is still being multiplied"),
    "warp_specialized, box": (17, EPILOGUE, dict(bar_sync=meets_every_other_time), READ),
    "warp_specialized, number": (17, EPILOGUE,
                                 dict(bar_sync=lambda barrier, threads: bar_sync(barrier + 16, threads)),
                                 "named barrier 17"),
    # Accumulators are read while products are in flight: those of hi·hi, NaN until then, and of cross
    # products
    "tensor_cores, waits less": (19, K19, dict(wgmma_wait_prior=one_more_pending), "elements are wrong.*nan"),
    "tensor_cores, wgmma_wait_group": (19, K19, dict(wgmma_wait_group=lambda acc: acc), UNWAITED),
    # The first consumer waits for k tiles that the second delays
    "warp_specialized, distance": (17, K17, dict(consumers=2, stagger_distance=lambda stages: stages), NEVER),
    "warp_specialized, room": (17, EPILOGUE, dict(consumers=2, drain_box=box_of_the_other),
                               "race|overwritten|elements"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_kernel_of_tma_and_wgmma_with_a_mistake_is_refused(name):
    number, module, changed, match = MISTAKES[name]
    with pytest.raises((SimulatorError, ChildError), match=match):
        in_fork(partial(hopper_product, number, module, **changed))


@pytest.mark.parametrize("row_bytes", [128, 64, 32])
def test_a_box_lies_swizzled_as_wide_as_its_rows(row_bytes):
    "16 rows, of which the last one is outside of the matrix. Bits 7 and up of an address flip bits 4 and up."
    columns, size = row_bytes // 2, 8 * row_bytes  # numbers of a row, and of the box
    with_mbarrier = size + 4

    @cuda.jit
    def k(matrix_map, out):
        box = cuda.shared.array(with_mbarrier, uint16, alignment=1024)
        start, matrix = shared_address(box, uint64(0)), global_address(matrix_map, uint64(0))
        full = uint32(start + 2 * size)
        if cuda.threadIdx.x == 0:
            mbarrier_init(full, 1)
            fence_mbarrier_init()
            fence_proxy_tensormap(matrix)
            mbarrier_arrive_expect_tx(full, 2 * size)
            cp_async_bulk_tensor_2d_global_to_shared(start, matrix, full, columns, 1)
        cuda.syncthreads()
        mbarrier_wait(full, 0)
        for i in range(cuda.threadIdx.x, size, 32): out[i] = box[i]

    def copied():
        numbers = np.arange(16 * 2 * columns, dtype=np.uint16).reshape(16, -1)
        matrix, out = cuda.to_device(numbers), np.zeros(size, np.uint16)
        k[1, 32](map_of(matrix, 16, row_bytes), out)
        return numbers, out
    numbers, out = in_fork(copied)
    for row, col in np.ndindex(16, columns):
        at = 2 * (row * columns + col)
        at ^= (at >> 7 & row_bytes // 16 - 1) << 4
        assert out[at // 2] == (numbers[row + 1, columns + col] if row < 15 else 0)
