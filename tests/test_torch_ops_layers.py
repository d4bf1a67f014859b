"Layers for PyTorch: product, bias, activation and residual, in one kernel if possible."
import copy
import io
import pickle
from itertools import product

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode
from torch_cases import BF16, F32, all_close, close, doubled, exact_layer, gradients_close, layer, tensor

from numba_matmul import torch_ops
from numba_matmul.gemm.epilogue import fused_epilogue
from numba_matmul.kernels.k17_warp_specialized import KERNEL as WARP_SPECIALIZED
from numba_matmul.torch_ops import ACTIVATIONS, DEVICE, Linear, linear, matmul

pytest_plugins = ["torch_fixtures"]
pytestmark = pytest.mark.usefixtures("seeded")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear_is_what_torch_computes(activation):
    for shape in (3,), (4, 3), (2, 3, 3):
        args = [tensor(*sizes, grad=True) for sizes in (shape, (5, 3), (5,), (*shape[:-1], 5))]
        exact = doubled(*args)
        y, right = linear(*args[:3], activation, args[3]), exact_layer(*exact[:3], activation, exact[3])
        close(y, right)
        all_close(torch.autograd.grad(y.sin().sum(), args), torch.autograd.grad(right.sin().sum(), exact))


def test_the_module_takes_the_weights_of_torchs():
    stock, ours = torch.nn.Linear(3, 4, device=DEVICE), Linear(3, 4, device=DEVICE)
    ours.load_state_dict(stock.state_dict())
    x = tensor(5, 3)
    assert_close(ours(x), stock(x), rtol=1e-4, atol=1e-5)
    assert Linear(3, 4, bias=False, device=DEVICE).bias is None


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


CAN_FUSE = pytest.mark.skipif(DEVICE == "cuda" and torch.cuda.get_device_capability() != (9, 0),
                              reason="needs a Hopper GPU")


def no_copy(patch):
    patch.setattr(torch.Tensor, "contiguous", lambda x: x if x.is_contiguous() else pytest.fail("a copy"))


def close_once_rounded(ours, args): assert_close(ours.double(), exact_layer(*args), rtol=2**-8, atol=1e-5)


@CAN_FUSE
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_layer_in_one_kernel(activation, launches):
    for bias, residual in product((True, False), repeat=2):
        args = layer(5, 24, 16, activation, bias, residual)
        y = linear(*args)
        assert y.is_contiguous() and y.dtype == BF16
        close_once_rounded(y, args)
    assert len(launches) == 3 + (activation is not None)


@CAN_FUSE
def test_a_layer_of_several_tiles_and_its_rounding(launches):
    x, w, *others = args = layer(70, 136, 72, "gelu")
    y, by_steps = linear(*args), torch_ops._layer_by_steps(x, w.t(), *others)
    ours, theirs = ((found.double() - exact_layer(*args)).norm() for found in (y, by_steps))
    assert len(launches) == 1 and ours < theirs
    assert torch.equal(linear(x, w.contiguous(), *others), y)  # as in torch.nn.Linear
    assert len(launches) == 2


@CAN_FUSE
def test_an_edge_on_one_side_only(launches):
    for m, n in (64, 24), (5, 256):
        args = layer(m, n, 8, "relu")
        close_once_rounded(linear(*args), args)
    assert len(launches) == 2


@CAN_FUSE
def test_many_rows_by_a_transposed_matrix_need_no_copy(launches, monkeypatch):
    x, w = tensor(72, 40, dtype=BF16, grad=True), tensor(136, 40, dtype=BF16, grad=True)
    exact = doubled(x, w)
    right, dy = exact_layer(*exact), tensor(72, 136, dtype=BF16)
    with monkeypatch.context() as patch:
        no_copy(patch)
        y = linear(x, w)
        gradients_close(y, (x, w), right, exact, dy, atol=0.1)  # of w: a transposed view times x
    assert y.is_contiguous() and len(launches) == 2
    close(y, right, BF16)
    # The TMA can't read this x
    shifted = torch.cat([x.detach().flatten()[:1], x.detach().flatten()])[1:].view(72, 40)
    close(matmul(shifted, w.detach().t()), right.detach(), BF16)


