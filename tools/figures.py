"""A figure as SVG, beside the PNG that a notebook shows.

Jupyter and GitHub show the PNG: none of them knows this type. The website puts the SVG into its page. What is
black there takes the color of the page's text, light or dark, unless it stands on something painted. What is
white takes the color of the page."""
import html
import io
import re

import matplotlib
import numpy as np
from matplotlib.collections import Collection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

SVG = "application/vnd.numba-matmul.svg+xml"
STAYS_BLACK = "#000001"  # on paint; what is #000000 becomes the ink of the page
MIDDLE = "#777777"       # dark gray, so that it is seen on a dark page, too
NEARLY_WHITE = 0xF0      # and above: paper, not paint
PAPER = {"#ffffff": "var(--paper, white)", "#f4f4f4": "var(--box, #f4f4f4)",  # set in site.css
         "stroke: #bbbbbb": "stroke: var(--grid, #bbbbbb)"}
MANY = 1000              # cells or dots, which an SVG had better hold as an image
FONT = "DejaVu Sans, Verdana, sans-serif"


def listed(texts):
    "Different texts, separated by semicolons."
    return "; ".join(dict.fromkeys(" ".join(text.split()) for text in texts if len(text.strip()) > 0))


def title_of(fig):
    "What a figure shows, in one line: its label, or its titles, axes, rows and legends if it has none."
    if fig.get_label(): return fig.get_label()
    titles = [fig.get_suptitle()]
    titles += [ax.get_title(place) for ax in fig.axes for place in ("left", "center", "right")]
    axes = [axis for ax in fig.axes if ax.axison for axis in (ax.yaxis, ax.xaxis)]
    ticks = [tick.get_text() for axis in axes for tick in axis.get_ticklabels()]
    told = {"": listed(title for title in titles if len(title) > 1),
            "Axes: ": listed(axis.get_label_text() for axis in axes),
            "Rows: ": listed(text for text in ticks if re.match(r"[^$]*[^\W\d]", text)),  # names, not numbers
            "Legend: ": listed(text.get_text() for key in fig.findobj(Legend) for text in key.get_texts())}
    return ". ".join(name + text.rstrip(".") for name, text in told.items() if text)


def inks(fig):
    "The texts, lines and frames that are black, each with the name of its color."
    for artist in fig.findobj(lambda x: isinstance(x, (Text, Line2D, Patch)) and x.get_visible()):
        if isinstance(artist, Patch):
            if not artist.fill and to_rgb(artist.get_edgecolor()) == (0, 0, 0): yield artist, "edgecolor"
        elif to_rgb(artist.get_color()) == (0, 0, 0): yield artist, "color"


def on_paint(fig):
    "Those of them that stand on something painted, as on a cell of a matrix."
    found = list(inks(fig))
    before = [artist.get_alpha() for artist, _ in found]
    for artist, _ in found: artist.set_alpha(0)
    fig.savefig(pixels := io.BytesIO(), format="rgba", dpi=fig.dpi, transparent=True)
    for artist, _ in inks(fig): artist.set_alpha(None)  # ticks made meanwhile are copies of an invisible one
    for (artist, _), alpha in zip(found, before): artist.set_alpha(alpha)
    width, height = fig.canvas.get_width_height()
    drawn = np.frombuffer(pixels.getvalue(), np.uint8).reshape(height, width, 4)[::-1]
    paint = (drawn[..., 3] > 128) & (drawn[..., :3].min(2) < NEARLY_WHITE)
    gray = np.ptp(drawn[..., :3], 2) == 0
    grid = gray & (drawn[..., 0] >= 0xBB)  # a matrix's: a line often runs along one
    def below(artist):
        (left, bottom), (right, top) = artist.get_window_extent().get_points().clip(0).astype(int)
        painted = paint & ~grid if isinstance(artist, Line2D) else paint
        return painted[bottom:top + 1, left:right + 1]
    return [(artist, name) for artist, name in found if below(artist).size and below(artist).mean() > 0.5]


def compact(svg):
    "Without what nobody reads: metadata, names of groups, digits far behind the point."
    def short(number): return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")
    def tag(found):
        text = re.sub(r"\d+\.\d{3,}", short, found[0])
        text = re.sub(r" ?([MLCQ]) ", r"\1", re.sub(r"\s+", " ", text))
        text = re.sub(r"M(\S+) (\S+)L(\S+) \2L\3 (\S+)L\1 \4L\1 \2 ?z?", r"M\1 \2H\3V\4H\1Z", text)
        text = re.sub(r" font-family: [^;\"]*;?| transform=\"rotate\(-0 [^\"]*\"", "", text)
        text = text.replace(f" {STAYS_BLACK}", " black").replace(" #000000", " currentColor")
        text = re.sub(r"#([456])\1{5}", MIDDLE, text)
        if not text.startswith("<text"): text = re.sub("|".join(PAPER), lambda white: PAPER[white[0]], text)
        return re.sub(r"^<g id=\"[^\"]*\"", "<g", text)
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.S)
    svg = re.sub(r"<[^>]+>", tag, svg[svg.index("<svg"):])
    svg = re.sub(r'<path [^>]*style="fill: none"/>', "", svg)
    svg = re.sub(r">\s+<", "><", svg).strip()
    # neighbors of one style become one path, unless they show through
    same = r'<path d="[^"]*"((?: (?!d=)[\w-]+="[^"]*")*)/>(?:<path d="[^"]*"\1/>)+'
    def together(found):
        whole, style = found[0], found[1]
        drawn = "".join(re.findall(' d="([^"]*)"', whole))
        return whole if "opacity" in style else f'<path d="{drawn}"{style}/>'
    svg = re.sub(same, together, svg)
    while svg != (svg := re.sub(r"<g></g>|<defs></defs>|<defs/>|<g/>", "", svg)): pass
    return svg


def svg_of(fig):
    "The figure as text that stands in a page: 100 pixels wide for each inch, or as wide as there is room."
    many = [artist for artist in fig.findobj(Collection)
            if max(len(artist.get_paths()), len(artist.get_offsets())) > MANY]
    kept = [(artist, name, getattr(artist, f"get_{name}")()) for artist, name in on_paint(fig)]
    for artist in many: artist.set_rasterized(True)
    for artist, name, _ in kept: artist.set(**{name: STAYS_BLACK})
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "numba_matmul"}):
        fig.savefig(file := io.StringIO(), format="svg", transparent=True, bbox_inches="tight", dpi=150)
    for artist, name, color in kept: artist.set(**{name: color})
    for artist in many: artist.set_rasterized(False)
    drawing = compact(file.getvalue())
    box = re.search(r'viewBox="([\d. ]+)"', drawing)[1]
    width = float(box.split()[2]) / 0.72
    return (f'<svg role="img" aria-label="{html.escape(title_of(fig))}" viewBox="{box}" width="{width:.0f}" '
            'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'fill="currentColor" font-family="{FONT}" stroke-linejoin="round"{drawing[drawing.index(">"):]}')


def add_svg(shell):
    "Have a shell keep each figure as SVG, too."
    shell.display_formatter.mimebundle_formatter.for_type(Figure, lambda fig: {SVG: svg_of(fig)})
