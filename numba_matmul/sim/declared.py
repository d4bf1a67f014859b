"""Arrays that a kernel declares: `cuda.shared.array` and `cuda.local.array`.

A shared array is identified by the instruction that creates it, not by its line as in Numba's own simulator,
so two on one line are two arrays. Each block starts with fresh memory, every byte set: NaN in a float, -1 in
an integer.
"""
import linecache
import re
import sys
from functools import cached_property
from math import prod

import numpy as np
from .memory import SharedArray
from .places import column, instruction
from .races import Elements
from .scheduler import SimulatorError
from .views import (Views, all_indices, keeps_order, numbered, of_numpy, refuse_copy,
                    refuse_negative, sub_array)
from numba import types

STATIC_SHARED_LIMIT = 48 * 1024    # bytes per block, on every target
DYNAMIC_SHARED_LIMIT = 227 * 1024  # including dynamic shared memory, on an H100


def _poisoned(shape, dtype):
    "An array with numpy's equivalent of Numba's `dtype`, every byte 0xFF."
    data = np.empty(shape, of_numpy(dtype))
    data.reshape(-1).view(np.uint8)[:] = 0xFF
    return data

def _name(code, line, column):
    "The variable a line assigns an array to. With several arrays on it, `column` says which is declared."
    text = linecache.getline(code.co_filename, line)
    made = len(re.findall(r"(shared|local)\.array", text[:column]))  # those to its left
    names = [name.strip() for part in text.split(";") if re.search(r"(shared|local)\.array", part)
             and "=" in part for name in part.partition("=")[0].split(",")]
    return names[made] if made < len(names) else "the array"


