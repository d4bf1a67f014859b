"""The pictures of the README and of the ladder's page, made from result cards.

For example, a dot for each size, of the last kernel of a type:

The code
"""
import statistics
from textwrap import wrap

from ..arrays import dtype_of
from ..draw import COLORS
from ..cards import STALE, card_row
from ..ncu import counted
from ..registry import KERNELS, OTHERS, number_of
from .tables import (by_size, intensities, kernels_of, profiled, short_speeds, size_text, stale_kernels,
                     sustained, type_name)


LIGHT = "#C5E4F7"  # of the bars behind others

def _need(found, what):
    if not found: raise ValueError(f"nothing to draw: {what}")


def _noted(label, rows):
    "The label of an axis, and below it a note on stale speeds."
    note = stale_kernels(rows)
    return "\n".join([label, *wrap(f"{STALE.strip()} {note}", 55)]) if note else label


def _open(*axes):
    "Axes without a frame on top and on the right."
    for ax in axes: ax.spines[["top", "right"]].set_visible(False)


def plot_rows(
    rows,   # rows of a result card, of one size and one type
    title,  # text above the picture
    ax,     # matplotlib axes
):
    """Bars of GFLOP/s, one per kernel, with cuBLAS as a line. Where rows have the speed of a `short` kernel,
    that's the main bar, and the kernel for any size is a lighter one behind it. `ValueError` without rows."""
    _need(rows, f"{title} has no rows")
    numbers = [number_of(r["name"]) for r in rows]
    names = [f"{number or ''} {r['name']}" for number, r in zip(numbers, rows)]
    speeds = [r["gflops"] for r in rows]
    short, two = [row.get("short") for row in rows], "short" in rows[0]
    ours = LIGHT if two else COLORS[5]
    ax.barh(names, speeds, color=[ours if number else COLORS[8] for number in numbers])
    if two: ax.barh(names, [speed or 0 for speed in short], 0.45, color=COLORS[5])
    cublas = statistics.median(r["cublas_gflops"] for r in rows)
    right = max(cublas, *speeds)
    for name, speed, row in zip(names, short, rows):
        text = f"{row['gflops']:,.0f} ({row['percent']:.1f} %)" + STALE * ("stale" in row)
        if speed: text = f"{speed:,.0f} → {text}"
        ax.text(1.02 * right, name, text, va="center", fontsize=9)
    ax.axvline(cublas, color="black", linestyle="--")
    ax.invert_yaxis()
    ax.text(cublas, ax.get_ylim()[1], f"cuBLAS {cublas:,.0f}", ha="center", va="bottom", fontsize=9)
    ax.set(xlabel=_noted("GFLOP/s (and % of cuBLAS)", rows), xlim=(0, (1.5 if two else 1.3) * right))
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.xaxis.get_major_locator().set_params(nbins=6)
    ax.set_title(title, pad=18)
    _open(ax)

def rows_at(
    card,       # a result card
    size=4096,  # m = n = k
) -> list:
    "The card's rows at one size: the kernels in their order, and then the others."
    return [row for kernel in (*KERNELS.values(), *OTHERS) if (row := card_row(card, kernel.name, size))]

DTYPES = tuple(dict.fromkeys(kernel.dtype for kernel in KERNELS.values()))

def by_dtype(
    rows,  # rows of a result card
) -> dict:
    "Type of the matrices → the rows of kernels for it."
    found = {kind: [row for row in rows if dtype_of(row["name"]) == kind] for kind in DTYPES}
    return {kind: there for kind, there in found.items() if there}

def panels(
    card,       # a result card
    size=4096,  # m = n = k
) -> list:      # (title, rows), a pair for each type of the matrices
    "What a picture of the card shows."
    short = short_speeds(card, size)
    return [(f"{card['gpu']}, {size}×{size}×{size}, {type_name(dtype)}",
             [row | dict(short=short.get(number_of(row["name"]))) for row in rows])
            for dtype, rows in by_dtype(rows_at(card, size)).items()]

def draw_panels(
    panels,  # (title, rows of a result card), …
):
    "`plot_rows` for each, one below the other. Returns the figure. `ValueError` without rows."
    import matplotlib.pyplot as plt
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    _need(panels, "no panels, as the card has no rows of this size")
    bars = [len(rows) for _, rows in panels]  # all of one height
    size = 7, 1.4 * len(panels) + 0.35 * sum(bars)
    fig, axes = plt.subplots(len(panels), figsize=size, height_ratios=bars, squeeze=False,
                             layout=ConstrainedLayoutEngine(h_pad=0.12))
    plt.close(fig)
    for ax, (title, rows) in zip(axes.flat, panels): plot_rows(rows, title, ax)
    if "short" in panels[0][1][0]:
        fig.legend([plt.Rectangle((0, 0), 1, 1, color=color) for color in (COLORS[5], LIGHT)],
                   ["short kernel: one idea at a time",
                    "kernel for any size (alone where its lesson times no short one at this size)"],
                   loc="outside lower center", frameon=False, fontsize=9)
    return fig


