"""What was measured on a named GPU is kept in a file: found, checked, and written whole or not at all."""
import json
import os
import re
import sys
from contextlib import suppress
from functools import lru_cache
from numbers import Integral
from pathlib import Path
from threading import get_ident

import numba_matmul  # first: it chooses between the GPU and the simulator
from .arrays import current_gpu, dtype_of
from .draw import Markdown
from .fingerprint import fingerprint
from numba import config


_package = Path(numba_matmul.__file__).parent
CHECKOUT = _package.parent if (_package.parent/"nbs"/"results").is_dir() else None
RESULTS = CHECKOUT/"nbs"/"results" if CHECKOUT else _package/"results"  # a wheel brings a copy

def card_folder():
    "Where the result cards are: `nbs/results` of the checkout; without one, the package's copy."
    return RESULTS

@lru_cache(None)
def _card_schema():
    import fastjsonschema
    schema = RESULTS/"schema"/"card.schema.json"
    return fastjsonschema.compile(json.loads(schema.read_text(encoding="utf-8")))

def check_card(card):
    "`ValueError` unless the card has what the schema asks for."
    from fastjsonschema import JsonSchemaException
    try: _card_schema()(card)
    except JsonSchemaException as e: raise ValueError(f"{e}".replace("data", "card", 1)) from None

def _refuse_constant(name): raise ValueError(f"{name} is not a number of JSON")

@lru_cache(None)
def _read_card(path, changed):
    "A card, read once; of a file that is none, say so in a line, once."
    try:
        card = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
        check_card(card)
        return card
    except (OSError, ValueError, RecursionError) as e:  # also what is no JSON, or not UTF-8
        reason = str(e).splitlines()[0].replace(str(path), path.name)
        print(f"{path.name} is left out, it is no result card: {reason:.200}", file=sys.stderr)


def load_cards(
    *fields,     # what a card must have besides its speeds: "ncu", "profiles" …
    kernels=(),  # names of kernels whose speed it must have …
    size=4096,   # … at this m = n = k
) -> list:       # of dicts; not to be changed
    "The result cards that have all this; first the one with the most experiments, then by file name."
    if isinstance(kernels, str):
        raise TypeError(f"kernels is {kernels!r}; expected a list of names: pass [{kernels!r}]")
    for text in (*fields, *kernels):
        if not isinstance(text, str): raise TypeError(f"{text!r} is not a name")
    if isinstance(size, bool) or not isinstance(size, Integral):
        raise TypeError(f"size is {size!r}; expected a whole number, m = n = k")
    def changed(path):  # a link may lead nowhere
        with suppress(OSError): return path.stat().st_mtime_ns
    paths = sorted(card_folder().glob("*.json"))
    cards = [card for path in paths if (card := _read_card(path, changed(path)))]
    def has_all(card):
        return card.keys() >= set(fields) and all(_row(card, kernel, size) for kernel in kernels)
    return sorted(filter(has_all, cards), key=lambda card: -len(card.get("experiments", {})))

def pick_card(
    *fields,  # as for `load_cards`
    **needs,
) -> dict:
    "This GPU's card if it has all that, else the first card that has; `LookupError` if none has."
    cards = load_cards(*fields, **needs)
    if not cards:
        wanted = [*fields, *needs.get("kernels", ())]
        raise LookupError(f"no result card has {', '.join(wanted) or 'a speed'}: run make gpu STAGE=ladder")
    return next((card for card in cards if card["gpu"] == _here()), cards[0])

def card_of(experiment):
    "This GPU's card if it has the experiment of that name, else the first card that has; `None` if none has."
    cards = [card for card in load_cards("experiments") if experiment in card["experiments"]]
    return next((card for card in cards if card["gpu"] == _here()), next(iter(cards), None))


def gpu_name():
    """Name of this GPU. In the simulator: that of the process which started this one, if it has a
    GPU, else that of the first result card."""
    return _here() or next((card["gpu"] for card in load_cards()), None)

def _here():
    "Name of the GPU of this process, or of the one which started it; `None` without a GPU."
    return os.environ.get("MATMUL_GPU") if config.ENABLE_CUDASIM else str(current_gpu().name)

def gpu_card():
    "The result card of the GPU that `gpu_name` names; an empty dict if there is none."
    return next((card for card in load_cards() if card["gpu"] == gpu_name()), {})

def need_gpu(what):
    "End the program with a line where kernels run in the simulator."
    if config.ENABLE_CUDASIM: sys.exit(f"{what} needs a GPU; kernels run in the simulator here.")

def code_of(
    card,  # a result card: where a search found a better tile, the kernel has that one
    name,  # of the host function
) -> str:
    "The fingerprint of a kernel's code as it is now, for the GPU of this card."
    best = card.get("tuned", {}).get(name, {"best": {}})["best"]
    return fingerprint(name, tuple(best.items()))

def marked(
    card,  # a result card
    row,   # of its speeds
) -> dict:
    "The row, with the name of the GPU as `stale` if the kernel has changed since it was timed there."
    return row if row.get("code") == code_of(card, row["name"]) else row | dict(stale=card["gpu"])

def _row(card, name, size):
    rows = (row for row in card["speed"] if row["m"] == row["n"] == row["k"] == size)
    return next((row for row in rows if row["name"] == name), None)

def card_row(
    card,    # a result card
    name,    # of the host function
    size,    # m = n = k
):
    "The recorded speed of one kernel at one size, see `marked`; `None` if there is none."
    row = _row(card, name, size)
    return row and marked(card, row)

STALE = " †"  # what stands behind a stale speed

