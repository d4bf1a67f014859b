"Fixtures for the tests of the operators for PyTorch."
import pytest
import torch
from torch_cases import BF16, exact_layer

from numba_matmul import torch_ops


@pytest.fixture
def seeded():
    torch.manual_seed(0)
    torch._dynamo.reset()


@pytest.fixture
def exactly(monkeypatch):
    "Products by PyTorch, for tests about which products are computed, not how."
    monkeypatch.setattr(torch_ops, "_product", lambda a, b: a.detach() @ b.detach())
    def in_float64(x, w, bias=None, activation=None, residual=None):
        return exact_layer(x.detach(), w.detach().t(), bias, activation, residual).detach().to(BF16)
    monkeypatch.setattr(torch_ops, "fused_layer", in_float64)


@pytest.fixture
def launches(monkeypatch):
    "How often kernel 17 computed a whole layer."
    found, launch = [], torch_ops.fused_layer
    def note(*args):
        found.append(args)
        return launch(*args)
    monkeypatch.setattr(torch_ops, "fused_layer", note)
    return found
