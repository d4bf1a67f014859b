"""A CUDA thread is a function call that can pause. A block runs its threads one after the other, from barrier to barrier.

The strict simulator shows what it catches. How it does so is on this page and on those about races, memory,
asynchronous copies, tiles and warpgroups, and children. It stands on the classes of Numba's simulator, and
replaces its threads, its shared memory and its kernels.

A thread is a greenlet

Numba's simulator starts an operating-system thread for each CUDA thread and polls them. Ours makes each CUDA
thread a greenlet (https://greenlet.readthedocs.io): a function call that can be paused and resumed. The block
runs thread 0 until it reaches a barrier, then thread 1, and so on. When all wait at the same barrier, all may
pass. So the order is always the same, and a barrier costs a function call and not a poll.
"""
import dis
import linecache
import re
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from functools import cache
from random import Random
from typing import NamedTuple

import numpy as np
from greenlet import getcurrent, greenlet
import numba_matmul  # first: it chooses between the GPU and the simulator
from numba.cuda.simulator import kernelapi


class SimulatorError(RuntimeError):
    """A kernel did something that a GPU refuses, leaves undefined, or silently gets wrong. `kind` says what sort of mistake
    it is, and `data` has the facts behind the message:

    - race: two accesses that nothing orders. `array`; `accesses`: the earlier and the later one, each a thread's "read" or
      "write", an asynchronous "copy" into shared memory, a "product" of wgmma, or a bulk "store", which read it;
      `same_block`, where both are threads'
    - uninitialized: read before it was written. `array`; `copying`: is a copy into it under way?; `by`: "thread", "product"
      or "store"
    - barrier: not reached by all, or a mistake with an mbarrier. `at`: "block", "warp", "warpgroup", "named barrier",
      "mbarrier" or "grid"
    - deadlock: blocks wait for something that never happens
    - fence: something that a copy or a product may not see yet. `of`: "mbarrier", "tensor map", "product" or "store"
    - unfinished: a block ends too early. `what` is still under way: "copies", "products" or "stores"
    - descriptor: of the factors of a product
    - alignment: of an access or a box
    - bounds: an index outside of an array. `negative`
    - unsupported: everything else; mostly something that the compiler or the hardware doesn't have
    """
    travels = True  # out of a child process, see `in_child`
    def __init__(self, message, kind="unsupported", **data):
        super().__init__(message)
        self.kind, self.data = kind, data

class Again(Exception):
    "More must be noted from the start of the launch than was: run it once more."


# Messages name the line and the threads. A line is known by the frame that runs it: the innermost one that
# belongs neither to Numba nor to the simulator.

_lines = {}

def _line(code, number):
    "How messages name line `number` of the function with this `code`."
    place = id(code), number  # the code is kept, so that no other one takes its id
    if place not in _lines:
        text = linecache.getline(code.co_filename, number).strip()
        _lines[place] = code, f"line {number} of {code.co_name}" + (f": {text}" if text else "")
    return _lines[place][1]

_INSIDE = "numba_matmul.sim.", "numba_matmul.ptx."  # modules of the simulator

_places = {}

