"""Memory that the GPUs of a host can reach in each other, and kernel 17 for it.

`torch.distributed._symmetric_memory` maps a buffer of each rank into all of them: a peer's memory is a tensor
here. A copy between two such tensors goes over NVLink by the copy engines, without a multiprocessor. A kernel
that gets a peer's tensor as its C stores its tiles there, by TMA. What tells a peer that something has
arrived is a *flag*, a 32-bit number in its memory that counts calls. The stream writes it, after the copy or
the kernel before it, so the flag never comes first.

Multicast isn't used. Flags count calls on the host, so a CUDA graph can't replay these operations, and
`distributed` doesn't choose them there.
"""
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from .arrays import cdiv, to_d, to_h
from .gemm.epilogue import EPILOGUES
from .gemm.limits import sm_count
from .gemm.pipeline import TensorMaps
from .gemm.plan import Launch, Plan, driver_function, kept_plan, simulate_plan, stream_of
from .gemm.tensor_maps import TensorMapWords, ask_driver
from .gemm.tiles import BK, WgmmaTile
from .kernels import k16_tma_wgmma as k16, k17_warp_specialized as k17, k18_past_cublas_bf16 as k18
from .ptx.hopper import fence_proxy_async_global
from .torch_layer import array_of, fused_layer
from numba import config, cuda, int32, uint32


# A product that starts on rows of A as they arrive
#
# The ranks' rows of A make up the product's A, a *chunk* each. A rank has its own chunk at once; the others
# come over NVLink, in the order in which its neighbors follow. So its tiles are numbered from its own chunk
# on, and the producer waits for a tile's chunk before the first k tile.

class ArrivingMaps(NamedTuple):
    "What the producer needs."
    a: int      # address of the tensor map of all chunks, as they arrive
    b: int
    own: int    # address of the map of the rank's own chunk
    flags: object  # int32: of each rank, the last call whose chunk has arrived; then this call's number
    chunk: int  # rows of a chunk
    first: int  # row of C where the rank's own chunk starts
    rows: int   # of C

@cuda.jit(device=True)
def arriving_maps(maps, own, arriving, m):
    flags, chunk, first = arriving
    return ArrivingMaps(maps.a, maps.b, own, flags, chunk, first, uint32(m))

@cuda.jit(device=True)
def wait_for(flags, rank, ranks):
    "Wait until a rank's chunk of this call has arrived."
    while cuda.atomic.cas(flags, rank, int32(-1), int32(-1)) < flags[ranks]: pass
    cuda.threadfence_system()
    fence_proxy_async_global()

@cuda.jit(device=True)
def turned_row(row, first, rows):
    "The row of C, given a row that is counted from the rank's own chunk."
    row = uint32(row + first)
    return uint32(row - rows) if row >= rows else row

