"""How much a block, a warp and a thread compute: a tuple of sizes, and the rules they must satisfy.

A tile has a name for each size, so a lesson can change one and keep the others: `TILE._replace(bk=16)`. Its
properties are computed from the sizes. If the sizes can't work, `check_tile` names the broken rule before
anything is compiled.
"""
from functools import cache
from typing import NamedTuple

from ..cards import gpu_card


class Tile(NamedTuple):
    "What a block computes, and each thread's share."
    bm: int      # rows of the block's tile of C
    bn: int      # its columns
    bk: int      # columns of the tile of A, rows of that of B
    tm: int      # rows of a thread's results
    tn: int = 1  # their columns

    @property
    def threads(self): return self.bm * self.bn // self.results

    @property
    def shared_bytes(self): return 4 * self.bk * (self.bm + self.bn)

    @property
    def results(self): return self.tm * self.tn  # of a thread

    @property
    def launch_bounds(self):
        "Threads, and how many such blocks fit if a thread may use 128 (or 255) registers."
        registers = 128 if self.results <= 64 else 255
        return self.threads, max(1, 65536 // (self.threads * registers))

    def fits(self, g):
        "Are m, n and k multiples of the tile sizes?"
        return not (g.m % self.bm or g.n % self.bn or g.k % self.bk)

def check_tile(
    tile: tuple,         # a `Tile`, or of another class below
    rules: dict,         # text → function of the tile: does it hold?
    kind: type = tuple,  # the class it must have
):
    "`TypeError` for any other class, `ValueError` that names every broken rule."
    if not (isinstance(tile, kind) and hasattr(tile, "_asdict")):
        raise TypeError(f"tile is {tile!r}; expected a {'Tile' if kind is tuple else kind.__name__}")
    for name, size in tile._asdict().items():
        least = 0 if tile._field_defaults.get(name) == 0 else 1
        if not isinstance(size, int): raise TypeError(f"{tile}: {name} must be a whole number")
        if size < least: raise ValueError(f"{tile}: {name} must be at least {least}")
    broken = [text for text, holds in rules.items() if not holds(tile)]
    if broken: raise ValueError(f"{tile}: " + "; ".join(broken))


# Groups, warps
#
# Lesson 9 divides a thread's results into groups that are far apart; from lesson 10 on a warp has its own
# tile. The rules are those of all kernels that copy four numbers at a time, and of those whose tiles are
# searched.

COPY_RULES = {  # requirements of `tile_copiers`
    "bk must be a multiple of 4": lambda t: t.bk % 4 == 0,
    "the threads, four elements each, must fill whole rows of A's tile":
        lambda t: t.threads and 4 * t.threads % t.bk == 0,
    "the threads must fill whole rows of B's tile":
        lambda t: t.threads and 4 * t.threads % t.bn == 0,
    "A's tile must be a whole number of passes":
        lambda t: t.bm * t.bk % (4 * t.threads or 1) == 0,
    "B's tile must be a whole number of passes":
        lambda t: t.bk * t.bn % (4 * t.threads or 1) == 0,
    "a block has at most 1024 threads": lambda t: t.threads <= 1024,
    "the tiles must fit into 48 KB of shared memory": lambda t: t.shared_bytes <= 48 * 1024,
}


class GroupTile(NamedTuple):
    "What a block of 16×16 threads computes; each thread has groups of tm×tn results."
    bm: int         # rows of the block's tile of C
    bn: int         # its columns
    bk: int         # columns of the tile of A, rows of that of B
    tm: int         # rows of a group
    tn: int         # its columns
    pad_a: int = 0   # unused words after each row of A's tile
    unroll: int = 1  # steps of the sum that are unrolled

    @property
    def threads(self): return 256

    @property
    def shape(self): return self.bm // 16, self.bn // 16

    @property
    def results(self): return self.shape[0] * self.shape[1]

    @property
    def step(self): return 16 * self.tm, 16 * self.tn

    @property
    def shared_bytes(self): return 4 * self.bk * (self.bm + self.pad_a + self.bn)

    launch_bounds, fits = Tile.launch_bounds, Tile.fits

TUNED_RULES = COPY_RULES | {  # for all kernels whose tiles are searched
    "pad_a must be a multiple of 4": lambda t: t.pad_a % 4 == 0,
    "bk must be a multiple of unroll": lambda t: t.bk % t.unroll == 0,
    "a thread can keep 128 results at most": lambda t: t.results <= 128,
}


class WarpTile(NamedTuple):
    "What a block, a warp and a thread compute; each thread has groups of tm×tn results."
    bm: int         # rows of the block's tile of C
    bn: int         # its columns
    bk: int         # columns of the tile of A, rows of that of B
    wm: int         # rows of a warp's tile
    wn: int         # its columns
    wniter: int     # a thread's groups side by side
    tm: int         # rows of a group
    tn: int         # its columns
    pad_a: int = 0   # unused words after each row of A's tile
    unroll: int = 1  # steps of the sum that are unrolled; lessons 13 and 14 unroll all
    zigzag: int = 0  # 1: lanes zig-zag over two rows; 0: row by row
    stages: int = 1  # tiles of A and B in shared memory at a time, from lesson 11 on
    slices: int = 1  # groups of warps that share their results, each with other steps of a k tile: lesson 14

    @property
    def wmiter(self):
        "A thread's groups stacked vertically."
        return self.wm * self.wn // (32 * self.tm * self.tn * self.wniter)

    @property
    def step(self): return self.wm // (self.wmiter or 1), self.wn // self.wniter

    @property
    def lanes(self): return self.step[0] // self.tm, self.step[1] // self.tn

    @property
    def shape(self): return self.wmiter * self.tm, self.wniter * self.tn

    @property
    def results(self): return self.shape[0] * self.shape[1]

    @property
    def threads(self): return 32 * (self.bm // self.wm) * (self.bn // self.wn) * self.slices

    @property
    def steps(self): return self.bk // self.slices  # of a warp, in a k tile

    @property
    def stage_bytes(self): return 4 * self.bk * (self.bm + self.pad_a + self.bn)

    @property
    def shared_bytes(self):
        "The ring; in the end, the sums of all slices."
        sums = self.slices * self.bm * self.bn if self.slices > 1 else 0
        return max(4 * sums, self.stages * self.stage_bytes)

    launch_bounds, fits = Tile.launch_bounds, Tile.fits

ONE_SLICE = "slices must be 1"
WARP_RULES = {
    ONE_SLICE: lambda t: t.slices == 1,
    "bm must be a multiple of wm, and bn of wn": lambda t: t.bm % t.wm == t.bn % t.wn == 0,
    "tm and tn must be multiples of 4": lambda t: t.tm % 4 == t.tn % 4 == 0,
    "wm·wn must be whole groups for 32 lanes, wniter times":
        lambda t: t.wmiter and t.results * 32 == t.wm * t.wn,
    "the lanes must fill a warp's tile":
        lambda t: (t.lanes[0] * t.lanes[1] == 32 and t.wm == t.lanes[0] * t.shape[0]
                   and t.wn == t.lanes[1] * t.shape[1]),
    "zigzag is 0, or 1 with two rows of lanes or more":
        lambda t: t.zigzag in (0, 1) and t.lanes[0] % (1 + t.zigzag) == 0,
    "a block has one warp or more": lambda t: t.threads > 0,
} | TUNED_RULES

SMALL_WARP_TILES = dict(  # for tests
    bm=(16, 32, 64), bn=(16, 32, 64), bk=(4, 8, 16), wm=(16, 32, 64), wn=(16, 32, 64),
    wniter=(1, 2, 4), tm=(4, 8), tn=(4, 8), pad_a=(0, 4), unroll=(1, 4, 8), zigzag=(0, 1))


# Tensor cores
#
# The tiles of lesson 15, and those of lesson 16, whose rows are divided into chunks of 128 bytes.

class MmaTile(NamedTuple):
    "What a block, and each of its warps, computes on tensor cores."
    bm: int      # rows of the block's tile of C
    bn: int      # its columns
    bk: int      # columns of the tile of A, rows of that of B
    wm: int      # rows of a warp's part
    wn: int      # its columns
    stages: int  # tiles of A and B in shared memory at a time
    pad: int = 0      # unused numbers after each row of both tiles
    swizzle: int = 0  # 1: chunks of 8 numbers change places from row to row
    group_m: int = 8  # rows of tiles that blocks process together, see `rasterize`

    @property
    def threads(self): return self.bm * self.bn // (self.wm * self.wn) * 32

    @property
    def shape(self):
        "16×8 matrices in a warp's part."
        return self.wm // 16, self.wn // 8

    @property
    def results(self): return self.wm * self.wn // 32

    @property
    def pitch(self):
        "Row stride of A's and B's tiles, in numbers."
        return self.bk + self.pad, self.bn + self.pad

    @property
    def stage_size(self):
        "Stride from one tile of the ring to the next, in numbers."
        return self.bm * self.pitch[0] + self.bk * self.pitch[1]

    @property
    def shared_bytes(self):
        "The ring, or the results that replace it at the end, in rows of wn + 8 numbers."
        return 2 * max(self.stages * self.stage_size, self.bm * self.bn // self.wn * (self.wn + 8))

    @property
    def launch_bounds(self):
        "Threads, and blocks on a multiprocessor: as many as registers and shared memory allow."
        registers = 256 if self.results > 64 else 128
        return self.threads, max(1, min(65536 // (self.threads * registers),
                                        227 * 1024 // (self.shared_bytes + 1024)))

    fits = Tile.fits


ROW = 128         # bytes of a row of the swizzle's pattern: 64 numbers
BOX = 64 * ROW    # bytes of 64 rows: a box of B, or a warpgroup's part of A's tile
BK = 64           # columns of A's tile, rows of B's
MOST_SHARED = 227 * 1024  # bytes that a block may have on an H100

class WgmmaTile(NamedTuple):
    "What a block computes with wgmma."
    bm: int       # rows of the block's tile of C
    bn: int       # its columns
    stages: int   # tiles of A and B in shared memory at a time
    group_m: int = 16  # rows of tiles that blocks process together, see `rasterize`
    k_major_b: int = 0  # 1: B is transposed, (n, k), so adjacent elements in a row of its tile run along k
    m_major_a: int = 0  # 1: A is transposed, (k, m), so adjacent elements in a row of its tile run along m
    parts: int = 1      # 16-bit matrices that make up each of A and B, see lesson 19
    m_major_c: int = 0  # 1: C is transposed, (n, m), so adjacent elements in a row of it run along m
    wm: int = 64        # rows of a warpgroup: 64, or 128 in two products
    k_tiles: int = 1    # k tiles in a stage
    cluster: int = 1    # blocks that share a tile of A: neighbors along n, 1 or 2
    shared_b: int = 0   # 1: they share a tile of B instead, as neighbors along m

    @property
    def bk(self): return BK * self.k_tiles

    @property
    def warpgroups(self): return self.bm // self.wm

    @property
    def threads(self): return 128 * self.warpgroups

    @property
    def results(self):
        "Sums of a thread in one product."
        return self.bn // 2

    @property
    def bytes_a(self): return self.bm * ROW

    @property
    def stage_bytes(self):
        "Bytes of both tiles."
        return self.k_tiles * self.parts * (self.bytes_a + self.bn * ROW)

    @property
    def shared_bytes(self):
        """The ring, two mbarriers per stage (lesson 17 needs both), and 1024 bytes more to align the start to
        1024."""
        return self.stages * (self.stage_bytes + 16) + 1024

    @property
    def c_box(self):
        "Columns of a box of results on its way out. If C is transposed, as many as there is room for."
        if not self.m_major_c: return 64
        boxes = 2 * max(1, self.warpgroups)  # two for each
        room = (MOST_SHARED - self.shared_bytes - 8) // (ROW * boxes)
        return max(16, min(64, self.bn, room) // 16 * 16)

    @property
    def c_boxes(self):
        "Boxes in a warpgroup's results."
        return -(-self.bn // self.c_box)

    @property
    def sharers(self):
        "Blocks that share a tile of A, and of B."
        return (1, self.cluster) if self.shared_b else (self.cluster, 1)

    @property
    def covered(self):
        "Rows and columns of C that a cluster covers."
        of_a, of_b = self.sharers
        return self.bm * of_b, self.bn * of_a

    def fits(self, g):
        "Are m and n multiples of what a cluster covers, and k of a k tile?"
        rows, cols = self.covered
        return not (g.m % rows or g.n % cols or g.k % self.bk)


# The tile found by a search

@cache
def tuned_tile(
    name: str,       # of the host function
    default: tuple,  # the default if no search was made on this GPU
) -> tuple:
    "The best tile `autotune` found for a kernel on this GPU, from its result card."
    found = gpu_card().get("tuned", {}).get(name)
    return default._replace(**found["best"]) if found else default
