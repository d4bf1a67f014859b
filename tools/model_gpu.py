"""Measure the constants that predictions for this GPU need: `make gpu STAGE=model`. About a minute.

Each is a physical quantity, and a small kernel that does nothing else shows it: a chain of loads that wait
for each other gives a latency, many loads that don't wait give a throughput. The result card keeps them under
"model", and `numba_matmul.gpus` reads them from there."""
import statistics
import sys
import time
from functools import partial

import numba_matmul  # noqa: F401  first: this chooses between the GPU and the simulator
import numpy as np
from numba_matmul.arrays import to_d
from numba_matmul.cards import gpu_card, gpu_name, need_gpu, write_card
from numba_matmul.gpus import MEASURED
from numba_matmul.ptx.core import _assembly, bind, global_address, load4, shared_address
from numba_matmul.static import static, unrolled
from numba import cuda, float32, types, uint32, uint64

LINE = 128        # bytes
UNROLLED = 16     # loads, or barriers, in a pass of a loop: static(16)
WORDS = 512       # of the ring in shared memory, in 16 lines
ISSUE_CYCLES = 3  # from a load's issue until the memory unit has served it: no part of a latency


# What Numba doesn't have

def _emit_clock(context, builder, kinds, args, name):
    from llvmlite import ir
    return _assembly(builder, f"mov.u64 $0, %{name};", "=l", (), [ir.IntType(64)])[0]

@bind(partial(_emit_clock, name="clock64"), "", types.uint64)
def clock():
    "Cycles of this multiprocessor."
    return np.uint64(time.perf_counter_ns())

@bind(partial(_emit_clock, name="globaltimer"), "", types.uint64)
def nanoseconds():
    "The GPU's time."
    return np.uint64(time.perf_counter_ns())

def _emit_load(context, builder, kinds, args, instruction, kind, letter):
    from llvmlite import ir
    types_of = dict(r=ir.IntType(32), l=ir.IntType(64), f=ir.FloatType())
    place = "r" if "shared" in instruction else "l"
    return _assembly(builder, f"{instruction} $0, [$1];", f"={letter},{place}", args, [types_of[letter]])[0]

def _load(instruction, operand, kind, letter):
    return bind(partial(_emit_load, instruction=instruction, kind=kind, letter=letter), operand, kind)

@_load("ld.shared.u32", "r", types.uint32, "r")
def next_shared(address):
    "The address that is stored at an address in shared memory."
    return address

@_load("ld.global.u64", "l", types.uint64, "l")
def next_global(address):
    "The address that is stored at an address in global memory."
    return address

@_load("ld.global.f32", "l", types.float32, "f")
def load_at(address):
    "The float32 at an address in global memory."
    return np.float32(0)


# Kernels

@cuda.jit
@unrolled
def chain_in_shared(cycles, steps):
    "One thread follows addresses in shared memory, 128 bytes apart."
    ring = cuda.shared.array(WORDS, uint32)
    for word in range(0, WORDS, 32): ring[word] = shared_address(ring, uint32((word + 32) % WORDS))
    at = shared_address(ring, uint32(0))
    start = clock()
    for _ in range(steps):
        for __ in static(16): at = next_shared(at)
    cycles[0] = clock() - start
    cycles[1] = at

@cuda.jit
@unrolled
def chain_in_global(cycles, ring, steps, warm):
    "One thread follows the addresses in a ring; `warm` times all around it before that."
    at = global_address(ring, uint32(0))
    for _ in range(warm * ring.size): at = next_global(at)
    start = clock()
    for _ in range(steps):
        for __ in static(16): at = next_global(at)
    cycles[0] = clock() - start
    cycles[1] = at

