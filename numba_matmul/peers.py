"""Memory that the GPUs of a host can reach in each other, and kernel 17 for it.

`torch.distributed._symmetric_memory` maps a buffer of each rank into all of them: a peer's memory is a tensor
here. A copy between two such tensors goes over NVLink by the copy engines, without a multiprocessor. A kernel
that gets a peer's tensor as its C stores its tiles there, by TMA. What tells a peer that something has
arrived is a *flag*, a 32-bit number in its memory that counts calls. The stream writes it, after the copy or
the kernel before it, so the flag never comes first.

Multicast isn't used. Flags count calls on the host, so a CUDA graph can't replay these operations.
"""
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from .arrays import cdiv, to_d, to_h
from .gemm.epilogue import EPILOGUES, Target, c_bytes
from .gemm.limits import sm_count
from .gemm.pipeline import TensorMaps, storage_layout
from .gemm.plan import Launch, Plan, kept_plan, simulate_plan, stream_of
from .gemm.schedule import persistent_scheduler
from .gemm.tensor_maps import TensorMapWords, ask_driver
from .gemm.tiles import BK, WgmmaTile, check_tile
from .kernels import k16_tma_wgmma as k16, k17_warp_specialized as k17, k18_past_cublas_bf16 as k18
from .ptx.core import bind
from .ptx.hopper import setmaxnreg_dec, setmaxnreg_inc, tensor_map_address
from .torch_layer import array_of, fused_layer
from numba import config, cuda, float32, int32, uint16, uint32


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

@bind("fence.proxy.async.global;")
def fence_proxy_async_global():
    """Whatever this thread has seen in global memory is visible to the copies it issues from here on. PTX
    ISA, fence.proxy.async."""

@cuda.jit(device=True)
def wait_for(flags, rank, ranks):
    "Wait until a rank's chunk of this call has arrived."
    while cuda.atomic.cas(flags, rank, int32(-1), int32(-1)) < flags[ranks]: pass
    cuda.threadfence_system()
    fence_proxy_async_global()

@cuda.jit(device=True)
def turned_row(row, first, rows):
    "The row of C of a row counted from the rank's own chunk on."
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
def turned_epilogue(tile):
    "The overlapped epilogue, for rows counted from the rank's own chunk on."
    overlapped = EPILOGUES["overlapped"](tile, False, False, False)
    finish_tile = overlapped.finish

    @cuda.jit(device=True)
    def finish(acc, pending, to, part, row, col, thread, store):
        first, rows = to.array
        return finish_tile(acc, pending, to, part, turned_row(row, first, rows), col, thread, store)
    return overlapped._replace(finish=finish)

@cache
def bf16_gemm_arriving_kernel(
    tile=k17.LARGE,  # a `WgmmaTile` that keeps kernel 17's rules; its rows divide a chunk's
):
    "Kernel 17 for C ← A·B, where all rows of A but the rank's own are still on their way."
    check_tile(tile, k17.RULES)
    consumers = tile.warpgroups
    shared_storage = storage_layout(tile, c_bytes(tile))
    init = k17.barrier_init(tile.stages, consumers)
    work_grid = persistent_scheduler(tile, False).work_grid
    distance = k17.stagger_distance(tile.stages) if consumers == 2 else 0
    produce = k17.producer_loop(tile, False, arriving_loader(tile))
    consume = k17.consumer_loop(tile, False, turned_epilogue(tile), distance, k17.bf16_mainloop(tile))
    producer_registers = k17.PRODUCER_REGISTERS[consumers]
    consumer_registers = k17.CONSUMER_REGISTERS[consumers]

    @cuda.jit(lineinfo=True, launch_bounds=(k17.with_producer(tile), 1))
    def bf16_gemm_arriving_kernel(
        tensor_maps,  # `TensorMapWords`: A in boxes of bm rows, B and C, and the rank's own chunk
        flags, chunk, first,  # see `ArrivingMaps`
        m, n, k,
    ):
        storage = shared_storage(cuda.shared.array(0, uint16, alignment=16))
        thread = uint32(cuda.threadIdx.x)
        maps = ArrivingMaps(tensor_map_address(tensor_maps, 0), tensor_map_address(tensor_maps, 1),
                            tensor_map_address(tensor_maps, 3), flags, chunk, first, uint32(m))
        init(storage, thread)
        cuda.syncthreads()
        grid = work_grid(m, n, k, uint32(1))
        target = Target((first, uint32(m)), m, n, float32(1), float32(0))
        work, step = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x)
        if thread < 128:
            setmaxnreg_dec(producer_registers)
            if thread == 0: produce(storage, maps, grid, work, step)
        else:
            setmaxnreg_inc(consumer_registers)
            consume(storage, tensor_map_address(tensor_maps, 2), grid, work, step, target, thread)
    return bf16_gemm_arriving_kernel


