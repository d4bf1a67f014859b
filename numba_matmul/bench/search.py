"""Which configuration of a kernel is fastest on this GPU? A search checks each and times it.

The best one is saved on the GPU's result card, where `gemm.tiles.tuned_tile` finds it. Lesson 9 explains the
search, and `python -m numba_matmul.ladder --tune 9` runs it.
"""
import statistics
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from functools import partial
from itertools import product
from pathlib import Path
from random import Random

from numba import config

from ..cards import gpu_card, gpu_name, load_cards, write_card
from ..compiler import gpu_target, machine_code
from ..draw import COLORS
from ..gemm.plan import forget_plans
from ..gemm.tiles import check_tile, tuned_tile
from .timing import progress
from .verify import check_matmul


def configurations(
    space: dict,  # name → values
) -> list:
    "Every combination of the values, each as a dict."
    return [dict(zip(space, values)) for values in product(*space.values())]


@dataclass
class Tuning:
    "What a search found."
    name: str       # of the host function
    size: int       # m = n = k
    rows: list      # of dicts: the configuration, and its speed under "gflops"; fastest first
    refused: dict   # first reason → number of configurations
    left: int       # configurations there was no time for
    source: str     # which machine, and when

    @property
    def best(self) -> dict:
        "The fastest configuration, or nothing."
        return {name: value for row in self.rows[:1] for name, value in row.items() if name != "gflops"}

    def _repr_markdown_(self):
        if not self.rows:
            refused = (f"Refused: {reason} ({count})." for reason, count in self.refused.items())
            return " ".join([self.source, *refused])
        names = list(self.rows[0])
        head = [f"| {' | '.join(names)} |", "|" + "--:|" * len(names)]
        rows = [f"| {' | '.join(f'{value:,.0f}' for value in row.values())} |" for row in self.rows[:5]]
        shown = "five" if len(self.rows) > 4 else len(self.rows)
        text = (f"The {shown} fastest of {len(self.rows)} at {self.size}×{self.size}×{self.size}; "
                f"{sum(self.refused.values())} were refused, {self.left} were not tried. ")
        return "\n".join(head + rows) + "\n\n" + text + self.source

    def plot(self):
        "The landscape: the speed of every candidate, by each of its values. Returns the figure."
        import matplotlib.pyplot as plt
        names = [name for name in self.best if len({row[name] for row in self.rows}) > 1]
        across = min(len(names), 3) or 1
        down = -(-len(names) // 3) or 1
        fig, axes = plt.subplots(down, across, figsize=(2.1 * across, 2 * down), sharey=True,
                                 squeeze=False, layout="constrained")
        for ax in axes.flat[len(names):]: ax.axis("off")
        for ax, name in zip(axes.flat, names):
            values = sorted({row[name] for row in self.rows})
            x = [values.index(row[name]) for row in self.rows]
            ax.scatter(x, [row["gflops"] for row in self.rows], s=12, color=COLORS[8], alpha=0.5)
            ax.scatter(x[:1], [self.rows[0]["gflops"]], s=50, color=COLORS[4])
            ax.set(xticks=range(len(values)), xlabel=name, xlim=(-0.5, len(values) - 0.5),
                   ylim=(0, 1.1 * self.rows[0]["gflops"]))
            ax.set_xticklabels(values)
        for ax in axes[:, 0]: ax.set_ylabel("GFLOP/s")
        fig.suptitle("The speed of every timed tile, by parameter (large: the best)\n" + self.source,
                     fontsize=9)
        plt.close(fig)
        return fig


# Saving a search

def write_tuning(
    found: Tuning,
) -> Path:  # the card
    """Save what a search found on this GPU's result card; from now on the kernel uses it. `ValueError` if
    nothing was found."""
    if not found.rows: raise ValueError(f"the search for {found.name} found no working configuration")
    earlier = gpu_card().get("tuned", {})
    entry = dict(best=found.best, size=found.size, date=date.today().isoformat(), left=found.left,
                 refused=found.refused, names=list(found.rows[0]),
                 rows=[[round(value) for value in row.values()] for row in found.rows])
    path = write_card(dict(gpu=gpu_name(), tuned=earlier | {found.name: entry}))
    tuned_tile.cache_clear()
    forget_plans()
    return path


def recorded_tuning(
    name: str,  # of the host function
) -> Tuning:
    "The search recorded for this kernel, from the first card that has one."
    card = next((card for card in load_cards() if name in card.get("tuned", {})), None)
    if card is None: return Tuning(name, 0, [], {}, 0, "No search has been recorded yet.")
    kept = card["tuned"][name]
    rows = [dict(zip(kept["names"], row)) for row in kept["rows"]]
    return Tuning(name, kept["size"], rows, kept["refused"], kept["left"],
                  f"Recorded on one {card['gpu']}, {kept['date']}.")


# The search

def candidates(
    fn: Callable,  # host function with the keyword `tile`
    tile: tuple,   # a tile of its class
    rules: dict,   # that a tile must satisfy
) -> Callable:     # configuration as keywords → host function (a, b, c)
    "A factory for `autotune`; `ValueError` for a configuration that can't work, with the reason."
    def configured(**configuration):
        changed = tile._replace(**configuration)
        check_tile(changed, rules)
        return partial(fn, tile=changed)
    return configured


def device_timer(
    size: int,      # m = n = k
    runs: int = 5,  # timed runs
) -> Callable:      # host function (a, b, c) → median time in ms
    "A timer for `autotune`: random matrices, one run to warm up, events around each of the others."
    import torch
    a = torch.randn(size, size, device="cuda")
    b = torch.randn(size, size, device="cuda")
    c = torch.empty_like(a)
    def timer(fn):
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs + 1)]
        for start, end in events:  # no sync: the GPU never has to wait for a launch
            start.record()
            fn(a, b, c)
            end.record()
        torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(end) for start, end in events[1:])
    return timer


