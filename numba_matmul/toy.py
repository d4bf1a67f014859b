"""A toy multiprocessor that goes through a loop cycle by cycle, as `cycles.replay` does with a whole one. It
has one scheduler and a few warps, few enough to watch each of them."""
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from .widgets import Widget, widget

SCOREBOARDS = 6
LATENCY = 12  # cycles from service by the memory unit to data


class Op(NamedTuple):
    "An instruction of a loop, with its control bits."
    text: str
    stall: int = 1     # cycles until the warp's next instruction may issue
    waits: tuple = ()  # scoreboards that must be clear before it issues
    sets: int = None   # the scoreboard that it holds until its result is there
    service: int = 0   # cycles of the memory unit, which serves one request after the other

class ToyKernel(NamedTuple):
    "A loop, and the warps that go through it."
    name: str
    loop: tuple  # of `Op`s
    warps: int

    @property
    def products(self):
        "Multiply-adds of a pass of all warps."
        return self.warps * sum(op.text == "FFMA" for op in self.loop)

@dataclass(eq=False)
class Warp:
    "A warp, as the scheduler sees it."
    number: int
    loop: tuple = field(repr=False)
    at: int = 0      # number of its next instruction
    ready: int = 0   # the cycle from which its last instruction's stall count lets it issue
    clear: list = field(default_factory=lambda: [0] * SCOREBOARDS)  # the cycle from which each scoreboard is
    passes: int = 0  # of the loop that are done

    @property
    def op(self):
        "Its next instruction."
        return self.loop[self.at]
    @property
    def waits(self):
        "The scoreboards that its next instruction waits for."
        return self.op.waits


def issue(
    now: int,     # the cycle
    warps: list,  # of `Warp`s, the oldest first
    last: Warp,   # the one that issued last; `None` at first
) -> Warp:        # `None` if none can
    "The warp that issues in this cycle."
    can = [w for w in warps if w.ready <= now and all(w.clear[board] <= now for board in w.waits)]
    return last if last in can else can[0] if can else None

WAITING = {"i": "issues", "s": "fixed latency", "m": "memory", "t": "its turn"}

def waiting(warp, now):
    "What a warp that doesn't issue waits for: a key of `WAITING`."
    if warp.ready > now: return "s"
    return "m" if any(warp.clear[board] > now for board in warp.waits) else "t"

class Cycle(NamedTuple):
    "The state of one cycle."
    chosen: int    # number of the warp that issued, or `None`
    at: list       # of each warp: its next instruction …
    states: str    # … and a key of `WAITING`
    served: int    # number of the warp that the memory unit served, or `None`

def run(
    kernel: ToyKernel,
    cycles: int = None,      # how many; `None`: until each warp has done its passes
    passes: int = None,      # of all warps together, on average
    rule: Callable = issue,  # which warp issues
    latency: int = LATENCY,
):
    "Yield what happens in each cycle."
    warps, last, free, served = [Warp(i, kernel.loop) for i in range(kernel.warps)], None, 0, []
    now = 0
    while now < cycles if cycles else sum(w.passes for w in warps) < passes * len(warps):
        chosen, at = rule(now, warps, last), [w.at for w in warps]
        states = "".join("i" if w is chosen else waiting(w, now) for w in warps)
        if chosen:
            op, last = chosen.op, chosen
            if op.service:
                start = max(free, now + 1)
                free = start + op.service
                served.append((start, free, chosen.number))
                if op.sets is not None: chosen.clear[op.sets] = max(chosen.clear[op.sets], free + latency)
            chosen.ready = now + op.stall
            chosen.at = (chosen.at + 1) % len(kernel.loop)
            chosen.passes += chosen.at == 0
        served = [request for request in served if request[1] > now]
        busy = next((number for start, _, number in served if start <= now), None)
        yield Cycle(chosen.number if chosen else None, at, states, busy)
        now += 1

WARM, PASSES = 4, 20  # passes that don't count yet, and all of them

@lru_cache
def cycles_per_pass(
    kernel: ToyKernel,
) -> float:
    "Cycles that all warps need for a pass of the loop."
    warm, all_of_them = (sum(1 for _ in run(kernel, passes=passes)) for passes in (WARM, PASSES))
    return (all_of_them - warm) / (PASSES - WARM)


def watch(
    *kernels: ToyKernel,
    cycles: int = 64,  # that are shown
    rule: Callable = issue,  # which warp issues
) -> Widget:
    "Go through kernels' loops cycle by cycle."
    shown = []
    for kernel in kernels:
        found = [*run(kernel, cycles, rule=rule)]
        loop = [dict(text=op.text, stall=op.stall, waits=op.waits, sets=op.sets, service=op.service)
                for op in kernel.loop]
        shown.append(dict(name=kernel.name, loop=loop, at=[cycle.at for cycle in found],
                          states=[cycle.states for cycle in found], served=[cycle.served for cycle in found]))
    return widget("cycles", "A loop, cycle by cycle", dict(kernels=shown, waiting=WAITING))
