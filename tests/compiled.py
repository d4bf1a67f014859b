"""What the tests compile, and `tools/same_code.py` compares: each kernel at three shapes, plus the tiles and
options that change its code.

`python tests/compiled.py` compiles all of it and keeps in compiled.json what the tests ask for. A test takes
the answer from there unless the kernel, Python's bytecode or the compiler has changed since. Then it compiles
again. So the file is never wrong: while it is out of date, the tests take two minutes longer."""
import json
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path

import numba_matmul  # noqa: F401  first: it chooses between the GPU and the simulator
from numba_matmul.cards import write_whole
from numba_matmul.compiler import TARGETS, cache_key, machine_code
from numba_matmul.gemm.limits import capable
from numba_matmul.registry import KERNELS
from numba_matmul.sim.launch import launch_of

KEPT = Path(__file__).with_name("compiled.json")
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
        yield case(kernel, SHAPES[-1], **own(kernel), read_c=True)
        yield from (case(kernel, (256, 256, 256), **options) for options in kernel.tiles.compiled)


def asked(kernel, fn, shape):
    "The targets at which the tests compile a case: each older GPU once."
    older = [] if fn.keywords else {SHAPES[1]: ["sm_89"], SHAPES[2]: ["sm_80"]}.get(shape, [])
    return targets(kernel, ["sm_90", *older])


@cache
def kept(): return json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}


def compiled(kernel, fn, shape) -> dict:  # key → what the compiler said for a target
    "What the compiler makes of a case, as kept, or made now."
    launch, found = launch_of(fn, shape), {}
    multiply = "HGMMA" if kernel.uses_tma else "FFMA" if kernel.dtype == "float32" else "HMMA"
    for target in asked(kernel, fn, shape):
        key = cache_key(launch.kernel, launch.signature, target)
        if found_before := kept().get(key):
            found[key] = found_before
            continue
        code = machine_code(launch.kernel, launch.signature, target)
        found[key] = dict(kernel=kernel.name, target=target, registers=code.registers, spills=code.spills,
                          stack_bytes=code.stack_bytes,
                          multiplies=sum(x.kind == multiply for x in code.instructions))
    return found


def keep_all():
    "Write compiled.json anew."
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda case: compiled(*case[1:]), cases()))
    rows = {key: said for case in found for key, said in case.items()}
    lines = (f"{json.dumps(key)}: {json.dumps(said)}" for key, said in rows.items())
    write_whole(KEPT, "{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__": keep_all()
