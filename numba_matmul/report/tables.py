"""What the ladder's pages show as tables: the rows of a card, and what follows from them.

Where the last kernel of a type falls behind, and what its tile has to do with it:

The code

Nothing here knows a kernel by its number, except for two whose reads were counted by hand: the kernels of a
type come from the registry.
"""
import inspect
import re
import statistics
from operator import truediv

from ..arrays import cdiv, dtype_of
from ..cards import STALE, card_row, in_words, load_cards, marked, stale_note
from ..draw import Markdown, number_text
from ..fp8 import E4M3
from ..ncu import counted
from ..registry import KERNELS, number_of


def days(card: dict) -> str:
    "When a card's speeds were measured: a date, or the first and the last."
    first, last = (pick(row.get("date", card["date"]) for row in card["speed"]) for pick in (min, max))
    return first if first == last else f"{first} to {last}"

def stale_kernels(
    rows=None,  # rows of result cards, see `marked`; all of them if None
) -> str:
    "One line about the kernels that have changed since they were timed; empty if none have."
    if rows is None: rows = [marked(card, row) for card in load_cards() for row in card["speed"]]
    return stale_note(rows, _called)

def stale_below(
    rows,  # of a table in Markdown
) -> list:
    "The same as the line below that table: a list, empty if no speed is stale."
    said, _, command = stale_kernels(rows).partition(": ")
    them = "them" if "have changed" in said or ";" in said else "it"
    return [f"\n({STALE.strip()}: {said}. Run `{command}` to time {them} again.)"] if said else []

def _called(names):
    "Kernels by their numbers, those of other tools by name."
    numbers = sorted(filter(None, map(number_of, names)))
    ours = [f"kernel{'s' * (len(numbers) > 1)} {in_runs(numbers, list(KERNELS))}"] if numbers else []
    return in_words([*ours, *(name for name in names if not number_of(name))])

def in_runs(
    numbers,  # some of …
    order,    # … all numbers, in their order
) -> str:
    "Numbers as text: 1 to 12, 15 and 16."
    runs = []
    for number in numbers:
        if runs and order.index(number) == order.index(runs[-1][-1]) + 1: runs[-1].append(number)
        else: runs.append([number])
    texts = [[f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run) for run in runs]
    return in_words(sum(map(list, texts), []))

def out_of_date(
    what,     # what no longer shows what the cards say
    command,  # that renews it
) -> str:
    "What to do about it, in one line."
    if not (note := stale_kernels()):
        return f"{what}: run {command}, since the cards, the lessons or the exercises have changed"
    return (f"{what}: run {command}. It marks speeds with{STALE}: {note}. "
            "Where the machine code is the same, make same-code BASE=… STAMP=1 keeps the speeds")

def table(
    rows,  # rows of a result card
) -> str:
    "The rows as an aligned text table; a last line says which speeds are stale."
    head = "#", "kernel", "m×n×k", "check", "ms", "GFLOP/s", "% of cuBLAS", "rel. error"
    said = any("predicted_ms" in r for r in rows)
    cells = [(*head, "predicted, ms") if said else head]
    for r in rows:
        size = f"{r['m']}×{r['n']}×{r['k']}"
        verdict = {True: "passed", False: "FAILED", None: "–"}[r["passed"]]
        speed = ("–",) * 4
        if r.get("ms"):
            mark = STALE if "stale" in r else ""
            speed = (f"{r['ms']:.4g}{mark}", f"{r['gflops']:,.0f}{mark}", f"{r['percent']:.1f}{mark}",
                     f"{r['error']:.1e}")
        if said: speed += (f"{r['predicted_ms']:.4g}" if "predicted_ms" in r else "–",)
        cells.append((str(number_of(r["name"]) or "–"), r["name"], size, verdict, *speed))
    widths = [max(len(cell) for cell in column) for column in zip(*cells)]
    sides = "><<<>>>>>"  # text to the left, numbers to the right
    def line(row):
        return "  ".join(f"{cell:{side}{w}}" for cell, side, w in zip(row, sides, widths))
    note = stale_kernels(rows)
    return "\n".join([*map(line, cells), *([f"{STALE.strip()} {note}"] if note else [])])


def type_name(dtype) -> str:
    "How a type is called in headings."
    return "FP8" if dtype == E4M3 else dtype

def kernels_of(
    dtype,  # "float32", "bfloat16" …
) -> list:  # of `Kernel`s, by number
    "The kernels of the course for matrices of this type; the last one is the fastest."
    return [kernel for kernel in KERNELS.values() if kernel.dtype == dtype]

def size_text(
    m, n, k,
) -> str:
    "How a size is written: one number if all three are the same."
    return str(m) if m == n == k else f"{m}×{n}×{k}"

