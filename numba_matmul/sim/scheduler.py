"""CUDA threads as function calls that can pause. A block runs its threads from barrier to barrier.

Numba's simulator starts an operating-system thread for each CUDA thread and polls them. Ours makes each CUDA
thread a greenlet (https://greenlet.readthedocs.io), a function call that can be paused and resumed. The block
runs thread 0 until it reaches a barrier, then thread 1, and so on. When all wait at the same barrier, all
continue. So the order is always the same, and a barrier costs a function call instead of polling.
"""
import re
import sys
from collections import Counter
from typing import NamedTuple

import numpy as np
from greenlet import getcurrent, greenlet
from .places import INSIDE, last_user_line, place_of, places_of, position
from numba.cuda.simulator import kernelapi


class SimulatorError(RuntimeError):
    """A kernel did something that a GPU refuses, leaves undefined, or silently gets wrong. `kind` is the type
    of mistake, and `data` has the facts behind the message:

    - race: two unordered accesses. `array`; `accesses`: the earlier and the later one, each a
      thread's "read" or "write", an asynchronous "copy" into shared memory, a "product" of wgmma, or a bulk
      "store", which read it; `same_block`, where both are threads
    - uninitialized: read before being written. `array`; `copying`: is a copy into it in flight?; `by`:
      "thread", "product" or "store"
    - barrier: not reached by all, or a mistake with an mbarrier. `at`: "block", "warp", "warpgroup", "named
      barrier", "mbarrier" or "grid"
    - deadlock: blocks wait for something that never happens
    - fence: a copy or a product may not see something yet. `of`: "mbarrier", "tensor map", "product" or
      "store"
    - unfinished: a block ends too early. `what` is still in flight: "copies", "products" or "stores"
    - descriptor: of a product's operands
    - alignment: of an access or a box
    - bounds: an index outside of an array. `negative`
    - unsupported: everything else; mostly things the compiler or the hardware doesn't support
    """
    travels = True  # out of a child process, see `in_child`
    def __init__(self, message, kind="unsupported", **data):
        super().__init__(message)
        self.kind, self.data = kind, data

class Again(Exception):
    "The launch should have noted more from the start: run it again."


def _array_name(traceback):
    "The array that the simulator worked on at an exception: what refuses an index may not know it."
    name = None
    while traceback:
        frame, traceback = traceback.tb_frame, traceback.tb_next
        if not (frame.f_globals.get("__name__") or "").startswith(INSIDE): continue
        array = frame.f_locals.get("array", frame.f_locals.get("self"))
        if hasattr(type(array), "label") and isinstance(array.name, str): name = array.name
    return name

def _located(error, thread):
    "An exception from a running thread, as a `SimulatorError` with its location."
    text, kind, data = str(error), "unsupported", {}
    if isinstance(error, SimulatorError): kind, data = error.kind, error.data
    elif isinstance(error, IndexError):
        if "out of bounds" in text: kind, data = "bounds", dict(negative=False)
    else: text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if re.search(r"invalid index to scalar|'(numpy\.)?(u?int|float|complex|bool)\d*_?' object "
                 "(does not support item assignment|is not subscriptable)", text):
        text = "a number can't be indexed"
    name = _array_name(error.__traceback__)
    if name and (isinstance(error, IndexError) or kind == "bounds"): text = f"{name}: {text}"
    text = re.sub(r"\b(Shared|Local|Global)Array\b", "array", text).replace("FakeShape", "tuple")
    where = f"{thread} of {thread.block}, {last_user_line(error.__traceback__)}"
    return SimulatorError(f"{text}, in {where}" if text else "", kind, **data)