@cache
def arriving_loader(tile):
    "Kernel 17's `k_tile_loader`, after a wait for the tile's chunk."
    load = k16.k_tile_loader(tile)

    @cuda.jit(device=True)
    def load_k_tile(storage, stage, maps, row, col, k_tile):
        a = maps.own
        if row >= maps.chunk:  # not the rank's own
            a, row = maps.a, turned_row(row, maps.first, maps.rows)
            if k_tile == 0: wait_for(maps.flags, row // maps.chunk, maps.rows // maps.chunk)
        load(storage, stage, TensorMaps(a, maps.b), row, col, k_tile)
    return load_k_tile

@cache
def turned_epilogue(tile, predicated, read_c, scaled):
    "The overlapped epilogue, for rows counted from the rank's own chunk on."
    overlapped = EPILOGUES["overlapped"](tile, predicated, read_c, scaled)
    finish_tile = overlapped.finish

    @cuda.jit(device=True)
    def finish(acc, pending, to, part, row, col, thread, store):
        _, _, first = to.array
        row = turned_row(row, first, uint32(to.rows))
        return finish_tile(acc, pending, to, part, row, col, thread, store)
    return overlapped._replace(finish=finish)

def arriving_kernel(
    tile=k17.LARGE,  # a `WgmmaTile` that keeps kernel 17's rules; its rows divide a chunk's
):
    """Kernel 17 for C ← A·B, where all rows of A but the rank's own are still on their way. Its fourth tensor
    map is of the rank's own chunk, and instead of C it gets what `arriving_maps` unpacks."""
    arrivals = k17.Arrivals(arriving_maps, arriving_loader, turned_epilogue)
    return k17.bf16_gemm_warp_specialized_kernel(tile, "overlapped", False, False, False, arrivals=arrivals)


def arriving_tile(chunk, n, k, ranks) -> WgmmaTile:
    "The tile for chunks of this many rows, by kernel 18's estimate; None if no tile fits."
    tiles = [tile for tile in k18.CYCLES if chunk % tile.bm == 0 and k17.overlaps(tile)]
    return min(tiles, default=None, key=lambda tile: k18.estimate(chunk * ranks, n, k, sm_count(), tile))

def _arriving_plan(operands, first, k_major):
    "The plan of a product whose rows of A are arriving, and its operands as device arrays."
    gathered, b, c, own, flags = operands
    chunk, (m, k), n = own.shape[0], gathered.shape, c.shape[1]
    tile = arriving_tile(chunk, n, k, m // chunk)._replace(k_major_b=int(k_major))
    gathered, b, c, own = map(array_of, (gathered, b.t() if k_major else b, c, own))
    flags = to_d(flags.numpy()) if config.ENABLE_CUDASIM else cuda.as_cuda_array(flags, sync=False)
    maps = TensorMapWords((gathered, tile.bm), (b, tile.bn if k_major else BK), (c, 64), (own, tile.bm))
    args = (maps, (flags, np.uint32(chunk), np.uint32(first)), np.int64(m), np.int64(n), np.int64(k),
            np.uint32(1), np.float32(1), np.float32(0))
    tiles = m // tile.bm * cdiv(n, tile.bn)
    launch = Launch(arriving_kernel(tile), cdiv(tiles, cdiv(tiles, sm_count())),
                    k17.with_producer(tile), args, k17.shared_bytes(tile))
    return Plan([launch]), (gathered, b, c, own, flags)

def arriving_gemm(
    own: torch.Tensor,       # (m / ranks, k) bfloat16: the rank's chunk of A
    gathered: torch.Tensor,  # (m, k): the others' chunks arrive here
    b: torch.Tensor,         # (k, n), perhaps a transposed view
    flags: torch.Tensor,     # see `ArrivingMaps`
    rank: int,
) -> torch.Tensor:           # (m, n)
    "A·B by kernel 17, which starts on a chunk of A when its flag says that it's there."
    k_major, first = not b.is_contiguous(), rank * own.shape[0]
    c = own.new_empty(gathered.shape[0], b.shape[1])
    operands = gathered, b, c, own, flags
    if config.ENABLE_CUDASIM:
        plan, arrays = _arriving_plan(operands, first, k_major)
        simulate_plan(plan)
        return c.copy_(torch.from_numpy(to_h(arrays[2])).view(torch.bfloat16))
    device = own.get_device()
    packed = kept_plan((_arriving_plan, device, own.shape, gathered.shape, b.shape, first, k_major),
                       lambda: (*_arriving_plan(operands, first, k_major), range(len(operands))))
    packed([x.data_ptr() for x in operands], stream_of(device))
    return c


# Memory that the peers can reach

FLAG_BYTES = 4096  # at the start of the memory: flags of chunks, of partial sums, and this call's number

@cache
def _driver(name, count): return driver_function(name, count)

def _ask(name, *arguments): ask_driver(_driver(name, len(arguments)), *arguments)

class PeerMemory:
    """A buffer of each rank that all ranks of the group can write to, and the flags in it.

    A call uses one half of the buffer, the next call the other half. So no rank has to wait before it writes:
    a call ends here after something has arrived from each of the others. They sent it after they had ended
    the previous call, the last one to use the half that comes next."""
    def __init__(
        self,
        group,        # a process group of GPUs of one host
        size: int,    # bytes that a call can use
        device: torch.device,
    ):
        import torch.distributed._symmetric_memory as symmetric
        self.size, self.calls, self.device = size, 0, device
        self.memory = symmetric.empty(FLAG_BYTES + 2 * size, dtype=torch.uint8, device=device)
        self.handle = symmetric.rendezvous(self.memory, group)
        self.rank, self.ranks = self.handle.rank, self.handle.world_size
        self.addresses, self.tensors = list(self.handle.buffer_ptrs), {}
        self.flags = self.memory[:FLAG_BYTES].view(torch.int32)
        self.flags.zero_()
        # Streams of equal priority may share a queue, where one waits for the other.
        self.streams = torch.cuda.Stream(device, priority=-1), torch.cuda.current_stream(device)
        self.side, self.stream = (stream.cuda_stream for stream in self.streams)
        self.events = [self.streams[1].record_event() for _ in range(3)]
        self.ready, self.pushed, self.ended = (event.cuda_event for event in self.events)
        self.handle.barrier()

    def half(self) -> int:
        "Where this call's half of a buffer starts."
        return FLAG_BYTES + self.calls % 2 * self.size

    def tensor(
        self,
        rank: int,     # whose memory
        *shape: int,
    ) -> torch.Tensor:
        "This call's half of a rank's buffer, as a bfloat16 tensor."
        key = rank, shape, self.calls % 2
        if (found := self.tensors.get(key)) is None:
            found = self.tensors[key] = self.handle.get_buffer(rank, shape, torch.bfloat16, self.half() // 2)
        return found

    def begin(self):
        "Start the next call, in torch's current stream, after the previous one, even if that was in another."
        self.calls += 1
        stream = stream_of(self.device.index)
        if stream != self.stream: _ask("cuStreamWaitEvent", stream, self.ended, 0)
        self.stream = stream

    def push(self, x, peer, at, slot):
        "On the side stream, a copy engine writes a matrix into a peer's memory, and then a flag."
        _ask("cuEventRecord", self.ready, self.stream)
        _ask("cuStreamWaitEvent", self.side, self.ready, 0)
        _ask("cuMemcpyAsync", self.addresses[peer] + self.half() + at, x.data_ptr(), x.nbytes, self.side)
        self.write_flag(peer, slot, self.side)

    def end(self):
        "What comes next waits until the pushes are done: they read tensors of this call."
        _ask("cuEventRecord", self.pushed, self.side)
        _ask("cuStreamWaitEvent", self.stream, self.pushed, 0)
        _ask("cuEventRecord", self.ended, self.stream)

    def write_flag(self, rank, slot, stream=None):
        "In stream order: a flag in a rank's memory gets the number of this call."
        _ask("cuStreamWriteValue32_v2", stream or self.stream, self.addresses[rank] + 4 * slot, self.calls, 0)

    def wait_flag(self, slot):
        "The stream goes on once a flag in this rank's memory has the number of this call or a later one."
        _ask("cuStreamWaitValue32_v2", self.stream, self.addresses[self.rank] + 4 * slot, self.calls, 0)


SMALLEST = 2**27  # bytes
_MEMORY = {}  # group and device → `PeerMemory`

def peer_memory(
    group,       # None: all processes
    size: int,   # bytes, the same on each rank
    device: torch.device,
) -> PeerMemory:
    "A group's peer memory, which is kept. If a larger one is needed, all ranks replace it together."
    group = group or dist.group.WORLD
    found = _MEMORY.get((group, device))
    if found is None or found.size < size:
        torch.cuda.synchronize(device)
        dist.barrier(group)  # nobody writes to the old one any more
        _MEMORY.pop((group, device), None)
        found = _MEMORY[group, device] = PeerMemory(group, max(SMALLEST, 2**(size - 1).bit_length()), device)
    return found


# The two products

def all_gather_gemm(
    a: torch.Tensor,  # (m / ranks, k) bfloat16: the rank's rows of A
    b: torch.Tensor,  # (k, n)
    memory: PeerMemory,
) -> torch.Tensor:    # (m, n)
    "A·B in one launch, which starts with the rank's own rows while those of the others arrive."
    rank, ranks, (rows, k) = memory.rank, memory.ranks, a.shape
    memory.begin()
    for i in range(1, ranks):  # the rank before needs them first
        memory.push(a, (rank - i) % ranks, rank * a.nbytes, rank)
    memory.write_flag(rank, ranks)
    c = arriving_gemm(a, memory.tensor(rank, ranks * rows, k), b, memory.flags, rank)
    memory.end()
    return c

FILLED = 2 * 128 * 128 * 256  # results that give each multiprocessor about two tiles

def pieces_of(rows, n) -> int:
    "Into how many pieces a chunk is cut: two, if each still fills the GPU. More gained nothing."
    return 2 if rows % 128 == 0 and rows // 2 * n >= FILLED else 1

def gemm_reduce_scatter(
    a: torch.Tensor,  # (m, k / ranks) bfloat16: the rank's columns of A
    b: torch.Tensor,  # (k / ranks, n): its rows of B
    memory: PeerMemory,
    pieces: int = None,  # of a chunk; 1: the kernel itself stores in the next rank's memory
) -> torch.Tensor:    # (m / ranks, n): the rank's rows of C
    """Each chunk of C visits every rank and ends at the one it belongs to. A rank adds its product to what
    it received, in the epilogue of kernel 17, before rounding. While a piece of the sum travels to the
    next rank, the next piece is multiplied."""
    (m, k), (rank, ranks), n = a.shape, (memory.rank, memory.ranks), b.shape[1]
    rows = m // ranks
    pieces = pieces or pieces_of(rows, n)
    after, sums = (rank + 1) % ranks, ((ranks - 1) * pieces, rows // pieces, n)
    memory.begin()
    factors = a.view(ranks * pieces, -1, k).unbind()
    received = memory.tensor(rank, *sums).unbind()
    sent = (memory.tensor(after, *sums) if pieces == 1 else a.new_empty(sums)).unbind()
    c = a.new_empty(rows, n)
    results = c.view(pieces, -1, n).unbind()
    for step in range(ranks):
        owner, is_last = (rank - 1 - step) % ranks, step == ranks - 1
        for piece in range(pieces):
            number, arrived = step * pieces + piece, None
            flag = ranks + 1 + number
            if step:
                memory.wait_flag(flag - pieces)
                arrived = received[number - pieces]
            total = results[piece] if is_last else sent[number]
            fused_layer(factors[owner * pieces + piece], b, residual=arrived, y=total)
            if is_last: continue
            if pieces == 1: memory.write_flag(after, flag)
            else: memory.push(total, after, number * total.nbytes, flag)
    memory.end()
    return c
