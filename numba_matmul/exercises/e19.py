"""What `grade("19", my_split)` asks of a kernel, what it accepts, and what it must catch.

It splits numbers four times, on very different scales. Once the largest would round up to float16's infinity
if it were scaled to 65,528; once it's a power of two. Pairs are unpacked, so that verdicts name numbers:

- **pairs**: every pair of hi and of lo is written.
- **scale**: a power of two that takes the largest element to 16,384 or more, and nothing to infinity. hi
  shows which one it is.
- **hi**: the scaled numbers, rounded to float16.
- **lo**: 2048 times what hi has lost, rounded to float16, correct to the last bit.
- **one each**: a thread splits one pair. **float64**: no instruction computes in it.
"""
import numpy as np
from ..exercise import Exercise, Goal, Mutant
from ..gemm import split as page
from ..judge import Verdict, accesses, first_of, judge_code, reached, unfit, verdict_and_text
from ..process import ChildError, in_child
from ..ptx.core import float_as_uint
from ..source import cut, function_of, replaced
from numba import cuda, int32, uint32


# What the skeleton is given

@cuda.jit(device=True)
def exponent_of(x):
    "The e of 2^e ≤ x < 2^(e + 1)."
    return int32(float_as_uint(x) >> uint32(23)) - int32(127)


# A run

# pairs, threads, blocks, and the significand of the largest number
CASES = (70, 32, 4, 1.37), (70, 32, 4, 65528 / 32768), (45, 8, 7, 1), (45, 8, 7, 1.7)
EMPTY = 0xFFFFFFFF  # NaN, twice

def arguments(pairs, significand):
    "Numbers, the largest magnitude, and room for parts."
    random = np.random.default_rng()
    x = (random.standard_normal(2 * pairs) * 2.0 ** random.integers(-40, 41)).astype(np.float32)
    x[2::5] *= np.float32(2**-9)  # so small that lo would lose bits if it weren't 2048 times as large
    at = abs(x).argmax()
    x[at] = -significand * 2.0 ** np.ceil(np.log2(abs(x[at])))
    hi, lo = (np.full(pairs, EMPTY, np.uint32) for _ in range(2))
    return x, abs(x).max(), hi, lo

def play(launches, names):
    "In a child: the verdict that fails first and its text, or `None`."
    for launch, args in launches:
        x, before = args[0], args[0].copy()
        try: launch(*args)
        except Exception as e: found = verdict_and_text(e)
        else: found = wrong_parts(*args, names) or wrong_stores(launch.grid, args, names)
        if not found and not np.array_equal(x, before):
            found = "pairs", f"{names[0]} was changed, but it should only be read"
        if found: return found[0], f"{len(x)} numbers, the largest {args[1]:.8g}: {found[1]}"

def wrong_stores(grid, args, names):
    "Who stored parts, and how often? The verdict that fails and its text."
    if remarks := [*grid.remarks.values()]: return "one writer", first_of("\n".join(remarks))
    for name, pairs in zip(names[2:], args[2:]):
        if (stores := grid.stores[name]) != pairs.size:
            return "one store each", f"{stores:,} stores to {name}, which has {pairs.size:,} pairs"


# What is wrong with the parts?

def as_numbers(pairs):
    "What pairs of float16 stand for."
    return pairs.view(np.float16).astype(float)

def as_float16(numbers):
    "Numbers, rounded."
    with np.errstate(over="ignore"): return numbers.astype(np.float16).astype(float)

def exchanged(numbers):
    "The second of each pair before the first."
    return numbers.reshape(-1, 2)[:, ::-1].reshape(numbers.shape)

def factor(x, hi):
    "What numbers were multiplied by before they were rounded; `None` if that isn't one factor."
    large = abs(x) > abs(x).max() / 64
    x, hi = x[large], hi[large]
    found = x @ hi / (x @ x)
    return found if np.allclose(hi, found * x, rtol=0.0011, atol=2**-24) else None

