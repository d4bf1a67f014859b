"A reader's kernel with its launch, as the modules of the later rounds list them."
from collections.abc import Callable
from typing import NamedTuple

from numba_matmul.arrays import cdiv


class Written(NamedTuple):
    "A kernel and how it's launched."
    kernel: object                # a kernel; or size → kernel, if `sized`
    rows: int                     # of C, a block's results
    cols: int                     # of C
    block: object                 # threads
    grid: Callable | None = None  # (m, n) → blocks, if they aren't one per tile of rows × cols
    sized: bool = False           # is the size of square matrices a constant of the kernel?
    adds: bool = False            # does it add to C, which has to be zero?
    least: int = 32               # the shortest sum it can do
    edges: bool = False           # does it take shapes that aren't whole tiles?
    flat: bool = False            # are its matrices one-dimensional?
    more: Callable | None = None  # (m, n, k) → its further arguments

    def at(self, m, n):
        "The kernel with its launch for a C of (m, n)."
        kernel = self.kernel(n) if self.sized else self.kernel
        return kernel[self.grid(m, n) if self.grid else (cdiv(n, self.cols), cdiv(m, self.rows)), self.block]

    def arguments(self, a, b, c):
        "The arguments of the kernel for these matrices."
        more = self.more(len(c), *b.shape[::-1]) if self.more else ()
        return *((x.reshape(x.size) for x in (a, b, c)) if self.flat else (a, b, c)), *more


def collection():
    "An empty collection, name → `Written`, and the decorator that adds a kernel to it."
    found = {}
    def launched(rows, cols, block, name=None, **options):
        def add(kernel):
            function = getattr(kernel, "py_func", kernel)
            found[name or function.__name__] = Written(kernel, rows, cols, block, **options)
            return kernel
        return add
    return found, launched
