"""Shared memory remembers who wrote and who read. Then a missing barrier is found, whichever thread runs first.

Shared memory that remembers

Every element of memory that threads share has notes on who touched it. Shared memory also knows what was
never written, and into what a copy is under way.
"""
import linecache
import re
import sys
from functools import cache, cached_property
from math import prod

import numpy as np
from greenlet import getcurrent
from .hopper import Landed
from .races import Access, Element, Elements
from .scheduler import Again, SimulatorError, instruction, _INSIDE
from numba import types
from numba.cuda.simulator import kernelapi
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray, FakeWithinKernelCUDAArray


def _refuse_negative(index):
    for i in index if type(index) is tuple else (index,):
        if type(i) is not slice and i is not None and i < 0:
            raise SimulatorError(f"index {i} is negative, which would count from the array's end", "bounds", negative=True)

def _refuse_copy(value):
    "What a slice is set to: the compiler would need memory of its own to copy an array."
    if np.ndim(value): raise SimulatorError("a slice takes one number for all of its elements: to copy from another array, write a loop")

def _same(one, other):
    "Are these the same numbers, bit for bit? For NaN is not equal to itself."
    return one == other or np.asarray(one).tobytes() == np.asarray(one).dtype.type(other).tobytes()

def _kernel_frame():
    "The frame of the kernel, or of the device function, that has called into the simulator."
    frame = sys._getframe(1)
    while (module := frame.f_globals.get("__name__") or "").startswith(_INSIDE) or module.split(".")[0] == "numpy": frame = frame.f_back
    return frame


# A kernel may also ask for several neighbours at once (`load4`, in wide loads). On a GPU that needs an
# aligned address, so here it is checked. And whoever wants to watch sets `recorder`: a function that is
# told of every access. The microscope does.

recorder = None  # function (space, operation, array, index, count, frame, byte a copy came from)

def _neighbours(array, index, count):
    "The indices of `count` neighbours from `index` on, if that is an aligned address."
    size = count * array.dtype.itemsize
    if size > array.promised:
        raise SimulatorError(f"an access of {size} bytes to {array.name}, which is declared for {array.promised}: "
                             f"cuda.shared.array(…, alignment={size})", "alignment")
    if array.byte(index) % size:
        raise SimulatorError(f"an access of {size} bytes at {array.name}[{_text(index)}], "
                             f"which is not a multiple of {size} bytes from its start", "alignment")
    if type(index) is not tuple: return range(index, index + count)
    *before, first = index
    return [(*before, first + i) for i in range(count)]

def _text(index): return ", ".join(str(i) for i in index) if type(index) is tuple else str(index)


# All arrays of a kernel have views: reshaped, transposed, as another type of the same size. What one of
# them finds, the array finds.

class Views:
    "What an array has in a kernel besides its elements. Its views are checked as itself, and so is what numpy makes of all elements."
    in_order = True  # does the compiler know that the elements lie side by side?
    itemsize = property(lambda self: self.dtype.itemsize)
    nbytes = property(lambda self: self.size * self.itemsize)
    T = property(lambda self: self.transpose())
    flat = property(lambda self: self.reshape(self.size))

    @property
    def real(self):
        if self.dtype.kind == "c": raise SimulatorError("the simulator has no real and no imag of a whole array: write x[i].real")
        return self
    imag = real

    def transpose(self): return self.viewed("T", np.transpose, self.in_order)
    def reshape(self, *shape):
        shape = tuple(map(int, shape[0] if isinstance(shape[0], tuple) else shape))
        if not self.in_order:
            raise SimulatorError("reshape of a part that has a step, or a slice before its last index: "
                                 "the compiler takes whole arrays and x[i:j]; compute the index")
        def change(array):
            made = array.reshape(shape)
            if made.size and not np.may_share_memory(made, array):
                raise SimulatorError(f"reshape to {shape} would copy an array whose rows don't lie side by side, and on a GPU "
                                     "it fails silently: compute the index")
            return made
        return self.viewed(shape, change, True)

    def view(self, dtype):
        if dtype == self.dtype: return self
        if dtype.itemsize != self.itemsize or not self.other_types:
            raise SimulatorError(f"the simulator has no view of {self.dtype} as {dtype} here: {self.instead}")
        return self.viewed(dtype, lambda array: array.view(dtype), self.in_order)

    def __array__(self, dtype=None, copy=None):
        frame = _kernel_frame()
        return np.array([self.load(i, 1, frame)[0] for i in np.ndindex(self.shape)], dtype or self.dtype).reshape(self.shape)

    def fill(self, value):
        for i in np.ndindex(self.shape): self.store(i, (self.dtype.type(value),), _kernel_frame())

