"""What `grade("21", my_issue)` and `grade("21b", my_verdict)` ask of a scheduler's rule and of a comparison.

`my_issue` is asked in every cycle of several loops, with the warps as they'd be if the right one had always
issued. So the first wrong choice is reported as what it is: a warp that may not issue, one that may but isn't
chosen, or the wrong one of several. The loops are those of the page and random ones.

`my_verdict` gets pairs of loops in which one resource is clearly the limit. The faster kernel isn't always
the one whose pass takes fewer cycles.
"""
import copy

import numpy as np

from .. import toy
from ..exercise import Exercise, Mutant
from ..judge import Verdict
from ..toy import LATENCY, Op, ToyKernel, cycles_per_pass, issue, run

LDS, LDG, FFMA, IADD = Op("LDS", sets=0, service=4), Op("LDG", sets=1, service=4), Op("FFMA"), Op("IADD3", 2)
FIRST = FFMA._replace(waits=(0,))


def tile(n, warps, name=None):
    "n×n results of a thread: its loop loads n elements of each tile."
    loop = (*[LDS] * (2 * n), FIRST, *[FFMA] * (n * n - 1))
    return ToyKernel(name or f"{n}×{n}", (*loop[:-1], loop[-1]._replace(stall=4)), warps)

AHEAD = ToyKernel("loads ahead", (LDG, FIRST, *[FFMA] * 3, Op("STS", 1, (1,), 0, 4), LDS), 3)
BOTH = ToyKernel("two loads", (LDS, LDG, FFMA._replace(waits=(0, 1)), FFMA), 2)

def random_kernel(random):
    "A loop at random, for a few warps."
    loop = []
    for _ in range(random.integers(3, 9)):
        stall, service = random.integers(1, 6), random.choice((0, 0, 1, 3))
        waits = tuple(np.flatnonzero(random.random(3) < 0.3).tolist())
        board = int(random.integers(3)) if service else None
        loop.append(Op("LDS" if service else "FFMA", int(stall), waits, board, int(service)))
    return ToyKernel("a random loop", tuple(loop), int(random.integers(2, 6)))


# The rule

def _why(warp, now):
    "Verdict and text: why a warp may not issue; `None` if it may."
    if warp.ready > now:
        return "stall", f"the stall count of its last instruction holds it until cycle {warp.ready}"
    for board in warp.waits:
        if warp.clear[board] > now:
            return "scoreboards", (f"{warp.op.text} waits for scoreboard {board}, which is clear from cycle "
                                   f"{warp.clear[board]}")

def _state(warps): return [(w.number, w.loop, w.at, w.ready, w.clear, w.passes) for w in warps]

class Wrong(Exception):
    "A verdict that fails, and what was found."

def judged_rule(fn):
    "A rule that issues correctly, and compares what `fn` chooses."
    def rule(now, warps, last):
        right, given = issue(now, warps, last), copy.deepcopy(warps)
        before = _state(given)
        try: said = fn(now, given, given[last.number] if last else None)
        except Exception as e: raise Wrong("runs", f"cycle {now}: {type(e).__name__}: {e}") from None
        if _state(given) != before: raise Wrong("unchanged", f"cycle {now}: it changes a warp")
        if said is not None and not any(said is warp for warp in given):
            raise Wrong("returns", f"cycle {now}: it returns {said!r}, not a warp or None")
        if said is None:
            if right: raise Wrong("idle", f"cycle {now}: nothing issues, but warp {right.number} could")
            return right
        if why := _why(said, now):
            verdict, text = why
            raise Wrong(verdict, f"cycle {now}: warp {said.number} can't issue yet: {text}")
        if said.number != right.number:
            verdict, why = ("stays", "issued last and can go on") if right is last else (
                "oldest", "could, and is older")
            raise Wrong(verdict, f"cycle {now}: warp {said.number} issues, but {right.number} {why}")
        return right
    return rule

def judge_rule(exercise, fn):
    "The verdicts on `my_issue`."
    random = np.random.default_rng()
    kernels = [tile(1, 1), tile(1, 4), tile(2, 3), AHEAD, BOTH, *(random_kernel(random) for _ in range(24))]
    for kernel in kernels:
        latency = int(random.integers(4, 2 * LATENCY)) if kernel.name == "a random loop" else LATENCY
        try: sum(1 for _ in run(kernel, 120, rule=judged_rule(fn), latency=latency))
        except Wrong as e:
            verdict, text = e.args
            many = f"{kernel.warps} warp{'s' * (kernel.warps > 1)}"
            yield Verdict(verdict, False, f"{kernel.name}, {many}, {text}")
    yield Verdict("runs", True, f"{len(kernels)} loops of up to 5 warps, 120 cycles each")
    yield Verdict("stall", True, "no warp issues before its stall count is over")
    yield Verdict("scoreboards", True, "none before its scoreboards are clear")
    yield Verdict("idle", True, "and no cycle is wasted")
    yield Verdict("stays", True, "the warp that issued last goes on as long as it can")
    yield Verdict("oldest", True, "else the oldest that can")