def by_size(
    card,  # a result card
    name,  # of a host function
) -> dict:
    "(m, n, k) → the row of this kernel, see `marked`."
    return {(r["m"], r["n"], r["k"]): marked(card, r) for r in card["speed"] if r["name"] == name}


# What cuBLAS took is in the names of its kernels:

def cublas_tile(
    name,  # of a kernel of cuBLAS, as the profiler saw it
):         # (columns, rows) of its tile, and of its cluster; `None` if the name has none
    "What the name says. cuBLAS counts in columns, so A and B are exchanged."
    tile = re.search(r"(?:tilesize|gemm_(?:bf16_)?|tst_)(\d+)x(\d+)", name)
    cluster = re.search(r"nvjet_\w+?_\d+x\d+_\d+x\d+_(\d+)x(\d+)", name)
    return tile and (tuple(map(int, tile.groups())), tuple(map(int, cluster.groups())) if cluster else (1, 1))

def cublas_chose(
    card,   # a result card
    dtype,  # of the matrices
) -> Markdown:
    "The size of each product, and the kernel cuBLAS chose for it."
    names = {(r["m"], r["n"], r["k"]): r["cublas_kernel"] for r in card["speed"]
             if dtype_of(r["name"]) == dtype}
    rows = [f"| {size_text(*size)} | "
            f"{re.sub(r'^void |cutlass::Kernel2<|_execute_kernel.*|[>(].*', '', name)} |"
            for size, name in sorted(names.items())]
    return Markdown("\n".join([f"| {card['gpu']} | {type_name(dtype)} |", "|---|---|", *rows]))


BESIDE = {4092: 4096, 6000: 6144, 2047: 2048, 4097: 4096}  # a size that fits no tile, and the next that does

def kept(
    card,   # a result card
    dtype,  # of the matrices
) -> Markdown:
    "Speed at sizes that fit no tile, in % of that at the next one that fits: each kernel, and cuBLAS."
    used = []
    def line(who, name, speed):
        shown = []
        for sizes in BESIDE.items():
            odd, even = (card_row(card, name, size) for size in sizes)
            if not (odd and even):
                shown.append("–")
                continue
            ours = [odd, even] if speed == "gflops" else []
            used.extend(ours)
            mark = STALE * any("stale" in row for row in ours)
            shown.append(f"{100 * odd[speed] / even[speed]:.0f}{mark}")
        return f"| {who} | {' | '.join(shown)} |"
    kernels = kernels_of(dtype)
    rows = [line(kernel.number, kernel.name, "gflops") for kernel in kernels]
    head = " | ".join(f"{odd} / {even}" for odd, even in BESIDE.items())
    return Markdown("\n".join([f"| {card['gpu']}, {type_name(dtype)} | {head} |",
                               "|--:|" + "--:|" * len(BESIDE), *rows,
                               line("cuBLAS", kernels[-1].name, "cublas_gflops"), *stale_below(used)]))


def losing(
    cards,       # result cards
    kernel,      # a `Kernel`
    below=98,    # percent
    stale=True,  # count speeds of the kernel before it changed, too?
) -> list:       # of (m, n, k), the worst first
    "The sizes at which a kernel has less than this of cuBLAS's speed on at least one card."
    worst = {}
    for card in cards:
        for size, row in by_size(card, kernel.name).items():
            if stale or "stale" not in row: worst[size] = min(row["percent"], worst.get(size, row["percent"]))
    return sorted((size for size, percent in worst.items() if percent < below), key=worst.get)