def many_loads_kernel(
    apart,  # bytes, from lane to lane
    step,   # … from load to load
):
    "Warps load from the L1 cache, again and again."
    @cuda.jit
    @unrolled
    def many_loads(cycles, x, passes, none):  # none: 0, so that every pass has to load again
        lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        at = global_address(x, uint32(0)) + uint64(32 * apart * warp + apart * lane)
        total = float32(0)
        cuda.syncthreads()
        start = clock()
        for _ in range(passes):
            for i in static(8): total += load_at(at + uint64(step * i))
            at += none
        cuda.syncthreads()
        took = clock() - start
        if cuda.threadIdx.x == 0: cycles[2 * cuda.blockIdx.x] = took
        if total == 12345: cycles[1] = 0
    return many_loads

@cuda.jit
@unrolled
def many_barriers(cycles, passes):
    "All warps of a block meet again and again."
    cuda.syncthreads()
    start = clock()
    for _ in range(passes):
        for __ in static(16): cuda.syncthreads()
    took = clock() - start
    if cuda.threadIdx.x == 0: cycles[0] = took

@cuda.jit
def read_all(x, passes, out):
    "All blocks read x, in each pass another part."
    total, step = float32(0), 4 * cuda.gridDim.x * cuda.blockDim.x
    for i in range(passes):
        block = (cuda.blockIdx.x + 61 * i) % cuda.gridDim.x
        at = 4 * (block * cuda.blockDim.x + cuda.threadIdx.x)
        while at < x.size:
            first, second, third, fourth = load4(x, at)
            total += first + second + third + fourth
            at += step
    if total == 12345: out[0] = total

@cuda.jit
@unrolled
def multiply_add(times, passes):
    "Multiply-adds without loads, and how many cycles and nanoseconds they take."
    parts = cuda.local.array(8, float32)
    for i in static(8): parts[i] = float32(cuda.threadIdx.x + i)
    now, start = nanoseconds(), clock()
    for _ in range(passes):
        for __ in static(16):
            for i in static(8): parts[i] = parts[i] * float32(0.999) + float32(0.5)
    cycles, took, total = clock() - start, nanoseconds() - now, float32(0)
    for i in static(8): total += parts[i]
    if cuda.threadIdx.x == 0:
        times[2 * cuda.blockIdx.x], times[2 * cuda.blockIdx.x + 1] = cycles, took
    if total == 12345: times[0] = 0

@cuda.jit
def nothing(out):
    if out.size == 0: out[0] = 0


# What they show

def ring_of(order):
    "On the device: uint64 in lines of 128 bytes, each of them with the address of the next one in `order`."
    words, order = LINE // 8, np.append(0, order[order > 0])  # where the kernel begins
    ring = to_d(np.zeros(words * (max(order) + 1), np.uint64))
    first = ring.device_ctypes_pointer.value if hasattr(ring, "device_ctypes_pointer") else 0
    host = np.zeros(ring.size, np.uint64)
    host[words * order] = first + LINE * np.roll(order, -1).astype(np.uint64)
    ring.copy_to_device(host)
    return ring

def cycles_of(kernel, *args, grid=1, block=1, repeats=5):
    "The fewest cycles of several launches; if several blocks report them, their median."
    cycles = to_d(np.zeros(2 * grid, np.uint64))
    found = []
    for _ in range(repeats):
        kernel[grid, block](cycles, *args)
        found.append(float(np.median(cycles.copy_to_host()[::2])))
    return min(found)