def spilling(
    fn: Callable,  # host function (a, b, c)
) -> str:          # empty if none does
    "The variant of its kernel that spills on this GPU, for use as `refuse`."
    def code(variant):
        read_c, shape = variant
        return machine_code(partial(fn, read_c=read_c), target=gpu_target(), shape=shape)
    variants = list(product((False, True), ((256, 256, 64), (260, 264, 36), (259, 261, 37))))
    with ThreadPoolExecutor(6) as pool: codes = list(pool.map(code, variants))
    wrong = [shape for (_, shape), code in zip(variants, codes) if code.spills or code.stack_bytes]
    return f"it spills at {'×'.join(map(str, wrong[0]))}" if wrong else ""


def autotune(
    factory: Callable,  # configuration as keywords → host function (a, b, c), or `ValueError`
    space: dict,        # name → values to try
    name: str,          # of the host function
    size: int = 4096,   # m = n = k of the timed product
    budget: float = 60.0,  # seconds; after half of them, neighbors of the best come first
    shapes: tuple = ((256, 256, 64), (259, 261, 37)),  # m, n, k of a check; the best must pass all of them
    timer: Callable = None,   # host function → ms; `device_timer(size)` if None
    seed: int = 0,            # of the order
    first: dict = None,       # configuration to start with, so that the result is never worse
    refuse: Callable = None,  # host function → why it mustn't be the best, or nothing
) -> Tuning:
    """Check and time configurations, in random order, then outward from the best one.
    `RuntimeError` if there is no GPU to time on."""
    if timer is None:
        if config.ENABLE_CUDASIM: raise RuntimeError("a search times kernels, so it needs a GPU")
        timer = device_timer(size)
    start = time.monotonic()

    # a random order: a search that ends early has seen a fair sample
    order = configurations(space)
    Random(seed).shuffle(order)
    if first: order = [first] + [x for x in order if x != first]
    waiting, refused = [], Counter()
    for configuration in order:
        try: waiting.append((configuration, factory(**configuration)))
        except ValueError as e: refused[str(e).split(": ", 1)[-1].split("; ")[0]] += 1

    def is_right(fn, shapes):
        try:
            for shape in shapes: check_matmul(fn, *shape)
        except AssertionError:
            refused["the result is wrong"] += 1
            return False
        return True

    def best_is_good():
        fn = factory(**{x: rows[0][x] for x in space})
        if not is_right(fn, shapes[1:]): return False
        reason = refuse(fn) if refuse else ""
        if reason: refused[reason] += 1
        return not reason

    rows = []
    for _ in progress(range(len(waiting)), name):
        spent = time.monotonic() - start
        if spent > budget: break
        if rows and spent > budget / 2:  # first those that differ least from the best
            best = max(rows, key=lambda row: row["gflops"])
            waiting.sort(key=lambda entry: sum(entry[0][x] != best[x] for x in space))
        configuration, fn = waiting.pop(0)
        if is_right(fn, shapes[:1]): rows.append(configuration | {"gflops": 2e-6 * size**3 / timer(fn)})

    # the other checks take longer, so only the best must pass them
    rows.sort(key=lambda row: -row["gflops"])
    while rows and not best_is_good(): rows.pop(0)
    return Tuning(name, size, rows, dict(refused), len(waiting),
                  f"Measured on one {gpu_name()}, {date.today().isoformat()}.")
