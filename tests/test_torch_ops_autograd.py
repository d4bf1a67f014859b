"The operators in PyTorch: derivatives of every kind and order, compiled and exported programs."
from itertools import product

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch.testing import assert_close
from torch_cases import (
    BF16, F32, LAYOUTS, all_close, close, doubled, exact_layer, layer, of_each_dtype, tensor)

from numba_matmul import torch_ops
from numba_matmul.torch_ops import DEVICE, Linear, linear, matmul

pytest_plugins = ["torch_fixtures"]
pytestmark = pytest.mark.usefixtures("seeded")


@of_each_dtype
@pytest.mark.parametrize("first,second", list(product(LAYOUTS, repeat=2))[::3] + [("columns", "columns")])
def test_a_product_of_any_layout_and_its_gradients(first, second, dtype):
    a, b = (tensor(*shape, dtype=dtype, layout=layout, grad=True)
            for shape, layout in (((5, 3), first), ((3, 4), second)))
    exact = doubled(a, b)
    c, right, dc = matmul(a, b), torch.matmul(*exact), tensor(5, 4, dtype=dtype)
    close(c, right, dtype)
    all_close(torch.autograd.grad(c, (a, b), dc), torch.autograd.grad(right, exact, dc.double()), dtype)


def test_a_gradient_lies_as_its_operand_does(exactly):
    for first, second in product(("rows", "columns"), repeat=2):
        a, b = tensor(5, 3, layout=first, grad=True), tensor(3, 4, layout=second, grad=True)
        for x, dx in zip((a, b), torch.autograd.grad(matmul(a, b).sum(), (a, b))):
            assert dx.stride() == x.stride()


def gradgrad(a, b, multiply):
    c = multiply(a, b)
    da, db = torch.autograd.grad(c.sin().sum(), (a, b), create_graph=True)
    return c, da, db, *torch.autograd.grad((da ** 2).sum() + (db ** 3).sum(), (a, b))


@pytest.mark.parametrize("layout", ("rows", "columns"))
def test_gradients_of_gradients(layout, exactly):
    a, b = tensor(4, 3, grad=True), tensor(3, 5, layout=layout, grad=True)
    all_close(gradgrad(a, b, matmul), gradgrad(*doubled(a, b), torch.matmul))


def test_gradients_that_are_no_matrices_in_memory():
    a, b = tensor(4, 3, grad=True), tensor(3, 5, grad=True)
    exact = doubled(a, b)
    for dc in torch.ones(1, device=DEVICE).expand(4, 5), torch.randn(5, 4, device=DEVICE).t():
        all_close(torch.autograd.grad(matmul(a, b), (a, b), dc),
                  torch.autograd.grad(torch.matmul(*exact), exact, dc.double()))


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


CALLS = {  # with x (2, 8) and w (8, 8)
    "matmul": (matmul, torch.matmul, F32),
    "matmul of views": (lambda x, w: matmul(w.t(), x.t()), lambda x, w: w.t() @ x.t(), BF16),
    "linear": (lambda x, w: linear(x, w.t(), w[0], "gelu", x),
               lambda x, w: exact_layer(x, w.t(), w[0], "gelu", x), F32),
    "linear without": (lambda x, w: linear(x, w), lambda x, w: F.linear(x, w), BF16),
    "fused bias": (lambda x, w: linear(x, w.t(), w[0]), lambda x, w: x @ w + w[0], BF16),
    "fused relu": (lambda x, w: linear(x, w.t(), w[0], "relu"), lambda x, w: (x @ w + w[0]).relu(), BF16),
    "fused gelu": (lambda x, w: linear(x, w.t(), w[0], "gelu", x),
                   lambda x, w: exact_layer(x, w.t(), w[0], "gelu", x), BF16)}


