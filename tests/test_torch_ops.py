"""The operators for PyTorch: right, differentiable, compiled, or refused with the reason. In the simulator on the CPU."""
import copy
import io
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest
import numba_matmul  # first: it chooses between the GPU and the simulator
import numpy as np
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from conftest import ROOT, environment
from numba_matmul import torch_ops
from numba_matmul.gemm.epilogue import fused_epilogue
from numba_matmul.kernels.k17_warp_specialized import KERNEL as WARP_SPECIALIZED
from numba_matmul.torch_ops import ACTIVATIONS, DEVICE, Linear, by_columns, linear, matmul
from torch.testing import assert_close

needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
F32, BF16 = torch.float32, torch.bfloat16
LAYOUTS = dict(rows=lambda x: x.contiguous(), columns=lambda x: x.t().contiguous().t(),
               strided=lambda x: torch.stack([x, x], -1)[..., 0], offset=lambda x: torch.cat([x[:1], x])[1:])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
    torch._dynamo.reset()


def tensor(*shape, dtype=F32, layout="rows", grad=False):
    x = LAYOUTS[layout](torch.randn(*shape, device=DEVICE).to(dtype))
    return x.detach().requires_grad_(grad)


def close(ours, exact, dtype=F32):
    assert ours.dtype == dtype and ours.shape == exact.shape
    assert_close(ours.double(), exact, **(dict(rtol=1e-4, atol=1e-4) if dtype == F32 else dict(rtol=2e-2, atol=2e-2)))


@pytest.fixture
def exactly(monkeypatch):
    "Products by PyTorch, where a test asks which products, and not how."
    monkeypatch.setattr(torch_ops, "_product", lambda a, b: a.detach() @ b.detach())
    monkeypatch.setattr(torch_ops, "fused_layer", lambda x, w, bias=None, activation=None, residual=None: exact_layer(
        x.detach(), w.detach().t(), bias, residual, activation).detach().to(BF16))


@pytest.mark.parametrize("dtype", (F32, BF16), ids=str)
@pytest.mark.parametrize("first,second", list(product(LAYOUTS, repeat=2))[::3] + [("columns", "columns")])
def test_a_product_of_any_layout_and_its_gradients(first, second, dtype):
    a, b = tensor(5, 3, dtype=dtype, layout=first, grad=True), tensor(3, 4, dtype=dtype, layout=second, grad=True)
    exact_a, exact_b = (x.detach().double().requires_grad_() for x in (a, b))
    c, exact = matmul(a, b), exact_a @ exact_b
    close(c, exact, dtype)
    dc = tensor(5, 4, dtype=dtype)
    for ours, right in zip(torch.autograd.grad(c, (a, b), dc), torch.autograd.grad(exact, (exact_a, exact_b), dc.double())):
        close(ours, right, dtype)


def test_a_gradient_lies_as_its_operand_does(exactly):
    for first, second in product(("rows", "columns"), repeat=2):
        a, b = tensor(5, 3, layout=first, grad=True), tensor(3, 4, layout=second, grad=True)
        for x, dx in zip((a, b), torch.autograd.grad(matmul(a, b).sum(), (a, b))): assert dx.stride() == x.stride()


def test_the_smaller_operand_is_copied_and_none_where_both_are_transposed(monkeypatch):
    copies, contiguous = [], torch.Tensor.contiguous
    def count(x):
        if not x.is_contiguous(): copies.append(x.numel())
        return contiguous(x)
    cases = (("rows", "rows", []), ("columns", "columns", []), ("rows", "columns", [6]), ("columns", "rows", [6]))
    for first, second, expected in cases:
        a, b = tensor(2, 3, layout=first), tensor(3, 4, layout=second)
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "contiguous", count)
            copies.clear()
            c = torch_ops._matmul(a, b)
        assert copies == expected and c.t().is_contiguous() == by_columns(a, b)
    row = tensor(1, 3)
    assert by_columns(row, tensor(4, 3).t()), "a row times a transposed matrix needs no copy"


def gradgrad(a, b, multiply):
    c = multiply(a, b)
    da, db = torch.autograd.grad(c.sin().sum(), (a, b), create_graph=True)
    return c, da, db, *torch.autograd.grad((da ** 2).sum() + (db ** 3).sum(), (a, b))


@pytest.mark.parametrize("layout", ("rows", "columns"))
def test_gradients_of_gradients(layout, exactly):
    a, b = tensor(4, 3, grad=True), tensor(3, 5, layout=layout, grad=True)
    exact = [x.detach().double().requires_grad_() for x in (a, b)]
    for ours, right in zip(gradgrad(a, b, matmul), gradgrad(*exact, torch.matmul)): close(ours, right)


def test_gradients_that_are_no_matrices_in_memory():
    a, b = tensor(4, 3, grad=True), tensor(3, 5, grad=True)
    expanded = torch.autograd.grad(matmul(a, b).sum(), (a, b))  # one number, repeated
    ones = torch.ones(4, 5, dtype=torch.float64, device=DEVICE)
    close(expanded[0], ones @ b.detach().double().t())
    close(expanded[1], a.detach().double().t() @ ones)
    turned = torch.randn(5, 4, device=DEVICE)
    for ours, right in zip(torch.autograd.grad(matmul(a, b), (a, b), turned.t()),
                           torch.autograd.grad(a @ b, (a, b), turned.t())): close(ours, right.double())


