"""Two launches of kernel 18: the second is profiled. Look at: Executed Instructions, Stall Long Scoreboard.
A size, which matrices to pad ("abc", "b" or ""), and the numbers of a `WgmmaTile` can follow the
name of the script."""
import sys

from util import rounded, to_d
import numpy as np
from numba import config
from numba_matmul.gemm.tiles import WgmmaTile
from numba_matmul.kernels.k18_past_cublas_bf16 import bf16_gemm_past_cublas

size = int(sys.argv[1]) if sys.argv[1:] else 8 if config.ENABLE_CUDASIM else 4096
padded = sys.argv[2] if sys.argv[2:] else None
tile = WgmmaTile(*map(int, sys.argv[3:])) if sys.argv[3:] else None
a, b = (to_d(rounded(np.random.randn(size, size), "bfloat16")) for _ in "ab")
for _ in range(2):  # the first one compiles, the second is to look at
    bf16_gemm_past_cublas(a, b, padded=padded, tile=tile)
