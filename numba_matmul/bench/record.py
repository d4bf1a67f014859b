"""Records speeds on a result card, along with the machine and the method behind them.

A kernel is checked before it is timed. One that fails its check is shown as failed, and gets no speed.
"""
import statistics
import subprocess
import sys
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from itertools import cycle, product

from ..cards import code_of, gpu_card
from ..gemm.kernel import Kernel, cublas
from ..sim.scheduler import SimulatorError
from .timing import call_time, measure_runtime
from .timing import assert_matmul_correct


def measure(
    kernel: Kernel,
    shape: tuple,    # m, n, k
    runs: int = 20,  # timed runs
) -> dict:
    "Time a kernel on this GPU, as a row of a result card. Only that product is checked."
    m, n, k = shape
    row = dict(name=kernel.name, m=m, n=n, k=k)
    try: time = measure_runtime(kernel, m, n, k, do_print=False, runs=runs)
    except (AssertionError, SimulatorError) as e: return row | dict(passed=False, message=str(e))
    return row | dict(
        passed=True, code=code_of(gpu_card(), kernel.name), runs=time.runs, ms=time.ms,
        spread_ms=time.spread_ms, gflops=time.gflops, cublas_ms=time.cublas_ms,
        cublas_gflops=time.cublas_gflops, cublas_kernel=time.cublas_kernel, percent=time.percent,
        error=time.error, cublas_error=time.cublas_error)


# Next: what does a call cost in a program? Each host function is compared with `torch.mm(out=)`, repeatedly
# for the same matrices, and in turn for a thousand sets of matrices. The last kernel of each type is also
# timed by the wall clock, with calls waiting in the queue.

def _beside_torch(call, rival, sets, wait=False):
    "Alternating three times: µs per call, and per call of the rival. Checks the last results."
    import torch
    def timed(fn):
        matrices = cycle(sets)
        for *_, c in sets: c.fill_(torch.nan)
        us = call_time(lambda: fn(*next(matrices)), wait=wait)
        for a, b, c in (sets[0], sets[-1]): assert_matmul_correct(a, b, c)
        return us
    rounds = [(timed(call), timed(rival)) for _ in range(3)]
    return dict(us=[ours for ours, _ in rounds], torch_us=[theirs for _, theirs in rounds])

def measure_calls(
    kernels: list,    # of `Kernel`s
    host: int = 256,  # m = n = k of calls whose time on the host is measured …
    wall: tuple = (512, 1024, 2048, 4096),  # … and of 1,000 queued calls of the last kernel of each type
) -> list:            # rows of a result card: µs per call in three rounds, and of torch.mm
    "The cost of a call next to `torch.mm(out=)` of the same type: each round is the best of five runs."
    import torch
    def matrices(size, dtype, count=1):
        def one(): return torch.randn(size, size, device="cuda").to(getattr(torch, dtype))
        return [(one(), one(), one()) for _ in range(count)]
    def mm(a, b, c): torch.mm(a, b, out=c)
    rows, precision = [], torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # TF32 off
    try:
        for dtype in dict.fromkeys(kernel.dtype for kernel in kernels if kernel.rival is cublas):
            many = matrices(host, dtype, 1000)
            chosen = [kernel for kernel in kernels if kernel.dtype == dtype]
            calls = ("host", many[:1]), ("host, other matrices each time", many)
            for kernel, (what, sets) in product(chosen, calls):
                rows.append(dict(name=kernel.name, size=host, what=what) | _beside_torch(kernel, mm, sets))
            rows += [dict(name=chosen[-1].name, size=size, what="wall clock")
                     | _beside_torch(chosen[-1], mm, matrices(size, dtype), wait=True) for size in wall]
    finally: torch.set_float32_matmul_precision(precision)
    return rows


# The result card
#
# A speed means little without the machine and the method behind it. The card keeps them together. Its schema
# is card.schema.json; the tests reject a card that breaks it, or that contains a failed check. Two details
# of the method are easily overlooked: cuBLAS may not add parts of a sum in bfloat16, since ours adds them in
# float32; and the matrices are the same in all runs, so small ones stay in the L2 cache.

def nvidia_smi_command(*fields) -> list:
    "The command that queries nvidia-smi for `fields` of the GPU that torch uses."
    import torch
    gpu = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    return ["nvidia-smi", "-i", gpu, f"--query-gpu={','.join(fields)}",
            "--format=csv,noheader,nounits"]

def nvidia_smi(*fields) -> list:
    "nvidia-smi's values for `fields`."
    out = subprocess.run(nvidia_smi_command(*fields), capture_output=True, text=True, check=True)
    return [value.strip() for value in out.stdout.splitlines()[0].split(",")]

def clocks() -> dict:
    "The GPU's current clocks, in MHz."
    sm, memory = nvidia_smi("clocks.sm", "clocks.mem")
    return dict(sm_mhz=float(sm), memory_mhz=float(memory))

def copy_speed() -> float:
    "GB/s read plus written when copying 1 GB within the GPU's memory: the median of 20, by events."
    import torch
    source = torch.randn(2**28, device="cuda")
    target, times = torch.empty_like(source), []
    for _ in range(23):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        target.copy_(source)
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return 2 * source.nbytes / statistics.median(times[3:]) / 1e6

def _version(package):
    try: return version(package)
    except PackageNotFoundError: return None


FP32_LANES = {"7.0": 64, "7.5": 64, "8.0": 64}  # per multiprocessor; 128 elsewhere

METHOD = ("Device time by torch.profiler: median of the runs and distance between the quartiles, "
          "after warm-up, alternating with torch.matmul in the same process, each first in half of the runs; "
          "TF32 off, and torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False; "
          "normally distributed random data, the same matrices in all runs of a kernel, so operands of up to "
          "about 2048×2048 can stay in the L2 cache from one run to the next: such sizes are timed warm; "
          "each result compared with float64 before it is timed.")

def machine() -> dict:
    "The GPU, its driver and the software, as named on a result card."
    import torch
    gpu = torch.cuda.get_device_properties(0)
    driver, top_clock = nvidia_smi("driver_version", "clocks.max.sm")
    packages = ("torch", "numba", "numba-cuda", "numpy", "cuda-bindings", "llvmlite",
                "nvidia-nvjitlink", "nvidia-nvvm")
    versions = {package: v for package in packages if (v := _version(package))}
    capability = f"{gpu.major}.{gpu.minor}"
    lanes = gpu.multi_processor_count * FP32_LANES.get(capability, 128)
    return dict(schema=1, gpu=gpu.name, compute_capability=capability,
                multiprocessors=gpu.multi_processor_count,
                memory_gb=round(gpu.total_memory / 1e9, 1), driver=driver, cuda=torch.version.cuda,
                versions=dict(python=sys.version.split()[0]) | versions,
                clock_mhz=float(top_clock), peak_gflops=lanes * 2 * float(top_clock) / 1000,
                copy_gb_s=copy_speed(), l2_mb=gpu.L2_cache_size / 2**20,
                date=date.today().isoformat(), method=METHOD)
