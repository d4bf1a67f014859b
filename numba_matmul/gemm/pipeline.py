"""A producer fills the stages of a ring in shared memory, and consumers empty them: the layout, and who waits
for whom."""
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from ..ptx.core import shared_address
from ..ptx.hopper import (
    fence_mbarrier_init, mbarrier_arrive, mbarrier_arrive_cluster, mbarrier_init, mbarrier_wait)
from .tiles import WgmmaTile
from numba import cuda, uint32, uint64


@cuda.jit(device=True)
def swizzle_128b(
    row,    # of a tile with rows of 128 bytes
    chunk,  # of 16 bytes
) -> int:
    "The position of a chunk in its row, after the 128-byte swizzle."
    return chunk ^ row % 8


class TensorMaps(NamedTuple):
    "Addresses of two tensor maps, as seen by a kernel."
    a: int
    b: int

class SharedStorage(NamedTuple):
    "Addresses in a block's shared memory."
    ab_tiles: int  # the ring: one tile of A and one of B per stage
    c_tiles: int   # staging for the epilogue
    full: int      # one mbarrier per stage: its k tile has arrived
    empty: int     # one mbarrier per stage: its k tile has been multiplied
    order: int     # one more mbarrier, see `order_barrier` in lesson 17
    sums: int      # and another, see `split_k_epilogue`
    parts: int     # parts of sums that arrive from other blocks

@cache
def storage_layout(
    tile: WgmmaTile,
    c_bytes: int = 0,  # staging for the epilogue
) -> Callable:
    "A device function: an array in shared memory → `SharedStorage`, aligned to 1024 bytes."
    ring_bytes = tile.stages * tile.stage_bytes
    barrier_bytes = 8 * tile.stages  # of one kind

    @cuda.jit(device=True)
    def shared_storage(memory):
        start = uint32(uint32(shared_address(memory, uint64(0)) + uint32(1023)) & uint32(0xFFFFFC00))
        c_tiles = uint32(start + uint32(ring_bytes))
        full = uint32(c_tiles + uint32(c_bytes))
        order = uint32(full + uint32(2 * barrier_bytes))
        return SharedStorage(start, c_tiles, full, uint32(full + uint32(barrier_bytes)), order,
                             uint32(order + uint32(8)), uint32(order + uint32(16)))
    return shared_storage

class PipelineState(NamedTuple):
    "Where a thread is in the ring."
    stage: int
    phase: int  # parity of the stage's phase: it flips each time around

@cache
def pipeline_advance(
    stages: int,  # of the ring
) -> Callable:
    "A device function: the next `PipelineState`."
    @cuda.jit(device=True)
    def advance(state):
        stage, phase = uint32(state.stage + uint32(1)), state.phase
        if stage == uint32(stages):  # once around
            stage = uint32(0)
            phase = uint32(phase ^ uint32(1))
        return PipelineState(stage, phase)
    return advance


# Who waits for whom? The producer *acquires* a stage: it waits until the stage is empty. A consumer waits
# until it is full, and *releases* it after multiplying its k tile. In a new ring all stages are empty, but
# no phase has completed. A wait for phase 1 returns immediately on a fresh mbarrier, so that's the phase a
# producer starts with.

@cuda.jit(device=True)
def full_barrier(storage, stage):
    "Address of the mbarrier that completes a phase when the stage's k tile has arrived."
    return uint32(storage.full + uint32(8) * stage)

@cuda.jit(device=True)
def empty_barrier(storage, stage):
    "Address of the mbarrier that completes a phase when all consumers have released the stage."
    return uint32(storage.empty + uint32(8) * stage)

@cache
def barrier_init(
    stages: int,     # of the ring
    consumers: int,  # warpgroups
) -> Callable:
    "A device function: one thread makes the mbarriers."
    @cuda.jit(device=True)
    def init(storage, thread):
        if thread == 0:
            mbarrier_init(storage.order, uint32(1))
            for stage in range(stages):
                mbarrier_init(full_barrier(storage, stage), uint32(1))
                mbarrier_init(empty_barrier(storage, stage), uint32(4 * consumers))  # a warp arrives once
            fence_mbarrier_init()
    return init

@cuda.jit(device=True)
def producer_acquire(storage, state):
    "Wait until the stage is empty."
    mbarrier_wait(empty_barrier(storage, state.stage), state.phase)

@cuda.jit(device=True)
def consumer_wait(storage, state):
    "Wait until the stage is full."
    mbarrier_wait(full_barrier(storage, state.stage), state.phase)

@cuda.jit(device=True)
def consumer_release(
    storage,
    stage,
    releases,  # is this its warp's elected thread? see `TmaStore`
):
    "Release a stage: no product reads its k tile anymore."
    if releases: mbarrier_arrive(empty_barrier(storage, stage))

@cuda.jit(device=True)
def release_in_cluster(storage, stage, releases):
    "The same in both blocks of a cluster."
    if releases:
        mbarrier_arrive_cluster(empty_barrier(storage, stage), uint32(0))
        mbarrier_arrive_cluster(empty_barrier(storage, stage), uint32(1))

def release_of(tile): return consumer_release if tile.cluster == 1 else release_in_cluster
