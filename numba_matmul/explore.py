"""Tiles and pipelines to play with. Banks and sectors are in `widgets`."""
from itertools import product

from .compiler import MULTIPROCESSORS, occupancy
from .gemm.tiles import Tile, check_tile
from .gpus import machine_called
from .kernels.k05_2d_blocktiling import RULES, TILE
from .tile_registers import REGISTERS
from .widgets import Widget, need_one_of, widget

SIZES = dict(bm=(32, 64, 128, 256), bn=(32, 64, 128, 256), bk=(8, 16, 32), tm=(1, 2, 4, 8, 16),
             tn=(1, 2, 4, 8, 16))  # that the tile explorer offers

def refused(
    tile: Tile,
) -> str:
    "Which rules of kernel 5 a tile breaks, and its last one: a block is made of whole warps. Empty: none."
    try: check_tile(tile, RULES)
    except ValueError as e: return str(e).partition("): ")[2]
    return "a block needs at least one whole warp" if tile.threads < 32 else ""

def every_tile():
    "All combinations of sizes."
    return [Tile(*sizes) for sizes in product(*SIZES.values())]

def tiles():
    "Those that kernel 5 takes, in the order of `REGISTERS`."
    return [tile for tile in every_tile() if not refused(tile)]

GPU = "NVIDIA H200"  # an H100 has the same multiprocessors, and as many

def explore_tiles(
    bm=TILE.bm,  # rows of a block's tile of C
    bn=TILE.bn,  # its columns
    bk=TILE.bk,  # columns of the tile of A, rows of that of B
    tm=TILE.tm,  # rows of a thread's results
    tn=TILE.tn,  # their columns
    size=4096,   # rows and columns of C
) -> Widget:
    "What a tile costs: reads per multiply-add, registers, shared memory, warps, waves."
    given = dict(bm=bm, bn=bn, bk=bk, tm=tm, tn=tn)
    for name, value in given.items(): need_one_of(name, value, SIZES[name])
    need_one_of("size", size, range(1, 2**20))
    kept, found, reasons, limits = iter(REGISTERS), [], [], []
    def place(text, texts):
        if text not in texts: texts.append(text)
        return texts.index(text)
    for tile in every_tile():
        if why := refused(tile): found.append(place(why, reasons))
        else:
            text = next(kept)
            registers = int(text.rstrip("s"))
            held = occupancy(tile.threads, registers, tile.shared_bytes)
            found.append([tile.threads, tile.shared_bytes, registers, int(text.endswith("s")), held.blocks,
                          place(held.limiter, limits)])
    gpu = machine_called(GPU)
    data = dict(given=dict(given, size=size), sizes=SIZES, found=found,
                reasons=reasons, limits=limits, gpu=gpu.name,
                multiprocessors=gpu.sms, warps=MULTIPROCESSORS[gpu.target].warps)
    return widget("tiles", "Tile explorer", data)

def explore_pipeline(
    stages=2,     # tiles of A and B in shared memory at a time
    copy=6,       # units of time from a copy's start until it has landed
    multiply=3,   # units of time for the products of a k tile
    landed=True,  # do the consumers wait until a k tile has landed?
    empty=True,   # does the producer wait until a stage is empty?
) -> Widget:
    "Who waits in a ring of stages, step by step, and which races there are if nobody does."
    given = dict(stages=stages, copy=copy, multiply=multiply, landed=landed, empty=empty)
    for name, most in dict(stages=6, copy=12, multiply=6).items():
        need_one_of(name, given[name], range(1, most + 1))
    return widget("pipeline", "Pipeline stepper", given)
