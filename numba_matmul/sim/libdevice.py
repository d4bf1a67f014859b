"""The functions of NVIDIA's libdevice, available to kernels as `numba.cuda.libdevice`, computed in Python."""
import ctypes
import ctypes.util
import math
import operator
import re
from fractions import Fraction
from functools import cache
from statistics import NormalDist

import numpy as np
from .operators import HELPERS
from .types import INTEGERS
from numba.cuda import libdevice, libdevicefuncs


# Some functions round in a given direction: to nearest, toward zero, down or up. An exact fraction decides
# which adjacent float that is.

def in_direction(
    exact,  # a `Fraction`
    kind,   # numpy's float32 or float64
    how,    # rn: to nearest, ties to even; rz: toward 0; rd, ru: down, up
):
    "An exact number, rounded once."
    try:
        near = kind(float(exact))
    except OverflowError:
        near = kind(math.inf if exact > 0 else -math.inf)
    around = [float(x) for x in (np.nextafter(near, kind(-np.inf)), near, np.nextafter(near, kind(np.inf)))]
    if how == "rn":
        def distance(x):
            return (abs(Fraction(x) - exact) if math.isfinite(x) else math.inf,
                    int(kind(x).view(f"u{near.nbytes}")) % 2)
        return near if np.isinf(near) else kind(min(around, key=distance))
    below, above = max(x for x in around if x <= exact), min(x for x in around if x >= exact)
    return kind(above if how == "ru" or how == "rz" and exact < 0 else below)

def _exactly(compute, plain):
    """A floating-point operation rounded once, in a direction: `compute` works on fractions; `plain` on
    floats, where one is infinite or NaN, or the result is 0."""
    def run(*values, how="rn"):
        kind = type(values[0])
        with np.errstate(all="ignore"): rough = plain(*values)
        if np.isnan(rough) or not all(map(math.isfinite, values)): return kind(rough)
        if np.isinf(rough) and 0 in values: return kind(rough)  # a division by 0
        exact = compute(*(Fraction(float(v)) for v in values))
        return in_direction(exact, kind, how) if exact else kind(rough)
    return run