ISSUE = """def my_issue(now, warps, last):
    can = [w for w in warps if w.ready <= now and all(w.clear[s] <= now for s in w.waits)]
    if last in can: return last
    return can[0] if can else None
"""
LOOP = """def my_issue(now, warps, last):
    def may(warp):
        if now < warp.ready: return False
        for board in warp.waits:
            if now < warp.clear[board]: return False
        return True
    if last is not None and may(last): return last
    for warp in warps:
        if may(warp): return warp
    return None
"""
SORTED = """def my_issue(now, warps, last):
    def free_from(warp): return max([warp.ready, *(warp.clear[board] for board in warp.op.waits)])
    can = [warp for warp in warps if free_from(warp) <= now]
    return min(can, key=lambda warp: (warp is not last, warp.number), default=None)
"""
FIRST_OF = """def my_issue(now, warps, last):
    order = ([last] if last else []) + warps
    return next((warp for warp in order
                 if warp.ready <= now and not any(warp.clear[b] > now for b in warp.waits)), None)
"""
RULES = dict(reference=ISSUE, loops=LOOP, sorted=SORTED, first=FIRST_OF)

RULE = (Exercise(
    "21", "my_issue", judge=judge_rule, page=toy,
    hints={
        "runs": "in the first cycle, last is None; and there may be cycles in which no warp can issue",
        "returns": "return one of the warps themselves, not its number, or None",
        "stall": "warp.ready is the first cycle in which its stall count lets it issue",
        "scoreboards": (
            "warp.clear[s] is the first cycle in which scoreboard s is clear. All in warp.waits must be"),
        "idle": (
            "in cycle warp.ready a warp may issue, and only the scoreboards in warp.waits matter. Is there a "
            "warp that you never look at?"),
        "stays": "if the last warp can issue, it does",
        "oldest": "warps are in the order of their age, so the first one that can issue is the oldest",
        "unchanged": "only choose: the machine does the rest"},
    solutions=RULES,
    mutants=(
        Mutant("not written", "return can[0] if can else None", "...", "written"),
        Mutant("the stall count is ignored", "w.ready <= now and ", "", "stall"),
        Mutant("the scoreboards are ignored", " and all(w.clear[s] <= now for s in w.waits)", "",
               "scoreboards"),
        Mutant("one clear scoreboard is enough", "all(w.clear[s] <= now for s in w.waits)",
               "(not w.waits or any(w.clear[s] <= now for s in w.waits))", "scoreboards"),
        Mutant("any of them, even of none", "all(w.clear", "any(w.clear", "idle"),
        Mutant("all six scoreboards", "w.clear[s] <= now for s in w.waits", "c <= now for c in w.clear",
               "idle"),
        Mutant("only the first scoreboard", "for s in w.waits)", "for s in w.waits[:1])", "scoreboards"),
        Mutant("a cycle too late", "w.ready <= now", "w.ready < now", "idle"),
        Mutant("a cycle too early", "w.ready <= now", "w.ready <= now + 1", "stall"),
        Mutant("scoreboards a cycle too late", "w.clear[s] <= now", "w.clear[s] < now", "idle"),
        Mutant("scoreboards a cycle too early", "w.clear[s] <= now", "w.clear[s] <= now + 1", "scoreboards"),
        Mutant("the scoreboard it sets, not those it waits for", "for s in w.waits",
               "for s in [w.op.sets] if s is not None", "idle"),
        Mutant("always the oldest", "    if last in can: return last\n", "", "stays"),
        Mutant("the youngest", "return can[0] if", "return can[-1] if", "oldest"),
        Mutant("the one after the last", "    if last in can: return last\n",
               "    after = [w for w in can if last and w.number > last.number]\n"
               "    if after: return after[0]\n", "stays"),
        Mutant("the last one, even if it can't", "if last in can: return last", "if last: return last",
               "scoreboards"),
        Mutant("the last one or none", "return can[0] if can else None", "return None if last else warps[0]",
               "idle"),
        Mutant("its number", "return last\n", "return last.number\n", "returns"),
        Mutant("all that can", "return can[0] if can else None", "return can", "returns"),
        Mutant("the first, even if none can", "return can[0] if can else None", "return can[0]", "runs"),
        Mutant("the last one without a look for None", "if last in can",
               "if last.ready <= now and last in can", "runs"),
        Mutant("the oldest, even if it can't", "return can[0] if can else None", "return warps[0]",
               "scoreboards"),
        Mutant("it lets the warp go on itself", "if last in can: return last",
               "if last in can:\n        last.at += 1\n        return last", "unchanged"),
        Mutant("it shifts the stall counts", "    if last in can", "    for w in warps: w.ready -= 1\n"
               "    if last in can", "unchanged"),
        Mutant("two warps take turns only", "for w in warps if", "for w in warps[:2] if", "idle"),
        Mutant("the one with the fewest passes", "return can[0] if can else None",
               "return min(can, key=lambda w: (w.passes, -w.number), default=None)", "oldest"),
        Mutant("the scoreboards or the stall count", "<= now and all", "<= now or all", "scoreboards"),
        Mutant("older first, wrong way around", "    if last in can: return last\n",
               "    if last in can: return last\n    can = can[::-1]\n", "oldest"),
    )),)


