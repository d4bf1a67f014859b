"""Linear layers whose weights are cut between GPUs, as DTensors on a `DeviceMesh`, with gradients.

Between two such layers a rank has all rows and some of the columns. Before and after them it has some of the
rows (dimension 0, `Shard(0)`) and all columns. So the first layer gathers rows while it multiplies, and the
second one scatters its sums; the backward pass does it the other way around."""
import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from .distributed import all_gather, all_gather_gemm, gemm_reduce_scatter, product


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
    "A tensor that all ranks have, and that each adds to rows of its own: gradients are added up."
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
        mesh,                     # a `DeviceMesh` of one dimension
    ):
        super().__init__()
        self.group = mesh.get_group()
        def cut(x, placement):
            return torch.nn.Parameter(distribute_tensor(x.detach().clone(), mesh, [placement]))
        of_weight, of_bias = self.placements
        self.weight = cut(linear.weight, of_weight)
        self.bias = None if linear.bias is None else cut(linear.bias, of_bias)

    def extra_repr(self): return f"in_features={self.weight.shape[1]}, out_features={self.weight.shape[0]}"

class ColumnParallelLinear(_ParallelLinear):
    "x·Wᵀ + bias with W cut by its outputs: from the rank's rows of x to its columns of all rows."
    placements = Shard(0), Shard(0)

    def forward(self, x):
        y = _Gather.apply(x.flatten(0, -2), self.weight.to_local(), self.group)
        if self.bias is not None: y = y + self.bias.to_local()
        return y.unflatten(0, (-1, *x.shape[1:-1]))

class RowParallelLinear(_ParallelLinear):
    "x·Wᵀ + bias with W cut by its inputs: from the rank's columns of all rows to its rows."
    placements = Shard(1), Replicate()

    def forward(self, x):
        y = _Scatter.apply(x.flatten(0, -2), self.weight.to_local(), self.group)
        if self.bias is not None: y = y + _SameOnAll.apply(self.bias.to_local(), self.group)
        return y.unflatten(0, (-1, *x.shape[1:-1]))