def stale_note(
    rows,                    # see `marked`
    called="`{}`".format,    # function: name of a host function → what it is called
) -> str:
    "One line about the kernels that have changed since they were timed, and where; empty if none has."
    names, gpus = {}, {}  # GPU → kernels; kernels → GPUs
    for row in filter(None, rows):
        if "stale" in row: names.setdefault(row["stale"], {})[called(row["name"])] = None
    for gpu, those in names.items(): gpus.setdefault(tuple(those), []).append(f"the {gpu}")
    def told(those, where):
        what = "have changed since they were" if len(those) > 1 else "has changed since it was"
        return f"{' and '.join(those)} {what} timed on {' and '.join(where)}: make gpu STAGE=ladder"
    return "; ".join(map(told, gpus, gpus.values()))

def cycles_per_step(
    card,       # a result card
    name,       # of the host function
    size=4096,  # m = n = k
) -> float:
    """Cycles of a multiprocessor per finished step (32 multiply-adds) of a warp; the card must hold the
    kernel at that size."""
    row = card_row(card, name, size)
    if row is None:
        raise LookupError(f"the card of the {card['gpu']} has no speed of {name!r} at {size}")
    cycles = row["ms"] * 1e3 * card["clock_mhz"] * card["multiprocessors"]
    return cycles / (size**3 / 32)


def write_whole(
    path,  # a `Path`
    text,  # its new content
):
    "Write a text file whole or not at all: nobody reads half of it, and no failure leaves a part."
    part = path.with_name(f"{path.name}.{os.getpid()}.{get_ident()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally: part.unlink(missing_ok=True)

def write_card(
    card,       # dict: name of the GPU under "gpu", and what to keep: speed, check, experiments …
    path=None,  # file; the card of that GPU in `card_folder()` if None
) -> Path:
    "Write a result card, and return its path. `ValueError` for what would be no card of this GPU."
    if not isinstance(card, dict) or "gpu" not in card:
        raise ValueError(f"{card!r:.60} is no result card: expected a dict that names a GPU under \"gpu\"")
    if card["gpu"] != _here():
        raise ValueError(f"only one {card['gpu']} can change its card, and this is "
                         f"{_here() or 'a machine without a GPU'}")
    if not (path or CHECKOUT):
        raise ValueError("the course's checkout is not here, so there is no card to change: "
                         "give a file to write")
    # What the file has already is checked before anything is written: it must be this GPU's card.
    file_name = re.sub(r"[^a-z0-9]+", "-", card["gpu"].lower()) + ".json"
    path = Path(path) if path else card_folder()/file_name
    try: old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (OSError, ValueError) as e:
        raise ValueError(f"{path.name} stays as it is, for it is no result card: {e}") from None
    if not isinstance(old, dict):
        raise ValueError(f"{path.name} stays as it is, for it is no result card")
    if old.get("gpu", card["gpu"]) != card["gpu"]:
        raise ValueError(f"{path.name} is the card of one {old['gpu']}: choose another file")
    card = old | card
    if "speed" not in card:
        raise ValueError(f"there is no card of the {card['gpu']} yet: make gpu STAGE=ladder comes first")
    check_card(card)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(card, indent=1, allow_nan=False) + "\n")
    return path


def recorded(
    name,         # of the host function
    size=4096,    # m = n = k
    before=None,  # name of another one to compare it with
):
    """What the cards say about a kernel's speed, a sentence or two for each GPU, as Markdown. `ValueError` if
    no card knows the other one."""
    here, there = (load_cards(kernels=[one], size=size) for one in (name, before or name))
    if here and not there:
        raise ValueError(f"before is {before!r}, and no result card has its speed at {size}")
    sentences = []
    for card in here:
        row, other = card_row(card, name, size), before and card_row(card, before, size)
        text = (f"On one {card['gpu']} ({row.get('date', card['date'])}) `{name}` takes {row['ms']:.4g} ms "
                f"for {size}×{size}×{size}: **{row['gflops']:,.0f} GFLOP/s**, {row['percent']:.1f} % of "
                "cuBLAS")
        if dtype_of(name) == "bfloat16": text += " in bfloat16."
        else: text += f" and {100 * row['gflops'] / card['peak_gflops']:.1f} % of the peak."
        if other: text += f" It is {other['ms'] / row['ms']:.2f} times as fast as `{before}`."
        if note := stale_note([row, other]): text += f" **But {note}.**"
        sentences.append(text)
    nothing = f"`{name}` has not been recorded at {size} yet."
    return Markdown("  \n".join(sentences) or nothing)

def gain(
    experiment,  # name of one that timed a lesson's short kernels, in ms or in GFLOP/s, the new one last
    size=4096,   # m = n = k
    what="short kernel against short kernel",  # it compares
):
    "From how many GFLOP/s to how many a lesson's idea leads, on the first card that knows, as Markdown."
    card = card_of(experiment)
    if card is None: return Markdown(f"{experiment}: not recorded yet.")
    kept = card["experiments"][experiment]
    if kept["unit"] not in ("ms", "GFLOP/s"):
        raise ValueError(f"{experiment!r} is in {kept['unit']}; expected ms or GFLOP/s")
    speeds = list(kept["values"].values())
    if kept["unit"] == "ms": speeds = [2 * size**3 / ms / 1e6 for ms in speeds]
    if len(speeds) == 1: text, what = f"{speeds[0]:,.0f}", "the short kernel"
    else: text = f"{speeds[0]:,.0f} → {speeds[-1]:,.0f}"
    return Markdown(f"**{text} GFLOP/s**, {what}, at {size}×{size}×{size} on one {card['gpu']}")