def test_only_the_gradients_that_are_needed(monkeypatch):
    calls, op = [], torch_ops._OP
    def spy(*args):
        calls.append(args)
        return op(*args)
    spy.redispatch = op.redispatch
    for grads in (True, False), (False, True), (True, True):
        a, b = tensor(4, 3, grad=grads[0]), tensor(3, 5, grad=grads[1])
        c = matmul(a, b).sum()
        with monkeypatch.context() as patch:
            calls.clear()
            patch.setattr(torch_ops, "_OP", spy)
            c.backward()
        assert len(calls) == sum(grads) and [x.grad is not None for x in (a, b)] == list(grads)


@pytest.mark.parametrize("m,n,k", ((0, 4, 3), (4, 0, 3), (4, 3, 0), (0, 0, 0)))
def test_empty_matrices(m, n, k):
    a, b = tensor(m, k, grad=True), tensor(k, n, grad=True)
    c = matmul(a, b)
    assert c.shape == (m, n) and not c.detach().any()
    c.sum().backward()
    assert a.grad.shape == (m, k) and b.grad.shape == (k, n) and not a.grad.any() and not b.grad.any()
    y = linear(tensor(2, m, k), tensor(n, k), tensor(n), "relu")
    assert y.shape == (2, m, n)


@pytest.mark.parametrize("arguments", (
    lambda: (tensor(5, 3, grad=True), tensor(3, 4, grad=True)),
    lambda: (tensor(5, 3, layout="columns"), tensor(3, 4, layout="columns", grad=True)),
    lambda: (tensor(2, 3, dtype=BF16, grad=True), tensor(3, 4, dtype=BF16, layout="columns")),
    lambda: (tensor(5, 3), tensor(3, 4, layout="strided", grad=True), True),
    lambda: (tensor(1, 3, grad=True), tensor(4, 3, grad=True).t()),
    lambda: (tensor(0, 3, grad=True), tensor(3, 4)),
    lambda: (tensor(66, 8, dtype=BF16), tensor(8, 8, dtype=BF16).t())),
    ids=("rows", "columns", "bf16", "as columns", "a row", "empty", "straight"))