def lost(
    cards,       # result cards
    kernel,      # a `Kernel`
    tiles=None,  # that its `select_config` chooses from, if that needs them
) -> Markdown:
    """The sizes at which a kernel is slower than cuBLAS: by how much, the two tiles as rows and columns of
    C, how many waves they make (tiles per multiprocessor, or parts of tiles), and what a block fetches per
    multiply-add, with 128×256 as 1. Our tile is the one the kernel has today."""
    found, sms = [by_size(card, kernel.name) for card in cards], cards[0]["multiprocessors"]
    select_config = getattr(inspect.getmodule(kernel.fn), "select_config", None)
    def described(size, rows, columns, wide=1, high=1, parts=1):  # blocks of a cluster share what they fetch
        waves = cdiv(size[0], rows * high) * high * cdiv(size[1], columns * wide) * wide * parts / sms
        fetched = (1 / (rows * high) + 1 / (columns * wide)) / (1 / 128 + 1 / 256)
        return f"{rows}×{columns}", f"{waves:.2f}", f"{fetched:.2f}"
    lines, used, given = [], [], dict(tiles=tiles) if tiles else {}
    for size in losing(cards, kernel):
        used += [rows[size] for rows in found if size in rows]
        ours, more = ("–",) * 3, ""
        if select_config:
            config = select_config(*size, sms, **given)
            # a turned tile has its rows and columns exchanged, and with them what a cluster shares
            shape, shared = config.tile[:2], getattr(config.tile, "sharers", (1, 1))
            if getattr(config.tile, "m_major_c", 0): shape, shared = shape[::-1], shared[::-1]
            ours = described(size, *shape, *shared, config.split_k)
            more = ", ".join([f"{config.split_k} parts"] * (config.split_k > 1)
                             + [f"{', '.join(config.padded.upper())} copied"] * bool(config.padded))
        # GPUs may differ
        names = dict.fromkeys(cublas_tile(rows[size]["cublas_kernel"]) for rows in found if size in rows)
        theirs = [described(size, rows, columns, wide, high)
                  for (columns, rows), (wide, high) in filter(None, names)] or [("–",) * 3]
        percents = " · ".join(f"{rows[size]['percent']:.0f}{STALE * ('stale' in rows[size])}"
                              if size in rows else "–" for rows in found)
        pairs = " | ".join(f"{one} · {' or '.join(dict.fromkeys(others))}"
                           for one, others in zip(ours, zip(*theirs)))
        lines.append(f"| {size_text(*size)} | {percents} | {pairs} | {more} |")
    if not lines: return Markdown(f"Kernel {kernel.number} doesn't fall behind at any of them.")
    gpus = " · ".join(card["gpu"].removeprefix("NVIDIA ").split()[0] for card in cards)
    head = f"| kernel {kernel.number} | %: {gpus} | tile: ours · cuBLAS's | waves | fetched | also |"
    return Markdown("\n".join([head, "|---|---|---|---|---|---|", *lines, *stale_below(used)]))


# Bytes are counted in two places: those a kernel requests, and those the GPU's own memory delivers.

def tile_at(
    card,       # a result card: what a search found on that GPU counts
    kernel,     # a `Kernel`
    size=4096,  # m = n = k
):              # `None` if the kernel has none
    "The tile a kernel has at that size."
    select_config = getattr(inspect.getmodule(kernel.fn), "select_config", None)
    if select_config: return select_config(size, size, size, card["multiprocessors"]).tile
    best = card.get("tuned", {}).get(kernel.name, {"best": {}})["best"]
    return kernel.tiles and kernel.tiles.tile._replace(**best)

def intensities(
    card,    # a result card with profiles
    kernel,  # a `Kernel`
) -> tuple:
    """Operations per byte at 4096×4096×4096: requested, by hand and as counted (`None` with the TMA, whose
    bytes are not counted), and delivered by the GPU's memory, as counted."""
    size = 4 if kernel.dtype == "float32" else 2  # bytes of a number
    tile, sectors = tile_at(card, kernel), {1: 33, 2: 5}.get(kernel.number)  # that a warp asks for in a step
    rows, columns = tile[:2] if tile else (32, 32)
    by_hand = 32 * 2 / (32 * sectors) if sectors else 2 / (size / rows + size / columns)
    asked, operations = 32 * counted(kernel.name, "global load sectors", card), 2 * 4096**3
    delivered = sum(counted(kernel.name, name, card)
                    for name in ("bytes read from the GPU's memory", "bytes written to it"))
    return by_hand, asked and operations / asked or None, operations / delivered

def profiled(
    card,  # a result card
) -> list:
    "The kernels with a profile on the card, if float32's roof or bfloat16's holds for them: not 19 and 20."
    return [kernel for kernel in KERNELS.values() if kernel.name in card.get("profiles", {})
            and kernel.dtype in ("float32", "bfloat16") and not kernel.units]

def in_bytes(
    card,  # a result card with profiles
) -> Markdown:
    "`intensities` as a table."
    lines = [f"| {card['gpu']}, kernel | by hand | requested, counted | delivered, counted |",
             "|--:|--:|--:|--:|"]
    for kernel in profiled(card):
        cells = (f"{x:.2f}" if x else "–" for x in intensities(card, kernel))
        lines.append(f"| {kernel.number} | {' | '.join(cells)} |")
    return Markdown("\n".join(lines))


# What experiments say of all kernels: their short forms, sustained speeds, random shapes, and any experiment
# whose labels have two parts.

def short_speeds(
    card,       # a result card
    size=4096,  # m = n = k
) -> dict:      # number of a kernel → GFLOP/s
    "How fast the lessons' short kernels are, from the experiments that their first lines show."
    found, pattern = {}, rf"kernel (1) at {size}, short|kernels \d+ and (\d+) at {size}(?:, short)?"
    for name, experiment in card.get("experiments", {}).items():
        if (lesson := re.fullmatch(pattern, name)) and experiment["unit"] in ("ms", "GFLOP/s"):
            *_, last = experiment["values"].values()
            speed = 2 * size**3 / last / 1e6 if experiment["unit"] == "ms" else last
            found[int(lesson[1] or lesson[2])] = speed
    return found

