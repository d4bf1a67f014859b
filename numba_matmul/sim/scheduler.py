"""A CUDA thread is a function call that can pause. A block runs its threads from barrier to barrier.

Numba's simulator starts an operating-system thread for each CUDA thread and polls them. Ours makes each CUDA
thread a greenlet (https://greenlet.readthedocs.io), a function call that can be paused and resumed. The block
runs thread 0 until it reaches a barrier, then thread 1, and so on. When all wait at the same barrier, all may
pass. So the order is always the same, and a barrier costs a function call instead of polling.
"""
import re
import sys
from collections import Counter
from typing import NamedTuple

import numpy as np
from greenlet import getcurrent, greenlet
from .places import last_user_line, place_of, position
from numba.cuda.simulator import kernelapi


class SimulatorError(RuntimeError):
    """A kernel did something that a GPU refuses, leaves undefined, or silently gets wrong. `kind` says what
    sort of mistake it is, and `data` has the facts behind the message:

    - race: two accesses that nothing orders. `array`; `accesses`: the earlier and the later one, each a
      thread's "read" or "write", an asynchronous "copy" into shared memory, a "product" of wgmma, or a bulk
      "store", which read it; `same_block`, where both are threads'
    - uninitialized: read before it was written. `array`; `copying`: is a copy into it under way?; `by`:
      "thread", "product" or "store"
    - barrier: not reached by all, or a mistake with an mbarrier. `at`: "block", "warp", "warpgroup", "named
      barrier", "mbarrier" or "grid"
    - deadlock: blocks wait for something that never happens
    - fence: something that a copy or a product may not see yet. `of`: "mbarrier", "tensor map", "product" or
      "store"
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


def _located(error, thread):
    "What a running thread raised, as a `SimulatorError` that says where."
    text, kind, data = str(error), "unsupported", {}
    if isinstance(error, SimulatorError): kind, data = error.kind, error.data
    elif isinstance(error, IndexError):
        if "out of bounds" in text: kind, data = "bounds", dict(negative=False)
        # numpy doesn't name the array, but its caller knows the name
        traceback = error.__traceback__
        while traceback.tb_next: traceback = traceback.tb_next
        array = getattr(traceback.tb_frame.f_locals.get("self"), "name", None)
        if isinstance(array, str): text = f"{array}: {text}"
    else: text = f"{type(error).__name__}: {text}"
    text = re.sub(r"\b(Shared|Local|Global)Array\b", "array", text).replace("FakeShape", "tuple")
    where = f"{thread} of {thread.block}, {last_user_line(error.__traceback__)}"
    return SimulatorError(f"{text}, in {where}" if text else "", kind, **data)


# What is in order after what?
#
# A barrier of the block orders everything its threads did before it. A barrier of a warp orders the lanes of
# its mask, and only them. Between blocks it takes a flag and two fences: one thread writes, passes a fence,
# and sets the flag by an atomic operation; another one sees the flag, passes a fence, and reads. Without the
# first fence the flag may be seen before what was written. Without the second one the reader may have read
# too early.
#
# So each thread keeps *clocks*: for some blocks, a number of barriers; for some threads, a number of moments.
# What another thread did up to then is in order before everything this one does now. A fence stamps a
# thread's clock on the flags it sets from then on. Whoever sees the flag has that clock, and may rely on it
# after a fence of its own. Threads at a barrier merge their clocks.

class Knowledge(NamedTuple):
    "What a thread knows of others, as clocks. Those called `near` hold for threads of the same block only."
    known: dict = None      # what is in order before everything it does now
    sent: dict = None       # what the flags it sets say: everything before its last fence
    sent_near: dict = None
    seen: dict = None       # what flags have told it; this counts after its next fence
    seen_near: dict = None

NOBODY, NOTHING = (0,) * 32, Knowledge()
_last_joined = [None] * 3

def joined(one, other):
    "What two clocks know together: dicts of counts, None if empty. A clock never changes."
    if one is other or not other: return one
    if not one: return other
    if _last_joined[0] is one and _last_joined[1] is other:
        return _last_joined[2]  # many threads join the same two
    newer = {who: when for who, when in other.items() if one.get(who, -1) < when}
    _last_joined[:] = one, other, one | newer if newer else one
    return _last_joined[2]

def share(threads):
    "At a barrier: from now on each thread knows what any of them knew."
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

    def __str__(self): return f"thread {position(self.threadIdx, self.block.dims)}"

    def pause(self, frame):
        "Let the others run until the block lets this thread go on. Returns what the others gave it."
        _, self.waits_at, self.columns = place_of(frame)
        self.parent.switch()
        return self.received

    def wait(self, frame, mask=None, value=None, orders=True):
        """Pause at a barrier of the block, or of the warp's lanes in `mask`, which swap values.
        `orders`: does that order memory, too?"""
        self.mask, self.given = mask, value
        self.orders = orders
        return self.pause(frame)

    def wait_until(self, frame, ready, awaited):
        "Pause until the function `ready` returns true. That depends on `awaited`, an `MBarrier` or `Late`."
        if ready(): return
        self.ready, self.awaited = ready, awaited
        self.pause(frame)

    def meet(self, frame, place, threads, value=None):
        "Pause until that many threads have come to a place, and see what each gave: one dict for all."
        self.meeting, self.given = (place, threads), value
        return self.pause(frame)

    def let_others_go_on(self, frame):
        "Pause until all others have had their turn."
        self.paused, self.questions = True, 0
        self.pause(frame)

    def wait_for_grid(self, frame):
        "Pause until all threads of all blocks are here."
        self.at_grid = True
        self.pause(frame)

    def ordered_after(self, access):
        "Does something order what this thread does now after another thread's `access`?"
        other = access.thread
        if other.block is self.block:
            if self.barriers > access.barriers: return True
            if other.warp == self.warp and self.saw[other.lane] > access.time: return True
        known = self.knowledge.known
        return known is not None and (known.get(other.block, 0) > access.barriers
                                      or known.get(other, 0) > access.time)

    def tick(self):
        "Another moment begins, for this thread alone."
        self.moment = self.near = object()
        self.time += 1
        return self.time

    def clock(self):
        "Everything that is in order before this moment: block → barriers, thread → moments."
        self.tick()
        threads, first = self.block.threads, 32 * self.warp
        now = {threads[first + lane]: time for lane, time in enumerate(self.saw) if time}
        return joined(self.knowledge.known, now | {self.block: self.barriers, self: self.time})

    def fence(self, whole_gpu):
        """What others' flags have told it counts from now on. The flags it sets tell everything before this
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


