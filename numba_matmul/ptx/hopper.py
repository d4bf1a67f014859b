"""One thread issues the copy of a whole tile, four warps together issue a product: TMA and `wgmma`."""
import sys
from functools import partial

import numpy as np
from greenlet import getcurrent
from ..arrays import from_bf16, to_bf16
from ..fp8 import add_products, from_fp8, to_fp8
from ..sim import hopper, scheduler
from .ampere import _round_pair
from .core import _assembly, bind
from numba import types


@bind("mbarrier.init.shared::cta.b64 [$0], $1;", "rr")
def mbarrier_init(
    barrier,  # address of 8 bytes in shared memory, see `shared_address`
    count,    # arrivals that end a phase
):
    "Initialize an mbarrier from one thread. PTX ISA, mbarrier.init."
    hopper.mbarrier_init(barrier, count)

@bind("fence.mbarrier_init.release.cluster;")
def fence_mbarrier_init():
    "Make newly initialized mbarriers visible to copies. PTX ISA, fence.mbarrier_init."
    hopper.fence_mbarrier_init()

@bind("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "rr")
def mbarrier_arrive_expect_tx(
    barrier,   # address
    tx_count,  # bytes that copies will transfer
):
    "Arrive, and let the phase complete only after this many more bytes. PTX ISA, mbarrier.arrive.expect_tx."
    hopper.mbarrier(barrier).arrive(int(tx_count))

@bind("mbarrier.arrive.shared::cta.b64 _, [$0];", "r")
def mbarrier_arrive(
    barrier,  # address
):
    "Arrive. PTX ISA, mbarrier.arrive."
    hopper.mbarrier(barrier).arrive()

@bind("{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; "
      "@done bra end; bra again; end: }", "rr")
def mbarrier_wait(
    barrier,  # address
    parity,   # 0 for the first phase, then 1, 0, …; 1 on a new barrier doesn't wait
):
    "Wait until the phase with this parity has completed: a loop around try_wait. PTX ISA, mbarrier.try_wait."
    hopper.mbarrier_wait(barrier, parity, sys._getframe(1))

@bind("fence.proxy.tensormap::generic.acquire.sys [$0], 128;", "l")
def fence_proxy_tensormap(
    tensor_map,  # address of the 128 bytes that describe the matrix and the box
):
    """Make a tensor map written to global memory before the launch visible to this thread's copies. PTX ISA,
    fence.proxy.tensormap."""
    getcurrent().maps.add(int(tensor_map))

@bind("prefetch.tensormap [$0];", "l")
def prefetch_tensormap(
    tensor_map,  # address
):
    "Fetch a tensor map ahead of its first use. PTX ISA, prefetch.tensormap."


MAP_WORDS = 16  # 8-byte words of a tensor map
WORDS_BEFORE = 6  # and words before the first one, see `tensor_map_address`

def _emit_tensor_map_address(context, builder, kinds, args):
    from llvmlite import ir
    # as the compiler names parameters
    parameter = f"{builder.function.name}_param_{WORDS_BEFORE + MAP_WORDS * args[1]}"
    text = f"{{ .reg .b64 at; mov.b64 at, {parameter}; cvta.param.u64 $0, at; }}"
    return _assembly(builder, text, "=l", (), [ir.IntType(64)], pure=True)[0]

@bind(_emit_tensor_map_address, "-n", types.uint64, inline=True)
def tensor_map_address(
    maps,    # the calling kernel's first parameter: see `TensorMapWords`
    number,  # of the tensor map, a literal
):
    """Address of a tensor map among a kernel's parameters, which needn't be fenced. It must be a multiple of
    64, and on compute capability 9.0 parameters start 16 bytes past one: so there are six words before the
    first map."""
    words = WORDS_BEFORE + MAP_WORDS * int(number)
    return hopper.parameter_map(maps[words:words + MAP_WORDS])


@bind("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[$0], [$1, {$3, $4}], [$2];", "rlrrr")
def cp_async_bulk_tensor_2d_global_to_shared(
    target,       # address in shared memory
    tensor_map,   # address of the 128 bytes that describe the matrix and the box
    barrier,      # address; counts the bytes
    column, row,  # of the box's first element; outside the matrix, zeros are filled in
):
    "Start copying a box of a matrix to shared memory, by one thread. PTX ISA, cp.async.bulk.tensor."
    hopper.load_box(target, tensor_map, barrier, column, row)


@bind("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[$0], [$1, {$3, $4}], [$2], $5;", "rlrrrn")
def cp_async_bulk_tensor_2d_multicast(
    target, tensor_map, barrier, column, row,  # see `cp_async_bulk_tensor_2d_global_to_shared`
    blocks,  # of the cluster that get the box: a mask, a literal
):
    """Start copying a box to the same place in several blocks of the cluster. Each one's mbarrier counts the
    bytes. PTX ISA, cp.async.bulk.tensor, .multicast::cluster."""
    memories = getcurrent().block.memories
    chosen = [memory for rank, memory in enumerate(memories) if blocks >> rank & 1]
    hopper.load_box(target, tensor_map, barrier, column, row, chosen)

@bind("{ .reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; "
      "mbarrier.arrive.shared::cluster.b64 _, [there]; }", "rr")
def mbarrier_arrive_cluster(
    barrier,  # its address in this block
    block,    # of the cluster
):
    "Arrive at an mbarrier of a block of the cluster. PTX ISA, mapa, mbarrier.arrive."
    hopper.mbarrier_arrive_cluster(barrier, block)

@bind("barrier.cluster.arrive.relaxed; barrier.cluster.wait;")
def cluster_sync():
    """Wait for all threads of the cluster. Of what they wrote, only what they fenced is visible then. PTX
    ISA, barrier.cluster."""
    getcurrent().wait(sys._getframe(1))


def _emit_store_async(context, builder, kinds, args):
    from numba.core import cgutils
    address, block, values, barrier = args
    text = ("{ .reg .b32 there, arrived; mapa.shared::cluster.u32 there, $0, $1; "
            "mapa.shared::cluster.u32 arrived, $2, $1; "
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
            "[there], {$3, $4, $5, $6}, [arrived]; }")
    values = cgutils.unpack_tuple(builder, values)
    _assembly(builder, text, "r,r,r,f,f,f,f", [address, block, barrier, *values])

@bind(_emit_store_async, "rr-r")
def st_async_v4(
    address,  # in this block's shared memory, aligned to 16
    block,    # of the cluster: store to the same place there
    values,   # tuple of four float32
    barrier,  # address of an mbarrier, in that block, too: it counts the 16 bytes
):
    "Start storing four numbers to the shared memory of a block of the cluster. PTX ISA, mapa, st.async."
    hopper.store_async(int(address), int(block), values, barrier)

def _emit_load_shared(context, builder, kinds, args):
    from llvmlite import ir
    return _assembly(builder, "ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];", "=f,=f,=f,=f,r", args,
                     [ir.FloatType()] * 4)

@bind(_emit_load_shared, "r", types.UniTuple(types.float32, 4))
def ld_shared_v4(
    address,  # in shared memory, aligned to 16
) -> tuple:
    "Load four numbers. PTX ISA, ld.shared.v4.f32."
    return hopper.load_floats(int(address), 4, sys._getframe(1))


def _emit_store_shared(context, builder, kinds, args):
    from numba.core import cgutils
    address, values = args
    _assembly(builder, "st.shared.v4.f32 [$0], {$1, $2, $3, $4};", "r,f,f,f,f",
              [address, *cgutils.unpack_tuple(builder, values)])

@bind(_emit_store_shared, "r-")
def st_shared_v4(
    address,  # in shared memory, aligned to 16
    values,   # tuple of four float32
):
    "Store four numbers. PTX ISA, st.shared.v4.f32."
    hopper.store_floats(int(address), values, sys._getframe(1))


def _with_sums(builder, text, sums, others=()):
    "Assembly that updates `sums`, its first operands; `others` come after twice as many."
    from llvmlite import ir
    count = len(sums)
    letters = ["=f"] * count + [str(i) for i in range(count)] + ["l"] * len(others)
    return _assembly(builder, text, ",".join(letters), [*sums, *others], [ir.FloatType()] * count)

def _emit_wgmma(kind, context, builder, kinds, args, k=16):
    from llvmlite import ir
    from numba.core import cgutils
    acc, a, b, step_a, step_b, steps, transpose, pending, scale_d = args
    # FP8 has no operands that say so: without transposing there's nothing to add
    layouts = f", {transpose >> 1}, {transpose & 1}" if k == 16 or transpose else ""
    count = len(kinds[0])
    sums = ", ".join(f"${i}" for i in range(count))
    # sums that start from zero aren't operands, so that nothing sets them while other products are in flight
    only_results = k == 32 and not scale_d
    first = count if only_results else 2 * count
    lines = ["{ .reg .b64 a, b;", "wgmma.fence.sync.aligned;"]
    zero = scale_d
    if scale_d == 2:  # never true, but as the assembler can't know that, the sums' registers stay theirs
        lines.append(".reg .pred none; .reg .b32 grid; mov.u32 grid, %nctaid.x; setp.eq.u32 none, grid, 0;")
        zero = "none"
    for step in range(steps):
        lines += [f"add.s64 a, ${first}, {step * step_a};",
                  f"add.s64 b, ${first + 1}, {step * step_b};",
                  f"wgmma.mma_async.sync.aligned.m64n{2 * count}k{k}.f32.{kind}.{kind} "
                  f"{{{sums}}}, a, b, {1 if step else zero}, 1, 1{layouts};"]
    lines += ["wgmma.commit_group.sync.aligned;",
              f"wgmma.wait_group.sync.aligned {pending};", "}"]
    if only_results:
        constraints = ",".join(["=f"] * count + ["l"] * 2)
        return _assembly(builder, " ".join(lines), constraints, [a, b], [ir.FloatType()] * count)
    sums = cgutils.unpack_tuple(builder, acc)
    if not scale_d: sums = [ir.Constant(ir.FloatType(), ir.Undefined)] * count
    return _with_sums(builder, " ".join(lines), sums, [a, b])

@bind(partial(_emit_wgmma, "bf16"), "-llnnnnnn", lambda acc, *others: acc)
def wgmma_mma_async(
    acc,             # accumulators, a tuple of n/2 float32
    a, b,            # descriptors of 64×16 and 16×n, uint64
    step_a, step_b,  # what to add to them for the next 16 of k; from here on, all are literals
    steps,           # how many times 16
    transpose,       # 1: rows of B's tile run along n, not k; 2: rows of A's along m; 3: both
    pending,         # how many such calls may still be in flight on return
    scale_d,         # 0: start from zero, whatever `acc` contains; 1: accumulate; 2: start from zero, in the
                     # registers of `acc`, so that the products wait for whatever still needs it
) -> tuple:
    """`acc` + A·B for a warpgroup, with operands in shared memory; `acc` mustn't be used before
    `wgmma_wait_group`. It's a single block of assembly, including the fence before and the group after it,
    because the accumulators must stay in their registers. PTX ISA, Asynchronous Warpgroup Level Matrix
    Instructions: wgmma.fence, wgmma.mma_async, wgmma.commit_group, wgmma.wait_group."""
    return _start_products(acc, a, b, step_a, step_b, steps, transpose, pending, scale_d, from_bf16)

def _start_products(acc, a, b, step_a, step_b, steps, transpose, pending, scale_d, from_bits, adder=None):
    how = step_a, step_b, steps, transpose, 2 * len(acc), from_bits, adder
    if scale_d != 1: acc = (np.float32(0),) * len(acc)
    return hopper.start_products(acc, (int(a), int(b)), how, pending, sys._getframe(2))

@bind(partial(_emit_wgmma, "f16"), "-llnnnnnn", lambda acc, *others: acc)
def wgmma_mma_async_f16(acc, a, b, step_a, step_b, steps, transpose, pending, scale_d) -> tuple:
    "`wgmma_mma_async` with float16 operands."
    return _start_products(acc, a, b, step_a, step_b, steps, transpose, pending, scale_d, from_f16)

def from_f16(bits): return bits.view(np.float16)

@bind(partial(_emit_wgmma, "e4m3", k=32), "-llnnnnnn", lambda acc, *others: acc)
def wgmma_mma_async_e4m3(acc, a, b, step_a, step_b, steps, transpose, pending, scale_d) -> tuple:
    """`wgmma_mma_async` with 64×32 and 32×n operands of e4m3: k is twice as long, in as many bytes. Both must
    be K-major, so `transpose` must be 0. Sums are rounded as `add_products` does."""
    if transpose:
        raise scheduler.SimulatorError(
            "wgmma takes operands of 8 bits only K-major: neighbors in a row of their tiles run along k, so "
            f"transpose must be 0, not {transpose}", "descriptor")
    how = from_e4m3_pairs, add_products
    return _start_products(acc, a, b, step_a, step_b, steps, transpose, pending, scale_d, *how)

def from_e4m3_pairs(bits):
    "The numbers in (k/2, …) pairs: (k, …)."
    return from_fp8(np.stack([bits & 0xFF, bits >> 8], 1).astype(np.uint8).reshape(-1, *bits.shape[1:]))

def _emit_wait_group(context, builder, kinds, args):
    from numba.core import cgutils
    return _with_sums(builder, "wgmma.wait_group.sync.aligned 0;", cgutils.unpack_tuple(builder, args[0]))

@bind(_emit_wait_group, "-", lambda acc: acc)
def wgmma_wait_group(
    acc,  # the result of `wgmma_mma_async`
) -> tuple:
    "Wait for all products. PTX ISA, wgmma.wait_group."
    return hopper.finished_sums(acc, 0, sys._getframe(1))

def _emit_wait_prior(context, builder, kinds, args):
    from numba.core import cgutils
    acc, pending = args
    sums = cgutils.unpack_tuple(builder, acc)
    return _with_sums(builder, f"wgmma.wait_group.sync.aligned {pending};", sums)

@bind(_emit_wait_prior, "-n", lambda acc, pending: acc)
def wgmma_wait_prior(
    acc,      # the result of an earlier `wgmma_mma_async`
    pending,  # how many later calls may still be in flight, a literal
) -> tuple:
    """Wait for all products except those of the latest `pending` calls, which have their own accumulators.
    PTX ISA, wgmma.wait_group."""
    return hopper.finished_sums(acc, pending, sys._getframe(1))


def _emit_pack_scaled(context, builder, kinds, args):
    from numba.core import cgutils
    acc, alpha = args
    sums = [builder.fmul(x, alpha) for x in cgutils.unpack_tuple(builder, acc)]
    return [_round_pair(builder, *sums[i:i + 2]) for i in range(0, len(sums), 2)]

@bind(_emit_pack_scaled, "-f", lambda acc, alpha: types.UniTuple(types.uint32, len(acc) // 2))
def pack_scaled(
    acc,    # tuple of float32
    alpha,  # factor, float32
) -> tuple: # half as many uint32
    "Pairs of alpha·`acc`, see `cvt_rn_bf16x2_f32`."
    bits = to_bf16(np.array(acc, np.float32) * np.float32(alpha))
    return tuple(bits.view(np.uint32))

def _emit_cvt_e4m3x4(context, builder, kinds, args):
    from llvmlite import ir
    text = ("{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, $2, $1; "
            "cvt.rn.satfinite.e4m3x2.f32 high, $4, $3; mov.b32 $0, {low, high}; }")
    return _assembly(builder, text, "=r,f,f,f,f", args, [ir.IntType(32)], True)[0]

@bind(_emit_cvt_e4m3x4, "ffff", types.uint32)
def cvt_rn_satfinite_e4m3x4_f32(
    x, y, z, w,  # float32
) -> int:        # uint32
    """Four numbers, rounded to e4m3 (to nearest, ties to even; too large becomes 448). PTX ISA, cvt.e4m3x2,
    twice."""
    return to_fp8((x, y, z, w)).view(np.uint32)[0]

def _emit_stmatrix(context, builder, kinds, args):
    from llvmlite import ir
    from numba.core import cgutils
    address, swizzle, packed, first, count = args
    values = cgutils.unpack_tuple(builder, packed)[first:]
    for group in range(count):
        here = builder.add(address, builder.xor(swizzle, ir.IntType(32)(32 * group)))
        _assembly(builder, "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1, $2, $3, $4};",
                  "r,r,r,r,r", [here, *values[4 * group:4 * group + 4]])

@bind(_emit_stmatrix, "rr-nn")
def stmatrix(
    address,  # of this lane's row
    swizzle,  # its bits of the address, see lesson 15
    packed,   # tuple of uint32
    first,    # the first of them to store, a literal
    count,    # groups of 16 columns, four of `packed` each; a literal
):
    "Store 8×8 matrices to shared memory, the inverse of `ldmatrix`. PTX ISA, stmatrix."
    frame, lane = sys._getframe(1), getcurrent().lane
    rows = scheduler.exchange((int(address), int(swizzle)), frame)
    for group in range(count):
        for matrix in range(4):
            start, bits = rows[8 * matrix + lane // 4]
            here = start + (bits ^ 32 * group) + 4 * (lane % 4)
            hopper.store_pair(here, packed[first + 4 * group + matrix], frame)

def _emit_stmatrix_trans(context, builder, kinds, args):
    from llvmlite import ir
    from numba.core import cgutils
    address, step, packed, first, count = args
    values = cgutils.unpack_tuple(builder, packed)[first:]
    for group in range(count):
        here = builder.add(address, ir.IntType(32)(step * group))
        _assembly(builder, "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [$0], {$1, $2, $3, $4};",
                  "r,r,r,r,r", [here, *values[4 * group:4 * group + 4]])

@bind(_emit_stmatrix_trans, "rn-nn")
def stmatrix_trans(
    address,  # of this lane's row
    step,     # bytes from one group to the next, a literal
    packed,   # tuple of uint32
    first,    # the first of them to store, a literal
    count,    # groups, four of `packed` each; a literal
):
    "Store 8×8 matrices to shared memory, each of them transposed. PTX ISA, stmatrix.trans."
    frame, lane = sys._getframe(1), getcurrent().lane
    rows = scheduler.exchange(int(address), frame)
    for group in range(count):
        for matrix in range(4):
            pair = int(packed[first + 4 * group + matrix])
            for number, bits in enumerate((pair & 0xFFFF, pair >> 16)):
                start = rows[8 * matrix + lane % 4 * 2 + number] + step * group
                hopper.store_number(start + 2 * (lane // 4), bits, frame)


@bind("fence.proxy.async.shared::cta;")
def fence_proxy_async():
    "Make this thread's stores to shared memory visible to copies. PTX ISA, fence.proxy.async."
    hopper.fence_proxy_async()

@bind("fence.proxy.async.global;")
def fence_proxy_async_global():
    """What this thread has seen in global memory is visible to the copies it issues from here on. PTX ISA,
    fence.proxy.async."""

@bind("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [$0, {$2, $3}], [$1];", "lrrr")
def cp_async_bulk_tensor_2d_shared_to_global(
    tensor_map,   # address of the 128 bytes that describe the matrix and the box
    source,       # address in shared memory
    column, row,  # of the box's first element; nothing is written outside the matrix
):
    "Start copying a box from shared memory to a matrix. PTX ISA, cp.async.bulk.tensor."
    hopper.store_box(tensor_map, source, column, row)

@bind("cp.async.bulk.commit_group;")
def cp_async_bulk_commit_group():
    "Close the thread's open group of stores. PTX ISA, cp.async.bulk.commit_group."
    hopper.cp_async_bulk_commit_group()

@bind("cp.async.bulk.wait_group.read $0;", "n")
def cp_async_bulk_wait_group_read(
    pending,  # a literal
):
    "Wait until all but `pending` groups are read from shared memory. PTX ISA, cp.async.bulk.wait_group."
    hopper.cp_async_bulk_wait_group_read(pending, sys._getframe(1))

@bind("bar.sync $0, $1;", "rr")
def bar_sync(
    number,   # 1 to 15; `syncthreads` uses 0
    threads,  # how many meet there, a multiple of 32
):
    "A named barrier for some warps of a block, each with all its lanes. PTX ISA, bar.sync."
    if not 1 <= number <= 15 or threads % 32:
        raise scheduler.SimulatorError(f"named barrier {number} for {threads} threads: the number must be 1 "
                                       "to 15, and the threads a multiple of 32")
    thread = getcurrent()
    where = f" of block {thread.rank} of the cluster" * (len(thread.block.memories) > 1)
    thread.meet(sys._getframe(1), f"named barrier {number}{where}", int(threads))

@bind("setmaxnreg.dec.sync.aligned.u32 $0;", "n")
def setmaxnreg_dec(
    count,  # registers per thread from now on, a literal; a multiple of 8
):
    "A warpgroup releases registers. PTX ISA, setmaxnreg.dec."

@bind("setmaxnreg.inc.sync.aligned.u32 $0;", "n")
def setmaxnreg_inc(
    count,  # registers per thread from now on, a literal; a multiple of 8
):
    "A warpgroup acquires registers that others released. PTX ISA, setmaxnreg.inc."
