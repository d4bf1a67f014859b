"""How fast would a kernel be? A prediction for a GPU that isn't here, with its reasons.

The compiler wrote down what each instruction has to wait for, the microscope counts what each access costs,
and `cycles.replay` walks the loop over k with these. The rest is arithmetic: how many blocks a multiprocessor
gets, and whether L2 cache and memory can keep up.
"""
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import mean, median

import numpy as np
from .arrays import cdiv
from .cards import code_of, load_cards
from .compiler import MULTIPROCESSORS, CompileError, machine_code
from .cycles import (
    ALU, CAUSES, KIND, LDG, LDGSTS, LDS, OTHER, PLACE, SERVICE, STS, TURN, UNIFORM, replay)
from .draw import COLORS
from .gpus import BLOCK_CYCLES, LOADED, SUSTAINED, Machine, machine_called
from .predicted import PREDICTED
from .process import ChildError, kernel_parts
from .sim.launch import launch_of
from .sim.scheduler import SimulatorError
from .tensor_model import on_tensor_cores, tensor_ms
from .workload import KLoop, NoPrediction, Workload, as_host_function, with_result, workload

WIDEST = 256     # rows or columns of a block's tile
QUEUE = 10       # memory instructions of a scheduler that can wait for service
PASSES, WARM = 160, 16  # of a loop that are replayed, and those of them that don't count yet


# One multiprocessor

def table_for(
    loop: KLoop,
    gpu: Machine,
) -> np.ndarray:
    "A loop as `cycles.replay` takes it: passes become cycles of this GPU."
    table, lines = np.array(loop.table, float), np.array(loop.lines)
    kinds, service = table[:, KIND], table[:, SERVICE]
    accesses = (kinds >= LDS) & (kinds <= LDGSTS)
    service[accesses] /= gpu.wavefronts
    fetches = (kinds == LDG) | (kinds == LDGSTS)
    least = np.maximum(gpu.load_cycles / gpu.wavefronts, lines / gpu.lines_per_cycle)
    service[fetches] = np.maximum(service, least)[fetches]
    return table

@dataclass
class Pace:
    "How fast a multiprocessor goes through a loop."
    cycles: float  # of a pass of all its warps
    memory: float  # busy share of the memory unit
    issue: float   # … and of the schedulers
    waited: np.ndarray  # cycles that warps waited: instructions × `cycles.CAUSES`

@lru_cache(512)
def _pace(loop, gpu, warps, blocks, far):
    waited = np.zeros((len(loop.table), len(CAUSES)))
    found = replay(table_for(loop, gpu), warps, blocks, PASSES, WARM, 4 * loop.step, gpu.shared_latency,
                   gpu.l1_latency, gpu.l2_latency, LOADED * gpu.dram_latency, gpu.barrier_cycles, far,
                   gpu.pipes, QUEUE, waited)
    return Pace(*found, waited)

def pace(
    loop: KLoop,
    gpu: Machine,
    warps: int,      # of a block
    blocks: int,     # on the multiprocessor
    far: float,      # part of what the L1 cache doesn't have that comes from memory, not from the L2 cache
) -> Pace:
    "How fast a multiprocessor goes through a loop; computed once."
    same = replace(gpu, name="", clock_mhz=0, dram_gb_s=0, l2_mb=0, source="")  # what doesn't matter here
    return _pace(loop, same, warps, blocks, far)


# The whole launch

@dataclass
class Estimate:
    "What the model says of a launch."
    ms: float
    busy: dict    # resource → share of the time that it is busy
    filled: float  # share of the places for blocks that are filled: the last round may leave some empty
    pace: Pace