def wrong_parts(x, largest, hi, lo, names):
    "The verdict that fails and its text, or `None`."
    for name, pairs in zip(names[2:], (hi, lo)):
        if len(unset := np.flatnonzero(pairs == EMPTY)):
            return "pairs", (f"{len(unset):,} of {pairs.size:,} pairs of {name} were never written, "
                             f"first {name}[{unset[0]}]")
    x, hi, lo = x.astype(float), as_numbers(hi), as_numbers(lo)
    # scaled by what?
    if found := wrong_scale(x, hi, names): return found
    scaled = x * 2.0 ** np.round(np.log2(factor(x[::2], hi[::2])))
    rest = 2048 * (scaled - hi)
    def told(at):
        return f"{names[0]}[{at}] is scaled to {scaled[at]:.8g}, and {names[2]} has {hi[at]:.8g}"
    # rounded, and what that lost
    if len(wrong := np.flatnonzero(hi != as_float16(scaled))):
        at = wrong[0]
        return "hi", f"{told(at)}; the nearest float16 is {as_float16(scaled)[at]:.8g}"
    if len(wrong := np.flatnonzero(lo != as_float16(rest))):
        at = wrong[0]
        cut_off = (scaled.astype(np.float32).view(np.uint32) & 0xFFFFE000).view(np.float32)
        guesses = {"the 2048 is missing": rest / 2048, "that's hi again": hi, "the sign is wrong": -rest,
                   "that's the rest of a truncated number": 2048 * (scaled - cut_off),
                   "the two numbers of each pair are exchanged": exchanged(rest),
                   "that comes from x as it was": 2048 * (x - hi), "that's scaled back": rest * x / scaled}
        guessed = [f": {guess}" for guess, other in guesses.items() if np.array_equal(lo, as_float16(other))]
        return "lo", (f"{told(at)}; 2048 times the rest is {as_float16(rest)[at]:.6g}, and {names[3]} has "
                      f"{lo[at]:.6g}{''.join(guessed)}")

def wrong_scale(x, hi, names):
    "What's wrong with the scale: the verdict that fails and its text, or `None`."
    if len(infinite := np.flatnonzero(~np.isfinite(hi))):
        at = infinite[0]
        return "scale", f"{names[0]}[{at}] = {x[at]:.8g} becomes {hi[at]} in {names[2]}"
    at = abs(x).argmax()
    told = f"{names[0]}[{at}] = {x[at]:.8g} has {hi[at]:.6g} in {names[2]}"
    if abs(hi).max() < 1: return "scale", f"{told}, which is too small"
    # by what were they multiplied?
    first, second = factor(x[::2], hi[::2]), factor(x[1::2], hi[1::2])
    if first is None or second is None:
        if factor(exchanged(x), hi): return "hi", f"the two numbers of each pair of {names[2]} are exchanged"
        return "hi", f"{told}, and other numbers aren't multiplied by the same factor"
    if not np.isclose(first, second, rtol=0.002):
        return "scale", (f"the first element of a pair is multiplied by {first:.5g}, the second one by "
                         f"{second:.5g}")
    exponent = np.log2(first) if first > 0 else np.nan
    if not abs(exponent - np.round(exponent)) < 0.002:
        return "scale", f"numbers are multiplied by {first:.5g}, which isn't a power of two"
    if abs(x[at]) * 2.0 ** np.round(exponent) < 2**14: return "scale", f"{told}, which is too small"


