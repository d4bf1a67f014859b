"""Linear layers whose weights are cut between GPUs, as DTensors on a `DeviceMesh`, with gradients.

Between two such layers a rank has all rows and some of the columns. Before and after them it has some of the
rows (dimension 0, `Shard(0)`) and all columns. So the first layer gathers rows while it multiplies, and the
second one scatters its sums; in the backward pass it's the other way around."""
import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from . import torch_ops
from .distributed import all_gather, all_gather_gemm, chunk_of, gemm_reduce_scatter, place, product
from .torch_rules import check_tensors, forward_mode, need_tensors


def _all_rows(x, group):
    "The rows of all ranks."
    return all_gather(x.new_empty(x.shape[0] * group.size(), x.shape[1]), x.contiguous(), group)

class _Gather(torch.autograd.Function):
    "(rows / ranks, k) → (rows, n / ranks)"
    @staticmethod
    def forward(ctx, x, w, group):
        ctx.save_for_backward(x, w)
        ctx.group = group
        return all_gather_gemm(x, w.t(), group)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dx = gemm_reduce_scatter(dy, w, ctx.group) if ctx.needs_input_grad[0] else None
        # gathered again: keeping all rows would take as many times the memory as there are ranks
        dw = product(dy.t(), _all_rows(x, ctx.group)) if ctx.needs_input_grad[1] else None
        return dx, dw, None

class _Scatter(torch.autograd.Function):
    "(rows, k / ranks) → (rows / ranks, n)"
    @staticmethod
    def forward(ctx, x, w, group):
        ctx.save_for_backward(x, w)
        ctx.group = group
        return gemm_reduce_scatter(x, w.t(), group)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        everyone = _all_rows(dy, ctx.group)
        dx = product(everyone, w) if ctx.needs_input_grad[0] else None
        dw = product(everyone.t(), x) if ctx.needs_input_grad[1] else None
        return dx, dw, None

class _SameOnAll(torch.autograd.Function):
    "A tensor that all ranks have, and that each adds to its own rows: gradients are added up."
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, dx):
        dx = dx.clone()
        dist.all_reduce(dx, group=ctx.group)
        return dx, None


class _ParallelLinear(torch.nn.Module):
    def __init__(
        self,
        linear: torch.nn.Linear,  # rank 0's is the one that counts
        mesh: DeviceMesh,         # of one dimension
    ):
        super().__init__()
        if not isinstance(linear, torch.nn.Linear):
            raise TypeError(f"linear is a {type(linear).__name__}; expected a torch.nn.Linear")
        plain = type(linear).forward in (torch.nn.Linear.forward, torch_ops.Linear.forward)
        if not plain or getattr(linear, "activation", None):
            raise TypeError(f"linear is {linear}, which computes more than x·Wᵀ + bias; expected a "
                            "torch.nn.Linear: call the rest, such as an activation, yourself")
        if not isinstance(mesh, DeviceMesh):
            raise TypeError(f"mesh is a {type(mesh).__name__}; expected a DeviceMesh")
        if mesh.ndim != 1:
            raise ValueError(f"mesh has {mesh.ndim} dimensions; expected one: pass mesh[name], with the name "
                             "of the dimension")
        self.group = mesh.get_group()
        def cut(x, placement):
            return torch.nn.Parameter(distribute_tensor(x.detach().clone(), mesh, [placement]))
        of_weight, of_bias = self.placements
        self.weight = cut(linear.weight, of_weight)
        self.bias = None if linear.bias is None else cut(linear.bias, of_bias)

    def __getstate__(self): return {name: value for name, value in vars(self).items() if name != "group"}

    def __setstate__(self, state):  # of a copy
        super().__setstate__(state)
        self.group = self.weight.device_mesh.get_group()

    def extra_repr(self): return f"in_features={self.weight.shape[1]}, out_features={self.weight.shape[0]}"

    def product(self, rule, x):
        "A rule, applied to the rows of x. `TypeError` or `ValueError` for an x that doesn't fit."
        need_tensors(x=x)
        if torch._C._are_functorch_transforms_active() or forward_mode(x):
            raise RuntimeError("layers cut between GPUs only have gradients in reverse mode, and don't work "
                               "under torch.func or vmap: call backward() or torch.autograd.grad")
        weight = self.weight.to_local()
        autocast = torch.is_autocast_enabled(weight.device.type)
        check_tensors(autocast, x=x, weight=weight)
        n, k = weight.shape
        if x.dim() < 2 or x.shape[-1] != k:
            raise ValueError(f"x has shape {tuple(x.shape)}; the rank's part of the weight is {n}×{k}, "
                             f"so expected (rows, …, {k})")
        if autocast: x, weight = x.bfloat16(), weight.bfloat16()
        with torch.autocast(weight.device.type, enabled=False):
            return rule.apply(x.flatten(0, -2), weight, self.group)

class ColumnParallelLinear(_ParallelLinear):
    """x·Wᵀ + bias with W cut by its outputs. A rank passes its rows of x, the same number as the others, and
    gets its columns of the result, in all rows. Under autocast it computes in bfloat16."""
    placements = Shard(0), Shard(0)

    @torch.compiler.disable(reason="collectives on a process group aren't traced")
    def forward(self, x):
        y = self.product(_Gather, x)
        if self.bias is not None: y = y + self.bias.to_local().to(y.dtype)
        return y.unflatten(0, (x.shape[0] * place(self.group)[1], *x.shape[1:-1]))

class RowParallelLinear(_ParallelLinear):
    """x·Wᵀ + bias with W cut by its inputs. A rank passes its columns of x, in all rows, and gets its rows of
    the result. Under autocast it computes in bfloat16."""
    placements = Shard(1), Replicate()

    @torch.compiler.disable(reason="collectives on a process group aren't traced")
    def forward(self, x):
        need_tensors(x=x)
        rows = chunk_of(x, *place(self.group)).shape[0] if x.dim() else None
        y = self.product(_Scatter, x)
        if self.bias is not None: y = y + _SameOnAll.apply(self.bias.to_local(), self.group).to(y.dtype)
        return y.unflatten(0, (rows, *x.shape[1:-1]))
