"Two launches of kernel 8: one compiles, one is profiled. Look at: Bank Conflicts, Stall Barrier."
from util import to_d
import numpy as np
from numba import config
from numba_matmul.kernels.k08_bank_conflicts_padding import sgemm_bank_conflicts_padding

size = 8 if config.ENABLE_CUDASIM else 4096
a, b = (to_d(np.random.randn(size, size).astype(np.float32)) for _ in "ab")
c = sgemm_bank_conflicts_padding(a, b)  # compiles
sgemm_bank_conflicts_padding(a, b, c)   # the launch to look at