def judge(exercise, kernel):
    "The verdicts on a kernel, one by one."
    if verdict := unfit(kernel, (0,) * 4): yield verdict
    launches = [(kernel[blocks, threads], arguments(pairs, significand))
                for pairs, threads, blocks, significand in CASES]
    names = function_of(kernel).__code__.co_varnames[:4]
    try: failed = in_child(play, launches, names, simulator=True, timeout=20, keep=True)
    except ChildError as e: failed = "ends", first_of(str(e))
    if failed:
        verdict, text = failed
        yield Verdict(verdict, False, text)
    for name, found in (("scale", "a power of two, and nothing is infinite"), ("hi", "the nearest float16"),
                        ("lo", "2048 times the rest, to the last bit")):
        yield Verdict(name, True, found)
    one_each, no_float64 = exercise.goals
    launch, args = launches[0]
    yield reached(one_each, one_each.measure(accesses(exercise, launch, args)))
    yield from judge_code([no_float64], kernel, "void(float32[::1], float32, uint32[::1], uint32[::1])")


REFERENCE = """@cuda.jit
def my_split(x, largest, hi, lo):
    i = cuda.grid(1)
    if i < hi.size:
        scale = power_of_two(14 - exponent_of(largest))
        p, q = x[2 * i] * scale, x[2 * i + 1] * scale
        pair = cvt_rn_f16x2_f32(p, q)
        p_hi, q_hi = unpack_f16x2(pair)
        hi[i] = pair
        lo[i] = cvt_rn_f16x2_f32((p - p_hi) * float32(2048), (q - q_hi) * float32(2048))
"""
HEAD, GUARD, SCALE, SCALED, PAIR, UNPACKED, HI, LO = cut(
    REFERENCE, "    if i", "        scale", "        p, q", "        pair", "        p_hi", "        hi[",
    "        lo[")


SOLUTIONS = {
    "reference": REFERENCE,
    "the largest power of two": replaced(
        REFERENCE, ("14 - exponent_of(largest)", "15 - exponent_of(largest * float32(1 + 2**-11))")),
    "a return, and hi read again": HEAD + """    if i >= len(x) // 2: return
    s = power_of_two(exponent_of(largest) - 14)
    p, q = x[2 * i] / s, x[2 * i + 1] / s
    hi[i] = cvt_rn_f16x2_f32(p, q)
    p_hi, q_hi = unpack_f16x2(hi[i])
    lo[i] = cvt_rn_f16x2_f32((p - p_hi) * power_of_two(11), (q - q_hi) * power_of_two(11))
""",
    "number by number, and on to the next pair": """@cuda.jit(device=True)
def rest(x):
    return float32(2048) * x - float32(2048) * unpack_f16x2(cvt_rn_f16x2_f32(x, x))[1]

@cuda.jit
def my_split(x, largest, hi, lo):
    scale = power_of_two(14 - exponent_of(largest))
    for i in range(cuda.grid(1), hi.shape[0], cuda.gridsize(1)):
        p, q = scale * x[2 * i], scale * x[2 * i + 1]
        hi[i] = cvt_rn_f16x2_f32(p, q)
        lo[i] = cvt_rn_f16x2_f32(rest(p), rest(q))
""",
    "bits put together by hand": HEAD + GUARD + SCALE + SCALED + """
        low, high = cvt_rn_f16x2_f32(p, float32(0)), cvt_rn_f16x2_f32(q, float32(0))
        hi[i] = low | high << uint32(16)
        p, q = p - unpack_f16x2(low)[0], q - unpack_f16x2(high)[0]
        lo[i] = cvt_rn_f16x2_f32(p * float32(2**11), q * float32(2**11))
"""}


RESTS = "(p - p_hi) * float32(2048), (q - q_hi) * float32(2048)"
POWER = "power_of_two(14 - exponent_of(largest))"
BODY = SCALE + SCALED + PAIR + UNPACKED + HI + LO
TRUNCATED = """        {} = uint_as_float(float_as_uint(p) & uint32(0xFFFFE000))
        {} = uint_as_float(float_as_uint(q) & uint32(0xFFFFE000))
"""
def body(name, old, new, verdict): return Mutant(name, BODY, replaced(BODY, (old, new)), verdict)
def rests(name, new): return body(name, RESTS, new, "lo")


