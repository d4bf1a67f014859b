"""Shared and global memory remember who wrote and read them.

Every element that threads share has notes on who touched it, so a missing barrier is found whichever thread
runs first. Shared memory also knows which elements were never written, and where a copy is in flight.
"""
import sys

import numpy as np
from greenlet import getcurrent
from .hopper import Landed
from .races import Access, Element
from .scheduler import Again, SimulatorError
from .views import Views, keeps_order, neighbours, numbered, refuse_copy, refuse_negative, sub_array
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray, FakeWithinKernelCUDAArray

# An observer, such as the microscope, sets this to a function that is called on every access:
# (space, operation, array, index, count, frame, source byte of a copy)
recorder = None


class Noted(Views):
    "An array that threads share, in the memory named by `space`."
    def store(self, index, values, frame):
        "Store `values` to adjacent elements in one access."
        refuse_negative(index)
        if recorder: recorder(self.space, "store", self, index, len(values), frame)
        access = Access(frame)
        for i, value in zip(self.run(index, len(values))[0], values):
            self.note_write(i, access, value)
            self.data[i] = value


class SharedArray(Noted):
    "A shared array, or a view of one: `elements[ids[i]]` is the note on `data[i]`."
    def __init__(self, name, data, ids, elements, base, unit, promised, declared=None):
        self.name, self.data, self.ids, self.elements = name, data, ids, elements
        self.base, self.unit = base, unit  # element i starts at byte base + ids[i] * unit
        self.promised = promised  # alignment of the array's start, in bytes
        self.declared = declared  # for dynamic memory: code, instruction, line, variable
        self.step = data.itemsize // unit  # distance between the ids of adjacent elements
        # by index: an element's only note; a view; what `run` says about adjacent elements
        self.noted, self.parts, self.runs = {}, {}, {}

    space, other_types = "shared", True
    instead = ("declare dynamic shared memory once per type, with cuda.shared.array(0, …): it is the same "
               "memory")
    strides = property(lambda self: self.data.strides)
    shape = property(lambda self: self.data.shape)
    size = property(lambda self: self.data.size)
    ndim = property(lambda self: self.data.ndim)
    dtype = property(lambda self: self.data.dtype)
    def __len__(self): return len(self.data)

    def __getitem__(self, index):
        try:
            settled = self.noted[index].settled
        except (KeyError, TypeError):
            settled = None  # TypeError: a slice has no hash
        thread = getcurrent()
        if (settled is thread.moment or settled is thread.near) and not recorder:
            return self.data[index]
        refuse_negative(index)
        value = self.data[index]
        if isinstance(value, np.ndarray): return self._part(index)
        self.note_read(index, Access(sys._getframe(1)))
        if recorder: recorder("shared", "load", self, index, 1, sys._getframe(1))
        return value

    def _part(self, index):
        "A view, shared by all threads, so that each benefits from what others have settled."
        key = tuple([(i.start, i.stop, i.step) if type(i) is slice else i
                     for i in (index if type(index) is tuple else (index,))])
        return self.viewed((key,), lambda array: array[index], keeps_order(index, self))

    def viewed(self, key, change, in_order):
        if key not in self.parts:
            ids = self.ids if isinstance(key, np.dtype) else change(self.ids)
            self.parts[key] = part = SharedArray(self.name, change(self.data), ids, self.elements,
                                                 self.base, self.unit, self.promised, self.declared)
            part.in_order = in_order
        return self.parts[key]

    def __setitem__(self, index, value):
        refuse_negative(index)
        if isinstance(self.ids[index], np.ndarray):
            raise SimulatorError(f"{self.label(index)} is a whole slice, but a thread writes one element at "
                                 "a time")
        self.note_write(index, Access(sys._getframe(1)), value)
        if recorder: recorder("shared", "store", self, index, 1, sys._getframe(1))
        self.data[index] = value

    def field(self, name):
        "One field of all elements."
        dtype, shape = sub_array(self.dtype, name)
        first = self.ids[(..., *(None,) * len(shape))] + self.dtype.fields[name][1]
        return SharedArray(f"{self.name}[{name!r}]",
                           self.data[name], first + numbered(shape) * dtype.itemsize,
                           self.elements, self.base, 1, dtype.itemsize)

    def byte(self, index):
        "Where in the block's shared memory an element starts."
        return self.base + int(self.ids[index]) * self.unit

    def load(self, index, count, frame):
        "`count` adjacent elements in one access."
        thread, (indices, numbers, notes) = getcurrent(), self.run(index, count)
        # are all of them settled?
        if notes and not recorder:  # each access is recorded
            for element in notes:
                if not (element.settled is thread.moment or element.settled is thread.near): break
            else: return tuple(self.data[numbers])
        if recorder: recorder("shared", "load", self, index, count, frame)
        access = Access(frame)
        for i in indices: self.note_read(i, access)
        return tuple(self.data[numbers])

    def run(self, index, count):
        """`count` adjacent elements that one access may take: their indices, and as one slice; the notes on
        them if each has notes of its own. All threads look up the same few."""
        if (index, count) not in self.runs:
            refuse_negative(index)
            indices, numbers = neighbours(self, index, count)
            own = self.step == self.elements.grain
            notes = [note for i in indices for note in self.notes(i)] if own else None
            self.runs[index, count] = indices, numbers, notes
        return self.runs[index, count]

    def notes(self, index):
        "The notes on an element: several where arrays of smaller elements share the memory."
        elements = self.elements
        if self.step == elements.grain:  # the grain only shrinks, so cached notes stay valid
            if index not in self.noted: self.noted[index] = elements[int(self.ids[index])]
            return (self.noted[index],)
        number = int(self.ids[index])
        return [elements[part] for part in range(number, number + self.step, elements.grain)]

    def _refuse_unwritten(self, element, index, what, kind, **data):
        "Refuse to read an element that was never written, or that a copy is still writing."
        copying, text = element.copying is not None, "before it was written"
        if copying:
            text = f"while an asynchronous copy into it, started by {element.copying}, is in flight"
            if what == "read": text += ": wait for the copy, then pass a barrier"
        if kind == "uninitialized": data["copying"] = copying
        raise SimulatorError(f"{self.label(index)} is {what} {text}", kind, array=self.name, **data)

    def note_read(self, index, access):
        "Check a read by the running thread against what is known about the element, and note it."
        for element in self.notes(index):
            if element.copying is not None or element.write is None:
                self._refuse_unwritten(element, index, "read", "uninitialized", by="thread")
            element.note_read(access, self, index)
            if element.owner: self._check_owner(element, index)

    def note_write(self, index, access, value=None):
        "Check a write by the running thread against what is known about the element, and note it."
        for element in self.notes(index):
            if element.copying is not None:
                raise SimulatorError(f"{self.label(index)} is written while an asynchronous copy into it is "
                                     "in flight", "race", array=self.name, accesses=("copy", "write"))
            element.note_write(access, self, index, value)
            if self.declared: self._keep_owner(element, access, value)

    def note_atomic(self, index, access):
        "The same for an atomic operation. Returns the notes on the element."
        self.note_read(index, access)
        self.note_write(index, access)
        return self.notes(index)[0]

    # All dynamic arrays of a block (`cuda.shared.array(0, …)`) are one piece of memory. Two of them may be
    # two intentional views, say of floats and of their bits. But if one overwrites what nobody has yet read
    # through the other, and the other is read afterward, the kernel mistook them for two arrays, and gets
    # an error.

    def _keep_owner(self, element, access, value):
        "Remember through which array an element was written, and what that overwrote. Zeros don't count."
        owner, unread = element.owner or (None, False)
        if unread and owner != self.declared: element.lost = owner, access
        elif element.lost and element.lost[0] == self.declared: element.lost = None
        element.owner = self.declared, value is None or bool(value)

    def _check_owner(self, element, index):
        element.owner = element.owner[0], False
        if element.lost and element.lost[0] == self.declared:
            raise SimulatorError(
                f"{self.label(index)} was written through {self.declared[-1]}, then overwritten through "
                f"{element.owner[0][-1]} before anyone read it, at {element.lost[1].place[1]}: all "
                "arrays from cuda.shared.array(0, …) start at the same byte; make one and slice it: "
                "both[:n], both[n:]")

    # Asynchronous copies and hardware units that run without threads

    def free_for_copy(self, at, element):
        "The note on an element, which no copy may still be writing."
        if element.copying is not None:
            raise SimulatorError(f"{self.label(at)} is the target of two asynchronous copies at once",
                                 "race", array=self.name, accesses=("copy", "copy"))
        element.settled = None
        return element

    def fly(self, places, who):
        "The copy of a whole tile starts."
        elements = self.elements
        for at, number in zip(places, self.ids[places].tolist()):
            element = elements[number]
            if element.copying is not None: self.free_for_copy(at, element)  # a call for each takes long
            element.settled, element.copying = None, who

    def land(self, places, values):
        "The copy of a whole tile is complete."
        self.data[places], landed, elements = values, Landed(), self.elements
        for number in self.ids[places].tolist():
            element = elements[number]
            element.copying = element.owner = element.lost = None
            element.write, element.reads = landed, ()

    def fetch(self, places, what, kind="uninitialized", **data):
        """Reads by a tensor core or the TMA, where no thread's access stands for them. `what` names the
        operation in the message, with its kind and data, if there is nothing to read yet."""
        elements = self.elements
        for i, number in enumerate(self.ids[places.ravel()].tolist()):
            element = elements[number]
            if element.copying is not None or element.write is None:
                self._refuse_unwritten(element, places.flat[i], what, kind, **data)
        return self.data[places]


