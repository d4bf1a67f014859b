"""A Python function for the simulator, an instruction for the compiler: this lets a kernel use anything the
GPU can do. Here: the binding of the two, wide accesses, addresses, and tuples of numbers."""
import re
import sys
from functools import cache, partial
from inspect import signature

import numpy as np
from ..sim import scheduler
from numba import config, types
from numba.core.errors import TypingError
try: from numba.cuda.extending import intrinsic, overload
except ImportError: intrinsic = overload = None  # Numba's own package for macOS: simulator only


CONVERGENT = re.compile(r"\.sync\b|\.aligned\b")  # instructions that a warp's lanes execute together

def _assembly(builder, text, constraints="", args=(), results=(), pure=False):
    "Emit inline PTX at the builder's position: values of types `results`. `pure`: no side effects."
    from llvmlite import ir
    several = len(results) > 1
    result = ir.LiteralStructType(results) if several else (*results, ir.VoidType())[0]
    kind = ir.FunctionType(result, [arg.type for arg in args])
    clobbers = constraints if pure else ",".join(filter(None, (constraints, "~{memory}")))
    together = ("convergent",) if CONVERGENT.search(text) else ()  # mustn't be moved into a branch
    call = builder.call(ir.InlineAsm(kind, text, clobbers, side_effect=not pure), args, attrs=together)
    return [builder.extract_value(call, i) for i in range(len(results))] if several else [call]

def _emit_line(text, letters, context, builder, kinds, args):
    "Emit one line of PTX at the builder's position."
    from llvmlite import ir
    values = [ir.IntType(32)(arg) if letter == "n" else arg for arg, letter in zip(args, letters)]
    _assembly(builder, text, ",".join(letters), values)

OPERANDS = dict(r=types.uint32, l=types.uint64, f=types.float32)

def _with_types(function, operands, result):
    "A Python body that gives the simulator its result type."
    function.instruction = operands, result
    return function


def bind(
    instruction,  # PTX, with $0, $1, … for the operands; or a function that emits LLVM's instructions
    operands="",  # one letter each: r uint32, l uint64, f float32, n a literal, - any type
    result=None,  # type of the result, or a function of the operands' types and literals; None: no result
    inline=False,  # must it be inlined into its caller?
):
    """Decorator for the Python body of an instruction, which the simulator runs: wherever a kernel calls it,
    the compiler emits `instruction`."""
    if config.ENABLE_CUDASIM: return partial(_with_types, operands=operands, result=result)
    emit = instruction if callable(instruction) else partial(_emit_line, instruction, operands)

    def typed(*kinds):
        "Types of result and operands, and the code emitter; None as long as a literal is missing."
        literal = [letter == "n" for letter in operands]
        if any(n and not isinstance(kind, types.IntegerLiteral) for n, kind in zip(literal, kinds)): return
        given = [kind.literal_value if n else kind for n, kind in zip(literal, kinds)]
        def generate(context, builder, signature, args):
            values = [value if n else arg for n, value, arg in zip(literal, given, args)]
            found = emit(context, builder, signature.args, values)
            if isinstance(found, list): return context.make_tuple(builder, signature.return_type, found)
            return context.get_dummy_value() if found is None else found
        returns = (types.void if result is None else result if isinstance(result, types.Type)
                   else result(*given))
        return returns(*map(OPERANDS.get, operands, kinds)), generate

    def teach(function):
        "Numba needs functions with these exact parameters; they get the Python body's line number."
        name, names, code = function.__name__, ", ".join(signature(function).parameters), function.__code__
        scope = dict(typed=typed)
        def define(text):
            exec(compile("\n" * (code.co_firstlineno - 1) + text, code.co_filename, "exec"), scope)
            return scope[name]
        scope["emitted"] = intrinsic(define(f"def {name}(typing_context, {names}): return typed({names})"))
        scope["body"] = define(f"def {name}({names}): return emitted({names})")
        typing = define(f"def {name}({names}): return body")
        overload(function, target="cuda", prefer_literal="n" in operands,
                 inline="always" if inline else "never")(typing)
        return function
    return teach


# Wide accesses

def _only_float32(a, float32=np.float32):
    if a.dtype != float32:
        raise TypingError(f"wide accesses are for float32, not for {a.dtype}")