def estimate(
    work: Workload,
    gpu: Machine,
) -> Estimate:
    "The time of a launch, and what it goes into. `NoPrediction` where that's more than the model follows."
    if work.stays and work.passes < 64:
        raise NoPrediction("its blocks share tiles, and most of so short a launch is waiting for each other")
    (m, n, k), loop, warps = work.shape, work.loop, cdiv(work.threads, 32)
    if work.tiles * work.blocks * work.threads * loop.results > (m + WIDEST) * (n + WIDEST):
        raise NoPrediction("it's launched with more threads than C needs, or several of its blocks share "
                           "each tile: the model doesn't see which part each computes")
    if not work.stays and work.blocks * work.threads * loop.results < m * n:
        raise NoPrediction("it's launched with too few threads for C, unless each loops over more results "
                           "than the model sees")
    per_sm = cdiv(work.blocks, gpu.sms)
    resident = min(work.resident, per_sm)
    # Blocks that need the same tiles keep in step with the first of them, and that one waits for memory where
    # the L2 cache can't hold both matrices.
    far = round(max(0, 1 - gpu.l2_mb * 2**20 / (4 * (m * k + k * n))), 2)
    latency = LOADED * gpu.dram_latency if far else gpu.l2_latency
    at = pace(loop, gpu, warps, resident, far)
    full, rest = divmod(per_sm, resident)
    cycles = full * at.cycles * work.passes + per_sm * work.tiles * loop.stored
    if rest: cycles += pace(loop, gpu, warps, rest, far).cycles * work.passes
    # Blocks start and end: the first ones together, later ones while their neighbors multiply.
    cycles += (BLOCK_CYCLES + latency) * (1 + (per_sm - resident) / resident**2)
    sm_ms = cycles / gpu.clock_mhz / 1e3
    # Can the L2 cache and memory keep up? Memory has to bring each matrix once.
    sectors = loop.brought * loop.step * work.passes * work.blocks
    l2_ms = 32 * sectors / gpu.l2_gb_s / 1e6 if gpu.l2_gb_s else 0
    dram_ms = 4 * (m * k + k * n + m * n) / (gpu.dram_gb_s * SUSTAINED) / 1e6
    ms = max(sm_ms, l2_ms, dram_ms) + gpu.launch_us / 1e3
    multiplies = loop.results * loop.step * warps * resident / at.cycles / 4 / min(1, gpu.pipes / 2)
    table = table_for(loop, gpu)
    kinds, service = table[:, KIND], table[:, SERVICE]
    shared = service[(kinds == LDS) | (kinds == STS)].sum()
    all_of_it = service[(kinds >= LDS) & (kinds <= LDGSTS)].sum() or 1
    busy = {"issue slots": at.issue, "FMA pipe": multiplies,
            "shared memory": at.memory * shared / all_of_it,
            "L1 cache": at.memory * (1 - shared / all_of_it),
            "L2 cache": l2_ms / ms, "memory": dram_ms / ms}
    reads = table[kinds <= ALU, PLACE].sum() + table[kinds == OTHER, PLACE].sum()
    uniform = (2 * (kinds == UNIFORM).sum() + reads) * warps * resident / at.cycles / 4
    if uniform > 0.5: busy["uniform unit"] = uniform  # few kernels need much of it
    return Estimate(ms, busy, work.blocks / (per_sm * gpu.sms), at)

NAMED = {name: f"the {name}" for name in ("FMA pipe", "uniform unit", "L1 cache", "L2 cache",
                                                "tensor cores")}
WAITS = {"barrier": "each other at barriers", "fixed latency": "their last results",
         "arithmetic pipe": "an arithmetic pipe", "memory queue": "the queue to memory",
         "register bank": "register banks"}

def limit_of(
    found: Estimate,
    work: Workload,
    machine: Machine,
) -> str:
    "What limits a launch, in words."
    busy = dict(found.busy)
    unit = busy["shared memory"] + busy["L1 cache"]  # one unit serves both
    top = max(busy, key=busy.get)
    if unit > busy[top]: top = max("shared memory", "L1 cache", key=busy.get)
    if found.filled < 0.7: return "waves: the last round of blocks leaves multiprocessors empty"
    if max(busy[top], unit) > 0.8: return NAMED.get(top, top)
    waits = dict(zip(CAUSES, found.pace.waited.sum(0)))
    del waits[CAUSES[TURN]]
    warps = min(work.resident, cdiv(work.blocks, machine.sms)) * cdiv(work.threads, 32)
    top = max(waits, key=waits.get)
    if warps < MULTIPROCESSORS[machine.target].warps: which = f"too few warps ({warps}), waiting"
    else: which = f"all {warps} warps that fit wait"
    return f"latency: {which} for {WAITS.get(top, top)}"