def _root(x):
    """A square root to 100 bits more than a float has. An inexact one gets a sticky bit, so that it rounds
    correctly."""
    if x <= 0: return Fraction(0)
    scaled = x * 4**700
    root = math.isqrt(scaled.numerator // scaled.denominator)
    return Fraction(2 * root + (root * root != scaled), 2 * 2**700)

fused = _exactly(lambda a, b, c: a * b + c, lambda a, b, c: a * b + c)
DIRECTED = dict(add=_exactly(operator.add, operator.add), sub=_exactly(operator.sub, operator.sub),
                mul=_exactly(operator.mul, operator.mul), div=_exactly(operator.truediv, np.divide),
                fma=fused, rcp=_exactly(lambda a: 1 / a, lambda a: np.divide(type(a)(1), a)),
                sqrt=_exactly(_root, np.sqrt),
                rsqrt=_exactly(lambda a: 1 / _root(a), lambda a: np.divide(type(a)(1), np.sqrt(a))))


# Most others exist in numpy or in Python's `math`. `sqrt` for float64 and `sqrtf` for float32 are one entry.
# Bessel functions come from the C library. Integers are simple arithmetic; unsigned numbers arrive as signed
# ones, since Numba declares them that way.

def _of_floats(function):
    "A function of Python floats, adapted to numpy's: NaN outside its domain."
    def run(*values):
        # the result has the type of the float argument
        kind = type(values[0]) if isinstance(values[0], np.floating) else type(values[-1])
        try:
            result = function(*(float(v) if isinstance(v, np.floating) else v for v in values))
        except (ValueError, ZeroDivisionError):
            return kind(np.nan)
        except OverflowError:
            return kind(np.inf)
        with np.errstate(all="ignore"):
            return tuple(map(kind, result)) if isinstance(result, tuple) else kind(result)
    return run

@cache
def _of_c(name, *kinds):
    "A function of the C library, for the Bessel functions that Python lacks."
    function = getattr(ctypes.CDLL(ctypes.util.find_library("m") or "msvcrt"), name)
    function.argtypes, function.restype = kinds, ctypes.c_double
    return function

def _away(x):
    "Round to an integer, ties away from 0."
    whole = math.trunc(x) if math.isfinite(x) else x
    return whole + math.copysign(abs(x - whole) >= 0.5, x) if math.isfinite(x) else x

def _clipped(x, bits): return int(max(-2**(bits - 1), min(2**(bits - 1) - 1, x))) if x == x else 0

def _inverse(p):
    "The inverse of the normal distribution at p, in (0, 1). A Newton step makes it accurate to the last bit."
    if p in (0, 1): return math.copysign(math.inf, p - 0.5)
    x = NormalDist().inv_cdf(p)
    slope = math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return x - (math.erfc(-x / math.sqrt(2)) / 2 - p) / slope if slope else x

def _erfcx(x):
    if x < 25: return math.exp(x * x) * math.erfc(x)
    y = (1 / x)**2
    return 1 / (x * math.sqrt(math.pi)) * (1 - y / 2 + 3 / 4 * y * y)

def _remainder(a, b):
    "a - n·b with n to nearest, and the last bits of n."
    if not b or math.isinf(a) or a != a or b != b: return math.nan, 0
    n = 0 if math.isinf(b) else round(Fraction(a) / Fraction(b))
    return math.remainder(a, b), (abs(n) & 7) * (1 if n > 0 else -1)

def _lgamma(x):
    if x <= 0 and x in (-math.inf, np.trunc(x)): return math.inf
    return math.lgamma(x) if math.isfinite(x) else abs(x)

def _ilogb(x):
    if x and math.isfinite(x): return math.frexp(x)[1] - 1
    return 2**31 - 1 if abs(x) == math.inf else -2**31

def _turns(function):
    "A function of an angle in half turns, such as sinpi."
    def run(x):
        if not math.isfinite(x): return math.nan
        x = math.fmod(x, 2)
        if x * 2 == math.trunc(x * 2):  # exact at 0, 1/2, 1 and 3/2
            quarter = int(x * 2) % 4
            return float((0, 1, 0, -1)[quarter]) if function is math.sin else float((1, 0, -1, 0)[quarter])
        return function(x * math.pi)
    return run


SINPI, COSPI = _turns(math.sin), _turns(math.cos)

# For floats: `sqrt` stands for sqrt on float64 and sqrtf on float32.
FLOAT = {x: getattr(np, y) for x, y in dict(
    acos="arccos", acosh="arccosh", asin="arcsin", asinh="arcsinh", atan="arctan", atan2="arctan2",
    atanh="arctanh", cbrt="cbrt", ceil="ceil", copysign="copysign", cos="cos", cosh="cosh", exp="exp",
    exp2="exp2", expm1="expm1", fabs="fabs", floor="floor", fmax="fmax", fmin="fmin", fmod="fmod",
    hypot="hypot", log="log", log10="log10", log1p="log1p", log2="log2", nearbyint="rint",
    nextafter="nextafter", pow="power", rint="rint", sin="sin", sinh="sinh", sqrt="sqrt", tan="tan",
    tanh="tanh", trunc="trunc").items()}
FLOAT |= {x: _of_floats(f) for x, f in dict(
    cospi=COSPI, sinpi=SINPI, sincospi=lambda x: (SINPI(x), COSPI(x)),
    sincos=lambda x: (np.sin(x), np.cos(x)), erf=math.erf, erfc=math.erfc, erfcx=_erfcx,
    erfinv=lambda x: math.copysign(_inverse((1 + abs(x)) / 2) / math.sqrt(2), x),
    erfcinv=lambda x: -_inverse(x / 2) / math.sqrt(2), normcdf=lambda x: math.erfc(-x / math.sqrt(2)) / 2,
    normcdfinv=_inverse, exp10=lambda x: 10.0**x, fdim=lambda a, b: a - b if not a <= b else 0.0,
    fdividef=lambda a, b: np.divide(a, b), fma=lambda a, b, c: a, ldexp=np.ldexp, scalbn=np.ldexp,
    lgamma=_lgamma,
    tgamma=lambda x: math.gamma(x) if x else math.copysign(math.inf, x),
    logb=lambda x: float(math.frexp(x)[1] - 1) if x and math.isfinite(x) else -math.inf if not x else abs(x),
    powi=lambda x, n: np.power(np.float64(x), n), rcbrt=lambda x: np.divide(1.0, np.cbrt(x)),
    rsqrt=lambda x: np.divide(1.0, np.sqrt(x)), remainder=lambda a, b: _remainder(a, b)[0], round=_away,
    modf=math.modf, saturate=lambda x: min(max(x, 0.0), 1.0) if x == x else 0.0,
    **{x: lambda v, x=x: _of_c(x, ctypes.c_double)(v) for x in ("j0", "j1", "y0", "y1")},
    **{x: lambda n, v, x=x: _of_c(x, ctypes.c_int, ctypes.c_double)(n, v) if n >= 0 else math.nan
       for x in ("jn", "yn")}).items()}
FLOAT |= dict(
    fma=fused,
    ilogb=_ilogb,
    llrint=lambda x: _clipped(np.rint(x), 64), llround=lambda x: _clipped(_away(float(x)), 64),
    frexp=lambda x: (type(x)(math.frexp(x)[0]), math.frexp(x)[1]),
    remquo=lambda a, b: (type(a)(_remainder(float(a), float(b))[0]), _remainder(float(a), float(b))[1]),
    isnan=lambda x: int(np.isnan(x)), isinf=lambda x: int(np.isinf(x)),
    isfinite=lambda x: int(np.isfinite(x)), finite=lambda x: int(np.isfinite(x)),
    signbit=lambda x: int(np.signbit(x)))


def _unsigned(function, bits):
    "A function of unsigned integers, which Numba passes as signed ones."
    return lambda *values: function(*(v & (2**bits - 1) for v in values))

def _low24(x): return (x & 0xFFFFFF) - ((x & 0x800000) << 1)
def _bytes(x, y, s):
    "Four of eight bytes, chosen by the last three bits of each hexadecimal digit of s."
    data = (x & 0xFFFFFFFF | (y & 0xFFFFFFFF) << 32).to_bytes(8, "little")
    return int.from_bytes(bytes(data[s >> 4 * i & 7] for i in range(4)), "little")

def reversed_bits(x, bits): return int(f"{x & (2**bits - 1):0{bits}b}"[::-1], 2)

WHOLE = {
    "abs": abs, "llabs": abs, "max": max, "min": min, "llmax": max, "llmin": min, "umax": _unsigned(max, 32),
    "umin": _unsigned(min, 32), "ullmax": _unsigned(max, 64), "ullmin": _unsigned(min, 64),
    "hadd": lambda a, b: a + b >> 1, "rhadd": lambda a, b: a + b + 1 >> 1,
    "uhadd": _unsigned(lambda a, b: a + b >> 1, 32), "urhadd": _unsigned(lambda a, b: a + b + 1 >> 1, 32),
    "mul24": lambda a, b: _low24(a) * _low24(b), "umul24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "mulhi": lambda a, b: a * b >> 32, "mul64hi": lambda a, b: a * b >> 64,
    "umulhi": _unsigned(lambda a, b: a * b >> 32, 32), "umul64hi": _unsigned(lambda a, b: a * b >> 64, 64),
    "sad": lambda a, b, c: abs(a - b) + c, "usad": _unsigned(lambda a, b, c: abs(a - b) + c, 32),
    "byte_perm": _bytes, "brev": lambda x: reversed_bits(x, 32), "brevll": lambda x: reversed_bits(x, 64),
    "clz": lambda x: 32 - (x & 2**32 - 1).bit_length(), "clzll": lambda x: 64 - (x & 2**64 - 1).bit_length(),
    "ffs": lambda x: (x & -x).bit_length(), "ffsll": lambda x: (x & -x).bit_length(),
    "popc": lambda x: (x & 2**32 - 1).bit_count(), "popcll": lambda x: (x & 2**64 - 1).bit_count(),
    "float_as_int": lambda x: int(x.view(np.int32)), "int_as_float": lambda x: np.int32(x).view(np.float32),
    "double_as_longlong": lambda x: int(x.view(np.int64)),
    "longlong_as_double": lambda x: np.int64(x).view(np.float64),
    "double2hiint": lambda x: int(x.view(np.int64)) >> 32, "double2loint": lambda x: int(x.view(np.int64)),
    "hiloint2double": lambda high, low: np.int64((high << 32) | (low & 2**32 - 1)).view(np.float64),
    "half2float": lambda x: np.float32(np.int16(x).view(np.float16)),
    "float2half_rn": lambda x: int(np.float16(x).view(np.int16))}


# Numba's table of signatures says which types each function takes and returns.

def _conversion(given, wanted, how):
    "A conversion between number types, rounded in a direction."
    unsigned = wanted[0] == "u"
    bits = {"int": 32, "uint": 32, "ll": 64, "ull": 64}
    # to an integer: out of range becomes the nearest one, NaN becomes 0
    if wanted in bits:
        whole = dict(rn=np.rint, rz=np.trunc, rd=np.floor, ru=np.ceil)[how]
        low, high = INTEGERS[f"{'u' * unsigned}int{bits[wanted]}"]
        def to_integer(x):
            if x != x: return 0
            return int(min(max(int(whole(x)) if np.isfinite(x) else math.copysign(2**70, x), low), high))
        return to_integer
    # to a float
    kind = np.float32 if wanted == "float" else np.float64
    def run(x):
        if given[0] == "u": x &= 2**bits[given] - 1
        if isinstance(x, np.floating) and not np.isfinite(x) or not x: return kind(x)
        return in_direction(Fraction(float(x)) if isinstance(x, np.floating) else Fraction(x), kind, how)
    return run

def _body(text):
    "The Python function for a libdevice name."
    if text in WHOLE: return WHOLE[text]
    if found := re.fullmatch(r"(double|float|int|uint|ll|ull)2(double|float|int|uint|ll|ull)_(r.)", text):
        return _conversion(*found.groups())
    if found := re.fullmatch(r"([df]?)(add|sub|mul|div|rcp|sqrt|rsqrt|fma)f?_(r[nzud])", text):
        operation, how = DIRECTED[found[2]], found[3]
        return lambda *values: operation(*values, how=how)
    text = text.removeprefix("fast_")
    return FLOAT.get(text) or FLOAT[text[:-1]]

def _typed(body, results):
    "A function whose results have the types in Numba's table."
    def one(value, kind):
        if kind[0] == "f": return getattr(np, kind)(value)
        bits = int(kind[3:])
        return (int(value) + 2**(bits - 1) & 2**bits - 1) - 2**(bits - 1)
    def run(*values):
        with np.errstate(all="ignore"): value = body(*values)
        return one(value, results[0]) if len(results) == 1 else tuple(map(one, value, results))
    return run

FUNCTIONS = {}  # function of `numba.cuda.libdevice` → its argument and result types
for _name, (_result, _given) in libdevicefuncs.functions.items():
    _name = _name.removeprefix("__nv_")
    _results = [*([] if str(_result) == "none" else [str(_result)]), *(str(x.ty) for x in _given if x.is_ptr)]
    HELPERS[f"<libdevice.{_name}>"] = _typed(_body(_name), _results)
    FUNCTIONS[getattr(libdevice, _name)] = tuple(str(x.ty) for x in _given if not x.is_ptr), tuple(_results)