# What is ordered after what?
#
# A block barrier orders everything its threads did before it. A warp barrier orders only the lanes of its
# mask. Between blocks it takes a flag and two fences: one thread writes, executes a fence, and sets the flag
# with an atomic operation; another one sees the flag, executes a fence, and reads. Without the first fence
# the flag may become visible before the data. Without the second, the reader may have read too early.
#
#
# So each thread keeps *clocks*: for some blocks, a count of barriers; for some threads, a count of moments.
# Whatever another thread did up to that point is ordered before everything this one does now. A fence stamps
# a thread's clock on the flags it sets afterward. Whoever sees the flag gets that clock, and may rely on it
# after a fence of its own. Threads at a barrier merge their clocks.

class Knowledge(NamedTuple):
    "What a thread knows about others, as clocks. Those called `near` apply only within the same block."
    known: dict = None      # what is ordered before everything it does now
    sent: dict = None       # what the flags it sets carry: everything before its last fence
    sent_near: dict = None
    seen: dict = None       # what it learned from flags; valid after its next fence
    seen_near: dict = None

NOBODY, NOTHING = (0,) * 32, Knowledge()
_last_joined = [None] * 3

def joined(one, other):
    "The union of two clocks: dicts of counts, None if empty. Clocks are immutable."
    if one is other or not other: return one
    if not one: return other
    if _last_joined[0] is one and _last_joined[1] is other:
        return _last_joined[2]  # many threads join the same two
    newer = {who: when for who, when in other.items() if one.get(who, -1) < when}
    _last_joined[:] = one, other, one | newer if newer else one
    return _last_joined[2]

def share(threads):
    "At a barrier: from now on every thread knows what any of them knew."
    if all([t.knowledge is NOTHING for t in threads]): return
    together = NOTHING
    for thread in threads: together = Knowledge(*map(joined, together, thread.knowledge))
    for thread in threads: thread.knowledge = together


RANK_BIT = 24  # of an address in shared memory: in a cluster, the block's rank is above it

def in_block(address):
    "The address in its block's shared memory."
    return int(address) & (1 << RANK_BIT) - 1


