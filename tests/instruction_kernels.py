"""A table of kernels and nothing else, so it may be long: small ones for every PTX instruction that `bind`
knows, and their expected results, computed with numpy from the PTX ISA and not from the instruction's Python
body."""
from functools import cache

import numpy as np
from numba import cuda, float32, uint16, uint32, uint64

from numba_matmul.fp8 import from_fp8, to_fp8
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
    setmaxnreg_dec, setmaxnreg_inc, st_async_v4, st_shared_v4, stmatrix, stmatrix_trans, tensor_map_address,
    wgmma_mma_async, wgmma_mma_async_e4m3, wgmma_mma_async_f16, wgmma_wait_group, wgmma_wait_prior)

from instruction_cases import (
    AMPERE, HOPPER, LANES, Cluster, Map, Maps, Near, Out, bfloat16, case, factors, float16, floats, from_bits,
    halves, moderate, neighbours, places, words)

# Wide accesses

@cache
def loads(load, count):
    @cuda.jit
    def kernel(a, b, place, out):
        memory = cuda.shared.array(256, float32, alignment=16)
        t = uint32(cuda.threadIdx.x)
        for i in range(8): memory[t + uint32(32 * i)] = a[t + uint32(32 * i)]
        cuda.syncthreads()
        at = uint32(place[t])
        found = load(a, uint64(at)) + load(memory, at) + load(b, (uint32(at // 16), uint32(at % 16)))
        for i in range(3 * count): out[t, i] = found[i]
    return kernel


def loads_case(rng, load, count):
    a, b, at = floats(rng, 256), floats(rng, 16, 16), places(rng, 32, count, 256)
    return (loads(load, count), 32, (a, b, at, Out((32, 3 * count), np.float32)),
            [np.concatenate([neighbours(x, at, count) for x in (a, a, b)], 1)])


@case("load2")
def load_two(rng): return loads_case(rng, load2, 2)


@case("load4")
def load_four(rng): return loads_case(rng, load4, 4)


@cache
def stores(store, load):
    @cuda.jit
    def kernel(values, place, a, b, out):
        memory = cuda.shared.array(256, float32, alignment=16)
        t = uint32(cuda.threadIdx.x)
        for i in range(8): memory[t + uint32(32 * i)] = float32(0)
        cuda.syncthreads()
        at, v = uint32(place[t]), load(values, (t, uint32(0)))
        store(a, uint64(at), *v)
        store(memory, at, *v)
        store(b, (uint32(at // 16), uint32(at % 16)), *v)
        cuda.syncthreads()
        for i in range(8): out[t + uint32(32 * i)] = memory[t + uint32(32 * i)]
    return kernel


def stores_case(rng, kernel, count):
    values, at = floats(rng, 32, count), places(rng, 32, count, 256)
    a, zeros = Out(256, np.float32).array, np.zeros(256, np.float32)
    for x in a, zeros: x[at[:, None] + np.arange(count)] = values
    outs = Out(256, np.float32), Out((16, 16), np.float32), Out(256, np.float32)
    return kernel, 32, (values, at, *outs), [a, a.reshape(16, 16), zeros]


@case("store2")
def store_two(rng): return stores_case(rng, stores(store2, load2), 2)


@case("store4")
def store_four(rng): return stores_case(rng, stores(store4, load4), 4)


@cuda.jit
def store_fours_kernel(values, place, out):
    t = uint32(cuda.threadIdx.x)
    v = load4(values, uint32(8 * t)) + load4(values, uint32(8 * t + 4))
    store_fours(out, uint64(place[t]), 256, v)


@case("store_fours")
def store_groups(rng):
    values, at, wanted = floats(rng, 32, 8), places(rng, 32, 4, 256), Out(512, np.float32)
    array = wanted.array.copy()
    array[at[:, None] + np.array([0, 1, 2, 3, 256, 257, 258, 259])] = values
    return store_fours_kernel, 32, (values.ravel(), at, wanted), [array]


@cuda.jit
def add_fours_kernel(values, place, array, out):
    t = uint32(cuda.threadIdx.x)
    v = load4(values, uint32(8 * t)) + load4(values, uint32(8 * t + 4))
    v = add_fours(v, array, uint64(place[t]), 128)
    for i in range(8): out[t, i] = v[i]


@case("add_fours")
def add_groups(rng):
    values, at, array = floats(rng, 32, 8), places(rng, 32, 4, 128), floats(rng, 256)
    read = array[at[:, None] + np.array([0, 1, 2, 3, 128, 129, 130, 131])]
    return (add_fours_kernel, 32, (values.ravel(), at, array, Out((32, 8), np.float32)),
            [Near(values + read)])


@cuda.jit
def to_array_kernel(values, out):
    t, own = uint32(cuda.threadIdx.x), cuda.local.array((2, 3), float32)
    v = load4(values, uint32(8 * t)) + load2(values, uint32(8 * t + 4))
    to_array(v, own, 3)
    for i in range(2):
        for j in range(3): out[t, i, j] = own[i, j]


@case("to_array")
def tuple_to_array(rng):
    values = floats(rng, 32, 8)
    return (to_array_kernel, 32, (values.ravel(), Out((32, 2, 3), np.float32)),
            [values[:, :6].reshape(32, 2, 3)])


@cuda.jit
def store_relaxed_kernel(values, place, out):
    t = uint32(cuda.threadIdx.x)
    store_relaxed(out, uint64(place[t]), values[t])


@case("store_relaxed")
def relaxed_store(rng):
    values, at, out = words(rng, 32, dtype=np.uint64), places(rng, 32, 1, 64), Out(64, np.uint64)
    wanted = out.array.copy()
    wanted[at] = values
    return store_relaxed_kernel, 32, (values, at, out), [wanted]


@cuda.jit
def store_pair_kernel(pairs, place, a, out):
    memory = cuda.shared.array(128, uint16, alignment=16)
    t = uint32(cuda.threadIdx.x)
    for i in range(4): memory[t + uint32(32 * i)] = uint16(0)
    cuda.syncthreads()
    store_pair(a, uint64(place[t]), pairs[t])
    store_pair(memory, uint32(place[t]), pairs[t])
    cuda.syncthreads()
    for i in range(4): out[t + uint32(32 * i)] = memory[t + uint32(32 * i)]


@cuda.jit
def store_pairs_kernel(pairs, place, a, out):
    memory = cuda.shared.array(256, uint16, alignment=16)
    t = uint32(cuda.threadIdx.x)
    for i in range(8): memory[t + uint32(32 * i)] = uint16(0)
    cuda.syncthreads()
    store_pairs(a, uint64(place[t]), pairs[t, 0], pairs[t, 1])
    store_pairs(memory, uint32(place[t]), pairs[t, 0], pairs[t, 1])
    cuda.syncthreads()
    for i in range(8): out[t + uint32(32 * i)] = memory[t + uint32(32 * i)]


@case("store_pairs")
def pairs_store(rng):
    pairs, at = words(rng, 32, 2), places(rng, 32, 4, 256)
    a, zeros = Out(256, np.uint16).array, np.zeros(256, np.uint16)
    for x in a, zeros: x[at[:, None] + np.arange(4)] = pairs.view(np.uint16)
    return store_pairs_kernel, 32, (pairs, at, Out(256, np.uint16), Out(256, np.uint16)), [a, zeros]


@case("store_pair")
def pair_store(rng):
    pairs, at = words(rng, 32), places(rng, 32, 2, 128)
    a, zeros = Out(128, np.uint16).array, np.zeros(128, np.uint16)
    for x in a, zeros: x[at], x[at + 1] = pairs & 0xFFFF, pairs >> 16
    return store_pair_kernel, 32, (pairs, at, Out(128, np.uint16), Out(128, np.uint16)), [a, zeros]


@cuda.jit
def move_eight_kernel(source, start, between, to, target):
    memory = cuda.shared.array(512, uint16, alignment=16)
    t = uint32(cuda.threadIdx.x)
    move_eight(memory, uint32(between[t]), source, uint64(start[t]))
    move_eight(target, uint64(to[t]), memory, uint32(between[t]))


@case("move_eight")
def moved(rng):
    source = words(rng, 512, dtype=np.uint16)
    start, between, to = (places(rng, 32, 8, 512) for _ in range(3))
    wanted = Out(512, np.uint16).array
    wanted[to[:, None] + np.arange(8)] = neighbours(source, start, 8)
    return move_eight_kernel, 32, (source, start, between, to, Out(512, np.uint16)), [wanted]


# Addresses, and what is stored there

@cuda.jit
def addresses_kernel(x, y, near, far, out):
    numbers = cuda.shared.array(64, float32, alignment=16)
    small = cuda.shared.array(64, uint16, alignment=16)
    t, zero = uint32(cuda.threadIdx.x), uint64(0)
    out[t, 0] = shared_address(numbers, uint64(near[t])) - shared_address(numbers, zero)
    out[t, 1] = shared_address(small, uint32(near[t])) - shared_address(small, zero)
    out[t, 2] = global_address(x, far[t]) - global_address(x, zero)
    out[t, 3] = global_address(y, far[t]) - global_address(y, zero)


@case("shared_address", "global_address")
def addresses(rng):
    near, far = places(rng, 32, 1, 64), rng.integers(0, 2**35, 32, np.uint64)
    return (addresses_kernel, 32,
            (np.zeros(1, np.float32), np.zeros(1, np.uint16), near, far, Out((32, 4), np.uint64)),
            [np.stack([4 * near, 2 * near, 4 * far, 2 * far], 1).astype(np.uint64)])


@cuda.jit
def load_fours_at_kernel(a, place, out):
    memory = cuda.shared.array(256, float32, alignment=16)
    t = uint32(cuda.threadIdx.x)
    for i in range(8): memory[t + uint32(32 * i)] = a[t + uint32(32 * i)]
    cuda.syncthreads()
    found = load_fours_at(memory, shared_address(memory, uint32(place[t])), 32, 256, 8)
    for i in range(8): out[t, i] = found[i]


@case("load_fours_at", "shared_address")
def load_groups(rng):
    a, at = floats(rng, 256), places(rng, 32, 4, 128)
    return (load_fours_at_kernel, 32, (a, at, Out((32, 8), np.float32)),
            [a[at[:, None] + 8 + np.array([0, 1, 2, 3, 64, 65, 66, 67])]])


# Sums of tuples

@cuda.jit
def add_outer_kernel(sums, xs, ys, out):
    t = uint32(cuda.threadIdx.x)
    acc = (sums[t, 0], sums[t, 1], sums[t, 2], sums[t, 3], sums[t, 4], sums[t, 5])
    acc = add_outer(acc, (xs[t, 0], xs[t, 1]), (ys[t, 0], ys[t, 1], ys[t, 2]))
    for i in range(6): out[t, i] = acc[i]


@cuda.jit
def add_part_kernel(sums, xs, ys, out):
    t = uint32(cuda.threadIdx.x)
    acc = (sums[t, 0], sums[t, 1], sums[t, 2], sums[t, 3], sums[t, 4], sums[t, 5], sums[t, 6], sums[t, 7],
           sums[t, 8])
    x, y = (xs[t, 0], xs[t, 1], xs[t, 2]), (ys[t, 0], ys[t, 1], ys[t, 2])
    straight, back = add_part(acc, x, y, 1, 7, 0), add_part(acc, x, y, 4, 7, 1)
    for i in range(9): out[t, 0, i], out[t, 1, i] = straight[i], back[i]


def outer_operands(rng, rows, cols):
    """Accumulators, operands, products, and how far the total may be off: a GPU rounds it once, the simulator
    rounds the product first. With small whole numbers both give the same bits."""
    acc, x, y = (moderate(rng, 32, n) for n in (rows * cols, rows, cols))
    for array in acc, x, y: array[:16] = rng.integers(-2**11, 2**11, array[:16].shape)
    products = (x[:, :, None].astype(float) * y[:, None]).reshape(32, -1)
    off = 2.0**-23 * (np.abs(products) + np.abs(acc))
    off[:16] = 0
    return acc, x, y, products, np.where(np.isfinite(off), off, 0)


@case("add_outer")
def outer_product(rng):
    acc, x, y, products, off = outer_operands(rng, 2, 3)
    return (add_outer_kernel, 32, (acc, x, y, Out((32, 6), np.float32)),
            [Near((acc + products).astype(np.float32), off)])


@case("add_part")
def part_of_outer_product(rng):
    acc, x, y, products, off = outer_operands(rng, 3, 3)
    parts = np.zeros((2, 9), bool)
    parts[0, [1, 2, 3, 4, 5, 6]] = parts[1, [4, 3, 6]] = True  # serpentine: 0 1 2 5 4 3 6 7 8
    wanted = np.where(parts, (acc + products)[:, None], acc[:, None]).astype(np.float32)
    return (add_part_kernel, 32, (acc, x, y, Out((32, 2, 9), np.float32)),
            [Near(wanted, np.where(parts, off[:, None], 0))])


# bfloat16

@cuda.jit
def cvt_kernel(x, out):
    t = uint32(cuda.threadIdx.x)
    out[t] = cvt_rn_bf16x2_f32(x[t, 0], x[t, 1])


@case("cvt_rn_bf16x2_f32", needs=AMPERE)
def rounded_pairs(rng):
    x = floats(rng, 64, 2)
    return cvt_kernel, 64, (x, Out(64, np.uint32)), [bfloat16(x).view(np.uint32)[:, 0]]


@cuda.jit
def approximate_kernel(x, out):
    t = uint32(cuda.threadIdx.x)
    out[t, 0], out[t, 1] = ex2_approx_ftz_f32(x[t]), rcp_approx_ftz_f32(x[t])


@case("ex2_approx_ftz_f32", "rcp_approx_ftz_f32")
def approximate(rng):
    x = np.concatenate([floats(rng, 32), rng.uniform(-20, 20, 32).astype(np.float32)])
    def flushed(x): return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)
    found = np.stack([flushed(np.exp2(flushed(x))), flushed(np.float32(1) / flushed(x))], 1)
    # 22 bits, plus the simulator's rounding
    bound = np.where(np.isfinite(found), np.abs(found), 0) * 2.0**-21
    return approximate_kernel, 64, (x, Out((64, 2), np.float32)), [Near(found, bound)]


@cuda.jit
def unpack_kernel(pairs, out):
    t = uint32(cuda.threadIdx.x)
    low, high = unpack_bf16(pairs[t])
    out[t, 0], out[t, 1] = low, high


@case("unpack_bf16")
def unpacked(rng):
    pairs = bfloat16(floats(rng, 64, 2)).view(np.uint32)[:, 0]
    return (unpack_kernel, 64, (pairs, Out((64, 2), np.float32)),
            [np.stack([pairs << 16, pairs & 0xFFFF0000], 1).astype(np.uint32).view(np.float32)])


@cuda.jit
def cvt_f16_kernel(x, out):
    t = uint32(cuda.threadIdx.x)
    out[t] = cvt_rn_f16x2_f32(x[t, 0], x[t, 1])


@case("cvt_rn_f16x2_f32", needs=AMPERE)
def rounded_pairs_of_float16(rng):
    x = np.where(rng.random((128, 2)) < 0.5, floats(rng, 128, 2), moderate(rng, 128, 2))
    return cvt_f16_kernel, 128, (x, Out(128, np.uint32)), [float16(x).view(np.uint32)[:, 0]]


@cuda.jit
def cvt_e4m3_kernel(x, out):
    t = uint32(cuda.threadIdx.x)
    out[t] = cvt_rn_satfinite_e4m3x4_f32(x[t, 0], x[t, 1], x[t, 2], x[t, 3])


@case("cvt_rn_satfinite_e4m3x4_f32", needs=HOPPER)
def rounded_fours_of_e4m3(rng):
    x = np.where(rng.random((128, 4)) < 0.5, floats(rng, 128, 4), moderate(rng, 128, 4))
    return cvt_e4m3_kernel, 128, (x, Out(128, np.uint32)), [to_fp8(x).view(np.uint32)[:, 0]]


@cuda.jit
def unpack_f16_kernel(pairs, out):
    t = uint32(cuda.threadIdx.x)
    low, high = unpack_f16x2(pairs[t])
    out[t, 0], out[t, 1] = low, high


@case("unpack_f16x2")
def unpacked_float16(rng):
    pairs = words(rng, 64)
    bits = halves(pairs).astype(int)
    exponent, fraction = bits >> 10 & 31, bits & 1023
    size = np.where(exponent, np.ldexp(1024.0 + fraction, exponent - 25), np.ldexp(1.0 * fraction, -24))
    size = np.where(exponent < 31, size, np.where(fraction, np.nan, np.inf))
    wanted = np.where(bits >> 15, -size, size).astype(np.float32)
    return unpack_f16_kernel, 64, (pairs, Out((64, 2), np.float32)), [Near(wanted)]


@cuda.jit
def bits_kernel(x, bits, out, numbers):
    t = uint32(cuda.threadIdx.x)
    out[t], numbers[t] = float_as_uint(x[t]), uint_as_float(bits[t])


@case("float_as_uint", "uint_as_float")
def numbers_and_bits(rng):
    x, bits = floats(rng, 64), floats(rng, 64).view(np.uint32)
    return (bits_kernel, 64, (x, bits, Out(64, np.uint32), Out(64, np.float32)),
            [x.view(np.uint32), bits.view(np.float32)])


@cuda.jit
def pack_scaled_kernel(x, alpha, out):
    t = uint32(cuda.threadIdx.x)
    low, high = pack_scaled(load4(x, uint32(4 * t)), alpha[t])
    out[t, 0], out[t, 1] = low, high


@case("pack_scaled", needs=AMPERE)
def packed(rng):
    x, alpha = floats(rng, 64, 4), np.where(rng.random(64) < 0.5, 1, floats(rng, 64)).astype(np.float32)
    return (pack_scaled_kernel, 64, (x.ravel(), alpha, Out((64, 2), np.uint32)),
            [bfloat16(x * alpha[:, None]).view(np.uint32)])


# cp.async

@cuda.jit
def cp_async_kernel(source, start, place, inside, out):
    memory = cuda.shared.array(512, float32, alignment=16)
    t = uint32(cuda.threadIdx.x)
    at, of = uint32(place[t]), uint64(start[t])
    cp_async(memory, at, source, of, 4, uint32(inside[t, 0]))
    cp_async_commit_group()
    cp_async(memory, uint32(at + 128), source, of, 2, uint32(inside[t, 1]))
    cp_async_commit_group()
    cp_async(memory, uint32(at + 256), source, of, 1, uint32(inside[t, 2]))
    cp_async(memory, uint32(at + 384), source, of, 4, uint32(4))
    cp_async_commit_group()
    cp_async_wait_group(2)
    for i in range(4): out[t, i] = memory[at + uint32(i)]
    cp_async_wait_group(0)
    for i in range(2): out[t, 4 + i] = memory[at + uint32(128 + i)]
    out[t, 6] = memory[at + uint32(256)]
    for i in range(4): out[t, 7 + i] = memory[at + uint32(384 + i)]


@case("cp_async", "cp_async_commit_group", "cp_async_wait_group", needs=AMPERE)
def copied(rng):
    source, start, to = floats(rng, 256), places(rng, 32, 4, 256), places(rng, 32, 4, 128)
    inside = np.stack([rng.integers(0, n + 1, 32, np.uint32) for n in (4, 2, 1)], 1)
    def read(count, group):
        return np.where(np.arange(count) < inside[:, group, None], neighbours(source, start, count),
                        np.float32(0))
    return (cp_async_kernel, 32, (source, start, to, inside, Out((32, 11), np.float32)),
            [np.concatenate([read(4, 0), read(2, 1), read(1, 2), neighbours(source, start, 4)], 1)])


@cuda.jit
def cp_async_at_kernel(source, start, place, inside, out):
    memory = cuda.shared.array(512, uint16, alignment=16)
    t = uint32(cuda.threadIdx.x)
    at, of = uint32(place[t]), global_address(source, uint64(start[t]))
    cp_async_at(memory, shared_address(memory, at), 0, source, of, 8, uint32(inside[t, 0]))
    cp_async_at(memory, shared_address(memory, at), 512, source, of, 2, uint32(inside[t, 1]))
    cp_async_commit_group()
    cp_async_wait_group(0)
    for i in range(8): out[t, i] = memory[at + uint32(i)]
    for i in range(2): out[t, 8 + i] = memory[at + uint32(256 + i)]


@case("cp_async_at", needs=AMPERE)
def copied_by_address(rng):
    source, start, to = words(rng, 512, dtype=np.uint16), places(rng, 32, 8, 512), places(rng, 32, 8, 256)
    inside = np.stack([rng.integers(0, n + 1, 32, np.uint32) for n in (8, 2)], 1)
    wanted = [np.where(np.arange(count) < inside[:, i, None], neighbours(source, start, count), 0)
              for i, count in enumerate((8, 2))]
    return (cp_async_at_kernel, 32, (source, start, to, inside, Out((32, 10), np.uint16)),
            [np.concatenate(wanted, 1).astype(np.uint16)])


# Matrices of a warp

@cache
def ldmatrix_kernel(offset, step, flip, count, transpose):
    @cuda.jit
    def kernel(numbers, place, out):
        memory = cuda.shared.array(1024, uint16, alignment=1024)
        t = uint32(cuda.threadIdx.x)
        for i in range(32): memory[t + uint32(32 * i)] = numbers[t + uint32(32 * i)]
        cuda.syncthreads()
        address = shared_address(memory, uint32(place[t]))
        found = ldmatrix(memory, address, offset, step, flip, count, transpose)
        for i in range(4 * count): out[t, i] = found[i]
    return kernel


@case("ldmatrix", needs=AMPERE,
      plain=(0, 512, 0, 2, 0), transposed=(32, 64, 0, 3, 1), flipped=(16, 32, 1, 2, 0),
      transposed_and_flipped=(0, 96, 1, 3, 1))
def matrices(rng, offset, step, flip, count, transpose):
    """PTX ISA: lane 8·i + j supplies the address of row j of matrix i; each lane gets two adjacent elements
    of row lane // 4, with .trans of column lane // 4."""
    numbers, start = words(rng, 1024, dtype=np.uint16), 8 * rng.integers(0, 60, 32).astype(np.uint32)
    rows = 2 * start + offset
    rows = np.stack([rows ^ step * group if flip else rows + step * group for group in range(count)])
    tiles = neighbours(numbers, rows.ravel() // 2, 8).reshape(count, 4, 8, 8)
    if transpose: tiles = tiles.swapaxes(2, 3)
    # a matrix's rows, four pairs in each
    pairs = np.ascontiguousarray(tiles).view(np.uint32).reshape(4 * count, 32)
    return (ldmatrix_kernel(offset, step, flip, count, transpose), 32,
            (numbers, start, Out((32, 4 * count), np.uint32)), [np.ascontiguousarray(pairs.T)])


@cuda.jit
def mma_kernel(sums, xs, ys, out):
    t = uint32(cuda.threadIdx.x)
    acc = (load4(sums, uint32(16 * t)) + load4(sums, uint32(16 * t + 4))
           + load4(sums, uint32(16 * t + 8)) + load4(sums, uint32(16 * t + 12)))
    x = (xs[t, 0], xs[t, 1], xs[t, 2], xs[t, 3], xs[t, 4], xs[t, 5], xs[t, 6], xs[t, 7])
    acc = mma_m16n8k16(acc, x, (ys[t, 0], ys[t, 1], ys[t, 2], ys[t, 3]))
    for i in range(16): out[t, i] = acc[i]


def mma_places(i):
    """PTX ISA, Matrix Fragments for mma.m16n8k16: for each lane and register, row and column of its first
    number in A; in B (its second number is one row further); in C, for each number."""
    lane = LANES[:, None]
    return (((lane >> 2) + 8 * (i % 2), 2 * (lane % 4) + 8 * (i // 2)), (2 * (lane % 4) + 8 * i, lane >> 2),
            ((lane >> 2) + 8 * (i // 2), 2 * (lane % 4) + i % 2))


@case("mma_m16n8k16", needs=AMPERE)
def warp_product(rng):
    "Two 16×16 matrices times two 16×8 ones: four products, row by row."
    a, b, c, relative = factors(rng, (32, 16), (16, 16), (32, 16))
    c = from_bits(c)
    (row, col), _, (c_row, c_col) = mma_places(np.arange(4))
    _, (k, n), _ = mma_places(np.arange(2))
    x = np.concatenate([np.stack([a[16 * r + row, col], a[16 * r + row, col + 1]], 2) for r in (0, 1)], 1)
    y = np.concatenate([np.stack([b[k, 8 * s + n], b[k + 1, 8 * s + n]], 2) for s in (0, 1)], 1)
    def fragments(matrix):
        return np.concatenate([matrix[16 * r + c_row, 8 * s + c_col] for r in (0, 1) for s in (0, 1)], 1)
    a, b = from_bits(a), from_bits(b)
    off = relative * (np.abs(a) @ np.abs(b) + np.abs(c))
    xs, ys = (np.ascontiguousarray(pairs).view(np.uint32)[:, :, 0] for pairs in (x, y))
    return (mma_kernel, 32, (fragments(c).astype(np.float32).ravel(), xs, ys, Out((32, 16), np.float32)),
            [Near(fragments(a @ b + c).astype(np.float32), fragments(off))])


@cuda.jit
def stmatrix_kernel(values, place, bits, out):
    memory = cuda.shared.array(2048, uint16, alignment=1024)
    t = uint32(cuda.threadIdx.x)
    for i in range(64): memory[t + uint32(32 * i)] = uint16(0)
    cuda.syncthreads()
    address = shared_address(memory, uint32(place[t]))
    v = (values[t, 0], values[t, 1], values[t, 2], values[t, 3], values[t, 4], values[t, 5], values[t, 6],
         values[t, 7],
         values[t, 8], values[t, 9], values[t, 10], values[t, 11])
    stmatrix(address, uint32(bits[t]), v, 4, 2)
    cuda.syncthreads()
    for i in range(64): out[t + uint32(32 * i)] = memory[t + uint32(32 * i)]


@case("stmatrix", needs=HOPPER)
def stored_matrices(rng):
    """Each lane points at one of eight pieces in its own 128-byte row; for the next group, address bits
    change."""
    values, start = words(rng, 32, 12), places(rng, 32, 64, 2048)
    bits = 16 * rng.integers(0, 8, 32).astype(np.uint32)
    wanted = np.zeros(2048, np.uint16)
    for group in range(2):
        for matrix in range(4):
            for row in range(8):
                first = start[8 * matrix + row] + (bits[8 * matrix + row] ^ 32 * group) // 2
                wanted[first:first + 8] = halves(values[4 * row:4 * row + 4, 4 + 4 * group + matrix]).ravel()
    return stmatrix_kernel, 32, (values, start, bits, Out(2048, np.uint16)), [wanted]


@cuda.jit
def stmatrix_trans_kernel(values, place, out):
    memory = cuda.shared.array(2048, uint16, alignment=1024)
    t = uint32(cuda.threadIdx.x)
    for i in range(64): memory[t + uint32(32 * i)] = uint16(0)
    cuda.syncthreads()
    v = (values[t, 0], values[t, 1], values[t, 2], values[t, 3], values[t, 4], values[t, 5], values[t, 6],
         values[t, 7],
         values[t, 8], values[t, 9], values[t, 10], values[t, 11])
    stmatrix_trans(shared_address(memory, uint32(place[t])), 2048, v, 4, 2)
    cuda.syncthreads()
    for i in range(64): out[t + uint32(32 * i)] = memory[t + uint32(32 * i)]


@case("stmatrix_trans", needs=HOPPER)
def stored_transposed_matrices(rng):
    "Each lane points at eight numbers, a column of its matrix; the next group is 2048 bytes further."
    values, start = words(rng, 32, 12), places(rng, 32, 32, 1024)
    wanted = np.zeros(2048, np.uint16)
    for group in range(2):
        for matrix in range(4):
            stored = halves(values[:, 4 + 4 * group + matrix]).reshape(8, 8)
            for column in range(8):
                first = start[8 * matrix + column] + 1024 * group
                wanted[first:first + 8] = stored[:, column]
    return stmatrix_trans_kernel, 32, (values, start, Out(2048, np.uint16)), [wanted]


# mbarriers and named barriers: numbers go through global memory, where the simulator doesn't require a
# barrier

@cuda.jit
def mbarrier_kernel(numbers, box, out):
    memory = cuda.shared.array(16, uint16, alignment=16)
    full, empty, own = (shared_address(memory, uint64(0)), shared_address(memory, uint64(4)),
                        shared_address(memory, uint64(8)))
    t, lane = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.x % 32)
    if t == 0:
        mbarrier_init(full, uint32(33))
        mbarrier_init(empty, uint32(32))
        mbarrier_init(own, uint32(3))
        fence_mbarrier_init()
        for i in range(2):  # with 2 or 4 arrivals per phase it would wait forever
            for _ in range(3): mbarrier_arrive(own)
            mbarrier_wait(own, uint32(i))
    cuda.syncthreads()
    for i in range(4):
        parity = uint32(i % 2)
        if t < 32:
            mbarrier_wait(empty, uint32(parity ^ 1))  # the first time it doesn't wait
            box[lane] = numbers[i, lane]
            mbarrier_arrive(full)
            if t == 0: mbarrier_arrive_expect_tx(full, uint32(0))
        else:
            mbarrier_wait(full, parity)
            out[i, lane] = box[uint32(31 - lane)]
            mbarrier_arrive(empty)


@case("mbarrier_init", "mbarrier_arrive", "mbarrier_arrive_expect_tx", "mbarrier_wait", needs=HOPPER)
def handed_over(rng):
    "A warp writes, the other reads, four times: without a wait, data would be read or overwritten too early."
    numbers = words(rng, 4, 32)
    return (mbarrier_kernel, 64, (numbers, Out(32, np.uint32), Out((4, 32), np.uint32)),
            [numbers[3], numbers[:, ::-1]])


@cuda.jit
def bar_sync_kernel(numbers, box, out):
    t = uint32(cuda.threadIdx.x)
    first, count, name = uint32(0), uint32(64), uint32(1)
    if t >= 64: first, count, name = uint32(64), uint32(96), uint32(15)
    for i in range(3):
        box[t] = numbers[i, t]
        bar_sync(name, count)
        out[i, t] = box[uint32(first + (t - first + 32) % count)]
        bar_sync(name, count)


@case("bar_sync")
def swapped(rng):
    "Two and three warps, each number from the next warp, three times."
    numbers = words(rng, 3, 160)
    wanted = np.concatenate([np.roll(numbers[:, :64], -32, 1), np.roll(numbers[:, 64:], -32, 1)], 1)
    return (bar_sync_kernel, 160, (numbers, Out(160, np.uint32), Out((3, 160), np.uint32)),
            [numbers[2], wanted])


@cuda.jit(launch_bounds=(384, 1))
def setmaxnreg_kernel(numbers, out):
    t = uint32(cuda.threadIdx.x)
    v = load4(numbers, uint32(8 * t)) + load4(numbers, uint32(8 * t + 4))
    if t < 128:
        setmaxnreg_dec(40)
        store_fours(out, uint64(8 * t), 4, v)
    else:
        setmaxnreg_inc(232)
        store_fours(out, uint64(8 * t), 4, v)


@case("setmaxnreg_dec", "setmaxnreg_inc", needs=HOPPER)
def registers(rng):
    """The results don't show whether registers have changed hands. Their contents must survive, and the
    kernel must finish: two warpgroups get 232 per thread only if the third releases its own."""
    numbers = floats(rng, 384 * 8)
    return setmaxnreg_kernel, 384, (numbers, Out(384 * 8, np.float32)), [numbers]


# TMA and wgmma

def swizzled(tile):
    """A tile of 64 columns as stored in shared memory, PTX ISA, Swizzling Modes: with 128 bytes, 16-byte
    piece j of row i is at position j xor i mod 8."""
    pieces = tile.reshape(len(tile), 8, 8)
    return np.stack([row[np.arange(8) ^ i % 8] for i, row in enumerate(pieces)]).reshape(-1)


def covered(matrix, row, col, rows):
    "A box of a matrix, 64 columns wide, with zeros where it extends past the edge."
    padded = np.pad(matrix, 256)
    return padded[256 + row:256 + row + rows, 256 + col:256 + col + 64]


@cuda.jit
def load_boxes_kernel(source, at, out):
    memory = cuda.shared.array(3136, uint16, alignment=1024)
    start, barrier = shared_address(memory, uint64(0)), shared_address(memory, uint64(3072))
    t, described = uint32(cuda.threadIdx.x), global_address(source, uint64(0))
    if t == 0:
        mbarrier_init(barrier, uint32(1))
        fence_mbarrier_init()
        fence_proxy_tensormap(described)
        mbarrier_arrive_expect_tx(barrier, uint32(6144))
        for i in range(3):
            cp_async_bulk_tensor_2d_global_to_shared(uint32(start + uint32(2048 * i)), described, barrier,
                                                     uint32(at[i, 1]), uint32(at[i, 0]))
    cuda.syncthreads()
    mbarrier_wait(barrier, uint32(0))
    for i in range(96): out[t + uint32(32 * i)] = memory[t + uint32(32 * i)]


@case("cp_async_bulk_tensor_2d_global_to_shared", "mbarrier_arrive_expect_tx", "fence_mbarrier_init",
      "fence_proxy_tensormap", "global_address", needs=HOPPER)
def loaded_boxes(rng):
    """Three boxes of 16×64: two cover at least part of the matrix, one may be outside. The fences can't be
    tested by themselves: without one, a copy may or may not see an old barrier or map; the simulator refuses
    it."""
    shape = int(rng.integers(5, 50)), 8 * int(rng.integers(2, 20))
    matrix = words(rng, *shape, dtype=np.uint16)
    at = np.array([(rng.integers(-15, shape[0]), 8 * rng.integers(-7, shape[1] // 8)) for _ in range(2)]
                  + [(rng.integers(-40, shape[0] + 40), 8 * rng.integers(-11, shape[1] // 8 + 11))])
    return (load_boxes_kernel, 32,
            (Map(matrix, 16), at.astype(np.int32).view(np.uint32), Out(3072, np.uint16)),
            [np.concatenate([swizzled(covered(matrix, *place, 16)) for place in at.tolist()])])


@cuda.jit
def cluster_kernel(source, at, out):
    memory = cuda.shared.array(1088, uint16, alignment=1024)
    start, barrier = shared_address(memory, uint64(0)), shared_address(memory, uint64(1024))
    t, described = uint32(cuda.threadIdx.x), global_address(source, uint64(0))
    if t == 0:
        mbarrier_init(barrier, uint32(2))
        fence_mbarrier_init()
        fence_proxy_tensormap(described)
        prefetch_tensormap(described)
    cluster_sync()
    if t == 1: mbarrier_arrive_cluster(barrier, uint32(0))
    if t == 0:
        mbarrier_arrive_expect_tx(barrier, uint32(2048))
        cp_async_bulk_tensor_2d_multicast(start, described, barrier, uint32(at[1]), uint32(at[0]), 1)
    mbarrier_wait(barrier, uint32(0))
    for i in range(32): out[t + uint32(32 * i)] = memory[t + uint32(32 * i)]
    fence_proxy_async_global()


@case("cp_async_bulk_tensor_2d_multicast", "mbarrier_arrive_cluster", "cluster_sync", "prefetch_tensormap",
      "fence_proxy_async_global", needs=HOPPER)
def boxes_in_a_cluster(rng):
    "A box of 16×64 for each block of a cluster, which is a single block. Neither prefetch nor fence shows."
    matrix = words(rng, 40, 128, dtype=np.uint16)
    at = np.array([rng.integers(0, 24), 8 * rng.integers(0, 8)])
    return (cluster_kernel, 32, (Map(matrix, 16), at.astype(np.uint32), Out(1024, np.uint16)),
            [swizzled(covered(matrix, *at.tolist(), 16))])


@cuda.jit
def sent_in_a_cluster_kernel(values, place, out):
    memory = cuda.shared.array(1088, uint16, alignment=16)
    start, barrier = shared_address(memory, uint64(0)), shared_address(memory, uint64(1024))
    t, rank = uint32(cuda.threadIdx.x), uint32(cuda.blockIdx.x)
    of = uint32(uint32(128) * rank + t)
    if t == 0:
        mbarrier_init(barrier, uint32(1))
        mbarrier_arrive_expect_tx(barrier, uint32(2048))
        fence_mbarrier_init()
    cluster_sync()
    v = values[of, 0], values[of, 1], values[of, 2], values[of, 3]
    st_async_v4(uint32(start + uint32(16) * uint32(place[of])), uint32(uint32(1) - rank), v, barrier)
    mbarrier_wait(barrier, uint32(0))
    x = ld_shared_v4(uint32(start + uint32(16) * t))
    for i in range(4): out[of, i] = x[i]


@cuda.jit
def stored_fours_kernel(values, place, out):
    start = shared_address(cuda.shared.array(256, uint16, alignment=16), uint64(0))
    t = uint32(cuda.threadIdx.x)
    v = values[t, 0], values[t, 1], values[t, 2], values[t, 3]
    st_shared_v4(uint32(start + uint32(16) * uint32(place[t])), v)
    cuda.syncwarp()
    x = ld_shared_v4(uint32(start + uint32(16) * t))
    for i in range(4): out[t, i] = x[i]


@case("st_shared_v4", "ld_shared_v4")
def fours_in_a_block(rng):
    "Each lane stores to another one's place."
    values, place = rng.standard_normal((32, 4)).astype(np.float32), rng.permutation(32).astype(np.uint32)
    return stored_fours_kernel, 32, (values, place, Out((32, 4), np.float32)), [values[place.argsort()]]


@case("st_async_v4", "ld_shared_v4", needs=HOPPER)
def fours_in_a_cluster(rng):
    "Each thread stores to a place in the other block of a cluster."
    values = rng.standard_normal((256, 4)).astype(np.float32)
    place = np.concatenate([rng.permutation(128) for _ in range(2)]).astype(np.uint32)
    sent = np.concatenate([values[128:][place[128:].argsort()], values[:128][place[:128].argsort()]])
    return sent_in_a_cluster_kernel, Cluster(128, 2), (values, place, Out((256, 4), np.float32)), [sent]


@cuda.jit
def parameter_maps_kernel(maps, out):
    memory = cuda.shared.array(3136, uint16, alignment=1024)
    start, barrier = shared_address(memory, uint64(0)), shared_address(memory, uint64(3072))
    t = uint32(cuda.threadIdx.x)
    if t == 0:
        mbarrier_init(barrier, uint32(1))
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(barrier, uint32(6144))
        zero = uint32(0)
        cp_async_bulk_tensor_2d_global_to_shared(start, tensor_map_address(maps, 0), barrier, zero, zero)
        cp_async_bulk_tensor_2d_global_to_shared(uint32(start + 2048), tensor_map_address(maps, 1), barrier,
                                                 zero, zero)
        cp_async_bulk_tensor_2d_global_to_shared(uint32(start + 4096), tensor_map_address(maps, 2), barrier,
                                                 zero, zero)
    cuda.syncthreads()
    mbarrier_wait(barrier, uint32(0))
    for i in range(96): out[t + uint32(32 * i)] = memory[t + uint32(32 * i)]


@case("tensor_map_address", needs=HOPPER)
def boxes_by_parameters(rng):
    "A 16×64 box from each of three matrices, whose maps are parameters."
    matrices = [words(rng, 16, 64, dtype=np.uint16) for _ in range(3)]
    return (parameter_maps_kernel, 32, (Maps(tuple(Map(x, 16) for x in matrices)), Out(3072, np.uint16)),
            [np.concatenate([swizzled(x) for x in matrices])])


@cuda.jit
def store_boxes_kernel(target, values, at):
    memory = cuda.shared.array(2048, uint16, alignment=1024)
    start, described = shared_address(memory, uint64(0)), global_address(target, uint64(0))
    t, row = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.x % 16)
    swizzle = uint32(16 * ((t // 16) ^ (row % 8)))
    if t == 0: fence_proxy_tensormap(described)
    for i in range(3):
        if t == 0: cp_async_bulk_wait_group_read(1)
        cuda.syncthreads()
        box, v = uint32(start + uint32(2048 * (i % 2))), values[i, t]
        pieces = (v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7],
                  v[8], v[9], v[10], v[11], v[12], v[13], v[14], v[15])
        stmatrix(uint32(box + 128 * row), swizzle, pieces, 0, 4)
        fence_proxy_async()
        cuda.syncthreads()
        if t == 0:
            cp_async_bulk_tensor_2d_shared_to_global(described, box, uint32(at[i, 1]), uint32(at[i, 0]))
            cp_async_bulk_commit_group()
    if t == 0: cp_async_bulk_wait_group_read(0)


@case("cp_async_bulk_tensor_2d_shared_to_global", "cp_async_bulk_commit_group",
      "cp_async_bulk_wait_group_read",
      "fence_proxy_async", "fence_proxy_tensormap", "stmatrix", needs=HOPPER)
def stored_boxes(rng):
    """Three boxes of 16×64 through two places in shared memory. They may extend past the lower and right
    edges; one that starts before the first row or column is an illegal instruction, unlike a load."""
    rows, cols = 48, 8 * int(rng.integers(2, 20))
    values, out = words(rng, 3, 32, 16), Out((rows, cols), np.uint16)
    at = np.array([(20 * i + rng.integers(4), 8 * rng.integers(0, cols // 8 + 1)) for i in range(3)])
    wanted, (r, c) = out.array.copy(), np.mgrid[:16, :64]
    register, lane = 4 * (c // 16) + 2 * (c % 16 // 8) + r // 8, 4 * (r % 8) + c % 8 // 2
    for i, (row, col) in enumerate(at.tolist()):
        box, inside = halves(values[i])[lane, register, c % 2], np.ones((rows, cols), bool)
        inside = covered(inside, row, col, 16)
        wanted[(r + row)[inside], (c + col)[inside]] = box[inside]
    return store_boxes_kernel, 32, (Map(out, 16), values, at.astype(np.int32).view(np.uint32)), [wanted]


@cache
def wgmma_kernel(n, transpose):
    size, tile_b = 8192 + 128 * n, 64 * n
    step_a, step_b = 128 if transpose & 2 else 2, 128 if transpose & 1 else 2
    of_a = np.uint64(1 << 16 | 64 << 32 | 1 << 62)  # 1024 bytes from eight rows to the next; 128-byte swizzle
    of_b = np.uint64(512 << 16 | 64 << 32 | 1 << 62)  # and 8192 from 64 columns to the next
    unset = (np.float32(np.nan),) * (n // 2)

    @cuda.jit
    def kernel(numbers, out):
        memory = cuda.shared.array(size, uint16, alignment=1024)
        t = uint32(cuda.threadIdx.x)
        for i in range(size // 128): memory[t + uint32(128 * i)] = numbers[t + uint32(128 * i)]
        fence_proxy_async()
        cuda.syncthreads()
        start = uint32(shared_address(memory, uint64(0)))
        a, b = of_a | uint64(start >> uint32(4)), of_b | uint64(uint32(start + uint32(16384)) >> uint32(4))
        acc = wgmma_mma_async(unset, a, b, step_a, step_b, 4, transpose, 1, 0)
        a, b = uint64(a + uint64(8192 // 16)), uint64(b + uint64(tile_b * 2 // 16))  # the next tiles
        acc = wgmma_mma_async(acc, a, b, step_a, step_b, 4, transpose, 1, 1)
        acc = wgmma_wait_group(acc)
        for i in range(n // 2): out[t, i] = acc[i]
    return kernel


@case("wgmma_mma_async", "wgmma_wait_group", needs=HOPPER,
      plain=(64, 0), b_transposed=(64, 1), b_wide_and_transposed=(128, 1), a_transposed=(64, 2),
      both_transposed=(128, 3))
def warpgroup_product(rng, n, transpose):
    "Two k tiles of 64, one after the other; the accumulators start at zero whatever they contain."
    a, b, relative = factors(rng, (64, 128), (128, n))
    tiles_a = [a[:, k:k + 64].T if transpose & 2 else a[:, k:k + 64] for k in (0, 64)]
    tiles_b = [np.concatenate([b[k:k + 64, j:j + 64] for j in range(0, n, 64)]) if transpose & 1
               else b[k:k + 64].T
               for k in (0, 64)]
    numbers = np.concatenate([swizzled(tile) for tile in (*tiles_a, *tiles_b)])
    a, b = from_bits(a), from_bits(b)
    # PTX ISA, Register Fragments for wgmma.mma_async: matrix D
    i, t = np.arange(n // 2), np.arange(128)[:, None]
    row, col = 16 * (t // 32) + t % 32 // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (t % 4) + i % 2
    return (wgmma_kernel(n, transpose), 128, (numbers, Out((128, n // 2), np.float32)),
            [Near((a @ b)[row, col].astype(np.float32), 8 * relative * (np.abs(a) @ np.abs(b))[row, col])])


OF_A, OF_B = np.uint64(1 << 16 | 64 << 32 | 1 << 62), np.uint64(512 << 16 | 64 << 32 | 1 << 62)  # as above
N = 64
UNSET = (np.float32(np.nan),) * (N // 2)


@cuda.jit
def promoted_kernel(numbers, out, sums):
    memory = cuda.shared.array(16384, uint16, alignment=1024)
    t = uint32(cuda.threadIdx.x)
    for i in range(128): memory[t + uint32(128 * i)] = numbers[t + uint32(128 * i)]
    fence_proxy_async()
    cuda.syncthreads()
    start = uint32(shared_address(memory, uint64(0)))
    a, b = OF_A | uint64(start >> uint32(4)), OF_B | uint64(uint32(start + uint32(16384)) >> uint32(4))
    first = wgmma_mma_async_f16(UNSET, a, b, 2, 128, 4, 1, 2, 0)
    a, b = uint64(a + uint64(512)), uint64(b + uint64(512))  # the next tiles, 8192 bytes further
    second = wgmma_mma_async_f16(UNSET, a, b, 2, 128, 4, 1, 2, 0)
    first = wgmma_wait_prior(first, 1)
    for i in range(N // 2): out[t, i] = first[i]
    second = wgmma_wait_group(second)
    both = add_tuples(first, second)
    for i in range(N // 2): sums[t, i] = both[i]


@case("wgmma_mma_async_f16", "wgmma_wait_prior", "wgmma_wait_group", "add_tuples", needs=HOPPER)
def promoted_product(rng):
    "Two products; the first one's accumulators are read while the second may still run. Then both are added."
    exact = rng.random() < 0.5
    a, b = (float16(rng.integers(-8, 9, (2, 64, 64)) if exact else rng.standard_normal((2, 64, 64)))
            for _ in "ab")
    numbers = np.concatenate([swizzled(tile) for tile in (*a, *b)])
    a, b = (x.view(np.float16).astype(float) for x in (a, b))
    i, t = np.arange(N // 2), np.arange(128)[:, None]
    row, col = 16 * (t // 32) + t % 32 // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (t % 4) + i % 2
    products = [(x @ y)[row, col] for x, y in zip(a, b)]
    bound = 0.0 if exact else 2.0**-19 * (np.abs(a) @ np.abs(b)).sum(0)[row, col]
    return (promoted_kernel, 128, (numbers, *(Out((128, N // 2), np.float32) for _ in range(2))),
            [Near(x.astype(np.float32), bound) for x in (products[0], sum(products))])


@cuda.jit
def fp8_kernel(numbers, factors, out, sums):
    memory = cuda.shared.array(8192, uint16, alignment=1024)
    t = uint32(cuda.threadIdx.x)
    for i in range(64): memory[t + uint32(128 * i)] = numbers[t + uint32(128 * i)]
    fence_proxy_async()
    cuda.syncthreads()
    start = uint32(shared_address(memory, uint64(0)))
    a, b = OF_A | uint64(start >> uint32(4)), OF_A | uint64(uint32(start + uint32(8192)) >> uint32(4))
    products = wgmma_wait_group(wgmma_mma_async_e4m3(UNSET, a, b, 2, 2, 4, 0, 0, 0))
    for i in range(N // 2): out[t, i] = products[i]
    again = wgmma_wait_group(wgmma_mma_async_e4m3(products, a, b, 2, 2, 4, 0, 0, 2))
    scaled = add_scaled(products, again, (factors[0], factors[1]))
    for i in range(N // 2): sums[t, i] = scaled[i]


@case("wgmma_mma_async_e4m3", "add_scaled", needs=HOPPER)
def scaled_product_of_e4m3(rng):
    """64×128 by 128×64, both K-major; again, from zero, in the same registers; then each sum times one of two
    factors is added to it."""
    exact = rng.random() < 0.5
    tiles = to_fp8(rng.integers(-8, 9, (2, 64, 128)) if exact else rng.standard_normal((2, 64, 128)))
    by = rng.integers(2, 9, 2).astype(np.float32)
    by[1] += 9
    a, b = from_fp8(tiles).astype(float)
    i, t = np.arange(N // 2), np.arange(128)[:, None]
    row, col = 16 * (t // 32) + t % 32 // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (t % 4) + i % 2
    product = (a @ b.T)[row, col]
    # four times, 33 numbers lose what is more than 13 bits after the point of the largest
    bound = 0.0 if exact else 4 * 33 * 2.0**-13 * 2 * (np.abs(a) @ np.abs(b).T)[row, col] / 8
    return (fp8_kernel, 128, (np.concatenate([swizzled(x.view(np.uint16)) for x in tiles]), by,
                              *(Out((128, N // 2), np.float32) for _ in range(2))),
            [Near(product.astype(np.float32), bound),
             Near((product * (1 + by[i % 2])).astype(np.float32), bound * 20)])
