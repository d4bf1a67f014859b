"""What the model of a multiprocessor has to know about a kernel: its loop over k, instruction by instruction,
with what each access costs; found from the machine code and the microscope."""
import hashlib
import re
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from functools import cached_property
from inspect import signature
from math import log2, prod
from pathlib import Path

import numpy as np
from . import passes
from .arrays import cdiv, is_row_major, is_torch
from .compiler import cache_file, kept, machine_code, occupancy
from .cycles import (
    ALONG, ALU, BARRIER, COLUMNS, FMA, HEAVY, KIND_OF, LDG, LDGSTS, LDS, OTHER, OTHERS, STS, UNIFORM,
    WAIT_GROUP, kind_of)
from .microscope import microscope, wavefronts
from .passes import NoPrediction, _fills_tiles, _loading, _loads, _walk, k_loop
from .process import _rebuild, kernel_parts
from .sass import bank_delays
from .sim.arguments import declared
from .sim.launch import launch_of
from .sim.scheduler import SimulatorError
from numba import cuda, types

# What was found by another version of these modules, or for another table, is forgotten.
_VERSION = [*(Path(path).read_text(encoding="utf-8") for path in (__file__, passes.__file__)), COLUMNS,
            sorted(KIND_OF.items()), UNIFORM]


# What an access costs

