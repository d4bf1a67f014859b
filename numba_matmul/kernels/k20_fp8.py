"""x"""

# %%
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from ..arrays import KEPT_AS, cdiv, is_row_major, is_torch
from ..bench.paths import Path, edge_paths
from ..fp8 import E4M3
from ..gemm.args import Gemm
from ..gemm.epilogue import SplitTarget, c_bytes, split_pieces, two_epilogues
from ..gemm.fp8_cast import fp8_cast, pad_launch, pitch_of, transpose_launch
from ..gemm.kernel import Kernel, Tiles
from ..gemm.limits import MAX_GRID_X, launch_number, need_capability, need_whole, sm_count
from ..gemm.pipeline import TensorMaps, storage_layout
from ..gemm.plan import Launch, LaunchConfig, Plan, remembered, run
from ..gemm.scaled import (
    ScaledTarget, Stores, by_threads_epilogue, by_tma_epilogue, only_c_kernel, scaling_of)
from ..gemm.schedule import persistent_scheduler
from ..gemm.tensor_maps import LONGEST, TensorMapWords
from ..gemm.tiled import check_options
from ..gemm.tiles import WgmmaTile, check_tile
from ..ptx.core import add_scaled, add_tuples
from ..ptx.hopper import (
    cluster_sync, prefetch_tensormap, setmaxnreg_dec, setmaxnreg_inc, tensor_map_address, wgmma_mma_async_e4m3,
    wgmma_wait_group, wgmma_wait_prior)
from .k16_tma_wgmma import k_tile_loader, wgmma_multiplier
from .k17_warp_specialized import (
    CONSUMER_REGISTERS, PRODUCER_REGISTERS, Mainloop, barrier_init, consumer_loop, overlaps, producer_loop,
    stagger_distance, wgmma_mainloop, with_producer)
from numba import cuda, uint16, uint32

# %%
@cuda.jit(device=True)
def nothing_in_flight(acc): return acc

@cache
def promoted_mainloop(
    tile,  # a `WgmmaTile`
):
    "The tensor cores add up a k tile; ordinary float32 additions add up k tiles."
    zeros = (np.float32(0),) * tile.results
    multiply = wgmma_multiplier(tile, False, instruction=wgmma_mma_async_e4m3)

    @cuda.jit(device=True)
    def first_mma(acc, storage, stage, warpgroup):
        return wgmma_wait_group(multiply(zeros, storage, stage, warpgroup))

    @cuda.jit(device=True)
    def mma(acc, storage, stage, warpgroup):
        return add_tuples(acc, wgmma_wait_group(multiply(zeros, storage, stage, warpgroup)))
    return Mainloop(zeros, first_mma, mma, nothing_in_flight)

@cache
def paired_mainloop(tile):
    zeros = (np.float32(0),) * tile.results
    first, second = (wgmma_multiplier(tile, False, pending=3, instruction=wgmma_mma_async_e4m3, number=number) for number in range(2))
    @cuda.jit(device=True)
    def mma(acc, storage, stage, warpgroup):
        early = first(zeros, storage, stage, warpgroup)
        late = second(zeros, storage, stage, warpgroup)
        acc = add_tuples(acc, wgmma_wait_prior(early, 1))
        return add_tuples(acc, wgmma_wait_group(late))
    return Mainloop(zeros, mma, mma, nothing_in_flight)

# %%
class BlockScales(NamedTuple):
    "A thread's scales of the next k tile, and where the following ones are."
    factors: tuple   # A's scales times B's: of two numbers of its upper row, and of two of its lower one
    scale_a: object  # (m·k tiles,) float32
    scale_b: object  # (k tiles·columns of blocks,) float32
    above: int       # index of the upper row's scale
    below: int       # of the lower one's
    column: int      # of its column's
    across: int      # columns of blocks
    left: int        # k tiles that follow

@cuda.jit(device=True)
def with_factors(scale_a, scale_b, above, below, column, across, left):
    "Load the scales of a k tile."
    by = scale_b[column]
    up, down = scale_a[above] * by, scale_a[below] * by
    return BlockScales((up, up, down, down), scale_a, scale_b, above, below, column, across, left)