def transforms(call, which=None):
    "Everything `torch.func` derives from a call, by name."
    def everything(x, w, tx, tw):
        f, xs, ws = torch.func, torch.stack([x, tx]), torch.stack([w, tw])
        def loss(x, w): return call(x, w).sin().sum()
        found = {
            "jvp": lambda: f.jvp(call, (x, w), (tx, tw)),
            "jvp of x": lambda: f.jvp(lambda x: call(x, w), (x,), (tx,)),
            "grad": lambda: f.grad(loss, (0, 1))(x, w), "vjp": lambda: f.vjp(call, x, w)[1](call(x, w).cos()),
            "jacfwd": lambda: f.jacfwd(call, (0, 1))(x, w), "jacrev": lambda: f.jacrev(call)(x, w),
            "hessian": lambda: f.hessian(loss)(x, w), "vmap of x": lambda: f.vmap(call, (0, None))(xs, w),
            "vmap of w": lambda: f.vmap(call, (None, 0))(x, ws),
            "vmap": lambda: f.vmap(call, (1, 2), 1)(xs.movedim(0, 1), ws.movedim(0, 2)),
            "vmap of grad": lambda: f.vmap(f.grad(loss, (0, 1)), (0, None))(xs, w),
            "grad of vmap": lambda: f.grad(lambda w: f.vmap(call, (0, None))(xs, w).sin().sum())(w),
            "grad of grad": lambda: f.grad(lambda x, w: f.grad(loss)(x, w).square().sum(), (0, 1))(x, w),
            "jvp of grad": lambda: f.jvp(f.grad(loss, (0, 1)), (x, w), (tx, tw)),
            "jvp of jvp":
                lambda: f.jvp(lambda x: f.jvp(lambda x: call(x, w).sin(), (x,), (tx,))[1], (x,), (tx,))}
        return {name: make() for name, make in found.items() if which is None or name in which}
    return everything


def inside_dual_level(call):
    "A function that computes the tangent of a call."
    def made(x, w, tx, tw):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(call(*map(forward_ad.make_dual, (x, w), (tx, tw)))).tangent
    return made


def same(ours, exact, dtype):
    for (name, one), right in zip(torch.utils._pytree.tree_flatten_with_path(ours)[0],
                                  torch.utils._pytree.tree_leaves(exact), strict=True):
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
    (dx,), (exact_dx,) = (torch.autograd.grad(f(*z[:2]).sin().sum(), z[:1], create_graph=True)
                          for f, z in ((ours, args), (right, exact)))
    same(torch.autograd.grad(dx.square().sum(), args[:2]),
         torch.autograd.grad(exact_dx.square().sum(), exact[:2]), dtype)


def test_derivatives_compiled(exactly):
    "Silence isn't an option: inside `dual_level` a compiled function would lose the tangent."
    which = "jvp", "hessian", "vmap of grad", "grad of grad"  # which need all the others
    chosen = {name: CALLS[name] for name in ("matmul", "fused relu", "fused gelu")}
    args = {dtype: [tensor(*shape, dtype=dtype) for shape in ((2, 8), (8, 8)) * 2] for dtype in (F32, BF16)}
    def everything(args):
        return {name: transforms(ours, which)(*args[dtype]) for name, (ours, _, dtype) in chosen.items()}
    found = torch.compile(everything, fullgraph=True, backend="aot_eager")(args)
    for name, (ours, right, dtype) in chosen.items():
        same(found[name], transforms(right, which)(*(z.double() for z in args[dtype])), dtype)
        if name == "fused gelu": continue
        compiled, (x, w, *tangents) = torch.compile(ours, backend="eager"), args[dtype]
        compiled(x, w)
        lost = pytest.raises(RuntimeError, match="torch.compile drops the forward-mode tangents")
        with forward_ad.dual_level(), lost: compiled(forward_ad.make_dual(x, tangents[0]), w)
        tangent = torch.compile(inside_dual_level(ours), fullgraph=True, backend="eager")(x, w, *tangents)
        same(tangent, inside_dual_level(right)(*(z.double() for z in args[dtype])), dtype)


@pytest.mark.parametrize("call", (matmul, lambda a, b: linear(a, b.t(), b[0], "gelu", a[:, :2])),
                         ids=["matmul", "linear"])
