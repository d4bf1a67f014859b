"""A reader's work: each kernel that `grade` accepted, and the last one it saw, in a folder that git ignores.

An update of the course replaces its notebooks; what was written in them comes back with `mine("05")`."""
import json
import linecache
from datetime import date
from pathlib import Path

import numba_matmul
from .cards import write_whole
from .draw import Message
from .sim.cells import shell
from .source import function_of, source_of

FOLDER = Path(numba_matmul.__file__).parent.parent/"my_work"
PROGRESS = "progress.json"  # exercise → the day it was passed


def _in_jupyter(): return hasattr(shell(), "kernel")

def keep(
    key,      # of the exercise
    subject,  # what was graded
    passed,   # by `grade`?
):
    "In Jupyter: keep the cell that a kernel comes from. Where nothing can be written, nothing is kept."
    if not _in_jupyter(): return
    # a file of a cell's own name has the whole cell: constants and device functions, too
    text = "".join(linecache.getlines(function_of(subject).__code__.co_filename)) or source_of(subject)
    try:
        FOLDER.mkdir(exist_ok=True)
        for name in ("last", "passed")[:1 + passed]:
            write_whole(FOLDER/f"{key}_{name}.py", text.rstrip() + "\n")
        record = done() | {key: str(date.today())}
        if passed: write_whole(FOLDER/PROGRESS, json.dumps(record, indent=1) + "\n")
    except OSError: return

def done() -> dict:
    "The exercises that were passed, and when."
    try: return json.loads((FOLDER/PROGRESS).read_text(encoding="utf-8"))
    except (OSError, ValueError): return {}

def mine(
    key,  # of the exercise
) -> Message:
    "The accepted kernel of an exercise, or the last one graded: in Jupyter in a new cell below."
    for name, what in (("passed", "accepted"), ("last", "last graded")):
        path = FOLDER/f"{key}_{name}.py"
        if not path.exists(): continue
        text = path.read_text(encoding="utf-8")
        if not _in_jupyter(): return Message(text)
        shell().set_next_input(text.rstrip())
        return Message(f"Your {what} kernel of exercise {key} is in the cell below.")
    return Message(f"You haven't graded a kernel in exercise {key} yet. Once you have, "
                   f"mine(\"{key}\") returns it.")

def so_far(
    keys,  # of all exercises
) -> Message:
    "How many exercises were passed, and which one is next."
    passed = [key for key in keys if key in done()]
    left = [key for key in keys if key not in passed]
    follows = f"Next: exercise {left[0]}." if left else "All of them!"
    return Message(f"You have passed {len(passed)} of {len(passed) + len(left)} exercises. {follows} "
                   "(mine(\"NN\") returns what you wrote.)")
