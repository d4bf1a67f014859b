"""When does each warp of a block load, wait, store and compute? A picture, from a run of the simulator.

The model is coarse: an access of shared memory takes one unit of time, and so does a sum; a load from global
memory takes `latency` of them, and loads can be on their way at the same time.
"""
import sys
from collections import defaultdict

from greenlet import getcurrent
from .draw import COLORS
from .process import in_child, kernel_parts
from .sim import async_copy, memory
from .sim.cuda_module import StrictModule
from .sim.launch import check_launch


def trace(launch, args, block):
    "In a child: what lane 0 of each warp of a block does, in order."
    events = defaultdict(list)
    def note(kind, number=0):
        thread = getcurrent()
        if thread.lane == 0: events[thread.warp].append((kind, number))
    def record(space, operation, array, index, count, frame, source=None):
        if operation == "copy" and source is None: note("copy")  # zeros land; nothing is read
        elif operation == "copy" and getcurrent().lane == 0:
            events[getcurrent().warp][-1] = "copy", 0
        elif operation != "copy": note(f"{space} {operation}")
    barrier, wait, commit = (StrictModule.syncthreads, async_copy.cp_async_wait_group,
                             async_copy.cp_async_commit_group)
    def syncthreads(self):
        note("barrier")
        getcurrent().wait(sys._getframe(1))
    def wait_group(pending, frame=None):
        note("wait", pending)
        wait(pending, frame)
    def commit_group():
        note("commit")
        commit()
    memory.recorder, launch.blocks, StrictModule.syncthreads = record, [block], syncthreads
    async_copy.cp_async_wait_group, async_copy.cp_async_commit_group = wait_group, commit_group
    try: launch(*args)
    finally:
        memory.recorder, StrictModule.syncthreads = None, barrier
        async_copy.cp_async_wait_group, async_copy.cp_async_commit_group = wait, commit
    return {warp: events[warp] for warp in sorted(events)}


class _Clock:
    "The time of one warp, under the model."
    def __init__(self, pace):
        self.pace = pace  # how long an access of shared memory takes it
        self.now, self.arrives, self.stores, self.copies, self.spans, self.flying = 0, 0, 0, [[]], [], []
        self.asks = False  # is a group of loads just being asked for?
    def spend(self, kind, until):
        self.asks = self.asks and kind == "issue"
        if until <= self.now: return
        start = self.now
        if self.spans and self.spans[-1][::2] == (kind, start): start = self.spans.pop()[1]  # it goes on
        self.spans.append((kind, start, until))
        self.now = until
    def step(self, kind, number, latency):
        if kind in ("global load", "copy"):
            self.spend("issue", self.now + self.pace)
            start = self.flying.pop()[0] if self.asks else self.now
            self.flying.append((start, self.now + latency))
            self.asks = True
            if kind == "copy": self.copies[-1].append(self.now + latency)
            else: self.arrives = self.now + latency
        elif kind == "commit":
            self.copies.append([])
            self.asks = False
        elif kind == "wait":
            landed = self.copies[:max(0, len(self.copies) - 1 - number)]
            self.copies = self.copies[len(landed):]
            self.spend("wait for loads", max(sum(landed, [0])))
        elif kind in ("shared store", "global store"): self.stores += 1
        else:
            self.finish_stores()
            self.spend("compute", self.now + self.pace)
    def finish_stores(self):
        if self.stores: self.spend("wait for loads", self.arrives)
        self.spend("store", self.now + self.stores * self.pace)
        self.stores = 0

def _replay(events, latency, pace):
    "The clocks of all warps: from barrier to barrier each for itself."
    clocks = {warp: _Clock(pace.get(warp, 1)) for warp in events}
    left = {warp: list(reversed(steps)) for warp, steps in events.items()}
    while any(left.values()):
        for warp, steps in left.items():
            clock = clocks[warp]
            while steps and steps[-1][0] != "barrier": clock.step(*steps.pop(), latency * clock.pace)
            clock.finish_stores()
        together = max(clock.now for clock in clocks.values())
        for warp, steps in left.items():
            if not steps: continue
            steps.pop()
            clocks[warp].spend("barrier", together)
            clocks[warp].spans.append(("line", together, together))
    return clocks

TIME_COLORS = {"issue": "#CC79A7", "wait for loads": "#F3DDEA", "store": COLORS[7], "compute": "#555555",
               "barrier": COLORS[6]}


def _levels(flying):
    "Those that are on their way at the same time, on different levels: (level, start, end)."
    free, found = [], []  # from when on each level is free
    for start, end in flying:
        level = next((i for i, since in enumerate(free) if since <= start), len(free))
        free[level:level + 1] = [end]
        found.append((level, start, end))
    return found

def time_line(
    configured,     # kernel[grid, block]
    *args,          # its arguments
    block=(0, 0, 0),  # the block to run
    latency=32,     # of global memory, in accesses of shared memory
    until=None,     # where the picture ends, in the same unit; at the end of the run if None
    title="",       # text above
    pace=None,      # warp → how many times as long everything takes; 1 if left out
):
    """The loads, stores, sums and barriers of lane 0 of each warp of a block, in a run of the simulator.
    Returns the figure. `ValueError` if there are none."""
    import matplotlib.pyplot as plt
    events = in_child(trace, *check_launch(configured, args), block, simulator=True, timeout=60, keep=True)
    if not events:
        raise ValueError(f"nothing to draw: block {block} of {kernel_parts(configured)[0].__name__} touches "
                         "no array and has no barrier")
    clocks = _replay(events, latency, pace or {})
    fig, ax = plt.subplots(figsize=(7, 0.35 * len(clocks) + 1.5), layout="constrained")
    for row, clock in enumerate(clocks.values()):
        for kind, color in TIME_COLORS.items():
            spans = [(start, end - start) for this, start, end in clock.spans if this == kind]
            ax.broken_barh(spans, (row - 0.25, 0.5), color=color, linewidth=0)
        levels, starts, ends = zip(*_levels(clock.flying)) if clock.flying else ((), (), ())
        heights = [row - 0.36 - 0.11 * level for level in levels]
        ax.hlines(heights, starts, ends, color=TIME_COLORS["issue"], linewidth=1.3)
        ax.plot(starts, heights, ".", markersize=5, color=TIME_COLORS["issue"])  # a dot where they begin
    for kind, start, _ in next(iter(clocks.values())).spans:
        if kind == "line": ax.axvline(start, color=TIME_COLORS["barrier"], lw=0.8)
    ax.set(yticks=range(len(clocks)), yticklabels=[f"warp {warp}" for warp in clocks], xlim=(0, until),
           xlabel="time (an access to shared memory takes 1)", title=title)
    ax.invert_yaxis()
    ax.spines[["top", "right"]].set_visible(False)
    names = {"issue": "load (thin line: in flight)", "wait for loads": "wait for loads", "store": "store",
             "compute": "read shared memory, multiply, add", "barrier": "barrier"}
    fig.legend([plt.Rectangle((0, 0), 1, 1, color=color) for color in TIME_COLORS.values()],
               [names[kind] for kind in TIME_COLORS], loc="outside lower center", ncols=3, fontsize=8,
               frameon=False)
    plt.close(fig)
    return fig
