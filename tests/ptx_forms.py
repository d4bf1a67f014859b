"""Each binding's form in the PTX ISA: a table, and the functions that use the bindings in it."""
from dataclasses import dataclass
from inspect import signature

from numba import cuda, float32, uint16, uint32, uint64

from numba_matmul.ptx.ampere import (
    cp_async, cp_async_at, cp_async_commit_group, cp_async_wait_group, cvt_rn_bf16x2_f32, cvt_rn_f16x2_f32,
    ex2_approx_ftz_f32, ldmatrix, mma_m16n8k16, move_eight, rcp_approx_ftz_f32, store_pair, store_pairs,
    unpack_bf16, unpack_f16x2)
from numba_matmul.ptx.core import (
    add_fours, add_outer, add_part, add_scaled, add_tuples, float_as_uint, global_address, load2,
    load4, load_fours_at, shared_address, store2, store4, store_fours, store_relaxed, to_array, uint_as_float)
from numba_matmul.ptx.hopper import (
    bar_sync, cluster_sync, cp_async_bulk_commit_group, cp_async_bulk_tensor_2d_global_to_shared,
    cp_async_bulk_tensor_2d_multicast, cp_async_bulk_tensor_2d_shared_to_global,
    cp_async_bulk_wait_group_read, cvt_rn_satfinite_e4m3x4_f32, fence_mbarrier_init,
    fence_proxy_async, fence_proxy_async_global,
    fence_proxy_tensormap, ld_shared_v4, mbarrier_arrive,
    mbarrier_arrive_cluster, mbarrier_arrive_expect_tx, mbarrier_init, mbarrier_wait, pack_scaled,
    prefetch_tensormap,
    setmaxnreg_dec, setmaxnreg_inc, st_async_v4, st_shared_v4, stmatrix, stmatrix_trans, wgmma_mma_async,
    wgmma_mma_async_e4m3, wgmma_mma_async_f16, wgmma_wait_group, wgmma_wait_prior)

MOVE, SYNCHRONIZE = "Data Movement and Conversion: ", "Parallel Synchronization and Communication: "
WARP = "Warp Level Matrix Multiply-Accumulate: "
WARPGROUP = "Asynchronous Warpgroup Level Matrix Multiply-Accumulate: "
TARGETS = "sm_75", "sm_80", "sm_90", "sm_90a"


@dataclass
class Form:
    """The PTX ISA's specification of a binding: a section of its chapter Instructions, and the statements
    there, filled in for a function that uses the binding. A parameter's name stands for its register, an
    array's for the address of its first element, out[1] for the second number the function returns."""
    probe: object             # the function
    since: str                # the first target with the instruction
    section: str
    ptx: list                 # statements, in order
    types: str = ""           # of the function's parameters, followed by an array for its results
    results: int = 0          # how many numbers it returns, more than one as a tuple
    volatile: bool = True     # must it neither vanish nor move across other accesses to memory?
    convergent: bool = False  # do the lanes of a warp execute it together?

    def parameters(self):
        "The names of the parameters of a kernel that calls the function."
        return [*signature(self.probe).parameters, *["out"] * bool(self.results)]

    def times(self):
        "How often: twice if it only has effects, so that neither can be optimized away."
        return 2 if self.volatile and not self.results else 1


# Functions that need more than one line

def three_loads(a, b):
    memory = cuda.shared.array(64, float32, alignment=16)
    return load4(a, uint64(8)) + load4(memory, uint32(12)) + load4(b, (uint32(0), uint32(4)))


def two_stores(a, x, y, z, w):
    memory = cuda.shared.array(64, float32, alignment=16)
    store4(a, uint64(8), x, y, z, w)
    store4(memory, uint32(12), w, z, y, x)


def address_in_shared_memory():
    memory = cuda.shared.array(64, float32, alignment=16)
    return shared_address(memory, uint32(3))


def loads_by_address(address):
    memory = cuda.shared.array(64, float32, alignment=16)
    return load_fours_at(memory, address, 32, 64, 8)


def tuple_to_array(a, b, c):  # an array with known indices is kept in registers
    own = cuda.local.array((2, 2), float32)
    to_array((a, b, c, a), own, 2)
    return own[0, 1], own[1, 1], own[1, 0]


def copies_of_three_sizes(a, inside):
    memory = cuda.shared.array(64, float32, alignment=16)
    cp_async(memory, uint32(4), a, uint64(8), 4, inside)
    cp_async(memory, uint32(8), a, uint64(2), 2, inside)
    cp_async(memory, uint32(12), a, uint64(1), 1, inside)