def sustained(
    card,  # a result card
) -> dict:  # (dtype, size) → GFLOP/s: ours and cuBLAS's; and our clock in MHz, where it was counted
    "What the experiments say in which one product follows the other for seconds."
    found = {}
    for name, experiment in card.get("experiments", {}).items():
        if not name.endswith(("and cuBLAS, sustained", "and cuBLAS, sustained")): continue
        values, numbers = experiment["values"], re.findall(r"kernel (\d+), ", " ".join(experiment["values"]))
        kernel = KERNELS.get(int(numbers[0])) if numbers else None
        for size in sorted({int(x) for x in re.findall(r", (\d+):", " ".join(values))}) if kernel else ():
            ours = f"kernel {numbers[0]}, {size}"
            ms, cublas_ms = values.get(f"{ours}: ms"), values.get(f"cuBLAS, {size}: ms")
            if not (ms and cublas_ms): continue
            cycles = values.get(f"{ours}: cycles, counted")
            found[kernel.dtype, size] = dict(gflops=2 * size**3 / ms / 1e6, percent=100 * cublas_ms / ms,
                                             cublas_gflops=2 * size**3 / cublas_ms / 1e6)
            if cycles: found[kernel.dtype, size]["mhz"] = cycles / ms / 1e3
    return found


def random_shapes(
    card,  # a result card
) -> dict:  # (dtype, are m, n and k multiples of 64?) → a list of % of cuBLAS
    """What lessons measured at shapes drawn at random, of two kinds: at sizes that fit no tile, cuBLAS may
    fall back on slower kernels."""
    found = {}
    for name, experiment in card.get("experiments", {}).items():
        if not (lesson := re.fullmatch(r"kernel (\d+), .*shapes drawn at random", name)): continue
        for label, percent in experiment["values"].items():
            fits = all(int(x) % 64 == 0 for x in label.split(": ")[-1].split("×"))
            found.setdefault((KERNELS[int(lesson[1])].dtype, fits), []).append(percent)
    return found


def pivot(
    experiment,  # an `Experiment` whose labels are "row: column"
) -> Markdown:
    "Its values as a table: the first parts of the labels are its rows, the second ones its columns."
    if not experiment.values: return Markdown(f"{experiment.name}: not recorded yet.")
    cells = {tuple(label.split(": ")): value for label, value in experiment.values.items()}
    rows, columns = (list(dict.fromkeys(parts)) for parts in zip(*cells))
    def line(row):
        return " | ".join(number_text(cells[row, x]) if (row, x) in cells else "–" for x in columns)
    what = ", ".join([experiment.name] + [experiment.unit] * (experiment.unit != "see the columns"))
    return Markdown("\n".join([f"| {what} | {' | '.join(columns)} |",
                               "|---|" + "--:|" * len(columns), *(f"| {row} | {line(row)} |" for row in rows),
                               "", experiment.source]))


# What a call costs, compared with one of `torch.mm`:

def _us(row):
    "Median of ours and of torch's, and the worst ratio of a round."
    ours, theirs = (statistics.median(row[name]) for name in ("us", "torch_us"))
    return (f"{number_text(ours)} / {number_text(theirs)} "
            f"({max(map(truediv, row['us'], row['torch_us'])):.2f})")

def wall_clock(
    card,  # a result card with calls
) -> dict:  # name of a host function → size → row
    "What a call in a queue costs."
    found = {}
    for row in card["calls"]["rows"]:
        if row["what"] == "wall clock": found.setdefault(row["name"], {})[row["size"]] = row
    return found

def call_costs(
    card,  # a result card with calls
) -> Markdown:
    "What a call costs, ours and `torch.mm`'s: of each kernel on the host, and of the last ones in a queue."
    hosts = {}
    for row in card["calls"]["rows"]:
        if row["what"] != "wall clock": hosts.setdefault(row["name"], {})[row["what"]] = row
    whats, walls = list(next(iter(hosts.values()))), wall_clock(card)
    sizes = list(next(iter(walls.values())))
    lines = [f"| {card['gpu']}: µs, ours / torch.mm | {' | '.join(whats)} |", "|---|" + "--:|" * len(whats)]
    lines += [f"| kernel {number_of(name)} | {' | '.join(_us(rows[what]) for what in whats)} |"
              for name, rows in hosts.items()]
    lines += ["", f"| {card['gpu']}: µs of a call in a queue | {' | '.join(map(str, sizes))} |",
              "|---|" + "--:|" * len(sizes)]
    lines += [f"| kernel {number_of(name)} / torch.mm | {' | '.join(_us(rows[size]) for size in sizes)} |"
              for name, rows in walls.items()]
    return Markdown("\n".join(lines))
