"""The parts of an instruction's test case, and the operands of its kernel.

`case` adds the kernels of `instruction_kernels.py` to the table `CASES`."""
from dataclasses import dataclass
from functools import partial

import numpy as np

LANES, AMPERE, HOPPER = np.arange(32), (8, 0), (9, 0, "a")  # compute capability required by the instructions


class Out:
    "An array for a kernel's results: every byte 0xFF, so that unwritten elements show."
    def __init__(self, shape, dtype):
        self.array = np.empty(shape, dtype)
        self.array.reshape(-1).view(np.uint8)[:] = 0xFF


@dataclass
class Map:
    "A tensor map, with boxes of this many rows and 64 columns."
    of: object  # a matrix of uint16, or an `Out`
    rows: int


@dataclass
class Maps:
    "Tensor maps among a kernel's parameters."
    maps: tuple  # of `Map`


@dataclass
class Cluster:
    "The threads of each block, and how many blocks run together: in place of a block's threads."
    threads: int
    blocks: int


@dataclass
class Near:
    "The tolerance for results: any NaN equals any other; otherwise this much."
    array: object
    bound: object = 0.0


@dataclass
class Case:
    "One kernel for some instructions: what to launch, and the expected results."
    instructions: tuple  # names of the bindings; one may be in several cases
    make: object         # random generator → kernel, threads or `Cluster`, arguments, results of each `Out`
    needs: tuple         # compute capability
    name = property(lambda self: ", ".join(self.instructions))

    def operands(self, seed):
        "What `make` returns, the same for a seed in every process."
        with np.errstate(all="ignore"): return self.make(np.random.default_rng(seed))


CASES = {}


def case(*instructions, needs=(0, 0), **variants):
    "Decorator for `Case.make`, and for a function that also takes the arguments of each variant."
    def keep(make):
        for name, arguments in (variants or {"": ()}).items():
            key = f"{make.__name__} {name}".strip()
            CASES[key] = Case(instructions, lambda rng, arguments=arguments: make(rng, *arguments), needs)
        return make
    return keep


# Operands

SPECIAL = np.array([
    0x00000000, 0x80000000, 0x7F800000, 0xFF800000,  # zeros and infinities
    0x7FC00000, 0xFFC12345, 0x7F800001,              # NaN, one of them signaling
    0x00000001, 0x807FFFFF, 0x00800000,              # subnormal, and the smallest that isn't
    0x3F808000, 0x3F818000, 0xBF808001, 0x00008000,  # halfway between two bfloat16, and next to that
    0x3F801000, 0x3F803000, 0xBF801001, 0x33000000,  # the same for float16, and for its subnormal numbers
    0x33000001, 0x387FE000, 0x477FEFFF, 0xC77FF000,  # next to that; where its infinity starts
    0x7F7FFFFF, 0xFF7F7FFF, 0x7F7F8000],
    np.uint32)  # the largest; large ones that round to the largest, or to infinity


def floats(rng, *shape):
    "Random bits as float32, half of them special values."
    bits = rng.integers(0, 2**32, shape, np.uint32)
    return np.where(rng.random(shape) < 0.5, rng.choice(SPECIAL, shape), bits).view(np.float32)


def moderate(rng, *shape):
    "Random float32 whose products neither overflow nor vanish; some are 0, infinite or NaN."
    x = np.ldexp(rng.uniform(-1, 1, shape), rng.integers(-50, 50, shape)).astype(np.float32)
    return np.where(rng.random(shape) < 0.2, rng.choice(SPECIAL[:6].view(np.float32), shape),
                    x).astype(np.float32)


def words(rng, *shape, dtype=np.uint32):
    return rng.integers(0, 2**(8 * np.dtype(dtype).itemsize), shape, dtype)


def places(rng, count, step, below):
    "Different multiples of `step`, in random order."
    return (step * rng.permutation(below // step)[:count]).astype(np.uint32)


def neighbours(array, first, count):
    "Flat: `count` elements starting at each of `first`."
    return array.reshape(-1)[first[:, None] + np.arange(count)]


def halves(pairs):
    return np.ascontiguousarray(pairs).view(np.uint16).reshape(*pairs.shape, 2)  # little-endian


def bfloat16(x):
    "The 16 bits of float32, rounded to nearest, ties to even, by arithmetic on the numbers themselves."
    x = np.asarray(x, np.float32)
    exact = x.astype(float)
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(exact)
        unit = np.ldexp(1.0, np.maximum(exponent - 8, -133))  # of 8 bits, and of the subnormal ones
        rounded = np.rint(exact / unit) * unit
        bits = np.where(np.isfinite(exact), rounded, exact).astype(np.float32).view(np.uint32) >> 16
    return np.where(np.isnan(x), 0x7FFF, bits).astype(np.uint16)


def float16(x):
    "The 16 bits of float32, rounded to nearest, ties to even, by arithmetic on the numbers themselves."
    exact = np.asarray(x, np.float32).astype(float)
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(exact)
        unit = np.ldexp(1.0, np.maximum(exponent - 11, -24))  # of 11 bits, and of the subnormal ones
        size = np.abs(np.rint(exact / unit) * unit)
        number, exponent = np.frexp(size)
        normal = np.ldexp(number, 11) - 1024 + 1024 * (exponent + 14)
        bits = np.where(size < 2.0**-14, size * 2**24, normal)
    bits = np.where(size < 65536, np.nan_to_num(bits), 0x7C00).astype(np.uint16)
    return np.where(np.isnan(x), 0x7FFF, bits | np.signbit(exact) * np.uint16(0x8000)).astype(np.uint16)


def from_bits(bits): return (bits.astype(np.uint32) << 16).view(np.float32).astype(float)


def factors(rng, *shapes):
    """Matrices as bits of bfloat16: either whole numbers, whose products and sums are exact in float32, or
    random ones. Also how far a sum may be off in one instruction, relative to the sum of its absolute
    products: the tensor cores' products are exact, the sum may be truncated after 24 bits of the largest
    one, and is then rounded to float32."""
    exact = rng.random() < 0.5
    draw = partial(rng.integers, -8, 9) if exact else rng.standard_normal
    return (*(bfloat16(draw(shape)) for shape in shapes), 0.0 if exact else 2.0**-22)
