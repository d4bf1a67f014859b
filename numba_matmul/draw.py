"""A matrix in colors, and text that a page shows as it is.

Drawing

The lessons draw the three matrices where a mathematician would: B above C, A to its left, so that each
element of C stands where its row of A meets its column of B. Give each matrix as whole numbers: 0 for a cell
that is not touched, 1, 2, … for a color. The colors are Okabe and Ito's, which color-blind readers can
tell apart.
"""
from html import escape

import numpy as np


COLORS = ("#FFFFFF",  # not touched
          "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")

def number_text(value):
    "A number as tables and labels show it: four digits, or whole if it is larger."
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"

def draw_matrix(
    ax,          # matplotlib axes
    cells,       # 2-D array of color numbers
    title,       # text above
    text=None,   # 2-D array of short texts, one a cell
    numbers=0,   # 4: every fourth row and column is numbered; 0: none is
):
    "Draw a matrix of colored cells. `ValueError` without cells, or for anything but rows and columns."
    from matplotlib.colors import ListedColormap
    if np.ndim(cells) != 2 or not np.size(cells):
        raise ValueError(f"the cells have the shape {np.shape(cells)}; expected rows and columns")
    rows, columns = np.shape(cells)
    ax.pcolormesh(np.asarray(cells), cmap=ListedColormap(COLORS), vmin=0, vmax=len(COLORS) - 1,
                  edgecolors="#BBBBBB", linewidth=0.5)
    for i, j in np.ndindex(rows, columns) if text is not None else ():
        color = "white" if cells[i][j] in (1, 3) else "black"
        ax.text(j + 0.5, i + 0.5, str(text[i][j]), color=color,
                ha="center", va="center", fontsize=8)
    ax.set(title=title, xticks=[], yticks=[], aspect="equal", xlim=(0, columns), ylim=(rows, 0))
    ax.title.set_fontsize(10)
    for axis, count in ((ax.yaxis, rows), (ax.xaxis, columns)) if numbers else ():
        axis.set_ticks(np.arange(0, count, numbers) + 0.5, range(0, count, numbers), fontsize=8)
        axis.set_tick_params(length=0)

def color_of(
    name,  # of an array
):
    "The color of A, B or C for an array named after one of them: a, as_, tile_b …"
    first = [part[0] for part in name.lower().split("_") if part[:1] in ("a", "b", "c") and len(part) < 3]
    return COLORS[1 + "abc".index(first[0])] if first else COLORS[5]

def draw_matmul(
    a,  # (m, k) color numbers
    b,  # (k, n) color numbers
    c,  # (m, n) color numbers
    title="",     # text above it all
    text=(None, None, None),  # texts for the cells of a, b, c
):
    """Draw A, B and C in the arrangement of a product. Returns the figure. `ValueError` if the shapes don't
    fit together."""
    import matplotlib.pyplot as plt
    shapes = [np.shape(cells) for cells in (a, b, c)]
    if any(len(shape) != 2 or 0 in shape
           for shape in shapes) or shapes[0][1] != shapes[1][0] or shapes[2] != (shapes[0][0], shapes[1][1]):
        raise ValueError(f"a, b and c have the shapes {shapes}; expected (m, k), (k, n) and (m, n)")
    (m, k), n = shapes[0], shapes[1][1]
    figsize = 0.27 * (k + n) + 1, 0.27 * (k + m) + 1
    fig, axes = plt.subplots(2, 2, figsize=figsize, width_ratios=(k, n), height_ratios=(k, m),
                             layout="constrained")
    (corner, ax_b), (ax_a, ax_c) = axes
    corner.axis("off")
    for ax, cells, name, texts in zip((ax_a, ax_b, ax_c), (a, b, c), "ABC", text):
        draw_matrix(ax, cells, name, texts, 1 if max(m, n, k) <= 12 else 4)
    ax_a.set(xlabel="k", ylabel="m")
    ax_b.set(ylabel="k")
    ax_c.set(xlabel="n")
    fig.suptitle(title, fontsize=11)
    plt.close(fig)  # the notebook shows the returned figure, once
    return fig

def draw_thread(
    a, b, c,    # the tiles of a block: which thread copies a cell of A or B, or computes one of C
    thread,     # the one in color
    step,       # column of A's tile and row of B's; what the thread reads there is framed
    title="",   # text above it all
):
    "Draw the tiles of a block with thread numbers, and one thread's place in each. Returns the figure."
    import matplotlib.pyplot as plt
    a, b, c = map(np.asarray, (a, b, c))
    fig = draw_matmul(1 * (a == thread), 2 * (b == thread), 3 * (c == thread), title, (a, b, c))
    fig.set_size_inches(0.42 * fig.get_size_inches() / 0.27)
    _, ax_b, ax_a, _ = fig.axes
    rows, cols = np.nonzero(c == thread)
    for ax, x, y, height, width in ((ax_a, step, rows.min(), np.ptp(rows) + 1, 1),
                                    (ax_b, cols.min(), step, 1, np.ptp(cols) + 1)):
        ax.add_patch(plt.Rectangle((x, y), width, height, fill=False, linewidth=3))
    return fig


# Text
#
# A table is Markdown; a message of the simulator is plain text, in which a browser may break lines between
# words only.

class Markdown(str):
    "Text that a notebook renders as Markdown."
    def _repr_markdown_(self): return str(self)


class Message(str):
    "Text that is shown as it is; in a browser with lines that end between words."
    def __repr__(self): return str(self)
    def _repr_html_(self):
        style = "font: var(--jp-code-font-size, 1em) monospace; white-space: pre-wrap"
        return f'<div style="{style}">{escape(self)}</div>'