def _place(frame):
    "Code and line of a kernel's function; as text, with the lines that called it; the column in each of these lines."
    key, at = [id(frame.f_code), frame.f_lasti], frame
    while at := at.f_back: key += id(at.f_code), at.f_lasti
    if (key := tuple(key)) not in _places:
        frames, at = [frame], frame
        while at := at.f_back:
            if not (at.f_globals.get("__name__") or "").startswith(_INSIDE): frames.append(at)
        calls = [(at.f_code, at.f_lineno) for at in frames]
        columns = tuple([*at.f_code.co_positions()][at.f_lasti // 2][2] or 0 for at in frames)
        _places[key] = calls, ", called at ".join(_line(*call) for call in calls), columns  # `_line` keeps the code of these
    return _places[key]

def _failed_array(error):
    "The name of the array on whose index numpy raised an error, and a colon."
    traceback = error.__traceback__
    while traceback.tb_next: traceback = traceback.tb_next
    name = getattr(traceback.tb_frame.f_locals.get("self"), "name", None)
    return f"{name}: " if isinstance(error, IndexError) and isinstance(name, str) else ""

def _last_user_line(traceback):
    """The line of the kernel, or of a device function it calls, at which `traceback` ends; after one of this package's,
    also the line of the reader's that called it."""
    last = own = None
    while traceback:
        module = traceback.tb_frame.f_globals.get("__name__", "")
        if not module.startswith(_INSIDE) and module.split(".")[0] not in ("numba", "numpy", "functools"):
            last = _line(traceback.tb_frame.f_code, traceback.tb_lineno)
            if not module.startswith("numba_matmul."): own = last
        traceback = traceback.tb_next
    return last if own in (None, last) else f"{last}, called at {own}"

@cache
def _starts(code): return [instruction.offset for instruction in dis.get_instructions(code)]

def instruction(frame):
    "Which instruction of its code a frame runs. (`f_lasti` may also point behind it.)"
    starts = _starts(frame.f_code)
    return starts[bisect_right(starts, frame.f_lasti) - 1]

def _index(dim3, dims):
    "An index as text, without the trailing dimensions in which there is only one: `(3)`, `(3, 0)`."
    values, used = tuple(dim3), max([i + 1 for i, n in enumerate(dims) if n > 1], default=1)
    return "(" + ", ".join(str(v) for v in values[:used]) + ")"


# Who knows of whom
#
# What is in order after what? A barrier of the block orders all that its threads did before it. A barrier
# of a warp orders the lanes of its mask, and only them. Between blocks it takes a flag and two fences: one
# thread writes, passes a fence, and sets the flag by an atomic operation; another one sees the flag,
# passes a fence, and reads. Without the first fence the flag may be seen before what was written, without
# the second one the reader may have read too early.
#
# So each thread keeps *clocks*: for some blocks, how many barriers; for some threads, how many moments.
# What another thread did before that is in order before all that this one does now. A fence stamps a
# thread's clock on the flags it sets from then on. Whoever sees the flag has the clock, and may rely on it
# after a fence of its own. Threads at a barrier put their clocks together.

class Knowledge(NamedTuple):
    "What a thread knows of others, as clocks. Near: for threads of the same block only."
    known: dict = None      # what is in order before all that it does now
    sent: dict = None       # what the flags that it sets tell: all before its last fence
    sent_near: dict = None
    seen: dict = None       # what flags have told it; it counts after its next fence
    seen_near: dict = None

NOBODY, NOTHING = (0,) * 32, Knowledge()
_last_joined = [None] * 3

def joined(one, other):
    "What two clocks know together: dicts of counts, None if empty. A clock never changes."
    if one is other or not other: return one
    if not one: return other
    if _last_joined[0] is one and _last_joined[1] is other: return _last_joined[2]  # by many threads
    newer = {who: when for who, when in other.items() if one.get(who, -1) < when}
    _last_joined[:] = one, other, one | newer if newer else one
    return _last_joined[2]

def _share(threads):
    "At a barrier: from now on each knows what any has known."
    if all(t.knowledge is NOTHING for t in threads): return
    together = NOTHING
    for thread in threads: together = Knowledge(*map(joined, together, thread.knowledge))
    for thread in threads: thread.knowledge = together


class Thread(greenlet):
    "One simulated CUDA thread. It runs until it waits at a barrier, or returns."
    def __init__(self, target, block, index, linear):
        super().__init__(target)
        self.block, self.threadIdx, self.blockIdx = block, kernelapi.Dim3(*index), block.index
        self.linear, self.warp, self.lane = linear, linear // 32, linear % 32
        self.barriers = self.time = 0  # barriers of the block it has passed; moments that others may know
        self.moment = self.near = self  # see `Block.begin_moment`
        self.saw = NOBODY              # lane of its warp → up to which moment it knows that lane
        self.knowledge = NOTHING       # what fences and flags have told it
        self.waits_at = self.mask = self.given = self.received = self.orders = None
        self.copies = [[]]  # asynchronous copies by group, the open group last
        self.ready = self.awaited = self.meeting = None  # what else it may wait for
        self.paused = self.at_grid = False
        self.asked, self.questions = None, 0  # its last atomic operation; how many since it last paused
        self.products, self.sends, self.stored, self.fenced, self.maps = [], [[]], [], [], set()
        self.fenced_at = -1  # moment of its last fence between the proxies

    def __str__(self): return f"thread {_index(self.threadIdx, self.block.dims)}"

    def stop(self, frame): _, self.waits_at, self.columns = _place(frame)

    def wait(self, frame, mask=None, value=None, orders=True):
        """Pause at a barrier of the block, or of the warp's lanes in `mask`, which swap values.
        `orders`: is memory then in order, too?"""
        self.stop(frame)
        self.mask, self.given = mask, value
        self.orders = orders
        self.parent.switch()
        return self.received

    def wait_until(self, frame, ready, awaited):
        "Pause until the function `ready` says so: it depends on `awaited`, an `MBarrier` or `Late`."
        if ready(): return
        self.stop(frame)
        self.ready, self.awaited = ready, awaited
        self.parent.switch()

    def meet(self, frame, place, threads, value=None):
        "Pause until so many threads are at a place, and see what each gave: one dict for all."
        self.stop(frame)
        self.meeting, self.given = (place, threads), value
        self.parent.switch()
        return self.received

    def let_others_go_on(self, frame):
        "Pause, and go on when all others had their turn."
        self.stop(frame)
        self.paused, self.questions = True, 0
        self.parent.switch()

    def wait_for_grid(self, frame):
        "Pause until all threads of all blocks are here."
        self.stop(frame)
        self.at_grid = True
        self.parent.switch()

    def ordered_after(self, access):
        "Does something order what this thread does now after an `access` of another one?"
        other = access.thread
        if other.block is self.block and (self.barriers > access.barriers or other.warp == self.warp
                                          and self.saw[other.lane] > access.time): return True
        known = self.knowledge.known
        return known is not None and (known.get(other.block, 0) > access.barriers
                                      or known.get(other, 0) > access.time)

    def tick(self):
        "Another moment begins, for this thread alone."
        self.moment = self.near = object()
        self.time += 1
        return self.time

    def clock(self):
        "All that is in order before this moment: block → barriers, thread → moments."
        self.tick()
        threads, first = self.block.threads, 32 * self.warp
        now = {threads[first + lane]: time for lane, time in enumerate(self.saw) if time}
        return joined(self.knowledge.known, now | {self.block: self.barriers, self: self.time})

    def fence(self, whole_gpu):
        "What it has seen of others' flags counts from now on; the flags it sets tell all that was before."
        known, sent, sent_near, seen, seen_near = self.knowledge
        self.knowledge = Knowledge(joined(known, joined(seen_near, seen if whole_gpu else None)))
        now = self.clock()
        self.knowledge = Knowledge(self.knowledge.known, now if whole_gpu else sent, now,
                                   None if whole_gpu else seen)

    def learn(self, clock):
        "What an mbarrier or a named barrier tells it."
        if clock:
            self.tick()
            self.knowledge = self.knowledge._replace(known=joined(self.knowledge.known, clock))


# `Block.run` is the scheduler. All that can run, run. Then whoever waits is looked at: a warp whose lanes
# are all at a warp barrier goes on; so do threads at a barrier with a number, and at an mbarrier whose
# phase has ended; a block whose threads are all at the same `syncthreads` goes on; anything else is a
# mistake.

class Block:
    "One block of a launch: its threads, run one after another from barrier to barrier."
    def __init__(self, grid, index, args, memory):
        self.dims, self.grid_dims, self.index = grid.block_dim, grid.grid_dim, kernelapi.Dim3(*index)
        self.grid, self.memory = grid, memory
        places = np.ndindex(*reversed(self.dims))  # x runs fastest
        self.threads = [Thread(lambda: grid.fn(*args), self, reversed(place), i)
                        for i, place in enumerate(places)]
        self.runnable, self.alive = self.threads, self.threads
        self.begin_moment()

    def begin_moment(self):
        """Of all threads: the same accesses of others are in order before what each of those does now that have the
        same `moment` and, in a warp, the same `near`."""
        moment, nears = object(), [object() for _ in self.threads[::32]]
        for thread in self.threads: thread.moment, thread.near = moment, nears[thread.warp]

    def __str__(self): return f"block {_index(self.index, self.grid_dims)}"

    def run(self):
        "Run all threads to their end, or until those that are left wait for other blocks."
        while self.runnable:
            for thread in self.runnable: self._resume(thread)
            alive = [thread for thread in self.alive if not thread.dead]
            paused = [thread for thread in alive if thread.paused]
            wait_here = not paused and not any(thread.at_grid for thread in alive)
            released = (self._released_warps(alive) or self._released_meetings(alive)
                        or self._released_ready(alive) or (wait_here and self._released_block(alive) or []))
            if released or len(alive) < len(self.alive): self.grid.moves += 1
            self.alive, self.runnable = alive, released + paused
            if paused and (self.grid.random or not released): return

    def unwind(self):
        "End the threads that have started and not ended."
        for thread in self.threads:
            if thread: thread.throw()

    def _resume(self, thread):
        thread.paused = False
        try: thread.switch()
        except Again: raise
        except Exception as e:
            kind = _failed_array(e) if isinstance(e, (SimulatorError, IndexError)) else f"{type(e).__name__}: "
            where = f"{thread} of {self}, {_last_user_line(e.__traceback__)}"
            text = re.sub(r"\b(Shared|Local|Global)Array\b", "array", f"{kind}{e}").replace("FakeShape", "tuple")
            if isinstance(e, SimulatorError): told, data = e.kind, e.data
            elif isinstance(e, IndexError) and "out of bounds" in str(e): told, data = "bounds", dict(negative=False)
            else: told, data = "unsupported", {}
            raise SimulatorError(f"{text}, in {where}", told, **data) from None

    def _released_warps(self, alive):
        "Lanes of a warp whose partners are all there; those that have returned are not waited for."
        released = []
        for thread in alive:
            if thread.mask is None: continue
            group = [t for t in self.threads[32 * thread.warp:32 * thread.warp + 32]
                     if thread.mask >> t.lane & 1 and not t.dead]
            if any(t.mask != thread.mask for t in group): continue
            if not thread.orders: self._refuse_places(group)
            values = {t.lane: t.given for t in group}
            if all(t.orders for t in group): self._order_warp(group)
            for t in group: t.mask, t.received = None, values
            released += group
        return released

    def _order_warp(self, lanes):
        saw = lanes[0].saw
        if any(t.saw is not saw for t in lanes): saw = tuple(map(max, *(t.saw for t in lanes), saw))
        saw = list(saw)
        for t in lanes:
            saw[t.lane] = t.tick()
        saw, moment = tuple(saw), object()
        for t in lanes: t.saw, t.moment, t.near = saw, moment, moment
        _share(lanes)

    @staticmethod
    def _told(places):
        "Places as text, with their columns if that is the text of several; in what they differ."
        texts = Counter(text for text, _ in places)
        def told(text, columns): return f"{text} (column {', called at column '.join(str(i + 1) for i in columns)})" if texts[text] > 1 else text
        return [told(*place) for place in places], "lines" if len(texts) > 1 else "columns of one line"

    def _refuse_places(self, lanes):
        "Lanes swap values at one place."
        places = sorted({(t.waits_at, t.columns) for t in lanes})
        if len(places) > 1:
            told, what = self._told(places)
            raise SimulatorError(f"lanes of a warp swap values at different {what}, in {self}: {'; '.join(told)}. All lanes that the mask names must come to the "
                                 "same instruction: name only those of one branch, or leave the branch first", "barrier", at="warp")

    def _released_meetings(self, alive):
        for place, threads in {thread.meeting for thread in alive} - {None}:
            group = [t for t in alive if t.meeting and t.meeting[0] == place]
            if any(t.meeting[1] != threads for t in group) or len(group) > threads:
                raise SimulatorError(f"{len(group)} threads meet at {place}, and not all of them "
                                     f"for {threads}, in {self}: {group[0].waits_at}", "barrier",
                                     at="named barrier" if place.startswith("named") else "warpgroup")
            if len(group) < threads: continue
            values = {t.linear: t.given for t in group}
            for t in group: t.meeting, t.received = None, values
            if place.startswith("named"):
                _share(group)
                clock = {t: t.tick() for t in group}
                for t in group:
                    t.fenced = []
                    t.learn(clock)
            return group

    def _released_ready(self, alive):
        "Threads whose wait is over. What may be late happens when nobody can go on without it."
        waiting = [thread for thread in alive if thread.ready]
        if not any(thread.ready() for thread in waiting):
            for thread in waiting: thread.awaited.land()
        released = [thread for thread in waiting if thread.ready()]
        for thread in released: thread.ready = None
        return released

    def _released_block(self, alive):
        places = {(thread.waits_at, thread.columns) for thread in alive}
        some_returned = len(alive) < len(self.threads)
        elsewhere = any(t.mask is not None or t.ready or t.meeting for t in alive)
        if alive and (some_returned or len(places) > 1 or elsewhere):
            self._refuse_barrier(alive, sorted(places))
        maps = set().union(*(thread.maps for thread in alive))
        for thread in alive:
            thread.barriers += 1
            thread.fenced, thread.maps = [], maps
        _share(alive)
        self.begin_moment()
        return alive

    def _refuse_barrier(self, alive, places):
        counts = [sum((t.waits_at, t.columns) == place for t in alive) for place in places]
        total, (told, what) = len(self.threads), self._told(places)
        waiting = "; ".join(f"{n} of {total} threads wait at {place}"
                            for n, place in zip(counts, told))
        done = [t for t in self.threads if t.dead]
        if missing := {t.awaited.missing() for t in alive if t.ready}:
            why = f"At an mbarrier {'; '.join(sorted(missing))}."
        elif met := {t.meeting for t in alive if t.meeting}:
            why = "; ".join(f"At {place} {threads} are to meet" for place, threads in sorted(met))
        elif len(places) > 1:
            why = ("A barrier must be reached at the same place by all threads, "
                   f"and these wait at different {what}.")
        elif done:
            why = (f"The other {len(done)}, {done[0]} first, have returned. "
                   "A GPU does not wait for those; this simulator is stricter, "
                   "because a barrier further on would be taken for this one.")
        else: why = "The lanes that the warp barrier names never all reach it."
        raise SimulatorError(f"barrier not reached by all, in {self}: {waiting}. {why}", "barrier", at="block")


# Blocks run one after another, too. But one may wait for another: its thread asks for a flag, again and
# again. When an atomic operation gives a thread the same answer twice, the others have their turn, and
# further blocks start. If a thousand rounds change nothing, what they wait for never comes. No more blocks
# start than an H100 has room for, so a block that waits for one that can't start is found. By a seed
# blocks can also be mixed at random, at each fence and atomic operation.

PATIENCE = 1000  # rounds in which all blocks ask, and nothing changes
FULL_PATIENCE = 50  # the same where the GPU has no room for more blocks, and there are many
MULTIPROCESSORS = 132  # of an H100
MOST_BLOCKS, MOST_THREADS, MOST_SHARED = 32, 2048, 228 * 1024  # of a multiprocessor at once; bytes


class Grid:
    "A launch under way, and what is found out about it."
    def __init__(self, launch, elements, seed=None):
        self.elements = elements  # notes on global memory, by address
        self.fn, self.grid_dim, self.block_dim = launch.fn, launch.grid_dim, launch.block_dim
        self.random = None if seed is None else Random(seed)
        self.moves = 0                      # so often something has happened that others may wait for
        self.races, self.remarks = {}, {}   # pair of lines → text
        self.talks = self.masked = False    # do blocks talk to each other? do some lanes meet without others?
        self.started, self.some_ended = [], False
        self.stores, self.barriers = {}, 0  # of the launch: argument → elements stored; barriers that a thread passed

    def run(self, indices, start, ended):
        """Run the blocks with these indices. One waits for another: then the others have their turn.
        start: function of an index that makes the block; ended: what to do with one that has ended."""
        indices, more, idle = iter(indices), True, 0
        try:
            while more or self.started:
                moves, newcomers = self.moves, self._newcomers() if more else 0
                for _ in range(newcomers):
                    index = next(indices, None)
                    more = index is not None
                    if more: self.started.append(start(index))
                    else: break
                for block in self._turn():
                    block.run()
                    if not block.alive:
                        self.started.remove(block)
                        self.some_ended = True
                        self.barriers = max(self.barriers, block.threads[0].barriers)
                        ended(block)
                if not more: self._release_grid()
                idle = 0 if newcomers or self.moves > moves else idle + 1
                if idle > (FULL_PATIENCE if more else PATIENCE): self._refuse_to_wait(more)
        finally:
            for block in self.started: block.unwind()

    def room(self):
        "How many blocks like the first that runs an H100 has at once, if their registers suffice."
        if not self.started: return MULTIPROCESSORS
        memory, threads = self.started[0].memory, -(-len(self.started[0].threads) // 32) * 32
        shared = memory.static_bytes + memory.dynamic.size + 1024  # the last is the system's
        return MULTIPROCESSORS * min(MOST_BLOCKS, MOST_THREADS // threads, MOST_SHARED // shared)

    def _newcomers(self):
        "How many blocks start now."
        several = 1 if not self.random else int(self.random.expovariate(0.25)) if self.started else 4
        return min(several, self.room() - len(self.started))

    def _turn(self):
        "The blocks that run now, in order."
        if not self.random: return list(self.started)
        return self.random.sample(self.started, len(self.started))

    def mix(self, thread, frame):
        "Before a fence or an atomic operation: perhaps others run first."
        if self.random and self.random.random() < 0.5: thread.let_others_go_on(frame)

    def take_turns(self, thread, frame, asked):
        "After an atomic operation: a thread that waits for others lets them run."
        thread.questions += 1
        waits, thread.asked = asked == thread.asked or thread.questions > 100, asked
        if waits: thread.let_others_go_on(frame)

    def _release_grid(self):
        "Threads that wait for the whole grid go on when all of it is there."
        threads = [thread for block in self.started for thread in block.alive]
        if not threads or not all(thread.at_grid for thread in threads): return
        if self.some_ended or any(len(block.alive) < len(block.threads) for block in self.started):
            raise SimulatorError(f"the grid's barrier is not reached by all: {threads[0]} of {threads[0].block} "
                                 f"waits at {threads[0].waits_at}, and some threads have returned", "barrier", at="grid")
        _share(threads)
        clock = {block: block.threads[0].barriers + 1 for block in self.started}
        for thread in threads:
            thread.at_grid, thread.barriers = False, thread.barriers + 1
            thread.learn(clock)
        for block in self.started:
            block.runnable = block.alive
            block.begin_moment()
        self.moves += 1

    def _refuse_to_wait(self, more):
        waiting = sorted({f"{thread} of {block} at {thread.waits_at}"
                          for block in self.started for thread in block.alive if thread.paused or thread.at_grid})
        raise SimulatorError("threads wait for what never comes: " + "; ".join(waiting[:4])
                             + ("; …" if len(waiting) > 4 else "")
                             + (f". {len(self.started)} blocks of this size run at once on an H100, and these wait for one that starts "
                                "when they have ended: launch fewer blocks, with a loop in each" if more else ""), "deadlock")


# Warps
#
# The lanes of a warp meet as well: each hands in a value, pauses, and gets everyone's.

FULL_WARP = 0xFFFFFFFF

def exchange(
    value,           # what the running lane gives
    frame=None,      # Python frame of the kernel; the caller's if None
    mask=FULL_WARP,  # the lanes that take part
) -> dict:           # lane → value
    """Wait until all lanes of the mask are here, and see what each gave. All get the same dict.
    It is no barrier for memory."""
    given = getcurrent().wait(frame or sys._getframe(1), mask, value, orders=False)
    if len(given) < mask.bit_count():
        raise SimulatorError(f"this needs all {mask.bit_count()} lanes, and {len(given)} are there: some have returned",
                             "barrier", at="warp")
    return given

def _present(mask):
    "The lanes of `mask` that the running thread's warp has."
    thread = getcurrent()
    lanes = min(32, len(thread.block.threads) - 32 * thread.warp)
    present = int(mask) & ((1 << lanes) - 1)
    if not present >> thread.lane & 1:
        raise SimulatorError(f"lane {thread.lane} is not in the mask {int(mask):#x} that it gives")
    if present != (1 << lanes) - 1: _some_lanes_meet(thread.block.grid)
    return present

def _some_lanes_meet(grid):
    "Then two readers of an element do not stand for all others, and all are to be noted."
    if not grid.masked: raise Again("masked")
