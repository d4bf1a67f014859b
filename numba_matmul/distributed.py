"""A product on several GPUs, with `torch.distributed`: cut by rows, by columns or by k, and what moves.

`torchrun --nproc-per-node 4 -m numba_matmul.distributed` checks every cut against float64 and prints a table:
one process per GPU with NCCL, or processes with gloo where there is no GPU."""
import multiprocessing
import multiprocessing.connection
import os
import platform
import re
import sys
import tempfile
import threading
import time
from datetime import timedelta
from functools import cache, partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from fastcore.script import Param, call_parse

from . import peers, torch_ops
from .gemm.plan import is_captured
from .torch_layer import aligned_for_tma, has_wgmma


# Collectives: the methods behind PyTorch's functions, where checks and logging can take longer than a product

def _options(kind):
    found = kind()
    found.asyncOp = False  # in the order of the current stream
    return found

GATHER_OPTIONS = _options(dist.distributed_c10d.AllgatherOptions)
SCATTER_OPTIONS = _options(dist.distributed_c10d.ReduceScatterOptions)

def all_gather(everyone, x, group):
    "The rows of all ranks."
    if work := group._allgather_base(everyone, x, GATHER_OPTIONS): work.wait()
    return everyone

def reduce_scatter(mine, x, group):
    "The rank's rows of the sum of all ranks' matrices."
    if work := group._reduce_scatter_base(mine, x, SCATTER_OPTIONS): work.wait()
    return mine


# Products of what a rank has

def product(a, b, out=None):
    "A rank's own product: the course's kernel in float32, cuBLAS's in bfloat16; PyTorch's without a GPU."
    if not (a.is_cuda and a.dtype == torch.float32): return torch.mm(a, b, out=out)
    c = torch_ops.matmul(a, b, False)
    return c if out is None else out.copy_(c)

def place(group=None) -> tuple:  # rank, number of ranks
    "The rank of this process in the group; None: the group of all processes."
    group = group or dist.group.WORLD
    return group.rank(), group.size()

def chunk_of(x, rank, ranks, dim=0):
    "A rank's share of a matrix that is cut into equal chunks. `ValueError` if it can't be."
    size = x.shape[dim]
    if size % ranks:
        raise ValueError(f"{size} {'columns' if dim else 'rows'} can't be cut into {ranks} equal chunks: "
                         f"pad them to {size + -size % ranks}")
    return x.narrow(dim, rank * size // ranks, size // ranks)

def aligned(x):
    "A matrix that the TMA can copy: a transposed view stays one, and any other view becomes row-major."
    if not (x.is_contiguous() or x.t().is_contiguous()): x = x.contiguous()
    return x if aligned_for_tma(x) else x.clone()

def exchange(outgoing, to, incoming, source, group):
    "Start sending one tensor and receiving another. Returns a function that waits for both."
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, outgoing, group=group, group_peer=to),
                                    dist.P2POp(dist.irecv, incoming, group=group, group_peer=source)])
    return lambda: [work.wait() for work in works]


# All-gather, then multiply: a rank has rows of A, and gets those of the others

def gathered_first(a, b, group):
    "All rows arrive, then one product."
    everyone = a.new_empty(a.shape[0] * group.size(), a.shape[1])
    return product(all_gather(everyone, a, group), b)

def gathered_by_chunks(a, b, group):
    "A rank multiplies its own rows while those of the others arrive, and then each of theirs."
    rank, ranks = place(group)
    arriving, c = a.new_empty(ranks, *a.shape), a.new_empty(ranks, a.shape[0], b.shape[1])
    after = [(rank + i) % ranks for i in range(1, ranks)]
    waits = [exchange(a, (2 * rank - other) % ranks, arriving[other], other, group) for other in after]
    product(a, b, c[rank])
    for other, wait in zip(after, waits):
        wait()
        product(arriving[other], b, c[other])
    return c.flatten(0, 1)

def gathered_by_peers(a, b, group):
    "Kernel 17 starts on rows as they arrive by NVLink, see `peers`."
    memory = peers.peer_memory(group, a.nbytes * place(group)[1], a.device)
    return peers.all_gather_gemm(aligned(a), aligned(b), memory)


