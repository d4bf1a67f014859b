"""Kernels on the tensor cores: how long would they take? A count of products and rounds.

A tile of C takes so many products of 16×8×16, and a tensor core needs a fixed number of cycles for each.
Tiles go over the multiprocessors in rounds. That's all: copies by the TMA and their barriers aren't modeled,
only what they leave exposed before and after a tile.
"""
import re
from math import log2, prod

from .arrays import cdiv
from .gpus import SUSTAINED
from .workload import NoPrediction

# Of an H100 or H200. All but the second are means over variants of kernels 15 to 17 that lessons compare at
# 4096 and 8192: 128×256 in kernel 15, three stages and groups of 8 in 16, blocks that stay in 17.
TENSOR_MHZ = 1575     # clock while the tensor cores hold the GPU at its power limit
WGMMA_CYCLES = 4      # of a tensor core for a product of 16×8×16 by wgmma, as the maker publishes
MMA_CYCLES = 6.7      # … by mma.sync, with its loads from shared memory
EXPOSED_CYCLES = 13000  # of a tile outside its k loop, if the warps that multiply also start the TMA's copies
OVERLAPPED_CYCLES = 1000  # … if others do that, or threads copy themselves


def on_tensor_cores(
    code,  # `MachineCode`
) -> str:
    "The instruction that multiplies there: HGMMA (wgmma) or HMMA (mma.sync); empty without one."
    names = {x.name for x in code.main_loop}
    return next((name for name in ("HGMMA", "HMMA") if name in names), "")

def _tile(launch, code, shape):
    "Elements of C in a block's tile, and whether a producer warp group copies for others."
    threads, specialized = prod(launch.block), any(x.name == "USETMAXREG" for x in code.instructions)
    if on_tensor_cores(code) == "HMMA":
        return 2 ** round(log2(shape[0] * shape[1] / prod(launch.grid))), False
    # the opcode HGMMA.64x256x16 is split: the tile's width begins the operands
    widths = {int(found[1]) for x in code.main_loop if x.name == "HGMMA"
              and (found := re.match(r"x(\d+)x16\b", x.operands))}
    if len(widths) != 1: raise NoPrediction("its tensor core instructions have several shapes")
    return 64 * widths.pop() * (threads // 128 - specialized), specialized

def tensor_ms(
    launch,  # `NotedLaunch`
    code,    # its `MachineCode`
    shape,   # m, n, k
    gpu,     # `Machine`
) -> tuple:
    "The time of a launch, and resource → share of that time in which it's busy."
    (m, n, k), blocks, kind = shape, prod(launch.grid), on_tensor_cores(code)
    products = [x.opcode + x.operands for x in code.main_loop if x.name == kind]
    if not all("BF16" in text for text in products):
        raise NoPrediction("on the tensor cores the model only knows products of bfloat16")
    if min(shape) < 1024:
        raise NoPrediction("on the tensor cores the model only knows m, n and k from 1024 on")
    if n % 64 or k % 64: raise NoPrediction("rows of its matrices don't start at multiples of 128 bytes")
    tile, specialized = _tile(launch, code, shape)
    tiles = cdiv(m * n, tile)
    if min(tiles, blocks) < gpu.sms / 2:
        raise NoPrediction("it uses less than half of the GPU, and then the clock isn't known")
    multiply = tile / 128 * cdiv(k, 16) / 4 * (WGMMA_CYCLES if kind == "HGMMA" else MMA_CYCLES)
    around = EXPOSED_CYCLES if kind == "HGMMA" and not specialized else OVERLAPPED_CYCLES
    rounds = cdiv(tiles, min(blocks, gpu.sms))
    ms = rounds * (multiply + around) / TENSOR_MHZ / 1e3 + gpu.launch_us / 1e3
    moved = 2 * (m * k + k * n + m * n) / (gpu.dram_gb_s * SUSTAINED) / 1e6
    ms = max(ms, moved)
    return ms, {"tensor cores": rounds * multiply / TENSOR_MHZ / 1e3 / ms, "memory": moved / ms}
