"The operators for PyTorch: correct for every layout, type and thread, or refused with the reason."
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT, environment
from torch.testing import assert_close
from torch_cases import BF16, F32, close, exact_layer, in_graph, layer, needs_gpu, of_each_dtype, tensor

from numba_matmul import torch_ops
from numba_matmul.torch_ops import ACTIVATIONS, DEVICE, Linear, by_columns, linear, matmul

pytest_plugins = ["torch_fixtures"]
pytestmark = pytest.mark.usefixtures("seeded")


def test_the_smaller_operand_is_copied_and_none_where_both_are_transposed(monkeypatch):
    copies, contiguous = [], torch.Tensor.contiguous
    def count(x):
        if not x.is_contiguous(): copies.append(x.numel())
        return contiguous(x)
    for first, second, expected in (("rows", "rows", []), ("columns", "columns", []),
                                    ("rows", "columns", [6]),
                                    ("columns", "rows", [6])):
        a, b = tensor(2, 3, layout=first), tensor(3, 4, layout=second)
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "contiguous", count)
            copies.clear()
            c = torch_ops._matmul(a, b)
        assert copies == expected and c.t().is_contiguous() == by_columns(a, b)
    assert by_columns(tensor(1, 3), tensor(4, 3).t()), "a row times a transposed matrix doesn't need a copy"


@pytest.mark.parametrize("m,n,k", ((0, 4, 3), (4, 0, 3), (4, 3, 0), (0, 0, 0)),
                         ids=["no rows", "no columns", "no products", "nothing"])
def test_empty_matrices(m, n, k):
    a, b = tensor(m, k, grad=True), tensor(k, n, grad=True)
    c = matmul(a, b)
    assert c.shape == (m, n) and not c.detach().any()
    c.sum().backward()
    assert a.grad.shape == (m, k) and b.grad.shape == (k, n) and not a.grad.any() and not b.grad.any()
    assert linear(tensor(2, m, k), tensor(n, k), tensor(n), "relu").shape == (2, m, n)


REFUSED = {
    "a is torch.float64; expected float32 or bfloat16": lambda: matmul(tensor(2, 3).double(), tensor(3, 4)),
    "b is torch.float16; expected float32 or bfloat16": lambda: matmul(tensor(2, 3), tensor(3, 4).half()),
    "a is torch.float32 and b is torch.bfloat16": lambda: matmul(tensor(2, 3), tensor(3, 4, dtype=BF16)),
    "a is 2×3 and b is 4×3": lambda: matmul(tensor(2, 3), tensor(4, 3)),
    "a has shape (2, 2, 3); expected a matrix": lambda: matmul(tensor(2, 2, 3), tensor(3, 4)),
    "b has shape (3,); expected a matrix": lambda: matmul(tensor(2, 3), tensor(3)),
    "a is torch.sparse_coo; expected a dense tensor": lambda: matmul(tensor(2, 3).to_sparse(), tensor(3, 4)),
    "activation is 'sigmoid'; expected": lambda: linear(tensor(2, 3), tensor(4, 3), activation="sigmoid"),
    "x is 2×3 and w is 4×5: the last dimension": lambda: linear(tensor(2, 3), tensor(4, 5)),
    "w has 3 dimensions": lambda: linear(tensor(2, 3), tensor(1, 4, 3)),
    "bias is 4×1; w is 4×3, so expected 4 numbers": lambda: linear(tensor(2, 3), tensor(4, 3), tensor(4, 1)),
    "bias is 3; w is 4×3, so expected 4 numbers": lambda: linear(tensor(2, 3), tensor(4, 3), tensor(3)),
    "residual is 4×2; expected the shape of the result, 2×4":
        lambda: linear(tensor(2, 3), tensor(4, 3), residual=tensor(4, 2)),
    "residual is torch.bfloat16 and x is torch.float32: pass":
        lambda: linear(tensor(2, 3), tensor(4, 3), residual=tensor(2, 4, dtype=BF16)),
    "residual is torch.float64; expected":
        lambda: linear(tensor(2, 3), tensor(4, 3), residual=tensor(2, 4).double()),
    "bias is torch.complex64; expected":
        lambda: linear(tensor(2, 3), tensor(4, 3), tensor(4).to(torch.complex64)),
    "x is torch.bfloat16 and w is torch.float32: pass x.to(w.dtype)":
        lambda: linear(tensor(2, 3, dtype=BF16), tensor(4, 3)),
    "w is torch.float16; expected float32 or bfloat16: pass w.float()":
        lambda: linear(tensor(2, 3), tensor(4, 3).half()),
    "x is torch.sparse_coo; expected a dense tensor: pass x.to_dense()":
        lambda: linear(tensor(2, 3).to_sparse(), tensor(4, 3)),
    "x is on cpu and w on meta: pass w.to(x.device)":
        lambda: linear(torch.ones(2, 3), torch.ones(4, 3, device="meta")),
    "x is on cpu and bias on meta: pass bias.to(x.device)":
        lambda: linear(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4, device="meta")),
    "b is a numpy.ndarray; expected a torch tensor":
        lambda: matmul(tensor(2, 3), np.ones((3, 4), np.float32)),
    "x is a list; expected a torch tensor": lambda: linear([[1.0]], tensor(4, 1)),
    "x is a single number and w is 4×3": lambda: linear(tensor(1)[0], tensor(4, 3)),
    "activation is ['relu']; expected": lambda: linear(tensor(2, 3), tensor(4, 3), activation=["relu"]),
    "activation is 'swish'; expected": lambda: Linear(3, 4, activation="swish"),
    "bias is 'relu'; expected True or False": lambda: Linear(3, 4, "relu"),
    "columns is 'rows'; expected True, False or None": lambda: matmul(tensor(2, 3), tensor(3, 4), "rows"),
    "columns is tensor([": lambda: matmul(tensor(2, 3), tensor(3, 4), tensor(2, 4)),
    "dtype is torch.float64; expected torch.float32": lambda: torch_ops.kernel_for(torch.float64),
    "number is True; expected None or one of": lambda: torch_ops.use_for_float32(True)}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_wrong_is_refused_with_the_reason(text):
    with pytest.raises((TypeError, ValueError)) as e: REFUSED[text]()
    assert str(e.value).startswith(text)