class Thread(greenlet):
    "One simulated CUDA thread. It runs until it waits at a barrier, or returns."
    def __init__(self, target, block, index, linear, rank):
        super().__init__(target)
        self.block, self.threadIdx, self.blockIdx = block, kernelapi.Dim3(*index), block.indices[rank]
        self.rank, self.memory = rank, block.memories[rank]  # in a cluster
        self.linear, self.warp, self.lane = linear, linear // 32, linear % 32
        self.barriers = self.time = 0  # block barriers passed; moments that others may know
        self.moment = self.near = self  # see `Block.begin_moment`
        self.saw = NOBODY              # lane of its warp → the moment up to which it knows that lane
        self.knowledge = NOTHING       # what it learned from fences and flags
        self.waits_at = self.mask = self.given = self.received = self.orders = None
        self.copies = [[]]  # asynchronous copies by group, the open group is last
        self.ready = self.awaited = self.meeting = None  # other things it may wait for
        self.paused = self.at_grid = False
        self.asked, self.questions = None, 0  # its last atomic operation; their count since its last pause
        self.products, self.sends, self.stored, self.fenced, self.maps = [], [[]], [], [], set()
        self.fenced_at = -1  # moment of its last proxy fence
        self.frame = self.places = None  # see `place`

    def __str__(self): return f"thread {position(self.threadIdx, self.block.dims)}"

    def place(self, frame):
        "Where it is, see `place_of`. While a frame runs, nothing changes about its callers."
        if frame is not self.frame: self.frame, self.places = frame, places_of(frame)
        at = frame.f_lasti
        if at not in self.places: self.places[at] = place_of(frame)
        return self.places[at]

    def pause(self, frame):
        "Let the others run until the block resumes this thread. Returns what the others passed to it."
        _, self.waits_at, self.columns = self.place(frame)
        self.parent.switch()
        return self.received

    def wait(self, frame, mask=None, value=None, orders=True):
        """Pause at a barrier of the block, or of the warp's lanes in `mask`, which exchange values.
        `orders`: does it order memory too?"""
        self.mask, self.given = mask, value
        self.orders = orders
        return self.pause(frame)

    def wait_until(self, frame, ready, awaited):
        "Pause until the function `ready` returns true. That depends on `awaited`, an `MBarrier` or `Late`."
        if ready(): return
        self.ready, self.awaited = ready, awaited
        self.pause(frame)

    def meet(self, frame, place, threads, value=None):
        "Pause until this many threads reach a place, and get what each contributed: one dict for all."
        self.meeting, self.given = (place, threads), value
        return self.pause(frame)

    def let_others_go_on(self, frame):
        "Pause until all others have had a turn."
        self.paused, self.questions = True, 0
        self.pause(frame)

    def wait_for_grid(self, frame):
        "Pause until all threads of all blocks are here."
        self.at_grid = True
        self.pause(frame)

    def ordered_after(self, access):
        "Is what this thread does now ordered after another thread's `access`?"
        other = access.thread
        if other.block is self.block:
            if self.barriers > access.barriers: return True
            if other.warp == self.warp and self.saw[other.lane] > access.time: return True
        known = self.knowledge.known
        return known is not None and (known.get(other.block, 0) > access.barriers
                                      or known.get(other, 0) > access.time)

    def tick(self):
        "Start a new moment, for this thread only."
        self.moment = self.near = object()
        self.time += 1
        return self.time

    def clock(self):
        "Everything ordered before this moment: block → barriers, thread → moments."
        self.tick()
        threads, first = self.block.threads, 32 * self.warp
        now = {threads[first + lane]: time for lane, time in enumerate(self.saw) if time}
        return joined(self.knowledge.known, now | {self.block: self.barriers, self: self.time})

    def fence(self, whole_gpu):
        """What it learned from others' flags takes effect now. The flags it sets carry everything before this
        fence."""
        known, sent, sent_near, seen, seen_near = self.knowledge
        self.knowledge = Knowledge(joined(known, joined(seen_near, seen if whole_gpu else None)))
        now = self.clock()
        self.knowledge = Knowledge(self.knowledge.known, now if whole_gpu else sent, now,
                                   None if whole_gpu else seen)

    def learn(self, clock):
        "Take over the clock of an mbarrier or a named barrier."
        if clock:
            self.tick()
            self.knowledge = self.knowledge._replace(known=joined(self.knowledge.known, clock))


# `Block.run` is the scheduler. Everything that can run, runs. Then it checks who waits: a warp whose lanes
# are all at a warp barrier continues; so do threads at a named barrier, or at an mbarrier whose phase
# completed; a block whose threads are all at the same `syncthreads` continues; anything else is an error.

# what notes on global memory still ask a thread once its block has finished
ASKED_LATER = {"block", "threadIdx", "blockIdx", "rank", "linear", "warp", "lane", "barriers", "time"}

