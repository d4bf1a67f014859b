r"A table of small kernels of every kind and nothing else, so it may be long. In a row \\n ends a line."
HEAD = """import math, cmath, operator, random, functools, collections, numpy as np, numba
from math import pi, sqrt
from numba import cuda, types, void, boolean, int8, int16, int32, int64, uint8, uint16, uint32, uint64
from numba import float32, float64, complex64
from numba.cuda import libdevice
ONE, THREE, HALF, YES, NOTHING, TEXT = 1, 3, 0.5, True, None, "abc"
LIST, DICT, SET, PAIR = [1, 2], {"n": 1}, {1, 2}, (3, 4)
NP3, NPHALF = np.int32(3), np.float32(0.5)
TABLE, MATRIX = np.arange(4, dtype=np.float32), np.arange(4.0).reshape(2, 2)
BYTES, NESTED = b"abc", (1, (2, 3.5))
DEVICE = cuda.to_device(TABLE.copy()) if numba.config.ENABLE_CUDASIM else TABLE.copy()
POINT = np.dtype([("x", np.float32), ("n", np.int32), ("w", np.float32, (3,))], align=True)
RECORD = numba.from_dtype(POINT)
Point = collections.namedtuple("Point", "x y")
ORIGIN = Point(1, 2.5)
class Plain:
    number = 3
PLAIN = Plain()
def python_function(x): return x + 1
@cuda.jit(device=True)
def twice(x): return x * 2
@cuda.jit(device=True)
def added(x, y=1): return x + y
@cuda.jit(device=True)
def stores(x, v): x[0] = v
@cuda.jit(device=True)
def both(x): return x, x + 1
@cuda.jit
def undeclared(x): return x * 3
"""

# `a` is a parameter of each type.
SLOTS = """out[a] = 1
out[0] = x[a]
out[0] = m[a, 1]
out[0] = m[1, a]
out[0] = m[a][1]
for j in range(a): out[j] = 1
for j in range(1, a): out[j] = 1
for j in range(a, 5): out[j] = 1
for j in range(0, 7, a): out[j] = 1
for j in range(7, 0, -a): out[j] = 1
s = cuda.local.array(8, float32)\\ns[a] = 1\\nout[0] = s[a]
s = cuda.shared.array(8, float32)\\ns[a] = 1\\nout[0] = s[a]
s = cuda.shared.array((4, 5), int32)\\ns[1, a] = a\\nout[0] = s[1, a]
s = cuda.local.array(a, float32)\\ns[0] = 1
out[0] = a < 3
out[0] = 3 <= a
out[0] = a == i
out[0] = a != x[2]
out[0] = 1 < a < 5
out[0] = a is None
out[0] = a in (1, 3)
out[0] = a
x[0] = a\\nout[0] = x[0]
ints[0] = a\\nout[0] = ints[0]
bits[0] = a\\nout[0] = bits[0]
z[0] = a\\nout[0] = z[0].real
points[0].n = a\\nout[0] = points[0].n
y = a\\nout[0] = y
y = 0\\nif i > 1: y = a\\nout[0] = y
y = 1.5\\nfor j in range(3): y = a\\nout[0] = y
y = a\\ny += 1\\nout[0] = y
y = 1\\ny += a\\nout[0] = y
out[0] += a
ints[1] -= a\\nout[0] = ints[1]
x[a] += 1\\nout[0] = x[3]
if a: out[0] = 1
while a:\\n    out[0] = 1\\n    break
if not a: out[0] = 1
out[0] = 1 if a else 2
out[0] = a if i > 1 else 1
out[0] = a and 2
out[0] = a or 2
out[0] = not a
out[0] = -a
out[0] = +a
out[0] = ~a
out[0] = a + 1
out[0] = a * 0.5
out[0] = a - i
out[0] = a / 2
out[0] = a // 2
out[0] = a % 2
out[0] = a ** 2
out[0] = 2 ** a
out[0] = a << 1
out[0] = 1 << a
out[0] = a & 1
out[0] = a ^ a
out[0] = a @ a
p = a, 1\\nout[0] = p[0]
p = (a, a)\\nout[0] = p[i]
p = 5, 6, 7, 8\\nout[0] = p[a]
for j in xs: out[0] += j
for j in (a, a): out[0] += j
out[0] = len(x[a:])
out[0] = len(x[:a])
out[0] = x[::a][1]
x[a:] = 5\\nout[0] = x[3]
x[:2] = a\\nout[0] = x[1]
out[0] = abs(a)
out[0] = min(a, 1)
out[0] = max(i, a)
out[0] = max(a, a, 2)
out[0] = int(a)
out[0] = float(a)
out[0] = bool(a)
out[0] = complex(a).real
out[0] = round(a)
out[0] = round(a, 1)
out[0] = pow(a, 2)
out[0] = divmod(a, 2)[0]
out[0] = len(a)
out[0] = float32(a)
out[0] = int8(a)
out[0] = uint64(a)
out[0] = boolean(a)
out[0] = np.float32(a)
out[0] = np.int32(a)
out[0] = np.float64(a)
out[0] = np.bool_(a)
out[0] = math.sqrt(a)
out[0] = math.ceil(a)
out[0] = math.floor(a)
for j in range(math.ceil(a)): out[j] = 1
for j in range(math.ceil(a / 2)): out[j] = 1
for j in range(1, math.floor(a)): out[j] = 1
out[0] = x[math.floor(a)]
out[0] = x[int(a)]
out[0] = a.real
out[0] = a.imag
out[0] = a.conjugate().real
out[0] = a.is_integer()
out[0] = a.bit_count()
out[0] = a.shape
out[0] = a.dtype
out[0] = a.item()
out[0] = a[0]
out[0] = a()
a[0] = 1
del a
a = 3\\nout[0] = a
a += 1\\nout[0] = a
a: int = 4\\nout[0] = a
out[0] = cuda.atomic.add(x, a, 1)
out[0] = cuda.atomic.add(x, 0, a)
out[0] = cuda.atomic.add(ints, 0, a)
out[0] = cuda.atomic.max(ints, a, a)
out[0] = cuda.atomic.cas(ints, a, 1, a)
out[0] = cuda.shfl_sync(0xFFFFFFFF, a, 0)
out[0] = cuda.shfl_sync(0xFFFFFFFF, i, a)
out[0] = cuda.shfl_down_sync(a, i, 0)
out[0] = cuda.shfl_xor_sync(1, i, a)
out[0] = cuda.syncthreads_or(a)
out[0] = cuda.syncthreads_and(a)
out[0] = cuda.syncthreads_count(a)
out[0] = cuda.ballot_sync(0xFFFFFFFF, a)
out[0] = cuda.any_sync(0xFFFFFFFF, a)
out[0] = cuda.all_sync(1, a)
out[0] = cuda.all_sync(a, 1)
out[0] = cuda.match_any_sync(0xFFFFFFFF, a)
out[0] = cuda.match_all_sync(0xFFFFFFFF, a)[0]
cuda.syncwarp(a)
cuda.nanosleep(a)
out[0] = cuda.popc(a)
out[0] = cuda.clz(a)
out[0] = cuda.ffs(a)
out[0] = cuda.brev(a)
out[0] = cuda.fma(a, a, a)
out[0] = cuda.cbrt(a)
out[0] = cuda.selp(a, 1, 2)
out[0] = cuda.selp(yes, a, a)
out[0] = cuda.selp(yes, a, 1)
out[0] = cuda.grid(a)
out[0] = twice(a)
out[0] = added(a)
out[0] = added(x=a, y=2)
stores(out, a)
stores(xs, a)\\nout[0] = xs[0]
p, q = both(a)\\nout[0] = q
out[0] = undeclared(a)
out[0] = python_function(a)
out[0] = xs[1]
xs[0] = 1\\nout[0] = xs[0]
xs[0] = 2.5\\nout[0] = xs[0]
xs[0] = t\\nout[0] = xs[0]
xs[0] = a\\nout[0] = xs[0]
xs[0] += 1\\nout[0] = xs[0]
xs[0] *= t\\nout[0] = xs[0]
xs[0] = yes\\nout[0] = xs[0]
xs[0] = z[1]\\nout[0] = 1
xs[:] = 1\\nout[0] = xs[0]
out[0] = x[xs[0]]
out[0] = cuda.atomic.add(xs, 0, 1)
out[0] = cuda.atomic.max(xs, 0, 1)
out[0] = cuda.atomic.exch(xs, 0, 1)
out[0] = cuda.atomic.cas(xs, 0, 1, 2)
out[0] = cuda.atomic.and_(xs, 0, 1)
out[0] = cuda.atomic.inc(xs, 0, 1)
print(a)
assert a
return a
raise ValueError(a)
y = lambda: a\\nout[0] = y()
out[0] = f"{a}"
out[0] = str(a)
out[0] = hash(a)
out[0] = type(a)
out[0] = isinstance(a, int)
out[0] = math.isnan(a)
out[0] = np.sqrt(a)
out[0] = np.abs(a)
out[0] = np.minimum(a, a)
out[0] = libdevice.sqrtf(a)
out[0] = libdevice.sqrt(a)
out[0] = libdevice.popc(a)
out[0] = libdevice.max(a, 1)
out[0] = libdevice.float_as_int(a)"""

