"""Compare the microscope's predictions with Nsight Compute's counts: `make gpu STAGE=ncu`.

Both go to the result card. Covers the kernels of the ladder, or the ones with the given numbers, and kernels
made for one access each."""
import sys
from concurrent.futures import ThreadPoolExecutor

import numba_matmul  # noqa: F401  first: this chooses between the GPU and the simulator
import numpy as np
import torch
from numba import config, cuda, float32, uint32, uint64
from numba.cuda.core.sigutils import normalize_signature

from numba_matmul.compiler import gpu_target, machine_code, occupancy
from numba_matmul.registry import KERNELS, kernels_named
from numba_matmul.microscope import LINE, WORD, microscope
from numba_matmul.ncu import COPIES, COUNTERS, SHAPE, ncu
from numba_matmul.ptx.ampere import cp_async, cp_async_commit_group, cp_async_wait_group
from numba_matmul.sim.launch import launch_of
from numba_matmul.cards import gpu_card, gpu_name, need_gpu, write_card
from numba_matmul.gemm.limits import with_shared_memory
from numba_matmul.bench.timing import progress
from numba_matmul.ptx.core import load2, load4, store2, store4

REPEAT = 64            # so that the accesses in question dominate the kernel
NUMBERS = 32 * LINE // WORD  # that the kernels made here may read
HAS_COPIES = not config.ENABLE_CUDASIM and cuda.get_current_device().compute_capability >= (8, 0)


def named(kernel, name):
    "A kernel that Nsight Compute shows under its own name."
    kernel.__name__ = kernel.__qualname__ = name
    return cuda.jit(kernel)


def strided_kernel(stride):
    "A warp stores and loads shared words `stride` apart: `stride` of them in the busiest bank, up to 32."
    words = 32 * stride
    def kernel(x, out):
        tile = cuda.shared.array(words, float32)
        lane = uint32(cuda.threadIdx.x)
        acc = float32(0)
        for step in range(REPEAT):
            tile[lane * uint32(stride)] = x[lane] + float32(step)
            cuda.syncthreads()
            acc += tile[uint32(uint32(31) - lane) * uint32(stride)]
            cuda.syncthreads()
        out[lane] = acc
    return named(kernel, f"strided_{stride}_kernel")


def wide_kernel(width):
    "A warp stores and loads `width` adjacent words per lane in one access."
    words = 32 * width
    def kernel(x, out):
        tile = cuda.shared.array(words, float32, alignment=16)
        lane = uint32(cuda.threadIdx.x)
        start, other = uint32(lane * uint32(width)), uint32(uint32(uint32(31) - lane) * uint32(width))
        acc = float32(0)
        for step in range(REPEAT):
            value = x[lane] + float32(step)
            if width == 4: store4(tile, start, value, value, acc, value)
            else: store2(tile, start, value, acc)
            cuda.syncthreads()
            if width == 4:
                a, b, c, d = load4(tile, other)
                acc += a + b * c + d
            else:
                a, b = load2(tile, other)
                acc += a * b
            cuda.syncthreads()
        out[lane] = acc
    return named(kernel, f"wide_{width}_kernel")


def broadcast_kernel(width):
    "All lanes of a warp load the same `width` adjacent words in one access."
    words = 4 * REPEAT
    def kernel(x, out):
        tile = cuda.shared.array(words, float32, alignment=16)
        lane = uint32(cuda.threadIdx.x)
        for step in range(0, words, 32): tile[uint32(step) + lane] = x[lane] + float32(step)
        cuda.syncthreads()
        acc = float32(0)
        for step in range(0, words, 4):
            if width == 4:
                a, b, c, d = load4(tile, uint32(step))
                acc += a * b + c * d
            elif width == 2:
                a, b = load2(tile, uint32(step))
                acc += a * b
            else: acc += tile[uint32(step)] * float32(step)
            cuda.syncthreads()
        out[lane] = acc
    return named(kernel, f"broadcast_{width}_kernel")


