"Float32 for PyTorch: products by kernel 19, although small ones would go to kernel 14; and row-major copies."
import re

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from torch_cases import F32, all_close, close, doubled, exact_layer, in_graph, needs_gpu, tensor

from numba_matmul import torch_copy, torch_ops
from numba_matmul.gemm.limits import sm_count
from numba_matmul.gemm.tiles import WgmmaTile
from numba_matmul.kernels import k19_float32_on_tensor_cores as k19
from numba_matmul.torch_copy import row_major
from numba_matmul.torch_ops import DEVICE, linear, matmul

pytest_plugins = ["torch_fixtures"]
pytestmark = pytest.mark.usefixtures("seeded")
CAN_SPLIT = pytest.mark.skipif(DEVICE == "cuda" and torch.cuda.get_device_capability() != (9, 0),
                               reason="needs a Hopper GPU")


@pytest.fixture
def splits(monkeypatch):
    "Kernel 19 does every product; returns the plans made for it."
    monkeypatch.setattr(k19, "K_TILE", {WgmmaTile(64, 64, 2, parts=2): 1})  # nothing else to choose from
    monkeypatch.setattr(k19, "SHORTEST", 1)
    found, factory = [], k19.sgemm_tensor_cores_kernel
    def note(*args, **options):
        found.append(args)
        return factory(*args, **options)
    monkeypatch.setattr(k19, "sgemm_tensor_cores_kernel", note)
    return found


def bounded(ours, a, b):
    "Each error is at most (4k + 16)·2⁻²⁴ of |A|·|B|."
    a, b = a.detach().double(), b.detach().double()
    assert ours.dtype == F32 and ours.shape == (a.shape[0], b.shape[1])
    assert ((ours.detach() - a @ b).abs() <= (4 * a.shape[1] + 16) * 2**-24 * (a.abs() @ b.abs())).all()


def test_which_kernel_takes_float32():
    numbers = {capability: torch_ops._last_kernel(F32, capability).number
               for capability in ((7, 5), (8, 0), (8, 9), (9, 0), (10, 0))}
    assert numbers == {(7, 5): 11, (8, 0): 14, (8, 9): 14, (9, 0): 19, (10, 0): 14}


def test_float32_goes_to_the_kernel_predicted_faster_unless_another_one_is_asked_for():
    assert k19.why(4096, 4096, 4096).startswith("kernel 19: ")
    assert k19.why(64, 64, 64).startswith("kernel 14: ")
    assert "in a sum of 8 products" in k19.why(4096, 4096, 8)
    for size in 64, 512, 4096:
        tile = k19.select_config(size, size, size, sm_count()).tile
        assert k19.why(size, size, size).startswith("kernel 19" if tile else "kernel 14")
    for shape in (4096, 1024, 4096), (64, 8192, 4096), (8192, 64, 4096):
        why = k19.why(*shape)
        first, second = map(float, re.findall(r"([\d.]+) µs", why))
        assert first < second and k19.takes(*shape) == why.startswith("kernel 19")
    last = torch_ops.kernel_for(F32)
    a, b = tensor(5, 7), tensor(7, 6)
    try:
        torch_ops.use_for_float32(5)
        assert torch_ops.kernel_for(F32).number == 5
        bounded(matmul(a, b), a, b)
        for number in 0, 15, "14":
            with pytest.raises(ValueError, match="expected None or one of 1, 2, 3"):
                torch_ops.use_for_float32(number)
    finally: torch_ops.use_for_float32()
    assert torch_ops.kernel_for(F32) is last


@CAN_SPLIT
@pytest.mark.parametrize("first,second", (("rows", "columns"), ("columns", "rows"), ("offset", "offset")))
def test_a_product_and_its_gradients(first, second, splits):
    a, b = tensor(7, 5, layout=first, grad=True), tensor(5, 66, layout=second, grad=True)
    c, dc = matmul(a, b), tensor(7, 66)
    da, db = torch.autograd.grad(c, (a, b), dc)
    assert len(splits) == 3 and da.stride() == a.stride() and db.stride() == b.stride()
    for ours, *factors in (c, a, b), (da, dc, b.t()), (db, a.t(), dc): bounded(ours, *factors)


@CAN_SPLIT
def test_a_layer_and_its_gradients(splits):
    args = [tensor(*sizes, grad=True) for sizes in ((2, 3, 7), (5, 7), (5,), (2, 3, 5))]
    exact = doubled(*args)
    y, right = linear(*args[:3], "gelu", args[3]), exact_layer(*exact[:3], "gelu", exact[3])
    close(y, right)
    all_close(torch.autograd.grad(y.sin().sum(), args), torch.autograd.grad(right.sin().sum(), exact))
    assert len(splits) == 3


