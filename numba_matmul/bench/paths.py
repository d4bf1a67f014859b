"""A kernel is a few programs in one: which of them runs is decided by the sizes. A check that is to find
mistakes runs all of them.

A kernel with a predicate, without one, with accesses of one number or of four, with C read or not, in one
strip or several: each is a path of its own, and a mistake in one is invisible on all others. A loop over k
that is right for the first tiles may be wrong once the ring of stages has been round twice. So each kernel
says with which calls all of its paths are taken, and `check_paths` makes them.
"""
from collections.abc import Callable
from itertools import product
from operator import itemgetter
from typing import NamedTuple


class Path(NamedTuple):
    "One way through a kernel: the call that takes it."
    name: str
    shape: tuple        # m, n, k
    alpha: float = 1.0  # factor of A·B; where it is 0, A and B are full of NaN
    beta: float = 0.0   # factor of C; where it is 0, C is full of NaN
    options: dict = {}  # of the host function
    skips: tuple = (0, 0, 0)  # numbers in memory before A, B and C, which rows are then not aligned to
    constants: dict = {}  # of the kernel's module, `gemm.tiled` and `gemm.split`: what they are meanwhile
    returned: bool = False  # does the host function make C?
    numbers: tuple = ()  # (matrix, place, value): those that aren't random

def _rest(size, width):
    "What is left over of a tile: an odd number of vectors of this width, about two thirds of the tile."
    return width * (3 * size // 4 // width - 1 | 1)


# Most paths follow from a rule. A dimension is a whole number of tiles, or has a rest; vectors are as wide
# as rows are aligned; the sum goes round the ring more than twice.

FACTORS = (0.5, -1.5), (-0.75, 0.0)  # alpha and beta

def tile_paths(
    *configurations,  # options of the host function, with small tiles: they take turns
    tile_of: Callable = itemgetter("tile"),  # configuration → its tile: bm, bn, bk, and stages of a ring
    widths: tuple = (4, 1),  # numbers of an access: where all rows are aligned to as many, and no more
    alike: bool = False,     # is each edge cut off by itself, as the TMA does it?
) -> tuple:
    """The paths that sizes make. Whole tiles, and a rest, of m, n and k in every combination, each with
    every width; two rings of k tiles and one more. Each with beta or without; whole tiles with both.
    Rests of two of them are left out where all edges are `alike`."""
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


# The other paths are at the edges: a sum that is shorter than the ring, a matrix with nothing in it, a
# factor of 0, a grid that is not high enough. (No test needs 65,535 blocks: `constants` makes the limit
# small.)

def edge_paths(
    options: dict = None,  # of the host function, with a small tile
    tile: tuple = None,    # bm, bn, bk, and stages if there is a ring; the one in `options` if None
    width: int = 1,        # n and k are multiples of it
    strips: bool = True,   # are there strips of rows where the grid is not high enough?
) -> tuple:
    "Short sums, empty matrices, factors of 0, and a grid that is not high enough."
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
    less = bm // 2 + 1, _rest(bn, width), _rest(bk, width)
    if min(less) > 0: found.append(Path("less than a tile", less, 0.5, -1.5, options))
    if strips:
        for m, beta in (4 * bm, 0.0), (4 * bm + 1, -1.5):
            found.append(Path(f"strips, beta = {beta}", (m, bn, bk), 0.5, beta, options,
                              constants=dict(MAX_GRID_Y=2)))
    return tuple(found)