def latency_in_global(megabytes, steps, warm):
    "Cycles of a load, in a ring of this size. It takes lines at random, but stays on a page for a while."
    random = np.random.default_rng(0)
    pages = np.arange(int(megabytes * 2**20 / LINE)).reshape(-1, min(2**14, int(megabytes * 2**20 / LINE)))
    some = [random.permutation(page)[:max(UNROLLED, steps * UNROLLED // len(pages))] for page in pages]
    ring = ring_of(np.concatenate(some if warm == 0 else [random.permutation(pages.ravel())]))
    return cycles_of(chain_in_global, ring, steps, warm, repeats=1) / steps / UNROLLED - ISSUE_CYCLES

def events_ms(call, repeats=10):
    "Median time of a call, by events."
    times = []
    for _ in range(repeats + 2):
        start, stop = cuda.event(), cuda.event()
        start.record()
        call()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return statistics.median(times[2:])

def l2_gb_s(sms, megabytes, passes=80):
    """How fast all multiprocessors read from the L2 cache what fits into half of it: by how much longer three
    times the passes take, so that neither the launch nor the first read from memory counts."""
    x = to_d(np.zeros(int(megabytes * 2**20 / 16) * 4, np.float32))
    out = to_d(np.zeros(1, np.float32))
    few = events_ms(lambda: read_all[4 * sms, 512](x, passes, out))
    many = events_ms(lambda: read_all[4 * sms, 512](x, 3 * passes, out))
    return x.nbytes * 2 * passes / (many - few) / 1e6

def clock_mhz(sms, passes=30_000):
    "The clock while all multiprocessors multiply and add, after a second of it."
    times = to_d(np.zeros(8 * sms, np.uint64))
    until = time.monotonic() + 1
    while True:
        multiply_add[4 * sms, 256](times, passes)
        cycles, took = times.copy_to_host().reshape(-1, 2).astype(float).T
        if time.monotonic() > until: return 1e3 * float(np.median(cycles / took))

def launch_us():
    "Device time of a kernel that does nothing, as the profiler counts it."
    from torch.profiler import ProfilerActivity, profile
    from numba_matmul.bench.timing import _device_times
    out = to_d(np.zeros(1, np.float32))
    nothing[132, 256](out)
    cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU], acc_events=True) as prof:
        for _ in range(50):
            nothing[132, 256](out)
            cuda.synchronize()
    (times,) = [times for name, times in _device_times(prof).items() if "nothing" in name]
    return 1e3 * statistics.median(times)


def measurements(sms, l2_mb):
    "Constant → a function that measures it, on a GPU with so many multiprocessors and such an L2 cache."
    zeros = to_d(np.zeros(2**17, np.float32))
    warps, steps, passes = 16, 4096, 2000
    def per_load(*bytes_apart):
        kernel = many_loads_kernel(*bytes_apart)
        return (cycles_of(kernel, zeros, passes, np.uint64(0), grid=sms, block=32 * warps)
                / passes / 8 / warps)
    return dict(
        clock_mhz=lambda: clock_mhz(sms),
        l2_gb_s=lambda: l2_gb_s(sms, l2_mb / 3),
        shared_latency=lambda: cycles_of(chain_in_shared, steps) / steps / UNROLLED - ISSUE_CYCLES,
        l1_latency=lambda: latency_in_global(1 / 64, steps, 2),
        l2_latency=lambda: latency_in_global(4, steps, 1),
        dram_latency=lambda: latency_in_global(8 * l2_mb, steps // 4, 0),
        load_cycles=lambda: per_load(4, LINE),
        lines_per_cycle=lambda: 32 / per_load(LINE + 4, 4),  # each lane in a bank of its own
        # two warps of a scheduler arrive one after the other
        barrier_cycles=lambda: cycles_of(many_barriers, steps, block=256) / steps / UNROLLED - 1,
        launch_us=launch_us)


def main():
    need_gpu("STAGE=model")
    card = gpu_card()
    if not card: sys.exit(f"there is no card for the {gpu_name()} yet: run make gpu STAGE=ladder first")
    found = {}
    for name, measure in measurements(card["multiprocessors"], card["l2_mb"]).items():
        found[name] = dict(value=float(f"{measure():.4g}"), unit=MEASURED[name])
        print(f"{name:16} {found[name]['value']:>8,} {MEASURED[name]}", flush=True)
    write_card(dict(gpu=gpu_name(), model=card.get("model", {}) | dict(machine=found)))


if __name__ == "__main__": main()