MUTANTS = (
    Mutant("not written", BODY, "        ...\n", "written"),
    Mutant("the library's pair", REFERENCE,
           "from numba_matmul.gemm.split import split_pair\n" + HEAD + GUARD + SCALE + SCALED
           + "        hi[i], lo[i] = split_pair(p, q)\n", "your own"),
    # who splits what
    Mutant("no guard", GUARD, "    if True:\n", "in bounds"),
    Mutant("<= in the guard", "i < hi", "i <= hi", "in bounds"),
    Mutant("a guard for numbers, not for pairs", "hi.size", "x.size", "in bounds"),
    Mutant("the last pair left out", "i < hi.size", "i < hi.size - 1", "pairs"),
    Mutant("place in the block", "cuda.grid(1)", "cuda.threadIdx.x", "pairs"),
    Mutant("every other pair", HEAD, HEAD.replace("cuda.grid(1)", "2 * cuda.grid(1)"), "pairs"),
    body("hi is not stored", HI, "", "pairs"),
    body("lo is not stored", "lo[i] =", "rests =", "pairs"),
    body("stored twice", HI, HI + HI, "one store each"),
    Mutant("idle threads split the last pair, too", GUARD,
           "    i = min(i, hi.size - 1)\n    if True:\n", "one writer"),
    Mutant("one thread of each block splits its pairs", HEAD + GUARD + BODY, HEAD + """
    if cuda.threadIdx.x == 0:
        for i in range(i, min(i + cuda.blockDim.x, hi.size)):
""" + "".join(f"    {line}" for line in BODY.splitlines(True)), "one each"),
    body("a number and the one after it", SCALED, SCALED.replace("2 * i", "i"), "hi"),
    body("a number of each half", SCALED,
         replaced(SCALED, ("2 * i + 1", "i + hi.size"), ("2 * i", "i")), "hi"),
    body("the first number twice", "2 * i + 1", "2 * i", "hi"),
    body("hi and lo exchanged", HI + LO, replaced(HI, ("hi[", "lo[")) + replaced(LO, ("lo[", "hi[")), "hi"),
    # the scale
    body("not scaled", SCALED, SCALED.replace(" * scale", ""), "scale"),
    body("only the first number is scaled", "[2 * i + 1] * scale", "[2 * i + 1]", "scale"),
    body("divided by the largest", POWER, "float32(32768) / largest", "scale"),
    body("as close to the end as it gets", POWER, "float32(65504) / largest", "scale"),
    body("a power of two too many", "14 -", "15 -", "scale"),
    body("two too many", "14 -", "16 -", "scale"),
    body("scaled to 1", "14 -", "-", "scale"),
    body("the other way round", "14 - exponent_of(largest)", "exponent_of(largest) - 14", "scale"),
    body("the exponent, not its power of two", POWER, "float32(14 - exponent_of(largest))", "scale"),
    body("a scale for each pair", "largest", "max(abs(x[2 * i]), abs(x[2 * i + 1]))", "hi"),
    body("a power of two in float64", POWER, "2.0 ** (14 - exponent_of(largest))", "float64"),
    # hi
    body("the second number first", "cvt_rn_f16x2_f32(p, q)", "cvt_rn_f16x2_f32(q, p)", "hi"),
    body("rounded toward zero", PAIR, TRUNCATED.format("p_cut", "q_cut")
         + "        pair = cvt_rn_f16x2_f32(p_cut, q_cut)\n", "hi"),
    # lo
    body("what truncation would have lost", UNPACKED, TRUNCATED.format("p_hi", "q_hi"), "lo"),
    body("hi twice", LO, "        lo[i] = pair\n", "lo"),
    rests("2048 left out", "p - p_hi, q - q_hi"),
    rests("2048 left out of one", RESTS.removesuffix(" * float32(2048)")),
    rests("1024 times as large", RESTS.replace("2048", "1024")),
    rests("4096 times as large", RESTS.replace("2048", "4096")),
    rests("hi less the number", replaced(RESTS, ("p - p_hi", "p_hi - p"), ("q - q_hi", "q_hi - q"))),
    rests("the rest of the second number first", ", ".join(reversed(RESTS.split(", ")))),
    rests("the rest of what was not scaled",
          replaced(RESTS, ("(p -", "(x[2 * i] -"), ("(q -", "(x[2 * i + 1] -"))),
    rests("the rest is scaled back", RESTS.replace("(2048)", "(2048) / scale")),
    rests("only hi is 2048 times as large", "p - p_hi * float32(2048), q - q_hi * float32(2048)"),
    body("unpacked the wrong way round", "p_hi, q_hi =", "q_hi, p_hi =", "lo"))


