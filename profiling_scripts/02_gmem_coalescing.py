"Two launches of kernel 2: profile the second. Look at: Sectors/Req, L1/TEX Cache Throughput."
from util import to_d
import numpy as np
from numba import config
from numba_matmul.kernels.k02_gmem_coalescing import sgemm_gmem_coalescing

size = 8 if config.ENABLE_CUDASIM else 4096
a, b = (to_d(np.random.randn(size, size).astype(np.float32)) for _ in "ab")
c = sgemm_gmem_coalescing(a, b)  # compiles
sgemm_gmem_coalescing(a, b, c)   # the launch to look at
