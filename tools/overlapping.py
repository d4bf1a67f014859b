"""Calls that interfere with each other, for `tools/check_gpu.py`: in streams, threads and CUDA graphs at the
same time, alongside work that fills the GPU, and as the first thing a thread does."""
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import cycle, product
from threading import Barrier
from unittest.mock import patch

import numba_matmul  # noqa: F401  first: this chooses between the GPU and the simulator
import torch
from numba import cuda

from numba_matmul import torch_ops
from numba_matmul.bench.timing import assert_matmul_correct
from numba_matmul.gemm import limits, plan
from numba_matmul.kernels.k19_float32_on_tensor_cores import split

TIMES = 20  # number of times an overlap is tried
NEW_THREADS = 8  # at the same time
FP8 = torch.float8_e4m3fn
LAYER = 304, 520, 1000  # m, n, k: kernel 17 takes a transposed view, and a bias


def matrices(kernel, m, n, k):
    "New random factors, and a C of NaN."
    dtype = getattr(torch, kernel.dtype)
    a, b = (torch.randn(*shape, device="cuda").to(dtype) for shape in ((m, k), (k, n)))
    return a, b, torch.full((m, n), torch.nan, device="cuda", dtype=torch.bfloat16 if dtype == FP8 else dtype)


def captured(kernel, a, b, c, stream, called_before=True):
    "A CUDA graph of one product; if it wasn't called with these matrices before, then with others."
    before = (a, b, c) if called_before else matrices(kernel, a.shape[0], b.shape[1], b.shape[0])
    with torch.cuda.stream(stream): kernel(*before)  # compiles
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream): kernel(a, b, c)
    return graph


def two_graphs(kernel, shape):
    "Two graphs, captured on one stream and replayed on two at the same time."
    stream, cases = torch.cuda.Stream(), [matrices(kernel, *shape) for _ in range(2)]
    graphs = [captured(kernel, *case, stream, called_before)
              for case, called_before in zip(cases, (True, False))]
    streams = [torch.cuda.Stream() for _ in graphs]
    for _ in range(TIMES):
        for case in cases: case[2].fill_(torch.nan)
        torch.cuda.synchronize()
        for graph, other in zip(graphs, streams):
            with torch.cuda.stream(other): graph.replay()
        torch.cuda.synchronize()
        for case in cases: assert_matmul_correct(*case)


def threads(kernel, shape):
    "Four threads, each with a stream of its own."
    kernel(*matrices(kernel, *shape))  # compiles
    def work(_):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(TIMES):
                a, b, c = matrices(kernel, *shape)
                kernel(a, b, c)
                torch.cuda.current_stream().synchronize()
                assert_matmul_correct(a, b, c)
    with ThreadPoolExecutor(4) as pool: list(pool.map(work, range(4)))


def busy(kernel, shape):
    "Alongside another product that fills the GPU, so that blocks start late and in any order."
    other, x = torch.cuda.Stream(), torch.randn(4096, 4096, device="cuda")
    with torch.cuda.stream(other):
        for _ in range(TIMES): x @ x
    cases = [matrices(kernel, *shape) for _ in range(TIMES)]
    for a, b, c in cases: kernel(a, b, c)
    for a, b, c in cases: assert_matmul_correct(a, b, c)


def memory_again(kernel, shape):
    "While a launch waits for its turn, others allocate memory and fill it: its temporaries must survive."
    stream, others = torch.cuda.Stream(), [torch.cuda.Stream() for _ in range(2)]
    case = matrices(kernel, *shape)
    for given, on in (case, stream), (numba_arrays(case), torch.cuda.default_stream()):
        case[2].fill_(torch.nan)
        torch.cuda.synchronize()
        with torch.cuda.stream(on):
            torch.cuda._sleep(10**7)
            kernel(*given)
        for _ in range(TIMES):
            for other in others:
                with torch.cuda.stream(other): torch.full((2**22,), torch.nan, device="cuda")
            cuda.to_device(torch.full((2**20,), torch.nan).numpy())
        torch.cuda.synchronize()
        assert_matmul_correct(*case)


def in_new_threads(calls):
    "The results of functions called at the same time, each in a fresh thread."
    start = Barrier(len(calls))
    def work(call):
        start.wait()  # so that no thread gets two of them
        return call()
    with ThreadPoolExecutor(len(calls)) as pool: return list(pool.map(work, calls))


def numba_arrays(case):
    bits = {torch.bfloat16: torch.uint16, FP8: torch.uint8}
    return [cuda.as_cuda_array(x.view(bits.get(x.dtype, x.dtype))) for x in case]


def kernel_first(kernel, shape):
    """The first thing threads do is call a kernel: with tensors and with Numba's arrays, some without C; with
    plans made by this thread for other matrices, and without."""
    for given, planned in product((list, numba_arrays), (True, False)):
        plan.forget_plans()
        cases = [matrices(kernel, *shape) for _ in range(NEW_THREADS)]
        calls = [partial(kernel, *given(case)[:2 + number % 2]) for number, case in enumerate(cases)]
        if planned:
            for arrays in (other := given(matrices(kernel, *shape)))[:2], other: kernel(*arrays)
        torch.cuda.synchronize()
        for (a, b, _), result in zip(cases, in_new_threads(calls)):
            assert_matmul_correct(a, b, result)


def with_gradients(a, b):
    "A product, and the gradients of its operands."
    c = torch_ops.matmul(a, b)
    c.backward(torch.ones_like(c))
    return c


