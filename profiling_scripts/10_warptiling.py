"""Two launches of kernel 10: the second is profiled. Look at: Bank Conflicts, Stall Long Scoreboard.
The numbers of a `WarpTile` can follow the name of the script."""
import sys

from util import to_d
import numpy as np
from numba import config
from numba_matmul.gemm.tiles import WarpTile
from numba_matmul.kernels.k10_warptiling import sgemm_warptiling

tile = WarpTile(*map(int, sys.argv[1:])) if sys.argv[1:] else None
size = 8 if config.ENABLE_CUDASIM else 4096
a, b = (to_d(np.random.randn(size, size).astype(np.float32)) for _ in "ab")
c = sgemm_warptiling(a, b, tile=tile)  # compiles
sgemm_warptiling(a, b, c, tile=tile)   # the launch to look at
