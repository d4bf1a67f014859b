"""Hopper's TMA copies of whole tiles, and its `wgmma` products, take effect as late as possible.

Both run asynchronously, alongside the threads. In the simulator everything asynchronous takes effect *as late
as it may*, so that a missing wait shows.

TMA copies report to an mbarrier. A phase ends when all arrivals and all expected bytes are in. The copies it
waits for land only when a thread waits for that phase and no thread can continue without it. Fences are
checked as well: an mbarrier must be fenced before a copy may report to it, and the block must pass a barrier
before another thread uses it.
"""
import ctypes
import os
from functools import cached_property

import numpy as np
from greenlet import getcurrent
from .races import Access
from .scheduler import SimulatorError, in_block, joined


class Landed:
    "Stands in for the writing `Access` where a copy wrote and somebody has waited for it."
    def races_with(self, new): return False
    def is_past(self, thread): return True

class Late:
    "Something that happens as late as it may: `land` is called when nobody can continue without it."
    def __init__(self): self.now = False
    def land(self): self.now = True
    def missing(self): return "nothing is missing"

def let_others_run(frame):
    "Pause until no other thread can continue."
    late = Late()
    getcurrent().wait_until(frame, lambda: late.now, late)

class MBarrier:
    "A barrier in shared memory."
    def __init__(self, count):
        self.count, self.maker, self.made = count, getcurrent(), getcurrent().barriers
        self.arrived = self.expected = self.phase = 0
        self.clock = self.ordered = None  # of the arriving threads; of the last completed phase
        self.copies, self.fenced = [], False  # copies: array, places, values

    def arrive(self, size=0):
        self.arrived, self.expected = self.arrived + 1, self.expected + size
        self.clock = joined(self.clock, getcurrent().clock())
        if self.arrived > self.count:
            raise SimulatorError(f"more than {self.count} arrival{'' if self.count == 1 else 's'} at an "
                                 "mbarrier in one phase", "barrier", at="mbarrier")
        if not self.expected: self.land()

    def land(self):
        "End the phase if only copies are missing and all of them are in flight."
        if self.arrived < self.count or self._coming() != self.expected: return
        for array, places, values in self.copies: array.land(places, values)
        self.arrived, self.expected, self.copies, self.phase = 0, 0, [], self.phase + 1
        self.ordered, self.clock = self.clock, None

    def missing(self):
        return (f"{self.arrived} of {self.count} have arrived, {self.expected} bytes are expected, "
                f"and {self._coming()} are in flight")

    def _coming(self): return sum(values.nbytes for _, _, values in self.copies)

def mbarrier_init(address, count):
    "The running thread initializes an mbarrier."
    memory, at = getcurrent().memory, in_block(address)
    if at % 8 or not 0 <= at <= 2 * memory.numbers.size - 8 or count < 1 or at in memory.mbarriers:
        raise SimulatorError(f"can't initialize an mbarrier with {count} arrivals at {at}: it needs 8 "
                             "bytes of shared memory aligned to 8, 1 arrival or more, and is made only once",
                             "barrier", at="mbarrier")
    memory.mbarriers[at] = MBarrier(count)

def fence_mbarrier_init():
    "Make the running thread's mbarriers visible to copies."
    for barrier in getcurrent().memory.mbarriers.values():
        if barrier.maker is getcurrent(): barrier.fenced = True

def mbarrier(address, memory=None) -> MBarrier:
    "The mbarrier at an address, in this block's memory or another's, if it is visible to the running thread."
    thread = getcurrent()
    found = (memory or thread.memory).mbarriers.get(in_block(address))
    if found is None:
        raise SimulatorError(f"there is no mbarrier at {in_block(address)}", "barrier", at="mbarrier")
    if found.maker is not thread and thread.barriers == found.made:
        raise SimulatorError(f"the mbarrier initialized by {found.maker} is used "
                             "without a block barrier in between", "barrier", at="mbarrier")
    return found

def mbarrier_arrive_cluster(address, rank):
    "Arrive at the mbarrier at this address in the shared memory of a block of the cluster."
    mbarrier(address, _memory_of(rank)).arrive()