# A prediction

@dataclass
class Prediction:
    "What a launch would take on a GPU. `ms` is `None` where the model doesn't know; `why` says why."
    name: str
    shape: tuple
    gpu: Machine
    ms: float = None
    limit: str = ""      # what limits it
    busy: dict = None    # resource → share of the time that it's busy
    cublas_ms: float = None  # in the kernel's type, recorded on this GPU at this shape
    errors: tuple = ()   # of kernels like it, as fractions: predicted / measured − 1
    why: str = ""        # there is no prediction
    loop: KLoop = None
    waited: np.ndarray = None  # cycles that warps waited: instructions × `cycles.CAUSES`

    @property
    def gflops(self):
        "Billions of additions and multiplications per second."
        return self.ms and 2 * np.prod(self.shape, dtype=float) / self.ms / 1e6
    @property
    def percent(self):
        "Speed in % of cuBLAS, as recorded on this GPU."
        return self.ms and self.cublas_ms and 100 * self.cublas_ms / self.ms
    @property
    def sure(self):
        "How far off it may be: the mean error for kernels like it, as a fraction; `None` if never compared."
        return mean(map(abs, self.errors)) if self.errors else None

    def __repr__(self):
        called = f"{self.name} at {'×'.join(map(str, self.shape))}" if self.shape else self.name
        if self.ms is None: return f"No prediction for {called}: {self.why}."
        text = f"{called} on one {self.gpu.name}: "
        text += f"about {self.ms:.3g} ms, {self.gflops:,.0f} GFLOP/s"
        if self.percent: text += f", {self.percent:.0f} % of cuBLAS"
        text += f"; limited by {self.limit}."
        if self.sure is None: return f"{text} Predictions for this GPU were never compared with measurements."
        worst = max(map(abs, self.errors))
        return (f"{text} {len(self.errors)} predictions for kernels like it were {100 * self.sure:.0f} % off "
                f"on average, {100 * worst:.0f} % at most.")

    def draw(self):
        "How busy each resource is, and what each instruction of the loop waits for. Returns the figure."
        if self.ms is None: raise ValueError(repr(self))
        return _draw(self)

def predicted(
    card,  # a result card
) -> dict:  # (kernel, m, n, k) → ms, what limits it
    "What the model says of the course's kernels on a card's GPU, without those that have changed since."
    kept = PREDICTED.get(card["gpu"], {})
    return {(name, *shape): found for name, (code, at) in kept.items() if code == code_of(card, name)
            for shape, found in at.items()}

def compared(
    card,  # a result card
) -> list:  # of (kernel, shape, what limits it, ms predicted, ms measured)
    "The predictions for a card's GPU beside its times, without those of a kernel that has changed since."
    times = {(row["name"], row["m"], row["n"], row["k"]): row["ms"] for row in card["speed"]
             if row.get("code") == code_of(card, row["name"])}
    return [(name, tuple(shape), limit, ms, times[name, *shape])
            for (name, *shape), (ms, limit) in predicted(card).items() if (name, *shape) in times]

# Of 259 kernels that the model had never seen, each timed at 4096 on an H100 or H200, nine in ten were within
# this.
READERS_ERROR = 0.27

def _errors(gpu, shape, limit):  # gpu: its name
    "Errors of our own kernels on this GPU: those with the same limit, at squares or else at thin shapes."
    found = [(why, ms / measured - 1) for card in load_cards() if card["gpu"] == gpu
             for _, at, why, ms, measured in compared(card) if (len(set(at)) == 1) == (len(set(shape)) == 1)]
    same = [error for why, error in found if why.split(":")[0] == limit.split(":")[0]]
    return tuple(same if len(same) > 2 else (error for _, error in found))

