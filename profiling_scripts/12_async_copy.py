"""Two launches of kernel 12: the second is profiled. Look at: Stall Long Scoreboard, Executed Ipc Active.
The numbers of a `WarpTile` can follow the name of the script."""
import sys

from util import to_d
import numpy as np
from numba import config
from numba_matmul.gemm.tiles import WarpTile
from numba_matmul.kernels.k12_async_copy import sgemm_async_copy

tile = WarpTile(*map(int, sys.argv[1:])) if sys.argv[1:] else None
size = 8 if config.ENABLE_CUDASIM else 4096
a, b = (to_d(np.random.randn(size, size).astype(np.float32)) for _ in "ab")
c = sgemm_async_copy(a, b, tile=tile)  # compiles
sgemm_async_copy(a, b, c, tile=tile)   # the launch to look at