def copy_kernel(lines, width, row):
    """A warp copies asynchronously, `width` words per lane, from `lines` different lines of global memory,
    and transposes the copy: words adjacent on a line go to rows of `row` words. Row 0: they stay
    adjacent."""
    across, name = uint32(32 // lines), f"copy_{width}_words_{lines}_lines_{row}"
    def kernel(x, out):
        tile = cuda.shared.array(8192, float32, alignment=16)
        lane = uint32(cuda.threadIdx.x)
        line, place = uint32(lane // across), uint32(lane % across)
        at = uint64(place * uint32(row) + line) if row else uint64(lane * uint32(width))
        start = uint64(line * uint32(LINE // WORD) + place * uint32(width))
        for _ in range(REPEAT):
            cp_async(tile, at, x, start, width, width)
            cp_async_commit_group()
            cp_async_wait_group(0)
            cuda.syncthreads()
        out[lane] = tile[at]
    return named(kernel, f"{name}_kernel")


def copy_rows_kernel(lanes, row, swizzled):
    """A warp copies 512 adjacent bytes, 16 per lane: to rows of `lanes` pieces that start `row` words apart,
    plain or swizzled."""
    name = f"copy_{lanes}_pieces_to_rows_{row}{'_swizzled' * swizzled}"
    def kernel(x, out):
        tile = cuda.shared.array(2048, float32, alignment=128)
        lane = uint32(cuda.threadIdx.x)
        at_row, piece = uint32(lane // uint32(lanes)), uint32(lane % uint32(lanes))
        place = uint32(piece ^ at_row % uint32(8)) if swizzled else piece
        at = uint64(at_row * uint32(row) + place * uint32(4))
        for _ in range(REPEAT):
            cp_async(tile, at, x, uint64(lane * uint32(4)), 4, 4)
            cp_async_commit_group()
            cp_async_wait_group(0)
            cuda.syncthreads()
        out[lane] = tile[at]
    return named(kernel, f"{name}_kernel")


COPIED = ((1, 1, 0), (4, 1, 0), (4, 1, 132), (4, 1, 136), (4, 1, 128), (8, 1, 128), (32, 1, 0), (4, 4, 0),
          (32, 4, 0)) if HAS_COPIES else ()
ROWS = ((8, 32, True), (8, 36, False), (8, 40, False), (8, 48, False), (16, 68, False), (4, 20, False),
        (2, 12, False), (1, 8, False)) if HAS_COPIES else ()
MADE = {kernel.py_func.__name__.removesuffix("_kernel"): kernel
        for kernel in (*map(strided_kernel, (1, 2, 4, 32)), *map(wide_kernel, (2, 4)),
                       *map(broadcast_kernel, (1, 2, 4)), *(copy_kernel(*case) for case in COPIED),
                       *(copy_rows_kernel(*case) for case in ROWS))}


def launch_all(numbers):
    "Launch these kernels of the ladder and the ones made here, once each, for the profiler."
    m, n, k = SHAPE
    a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    for number in numbers:
        KERNELS[number](*(x.to(getattr(torch, KERNELS[number].dtype)) for x in (a, b)))
    x, out = torch.randn(NUMBERS, device="cuda"), torch.empty(32, device="cuda")
    for kernel in MADE.values(): kernel[1, 32](cuda.as_cuda_array(x), cuda.as_cuda_array(out))
    torch.cuda.synchronize()


def predicted(name):
    "Sectors and wavefronts of one launch, according to the microscope."
    if name in MADE:
        x = np.random.randn(NUMBERS).astype(np.float32)
        return microscope(MADE[name][1, 32], x, np.zeros(32, np.float32)).totals()
    return microscope(KERNELS[int(name)].fn, SHAPE).totals()


def from_driver(number):
    """Registers of a kernel on the ladder and its blocks per multiprocessor: according to the compiler tool,
    and to the driver."""
    fn = KERNELS[number].fn
    launch, code = launch_of(fn, SHAPE), machine_code(fn, target=gpu_target(), shape=SHAPE)
    threads = int(np.prod(launch.block))
    types, _ = normalize_signature(launch.signature)
    compiled = launch.kernel.compile(types)
    configured = with_shared_memory(launch.kernel, launch.grid, launch.block, 0, launch.dynamic_bytes)
    for callback in configured.pre_launch_callbacks: callback(compiled, configured)
    blocks = cuda.current_context().get_active_blocks_per_multiprocessor(
        compiled._codelibrary.get_cufunc(), threads, launch.dynamic_bytes)
    theory = occupancy(threads, code.registers, code.shared_bytes + launch.dynamic_bytes, gpu_target())
    return {"registers": (code.registers, compiled.regs_per_thread),
            "blocks on a multiprocessor": (theory.blocks, blocks)}


def main(numbers):
    need_gpu("STAGE=ncu")
    # the counters don't include what the TMA moves
    copying = [number for number in numbers if not KERNELS[number].uses_tma]
    kernels = [*copying, *MADE]
    names = [KERNELS[kernel].name if kernel in KERNELS else kernel for kernel in kernels]
    counters = COUNTERS | (COPIES if HAS_COPIES else {})
    counted = ncu(__file__, "--launch", *copying, kernel="|".join(f"{name}_kernel" for name in names), skip=0,
                  launches=len(names), counters=counters)
    rows, metrics = [], {metric: counter for counter, metric in counters.items()}
    with ThreadPoolExecutor(4) as pool:
        totals = list(progress(pool.map(predicted, kernels), "kernels"))
    for name, total in zip(names, totals):
        for metric, value in total.items():
            counter = metrics[metric]
            if name in MADE and counter.startswith("global"): continue  # too few to be meaningful
            row = dict(kernel=name, counter=counter, predicted=int(value),
                       counted=int(counted[f"{name}_kernel"][counter]))
            rows.append(row)
            print(f"{name:24} {counter:24} predicted {row['predicted']:>12,} counted {row['counted']:>12,} "
                  f"{100 * row['predicted'] / max(1, row['counted']) - 100:+.2f} %", flush=True)
    for number in numbers:
        for counter, (by_tool, by_driver) in from_driver(number).items():
            rows.append(dict(kernel=KERNELS[number].name, counter=counter, predicted=by_tool,
                             counted=int(by_driver)))
            print(rows[-1], flush=True)
    gpu, order = gpu_name(), [kernel.name for kernel in KERNELS.values()] + list(MADE)
    earlier, new = gpu_card().get("ncu", []), {row["kernel"] for row in rows}
    rows += [row for row in earlier if row["kernel"] in order and row["kernel"] not in new]
    path = write_card(dict(gpu=gpu, ncu=sorted(rows, key=lambda row: order.index(row["kernel"]))))
    print(f"Written: {path.name}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--launch"]: launch_all(map(int, sys.argv[2:]))
    else: main([kernel.number for kernel in kernels_named(sys.argv[1:], "STAGE=ncu")])
