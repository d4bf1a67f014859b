"""What others need to know about a kernel, in one place: its own module.

Each lesson that builds a kernel ends with `KERNEL = Kernel(…)`. Tests, ladder, pictures, README and searches
find it there. Calling a `Kernel` calls its host function.
"""
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ..arrays import cdiv


def cublas(
    a, b,  # torch tensors on the GPU
    out,   # torch tensor for the result
):
    "What kernels are compared with: `torch.matmul`, that is cuBLAS."
    import torch
    return torch.matmul(a, b, out=out)

class Tiles(NamedTuple):
    "The tiles of a kernel: its own, and those of searches and tests."
    tile: tuple           # the default if nothing was tuned
    rules: dict           # see `check_tile`
    small: dict           # field → values: small tiles, for tests
    threads: int = 32     # maximum for a small tile
    variants: tuple = ({},)  # host function options to try them with
    space: dict = None    # field → values for a search on a GPU
    compiled: tuple = ()  # host function options whose machine code is also inspected

@dataclass(frozen=True, eq=False)
class Kernel:
    "A kernel of the course; `Kernel(…)(a, b, c, alpha, beta)` calls its host function."
    number: int  # its lesson's; 0: from another tool, for comparison
    name: str    # of the host function: it never changes, because result cards identify the kernel by it
    title: str
    dtype: str   # of A, B and C
    fn: Callable  # the host function
    factory: Callable = None  # function that builds its device kernel, if there are several
    capability: tuple = (0, 0)  # the compute capability it needs, see `capable`
    uses_tma: bool = False      # are its tiles copied by the TMA?
    units: str = ""  # which ones multiply, if kernels of its type use several kinds
    multiple: int = 1     # k and n must be multiples of it …
    pads: bool = False    # … or it multiplies padded copies whose k and n are …
    fallback: "Kernel" = None  # … or this one does the work
    takes: Callable = None  # function (m, n, k) → does it multiply these itself? If not, `fallback` does
    tiles: Tiles = None   # if there are several
    paths: tuple = ()     # of `Path`: calls that exercise all of its code, see `check_paths`
    rival: Callable = cublas  # function (a, b, out) that it is timed alternately with

    def __call__(self, *args, **kwargs): return self.fn(*args, **kwargs)

    @property
    def plan(self) -> Callable:
        "Function (`Gemm`, options of the host function) → `Plan`."
        return self.fn.plan

    @property
    def kernel_name(self) -> str:
        "The name a profiler shows for it."
        return getattr(self.fn, "kernel_name", f"{self.name}_kernel")

    def fitted(self, m: int, n: int, k: int) -> tuple:
        "The shape with n and k rounded up to multiples of `multiple`."
        return m, *(cdiv(size, self.multiple) * self.multiple for size in (n, k))
