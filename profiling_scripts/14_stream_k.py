"""Two launches of kernel 14: the second is profiled. Look at: Executed Ipc Active, Stall Dispatch.
With `cublas` after the name of the script: cuBLAS instead."""
import sys

from util import to_d
import numpy as np
from numba import config
from numba_matmul.kernels.k14_stream_k import sgemm_stream_k

size = 8 if config.ENABLE_CUDASIM else 4096
a, b = (to_d(np.random.randn(size, size).astype(np.float32)) for _ in "ab")
if sys.argv[1:] == ["cublas"]:
    import torch
    a, b = (torch.as_tensor(x, device="cuda") for x in (a, b))
    matmul = torch.mm
else: matmul = sgemm_stream_k
for _ in range(2): matmul(a, b)  # the first one compiles, the second is to look at
