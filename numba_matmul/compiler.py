"""What did the compiler make of a kernel? Registers, spills, and the machine code of its main loop, on a
machine without a GPU."""
import ast
import hashlib
import json
import os
import pickle
import re
import subprocess
from collections import Counter
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import cache, lru_cache, partial
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import MAGIC_NUMBER
from math import prod
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, NoneType

import cloudpickle
import numba_matmul  # first: it chooses between the GPU and the simulator
from .draw import Markdown
from .cards import write_whole
from .process import ChildError, Pickler, _rebuild, global_names, in_child, kernel_parts, recursion
from .sass import (Instruction, collides, instructions_of, loops_of, main_loop_of, register_reads,  # noqa: F401
                   until_use)
from .sim.launch import launch_of
from .sim.places import line_text
from .sim.resources import full_capability, library_of, misfit, refused_line, warps_that_fit
from .syntax import parsed
from numba import cuda, types as numba_types


class CompileError(RuntimeError):
    "A kernel that the compiler refuses, or a missing compiler."

PACKAGE = Path(numba_matmul.__file__).parent

TARGETS = {f"sm_{major}{minor}": (major, minor) for major, minor in
           ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))}

def gpu_target():
    "The key of `TARGETS` for this GPU, or the last one before it."
    capability = cuda.get_current_device().compute_capability
    return max((name for name in TARGETS if TARGETS[name] <= capability), key=TARGETS.get)

def _tool(name):
    "The path of nvdisasm or cuobjdump: from the Python package, else from PATH."
    import shutil
    try:
        for file in distribution(f"nvidia-cuda-{name}").files or ():
            if file.name in (name, f"{name}.exe"): return str(file.locate())
    except PackageNotFoundError: pass
    if path := shutil.which(name): return path
    raise CompileError(f"{name} was not found: pip install nvidia-cuda-{name}")

def _explain(error, fn):
    "What Numba says about a kernel's function it can't compile, with a line, but without colors and paths."
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line for line in text.splitlines() if line.strip() and "<source elided>" not in line]
    lines = [re.sub(r'^File ".*", line', "line", line) for line in lines
             if not line.startswith(("Failed in", "During:"))]
    places = [i for i, line in enumerate(lines) if line.startswith("line ")]
    if not places and (number := refused_line(error, fn)):
        # a list of what didn't match, about Numba's own files, unless one of them says why
        ends = [i for i, line in enumerate(lines) if re.match(r"There are \d+ candidate", line)]
        if not ends or "Rejected" in text: ends = [len(lines)]
        return "\n".join([*lines[:ends[0]], line_text(fn.__code__, number)])
    return "\n".join(lines[:places[1]] if len(places) > 1 else lines)  # it repeats itself

@lru_cache(4)
def _loaded(task):
    "In a child: a pickled kernel, the same one for each target, so that its functions are ready."
    return pickle.loads(task)


def _compile(task, sources, signature, capability, ptx=False):
    "In a child in real mode: the machine code of a kernel as a launch would make it, or its PTX."
    from numba.cuda.core.sigutils import normalize_signature
    from numba.cuda.cudadrv.driver import _have_nvjitlink
    if not _have_nvjitlink():
        raise CompileError("nvJitLink was not found: install the extra cu13 or cu12")
    Pickler.remember(sources)
    kernel, full = _loaded(task), full_capability(capability)
    try: types, _ = normalize_signature(signature)
    except Exception:
        raise CompileError(f"{signature!r} is not a signature that Numba knows") from None
    wanted = kernel.py_func.__code__.co_argcount
    if len(types) != wanted:
        raise CompileError(f"{kernel.py_func.__name__} takes {wanted} arguments, and the signature "
                           f"{signature!r} has {len(types)}")
    fn = kernel.py_func
    try: library = library_of(kernel, types, capability)
    except Exception as e: raise CompileError(f"{fn.__name__}: {_explain(e, fn)}") from None
    return "\n".join(library.get_asm_strs(cc=full)) if ptx else library.get_cubin(cc=full).code


