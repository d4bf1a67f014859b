"""Something to play with in a page: plain JavaScript and SVG, in a notebook and on the website alike.

Each widget is one file in `static/`, next to `common.js`, which all of them use. What Python gives it travels
in the page, compressed. Nothing is fetched, and nothing has to be installed.
"""
import base64
import json
import zlib
from html import escape
from pathlib import Path

STATIC = Path(__file__).parent / "static"


class Widget(str):
    "HTML that a notebook runs. It prints as its title."
    title = ""
    def __repr__(self): return f"{self.title} (shown in a notebook)"
    def _repr_html_(self): return str(self)

def script(
    name,  # of a file in `static/`, without .js
) -> str:
    "A widget's whole script."
    return "\n".join((STATIC / f"{file}.js").read_text(encoding="utf-8") for file in ("common", name))

def box(
    name,   # of a file in `static/`, without .js
    title,  # what it is, for readers who don't see it
    data,   # what it shows: anything that JSON can hold
    until="It runs once you trust this notebook, or run this cell.",  # shown where it doesn't run
) -> str:
    "A widget without its script, which may follow several boxes."
    packed = base64.b64encode(zlib.compress(json.dumps(data, separators=(",", ":")).encode(), 9)).decode()
    return (f'<div class="nm" data-widget="{name}" data-with="{packed}" role="group" '
            f'aria-label="{escape(title)}">{escape(title)}. ({until})</div>')

def widget(
    name,   # of a file in `static/`, without .js
    title,  # what it is, for readers who don't see it
    data,   # what it shows: anything that JSON can hold
) -> Widget:
    "A widget with its data. In a notebook that isn't trusted, its title says how to start it."
    made = Widget(f"{box(name, title, data)}\n<script>(() => {{\n{script(name)}\n}})()</script>")
    made.title = title
    return made


def need_one_of(
    name, value,  # of an argument
    allowed,      # values, or a range of whole numbers
):
    "`ValueError` unless it's one of them."
    if value in allowed: return
    if isinstance(allowed, range): expected = f"a whole number from {allowed[0]} to {allowed[-1]}"
    else: expected = f"one of {', '.join(map(repr, allowed))}"
    raise ValueError(f"{name} is {value!r}; expected {expected}")

def explore_banks(
    width=32,      # words in a row of the tile
    padding=0,     # unused words at the end of each row
    group=1,       # lanes that go along a row; the next group continues in another row
    step=1,        # words from one of them to the next
    rows=1,        # rows from one group to the next
    first="row",   # or "column": the lanes of a group go down, and the next group starts further right
    bits=32,       # that a lane accesses: 32, 64 or 128
    swizzle=False,  # does piece p of row r, 16 bytes, lie at p ^ r % 8?
) -> Widget:
    "Which banks a warp's request uses, and in how many wavefronts, for a tile and a pattern that you choose."
    given = dict(width=width, padding=padding, group=group, step=step, rows=rows, first=first, bits=bits,
                 swizzle=swizzle)
    allowed = dict(width=range(1, 1025), padding=range(129), group=range(1, 33), step=range(1, 1025),
                   rows=range(129), first=("row", "column"), bits=(32, 64, 128))
    for name, values in allowed.items(): need_one_of(name, given[name], values)
    return widget("banks", "Bank-conflict explorer", given)

def explore_sectors(
    x=32,           # threads of a block along x
    y=32,           # and along y
    swapped=False,  # is threadIdx.x the row of C, as in lesson 1, or the column?
) -> Widget:
    "Which sectors the three requests of a warp touch in a product, for a block that you choose."
    for name, value in dict(x=x, y=y).items(): need_one_of(name, value, range(1, 1025))
    if x * y > 1024:
        raise ValueError(f"x is {x} and y is {y}: {x * y} threads; a block has at most 1024")
    return widget("sectors", "Coalescing explorer", dict(x=x, y=y, swapped=swapped))
