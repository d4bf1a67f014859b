"""Under IPython, cells that can't run here are replaced by a one-line notice."""
import os
import sys
from pathlib import Path

from ..process import has_compiler
from numba import config


def shell():
    "IPython's shell, or `None`. Doesn't import IPython."
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()

def _read_only(lines):
    "The notice for a `%%writefile` cell whose file can't be written; an empty list for any other cell."
    magic, *words = "".join(lines[:1]).split() or [""]
    path = Path(words[-1] if words else ".")
    place = path if path.exists() else path.parent
    if magic != "%%writefile" or not place.exists() or os.access(place, os.W_OK): return []
    what = "file" if place == path else "folder"
    return [f"{Path(*path.parts[-2:])} was not written: the {what} is read-only."]

def skip_cells():
    """From now on, skip cells that can't run here: those marked `cuda` without a GPU, those marked `compiler`
    without numba-cuda, and those that write a read-only file."""
    missing = {"#|cuda": "a GPU"} if config.ENABLE_CUDASIM else {}
    if not has_compiler(): missing["#|compiler"] = "numba-cuda, which is not installed"
    if shell() is None: return
    def skip(lines):
        marks = {line.replace(" ", "").strip() for line in lines} & missing.keys()
        said = [f"Skipped: this cell needs {missing[mark]}." for mark in marks] or _read_only(lines)
        return [f"print({text!r})\n" for text in said] or lines
    shell().input_transformers_cleanup.append(skip)