# A value from outside the kernel, as a global, of each type: `a` is TYPE(3) above it.
OUTSIDE = """out[0] = A
out[A] = 1
out[0] = x[A]
out[0] = m[A, 1]
out[0] = PAIR[A - 2]
for j in range(A): out[j] = 1
s = cuda.local.array(A, float32)\\ns[1] = 2\\nout[0] = s[1]
s = cuda.shared.array((A, 2), float32)\\ns[1, 1] = 2\\nout[0] = s[1, 1]
s = cuda.shared.array(A * 2, float32)\\ns[1] = 2\\nout[0] = s[1]
out[0] = A + 1
out[0] = A * t
out[0] = A / 2
out[0] = -A
out[0] = A == 3
if A: out[0] = 1
out[0] = 1 if A else 2
out[0] = len(x[:A])
p = 5, 6, 7, 8\\nout[0] = p[A]
out[0] = twice(A)
out[0] = min(A, i)
out[0] = A.real
y = A\\ny += 1\\nout[0] = y
A += 1
x[A] += A\\nout[0] = x[3]
out[0] = math.sqrt(A)
out[0] = cuda.grid(A)"""

# As the type of an array, and as a cast.
DTYPES = """s = cuda.local.array(2, D)\\ns[1] = 1\\nout[0] = s[1]
s = cuda.shared.array(2, D)\\ns[1] = 1\\nout[0] = s[1]
s = cuda.local.array(2, dtype=D)\\ns[0] = t\\ns[0] += 1\\nout[0] = s[0]
out[0] = D(3)
out[0] = D(t)
out[0] = D(yes)
y = D(1)\\nfor j in range(3): y += D(2)\\nout[0] = y"""
DTYPE_NAMES = """int float bool complex str np.bool_ np.int8 np.uint8 np.int16 np.uint16 np.int32 np.uint32
np.int64 np.uint64 np.float16 np.float32 np.float64 np.complex64 np.complex128 np.longlong
np.intp np.single np.double np.half np.longdouble np.str_ np.object_ np.dtype('float32')
np.dtype('i4') 'float32' types.float16 types.bfloat16 float32 float64 int8 uint32 boolean
complex64 types.complex128 types.intp types.void RECORD POINT types.float32[:] None 3
numba.types.unicode_type""".split()

