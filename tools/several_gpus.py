"""Times products on several GPUs, and records them on a card of their own:
`torchrun --nproc-per-node 2 tools/several_gpus.py`. Every result is compared before it is timed."""
import copy
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from datetime import date, timedelta
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from numba_matmul import distributed, peers, tensor_parallel  # noqa: E402
from numba_matmul.bench.several import write_several_card  # noqa: E402
from numba_matmul.torch_layer import fused_layer  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from fastcore.script import Param, call_parse  # noqa: E402

METHOD = ("Device time by events, in ms: calls one after the other in the queue, as many of each way, about "
          "3 ms, in rounds that alternate between the ways and begin with a barrier; the median of the "
          "rounds, and of the ranks the slower one; normally distributed bfloat16. NCCL + cuBLAS is "
          "torch.distributed's collective and torch.mm, with a new result each. Each result is compared with "
          "that of NCCL + cuBLAS first; `numba_matmul.distributed` compares with float64.")
SHAPES = (8192, 2048, 8192), (8192, 4096, 4096), (4096, 2048, 8192), (2048, 2048, 8192)  # of an all-gather
ROWS = 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384


def rand(*shape): return torch.randn(*shape, device="cuda").bfloat16()

def largest(x):
    "The largest of the ranks' numbers."
    found = torch.tensor([x], device="cuda", dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)

def seconds_of(call, count):
    "Wall-clock seconds of some calls."
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count): call()
    torch.cuda.synchronize()
    return time.perf_counter() - start

def times(calls: dict, rounds=11, target=3e-3):
    "ms per call, by name: see `METHOD`."
    for call in calls.values(): seconds_of(call, 2)
    mean = largest(sum(seconds_of(call, 3) for call in calls.values())) / (3 * len(calls))
    count, order, found = max(2, min(100, int(target / mean))), [*calls], {name: [] for name in calls}
    for _ in range(rounds):
        order.append(order.pop(0))
        for name in order:
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            dist.barrier()
            start.record()
            for _ in range(count): calls[name]()
            stop.record()
            stop.synchronize()
            found[name].append(start.elapsed_time(stop) / count)
    return {name: largest(statistics.median(ms)) for name, ms in found.items()}

def host_times(calls: dict):
    "µs that the host takes to queue a call, by name."
    found, count = {name: [] for name in calls}, 20
    for _ in range(11):
        for name, call in calls.items():
            torch.cuda.synchronize()
            dist.barrier()
            start = time.perf_counter()
            for _ in range(count): call()
            found[name].append(1e6 * (time.perf_counter() - start) / count)
    return {name: largest(statistics.median(us)) for name, us in found.items()}

def agree(calls):
    "`AssertionError` if a way's result isn't the first one's."
    first = None
    for name, call in calls.items():
        c = call().float()
        if first is None: first = c
        error = float((c - first).norm() / first.norm())
        if not error < 6e-3: raise AssertionError(f"{name}: {error:.1e} apart from NCCL + cuBLAS")