def _of_all(name): return lambda self, *args, **options: getattr(np.asarray(self), name)(*args, **options)
for _name_of_it in "all any argmax argmin item mean prod std sum var".split(): setattr(Views, _name_of_it, _of_all(_name_of_it))

def _keeps_order(index, array):
    "Does the compiler know that such a part of an array lies side by side?"
    *before, last = index if type(index) is tuple else (index,)
    return array.in_order and not any(type(i) is slice for i in before) and (type(last) is not slice or last.step is None)


class SharedArray(Views):
    "A shared array, or a view of one: `elements[ids[i]]` is the note on `data[i]`."
    def __init__(self, name, data, ids, elements, base, unit, promised, declared=None):
        self.name, self.data, self.ids, self.elements = name, data, ids, elements
        self.base, self.unit = base, unit  # element i starts at byte base + ids[i] * unit
        self.promised = promised  # bytes: the array begins at a multiple of so many
        self.declared = declared  # of dynamic memory: code, instruction, line, variable
        self.step = data.itemsize // unit  # numbers of the notes from one element to the next
        self.noted, self.parts, self.runs = {}, {}, {}  # by index: the only note on an element; a view; notes on neighbours

    other_types, instead = True, "dynamic shared memory can be declared by both types, cuda.shared.array(0, …), and is the same memory"
    strides = property(lambda self: self.data.strides)
    shape = property(lambda self: self.data.shape)
    size = property(lambda self: self.data.size)
    ndim = property(lambda self: self.data.ndim)
    dtype = property(lambda self: self.data.dtype)
    def __len__(self): return len(self.data)

    def __getitem__(self, index):
        try: settled = self.noted[index].settled
        except (KeyError, TypeError): settled = None  # TypeError: a slice has no hash
        thread = getcurrent()
        if (settled is thread.moment or settled is thread.near) and not recorder: return self.data[index]
        _refuse_negative(index)
        value = self.data[index]
        if isinstance(value, np.ndarray): return self._part(index)
        self.note_read(index, Access(sys._getframe(1)))
        if recorder: recorder("shared", "load", self, index, 1, sys._getframe(1))
        return value

    def _part(self, index):
        "A view: the same one for all threads, so that each finds what others have found."
        key = tuple([(i.start, i.stop, i.step) if type(i) is slice else i
                     for i in (index if type(index) is tuple else (index,))])
        return self.viewed((key,), lambda array: array[index], _keeps_order(index, self))

    def viewed(self, key, change, in_order):
        if key not in self.parts:
            ids = self.ids if isinstance(key, np.dtype) else change(self.ids)
            self.parts[key] = part = SharedArray(self.name, change(self.data), ids, self.elements,
                                                 self.base, self.unit, self.promised, self.declared)
            part.in_order = in_order
        return self.parts[key]

    def __setitem__(self, index, value):
        _refuse_negative(index)
        if isinstance(self.ids[index], np.ndarray):
            raise SimulatorError(f"{self.label(index)} is a whole slice: "
                                 "a thread writes one element at a time")
        self.note_write(index, Access(sys._getframe(1)), value)
        if recorder: recorder("shared", "store", self, index, 1, sys._getframe(1))
        self.data[index] = value

    def field(self, name):
        "One field of all elements."
        dtype, shape = _sub_array(self.dtype, name)
        ids = self.ids[(..., *(None,) * len(shape))] + self.dtype.fields[name][1] + _places(shape) * dtype.itemsize
        return SharedArray(f"{self.name}[{name!r}]", self.data[name], ids, self.elements, self.base, 1, dtype.itemsize)

    def byte(self, index):
        "Where in the block's shared memory an element starts."
        return self.base + int(self.ids[index]) * self.unit

    def load(self, index, count, frame):
        "`count` neighbours in one access."
        thread, key = getcurrent(), (index, count)
        if key in self.runs and not recorder:  # each access is recorded
            notes, numbers = self.runs[key]
            for element in notes:
                if not (element.settled is thread.moment or element.settled is thread.near): break
            else: return tuple(self.data[numbers])
        if recorder: recorder("shared", "load", self, index, count, frame)
        access, indices = Access(frame), _neighbours(self, index, count)
        for i in indices: self.note_read(i, access)
        if self.step == self.elements.grain and key not in self.runs:
            *before, first = index if type(index) is tuple else (index,)
            self.runs[key] = [self.noted[i] for i in indices], (*before, slice(first, first + count))
        return tuple(self.data[i] for i in indices)

    def store(self, index, values, frame):
        "`values` to neighbours in one access."
        if recorder: recorder("shared", "store", self, index, len(values), frame)
        access = Access(frame)
        for i, value in zip(_neighbours(self, index, len(values)), values):
            self.note_write(i, access, value)
            self.data[i] = value

    def notes(self, index):
        "The notes on an element: several where arrays of smaller elements lie in the same memory."
        elements = self.elements
        if self.step == elements.grain:  # it only shrinks, so what is kept holds
            if index not in self.noted: self.noted[index] = elements[int(self.ids[index])]
            return (self.noted[index],)
        number = int(self.ids[index])
        return [elements[part] for part in range(number, number + self.step, elements.grain)]

    def note_read(self, index, access):
        "Check a read by the running thread against what is known of the element, and note it."
        for element in self.notes(index):
            if element.copying is not None:
                raise SimulatorError(f"{self.label(index)} is read while an asynchronous copy "
                                     f"into it, started by {element.copying}, is under way: "
                                     "wait for the copy, then pass a barrier",
                                     "uninitialized", array=self.name, copying=True, by="thread")
            if element.write is None:
                raise SimulatorError(f"{self.label(index)} is read before it was written",
                                     "uninitialized", array=self.name, copying=False, by="thread")
            element.note_read(access, self, index)
            if element.owner: self.check_owner(element, index)

    def note_write(self, index, access, value=None):
        "Check a write by the running thread against what is known of the element, and note it."
        for element in self.notes(index):
            if element.copying is not None:
                raise SimulatorError(f"{self.label(index)} is written while an asynchronous copy "
                                     "into it is under way", "race", array=self.name, accesses=("copy", "write"))
            element.note_write(access, self, index, value)
            if self.declared: self.keep_owner(element, access, value)

    def keep_owner(self, element, access, value):
        """All dynamic arrays are one memory. What one of them has written and nobody has read, another may overwrite,
        but who then reads it through the first one takes it for what is gone. Zeros count as nothing."""
        owner, unread = element.owner or (None, False)
        if unread and owner != self.declared: element.lost = owner, access
        elif element.lost and element.lost[0] == self.declared: element.lost = None
        element.owner = self.declared, value is None or bool(value)

    def check_owner(self, element, index):
        element.owner = element.owner[0], False
        if element.lost and element.lost[0] == self.declared:
            raise SimulatorError(f"{self.label(index)} was written through {self.declared[-1]}, and overwritten through "
                                 f"{element.owner[0][-1]} before "
                                 f"anybody had read it, at {element.lost[1].place[1]}: all arrays of cuda.shared.array(0, …) "
                                 "begin at the same byte; make one, and take slices of it: both[:n], both[n:]")

    def note_atomic(self, index, access):
        "The same for an atomic operation; the notes on the element."
        self.note_read(index, access)
        self.note_write(index, access)
        return self.notes(index)[0]

    def free_for_copy(self, at, number):
        "The note on an element, to which no copy is under way."
        element = self.elements[number]
        if element.copying is not None:
            raise SimulatorError(f"{self.label(at)} is the target of "
                                 "two asynchronous copies at once", "race", array=self.name, accesses=("copy", "copy"))
        element.settled = None
        return element

    def fly(self, places, who):
        "A copy of a whole tile begins."
        for at, number in zip(places, self.ids[places].tolist()):
            self.free_for_copy(at, number).copying = who

    def land(self, places, values):
        "It is through."
        self.data[places], landed = values, Landed()
        for number in self.ids[places].tolist():
            element = self.elements[number]
            element.copying, element.write, element.reads, element.owner, element.lost = None, landed, (), None, None

    def fetch(self, places, what):
        "What a unit reads that is no thread."
        race = dict(kind="race", array=self.name, accesses=("product", "copy"))
        missing = dict(kind="uninitialized", array=self.name, by="store" if what == "sent" else "product")
        for at, number in zip(places.flat, self.ids[places.ravel()].tolist()):
            element = self.elements[number]
            if element.copying is not None:
                raise SimulatorError(f"{self.label(at)} is {what} while an asynchronous copy into "
                                     f"it, started by {element.copying}, is under way",
                                     **(race if "still" in what else missing | dict(copying=True)))
            if element.write is None:
                raise SimulatorError(f"{self.label(at)} is {what} before it was written",
                                     **(race if "still" in what else missing | dict(copying=False)))
        return self.data[places]

    def label(self, index): return f"{self.name}[{_text(index)}]"
    def holds(self, index, value): return _same(self.data[index], value)


