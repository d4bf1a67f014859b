"""Products on several GPUs, without one: processes with gloo, and in the simulator the kernels that write to
a peer's memory."""
import copy
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import warnings
from collections import defaultdict, deque

import numpy as np
import pytest
from conftest import ROOT, environment
from numba import config

torch = pytest.importorskip("torch")
if sys.platform != "linux": pytest.skip("ranks are forked", allow_module_level=True)

import torch.distributed as dist  # noqa: E402
from greenlet import getcurrent, greenlet  # noqa: E402

from numba_matmul import distributed, peers, tensor_parallel, torch_ops  # noqa: E402
from numba_matmul.bench import several  # noqa: E402
from numba_matmul.distributed import RanksFailed, chunk_of, choose, first_line, place, run_ranks  # noqa: E402

without_gpu = pytest.mark.skipif(not config.ENABLE_CUDASIM, reason="there is a GPU")
RANKS = 4


def both_types(size):
    return [distributed.check_cuts(size, dtype) for dtype in (torch.float32, torch.bfloat16)]

@without_gpu
def test_every_cut_is_right_on_four_ranks():
    first, *others = run_ranks(both_types, RANKS, 100)
    for rows in first:
        assert [(row.cut, row.way) for row in rows] == [
            ("by rows", "B on each"), ("by columns", "A on each"), ("by columns", "plain"),
            ("by columns", "chunks"), ("by k", "plain"), ("by k", "chunks")]
        assert [row.received > 0 for row in rows] == [False] * 2 + [True] * 4
    for rows in others: assert [row.error for row in rows[0]] == [row.error for row in first[0]]


def of_a_group():
    "The same in the first two ranks of three."
    group, rank = dist.new_group([0, 1]), place()[0]
    if rank == 2: return 0
    torch.manual_seed(0)
    a, b = torch.randn(8, 6), torch.randn(6, 4)
    rows, cols = chunk_of(a, rank, 2), chunk_of(a, rank, 2, 1)
    for way in ("plain", "chunks"):
        torch.testing.assert_close(distributed.all_gather_gemm(rows, b, group, way), a @ b)
        torch.testing.assert_close(distributed.gemm_reduce_scatter(cols, chunk_of(b, rank, 2), group, way),
                                   chunk_of(a @ b, rank, 2))
    torch.testing.assert_close(distributed.all_gather_gemm(rows.t().contiguous().t(), b, group), a @ b)
    return 1

def test_a_group_of_some_ranks():
    assert run_ranks(of_a_group, 3) == [1, 1, 0]


def refused():
    a, b, found = torch.zeros(6, 4), torch.zeros(4, 5), []
    gather, scatter = distributed.all_gather_gemm, distributed.gemm_reduce_scatter
    for call, *args in ((scatter, a[:5], b), (gather, a, a), (gather, a, b, None, "fast"), (gather, a, b[0]),
                        (gather, a.half(), b.half()), (gather, a, 3)):
        with pytest.raises((TypeError, ValueError)) as e: call(*args)
        found.append(str(e.value))
    return found

def test_what_cannot_be_is_refused_on_every_rank():
    first, second = run_ranks(refused, 2)
    assert first == second and "pad them to 6" in first[0]
    assert "expected one of plain, chunks, peers" in first[2]

def captured():
    with pytest.raises(RuntimeError, match="can't replay peers"):
        distributed.all_gather_gemm(torch.zeros(2, 3), torch.zeros(3, 4), None, "peers")
    return distributed.all_gather_gemm(torch.zeros(2, 3), torch.zeros(3, 4)).shape

def test_a_cuda_graph_gets_the_plain_way(monkeypatch):
    monkeypatch.setattr(distributed, "is_captured", lambda: True)
    assert run_ranks(captured, 2) == [(4, 4)] * 2

def needs_a_gradient():
    with pytest.raises(RuntimeError, match="use the layers"):
        distributed.all_gather_gemm(torch.zeros(2, 3), torch.zeros(3, 4, requires_grad=True))
    with torch.no_grad():
        distributed.all_gather_gemm(torch.zeros(2, 3), torch.zeros(3, 4, requires_grad=True))