@dataclass
class MachineCode:
    "What the compiler made of a kernel."
    name: str
    target: str
    registers: int     # per thread
    shared_bytes: int  # per block, static
    stack_bytes: int   # per thread; with spills and local arrays this is not 0
    instructions: list
    loops: list        # of `Loop`s, outer ones first
    main: object       # the `Loop` that multiplies most, or `None`
    make_ptx: object   # function that returns the PTX
    most_threads: int = 1024  # of a block, for which the registers suffice

    @property
    def ptx(self):
        "The kernel in PTX, the language from which the machine code is made."
        return self.make_ptx()

    @property
    def main_loop(self):
        "The instructions of the innermost loop that multiplies most."
        return self.instructions[self.main.start:self.main.end] if self.main else []
    @property
    def mix(self):
        "How many instructions of each kind are in the main loop."
        return dict(Counter(x.kind for x in self.main_loop).most_common())
    @property
    def spills(self):
        "Loads from and stores to local memory: spilled registers, or an array that isn't in registers."
        return sum(x.opcode.split(".")[0] in ("LDL", "STL") for x in self.instructions)
    @property
    def ffma_share(self):
        "Part of the main loop that is FFMA, 0 to 1."
        return self.mix.get("FFMA", 0) / max(1, len(self.main_loop))
    @property
    def port_conflicts(self):
        "How many FFMAs of the main loop read two registers of one bank, by a model of two banks."
        return sum(map(collides, register_reads(self.main_loop)))
    @property
    def loop(self):
        "The main loop as text, with the Python line of each instruction."
        return "\n".join(f"{x.line or '':>4}  {x.guard:<5}{x.opcode:<24}{x.operands}"
                         for x in self.main_loop)
    @property
    def sass(self):
        "All of the machine code as text."
        return "\n".join(f"{x.address:05x}  {x.guard:<5}{x.opcode:<24}{x.operands}"
                         for x in self.instructions)

    def __repr__(self):
        return (f"{self.name} for {self.target}: {self.registers} registers, {self.spills} spills, "
                f"{len(self.main_loop)} instructions in the main loop, {self.ffma_share:.0%} FFMA"
                + f", blocks of at most {self.most_threads} threads" * (self.most_threads < 1024))
    def _repr_markdown_(self): return compare(self)


def compare(
    *codes,      # `MachineCode`s
    names=None,  # a title for each; kernel and target if None
) -> Markdown:
    "A table with one column per kernel."
    names = names or [f"`{code.name}` {code.target}" for code in codes]
    kinds = sorted(dict.fromkeys(kind for code in codes for kind in code.mix),
                   key=lambda kind: -max(code.mix.get(kind, 0) for code in codes))
    rows = [("registers per thread", *(code.registers for code in codes)),
            ("shared memory, bytes per block", *(code.shared_bytes for code in codes)),
            ("stack, bytes per thread", *(code.stack_bytes for code in codes)),
            ("loads and stores of local memory (spills)", *(code.spills for code in codes)),
            ("**main loop**, instructions", *(len(code.main_loop) for code in codes)),
            *((f"· {kind}", *(code.mix.get(kind, 0) for code in codes)) for kind in kinds)]
    if "FFMA" in kinds: rows.append(("FFMA share", *(f"{code.ffma_share:.0%}" for code in codes)))
    table = [("", *names), ("---", *("--:",) * len(codes)), *rows]
    return Markdown("\n".join("| " + " | ".join(map(str, row)) + " |" for row in table))


def _content(value):
    """What a kernel is made of, as a tuple: the same for equal kernels. (Pickles of equal kernels differ in
    which of their strings are the same object, so they can't be the key of a cache.)"""
    if parts := kernel_parts(value):
        fn, options, _ = parts
        code = fn.__code__
        cells = [_content(cell.cell_contents) for cell in fn.__closure__ or ()]
        named = [(name, _content(fn.__globals__[name])) for name in global_names(code)
                 if name in fn.__globals__]
        file = code.co_filename.removeprefix(str(PACKAGE.parent))
        return file, _content(code), _content(fn.__defaults__), cells, named, sorted(options.items())
    if isinstance(value, CodeType):
        inside = [_content(constant) for constant in value.co_consts]
        return value.co_code, inside, value.co_names, value.co_varnames, [*value.co_lines()]
    if isinstance(value, (tuple, list)): return type(value).__name__, [_content(item) for item in value]
    if isinstance(value, ModuleType): return value.__name__
    if isinstance(value, FunctionType): return value.__module__, value.__qualname__, _content(value.__code__)
    if isinstance(value, type): return value.__module__, value.__qualname__, getattr(value, "_fields", ())
    if isinstance(value, (int, float, str, bytes, NoneType, numba_types.Type)): return repr(value)
    return cloudpickle.dumps(value)