# Multiply, then reduce-scatter: a rank has columns of A and rows of B, and gets rows of the sum

def scattered_last(a, b, group):
    "One product, then all parts are added up."
    c = product(a, b)
    return reduce_scatter(c.new_empty(c.shape[0] // group.size(), c.shape[1]), c, group)

def scattered_by_chunks(a, b, group):
    "Others' rows first: while a part travels, the next is multiplied. The parts are added up in float32."
    rank, ranks = place(group)
    before = [(rank - i) % ranks for i in range(1, ranks)]
    arriving = a.new_empty(ranks, a.shape[0] // ranks, b.shape[1])
    parts, waits = [], []
    for other in before:
        parts.append(product(chunk_of(a, other, ranks), b))
        source = (2 * rank - other) % ranks
        waits.append(exchange(parts[-1], other, arriving[source], source, group))
    product(chunk_of(a, rank, ranks), b, arriving[rank])
    for wait in waits: wait()
    return arriving.sum(0, dtype=torch.float32).to(a.dtype)

def scattered_by_peers(a, b, group, pieces=None):
    "Kernel 17 adds what arrived before it rounds, and sums travel piece by piece, see `peers`."
    memory = peers.peer_memory(group, 2 * a.shape[0] * b.shape[1], a.device)
    return peers.gemm_reduce_scatter(aligned(a), aligned(b), memory, pieces)


# Which way?

class Lines(NamedTuple):
    "What bounds a product on several GPUs."
    flops: float    # of a GPU, per second
    link: float     # bytes that a GPU receives per second, while it sends as many
    plain: float    # seconds that the host needs to queue a collective and a product,
    gather: float   # the call of kernel 17 that waits for rows,
    scatter: float  # and the calls that add up sums by way of the peers' memory

HOPPER = Lines(flops=650e12, link=250e9, plain=110e-6, gather=90e-6, scatter=120e-6)
GATHER = dict(plain=gathered_first, chunks=gathered_by_chunks, peers=gathered_by_peers)
SCATTER = dict(plain=scattered_last, chunks=scattered_by_chunks, peers=scattered_by_peers,
               stores=partial(scattered_by_peers, pieces=1))  # the epilogue stores in the next rank's memory
WORTH = 1.08  # how many times as fast an estimate must be, to leave NCCL and cuBLAS for it
def seconds(
    m, n, k,  # of a rank's product
    moved,    # numbers that a rank receives
    lines,    # see `Lines`
) -> tuple:   # of the product, and of what moves
    "The time that each of the two takes at its bound, in bfloat16."
    return 2 * m * n * k / lines.flops, 2 * moved / lines.link

def choose(
    m, n, k,  # of a rank's product
    moved,    # numbers that a rank receives
    queue: str = "gather",  # or "scatter": see `Lines`
    lines=HOPPER,
) -> str:
    "By way of the peers' memory, or plain? For bfloat16 on GPUs that can do both."
    compute, link = seconds(m, n, k, moved, lines)
    plain = max(lines.plain, link + compute)
    by_peers = max(getattr(lines, queue), link, compute)
    return "peers" if moved and plain > WORTH * by_peers else "plain"

@cache
def one_host(group) -> bool:
    "Are the group's GPUs on one host, and all Hopper's? The ranks ask each other, once."
    _, ranks = place(group)
    fits = torch.cuda.is_available() and has_wgmma(torch.device("cuda", torch.cuda.current_device()))
    found = [None] * ranks
    dist.all_gather_object(found, (platform.node(), fits), group=group)
    return all(answer == (platform.node(), True) for answer in found)

def way_for(a, b, rows, moved, queue, group) -> str:
    """A way that all ranks choose alike, since it depends on shapes and types alone. `rows`: of a chunk;
    `moved`: numbers that a rank receives; `queue`: see `choose`."""
    ranks = place(group)[1]
    if not (a.is_cuda and a.dtype == torch.bfloat16 and ranks > 1) or is_captured(): return "plain"
    k, n = b.shape
    if rows % 64 or k % 8 or n % 8 or not one_host(group): return "plain"
    return choose(rows * ranks, n, k, moved, queue)

_CALLS = {}  # what a call looks like → the function for it

def _call(ways, a, b, group, way):
    "The first call of a kind is checked, and a way is chosen; later ones are looked up."
    group = group or dist.group.WORLD
    captured = is_captured()
    try: key = id(ways), a.shape, b.shape, a.dtype, b.dtype, a.device, b.device, group, way, captured
    except AttributeError: torch_ops.need_tensors(a=a, b=b)
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        raise RuntimeError("there is no gradient here: use the layers of numba_matmul.tensor_parallel, "
                           "or torch.no_grad()")
    if (found := _CALLS.get(key)) is None:
        torch_ops.check_operands(a, b)
        if group is None:
            raise RuntimeError("there is no process group: call torch.distributed.init_process_group first")
        if way not in (None, *ways): raise ValueError(f"way is {way!r}; expected one of {', '.join(ways)}")
        if captured and way in ("peers", "stores"):
            raise RuntimeError(f"a CUDA graph can't replay {way}, which counts its calls: leave out `way`")
        ranks = group.size()
        rows = a.shape[0] if ways is GATHER else chunk_of(a, 0, ranks).shape[0]
        moved = (ranks - 1) * rows * (a if ways is GATHER else b).shape[1]
        queue = "gather" if ways is GATHER else "scatter"
        found = _CALLS[key] = ways[way or way_for(a, b, rows, moved, queue, group)]
    return found(a if a.is_contiguous() else a.contiguous(), b, group)

def all_gather_gemm(
    a: torch.Tensor,   # (m / ranks, k): the rank's rows of A, the same number on each
    b: torch.Tensor,   # (k, n): the same size on each rank
    group=None,        # a process group; all processes if None
    way: str = None,   # a key of `GATHER`; the one that should be fastest if None
) -> torch.Tensor:     # (m, n)
    "The rows of A from all ranks, times the rank's own B."
    return _call(GATHER, a, b, group, way)

def gemm_reduce_scatter(
    a: torch.Tensor,   # (m, k / ranks): the rank's columns of A
    b: torch.Tensor,   # (k / ranks, n): its rows of B
    group=None, way: str = None,  # as in `all_gather_gemm`, of `SCATTER`
) -> torch.Tensor:     # (m / ranks, n)
    "The rank's rows of the sum of all ranks' products."
    return _call(SCATTER, a, b, group, way)


# Ranks that fail, and ranks that hang

LOST = re.compile("[Cc]onnection (closed|reset|refused)|[Tt]imed out|Broken pipe")  # another rank's fault

def first_line(error: Exception) -> str:
    "An exception in one line."
    return f"{type(error).__name__}: {error}".splitlines()[0]

class Watch:
    """Ends this process if the next stage takes too long. Ranks write down where they are, so the message can
    tell who never got there; only the first one to notice prints it."""
    def __init__(
        self,
        seconds: float,  # that a stage may take
        store,           # of the process group
    ):
        self.rank, self.ranks = place()
        self.seconds, self.store, self.timer = seconds, store, None
        self("the start")

    def __call__(self, stage: str):
        "The next stage begins."
        self.end()
        self.stage = stage
        self.store.set(f"stage of {self.rank}", stage)
        self.timer = threading.Timer(self.seconds, self.fail, [f"not finished within {self.seconds:g} s"])
        self.timer.daemon = True
        self.timer.start()

    def end(self):
        if self.timer: self.timer.cancel()

    def fail(self, why: str):
        "Print one message for all ranks, and end this process."
        if LOST.search(why): why = "lost another rank, whose exit code torchrun prints below"
        last = threading.Timer(5, os._exit, [1])  # if the store doesn't answer
        last.daemon = True
        last.start()
        try:
            if self.store.add("failed", 1) == 1: print(self.message(why), file=sys.stderr, flush=True)
        except Exception: print(f"{why}; the store is gone, too. All ranks end.", file=sys.stderr, flush=True)
        os._exit(1)

    def message(self, why):
        "What happened, where, and which ranks are elsewhere."
        text = f"rank {self.rank} of {self.ranks}, {self.stage}: {why}."
        for rank in range(self.ranks):
            key = f"stage of {rank}"
            stage = self.store.get(key).decode() if self.store.check([key]) else "not there yet"
            if stage != self.stage: text += f" Rank {rank} is at another stage: {stage}."
        return text + " All ranks end."


class RanksFailed(RuntimeError):
    "A rank of `run_ranks` failed, died, or didn't finish in time."

def _rank_main(connection, fn, args, rank, ranks, store, seconds):
    "A process of `run_ranks`."
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    try:
        dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks,
                                timeout=timedelta(seconds=0.8 * seconds))
        connection.send((True, fn(*args)))
    except Exception as e: connection.send((False, first_line(e)))
    os._exit(0)

def run_ranks(
    fn,            # function, called with `args` in each process of a group
    ranks: int,
    *args,
    seconds=60,    # until all are ended
) -> list:         # what the function returned, by rank
    """Processes of this machine as a group (gloo), without a GPU. `RanksFailed` names one rank that failed or
    didn't finish; by then all have ended."""
    context, results, failed = multiprocessing.get_context("fork"), {}, {}
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [context.Pipe(False) for _ in range(ranks)], []
        for rank, (_, sender) in enumerate(pipes):
            args_of = sender, fn, args, rank, ranks, f"{folder}/store", seconds
            processes.append(context.Process(target=_rank_main, args=args_of, daemon=True))
            processes[-1].start()
            sender.close()
        end, left = time.monotonic() + seconds, {pipe: rank for rank, (pipe, _) in enumerate(pipes)}
        while left and (ready := multiprocessing.connection.wait(left, max(0, end - time.monotonic()))):
            for pipe in ready:
                rank = left.pop(pipe)
                try: ok, answer = pipe.recv()
                except EOFError:
                    processes[rank].join()
                    ok, answer = False, f"ended with status {processes[rank].exitcode}"
                (results if ok else failed)[rank] = answer
                if not ok and not LOST.search(answer): end = min(end, time.monotonic() + 0.5)
        for process in processes:
            process.kill()
            process.join()
    if not failed and not left: return [results[rank] for rank in range(ranks)]
    own = {rank: text for rank, text in failed.items() if not LOST.search(text)}
    late = {rank: f"not finished within {seconds:g} s" for rank in left.values()}
    rank, text = next(iter((own or late or failed).items()))
    raise RanksFailed(f"rank {rank} of {ranks}: {text}. All ranks were stopped.")


# The check

class Row(NamedTuple):
    "A line of the table."
    cut: str
    way: str
    received: float  # MB that a rank gets from others
    ms: float
    tflops: float    # of all ranks together
    error: float     # against float64, Frobenius norm

def cuts(a, b, group=None):
    "Every cut of A·B: name, way, numbers that a rank receives, the call, and which part of C it returns."
    rank, ranks = place(group)
    rows, cols = chunk_of(a, rank, ranks), chunk_of(b, rank, ranks, 1).contiguous()
    own_a, own_b = chunk_of(a, rank, ranks, 1).contiguous(), chunk_of(b, rank, ranks)
    others = ranks - 1
    yield "by rows", "B on each", 0, lambda: product(rows, b), lambda c: chunk_of(c, rank, ranks)
    yield "by columns", "A on each", 0, lambda: product(a, cols), lambda c: chunk_of(c, rank, ranks, 1)
    peers_too = rows.is_cuda and a.dtype == torch.bfloat16 and one_host(group)
    for way in GATHER:
        if way == "peers" and not peers_too: continue
        yield ("by columns", way, others * rows.numel(), partial(all_gather_gemm, rows, cols, group, way),
               lambda c: chunk_of(c, rank, ranks, 1))
    for way in SCATTER:
        if way in ("peers", "stores") and not peers_too: continue
        yield ("by k", way, others * rows.shape[0] * b.shape[1],
               partial(gemm_reduce_scatter, own_a, own_b, group, way), lambda c: chunk_of(c, rank, ranks))

def device() -> torch.device:
    "Where this rank's matrices are: with NCCL on its GPU."
    if dist.get_backend() != "nccl": return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())

def timed(call, runs=5) -> float:
    "Seconds of a call on the slowest rank: the median of several calls, each after a barrier."
    times, finish = [], torch.cuda.synchronize if device().type == "cuda" else lambda: None
    for _ in range(runs):
        dist.barrier()
        finish()
        start = time.perf_counter()
        call()
        finish()
        times.append(time.perf_counter() - start)
    slowest = torch.tensor(sorted(times)[runs // 2], device=device())
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)

def check_cuts(size: int, dtype: torch.dtype, watch=lambda stage: None) -> list:  # of `Row`s
    "Every cut of a product, compared with float64. `AssertionError` on every rank if one is wrong on any."
    ranks = place()[1]
    # no two sizes are the same, and all can be cut
    unit = 64 * ranks
    m, n, k = (max(1, size // unit + more) * unit for more in (0, 1, 2))
    torch.manual_seed(0)
    a, b = (torch.randn(shape).to(device(), dtype) for shape in ((m, k), (k, n)))
    exact, found = a.double() @ b.double(), []
    bound = (1e-6 if dtype == torch.float32 else 2e-3) * (1 + ranks) ** 0.5
    for cut, way, moved, call, part in cuts(a, b):
        watch(f"{cut}, {way}")
        wanted = part(exact)
        error = ((call().double() - wanted).norm() / wanted.norm()).float()
        dist.all_reduce(error, dist.ReduceOp.MAX)
        if not error < bound:
            raise AssertionError(f"{cut}, {way}: the error is {error:.1e}, expected less than {bound:.1e}")
        time = timed(call)
        found.append(Row(cut, way, moved * a.itemsize / 1e6, 1e3 * time, 2e-12 * m * n * k / time,
                         float(error)))
    return found


@call_parse
def main(
    size: Param("m; n and k are a little larger", int) = None,
    dtype: Param("float32 or bfloat16", str, choices=["float32", "bfloat16"]) = "bfloat16",
    seconds: Param("that a stage may take", float) = 60,
):
    "Check every cut of a product on the ranks that torchrun started, and print a table."
    if "RANK" not in os.environ:
        sys.exit("start it with torchrun: torchrun --nproc-per-node 4 -m numba_matmul.distributed")
    on_gpu, local = torch.cuda.is_available(), int(os.environ["LOCAL_RANK"])
    if on_gpu and local >= torch.cuda.device_count():
        sys.exit(f"there are {torch.cuda.device_count()} GPUs for {os.environ['LOCAL_WORLD_SIZE']} ranks: "
                 f"pass --nproc-per-node {torch.cuda.device_count()}")
    if on_gpu: torch.cuda.set_device(local)
    else: torch.set_num_threads(1)
    # The watch is faster than the process group, whose own timeout says less.
    options = dict(device_id=torch.device("cuda", local)) if on_gpu else {}
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(seconds=2 * seconds), **options)
    watch = Watch(seconds, dist.distributed_c10d._get_default_store())
    try: rows = check_cuts(size or (4096 if on_gpu else 128), getattr(torch, dtype), watch)
    except Exception as e: watch.fail(first_line(e))
    watch("the end")
    if not watch.rank:
        where = torch.cuda.get_device_name() if on_gpu else "gloo, without a GPU"
        print(f"{watch.ranks} ranks ({where}), {dtype}; every part of C compared with float64")
        print(f"{'cut':12}{'way':12}{'MB received':>12}{'ms':>10}{'TFLOP/s':>10}{'error':>10}")
        for row in rows:
            print(f"{row.cut:12}{row.way:12}{row.received:12.3g}{row.ms:10.3f}{row.tflops:10.3g}{row.error:10.1e}")
    dist.barrier()
    watch.end()
    sys.stdout.flush()
    os._exit(0)  # what other ranks can reach isn't taken apart