def element_pointer(
    context, builder,  # of the code generator
    array_type, array,  # an array, and its type
    index_type, index,  # an unsigned integer or a tuple of them, and its type
):
    "LLVM's pointer to an element, for intrinsics."
    from llvmlite import ir
    from numba.core import cgutils
    is_tuple = isinstance(index_type, types.BaseTuple)
    index = cgutils.unpack_tuple(builder, index) if is_tuple else [index]
    index = [builder.zext(i, ir.IntType(64)) if i.type.width < 64 else i for i in index]
    data = context.make_array(array_type)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, array_type, data, index)

def _vector_pointer(context, builder, kinds, array, index, count):
    "LLVM's pointer to a vector of `count` floats starting at an element."
    from llvmlite import ir
    element = element_pointer(context, builder, kinds[0], array, kinds[1], index)
    return builder.bitcast(element, ir.VectorType(ir.FloatType(), count).as_pointer())

def _load_vector(builder, pointer):
    "Load the floats that a vector pointer points to, in one access."
    from llvmlite import ir
    value = builder.load(pointer)
    value.align = 4 * value.type.count
    return [builder.extract_element(value, ir.IntType(32)(n)) for n in range(value.type.count)]

def _store_vector(builder, pointer, parts):
    "Store floats where a vector pointer points, in one access."
    from llvmlite import ir
    value = pointer.type.pointee(ir.Undefined)
    for n, part in enumerate(parts):
        value = builder.insert_element(value, part, ir.IntType(32)(n))
    builder.store(value, pointer).align = 4 * len(parts)


def _wide_load(count):
    "What `bind` needs for a load of `count` floats."
    def emit(context, builder, kinds, args):
        return _load_vector(builder, _vector_pointer(context, builder, kinds, *args, count))
    def result(array, index):
        _only_float32(array, types.float32)
        return types.UniTuple(types.float32, count)
    return emit, "--", result

def _wide_store(count):
    "What `bind` needs for a store of `count` floats."
    def emit(context, builder, kinds, args):
        array, index, *parts = args
        _store_vector(builder, _vector_pointer(context, builder, kinds, array, index, count), parts)
    def result(array, index, *parts):
        _only_float32(array, types.float32)
        return types.void
    return emit, "--" + "f" * count, result

@bind(*_wide_load(2))
def load2(a, i):
    "The float32 element at `i` and the next one, in one access; aligned to 8 bytes."
    _only_float32(a)
    return a.load(i, 2, sys._getframe(1))

@bind(*_wide_load(4))
def load4(a, i):
    "The float32 element at `i` and the next 3 of its row, in one access; aligned to 16 bytes."
    _only_float32(a)
    return a.load(i, 4, sys._getframe(1))

@bind(*_wide_store(2))
def store2(a, i, x, y):
    "Store float32 to the element at `i` and the next one, in one access; aligned to 8 bytes."
    _only_float32(a)
    a.store(i, (x, y), sys._getframe(1))

@bind(*_wide_store(4))
def store4(a, i, x, y, z, w):
    "Store float32 to the element at `i` and the next 3, in one access; aligned to 16 bytes."
    _only_float32(a)
    a.store(i, (x, y, z, w), sys._getframe(1))


# Addresses

GLOBAL, SHARED = 1, 3  # LLVM's address spaces

def _address(context, builder, kinds, args, memory, bits):
    "An element's address in one of the address spaces, from an array and an index."
    from llvmlite import ir
    pointer = element_pointer(context, builder, kinds[0], args[0], kinds[1], args[1])
    within = builder.addrspacecast(pointer, ir.PointerType(ir.FloatType(), memory))
    return builder.ptrtoint(within, ir.IntType(bits))

@bind(partial(_address, memory=SHARED, bits=32), "--", types.uint32)
def shared_address(
    array,  # in shared memory
    index,  # of an element: an unsigned integer
) -> int:   # uint32
    "An element's byte address in shared memory."
    return np.uint32((scheduler.getcurrent().rank << scheduler.RANK_BIT) + array.dtype.itemsize * int(index))

@bind(partial(_address, memory=GLOBAL, bits=64), "--", types.uint64)
def global_address(
    array,  # in global memory
    index,  # of an element: an unsigned integer
) -> int:   # uint64
    "An element's byte address in global memory."
    return np.uint64(array.first_byte + array.byte(index))