@CAN_SPLIT
def test_further_derivatives(splits):
    def loss(multiply, a, b): return multiply(a, b).sin().sum()
    def made(multiply, a, b):
        f = torch.func
        slope = f.grad(lambda a, b: loss(multiply, a, b))
        return (f.grad(lambda b: slope(a, b).square().sum())(b),
                f.jvp(lambda b: multiply(a, b), (b,), (b,))[1],
                f.vmap(lambda a: multiply(a, b))(torch.stack([a, 2 * a])))
    a, b = tensor(3, 4), tensor(4, 2)
    all_close(made(matmul, a, b), made(torch.matmul, a.double(), b.double()))
    assert len(splits) > 2


@CAN_SPLIT
def test_what_float16_parts_cannot_carry(splits):
    "Kernel 14 multiplies: results and gradients are float32's."
    a, b, dc = tensor(4, 6), tensor(6, 3), tensor(4, 3)
    a[0, 0], a[1, 1], a[2, 2], a[3, 3] = torch.inf, torch.nan, 3e38, 1e-38
    a.requires_grad_()
    c = matmul(a, b)
    assert_close(c.double(), (a.double() @ b.double()).float().double(), equal_nan=True, rtol=1e-5, atol=1e-5)
    (da,) = torch.autograd.grad(c, a, dc)
    bounded(da, dc, b.t())
    scale = torch.logspace(-30, 30, 6, device=DEVICE)
    for first, second in (tensor(4, 6) * scale, b), (tensor(4, 6) * scale, b / scale[:, None]):
        bounded(matmul(first, second), first, second)
    assert splits


@pytest.mark.parametrize("rows,cols,first", ((64, 64, 0), (130, 67, 0), (5, 132, 0), (9, 8, 1)),
                         ids=["a tile", "odd", "fours", "not aligned"])
def test_a_transposed_view_is_copied(rows, cols, first, monkeypatch):
    monkeypatch.setattr(torch_copy, "SMALL", 0)
    x = torch.randn(rows * cols + first, device=DEVICE)[first:].view(rows, cols).t()
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda x: pytest.fail("PyTorch copies"))
    y = row_major(x)
    assert y.is_contiguous() and torch.equal(y, x)


def test_what_is_left_to_pytorch(monkeypatch):
    "Row-major matrices, which aren't copied; small ones, other types, and views with gaps."
    monkeypatch.setattr(torch_copy, "transpose_kernel", lambda width: pytest.fail("its own kernel"))
    x = tensor(3, 5)
    assert row_major(x) is x and torch.equal(row_major(x.t()), x.t())
    monkeypatch.setattr(torch_copy, "SMALL", 0)
    for view in x[:, ::2], x[:1].expand(4, 5), x.t()[::2], x.bfloat16().t(), x[:0].t():
        y = row_major(view)
        assert y.is_contiguous() and torch.equal(y, view)


def test_a_layers_copies_by_our_kernel(monkeypatch):
    monkeypatch.setattr(torch_copy, "SMALL", 0)
    copied, kernel = [], torch_copy.transpose_kernel
    def note(width):
        copied.append(width)
        return kernel(width)
    monkeypatch.setattr(torch_copy, "transpose_kernel", note)
    x, w, dy = tensor(9, 8, grad=True), tensor(6, 8, grad=True), tensor(9, 6)
    exact = doubled(x, w)
    y, right = linear(x, w), F.linear(*exact)
    close(y, right)
    all_close(torch.autograd.grad(y, (x, w), dy), torch.autograd.grad(right, exact, dy.double()))
    assert copied == [4, 1]  # w; dy, whose rows aren't multiples of four


@needs_gpu
@CAN_SPLIT
def test_in_a_cuda_graph_the_gpu_chooses_the_kernel():
    "In every replay: the numbers may have changed."
    x, w = tensor(1024, 2048), tensor(1024, 2048, grad=True)
    def step():
        y = linear(x, w)
        return y, *torch.autograd.grad(y.sin().sum(), w)
    graph, captured = in_graph(step)
    for scale in 1, torch.logspace(-30, 30, 2048, device=DEVICE), 1:
        x.copy_(tensor(1024, 2048) * scale)
        graph.replay()
        bounded(captured[0], x, w.t())
        assert_close(captured, step(), rtol=0, atol=0, equal_nan=True)
