"""The operators for PyTorch: right, differentiable, compiled, or refused with the reason. In the simulator on the CPU."""
import subprocess
import sys
from itertools import product

import pytest
import numba_matmul  # first: it chooses between the GPU and the simulator
import numpy as np
import torch
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


def test_a_gradient_lies_as_its_operand_does():
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
def test_gradients_of_gradients(layout):
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
def test_opcheck(arguments): torch.library.opcheck(torch.ops.numba_matmul.matmul.default, arguments(), rtol=2e-2, atol=2e-2)


def network(x, w1, b1, w2, residual):
    return linear(linear(x, w1, b1, "gelu"), w2, residual=residual)


def operands(rows=6):
    return (tensor(2, rows // 2, 3, grad=True), tensor(5, 3, grad=True), tensor(5, grad=True), tensor(4, 5, grad=True),
            tensor(2, rows // 2, 4))


def test_compiled_without_a_graph_break():
    compiled, args = torch.compile(network, fullgraph=True, backend="aot_eager"), operands()
    y, right = compiled(*args), network(*args)
    assert_close(y, right)
    for ours, exact in zip(torch.autograd.grad(y.sin().sum(), args[:4]), torch.autograd.grad(right.sin().sum(), args[:4])):
        assert_close(ours, exact)


def test_compiled_by_inductor():
    "Two calls and nothing between: on a CPU it needs no C++ compiler for that."
    x, w = tensor(2, 3), tensor(4, 3)  # a transposed view is handed on
    assert_close(torch.compile(lambda x, w: matmul(matmul(x, w.t()), w), fullgraph=True)(x, w), x @ w.t() @ w)


def test_compiled_for_any_number_of_rows():
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
    found, launch = [], torch_ops._launch_17
    def note(*args):
        found.append(args)
        return launch(*args)
    monkeypatch.setattr(torch_ops, "_launch_17", note)
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
    torch.library.opcheck(torch.ops.numba_matmul.layer.default, (x, w.t(), bias, activation, residual), rtol=2e-2, atol=2e-2)


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


def test_a_layer_whose_gradient_nobody_can_tell_is_refused():
    for arguments in ("gelu", None), ("relu", tensor(4, 16, dtype=BF16)):
        with pytest.raises(NotImplementedError, match="call linear"):
            torch.ops.numba_matmul.layer(tensor(4, 8, dtype=BF16, grad=True), tensor(8, 16, dtype=BF16), None, *arguments)


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
    torch.library.opcheck(torch.ops.numba_matmul.layer.default, (x, w.t(), bias, "relu", residual), rtol=2e-2, atol=2e-2,
                          test_utils=("test_schema", "test_faketensor"))


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
    "a is torch.sparse_coo; expected a dense matrix": lambda: matmul(tensor(2, 3).to_sparse(), tensor(3, 4)),
    "activation is 'sigmoid'; there are": lambda: linear(tensor(2, 3), tensor(4, 3), activation="sigmoid"),
    "x is 2×3 and w is 4×5: the last dimension": lambda: linear(tensor(2, 3), tensor(4, 5)),
    "w has 3 dimensions": lambda: linear(tensor(2, 3), tensor(1, 4, 3)),
    "bias is 3; w is 4×3, so expected 4 numbers": lambda: linear(tensor(2, 3), tensor(4, 3), tensor(3)),
    "residual is 4×2; expected the shape of the result, 2×4": lambda: linear(
        tensor(2, 3), tensor(4, 3), residual=tensor(4, 2)),
    "residual is torch.bfloat16 and x is torch.float32: pass": lambda: linear(
        tensor(2, 3), tensor(4, 3), residual=tensor(2, 4, dtype=BF16)),
    "residual is torch.float64; expected": lambda: linear(tensor(2, 3), tensor(4, 3), residual=tensor(2, 4).double()),
    "bias is torch.complex64; expected": lambda: linear(tensor(2, 3), tensor(4, 3), tensor(4).to(torch.complex64)),
    "b is a numpy.ndarray; expected a torch tensor": lambda: matmul(tensor(2, 3), np.ones((3, 4), np.float32)),
    "x is a builtins.list; expected a torch tensor": lambda: linear([[1.0]], tensor(4, 1)),
    "x is a single number and w is 4×3": lambda: linear(tensor(1)[0], tensor(4, 3)),
    "activation is ['relu']; there are": lambda: linear(tensor(2, 3), tensor(4, 3), activation=["relu"]),
    "activation is 'swish'; there are": lambda: Linear(3, 4, activation="swish")}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_wrong_is_refused_with_the_reason(text):
    with pytest.raises((TypeError, ValueError)) as e: REFUSED[text]()
    assert str(e.value).startswith(text)


@pytest.mark.parametrize("call", (matmul, lambda a, b: matmul(b, a), lambda a, b: linear(a, b.t()),
                                  lambda a, b: linear(a, b, a[0], "gelu"),
                                  lambda a, b: linear(b.repeat(9, 1), b, a[0])))
def test_forward_mode_is_refused(call):
    "PyTorch itself would drop the tangent without a word."
    a, b = tensor(8, 8, dtype=BF16), tensor(8, 8, dtype=BF16)
    with pytest.raises(NotImplementedError, match="forward mode"): torch.func.jvp(lambda a: call(a, b), (a,), (a,))


def test_other_devices():
    a, b = torch.empty(2, 3, device="meta"), torch.empty(4, 3, device="meta").t()
    assert matmul(a, b).shape == (2, 4)  # it knows shapes
    with pytest.raises(ValueError, match="a is on .* and b on meta: pass b.to"): matmul(tensor(2, 3), b)


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