@CAN_FUSE
def test_two_transposed_views_need_no_copy_either(launches, monkeypatch):
    x, w = tensor(40, 72, dtype=BF16).t(), tensor(136, 40, dtype=BF16).t()
    no_copy(monkeypatch)
    turned, straight = matmul(x, w), matmul(x, w, columns=False)
    assert turned.t().is_contiguous() and straight.is_contiguous() and len(launches) == 1
    for y in turned, straight: close(y, x.double() @ w.double(), BF16)


@CAN_FUSE
@pytest.mark.parametrize("activation", (None, "relu"))
def test_a_layer_in_one_kernel_has_gradients(activation, launches):
    args = [tensor(*sizes, dtype=BF16, grad=True) for sizes in ((72, 40), (136, 40), (136,), (72, 136))]
    if activation: args.pop()  # a residual alone
    exact = doubled(*args)
    y, right = linear(*args[:3], activation, *args[3:]), exact_layer(*exact[:3], activation, *exact[3:])
    assert len(launches) == 1, "one kernel, although a gradient is needed"
    close(y, right, BF16)
    gradients_close(y, args, right, exact, tensor(72, 136, dtype=BF16), atol=0.2)


def test_autocast():
    layer, x = Linear(3, 4, activation="gelu", device=DEVICE), tensor(5, 3, grad=True)
    with torch.autocast(DEVICE, BF16):
        y = layer(x)
        assert matmul(x, layer.weight.t()).dtype == BF16
    assert y.dtype == BF16
    y.float().sum().backward()
    assert x.grad.dtype == layer.weight.grad.dtype == layer.bias.grad.dtype == F32
    exact = ACTIVATIONS["gelu"](F.linear(x, layer.weight, layer.bias))
    assert_close(y.float(), exact, rtol=2e-2, atol=2e-2)
    assert layer(x).dtype == F32
    wider = tensor(5, 4)  # a float32 residual isn't shortened
    with torch.no_grad(), torch.autocast(DEVICE, BF16): z = layer(x, wider)
    assert z.dtype == F32
    assert_close(z - wider, exact, rtol=2e-2, atol=2e-2)
    with torch.autocast(DEVICE, BF16), forward_ad.dual_level():
        y = layer(forward_ad.make_dual(x.detach(), x.detach()))
        assert y.dtype == BF16 and forward_ad.unpack_dual(y).tangent.dtype == BF16


@CAN_FUSE
def test_autocast_takes_a_layer_of_float32_to_one_kernel(launches):
    layer, x = Linear(40, 136, activation="relu", device=DEVICE), tensor(72, 40, grad=True)
    with torch.autocast(DEVICE, BF16): y = layer(x)
    assert y.dtype == BF16 and len(launches) == 1
    y.float().sum().backward()
    exact = exact_layer(*doubled(x, layer.weight, layer.bias), "relu")
    close(y, exact, BF16)
    assert x.grad.dtype == layer.weight.grad.dtype == layer.bias.grad.dtype == F32
    assert_close(layer.bias.grad, (exact > 0).sum(0).float(), rtol=2e-2, atol=1)
    with torch.autocast(DEVICE, BF16): assert layer(x, tensor(72, 136)).dtype == F32  # a wider residual
    assert len(launches) == 3


def test_an_infinite_gradient_of_a_dead_unit_is_nothing():
    given = layer(4, 16, 8, grad=True)[:3]
    exact, y = doubled(*given), linear(*given, "relu")
    dead = torch.tensor([float("inf"), float("nan")], device=DEVICE).repeat(8).to(BF16)
    dy = torch.where(y.detach() > 0, tensor(4, 16, dtype=BF16), dead)
    right = torch.autograd.grad(exact_layer(*exact, "relu"), exact, dy.double().where(y > 0, 0))
    for ours, one in zip(torch.autograd.grad(y, given, dy), right, strict=True):
        assert_close(ours.double(), one, rtol=2e-2, atol=0.1)


