"""Two launches of kernel 11: the second is profiled. Look at: Stall Long Scoreboard, Stall Barrier.
The numbers of a `WarpTile` can follow the name of the script."""
import sys

from util import to_d
import numpy as np
from numba import config
from numba_matmul.gemm.tiles import WarpTile
from numba_matmul.kernels.k11_double_buffering import sgemm_double_buffering

tile = WarpTile(*map(int, sys.argv[1:])) if sys.argv[1:] else None
size = 8 if config.ENABLE_CUDASIM else 4096
a, b = (to_d(np.random.randn(size, size).astype(np.float32)) for _ in "ab")
c = sgemm_double_buffering(a, b, tile=tile)  # compiles
sgemm_double_buffering(a, b, c, tile=tile)   # the launch to look at
