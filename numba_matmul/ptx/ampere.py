"""Asynchronous copies, and a warp's products of small matrices: `cp.async`, `ldmatrix`, `mma`."""
import sys

import numpy as np
from greenlet import getcurrent
from ..arrays import from_bf16
from ..sim import async_copy, scheduler
from .core import (GLOBAL, SHARED, _address, _assembly, _element, _places, bind,
                                   element_pointer, global_address)
from numba import types
from numba.core.errors import TypingError


def _copy(builder, array, count, to, start, inside):
    "Emit a cp.async from address to address at the builder's position."
    size = array.dtype.bitwidth // 8
    if count * size not in (4, 8, 16):
        raise TypingError(f"cp_async copies 4, 8 or 16 bytes, not {count} elements of {size}")
    how = "cg" if count * size == 16 else "ca"  # cg bypasses the L1 and only copies 16 bytes
    text = f"cp.async.{how}.shared.global [$0], [$1], {count * size}, $2;"
    _assembly(builder, text, "r,l,r", [to, start, builder.mul(inside, inside.type(size))])

def _emit_cp_async(context, builder, kinds, args):
    to = _address(context, builder, kinds[:2], args[:2], SHARED, 32)
    start = _address(context, builder, kinds[2:4], args[2:4], GLOBAL, 64)
    _copy(builder, kinds[0], args[4], to, start, args[5])

@bind(_emit_cp_async, "----nr")
def cp_async(
    target,        # array in shared memory
    target_index,  # index of the first element to write: an unsigned integer, or a tuple of them
    source,        # array in global memory
    source_index,  # index of the first element to read
    count,         # elements: 4, 8 or 16 bytes in total, a literal; aligned to that size on both sides
    inside,        # how many of them are read; the rest are zero-filled
):
    "Start copying `count` elements to shared memory (sm_80 and up). PTX: cp.async."
    async_copy.cp_async(target, target_index, source, source_index, count, inside, sys._getframe(1))

@bind("cp.async.commit_group;")
def cp_async_commit_group():
    "Close the running thread's open group of copies."
    async_copy.cp_async_commit_group()

@bind("cp.async.wait_group $0;", "n")
def cp_async_wait_group(
    pending,  # a literal
):
    "Wait until all but the latest `pending` groups of the running thread have landed."
    async_copy.cp_async_wait_group(pending, sys._getframe(1))


def _emit_cp_async_at(context, builder, kinds, args):
    from llvmlite import ir
    _, to, offset, _, start, count, inside = args
    _copy(builder, kinds[0], count, builder.add(to, ir.IntType(32)(offset)), start, inside)

@bind(_emit_cp_async_at, "-rn-lnr")
def cp_async_at(
    target,          # array in shared memory
    target_address,  # see `shared_address`
    offset,          # bytes to add, a literal
    source,          # array in global memory
    source_address,  # see `global_address`
    count,           # elements: 4, 8 or 16 bytes in total, a literal
    inside,          # how many of them are read; the rest are zero-filled
):
    "`cp_async` from address to address."
    start = int(source_address) - int(global_address(source, 0))
    async_copy.cp_async(target, _element(target, target_address + offset), source,
                       _element(source, start), count, inside, sys._getframe(1))


# Tensor cores

def _round_pair(builder, low, high):
    "Emit the rounding of two float32 at the builder's position."
    from llvmlite import ir
    text = "cvt.rn.bf16x2.f32 $0, $2, $1;"
    return _assembly(builder, text, "=r,f,f", [low, high], [ir.IntType(32)], True)[0]

@bind(lambda context, builder, kinds, args: _round_pair(builder, *args), "ff", types.uint32)
def cvt_rn_bf16x2_f32(
    low, high,  # float32
) -> int:       # uint32
    "Two numbers, rounded to bfloat16 (to nearest, ties to even). PTX: cvt.rn.bf16x2.f32."
    # (`to_bf16` is slow for two numbers)
    low, high = [0x7FFF if bits & 0x7FFFFFFF > 0x7F800000 else bits + 0x7FFF + (bits >> 16 & 1) >> 16
                 for bits in np.array((low, high), np.float32).view(np.uint32).tolist()]
    return np.uint32(high << 16 | low)