def _joined(site, width):
    "The first request of a site, lane → byte, if the compiler joins neighbors into `width` bytes."
    starts = {lane: byte for lane, (byte, *_) in site.sample.items()}
    if width <= site.size: return starts, site.size
    return {lane: byte // width * width for lane, byte in starts.items()}, width

def _joins(site, width):
    "Can the compiler join neighbors of a site into `width` bytes? They'd have to be aligned in every lane."
    return width <= site.size or len({byte % width for byte, *_ in site.sample.values()}) == 1

def _cost(x, sites, operation, array=None):
    """Passes and lines of an access, from the sites of its array or its source line, else of its kind:
    wavefronts of shared memory, or passes through the L1 cache's banks and the lines looked up there."""
    space = "shared" if x.name in ("LDS", "STS") or operation == "copy" else "global"
    same = [site for site in sites if (site.space, site.operation) == (space, operation)]
    near = [site for site in same if site.array == array]
    near = near or [site for site in same if site.line == x.line] or same
    near = [site for site in near if _joins(site, x.width)] or near
    if not near: return max(1, x.width // 4), 1
    found = []
    for site in near:
        starts, size = _joined(site, x.width)
        if size == site.size and space == "shared": passes = site.cost
        else: passes = wavefronts(starts, min(size, 16))
        lines = len({(byte + end) // 128 for byte in starts.values() for end in (0, size - 1)})
        found.append((passes, lines, site.requests * site.size / size))
    weights = [weight for *_, weight in found]
    return tuple(float(np.average(values, weights=weights)) for values in list(zip(*found))[:2])


@dataclass(eq=False)
class KLoop:
    "A kernel's loop over k: the same for all shapes with which a launch takes the same code."
    name: str         # of the kernel
    registers: int    # of a thread
    shared_bytes: int  # of a block, static
    results: int      # of a thread
    step: int         # elements of k that a pass of the loop takes
    stored: float     # sectors of C in a block's tile
    brought: float    # sectors of A and B that it loads for each element of k
    table: list       # see `cycles.COLUMNS`; under "service" passes, see `lines`
    lines: list       # lines of 128 bytes that each access to global memory looks up
    text: list        # the instructions

    @cached_property
    def key(self):
        "The same for equal loops."
        return hashlib.sha256(repr((self.table, self.lines, self.step, self.results)).encode()).hexdigest()
    def __hash__(self): return hash(self.key)
    def __eq__(self, other): return self.key == other.key


def _direct(ins, path):
    "The loads from global memory on the path whose numbers go into a product, not into a tile first."
    def reads(x):
        found = [int(number) for number in re.findall(r"\bR(\d+)", x.operands)]
        if x.name == "STS": return {*found, *range(found[-1], found[-1] + x.width // 4)}
        return {*found[1:]}
    found = set()
    for place, i in enumerate(path):
        if ins[i].name != "LDG": continue
        first = int(re.search(r"\bR(\d+)", ins[i].operands)[1])
        loaded = {*range(first, first + ins[i].width // 4)}
        user = next((ins[j] for j in path[place + 1:] + path[:place] if reads(ins[j]) & loaded), None)
        if user and user.name in ("FFMA", "FMUL"): found.add(i)
    return found

def _sharing(ins, path, view, k, step):
    """For loads that feed the products directly: does an earlier pass or another warp bring their sector?
    Returns instruction number → array, bits, offset along the row in bytes."""
    loads = [i for i in dict.fromkeys(path) if ins[i].name == "LDG"]
    if _fills_tiles(ins, path):  # tiles, and perhaps not of both
        direct = _direct(ins, path)
        loads = [i for i in loads if i in direct]
    def address(i):
        found = re.search(r"\[(R\d+)(?:\.64|\.U32)?(?:\+UR\d+)?\+?(-?0x[0-9a-f]+)?\]", ins[i].operands)
        return (found[1], int(found[2] or "0", 16)) if found else (None, 0)
    def rows(some):
        "Registers with which several of these loads begin: they're neighbors in a row."
        count = Counter(base for base, _ in {*map(address, some)})
        return {base for base in count if base and count[base] > 1}
    # Which array is walked along its rows? How many warps of a block touch each sector?
    touched, lines, size = Counter(), defaultdict(set), {}
    for site in _global([*view.sites.values()][0], "load"):
        touched[site.array] += site.passes
        lines[site.line].add(site.array)
        size[site.array] = site.size
    order = [*view.shapes]  # A's rows are k long; if B's are, too, A comes first
    names = sorted(touched, key=lambda name: (view.shapes[name][-1:] != (k,), order.index(name)))
    if not names: return {}
    def several(name, along):
        return touched[name] / _sectors(view.reads[name]) > 1.5 * (32 / size[name] if along else 1)
    # Most lines read one array. Where one reads both, only A's loads are neighbors in a row. Or if none are,
    # each load has an address of its own, as with `range`, and a product's come in turns.
    array = {i: min(lines[ins[i].line]) for i in loads if len(lines[ins[i].line]) == 1}
    unclear = [i for i in loads if i not in array]
    near = rows(unclear)
    for number, i in enumerate(unclear):
        array[i] = names[0 if (address(i)[0] in near if near else number % 2 == 0) else -1]
    # Where in its row does a load begin? Those with an address of their own come step by step, row after row.
    walked, found = [i for i in loads if array[i] == names[0]], {}
    turns = Counter(path)
    near, at_once = rows(walked), max(1, round(sum(turns[i] * ins[i].width / 4 for i in walked) / step))
    low = min((address(i)[1] for i in walked if address(i)[0] in near), default=0)
    for i in loads:
        along, (base, offset) = array[i] == names[0], address(i)
        if along: offset = offset - low if base in near else walked.index(i) // at_once * ins[i].width
        found[i] = array[i], ALONG * along + OTHERS * several(array[i], along), offset if along else 0
    return found

def _sectors(read): return len({element // 8 for element in read})


def _table(code, path, view, k, step):
    "The loop as the table that `cycles.replay` takes; service counted in passes, and lines apart."
    ins, sites = code.instructions, [*view.sites.values()][0]
    delays = iter(bank_delays([ins[i] for i in path]))
    sharing = _sharing(ins, path, view, k, step)
    table, lines, loads = np.zeros((len(path), len(COLUMNS))), np.zeros(len(path)), 0
    times, before = Counter(path), Counter()  # a load in a loop inside walks on along its row
    for row, i in enumerate(path):
        x = ins[i]
        kind = kind_of(x.name)
        if x.name == "BAR" and ("SYNC" in x.opcode or "RED" in x.opcode): kind = BARRIER
        if x.name == "LDS" and x.kind == "control": kind = OTHER
        passes, number, bits, place, offset = 0, 0, 0, 0, 0
        if kind in (FMA, HEAVY, ALU, OTHER): place = int(bool(re.search(r"\bUR\d+", x.operands)))
        if x.name == "FFMA": passes = next(delays)
        elif kind == HEAVY: passes = 2 * ("WIDE" in x.opcode)  # two registers of results, one after the other
        elif kind in (LDS, STS): passes, _ = _cost(x, sites, "load" if kind == LDS else "store")
        elif kind == LDG:
            array, bits, offset = sharing.get(i, (None, 0, 0))
            if bits & ALONG: offset += 4 * step // times[i] * before[i]
            before[i] += 1
            passes, number = _cost(x, sites, "load", array)
            loads, place = loads + 1, loads
        elif kind == LDGSTS:
            passes, number = _cost(x, sites, "load")
            passes = max(passes, _cost(x, sites, "copy")[0])
        elif kind == WAIT_GROUP:
            found = re.search(r"SB\d, (0x[0-9a-f]+)", x.operands)
            if found: place = int(found[1], 16)
            else: kind = OTHER
        result, source = (-1 if board is None else board for board in (x.result, x.source))
        waits = sum(1 << board for board in x.waits)
        table[row] = kind, x.stall, waits, result, source, passes, bits, place, offset
        lines[row] = number
    return table, lines


# From a launch to a workload

LONGER = 224  # of the second proxy

def _proxy(shape):
    "A smaller shape with the same remainders, so that it gets the same kernel and the same banks."
    m, n, k = shape
    return m % 128 + 256, n % 128 + 256, k % 32 + 32

def _one_tile(code, stored):
    """Results of a thread in one tile, of a block that stays for several: as many as the main loop has
    registers for. stored: those in all tiles."""
    written = {re.search(r"R\d+", x.operands)[0] for x in code.main_loop if x.name == "FFMA"}
    products = sum(x.name == "FFMA" for x in code.main_loop)
    found = (stored // tiles for tiles in range(1, stored + 1) if stored % tiles == 0)
    return next((one for one in found if one <= len(written) and products % one == 0), 0)

def _barriers(ins): return sum(x.name == "BAR" and "SYNC" in x.opcode for x in ins)

def _refuse_parts(view, n, k):
    "`NoPrediction` if a block doesn't read all columns of A and all rows of B."
    first = [name for name in view.shapes if name in view.reads][:2]
    if len(first) < 2: return
    a, b = first
    if len({i % k for i in view.reads[a]}) < k or len({i // n for i in view.reads[b]}) < k:
        raise NoPrediction("its first block reads only part of A's columns or of B's rows: it runs over "
                           "part of k, or takes a matrix as its transpose")

def _global(sites, operation):
    return [site for site in sites if (site.space, site.operation) == ("global", operation)]

def _read(code, view, shape, threads, stays):
    "The k loop, from the machine code and one block under the microscope."
    ins, main, outer, (_, n, k) = code.instructions, code.main, k_loop(code), shape
    sites = [*view.sites.values()][0]
    stores = _global(sites, "store")
    _refuse_parts(view, n, k)
    stored = sum(site.wanted / site.size * site.count for site in stores) / threads
    if 0 < stored < 0.5: raise NoPrediction("several of its threads share each result")
    stored = round(stored)
    results = _one_tile(code, stored) if stays else stored
    if not results: raise NoPrediction("its first block stores nothing")
    tiles, loading = stored / results, _loading(ins, outer, main)
    lines = [{ins[i].line for i in _loads(ins, range(loop.start, loop.end))} for loop in loading]
    # a function that was compiled into the kernel has the line of its call
    if not set().union(*lines) <= {site.line for site in _global(sites, "load")}: loading = []
    # Trip counts: a thread does results × k multiply-adds, and loads so many elements for each of k.
    # Only what a pass walks counts: of an if and its else, it's one.
    def products(walked): return sum(ins[i].name in ("FFMA", "FMUL") for i in walked)
    once, inner = _walk(ins, outer, main, 1), range(main.start, main.end)
    again = outer != main and _loads(ins, inner)  # the inner loop loads, too
    if again and any(products(range(loop.start, loop.end)) for loop in outer.inside
                     if loop != main and not loop.holds(main)):
        raise NoPrediction("it multiplies in several loops, and how often each runs isn't clear")
    per_k = sum(site.requests * site.count for site in _global(sites, "load")) * 32 / threads / k / tiles
    loads = sum(ins[i].width / 4 for i in _loads(ins, once))
    counts = rounds = None
    if loading or again:
        # How often these loops turn, and the pass itself, isn't in the machine code. But each pass meets the
        # same barriers, and the microscope counts those, and how often a thread runs each line.
        inside = _barriers(ins[outer.start:outer.end])
        step = inside and k * tiles * inside / max(1, view.barriers - _barriers(ins) + inside)
        counts, rounds = Counter(), Counter()
        for site in _global(sites, "load"):
            part = 32 / threads * step / k / tiles
            counts[site.line] += part * site.requests
            rounds[site.line] = max(rounds[site.line], part * site.rounds)
        counts = {line: round(found) for line, found in counts.items()}
    elif outer == main:
        step = products(once) / results
        # the source loads at least what the machine code does, which may merge loads
        if loads / step > 1.4 * per_k: raise NoPrediction("how often its loop loads isn't clear")
    else:
        step = 2 ** round(log2(loads / per_k))
    turns = step and (results * step - products(once) + products(inner)) / products(inner)
    if step < 1 or step % 1 or turns < 1 or turns % 1 or (outer == main and turns != 1):
        raise NoPrediction(f"the trip counts of its loops aren't clear: {step:.2f} steps of k a pass, "
                           f"{turns:.2f} turns of the loop inside")
    path = _walk(ins, outer, main, int(turns), loading, counts, rounds)
    table, lines = _table(code, path, view, k, step)
    # Sectors: a tile in shared memory is loaded once, and the L1 cache keeps what products load.
    direct = set(view.reads)
    if _fills_tiles(ins, path):
        direct = {array for array, *_ in _sharing(ins, path, view, k, step).values()}
    brought = sum(site.passes for site in _global(sites, "load") if site.array not in direct)
    brought += sum(_sectors(read) for name, read in view.reads.items() if name in direct)
    return KLoop(code.name, code.registers, code.shared_bytes, results, int(step),
                 sum(site.passes for site in stores) / tiles, brought / k / tiles, table.tolist(),
                 lines.tolist(), [f"{ins[i].guard} {ins[i].opcode}".strip() for i in path])

def _arguments(fn, launch, shape, gpu):
    "Arguments for a smaller launch of this very kernel, and its grid."
    def names(one): return one.kernel.py_func.__code__.co_varnames[:one.kernel.py_func.__code__.co_argcount]
    small = launch_of(fn, shape, with_args=True, gpu=gpu)
    if small.signature == launch.signature: return small.args, small.grid
    # It takes another form for small matrices. Give them to the form that large ones get. Its first block
    # runs alone, so it mustn't wait for others that have parts of its sums.
    given = dict(zip(names(small), small.args))
    missing = set(names(launch)) - given.keys()
    if missing - {"parts"}:
        raise NoPrediction("its kernel takes other arguments for matrices that are small enough to simulate")
    return [given.get(name, np.uint32(1)) for name in names(launch)], (1, 1, 1)

@dataclass
class Workload:
    "A launch, as the model sees it."
    shape: tuple     # m, n, k
    blocks: int
    threads: int     # of a block
    resident: int    # blocks that fit on a multiprocessor
    limiter: str     # what limits them
    stays: bool      # do blocks stay, and share out the tiles evenly?
    loop: KLoop

    @property
    def tiles(self):
        "Tiles of C that a block computes; where blocks stay, a part of one counts as a part."
        if not self.stays: return 1
        return self.shape[0] * self.shape[1] / (self.loop.results * self.threads * self.blocks)
    @property
    def passes(self):
        "Passes of the loop that a block makes."
        return self.tiles * cdiv(self.shape[2], self.loop.step)

def _refuse_others(name, array):
    "`NoPrediction` unless it's a row-major array of float32, as the model's own are."
    dtype = str(array.dtype).removeprefix("torch.")
    if dtype != "float32":
        raise NoPrediction(f"{name} holds {dtype}, and the model takes only float32 here")
    if is_torch(array) or any(array.strides):  # a number broadcast to a shape stands for any matrix
        if not is_row_major(array): raise NoPrediction(f"{name} isn't row-major, which the model needs")

def _refuse_types(kinds, arrays):
    "`NoPrediction` unless a signature has row-major arrays of float32, too."
    for name in arrays:
        if getattr(kinds[name], "layout", "C") != "C":
            raise NoPrediction(f"its signature allows gaps in {name}, which takes other machine code: write "
                               f"float32[{':, ' * (kinds[name].ndim - 1)}::1]")
        if getattr(kinds[name], "dtype", None) != types.float32:
            raise NoPrediction(f"its signature takes another type than float32 for {name}: {kinds[name]}")

def as_host_function(
    configured,  # kernel[grid, block]
    args,        # its arguments: three matrices, or arrays and numbers called m, n and k
) -> tuple:      # function (a, b), and m, n, k
    "A launch as a host function, which makes it for any size. `NoPrediction` if its shape isn't clear."
    fn, options, (grid, block, _, dynamic) = kernel_parts(configured)
    names = fn.__code__.co_varnames[:fn.__code__.co_argcount]
    given = dict(zip(names, args))
    matrices = [name for name, arg in given.items() if len(getattr(arg, "shape", ())) == 2]
    flat = [name for name, arg in given.items() if len(getattr(arg, "shape", ())) == 1]
    if len(matrices) == 3:
        (m, k), (rows, n), (height, width) = (given[name].shape for name in matrices)
        if (k, m, n) != (rows, height, width):
            sizes = ", ".join(f"{name} is {'×'.join(map(str, given[name].shape))}" for name in matrices)
            raise NoPrediction(f"its matrices don't fit together as a product: {sizes}")
    elif len(flat) == 3 and not matrices and given.keys() >= set("mnk"):
        m, n, k = (int(given[name]) for name in "mnk")
    else:
        raise NoPrediction("the model only predicts products, and m, n and k aren't clear from its "
                           "arguments: pass three matrices a, b and c")
    for name in matrices or flat: _refuse_others(name, given[name])
    if wanted := options.get("signature"):
        (kinds, _), *_ = declared(wanted)
        _refuse_types(dict(zip(names, kinds)), matrices or flat)
    given |= dict.fromkeys(matrices or flat)  # others take their places
    options = {name: value for name, value in options.items() if name != "signature"} | {"lineinfo": True}
    kernel = _rebuild(fn, options, (grid, block, 0, dynamic))
    def host(a, b):
        (m, k), n = a.shape, b.shape[1]
        own = dict(zip(matrices or flat, (a, b, cuda.device_array((m, n), np.float32))))
        if flat: own = {name: array.reshape(array.size) for name, array in own.items()}
        own |= {name: type(given[name])(size) for name, size in zip("mnk", (m, n, k)) if name in given}
        kernel(*(given | own).values())
    host.__name__ = fn.__name__
    return host, (m, n, k)

def with_result(
    fn,  # host function (a, b), or (a, b, c)
):
    "A host function (a, b), which allocates C itself."
    given = signature(fn)
    def takes(*names):
        try: return given.bind(*names)
        except TypeError: return None
    if takes("a", "b") or not takes("a", "b", "c"): return fn
    def host(a, b): fn(a, b, cuda.device_array((a.shape[0], b.shape[1]), np.float32))
    host.__name__ = getattr(fn, "__name__", "host")
    return host

def workload(
    fn,     # host function
    shape,  # m, n, k
    target="sm_90",  # a key of `compiler.TARGETS`
    gpu=None,  # for which it chooses its tiles: name, number of multiprocessors
    launch=None,  # what the call launches, if that's known
) -> Workload:
    "What the model needs to know about a call. `NoPrediction` where it can't follow the kernel."
    launch = launch or launch_of(fn, shape, gpu=gpu)
    threads, blocks, small = prod(launch.block), prod(launch.grid), _proxy(shape)
    path = cache_file(launch.kernel, launch.signature, target, launch.block, small, _stays(launch), _VERSION)
    def made():
        code = machine_code(launch.kernel, launch.signature, target)
        k_loop(code)  # refuses what the model doesn't know
        stays = _stays(launch)
        def seen(shape):
            args, grid = _arguments(fn, launch, shape, gpu)
            configured = launch.kernel[(1, 1, 1) if stays else grid, launch.block, 0, launch.dynamic_bytes]
            return dict(stays=stays, loop=asdict(_read(
                code, microscope(configured, *args, blocks=[(0, 0, 0)]), shape, threads, stays)))
        try: return seen(small)
        except SimulatorError as e:
            if e.kind != "bounds" or e.data["negative"]: raise
        try: return seen((*small[:2], small[2] + LONGER))  # its k tiles are long
        except SimulatorError as e:
            raise NoPrediction(f"with k = {small[2] + LONGER}, in the simulator, {e}") from None
    found = kept(path, made)
    loop = KLoop(**found["loop"])
    fits = occupancy(threads, loop.registers, loop.shared_bytes + launch.dynamic_bytes, target)
    if not fits.blocks: raise NoPrediction(f"no block fits on a multiprocessor: {fits.limiter}")
    return Workload(tuple(shape), blocks, threads, fits.blocks, fits.limiter, found["stays"], loop)

FEW = 1024  # blocks; more of them don't stay

def _stays(launch):
    "Do the blocks of a launch stay for several tiles each, and share them out evenly?"
    uses_grid = {"gridDim", "gridsize"} & set(launch.kernel.py_func.__code__.co_names)
    return bool(uses_grid) and prod(launch.grid[1:]) == 1 and prod(launch.grid) < FEW