def draw_climb(
    card,       # a result card
    size=4096,  # m = n = k
):
    """The ladder in one small picture: a mark for each kernel, and a line for cuBLAS in each type. Returns
    the figure. `ValueError` without rows."""
    import matplotlib.pyplot as plt
    rows = [row for row in rows_at(card, size) if number_of(row["name"])]
    _need(rows, f"{card['gpu']} has no rows at {size}")
    fig, ax = plt.subplots(figsize=(4.8, 2.7), layout="constrained")  # a phone shows it whole
    colors = dict(zip(DTYPES, (COLORS[5], COLORS[4], COLORS[3]), strict=True))
    for dtype, found in by_dtype(rows).items():
        color = colors[dtype]
        cublas = statistics.median(row["cublas_gflops"] for row in found)
        ax.axhline(cublas, color=color, linestyle="--", linewidth=1.5)
        # the lines of bfloat16 and FP8 are close: one has its words below
        above = dtype != "bfloat16"
        ax.text(0.2, cublas * 1.2 if above else cublas / 1.2, f"cuBLAS, {type_name(dtype)}: {cublas:,.0f}",
                fontsize=9, va="bottom" if above else "top")
        ax.plot([number_of(row["name"]) for row in found], [row["gflops"] for row in found], "o",
                color=color, markersize=5)
        runs = [[row for row in found if KERNELS[number_of(row["name"])].units == units]
                for units in dict.fromkeys(KERNELS[number_of(row["name"])].units for row in found)]
        for run in runs:
            ax.step([number_of(row["name"]) for row in run], [row["gflops"] for row in run], where="mid",
                    color=color, linewidth=1)
        for row in (*found[:dtype == DTYPES[0]], *(run[-1] for run in runs)):
            text = f"{row['gflops']:,.0f}" + STALE * ("stale" in row)
            over = above and not KERNELS[number_of(row["name"])].units
            ax.annotate(text, (number_of(row["name"]), row["gflops"]), (0, 7 if over else -7), fontsize=9,
                        textcoords="offset points", ha="center", va="bottom" if over else "top")
    numbers = [number_of(row["name"]) for row in rows]
    ax.set(yscale="log", xlim=(-0.1, max(numbers) + 1.5), ylim=(200, 6e6), ylabel="GFLOP/s",
           xlabel=_noted(f"lesson ({size}×{size}×{size}, {card['gpu']})", rows))
    ax.xaxis.label.set_fontsize(9)
    ax.tick_params(labelsize=9)
    ax.set_xticks(numbers, [number if number < 10 or number % 2 == 0 else "" for number in numbers])  # room
    ax.set_yticks([1e3, 1e4, 1e5, 1e6], ["1,000", "10,000", "100,000", "1,000,000"])
    ax.minorticks_off()
    _open(ax)
    plt.close(fig)
    return fig


def color_at(number):
    "The color of a kernel's line: neighbors on the ladder are neighbors in the spectrum, with other marks."
    import matplotlib.pyplot as plt
    numbers = [kernel.number for kernel in kernels_of(KERNELS[number].dtype)]
    return plt.cm.turbo(0.1 + 0.78 * numbers.index(number) / max(1, len(numbers) - 1))  # without dark ends

def mark_of(number): return "os^Dv"[number % 5]
def label_of(number): return f"{number} {KERNELS[number].title}"

def draw_sizes(
    cards,  # result cards
    dtype,  # of the matrices
):
    """Speed of each kernel over the powers of two, a panel for each card that has some, all on one scale.
    Returns the figure. `ValueError` without such speeds."""
    import matplotlib.pyplot as plt
    sizes = {size for card in cards for kernel in kernels_of(dtype) for size in by_size(card, kernel.name)}
    _need([m for m, n, k in sizes if m == n == k and m & (m - 1) == 0],
          f"no card has {type_name(dtype)} speeds at powers of two")
    cards = [card for card in cards if any(by_size(card, kernel.name) for kernel in kernels_of(dtype))]
    fig, axes = plt.subplots(len(cards), figsize=(7, 3.3 * len(cards)), sharex=True, sharey=True,
                             squeeze=False, layout="constrained")
    _open(*axes.flat)
    shown = []  # rows, for the note on stale ones
    for ax, card in zip(axes.flat, cards):
        cublas = {}
        for kernel in kernels_of(dtype):
            rows = {m: row for (m, n, k), row in sorted(by_size(card, kernel.name).items())
                    if m == n == k and m & (m - 1) == 0}
            shown += rows.values()
            cublas |= {m: row["cublas_gflops"] for m, row in rows.items()}
            ax.plot(list(rows), [row["gflops"] for row in rows.values()], mark_of(kernel.number) + "-",
                    lw=1.2, color=color_at(kernel.number), markersize=4, label=label_of(kernel.number))
        ax.plot(*zip(*sorted(cublas.items())), "k--", label="cuBLAS", zorder=3)
        ax.set(xscale="log", yscale="log", ylabel="GFLOP/s",
               title=f"{card['gpu']}, {type_name(dtype)}: speed by size")
        ax.set_xticks(sorted(cublas), sorted(cublas))
        ax.minorticks_off()
        ax.grid(color=COLORS[8], alpha=0.3, lw=0.6)
    axes[-1, 0].set_xlabel(_noted("m = n = k", shown))
    lines, names = axes[0, 0].get_legend_handles_labels()
    fig.legend(lines[::-1], names[::-1], loc="outside right", frameon=False, fontsize=8)
    plt.close(fig)
    return fig