def _emit_unpack(context, builder, kinds, args):
    from llvmlite import ir
    word, (bits,) = ir.IntType(32), args
    low, high = builder.shl(bits, word(16)), builder.and_(bits, word(0xFFFF0000))
    return [builder.bitcast(half, ir.FloatType()) for half in (low, high)]

@bind(_emit_unpack, "r", types.UniTuple(types.float32, 2))
def unpack_bf16(
    bits,  # uint32: two bfloat16
) -> tuple:
    "Two float32: the low half and the high half."
    return tuple(np.array((bits << 16 & 0xFFFFFFFF, bits & 0xFFFF0000), np.uint32).view(np.float32))


def _emit_cvt_f16x2(context, builder, kinds, args):
    from llvmlite import ir
    return _assembly(builder, "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", args, [ir.IntType(32)], True)[0]

@bind(_emit_cvt_f16x2, "ff", types.uint32)
def cvt_rn_f16x2_f32(
    low, high,  # float32
) -> int:       # uint32
    "Two numbers, rounded to float16 (to nearest, ties to even; infinity from 65520 on). PTX ISA, cvt."
    both = np.array((low, high), np.float32)
    if -65504 <= low <= 65504 >= high >= -65504: return both.astype(np.float16).view(np.uint32)[0]
    with np.errstate(over="ignore"): both = both.astype(np.float16)
    bits = both.view(np.uint16)
    if low != low or high != high: bits = np.where(np.isnan(both), np.uint16(0x7FFF), bits)
    return bits.view(np.uint32)[0]

def _emit_unpack_f16x2(context, builder, kinds, args):
    from llvmlite import ir
    text = "{ .reg .b16 low, high; mov.b32 {low, high}, $2; cvt.f32.f16 $0, low; cvt.f32.f16 $1, high; }"
    return _assembly(builder, text, "=f,=f,r", args, [ir.FloatType()] * 2, True)

@bind(_emit_unpack_f16x2, "r", types.UniTuple(types.float32, 2))
def unpack_f16x2(
    bits,  # uint32: two float16
) -> tuple:
    "Two float32: the low half and the high half. PTX ISA, cvt."
    return tuple(np.array([bits], np.uint32).view(np.float16).astype(np.float32))


def _emit_approximate(text):
    "Emits an instruction with one float32 operand and one float32 result."
    def emit(context, builder, kinds, args):
        from llvmlite import ir
        return _assembly(builder, f"{text} $0, $1;", "=f,f", args, [ir.FloatType()], True)[0]
    return emit

def _flushed(x):
    "What `.ftz` does to numbers too small for a full significand."
    x = np.float32(x)
    return np.copysign(np.float32(0), x) if abs(x) < np.finfo(np.float32).tiny else x

@bind(_emit_approximate("ex2.approx.ftz.f32"), "f", types.float32)
def ex2_approx_ftz_f32(
    x,       # float32
) -> float:  # float32
    "2 to the power of `x`. PTX ISA, ex2."
    with np.errstate(all="ignore"): return _flushed(np.exp2(_flushed(x)))

@bind(_emit_approximate("rcp.approx.ftz.f32"), "f", types.float32)
def rcp_approx_ftz_f32(
    x,       # float32
) -> float:  # float32
    "1 / `x`. PTX ISA, rcp."
    with np.errstate(all="ignore"): return _flushed(np.float32(1) / _flushed(x))