def test_opcheck(arguments, exactly): torch.library.opcheck(torch.ops.numba_matmul.matmul.default, arguments(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("activation,residual", ((None, True), ("relu", False), ("gelu", True)))
def test_opcheck_of_a_layer(activation, residual, exactly):
    x, w, bias, added = layer(4, 8, 8, residual=residual)
    args = [None if z is None else z.detach().requires_grad_() for z in (x, w.t(), bias, added)]
    torch.library.opcheck(torch.ops.numba_matmul.layer.default, (*args[:3], activation, args[3]), rtol=2e-2, atol=2e-2)


def network(x, w1, b1, w2, residual):
    return linear(linear(x, w1, b1, "gelu"), w2, residual=residual)


def operands(rows=6):
    return (tensor(2, rows // 2, 3, grad=True), tensor(5, 3, grad=True), tensor(5, grad=True), tensor(4, 5, grad=True),
            tensor(2, rows // 2, 4))


def test_compiled_without_a_graph_break(exactly):
    compiled, args = torch.compile(network, fullgraph=True, backend="aot_eager"), operands()
    y, right = compiled(*args), network(*args)
    assert_close(y, right)
    for ours, exact in zip(torch.autograd.grad(y.sin().sum(), args[:4]), torch.autograd.grad(right.sin().sum(), args[:4])):
        assert_close(ours, exact)


def test_compiled_by_inductor():
    "Two calls and their tangent, and nothing between: on a CPU it needs no C++ compiler for that."
    x, t, w = tensor(2, 3), tensor(2, 3), tensor(4, 3)  # a transposed view is handed on
    compiled = torch.compile(lambda x, t, w: torch.func.jvp(lambda x: matmul(matmul(x, w.t()), w), (x,), (t,)), fullgraph=True)
    for ours, right in zip(compiled(x, t, w), (x @ w.t() @ w, t @ w.t() @ w)): assert_close(ours, right)


def test_compiled_for_any_number_of_rows(exactly):
    compiled = torch.compile(lambda x, w: matmul(x, w.t()).relu(), fullgraph=True, dynamic=True, backend="aot_eager")
    w = tensor(5, 3, grad=True)
    for rows in 2, 4, 7, 9:
        x = tensor(rows, 3)
        assert_close(compiled(x, w), (x @ w.t()).relu(), rtol=1e-4, atol=1e-5)


def test_autocast():
    layer, x = Linear(3, 4, activation="gelu", device=DEVICE), tensor(5, 3, grad=True)
    with torch.autocast(DEVICE, BF16):
        y = layer(x)
        assert matmul(x, layer.weight.t()).dtype == BF16
    assert y.dtype == BF16
    y.float().sum().backward()
    assert x.grad.dtype == layer.weight.grad.dtype == layer.bias.grad.dtype == F32
    exact = torch.nn.functional.gelu(torch.nn.functional.linear(x, layer.weight, layer.bias), approximate="tanh")
    assert_close(y.float(), exact, rtol=2e-2, atol=2e-2)
    assert layer(x).dtype == F32
    wider = tensor(5, 4)  # a residual of float32 isn't made shorter
    with torch.no_grad(), torch.autocast(DEVICE, BF16): z = layer(x, wider)
    assert z.dtype == F32
    assert_close(z - wider, exact, rtol=2e-2, atol=2e-2)
    with torch.autocast(DEVICE, BF16), forward_ad.dual_level():
        y = layer(forward_ad.make_dual(x.detach(), x.detach()))
        assert y.dtype == BF16 and forward_ad.unpack_dual(y).tangent.dtype == BF16


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear_is_what_torch_computes(activation):
    for shape in (3,), (4, 3), (2, 3, 3):
        x, w, bias = tensor(*shape, grad=True), tensor(5, 3, grad=True), tensor(5, grad=True)
        residual = tensor(*shape[:-1], 5, grad=True)
        args = x, w, bias, residual
        exact = [t.detach().double().requires_grad_() for t in args]
        y = linear(x, w, bias, activation, residual)
        right = ACTIVATIONS[activation](torch.nn.functional.linear(*exact[:3])) + exact[3]
        close(y, right)
        assert y.shape == (*shape[:-1], 5)
        for ours, one in zip(torch.autograd.grad(y.sin().sum(), args), torch.autograd.grad(right.sin().sum(), exact)):
            close(ours, one)


def test_the_module_takes_the_weights_of_torchs():
    stock, ours = torch.nn.Linear(3, 4, device=DEVICE), Linear(3, 4, device=DEVICE)
    ours.load_state_dict(stock.state_dict())
    x = tensor(5, 3)
    assert_close(ours(x), stock(x), rtol=1e-4, atol=1e-5)
    assert Linear(3, 4, bias=False, device=DEVICE).bias is None


def layer(m, n, k, bias=True, residual=True):
    "Operands of a layer in bfloat16 that kernel 17 can do, W a transposed view."
    return (tensor(m, k, dtype=BF16), tensor(k, n, dtype=BF16).t(), tensor(n, dtype=BF16) if bias else None,
            tensor(m, n, dtype=BF16) if residual else None)


def exact_layer(x, w, bias, residual, activation):
    y = x.double() @ w.double().t() + (0 if bias is None else bias.double())
    return ACTIVATIONS[activation](y) + (0 if residual is None else residual.double())


@pytest.fixture
def launches(monkeypatch):
    "How often kernel 17 did a whole layer."
    found, launch = [], torch_ops.fused_layer
    def note(*args):
        found.append(args)
        return launch(*args)
    monkeypatch.setattr(torch_ops, "fused_layer", note)
    return found


CAN_FUSE = pytest.mark.skipif(DEVICE == "cuda" and torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU")


@CAN_FUSE
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_layer_in_one_kernel(activation, launches):
    for bias, residual in product((True, False), repeat=2):
        args = layer(5, 24, 16, bias, residual)
        y, exact = linear(*args[:3], activation, args[3]), exact_layer(*args, activation)
        assert y.is_contiguous() and y.dtype == BF16
        assert_close(y.double(), exact, rtol=2**-8, atol=1e-5)  # it is rounded once
    assert len(launches) == 3 + (activation is not None)


@CAN_FUSE
def test_a_layer_of_several_tiles_and_its_rounding(launches):
    x, w, bias, residual = args = layer(70, 136, 72)
    errors = []
    for y in linear(x, w, bias, "gelu", residual), torch_ops._layer_by_steps(x, w.t(), bias, "gelu", residual):
        errors.append((y.double() - exact_layer(*args, "gelu")).norm())
    assert len(launches) == 1 and errors[0] < errors[1]
    turned = w.contiguous()  # as torch.nn.Linear has it
    assert torch.equal(linear(x, turned, bias, "gelu", residual), linear(x, w, bias, "gelu", residual)) and len(launches) == 3


@CAN_FUSE
def test_many_rows_by_a_transposed_matrix_need_no_copy(launches, monkeypatch):
    x, w, dy = tensor(72, 40, dtype=BF16, grad=True), tensor(136, 40, dtype=BF16, grad=True), tensor(72, 136, dtype=BF16)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "contiguous", lambda x: x if x.is_contiguous() else pytest.fail("a copy"))
        y = linear(x, w)
        gradients = torch.autograd.grad(y, (x, w), dy)  # of w: a transposed view times x
    assert y.is_contiguous() and len(launches) == 2
    exact = [z.detach().double().requires_grad_() for z in (x, w)]
    right = exact[0] @ exact[1].t()
    close(y, right, BF16)
    for ours, one in zip(gradients, torch.autograd.grad(right, exact, dy.double())):
        assert ours.is_contiguous()
        assert_close(ours.double(), one, rtol=2e-2, atol=0.1)
    shifted = torch.cat([x.detach().flatten()[:1], x.detach().flatten()])[1:].view(72, 40)  # the TMA does not reach it
    close(matmul(shifted, w.detach().t()), right.detach(), BF16)


@CAN_FUSE
@pytest.mark.parametrize("activation", (None, "relu"))
def test_a_layer_in_one_kernel_has_gradients(activation, launches):
    x, w, bias = tensor(72, 40, dtype=BF16, grad=True), tensor(136, 40, dtype=BF16, grad=True), tensor(136, dtype=BF16, grad=True)
    residual = tensor(72, 136, dtype=BF16, grad=True) if activation is None else None
    given = [z for z in (x, w, bias, residual) if z is not None]
    y, dy = linear(x, w, bias, activation, residual), tensor(72, 136, dtype=BF16)
    assert len(launches) == 1, "one kernel, though a gradient is wanted"
    exact = [z.detach().double().requires_grad_() for z in given]
    right = ACTIVATIONS[activation](torch.nn.functional.linear(*exact[:3])) + (exact[3] if residual is not None else 0)
    close(y, right, BF16)
    for ours, one, z in zip(torch.autograd.grad(y, given, dy), torch.autograd.grad(right, exact, dy.double()), given):
        assert ours.dtype == BF16 and ours.stride() == z.stride()
        assert_close(ours.double(), one, rtol=2e-2, atol=0.2)


@CAN_FUSE
def test_autocast_takes_a_layer_of_float32_to_one_kernel(launches):
    layer, x = Linear(40, 136, activation="relu", device=DEVICE), tensor(72, 40, grad=True)
    with torch.autocast(DEVICE, BF16): y = layer(x)
    assert y.dtype == BF16 and len(launches) == 1
    y.float().sum().backward()
    exact = torch.nn.functional.linear(*(z.detach().double() for z in (x, layer.weight, layer.bias))).relu()
    assert_close(y.double(), exact, rtol=2e-2, atol=2e-2)
    assert x.grad.dtype == layer.weight.grad.dtype == layer.bias.grad.dtype == F32
    assert_close(layer.bias.grad, (exact > 0).sum(0).float(), rtol=2e-2, atol=1)
    with torch.autocast(DEVICE, BF16): assert layer(x, tensor(72, 136)).dtype == F32 and len(launches) == 3  # a wider residual


def test_an_infinite_gradient_of_a_dead_unit_is_nothing():
    x, w, bias, _ = layer(4, 16, 8)
    given = [z.detach().requires_grad_() for z in (x, w, bias)]
    y = linear(*given, "relu")
    right = F.linear(*(z.detach().double() for z in given)).relu()
    dy = torch.where(y.detach() > 0, tensor(4, 16, dtype=BF16), torch.tensor([float("inf"), float("nan")], device=DEVICE).repeat(8).to(BF16))
    exact = [z.detach().double().requires_grad_() for z in given]
    right = torch.autograd.grad(F.linear(*exact).relu(), exact, dy.double().where(y > 0, 0))
    for ours, one in zip(torch.autograd.grad(y, given, dy), right): assert_close(ours.double(), one, rtol=2e-2, atol=0.1)


@CAN_FUSE
def test_what_one_kernel_cannot_do(launches):
    "Each of its conditions, alone."
    for m, n, k in (72, 12, 8), (72, 8, 12), (64, 8, 8), (1, 8, 12):  # n, k, few rows by a W that needs a copy, W's rows
        x, w = tensor(m, k, dtype=BF16), tensor(n, k, dtype=BF16)
        if m == 1: w = tensor(k, n, dtype=BF16).t()
        bias = tensor(n, dtype=BF16)
        assert_close(linear(x, w, bias).double(), x.double() @ w.double().t() + bias, rtol=2e-2, atol=5e-2)
    assert not [args for args in launches if len(args) > 2 and args[2] is not None]  # with a bias


@CAN_FUSE
def test_an_edge_on_one_side_only(launches):
    for m, n in (64, 24), (5, 256):
        x, w, bias, residual = args = layer(m, n, 8)
        assert_close(linear(x, w, bias, "relu", residual).double(), exact_layer(*args, "relu"), rtol=2**-8, atol=1e-5)
    assert len(launches) == 2


@CAN_FUSE
def test_two_transposed_views_need_no_copy_either(launches, monkeypatch):
    x, w = tensor(40, 72, dtype=BF16).t(), tensor(136, 40, dtype=BF16).t()
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda x: x if x.is_contiguous() else pytest.fail("a copy"))
    turned, straight = matmul(x, w), matmul(x, w, columns=False)
    assert turned.t().is_contiguous() and straight.is_contiguous() and len(launches) == 1
    for y in turned, straight: close(y, x.double() @ w.double(), BF16)


@CAN_FUSE
def test_when_a_layer_is_done_by_steps(launches):
    x, w, bias, residual = layer(4, 16, 8)
    right = linear(x, w, bias, "relu", residual)
    by_steps = dict(gradients=(x, w, bias.clone().requires_grad_(), "relu", residual),
                    rows=(x, w.contiguous(), bias, "relu", residual), bare=(x, w))
    for name, args in by_steps.items():
        y = linear(*args)
        assert name == "bare" or torch.allclose(y.float(), right.float(), rtol=2e-2, atol=2e-2), name
    moved = torch.cat([bias[:1], bias])[1:]  # no word begins there
    assert_close(linear(x, w, moved, "relu", residual).float(), right.float(), rtol=2e-2, atol=2e-2)
    assert len(launches) == 1
    with torch.no_grad(): linear(*by_steps["gradients"])
    linear(x.reshape(2, 2, 8), w, bias, "relu", residual.reshape(2, 2, 16))
    assert len(launches) == 3


def test_a_fused_layer_compiled_and_checked(launches):
    x, w, bias, residual = layer(4, 16, 8)
    compiled = torch.compile(lambda *args: linear(*args[:3], "gelu", args[3]), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, w, bias, residual), linear(x, w, bias, "gelu", residual))


def test_special_numbers_go_through_the_activations():
    x = torch.tensor([[float("nan")] + [0.0] * 7, [float("inf")] + [0.0] * 7, [-1e30] + [0.0] * 7, [1e4] + [0.0] * 7])
    x, w = x.to(BF16).to(DEVICE), torch.eye(8, device=DEVICE).to(BF16).t()
    for activation in "relu", "gelu":
        ours = linear(x, w, activation=activation)[:, 0]
        assert_close(ours, ACTIVATIONS[activation](x)[:, 0], equal_nan=True, rtol=2e-2, atol=0)


REFUSED = {
    "a is torch.float64; expected float32 or bfloat16": lambda: matmul(tensor(2, 3).double(), tensor(3, 4)),
    "b is torch.float16; expected float32 or bfloat16": lambda: matmul(tensor(2, 3), tensor(3, 4).half()),
    "a is torch.float32 and b is torch.bfloat16": lambda: matmul(tensor(2, 3), tensor(3, 4, dtype=BF16)),
    "a is 2×3 and b is 4×3": lambda: matmul(tensor(2, 3), tensor(4, 3)),
    "a has shape (2, 2, 3); expected a matrix": lambda: matmul(tensor(2, 2, 3), tensor(3, 4)),
    "b has shape (3,); expected a matrix": lambda: matmul(tensor(2, 3), tensor(3)),
    "a is torch.sparse_coo; expected a dense tensor": lambda: matmul(tensor(2, 3).to_sparse(), tensor(3, 4)),
    "activation is 'sigmoid'; there are": lambda: linear(tensor(2, 3), tensor(4, 3), activation="sigmoid"),
    "x is 2×3 and w is 4×5: the last dimension": lambda: linear(tensor(2, 3), tensor(4, 5)),
    "w has 3 dimensions": lambda: linear(tensor(2, 3), tensor(1, 4, 3)),
    "bias is 4×1; w is 4×3, so expected 4 numbers": lambda: linear(tensor(2, 3), tensor(4, 3), tensor(4, 1)),
    "bias is 3; w is 4×3, so expected 4 numbers": lambda: linear(tensor(2, 3), tensor(4, 3), tensor(3)),
    "residual is 4×2; expected the shape of the result, 2×4": lambda: linear(
        tensor(2, 3), tensor(4, 3), residual=tensor(4, 2)),
    "residual is torch.bfloat16 and x is torch.float32: pass": lambda: linear(
        tensor(2, 3), tensor(4, 3), residual=tensor(2, 4, dtype=BF16)),
    "residual is torch.float64; expected": lambda: linear(tensor(2, 3), tensor(4, 3), residual=tensor(2, 4).double()),
    "bias is torch.complex64; expected": lambda: linear(tensor(2, 3), tensor(4, 3), tensor(4).to(torch.complex64)),
    "x is torch.bfloat16 and w is torch.float32: pass x.to(w.dtype)": lambda: linear(tensor(2, 3, dtype=BF16), tensor(4, 3)),
    "w is torch.float16; expected float32 or bfloat16: pass w.float()": lambda: linear(tensor(2, 3), tensor(4, 3).half()),
    "x is torch.sparse_coo; expected a dense tensor: pass x.to_dense()": lambda: linear(tensor(2, 3).to_sparse(), tensor(4, 3)),
    "x is on cpu and w on meta: pass w.to(x.device)": lambda: linear(torch.ones(2, 3), torch.ones(4, 3, device="meta")),
    "x is on cpu and bias on meta: pass bias.to(x.device)": lambda: linear(
        torch.ones(2, 3), torch.ones(4, 3), torch.ones(4, device="meta")),
    "b is a numpy.ndarray; expected a torch tensor": lambda: matmul(tensor(2, 3), np.ones((3, 4), np.float32)),
    "x is a builtins.list; expected a torch tensor": lambda: linear([[1.0]], tensor(4, 1)),
    "x is a single number and w is 4×3": lambda: linear(tensor(1)[0], tensor(4, 3)),
    "activation is ['relu']; there are": lambda: linear(tensor(2, 3), tensor(4, 3), activation=["relu"]),
    "activation is 'swish'; there are": lambda: Linear(3, 4, activation="swish")}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_wrong_is_refused_with_the_reason(text):
    with pytest.raises((TypeError, ValueError)) as e: REFUSED[text]()
    assert str(e.value).startswith(text)


CALLS = {  # with x (2, 8) and w (8, 8)
    "matmul": (matmul, torch.matmul, F32), "matmul of views": (lambda x, w: matmul(w.t(), x.t()), lambda x, w: w.t() @ x.t(), BF16),
    "linear": (lambda x, w: linear(x, w.t(), w[0], "gelu", x), lambda x, w: exact_layer(x, w.t(), w[0], x, "gelu"), F32),
    "linear without": (lambda x, w: linear(x, w), lambda x, w: F.linear(x, w), BF16),
    "fused bias": (lambda x, w: linear(x, w.t(), w[0]), lambda x, w: x @ w + w[0], BF16),
    "fused relu": (lambda x, w: linear(x, w.t(), w[0], "relu"), lambda x, w: (x @ w + w[0]).relu(), BF16),
    "fused gelu": (lambda x, w: linear(x, w.t(), w[0], "gelu", x), lambda x, w: exact_layer(x, w.t(), w[0], x, "gelu"), BF16)}


def transforms(call, which=None):
    "A function with all that `torch.func` makes of a call, by name."
    def everything(x, w, tx, tw):
        f, xs, ws = torch.func, torch.stack([x, tx]), torch.stack([w, tw])
        def loss(x, w): return call(x, w).sin().sum()
        found = {
            "jvp": lambda: f.jvp(call, (x, w), (tx, tw)), "jvp of x": lambda: f.jvp(lambda x: call(x, w), (x,), (tx,)),
            "grad": lambda: f.grad(loss, (0, 1))(x, w), "vjp": lambda: f.vjp(call, x, w)[1](call(x, w).cos()),
            "jacfwd": lambda: f.jacfwd(call, (0, 1))(x, w), "jacrev": lambda: f.jacrev(call)(x, w),
            "hessian": lambda: f.hessian(loss)(x, w), "vmap of x": lambda: f.vmap(call, (0, None))(xs, w),
            "vmap of w": lambda: f.vmap(call, (None, 0))(x, ws), "vmap": lambda: f.vmap(call, (1, 2), 1)(xs.movedim(0, 1), ws.movedim(0, 2)),
            "vmap of grad": lambda: f.vmap(f.grad(loss, (0, 1)), (0, None))(xs, w),
            "grad of vmap": lambda: f.grad(lambda w: f.vmap(call, (0, None))(xs, w).sin().sum())(w),
            "grad of grad": lambda: f.grad(lambda x, w: f.grad(loss)(x, w).square().sum(), (0, 1))(x, w),
            "jvp of grad": lambda: f.jvp(f.grad(loss, (0, 1)), (x, w), (tx, tw)),
            "jvp of jvp": lambda: f.jvp(lambda x: f.jvp(lambda x: call(x, w).sin(), (x,), (tx,))[1], (x,), (tx,))}
        return {name: make() for name, make in found.items() if which is None or name in which}
    return everything


def inside_dual_level(call):
    "A function that makes the tangent of a call."
    def made(x, w, tx, tw):
        with forward_ad.dual_level(): return forward_ad.unpack_dual(call(*map(forward_ad.make_dual, (x, w), (tx, tw)))).tangent
    return made


def same(ours, exact, dtype):
    for (name, one), right in zip(torch.utils._pytree.tree_flatten_with_path(ours)[0], torch.utils._pytree.tree_leaves(exact), strict=True):
        assert one.dtype == dtype and one.shape == right.shape, name
        error = (one.double() - right).norm() / right.norm()
        assert error < (1e-5 if dtype == F32 else 6e-2), (name, error)


@pytest.mark.parametrize("name", CALLS)
def test_derivatives_of_every_kind(name, exactly):
    ours, right, dtype = CALLS[name]
    args = [tensor(*shape, dtype=dtype) for shape in ((2, 8), (8, 8)) * 2]
    exact = [z.double() for z in args]
    for make in transforms, inside_dual_level: same(make(ours)(*args), make(right)(*exact), dtype)
    with torch.no_grad(): same(inside_dual_level(ours)(*args), inside_dual_level(right)(*exact), dtype)
    for z in (*args, *exact): z.requires_grad_()
    same(inside_dual_level(ours)(*args), inside_dual_level(right)(*exact), dtype)
    (dx,), (exact_dx,) = (torch.autograd.grad(f(*z[:2]).sin().sum(), z[:1], create_graph=True) for f, z in ((ours, args), (right, exact)))
    same(torch.autograd.grad(dx.square().sum(), args[:2]), torch.autograd.grad(exact_dx.square().sum(), exact[:2]), dtype)


def test_derivatives_compiled(exactly):
    "And silence is no answer: inside `dual_level` a compiled function would lose the tangent."
    which = "jvp", "hessian", "vmap of grad", "grad of grad"  # which need all others
    chosen = {name: CALLS[name] for name in ("matmul", "fused relu", "fused gelu")}
    args = {dtype: [tensor(*shape, dtype=dtype) for shape in ((2, 8), (8, 8)) * 2] for dtype in (F32, BF16)}
    def everything(args): return {name: transforms(ours, which)(*args[dtype]) for name, (ours, _, dtype) in chosen.items()}
    found = torch.compile(everything, fullgraph=True, backend="aot_eager")(args)
    for name, (ours, right, dtype) in chosen.items():
        same(found[name], transforms(right, which)(*(z.double() for z in args[dtype])), dtype)
        if name == "fused gelu": continue
        compiled, (x, w, *tangents) = torch.compile(ours, backend="eager"), args[dtype]
        compiled(x, w)
        with forward_ad.dual_level(), pytest.raises(RuntimeError, match="torch.compile drops the forward-mode tangents"):
            compiled(forward_ad.make_dual(x, tangents[0]), w)
        tangent = torch.compile(inside_dual_level(ours), fullgraph=True, backend="eager")(x, w, *tangents)
        same(tangent, inside_dual_level(right)(*(z.double() for z in args[dtype])), dtype)


def test_gradcheck(exactly):
    "PyTorch's own, in all modes, by differences of float32."
    a, b = (tensor(*shape).double().requires_grad_() for shape in ((2, 3), (3, 2)))
    options = dict(eps=1e-2, atol=1e-2, rtol=1e-2)
    for call in matmul, lambda a, b: linear(a, b.t(), b[0], "gelu", a[:, :2]):
        def double(a, b): return call(a.float(), b.float()).double()
        assert torch.autograd.gradcheck(double, (a, b), **options, check_forward_ad=True, check_batched_grad=True,
                                        check_batched_forward_grad=True, check_undefined_grad=True)
        assert torch.autograd.gradgradcheck(double, (a, b), **options, check_fwd_over_rev=True)


def test_no_product_with_a_missing_tangent(exactly):
    a, b = tensor(2, 3), tensor(3, 4)
    a[0, 0] = float("inf")
    tangent = torch.func.jvp(lambda a: matmul(a, b), (a,), (torch.ones_like(a),))[1]
    assert_close(tangent, torch.ones_like(a) @ b)  # 0 · inf would be NaN


class Everything(torch.nn.Module):
    "Products of each kind for export, of any batch."
    def __init__(self):
        super().__init__()
        self.first, self.second = Linear(8, 16, activation="gelu", device=DEVICE), Linear(8, 16, activation="relu", device=DEVICE, dtype=BF16)

    def forward(self, x):
        short = x.to(BF16)
        return (self.first(x), self.second(short), matmul(x.flatten(0, -2), self.first.weight.t()), linear(short, self.second.weight),
                matmul(self.first.weight, x.flatten(0, -2).t()), linear(short, self.second.weight.t().contiguous().t(), None, "gelu"))


@pytest.mark.parametrize("strict", (False, True))
def test_exported_for_any_batch(strict, exactly):
    "No limit of a kernel's choice gets into the program: neither 64 rows nor 2**19 results."
    module = Everything().eval()
    for shape in (8, 8), (4, 3, 8):
        program = torch.export.export(module, (tensor(*shape),), dynamic_shapes=({0: torch.export.Dim.AUTO},), strict=strict)
        (found,) = program.range_constraints.values()
        assert found.lower <= 2 and found.upper >= 2**40, found
        if strict: return
        for batch in 2, 64, 65:
            x = tensor(batch, *shape[1:])
            for ours, right in zip(program.module()(x), module(x), strict=True):
                assert ours.shape == right.shape
                assert_close(ours, right)


def test_exported_as_it_is(exactly):
    x = tensor(3, 8)
    module = Everything().eval()
    for ours, right in zip(torch.export.export(module, (x,)).module()(x), module(x), strict=True): assert_close(ours, right)


def test_copies_of_the_module(exactly):
    x, net = tensor(5, 8), Linear(8, 16, activation="gelu", device=DEVICE)
    right = ACTIVATIONS["gelu"](F.linear(x, net.weight, net.bias))
    stored = io.BytesIO()
    torch.save(net.state_dict(), stored)
    stored.seek(0)
    loaded = Linear(8, 16, activation="gelu", device=DEVICE)
    loaded.load_state_dict(torch.load(stored))
    for one in net, copy.deepcopy(net), pickle.loads(pickle.dumps(net)), loaded:
        assert_close(one(x), right)
        assert "activation=gelu" in repr(one)
    assert_close(torch.func.functional_call(net, dict(net.state_dict()), (x,)), right)


def test_without_autograd_and_of_any_layout(exactly):
    "inference_mode, three dimensions, views, no rows: each product and layer."
    w, bias = tensor(16, 8), tensor(16)
    for dtype, rows in product((F32, BF16), (tensor(2, 3, 8), tensor(3, 8, 2).movedim(2, 0), tensor(4, 16)[:, ::2], tensor(0, 8),
                                             tensor(2, 0, 8), tensor(8), tensor(1, 8).expand(5, 8), tensor(6, 8).flip(0))):
        args = x, v, b = [z.to(dtype) for z in (rows, w, bias)]
        exact = [z.double() for z in args]
        with torch.inference_mode():
            for layout in v, v.t().contiguous().t():
                for activation in ACTIVATIONS:
                    close(linear(x, layout, b, activation), ACTIVATIONS[activation](F.linear(*exact)), dtype)
                close(linear(x, layout), F.linear(*exact[:2]), dtype)
            if x.dim() == 2:
                for columns in None, False, True:
                    c = matmul(x, v.t(), columns)
                    close(c, exact[0] @ exact[1].t(), dtype)
                    assert columns is None or (c.t() if columns else c).is_contiguous()


@pytest.mark.parametrize("threads", (4, 8))
def test_from_several_threads(threads):
    a, b, (x, w, bias, _) = tensor(4, 8, grad=True), tensor(8, 3), layer(4, 8, 8)
    def work(number):
        if number % 2: return linear(x, w, bias, "relu")
        c = matmul(a, b)
        return c.detach(), torch.autograd.grad(c.sum(), a)[0]
    with ThreadPoolExecutor(threads) as pool: found = list(pool.map(work, range(16)))
    for number, one in enumerate(found):
        if number % 2: assert_close(one.double(), exact_layer(x, w, bias, None, "relu"), rtol=2e-2, atol=2e-2)
        else:
            close(one[0], (a @ b).detach().double())
            close(one[1], (torch.ones(4, 3, device=DEVICE) @ b.t()).double())


def test_vmap_is_one_product_where_one_factor_has_many_matrices(monkeypatch):
    shapes = []
    def count(a, b):
        shapes.append((*a.shape, b.shape[1]))
        return a @ b
    monkeypatch.setattr(torch_ops, "_product", count)
    a, b = tensor(5, 2, 3), tensor(3, 4)
    assert_close(torch.vmap(matmul, (0, None))(a, b), a @ b)
    assert_close(torch.vmap(matmul, (None, 0))(b.t(), a.mT), b.t() @ a.mT)
    assert [sorted(sizes) for sizes in shapes] == [[3, 4, 10]] * 2
    assert torch.vmap(matmul)(a[:0], a.mT[:0]).shape == (0, 2, 2)


def test_what_the_messages_advise(exactly):
    a, b, many = tensor(2, 5, 3), tensor(2, 3, 4), tensor(2, 2, 3, 4)
    for first, second in (a, b), (a, b[0]), (a[0], b), (many.mT, many), (many.mT, b[0]):
        with pytest.raises(ValueError, match="expected a matrix, two dimensions: call ") as e: matmul(first, second)
        first_advice = str(e.value).split(": call ")[1].split(", or ")
        for advice in first_advice:
            assert_close(eval(advice, dict(torch=torch, matmul=matmul, linear=linear, a=first, b=second)), first @ second)


def test_the_help_tells_shapes_and_types():
    for call, words in (matmul, "(m, k) (k, n) (m, n)"), (linear, "(…, k) (n, k) (n,) (…, n)"):
        for word in (*words.split(") "), "float32", "bfloat16"): assert word in call.__doc__, word
    assert all(name in matmul.__doc__ for name in ("TypeError", "ValueError"))


def test_other_devices():
    a, b = torch.empty(2, 3, device="meta"), torch.empty(4, 3, device="meta").t()
    assert matmul(a, b).shape == (2, 4)  # it knows shapes
    with pytest.raises(ValueError, match="a is on .* and b on meta: pass b.to"): matmul(tensor(2, 3), b)
    for dtype, shape in product((F32, BF16), ((8,), (2, 8), (2, 0, 8))):
        for activation in ACTIVATIONS:
            x, layer = torch.empty(*shape, device="meta", dtype=dtype), Linear(8, 16, activation=activation, device="meta", dtype=dtype)
            y = layer(x, torch.empty(*shape[:-1], 16, device="meta", dtype=dtype))
            assert (y.shape, y.dtype, y.device.type) == ((*shape[:-1], 16), dtype, "meta")
            y.sum().backward()
            assert layer.weight.grad.shape == (16, 8)


def test_importable_where_numba_was_told_to_simulate():
    code = "from numba_matmul.torch_ops import matmul\nimport torch\nassert matmul(torch.ones(2, 3), torch.ones(3, 2))[1, 1] == 3"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment() | {"NUMBA_ENABLE_CUDASIM": "1"},
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs_gpu
def test_tensors_of_the_cpu_are_refused():
    with pytest.raises(TypeError, match="a and b are on cpu; expected tensors on a GPU"):
        matmul(torch.ones(2, 3), torch.ones(3, 4))


@needs_gpu
@pytest.mark.parametrize("dtype", (F32, BF16), ids=str)
def test_on_another_stream(dtype):
    stream, (m, n, k) = torch.cuda.Stream(), (512, 1024, 256)
    for _ in range(5):
        with torch.cuda.stream(stream):
            a, b = tensor(m, k, dtype=dtype, grad=True), tensor(n, k, dtype=dtype, grad=True)
            c = matmul(a, b.t())
            c.sum().backward()
        torch.cuda.current_stream().wait_stream(stream)
        assert_close(c, a @ b.t(), rtol=2e-2, atol=2e-2)
        assert_close(a.grad, torch.ones_like(c) @ b, rtol=2e-2, atol=0.3)


@needs_gpu
@pytest.mark.parametrize("dtype", (F32, BF16), ids=str)
def test_in_a_cuda_graph(dtype):
    x, w, bias = tensor(256, 512, dtype=dtype), tensor(1024, 512, dtype=dtype, grad=True), tensor(1024, dtype=dtype)
    def step():
        y = linear(x, w, bias, "gelu")
        return y, *torch.autograd.grad(y.float().sum(), w)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3): step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph): captured = step()
    for _ in range(3):
        x.copy_(tensor(256, 512, dtype=dtype))
        graph.replay()
        for ours, right in zip(captured, step()): assert_close(ours, right)


@pytest.mark.parametrize("option", ["read_c", "scaled"])
def test_the_epilogue_of_a_layer_refuses_alpha_and_beta(option):
    options = dict(predicated=False, read_c=False, scaled=False, bias=True, activation="relu", residual=False)
    with pytest.raises(ValueError, match="a layer has no alpha and no beta"):
        fused_epilogue(WARP_SPECIALIZED.tiles.tile, **options | {option: True})
