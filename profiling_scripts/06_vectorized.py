"Two launches of kernel 6: one compiles, one is profiled. Look at: Executed Ipc Active, Bank Conflicts."
from util import to_d
import numpy as np
from numba import config
from numba_matmul.kernels.k06_vectorized import sgemm_vectorized

size = 8 if config.ENABLE_CUDASIM else 4096
a, b = (to_d(np.random.randn(size, size).astype(np.float32)) for _ in "ab")
c = sgemm_vectorized(a, b)  # compiles
sgemm_vectorized(a, b, c)   # the launch to look at