def _emit_ldmatrix(context, builder, kinds, args):
    from llvmlite import ir
    _, address, offset_bytes, stride_bytes, flip, count, transpose = args
    word, kind, found = ir.IntType(32), ".trans" if transpose else "", []
    text = f"ldmatrix.sync.aligned.m8n8.x4{kind}.shared.b16 {{$0, $1, $2, $3}}, [$4];"
    start = builder.add(address, word(offset_bytes))
    move = builder.xor if flip else builder.add
    for group in range(count):
        here = move(start, word(stride_bytes * group))
        found += _assembly(builder, text, "=r,=r,=r,=r,r", [here], [word] * 4)
    return found

@bind(_emit_ldmatrix, "-rnnnnn", lambda array, address, offset_bytes, stride_bytes, flip, count, transpose:
      types.UniTuple(types.uint32, 4 * count))
def ldmatrix(
    array,      # uint16 in shared memory
    address,    # of this lane's row, see `shared_address`; aligned to 16 bytes
    offset_bytes,  # to add, a literal
    stride_bytes,  # from one group of four matrices to the next, a literal
    flip,       # 1: the stride is xored; 0: it is added; a literal
    count,      # of such groups, a literal
    transpose,  # 1: each lane gets two adjacent elements of a column; 0: of a row; a literal
) -> tuple:     # 4·count uint32
    """8×8 matrices from shared memory, for a warp: lane l supplies the address of row l % 8 of matrix l // 8,
    and gets elements 2·(l % 4) and the next of row (or column) l // 4. PTX ISA, Warp Level Matrix
    Load Instruction: ldmatrix (sm_75 and up)."""
    frame, lane, found = sys._getframe(1), getcurrent().lane, []
    rows = scheduler.exchange(int(address), frame)
    for group in range(count):
        for matrix in range(4):
            row = rows[8 * matrix + lane // 4] + offset_bytes
            row = row ^ stride_bytes * group if flip else row + stride_bytes * group
            if row % 16:
                raise scheduler.SimulatorError(
                    f"a row starts at byte {row}, which isn't a multiple of 16", "alignment")
            low, high = array.load(_element(array, row) + 2 * (lane % 4), 2, frame)
            found.append(np.uint32(int(low) | int(high) << 16))
    if not transpose: return tuple(found)
    read = scheduler.exchange(found, frame)
    if "transposed" not in read: read["transposed"] = _transposed(read, 4 * count)
    return tuple(read["transposed"][lane])

def _transposed(read, count):
    "What each lane gets of `count` transposed matrices, given what each has read of their rows."
    halves = np.array([read[lane] for lane in range(32)], np.uint32).view(np.uint16).reshape(8, 4, count, 2)
    columns = halves.transpose(2, 1, 3, 0).reshape(count, 8, 4, 2)  # matrix, column, pair of rows, row
    return np.ascontiguousarray(columns.transpose(1, 2, 0, 3)).view(np.uint32).reshape(32, count)


def _emit_mma(context, builder, kinds, args):
    from llvmlite import ir
    from numba.core import cgutils
    sums, xs, ys = (cgutils.unpack_tuple(builder, arg) for arg in args)
    columns = len(ys) // 2
    text = ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {$0, $1, $2, $3}, "
            "{$4, $5, $6, $7}, {$8, $9}, {$0, $1, $2, $3};")
    for i, j in _places(len(xs) // 4, columns, 1):
        at = 4 * (i * columns + j)
        values = [*xs[4 * i:4 * i + 4], *ys[2 * j:2 * j + 2], *sums[at:at + 4]]
        sums[at:at + 4] = _assembly(builder, text, "=f,=f,=f,=f,r,r,r,r,r,r,0,1,2,3", values,
                                    [ir.FloatType()] * 4, True)
    return sums

@bind(_emit_mma, "---", lambda acc, x, y: acc)
def mma_m16n8k16(
    acc,  # accumulators, 4·r·c float32: 16×8 matrices, row after row
    x,    # operands, 4·r uint32: 16×16 matrices
    y,    # 2·c uint32: 16×8 matrices
) -> tuple:
    """`acc` + X·Y on the tensor cores, for a warp: 16·r×16 times 16×8·c. PTX ISA, Warp Level
    Matrix Multiply-Accumulate Instructions: mma.m16n8k16 (sm_80 and up)."""
    given = scheduler.exchange((x, y, acc), sys._getframe(1))
    if "sums" not in given: given["sums"] = _warp_sums(given)
    return tuple(given["sums"][getcurrent().lane])

def _warp_sums(factors):
    "Each lane's accumulators after the product: (32, 4·r·c) float32."
    def halves(numbers):
        return from_bf16(np.array(numbers, np.uint32).view(np.uint16)).astype(float)
    x, y = (halves([factors[lane][i] for lane in range(32)]) for i in range(2))
    r, c = x.shape[1] // 8, y.shape[1] // 4
    x = x.reshape(8, 4, r, 2, 2, 2)  # lane // 4, lane % 4, matrix, right half, lower half, number
    y = y.reshape(8, 4, c, 2, 2)     # lane // 4, lane % 4, matrix, lower half, number
    left = x.transpose(2, 4, 0, 3, 1, 5).reshape(16 * r, 16)
    right = y.transpose(3, 1, 4, 2, 0).reshape(16, 8 * c)
    product = (left @ right).reshape(r, 2, 8, c, 4, 2)  # matrix, half, lane // 4, matrix, lane % 4
    more = product.transpose(2, 4, 0, 3, 1, 5).reshape(32, 4 * r * c)
    return (np.array([factors[lane][2] for lane in range(32)], float) + more).astype(np.float32)


def _emit_store_pair(context, builder, kinds, args):
    from llvmlite import ir
    array, index, pair = args
    pointer = element_pointer(context, builder, kinds[0], array, kinds[1], index)
    builder.store(pair, builder.bitcast(pointer, ir.IntType(32).as_pointer())).align = 4

@bind(_emit_store_pair, "--r")
def store_pair(
    array,  # uint16, flat
    index,  # of the first number: an unsigned integer, even
    pair,   # uint32, see `cvt_rn_bf16x2_f32`
):
    "Write two adjacent elements in one access."
    array.store(index, (np.uint16(int(pair) & 0xFFFF), np.uint16(int(pair) >> 16)), sys._getframe(1))

def _emit_store_pairs(context, builder, kinds, args):
    from llvmlite import ir
    word = ir.IntType(32)
    two = ir.VectorType(word, 2)
    start = element_pointer(context, builder, kinds[0], args[0], kinds[1], args[1])
    both = two(ir.Undefined)
    for i, bits in enumerate(args[2:]): both = builder.insert_element(both, bits, word(i))
    builder.store(both, builder.bitcast(start, two.as_pointer())).align = 8

@bind(_emit_store_pairs, "--rr")
def store_pairs(
    array,          # of uint16
    index,          # of the first, unsigned: a multiple of four
    first, second,  # uint32: two numbers each
):
    "Store four 16-bit numbers in one 8-byte access."
    values = np.array((first, second), np.uint32).view(np.uint16)
    array.store(index, tuple(values), sys._getframe(1))

def _emit_move_eight(context, builder, kinds, args):
    from llvmlite import ir
    four = ir.VectorType(ir.IntType(32), 4).as_pointer()
    to, start = (builder.bitcast(element_pointer(context, builder, kinds[i], args[i], kinds[i + 1],
                                                 args[i + 1]), four) for i in (0, 2))
    value = builder.load(start)
    value.align = builder.store(value, to).align = 16

@bind(_emit_move_eight, "----")
def move_eight(
    target,        # uint16, flat
    target_index,  # of the first number: an unsigned integer, a multiple of 8
    source,        # uint16, flat
    source_index,
):
    "Copy eight adjacent elements from one array to another: one load and one store of 16 bytes."
    frame = sys._getframe(1)
    target.store(target_index, source.load(source_index, 8, frame), frame)
