"""A pass of a kernel's loop over k: the instructions of its machine code that it walks through, each as often
as the loops inside turn."""
from collections import Counter


class NoPrediction(Exception):
    "The model doesn't cover this kernel: why."


# The k loop in the machine code

UNKNOWN = {  # what the model can't follow inside the loop → why
    "HMMA HGMMA WARPGROUP": "it multiplies on the tensor cores, and the model only knows the FMA units",
    "DFMA DADD DMUL DSETP": "it computes in float64",
    "LDL STL": "its registers spill to local memory",
    "ATOM ATOMG ATOMS RED": "its loop has atomic operations",
    "UTMALDG SYNCS": "its tiles are copied by the TMA",
    "CALL": "its loop calls a function",
    "SHFL": "its loop exchanges values between lanes"}

def k_loop(code):
    """The innermost loop around the main loop that loads from global memory, or one around that if only that
    one fills tiles; `NoPrediction` if none loads."""
    ins = code.instructions
    names = {x.name for x in (code.main_loop if code.main else ins)}
    for unknown, why in UNKNOWN.items():
        if names & set(unknown.split()): raise NoPrediction(why)
    if not code.main or "FFMA" not in names:
        raise NoPrediction("no loop of its machine code multiplies in float32")
    around = [loop for loop in code.loops if loop == code.main or loop.holds(code.main)]
    around = [loop for loop in around if _loads(ins, range(loop.start, loop.end))]
    if not around: raise NoPrediction("no loop both multiplies and loads from global memory")
    around.sort(key=lambda loop: loop.end - loop.start)
    def stores(loop): return any(x.name == "STG" for x in ins[loop.start:loop.end])
    tiled = (loop for loop in around if _fills_tiles(ins, range(loop.start, loop.end)) and not stores(loop))
    found = next(tiled, around[0])
    if stores(found):
        raise NoPrediction("its loop over k also stores to global memory")
    for unknown, why in UNKNOWN.items():
        if {x.name for x in ins[found.start:found.end]} & set(unknown.split()): raise NoPrediction(why)
    return found

def _loads(ins, where): return [i for i in where if ins[i].name in ("LDG", "LDGSTS")]
def _fills_tiles(ins, where): return any(ins[i].name in ("STS", "LDGSTS") for i in where)

def _loading(ins, outer, main):
    "The loops in `outer` that do nothing but load: the compiler doesn't know how often."
    return [loop for loop in outer.inside if loop != main and not loop.holds(main)
            and _loads(ins, range(loop.start, loop.end))]

def _turns(ins, loading, counts, rounds):
    """How often loops that only load turn, and what's left over: loop → turns, line → loads.

    The compiler unrolls such a loop, and puts what's left over before it. `counts` says how often a thread
    runs each line in a pass. A loop around another turns as often as that begins, which `rounds` says."""
    times, left, unclear = {}, {}, "it loads in several loops, and how often each runs isn't clear"
    if len({loop.start for loop in loading}) < len(loading): raise NoPrediction(unclear)
    for loop in loading:
        if any(map(loop.holds, loading)): continue
        around = [other for other in loading if other.holds(loop)]
        lines = Counter(ins[i].line for i in _loads(ins, range(loop.start, loop.end)))
        begun = {rounds[line] for line in lines} if around else {1}
        if lines.keys() & left.keys() or len(around) > 1 or len(begun) > 1 or not min(begun):
            raise NoPrediction(unclear)
        begun = max(1, round(*begun))
        found = {line: divmod(round(counts[line] / begun), unrolled) for line, unrolled in lines.items()}
        turns = {whole for whole, _ in found.values()}
        if len(turns) > 1 or any(times.get(other.start, begun) != begun for other in around):
            raise NoPrediction(unclear)
        times |= {loop.start: turns.pop()} | {other.start: begun for other in around}
        left |= {line: rest for line, (_, rest) in found.items()}
    return times, left

def _walk(ins, outer, main, turns, loading=(), counts=None, rounds=None):
    """The numbers of the instructions of a pass through `outer`, with `turns` of the loop inside it. For
    loops that only load see `_turns`."""
    labels = {x.label: i for i, x in enumerate(ins) if x.label}
    times, rests = _turns(ins, loading, counts, rounds)
    loops = {loop.start: loop for loop in loading}
    if outer != main: loops[main.start], times[main.start] = main, turns
    inner = [range(loop.start, loop.end) for loop in loading if not any(map(loop.holds, loading))]
    path = []
    def through(loop):
        "One turn of a loop that holds others."
        left, skipped = dict(rests), set()  # skipped: guards of loads that don't run
        def runs(places):
            "Does a pass run any of the loads at these places? `None` if there are none that are counted."
            said = [times[start] > 0 for start in loops if start != main.start and start in places]
            alone = (i for i in _loads(ins, places) if not any(i in one for one in inner))
            said += [left[ins[i].line] > 0 for i in alone if ins[i].line in left]
            return any(said) if said else None
        i = loop.start
        while i < loop.end:
            if i in loops and loops[i] != loop:
                for _ in range(times[i]):
                    if any(map(loops[i].holds, loading)): through(loops[i])
                    else: path.extend(range(i, loops[i].end))
                i = loops[i].end
                continue
            counted = _loads(ins, [i]) and ins[i].line in left
            if counted and ins[i].guard and left[ins[i].line] <= 0: skipped.add(ins[i].guard)
            elif not (ins[i].name == "STS" and ins[i].guard in skipped): path.append(i)
            if counted: left[ins[i].line] -= 1
            to = labels.get(ins[i].target, 0)
            forward = i < to < loop.end
            # branches under a condition: taken only around loads that don't run
            i = to if forward and (not ins[i].guard or runs(range(i + 1, to)) is False) else i + 1
    through(outer)
    return path