def _cublas(gpu, shape, kind="sgemm_"):  # kind: how the names of kernels of the same type begin
    times = [row["cublas_ms"] for card in load_cards() if card["gpu"] == gpu for row in card["speed"]
             if (row["m"], row["n"], row["k"]) == tuple(shape) and row["name"].startswith(kind)]
    return median(times) if times else None

def _only_launch(fn, shape, gpu):
    try: launch = launch_of(fn, shape, gpu=gpu)
    except ValueError as e: raise NoPrediction(str(e)) from None
    if launch.others: raise NoPrediction("its host function launches other kernels, too")
    return launch

def _on_tensor_cores(name, launch, code, shape, machine):
    if not machine.checked: raise NoPrediction("the model knows tensor cores only on an H100 or H200")
    ms, busy = tensor_ms(launch, code, shape, machine)
    top = max(busy, key=busy.get)
    limit = NAMED.get(top, top) if busy[top] > 0.9 else "what each tile does before and after its products"
    return Prediction(name, shape, machine, ms, limit, busy, _cublas(machine.name, shape, "bf16_"),
                      _errors(machine.name, shape, limit))

def predict_again(
    fn,     # host function
    shape,  # m, n, k
    gpu,    # the GPU's full name
) -> Prediction:  # or `None`
    "What `tools/predictions.py` found for one of the course's kernels, if its code is still the same."
    name = getattr(fn, "__name__", "")
    if not getattr(fn, "__module__", "").startswith("numba_matmul.kernels."): return None
    for card in load_cards():
        if card["gpu"] == gpu and (kept := predicted(card).get((name, *shape))):
            ms, limit = kept
            cublas_ms = _cublas(card["gpu"], shape, f"{name.split('_')[0]}_")
            return Prediction(name, shape, machine_called(gpu), ms, limit, None, cublas_ms,
                              _errors(card["gpu"], shape, limit))
    return None

def compile_for(
    what,     # host function
    m, n, k,  # the product
    gpu,      # see `predict`
):
    "Compile what `predict` will need, and keep it. If that fails, `predict` will say why."
    machine = machine_called(gpu)
    with suppress(NoPrediction, CompileError, SimulatorError, ChildError):
        launch = _only_launch(with_result(what), (m, n, k), (machine.name, machine.sms))
        machine_code(launch.kernel, launch.signature, machine.target)

LEAST = 256**3  # m·n·k; smaller products were never compared

def predict(
    what,        # host function, or a kernel with its launch configuration
    *args,       # m, n, k for a host function; the arguments of a launch for a kernel
    gpu="H200",  # the GPU's name, or a part of it: see `gpus.machines`
) -> Prediction:
    "How fast would it be? Needs no GPU. Where the model doesn't know, it gives no time, and says why."
    machine = machine_called(gpu)
    parts = kernel_parts(what)
    name = parts[0].__name__ if parts else getattr(getattr(what, "func", what), "__name__", repr(what))
    if parts and not parts[2]:
        raise TypeError(f"{name} is a kernel: pass it with its launch and its arguments, "
                        f"predict({name}[grid, block], a, b, c)")
    try:
        if parts: what, args = as_host_function(what, args)
        elif callable(what): what = with_result(what)
        if len(args) != 3:
            raise TypeError("pass a host function and m, n and k, predict(sgemm_naive, 4096, 4096, 4096), "
                            "or a kernel and its arguments, predict(kernel[grid, block], a, b, c)")
        if np.prod(args, dtype=float) < LEAST:
            raise NoPrediction("so small a product is mostly startup and cleanup, which the model doesn't "
                               "follow")
        chosen = machine.name, machine.sms
        launch = _only_launch(what, tuple(args), chosen)
        code = machine_code(launch.kernel, launch.signature, machine.target)
        if on_tensor_cores(code): return _on_tensor_cores(name, launch, code, tuple(args), machine)
        work = workload(what, tuple(args), machine.target, chosen, launch)
        found = estimate(work, machine)
    except (NoPrediction, CompileError, SimulatorError, ChildError) as e:
        shape = () if any(map(np.ndim, args)) else tuple(args)
        return Prediction(name, shape, machine, why=str(e).splitlines()[0].rstrip("."))
    limit = limit_of(found, work, machine)
    shape, errors = work.shape, ()
    if machine.checked: errors = _errors(machine.name, shape, limit)
    return Prediction(name, shape, machine, found.ms, limit, found.busy, _cublas(machine.name, shape),
                      errors, "", work.loop, found.pace.waited)


