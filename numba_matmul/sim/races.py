"""A race: two threads access one element, one of them writes, and nothing orders the two.

The simulator finds races from its notes, whichever thread runs first.
"""
from copy import copy

from greenlet import getcurrent
from .scheduler import SimulatorError, joined


class Access:
    "One access: which thread, where, and when."
    __slots__ = "thread", "place", "barriers", "time", "atomic"
    def __init__(self, frame, atomic=False):
        self.thread = thread = getcurrent()
        self.place, self.atomic = thread.place(frame), atomic
        self.barriers, self.time = thread.barriers, thread.time

    def races_with(self, new):
        "Could a GPU execute this access and the `new` one in either order?"
        thread, other = new.thread, self.thread
        if thread is other or (self.barriers < new.barriers and thread.block is other.block):
            return False
        return not (new.atomic and self.atomic or thread.ordered_after(self))

    def is_past(self, thread):
        "Did a barrier order it before everything the threads of `thread`'s block do now?"
        return self.thread.block is thread.block and self.barriers < thread.barriers

def _noted(accesses, new):
    "`accesses` plus `new`, unless the existing ones reveal every race that `new` would."
    thread, kept = new.thread, []
    block = thread.block
    for old in accesses:
        if old.thread is not thread and not thread.ordered_after(old): kept.append(old)
    if len(kept) < 2 or block.grid.masked: return [*kept, new]
    # two blocks, or two warps, reveal more than two threads of one
    one, other = kept[0].thread, kept[1].thread
    if one.block is not other.block: return kept
    if block is one.block and (one.warp != other.warp or thread.warp == one.warp): return kept
    return [kept[0], new]


class Element:
    "What is known about one element of memory."
    __slots__ = "write", "reads", "atomics", "copying", "flag", "settled", "sent", "owner", "lost"
    def __init__(self):
        self.write = self.copying = None
        self.settled = None  # threads with this `moment` or `near` learn nothing by reading it again
        self.reads = self.atomics = self.sent = ()  # sent: threads whose asynchronous copies read it
        self.owner = self.lost = None  # for dynamic shared memory, see `SharedArray.keep_owner`
        self.flag = None  # the clocks it carries, those for its block, the block

    def note_read(self, access, array, index):
        "Check a read against what is known about `array[index]`, and note it."
        write = self.write
        if write is not None and write.races_with(access):
            _report(array, index, write, "write", access, "read")
        if access.atomic: return  # noted as a write
        for other in self.atomics:
            if other.races_with(access): _report(array, index, other, "write", access, "read")
        self.reads = _noted(self.reads, access) if self.reads else [access]
        if len(self.reads) > 1 and not self.atomics: self._settle(access.thread)

    def _settle(self, thread):
        "After a read by `thread`: which other readers do the two noted ones represent?"
        block, one, other = thread.block, self.reads[0].thread, self.reads[1].thread
        if block.grid.masked or self.lost or self.write is not None and not self.write.is_past(thread):
            return
        if one.block is not other.block or one.block is block and one.warp != other.warp:
            self.settled = thread.moment
        elif one.block is block and one.warp == thread.warp: self.settled = thread.near

    def note_write(self, access, array, index, value=None):
        "Check a write of a value against what is known, and note it. None counts as a new value."
        write, self.settled = self.write, None
        if write is not None and write.races_with(access):
            same = value is not None and not write.atomic and array.holds(index, value)
            _report(array, index, write, "write", access, "write", same)
        for read in self.reads:
            if read.races_with(access): _report(array, index, read, "read", access, "write")
        for other in self.atomics:
            if other.races_with(access): _report(array, index, other, "write", access, "write")
        # a copy reads its source at any time until it lands
        for thread in self.sent:
            if not thread.dead:
                raise SimulatorError(
                    f"{array.label(index)} is written while an asynchronous copy from it, started by "
                    f"{thread}, is in flight: wait for the copy first, and pass a barrier if another thread "
                    "writes",
                    "race", array=array.name, accesses=("copy", "write"))
        if access.atomic: self.atomics = _noted(self.atomics, access)
        self.write = access

    def carry(self, reads, writes):
        "An atomic operation of the running thread: it learns from the flag and publishes what it knows."
        thread, flag = getcurrent(), self.flag
        known, sent, sent_near, seen, seen_near = thread.knowledge
        if reads and flag:
            whole, near, block = flag
            near = near if block is thread.block else None
            thread.knowledge = type(thread.knowledge)(known, sent, sent_near, joined(seen, whole),
                                                      joined(seen_near, near))
            sent, sent_near = joined(sent, whole), joined(sent_near, near)  # it passes on what it found there
        if writes: self.flag = (sent, sent_near, thread.block) if sent or sent_near else None


class Elements(dict):
    "Notes by element number, created on demand."
    grain = 0  # numbers that belong to one element
    def __missing__(self, number):
        self[number] = made = Element()
        return made

    def divide(self, size):
        "Refine the granularity to elements of this size, if it was coarser."
        if not self.grain or size < self.grain:
            for number, element in list(self.items()):
                element.settled = None  # from now on arrays look up the notes on its parts
                for part in range(0, self.grain, size): self[number + part] = copy(element)
            self.grain = size


MOST_RACES = 8  # pairs of lines; then the launch is stopped
_DONE = dict(read="read", write="written")

def _report(array, index, before, done, now, doing, same=False):
    "Two accesses race: save that for the end of the launch. same: do both write the same value?"
    thread, other, label = now.thread, before.thread, array.label(index)
    grid, (here, where, _), (there, earlier, _) = thread.block.grid, now.place, before.place
    # a GPU ends up with the same value either way, so this is only a remark
    if same:
        grid.remarks.setdefault(here, f"several threads write the same value to {label}, at {where}")
        return
    # one race per pair of lines is enough
    lines, same_block = frozenset((there, here)), other.block is thread.block
    if lines in grid.races: return
    by, lack = (other, "no barrier") if same_block else (f"{other} of {other.block}", "no flag and fences")
    # one expression that reads and writes is an update, such as x[i] += 1: no barrier helps there
    update = before.place == now.place and done != doing and "+=" in where
    cure = f"; cuda.atomic.add({array.name}, …) reads, adds and writes in one step" * update
    if before.atomic != now.atomic: cure = "; an atomic operation and a plain access race, too"
    grid.races[lines] = SimulatorError(
        f"race: {label} was {_DONE[done]} by {by} at {earlier}, and is {_DONE[doing]} by {thread} of "
        f"{thread.block} at {where}, with {lack} in between{cure}",
        "race", array=array.name, accesses=(done, doing), same_block=same_block)
    if len(grid.races) == MOST_RACES: raise SimulatorError("")
