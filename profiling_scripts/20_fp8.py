"""Two launches of kernel 20: the second is profiled. Look at: Executed Instructions, L1/TEX Cache Throughput.
m, n and k can follow the name of the script, then bm, bn, stages and group_m of a tile without promotion."""
import sys

from util import to_d
import numpy as np
from numba import config
from numba_matmul.arrays import rounded
from numba_matmul.kernels.k20_fp8 import fp8_gemm, fp8_tile

m, n, k, *tile = map(int, sys.argv[1:]) if sys.argv[1:] else [16 if config.ENABLE_CUDASIM else 4096] * 3
options = dict(tile=fp8_tile(*tile), fast=True) if tile else {}
a, b = (to_d(rounded(np.random.randn(*shape), "float8_e4m3fn")) for shape in ((m, k), (n, k)))
for _ in range(2):  # the first one compiles, the second is to look at
    fp8_gemm(a, b, k_major_b=True, **options)
