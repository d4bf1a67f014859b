"Two launches of kernel 16: the second is profiled. Look at: Stall Barrier, Executed Instructions."
from util import rounded, to_d
import numpy as np
from numba import config
from numba_matmul.kernels.k16_tma_wgmma import bf16_gemm_tma_wgmma

size = 8 if config.ENABLE_CUDASIM else 4096
a, b = (to_d(rounded(np.random.randn(size, size), "bfloat16")) for _ in "ab")
for _ in range(2): bf16_gemm_tma_wgmma(a, b)  # the first compiles; look at the second