STATEMENTS = """pass
...
"a docstring"
out[0] = 1; out[1] = 2
x[0], out[0] = out[1], x[1]
p, q = 1, 2\\nout[0] = p - q
(p, q), r = (1, 2), 3\\nout[0] = p - q + r
[p, q] = 1, 2.5\\nout[0] = q
p, q = pair\\nout[0] = q
p, q = twins\\nout[0] = q
p, *q = 1, 2, 3\\nout[0] = q[0]
*p, q = twins\\nout[0] = q
p = q = i\\nout[0] = p + q
p = out[0] = 3\\nout[1] = p
out[0] = out[1] = x[2]
p, out[0] = 1, 2\\nout[1] = p
p, q = x[:2]\\nout[0] = q
p, q = m[0]\\nout[0] = q
p, q, r = 1, 2\\nout[0] = q
p, q = both(i)\\nout[0] = p + q
p = i, x\\nout[0] = p[1][p[0]]
p = pair\\nout[0] = p[1]
p, q = i, i\\np, q = q, p + 1\\nout[0] = q
for p, q in ((1, 2), (3, 4)): out[p] = q
for p, q in enumerate(x): out[p] = q
for p, q in zip(x, ints): out[0] += p * q
for p in enumerate(x): out[0] += p[1]
for j in range(3): pass
for j in range(3): ...
for j in range(5):\\n    if j == 2: continue\\n    if j == 4: break\\n    out[j] = 1\\nelse: out[7] = 1
for j in range(3): out[j] = 1\\nelse: out[7] = 1
for out[1] in range(3): out[0] += 1
for j in range(3):\\n    for k in range(2): out[j] += k
for j in (1, 2.5): out[0] += j
for j in (1, 2, 3): out[0] += j
for j in PAIR: out[0] += j
for j in TABLE: out[0] += j
for j in LIST: out[0] += j
for j in [1, 2]: out[0] += j
for j in "ab": out[0] += 1
for j in TEXT: out[0] += 1
for j in {1, 2}: out[0] += j
for j in m: out[0] += j[0]
for j in reversed(range(3)): out[0] = j
for j in sorted((3, 1)): out[0] = j
for j in range(3, 0, -1): out[0] = out[0] * 10 + j
for j in range(0): out[0] = 1
for j in range(2.0): out[0] = 1
for j in range(True): out[0] = 1
for j in range(x.shape[0]): out[0] += 1
for j in range(len(x)): out[0] += 1
for j in range(*twins): out[0] += 1
for j in range(stop=3): out[0] += 1
for j in range(): out[0] += 1
for j in range(1, 2, 3, 4): out[0] += 1
for j in range(0, 6, 0): out[0] += 1
for j in x: out[0] += j
for j in x[2:5]: out[0] += j
for j in bits: out[0] += j
for j in pair: out[0] += 1
for j in np.arange(3): out[0] += j
for j in np.ndindex(2, 2): out[0] += 1
for j in np.nditer(x): out[0] += 1
for j in x.flat: out[0] += j
for j in map(twice, twins): out[0] += j
for j in filter(None, twins): out[0] += j
for j in iter(x): out[0] += j
for j in i: out[0] += 1
for j in cuda.threadIdx: out[0] += 1
r = range(3)\\nfor j in r: out[0] += j
r = range(3)\\nout[0] = len(r)
r = range(3)\\nout[0] = r[1]
out[0] = 2 in range(3)
r = range(2, 5)\\nout[0] = r.start + r.stop
p = 0\\nfor j in range(3): p = j\\nout[0] = p + j
for j in range(2): k = j\\nout[0] = k
if i > 5: k = 1\\nout[0] = k
if i > 1: k = 1\\nout[0] = k
while i > 0: i -= 1\\nout[0] = i
while i > 0:\\n    i -= 1\\nelse: out[0] = 5
while True:\\n    out[0] += 1\\n    if out[0] > 3: break
while 1: break
while False: out[0] = 1
p = 3\\nwhile p:\\n    p -= 1\\n    if p == 1: continue\\n    out[p] = 1
while (p := out[0]) < 3: out[0] = p + 1
if (p := i) > 1: out[0] = p
out[0] = (p := 3) + p
out[(p := 2)] = p
p = (q := 2)\\nout[0] = q
out[0] = (p := x[1]) and p > 1
out[0] = twice(q := 4) + q
p = [(q := 2)]\\nout[0] = q
if yes and (p := 3) > 2: out[0] = p
if i > 1: out[0] = 1\\nelif i > 0: out[0] = 2\\nelse: out[0] = 3
if yes: pass\\nelse: out[0] = 1
if x: out[0] = 1
if m: out[0] = 1
if twins: out[0] = 1
if PAIR: out[0] = 1
if None: out[0] = 1
if TEXT: out[0] = 1
if "": out[0] = 1
if x is not None: out[0] = 1
if NOTHING is None: out[0] = 1
if x is x: out[0] = 1
if i is None: out[0] = 1
if ONE is 1: out[0] = 1
if YES: out[0] = 1
if YES is True: out[0] = 1
if yes is True: out[0] = 1
if yes == True: out[0] = 1
if x == None: out[0] = 1
if x in (1, 2): out[0] = 1
if i in (1, 2): out[0] = 1
if i not in (1, 2): out[0] = 1
if i in x: out[0] = 1
if i in LIST: out[0] = 1
if i in SET: out[0] = 1
if i in PAIR: out[0] = 1
if TEXT == "abc": out[0] = 1
if TEXT in "abcd": out[0] = 1
if x == x: out[0] = 1
if twins == (3, 4): out[0] = 1
if twins < (3, 5): out[0] = 1
if pair == (3, 0.5): out[0] = 1
if t == i: out[0] = 1
match i:\\n    case 2: out[0] = 1\\n    case _: out[0] = 2
match twins:\\n    case (p, q): out[0] = q
match i:\\n    case p if p > 1: out[0] = p
try: out[0] = 1\\nexcept ValueError: out[0] = 2
try: out[0] = 1\\nfinally: out[1] = 2
try: out[0] = 1\\nexcept: out[0] = 2\\nelse: out[0] = 3
try: raise ValueError\\nexcept* ValueError: out[0] = 2
with open("f") as f: out[0] = 1
with cuda.defer_cleanup(): out[0] = 1
async with x: pass
async for j in x: pass
out[0] = i >> 1
import math as mathematics\\nout[0] = mathematics.sqrt(4.0)
import math\\nout[0] = math.sqrt(4.0)
from math import sqrt\\nout[0] = sqrt(4.0)
global ONE\\nout[0] = ONE
global ONE\\nONE = 2
nonlocal ONE
del i
p = 3\\ndel p\\nout[0] = 1
p = 3\\ndel p\\nout[0] = p
del x[0]
raise ValueError
raise ValueError("too large")
if i > 5: raise ValueError("too large")\\nout[0] = 1
if i > 5: raise ValueError\\nout[0] = 1
if i > 5: raise Exception(i)\\nout[0] = 1
raise
raise ValueError from None
assert i > 1
assert i > 1, "small"
assert i > 1, f"small {i}"
assert i > 5\\nout[0] = 1
return
return None
return 1
return x
return out[0]
if i > 5: return\\nout[0] = 1
if i > 1: return 1
if i > 1: return None\\nout[0] = 1
def inner(y): return y + 1\\nout[0] = inner(i)
def inner(y): return y + i\\nout[0] = inner(1)
def inner(y=2): return y\\nout[0] = inner()
def inner(y):\\n    out[0] = y\\ninner(2)
def inner():\\n    nonlocal i\\n    i = 3\\ninner()\\nout[0] = i
@cuda.jit(device=True)\\ndef inner(y): return y\\nout[0] = inner(1)
class Inner: pass
async def inner(): pass
f = lambda y: y * 2\\nout[0] = f(i)
f = lambda y: y + i\\nout[0] = f(1)
out[0] = (lambda y: y + 1)(2)
f = twice\\nout[0] = f(3)
f = math.sqrt\\nout[0] = f(4.0)
f = twice if yes else added\\nout[0] = f(3)
c = cuda\\nout[0] = c.threadIdx.x
c = math\\nout[0] = c.sqrt(4.0)
yield 1
yield from (1, 2)
y = yield
await x
out[0] = i if i > 1 else t
out[0] = 1 if x is None else 2
out[0] = x[0] if yes else i
p = x if yes else x\\nout[0] = p[0]
p = x if yes else ints\\nout[0] = p[0]
p = x if yes else None\\nout[0] = p[0]
p = (1, 2) if yes else (3, 4)\\nout[0] = p[0]
p = (1, 2) if yes else (3.5, 4)\\nout[0] = p[0]
p = (1, 2) if yes else (3, 4, 5)\\nout[0] = p[0]
p = 1 if yes else None\\nout[0] = 1
p = None\\nout[0] = 1
p = None\\nif yes: p = 1\\nout[0] = p
p = 1\\np = 2.5\\nout[0] = p
p = 1\\np = x\\nout[0] = p[0]
p = 1\\np = (1, 2)\\nout[0] = p[0]
p = 1\\nif yes: p = x\\nout[0] = 1
p = x\\np = m\\nout[0] = p[0, 0]
p = x\\nif yes: p = m\\nout[0] = 1
p = i\\nif yes: p = z[0]\\nout[0] = 1
p = "a"\\nout[0] = 1
p = "a"\\nout[0] = len(p)
p = TEXT\\nout[0] = 1
p = f"{i}"\\nout[0] = 1
p = b"abc"\\nout[0] = p[0]
p = b"abc"\\nout[0] = 1
p = BYTES\\nout[0] = BYTES[1]
p = [1, 2]\\nout[0] = p[0]
p = []\\nout[0] = 1
p = {}\\nout[0] = 1
p = {"n": 1}\\nout[0] = p["n"]
p = {1, 2}\\nout[0] = 1
p = ()\\nout[0] = len(p)
p = (1,)\\nout[0] = p[0]
p = 1, *twins\\nout[0] = p[2]
p = (*twins, 1)\\nout[0] = p[0]
p = twins + (1,)\\nout[0] = p[2]
p = twins * 2\\nout[0] = p[2]
p = twins[1:]\\nout[0] = p[0]
p = twins[::-1]\\nout[0] = p[0]
out[0] = twins[-1]
out[0] = twins[2]
out[0] = twins[i - 1]
out[0] = pair[i - 1]
out[0] = PAIR[i - 1]
out[0] = NESTED[1][1]
out[0] = NESTED[i - 1]
twins[0] = 1
out[0] = len(twins)
out[0] = max(twins)
out[0] = sum(twins)
out[0] = min(twins[0], *twins)
out[0] = twins.count(3)
out[0] = twins.index(3)
out[0] = tuple(twins)[0]
out[0] = [y for y in twins][0]
out[0] = sum([y for y in twins])
out[0] = sum(y for y in twins)
out[0] = {y for y in twins} == 1
p = {y: y for y in twins}
p = (y for y in twins)
out[0] = LIST[0]
out[0] = DICT["n"]
out[0] = len(LIST)
LIST[0] = 1
DICT["n"] = 2
out[0] = TEXT[0]
out[0] = len(TEXT)
out[0] = TABLE[1]
TABLE[1] = 2
TABLE[1] += 2
out[0] = TABLE[i]
out[0] = MATRIX[1, 0]
out[0] = MATRIX[1][0]
MATRIX[0, 0] = 1
out[0] = len(TABLE)
out[0] = TABLE.shape[0]
out[0] = TABLE.size
out[0] = DEVICE[1]
DEVICE[1] = 2
out[0] = DEVICE[i]
out[0] = DEVICE.shape[0]
out[0] = ORIGIN.y
out[0] = ORIGIN[1]
p = Point(1, i)\\nout[0] = p.y
p = Point(y=1, x=i)\\nout[0] = p.x
p = Point(1)\\nout[0] = p.x
p = Point(1, 2)\\np.x = 3
out[0] = ORIGIN._fields
p, q = ORIGIN\\nout[0] = q
out[0] = PLAIN.number
out[0] = Plain.number
PLAIN.number = 1
out[0] = Plain().number
out[0] = nowhere
nowhere()
out[0] = i()
out[0] = x()
out[0] = python_function(1)
out[0] = twice()
out[0] = twice(1, 2)
out[0] = twice(y=1)
out[0] = twice(x=i)
out[0] = twice(*twins)
out[0] = added(*twins)
out[0] = added(**DICT)
out[0] = twice[1, 1](i)
out[0] = twice(x)[0]
out[0] = twice(None)
stores(out, 1)
stores(x, i)\\nout[0] = x[0]
stores(v=2, x=out)
out[0] = stores(x, 1)
p = both(i)\\nout[0] = p[1]
print(1)
print("a", i)
print(i, t, end="")
print(f"{i}")
print("%d" % i)
print("{}".format(i))
print(x)
print(twins)
print(None)
print()
print("a" + "b")
print(x[0], sep=",")
input()
out[0] = eval("1")
out[0] = id(x)
out[0] = ONE + THREE
out[0] = HALF * i
out[0] = NP3 + 1
out[0] = NPHALF * 2
out[0] = pi
out[0] = sqrt(4.0)
out[0] = math.pi + math.e + math.inf + math.tau
out[0] = math.nan
out[0] = np.pi + np.e
out[0] = np.inf
out[0] = np.nan
out[0] = np.newaxis
out[0] = np.int32(3) + np.float32(1)
out[0] = np.zeros(3)[0]
out[0] = np.sum(x)
out[0] = np.dot(x, x)
out[0] = np.array([1, 2])[0]
out[0] = np.empty(2)[0]
out[0] = np.sin(t)
np.sin(x, out)
np.add(x, x, out)
out[0] = np.finfo(np.float32).eps
out[0] = np.iinfo(np.int32).max
out[0] = np.random.rand()
out[0] = random.random()
out[0] = operator.add(i, 1)
out[0] = operator.mul(t, t)
out[0] = operator.getitem(x, 1)
out[0] = functools.reduce(operator.add, twins)
out[0] = cmath.sqrt(z[1]).real
out[0] = np.int32
out[0] = int
out[0] = 1_000
out[0] = 0xFF + 0b11 + 0o7
out[0] = 1e-3
out[0] = 2j
out[0] = (1 + 2j).real
out[0] = abs(3 + 4j)
out[0] = z[1].real
out[0] = z[1].imag
out[0] = abs(z[1])
z[0] = z[1] * z[2]\\nout[0] = z[0].imag
z[0] += 1\\nout[0] = z[0].real
z[0] = 1j\\nout[0] = z[0].imag
p = complex(1, i)\\nout[0] = p.imag
out[0] = complex64(1).real
out[0] = (z[1] * z[1].conjugate()).real
out[0] = z[1] == z[1]
out[0] = z[1] < z[2]
out[0] = 2**70
out[0] = 2**63
out[0] = -2**63
out[0] = 10 ** 20
out[0] = 1 / 0
out[0] = 1 // 0
out[0] = "a"
out[0] = None
out[0] = True
out[0] = ...
out[0] = (1, 2)
out[0] = x
out[0] = m[0]
out[0] = twins
out = x
out = 1
x = x[1:]\\nout[0] = x[0]
i = i + t\\nout[0] = i
i += t\\nout[0] = i
i /= 2\\nout[0] = i
i //= 2\\nout[0] = i
i **= 2\\nout[0] = i
i <<= 2\\nout[0] = i
i |= 5\\nout[0] = i
i @= 5
t %= 2\\nout[0] = t
yes &= False\\nout[0] = yes
twins += (1,)\\nout[0] = twins[2]
x += 1\\nout[0] = x[0]
x[1:3] += 1\\nout[0] = x[1]
m[1] += 1\\nout[0] = m[1, 0]
out[0] |= 1
ints[0] /= 2\\nout[0] = ints[0]
ints[0] **= 2\\nout[0] = ints[0]
ints[0] <<= 2\\nout[0] = ints[0]
ints[0] += 0.75\\nout[0] = ints[0]
bits[0] ^= True\\nout[0] = bits[0]
bits[0] += 1\\nout[0] = bits[0]
out[i] += x[i] * t
out[twice(1)] += 1
m[i, i - 1] *= 2\\nout[0] = m[2, 1]
m[i][i - 1] *= 2\\nout[0] = m[2, 1]
p: int = 3\\nout[0] = p
p: int\\nout[0] = 1
p: float = 3\\nout[0] = p
out[0]: float = 3
out[0] = -i
out[0] = --i
out[0] = not i
out[0] = not x
out[0] = not twins
out[0] = ~i
out[0] = ~t
out[0] = +yes
out[0] = -yes
out[0] = ~yes
out[0] = -x
out[0] = x + x
out[0] = x + 1
out[0] = x @ x
out[0] = m @ m
out[0] = twins + 1
out[0] = TEXT + "a"
out[0] = i and t
out[0] = yes and i
out[0] = i or x
out[0] = i > 1 and t > 0 or yes
out[0] = x and 1
out[0] = twins or 1
out[0] = None or 1
out[0] = 1 < i < 5
out[0] = 1 < i > t != 7
out[0] = 5 > x[1] >= t
out[0] = i == 2 == 2
out[0] = abs(i)
out[0] = abs(x)
out[0] = len(x)
out[0] = len(m)
out[0] = len(i)
out[0] = all(twins)
out[0] = any(twins)
out[0] = bool(x)
out[0] = int("3")
out[0] = float("3")
out[0] = int(t, 2)
out[0] = int()
out[0] = float()
out[0] = max(i)
out[0] = max()
out[0] = max(x)
out[0] = max(i, t)
out[0] = max(yes, yes)
out[0] = max(yes, i)
out[0] = max(i, 2, t)
out[0] = max(i, t, key=abs)
out[0] = min(x[0], 1)
out[0] = max(t, math.nan)\\nout[1] = max(math.nan, t)\\nout[2] = min(t, math.nan)\\nout[3] = min(math.nan, t)
out[0] = max(t, math.nan, 3.0)\\nout[1] = max(math.nan, t, 3.0)\\nout[2] = min(t, 3.0, math.nan)\\n\
out[3] = min(math.nan, t, t)
out[6] = math.nan\\nout[0] = max(out[6], 1)\\nout[1] = max(1, out[6])\\n\
out[2] = max(out[6], i, 1)\\nout[3] = min(1, i, out[6])
x[6] = math.nan\\nout[0] = max(x[6], x[1])\\nout[1] = max(x[1], x[6])\\n\
out[2] = max(x[6], x[1], x[2])\\nout[3] = min(x[1], x[2], x[6])
out[0] = round(t)
out[0] = round(2.5)
out[0] = round(t, 1)
out[0] = round(t, i)
out[0] = round(i)
out[0] = pow(i, 2)
out[0] = pow(t, 2, 3)
out[0] = divmod(7, i)[1]
out[0] = divmod(t, 2)[1]
out[0] = sum(x)
out[0] = sorted(x)[0]
out[0] = chr(65)
out[0] = ord("a")
out[0] = hash(i)
out[0] = isinstance(i, int)
out[0] = isinstance(x, np.ndarray)
out[0] = callable(x)
out[0] = hasattr(x, "shape")
out[0] = getattr(x, "size")
out[0] = slice(1, 2).start
out[0] = x[slice(1, 3)][0]
out[0] = x[0:2][1]
out[0] = x[:][2]
out[0] = x[...][2]
out[0] = x[1, ...]
out[0] = x[i, ...]
x[i, ...] = 7\\nout[0] = x[2]
x[i, ...] += 7\\nout[0] = x[2]
out[0] = x[..., 1]
x[...] = 7\\nout[0] = x[2]
out[0] = m[...][1, 1]
out[0] = m[1, ...][2]
out[0] = m[..., 1][2]
out[0] = m[1, ..., 2]
m[1, 2, ...] = 5\\nout[0] = m[1, 2]
m[..., 1] = 5\\nout[0] = m[2, 1]
out[0] = m[:, 1][2]
out[0] = m[1:, 1:][0, 0]
out[0] = m[1][2]
out[0] = m[1, 2]
out[0] = m[(1, 2)]
p = 1, 2\\nout[0] = m[p]
out[0] = m[twins]
m[1] = 3\\nout[0] = m[1, 2]
m[:, 1] = 3\\nout[0] = m[2, 1]
m[1] = x[:4]\\nout[0] = m[1, 2]
m[0] = m[1]\\nout[0] = m[0, 2]
x[1:3] = x[2:4]\\nout[0] = x[1]
x[1:3] = (1, 2)\\nout[0] = x[1]
x[:] = 0\\nout[0] = x[3]
out[0] = x[::2][1]
out[0] = x[::-1][1]
out[0] = x[1:6:2][1]
out[0] = x[None]
out[0] = x[None, 1][0]
out[0] = x[None][0, 1]
out[0] = x[np.newaxis, :][0, 1]
out[0] = x[1, 2]
out[0] = x[1.0]
out[0] = x[True]
out[0] = x["a"]
out[0] = x[x]
out[0] = x[ints][1]
out[0] = x[bits][1]
out[0] = x[(1,)]
out[0] = x[[1]]
out[0] = x[[1, 2]][0]
out[0] = x[twins]
out[0] = x[pair]
out[0] = m[1, 2, 3]
out[0] = m[1, 2.5]
out[0] = i[0]
out[0] = t[0]
x[1:] = 1, 2
out[0] = points[1].x
out[0] = points[i].n
out[0] = points[i].w[1]
out[0] = points[i]["x"]
out[0] = points["x"][i]
out[0] = points["w"][i][1]
out[0] = points["w"][i, 1]
out[0] = points.x[i]
out[0] = points.w[i, 1]
out[0] = points[i]["nothing"]
out[0] = points[i].nothing
points[i].x = 5\\nout[0] = points[i].x
points[i].n = 5.5\\nout[0] = points[i].n
points[i].w[1] = 5\\nout[0] = points[i].w[1]
points[i]["x"] = 5\\nout[0] = points[i]["x"]
points["x"][i] = 5\\nout[0] = points[i]["x"]
points.x[i] = 5\\nout[0] = points[i]["x"]
points["w"][i, 1] = 5\\nout[0] = points[i].w[1]
points[i].x += 5\\nout[0] = points[i].x
points[i].n -= 5\\nout[0] = points[i].n
points[i].w[1] *= 5\\nout[0] = points[i].w[1]
points[i]["x"] += 5\\nout[0] = points[i].x
points["x"][i] += 5\\nout[0] = points[i].x
points["x"] = 5\\nout[0] = points[i].x
points[i].w = 5
points[0] = points[1]\\nout[0] = points[0].x
p = points[i]\\np.x = 7\\nout[0] = points[i].x
p = points[i]\\nout[0] = p.x + p.n
for p in points: out[0] += p.x
points[i].x, points[i].n = 1, 2\\nout[0] = points[i].n
for points[0].n in range(3): pass\\nout[0] = points[0].n
s = cuda.shared.array(2, RECORD)\\ns[1].x = 3\\nout[0] = s[1].x
s = cuda.shared.array(2, dtype=RECORD)\\ns[1].x = 3\\ns[1].x += 1\\ns[1].w[2] = 3\\n\
out[0] = s[1].x + s[1].w[2]
s = cuda.local.array(2, RECORD)\\ns[1].n = 3\\ns[1]["n"] += 1\\nout[0] = s[1].n
s = cuda.local.array(2, POINT)\\ns[1].n = 3\\nout[0] = s[1].n
s = cuda.local.array(2, RECORD)\\ns[1] = points[1]\\nout[0] = s[1].n
s = cuda.shared.array(2, RECORD)\\ns["x"][1] = 3\\nout[0] = s[1]["x"]
cuda.atomic.add(points["x"], 1, 2)\\nout[0] = points[1].x
x.shape = 1
x.nothing = 1
i.real = 1
out[0] = x.nothing
s = cuda.shared.array(4, float32)\\ns[0] = 1\\nout[0] = s[0]
s = cuda.shared.array((2, 2), float32)\\ns[0, 1] = 1\\nout[0] = s[0, 1]
s = cuda.shared.array((2, 2), float32)\\ns[0][1] = 1\\nout[0] = s[0][1]
s = cuda.shared.array(shape=(2, 2), dtype=float32)\\ns[0, 1] = 1\\nout[0] = s[0, 1]
s = cuda.shared.array((2, THREE), float32)\\ns[0, 1] = 1\\nout[0] = s[0, 1]
s = cuda.shared.array(PAIR, float32)\\ns[0, 1] = 1\\nout[0] = s[0, 1]
s = cuda.shared.array([2, 2], float32)\\ns[0, 1] = 1
s = cuda.shared.array(2 * THREE, float32)\\ns[0] = 1
s = cuda.shared.array(2 * 3, float32)\\ns[0] = 1
s = cuda.shared.array(-(-7 // 2), float32)\\ns[0] = 1
s = cuda.shared.array(THREE + 1, float32)\\ns[0] = 1
s = cuda.shared.array(n, float32)\\ns[0] = 1
s = cuda.shared.array(len(x), float32)\\ns[0] = 1
s = cuda.shared.array(x.shape, float32)\\ns[0] = 1
s = cuda.shared.array(TABLE.shape, float32)\\ns[0] = 1
s = cuda.shared.array(TABLE.size, float32)\\ns[0] = 1
s = cuda.shared.array(len(PAIR), float32)\\ns[0] = 1
s = cuda.shared.array(PAIR[0], float32)\\ns[0] = 1\\nout[0] = s[0]
s = cuda.shared.array((PAIR[0], PAIR[1]), float32)\\ns[0, 0] = 1
s = cuda.shared.array(ORIGIN.x, float32)\\ns[0] = 1
s = cuda.shared.array(Plain.number, float32)\\ns[0] = 1
s = cuda.shared.array(PLAIN.number, float32)\\ns[0] = 1
s = cuda.shared.array(int(HALF * 4), float32)\\ns[0] = 1
s = cuda.shared.array(3.0, float32)\\ns[0] = 1
s = cuda.shared.array(-1, float32)\\ns[0] = 1
s = cuda.shared.array(True, float32)\\ns[0] = 1
s = cuda.shared.array((), float32)\\ns[()] = 1
s = cuda.shared.array((2,), float32)\\ns[0] = 1
k = 4\\ns = cuda.shared.array(k, float32)\\ns[0] = 1\\nout[0] = s[0]
k = THREE\\ns = cuda.shared.array(k, float32)\\ns[0] = 1\\nout[0] = s[0]
k = THREE * 2\\ns = cuda.shared.array(k, float32)\\ns[0] = 1\\nout[0] = s[0]
k = 4, 4\\ns = cuda.shared.array(k, float32)\\ns[0, 0] = 1\\nout[0] = s[0, 0]
k = 4\\nk = 5\\ns = cuda.shared.array(k, float32)\\ns[0] = 1
k = 4\\nif yes: k = 5\\ns = cuda.shared.array(k, float32)\\ns[0] = 1
s = cuda.shared.array(4)\\ns[0] = 1
s = cuda.shared.array()\\ns[0] = 1
s = cuda.shared.array(4, dtype=x.dtype)\\ns[0] = 1\\nout[0] = s[0]
s = cuda.local.array(4, x.dtype)\\ns[0] = 1\\nout[0] = s[0]
s = cuda.local.array(4, TABLE.dtype)\\ns[0] = 1\\nout[0] = s[0]
s = cuda.local.array(4, float32, alignment=16)\\ns[0] = 1\\nout[0] = s[0]
s = cuda.shared.array(4, float32, 16)\\ns[0] = 1\\nout[0] = s[0]
s = cuda.shared.array(4, float32, alignment=3)\\ns[0] = 1
s = cuda.shared.array(4, float32, nothing=3)\\ns[0] = 1
s = cuda.shared.array(0, float32)\\nout[0] = 1
s = cuda.const.array_like(TABLE)\\nout[0] = s[1]
s = cuda.const.array_like(x)\\nout[0] = s[1]
s = cuda.const.array_like(MATRIX)\\nout[0] = s[1, 1]
s = cuda.local.array_like(x)\\ns[0] = 1
out[0] = cuda.local.array(4, float32)
cuda.shared.array(4, float32)[0] = 1
s = cuda.local.array((2, 2), float32)\\ns[0] = 1\\nout[0] = s[0, 1]
s = cuda.local.array((2, 2), float32)\\ns[:] = 1\\nout[0] = s[0, 1]
s = cuda.local.array(4, float32)\\nfor j in range(4): s[j] = j\\nfor j in s: out[0] += j
s = cuda.local.array(4, float32)\\ns[0] = 1\\nr = s\\nr[0] += 1\\nout[0] = s[0]
s = cuda.local.array(4, float32)\\ns[0] = 1\\nout[0] = twice(s[0])
s = cuda.local.array(4, float32)\\nstores(s, 4)\\nout[0] = s[0]
s = cuda.local.array(4, float32)\\nout[0] = s.shape[0] + s.size + len(s) + s.ndim
out[0] = cuda.threadIdx.x
out[0] = cuda.threadIdx.w
out[0] = cuda.threadIdx[0]
out[0] = cuda.threadIdx
cuda.threadIdx.x = 1
out[0] = cuda.blockDim.x * cuda.blockIdx.y + cuda.gridDim.z
out[0] = cuda.grid(1)
p, q = cuda.grid(2)\\nout[0] = p + q
p, q, r = cuda.grid(3)\\nout[0] = p + q + r
p = cuda.grid(2)\\nout[0] = p[0]
out[0] = cuda.grid(2)
out[0] = cuda.grid(4)
out[0] = cuda.grid(0)
out[0] = cuda.grid()
out[0] = cuda.grid(ONE)
out[0] = cuda.grid(i)
out[0] = cuda.grid(ndim=1)
out[0] = cuda.gridsize(1)
p, q = cuda.gridsize(2)\\nout[0] = p + q
out[0] = cuda.laneid
out[0] = cuda.laneid()
out[0] = cuda.warpsize
out[0] = cuda.warpsize()
cuda.syncthreads()
cuda.syncthreads
cuda.syncthreads(1)
out[0] = cuda.syncthreads()
p = cuda.syncthreads()
cuda.syncwarp()
cuda.threadfence()
cuda.threadfence_block()
cuda.threadfence_system()
cuda.threadfence(1)
out[0] = cuda.syncthreads_count(i > 1)
out[0] = cuda.syncthreads_count()
out[0] = cuda.nothing(1)
out[0] = cuda.jit
out[0] = cuda.to_device(x)
out[0] = cuda.lanemask_lt()
out[0] = cuda.activemask()
out[0] = cuda.clock()
cuda.nanosleep(100)
cuda.nanosleep(1.5)
out[0] = cuda.atomic.add(out, 1, 5)
out[0] = cuda.atomic.add(x, 1, 5)
out[0] = cuda.atomic.add(m, (1, 2), 5)
out[0] = cuda.atomic.add(m, 1, 5)
out[0] = cuda.atomic.add(x, (1,), 5)
out[0] = cuda.atomic.add(x, 1.0, 5)
out[0] = cuda.atomic.add(x, 1)
out[0] = cuda.atomic.add(x, 1, 5, 6)
out[0] = cuda.atomic.add(1, 1, 5)
out[0] = cuda.atomic.add(x[2:], 1, 5)
out[0] = cuda.atomic.add(TABLE, 1, 5)
out[0] = cuda.atomic.sub(x, 1, 5)
out[0] = cuda.atomic.max(x, 1, 5)
out[0] = cuda.atomic.nanmax(x, 1, 5)
out[0] = cuda.atomic.min(x, 1, 0.5)
out[0] = cuda.atomic.nanmin(x, 1, 0.5)
out[0] = cuda.atomic.inc(ints, 1, 5)
out[0] = cuda.atomic.exch(ints, 1, 5)
out[0] = cuda.atomic.and_(ints, 1, 1)
out[0] = cuda.atomic.or_(ints, 1, 1)
out[0] = cuda.atomic.xor(ints, 1, 1)
out[0] = cuda.atomic.cas(ints, 1, 2, 5)
out[0] = cuda.atomic.compare_and_swap(ints[1:], 2, 5)
out[0] = cuda.atomic.compare_and_swap(ints, 1, 5)
out[0] = cuda.atomic.nothing(ints, 1, 5)
cuda.atomic.add(x, 1, x)
g = cuda.cg.this_grid()\\ng.sync()
out[0] = cuda.fp16.hadd(t, t)
v = cuda.float32x4(1, 2, 3, 4)\\nout[0] = v.x
v = cuda.float32x4(1, 2, 3, 4)\\nv.x = 2
p = cuda.float4(1.0, 2.0, 3.0, 4.0)\\nout[0] = p.w
out[0] = libdevice.nothing(t)
out[0] = libdevice.sincosf(t)[0]
p, q = libdevice.sincosf(t)\\nout[0] = q
p, q = libdevice.frexp(out[1])\\nout[0] = q
p, q = math.frexp(t)\\nout[0] = q
p, q = math.modf(t)\\nout[0] = q
out[0] = math.ldexp(t, i)
for j in range(math.ceil(n / 2)): out[j] = x[j]
for j in range(int(math.ceil(n / 2))): out[j] = x[j]
for j in range(math.ceil(t)): out[j] = x[j]
for j in range(math.floor(x[2])): out[j] = x[j]
for j in range(round(x[2])): out[j] = 1
for j in range(math.trunc(x[2])): out[j] = 1
for j in range(n / 2): out[j] = 1
for j in range(0, math.ceil(n / 2), 1): out[j] = 1
for j in range(0, 2, math.ceil(t)): out[j] = 1
out[0] = x[math.ceil(n / 2)]
out[0] = x[round(t)]
s = cuda.shared.array(math.ceil(3 / 2), float32)\\ns[0] = 1
p = math.ceil(t)\\nout[0] = x[p]
out[0] = math.ceil(t) // 2"""

