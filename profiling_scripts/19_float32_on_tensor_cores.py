"""Two launches of kernel 19: the second is profiled. Look at: Executed Instructions, Stall Long Scoreboard.
A size can follow the name of the script."""
import sys

from util import to_d
import numpy as np
from numba import config
from numba_matmul.kernels.k19_float32_on_tensor_cores import LARGE, sgemm_tensor_cores

size = int(sys.argv[1]) if sys.argv[1:] else 8 if config.ENABLE_CUDASIM else 4096
a, b = (to_d(np.random.randn(size, size).astype(np.float32)) for _ in "ab")
for _ in range(2):  # the first one compiles, the second is to look at
    sgemm_tensor_cores(a, b, tile=LARGE)