class Block:
    """One block of a launch, or all blocks of a cluster: threads, run one after another from barrier to
    barrier. A cluster's threads are numbered consecutively; each has its own block's shared memory."""
    def __init__(self, grid, indices, args, memories):
        self.dims, self.grid_dims = grid.block_dim, grid.grid_dim
        self.indices = [kernelapi.Dim3(*index) for index in indices]
        self.index, self.grid, self.memory, self.memories = self.indices[0], grid, memories[0], memories
        places = [*np.ndindex(*reversed(self.dims))]  # x runs fastest
        def run():
            grid.fn(*args)
            getcurrent().frame = None  # and its variables with it
        self.threads = [Thread(run, self, reversed(place), rank * len(places) + i, rank)
                        for rank in range(len(memories)) for i, place in enumerate(places)]
        self.runnable, self.alive = self.threads, self.threads
        self.begin_moment()

    def begin_moment(self):
        """Start a new moment for all threads. Threads with the same `moment`, and lanes of a warp with the
        same `near`, have the same accesses of others ordered before what they do now."""
        moment, nears = object(), [object() for _ in self.threads[::32]]
        for thread in self.threads: thread.moment, thread.near = moment, nears[thread.warp]

    def __str__(self): return f"block {position(self.index, self.grid_dims)}"

    def run(self):
        "Run all threads to completion, or until the remaining ones wait for other blocks."
        while self.runnable:
            for thread in self.runnable: self._resume(thread)
            # who waits, and who may continue
            alive = [thread for thread in self.alive if not thread.dead]
            paused = [thread for thread in alive if thread.paused]
            wait_here = not paused and not any([thread.at_grid for thread in alive])
            released = (self._released_warps(alive) or self._released_meetings(alive)
                        or self._released_ready(alive) or (wait_here and self._released_block(alive) or []))
            if released or len(alive) < len(self.alive): self.grid.moves += 1
            self.alive, self.runnable = alive, released + paused
            # those that only yielded continue after other blocks have had a turn
            if paused and (self.grid.random or not released): return

    def forget(self):
        "It has finished. What its threads keep refers to nothing larger, so all else is freed at once."
        for thread in self.threads:
            for name in vars(thread).keys() - ASKED_LATER: delattr(thread, name)
        self.threads = self.alive = self.runnable = self.memories = ()
        self.grid = self.memory = None

    def unwind(self):
        "End the threads that started and haven't finished."
        for thread in self.threads:
            if thread: thread.throw()

    def _resume(self, thread):
        thread.paused = False
        try:
            thread.switch()
        except Again:
            raise
        except Exception as e:
            raise _located(e, thread) from None

    def _released_warps(self, alive):
        "Lanes of a warp whose partners have all arrived. Those that returned don't count."
        released = []
        for thread in alive:
            if thread.mask is None: continue
            # the lanes of its mask, which must all wait with the same mask
            group = [t for t in self.threads[32 * thread.warp:32 * thread.warp + 32]
                     if thread.mask >> t.lane & 1 and not t.dead]
            mask = thread.mask
            if any([t.mask != mask for t in group]): continue
            if not thread.orders: self._refuse_places(group)
            values = {t.lane: t.given for t in group}
            if all([t.orders for t in group]): self._order_warp(group)
            for t in group: t.mask, t.received = None, values
            released += group
        return released

    def _order_warp(self, lanes):
        "From now on each lane knows what the others did."
        # usually all know the same already
        saw = lanes[0].saw
        if any([t.saw is not saw for t in lanes]): saw = tuple(map(max, *(t.saw for t in lanes), saw))
        saw = list(saw)
        for t in lanes: saw[t.lane] = t.tick()
        saw, moment = tuple(saw), object()
        for t in lanes: t.saw, t.moment, t.near = saw, moment, moment
        share(lanes)

    @staticmethod
    def _told(places):
        "Places as text, with columns where several share the text; and what distinguishes them."
        texts = Counter(text for text, _ in places)
        def told(text, columns):
            numbers = ", called at column ".join(str(i + 1) for i in columns)
            return f"{text} (column {numbers})" if texts[text] > 1 else text
        return [told(*place) for place in places], "lines" if len(texts) > 1 else "columns of one line"

    def _refuse_places(self, lanes):
        "Lanes must exchange values at the same place."
        places = sorted({(t.waits_at, t.columns) for t in lanes})
        if len(places) == 1: return
        told, what = self._told(places)
        raise SimulatorError(
            f"lanes of a warp exchange values at different {what}, in {self}: {'; '.join(told)}. All lanes "
            "named in the mask must reach the same instruction: name only the lanes of one branch, or move "
            "the exchange out of the branch",
            "barrier", at="warp")

    def _released_meetings(self, alive):
        "Threads at a named barrier, or at a product of their warpgroup, once all have arrived."
        for place, threads in {thread.meeting for thread in alive} - {None}:
            named = place.startswith("named")
            group = [t for t in alive if t.meeting and t.meeting[0] == place]
            if any(t.meeting[1] != threads for t in group) or len(group) > threads:
                raise SimulatorError(
                    f"{len(group)} threads meet at {place}, and not all of them for {threads}, in {self}: "
                    f"{group[0].waits_at}", "barrier", at="named barrier" if named else "warpgroup")
            if len(group) < threads: continue
            values = {t.linear: t.given for t in group}
            for t in group: t.meeting, t.received = None, values
            if named:  # the only one of these that orders memory
                share(group)
                clock = {t: t.tick() for t in group}
                for t in group:
                    t.fenced = []
                    t.learn(clock)
            return group

    def _released_ready(self, alive):
        "Threads whose wait is over. Late events happen when nobody can continue without them."
        waiting = [thread for thread in alive if thread.ready]
        if not any(thread.ready() for thread in waiting):
            for thread in waiting: thread.awaited.land()
        released = [thread for thread in waiting if thread.ready()]
        for thread in released: thread.ready = None
        return released

    def _released_block(self, alive):
        "All threads, if all are at the same `syncthreads`."
        places = {(thread.waits_at, thread.columns) for thread in alive}
        some_returned = len(alive) < len(self.threads)
        elsewhere = any(t.mask is not None or t.ready or t.meeting for t in alive)
        if alive and (some_returned or len(places) > 1 or elsewhere):
            self._refuse_barrier(alive, sorted(places))
        # a barrier propagates tensor-map fences, and completes the fencing of stores
        maps = set().union(*(thread.maps for thread in alive))
        for thread in alive:
            thread.barriers += 1
            thread.fenced, thread.maps = [], maps
        share(alive)
        self.begin_moment()
        return alive

    def _refuse_barrier(self, alive, places):
        "Report who waits where, and why the wait never ends."
        counts = [sum((t.waits_at, t.columns) == place for t in alive) for place in places]
        total, (told, what) = len(self.threads), self._told(places)
        waiting = "; ".join(f"{n} of {total} threads wait at {place}" for n, place in zip(counts, told))
        # the most likely reason
        done = [t for t in self.threads if t.dead]
        if missing := {t.awaited.missing() for t in alive if t.ready}:
            why = f"At an mbarrier {'; '.join(sorted(missing))}."
        elif met := {t.meeting for t in alive if t.meeting}:
            why = "; ".join(f"At {place} {threads} are to meet" for place, threads in sorted(met))
        elif len(places) > 1:
            why = ("All threads must reach a barrier at the same place, "
                   f"but these wait at different {what}.")
        elif done:
            why = (f"The other {len(done)}, {done[0]} first, have returned. "
                   "A GPU doesn't wait for those; this simulator is stricter, "
                   "because a later barrier would be mistaken for this one.")
        else: why = "Not all lanes named by the warp barrier reach it."
        raise SimulatorError(f"not all threads reach the barrier, in {self}: {waiting}. {why}",
                             "barrier", at="block")


