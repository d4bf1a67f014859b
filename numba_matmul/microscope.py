"""Which pieces of memory does each warp touch? Sectors and banks, line by line, without a GPU."""
import dis
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from math import prod
from numbers import Integral

import numpy as np
from greenlet import getcurrent
from .draw import COLORS, color_of
from .process import callees, in_child, kernel_parts
from .sim import memory
from .sim.memory import GlobalArray
from .sim.kernel import check_size
from .sim.launch import check_launch, launch_of
from .sim.places import instruction

SECTOR, LINE, BANKS, WORD = 32, 128, 32, 4  # bytes, bytes, banks, bytes per bank and cycle


def sectors(
    starts,  # first byte each lane accesses
    size,    # bytes each lane accesses
) -> int:
    """How many sectors of global memory a request touches. `ValueError` for more bytes than an instruction
    can access."""
    if not 1 <= size <= 16: raise ValueError(f"a lane accesses {size} bytes; expected 1 to 16")
    return len({byte // SECTOR for start in starts for byte in (start, start + size - 1)})

def wavefronts(
    starts,  # lane → first byte it accesses
    size,    # bytes each lane accesses: up to 4, 8 or 16
) -> int:
    """Passes shared memory needs for a request. `ValueError` for more bytes than an instruction can access,
    or invalid lanes."""
    if not 1 <= size <= 16: raise ValueError(f"a lane accesses {size} bytes; expected 1 to 16")
    if not starts.keys() <= set(range(32)):
        raise ValueError(f"lanes are 0 to 31, not {', '.join(map(str, starts))}")
    return sum(_busiest(part.values(), size) for part in _parts(starts, size))


def _copy_parts(starts, sources):
    """An asynchronous copy of 4 bytes per lane, wavefront by wavefront.
    `sources`: lane → byte, or nothing if zeros land."""
    parts, lines, free = defaultdict(dict), {}, Counter()
    for lane, start in starts.items():
        source = sources[lane]
        line = source if source is None else source // LINE
        busy = ("bank", start // WORD % BANKS), (line, lane if source is None else source)
        turn = max(lines.setdefault(line, len(lines)), *(free[x] for x in busy))
        parts[turn][lane] = start
        for x in busy: free[x] = turn + 1
    return list(parts.values())

def _wide_copy_parts(starts, sources):
    "The same with 16 bytes per lane."
    parts = defaultdict(dict)
    def lines(lane): return sources[lane] // LINE, starts[lane] // LINE
    def split(one, other):  # from one sector to two, or from two to one
        return ((sources[one] // SECTOR == sources[other] // SECTOR)
                != (starts[one] // SECTOR == starts[other] // SECTOR))
    together = Counter(lines(lane) for lane in starts if sources[lane] is not None)
    for lane, start in starts.items():
        group, turn = None, 0
        if sources[lane] is not None:
            whole = together[lines(lane)] >= LINE // 16
            group = lines(lane), None if whole else start - sources[lane]
            while any(split(lane, other) for other in parts[group, turn]): turn += 1
        parts[group, turn][lane] = start
    return list(parts.values())

def _parts(starts, size):
    "Parts of a warp served one after another: half-warps for 64-bit accesses, quarter-warps for 128-bit."
    lanes = {4: 32, 8: 16, 16: 8}[max(size, WORD)]
    parts = [{lane: starts[lane] for lane in range(first, first + lanes) if lane in starts}
             for first in range(0, 32, lanes)]
    if lanes < 32:
        parts = [part for pair in zip(parts[::2], parts[1::2]) for part in _joined(*pair)]
    return [part for part in parts if part]

def _served(sample, operation, size):
    "The parts of a request to shared memory."
    starts = {lane: byte for lane, (byte, *_) in sample.items()}
    if operation != "copy": return _parts(starts, size)
    sources = {lane: source for lane, (*_, source) in sample.items()}
    return (_wide_copy_parts if size > WORD else _copy_parts)(starts, sources)


def _joined(first, second):
    "Two parts of a warp merge if each lane accesses what its neighbor, or the one after that, accesses."
    both = first | second
    def shared(step):
        return all(both.get(lane ^ step, start) == start for lane, start in both.items())
    return [both] if shared(1) or shared(2) else [first, second]

def _busiest(starts, size):
    "Different words in the busiest bank."
    words = {start // WORD + i for start in starts for i in range(max(1, size // WORD))}
    return max(Counter(word % BANKS for word in words).values())


@dataclass
class Site:
    "One place in a kernel that accesses memory, and its requests."
    space: str      # "global" or "shared"
    operation: str  # "load", "store", or "copy" for the shared side of an asynchronous copy
    array: str
    size: int       # bytes per lane
    line: int
    at: int         # place of the instruction in the code of its function
    text: str       # the source line
    requests: int = 0
    passes: int = 0   # sectors (global) or wavefronts (shared) in total
    wanted: int = 0   # distinct bytes in total
    sample: dict = field(default_factory=dict, repr=False)  # of the first request: lane →
                                                # first byte, index, byte it was copied from
    count: int = 1    # elements per lane
    layout: tuple = (False, 1, 0)  # of a global matrix: are adjacent elements stacked vertically? how
                      # many apart? how many elements of its sector precede it?
    rounds: int = 0   # of a global load in loops: how often warps begin the innermost one; 0: unknown

    @property
    def cost(self):
        "Sectors or wavefronts per request."
        return self.passes / self.requests
    @property
    def used(self):
        "Fraction of the transferred bytes that was used (global memory)."
        return self.wanted / (self.passes * SECTOR)


def _watch(launch, args, blocks):
    "In a child: run some blocks of a launch. Returns what a `View` holds."
    import linecache
    places, known, seen, turn, reads = {}, {}, defaultdict(list), Counter(), defaultdict(Counter)
    latest, rounds = {}, Counter()  # of a place and a thread: the loops around it, and how often they went on
    def place_of(space, operation, array, count, frame):
        "The number of a place that accesses memory, and where to count what it reads."
        size = count * array.dtype.itemsize
        place = frame.f_code, instruction(frame), space, operation, array.name, size, count, _layout(array)
        number, _ = places.setdefault(place, (len(places), frame.f_lineno))
        loads = (space, operation) == ("global", "load")
        return number, reads[array.name] if loads else None, _counters(*place[:2]) if loads else (), array
    def record(space, operation, array, index, count, frame, source=None):
        # it is called for each access of each thread, so what holds for all of a place is looked up
        at = id(frame.f_code), frame.f_lasti, id(array), space, operation, count
        found = known.get(at)
        if not found: found = known[at] = place_of(space, operation, array, count, frame)
        number, counted, counters, _ = found
        thread, byte = getcurrent(), array.byte(index)
        n = turn[number, thread]
        turn[number, thread] = n + 1
        seen[number, thread.block, thread.warp, n].append((thread.lane, (byte, index, source)))
        if counted is not None:
            element = byte // array.dtype.itemsize
            for i in range(element, element + count): counted[i] += 1
            if counters:
                now = thread.barriers, *map(frame.f_locals.get, counters)
                if latest.get((number, thread)) != now: rounds[number, thread] += 1
                latest[number, thread] = now
    memory.recorder, launch.blocks = record, blocks
    try: launch(*args)
    finally: memory.recorder = None
    # What a warp's lanes did in the same execution of an instruction is one request. A site sums them up.
    sites, described = defaultdict(dict), list(places.items())
    for (number, block, *_), lanes in seen.items():
        (code, at, space, operation, name, size, count, layout), (_, line) = described[number]
        sample = dict(lanes)
        starts = {lane: byte for lane, (byte, *_) in lanes}
        site = sites[tuple(block.index)].get(number)
        if not site:
            text = linecache.getline(code.co_filename, line).strip()
            site = Site(space, operation, name, size, line, at, text, sample=sample, count=count,
                        layout=layout)
            sites[tuple(block.index)][number] = site
        site.requests += 1
        if space == "global": site.passes += sectors(starts.values(), size)
        elif operation == "copy": site.passes += len(_served(sample, "copy", size))
        else: site.passes += wavefronts(starts, size)
        site.wanted += len(set(starts.values())) * size
    begun = Counter()  # by a warp: as often as by any of its lanes
    for (number, thread), count in rounds.items():
        warp = number, thread.block, thread.warp
        begun[warp] = max(begun[warp], count)
    for (number, block, _), count in begun.items(): sites[tuple(block.index)][number].rounds += count
    # Memory counted elements as stored; a reader knows them by row and column.
    shapes = {array.name: tuple(array.shape) for array in launch.arrays}
    for array in launch.arrays:
        if array.name in reads: reads[array.name] = _by_place(array, reads[array.name])
    by_block = {block: list(found.values()) for block, found in sites.items()}
    barriers = max((thread.barriers for _, thread in turn), default=0)
    return by_block, {name: dict(count) for name, count in reads.items()}, shapes, barriers

def _counters(code, at):
    "What counts the loops around an instruction but the last; nothing if the last two aren't both `for`."
    found = [*dis.get_instructions(code)]
    ends = {x.argval: x.offset for x in found if "JUMP" in x.opname and x.argval < x.offset}
    around = [i for i, x in enumerate(found) if x.offset < at < ends.get(x.offset, 0)]
    names = [found[i].opname == "FOR_ITER" and found[i + 1].argval for i in around]
    if len(names) < 2 or not all(isinstance(name, str) for name in names[-2:]): return ()
    return tuple(name for name in names[:-1] if name)

def _layout(array):
    "See `Site`."
    if not isinstance(array, GlobalArray) or array.ndim != 2: return False, 1, 0
    size, steps = array.dtype.itemsize, [abs(step) for step in array.strides]
    return steps[0] < steps[1], min(steps) // size or 1, array.base % SECTOR // size

def _by_place(array, counts):
    "Counts by element number in memory, converted to the array's row-major order."
    if array.base == 0 and array._item.is_c_contiguous(): return counts
    places = (array.base
              + np.tensordot(array.strides, np.indices(array.shape), 1)).ravel() // array.dtype.itemsize
    return {i: counts[place] for i, place in enumerate(places.tolist()) if place in counts}


def _has_atomics(kernel): return any("atomic" in fn.__code__.co_names for fn in callees(kernel))

def _sorts(kernel, grid, block):
    "One block of each kind, and how many blocks of that kind there are."
    if _has_atomics(kernel):
        check_size(prod(grid), prod(block))
        return {place: 1 for place in np.ndindex(*grid)}
    axes = [[(0, 1), (1, n - 2), (n - 1, 1)] if n > 2 else [(i, 1) for i in range(n)] for n in grid]
    return {(x, y, z): a * b * c for x, a in axes[0] for y, b in axes[1] for z, c in axes[2]}


@dataclass
class View:
    "What the microscope saw."
    name: str
    sites: dict   # block → its `Site`s
    counts: dict  # block → how many blocks it stands for
    reads: dict   # array → element number → how often the simulated blocks read it
    shapes: dict  # array → shape
    barriers: int  # of the block, that a thread of them passed
    atomics: bool = False  # does it use atomic operations? Those aren't watched

    def merged(self):
        "The sites over all simulated blocks, in source order."
        found = {}
        for sites in self.sites.values():
            for site in sites:
                key = site.line, site.at, site.space, site.operation, site.array, site.size
                if key not in found:
                    found[key] = Site(*key[2:], *key[:2], site.text, sample=site.sample,
                                      count=site.count, layout=site.layout)
                total = found[key]
                total.requests += site.requests
                total.passes += site.passes
                total.wanted += site.wanted
                total.rounds += site.rounds
        return [found[key] for key in sorted(found)]

    def renamed(
        self,
        names,  # argument of the kernel → another name
    ):
        "The same view, with other names for the kernel's arguments."
        def new(name): return names.get(name, name)
        def of(site):
            return replace(site, array=new(site.array)) if site.space == "global" else site
        return replace(self, sites={block: [*map(of, sites)] for block, sites in self.sites.items()},
                       reads={new(name): count for name, count in self.reads.items()},
                       shapes={new(name): shape for name, shape in self.shapes.items()})

    def site(
        self,
        array,           # name of an array in the kernel
        operation=None,  # "load", "store" or "copy"; the first there is if None
    ) -> Site:
        "The place that accesses an array."
        for site in self.merged():
            if site.array == array and operation in (None, site.operation): return site
        raise ValueError(f"{self.name} doesn't have a {operation or 'memory access'} of {array!r}; "
                         f"it accesses {', '.join(sorted({s.array for s in self.merged()})) or 'none'}")

    def _rows(self):
        for s in self.merged():
            unit, used = ("sector", f"{s.used:.0%}") if s.space == "global" else ("wavefront", "")
            yield (str(s.line), f"{s.space} {s.operation}", s.array, str(8 * s.size),
                   f"{s.requests:,}", f"{s.cost:.4g} {unit}{'s' * (s.cost != 1)}", used)
        if self.atomics: yield "", "atomic operations", "", "", "", "not counted", ""

    def __repr__(self):
        rows = [("line", "", "array", "bits", "requests", "per request", "used"), *self._rows()]
        widths = [max(map(len, column)) for column in zip(*rows)]
        return "\n".join("  ".join(f"{cell:{side}{width}}" for cell, side, width in
                                   zip(row, "><<>>>>", widths)).rstrip() for row in rows)

    def _repr_markdown_(self):
        head = ("| line | | array | bits | requests | per request | used |\n|--:|---|---|--:|--:|--:|--:|\n")
        return head + "\n".join(f"| {line} | {what} | {array and f'`{array}`'} | " + " | ".join(rest) + " |"
                                for line, what, array, *rest in self._rows())

    def totals(self):
        "Sectors and wavefronts of the whole launch, named as in Nsight Compute."
        total = Counter()
        for block, sites in self.sites.items():
            for s in sites:
                operation = {"load": "ld", "store": "st", "copy": "ldgsts"}[s.operation]
                unit = "t_sectors" if s.space == "global" else "data_pipe_lsu_wavefronts"
                pipe = "_pipe_lsu_mem_global_op_" if s.space == "global" else "_mem_shared_op_"
                start = "smsp__sass_l1tex" if s.operation == "copy" else "l1tex_"
                total[f"{start}_{unit}{pipe}{operation}.sum"] += s.passes * self.counts[block]
        return dict(total)

    def draw(
        self,
        array,           # name of the array in the kernel
        operation=None,  # "load", "store" or "copy"; may be left out if there is only one
        columns=None,    # row length of a matrix that is flat in the kernel
    ):
        "One request: lanes over a matrix with its sectors, or over the banks. Returns the figure."
        site = self.site(array, operation)
        return _draw_sectors(site, columns) if site.space == "global" else _draw_banks(site)

    def heat_map(self, array):
        "How often the simulated blocks read each element of a global matrix. Returns the figure."
        import matplotlib.pyplot as plt
        if len(self.shapes.get(array, ())) != 2 or array not in self.reads:
            raise ValueError(f"{array!r} isn't a global matrix that {self.name} reads")
        shape, counts = self.shapes[array], self.reads[array]
        cells = np.zeros(int(np.prod(shape)))
        for element, count in counts.items(): cells[element] = count
        fig, ax = plt.subplots(figsize=(5, 4), layout="constrained")
        image = ax.imshow(cells.reshape(shape), cmap="cividis", vmin=0)
        ax.set(title=f"reads of each element of {array}", xlabel="column", ylabel="row")
        fig.colorbar(image)
        plt.close(fig)
        return fig


def microscope(
    fn,           # host function, or configured kernel: kernel[grid, block]
    *args,        # for a function: the shape (m, n, k); for a kernel: its arguments
    blocks=None,  # block indices (x, y, z) to simulate; None: one of each kind, all with atomics
    timeout=300,  # seconds
) -> View:
    "The memory accesses of each warp of some blocks. `SimulatorError` if the kernel makes a mistake."
    if kernel_parts(fn): configured, args = check_launch(fn, args)
    elif len(args) == 1:
        launch = launch_of(fn, *args, with_args=True)
        configured, args = launch.configured, launch.args
    else:
        raise TypeError("pass a host function and one shape, microscope(sgemm_naive, (64, 64, 64)), "
                        "or a kernel and its arguments, microscope(kernel[grid, block], …)")
    kernel, _, (grid, block, *_) = kernel_parts(configured)
    if blocks is None: counts = _sorts(kernel, grid, block)
    else: counts = {tuple(int(i) if isinstance(i, Integral) else i for i in place): 1 for place in blocks}
    if not counts or any(len(place) != 3 or not all(
            isinstance(i, int) and 0 <= i < n for i, n in zip(place, grid)) for place in counts):
        raise ValueError(f"pass at least one block (x, y, z) within the grid {tuple(grid)}")
    sites, reads, shapes, barriers = in_child(_watch, configured, args, list(counts), simulator=True,
                                              timeout=timeout, keep=True)
    return View(kernel.__name__, sites, counts, reads, shapes, barriers, _has_atomics(kernel))


def _draw_sectors(site, columns):
    import matplotlib.pyplot as plt
    across, step, before = site.layout
    along, line = ("row", "column") if across else ("column", "row")
    def place(index):
        if type(index) is not tuple: index = divmod(index, columns) if columns else (0, index)
        row, column = map(int, reversed(index) if across else index)
        return row, column * step + before
    at = {lane: place(index) for lane, (_, index, _) in site.sample.items()}
    rows, columns = zip(*at.values())
    width, box = site.count, SECTOR * site.count // site.size  # in elements
    top, left = min(rows), min(columns) // box * box
    height = min(max(rows) - top + 1, 32)
    span = min(-(-(max(columns) + width - left) // box) * box, 8 * box)
    inches = min(0.24 * span + 1.5, 7), 0.2 * height + 1.2
    fig, ax = plt.subplots(figsize=inches, layout="constrained")
    owners, color = defaultdict(list), color_of(site.array)
    ink = _ink(color)
    for lane, where in at.items(): owners[where].append(lane)
    for (row, column), lanes in owners.items():
        x, y = column - left, row - top
        ax.add_patch(plt.Rectangle((x, y), width, 1, facecolor=color, edgecolor="white", linewidth=0.4))
        ax.text(x + width / 2, y + 0.5, _names(lanes, len(at)), ha="center", va="center",
                fontsize=7, color=ink, clip_on=True)
    touched = {(r - top, (c + i - left) // box * box) for r, c in at.values() for i in range(width)}
    for row in range(height):
        for sector in range(0, span, box):
            inside = (row, sector) in touched
            ax.add_patch(plt.Rectangle(
                (sector, row), box, 1, facecolor="#DDDDDD" if inside else "white",
                edgecolor="#999999", linewidth=0.6, zorder=0.5))
            if inside: ax.add_patch(plt.Rectangle((sector, row), box, 1, fill=False, linewidth=1))
    touches = sectors([byte for byte, *_ in site.sample.values()], site.size)
    def start(first): return f", from {first}" if first else ""
    ax.yaxis.get_major_locator().set_params(integer=True)
    ax.set(xlim=(0, span), ylim=(height, 0),
           title=f"{site.operation} of {site.array}, first request: {touches} sector{'s' * (touches != 1)}",
           xlabel=f"{along}{start(left // step)} (each box is one 32-byte sector)", ylabel=line + start(top))
    ax.title.set_fontsize(10)
    plt.close(fig)
    return fig

def _ink(color): return "white" if color in (COLORS[1], COLORS[3]) else "black"

def _names(lanes, of):
    "The lanes that need one thing, abbreviated."
    return str(lanes[0]) if len(lanes) == 1 else "all" if len(lanes) == of else f"{lanes[0]}…"


LATER = 0.35  # opacity of what a later wavefront serves

def _draw_banks(site):
    import matplotlib.pyplot as plt
    parts = _served(site.sample, site.operation, site.size)
    fig, ax = plt.subplots(figsize=(7, 1), layout="constrained")
    color = color_of(site.array)
    top, middles = 0, []  # of the part that is being drawn; of all, for their labels
    several = False  # lanes for one word?
    for part in parts:
        depth, wanted = Counter(), defaultdict(list)
        for lane, byte in part.items():
            for word in range(byte // WORD, (byte + site.size - 1) // WORD + 1):
                wanted[word].append(lane)
        for word, lanes in wanted.items():
            bank, level = word % BANKS, depth[word % BANKS]
            ax.add_patch(plt.Rectangle((bank, top + level), 1, 1, edgecolor="#666666", linewidth=0.5,
                                       facecolor=color, alpha=LATER if level else 1))
            name = "all" if len(lanes) == len(site.sample) > 1 else lanes[0]
            ax.text(bank + 0.5, top + level + 0.5, name, ha="center",
                    va="center", fontsize=7.5, color="black" if level else _ink(color))
            depth[bank] += 1
        bottom = top + max(depth.values())
        middles.append((top + bottom) / 2)
        ax.axhline(bottom, color="black", linewidth=0.8)
        several |= max(map(len, wanted.values())) > 1
        top = bottom
    fig.set_size_inches(7, 0.22 * top + 1.6)
    labels = [f"lanes {min(part)}–{max(part)}" for part in parts]
    key = {f"a word, labeled with the {'first ' * several}lane that needs it": 1}
    if top > len(parts): key["waits: its bank is busy"] = LATER
    handles = [plt.Rectangle((0, 0), 1, 1, facecolor=color, edgecolor="#666666", alpha=alpha)
               for alpha in key.values()]
    fig.legend(handles, [*key], loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    ax.set(xlim=(0, BANKS), ylim=(top, 0), xlabel="bank", xticks=np.arange(0, BANKS, 4) + 0.5,
           xticklabels=range(0, BANKS, 4),
           title=f"{site.operation} of {site.array}, first request: {top} "
                 f"wavefront{'s, a row each' * (top != 1)}")
    ax.set_yticks(middles, labels, fontsize=8)
    ax.tick_params(axis="y", length=0)
    ax.title.set_fontsize(10)
    plt.close(fig)
    return fig