# Its picture

DARK = "#555555"
KINDS = {"FFMA": DARK, "shared memory": COLORS[7], "global memory": COLORS[4], "barriers": COLORS[6],
         "others": "#E4E4E4"}
WAITING = dict(zip(CAUSES, ("#E4E4E4", "#BBBBBB", COLORS[7], COLORS[4], COLORS[6], DARK, COLORS[5], "black")))

def _kind(text):
    name = text.split()[-1].split(".")[0]
    if name == "FFMA": return "FFMA"
    if name in ("LDS", "STS"): return "shared memory"
    if name.startswith("LDG"): return "global memory"
    return "barriers" if name in ("BAR", "DEPBAR") else "others"

def _draw(prediction):
    import matplotlib.pyplot as plt
    if prediction.loop is None: fig, axes = plt.subplots(1, 1, figsize=(8, 1.4), layout="constrained")
    else: fig, axes = plt.subplots(2, 1, figsize=(8, 4.8), height_ratios=(1, 1.4), layout="constrained")
    bars, *strips = np.ravel(axes)
    busy = dict(reversed(prediction.busy.items()))
    drawn = bars.barh(list(busy), [100 * share for share in busy.values()], color=COLORS[8])
    bars.bar_label(drawn, [f"{100 * share:.0f} %" for share in busy.values()], fontsize=9, padding=2)
    bars.set(xlim=(0, 112), xlabel="busy, % of the time", xticks=range(0, 101, 20),
             title=f"{prediction.name}, limited by {prediction.limit}")
    for strip in strips: _draw_loop(strip, prediction)
    for ax in np.ravel(axes):
        ax.spines[["top", "right"]].set_visible(False)
        ax.title.set_fontsize(10)
    plt.close(fig)
    return fig

def _draw_loop(strip, prediction):
    # What warps wait for before each instruction; neighbors share a column.
    waited, kinds = 100 * prediction.waited / prediction.waited.sum(), [*map(_kind, prediction.loop.text)]
    edges = np.linspace(0, len(kinds), min(len(kinds), 120) + 1).astype(int)
    places, widths, low = edges[:-1], np.diff(edges), np.zeros(len(edges) - 1)
    for cause, (name, color) in enumerate(WAITING.items()):
        heights = np.add.reduceat(waited[:, cause], places)
        if heights.sum() < 1: continue
        shown = heights > 0.02
        strip.bar(places[shown], heights[shown], widths[shown], low[shown], align="edge", color=color,
                  label=f"{name}, {heights.sum():.0f} %")
        low += heights
    # The instructions themselves, below; neighbors of a kind are one bar.
    starts = [i for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]]
    lengths, top = np.diff([*starts, len(kinds)]), low.max()
    colors = [KINDS[kinds[i]] for i in starts]
    strip.bar(starts, -0.12 * top, lengths, -0.03 * top, align="edge", color=colors)
    strip.set(xlim=(0, len(kinds)), ylim=(-0.16 * top, 1.65 * top), ylabel="% of all waiting",
              xlabel="instructions of a pass of the loop over k\n"
                     "(dark gray: FFMA, yellow: shared memory, pink: global memory, red: barriers)")
    strip.legend(fontsize=8, ncols=3, title="a warp waits for", title_fontsize=8, loc="upper center")
