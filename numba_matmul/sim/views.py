"""What all arrays in a kernel have in common: checked indices, and views that share the array's checks."""
import sys
from functools import cache
from math import prod

import numpy as np
from .places import INSIDE
from .scheduler import SimulatorError


def refuse_negative(index):
    if type(index) is int and index >= 0: return
    for i in index if type(index) is tuple else (index,):
        if type(i) is not slice and i is not None and i < 0:
            raise SimulatorError(f"index {i} is negative, which would count from the end of the array",
                                 "bounds", negative=True)

def refuse_copy(value):
    "A slice can only be assigned a number: to copy an array, the compiler would need temporary memory."
    if np.ndim(value):
        raise SimulatorError("a slice can only be assigned a single number: to copy from another array, "
                             "write a loop")

def index_text(index): return ", ".join(map(str, index)) if type(index) is tuple else str(index)

def neighbours(array, index, count):
    """The indices of `count` adjacent elements starting at `index`, and all as one slice, for one access by a
    GPU: the address must be aligned."""
    # a shared array is aligned as declared, a global one as memory is
    size = count * array.dtype.itemsize
    if size > array.promised:
        raise SimulatorError(f"an access of {size} bytes to {array.name}, which is only aligned to "
                             f"{array.promised}: cuda.shared.array(…, alignment={size})", "alignment")
    if array.byte(index) % size:
        raise SimulatorError(f"an access of {size} bytes at {array.label(index)}, which isn't a multiple of "
                             f"{size} bytes from the start of {array.name}", "alignment")
    if type(index) is not tuple: return range(index, index + count), slice(index, index + count)
    *before, first = index
    return [(*before, i) for i in range(first, first + count)], (*before, slice(first, first + count))

def _kernel_frame():
    "The frame of the kernel, or of the device function, that called into the simulator."
    frame = sys._getframe(1)
    while (frame.f_globals.get("__name__") or "").startswith((*INSIDE, "numpy.")):
        frame = frame.f_back
    return frame

def keeps_order(index, array):
    "Does the compiler know that the elements of such a slice are contiguous?"
    *before, last = index if type(index) is tuple else (index,)
    return (array.in_order and not any(type(i) is slice for i in before)
            and (type(last) is not slice or last.step is None))


class Views:
    """What an array offers besides its elements: views (reshaped, transposed, or as another type of the same
    size), and numpy's reductions. Either way the array itself is read and written, with all
    checks."""
    in_order = True  # does the compiler know that the elements are contiguous?
    itemsize = property(lambda self: self.dtype.itemsize)
    nbytes = property(lambda self: self.size * self.itemsize)
    T = property(lambda self: self.transpose())
    flat = property(lambda self: self.reshape(self.size))

    @property
    def real(self):
        if self.dtype.kind == "c":
            raise SimulatorError("the simulator can't take .real or .imag of a whole array: write x[i].real")
        return self
    imag = real

    # each view is created by `viewed`, which transforms the numbers and their notes alike

    def transpose(self): return self.viewed("T", np.transpose, self.in_order)
    def reshape(self, *shape):
        shape = tuple(map(int, shape[0] if isinstance(shape[0], tuple) else shape))
        if not self.in_order:
            raise SimulatorError("reshape of a slice with a step, or of a slice before the last index: "
                                 "the compiler only takes whole arrays and x[i:j]; compute the index")
        def change(array):  # numpy copies if it must; a GPU can't
            made = array.reshape(shape)
            if made.size and not np.may_share_memory(made, array):
                raise SimulatorError(f"reshape to {shape} would copy an array whose rows aren't "
                                     "contiguous, and on a GPU it fails silently: compute the index")
            return made
        return self.viewed(shape, change, True)

    def view(self, dtype):
        if dtype == self.dtype: return self
        if dtype.itemsize != self.itemsize or not self.other_types:
            raise SimulatorError(f"the simulator can't view {self.dtype} as {dtype} here: {self.instead}")
        return self.viewed(dtype, lambda array: array.view(dtype), self.in_order)

    def __array__(self, dtype=None, copy=None):
        frame = _kernel_frame()
        elements = [self.load(i, 1, frame)[0] for i in np.ndindex(self.shape)]
        return np.array(elements, dtype or self.dtype).reshape(self.shape)

    def fill(self, value):
        for i in np.ndindex(self.shape): self.store(i, (self.dtype.type(value),), _kernel_frame())

    def label(self, index): return f"{self.name}[{index_text(index)}]"

    def holds(self, index, value):
        "Does the element already equal this number, bit for bit? (NaN doesn't equal itself.)"
        element = self.data[index]
        return element == value or element.tobytes() == element.dtype.type(value).tobytes()

# numpy's reductions

def _of_all(name):
    return lambda self, *args, **options: getattr(np.asarray(self), name)(*args, **options)
for _method in "all any argmax argmin item mean prod std sum var".split():
    setattr(Views, _method, _of_all(_method))


# Types and indices

def of_numpy(dtype):
    return dtype if isinstance(dtype, np.dtype) else np.dtype(getattr(dtype, "name", dtype))

def sub_array(dtype, name):
    "Type of the elements of a field, and its shape."
    inner = dtype.fields[name][0]
    return inner.subdtype or (inner, ())

@cache
def numbered(shape):
    "The numbers 0, 1, 2, … in an array of this shape."
    return np.arange(prod(shape)).reshape(shape)

@cache
def all_indices(shape):
    "The indices of an array of this shape, in order."
    return [*np.ndindex(shape)] if len(shape) != 1 else [*range(*shape)]