def _memory_of(rank):
    "The shared memory of a block of the cluster, which must still be running."
    block = getcurrent().block
    if not 0 <= rank < len(block.memories):
        raise SimulatorError(f"there is no block {int(rank)} in a cluster of {len(block.memories)}")
    size = len(block.threads) // len(block.memories)  # of a block, whose threads are consecutive
    if all(thread.dead for thread in block.threads[int(rank) * size:(int(rank) + 1) * size]):
        raise SimulatorError(f"block {int(rank)} of the cluster has ended, and its shared memory with it: "
                             "cluster_sync before a block ends", "barrier", at="block")
    return block.memories[int(rank)]

def mbarrier_wait(address, parity, frame):
    "Pause until the phase with this parity has completed."
    barrier = mbarrier(address)
    getcurrent().wait_until(frame, lambda: barrier.phase % 2 != parity, barrier)
    getcurrent().learn(barrier.ordered)


# A tensor map is 128 bytes that only the hardware understands. Here it holds the matrix's address and shape,
# and a box's rows and bytes per row. A thread that uses it must have fenced it, unless it is a kernel
# parameter. The swizzle depends on the address, as on a GPU.

def tensor_map(
    address,     # of a row-major matrix of 16-bit elements
    rows, columns,
    box_rows,    # of a box
    row_bytes=128,  # of a box, and of the swizzle: 128, 64 or 32
) -> np.ndarray: # (128,) uint8
    "A stand-in for a tensor map. The matrix is in this process's memory, so the map is valid only here."
    if address % 16 or columns % 8 or not 1 <= box_rows <= 256:
        raise SimulatorError(f"no tensor map for {columns} columns at {address}, boxes of {box_rows} "
                             "rows: both need multiples of 16 bytes, and a box has at most 256 rows")
    found = np.zeros(16, np.uint64)
    found[:6] = address, rows, columns, box_rows, os.getpid(), row_bytes
    return found.view(np.uint8)

_PARAMETERS = {}  # words → their copy in memory

def parameter_map(words):
    "The address of a tensor map passed as a kernel parameter. Such a map needs no fence."
    words = tuple(map(int, words))
    if words not in _PARAMETERS: _PARAMETERS[words] = np.array(words, np.uint64)
    address = _PARAMETERS[words].ctypes.data
    getcurrent().maps.add(address)
    return np.uint64(address)

def _described(address):
    "The matrix that a tensor map describes, and a box's rows and bytes per row."
    if int(address) not in getcurrent().maps:
        raise SimulatorError("a thread uses a tensor map without fencing it first: fence_proxy_tensormap",
                             "fence", of="tensor map")
    described = np.frombuffer(ctypes.string_at(int(address), 48), np.uint64).tolist()
    start, rows, columns, box_rows, process, row_bytes = described
    if process != os.getpid():
        raise SimulatorError("a tensor map from another process: call the host function in "
                             "the child with in_child, not just the kernel")
    numbers = (ctypes.c_uint16 * (rows * columns)).from_address(start)
    return np.ctypeslib.as_array(numbers).reshape(rows, columns), box_rows, row_bytes