def test_no_gradient_is_silently_wrong(): run_ranks(needs_a_gradient, 2)

def test_without_a_group():
    with pytest.raises(RuntimeError, match="init_process_group first"):
        distributed.all_gather_gemm(torch.zeros(2, 3), torch.zeros(3, 4))


# Ranks that fail

def fails(how, rank):
    if place()[0] == rank: how()
    dist.barrier()

def raises(): raise ValueError("no such luck")
def dies(): os.kill(os.getpid(), signal.SIGKILL)
def hangs(): time.sleep(60)

@pytest.mark.parametrize("how, seconds, message", (
    (raises, 20, "rank 2 of 4: ValueError: no such luck. All ranks were stopped."),
    (dies, 20, "rank 2 of 4: ended with status -9. All ranks were stopped."),
    (hangs, 1, "rank 2 of 4: not finished within 1 s. All ranks were stopped.")))
def test_one_rank_ends_all(how, seconds, message):
    start = time.monotonic()
    with pytest.raises(RanksFailed, match=re.escape(message)):
        run_ranks(fails, RANKS, how, 2, seconds=seconds)
    assert time.monotonic() - start < 15  # with a machine that's busy

def watched():
    watch = distributed.Watch(0.5, dist.distributed_c10d._get_default_store())
    watch("by rows")
    if place()[0] == 1: time.sleep(60)
    watch("by k")
    dist.barrier()
    time.sleep(60)

def test_the_watch_names_who_never_got_there(capfd):
    with pytest.raises(RanksFailed): run_ranks(watched, 3, seconds=20)
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1 and "not finished within 0.5 s" in said[0] and said[0].endswith("All ranks end.")
    assert "by rows" in said[0]

STOPS = """import os, signal, time
from numba_matmul import distributed as d
if os.environ["RANK"] == "1": d.chunk_of = lambda *args: {how}
d.main()
"""
@without_gpu
@pytest.mark.parametrize("how", ("good", "hangs"))
def test_under_torchrun(tmp_path, how):
    (tmp_path/"stops.py").write_text(STOPS.format(how="time.sleep(90)"), encoding="utf-8")
    what = ["-m", "numba_matmul.distributed"] if how == "good" else [str(tmp_path/"stops.py")]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *what,
               "--seconds", "60" if how == "good" else "2"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120)
    lines = [line for line in done.stderr.splitlines() if "All ranks end." in line]
    if how == "good":
        assert done.returncode == 0 and not lines, done.stderr
        assert "2 ranks (gloo, without a GPU), bfloat16" in done.stdout and done.stdout.count("by k") == 2
    else: assert done.returncode and len(lines) == 1 and "not finished within 2 s" in lines[0], done.stderr


# Which way

