"""Where does a kernel compute in float64, although it was given no float64 array?

A constant such as 0.5 is enough. If the result becomes a float32 at once, the compiler computes in
float32 after all, so the answer comes from its PTX, with the line of each instruction. A function such
as `sin` uses float64 inside. In LLVM's code that's still a call, so a line counts only if it computes
in float64 there, too.
"""
import re

from ..process import callees
from .places import line_text
from .resources import full_capability
from numba import types

LLVM = re.compile(r"(?:fadd|fsub|fmul|fdiv|frem|fneg|fcmp \w+|call) .*\bdouble\b.*!dbg !(\d+)")
LINE = re.compile(r"^!(\d+) = (?:distinct )?!DILocation\(.*?line: (\d+)", re.M)
PTX = re.compile(r"\.file\s+(?P<file>\d+) \"(?P<path>.*)\"|\.loc\s+(?P<of>\d+) (?P<line>\d+)|"
                 r"(?P<computes>(?:add|sub|mul|div|fma|sqrt|rcp|max|min|setp)\.\S*\bf64)\s")

def _holds_float64(kind):
    "Is there a float64 in this array, or may there be?"
    if isinstance(kind, types.BaseTuple): return any(map(_holds_float64, kind))
    return isinstance(kind, types.Array) and kind.dtype not in (
        types.float16, types.float32, types.boolean, *types.integer_domain)

def float64_remark(
    library,  # of `library_of`, made with line numbers
    fn,       # function of the kernel
    kinds,    # Numba types of its arguments
) -> str:
    "A remark on the first line that computes in float64; `None` if there is none, or if an array is float64."
    if any(map(_holds_float64, kinds)): return None
    code = library.get_llvm_str()
    wanted = set(LLVM.findall(code))
    wanted = {int(line) for number, line in LINE.findall(code) if number in wanted}
    if not wanted: return None
    files, at = {}, None
    for ptx in library.get_asm_strs(cc=full_capability((9, 0))):
        files |= {found["file"]: found["path"] for found in PTX.finditer(ptx) if found["file"]}
        for found in PTX.finditer(ptx):
            if found["of"]: at = files.get(found["of"]), int(found["line"])
            if not found["computes"] or not at or at[1] not in wanted: continue
            path, line = at
            inside = [f.__code__ for f in callees(fn) if f.__code__.co_filename == path
                      and f.__code__.co_firstlineno <= line]
            if not inside: continue
            where = line_text(max(inside, key=lambda code: code.co_firstlineno), line)
            return (f"{fn.__name__} computes in float64, although it gets no float64 array, first at "
                    f"{where}; a Python float is a float64, i / 2 too, and so is an integer times a float32: "
                    "convert with float32(…)")
