"Two launches of kernel 15: the second is profiled. Look at: Stall Math Pipe Throttle, Stall Barrier."
from util import rounded, to_d
import numpy as np
from numba import config
from numba_matmul.kernels.k15_tensor_cores import bf16_gemm_tensor_cores

size = 8 if config.ENABLE_CUDASIM else 4096
a, b = (to_d(rounded(np.random.randn(size, size), "bfloat16")) for _ in "ab")
for _ in range(2): bf16_gemm_tensor_cores(a, b)  # the first compiles; look at the second
