"""Two launches of kernel 17: the second is profiled. Look at: Executed Instructions, Stall Barrier.
The size is 4096."""
from util import rounded, to_d
import numpy as np
from numba import config
from numba_matmul.kernels.k17_warp_specialized import bf16_gemm_warp_specialized

size = 8 if config.ENABLE_CUDASIM else 4096
a, b = (to_d(rounded(np.random.randn(size, size), "bfloat16")) for _ in "ab")
for _ in range(2):  # the first compiles; look at the second
    bf16_gemm_warp_specialized(a, b)