def _element(array, address):
    "The index for an address in the simulator."
    size, address = array.dtype.itemsize, scheduler.in_block(address)
    if address % size:
        raise scheduler.SimulatorError(f"{address} isn't the address of a {array.dtype}")
    return int(address) // size

def _emit_load_fours(context, builder, kinds, args):
    from llvmlite import ir
    word, four, parts = ir.IntType(32), ir.VectorType(ir.FloatType(), 4), []
    _, start, offset_bytes, stride_bytes, count = args
    for group in range(count // 4):
        here = builder.add(start, word(offset_bytes + stride_bytes * group))
        parts += _load_vector(builder, builder.inttoptr(here, ir.PointerType(four, SHARED)))
    return parts

@bind(_emit_load_fours, "-rnnn", lambda array, address, offset_bytes, stride_bytes, count:
      types.UniTuple(types.float32, count))
def load_fours_at(
    array,         # in shared memory
    address,       # see `shared_address`
    offset_bytes,  # to add, a literal
    stride_bytes,  # from one group to the next, a literal
    count,         # of numbers, a literal
) -> tuple:
    "`count` float32 from shared memory in groups of four, one access each; aligned to 16 bytes."
    frame, numbers = sys._getframe(1), ()
    for group in range(count // 4):
        numbers += array.load(_element(array, address + offset_bytes + stride_bytes * group), 4, frame)
    return numbers


# Tuples of numbers

@cache
def _places(rows, columns, serpentine):
    "The positions of an outer product, in order."
    return [(i, columns - 1 - j if serpentine and i % 2 else j)
            for i in range(rows) for j in range(columns)]

def _emit_products(context, builder, kinds, args):
    from llvmlite import ir
    from numba.core import cgutils
    sums, xs, ys = (cgutils.unpack_tuple(builder, arg) for arg in args[:3])
    first, last, serpentine = args[3:] or (0, len(sums), 0)
    number = ir.FloatType()
    kind = ir.FunctionType(number, [number] * 3)
    fma = cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.f32")
    for i, j in _places(len(xs), len(ys), serpentine)[first:last]:
        place = i * len(ys) + j
        sums[place] = builder.call(fma, [xs[i], ys[j], sums[place]])
    return sums

@bind(_emit_products, "---", lambda acc, x, y: acc)
def add_outer(acc, x, y):
    "`acc`, a tuple of len(x)·len(y) float32, plus the outer product of tuples `x` and `y`."
    return add_part(acc, x, y, 0, len(acc), 0)

@bind(_emit_products, "---nnn", lambda acc, x, y, first, last, serpentine: acc)
def add_part(
    acc,          # tuple of len(x)·len(y) float32
    x, y,         # tuples of float32
    first, last,  # which products, counted in the order they're added; literals
    serpentine,   # 1: every other row backwards; 0: row by row; a literal
):
    "`add_outer`, but only the products from `first` up to `last`, exclusive."
    acc, columns = list(acc), len(y)
    for i, j in _places(len(x), columns, serpentine)[first:last]: acc[i * columns + j] += x[i] * y[j]
    return tuple(acc)


def _fours(context, builder, kinds, array, index, step, count):
    "LLVM's pointers to groups of four, `step` elements from one to the next."
    for n in range(count // 4):
        place = builder.add(index, index.type(n * step))
        yield _vector_pointer(context, builder, kinds, array, place, 4)

def _emit_store_fours(context, builder, kinds, args):
    from numba.core import cgutils
    array, index, step, values = args
    parts = cgutils.unpack_tuple(builder, values)
    for n, place in enumerate(_fours(context, builder, kinds, array, index, step, len(parts))):
        _store_vector(builder, place, parts[4 * n:4 * n + 4])

@bind(_emit_store_fours, "--n-")
def store_fours(
    array,   # flat
    index,   # of the first number: an unsigned integer
    step,    # elements from one group to the next, a literal
    values,  # tuple of float32
):
    "Write a tuple of numbers in groups of four, one access each; aligned to 16 bytes."
    frame = sys._getframe(1)
    for n in range(0, len(values), 4): array.store(index + n // 4 * step, values[n:n + 4], frame)

def _emit_add_fours(context, builder, kinds, args):
    from numba.core import cgutils
    values, array, index, step = args
    parts = cgutils.unpack_tuple(builder, values)
    places = list(_fours(context, builder, kinds[1:3], array, index, step, len(parts)))
    others = [x for place in places for x in _load_vector(builder, place)]
    return [builder.fadd(part, other) for part, other in zip(parts, others)]

@bind(_emit_add_fours, "---n", lambda values, array, index, step: values)
def add_fours(values, array, index, step):
    "`values`, a tuple, plus what `store_fours` wrote."
    frame, parts = sys._getframe(1), ()
    for n in range(0, len(values), 4): parts += array.load(index + n // 4 * step, 4, frame)
    return tuple(x + y for x, y in zip(values, parts))

def _emit_to_array(context, builder, kinds, args):
    from llvmlite import ir
    from numba.core import cgutils
    values, array, columns = args
    word, data = ir.IntType(64), context.make_array(kinds[1])(context, builder, array)
    for i, value in enumerate(cgutils.unpack_tuple(builder, values)):
        place = [word(n) for n in divmod(i, columns)]
        builder.store(value, cgutils.get_item_pointer(context, builder, kinds[1], data, place))

@bind(_emit_to_array, "--n")
def to_array(
    values,   # tuple of float32
    array,    # (rows, columns) local array to fill, row by row
    columns,  # a literal
):
    "Write a tuple of numbers to a local array."
    for i, value in enumerate(values): array[divmod(i, columns)] = value


def _emit_store_relaxed(context, builder, kinds, args):
    address = _address(context, builder, kinds, args, GLOBAL, 64)
    _assembly(builder, "st.relaxed.gpu.global.u64 [$0], $1;", "l,l", [address, args[2]])

@bind(_emit_store_relaxed, "--l")
def store_relaxed(
    array,  # in global memory, of 64-bit integers
    index,  # unsigned integer
    value,  # uint64
):
    """Write to an element that other blocks may read at the same time: they see the old value or the new,
    never a mix. PTX ISA, st.relaxed."""
    array.store_relaxed(index, value, sys._getframe(1))


# Numbers as bits, and tuples of numbers

def _emit_bits(context, builder, kinds, args):
    from llvmlite import ir
    return builder.bitcast(args[0], ir.IntType(32))

@bind(_emit_bits, "f", types.uint32)
def float_as_uint(
    x,      # float32
) -> int:   # uint32
    "The bits of a number. CUDA: __float_as_uint."
    return np.float32(x).view(np.uint32)

def _emit_float(context, builder, kinds, args):
    from llvmlite import ir
    return builder.bitcast(args[0], ir.FloatType())

@bind(_emit_float, "r", types.float32)
def uint_as_float(
    bits,     # uint32
) -> float:   # float32
    "The number with these bits. CUDA: __uint_as_float."
    return np.uint32(bits).view(np.float32)

def _emit_add_scaled(context, builder, kinds, args):
    from llvmlite import ir
    from numba.core import cgutils
    sums, xs, factors = (cgutils.unpack_tuple(builder, arg) for arg in args)
    number = ir.FloatType()
    kind = ir.FunctionType(number, [number] * 3)
    fma = cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.f32")
    return [builder.call(fma, [x, factors[i % len(factors)], total])
            for i, (x, total) in enumerate(zip(xs, sums))]

@bind(_emit_add_scaled, "---", lambda sums, x, factors: sums)
def add_scaled(
    sums, x,  # tuples of float32, equally long
    factors,  # a shorter tuple of them, for as many numbers of `x`, and again
) -> tuple:
    "`sums` plus `x` times the factors, elementwise, rounded once."
    return tuple(np.float32(float(total) + float(p) * float(factors[i % len(factors)]))
                 for i, (p, total) in enumerate(zip(x, sums)))

def _emit_add_tuples(context, builder, kinds, args):
    from numba.core import cgutils
    return [builder.fadd(*pair) for pair in zip(*(cgutils.unpack_tuple(builder, x) for x in args))]

@bind(_emit_add_tuples, "--", lambda x, y: x)
def add_tuples(
    x, y,  # tuples of float32, equally long
) -> tuple:
    "Their elementwise sums."
    return tuple(np.float32(p) + np.float32(q) for p, q in zip(x, y))