EXERCISES = (Exercise(
    "19", "my_split", page=page, judge=judge,
    goals=(
        Goal("one each", lambda view: sum(site.requests for site in view.merged()
                                          if (site.array, site.operation) == ("hi", "store")),
             most=1, least=1, unit="pairs per thread", hint="each thread splits one pair, its own"),
        Goal("float64", lambda code: sum(x.kind in ("DFMA", "float64") for x in code.instructions), most=0,
             unit="instructions in float64", counted="code",
             hint="to the compiler 2.0 is float64, and so is 2.0 ** e: power_of_two(e) returns a float32")),
    hints={
        "in bounds": (
            "there are more threads than pairs, and hi.size is the number of pairs"),
        "pairs: was changed": "only hi and lo should be written",
        "pairs": "pair i goes to hi[i] and lo[i]: which thread writes this one?",
        "one store each": "store each pair of hi once, and each pair of lo once",
        "one writer": "a thread without a pair should do nothing",
        "scale: becomes": (
            "float16 ends at 65,504, and rounds to infinity from 65,520 on. With an exponent of 15 the "
            "largest number is below 65,536, which isn't enough; with 14 it's below 32,768"),
        "scale: too small": (
            "if 2^e ≤ largest < 2^(e + 1), then power_of_two(14 - e) scales it to 2^14 or more"),
        "scale: power of two": (
            "a factor that isn't a power of two changes each element's significand, and so rounds it. "
            "Use exponent_of(largest), not the largest itself"),
        "scale": "both elements of a pair are multiplied by the same scale",
        "hi: are exchanged": "the first element goes into the low half: cvt_rn_f16x2_f32(first, second)",
        "hi: nearer": "cvt_rn_f16x2_f32 rounds to nearest by itself: give it the scaled numbers as they are",
        "hi": (
            "pair i is x[2 * i] and the number after it, and all numbers share one scale, computed from the "
            "largest"),
        "lo: 2048 is missing": (
            "what rounding lost is at least 2048 times smaller than the number, and float16 loses bits below "
            "2^-14: store it 2048 times as large"),
        "lo: hi again": "lo is what hi has lost: the scaled number minus hi",
        "lo: sign": "number = hi + rest, so rest = number - hi",
        "lo: truncated": (
            "hi is rounded to nearest, so it may be larger than the number. Subtract what you stored: "
            "unpack_f16x2 of the pair"),
        "lo: are exchanged": "the first number's rest goes into the low half",
        "lo: as it was": "hi belongs to the scaled number, so subtract it from that one",
        "lo: scaled back": "hi and lo have the same scale, and it's undone only in the product",
        "lo": (
            "for each number: (scaled number - its hi) * float32(2048), where hi is what unpack_f16x2 "
            "returns for the pair that you stored, low half first")},
    preamble="""from numba_matmul.exercises.e19 import exponent_of
from numba_matmul.gemm.split import power_of_two
from numba_matmul.ptx.ampere import cvt_rn_f16x2_f32, unpack_f16x2
from numba_matmul.ptx.core import float_as_uint, uint_as_float
""",
    solutions=SOLUTIONS, mutants=MUTANTS),)
