"""One drawing of a GPU for all lessons: where numbers live, how far they travel, and which part is busy.

Every lesson asks where the time goes, and shows the answer in the same drawing, with a part of it lit:

From left to right numbers come closer to the arithmetic, and each step has less room and more speed. The
parts are called: "dram", "l2", "l1" (or "shared"), "registers", "schedulers" (or "warps"), "fp32", "tensor".
Sizes and speeds are those of the GPU at hand, or of the one whose result card comes first. With nothing lit:

The code
"""
from .cards import check_card, pick_card
from .draw import COLORS


# with shared memory
L1_KB = {"7.5": 96, "8.0": 192, "8.6": 128, "8.9": 128, "9.0": 256, "10.0": 256, "12.0": 128}
PARTS = ("dram", "l2", "l1", "shared", "registers", "schedulers", "fp32", "tensor", "warps")
LIT, DARK, LINE = COLORS[7], "#F4F4F4", "#666666"

def machine_facts(card):
    "What the drawing says of each part, from a result card; `ValueError` if it isn't one."
    check_card(card)
    capability, clock, number = (card[x] for x in ("compute_capability", "clock_mhz", "multiprocessors"))
    shared_tb_s = 128 * clock * number / 1e6  # 128 bytes per cycle, from every multiprocessor
    l2 = f"{card['l2_mb']:.0f} MB" if "l2_mb" in card else ""
    l1 = f"{L1_KB[capability]} KB\n" if capability in L1_KB else ""
    return dict(dram=f"{card['memory_gb']:.0f} GB\n{card['copy_gb_s'] / 1000:.1f} TB/s", l2=l2,
                l1=f"{l1}128 B per cycle\n\n(all together\n{shared_tb_s:.0f} TB/s)",
                number=number, name=card["gpu"])

def _box(ax, x, y, width, height, text, lit, size=8.5, **style):
    import matplotlib.pyplot as plt
    ax.add_patch(plt.Rectangle((x, y), width, height, facecolor=LIT if lit else DARK, edgecolor=LINE,
                               linewidth=2 if lit else 1, **style))
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size, color="black")

def draw_machine(
    *lit,       # parts to light, see `PARTS`
    note="",    # text below it
    card=None,  # a result card; that of this GPU, or the first one, if None
):
    """Memory, caches and one multiprocessor, with some parts lit. Returns the figure. `ValueError` for an
    unknown part, `LookupError` if there is no card."""
    import matplotlib.pyplot as plt
    if unknown := [repr(part) for part in lit if part not in PARTS]:
        raise ValueError(f"no part is called {', '.join(unknown)}; expected some of {', '.join(PARTS)}")
    lit = {"l1" if part == "shared" else "schedulers" if part == "warps" else part for part in lit}
    facts = machine_facts(pick_card() if card is None else card)
    fig, ax = plt.subplots(figsize=(7, 3), layout="constrained")
    _box(ax, 0, 0.8, 1.5, 3.6, f"DRAM\n“global\nmemory”\n\n{facts['dram']}", "dram" in lit)
    _box(ax, 2.1, 0.8, 1.3, 3.6, f"L2 cache\n\n{facts['l2']}", "l2" in lit)
    for shift in (0.3, 0.15):  # there are many of these
        ax.add_patch(plt.Rectangle((4 + shift, 0.2 + shift), 6, 4.6, facecolor="white", edgecolor=LINE))
    ax.add_patch(plt.Rectangle((4, 0.2), 6, 4.6, facecolor="white", edgecolor=LINE))
    ax.text(4.1, 4.62, f"one of {facts['number']} multiprocessors", fontsize=8.5, va="center")
    _box(ax, 4.2, 0.8, 1.75, 3.6, f"L1 cache and\nshared memory\n\n{facts['l1']}", "l1" in lit, 8)
    for i in range(4):
        y = 3.55 - 0.92 * i
        _box(ax, 6.35, y, 1.25, 0.82, "scheduler\n16 warps", "schedulers" in lit, 7.5)
        _box(ax, 7.6, y, 1.05, 0.82, "registers\n64 KB", "registers" in lit, 7.5)
        _box(ax, 8.65, y, 0.65, 0.82, "32\nFMA", "fp32" in lit, 7.5)
        _box(ax, 9.3, y, 0.6, 0.82, "tensor\ncore", "tensor" in lit, 7)
    arrow = dict(arrowstyle="<->", color=LINE, lw=1.5)
    for start, stop in ((1.5, 2.1), (3.4, 4.2), (5.95, 6.35)):
        ax.annotate("", (start, 2.6), (stop, 2.6), arrowprops=arrow)
    ax.set(xlim=(-0.1, 10.4), ylim=(-0.1, 5.2))
    ax.axis("off")
    ax.set_title(f"{facts['name']}{f': {note}' if note else ''}", fontsize=9.5)
    fig.set_label(f"{ax.get_title()}. DRAM, L2 cache, and a multiprocessor: L1 cache, schedulers, "
                  f"registers, FMA units, tensor cores. Lit: {', '.join(sorted(lit)) or 'none'}")
    plt.close(fig)
    return fig
