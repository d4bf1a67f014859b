"""How many registers did the compiler give a kernel, and does a block fit on a multiprocessor?

The simulator runs a kernel without compiling it, so it can't know its register count. A child with the
compiler builds what a launch would build, and the machine code itself contains the number.
"""
import struct
from types import SimpleNamespace

from numba import config


def full_capability(capability): return (*capability, "a" if capability >= (9, 0) else "")

def library_of(
    kernel,      # a Numba kernel
    types,       # of its arguments
    capability,  # major and minor number
):
    "In a child in real mode: compile a kernel to machine code, as a launch would."
    from numba.cuda import codegen, cuda_paths, dispatcher
    from numba.cuda.cudadrv import nvrtc
    # Numba asks NVRTC, the compiler for CUDA C++, only for the targets: it needn't be installed
    nvrtc.find_closest_arch = lambda capability: capability
    cuda_paths._get_nvrtc_path = lambda: None
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
    codegen.CUDACodeLibrary._ensure_cc = lambda self, cc: cc or full_capability(capability)
    # a launch generates PTX only to look for names in it, and LLVM's IR contains them too
    if not getattr(config, "CUDA_ENABLE_NRT", False):
        codegen.CUDACodeLibrary.get_asm_str = codegen.CUDACodeLibrary.get_llvm_str
    return dispatcher._Kernel(kernel.py_func, types, **kernel.targetoptions)._codelibrary

def refused_line(
    error,  # what the compiler raised
    fn,     # function of the kernel
) -> int:
    "The line of a kernel that the compiler was working on at an exception; `None` if that's unknown."
    line, traceback = None, error.__traceback__
    while traceback:
        seen, traceback = traceback.tb_frame.f_locals, traceback.tb_next
        places = [seen.get("loc"), *(getattr(seen.get(name), "loc", None) for name in ("constraint", "inst"))]
        for place in places:
            if getattr(place, "filename", None) == fn.__code__.co_filename: line = place.line
    return line

def registers_of(
    cubin,  # bytes, an ELF file with one kernel
) -> int:
    """Registers per thread. They are in the section `.nv.info`: EIATTR_REGCOUNT, 8 bytes, the function, the
    number."""
    start, = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, start + i * size) for i in range(count)]
    def name(section):
        first = sections[names][4] + section[0]
        return cubin[first:cubin.index(b"\0", first)]
    *_, first, length = next(section for section in sections if name(section) == b".nv.info")
    entry = cubin.index(b"\x04\x2f\x08\x00", first, first + length)
    _, registers = struct.unpack_from("<II", cubin, entry + 4)
    return registers


# Each quarter of a multiprocessor has 16,384 registers, allocated to warps in units of 256.

REGISTERS = 65536  # per multiprocessor

def warps_that_fit(registers):
    "How many warps fit in a multiprocessor's registers, with this many registers per thread; at least one."
    a_warp = -(-registers * 32 // 256) * 256
    return REGISTERS // 4 // a_warp * 4

def misfit(
    threads,    # per block
    registers,  # per thread
) -> str:
    "Why a GPU can't launch such a block, as text; `None` if it can."
    def fits(n): return not n or warps_that_fit(n) >= -(-threads // 32)
    if fits(registers): return None
    most = next(n for n in range(registers, -1, -1) if fits(n))
    return (f"{registers} registers × {threads} threads exceed a multiprocessor's {REGISTERS:,} registers: a "
            f"block of {threads} threads can have at most {most} per thread. Use fewer threads, give each "
            f"less work, or set cuda.jit(max_registers={most})")