def chosen(m, n, k, queue, lines=distributed.HOPPER):
    return choose(m, n, k, m // 2 * (k if queue == "gather" else n), queue, lines)

def test_the_host_decides_for_few_rows_and_the_link_for_many():
    for m in 128, 1024, 8192: assert chosen(m, 2048, 8192, "gather") == "peers"
    for m in 128, 1024: assert chosen(m, 8192, 2048, "scatter") == "plain"
    for m in 2048, 8192: assert chosen(m, 8192, 2048, "scatter") == "peers"

@pytest.mark.parametrize("name, n, k", (("all-gather", 2048, 8192), ("reduce-scatter", 8192, 2048)))
def test_what_is_chosen_was_no_slower_than_nccl_and_cublas(name, n, k):
    times, queue = defaultdict(dict), name.split("-")[1]
    for label, ms in several.recorded_on_several(f"few rows and many, {name}").values.items():
        m, _, way = label.partition(", ")
        times[int(m)][way] = ms
    assert len(times) == 9
    for m, ms in times.items():
        way = chosen(m, n, k, queue) if m > 64 else "plain"  # the chunks are multiples of 64 rows
        if way == "peers" and queue == "scatter":
            way = ("1 piece", "2 pieces")[peers.pieces_of(m // 2, n) - 1]
        assert ms["NCCL + cuBLAS"] / ms[way] > 0.98, m

def test_pieces_fill_the_gpu():
    shapes = (4096, 8192), (4096, 4096), (1024, 8192), (4160, 8192)
    assert [peers.pieces_of(*shape) for shape in shapes] == [2, 2, 1, 1]

def test_nothing_is_gained_where_nothing_moves():
    assert choose(16384, 16384, 16384, 0) == "plain"
    assert chosen(8192, 2048, 8192, "gather", distributed.HOPPER._replace(link=1e15)) == "plain"


# The kernels, with the memory of all ranks in one process

class Memory:
    "What `PeerMemory` does, for a rank that is a greenlet."
    flagged, buffers = defaultdict(int), {}

    def __init__(self, rank, ranks):
        self.rank, self.ranks, self.calls = rank, ranks, 0
        self.pushes = deque()  # on the side stream

    def tensor(self, rank, *shape):
        buffer = self.buffers.setdefault((rank, self.calls % 2), torch.full((2**16,), torch.nan).bfloat16())
        return buffer[:torch.Size(shape).numel()].view(shape)

    def begin(self): self.calls += 1

    def push(self, x, peer, at, slot): self.pushes.append((x, peer, at, slot))

    def copy(self):
        "The side stream's next copy, and its flag."
        x, peer, at, slot = self.pushes[0]
        self.tensor(peer, 2**16)[at // 2:][:x.numel()].copy_(x.flatten())
        self.write_flag(peer, slot)
        self.pushes.popleft()

    def write_flag(self, rank, slot): self.flagged[rank, slot] = self.calls

    def wait_flag(self, slot):
        while self.flagged[self.rank, slot] < self.calls: pause()

    def end(self):
        while self.pushes: pause()

    @property
    def flags(self):
        for rank in range(self.ranks):  # the simulator's kernel can't wait for another rank
            if rank != self.rank: self.wait_flag(rank)
        flags = [self.flagged[self.rank, slot] for slot in range(self.ranks + 1)]
        return torch.tensor(flags, dtype=torch.int32)


def pause(): getcurrent().parent.switch()

def by_greenlets(memories, fn, seed=0):
    "What a function of a rank's memory returns, for each, while ranks and copies go on in any order."
    found, random = {}, np.random.default_rng(seed)
    def main(memory): found[memory.rank] = fn(memory)
    lines = [greenlet(main) for _ in memories]
    while len(found) < len(memories):
        memory = memories[random.integers(len(memories))]
        line = lines[memory.rank]
        if memory.pushes and random.random() < 0.3: memory.copy()
        elif not line.dead: line.switch(*(() if line else (memory,)))
    return [found[memory.rank] for memory in memories]

def new_memories(ranks):
    Memory.flagged.clear(), Memory.buffers.clear()
    return [Memory(rank, ranks) for rank in range(ranks)]

def close(c, exact): return (c.double() - exact).norm() < 4e-3 * exact.norm()

@without_gpu
@pytest.mark.parametrize("ranks, rows, n, k, turned, pieces", (
    (2, 64, 136, 72, False, 1), (3, 64, 72, 8, True, 2)))
def test_products_by_way_of_the_peers_memory(ranks, rows, n, k, turned, pieces):
    torch.manual_seed(0)
    a, b = torch.randn(ranks * rows, ranks * k).bfloat16(), torch.randn(ranks * k, n).bfloat16()
    memories, exact = new_memories(ranks), a.double() @ b.double()
    def own_b(x): return x.t().contiguous().t() if turned else x
    def gather(memory): return peers.all_gather_gemm(chunk_of(a, memory.rank, ranks), own_b(b), memory)
    def scatter(memory):
        own = chunk_of(a, memory.rank, ranks, 1).contiguous(), own_b(chunk_of(b, memory.rank, ranks))
        return peers.gemm_reduce_scatter(*own, memory, pieces)
    for c in by_greenlets(memories, gather): assert close(c, exact)
    for buffer in Memory.buffers.values(): buffer.fill_(torch.nan)
    for rank, c in enumerate(by_greenlets(memories, scatter)): assert close(c, chunk_of(exact, rank, ranks))

def slow_layer(x, w, residual=None, y=None):
    "A product during which other ranks go on, before it reads and before it writes."
    pause()
    total = x @ w if residual is None else x @ w + residual
    pause()
    return y.copy_(total)

def slow_gather(own, gathered, b, flags, rank):
    "The same of a product whose rows are arriving."
    chunks = gathered.view(-1, *own.shape)
    pause()
    return torch.cat([own if i == rank else chunk for i, chunk in enumerate(chunks)]) @ b

@pytest.mark.parametrize("ranks, pieces", ((2, 1), (2, 2), (3, 1), (4, 2)))
def test_no_rank_overwrites_what_another_still_needs(monkeypatch, ranks, pieces):
    monkeypatch.setattr(peers, "fused_layer", slow_layer)
    monkeypatch.setattr(peers, "arriving_gemm", slow_gather)
    memories = new_memories(ranks)
    kinds = np.random.default_rng(ranks).integers(2, size=60)  # of calls, the same on each rank
    def ones(*shape): return torch.ones(shape, dtype=torch.bfloat16)
    def calls(memory):
        for number, kind in enumerate(kinds):
            if kind: c = peers.all_gather_gemm(ones(2, 1) * (number + memory.rank), ones(1, 3), memory)
            else: c = peers.gemm_reduce_scatter(ones(2 * ranks, 1) * number, ones(1, 3), memory, pieces)
            expected = number + torch.arange(ranks).repeat_interleave(2) if kind else torch.tensor(
                [number * ranks] * 2)
            assert torch.equal(c, expected[:, None].expand(-1, 3).bfloat16())
    by_greenlets(memories, calls)


# Layers

def losses(steps=4):
    "Of a network on one rank, of PyTorch's tensor parallel, and of ours; and how far the weights are apart."
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    warnings.simplefilter("ignore")
    rank, ranks = place()
    mesh = init_device_mesh("cpu", (ranks,))
    torch.manual_seed(0)
    alone = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    stock = copy.deepcopy(alone)
    ours = torch.nn.Sequential(tensor_parallel.ColumnParallelLinear(alone[0], mesh), torch.nn.GELU(),
                               tensor_parallel.RowParallelLinear(alone[2], mesh))
    parallelize_module(stock, mesh, {"0": ColwiseParallel(input_layouts=Shard(0)),
                                     "2": RowwiseParallel(output_layouts=Shard(0))})
    x, y = torch.randn(2 * ranks, 3, 6), torch.randn(2 * ranks, 3, 4)
    found = []
    for net, mine, wanted in ((alone, x, y), *((net, chunk_of(x, rank, ranks), chunk_of(y, rank, ranks))
                                               for net in (stock, ours))):
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        found.append([])
        for _ in range(steps):
            optimizer.zero_grad()
            loss = (net(mine) - wanted).square().sum() / y.numel()
            loss.backward()
            optimizer.step()
            total = loss.detach().clone()
            if net is not alone: dist.all_reduce(total)
            found[-1].append(float(total))
    apart = [float((p.full_tensor() - q).detach().abs().max())
             for p, q in zip(ours.parameters(), alone.parameters())]
    return *found, max(apart), str(ours[0])

@without_gpu
def test_a_network_learns_as_pytorchs_does():
    alone, stock, ours, apart, text = run_ranks(losses, 2)[1]
    assert ours == pytest.approx(stock, rel=1e-5) and ours == pytest.approx(alone, rel=1e-5) and apart < 1e-5
    assert ours[-1] < ours[0] and "in_features=6, out_features=8" in text


class Scaled(torch.nn.Linear):
    def forward(self, x): return 2 * super().forward(x)

def parallel_layers():
    "What layers make of inputs of all kinds, on one rank."
    from torch.distributed.device_mesh import init_device_mesh
    warnings.simplefilter("ignore")
    rank, ranks = place()
    mesh = init_device_mesh("cpu", (ranks,))
    torch.manual_seed(0)
    alone = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    net = torch.nn.Sequential(tensor_parallel.ColumnParallelLinear(alone[0], mesh), torch.nn.ReLU(),
                              tensor_parallel.RowParallelLinear(alone[2], mesh))
    x = torch.randn(2 * ranks, 3, 6)
    mine, y = chunk_of(x, rank, ranks), net(chunk_of(x, rank, ranks))
    found = {"a copy": torch.equal(copy.deepcopy(net)(mine), y),
             "pickled": torch.equal(pickle.loads(pickle.dumps(net))(mine), y),
             "compiled": torch.equal(torch.compile(net, backend="eager")(mine), y),
             "no rows": [tuple(net(z).shape) for z in (mine[:0], mine[:, :0])]}
    with torch.autocast("cpu", torch.bfloat16): short = net(mine)
    short.float().sum().backward()
    alone(x).sum().backward()
    apart = (net[0].weight.grad.full_tensor() - alone[0].weight.grad).norm() / alone[0].weight.grad.norm()
    found["autocast"] = short.dtype, bool((short - y).norm() < 0.01 * y.norm()), bool(apart < 0.02)

    def refusal(fn):
        try: return fn() and "none"
        except Exception as e: return first_line(e)
    column, row = net[0], net[2]
    for name, fn in {"one dimension": lambda: column(mine[0, 0]), "columns": lambda: column(mine[..., :4]),
                     "type": lambda: column(mine.double()), "array": lambda: row(mine.numpy()),
                     "rows": lambda: row(torch.randn(2 * ranks + 1, ranks, 8 // ranks)),
                     "layer": lambda: tensor_parallel.ColumnParallelLinear(torch.nn.Conv1d(1, 2, 1), mesh),
                     "activation": lambda: tensor_parallel.ColumnParallelLinear(
                         torch_ops.Linear(6, 8, activation="relu"), mesh),
                     "subclass": lambda: tensor_parallel.RowParallelLinear(Scaled(8, 4), mesh),
                     "vmap": lambda: torch.vmap(column)(mine),
                     "jvp": lambda: torch.func.jvp(column, (mine,), (mine,)),
                     "cut": lambda: torch_ops.linear(mine, column.weight),
                     "mesh": lambda: tensor_parallel.RowParallelLinear(alone[0], None),
                     "meshes": lambda: tensor_parallel.ColumnParallelLinear(
                         alone[0], init_device_mesh("cpu", (1, ranks)))}.items():
        found[name] = refusal(fn)
    return found

@without_gpu
def test_layers_can_be_copied_compiled_and_called_under_autocast():
    found = run_ranks(parallel_layers, 2)[1]
    assert found["a copy"] and found["pickled"] and found["compiled"]
    assert found["no rows"] == [(0, 3, 4), (2, 0, 4)] and found["autocast"] == (torch.bfloat16, True, True)
    for name, expected in {
            "one dimension": "ValueError: x has shape (6,); the rank's part of the weight is 4×6",
            "columns": "ValueError: x has shape (2, 3, 4)", "type": "TypeError: x is torch.float64",
            "array": "TypeError: x is a numpy.ndarray", "rows": "ValueError: 5 rows can't be cut",
            "layer": "TypeError: linear is a Conv1d",
            "activation": "TypeError: linear is Linear(in_features=6, out_features=8, bias=True, activation=",
            "subclass": "TypeError: linear is Scaled(", "vmap": "RuntimeError: layers cut between GPUs",
            "jvp": "RuntimeError: layers cut between GPUs", "cut": "TypeError: w is a DTensor",
            "mesh": "TypeError: mesh is a NoneType",
            "meshes": "ValueError: mesh has 2"}.items():
        assert found[name].startswith(expected)


# Cards

def test_cards_of_several_gpus_follow_their_schema(tmp_path, monkeypatch):
    first = several.several_cards()[0]  # checked
    monkeypatch.setattr(several, "card_folder", lambda: tmp_path)
    assert several.recorded_on_several("a step of two layers").values == {}
    one = first | dict(gpu="Invented GPU", gpus=4, experiments={
        "some": dict(unit="ms", values={"a": 1.5}, date="2026-11-27")})
    assert several.write_several_card(one).name == "invented-gpu-x4.json"
    several.write_several_card(one | dict(experiments={
        "more": dict(unit="GB/s", values={"b": 2}, date="2026-11-27")}))
    assert several.recorded_on_several("some").values == {"a": 1.5}
    assert several.recorded_on_several("more").source == "Recorded on four Invented GPU, 2026-11-27."
    with pytest.raises(ValueError, match="card.gpus"): several.write_several_card(one | dict(gpus=1))