# Accepted by the compiler but refused by the simulator.
STRICTER = {
    "a GPU does anything at all, or nobody knows what": """for j in range(0, 6, 0): out[0] += 1
if i > 5: k = 1\\nout[0] = k
out[0] = 1 // 0
out[0] = 2**63
out[0] = -2**63
out[0] = 2**70
out[0] = m[twins]
p, q = m[0]\\nout[0] = q
p = (a, a)\\nout[0] = p[i]
out[0] = PAIR[A - 2]
out[0] = x[A]
out[A] = 1
out[0] = m[A, 1]
x[A] += A\\nout[0] = x[3]
for j in range(A): out[j] = 1
for j in range(7, 0, -a): out[j] = 1
out[0] = len(x[:A])
y = A\\ny += 1\\nout[0] = y
s = cuda.local.array(A, float32)\\ns[1] = 2\\nout[0] = s[1]
s = cuda.shared.array((A, 2), float32)\\ns[1, 1] = 2\\nout[0] = s[1, 1]
s = cuda.shared.array(-1, float32)\\ns[0] = 1
out[0] = cuda.atomic.add(TABLE, 1, 5)
cuda.syncwarp(a)
out[0] = cuda.shfl_down_sync(a, i, 0)
out[0] = cuda.shfl_sync(0xFFFFFFFF, i, a)
out[0] = cuda.shfl_xor_sync(1, i, a)
y = m.item()\\nout[0] = 1
y = x.item()\\nout[0] = 1
y = m.reshape(0)\\nout[0] = 1
y = m.reshape(1, 8)\\nout[0] = 1
y = x.reshape(0)\\nout[0] = 1
y = twins.index(1)\\nout[0] = 1""",
    "it raises, and a GPU keeps that to itself": """assert i > 5\\nout[0] = 1
raise
raise ValueError
raise ValueError("too large")""",
    "the simulator lacks it, and says so by name": """out[0] = cuda.activemask()
out[0] = cuda.fp16.hadd(t, t)
p = cuda.float4(1.0, 2.0, 3.0, 4.0)\\nout[0] = p.w
out[0] = cuda.popc(a)
out[0] = cuda.clz(a)
out[0] = cuda.brev(a)
out[0] = hasattr(x, "shape")
out[0] = ord("a")
out[0] = a()
y = ORIGIN.index\\nout[0] = 1
y = m.clip()\\nout[0] = 1
y = x.clip()\\nout[0] = 1
y = x.argmax(0)\\nout[0] = 1
y = x.argmin(0)\\nout[0] = 1
y = x.sum(float32)\\nout[0] = 1
y = repr(twins)\\nout[0] = 1
y = repr(x)\\nout[0] = 1
y = str(twins)\\nout[0] = 1
y = str(x)\\nout[0] = 1
y = np.array_equal(i, i)\\nout[0] = 1
y = np.average(x, out)\\nout[0] = 1
y = np.average(x, x, out)\\nout[0] = 1
y = np.dsplit(x, out)\\nout[0] = 1
y = np.vsplit(x, out)\\nout[0] = 1
y = np.finfo(x)\\nout[0] = 1
y = np.nan_to_num(i, i)\\nout[0] = 1"""}
LOOSER = """r = range(3)\\nout[0] = r[1]
y = lambda: a\\nout[0] = y()"""  # the compiler refuses it, the simulator doesn't yet