# The comparison

def _pair(one, other, *limits): return (one, other), limits

SLOTS, UNIT, WAITS = "issue slots", "memory unit", "latency"
HEAVY = ToyKernel("ten additions", (LDS, *[IADD._replace(stall=1)] * 10, FIRST._replace(stall=4)), 16)
FAR = ToyKernel("far loads", (LDS, Op("STS", 9, (), None, 1), *[Op("IADD3", 9)] * 3, FIRST), 2)
PAIRS = (
    _pair(tile(1, 8), tile(1, 1), UNIT, WAITS),
    _pair(tile(2, 1), tile(2, 8), WAITS, UNIT),
    _pair(tile(1, 4, "fewer cycles"), tile(8, 8, "more products"), UNIT, SLOTS),
    _pair(tile(8, 8), tile(4, 8), SLOTS, UNIT),
    _pair(HEAVY, tile(1, 8), SLOTS, UNIT),
    _pair(FAR, HEAVY, WAITS, SLOTS),
    _pair(tile(3, 1), tile(2, 4), WAITS, UNIT),
    _pair(tile(8, 1, "few warps, many results"), tile(1, 8), WAITS, UNIT))

def shares(kernel):
    "The part of the time in which each resource is busy."
    cycles = cycles_per_pass(kernel)
    return {SLOTS: kernel.warps * len(kernel.loop) / cycles,
            UNIT: kernel.warps * sum(op.service for op in kernel.loop) / cycles}

def told_of(kernel):
    "A kernel and its numbers, as text."
    busy = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares(kernel).items())
    return (f"{kernel.name}, {kernel.warps} warps: {kernel.products} multiply-adds in "
            f"{cycles_per_pass(kernel):.0f} cycles, busy: {busy}")

def judge_comparison(exercise, fn):
    "The verdicts on `my_verdict`."
    for pair, limits in PAIRS:
        speeds = [kernel.products / cycles_per_pass(kernel) for kernel in pair]
        try: said = fn(*pair)
        except Exception as e:
            yield Verdict("runs", False, f"{pair[0].name} and {pair[1].name}: {type(e).__name__}: {e}")
        if not isinstance(said, (tuple, list)) or len(said) != 3:
            yield Verdict("returns", False, f"{said!r}, not the faster kernel and two limits")
        faster, *found = said
        if not any(faster is kernel for kernel in pair):
            yield Verdict("returns", False, f"{faster!r} isn't one of the two kernels")
        for name in found:
            if not isinstance(name, str) or name not in (SLOTS, UNIT, WAITS):
                yield Verdict("returns", False, f"{name!r} isn't one of “{SLOTS}”, “{UNIT}”, “{WAITS}”")
        for kernel, limit, given in zip(pair, limits, found):
            if given != limit: yield Verdict(limit, False, f"you say {given}; {told_of(kernel)}")
        if faster is not pair[speeds[1] > speeds[0]]:
            yield Verdict("faster", False, "; ".join(map(told_of, pair)))
    yield Verdict("runs", True, f"{len(PAIRS)} pairs")
    for limit in SLOTS, UNIT, WAITS: yield Verdict(limit, True, "where that's the limit")
    yield Verdict("faster", True, "more multiply-adds per cycle")


