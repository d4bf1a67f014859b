"""Result cards: measurements on a named GPU, kept in a file that is validated and written atomically."""
import json
import os
import re
import sys
from contextlib import suppress
from functools import lru_cache
from numbers import Integral
from pathlib import Path
from threading import get_ident

import numba_matmul  # first: this chooses between the GPU and the simulator
from .arrays import current_gpu, dtype_of
from .draw import Markdown
from .fingerprint import fingerprint
from numba import config


_package = Path(numba_matmul.__file__).parent
CHECKOUT = _package.parent if (_package.parent/"nbs"/"results").is_dir() else None
RESULTS = CHECKOUT/"nbs"/"results" if CHECKOUT else _package/"results"  # a wheel contains a copy

def card_folder():
    "The folder of the result cards: `nbs/results` in a checkout, otherwise the package's copy."
    return RESULTS

@lru_cache(None)
def _card_schema():
    import fastjsonschema
    schema = RESULTS/"schema"/"card.schema.json"
    return fastjsonschema.compile(json.loads(schema.read_text(encoding="utf-8")))

def check_card(card):
    "Raises `ValueError` unless the card follows the schema."
    from fastjsonschema import JsonSchemaException
    try: _card_schema()(card)
    except JsonSchemaException as e: raise ValueError(f"{e}".replace("data", "card", 1)) from None

def _refuse_constant(name): raise ValueError(f"{name} isn't a JSON number")

@lru_cache(None)
def _read_card(path, changed):
    "A card, read once; a file that isn't one gets a one-line notice, once."
    try:
        card = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
        check_card(card)
        return card
    except (OSError, ValueError, RecursionError) as e:  # includes files that aren't JSON or UTF-8
        reason = str(e).splitlines()[0].replace(str(path), path.name)
        print(f"{path.name} is skipped, it isn't a result card: {reason:.200}", file=sys.stderr)


def load_cards(
    *fields,     # required besides the speeds: "ncu", "profiles" …
    kernels=(),  # names of kernels whose speed is required …
    size=4096,   # … at this m = n = k
) -> list:       # of dicts; don't modify them
    "The result cards that have all of this: the one with the most experiments first, then by file name."
    if isinstance(kernels, str):
        raise TypeError(f"kernels is {kernels!r}; expected a list of names: pass [{kernels!r}]")
    for text in (*fields, *kernels):
        if not isinstance(text, str): raise TypeError(f"{text!r} is not a name")
    if isinstance(size, bool) or not isinstance(size, Integral):
        raise TypeError(f"size is {size!r}; expected a whole number, m = n = k")
    def changed(path):  # a link may be broken
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
    "This GPU's card if it has all of this, else the first that does; `LookupError` if none does."
    cards = load_cards(*fields, **needs)
    if not cards:
        wanted = [*fields, *needs.get("kernels", ())]
        raise LookupError(f"no result card has {', '.join(wanted) or 'a speed'}: run make gpu STAGE=ladder")
    return _own_first(cards)

def _own_first(cards): return next((card for card in cards if card["gpu"] == _here()), cards[0])

def card_of(experiment):
    "This GPU's card if it has this experiment, else the first that does; `None` if none does."
    cards = [card for card in load_cards("experiments") if experiment in card["experiments"]]
    return _own_first(cards) if cards else None


def gpu_name():
    """Name of this GPU. In the simulator: that of the parent process's GPU, if it has one, else that of the
    first result card."""
    return _here() or next((card["gpu"] for card in load_cards()), None)

def _here():
    "Name of the GPU of this process or its parent; `None` without a GPU."
    return os.environ.get("MATMUL_GPU") if config.ENABLE_CUDASIM else str(current_gpu().name)

def gpu_card():
    "The result card of the GPU returned by `gpu_name`; an empty dict if there is none."
    return next((card for card in load_cards() if card["gpu"] == gpu_name()), {})

def need_gpu(what):
    "Exit with a one-line message if kernels run in the simulator."
    if config.ENABLE_CUDASIM: sys.exit(f"{what} needs a GPU; kernels run in the simulator here.")

def code_of(
    card,  # a result card: the kernel uses the best tile found by its searches
    name,  # name of the host function
) -> str:
    "The fingerprint of a kernel's current code, for this card's GPU."
    best = card.get("tuned", {}).get(name, {"best": {}})["best"]
    return fingerprint(name, tuple(best.items()))

def marked(
    card,  # a result card
    row,   # one of its speeds
) -> dict:
    "The row, with the GPU's name as `stale` if the kernel has changed since it was timed there."
    return row if row.get("code") == code_of(card, row["name"]) else row | dict(stale=card["gpu"])

def _row(card, name, size):
    rows = (row for row in card["speed"] if row["m"] == row["n"] == row["k"] == size)
    return next((row for row in rows if row["name"] == name), None)

def card_row(
    card,    # a result card
    name,    # name of the host function
    size,    # m = n = k
):
    "The recorded speed of a kernel at one size, see `marked`; `None` if there is none."
    row = _row(card, name, size)
    return row and marked(card, row)

STALE = " †"  # the mark after a stale speed

def in_words(texts):
    "Texts as a list in a sentence: a, b and c."
    return ", ".join(texts[:-1]) + " and " * (len(texts) > 1) + texts[-1]

def stale_note(
    rows,  # see `marked`
    called=lambda names: in_words([f"`{name}`" for name in names]),  # names of host functions → text
) -> str:
    "One line about the kernels that changed since they were timed, and where; empty if none did."
    gpus, names = {}, {}  # kernel → GPUs; GPUs → kernels
    for row in filter(None, rows):
        if "stale" in row: gpus.setdefault(row["name"], set()).add(f"the {row['stale']}")
    for name, where in gpus.items(): names.setdefault(tuple(sorted(where)), []).append(name)
    def told(where, those):
        what = "have changed since they were" if len(those) > 1 else "has changed since it was"
        return f"{called(those)} {what} timed on {in_words(where)}"
    found = "; ".join(map(told, names, names.values()))
    return found and f"{found}: make gpu STAGE=ladder"