def copy_by_address(a, to, start, inside):
    memory = cuda.shared.array(64, uint16, alignment=16)
    cp_async_at(memory, to, 32, a, start, 8, inside)


def loads_of_matrices(address):
    memory = cuda.shared.array(64, uint16, alignment=16)
    return ldmatrix(memory, address, 64, 32, 0, 2, 0) + ldmatrix(memory, address, 64, 32, 1, 2, 1)


def two_products(a, b):
    zeros = (float32(0), float32(0), float32(0), float32(0))
    acc = wgmma_mma_async(zeros, a, b, 2, 128, 2, 1, 1, 0)
    return wgmma_mma_async(acc, b, a, 2, 128, 1, 0, 0, 1)


def product_of_float16(a, b):
    zeros = (float32(0), float32(0), float32(0), float32(0))
    return wgmma_mma_async_f16(zeros, a, b, 2, 128, 1, 1, 1, 0)


def product_of_e4m3(a, b):
    zeros = (float32(0), float32(0), float32(0), float32(0))
    return wgmma_mma_async_e4m3(zeros, a, b, 2, 2, 1, 0, 1, 0)


def outs(*values, size=32):
    return [f"st.global.b{size} [out+{size // 8 * i}], {x}" for i, x in enumerate(values)]


FORMS = {
    # One instruction
    "cp_async_commit_group": Form(
        lambda: cp_async_commit_group(), "sm_80", MOVE + "cp.async.commit_group", ["cp.async.commit_group"]),
    "cp_async_wait_group": Form(
        lambda: cp_async_wait_group(3), "sm_80", MOVE + "cp.async.wait_group", ["cp.async.wait_group 3"]),
    "mbarrier_init": Form(
        lambda barrier, count: mbarrier_init(barrier, count), "sm_80", SYNCHRONIZE + "mbarrier.init",
        ["mbarrier.init.shared::cta.b64 [barrier], count"], "uint32, uint32"),
    "fence_mbarrier_init": Form(
        lambda: fence_mbarrier_init(), "sm_90", SYNCHRONIZE + "membar / fence",
        ["fence.mbarrier_init.release.cluster"]),
    "mbarrier_arrive_expect_tx": Form(
        lambda barrier, tx_count: mbarrier_arrive_expect_tx(barrier, tx_count), "sm_90",
        SYNCHRONIZE + "mbarrier.arrive",
        ["mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], tx_count"], "uint32, uint32"),
    "mbarrier_arrive": Form(
        lambda barrier: mbarrier_arrive(barrier), "sm_80", SYNCHRONIZE + "mbarrier.arrive",
        ["mbarrier.arrive.shared::cta.b64 _, [barrier]"], "uint32"),
    "mbarrier_wait": Form(
        lambda barrier, parity: mbarrier_wait(barrier, parity), "sm_90",
        SYNCHRONIZE + "mbarrier.test_wait / mbarrier.try_wait",
        ["again:", "mbarrier.try_wait.parity.shared::cta.b64 done, [barrier], parity", "@done bra end",
         "bra again",
         "end:"], "uint32, uint32"),
    "fence_proxy_tensormap": Form(
        lambda tensor_map: fence_proxy_tensormap(tensor_map), "sm_90", SYNCHRONIZE + "membar / fence",
        ["fence.proxy.tensormap::generic.acquire.sys [tensor_map], 128"], "uint64"),
    "fence_proxy_async": Form(
        lambda: fence_proxy_async(), "sm_90", SYNCHRONIZE + "membar / fence",
        ["fence.proxy.async.shared::cta"]),
    "cp_async_bulk_tensor_2d_global_to_shared": Form(
        lambda target, tensor_map, barrier, column, row:
            cp_async_bulk_tensor_2d_global_to_shared(target, tensor_map, barrier, column, row),
        "sm_90", MOVE + "cp.async.bulk.tensor",
        ["cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
         "[target], [tensor_map, {column, row}], [barrier]"], "uint32, uint64, uint32, uint32, uint32"),
    "cp_async_bulk_tensor_2d_multicast": Form(
        lambda target, tensor_map, barrier, column, row:
            cp_async_bulk_tensor_2d_multicast(target, tensor_map, barrier, column, row, 3),
        "sm_90", MOVE + "cp.async.bulk.tensor",
        ["cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
         ".multicast::cluster [target], [tensor_map, {column, row}], [barrier], 3"],
        "uint32, uint64, uint32, uint32, uint32"),
    "mbarrier_arrive_cluster": Form(
        lambda barrier, block: mbarrier_arrive_cluster(barrier, block), "sm_90",
        SYNCHRONIZE + "mbarrier.arrive; Data Movement and Conversion: mapa",
        ["mapa.shared::cluster.u32 there, barrier, block", "mbarrier.arrive.shared::cluster.b64 _, [there]"],
        "uint32, uint32"),
    "st_async_v4": Form(
        lambda address, block, a, b, c, d, barrier: st_async_v4(address, block, (a, b, c, d), barrier),
        "sm_90", MOVE + "st.async; Data Movement and Conversion: mapa",
        ["mapa.shared::cluster.u32 there, address, block", "mapa.shared::cluster.u32 arrived, barrier, block",
         "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [there], {a, b, c, d}, [arrived]"],
        "uint32, uint32, float32, float32, float32, float32, uint32"),
    "st_shared_v4": Form(
        lambda address, a, b, c, d: st_shared_v4(address, (a, b, c, d)), "sm_75", MOVE + "st",
        ["st.shared.v4.b32 [address], {a, b, c, d}"], "uint32, float32, float32, float32, float32"),
    "ld_shared_v4": Form(
        lambda address: ld_shared_v4(address), "sm_75", MOVE + "ld",
        ["ld.shared.v4.b32 {out[0], out[1], out[2], out[3]}, [address]"], "uint32, float32[::1]", 4),
    "cluster_sync": Form(
        lambda: cluster_sync(), "sm_90", SYNCHRONIZE + "barrier.cluster",
        ["barrier.cluster.arrive.relaxed", "barrier.cluster.wait"]),
    "prefetch_tensormap": Form(
        lambda tensor_map: prefetch_tensormap(tensor_map), "sm_90", MOVE + "prefetch",
        ["prefetch.tensormap [tensor_map]"], "uint64"),
    "fence_proxy_async_global": Form(
        lambda: fence_proxy_async_global(), "sm_90", SYNCHRONIZE + "membar / fence",
        ["fence.proxy.async.global"]),
    "cp_async_bulk_tensor_2d_shared_to_global": Form(
        lambda tensor_map, source, column, row:
            cp_async_bulk_tensor_2d_shared_to_global(tensor_map, source, column, row),
        "sm_90", MOVE + "cp.async.bulk.tensor",
        ["cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [tensor_map, {column, row}], [source]"],
        "uint64, uint32, uint32, uint32"),
    "cp_async_bulk_commit_group": Form(
        lambda: cp_async_bulk_commit_group(), "sm_90", MOVE + "cp.async.bulk.commit_group",
        ["cp.async.bulk.commit_group"]),
    "cp_async_bulk_wait_group_read": Form(
        lambda: cp_async_bulk_wait_group_read(1), "sm_90", MOVE + "cp.async.bulk.wait_group",
        ["cp.async.bulk.wait_group.read 1"]),
    "bar_sync": Form(
        lambda number, threads: bar_sync(number, threads), "sm_75", SYNCHRONIZE + "bar / barrier",
        ["bar.sync number, threads"], "uint32, uint32", convergent=True),
    "setmaxnreg_dec": Form(
        lambda: setmaxnreg_dec(40), "sm_90a", "Miscellaneous: setmaxnreg",
        ["setmaxnreg.dec.sync.aligned.u32 40"],
        convergent=True),
    "setmaxnreg_inc": Form(
        lambda: setmaxnreg_inc(232), "sm_90a", "Miscellaneous: setmaxnreg",
        ["setmaxnreg.inc.sync.aligned.u32 232"],
        convergent=True),
    "cvt_rn_bf16x2_f32": Form(  # the first source becomes the upper half
        lambda low, high: cvt_rn_bf16x2_f32(low, high), "sm_80", MOVE + "cvt",
        ["cvt.rn.bf16x2.f32 out[0], high, low"], "float32, float32, uint32[::1]", 1, volatile=False),
    "cvt_rn_f16x2_f32": Form(
        lambda low, high: cvt_rn_f16x2_f32(low, high), "sm_80", MOVE + "cvt",
        ["cvt.rn.f16x2.f32 out[0], high, low"], "float32, float32, uint32[::1]", 1, volatile=False),
    "cvt_rn_satfinite_e4m3x4_f32": Form(
        lambda x, y, z, w: cvt_rn_satfinite_e4m3x4_f32(x, y, z, w), "sm_90", MOVE + "cvt",
        ["cvt.rn.satfinite.e4m3x2.f32 low, y, x", "cvt.rn.satfinite.e4m3x2.f32 high, w, z",
         "st.global.b32 [out+0], {low, high}"],
        "float32, " * 4 + "uint32[::1]", 1, volatile=False),
    "ex2_approx_ftz_f32": Form(
        lambda x: ex2_approx_ftz_f32(x), "sm_75", "Floating Point: ex2", ["ex2.approx.ftz.f32 out[0], x"],
        "float32, float32[::1]", 1, volatile=False),
    "rcp_approx_ftz_f32": Form(
        lambda x: rcp_approx_ftz_f32(x), "sm_75", "Floating Point: rcp", ["rcp.approx.ftz.f32 out[0], x"],
        "float32, float32[::1]", 1, volatile=False),
    # Several instructions, or accesses to arrays
    "load2": Form(
        lambda a: load2(a, uint64(6)), "sm_75", MOVE + "ld", ["ld.global.v2.b32 {out[0], out[1]}, [a+24]"],
        "float32[::1], float32[::1]", 2, volatile=False),
    "load4": Form(
        three_loads, "sm_75", MOVE + "ld",
        ["ld.global.v4.b32 {out[0], out[1], out[2], out[3]}, [a+32]",
         "ld.shared.v4.b32 {out[4], out[5], out[6], out[7]}, [memory+48]",
         "ld.global.v4.b32 {out[8], out[9], out[10], out[11]}, [b+16]"],
        "float32[::1], float32[:, ::1], float32[::1]", 12, volatile=False),
    "store2": Form(
        lambda a, x, y: store2(a, uint64(6), x, y), "sm_75", MOVE + "st", ["st.global.v2.b32 [a+24], {x, y}"],
        "float32[::1], float32, float32", volatile=False),
    "store4": Form(
        two_stores, "sm_75", MOVE + "st",
        ["st.global.v4.b32 [a+32], {x, y, z, w}", "st.shared.v4.b32 [memory+48], {w, z, y, x}"],
        "float32[::1], float32, float32, float32, float32", volatile=False),
    "shared_address": Form(
        address_in_shared_memory, "sm_75", MOVE + "cvta", outs("memory+12"), "uint32[::1]", 1,
        volatile=False),
    "global_address": Form(
        lambda a: global_address(a, uint64(5)), "sm_75", MOVE + "cvta", outs("a+20", size=64),
        "float32[::1], uint64[::1]", 1, volatile=False),
    "load_fours_at": Form(
        loads_by_address, "sm_75", MOVE + "ld",
        ["ld.shared.v4.b32 {out[0], out[1], out[2], out[3]}, [address+32]",
         "ld.shared.v4.b32 {out[4], out[5], out[6], out[7]}, [address+96]"],
        "uint32, float32[::1]", 8, volatile=False),
    "add_outer": Form(
        lambda a, b, c, d, x, y, z, w: add_outer((a, b, c, d), (x, y), (z, w)), "sm_75",
        "Floating-Point: fma",
        ["fma.rn.f32 out[0], x, z, a", "fma.rn.f32 out[1], w, x, b", "fma.rn.f32 out[2], y, z, c",
         "fma.rn.f32 out[3], w, y, d"], "float32, " * 8 + "float32[::1]", 4, volatile=False),
    "add_part": Form(
        lambda a, b, c, d, x, y, z, w: add_part((a, b, c, d), (x, y), (z, w), 1, 3, 1), "sm_75",
        "Floating-Point: fma",
        ["fma.rn.f32 out[1], w, x, b", "fma.rn.f32 out[3], w, y, d", "st.global.b32 [out+0], a",
         "st.global.b32 [out+8], c"], "float32, " * 8 + "float32[::1]", 4, volatile=False),
    "store_fours": Form(
        lambda a, b, c, d, array: store_fours(array, uint64(4), 16, (a, b, c, d, d, c, b, a)), "sm_75",
        MOVE + "st",
        ["st.global.v4.b32 [array+16], {a, b, c, d}", "st.global.v4.b32 [array+80], {d, c, b, a}"],
        "float32, " * 4 + "float32[::1]", volatile=False),
    "add_fours": Form(
        lambda a, b, c, d, array: add_fours((a, b, c, d, d, c, b, a), array, uint64(4), 16), "sm_75",
        "Floating-Point: add",
        ["ld.global.v4.b32 {v0, v1, v2, v3}, [array+16]", "ld.global.v4.b32 {v4, v5, v6, v7}, [array+80]",
         *(f"add.f32 out[{i}], {'abcddcba'[i]}, v{i}" for i in range(8))],
        "float32, " * 4 + "float32[::1], float32[::1]", 8, volatile=False),
    "add_scaled": Form(
        lambda a, b, c, d, x, y: add_scaled((a, b, a), (c, d, d), (x, y)), "sm_75", "Floating-Point: fma",
        ["fma.rn.f32 out[0], c, x, a", "fma.rn.f32 out[1], d, y, b", "fma.rn.f32 out[2], d, x, a"],
        "float32, " * 6 + "float32[::1]", 3, volatile=False),
    "add_tuples": Form(
        lambda a, b, c, d: add_tuples((a, b), (c, d)), "sm_75", "Floating-Point: add",
        ["add.f32 out[0], a, c", "add.f32 out[1], b, d"], "float32, " * 4 + "float32[::1]", 2,
        volatile=False),
    "to_array": Form(
        tuple_to_array, "sm_75", MOVE + "st", outs("b", "a", "c"), "float32, float32, float32, float32[::1]",
        3,
        volatile=False),
    "store_relaxed": Form(
        lambda array, value: store_relaxed(array, uint64(2), value), "sm_75", MOVE + "st",
        ["st.relaxed.gpu.global.b64 [array+16], value"], "uint64[::1], uint64"),
    "cp_async": Form(
        copies_of_three_sizes, "sm_80", MOVE + "cp.async",
        ["cp.async.cg.shared.global [memory+16], [a+32], 16, inside<<2",
         "cp.async.ca.shared.global [memory+32], [a+8], 8, inside<<2",
         "cp.async.ca.shared.global [memory+48], [a+4], 4, inside<<2"], "float32[::1], uint32"),
    "cp_async_at": Form(
        copy_by_address, "sm_80", MOVE + "cp.async",
        ["cp.async.cg.shared.global [to+32], [start], 16, inside<<1"], "uint16[::1], uint32, uint64, uint32"),
    "unpack_bf16": Form(
        lambda bits: unpack_bf16(bits), "sm_75", "Logic and Shift: shl, and", outs("bits<<16", "bits&-65536"),
        "uint32, float32[::1]", 2, volatile=False),
    "unpack_f16x2": Form(
        lambda bits: unpack_f16x2(bits), "sm_75", MOVE + "cvt",
        ["cvt.f32.f16 out[0], low", "cvt.f32.f16 out[1], high"], "uint32, float32[::1]", 2, volatile=False),
    "float_as_uint": Form(
        lambda x: float_as_uint(x), "sm_75", MOVE + "mov", outs("x"), "float32, uint32[::1]", 1,
        volatile=False),
    "uint_as_float": Form(
        lambda bits: uint_as_float(bits), "sm_75", MOVE + "mov", outs("bits"), "uint32, float32[::1]", 1,
        volatile=False),
    "pack_scaled": Form(
        lambda x, y, z, w, alpha: pack_scaled((x, y, z, w), alpha), "sm_80", MOVE + "cvt",
        ["cvt.rn.bf16x2.f32 out[0], y*alpha, x*alpha", "cvt.rn.bf16x2.f32 out[1], w*alpha, z*alpha"],
        "float32, " * 5 + "uint32[::1]", 2, volatile=False),
    "ldmatrix": Form(
        loads_of_matrices, "sm_75", WARP + "ldmatrix",
        ["ldmatrix.sync.aligned.m8n8.x4.shared.b16 {out[0], out[1], out[2], out[3]}, [address+64]",
         "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {out[4], out[5], out[6], out[7]}, [address+96]",
         "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {out[8], out[9], out[10], out[11]}, [address+64]",
         "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {out[12], out[13], out[14], out[15]}, "
         "[address+64^32]"],
        "uint32, uint32[::1]", 16, convergent=True),
    "mma_m16n8k16": Form(
        lambda c0, c1, c2, c3, a0, a1, a2, a3, b0, b1:
            mma_m16n8k16((c0, c1, c2, c3), (a0, a1, a2, a3), (b0, b1)),
        "sm_80", WARP + "mma",
        ["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
         "{c0, c1, c2, c3}, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}", *outs("c0", "c1", "c2", "c3")],
        "float32, " * 4 + "uint32, " * 6 + "float32[::1]", 4, volatile=False, convergent=True),
    "store_pair": Form(
        lambda array, pair: store_pair(array, uint64(4), pair), "sm_75", MOVE + "st",
        ["st.global.b32 [array+8], pair"], "uint16[::1], uint32", volatile=False),
    "store_pairs": Form(
        lambda array, first, second: store_pairs(array, uint64(4), first, second), "sm_75", MOVE + "st",
        ["st.global.v2.b32 [array+8], {first, second}"], "uint16[::1], uint32, uint32", volatile=False),
    "move_eight": Form(
        lambda target, source: move_eight(target, uint64(16), source, uint64(8)), "sm_75", MOVE + "ld, st",
        ["ld.global.v4.b32 {v0, v1, v2, v3}, [source+16]", "st.global.v4.b32 [target+32], {v0, v1, v2, v3}"],
        "uint16[::1], uint16[::1]", volatile=False),
    "wgmma_mma_async": Form(
        two_products, "sm_90a",
        WARPGROUP + "wgmma.fence, wgmma.mma_async, wgmma.commit_group, wgmma.wait_group",
        ["wgmma.fence.sync.aligned",
         "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {out[0], out[1], out[2], out[3]}, "
         "a+0, b+0, 0, 1, 1, 0, 1",
         "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {out[0], out[1], out[2], out[3]}, "
         "a+2, b+128, 1, 1, 1, 0, 1",
         "wgmma.commit_group.sync.aligned", "wgmma.wait_group.sync.aligned 1",
         "wgmma.fence.sync.aligned",
         "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {out[0], out[1], out[2], out[3]}, "
         "b+0, a+0, 1, 1, 1, 0, 0",
         "wgmma.commit_group.sync.aligned", "wgmma.wait_group.sync.aligned 0"],
        "uint64, uint64, float32[::1]", 4, convergent=True),
    "wgmma_wait_group": Form(
        lambda a, b: wgmma_wait_group((a, b)), "sm_90a", WARPGROUP + "wgmma.wait_group",
        ["wgmma.wait_group.sync.aligned 0", *outs("a", "b")], "float32, float32, float32[::1]", 2,
        convergent=True),
    "wgmma_mma_async_f16": Form(
        product_of_float16, "sm_90a",
        WARPGROUP + "wgmma.fence, wgmma.mma_async, wgmma.commit_group, wgmma.wait_group",
        ["wgmma.fence.sync.aligned",
         "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {out[0], out[1], out[2], out[3]}, "
         "a+0, b+0, 0, 1, 1, 0, 1",
         "wgmma.commit_group.sync.aligned", "wgmma.wait_group.sync.aligned 1"],
        "uint64, uint64, float32[::1]", 4, convergent=True),
    "wgmma_mma_async_e4m3": Form(
        product_of_e4m3, "sm_90a",
        WARPGROUP + "wgmma.fence, wgmma.mma_async, wgmma.commit_group, wgmma.wait_group",
        ["wgmma.fence.sync.aligned",
         "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {out[0], out[1], out[2], out[3]}, "
         "a+0, b+0, 0, 1, 1",
         "wgmma.commit_group.sync.aligned", "wgmma.wait_group.sync.aligned 1"],
        "uint64, uint64, float32[::1]", 4, convergent=True),
    "wgmma_wait_prior": Form(
        lambda a, b: wgmma_wait_prior((a, b), 2), "sm_90a", WARPGROUP + "wgmma.wait_group",
        ["wgmma.wait_group.sync.aligned 2", *outs("a", "b")], "float32, float32, float32[::1]", 2,
        convergent=True),
    "stmatrix": Form(
        lambda address, swizzle, a, b, c, d: stmatrix(address, swizzle, (d, a, b, c, d, d, c, b, a), 1, 2),
        "sm_90",
        WARP + "stmatrix",
        ["stmatrix.sync.aligned.m8n8.x4.shared.b16 [swizzle+address], {a, b, c, d}",
         "stmatrix.sync.aligned.m8n8.x4.shared.b16 [swizzle^32+address], {d, c, b, a}"],
        "uint32, uint32, uint32, uint32, uint32, uint32", convergent=True),
    "stmatrix_trans": Form(
        lambda address, a, b, c, d: stmatrix_trans(address, 2048, (d, a, b, c, d, d, c, b, a), 1, 2),
        "sm_90",
        WARP + "stmatrix",
        ["stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [address], {a, b, c, d}",
         "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [address+2048], {d, c, b, a}"],
        "uint32, uint32, uint32, uint32, uint32", convergent=True),
}
