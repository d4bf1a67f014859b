"""A kernel is a few programs in one: the sizes decide which of them runs. A check that should find mistakes
runs all of them.

A kernel with a predicate, without one, with accesses of one number or of four, with C read or not, in one
strip or several: each is a separate path, and a mistake in one is invisible on all others. A loop over k that
is right for the first tiles may be wrong after the ring of stages has been around twice. So each kernel
declares which calls take all of its paths, and `check_paths` makes them.
"""
from collections.abc import Callable
from itertools import product
from operator import itemgetter
from typing import NamedTuple


class Path(NamedTuple):
    "One path through a kernel: the call that takes it."
    name: str
    shape: tuple        # m, n, k
    alpha: float = 1.0  # factor of A·B; if it is 0, A and B are full of NaN
    beta: float = 0.0   # factor of C; if it is 0, C is full of NaN
    options: dict = {}  # for the host function
    skips: tuple = (0, 0, 0)  # numbers in memory before A, B and C, which misalign the rows
    constants: dict = {}  # temporary values in the kernel's module, `gemm.tiled` and `gemm.split`
    returned: bool = False  # does the host function create C?
    numbers: tuple = ()  # (matrix, place, value): elements that aren't random

def _rest(size, width):
    "A partial tile: an odd number of vectors of this width, about two thirds of the tile."
    return width * (3 * size // 4 // width - 1 | 1)


# Most paths follow from a rule. A dimension is a whole number of tiles, or has a remainder; vectors are as
# wide as the alignment of the rows; the sum goes around the ring more than twice.

FACTORS = (0.5, -1.5), (-0.75, 0.0)  # alpha and beta

def tile_paths(
    *configurations,  # options of the host function, with small tiles, used in turn
    tile_of: Callable = itemgetter("tile"),  # configuration → its tile: bm, bn, bk, and stages of a ring
    widths: tuple = (4, 1),  # numbers per access, with all rows aligned to exactly that many
    alike: bool = False,     # is each edge clipped independently, as the TMA does it?
) -> tuple:
    """The paths that follow from sizes. Whole tiles, and a remainder, of m, n and k in every combination,
    each with every width; two rounds of the ring and one more k tile. Each with or without beta; whole tiles
    with both. Combinations of two remainders are skipped if all edges are `alike`."""
    found, wholes = [], [(2, 1), (1, 2), (1, 1)]
    for number, exact in enumerate(product((True, False), repeat=3)):
        for order, (width, (alpha, beta)) in enumerate(product(widths, FACTORS)):
            turn = number + order // 2 + order + number // 2
            left_out = turn % 2 or len(widths) > 2 and (order // 2 + number) % 2
            if left_out and not all(exact) or alike and sum(exact) == 1: continue
            options = configurations[(len(found) + number) % len(configurations)]
            tile = tile_of(options)
            bm, bn, bk, ring = tile.bm, tile.bn, tile.bk, getattr(tile, "stages", 1)
            down, across = wholes[min(order, 2)] if all(exact) else (1, 1)
            m = bm * down if exact[0] else exact[1] * bm + bm // 2 + 1
            n = bn * across if exact[1] else (exact[0] or not order // 2) * bn + _rest(bn, width)
            k = (2 * ring + 1) * bk if exact[2] else 2 * ring * bk + _rest(bk, width)
            skips = [0, 0, 0]
            if width < widths[0] and exact[1] and exact[2]: skips[(order + number) % 3] = width
            rests = "".join(name for name, whole in zip("mnk", exact) if not whole)
            name = f"{f'rest of {rests}' if rests else 'whole tiles'}, width {width}, beta {beta}"
            found.append(Path(name, (m, n, k), alpha, beta, options, tuple(skips)))
    return tuple(found)


# The other paths are at the edges: a sum shorter than the ring, an empty matrix, a factor of 0, a grid that
# isn't high enough. (No test needs 65,535 blocks: `constants` makes the limit small.)

def edge_paths(
    options: dict = None,  # for the host function, with a small tile
    tile: tuple = None,    # bm, bn, bk, and stages if there is a ring; the one in `options` if None
    width: int = 1,        # n and k are multiples of it
    strips: bool = True,   # are there strips of rows if the grid isn't high enough?
) -> tuple:
    "Short sums, empty matrices, half a tile, factors of 0 and 1, and a grid that isn't high enough."
    options = options or {}
    tile = tile or options["tile"]
    bm, bn, bk, ring = tile.bm, tile.bn, tile.bk, getattr(tile, "stages", 1)
    calls = []
    some = [count * bk for count in (1, ring - 1, ring, ring + 1) if count]
    for k in sorted({width, *some, (ring - 1) * bk + width}): calls.append(dict(shape=(bm, bn, k)))
    for beta in 0.0, 2.0:
        calls += [dict(alpha=0.0, beta=beta), dict(shape=(bm, bn, 0), beta=beta)]
    calls += [dict(shape=(0, bn, bk)), dict(shape=(bm, 0, bk)), dict(returned=True)]
    found = []
    for changes in calls:
        name = ", ".join(f"{name} = {value}" for name, value in changes.items())
        found.append(Path(**dict(name=name, shape=(bm + 1, bn, bk), options=options) | changes))
    found.append(Path("blocks", (2 * bm, 3 * bn, bk), 0.5, -1.5, options))
    # sizes that divide the tile, not the other way around
    for of, shape in ("m", (bm // 2, bn, bk)), ("n", (bm, bn // 2, bk)):
        if min(shape): found.append(Path(f"half a tile of {of}", shape, 1.0, 1.0, options))
    less = bm // 2 + 1, _rest(bn, width), _rest(bk, width)
    if min(less) > 0: found.append(Path("less than a tile", less, 0.5, -1.5, options))
    if strips:
        for m, beta in (4 * bm, 0.0), (4 * bm + 1, -1.5):
            found.append(Path(f"strips, beta = {beta}", (m, bn, bk), 0.5, beta, options,
                              constants=dict(MAX_GRID_Y=2)))
    return tuple(found)