@cache
def _bindings():
    """The source of all instructions: a kernel knows them by name. Comments don't count, nor what an
    instruction does in the simulator."""
    paths, found = sorted((PACKAGE/"ptx").rglob("*.py")), []
    for node in (node for path in paths for node in parsed(path.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.FunctionDef) and any("bind(" in ast.unparse(x) for x in node.decorator_list):
            node.body = []
        found.append(ast.dump(node))
    return found

def cache_folder():
    "Where answers about kernels are kept from one process to the next."
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home()/".cache")/"numba_matmul"

def cache_file(
    kernel,  # a kernel or device function
    *key,    # what else the answer depends on
) -> Path:
    "Where an answer about a kernel is kept: another file if the kernel, Python or the compiler changes."
    packages = ("numba", "numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvdisasm",
                "nvidia-cuda-cuobjdump")
    def installed(package):
        try: return version(package)
        except PackageNotFoundError: return ""
    settings = tuple(sorted(x for x in os.environ.items()
                            if x[0].startswith("NUMBA_CUDA_") or x[0] == "NUMBA_OPT"))
    of_cuda_12 = filter(None, map(installed, ("nvidia-cuda-nvcc-cu12", "nvidia-nvjitlink-cu12")))
    versions = MAGIC_NUMBER, [*map(installed, packages), *of_cuda_12]
    text = repr((_content(kernel), key, settings, _bindings(), versions)).encode()
    return cache_folder()/f"{hashlib.sha256(text).hexdigest()[:32]}.json"

def kept(
    path,  # of `cache_file`
    make,  # function that returns the answer, if it isn't there: a dict for JSON
) -> dict:
    "An answer about a kernel: the stored one, or else a new one, which is stored."
    try: return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError): found = make()  # not there, or not whole
    with suppress(OSError):  # where nothing can be kept, it is made each time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(found))  # another process may be reading
    return found

def _compiled(kernel, signature, target, ptx=False):
    "What `_compile` returns, from a child."
    task = (*Pickler.dumps(kernel), signature, TARGETS[target], ptx)
    try: return in_child(_compile, *task, simulator=False, keep=True)
    except ChildError as e:
        raise CompileError(str(e).removeprefix("CompileError: ")) from None

def _disassembled(cubin):
    "What `MachineCode` is made from, as a dict for JSON."
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)/"kernel.cubin"
        path.write_bytes(cubin)
        def run(*command):
            done = subprocess.run([*command, path], capture_output=True, text=True, check=True)
            return done.stdout
        sass = run(_tool("nvdisasm"), "-g", "-c", "-ndf", "-hex")
        usage = dict(re.findall(r"(REG|STACK|SHARED):(\d+)", run(_tool("cuobjdump"), "-res-usage")))
    return dict(usage={name: int(value) for name, value in usage.items()},
                instructions=[astuple(x) for x in instructions_of(sass)])


def _build(kernel, signature, target): return _disassembled(_compiled(kernel, signature, target))

def _read(found, name, target, make_ptx):
    "`MachineCode` from what `_disassembled` returns."
    usage = found["usage"]
    shared = usage["SHARED"]
    if shared and TARGETS[target] >= (9, 0): shared -= 1024  # the system's own, see below
    instructions = [Instruction(*row) for row in found["instructions"]]
    loops = loops_of(instructions)
    return MachineCode(name, target, usage["REG"], shared, usage["STACK"], instructions, loops,
                       main_loop_of(instructions, loops), make_ptx)

def code_of_cubin(
    cubin,           # bytes, with one kernel, whichever compiler made it
    name="kernel",
    target="sm_90",  # the key of `TARGETS` for which it was made
    ptx="",          # the PTX from which it was made, if there is any
) -> MachineCode:
    "Disassemble a kernel that a different tool has compiled."
    return _read(_disassembled(cubin), name, target, lambda: ptx)

def _own_signature(kernel, options):
    "The signature that a kernel was decorated with."
    # on a GPU: what it was compiled for
    given = options.get("signature") or list(getattr(kernel, "overloads", ()))
    several, name = given if isinstance(given, list) else [given], kernel.py_func.__name__
    if len(several) == 1: return several[0]
    if several:
        raise ValueError(f"{name} has {len(several)} signatures: pass one of them to machine_code")
    raise ValueError(f'{name} is a kernel, so it needs a signature, such as "void(float32[:, ::1], uint64)"')


