"""Numbers of eight bits: e4m3 (four bits of exponent, three of significand) and e5m2.

e4m3 has no infinity: its exponents end where the significand's last pattern is NaN, so 448 is the largest.
e5m2 is float16 without its last eight bits. Numpy has neither, so arrays hold their bits in uint8, and values
come from tables of all 256 patterns.
"""
from functools import cache

import numpy as np

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"  # torch's names
LARGEST = {E4M3: 448.0, E5M2: 57344.0}
NAN = 0x7F  # its bits in either type


@cache
def table(
    dtype: str = E4M3,
) -> np.ndarray:  # (256,) float32
    "The number that each pattern of bits means."
    bits = np.arange(256, dtype=np.uint16)
    if dtype == E5M2: return (bits << 8).view(np.float16).astype(np.float32)
    exponent, significand = (bits >> 3 & 15).astype(int), (bits & 7).astype(float)
    size = np.where(exponent == 0, significand / 8 * 2.0**-6, (1 + significand / 8) * 2.0**(exponent - 7))
    size[bits & 0x7F == 0x7F] = np.nan
    return np.where(bits & 0x80, -size, size).astype(np.float32)


def from_fp8(
    bits,  # uint8 array
    dtype: str = E4M3,
):         # float32 array of the same shape
    "What bits mean. `TypeError` for anything but uint8."
    bits = np.asarray(bits)
    if bits.dtype != np.uint8:
        raise TypeError(f"the bits are {bits.dtype}; expected uint8, as to_fp8 returns them")
    return table(dtype)[bits]


def to_fp8(
    x,  # array of numbers
    dtype: str = E4M3,
):      # uint8 array of the same shape
    """The bits of `x`, as the GPU's cvt.rn.satfinite rounds: to nearest, ties to even; too large becomes the
    largest."""
    x = np.ascontiguousarray(x, np.float32)
    sizes = table(dtype)[:0x80]  # from 0 up: neighbors' bits differ by 1
    sizes = sizes[np.isfinite(sizes)].astype(float)
    size = np.minimum(np.abs(x).astype(float), sizes[-1])
    # a number goes to the pattern whose interval it is in; a border belongs to the even one
    borders = (sizes[:-1] + sizes[1:]) / 2
    found, after = (np.searchsorted(borders, size, side) for side in ("left", "right"))
    found = np.where(found % 2 == 1, after, found)
    found = np.where(np.isnan(x), NAN, found | np.where(np.signbit(x), 0x80, 0))
    return found.astype(np.uint8)


# How Hopper's tensor cores add products of e4m3: found with an H100, whose results this reproduces bit for
# bit. The sum so far and 32 products are aligned to the largest exponent among them. A product's exponent is
# the sum of its factors', though its significand may reach 4. Whatever is below 13 bits after the point is
# cut off, before adding and after.

POINT = 13  # bits that are kept after the point

def _exponents(x, least):
    "Exponents, as if there were none below `least`."
    return np.where(x == 0, -999, np.maximum(np.frexp(x)[1] - 1, least))

def _cut(x, exponents):
    "Numbers, without what is below `POINT` bits after the point."
    return np.ldexp(np.trunc(np.ldexp(x, POINT - exponents)), exponents - POINT)

def add_products(
    acc,   # sums so far, (…)
    x, y,  # e4m3 numbers to multiply, (…, 32)
) -> np.ndarray:  # float64
    "The sums after 32 more products, as an H100's tensor cores round them."
    exponents = np.maximum((_exponents(x, -6) + _exponents(y, -6)).max(-1), _exponents(acc, -126))
    total = _cut(x * y, exponents[..., None]).sum(-1) + _cut(acc, exponents)
    return _cut(total, _exponents(total, -126))