def test_gradcheck(call, exactly):
    "PyTorch's own, in all modes, by differences of float32."
    args = [tensor(*shape).double().requires_grad_() for shape in ((2, 3), (3, 2))]
    options = dict(eps=1e-2, atol=1e-2, rtol=1e-2)
    def double(a, b): return call(a.float(), b.float()).double()
    assert torch.autograd.gradcheck(double, args, **options, check_forward_ad=True, check_batched_grad=True,
                                    check_batched_forward_grad=True, check_undefined_grad=True)
    assert torch.autograd.gradgradcheck(double, args, **options, check_fwd_over_rev=True)


@pytest.mark.parametrize("backend", ("eager", "aot_eager"))
def test_what_calls_an_operator_uncompiled_does_not_trace_its_kernels(backend):
    "Transforms of a compiled function, and a graph break just before the call."
    x, v, w = tensor(2, 3), tensor(2, 3), tensor(3, 3)
    compiled = torch.compile(lambda x: matmul(x, w), backend=backend)
    assert_close(torch.func.grad(lambda x: compiled(x).sum())(x), torch.ones(2, 3, device=DEVICE) @ w.t())
    assert_close(torch.vmap(compiled)(torch.stack([x, v])), torch.stack([x @ w, v @ w]))
    assert_close(torch.func.jvp(compiled, (x,), (v,))[1], v @ w)
    @torch.compile(backend=backend)
    def broken(x):
        for _ in range(2):
            torch._dynamo.graph_break()
            x = torch.ops.numba_matmul.matmul(x, w)
        return x
    assert_close(broken(x), x @ w @ w)


def test_results_can_be_changed_in_place(exactly):
    "Transposed ones, too: `torch.nn.ReLU(inplace=True)` after a layer."
    for columns in True, False, None:
        a, b = tensor(3, 5, grad=True), tensor(5, 4, layout="columns", grad=True)
        exact = doubled(a, b)
        all_close(torch.autograd.grad(matmul(a, b, columns).relu_().sin().sum(), (a, b)),
                  torch.autograd.grad(torch.matmul(*exact).relu().sin().sum(), exact))
    x, net = tensor(3, 5), torch.nn.Sequential(Linear(5, 4, device=DEVICE), torch.nn.ReLU(inplace=True))
    net(x).sum().backward()
    assert_close(net[0].bias.grad, (F.linear(x, net[0].weight, net[0].bias) > 0).sum(0).float())


@pytest.mark.parametrize("strategy", ("forward-mode", "reverse-mode"))
def test_jacobians_of_results_in_any_layout(strategy, exactly):
    x, w = tensor(3, 5), tensor(4, 5)
    for columns in True, False, None:
        def product(x): return matmul(x, w.t(), columns)  # noqa: B023
        found = torch.autograd.functional.jacobian(product, x, vectorize=True, strategy=strategy)
        assert_close(found, torch.autograd.functional.jacobian(lambda x: x @ w.t(), x))


def test_no_product_with_a_missing_tangent(exactly):
    a, b = tensor(2, 3), tensor(3, 4)
    a[0, 0] = float("inf")
    tangent = torch.func.jvp(lambda a: matmul(a, b), (a,), (torch.ones_like(a),))[1]
    assert_close(tangent, torch.ones_like(a) @ b)  # 0 · inf would be NaN


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
    for columns in True, False:
        for args, dims in ((a, b), (0, None)), ((b.t(), a.mT), (None, 0)), ((a, a.mT), (0, 0)):
            c = torch.vmap(lambda a, b: matmul(a, b, columns), dims)(*args)  # noqa: B023
            assert_close(c, args[0] @ args[1])
            assert (c[1].t() if columns else c[1]).is_contiguous()


@pytest.mark.parametrize("arguments", (
    lambda: (tensor(5, 3, grad=True), tensor(3, 4, grad=True)),
    lambda: (tensor(5, 3, layout="columns"), tensor(3, 4, layout="columns", grad=True)),
    lambda: (tensor(2, 3, dtype=BF16, grad=True), tensor(3, 4, dtype=BF16, layout="columns")),
    lambda: (tensor(5, 3), tensor(3, 4, layout="strided", grad=True), True),
    lambda: (tensor(1, 3, grad=True), tensor(4, 3, grad=True).t()),
    lambda: (tensor(0, 3, grad=True), tensor(3, 4)),
    lambda: (tensor(66, 8, dtype=BF16), tensor(8, 8, dtype=BF16).t())),
    ids=("rows", "columns", "bf16", "as columns", "a row", "empty", "straight"))