OPERATORS = {  # A, B, their transposes as stored in memory, and a bias → A·B, or with the bias
    "matmul": lambda a, b, at, bt, bias: torch_ops.matmul(a, b),
    "matmul of a transposed view": lambda a, b, at, bt, bias: torch_ops.matmul(at.t(), b),
    "linear": lambda a, b, at, bt, bias: torch_ops.linear(a, bt),
    "linear with a bias": lambda a, b, at, bt, bias: torch_ops.linear(a, bt, bias),
    "gradients": lambda a, b, at, bt, bias: with_gradients(a, b)}


def operator_first(name, dtype):
    "The same with an operator."
    operator, (m, n, k) = OPERATORS[name], LAYER
    def operands():
        a, b, bias = (torch.randn(*shape, device="cuda").to(dtype) for shape in ((m, k), (k, n), (n,)))
        if name == "gradients": a.requires_grad_(), b.requires_grad_()
        return a, b, a.detach().t().contiguous(), b.detach().t().contiguous(), bias
    for planned in True, False:
        plan.forget_plans()
        cases = [operands() for _ in range(NEW_THREADS)]
        if planned: operator(*operands())
        torch.cuda.synchronize()
        results = in_new_threads([partial(operator, *case) for case in cases])
        for (a, b, _, _, bias), y in zip(cases, results):
            assert_matmul_correct(a, b, y, beta=float("bias" in name), c_before=bias.expand(m, n))
            if name == "gradients":
                ones = torch.ones_like(y)
                assert_matmul_correct(ones, b.t(), a.grad), assert_matmul_correct(a.t(), ones, b.grad)


def new_matrices(kernel, shape):
    """Products of matrices that are new in each call, in two streams at the same time: a launch carries its
    tensor maps along."""
    streams, cases = [torch.cuda.Stream() for _ in range(2)], [matrices(kernel, *shape) for _ in range(TIMES)]
    torch.cuda.synchronize()
    for case, stream in zip(cases, cycle(streams)):
        with torch.cuda.stream(stream): kernel(*case)
    torch.cuda.synchronize()
    for case in cases: assert_matmul_correct(*case)


def used_workspace(kernel, shape):
    """Kernel 14's flags and sums are where something else was before; the flags are cleared at the end, as a
    CUDA graph needs."""
    used, workspace_of = [], plan.workspace_of
    def note(stream, size):
        used.append(workspace_of(stream, size).fill_(1))
        return used[-1]
    plan.forget_plans()
    with patch.object(plan, "workspace_of", note):
        for _ in range(TIMES):
            a, b, c = matrices(kernel, *shape)
            kernel(a, b, c, blocks=limits.sm_count())
            assert_matmul_correct(a, b, c)
            packed, = plan._PLANS.values()
            flags = used[-1][packed.offsets[-1]:].view(torch.int64)[:limits.sm_count()]
            assert not flags.any(), "a flag is still set"
    assert len(used) == TIMES


def same_bits(kernel, shape):
    "The same inputs give the same bits: called twice, and in a graph."
    a, b, c = matrices(kernel, *shape)
    graph = captured(kernel, a, b, c, torch.cuda.Stream())
    first = kernel(a, b)
    for _ in range(TIMES):
        c.fill_(torch.nan)
        graph.replay()
        again = kernel(a, b)
        assert torch.equal(first, again), "two calls give different bits"
        assert torch.equal(first, c), "a call and a graph give different bits"


# Kernel 19

def by_itself(kernel):
    "The kernel, with a tile in cases where it would leave small matrices to another kernel."
    if kernel.number != 19: return kernel
    return replace(kernel, fn=partial(kernel.fn, tile=kernel.tiles.tile))


def changed_numbers(kernel, shape):
    "A graph is replayed with numbers that the parts can represent, and with some that they can't."
    stream, declined = torch.cuda.Stream(), torch.full((1,), 7, device="cuda", dtype=torch.int32)
    a, b, c = matrices(kernel, *shape)
    graph = captured(partial(kernel, declined=declined), a, b, c, stream)
    for number in range(TIMES):
        for x in a, b: x.normal_()
        if number % 2: (a, b)[number // 2 % 2][1, 2] = 1e-30
        c.fill_(torch.nan)
        graph.replay()
        assert declined.item() == number % 2, f"declined is {declined.item()} in replay {number}"
        assert_matmul_correct(a, b, c)


def split_ahead(kernel, shape):
    """B is split in advance, in a stream and in a graph, and others allocate memory once its parts are freed:
    the bits match those of the product that splits it."""
    for number in range(TIMES):
        a, b, c = matrices(kernel, *shape)
        for given in [(a, b, c)] + [numba_arrays((a, b, c))] * (number % 4 == 0):
            right = torch.as_tensor(kernel(given[0], given[1]), device="cuda")
            c.fill_(torch.nan)
            kernel(given[0], split(given[1]), given[2])
            torch.full((2**22,), torch.nan, device="cuda")
            assert torch.equal(right, c), "different bits than without"
    ahead = split(b)
    graph = captured(kernel, a, ahead, c, torch.cuda.Stream())
    c.fill_(torch.nan)
    graph.replay()
    assert torch.equal(right, c), "different bits in a graph"


TESTS = two_graphs, threads, busy, memory_again, new_matrices, same_bits
OF_PARTS = changed_numbers, split_ahead  # for kernel 19