def machine_code(
    kernel,          # a kernel, alone or with its launch configuration; or a host function that launches one
    signature=None,  # types of a kernel's arguments: "void(float32[:, ::1], uint64)"; its own, if it has one
    target="sm_90",  # a key of `TARGETS`
    shape=(256, 256, 256),  # m, n, k for which a host function chooses its kernel
) -> MachineCode:
    """Compile a kernel as a launch would, without a GPU.
    Raises `CompileError` if that fails, or if a block whose size is known needs more registers than
    there are; `TypeError` or `ValueError` for what it can't take."""
    if target not in TARGETS:
        raise ValueError(f"unknown target {target!r}; expected one of {', '.join(TARGETS)}")
    # What is compiled, for which types, and in blocks of how many threads, where that is known.
    threads = None
    if parts := kernel_parts(kernel):
        fn, options, configuration = parts
        if configuration: kernel, threads = _rebuild(fn, options, None), prod(configuration[1])
        if signature is None: signature = _own_signature(kernel, options)
    elif signature is None:
        launch = launch_of(kernel, shape)
        kernel, signature, threads = launch.kernel, launch.signature, prod(launch.block)
    else:
        raise TypeError(f"a signature is for a kernel, and {getattr(kernel, '__name__', kernel)!r} "
                        "isn't one: leave the signature out, or decorate the function with @cuda.jit")
    if found := recursion(kernel.py_func): raise CompileError(found)
    # A compiler's answer is kept: the lessons and tests ask for the same kernels again and again.
    found = kept(cache_file(kernel, signature, target, "instructions"),
                 partial(_build, kernel, signature, target))
    # A launch fails where the threads of a block need more registers than there are.
    make_ptx = partial(_compiled, kernel, signature, target, ptx=True)
    code = _read(found, kernel.py_func.__name__, target, make_ptx)
    if threads and (why := misfit(threads, code.registers)):
        raise CompileError(f"{code.name} can't be launched: {why}")
    if not threads:
        code.most_threads = next(n for n in range(1024, 0, -32) if not misfit(n, code.registers))
    return code


@dataclass
class Multiprocessor:
    "What a multiprocessor has for its blocks."
    warps: int
    blocks: int
    shared_bytes: int

KB = 1024
MULTIPROCESSORS = {"sm_75": Multiprocessor(32, 16, 64 * KB),
                   "sm_80": Multiprocessor(64, 32, 164 * KB),
                   "sm_86": Multiprocessor(48, 16, 100 * KB),
                   "sm_89": Multiprocessor(48, 24, 100 * KB),
                   "sm_90": Multiprocessor(64, 32, 228 * KB),
                   "sm_100": Multiprocessor(64, 32, 228 * KB),
                   "sm_120": Multiprocessor(48, 24, 100 * KB)}

@dataclass
class Occupancy:
    "How many blocks a multiprocessor holds, and what limits them."
    blocks: int
    warps: int
    percent: float  # of the warps that a multiprocessor can hold
    limiter: str    # "threads", "registers", "shared memory" or "blocks"

    def __repr__(self):
        return (f"{self.blocks} block{'s' * (self.blocks != 1)}, {self.warps} warp{'s' * (self.warps != 1)} "
                f"= {self.percent:.0f} %, limited by {self.limiter}")

def occupancy(
    threads,         # per block
    registers,       # per thread
    shared_bytes=0,  # per block, static and dynamic
    target="sm_90",  # a key of `TARGETS`
) -> Occupancy:
    """How many blocks of a kernel a multiprocessor holds at once, 0 if none fits. `ValueError` for
    numbers that no block has, or an unknown target."""
    if target not in MULTIPROCESSORS:
        raise ValueError(f"unknown target {target!r}; expected one of {', '.join(MULTIPROCESSORS)}")
    if not 1 <= threads <= 1024: raise ValueError(f"a block has 1 to 1024 threads, not {threads}")
    if not 0 <= registers <= 255:
        raise ValueError(f"a thread has 255 registers at most, not {registers}")
    if shared_bytes < 0:
        raise ValueError(f"a block has 0 bytes of shared memory or more, not {shared_bytes}")
    sm, warps = MULTIPROCESSORS[target], -(-threads // 32)
    unit, system = (256, 0) if target == "sm_75" else (128, 1024)
    shared = -(-(shared_bytes + system) // unit) * unit
    room = {"threads": sm.warps // warps,
            "registers": (warps_that_fit(registers) if registers else sm.warps) // warps,
            "shared memory": sm.shared_bytes // shared if shared else sm.blocks,
            "blocks": sm.blocks}
    limiter = min(room, key=room.get)
    held = room[limiter] * warps
    return Occupancy(room[limiter], held, 100 * held / sm.warps, limiter)
