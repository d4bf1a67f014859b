"How a consumer multiplies: what differs from kernel to kernel, and the first k tiles of a tile of C."
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from ..static import static, unrolled
from .epilogue import boxes_storer
from .pipeline import consumer_wait, pipeline_advance, release_of
from .tiles import WgmmaTile
from numba import cuda


class Mainloop(NamedTuple):
    "How a consumer multiplies k tiles."
    zeros: tuple         # its accumulators
    first_mma: Callable  # device function (acc, storage, stage, warpgroup) → acc: the first k tile of a sum
    mma: Callable        # the same for the others; on return the products of the call before are complete
    wait: Callable       # device function acc → acc: all products are complete
    # device function (zeros, target, `WorkGrid`, number of the tile, first k tile, thread) → acc, if it needs
    # to know where in C it is; None: the accumulators are `zeros`
    start: Callable = None
    # do `first_mma` and `mma` release the k tile's stage themselves? Then its own products are complete on
    # return
    releases_itself: bool = False

    def releaser(self, tile: WgmmaTile) -> Callable:
        "A device function: how a loop that calls `mma` releases the previous k tile's stage."
        return release_nothing if self.releases_itself else release_of(tile)

@cuda.jit(device=True)
def start_at_zero(zeros, target, grid, number, k_begin, thread): return zeros

@cuda.jit(device=True)
def release_nothing(storage, stage, releases): pass

@cache
def first_k_tiles(
    count: int,     # k tiles, the prologue of the main loop
    tile: WgmmaTile,
    stores: bool,   # is a box of the previous tile stored after each?
    mainloop: Mainloop,
) -> Callable:
    "A device function: multiply the first `count` k tiles of a tile of C. Accumulators start at zero."
    advance = pipeline_advance(tile.stages)
    first_mma, mma, release = mainloop.first_mma, mainloop.mma, mainloop.releaser(tile)
    stored = count if stores else 0
    store_box = [boxes_storer(tile, box, box + 1) for box in range(stored)]

    @cuda.jit(device=True)
    @unrolled
    def multiply_and_store(
        acc,        # accumulators, a tuple
        storage,    # `SharedStorage`
        state,      # `PipelineState`
        previous,   # stage of the previous k tile
        k_tiles,    # that the tile of C has
        warpgroup,  # number of the consumer
        pending, store,
    ):  # the accumulators, the next state, the stage of the k tile multiplied last
        for k_tile in static(count):
            if k_tile == 0:  # the previous tile's tail has already released its stages
                consumer_wait(storage, state)
                acc = first_mma(acc, storage, state.stage, warpgroup)
                state, previous = advance(state), state.stage
            elif k_tile < k_tiles:
                consumer_wait(storage, state)
                acc = mma(acc, storage, state.stage, warpgroup)
                release(storage, previous, store.releases)
                state, previous = advance(state), state.stage
            if k_tile < stored: store_box[k_tile](pending, store)
        return acc, state, previous
    return multiply_and_store
