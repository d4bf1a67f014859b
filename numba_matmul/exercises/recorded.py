"""What happens in a run, in order, and the goals that are measured in it."""
import sys
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
from greenlet import getcurrent
from ..exercise import Goal
from ..judge import Verdict, constants_of, first_of, judge_code, reached, unfit
from ..timeline import trace
from ..process import ChildError, in_child
from ..sim import hopper
from ..sim.cuda_module import StrictModule
from ..sim.scheduler import SimulatorError, Thread
from ..source import with_constants


def in_case(exercise, kernel, case, run, *more):
    "What a function of a launch, its arguments and some more returns in a child, for one case."
    launch = with_constants(kernel, constants_of(exercise, case))[case.grid, case.block, 0, case.shared_bytes]
    args, _ = case.make(np.random.default_rng())
    return in_child(run, launch, args, *more, simulator=True, keep=True)


# One warp: its loads, stores, copies and barriers

class WarpRun(NamedTuple):
    "What a warp did."
    events: list  # names, and their numbers
    tiles: int    # k tiles

def first_warp(exercise, kernel):
    "What the first warp of the first case does."
    first = exercise.cases[0]
    events = in_case(exercise, kernel, first, trace, (0, 0, 0))[0]
    return WarpRun(events, first.size[2] // exercise.constants["BK"])

def barriers(run):
    "Barriers for each k tile after the first, from the first read to the last."
    reads = [i for i, (kind, _) in enumerate(run.events) if kind == "shared load"]
    return sum(kind == "barrier" for kind, _ in run.events[reads[0]:reads[-1]]) / (run.tiles - 1)

def time_for_a_copy(run):
    "The fewest k tiles multiplied from the start of a copy to its wait, while there are more to start."
    whole = sum(kind == "shared load" for kind, _ in run.events) / run.tiles
    last = max((i for i, (kind, _) in enumerate(run.events) if kind == "copy"), default=0)
    reads, started, waited = 0, None, False
    waiting, found = [], []  # when the copies of a group were started; what was multiplied until its wait
    for kind, number in run.events[:last]:
        if kind == "shared load": reads += 1
        elif kind == "copy" and waited: started = reads
        elif kind == "commit":
            waiting.append(started)
            started = None
        elif kind == "wait":
            waited = True
            landed = max(0, len(waiting) - number)
            found += [(reads - start) / whole for start in waiting[:landed] if start is not None]
            del waiting[:landed]
    return min(found, default=0)

BARRIERS = Goal("barriers per tile", barriers, most=1, counted="events",
                hint="one barrier does both: all threads have waited for their copies, and all are done "
                     "with the previous stage")

def copy_order(tiles):
    "The goals of a ring whose copies are in flight while this many k tiles are multiplied."
    return (
        Goal("time for a copy", time_for_a_copy, least=tiles, unit="k tiles multiplied in the meantime",
             counted="events",
             hint="start the copy before you multiply, and wait only for the group that you need: how many "
                  "newer groups may still be in flight?"),
        BARRIERS)


# All threads: their mbarriers, the TMA's copies, and products
#
# Functions that stand in for the simulator's, in a child, note what happens.

def recorded_run(
    run,    # function
    *args,  # its arguments
):
    "In a child process: what happens to mbarriers, copies and products, as (what, thread, number)."
    events, block = [], []
    load, store, wait_for_phase = hopper.load_box, hopper.store_box, hopper.mbarrier_wait
    start, finish, fence = hopper.start_products, hopper.finish_products, hopper.fence_proxy_async
    arrive, land, meet = hopper.MBarrier.arrive, hopper.MBarrier.land, Thread.meet
    def note(what, number=0): events.append((what, getattr(getcurrent(), "linear", 0), int(number)))
    def place(barrier): return next(at for at, other in block[0].memory.mbarriers.items() if other is barrier)
    # copies and products
    def load_box(target, map_address, barrier_address, *rest):
        note("ordered", barrier_address)
        load(target, map_address, barrier_address, *rest)
    def store_box(map_address, source, column, row):
        store(map_address, source, column, row)
        note("sent", getcurrent().sends[-1][-1][0][0].size)
    def start_products(acc, factors, how, pending, frame):
        note("product", how[2])
        for name, factor in zip(("of A", "of B"), factors): note(name, (factor & 0x3FFF) << 4)
        note("from zero", not any(acc))
        return start(acc, factors, how, pending, frame)
    def finish_products(pending, frame):
        finish(pending, frame)
        note("products left", sum(products.steps for _, products in getcurrent().products))
    def fence_proxy_async():
        note("fence")
        fence()
    # mbarriers
    def mbarrier_wait(address, parity, frame):
        note("wait", parity)
        note("waits at", address)
        wait_for_phase(address, parity, frame)
        note("go on", parity)
    def counted_arrival(self, size=0):
        block[:] = [getcurrent().block]
        note("arrive", size)
        note("arrives at", place(self))
        arrive(self, size)
    def counted_landing(self):
        before = self.phase
        land(self)
        if self.phase > before:
            note("phase ends", before)
            note("ended", place(self))
    # barriers
    def syncthreads(self):
        note("barrier")
        getcurrent().wait(sys._getframe(1))
    def counted_meeting(self, frame, place, *more):
        if place.startswith("named"): note("barrier")
        return meet(self, frame, place, *more)
    with (patch.multiple(hopper, load_box=load_box, store_box=store_box, mbarrier_wait=mbarrier_wait,
                         start_products=start_products, finish_products=finish_products,
                         fence_proxy_async=fence_proxy_async),
          patch.multiple(hopper.MBarrier, arrive=counted_arrival, land=counted_landing),
          patch.object(StrictModule, "syncthreads", syncthreads),
          patch.object(Thread, "meet", counted_meeting)):
        try: run(*args)
        except Exception as e: events.append((str(e), 0, 0))  # by which a picture shows where it ended
    return events

K_TILE = 4  # steps of 16

def k_tiles_ahead(events):
    "The fewest k tiles that thread 0 starts between the copy of one, in the loop, and the wait for it."
    started, ordered, found = 0, {}, []
    for what, thread, number in events:
        if what == "product" and thread == 0: started += number / K_TILE
        elif what == "ordered": ordered[number] = started
        elif what == "waits at" and thread == 0 and ordered.get(number):
            found.append(started - ordered.pop(number))
    return min(found, default=0)

def products_at_work(events, thread=0):
    "The fewest k tiles whose products are in flight at the wait for the next, while there are more to copy."
    left, begun, found = 0, False, []
    last = max((i for i, (what, *_) in enumerate(events) if what == "ordered"), default=0)
    for what, who, number in events[:last]:
        if who != thread: continue
        if what == "products left": left, begun = number / K_TILE, True
        elif what == "waits at" and begun: found.append(left)
    return min(found, default=0)

def barriers_of(events, thread=0):
    "Barriers that a thread passes per k tile after the first, from its first product to its last."
    own = [(what, number) for what, who, number in events if who == thread]
    products = [i for i, (what, _) in enumerate(own) if what == "product"]
    tiles = sum(number for what, number in own if what == "product") / K_TILE
    return sum(what == "barrier" for what, _ in own[products[0]:products[-1]]) / (tiles - 1)

def k_tiles_on_their_way(boxes, events):
    "The most k tiles, of `boxes` boxes each, copied at a time; 1 if the producer waits for its own copy."
    producers = {thread for what, thread, _ in events if what == "ordered"}
    full = {number for what, _, number in events if what == "ordered"}
    waits = {(thread, number) for what, thread, number in events if what == "waits at"}
    if any(thread in producers and number in full for thread, number in waits): return 1
    now = most = 0
    for what, _, number in events:
        if what == "ordered": now += 1
        elif what == "ended" and number in full: now -= boxes
        most = max(most, now)
    return most / boxes

def ended_too_often(boxes, events):
    "In a sentence: a stage that was released more often than k tiles came into it."
    full = sorted({number for what, _, number in events if what == "ordered"})
    empty = sorted({number for what, _, number in events if what == "arrives at"} - {*full})
    def count(kind, place): return sum(what == kind and number == place for what, _, number in events)
    for stage, (came, left) in enumerate(zip(full, empty)):
        tiles, ended = count("ordered", came) // boxes, count("ended", left)
        if ended > tiles:
            arrivals, many = count("arrives at", left), "s" * (tiles != 1)
            return (f"{arrivals} arrivals at the mbarrier that says stage {stage} is empty, for {tiles} "
                    f"k tile{many}: its phase has ended {ended} times, and once for each k tile is enough")


# A kernel of a producer and consumers, in several cases

def recorded(multiply, *args):
    "In a child process: the verdict that fails and its text, or `None`; and what happened."
    found = []
    def run():
        try: found.append(multiply(*args))
        except SimulatorError as e: found.append((verdict_of(e), first_of(str(e))))
        except Exception as e: found.append(("compiles", f"{type(e).__name__}: {first_of(str(e))}"))
    events = recorded_run(run)
    return found[0], events

VERDICT_OF = {  # kind of a mistake of the simulator's → where it was made, or with what → verdict
    "barrier": {"block": "ends", "named barrier": "results", "mbarrier": "arrivals"},
    "unfinished": {"copies": "ends", "products": "results", "stores": "results"},
    "fence": {"mbarrier": "arrivals", "product": "results", "store": "results"}}

def verdict_of(error):
    "The verdict that a mistake of the simulator's belongs to."
    if error.kind == "race": return "results" if "store" in error.data["accesses"] else "stages"
    if error.kind == "uninitialized": return "stages"
    found = VERDICT_OF.get(error.kind, {})
    return next((found[what] for what in error.data.values() if what in found), "compiles")

def judge_ring(
    exercise, kernel,
    cases,      # (m, n, k, tile) each
    names_of,   # function of a tile → what the kernel's names stand for
    multiply,   # in a child: function (kernel, *case) → the verdict that fails and its text, or `None`
    signature,  # of the kernel
    arguments,  # how many it has
    counted=0,  # the case whose events count
):
    "The verdicts on a kernel that fills a ring or empties it, one by one."
    if verdict := unfit(kernel, (0,) * arguments): yield verdict
    runs = []
    for m, n, k, tile in cases:
        args = multiply, with_constants(kernel, names_of(tile)), m, n, k, tile
        try: failed, events = in_child(recorded, *args, simulator=True, timeout=30, keep=True)
        except ChildError as e: failed, events = ("ends", first_of(str(e))), []
        if failed:
            verdict, text = failed
            why = ended_too_often(tile.parts * (1 + tile.bn // 64), events) if verdict == "ends" else ""
            if why: verdict, text = "arrivals", why
            yield Verdict(verdict, False, f"{m}×{n}×{k}, {tile.stages} stages: {text}")
        runs.append(events)
    yield Verdict("stages", True, "a stage is full when it is multiplied, until all products have read it")
    yield Verdict("correct", True, "; ".join(f"{m}×{n}×{k}, {tile.bm}×{tile.bn} tiles, {tile.stages} stages"
                                             for m, n, k, tile in cases))
    for goal in exercise.goals:
        if goal.counted == "events": yield reached(goal, goal.measure(runs[counted]))
    code = [goal for goal in exercise.goals if goal.counted == "code"]
    yield from judge_code(code, with_constants(kernel, exercise.constants), signature)