class LocalArray(Views):
    """A thread's own array, or a view of it. The numbers are in a dict keyed by the index the kernel uses:
    nothing is faster, and kernels do little else."""
    def __init__(self, numbers, dtype, places, whole, declared):
        self.numbers, self.dtype, self.cast = numbers, dtype, dtype.type
        self.places, self.whole = places, whole  # each element's number in the whole array; its shape
        self.declared = declared  # code, line and column
        self.shape, self.ndim, self.size = places.shape, places.ndim, places.size
        self.at_once = numbers if places is numbered(whole) else {}  # a view has other indices

    name = property(lambda self: _name(*self.declared))
    other_types, instead = False, "libdevice.float_as_int and similar convert one number"
    @property
    def strides(self):
        return tuple(step // self.places.itemsize * self.itemsize for step in self.places.strides)

    def viewed(self, key, change, in_order):
        part = LocalArray(self.numbers, self.dtype, change(self.places), self.whole, self.declared)
        part.in_order = in_order
        return part

    def fill(self, value): self[(slice(None),) * self.ndim] = value
    def __len__(self): return len(self.places)
    def __iter__(self): return (self[i] for i in range(len(self)))
    def __array__(self, dtype=None, copy=None):
        elements = [self[i] for i in np.ndindex(self.shape)]
        return np.array(elements, dtype or self.dtype).reshape(self.shape)

    def field(self, name):
        "One field of all elements."
        dtype, shape = sub_array(self.dtype, name)
        places = self.places[(..., *(None,) * len(shape))] * prod(shape) + numbered(shape)
        return LocalArray(self.numbers[name], dtype, places, self.whole + shape, self.declared)

    def __getitem__(self, index):
        try:
            return self.at_once[index]
        except (KeyError, TypeError):
            pass  # TypeError: a slice has no hash
        refuse_negative(index)
        found = self.places[index]
        if isinstance(found, np.ndarray):
            return self.viewed(index, lambda places: found, keeps_order(index, self))
        if (place := all_indices(self.whole)[found]) in self.numbers: return self.numbers[place]
        raise SimulatorError(f"{self.label(index)} is read before it was written",
                             "uninitialized", array=self.name, copying=False, by="thread")

    def __setitem__(self, index, value):
        # the common case: one number of the right type, one element
        try:
            if index in self.at_once:
                kind, cast = type(value), self.cast
                if kind is cast or kind is int:
                    self.at_once[index] = value if kind is cast else cast(value)
                    return
        except TypeError:
            pass
        refuse_negative(index)
        found, indices = self.places[index], all_indices(self.whole)
        if isinstance(found, np.ndarray):
            refuse_copy(value)
            for number in found.flat: self.numbers[indices[number]] = self.cast(value)
        elif np.ndim(value): raise SimulatorError("an element of a local array holds one number")
        else: self.numbers[indices[found]] = self.cast(value)


class LocalMemory:
    "`cuda.local` in a kernel."
    def array(self, shape, dtype, alignment=None):
        shape, frame = shape if type(shape) is tuple else (shape,), sys._getframe(1)
        dtype = of_numpy(dtype)
        numbers = {name: {} for name in dtype.names or ()}  # for a record, per field
        return LocalArray(numbers, dtype, numbered(shape), shape,
                          (frame.f_code, frame.f_lineno, column(frame)))


class SharedMemory:
    "The shared memory of one block."
    def __init__(self, dynamic_bytes):
        self.arrays, self.at, self.static_bytes = {}, {}, 0  # by declaration; the same by its place in a code
        self.dynamic = _poisoned(dynamic_bytes, np.uint8)
        self.dynamic_elements = Elements()  # by first byte
        self.mbarriers, self.leaving = {}, set()  # by address; elements that stores are still reading

    @cached_property
    def numbers(self):
        "As 16-bit numbers: the dynamic memory, or the only declared array."
        declared = [x for x in self.arrays.values() if x.elements is not self.dynamic_elements]
        if len(declared) + bool(self.dynamic.size) != 1:
            raise SimulatorError("the simulator can resolve shared-memory addresses for TMA, mbarriers and "
                                 "wgmma only if a block has one shared array, or only dynamic memory")
        return self._dynamic(types.uint16) if self.dynamic.size else declared[0]

    def array(self, shape, dtype, alignment=None):
        if alignment is not None and (alignment < 1 or alignment & alignment - 1):
            raise SimulatorError(f"alignment={alignment} isn't a power of two")
        frame = sys._getframe(1)
        # all threads that execute this instruction get the same array
        at = id(frame.f_code), frame.f_lasti
        if at not in self.at:
            key = frame.f_code, instruction(frame), frame.f_lineno
            if key not in self.arrays:
                name = _name(frame.f_code, frame.f_lineno, column(frame))
                self.arrays[key] = (self._dynamic(dtype, (*key, name)) if shape == 0
                                    else self._static(name, shape, dtype, alignment))
            self.at[at] = self.arrays[key]
        return self.at[at]

    def _static(self, name, shape, dtype, alignment):
        # arrays are laid out one after another, each at a multiple of 16 bytes
        data, base = _poisoned(shape, dtype), -(-self.static_bytes // 16) * 16
        self.static_bytes = base + data.nbytes
        if self.static_bytes > STATIC_SHARED_LIMIT:
            raise SimulatorError(f"a block declares {self.static_bytes} bytes of static shared memory; the "
                                 f"limit is {STATIC_SHARED_LIMIT} (for more, use dynamic shared memory, the "
                                 "fourth launch parameter)")
        if (both := self.static_bytes + self.dynamic.size) > DYNAMIC_SHARED_LIMIT:
            raise SimulatorError(f"{both} bytes of shared memory, static plus dynamic, "
                                 f"but a block on sm_90 may use at most {DYNAMIC_SHARED_LIMIT}")
        unit = 1 if data.dtype.names else data.itemsize  # fields are distinguished by their bytes
        elements = Elements()
        elements.divide(1)
        return SharedArray(name, data, numbered(data.shape) * (data.itemsize // unit), elements, base, unit,
                           alignment or data.itemsize)

    def _dynamic(self, dtype, declared=None):
        "All dynamic arrays share one piece of memory; an element is identified by its first byte."
        size = of_numpy(dtype).itemsize
        self.dynamic_elements.divide(size)
        data = self.dynamic[:len(self.dynamic) // size * size].view(of_numpy(dtype))
        return SharedArray("dynamic shared memory", data, np.arange(data.size) * size, self.dynamic_elements,
                           0, 1, 16, declared)
