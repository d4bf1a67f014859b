"""Host functions of kernels with tiles: a block of threads for each tile of C."""
from inspect import signature

import numpy as np

from ..arrays import cdiv
from .limits import need_capability, need_whole, row_strips
from .plan import Launch, Plan, run
from .tiles import check_tile


def check_options(
    factory,    # of a kernel
    own,        # a tile that it takes
    options,    # for it, as the caller gave them
    **choices,  # name → the texts that an option may be
):
    "`TypeError` for an option that the factory hasn't, `ValueError` for a value of another kind than it takes."
    defaults = {name: option.default for name, option in signature(factory).parameters.items()
                if name != "tile" and not hasattr(own, name)}
    for option, value in options.items():
        if option not in defaults: raise TypeError(f"there is no option {option}; there are {', '.join(defaults)}")
        default = defaults[option]
        if option in choices:
            if not (isinstance(value, str) and value in choices[option]):
                raise ValueError(f"{option} is {value!r}; there are {', '.join(choices[option])}")
        elif isinstance(default, bool):
            if not (isinstance(value, (int, np.bool_)) and value in (0, 1)):
                raise ValueError(f"{option} is {value!r}; expected True or False")
        elif isinstance(default, int): need_whole(option, value, 0)
        elif default is None: value is None or need_whole(option, value, 1)
        elif getattr(value, "_fields", ()) != default._fields:  # a child may have made the class anew
            raise ValueError(f"{option} is {value!r}; expected a {type(default).__name__}")


def chosen_options(
    follow,   # options of a factory that follow from a call
    options,  # those that the caller chose
) -> dict:
    "All of them. `ValueError` for a choice that would make the result wrong."
    for name in follow.keys() & options.keys():
        needed, chosen = follow[name], options[name]
        right = needed % chosen == 0 if name == "width" and chosen else chosen >= needed and name != "width"
        if not right:
            raise ValueError(f"{name} is {chosen!r}; expected {needed!r} for these matrices, alpha and beta")
    return follow | options


def launch_options(
    factory,     # of a kernel
    own,         # a tile that it takes
    g,           # what `gemm_args` returned
    tile,        # as the caller gave it
    options,     # as the caller gave them
    width=None,  # numbers of an access; 0 if the factory has no such option; as many as are aligned if None
) -> dict:
    "The options of a factory: the caller's, and those that follow. `TypeError` or `ValueError` if they can't be."
    check_tile(tile, {}, type(own))
    check_options(factory, own, options)
    if width is None: width = 16 // g.a.dtype.itemsize if g.aligned else 1
    follow = dict(predicated=not tile.fits(g)) | (dict(width=width) if width else {}) | dict(read_c=bool(g.beta != 0))
    return chosen_options(follow, options)


def tile_launches(
    kernel,      # (a, b, c, k, alpha, beta)
    g,           # what `gemm_args` returned
    tile,        # bm and bn, and threads of a block
    flat=False,  # does it take A and B as vectors?
) -> list:
    "A block for each tile of C: a launch, or one for each strip of rows."
    k, launches = np.int64(g.k if g.alpha else 0), []
    for a_rows, c_rows in row_strips(g, tile.bm):
        blocks = cdiv((g.n, c_rows.shape[0]), (tile.bn, tile.bm))
        a, b = (a_rows.ravel(), g.b.ravel()) if flat else (a_rows, g.b)
        launches.append(Launch(kernel, blocks, tile.threads, (a, b, c_rows, k, g.alpha, g.beta)))
    return launches


def tiled(
    factory,      # a tile or its sizes, and options → kernel (a, b, c, k, alpha, beta)
    own,          # the tile to take if none is given
    doc,          # of the host function
    choose=None,  # function (`Gemm`) → a better tile to take if none is given
    needs=None,   # compute capability, and what needs it
    width=None,   # see `launch_options`
    flat=True,    # see `tile_launches`
):                # the host function
    "A host function, whose `plan` launches a kernel with a block for each tile of C."
    sizes = [name for name in signature(factory).parameters if hasattr(own, name)]  # where it takes those and not the tile

    def plan(g, tile, **options):
        if needs: need_capability(*needs)
        if tile is None: tile = choose(g)
        options = launch_options(factory, own, g, tile, options, width)
        kernel = factory(*(getattr(tile, name) for name in sizes), **options) if sizes else factory(tile, **options)
        return Plan(tile_launches(kernel, g, tile, flat))

    def host(
        a,          # (m, k) float32 device array, row-major
        b,          # (k, n) float32 device array, row-major
        c=None,     # (m, n) float32 device array, row-major; a new one like `a` if None
        alpha=1.0,  # factor of A·B
        beta=0.0,   # factor of C
        tile=None,  # as the factory takes it; a good one for this GPU and these sizes if None
        **options,  # of the factory, where they should not follow from the matrices
    ):              # `c`
        return run(plan, a, b, c, alpha, beta, tile, **options)

    errors = f"`TypeError`, `ValueError`, or `RuntimeError` on a GPU without {needs[1]}" if needs else "`TypeError` or `ValueError`"
    host.__doc__ = (f"{doc}\n\n    A is (m, k), B (k, n) and C (m, n): row-major float32 device arrays, or torch tensors on the GPU.\n"
                    f"    C is a new one like `a` if None. Raises {errors}.")
    host.plan, host.__module__ = plan, factory.__module__
    host.__name__ = host.__qualname__ = factory.__name__.removesuffix("_kernel")
    if choose is None: host.__defaults__ = (None, 1.0, 0.0, own)
    return host