# The lanes of a warp meet as well: each contributes a value, pauses, and gets everyone's.

FULL_WARP = 0xFFFFFFFF

def exchange(
    value,           # the running lane's value
    frame=None,      # Python frame of the kernel; the caller's if None
    mask=FULL_WARP,  # the lanes that take part
) -> dict:           # lane → value
    """Wait until all lanes of the mask are here, and get each one's value. All get the same dict.
    This isn't a memory barrier."""
    given = getcurrent().wait(frame or sys._getframe(1), mask, value, orders=False)
    if len(given) < mask.bit_count():
        raise SimulatorError(
            f"this needs all {mask.bit_count()} lanes, but only {len(given)} are here: some have returned",
            "barrier", at="warp")
    return given

def present_lanes(mask):
    "The lanes of `mask` that the running thread's warp has."
    thread = getcurrent()
    lanes = min(32, len(thread.block.threads) - 32 * thread.warp)
    present = int(mask) & ((1 << lanes) - 1)
    if not present >> thread.lane & 1:
        raise SimulatorError(f"lane {thread.lane} is not in the mask {int(mask):#x} it passes")
    # if some lanes meet without others, two readers of an element don't represent all: note every one
    if present != (1 << lanes) - 1 and not thread.block.grid.masked: raise Again("masked")
    return present