@cuda.jit(device=True)
def next_scales(at):
    "Those of the next k tile; after the last one, the same again."
    step = uint32(1) if at.left > 0 else uint32(0)
    return with_factors(at.scale_a, at.scale_b, uint32(at.above + step), uint32(at.below + step),
                        uint32(at.column + step * at.across), at.across, uint32(at.left - step))

@cache
def block_mainloop(
    tile,  # a `WgmmaTile`
):
    "Like `promoted_mainloop`, but each k tile's sums are multiplied by their scales as they are added."
    zeros = (np.float32(0),) * tile.results
    multiply = wgmma_multiplier(tile, False, instruction=wgmma_mma_async_e4m3)
    tile_origin = persistent_scheduler(tile, False).tile_origin

    @cuda.jit(device=True)
    def start(zeros, to, grid, number, k_begin, thread):
        row, col = tile_origin(number, grid)
        mine, last = uint32(row + (thread - 128) // 32 * 16 + thread % 32 // 4), uint32(to.rows - 1)
        above = uint32(min(mine, last) * grid.k_tiles + k_begin)
        below = uint32(min(uint32(mine + 8), last) * grid.k_tiles + k_begin)
        across = uint32(uint32(to.cols + 127) // uint32(128))
        column = uint32(min(uint32(col // 128), uint32(across - 1)) + k_begin * across)
        return zeros, with_factors(to.scale_a, to.scale_b, above, below, column, across,
                                   uint32(grid.k_tiles - k_begin - uint32(1)))

    @cuda.jit(device=True)
    def mma(acc, storage, stage, warpgroup):
        sums, at = acc
        products = multiply(zeros, storage, stage, warpgroup)
        ahead = next_scales(at)  # loads that the products hide
        return add_scaled(sums, wgmma_wait_group(products), at.factors), ahead

    @cuda.jit(device=True)
    def wait(acc): return acc[0]
    return Mainloop(zeros, mma, mma, wait, start)

# %%
RULES = {
    "both operands are K-major: k_major_b must be 1, m_major_a and m_major_c 0":
        lambda t: t.k_major_b and not t.m_major_a and not t.m_major_c,
    "parts must be 1": lambda t: t.parts == 1,
    "bm must be a multiple of 64, 256 at most": lambda t: t.bm % 64 == 0 and t.bm <= 256,
    "wm must be 64, or 128 if it divides bm": lambda t: t.wm in (64, 128) and t.bm % t.wm == 0,
    "a block has three consumers at most": lambda t: t.warpgroups <= 3,
    "bn must be a multiple of 32, from 64 to 256": lambda t: t.bn % 32 == 0 and 64 <= t.bn <= 256,
    "wm·bn must be at most 128·160, and 64·192 with three consumers":
        lambda t: t.wm * t.bn <= (64 * 192 if t.warpgroups > 2 else 128 * 160),
    "stages must be at least 2": lambda t: t.stages >= 2,
    "a cluster has one block or two": lambda t: t.cluster <= 2,
    "the ring, and two boxes for each 64 rows, must fit into 227 KB": lambda t: shared_bytes(t) <= 227 * 1024}
PROMOTED_RULES = {
    "promoted sums need twice the registers: wm·bn must be at most 64·192, and 64·128 with three consumers":
        lambda t: t.wm * t.bn <= (64 * 128 if t.warpgroups > 2 else 64 * 192)}
BLOCK_RULES = {"a tile has one column of 128×128 scales, so bn must be 64 or 128": lambda t: t.bn in (64, 128)}

def fp8_tile(bm, bn, stages, group_m=16, wm=64, k_tiles=1, cluster=1) -> WgmmaTile:
    "A tile with both operands K-major."
    return WgmmaTile(bm, bn, stages, group_m, k_major_b=1, wm=wm, k_tiles=k_tiles, cluster=cluster)

promoted_tile = partial(fp8_tile, k_tiles=2)

def shared_bytes(tile) -> int:
    "Shared memory of a block: the ring and its mbarriers, staging, and the order barrier."
    return tile.shared_bytes + c_bytes(tile) + 8

def rules_of(promoted, scaling):
    "What a tile must keep."
    return RULES | (PROMOTED_RULES if promoted else {}) | (BLOCK_RULES if scaling == "blocks" else {})

# %%
@cache
def fp8_gemm_kernel(
    tile=None,          # a `WgmmaTile` that keeps `rules_of`
    promoted=True,      # are sums of k tiles added in float32? With blocks always
    scaling="none",     # a key of `SCALINGS`
    epilogue="direct",  # overlapped, staged, direct or split_k
    stores=Stores(False, True, 1, True),  # for direct and split_k
    stagger_consumers=True,  # see kernel 17's
):
    "Kernel 20 for a tile: C ← alpha·A·B + beta·C with scales, k > 0. `ValueError` if the tile breaks a rule."
    check_tile(tile, rules_of(promoted, scaling))
    by_threads, is_split = epilogue in ("direct", "split_k"), epilogue == "split_k"
    if by_threads: finish = by_threads_epilogue(tile, scaling, stores, is_split)
    else: finish = by_tma_epilogue(tile, scaling, epilogue == "overlapped")
    if tile.wm > 64: finish = two_epilogues(finish)
    if scaling == "blocks": mainloop = block_mainloop(tile)
    else: mainloop = (paired_mainloop if tile.k_tiles > 1 else promoted_mainloop)(tile) if promoted else wgmma_mainloop(tile, wgmma_mma_async_e4m3)
    consumers, cluster = tile.warpgroups, tile.cluster
    distance = stagger_distance(tile.stages) if stagger_consumers and consumers == 2 else 0
    shared_storage, init = storage_layout(tile, c_bytes(tile)), barrier_init(tile.stages, consumers * cluster)
    work_grid = persistent_scheduler(tile, is_split).work_grid
    produce = producer_loop(tile, is_split, k_tile_loader(tile))
    consume = consumer_loop(tile, is_split, finish, distance, mainloop)
    producer_registers, consumer_registers = PRODUCER_REGISTERS[consumers], CONSUMER_REGISTERS[consumers]

    @cuda.jit(lineinfo=True, launch_bounds=(with_producer(tile), 1))
    def fp8_gemm_kernel(
        tensor_maps,  # `TensorMapWords`: A, B and C, in boxes of a block's rows, of bn rows, and of 64
        c,            # (m·n,) bits of bfloat16, or float32; or a `SplitTarget`
        scale_a, scale_b, step_a, step_b,  # see `ScaledTarget`
        m, n,
        pairs,        # half of k: to the TMA, two numbers of 8 bits are one of 16
        split_k,      # uint32, parts of each sum
        alpha, beta,  # factors of A·B and of C
    ):
        storage = shared_storage(cuda.shared.array(0, uint16, alignment=16))
        thread = uint32(cuda.threadIdx.x)
        maps = TensorMaps(tensor_map_address(tensor_maps, 0), tensor_map_address(tensor_maps, 1))
        if thread == 0:
            prefetch_tensormap(maps.a)
            prefetch_tensormap(maps.b)
        init(storage, thread)
        if cluster > 1: cluster_sync()
        else: cuda.syncthreads()

        grid = work_grid(m, n, pairs, split_k)
        target = ScaledTarget(c, m, n, alpha, beta, scale_a, scale_b, step_a, step_b)
        work, step = uint32(cuda.blockIdx.x // cluster), uint32(cuda.gridDim.x // cluster)
        if thread < 128:
            setmaxnreg_dec(producer_registers)
            if thread == 0: produce(storage, maps, grid, work, step)
        else:
            setmaxnreg_inc(consumer_registers)
            consume(storage, tensor_map_address(tensor_maps, 2), grid, work, step, target, thread)
        if cluster > 1: cluster_sync()
    return fp8_gemm_kernel

# %%
FAST = (fp8_tile(128, 256, 4), fp8_tile(128, 128, 6), fp8_tile(64, 128, 8), fp8_tile(64, 64, 8))
PROMOTED = (fp8_tile(128, 128, 6), fp8_tile(192, 128, 4, cluster=2), fp8_tile(64, 128, 8), fp8_tile(64, 64, 8))
# In cycles, fitted to an H100
START, RESULT = 3500, 0.1  # of a launch; to store a result of the last tile
ROW, STEP = 2.6, 180       # to fetch a row of 128 bytes; of a k tile at least
PART = 4                   # numbers per cycle that a block adds up, if sums are in parts
MIN_K_TILES, MOST_PARTS = 4, 32  # of a part; of a sum

def work_tiles(m, n, tile, split_k=1):
    "How many tiles of C, or pairs of them in a cluster, times the parts of their sums."
    return split_k * cdiv(m, tile.bm) * cdiv(n, tile.bn * tile.cluster)

def estimate(
    m, n, k, sms,  # the matrices; multiprocessors
    tile, split_k=1,
) -> float:
    "The cycles that a product should take."
    work = work_tiles(m, n, tile, split_k)
    waves, results = cdiv(work, max(1, sms // tile.cluster)), tile.bm * tile.bn
    filled = min(1, work * tile.cluster / (waves * sms))
    rows = tile.bm / tile.cluster + tile.bn
    k_tile = max(results / 32, STEP, rows * (1 + (ROW - 1) * filled))
    adding = START + split_k * results / PART if split_k > 1 else 0
    return START + results * RESULT + waves * (START / 5 + cdiv(cdiv(k, 128), split_k) * k_tile) + adding

@remembered
def select_config(
    m, n, k,       # the matrices
    sms,           # multiprocessors of the GPU
    tiles,         # to choose from
    split_k=None,  # parts of each sum; a good number if None
) -> LaunchConfig:
    "The choice predicted fastest, with the fewest blocks that need no more waves."
    def cuts(tile):
        k_tiles = cdiv(k, 2 * tile.bk)  # a stage's
        if split_k: return {cdiv(k_tiles, cdiv(k_tiles, min(split_k, k_tiles)))}  # no part is empty
        if tile.cluster > 1 or tile.wm > 64: return {1}
        most = max(1, min(k_tiles * tile.k_tiles // MIN_K_TILES, MOST_PARTS, sms // work_tiles(m, n, tile)))
        return {1, cdiv(k_tiles, cdiv(k_tiles, most))}
    choices = [(tile, parts) for tile in tiles for parts in cuts(tile)]
    tile, parts = min(choices, key=lambda choice: estimate(m, n, k, sms, *choice))
    work = work_tiles(m, n, tile, parts)
    return LaunchConfig(tile, tile.cluster * cdiv(work, cdiv(work, max(1, sms // tile.cluster))), parts)

# %%
def operands(
    g: Gemm,
    k_major_b,  # is B given transposed?
) -> tuple:     # A, Bᵀ, launches, arrays in the workspace
    "A and the transpose of B with rows that the TMA can copy: multiples of 16 bytes. If need be, as copies."
    pitch, launches, copies = pitch_of(g.k), [], []
    def copied(rows, launch, x, *args):
        copies.append(g.workspace(rows, pitch))
        launches.append(launch(x, copies[-1], *args))
        return copies[-1]
    a = g.a if g.alignments["a"] == 16 else copied(g.m, pad_launch, g.a)
    if not k_major_b: b = copied(g.n, transpose_launch, g.b, g.alignments["b"])
    else: b = g.b if g.alignments["b"] == 16 else copied(g.n, pad_launch, g.b)
    return a, b, launches, copies

def epilogue_of(g: Gemm, tile, split_k, epilogue) -> str:
    "The name of the epilogue: as the caller has chosen, or the fastest that can store this C."
    by_tma = g.c.dtype == np.uint16 and g.beta == 0 and g.alignments["c"] == 16 and split_k == 1
    able = ["split_k"] if split_k > 1 else ["direct"] if tile.wm == 64 else []
    if by_tma: able.append("staged")
    if by_tma and overlaps(tile) and tile.bn % 128 == 0 and tile.stages >= tile.bn // 64: able.append("overlapped")
    if not able or epilogue not in (None, *able):
        raise ValueError(f"{tile} with the {epilogue or 'direct'} epilogue can't store this C; "
                         f"there are {', '.join(able) or 'none'}")
    return epilogue or able[-1]

# %%
def product_launch(g: Gemm, a, b, c, scales, kernel, tile, blocks, split_k, by_threads) -> Launch:
    "The launch of kernel 20. What isn't there, scales or a map of C, is some other array that nobody reads."
    maps = TensorMapWords((a, tile.bm // tile.cluster), (b, tile.bn), (a if by_threads else g.c, tile.c_box))
    steps = [np.int64(x is not None and x.size > 1) for x in scales]
    scales = [g.c.ravel() if x is None else x.ravel() for x in scales]
    args = (maps, c, *scales, *steps, np.int64(g.m), np.int64(g.n),
            np.int64(cdiv(g.k, 2)), np.uint32(split_k), g.alpha, g.beta)
    return Launch(kernel, blocks, with_producer(tile), args, shared_bytes(tile), cluster=tile.cluster)

def plan_fp8(
    g: Gemm,
    k_major_b=False,  # is B given transposed?
    fast=False, tile=None, blocks=None, split_k=None, epilogue=None,  # see `fp8_gemm`
    **options,        # of the factory
) -> Plan:
    "Copies of operands that the TMA can't copy as they are, and kernel 20."
    need_capability((9, 0, "a"), "wgmma for FP8")
    if max(g.m, g.n, g.k) > LONGEST: raise ValueError(f"expected at most {LONGEST:,} rows and columns")
    scales = [g.others.get(name) for name in ("scale_a", "scale_b")]
    scaling = scaling_of(*scales, g.m, g.n, g.k)
    promoted = not fast or scaling == "blocks"
    if tile is not None: check_tile(tile, rules_of(promoted, scaling), WgmmaTile)
    check_options(fp8_gemm_kernel, PROMOTED[0], options)
    if options.keys() - {"stagger_consumers"}: raise TypeError("the other options follow from the matrices")
    if blocks is not None: blocks = need_whole("blocks", blocks, 1, MAX_GRID_X)
    if split_k is not None: split_k = need_whole("split_k", split_k, 1, MOST_PARTS)

    # nothing to multiply?
    c, float32_c = g.c.ravel(), g.c.dtype == np.float32
    if not (g.m and g.n): return Plan()
    if not (g.k and g.alpha):
        args = c, np.int64(c.size), g.beta
        return Plan([Launch(only_c_kernel(float32_c, bool(g.beta != 0)), cdiv(c.size, 256), 256, args)])

    # which tile, on how many blocks, and who stores its results?
    tiles = (tile,) if tile else PROMOTED if promoted else FAST
    tile, chosen, split_k, _ = select_config(g.m, g.n, g.k, sm_count(), tiles, split_k)
    blocks = cdiv(blocks, tile.cluster) * tile.cluster if blocks else chosen
    epilogue = epilogue_of(g, tile, split_k, epilogue)
    by_threads = epilogue in ("direct", "split_k")
    width = 2 if g.n % 2 == 0 and g.alignments["c"] >= 2 * g.c.dtype.itemsize else 1
    fits = g.m % tile.bm == 0 and g.n % (tile.bn * tile.cluster) == 0
    stores = Stores(float32_c, not fits, width, bool(g.beta != 0)) if by_threads else None
    kernel = fp8_gemm_kernel(tile, promoted, scaling, epilogue, stores, **options)

    a, b, launches, workspace = operands(g, k_major_b)
    if split_k > 1:
        pieces = split_pieces(tile, g.m, g.n)
        sums = g.workspace(pieces * split_k * 64 * tile.bn, kind="float32")
        arrivals = g.workspace(4 * pieces, kind="int64")
        workspace += sums, arrivals
        c = SplitTarget(c, sums, arrivals, launch_number, np.uint32(split_k))
    product = product_launch(g, a, b, c, scales, kernel, tile, blocks, split_k, by_threads)
    return Plan([*launches, product], workspace)

# %%
def fp8_gemm(
    a,              # (m, k) e4m3 device array, row-major: a torch tensor, or the bits in uint8
    b,              # (k, n) e4m3 device array: a transposed view of a tensor, or row-major, which costs a pass
    c=None,         # (m, n) bfloat16 or float32 device array, row-major; a new one if None
    alpha=1.0,      # factor of A·B
    beta=0.0,       # factor of C
    scale_a=None,   # float32 device array: one scale (1,); one per row (m,); or one per 1×128, (m, k/128)
    scale_b=None,   # the same: (1,); one per column (n,); or one per 128×128, (k/128, n/128)
    dtype_c=None,   # "bfloat16" or "float32", of a new C; bfloat16 if None
    fast=False,     # does the tensor core add up the whole sum? Faster, but it drops bits
    k_major_b=False,  # is `b` given as its transpose, (n, k) row-major?
    tile=None,      # a `WgmmaTile` that keeps `rules_of`; a good one for the shape if None
    blocks=None,    # of the grid; a good number if None
    split_k=None,   # parts of each sum; a good number if None
    **options,      # `epilogue`: overlapped, staged or direct; `stagger_consumers`, see kernel 17
):                  # `c`
    """C ← alpha·(A·scale_a)·(B·scale_b) + beta·C for e4m3 matrices on the tensor cores (sm_90), sums in float32:
    promoted after every 128 products, or with `fast` never. Sums with a scale per block are always promoted.
    Raises `TypeError`, `ValueError`, or `RuntimeError` on another GPU."""
    if is_torch(b) and not k_major_b and not is_row_major(b): b, k_major_b = b.T, True
    if dtype_c not in (None, "bfloat16", "float32"):
        raise ValueError(f"dtype_c is {dtype_c!r}; expected 'bfloat16' or 'float32'")
    if dtype_c is None: dtype_c = "float32" if str(getattr(c, "dtype", "")).endswith("float32") else "bfloat16"
    scales = dict(scale_a=scale_a, scale_b=scale_b)
    others = {name: x for name, x in scales.items() if x is not None}
    return run(plan_fp8, a, b, c, alpha, beta, k_major_b, bool(fast), tile, blocks, split_k, dtype=E4M3,
               others=others, dtype_c=dtype_c, k_major_b=k_major_b, **options)

fp8_gemm.plan = plan_fp8

# %%
def scaled_mm(
    a, b,  # torch tensors on the GPU, e4m3
    out,   # torch tensor for the result
):
    "What kernel 20 is compared with: `torch._scaled_mm`, that is cuBLAS, with scales of 1."
    import torch
    one = torch.ones((), device=a.device)
    if b.is_contiguous(): b = b.t().contiguous().t()
    return torch._scaled_mm(a, b, one, one, out_dtype=out.dtype, out=out)

# %%
# For tests and checks: small tiles, and calls that run all of the kernel's code.
SMALL_TILES = dict(bm=(64, 128), bn=(64, 128), stages=(2, 3), group_m=(1, 2), k_major_b=(1,), cluster=(1, 2))
TURNS = [dict(tile=fp8_tile(*sizes)) | options for sizes, options in (
    ((64, 64, 2, 1), {}), ((64, 128, 2, 2), dict(blocks=1)), ((128, 64, 3, 1), dict(blocks=3)))]
WIDE = dict(tile=fp8_tile(256, 64, 2, wm=128), fast=True)
SHARED = dict(tile=fp8_tile(128, 64, 2, cluster=2))
PATHS = (edge_paths(TURNS[0], TURNS[0]["tile"]._replace(k_tiles=2), strips=False) + (
    Path("its own tile", (37, 48, 32), 0.5, -1.5),
    Path("its own tile, fast", (37, 48, 32), 0.5, 0.0, dict(fast=True)),
    Path("by TMA", (70, 136, 400), 0.5, 0.0, TURNS[1]),
    Path("by TMA, staged", (70, 72, 400), 0.5, 0.0, TURNS[0] | dict(epilogue="staged")),
    Path("two consumers", (130, 72, 528), 0.5, -1.5, TURNS[2]),
    Path("two products per consumer", (260, 72, 300), 0.5, 0.0, WIDE),
    Path("a cluster", (130, 136, 400), 0.5, 0.0, SHARED),
    Path("a cluster, fast, C read", (130, 136, 400), 0.5, -1.5, SHARED | dict(fast=True)),
    Path("odd rows", (37, 41, 139), 0.5, -1.5, TURNS[0]),
    Path("A not aligned", (37, 40, 144), 0.5, -1.5, TURNS[0], skips=(1, 0, 0)),
    Path("B and C not aligned", (37, 40, 144), 0.5, -1.5, TURNS[0], skips=(0, 1, 1)),
    Path("parts of sums", (70, 72, 520), 0.5, -1.5, TURNS[0] | dict(split_k=3))))
COMPILED = (*(dict(tile=tile) for tile in PROMOTED), *(dict(tile=tile, fast=True) for tile in FAST))
KERNEL = Kernel(20, "fp8_gemm", "FP8", E4M3, fp8_gemm, fp8_gemm_kernel, capability=(9, 0, "a"), uses_tma=True,
                tiles=Tiles(PROMOTED[0], RULES | PROMOTED_RULES, SMALL_TILES, threads=256,
                            variants=({}, dict(blocks=1), dict(blocks=3)), compiled=COMPILED),
                paths=PATHS, rival=scaled_mm)
