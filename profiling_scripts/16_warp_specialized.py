"One launch of kernel 16 for Nsight Compute. Look at: Executed Instructions, Stall Barrier."
from util import rounded, to_d
import numpy as np
from numba import config
from numba_matmul.k16_warp_specialized import hgemm_warp_specialized

size = 40 if config.ENABLE_CUDASIM else 4096
a, b = (to_d(rounded(np.random.randn(size, size), "bfloat16")) for _ in "ab")
for _ in range(2): hgemm_warp_specialized(a, b)  # the first one compiles, the second is to look at