# `Block.run` is the scheduler. Everything that can run, runs. Then it looks at who waits: a warp whose lanes
# are all at a warp barrier goes on; so do threads at a named barrier, and at an mbarrier whose phase has
# ended; a block whose threads are all at the same `syncthreads` goes on; anything else is a mistake.

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
        """A new moment for all threads. Threads with the same `moment`, and lanes of a warp with the same
        `near`, have the same accesses of others in order before what they do now."""
        moment, nears = object(), [object() for _ in self.threads[::32]]
        for thread in self.threads: thread.moment, thread.near = moment, nears[thread.warp]

    def __str__(self): return f"block {position(self.index, self.grid_dims)}"

    def run(self):
        "Run all threads to their end, or until those that are left wait for other blocks."
        while self.runnable:
            for thread in self.runnable: self._resume(thread)
            # who waits, and who of them may go on
            alive = [thread for thread in self.alive if not thread.dead]
            paused = [thread for thread in alive if thread.paused]
            wait_here = not paused and not any(thread.at_grid for thread in alive)
            released = (self._released_warps(alive) or self._released_meetings(alive)
                        or self._released_ready(alive) or (wait_here and self._released_block(alive) or []))
            if released or len(alive) < len(self.alive): self.grid.moves += 1
            self.alive, self.runnable = alive, released + paused
            # those that only let others go first continue when other blocks have had their turn
            if paused and (self.grid.random or not released): return

    def unwind(self):
        "End the threads that have started and not ended."
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
        "Lanes of a warp whose partners are all there. Those that have returned are not waited for."
        released = []
        for thread in alive:
            if thread.mask is None: continue
            # the lanes of its mask, which must all wait with the same one
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
        "Each lane knows from now on what the others did."
        # most often all know the same already
        saw = lanes[0].saw
        if any(t.saw is not saw for t in lanes): saw = tuple(map(max, *(t.saw for t in lanes), saw))
        saw = list(saw)
        for t in lanes: saw[t.lane] = t.tick()
        saw, moment = tuple(saw), object()
        for t in lanes: t.saw, t.moment, t.near = saw, moment, moment
        share(lanes)

    @staticmethod
    def _told(places):
        "Places as text, with their columns where several have the same text; what they differ in."
        texts = Counter(text for text, _ in places)
        def told(text, columns):
            numbers = ", called at column ".join(str(i + 1) for i in columns)
            return f"{text} (column {numbers})" if texts[text] > 1 else text
        return [told(*place) for place in places], "lines" if len(texts) > 1 else "columns of one line"

    def _refuse_places(self, lanes):
        "Lanes must swap values at one place."
        places = sorted({(t.waits_at, t.columns) for t in lanes})
        if len(places) == 1: return
        told, what = self._told(places)
        raise SimulatorError(
            f"lanes of a warp swap values at different {what}, in {self}: {'; '.join(told)}. All lanes that "
            "the mask names must come to the same instruction: name only those of one branch, or leave the "
            "branch first",
            "barrier", at="warp")

    def _released_meetings(self, alive):
        "Threads at a named barrier, or at a product of their warpgroup, to which all have come."
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
        "Threads whose wait is over. What may be late happens when nobody can go on without it."
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
        # a barrier passes fences of tensor maps on, and ends what stores still had to be fenced for
        maps = set().union(*(thread.maps for thread in alive))
        for thread in alive:
            thread.barriers += 1
            thread.fenced, thread.maps = [], maps
        share(alive)
        self.begin_moment()
        return alive

    def _refuse_barrier(self, alive, places):
        "Say who waits where, and why that never ends."
        counts = [sum((t.waits_at, t.columns) == place for t in alive) for place in places]
        total, (told, what) = len(self.threads), self._told(places)
        waiting = "; ".join(f"{n} of {total} threads wait at {place}" for n, place in zip(counts, told))
        # the likeliest reason
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
        raise SimulatorError(f"barrier not reached by all, in {self}: {waiting}. {why}",
                             "barrier", at="block")