COMPARE = """def my_verdict(one, other):
    def limit(kernel):
        cycles = cycles_per_pass(kernel)
        slots = kernel.warps * len(kernel.loop)
        unit = kernel.warps * sum(op.service for op in kernel.loop)
        if max(slots, unit) < 0.9 * cycles: return "latency"
        return "issue slots" if slots > unit else "memory unit"
    def speed(kernel): return kernel.products / cycles_per_pass(kernel)
    return one if speed(one) > speed(other) else other, limit(one), limit(other)
"""
SHARES = """def my_verdict(one, other):
    limits, times = [], []
    for kernel in (one, other):
        time = cycles_per_pass(kernel)
        busy = {"issue slots": len(kernel.loop) * kernel.warps / time, "memory unit": 0}
        for op in kernel.loop: busy["memory unit"] += op.service * kernel.warps / time
        top = max(busy, key=busy.get)
        limits.append(top if busy[top] >= 0.9 else "latency")
        times.append(time / kernel.products)
    return (one, *limits) if times[0] < times[1] else (other, *limits)
"""
MAXIMUM = """def my_verdict(one, other):
    def judged(k):
        t = cycles_per_pass(k)
        bounds = [(k.warps * len(k.loop), "issue slots"),
                  (k.warps * sum(op.service for op in k.loop), "memory unit"), (0.9 * t, "latency")]
        return k.products / t, max(bounds)[1]
    (a, first), (b, second) = judged(one), judged(other)
    return [other if b > a else one, first, second]
"""
FASTER = "one if speed(one) > speed(other) else other"

COMPARISON = (Exercise(
    "21b", "my_verdict", judge=judge_comparison, preamble="from numba_matmul.toy import cycles_per_pass\n",
    hints={
        "runs": "a kernel has name, loop, warps and products; an instruction of its loop has service",
        "returns": "return three things: the faster of the two kernels, and the limit of each as text",
        SLOTS: "each warp issues every instruction of the loop once per pass, and one issues per cycle",
        UNIT: "the unit serves every load of every warp: it's busy for the sum of their service",
        WAITS: "if no resource is busy for 90 % of the cycles, warps wait and nothing is used up",
        "faster": "faster means more multiply-adds per cycle: two loops needn't do the same amount of work"},
    solutions=dict(reference=COMPARE, shares=SHARES, maximum=MAXIMUM),
    mutants=(
        Mutant("not written", f"return {FASTER}, limit(one), limit(other)", "...", "written"),
        Mutant("fewer cycles are faster", "return kernel.products / cycles_per_pass(kernel)",
               "return -cycles_per_pass(kernel)", "faster"),
        Mutant("more products are faster", "return kernel.products / cycles_per_pass(kernel)",
               "return kernel.products", "faster"),
        Mutant("more warps are faster", "return kernel.products / cycles_per_pass(kernel)",
               "return kernel.warps", "faster"),
        Mutant("the slower one", "speed(one) > speed(other)", "speed(one) < speed(other)", "faster"),
        Mutant("always the first", FASTER, "one", "faster"),
        Mutant("always the second", FASTER, "other", "faster"),
        Mutant("products of a warp", "return kernel.products /", "return kernel.products / kernel.warps /",
               "faster"),
        Mutant("the busier one is faster", "return kernel.products / cycles_per_pass(kernel)",
               "return kernel.warps * len(kernel.loop) / cycles_per_pass(kernel)", "faster"),
        Mutant("never latency", "        if max(slots, unit) < 0.9 * cycles: return \"latency\"\n", "",
               "latency"),
        Mutant("latency if both are idle", "max(slots, unit) < 0.9", "max(slots, unit) < 0.2", "latency"),
        Mutant("always latency", "max(slots, unit) < 0.9 * cycles", "True", UNIT),
        Mutant("latency if one of them isn't busy", "max(slots, unit)", "min(slots, unit)", UNIT),
        Mutant("both swapped", "slots > unit", "slots < unit", UNIT),
        Mutant("slots of one warp", "slots = kernel.warps * len", "slots = len", SLOTS),
        Mutant("service of one warp", "unit = kernel.warps * sum", "unit = sum", UNIT),
        Mutant("loads counted, not their service", "sum(op.service for", "sum(op.service > 0 for", UNIT),
        Mutant("stall counts as slots", "len(kernel.loop)", "sum(op.stall for op in kernel.loop)", WAITS),
        Mutant("memory whenever it loads", "\"issue slots\" if slots > unit else",
               "\"issue slots\" if not unit else", SLOTS),
        Mutant("limits in the other order", "limit(one), limit(other)", "limit(other), limit(one)", UNIT),
        Mutant("the first one's limit for both", "limit(one), limit(other)", "limit(one), limit(one)", WAITS),
        Mutant("its name, not the kernel", f"{FASTER}, limit", "max((one, other), key=speed).name, limit",
               "returns"),
        Mutant("no limits", f"{FASTER}, limit(one), limit(other)", FASTER, "returns"),
        Mutant("another name", "\"issue slots\" if", "\"compute\" if", "returns"),
        Mutant("the service of an instruction that has none", "op.service for op in kernel.loop",
               "op.cycles for op in kernel.loop", "runs"),
    )),)

EXERCISES = RULE + COMPARISON