def percents(
    cards,   # result cards
    kernel,  # a `Kernel`
) -> dict:
    "Size as text → GPU → % of cuBLAS."
    found = {card["gpu"]: by_size(card, kernel.name) for card in cards}
    return {size_text(*size): {gpu: rows[size]["percent"] for gpu, rows in found.items() if size in rows}
            for rows in found.values() for size in rows}

def draw_shapes(
    panels,   # title → size as text → GPU → % of cuBLAS
    rows=(),  # of result cards: those shown, for a note on stale speeds
):
    """A dot for each size, sorted, and red below 100; a panel for each title, all on one scale. Returns the
    figure. `ValueError` without sizes."""
    import matplotlib.pyplot as plt
    panels = {title: {size: row for size, row in found.items() if row} for title, found in panels.items()}
    _need(any(panels.values()), "no panel has a size with a speed")
    most = max(map(len, panels.values()))
    fig, axes = plt.subplots(1, len(panels), figsize=(7, 1.2 + 0.19 * most), sharex=True, squeeze=False,
                             layout="constrained")
    every = [percent for found in panels.values() for row in found.values() for percent in row.values()]
    gpus = list(dict.fromkeys(gpu for found in panels.values() for row in found.values() for gpu in row))
    _open(*axes.flat)
    for ax, (title, found) in zip(axes.flat, panels.items()):
        # the fastest first, by the first GPU; each GPU has its own mark, and the others' are hollow
        sizes = sorted(found, key=lambda size: -next(iter(found[size].values())))
        for y, size in enumerate(sizes):
            for gpu, percent in found[size].items():
                color = COLORS[6] if percent < 100 else "black"
                ax.plot(percent, y, "os^D"[gpus.index(gpu) % 4], color=color, markersize=5,
                        markerfacecolor="none" if gpus.index(gpu) else color)
        ax.axvline(100, color="black", linestyle="--", lw=1)
        ax.set_yticks(range(len(sizes)), sizes, fontsize=8)
        ax.set(xscale="log", title=title, xlabel="% of cuBLAS", ylim=(-0.7, most - 0.3))
        ticks, crowded = (25, 50, 75, 100, 150, 200, 400), (150,) if len(panels) < 3 else (75, 150, 200)
        ax.set_xticks(ticks, ["" if tick in crowded else str(tick) for tick in ticks], fontsize=8)
        ax.set_xlim(min(45, 0.9 * min(every)), max(450, 1.1 * max(every)))  # ticks outside are not shown
        ax.minorticks_off()
        ax.grid(color=COLORS[8], alpha=0.3, lw=0.6)
        ax.title.set_fontsize(9)
    # Empty lines make the legend.
    for i, gpu in enumerate(gpus):
        axes[0, 0].plot([], [], "os^D"[i % 4], color="black", label=gpu,
                        markerfacecolor="none" if i else "black")
    fig.legend(loc="outside upper center", ncols=len(gpus), frameon=False, fontsize=8)
    if note := _noted("", rows): fig.supxlabel(note.strip(), fontsize=8)
    plt.close(fig)
    return fig


# multiply-adds of bfloat16 per cycle, from NVIDIA's papers
TENSOR_CORES = {8.0: 1024, 8.6: 256, 8.9: 256, 9.0: 2048}

def peaks(
    card,  # a result card
) -> list:
    "GFLOP/s at the highest clock: for float32, and for bfloat16 on tensor cores where we know it."
    many = TENSOR_CORES.get(float(card["compute_capability"]))
    tensor = many and 2 * many * card["multiprocessors"] * card["clock_mhz"] / 1000
    return [peak for peak in (card["peak_gflops"], tensor) if peak]

