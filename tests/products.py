"Shared by the kernel tests: each kernel by name, random matrices, and a kernel that multiplies two."
import numpy as np
import pytest
from numba import cuda

from numba_matmul.arrays import rounded, to_d
from numba_matmul.registry import KERNELS


def each_kernel(condition=bool):
    "Runs a test with every kernel that meets a condition."
    kernels = [*filter(condition, KERNELS.values())]
    return pytest.mark.parametrize("kernel", kernels, ids=lambda kernel: kernel.name)


def random(*shape, dtype="float32"): return rounded(np.random.randn(*shape), dtype)


def good(kernel, m=4, k=6, n=5):
    "A and B on the device, as a kernel takes them."
    return tuple(to_d(random(*shape, dtype=kernel.dtype)) for shape in ((m, k), (k, n)))


@cuda.jit
def matmul_1(a, b, c):
    i, j = cuda.grid(2)
    if i < c.shape[0] and j < c.shape[1]:
        tmp = np.float32(0)
        for k in range(a.shape[1]): tmp += a[i, k] * b[k, j]
        c[i, j] = tmp
