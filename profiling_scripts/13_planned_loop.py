"Two launches of kernel 13: the second is profiled. Look at: Executed Ipc Active, Stall Barrier."
from util import to_d
import numpy as np
from numba import config
from numba_matmul.kernels.k13_planned_loop import sgemm_planned_loop

size = 8 if config.ENABLE_CUDASIM else 4096
a, b = (to_d(np.random.randn(size, size).astype(np.float32)) for _ in "ab")
c = sgemm_planned_loop(a, b)  # compiles
sgemm_planned_loop(a, b, c)   # the launch to look at
