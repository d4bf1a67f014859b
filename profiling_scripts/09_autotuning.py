"""Two launches of kernel 9: the second is profiled. Look at: Block Limit Registers, Executed Ipc Active.
The numbers of a `GroupTile` can follow the name of the script."""
import sys

from util import to_d
import numpy as np
from numba import config
from numba_matmul.gemm.tiles import GroupTile
from numba_matmul.kernels.k09_autotuning import sgemm_autotuned

tile = GroupTile(*map(int, sys.argv[1:])) if sys.argv[1:] else None
size = 8 if config.ENABLE_CUDASIM else 4096
a, b = (to_d(np.random.randn(size, size).astype(np.float32)) for _ in "ab")
c = sgemm_autotuned(a, b, tile=tile)  # compiles
sgemm_autotuned(a, b, c, tile=tile)   # the launch to look at
