"Two launches of kernel 1: profile the second. Look at: L1/TEX Cache Throughput, Sectors/Req."
from util import to_d
import numpy as np
from numba import config
from numba_matmul.kernels.k01_naive import sgemm_naive

size = 8 if config.ENABLE_CUDASIM else 4096
a, b = (to_d(np.random.randn(size, size).astype(np.float32)) for _ in "ab")
c = sgemm_naive(a, b)  # compiles
sgemm_naive(a, b, c)   # the launch to look at