@CAN_FUSE
def test_what_one_kernel_cannot_do(launches):
    "Each of its conditions by itself."
    # n; k; few rows by a W that needs a copy; W's rows
    for m, n, k in (72, 12, 8), (72, 8, 12), (64, 8, 8), (1, 8, 12):
        x, w = tensor(m, k, dtype=BF16), tensor(n, k, dtype=BF16)
        if m == 1: w = tensor(k, n, dtype=BF16).t()
        bias = tensor(n, dtype=BF16)
        assert_close(linear(x, w, bias).double(), exact_layer(x, w, bias), rtol=2e-2, atol=5e-2)
    assert not [args for args in launches if len(args) > 2 and args[2] is not None]  # with a bias


@CAN_FUSE
def test_when_a_layer_is_done_by_steps(launches):
    x, w, bias, _, residual = args = layer(4, 16, 8, "relu")
    right = linear(*args)
    by_steps = dict(gradients=(x, w, bias.clone().requires_grad_(), "relu", residual),
                    rows=(x, w.contiguous(), bias, "relu", residual), bare=(x, w))
    for name, args in by_steps.items():
        y = linear(*args)
        assert name == "bare" or torch.allclose(y.float(), right.float(), rtol=2e-2, atol=2e-2), name
    moved = torch.cat([bias[:1], bias])[1:]  # misaligned for words
    assert_close(linear(x, w, moved, "relu", residual).float(), right.float(), rtol=2e-2, atol=2e-2)
    assert len(launches) == 1
    with torch.no_grad(): linear(*by_steps["gradients"])
    linear(x.reshape(2, 2, 8), w, bias, "relu", residual.reshape(2, 2, 16))
    assert len(launches) == 3


def test_a_fused_layer_compiled_and_checked(launches):
    args = layer(4, 16, 8, "gelu")
    compiled = torch.compile(lambda *args: linear(*args), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*args), linear(*args))


def test_special_numbers_go_through_the_activations():
    x, w = torch.zeros(4, 8, dtype=BF16, device=DEVICE), torch.eye(8, device=DEVICE).to(BF16).t()
    x[:, 0] = torch.tensor([float("nan"), float("inf"), -1e30, 1e4])
    for activation in "relu", "gelu":
        ours = linear(x, w, activation=activation)[:, 0]
        assert_close(ours, ACTIVATIONS[activation](x)[:, 0], equal_nan=True, rtol=2e-2, atol=0)


@pytest.mark.parametrize("option", ["read_c", "scaled"])
def test_the_epilogue_of_a_layer_refuses_alpha_and_beta(option):
    options = dict(predicated=False, read_c=False, scaled=False, bias=True, activation="relu", residual=False)
    with pytest.raises(ValueError, match="a layer doesn't have alpha or beta"):
        fused_epilogue(WARP_SPECIALIZED.tiles.tile, **options | {option: True})


def test_operations_are_counted_as_for_torchs_layers():
    for dtype in F32, BF16:
        counts = []
        for kind in Linear, torch.nn.Linear:
            net = kind(16, 8, device=DEVICE, dtype=dtype)
            with FlopCounterMode(display=False) as counter:
                net(tensor(72, 16, dtype=dtype, grad=True)).float().sum().backward()
            counts.append(counter.get_total_flops())
        assert counts[0] == counts[1] == 3 * 2 * 72 * 8 * 16


@pytest.mark.skipif(DEVICE == "cuda", reason="of the simulator")
def test_operands_can_still_be_resized():
    "`fully_shard` of a layer frees its weight's memory, and gets it back."
    from numba_matmul.torch_fp8 import fp8_linear
    for dtype in F32, BF16:
        args = [tensor(*shape, dtype=dtype) for shape in ((72, 8), (8, 8), (8,), (72, 8))]
        linear(*args[:3], None, args[3])
        matmul(args[0], args[1].t())
        fp8_linear(*args[:2])
        for x in args:
            assert x.untyped_storage().resizable()
            x.untyped_storage().resize_(0)
