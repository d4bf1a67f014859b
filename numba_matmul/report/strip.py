"""The strip at the top of a lesson: how far the kernels have come, and how long the lesson takes."""
from ..arrays import dtype_of
from ..cards import STALE, card_row, pick_card, stale_note
from ..registry import KERNELS


def _so_far(name):
    "The kernels of this one's type up to it, in the ladder's order."
    names = [kernel.fn.__name__ for kernel in KERNELS.values()]
    return [one for one in names[:names.index(name) + 1] if dtype_of(one) == dtype_of(name)]

def you_are_here(
    name,       # of the host function the reader has at the end of the lesson; None: none yet
    minutes,    # that the lesson takes
    needs="",   # what the reader has to know
    size=4096,  # m = n = k
):
    """A strip with the kernels so far, by % of cuBLAS. Returns the figure. `LookupError` where no card has
    one of them."""
    import matplotlib.pyplot as plt
    names = _so_far(name) if name else []
    card = pick_card(kernels=names, size=size)
    rows = [card_row(card, one, size) for one in names]
    percent = [row["percent"] for row in rows]
    fig, ax = plt.subplots(figsize=(5.2, 1.05), layout="constrained")
    ax.axhline(0, color="#999999", linewidth=1)
    ax.axvline(100, color="#999999", linewidth=1)
    ax.plot(percent[:-1], [0] * len(percent[:-1]), "o", color="#999999", markersize=5)
    here = percent[-1] if percent else 0
    ax.plot([here], [0], "o", color="black", markersize=9)
    kinds = {"bfloat16": "cuBLAS in bf16", "float8_e4m3fn": "cuBLAS in FP8"}
    kind = kinds.get(name and dtype_of(name), "cuBLAS")
    stale = STALE if rows and "stale" in rows[-1] else ""
    ax.set(yticks=[], xlim=(-2, max(110, 1.05 * here)), ylim=(-1, 1))
    ax.set_title(f"You are here: {here:.0f} % of {kind} (the kernel for any size){stale}" if name
                 else "You are here: at the start. 100 % is cuBLAS, NVIDIA's own library", fontsize=10,
                 loc="left")
    about = f"about {minutes} minutes" + (f" · you need {needs}" if needs else "")
    ax.set_xlabel("\n".join([about, stale_note(rows[-1:])]).strip(), fontsize=9.5)
    ax.tick_params(labelsize=9.5)
    ax.xaxis.set_major_formatter("{x:.0f} %")
    ax.spines[["top", "right", "left", "bottom"]].set_visible(False)
    before = len(percent[:-1])
    dots = (f", and smaller dots for {before} earlier kernels" if before > 1
            else ", and a smaller dot for the kernel before it" if before else "")
    fig.set_label(f"{ax.get_title(loc='left')}. A line from 0 to 100 % and beyond, with this lesson's "
                  f"place{dots}; {about}")
    plt.close(fig)
    return fig