def cycles_per_step(
    card,       # a result card
    name,       # name of the host function
    size=4096,  # m = n = k
) -> float:
    """Multiprocessor cycles per completed step (32 multiply-adds) of a warp; the card must have the kernel at
    that size."""
    row = card_row(card, name, size)
    if row is None:
        raise LookupError(f"the {card['gpu']}'s card doesn't have a speed for {name!r} at {size}")
    cycles = row["ms"] * 1e3 * card["clock_mhz"] * card["multiprocessors"]
    return cycles / (size**3 / 32)


def write_whole(
    path,  # a `Path`
    text,  # its new content
):
    "Write a text file atomically: nobody ever sees half of it, even after a failure."
    part = path.with_name(f"{path.name}.{os.getpid()}.{get_ident()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally: part.unlink(missing_ok=True)

def write_card(
    card,       # dict: the GPU's name under "gpu", and what to keep: speed, check, experiments …
    path=None,  # file; if None, that GPU's card in `card_folder()`
) -> Path:
    "Write a result card and return its path. `ValueError` if it wouldn't be a valid card of this GPU."
    if not isinstance(card, dict) or "gpu" not in card:
        raise ValueError(f"{card!r:.60} isn't a result card: expected a dict that names a GPU under \"gpu\"")
    if card["gpu"] != _here():
        raise ValueError(f"only an {card['gpu']} can change its card, and this is "
                         f"{_here() or 'a machine without a GPU'}")
    if not (path or CHECKOUT):
        raise ValueError("the course's checkout isn't here, so there is no card to change: "
                         "pass a file to write")
    # Check the existing file before writing: it must be this GPU's card.
    file_name = re.sub(r"[^a-z0-9]+", "-", card["gpu"].lower()) + ".json"
    path = Path(path) if path else card_folder()/file_name
    try: old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (OSError, ValueError) as e:
        raise ValueError(f"{path.name} was left unchanged: it isn't a result card: {e}") from None
    if not isinstance(old, dict):
        raise ValueError(f"{path.name} was left unchanged: it isn't a result card")
    if old.get("gpu", card["gpu"]) != card["gpu"]:
        raise ValueError(f"{path.name} is the card of an {old['gpu']}: choose another file")
    card = old | card
    if "speed" not in card:
        raise ValueError(f"there is no card for the {card['gpu']} yet: run make gpu STAGE=ladder first")
    check_card(card)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(card, indent=1, allow_nan=False) + "\n")
    return path


def recorded(
    name,         # name of the host function
    size=4096,    # m = n = k
    before=None,  # name of another one to compare with
):
    """What the cards say about a kernel's speed, one or two sentences per GPU, as Markdown. `ValueError` if
    no card knows the other kernel."""
    here, there = (load_cards(kernels=[one], size=size) for one in (name, before or name))
    if here and not there:
        raise ValueError(f"before is {before!r}, but no result card has its speed at {size}")
    sentences = []
    for card in here:
        row, other = card_row(card, name, size), before and card_row(card, before, size)
        text = (f"On one {card['gpu']} ({row.get('date', card['date'])}) `{name}` takes {row['ms']:.4g} ms "
                f"for {size}×{size}×{size}: **{row['gflops']:,.0f} GFLOP/s**, {row['percent']:.1f} % of "
                "cuBLAS")
        if dtype_of(name) == "bfloat16": text += " in bfloat16."
        else: text += f" and {100 * row['gflops'] / card['peak_gflops']:.1f} % of the peak."
        if other:
            times = f"{other['ms'] / row['ms']:.2f}"
            text += f" It is {'as fast' if times == '1.00' else f'{times} times as fast'} as `{before}`."
        if note := stale_note([row, other]): text += f" **But {note}.**"
        sentences.append(text)
    nothing = f"`{name}` hasn't been recorded at {size} yet."
    return Markdown("  \n".join(sentences) or nothing)

def gain(
    experiment,  # its name, such as "kernels 1 and 2 at 4096, short"; its values are in ms or GFLOP/s
    size=4096,   # m = n = k
    what=None,   # what is compared, as text; if None, the two kernels that the name begins with
    of=None,     # labels of the two values, if they aren't the first and the last
):
    "The gain of a lesson's idea in GFLOP/s, before → after, from the first card that has it, as Markdown."
    card = card_of(experiment)
    if card is None: return Markdown(f"{experiment}: not recorded yet.")
    kept = card["experiments"][experiment]
    if kept["unit"] not in ("ms", "GFLOP/s"):
        raise ValueError(f"{experiment!r} is in {kept['unit']}; expected ms or GFLOP/s")
    speeds = [kept["values"][label] for label in of or kept["values"]]
    if kept["unit"] == "ms": speeds = [2 * size**3 / ms / 1e6 for ms in speeds]
    if len(speeds) == 1: text, what = f"{speeds[0]:,.0f}", "the short kernel"
    else: text = f"{speeds[0]:,.0f} → {speeds[-1]:,.0f}"
    if not what:
        two = re.match(r"kernels (\d+) and (\d+) ", experiment)
        if not two: raise ValueError(f"{experiment!r} doesn't begin with two kernels: say what it compares")
        what = f"lesson {two[1]}'s short kernel → lesson {two[2]}'s"
    return Markdown(f"**{text} GFLOP/s**, {what}, at {size}×{size}×{size} on one {card['gpu']}")