def test_without_autograd_and_of_any_layout(exactly):
    "inference_mode, three dimensions, views, no rows: each product and layer."
    w, bias = tensor(16, 8), tensor(16)
    many = (tensor(2, 3, 8), tensor(3, 8, 2).movedim(2, 0), tensor(4, 16)[:, ::2], tensor(0, 8),
            tensor(2, 0, 8), tensor(8), tensor(1, 8).expand(5, 8), tensor(6, 8).flip(0))
    for dtype, rows in product((F32, BF16), many):
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


@pytest.mark.parametrize("threads", (4, 8), ids=["four", "eight"])
def test_from_several_threads(threads):
    a, b, args = tensor(4, 8, grad=True), tensor(8, 3), layer(4, 8, 8, "relu", residual=False)
    def work(_):
        c = matmul(a, b)
        return linear(*args), c.detach(), torch.autograd.grad(c.sum(), a)[0]
    with ThreadPoolExecutor(threads) as pool:
        for y, c, da in pool.map(work, range(8)):
            close(y, exact_layer(*args), BF16)
            close(c, (a @ b).detach().double())
            close(da, (torch.ones(4, 3, device=DEVICE) @ b.t()).double())


def test_what_the_messages_advise(exactly):
    a, b, many = tensor(2, 5, 3), tensor(2, 3, 4), tensor(2, 2, 3, 4)
    for first, second in (a, b), (a, b[0]), (a[0], b), (many.mT, many), (many.mT, b[0]):
        with pytest.raises(ValueError, match="expected a matrix, two dimensions: call ") as e:
            matmul(first, second)
        for advice in str(e.value).split(": call ")[1].split(", or "):
            scope = dict(torch=torch, matmul=matmul, linear=linear, a=first, b=second)
            assert_close(eval(advice, scope), first @ second)


def test_the_help_tells_shapes_and_types():
    for call, words in (matmul, "(m, k) (k, n) (m, n)"), (linear, "(…, k) (n, k) (n,) (…, n)"):
        for word in (*words.split(") "), "float32", "bfloat16"): assert word in call.__doc__, word
    assert all(name in matmul.__doc__ for name in ("TypeError", "ValueError"))


def test_other_devices():
    a, b = torch.empty(2, 3, device="meta"), torch.empty(4, 3, device="meta").t()
    assert matmul(a, b).shape == (2, 4)  # it knows shapes
    with pytest.raises(ValueError, match="a is on .* and b on meta: pass b.to"): matmul(tensor(2, 3), b)
    for dtype, shape, activation in product((F32, BF16), ((8,), (2, 8), (2, 0, 8)), ACTIVATIONS):
        place = dict(device="meta", dtype=dtype)
        layer = Linear(8, 16, activation=activation, **place)
        y = layer(torch.empty(*shape, **place), torch.empty(*shape[:-1], 16, **place))
        assert (y.shape, y.dtype, y.device.type) == ((*shape[:-1], 16), dtype, "meta")
        y.sum().backward()
        assert layer.weight.grad.shape == (16, 8)


def test_importable_where_numba_was_told_to_simulate():
    code = ("from numba_matmul.torch_ops import matmul\nimport torch\n"
            "assert matmul(torch.ones(2, 3), torch.ones(3, 2))[1, 1] == 3")
    env = environment() | {"NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs_gpu
def test_tensors_of_the_cpu_are_refused():
    with pytest.raises(TypeError, match="a and b are on cpu; expected tensors on a GPU"):
        matmul(torch.ones(2, 3), torch.ones(3, 4))


@needs_gpu
@of_each_dtype
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
@of_each_dtype
def test_in_a_cuda_graph(dtype):
    x, bias = tensor(256, 512, dtype=dtype), tensor(1024, dtype=dtype)
    w = tensor(1024, 512, dtype=dtype, grad=True)
    def step():
        y = linear(x, w, bias, "gelu")
        return y, *torch.autograd.grad(y.float().sum(), w)
    graph, captured = in_graph(step)
    for _ in range(3):
        x.copy_(tensor(256, 512, dtype=dtype))
        graph.replay()
        assert_close(captured, step())
