"""What a running kernel sees as `cuda`."""
import sys
from math import prod

import numpy as np
from greenlet import getcurrent
from .declared import LocalMemory
from .operators import HELPERS
from .races import Access
from .scheduler import FULL_WARP, SimulatorError, present_lanes
from .views import refuse_negative
from numba.cuda.simulator import kernelapi
from numba.cuda.simulator.vector_types import vector_types


def _typed(kind, init):
    "Makes a vector whose fields have its type, which Numba's simulator doesn't convert them to."
    convert, make = HELPERS["<converted>"], getattr(np, kind)
    def vector(self, *args):
        init(self, *args)
        for name in self._attrs: setattr(self, name, make(convert(getattr(self, name), kind)))
    return vector

for _name, _vector in vector_types.items(): _vector.__init__ = _typed(_name[:-2], _vector.__init__)


class StrictModule(kernelapi.FakeCUDAModule):
    "`cuda` inside a kernel."
    def __init__(self, grid_dim, block_dim):
        super().__init__(grid_dim, block_dim, 0)
        self._local, self._atomic, self._cg = LocalMemory(), Atomics(), CooperativeGroups()

    threadIdx = property(lambda self: getcurrent().threadIdx)
    blockIdx = property(lambda self: getcurrent().blockIdx)
    laneid = property(lambda self: getcurrent().lane)
    shared = property(lambda self: getcurrent().memory)

    def syncthreads(self): getcurrent().wait(sys._getframe(1))
    def threadfence(self): self._fence(True, sys._getframe(1))
    threadfence_system = threadfence
    def threadfence_block(self): self._fence(False, sys._getframe(1))
    def _fence(self, whole_gpu, frame):
        thread = getcurrent()
        thread.block.grid.mix(thread, frame)
        thread.fence(whole_gpu)
    def nanosleep(self, ns): getcurrent().let_others_go_on(sys._getframe(1))

    def _count_in_block(self, value, frame):
        thread = getcurrent()
        thread.wait(frame, value=bool(value))
        count = sum(t.given for t in thread.block.threads)
        thread.wait(frame, value=bool(value))  # no new vote before all have counted
        return count
    def syncthreads_count(self, value): return self._count_in_block(value, sys._getframe(1))
    def syncthreads_and(self, value):
        return int(self._count_in_block(value, sys._getframe(1)) == len(getcurrent().block.threads))
    def syncthreads_or(self, value): return int(self._count_in_block(value, sys._getframe(1)) > 0)

    # Lanes of a warp exchange values, vote and wait for each other

    def syncwarp(self, mask=FULL_WARP): getcurrent().wait(sys._getframe(1), present_lanes(mask))
    def shfl_sync(self, mask, value, lane):
        return self._shuffle(mask, value, int(lane) % 32, sys._getframe(1))
    def shfl_up_sync(self, mask, value, delta):
        return self._shuffle(mask, value, getcurrent().lane - delta, sys._getframe(1))
    def shfl_down_sync(self, mask, value, delta):
        return self._shuffle(mask, value, getcurrent().lane + delta, sys._getframe(1))
    def shfl_xor_sync(self, mask, value, lanes):
        return self._shuffle(mask, value, getcurrent().lane ^ lanes, sys._getframe(1))
    def all_sync(self, mask, value): return all(self._votes(mask, value, sys._getframe(1)).values())
    def any_sync(self, mask, value): return any(self._votes(mask, value, sys._getframe(1)).values())
    def ballot_sync(self, mask, value):
        votes = self._votes(mask, value, sys._getframe(1))
        return sum(1 << lane for lane, vote in votes.items() if vote)

    def match_any_sync(self, mask, value):
        votes = self._votes(mask, value, sys._getframe(1))
        return sum(1 << lane for lane, other in votes.items() if other == value)
    def match_all_sync(self, mask, value):
        votes = self._votes(mask, value, sys._getframe(1))
        same = all(other == value for other in votes.values())
        return (sum(1 << lane for lane in votes) if same else 0), same
    def lanemask_lt(self): return (1 << getcurrent().lane) - 1

    # a vote doesn't order memory accesses

    def _votes(self, mask, value, frame):
        return getcurrent().wait(frame, present_lanes(mask), value, orders=False)
    def _shuffle(self, mask, value, lane, frame):
        given = self._votes(mask, value, frame)
        if not 0 <= lane < 32: return value  # shifted out of the warp: it keeps its own value
        if lane not in given:
            why = "has returned" if int(mask) >> lane & 1 else f"is not in the mask {int(mask):#x}"
            raise SimulatorError(f"a shuffle reads lane {lane}, which {why}")
        return given[lane]


class CooperativeGroups:
    "`cuda.cg` inside a kernel: Numba's only group, all threads of the grid."
    def this_grid(self): return self
    def sync(self):
        thread = getcurrent()
        blocks, room = prod(thread.block.grid.grid_dim), thread.block.grid.room()
        if blocks > room:
            raise SimulatorError(f"a barrier of the grid needs all {blocks} blocks resident at once, but an "
                                 f"H100 runs at most {room} with this many threads and this much shared "
                                 "memory: launch fewer blocks, with a loop in each")
        thread.wait_for_grid(sys._getframe(1))
        return 0


class Atomics(kernelapi.FakeCUDAAtomic):
    "Atomic operations. They are recorded as such, then work on the bare data."
    def __getattribute__(self, name):
        operation = super().__getattribute__(name)
        if name.startswith("_"): return operation
        def atomic(array, *args):
            thread, frame = getcurrent(), sys._getframe(1)
            if isinstance(array, (int, float, np.generic)):
                raise SimulatorError(f"cuda.atomic.{name} got the number {array} in place of an array: pass "
                                     "an array with one element")
            grid, data = thread.block.grid, array.data
            index, *values = args if name != "compare_and_swap" else ((0,) * array.ndim, *args)
            refuse_negative(index)
            data[index]  # numpy catches an out-of-range index before anything is recorded
            grid.talks = True
            grid.mix(thread, frame)  # others may go first
            element = array.note_atomic(index, Access(frame, atomic=True))
            before = data[index]
            answer = operation(data, *args)  # the recorder need not see this
            # a failed swap writes nothing, so it publishes nothing
            failed = name in ("cas", "compare_and_swap") and answer != values[0]
            element.carry(reads=True, writes=not failed)
            # one that changes nothing may be a thread spinning on a flag
            grid.moves += bool(data[index] != before)
            grid.take_turns(thread, frame, (name, args, answer))
            return answer
        return atomic