# An array is known by the instruction that makes it, not by its line, so two on a line are two arrays. All
# dynamic arrays of a block (`cuda.shared.array(0, …)`) are one piece of memory. Two of them on purpose are
# two views, of floats and of their bits, say. But if one overwrites what nobody has read yet through the
# other, and the other is read afterwards, the kernel took them for two arrays, and is told so.
#
# Each block starts with fresh memory, every byte set: NaN in a float, -1 in an integer.

STATIC_SHARED_LIMIT = 48 * 1024    # bytes per block, on every target
DYNAMIC_SHARED_LIMIT = 227 * 1024  # with dynamic shared memory, on an H100

def _of_numpy(dtype): return dtype if isinstance(dtype, np.dtype) else np.dtype(getattr(dtype, "name", dtype))

def _sub_array(dtype, name):
    "Type of the elements of a field, and its shape."
    inner = dtype.fields[name][0]
    return inner.subdtype or (inner, ())

def _poisoned(shape, dtype):
    "An array of numpy's dtype for Numba's `dtype`, every byte 0xFF."
    data = np.empty(shape, _of_numpy(dtype))
    data.reshape(-1).view(np.uint8)[:] = 0xFF
    return data

@cache
def _places(shape): return np.arange(prod(shape)).reshape(shape)

