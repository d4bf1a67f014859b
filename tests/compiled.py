"""What the tests compile, and `tools/same_code.py` compares: each kernel at three shapes, plus the tiles and
options that change its code."""
from functools import partial

from numba_matmul.compiler import TARGETS
from numba_matmul.gemm.limits import capable
from numba_matmul.registry import KERNELS

SHAPES = (128, 128, 64), (132, 132, 36), (65, 63, 61)  # m, n, k: all fit; none fits; misaligned rows too


def targets(kernel, wanted=("sm_80", "sm_89", "sm_90")):
    "The requested targets that support the kernel's instructions."
    return [target for target in wanted if capable(TARGETS[target], kernel.capability)]


def cases():
    "Label, `Kernel`, host function with its options, and shape."
    def case(kernel, shape, **options):
        shape = kernel.fitted(*shape)
        return (f"{kernel.name} {'×'.join(map(str, shape))} {options or ''}".strip(), kernel,
                partial(kernel.fn, **options), shape)
    def own(kernel):  # where kernel 14 would take over
        return dict(tile=kernel.tiles.tile) if kernel.number == 19 else {}
    for kernel in KERNELS.values():
        yield from (case(kernel, shape, **own(kernel)) for shape in SHAPES)
    for kernel in [kernel for kernel in KERNELS.values() if kernel.tiles]:
        # (for kernel 20 that follows from beta)
        if kernel.number != 20: yield case(kernel, SHAPES[-1], **own(kernel), read_c=True)
        yield from (case(kernel, (256, 256, 256), **options) for options in kernel.tiles.compiled)