def arriving_tile(chunk, n, k, ranks) -> WgmmaTile:
    "The tile for chunks of so many rows: kernel 18's estimate chooses; None if there is none."
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
    args = maps, flags, np.uint32(chunk), np.uint32(first), np.int64(m), np.int64(n), np.int64(k)
    tiles = m // tile.bm * cdiv(n, tile.bn)
    launch = Launch(bf16_gemm_arriving_kernel(tile), cdiv(tiles, cdiv(tiles, sm_count())),
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

class PeerMemory:
    "A buffer of each rank that all ranks of the group can write to, and the flags in it."
    def __init__(
        self,
        group,        # a process group of GPUs of one host
        size: int,    # bytes
        device: torch.device,
    ):
        import torch.distributed._symmetric_memory as symmetric
        self.size, self.calls = size, 0
        self.memory = symmetric.empty(FLAG_BYTES + size, dtype=torch.uint8, device=device)
        self.handle = symmetric.rendezvous(self.memory, group)
        self.rank, self.ranks, self.device = self.handle.rank, self.handle.world_size, device
        self.flags = self.memory[:FLAG_BYTES].view(torch.int32)
        self.flags.zero_()
        self.side, self.event = torch.cuda.Stream(device), torch.cuda.Event()
        self.addresses, self.tensors = list(self.handle.buffer_ptrs), {}
        self.handle.barrier()

    def tensor(
        self,
        rank: int,     # whose memory
        *shape: int, dtype: torch.dtype = torch.bfloat16,
    ) -> torch.Tensor:
        "A rank's buffer as a tensor."
        if (found := self.tensors.get((rank, shape, dtype))) is None:
            found = self.handle.get_buffer(rank, shape, dtype, FLAG_BYTES // dtype.itemsize)
            self.tensors[rank, shape, dtype] = found
        return found

    def _waits(self, stream, other):
        "What comes next in a stream waits for what is in the other one."
        self.event.record(other)
        stream.wait_event(self.event)

    def begin(self):
        "A call begins when all ranks are through with the call before, in the order of their streams."
        self.calls += 1
        self.handle.barrier()

    def push(self, x, peer, at, slot):
        "On the side stream, a copy engine writes a matrix into a peer's memory, and then a flag."
        from cuda.bindings import driver as b
        self._waits(self.side, torch.cuda.current_stream())
        stream = self.side.cuda_stream
        ask_driver(b.cuMemcpyAsync, self.addresses[peer] + FLAG_BYTES + at, x.data_ptr(), x.nbytes, stream)
        self.write_flag(peer, slot, stream)

    def end(self):
        "What comes next waits until the pushes are through: they read tensors of this call."
        self._waits(torch.cuda.current_stream(), self.side)

    def write_flag(self, rank, slot, stream=None):
        "In stream order: a flag in a rank's memory gets the number of this call."
        from cuda.bindings import driver as b
        stream = stream or stream_of(self.device.index)
        ask_driver(b.cuStreamWriteValue32, stream, self.addresses[rank] + 4 * slot, self.calls, 0)

    def wait_flag(self, slot):
        "The stream goes on when a flag in this rank's memory has the number of this call."
        from cuda.bindings import driver as b
        stream, at = stream_of(self.device.index), self.addresses[self.rank] + 4 * slot
        at_least = b.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
        ask_driver(b.cuStreamWaitValue32, stream, at, self.calls, at_least)


SMALLEST = 2**28  # bytes
_MEMORY = {}  # group and device → `PeerMemory`

def peer_memory(
    group,       # None: all processes
    size: int,   # bytes, the same on each rank
    device: torch.device,
) -> PeerMemory:
    "A group's peer memory, which lasts; for a larger size all ranks replace it together."
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
    "Into how many pieces a chunk is cut, so that each still fills the GPU."
    return max(p for p in (1, 2, 4) if p == 1 or rows % (64 * p) == 0 and rows // p * n >= FILLED)

def gemm_reduce_scatter(
    a: torch.Tensor,  # (m, k / ranks) bfloat16: the rank's columns of A
    b: torch.Tensor,  # (k / ranks, n): its rows of B
    memory: PeerMemory,
    pieces: int = None,  # of a chunk; 1: the kernel itself stores in the next rank's memory
) -> torch.Tensor:    # (m / ranks, n): the rank's rows of C
    """Each chunk of C visits all ranks, the one it belongs to last. Each adds its product to what it
    received, in the epilogue of kernel 17, before rounding. While a piece of the sum travels to the next
    rank, the next piece is multiplied."""
    rank, ranks, n, rows = memory.rank, memory.ranks, b.shape[1], a.shape[0] // memory.ranks
    pieces = pieces or pieces_of(rows, n)
    after, shape = (rank + 1) % ranks, (ranks - 1, pieces, rows // pieces, n)
    theirs, ours = (memory.tensor(r, *shape) for r in (after, rank))
    sums = theirs if pieces == 1 else a.new_empty(shape)
    c = a.new_empty(shape[1:])
    memory.begin()
    for step in range(ranks):
        owner, is_last = (rank - 1 - step) % ranks, step == ranks - 1
        chunk = a[owner * rows:(owner + 1) * rows].unflatten(0, (pieces, -1))
        for piece in range(pieces):
            number, received = step * pieces + piece, None
            flag = ranks + 1 + number
            if step:
                memory.wait_flag(flag - pieces)
                received = ours[step - 1, piece]
            total = c[piece] if is_last else sums[step, piece]
            fused_layer(chunk[piece], b, residual=received, y=total)
            if is_last: continue
            if pieces == 1: memory.write_flag(after, flag)
            else: memory.push(total, after, number * total.nbytes, flag)
    memory.end()
    return c.flatten(0, 1)
