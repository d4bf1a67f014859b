"""What a GPU can do: its instructions, its shared memory, its grids; and how a call keeps to that."""
from itertools import count
from secrets import randbits

import numpy as np
from numba import config

from ..arrays import OptIn, current_gpu
from ..cards import gpu_card
from ..sim.declared import DYNAMIC_SHARED_LIMIT

MAX_GRID_X = 2**31 - 1  # blocks; the same on every CUDA GPU
MAX_GRID_Y = 65535


def capable(
    capability,  # of a GPU, major and minor number
    needs,       # major and minor number; with an "a" behind them: of no other GPU
) -> bool:
    "Does the GPU have what is needed? (9, 0, 'a') is what `sm_90a` means: 9.0 alone."
    return tuple(capability) == needs[:2] if len(needs) > 2 else tuple(capability) >= needs


def need_capability(
    needs,  # see `capable`
    what,   # what needs it
):
    "`RuntimeError` on a GPU that lacks this compute capability."
    if not config.ENABLE_CUDASIM and not capable(current_gpu().compute_capability, needs):
        raise RuntimeError(f"{what} needs a GPU of compute capability {needs[0]}.{needs[1]}" + " or higher" * (len(needs) == 2))


def sm_count() -> int:
    "Multiprocessors of the GPU; in the simulator, those of the first result card's."
    if config.ENABLE_CUDASIM: return gpu_card().get("multiprocessors", 4)
    return current_gpu().MULTIPROCESSOR_COUNT


# Shared memory. A kernel may declare 48 KB of it for a block. It can have more if the driver is told before the launch.

def shared_memory_limit() -> int:
    "Bytes of shared memory that a block of this GPU may ask for; in the simulator those of an H100."
    return DYNAMIC_SHARED_LIMIT if config.ENABLE_CUDASIM else current_gpu().MAX_SHARED_MEMORY_PER_BLOCK_OPTIN


def need_shared_memory(
    size,  # bytes per block
):
    "`RuntimeError` if a block of this GPU can't have so much."
    if size > shared_memory_limit():
        raise RuntimeError(f"a block needs {size:,} bytes of shared memory, and on this GPU it can have "
                           f"{shared_memory_limit():,}: choose fewer stages, or a smaller tile")


def allow_shared_memory(
    compiled,  # a kernel that Numba has compiled
    size,      # bytes per block
):
    "Tell the driver that the kernel may have so much shared memory."
    from numba.cuda.cudadrv.driver import binding, driver
    function = compiled._codelibrary.get_cufunc()
    most = binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    driver.cuKernelSetAttribute(most, size, function.handle, function.device.id)


def _allow_before(compiled, launch): allow_shared_memory(compiled, launch.sharedmem)


def with_shared_memory(
    kernel,   # with `cuda.shared.array(0, …)`
    blocks,   # of the grid
    threads,  # of a block
    stream,   # to launch on
    size,     # bytes per block; more than 48 KB, too
):
    "`kernel` with its configuration, to be launched by hand. `RuntimeError` if a block of this GPU can't have so much."
    need_shared_memory(size)
    launch = kernel[blocks, threads, stream, OptIn(size)]
    if not config.ENABLE_CUDASIM and _allow_before not in launch.pre_launch_callbacks:
        launch.pre_launch_callbacks.append(_allow_before)
    return launch


# Grids

def row_strips(
    g,     # what `gemm_args` returned
    rows,  # rows of C for each block in y
) -> list:
    """(A, C) in strips of rows that a grid can cover; none where C is empty. A grid has at most 65,535 blocks in y, and
    where rows of C run along y, a very high C takes a launch per strip."""
    strip = MAX_GRID_Y * rows
    if g.m == 0 or g.n == 0: return []
    if g.m <= strip: return [(g.a, g.c)]
    return [(g.a[first:first + strip], g.c[first:first + strip]) for first in range(0, g.m, strip)]


def _set_cooperative(compiled, launch): compiled.cooperative = True


def cooperative(
    launch,  # a kernel with its configuration, to be launched by hand
):
    "The launch, for blocks that wait for each other: all of them start at once, or none yet."
    if not config.ENABLE_CUDASIM and _set_cooperative not in launch.pre_launch_callbacks:
        launch.pre_launch_callbacks.append(_set_cooperative)
    return launch


LAUNCH_NUMBERS = count(1 + randbits(62))


def launch_number() -> np.int64:
    """A number that no other launch has. A flag of blocks that wait for each other holds it when it is up: whatever lay
    in memory before is not mistaken for a flag, because the first number is random."""
    return np.int64(next(LAUNCH_NUMBERS))


def need_whole(
    name, value,  # of an argument
    least,
    most=None,    # None: any
) -> int:         # the value
    "`TypeError` for what isn't a whole number, `ValueError` for one that is too small or too large."
    expected = f"expected {f'{least} or more' if most is None else f'a whole number from {least} to {most}'}"
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is {value!r}; {expected}" + ", a whole number" * (most is None))
    if value < least or most is not None and value > most: raise ValueError(f"{name} is {value}; {expected}")
    return int(value)