def draw_roofline(
    card,  # a result card with profiles
):
    """Each kernel twice: a small mark for what it requests, a large one for what the memory delivers. Dotted:
    the roof of bfloat16 at the sustained clock. Returns the figure. `ValueError` without profiles."""
    import matplotlib.pyplot as plt
    _need(profiled(card), f"{card['gpu']} has no profiles")
    fig, ax = plt.subplots(figsize=(7, 4.8), layout="constrained")
    # The roofs: a slope for the memory, a flat part for each kind of arithmetic.
    copy = card["copy_gb_s"]
    for peak in peaks(card):
        ax.plot([0.03, peak / copy, 5000], [0.03 * copy, peak, peak], color="black", lw=1)
        ax.text(0.03, peak * 1.08, f"{peak:,.0f} GFLOP/s; ridge at {peak / copy:.1f}", fontsize=8)
    if mhz := sustained(card).get(("bfloat16", 8192), {}).get("mhz"):
        low = peaks(card)[-1] * mhz / card["clock_mhz"]
        ax.plot([low / copy, 5000], [low, low], color="black", lw=1, ls=":")
        ax.text(0.03, low / 1.08, f"{low:,.0f} sustained", fontsize=8, va="top")
    ax.text(3.5, copy * 4.5, f"{copy:,.0f} GB/s", ha="right", fontsize=8)
    rows = {kernel: card_row(card, kernel.name, 4096) for kernel in profiled(card)}
    for kernel, row in reversed(rows.items()):
        by_hand, asked, delivered = intensities(card, kernel)
        y, mark = row["gflops"], "o" if kernel.dtype == "float32" else "s"
        first, color = asked or by_hand, color_at(kernel.number)
        ax.plot([first, delivered], [y, y], color=color, lw=0.7)
        ax.plot(first, y, mark, color=color, markersize=3)
        ax.plot(delivered, y, mark, color=color, markersize=8, label=label_of(kernel.number))
    fig.legend(loc="outside right", frameon=False, fontsize=8)
    ax.set(xscale="log", yscale="log", ylabel="GFLOP/s", title=f"{card['gpu']}: roofline, 4096×4096×4096",
           xlabel=_noted("operations per byte", rows.values()))
    _open(ax)
    plt.close(fig)
    return fig


CAUSES = {"sectors requested": ("global load sectors",),
          "loads from shared memory": ("shared load instructions",),
          "wavefronts of shared memory": ("shared load wavefronts", "shared store wavefronts")}
WAITS = {"global memory": ("long_scoreboard", "lg_throttle"), "barrier": ("barrier",),
         "shared memory": ("short_scoreboard", "mio_throttle")}

def draw_causes(
    card,  # a result card with profiles
):
    """What was counted for each float32 kernel, as marks; no mark means zero. Returns the figure.
    `ValueError` without profiles."""
    import matplotlib.pyplot as plt
    def total(kernel, names): return sum(counted(kernel.name, name, card) for name in names)
    kernels = [kernel for kernel in profiled(card) if kernel.dtype == "float32"]
    _need(kernels, f"{card['gpu']} has no profiles of float32 kernels")
    numbers, rows, ffmas = [kernel.number for kernel in kernels], range(len(kernels)), 4096**3 / 32
    fig, axes = plt.subplots(2, 2, figsize=(7, 7), sharey=True, layout="constrained")
    _open(*axes.flat)
    # Three panels count accesses, the last one cycles of waiting.
    for ax, (title, names) in zip(axes.flat, CAUSES.items()):
        values = [total(kernel, names) / ffmas for kernel in kernels]
        ax.plot([value or float("nan") for value in values], rows, "o", color="black")
        for row, value in zip(rows, values):
            if value: ax.text(value * 1.3, row, f" {value:.2g}", va="center", fontsize=8)
        ax.set(title=f"{title}, per FFMA", xscale="log", xlim=(0.02, 400))
    last = axes[1, 1]
    for (title, names), shade, mark in zip(WAITS.items(), (4, 5, 6), "oDx"):
        last.plot([total(kernel, names) or float("nan") for kernel in kernels], rows, mark,
                  color=COLORS[shade], label=title, markersize=6)
    last.set(title="cycles of waiting, per instruction", xscale="log", xlim=(0.005, 2000))
    last.legend(frameon=False, fontsize=8, title="for", title_fontsize=8)
    for ax, ticks in zip(axes.flat, [(0.1, 1, 10, 100)] * 3 + [(0.01, 0.1, 1, 10, 100, 1000)]):
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
        ax.title.set_fontsize(9)
        ax.grid(axis="y", color=COLORS[8], alpha=0.3)
    for ax in axes[:, 0]: ax.set(yticks=rows, yticklabels=numbers, ylabel="kernel")
    axes[0, 0].invert_yaxis()
    fig.suptitle(f"{card['gpu']}, 4096×4096×4096: what kernels request and wait for", fontsize=9)
    plt.close(fig)
    return fig
