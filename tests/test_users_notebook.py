"The code of the notebook this course grew from still runs, with its names and keywords."
import re

import numpy as np
import pytest
import torch
from numba import config, cuda
from products import matmul_1, random
from torch.profiler import ProfilerActivity, profile

from util import array_like, assert_matmul_correct, cdiv, cuda_mean_runtime, measure_runtime, to_d, to_h

without_gpu = pytest.mark.skipif(not config.ENABLE_CUDASIM, reason="there is a GPU")
with_gpu = pytest.mark.skipif(bool(config.ENABLE_CUDASIM), reason="there is no GPU")


@cuda.jit
def f(a, b, c):
    tid = cuda.grid(1)
    if tid < len(c): c[tid] = a[tid] + b[tid]


def test_a_vector_is_added():
    a, b = random(2, 30)
    a_d, b_d = to_d(a), to_d(b)
    c_d = array_like(a_d)
    nthreads = 8
    nblocks = cdiv(len(a), nthreads)
    f[nblocks, nthreads](a_d, b_d, c_d)
    assert nblocks == 4 and np.array_equal(to_h(c_d), a + b)


def test_a_matrix_product_in_blocks_of_32_by_32():
    a, b = to_d(random(40, 7)), to_d(random(7, 35))
    c = array_like(a, (40, 35))
    nthreads = 32, 32
    nblocks = cdiv(c.shape, nthreads)
    matmul_1[nblocks, nthreads](a, b, c)
    assert nblocks == (2, 2) and 0 < assert_matmul_correct(a, b, c) < 1e-5


@without_gpu
def test_without_a_gpu_a_measurement_is_a_check(capsys):
    result = measure_runtime(matmul_1)
    assert "nothing to time" in capsys.readouterr().out and 0 < result.error < 1e-5
    assert result.ms is result.gflops is result.percent is result.cublas_gflops is None
    assert result.name == "matmul_1"
    measure_runtime(matmul_1, m=100, n=90, k=80, bs=16, do_print=False, runs=5)
    assert capsys.readouterr().out == ""


def profiled(kernel, runs=3):
    a, b = (to_d(random(64, 64)) for _ in "ab")
    c = array_like(a, (64, 64))
    with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * torch.cuda.is_available()],
                 acc_events=True) as prof:
        for _ in range(runs): kernel[(4, 4), (16, 16)](a, b, c)
        cuda.synchronize()
    return prof


@without_gpu
def test_without_a_gpu_nothing_is_profiled_and_it_says_so(capsys):
    assert cuda_mean_runtime(profiled(matmul_1, 1), "matmul_1", do_print=True) is None
    assert "nothing is profiled in the simulator" in capsys.readouterr().out


@with_gpu
def test_a_gpu_times_by_name(capsys):
    ms = cuda_mean_runtime(profiled(matmul_1), "matmul_1", do_print=True)
    said = capsys.readouterr().out
    assert 0 < ms < 100 and re.fullmatch(r"matmul_1: [\d.e-]+ ms, mean of 3 launches\n", said)
    result = measure_runtime(matmul_1, m=512, n=500, k=300, bs=16, do_print=True, runs=5)
    assert (result.ms > 0 and result.runs == 5 and (result.m, result.n, result.k) == (512, 500, 300)
            and str(result) in capsys.readouterr().out)
