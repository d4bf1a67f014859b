"Tensors, exact results, and comparisons for the tests of the operators for PyTorch."
import pytest
import torch
from torch.testing import assert_close

from numba_matmul.torch_ops import ACTIVATIONS, DEVICE

F32, BF16 = torch.float32, torch.bfloat16
LAYOUTS = dict(rows=lambda x: x.contiguous(), columns=lambda x: x.t().contiguous().t(),
               strided=lambda x: torch.stack([x, x], -1)[..., 0], offset=lambda x: torch.cat([x[:1], x])[1:])
of_each_dtype = pytest.mark.parametrize("dtype", (F32, BF16), ids=["float32", "bfloat16"])
needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")


def tensor(*shape, dtype=F32, layout="rows", grad=False):
    x = LAYOUTS[layout](torch.randn(*shape, device=DEVICE).to(dtype))
    return x.detach().requires_grad_(grad)


def layer(m, n, k, activation=None, bias=True, residual=True, grad=False):
    "Arguments of a layer in bfloat16 that kernel 17 can do, W a transposed view."
    return (tensor(m, k, dtype=BF16, grad=grad), tensor(k, n, dtype=BF16).t().requires_grad_(grad),
            tensor(n, dtype=BF16, grad=grad) if bias else None, activation,
            tensor(m, n, dtype=BF16, grad=grad) if residual else None)


def exact_layer(x, w, bias=None, activation=None, residual=None):
    y = x.double() @ w.double().t() + (0 if bias is None else bias.double())
    return ACTIVATIONS[activation](y) + (0 if residual is None else residual.double())


def doubled(*tensors):
    "The same numbers as float64, requiring gradients."
    return [x.detach().double().requires_grad_() for x in tensors]


def close(ours, right, dtype=F32):
    assert ours.dtype == dtype and ours.shape == right.shape
    off = 1e-4 if dtype == F32 else 2e-2
    assert_close(ours.double(), right, rtol=off, atol=off)


def all_close(ours, right, dtype=F32):
    for one, other in zip(ours, right, strict=True): close(one, other, dtype)


def gradients_close(ours, args, right, exact_args, dy, atol):
    "For a bfloat16 layer; stored in memory like the arguments."
    gradients = torch.autograd.grad(ours, args, dy)
    exact_gradients = torch.autograd.grad(right, exact_args, dy.double())
    for one, other, arg in zip(gradients, exact_gradients, args, strict=True):
        assert one.dtype == BF16 and one.stride() == arg.stride()
        assert_close(one.double(), other, rtol=2e-2, atol=atol)


def in_graph(step):
    "A CUDA graph of a function that ran on another stream before, and its return value during capture."
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3): step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph): captured = step()
    return graph, captured