def gathering(m, n, k, ways, others=True):
    "The ways of an all-gather and a product; with `others` PyTorch's, and its two parts."
    ranks = dist.get_world_size()
    a, b = rand(m // ranks, k), rand(k, n)
    def plain():
        everyone = a.new_empty(m, k)
        dist.all_gather_into_tensor(everyone, a)
        return torch.mm(everyone, b)
    calls = {"NCCL + cuBLAS": plain}
    calls |= {way: lambda way=way: distributed.all_gather_gemm(a, b, None, way) for way in ways}
    if others: calls["async TP"] = lambda: torch.ops.symm_mem.fused_all_gather_matmul(
            a, [b], 0, dist.group.WORLD.group_name, return_A=False)[1][0]
    agree(calls)
    if not others: return calls
    everyone = a.new_empty(m, k)
    return calls | {"the all-gather alone": lambda: dist.all_gather_into_tensor(everyone, a),
                    "the product alone": lambda: torch.mm(everyone, b)}

def scattering(m, n, k, ways, others=True):
    "The same for a product and a reduce-scatter. A way may be a number of pieces, too."
    ranks = dist.get_world_size()
    a, b = rand(m, k), rand(k, n)
    def plain():
        c = torch.mm(a, b)
        mine = c.new_empty(m // ranks, n)
        dist.reduce_scatter_tensor(mine, c)
        return mine
    calls = {"NCCL + cuBLAS": plain}
    for way in ways:
        if isinstance(way, int):
            calls[f"{way} piece{'s' * (way > 1)}"] = partial(
                distributed.scattered_by_peers, a, b, dist.group.WORLD, way)
        else: calls[way] = partial(distributed.gemm_reduce_scatter, a, b, None, way)
    if others: calls["async TP"] = lambda: torch.ops.symm_mem.fused_matmul_reduce_scatter(
            a, b, "sum", 0, dist.group.WORLD.group_name)
    agree(calls)
    if not others: return calls
    c, mine = a.new_empty(m, n), a.new_empty(m // ranks, n)
    return calls | {"the reduce-scatter alone": lambda: dist.reduce_scatter_tensor(mine, c),
                    "the product alone": lambda: torch.mm(a, b)}


def moving(x):
    "Ways to move a tensor: the call, and how many of these a rank receives."
    rank, ranks = distributed.place()
    everyone, mine, after = x.new_empty(ranks * x.numel()), x.clone(), (rank + 1) % ranks
    to = peers.peer_memory(None, x.nbytes, x.device).tensor(after, x.numel())
    world = dist.group.WORLD
    return {"all-gather, NCCL": (lambda: dist.all_gather_into_tensor(everyone, x), ranks - 1),
            "reduce-scatter, NCCL": (lambda: dist.reduce_scatter_tensor(mine, everyone), ranks - 1),
            "to the next rank, NCCL": (
                lambda: distributed.exchange(x, after, mine, (rank - 1) % ranks, world)(), 1),
            "to the next rank, copy engine": (lambda: to.copy_(x), 1)}

def of_the_link():
    "GB/s that a rank receives."
    found = {}
    for mb in 4, 32, 128:
        x = rand(mb * 2**19)
        ways = moving(x)
        ms = times({name: call for name, (call, _) in ways.items()}, 7)
        found |= {f"{name}, {mb} MB": ways[name][1] * x.nbytes / 1e6 / ms[name] for name in ways}
    return {"what a GPU receives": ("GB/s", found)}

def of_one_product(size=16384):
    "TFLOP/s of a large product, on one GPU and on all."
    own, (a, b) = size // dist.get_world_size(), (rand(size, size), rand(size, size))
    rows = distributed.chunk_of(a, *distributed.place()).contiguous()
    calls = {"one GPU": lambda: torch.mm(a, b), "by rows, B on each": lambda: torch.mm(rows, b)}
    for make, shape, name in ((gathering, (size, own, size), "by columns"),
                              (scattering, (size, size, own), "by k")):
        calls |= {f"{name}, {way}": call for way, call in make(*shape, ("peers",), False).items()}
    ms = times(calls, 7, 0.05)
    return {f"{size}×{size}×{size}": ("TFLOP/s", {name: 2e-9 * size**3 / ms[name] for name in ms})}

def of_shapes():
    "ms of all ways, in shapes that take about as long to move as to multiply."
    gathered, scattered = {}, {}
    for m, n, k in SHAPES:
        for found, make, shape in (gathered, gathering, (m, n, k)), (scattered, scattering, (m, k, n)):
            ways = ("chunks", "peers", "stores")[:3 if make is scattering else 2]
            ms = times(make(*shape, ways), 9)
            found |= {f"{'×'.join(map(str, shape))}, {name}": value for name, value in ms.items()}
    return {"all-gather and multiply": ("ms", gathered), "multiply and reduce-scatter": ("ms", scattered)}

def of_stores(m=4096, n=8192, k=2048):
    "ms of a product that stores its results in the rank's own memory, or in the next rank's."
    rank, ranks = distributed.place()
    a, b, added = rand(m, k), rand(k, n), rand(m, n)
    here, memory = torch.empty_like(added), peers.peer_memory(None, added.nbytes, added.device)
    there = memory.tensor((rank + 1) % ranks, m, n)
    calls = {"cuBLAS, here": lambda: torch.mm(a, b, out=here),
             "cuBLAS, in the next rank's memory": lambda: torch.mm(a, b, out=there),
             "kernel 17, here": lambda: fused_layer(a, b, y=here),
             "kernel 17, in the next rank's memory": lambda: fused_layer(a, b, y=there),
             "kernel 17, here, with what arrived added": lambda: fused_layer(a, b, residual=added, y=here)}
    return {f"{m}×{n}×{k}, stored here or there": ("ms", times(calls, 9))}

def of_rows(n=2048, k=8192):
    "ms of NCCL + cuBLAS and of the library's ways, for few and for many rows; and the host's part of it."
    found, host = {"all-gather": {}, "reduce-scatter": {}}, {}
    for m in ROWS:
        rows = m // dist.get_world_size()
        pieces = [p for p in (1, 2, 4) if rows % (64 * p) == 0]
        for name, calls in (
                ("all-gather", gathering(m, n, k, ["plain", *["peers"] * bool(pieces)], False)),
                ("reduce-scatter", scattering(m, k, n, ["plain", *pieces], False))):
            ms = times(calls, 31 if m < 8192 else 11)
            found[name] |= {f"{m}, {way}": value for way, value in ms.items()}
            if m == 256: host |= {f"{name}, {way}": us for way, us in host_times(calls).items()}
    return {f"few rows and many, {name}": ("ms", values) for name, values in found.items()} | {
        "the host's time for a call": ("µs", host)}

def of_a_network(rows=8192, sizes=(4096, 16384, 4096), steps=21):
    "Losses and ms per step of two layers in bfloat16, by PyTorch's tensor parallel and by ours."
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    rank, ranks = distributed.place()
    mesh = init_device_mesh("cuda", (ranks,))
    torch.manual_seed(0)
    inside, hidden, outside = sizes
    def layers(): return (torch.nn.Linear(i, o, device="cuda").bfloat16()
                          for i, o in ((inside, hidden), (hidden, outside)))
    first, second = layers()
    stock = torch.nn.Sequential(copy.deepcopy(first), torch.nn.GELU(), copy.deepcopy(second))
    parallelize_module(stock, mesh, {"0": ColwiseParallel(input_layouts=Shard(0)),
                                     "2": RowwiseParallel(output_layouts=Shard(0))})
    ours = torch.nn.Sequential(tensor_parallel.ColumnParallelLinear(first, mesh), torch.nn.GELU(),
                               tensor_parallel.RowParallelLinear(second, mesh))
    teacher = torch.nn.Sequential(*layers())
    x = rand(rows, inside)
    dist.broadcast(x, 0)
    mine, y = (distributed.chunk_of(z, rank, ranks) for z in (x, teacher(x).detach()))
    losses, ms = {}, {}

    def training(net):
        optimizer = torch.optim.Adam(net.parameters(), lr=3e-4)
        def step():
            optimizer.zero_grad()
            loss = (net(mine) - y).float().square().sum() / (rows * outside)
            loss.backward()
            optimizer.step()
            return loss.detach()
        return step
    for name, net in ("PyTorch", stock), ("ours", ours):
        step = training(net)
        for number in range(steps):
            loss = step()
            dist.all_reduce(loss)
            if number % 5 == 0: losses[f"{name}, step {number}"] = float(loss)
        ms |= times({name: step}, 5, 0.02)
    return {"losses of two layers": ("loss", losses), "a step of two layers": ("ms", ms)}

def driver():
    "The driver's version."
    command = ["nvidia-smi", "-i", "0", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


PARTS = dict(shapes=of_shapes, one=of_one_product, rows=of_rows, stores=of_stores, network=of_a_network,
             link=of_the_link)

@call_parse
def main(
    parts: Param(f"of {', '.join(PARTS)}; all if none", str, nargs="*"),
    stage: Param("seconds that a part may take", float) = 120,
):
    "Time products on the GPUs that torchrun started a process for, and record them."
    warnings.simplefilter("ignore")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("nccl", timeout=timedelta(seconds=2 * stage), device_id=device)
    watch = distributed.Watch(stage, dist.distributed_c10d._get_default_store())
    today = date.today().isoformat()
    gpu = dict(schema=1, gpu=torch.cuda.get_device_name(), gpus=dist.get_world_size(), driver=driver(),
               cuda=torch.version.cuda, date=today, method=METHOD,
               versions=dict(python=platform.python_version(), torch=torch.__version__.split("+")[0],
                             nccl=".".join(map(str, torch.cuda.nccl.version()))))
    for part in parts or PARTS:
        watch(part)
        try: found = PARTS[part]()
        except Exception as e: watch.fail(distributed.first_line(e))
        if dist.get_rank(): continue
        for name, (unit, values) in found.items():
            lines = [f"  {label}: {value:.4g}" for label, value in values.items()]
            print(f"{name}, {unit}", *lines, sep="\n", flush=True)
        kept = {name: dict(unit=unit, values=values, date=today) for name, (unit, values) in found.items()}
        print(f"recorded in {write_several_card(gpu | dict(experiments=kept)).name}", flush=True)
    watch("the end")
    dist.barrier()
    torch.cuda.synchronize()
    watch.end()
    os._exit(0)  # a buffer that peers can reach mustn't go first
