"Two launches of kernel 7: one compiles, one is profiled. Look at: Bank Conflicts, Executed Instructions."
from util import to_d
import numpy as np
from numba import config
from numba_matmul.kernels.k07_bank_conflicts_linearize import sgemm_bank_conflicts_linearize

size = 8 if config.ENABLE_CUDASIM else 4096
a, b = (to_d(np.random.randn(size, size).astype(np.float32)) for _ in "ab")
c = sgemm_bank_conflicts_linearize(a, b)  # compiles
sgemm_bank_conflicts_linearize(a, b, c)   # the launch to look at