# The lanes of a warp meet as well: each hands in a value, pauses, and gets everyone's.

FULL_WARP = 0xFFFFFFFF

def exchange(
    value,           # what the running lane gives
    frame=None,      # Python frame of the kernel; the caller's if None
    mask=FULL_WARP,  # the lanes that take part
) -> dict:           # lane → value
    """Wait until all lanes of the mask are here, and see what each gave. All get the same dict.
    It isn't a barrier for memory."""
    given = getcurrent().wait(frame or sys._getframe(1), mask, value, orders=False)
    if len(given) < mask.bit_count():
        raise SimulatorError(
            f"this needs all {mask.bit_count()} lanes, and {len(given)} are there: some have returned",
            "barrier", at="warp")
    return given

def present_lanes(mask):
    "The lanes of `mask` that the running thread's warp has."
    thread = getcurrent()
    lanes = min(32, len(thread.block.threads) - 32 * thread.warp)
    present = int(mask) & ((1 << lanes) - 1)
    if not present >> thread.lane & 1:
        raise SimulatorError(f"lane {thread.lane} is not in the mask {int(mask):#x} that it gives")
    # where some lanes meet without others, two readers of an element don't stand for all: note every one
    if present != (1 << lanes) - 1 and not thread.block.grid.masked: raise Again("masked")
    return present
