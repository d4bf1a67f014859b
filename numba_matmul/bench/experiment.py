"""A lesson's small measurements: made on a GPU, shown as recorded without one.

Lessons measure more than whole kernels. `experiment` makes one such measurement if there is a GPU, and shows
the recorded one if not. It returns a table, which can also draw a picture.

`experiment(name, unit, measure)` calls `measure()`, which returns the values by label. `make gpu
STAGE=notebooks` records them, once a notebook has run to its end.

The code
"""
import json
import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

from ..draw import COLORS, number_text
from ..cards import card_of, gpu_card, gpu_name
from numba import config


@dataclass
class Experiment:
    "A small measurement: named values, and where they come from."
    name: str
    unit: str
    values: dict  # label → number
    source: str   # which machine, and whether measured now or earlier
    gpu: str = None  # its name

    def _repr_markdown_(self):
        if not self.values: return f"{self.name}: not recorded yet."
        rows = "\n".join(f"| {label} | {number_text(value)} |" for label, value in self.values.items())
        return f"| {self.name} | {self.unit} |\n|---|--:|\n{rows}\n\n{self.source}"

    def plot(self):
        "The values as bars. Returns the figure."
        import matplotlib.pyplot as plt
        fig, ax = plt.subplots(figsize=(7, 2.6), layout="constrained")
        turned, labels = len(self.values) > 6, list(self.values)
        if not turned:
            labels = [textwrap.fill(label, 84 // len(labels), break_on_hyphens=False)
                      for label in labels]
        bars = ax.bar(labels, list(self.values.values()), color=COLORS[8])
        # three digits above many bars, so that the numbers don't touch
        shown = [float(f"{value:.3g}") if len(labels) > 12 else value for value in self.values.values()]
        ax.bar_label(bars, [*map(number_text, shown)], fontsize=8)
        ax.tick_params(axis="x", rotation=60 * turned, labelsize=8)
        ax.set(title=self.name, ylabel=self.unit)
        ax.margins(y=0.12)
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_xlabel(self.source, fontsize=8)
        plt.close(fig)
        return fig


def _listed(of): return ", ".join(f"{name}={value}" for name, value in (of or {}).items()) or "these numbers"

def from_card(
    card: dict,       # a result card that has the experiment
    name: str,        # its name
    of: dict = None,  # the values a reader asks for, as in `experiment`
) -> Experiment:
    "An experiment from a card; `LookupError` if it isn't there."
    kept = card.get("experiments", {}).get(name)
    if kept is None: raise LookupError(f"the card doesn't have the experiment {name!r}")
    origin = f"Recorded on one {card['gpu']}, {kept['date']}."
    if (of or {}) != kept.get("of", {}):
        origin = f"{origin[:-1]}, **for {_listed(kept.get('of'))}, not for your {_listed(of)}**."
    return Experiment(name, kept["unit"], kept["values"], origin, card["gpu"])


def experiment(
    name: str,          # what is measured, unique in the course
    unit: str,          # of the values
    measure: Callable,  # function without arguments that returns a dict: label → number
    of: dict = None,    # the parameters it is measured for, such as tile sizes that a reader may change
) -> Experiment:
    "Call `measure` on a GPU; without one, return the result card's values."
    if not callable(measure):
        raise TypeError(f"measure is {measure!r:.60}; expected a function without arguments")
    if not isinstance(of, (dict, type(None))):
        raise TypeError(f"of is {of!r:.60}; expected a dict of numbers")
    if config.ENABLE_CUDASIM:
        card = card_of(name)
        return from_card(card, name, of) if card else Experiment(name, unit, {}, "Not recorded yet.")
    gpu, today = gpu_name(), date.today().isoformat()
    kept = gpu_card().get("experiments", {}).get(name)
    if kept and os.environ.get("MATMUL_MISSING") and kept.get("of", {}) == (of or {}):
        return from_card(gpu_card(), name, of)
    values = {label: float(value) for label, value in measure().items()}
    if notes := os.environ.get("MATMUL_RECORD"):  # a file, one line per experiment
        with open(notes, "a", encoding="utf-8") as file:
            entry = dict(unit=unit, values=values, date=today) | (dict(of=of) if of else {})
            file.write(json.dumps({name: entry}) + "\n")
    return Experiment(name, unit, values, f"Measured on one {gpu}, {today}.", gpu)