@cache
def _indices(shape): return [*np.ndindex(shape)] if len(shape) != 1 else [*range(*shape)]


class LocalArray(Views):
    """A thread's own array, or a view of one. The numbers lie in a dict under the index that a kernel gives: nothing
    finds them faster, and kernels do hardly anything else."""
    def __init__(self, numbers, dtype, places, whole, declared):
        self.numbers, self.dtype, self.cast = numbers, dtype, dtype.type
        self.places, self.whole = places, whole  # number of each element in the whole array; shape of that
        self.declared = declared  # code and line
        self.shape, self.ndim, self.size = places.shape, places.ndim, places.size
        self.at_once = numbers if places is _places(whole) else {}  # a view's indices are others

    other_types, instead = False, "libdevice.float_as_int and its kin convert one number"
    strides = property(lambda self: tuple(step // self.places.itemsize * self.itemsize for step in self.places.strides))
    def viewed(self, key, change, in_order):
        part = LocalArray(self.numbers, self.dtype, change(self.places), self.whole, self.declared)
        part.in_order = in_order
        return part

    def fill(self, value): self[(slice(None),) * self.ndim] = value
    def __len__(self): return len(self.places)
    def __iter__(self): return (self[i] for i in range(len(self)))
    def __array__(self, dtype=None, copy=None):
        return np.array([self[i] for i in np.ndindex(self.shape)], dtype or self.dtype).reshape(self.shape)

    def field(self, name):
        "One field of all elements."
        dtype, shape = _sub_array(self.dtype, name)
        places = self.places[(..., *(None,) * len(shape))] * prod(shape) + _places(shape)
        return LocalArray(self.numbers[name], dtype, places, self.whole + shape, self.declared)

    def _find(self, index):
        "The number of an element, or those of a part."
        _refuse_negative(index)
        return self.places[index]

    def __getitem__(self, index):
        try: return self.at_once[index]
        except (KeyError, TypeError): pass  # TypeError: a slice has no hash
        found = self._find(index)
        if isinstance(found, np.ndarray): return self.viewed(index, lambda places: found, _keeps_order(index, self))
        if (place := _indices(self.whole)[found]) in self.numbers: return self.numbers[place]
        name = _name(*self.declared)
        raise SimulatorError(f"{name}[{_text(index)}] is read before it was written",
                             "uninitialized", array=name, copying=False, by="thread")

    def __setitem__(self, index, value):
        try:
            if index in self.at_once and (type(value) is self.cast or type(value) is int):
                self.at_once[index] = value if type(value) is self.cast else self.cast(value)
                return
        except TypeError: pass
        found, places = self._find(index), _indices(self.whole)
        if isinstance(found, np.ndarray):
            _refuse_copy(value)
            for number in found.flat: self.numbers[places[number]] = self.cast(value)
        elif np.ndim(value): raise SimulatorError("an element of a local array takes one number")
        else: self.numbers[places[found]] = self.cast(value)


class LocalMemory:
    def array(self, shape, dtype, alignment=None):
        shape, frame = shape if type(shape) is tuple else (shape,), sys._getframe(1)
        dtype = _of_numpy(dtype)
        numbers = {name: {} for name in dtype.names or ()}  # of a record, those of each field
        return LocalArray(numbers, dtype, _places(shape), shape, (frame.f_code, frame.f_lineno))


class SharedMemory:
    "The shared memory of one block."
    def __init__(self, dynamic_bytes):
        self.arrays, self.static_bytes = {}, 0
        self.dynamic = _poisoned(dynamic_bytes, np.uint8)
        self.dynamic_elements = Elements()  # by first byte
        self.mbarriers, self.leaving = {}, set()  # by address; places that stores still read

    @cached_property
    def numbers(self):
        "As numbers of 16 bits: the dynamic memory, or the one array that is declared."
        declared = [x for x in self.arrays.values() if x.elements is not self.dynamic_elements]
        if len(declared) + bool(self.dynamic.size) != 1:
            raise SimulatorError("addresses of the TMA, of mbarriers and of wgmma are known here "
                                 "where a block has one shared array, or dynamic memory alone")
        return self._dynamic(types.uint16) if self.dynamic.size else declared[0]

    def array(self, shape, dtype, alignment=None):
        if alignment is not None and (alignment < 1 or alignment & alignment - 1):
            raise SimulatorError(f"an alignment of {alignment}: it must be a power of two")
        frame = sys._getframe(1)
        key = frame.f_code, instruction(frame), frame.f_lineno
        if key not in self.arrays:
            made = sum(kept[0] is frame.f_code and kept[2] == frame.f_lineno for kept in self.arrays)
            name = _name(frame.f_code, frame.f_lineno, made)
            self.arrays[key] = (self._dynamic(dtype, (*key, name)) if shape == 0
                                else self._static(name, shape, dtype, alignment))
        return self.arrays[key]

    def _static(self, name, shape, dtype, alignment):
        data, base = _poisoned(shape, dtype), -(-self.static_bytes // 16) * 16
        self.static_bytes = base + data.nbytes
        if self.static_bytes > STATIC_SHARED_LIMIT:
            raise SimulatorError(f"a block declares {self.static_bytes} bytes of shared memory, "
                                 f"and may declare {STATIC_SHARED_LIMIT} (more only as dynamic "
                                 "shared memory, the fourth launch parameter)")
        if (both := self.static_bytes + self.dynamic.size) > DYNAMIC_SHARED_LIMIT:
            raise SimulatorError(f"{both} bytes of shared memory, static and dynamic together, "
                                 f"and a block of sm_90 may have {DYNAMIC_SHARED_LIMIT}")
        unit = 1 if data.dtype.names else data.itemsize  # fields are known apart by their bytes
        ids = np.arange(data.size).reshape(data.shape) * (data.itemsize // unit)
        elements = Elements()
        elements.divide(1)
        return SharedArray(name, data, ids, elements, base, unit, alignment or data.itemsize)

    def _dynamic(self, dtype, declared=None):
        "All dynamic arrays share one piece of memory; an element is known by its first byte."
        size = _of_numpy(dtype).itemsize
        self.dynamic_elements.divide(size)
        data = self.dynamic[:len(self.dynamic) // size * size].view(_poisoned(0, dtype).dtype)
        ids = np.arange(data.size) * size
        return SharedArray("dynamic shared memory", data, ids, self.dynamic_elements, 0, 1, 16, declared)


def _name(code, line, made=0):
    "The variable that a line assigns its array to; of several, the one after those that are made."
    text = linecache.getline(code.co_filename, line)
    names = [name.strip() for part in text.split(";") if re.search(r"(shared|local)\.array", part)
             and "=" in part for name in part.partition("=")[0].split(",")]
    return names[made] if made < len(names) else "the array"


# Numba's own simulator knows an array by its line, so two arrays on one line are one array there, and this
# kernel comes out wrong. Here they are two.
#
# `_name` reads the source line, so a message can say `tile[3]`.
#
# Global memory is checked for negative indices; one past the end is found by numpy itself. Its elements
# are known by their address, so that two names of one array are one array. An array whose `watch` is off
# is only read, and needs no notes.

class Watch:
    "Of an array that a kernel is given: are its elements noted, and how many were stored?"
    def __init__(self, on): self.on, self.stores = on, 0


class GlobalArray(Views, FakeWithinKernelCUDAArray):
    "A device array as a kernel sees it, or a view of one."
    other_types, instead = True, "pass x.view(…) as an argument of its own"
    promised = 16  # bytes; its address is known

    def __init__(self, item, name, first_byte=None, watch=None):
        super().__init__(item)
        array = whole = item._ary
        while isinstance(whole.base, np.ndarray): whole = whole.base  # it begins where a GPU's memory is aligned
        start = whole.ctypes.data if first_byte is None else first_byte
        self.__dict__.update(name=name, first_byte=start, base=array.ctypes.data - start, strides=array.strides,
                             shape=item.shape, ndim=array.ndim, watch=watch or Watch(False), array=array, noted={},
                             in_order=array.flags.forc)

    def field(self, name):
        "One field of all elements."
        return GlobalArray(FakeCUDAArray(self._item._ary[name]), self.name, self.first_byte, self.watch)

    def __getitem__(self, index):
        if self.watch.on:
            try: settled = self.noted[index].settled
            except (KeyError, TypeError): settled = None
            thread = getcurrent()
            if settled is thread.moment or settled is thread.near: return self.array[index]
        elif type(index) is int:
            if index >= 0 and self.ndim == 1 and not recorder: return self.array[index]
        elif self.ndim == 2 and not recorder:
            try:
                i, j = index
                if i >= 0 <= j: return self.array[index]
            except (TypeError, ValueError): pass  # there is a slice in it; fewer than two
        _refuse_negative(index)
        value = self.array[index]
        if isinstance(value, np.ndarray): return self.viewed(index, lambda array: value, _keeps_order(index, self))
        if self.watch.on:
            self.noted[index] = self.note(index)
            self.noted[index].note_read(Access(sys._getframe(1)), self, index)
        if recorder: recorder("global", "load", self, index, 1, sys._getframe(1))
        return value

    def __setitem__(self, index, value):
        _refuse_negative(index)
        array = self.array
        if isinstance(array[index], np.ndarray):
            _refuse_copy(value)
            places = np.moveaxis(np.indices(array.shape), 0, -1)[index].reshape(-1, array.ndim)
        else: places = (index,)
        access = Access(sys._getframe(1))
        for place in places: self.note_write(tuple(place) if len(places) > 1 else place, access, value)
        if recorder: recorder("global", "store", self, index, 1, sys._getframe(1))
        array[index] = value

    def begin(self, noted):
        "A launch begins: are accesses to the elements noted?"
        self.watch.on, self.watch.stores = noted, 0  # one that starts over counts anew
        self.noted.clear()

    size = property(lambda self: self.array.size)
    dtype = property(lambda self: self.array.dtype)
    def viewed(self, key, change, in_order):
        part = GlobalArray(FakeCUDAArray(change(self.array)), self.name, self.first_byte, self.watch)
        part.__dict__["in_order"] = in_order
        return part

    def byte(self, index):
        "How far from the start of the whole array an element starts."
        if type(index) is not tuple: return self.base + int(index) * self.strides[0]
        return self.base + sum([int(i) * stride for i, stride in zip(index, self.strides)])

    def load(self, index, count, frame):
        "`count` neighbours in one access."
        _refuse_negative(index)
        if recorder: recorder("global", "load", self, index, count, frame)
        places = _neighbours(self, index, count)
        self.note_reads(places, frame)
        return tuple(self.array[i] for i in places)

    def store(self, index, values, frame):
        "`values` to neighbours in one access."
        _refuse_negative(index)
        if recorder: recorder("global", "store", self, index, len(values), frame)
        access = Access(frame)
        for i, value in zip(_neighbours(self, index, len(values)), values):
            self.note_write(i, access, value)
            self.array[i] = value

    def store_relaxed(self, index, value, frame):
        "Write all or nothing of an element that others may read at the same time."
        _refuse_negative(index)
        self.note_write(index, Access(frame, atomic=True)).carry(reads=False, writes=True)
        self.array[index] = value

    def note(self, index): return getcurrent().block.grid.elements[self.first_byte + self.byte(index)]

    def note_reads(self, places, frame):
        if not self.watch.on: return
        access = Access(frame)
        for i in places: self.note(i).note_read(access, self, i)

    def note_write(self, index, access, value=None):
        "Check a write by the running thread against what is known of the element, and note it."
        if recorder: return Element()
        if not self.watch.on: raise Again(self.name)
        self.watch.stores += 1
        element = self.note(index)
        element.note_write(access, self, index, value)
        return element

    def note_atomic(self, index, access):
        "The same for an atomic operation; the notes on the element."
        element = self.note_write(index, access)
        element.note_read(access, self, index)
        return element

    def label(self, index): return f"{self.name}[{_text(index)}]"
    def holds(self, index, value): return _same(self.array[index], value)


class Atomics(kernelapi.FakeCUDAAtomic):
    "Atomic operations. They are noted as such, and then work on the bare data."
    def __getattribute__(self, name):
        operation = super().__getattribute__(name)
        if name.startswith("_"): return operation
        def atomic(array, *args):
            thread, frame = getcurrent(), sys._getframe(1)
            index, *values = args if name != "compare_and_swap" else ((0,) * array.ndim, *args)
            _refuse_negative(index)
            bare = array.data if isinstance(array, SharedArray) else array.array
            bare[index]
            thread.block.grid.talks = True
            thread.block.grid.mix(thread, frame)
            element = array.note_atomic(index, Access(frame, atomic=True))
            before = bare[index]
            answer = operation(bare, *args)  # the recorder need not see this
            failed = "swap" in name + "cas"[name != "cas":] and answer != values[0]
            element.carry(reads=True, writes=not failed)
            thread.block.grid.moves += bool(bare[index] != before)
            thread.block.grid.take_turns(thread, frame, (name, args, answer))
            return answer
        return atomic
