"""One multiprocessor, cycle by cycle: how long do its warps take for a pass of a loop?

The loop comes as a table, one row per instruction, see `COLUMNS`. Warps walk through it. Each of the four
schedulers issues one instruction per cycle, of a warp whose next instruction may issue: its stall count is
over, the scoreboards that it waits for are clear, its pipe is free. Memory instructions go to one unit for
all four, which serves them in order.
"""
import numpy as np
from numba import njit

# What an instruction is, as far as the model knows.
FMA, HEAVY, ALU, LDS, STS, LDG, LDGSTS, BARRIER, WAIT_GROUP, COMMIT, OTHER, UNIFORM = range(12)
KINDS = {FMA: "FFMA FADD FMUL", HEAVY: "IMAD HFMA2 FFMA2", LDS: "LDS", STS: "STS", LDG: "LDG LD",
         LDGSTS: "LDGSTS", WAIT_GROUP: "DEPBAR", COMMIT: "LDGDEPBAR",
         ALU: "IADD3 LOP3 LEA SHF ISETP SEL MOV PLOP3 IMNMX FSETP FSEL PRMT VIADD FMNMX VIMNMX"}
KIND_OF = {name: kind for kind, names in KINDS.items() for name in names.split()}

def kind_of(
    name,  # of an instruction, without its modifiers
) -> int:
    """Which of these kinds it is. A U begins the names of what's computed once for a warp. Between two of
    those the compiler leaves two cycles, as between two that share another pipe."""
    return KIND_OF.get(name, UNIFORM if name.startswith("U") else OTHER)

COLUMNS = (
    "kind",
    "stall",    # cycles until the warp's next instruction
    "waits",    # scoreboards that must be clear, as bits
    "result",   # scoreboard held until the result is there, -1: none
    "source",   # … until the operands have been read
    "service",  # cycles of the memory unit; for an FMA: of the scheduler, for two registers of one bank; for
                # HEAVY: of its pipe, for a second half of the result
    "sharing",  # of a load from global memory, see below
    "place",    # number of the load in the loop; groups that WAIT_GROUP leaves open; for arithmetic: cycles
                # of the uniform unit, to read its registers
    "offset")   # of a load along a row: bytes
KIND, STALL, WAITS, RESULT, SOURCE, SERVICE, SHARING, PLACE, OFFSET = range(len(COLUMNS))

# Who fetches what a load needs into the L1 cache? Bits of "sharing":
ALONG = 1   # an earlier pass: the load walks along a row, and only every 32 bytes begin a new sector
OTHERS = 2  # another warp of the block: the first one to come misses, the others hit

# What a warp waits for.
CAUSES = ("its turn", "fixed latency", "shared memory", "global memory", "barrier", "arithmetic pipe",
          "memory queue", "register bank")
TURN, FIXED, SHARED, GLOBAL, AT_BARRIER, PIPE, FULL, REGISTERS = range(len(CAUSES))

SCHEDULERS, RING = 4, 64  # RING: how much of the past is remembered
STORED, READ, SLOW = 4, 10, 20  # cycles until a store is done, operands are read, a slow result is there
FOREVER = 1e18


