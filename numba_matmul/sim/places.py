"""How messages name threads and lines of a kernel.

They name the innermost line that belongs neither to Numba nor to the simulator.
"""
import dis
import linecache
from bisect import bisect_right
from functools import cache

# modules of the simulator, and those that listen to it
INSIDE = "numba_matmul.sim.", "numba_matmul.ptx.", "numba_matmul.exercises.recorded"

_lines = {}
_places = {}  # a function and the instructions that called it → its places


def line_text(code, number):
    "What messages call line `number` of the function with this `code`."
    key = id(code), number
    if key not in _lines:
        text = linecache.getline(code.co_filename, number).strip()
        # the code is kept alive so that its id isn't reused
        _lines[key] = code, f"line {number} of {code.co_name}" + (f": {text}" if text else "")
    return _lines[key][1]

def places_of(frame):
    "The known places of a running function, instruction → place, when it's called from the same lines."
    key, at = [id(frame.f_code)], frame
    while at := at.f_back: key += id(at.f_code), at.f_lasti
    return _places.setdefault(tuple(key), {})

def place_of(frame):
    """Where a kernel's function is executing: its code and line; as text, with the lines that called it; the
    column in each of these lines."""
    frames, at = [frame], frame
    while at := at.f_back:
        if not (at.f_globals.get("__name__") or "").startswith(INSIDE): frames.append(at)
    calls = [(at.f_code, at.f_lineno) for at in frames]
    columns = tuple(map(column, frames))
    return calls[0], ", called at ".join(line_text(*call) for call in calls), columns  # keeps all their codes

def last_user_line(traceback):
    """The line of the kernel, or of a device function it calls, where `traceback` ends. If that line belongs
    to this package, also the reader's line that called it."""
    last = own = None
    while traceback:
        module = traceback.tb_frame.f_globals.get("__name__") or ""
        if not module.startswith(INSIDE) and module.split(".")[0] not in ("numba", "numpy", "functools"):
            last = line_text(traceback.tb_frame.f_code, traceback.tb_lineno)
            if not module.startswith("numba_matmul."): own = last
        traceback = traceback.tb_next
    return last if own in (None, last) else f"{last}, called at {own}"

@cache
def _columns(code): return [column or 0 for _, _, column, _ in code.co_positions()]

def column(frame):
    "The column of what a frame is executing."
    return _columns(frame.f_code)[frame.f_lasti // 2]

@cache
def _starts(code): return [instruction.offset for instruction in dis.get_instructions(code)]

def instruction(frame):
    "The instruction a frame is executing. (`f_lasti` may also point past its start.)"
    starts = _starts(frame.f_code)
    return starts[bisect_right(starts, frame.f_lasti) - 1]

def position(dim3, dims):
    "A thread's or block's index as text, without trailing dimensions of size 1: `(3)`, `(3, 0)`."
    used = max([i + 1 for i, n in enumerate(dims) if n > 1], default=1)
    return "(" + ", ".join(map(str, tuple(dim3)[:used])) + ")"
