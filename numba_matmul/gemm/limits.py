"""A GPU's limits (instructions, shared memory, grids), and how a call stays within them."""
import os
from collections.abc import Callable
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
    capability: tuple,  # of a GPU, major and minor number
    needs: tuple,       # major and minor number; followed by "a": this GPU only
) -> bool:
    "Does the GPU have what is needed? (9, 0, 'a') means `sm_90a`: only 9.0."
    return tuple(capability) == needs[:2] if len(needs) > 2 else tuple(capability) >= needs


def has_capability(
    needs: tuple,  # see `capable`
) -> bool:
    "Does this GPU have what is needed? In the simulator, always."
    return bool(config.ENABLE_CUDASIM) or capable(current_gpu().compute_capability, needs)


def need_capability(
    needs: tuple,  # see `capable`
    what: str,     # what needs it
):
    "`RuntimeError` on a GPU that lacks this compute capability."
    if not has_capability(needs):
        higher = " or higher" if len(needs) == 2 else ""
        raise RuntimeError(f"{what} needs a GPU of compute capability {needs[0]}.{needs[1]}{higher}")


def sm_count() -> int:
    "Multiprocessors of the GPU; in the simulator, of the one that a prediction is for, or of a card's."
    if config.ENABLE_CUDASIM:
        return int(os.environ.get("MATMUL_SMS") or gpu_card().get("multiprocessors", 4))
    return current_gpu().MULTIPROCESSOR_COUNT


# Shared memory. A kernel may declare 48 KB of it per block. It can have more by opting in through the driver
# before the launch.

def shared_memory_limit() -> int:
    "The most shared memory a block may request on this GPU, in bytes; in the simulator, an H100's."
    return DYNAMIC_SHARED_LIMIT if config.ENABLE_CUDASIM else current_gpu().MAX_SHARED_MEMORY_PER_BLOCK_OPTIN


def need_shared_memory(
    size: int,  # bytes per block
):
    "`RuntimeError` if a block on this GPU can't have this much."
    if size > shared_memory_limit():
        raise RuntimeError(f"a block needs {size:,} bytes of shared memory, but this GPU allows only "
                           f"{shared_memory_limit():,}: choose fewer stages, or a smaller tile")


def allow_shared_memory(
    compiled,   # a kernel compiled by Numba
    size: int,  # bytes per block
):
    "Opt in to this much shared memory for the kernel; to no less than its other launches need."
    from numba.cuda.cudadrv.driver import binding, driver
    function = compiled._codelibrary.get_cufunc()
    most = binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    kernel = function.handle, function.device.id
    if driver.cuKernelGetAttribute(most, *kernel) < size: driver.cuKernelSetAttribute(most, size, *kernel)


def _allow_before(compiled, launch): allow_shared_memory(compiled, launch.sharedmem)


def with_shared_memory(
    kernel: Callable,     # with `cuda.shared.array(0, …)`
    blocks: int | tuple,  # of the grid
    threads: int | tuple,  # of a block
    stream: object,       # to launch on
    size: int,            # bytes per block; may exceed 48 KB
) -> Callable:
    """`kernel` with its configuration, ready to launch by hand. `RuntimeError` if a block on this GPU can't
    have this much."""
    need_shared_memory(size)
    launch = kernel[blocks, threads, stream, OptIn(size)]
    if not config.ENABLE_CUDASIM and _allow_before not in launch.pre_launch_callbacks:
        launch.pre_launch_callbacks.append(_allow_before)
    return launch


# Grids

def _set_cooperative(compiled, launch): compiled.cooperative = True


def cooperative(
    launch: Callable,  # a kernel with its configuration, ready to launch by hand
) -> Callable:
    "A cooperative launch, for blocks that wait for each other: all of them start at once, or none do."
    if not config.ENABLE_CUDASIM and _set_cooperative not in launch.pre_launch_callbacks:
        launch.pre_launch_callbacks.append(_set_cooperative)
    return launch


LAUNCH_NUMBERS = count(1 + randbits(62))


def launch_number() -> np.int64:
    """A number unique to this launch. A flag shared by blocks that wait for each other is set when it holds
    this number: stale memory can't be mistaken for a set flag, because the first number is random."""
    return np.int64(next(LAUNCH_NUMBERS))


def need_whole(
    name: str, value: object,  # of an argument
    least: int,
    most: int = None,  # None: no limit
) -> int:              # the value
    "`TypeError` unless it's a whole number, `ValueError` if it's too small or too large."
    expected = f"expected {f'{least} or more' if most is None else f'a whole number from {least} to {most}'}"
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is {value!r}; {expected}" + ", a whole number" * (most is None))
    if value < least or most is not None and value > most: raise ValueError(f"{name} is {value}; {expected}")
    return int(value)