@njit(cache=True)
def replay(
    loop,    # table of the loop's instructions, see `COLUMNS`
    warps,   # of a block
    blocks,  # on the multiprocessor
    passes,  # of the loop by each warp, on average …
    warm,    # … of which these first ones don't count
    step,    # bytes that a load along a row moves per pass
    shared_latency, l1_latency, l2_latency, dram_latency, barrier_cycles,  # see `gpus.Machine`
    far,     # part of what the L1 cache doesn't have that the L2 cache doesn't have, either
    pipes,   # that multiply and add in float32, of a scheduler: the second takes nothing else
    queue,   # memory instructions of a scheduler that may wait for service
    waited,  # (instructions, causes) array: cycles that warps waited are added here
):
    "Cycles per pass for all warps together; busy share of the memory unit, and of the schedulers."
    total, count = warps * blocks, loop.shape[0]
    kinds, waits = loop[:, KIND].astype(np.int64), loop[:, WAITS].astype(np.int64)
    results, sources = loop[:, RESULT].astype(np.int64), loop[:, SOURCE].astype(np.int64)
    sharings, places = loop[:, SHARING].astype(np.int64), loop[:, PLACE].astype(np.int64)
    loads = 1 + places.max()
    # of each warp: its instruction, its pass, when it may issue as far as it's up to the warp, and why then
    at, turn = np.zeros(total, np.int64), np.zeros(total, np.int64)
    ready, cause = np.zeros(total), np.full(total, FIXED)
    since = np.zeros(total)  # … its last instruction issued
    stopped = np.zeros(total, np.bool_)  # … at a barrier
    clear, holder = np.zeros((total, 6)), np.full((total, 6), FIXED)  # … its scoreboards, and who holds them
    group, groups = np.zeros((total, RING)), np.zeros(total, np.int64)  # … its asynchronous copies
    sector = np.zeros(total)  # … its last sector along a row arrives
    # of each block: warps at the barrier, and which sectors were brought, in which pass, for when
    arrived = np.zeros(blocks, np.int64)
    brought, first = np.full((blocks, RING, loads), -1), np.zeros((blocks, RING, loads))
    # of each scheduler: when it and its pipes are free, its last warp, and service of its requests
    free, heavy, alu = np.zeros(SCHEDULERS), np.zeros(SCHEDULERS), np.zeros(SCHEDULERS)
    uniform = np.zeros(SCHEDULERS)
    light = np.full(SCHEDULERS, 0.0 if pipes > 1 else FOREVER)
    last, sent = np.zeros(SCHEDULERS, np.int64), np.zeros(SCHEDULERS, np.int64)
    begun = np.zeros((SCHEDULERS, RING))
    unit = busy = time = start = issued = 0.0  # unit: when the memory unit is free
    done, counting, dice = 0, False, 1
    for w in range(total): ready[w] = since[w] = w // SCHEDULERS * 3.0
    while done < passes * total:
        soonest = FOREVER
        for s in range(SCHEDULERS):
            if free[s] > time:
                soonest = min(soonest, free[s])
                continue
            # Which warp? The last one again if it can, else the oldest.
            w, when, mine = -1, 0.0, (total - s + SCHEDULERS - 1) // SCHEDULERS
            for j in range(-1, mine):
                other = s + SCHEDULERS * (last[s] if j < 0 else j)
                if mine == 0 or stopped[other]: continue
                kind, pipe = kinds[at[other]], 0.0
                if kind == FMA: pipe = min(heavy[s], light[s])
                elif kind == HEAVY: pipe = heavy[s]
                elif kind == ALU: pipe = alu[s]
                elif kind == UNIFORM: pipe = uniform[s]
                elif LDS <= kind <= LDGSTS and sent[s] >= queue: pipe = begun[s, (sent[s] - queue) % RING]
                when = max(ready[other], pipe)
                if when <= time:
                    w = other
                    break
                soonest = min(soonest, when)
            if w < 0: continue
            # It issues.
            b, i = w // warps, at[w]
            kind, service, result, source = kinds[i], loop[i, SERVICE], results[i], sources[i]
            if counting:
                could = max(ready[w], since[w] + 1)  # issue, if nobody else were there
                waited[i, cause[w]] += could - since[w] - 1
                waited[i, FULL if LDS <= kind <= LDGSTS else PIPE] += max(0.0, when - could)
                waited[i, TURN] += time - max(when, could)
            issued += 1
            last[s], since[w], free[s] = w // SCHEDULERS, time, time + 1
            soonest = min(soonest, time + 1)
            if kind == FMA:
                if light[s] <= heavy[s]: light[s] = time + 2
                else: heavy[s] = time + 2
                free[s] += service
                if counting: waited[i, REGISTERS] += service
            elif kind == HEAVY: heavy[s] = time + 2 + service
            elif kind == ALU: alu[s] = time + 2
            elif kind == UNIFORM: uniform[s] = time + 2
            if kind <= ALU or kind == OTHER: uniform[s] = max(uniform[s], time) + places[i]
            # The memory unit takes what comes, in order.
            if LDS <= kind <= LDGSTS:
                served = max(unit, time + 2)
                unit = served + service
                busy += service
                begun[s, sent[s] % RING] = served
                sent[s] += 1
                if kind == LDS: end = unit + shared_latency
                elif kind == STS: end = unit + STORED
                else:
                    dice = (dice * 1103515245 + 12345) % 2**31
                    end = unit + (dram_latency if dice < far * 2**31 else l2_latency)
                    here, place = turn[w] % RING, places[i]
                    if sharings[i] & ALONG and (turn[w] * step + loop[i, OFFSET]) % 32 != 0:
                        end = max(unit + l1_latency, sector[w])
                    elif sharings[i] & OTHERS:
                        if brought[b, here, place] == turn[w]:
                            end = max(unit + l1_latency, first[b, here, place])
                        else: brought[b, here, place], first[b, here, place] = turn[w], end
                    if sharings[i] & ALONG: sector[w] = max(sector[w], end)
                    if kind == LDGSTS: group[w, groups[w] % RING] = max(group[w, groups[w] % RING], end)
                if result >= 0:
                    if end >= clear[w, result]: holder[w, result] = SHARED if kind <= STS else GLOBAL
                    clear[w, result] = max(clear[w, result], end)
                if source >= 0:
                    if served + READ >= clear[w, source]: holder[w, source] = FULL
                    clear[w, source] = max(clear[w, source], served + READ)
            elif kind == COMMIT:
                end = group[w, groups[w] % RING]
                groups[w] += 1
                group[w, groups[w] % RING] = end
            elif result >= 0: clear[w, result] = max(clear[w, result], time + SLOW)
            # Its next instruction
            at[w] += 1
            if at[w] == count:
                at[w] = 0
                turn[w] += 1
                done += 1
                if done == warm * total: counting, start, busy, issued = True, time, 0.0, 0.0
            ready[w], cause[w], i = time + max(1.0, loop[i, STALL]), FIXED, at[w]
            for board in range(6):
                if waits[i] >> board & 1 and clear[w, board] > ready[w]:
                    ready[w], cause[w] = clear[w, board], holder[w, board]
            if kinds[i] == WAIT_GROUP and groups[w] > places[i]:
                landed = group[w, (groups[w] - places[i] - 1) % RING]
                if landed > ready[w]: ready[w], cause[w] = landed, GLOBAL
            # The last warp at a barrier releases the others.
            if kind == BARRIER:
                arrived[b] += 1
                stopped[w] = True
                if arrived[b] == warps:
                    arrived[b] = 0
                    for other in range(b * warps, (b + 1) * warps):
                        stopped[other] = False
                        if time + barrier_cycles > ready[other]:
                            ready[other], cause[other] = time + barrier_cycles, AT_BARRIER
        time = max(time + 1, soonest) if soonest < FOREVER else time + 1
    span = time - start
    return span / (passes - warm), busy / span, issued / span / SCHEDULERS
