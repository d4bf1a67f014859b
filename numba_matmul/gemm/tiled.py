"""Host functions of kernels with tiles: one block of threads per tile of C."""
from collections.abc import Callable
from inspect import signature

import numpy as np

from ..arrays import cdiv
from .args import Gemm
from .limits import MAX_GRID_Y, need_capability, need_whole
from .plan import Launch, Plan, run
from .tiles import check_tile


def check_options(
    factory: Callable,  # of a kernel
    default_tile: tuple,  # its default tile
    options: dict,      # for it, as the caller passed them
    **choices,          # name → the strings an option may be
):
    "`TypeError` for an option the factory doesn't have, `ValueError` for a value of the wrong type."
    defaults = {name: option.default for name, option in signature(factory).parameters.items()
                if name != "tile" and not hasattr(default_tile, name)}
    for option, value in options.items():
        if option not in defaults:
            raise TypeError(f"there is no option {option}; the options are {', '.join(defaults)}")
        default = defaults[option]
        if option in choices:
            if not (isinstance(value, str) and value in choices[option]):
                raise ValueError(f"{option} is {value!r}; expected {' or '.join(choices[option])}")
        elif isinstance(default, bool):
            if not (isinstance(value, (int, np.bool_)) and value in (0, 1)):
                raise ValueError(f"{option} is {value!r}; expected True or False")
        elif isinstance(default, int): need_whole(option, value, 0)
        elif default is None: value is None or need_whole(option, value, 1)
        # not by the class: a child process may have its own copy of the class
        elif getattr(value, "_fields", ()) != default._fields:
            raise ValueError(f"{option} is {value!r}; expected a {type(default).__name__}")


def chosen_options(
    follow: dict,   # factory options implied by the call
    options: dict,  # those chosen by the caller
) -> dict:
    """All options: the caller's, plus those implied by the call. `ValueError` for a choice that would make
    the result wrong."""
    for name in follow.keys() & options.keys():
        needed, chosen = follow[name], options[name]
        if name == "width": right = chosen > 0 and needed % chosen == 0  # a narrower access is fine too
        else: right = chosen >= needed  # so is an unneeded predicate or read of C
        if not right:
            raise ValueError(f"{name} is {chosen!r}; expected {needed!r} for these matrices, alpha and beta")
    return follow | options


def launch_options(
    factory: Callable,  # of a kernel
    default_tile: tuple,  # its default tile; a tile passed in must have the same class
    g: Gemm,
    tile: tuple,        # as the caller passed it
    options: dict,      # as the caller passed them
    # elements per access; None: as many as alignment allows; 0: the kernel doesn't have the option
    width: int = None,
) -> dict:
    """All options: the caller's, plus those the call implies. Raises `TypeError` or `ValueError` if they
    conflict."""
    check_tile(tile, {}, type(default_tile))
    check_options(factory, default_tile, options)
    if width is None: width = 16 // g.a.dtype.itemsize if g.aligned else 1
    follow = dict(predicated=not tile.fits(g), read_c=bool(g.beta != 0))
    if width: follow["width"] = width
    return chosen_options(follow, options)


def row_strips(
    g: Gemm,
    rows: int,  # of C per block in y
) -> list:
    """(A, C) in strips of rows that a grid can cover; none if C is empty. A grid has at most 65,535 blocks
    in y, and where rows of C run along y, a very tall C takes one launch per strip."""
    strip = MAX_GRID_Y * rows
    if g.m == 0 or g.n == 0: return []
    if g.m <= strip: return [(g.a, g.c)]
    return [(g.a[first:first + strip], g.c[first:first + strip]) for first in range(0, g.m, strip)]


def tile_launches(
    kernel: Callable,      # (a, b, c, k, alpha, beta)
    g: Gemm,
    tile: tuple,           # bm and bn
    threads: int | tuple,  # of a block
    flat: bool = False,    # does it take A and B as flat arrays?
) -> list:
    "One block per tile of C: one launch, or one per strip of rows."
    k, launches = np.int64(g.k if g.alpha else 0), []  # if alpha is 0, A and B aren't read
    for a_rows, c_rows in row_strips(g, tile.bm):
        blocks = cdiv((g.n, c_rows.shape[0]), (tile.bn, tile.bm))
        a, b = (a_rows.ravel(), g.b.ravel()) if flat else (a_rows, g.b)
        launches.append(Launch(kernel, blocks, threads, (a, b, c_rows, k, g.alpha, g.beta)))
    return launches


def tiled(
    factory: Callable,  # a tile or its sizes, and options → kernel (a, b, c, k, alpha, beta)
    default_tile: tuple,  # the default if there is no `choose`
    doc: str,           # of the host function
    choose: Callable = None,  # function (m, n) → the default tile
    needs: tuple = None,      # compute capability, and what needs it
    width: int = None,  # see `launch_options`
    flat: bool = True,  # see `tile_launches`
    most_k: int = None,  # the most columns of A that it can take
) -> Callable:          # the host function
    "A host function, whose `plan` launches a kernel with one block per tile of C."
    # a factory takes a tile, or these fields of it
    sizes = [name for name in signature(factory).parameters if hasattr(default_tile, name)]

    def plan(g, tile, **options):
        if needs: need_capability(*needs)
        if most_k: need_whole("k", g.k, 0, most_k)
        if tile is None: tile = choose(g.m, g.n) if choose else default_tile
        options = launch_options(factory, default_tile, g, tile, options, width)
        if sizes: kernel = factory(*(getattr(tile, name) for name in sizes), **options)
        else: kernel = factory(tile, **options)
        return Plan(tile_launches(kernel, g, tile, tile.threads, flat))

    def host(
        a,          # (m, k) float32 device array, row-major
        b,          # (k, n) float32 device array, row-major
        c=None,     # (m, n) float32 device array, row-major; a new one like `a` if None
        alpha=1.0,  # factor of A·B
        beta=0.0,   # factor of C
        tile=None,  # of the default tile's class; if None, a good one for this GPU and these sizes
        **options,  # factory options that override what the matrices imply
    ):              # `c`
        return run(plan, a, b, c, alpha, beta, tile, **options)

    errors = "`TypeError` or `ValueError`"
    if needs: errors = f"`TypeError`, `ValueError`, or `RuntimeError` on a GPU without {needs[1]}"
    host.__doc__ = f"""{doc}

    A is (m, k), B (k, n) and C (m, n): row-major float32 device arrays, or torch tensors on the GPU.
    C is a new one like `a` if None. Raises {errors}."""
    host.plan, host.__module__ = plan, factory.__module__
    host.__name__ = host.__qualname__ = factory.__name__.removesuffix("_kernel")
    return host