def test_opcheck(arguments, exactly):
    torch.library.opcheck(torch.ops.numba_matmul.matmul.default, arguments(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("activation,residual", ((None, True), ("relu", False), ("gelu", True)),
                         ids=["residual", "relu", "gelu and residual"])
def test_opcheck_of_a_layer(activation, residual, exactly):
    x, w, *others = layer(4, 8, 8, activation, residual=residual, grad=True)
    args = x, w.detach().t().requires_grad_(), *others
    torch.library.opcheck(torch.ops.numba_matmul.layer.default, args, rtol=2e-2, atol=2e-2)


def network(x, w1, b1, w2, residual):
    return linear(linear(x, w1, b1, "gelu"), w2, residual=residual)


def test_compiled_without_a_graph_break(exactly):
    factors, residual = [tensor(*s, grad=True) for s in ((2, 3, 3), (5, 3), (5,), (4, 5))], tensor(2, 3, 4)
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    y, right = compiled(*factors, residual), network(*factors, residual)
    assert_close(y, right)
    assert_close(torch.autograd.grad(y.sin().sum(), factors), torch.autograd.grad(right.sin().sum(), factors))


def test_compiled_by_inductor():
    "Two calls and their tangent with nothing in between: on a CPU this doesn't need a C++ compiler."
    x, t, w = tensor(2, 3), tensor(2, 3), tensor(4, 3)  # a transposed view is passed on
    def twice(x, t, w): return torch.func.jvp(lambda x: matmul(matmul(x, w.t()), w), (x,), (t,))
    assert_close(torch.compile(twice, fullgraph=True)(x, t, w), (x @ w.t() @ w, t @ w.t() @ w))


def test_compiled_for_any_number_of_rows(exactly):
    compiled = torch.compile(lambda x, w: matmul(x, w.t()).relu(), fullgraph=True, dynamic=True,
                             backend="aot_eager")
    w = tensor(5, 3, grad=True)
    for rows in 2, 4, 7, 9:
        x = tensor(rows, 3)
        assert_close(compiled(x, w), (x @ w.t()).relu(), rtol=1e-4, atol=1e-5)


class Everything(torch.nn.Module):
    "Products of each kind for export, with any batch."
    def __init__(self):
        super().__init__()
        self.first = Linear(8, 16, activation="gelu", device=DEVICE)
        self.second = Linear(8, 16, activation="relu", device=DEVICE, dtype=BF16)

    def forward(self, x):
        short = x.to(BF16)
        return (self.first(x), self.second(short), matmul(x.flatten(0, -2), self.first.weight.t()),
                linear(short, self.second.weight),
                matmul(self.first.weight, x.flatten(0, -2).t()),
                linear(short, self.second.weight.t().contiguous().t(), None, "gelu"))


@pytest.mark.parametrize("strict", (False, True), ids=["not strict", "strict"])
def test_exported_for_any_batch(strict, exactly):
    "Limits from choosing a kernel don't get into the program: neither 64 rows nor 2**19 results."
    module = Everything().eval()
    for shape in (8, 8), (4, 3, 8):
        program = torch.export.export(module, (tensor(*shape),), dynamic_shapes=({0: torch.export.Dim.AUTO},),
                                      strict=strict)
        (found,) = program.range_constraints.values()
        assert found.lower <= 2 and found.upper >= 2**40, found
        if strict: return
        for batch in 2, 64, 65:
            x = tensor(batch, *shape[1:])
            assert_close(program.module()(x), module(x))


def test_exported_as_it_is(exactly):
    x, module = tensor(3, 8), Everything().eval()
    assert_close(torch.export.export(module, (x,)).module()(x), module(x))