class Watch:
    "For an array argument: are accesses to its elements noted, and how many were stored?"
    def __init__(self, on): self.on, self.stores = on, 0


class GlobalArray(Noted, FakeWithinKernelCUDAArray):
    """A device array as a kernel sees it, or a view of one. Elements are identified by address, so two names
    for one array are one array. An array whose `watch` is off is only read, and needs no notes."""
    space, other_types, instead = "global", True, "pass x.view(…) as an argument of its own"
    promised = 16  # bytes; the address is known

    def __init__(self, item, name, first_byte=None, watch=None):
        super().__init__(item)
        data = whole = item._ary
        # the whole array starts at an aligned address, as on a GPU
        while isinstance(whole.base, np.ndarray): whole = whole.base
        start = whole.ctypes.data if first_byte is None else first_byte
        self.__dict__.update(name=name, first_byte=start, base=data.ctypes.data - start, strides=data.strides,
                             shape=item.shape, ndim=data.ndim, watch=watch or Watch(False), data=data,
                             noted={}, in_order=data.flags.forc)

    size = property(lambda self: self.data.size)
    dtype = property(lambda self: self.data.dtype)

    def begin(self, noted):
        "A launch starts: are accesses to the elements noted?"
        self.watch.on, self.watch.stores = noted, 0  # a launch that starts over counts again
        self.noted.clear()

    def _of(self, data):
        return GlobalArray(FakeCUDAArray(data), self.name, self.first_byte, self.watch)
    def field(self, name): return self._of(self.data[name])
    def viewed(self, key, change, in_order):
        part = self._of(change(self.data))
        part.__dict__["in_order"] = in_order
        return part

    def __getitem__(self, index):
        # the paths that needn't check notes come first
        if self.watch.on:
            try:
                settled = self.noted[index].settled
            except (KeyError, TypeError):
                settled = None
            thread = getcurrent()
            if settled is thread.moment or settled is thread.near: return self.data[index]
        elif type(index) is int:
            if index >= 0 and self.ndim == 1 and not recorder: return self.data[index]
        elif self.ndim == 2 and not recorder:
            try:
                i, j = index
                if i >= 0 <= j: return self.data[index]
            except (TypeError, ValueError):
                pass  # it contains a slice; fewer than two
        refuse_negative(index)
        value = self.data[index]  # numpy catches an out-of-range index
        if isinstance(value, np.ndarray):
            return self.viewed(index, lambda data: value, keeps_order(index, self))
        if self.watch.on:
            self.noted[index] = self.note(index)
            self.noted[index].note_read(Access(sys._getframe(1)), self, index)
        if recorder: recorder("global", "load", self, index, 1, sys._getframe(1))
        return value

    def __setitem__(self, index, value):
        refuse_negative(index)
        data, written = self.data, (index,)
        if isinstance(data[index], np.ndarray):
            refuse_copy(value)
            written = np.moveaxis(np.indices(data.shape), 0, -1)[index].reshape(-1, data.ndim)
        access = Access(sys._getframe(1))
        for at in written: self.note_write(tuple(at) if len(written) > 1 else at, access, value)
        if recorder: recorder("global", "store", self, index, 1, sys._getframe(1))
        data[index] = value

    def byte(self, index):
        "An element's byte offset from the start of the whole array."
        if type(index) is not tuple: return self.base + int(index) * self.strides[0]
        if len(index) == 2:  # most are
            (i, j), (down, right) = index, self.strides
            return self.base + int(i) * down + int(j) * right
        return self.base + sum([int(i) * stride for i, stride in zip(index, self.strides)])

    def load(self, index, count, frame):
        "`count` adjacent elements in one access."
        refuse_negative(index)
        if recorder: recorder("global", "load", self, index, count, frame)
        indices, numbers = self.run(index, count)
        self.note_reads(indices, frame)
        return self.taken(indices, numbers)

    def run(self, index, count): return neighbours(self, index, count)

    def taken(self, indices, numbers):
        "The elements at these indices, the first ones of a slice."
        found = tuple(self.data[numbers][:len(indices)])
        if len(found) < len(indices): self.data[indices[len(found)]]  # numpy's error
        return found

    def store_relaxed(self, index, value, frame):
        "Write an element that others may read at the same time: they see either the old value or the new."
        refuse_negative(index)
        self.note_write(index, Access(frame, atomic=True)).carry(reads=False, writes=True)
        self.data[index] = value

    def note(self, index):
        return getcurrent().block.grid.elements[self.first_byte + self.byte(index)]

    def note_reads(self, indices, frame):
        if not self.watch.on: return
        access = Access(frame)
        for i in indices: self.note(i).note_read(access, self, i)

    def note_write(self, index, access, value=None):
        "Check a write by the running thread against what is known about the element, and note it."
        if recorder: return Element()
        # the launch assumed that this array is only read
        if not self.watch.on: raise Again(self.name)
        self.watch.stores += 1
        element = self.note(index)
        element.note_write(access, self, index, value)
        return element

    def note_atomic(self, index, access):
        "The same for an atomic operation. Returns the notes on the element."
        element = self.note_write(index, access)
        element.note_read(access, self, index)
        return element
