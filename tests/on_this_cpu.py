"""Runs the compiler's code for a kernel on this machine's processor: no GPU is needed."""
import ctypes
import itertools
import linecache
import math
import re
import warnings
from types import SimpleNamespace

import numpy as np

NUMBERS = itertools.count(1)
UNLIKE = "jn", "yn"  # libdevice's jn(-1, x) is NaN, the C library's isn't


def function(name, source, scope):
    "The function with this name in a source, with its source available as for a kernel in a file."
    file = f"{name} {next(NUMBERS)}.py"
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    with warnings.catch_warnings(action="ignore"): exec(compile(source, file, "exec"), scope)
    return scope[name]


def scalar(kind): return np.dtype(kind).type
def same(a, b):
    return a == b or a != a and b != b or isinstance(a, float) and math.isclose(a, b, rel_tol=1e-6)


def compile_for_gpu(fn, types, **options):
    "In a child with the compiler: its result, as for a GPU with compute capability 9.0."
    from numba.cuda import dispatcher
    from numba.cuda.compiler import compile_cuda
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=(9, 0))
    return compile_cuda(fn, None, types, cc=(9, 0), **options)


def engine_of(compiled):
    "Runs the compiler's code on this processor. `None` if it needs a GPU."
    import llvmlite.binding as llvm
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = re.sub(r'target triple = ".*"', f'target triple = "{llvm.get_default_triple()}"',
                  re.sub(r'target datalayout = ".*"\n', "", compiled.library.get_llvm_str()))
    if " asm " in text: return None
    try: first, *more = (llvm.parse_assembly(part)
                         for part in re.split(r"(?=; ModuleID)", text) if part.strip())
    except RuntimeError: return None  # LLVM's own output, which LLVM can't read back
    for module in more: first.link_in(module)
    # libdevice's functions map to the C library's of the same name
    library = ctypes.CDLL("libm.so.6")
    for f in first.functions:
        if not f.is_declaration or f.name.startswith("llvm.") and "nvvm" not in f.name: continue
        name = f.name.removeprefix("__nv_")
        if name == f.name or not hasattr(library, name) or name.startswith(UNLIKE): return None
        llvm.add_symbol(f.name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
    engine = llvm.create_mcjit_compiler(first, llvm.Target.from_default_triple().create_target_machine())
    engine.finalize_object()
    return engine
