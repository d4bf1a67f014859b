"What the tests compile, and `tools/same_code.py` compares: each kernel at three shapes, and the tiles and options that change its code."
from functools import partial
from inspect import signature

from numba_matmul import k13_beyond_cublas, k16_warp_specialized
from numba_matmul.compiler import TARGETS
from numba_matmul.ladder import KERNELS
from numba_matmul.util import capable

SHAPES = (128, 128, 64), (132, 132, 36), (65, 63, 61)  # m, n, k: all fits; nothing does; nor are rows aligned
TILED = [kernel for kernel in KERNELS.values() if "tile" in signature(kernel.fn).parameters]
OPTIONS_13 = [dict(tile=k13_beyond_cublas.LARGE, **more) for more in ({}, dict(guarded=True, width=1, read_c=True))]
OPTIONS_16 = [dict(tile=tile) for tile in k16_warp_specialized.CYCLES] + [
    dict(tile=k16_warp_specialized.LARGE, **change) for change in (dict(late=False), dict(read_c=True))]


def targets(kernel, wanted=("sm_80", "sm_89", "sm_90")):
    "Those of the wanted targets that have the kernel's instructions."
    return [target for target in wanted if capable(TARGETS[target], kernel.needs)]


def cases():
    "Label, `Kernel`, host function with its options, and shape."
    def case(kernel, shape, **options):
        shape = kernel.fitted(*shape)
        return f"{kernel.name} {'×'.join(map(str, shape))} {options or ''}".strip(), kernel, partial(kernel.fn, **options), shape
    for kernel in KERNELS.values():
        yield from (case(kernel, shape) for shape in SHAPES)
    yield from (case(kernel, SHAPES[-1], read_c=True) for kernel in TILED)
    for number, several in (13, OPTIONS_13), (16, OPTIONS_16):
        yield from (case(KERNELS[number], (256, 256, 256), **options) for options in several)