def _swizzled(addresses, row_bytes=128):
    "Positions of the 16-bit elements at `addresses` after the swizzle of `row_bytes` bytes."
    return (addresses ^ (addresses >> 7 & row_bytes // 16 - 1) << 4) // 2

def _box(address, rows, row_bytes):
    "The places of a box's elements in shared memory, row by row."
    if address % 128:
        raise SimulatorError(f"a box starts at byte {address}, which isn't a multiple of 128", "alignment")
    return _swizzled(address + np.arange(0, rows * row_bytes, 2).reshape(rows, -1), row_bytes)

def _signed(*numbers):
    "A box's row and column, which arrive as uint32 and may be negative."
    return np.array([int(x) & 0xFFFFFFFF for x in numbers], np.uint32).view(np.int32).tolist()

def _covered(matrix, row, column, rows, columns):
    "The part of a matrix that a box covers, and the part of the box that is inside."
    if column % 8:
        raise SimulatorError(f"a box starts at column {column}: an illegal instruction on a GPU, which needs "
                             "a multiple of 16 bytes", "alignment")
    part = matrix[max(row, 0):max(row + rows, 0), max(column, 0):max(column + columns, 0)]
    top, left = max(-row, 0), max(-column, 0)
    return part, (slice(top, top + part.shape[0]), slice(left, left + part.shape[1]))


def load_box(target, map_address, barrier_address, column, row, memories=None):
    """Start copying a box to the same place in one or several shared memories. It lands in each when a thread
    waits for that memory's mbarrier and nobody else can continue."""
    thread = getcurrent()
    matrix, rows, row_bytes = _described(map_address)
    part, inside = _covered(matrix, *_signed(row, column), rows, row_bytes // 2)
    values = np.zeros((rows, row_bytes // 2), np.uint16)
    values[inside] = part
    places = _box(in_block(target), rows, row_bytes).ravel()
    for memory in memories or [thread.memory]:
        barrier = mbarrier(barrier_address, memory)
        if not barrier.fenced:
            raise SimulatorError("a copy uses an mbarrier that it may not see yet: fence_mbarrier_init",
                                 "fence", of="mbarrier")
        # nothing else may use the target
        taken = [at // 2 + i for at in memory.mbarriers for i in range(4)]
        leaving = memory.leaving and not memory.leaving.isdisjoint(places.tolist())
        if leaving or np.isin(taken, places).any():
            raise SimulatorError("a box is copied over an mbarrier, or over data that a store may still read",
                                 "race", array=memory.numbers.name, accesses=("store", "copy"))
        memory.numbers.fly(places, thread)
        barrier.copies.append((memory.numbers, places, values.ravel()))


# The 128 threads of a warpgroup issue `wgmma` together, and it may read its operands at any time between its
# start and the wait for it. Here it reads them at the wait, when all others have run as far as they can. If
# the operands were overwritten in the meantime, a stage of the ring was released too early. If threads
# stored an operand themselves, through the generic proxy, each has to fence its stores, and a barrier must
# come between the fences and the product. Until the wait, the accumulators are NaN.

class Products:
    "Products of a warpgroup's operands in shared memory, which are read as late as possible."
    def __init__(self, a, b, step_a, step_b, steps, transpose, columns, from_bits, adder=None):
        self.memory = getcurrent().memory
        self.a, self.b, self.step_a, self.step_b = a, b, step_a, step_b
        self.steps, self.transpose, self.columns = steps, transpose, columns
        self.from_bits = from_bits  # 16-bit patterns → the values they encode
        # function (sums, factors, factors) → sums, as the machine rounds them; exact if None
        self.adder = adder
        # number of each operand
        self.first = _swizzled(np.array([(factor & 0x3FFF) << 4 for factor in (a, b)]))
        self.written = self._written("multiplied")
        self.waited = set()  # warps

    @cached_property
    def factors(self):
        "Parts of A, 64×k, and of B, k×columns, that are multiplied one after the other."
        if any(now is not then for now, then in zip(self._still_written(), self.written)):
            raise SimulatorError("an operand still being multiplied was overwritten: "
                                 "wait for the product, then release its stage",
                                 "race", array=self.memory.numbers.name, accesses=("product", "write"))
        # 16 columns of A and rows of B at a time
        k, m, n = np.arange(16)[:, None], np.arange(64)[None], np.arange(self.columns)[None]
        return [(self._factors(self.a + step * self.step_a, *((k, m) if self.transpose & 2 else (m, k))).T,
                 self._factors(self.b + step * self.step_b, *((k, n) if self.transpose & 1 else (n, k))))
                for step in range(self.steps)]

    @cached_property
    def sums(self):
        "What is added to each thread's accumulators: (128, columns / 2)."
        if self.adder is None: return _of_threads(sum(a @ b for a, b in self.factors))
        total = np.zeros((64, self.columns))
        for a, b in self.factors: total = self.adder(total, a[:, None], b.T[None])
        return _of_threads(total)

    def added(self, values, number):
        "A thread's accumulators, with its products."
        if self.adder is None or not values.any(): return values + self.sums[number]
        rows, columns = (_of_threads(at)[number] for at in np.indices((64, self.columns)))
        for a, b in self.factors: values = self.adder(values, a[rows], b.T[columns])
        return values

    def _written(self, what, **mistake):
        "Who wrote the first element of each operand. Refused while a copy to it is in flight."
        numbers = self.memory.numbers
        numbers.fetch(self.first, what, **mistake or dict(by="product"))
        return [numbers.elements[number].write for number in numbers.ids[self.first].tolist()]

    def _still_written(self):
        return self._written("still being multiplied,", kind="race", accesses=("product", "copy"))

    def note_read(self, frame):
        """A warp has waited, which counts as a read by its first thread. Whoever then stores to an operand
        needs a barrier with the other warps."""
        warp = getcurrent().warp
        if warp in self.waited: return
        self.waited.add(warp)
        self._still_written()
        for place in self.first.tolist(): self.memory.numbers.note_read(place, Access(frame))

    def _factors(self, descriptor, row, column):
        "The elements in some 128-byte rows and columns of a tile. Those stored by threads must be fenced."
        if descriptor >> 62 != 1:
            raise SimulatorError("the simulator only supports the 128-byte swizzle", "descriptor")
        # a descriptor counts addresses in units of 16 bytes; 8-row tiles are `stride` bytes apart
        start, leading, stride = ((descriptor >> bit & 0x3FFF) << 4 for bit in (0, 16, 32))
        at = start + column // 64 * leading + row // 8 * stride + row % 8 * 128 + column % 64 * 2
        numbers, places, thread = self.memory.numbers, _swizzled(at), getcurrent()
        factors = numbers.fetch(places, "multiplied", by="product")
        # wgmma sees a copy's writes directly, a thread's only after a fence
        def seen(write):
            if isinstance(write, Landed): return True
            fenced = write.thread.fenced_at > write.time
            return fenced and (write.thread is thread or thread.ordered_after(write))
        writes = {numbers.elements[number].write for number in numbers.ids[places.ravel()].tolist()}
        if unseen := [write.thread for write in writes if not seen(write)]:
            raise SimulatorError(f"wgmma reads an operand that {min(unseen, key=lambda t: t.linear)} stored, "
                                 "which may not be visible yet: fence_proxy_async, and then a "
                                 "barrier",
                                 "fence", of="product")
        return self.from_bits(factors).astype(float)


def _of_threads(results):
    "64×columns results by thread: (128, columns / 2)."
    parts = results.reshape(4, 2, 8, -1, 4, 2)  # warp, half, lane // 4, matrix, lane % 4, number
    return parts.transpose(0, 2, 4, 3, 1, 5).reshape(128, -1)

class Unfinished(tuple):
    "Accumulators with products still in flight: NaN to whoever reads them too early."
    def __new__(cls, values):
        self = super().__new__(cls, [np.float32(np.nan)] * len(values))
        self.values = np.array(values, np.float32)
        return self

def start_products(acc, factors, how, pending, frame):
    """Add products to `acc`, issued by the 128 threads of a warpgroup together. All but the latest `pending`
    calls are complete on return. factors: two descriptors; how: see `Products`."""
    thread = getcurrent()
    # the first thread creates the products, and all share them
    given = thread.meet(frame, f"wgmma of warpgroup {thread.warp // 4}", 128, factors)
    if "products" not in given:
        if len(set(given.values())) > 1:
            raise SimulatorError("threads of a warpgroup pass different descriptors", "descriptor")
        given["products"] = Products(*factors, *how)
    if not isinstance(acc, Unfinished): acc = Unfinished(acc)
    thread.products.append((acc, given["products"]))
    finish_products(pending, frame)
    return acc

def finish_products(pending, frame):
    "Wait for all products of the running thread but the latest `pending`."
    thread = getcurrent()
    # others go first, so an operand released too early is overwritten by now
    if len(thread.products) > pending: let_others_run(frame)
    while len(thread.products) > pending:
        acc, products = thread.products.pop(0)
        acc.values = products.added(acc.values, thread.linear % 128).astype(np.float32)
        products.note_read(frame)


def finished_sums(acc, pending, frame):
    "A thread's accumulators after all but the latest `pending` products; NaN if those include its own."
    finish_products(pending, frame)
    late = any(acc is other for other, _ in getcurrent().products)
    return acc if late else tuple(getattr(acc, "values", acc))


# Stores of results work the same way. What threads have written must be fenced, then pass a barrier, before a
# store may read it. The store reads as late as possible: at the wait for it, when all others have run as far
# as they can. When a block ends, nothing may be in flight.

def store_pair(address, pair, frame):
    "Write two numbers for a later `store_box` to read."
    _store(address, (np.uint16(int(pair) & 0xFFFF), np.uint16(int(pair) >> 16)), frame)

def store_number(address, number, frame):
    "Write one number for a later `store_box` to read."
    _store(address, (np.uint16(number),), frame)

def _store(address, numbers, frame):
    thread, index = getcurrent(), in_block(address) // 2
    memory = thread.memory
    if index in memory.leaving:
        raise SimulatorError(f"{memory.numbers.label(index)} is written while a store may still "
                             "read it: call cp_async_bulk_wait_group_read, then pass a barrier",
                             "race", array=memory.numbers.name, accesses=("store", "write"))
    memory.numbers.store(index, numbers, frame)
    thread.stored += range(index, index + len(numbers))

def store_async(address, rank, values, barrier_address):
    """Start storing float32 numbers to the same address in a block of the cluster. They arrive when a thread
    there waits for the mbarrier and nobody else can continue."""
    _refuse_unaligned(address, 4 * len(values))
    if len(getcurrent().block.memories) == 1:
        raise SimulatorError("st.async in a launch without clusters, where it is an illegal instruction")
    memory, first = _memory_of(rank), in_block(address) // 2
    places = np.arange(first, first + 2 * len(values))
    memory.numbers.fly(places, getcurrent())
    numbers = np.array(values, np.float32).view(np.uint16)
    mbarrier(barrier_address, memory).copies.append((memory.numbers, places, numbers))

def load_floats(address, count, frame):
    "Read float32 numbers, aligned to all of them."
    _refuse_unaligned(address, 4 * count)
    numbers = getcurrent().memory.numbers.load(in_block(address) // 2, 2 * count, frame)
    return tuple(np.array(numbers, np.uint16).view(np.float32))

def store_floats(address, values, frame):
    "Write float32 numbers, aligned to all of them."
    _refuse_unaligned(address, 4 * len(values))
    numbers = np.array(values, np.float32).view(np.uint16)
    getcurrent().memory.numbers.store(in_block(address) // 2, tuple(numbers), frame)

def _refuse_unaligned(address, size):
    if address % size:
        raise SimulatorError(f"an access of {size} bytes at {address}: it must be aligned to its size",
                             "alignment")

def fence_proxy_async():
    "Make the running thread's stores and mbarriers visible to copies."
    thread = getcurrent()
    thread.fenced, thread.stored = thread.fenced + thread.stored, []
    thread.fenced_at = thread.tick()
    fence_mbarrier_init()  # this fence covers them too

def store_box(map_address, source, column, row):
    "Start copying a box to a matrix. It is read as late as possible, when a thread waits for it."
    thread = getcurrent()
    matrix, rows, row_bytes = _described(map_address)
    row, column = _signed(row, column)
    if row < 0 or column < 0:
        raise SimulatorError(f"a box is stored at row {row}, column {column}: an illegal instruction on a "
                             "GPU, where only loads may start below 0", "bounds", negative=True)
    places = _box(in_block(source), rows, row_bytes)
    for other in thread.block.threads:
        if other.memory is not thread.memory: continue
        # a thread's own stores need a fence; other threads' also need a barrier after it
        early = {*other.stored, *(other.fenced if other is not thread else ())}
        if early and not early.isdisjoint(places.flat):
            raise SimulatorError(f"a box is stored, but what {other} has written to it may not be visible "
                                 "yet: fence_proxy_async, and then a barrier", "fence", of="store")
    thread.memory.leaving.update(places.flat)
    thread.sends[-1].append((_covered(matrix, row, column, rows, row_bytes // 2), places))

def cp_async_bulk_commit_group():
    "Close the running thread's open group of stores."
    getcurrent().sends.append([])

def cp_async_bulk_wait_group_read(pending, frame):
    "Complete all but the latest `pending` groups of the running thread's stores."
    thread = getcurrent()
    done = max(0, len(thread.sends) - 1 - pending)
    if any(thread.sends[:done]): let_others_run(frame)
    groups, thread.sends = thread.sends[:done], thread.sends[done:]
    memory = thread.memory
    for (part, inside), places in (send for group in groups for send in group):
        part[...] = memory.numbers.fetch(places, "sent", by="store")[inside]
        memory.leaving.difference_update(places.flat)

def check_end(block):
    "Nothing may be in flight when a block ends."
    if any(barrier.copies for memory in block.memories for barrier in memory.mbarriers.values()):
        raise SimulatorError(f"{block} ends while copies to its shared memory are in flight",
                             "unfinished", what="copies")
    for thread in block.threads:
        if thread.products:
            raise SimulatorError(f"{thread} of {block} has not waited for its products",
                                 "unfinished", what="products")
        if any(thread.sends):
            raise SimulatorError(f"{thread} of {block} has returned while its stores may still read shared "
                                 "memory: call cp_async_bulk_wait_group_read(0)", "unfinished", what="stores")
