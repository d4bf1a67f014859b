"""Fast matrix multiplication in Numba CUDA, step by step.

Importing this package decides where kernels run: on an NVIDIA GPU if there is a usable one. Otherwise it
turns on Numba's simulator, made strict (`numba_matmul.sim`), and says so in one line on stderr: immediately
in a notebook, at the first launch in a program. `NUMBA_ENABLE_CUDASIM`, if you set it yourself, always wins.
In a notebook, cells that can't run here are skipped with a one-line notice."""
__version__ = "0.2.0"

import os
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version as _version


def _why_no_gpu():
    """Why no kernel can run on a GPU here, as a phrase; `None` if one can. Asks the driver, without importing
    a CUDA package."""
    import ctypes
    try: driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError: return "no NVIDIA driver was found"
    number, minor = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0): return "the NVIDIA driver doesn't find a GPU"
    if driver.cuDeviceGetCount(ctypes.byref(number)) or not number.value:
        return "the NVIDIA driver doesn't find a GPU"
    driver.cuDriverGetVersion(ctypes.byref(number))
    known = number.value // 1000
    try: needed = int(_version("cuda-bindings").split(".")[0])
    except PackageNotFoundError:
        return "the package cuda-bindings is missing (install the extra cu12 or cu13)"
    if known < needed:
        return (f"the NVIDIA driver supports CUDA {known}.{number.value % 1000 // 10} but the installed "
                f"packages are for CUDA {needed} (update the driver, or install the extra cu12)")
    # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
    device, major_attribute, minor_attribute = 0, 75, 76
    driver.cuDeviceGetAttribute(ctypes.byref(number), major_attribute, device)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), minor_attribute, device)
    capability, oldest = (number.value, minor.value), (7, 5) if needed >= 13 else (5, 0)
    if capability < oldest:
        has, needs = (".".join(map(str, numbers)) for numbers in (capability, oldest))
        return f"the GPU has compute capability {has}; CUDA {needed} needs {needs}"


def _can_print(encoding):
    "Can an encoding represent the characters in our messages?"
    try: return "✓×·–".encode(encoding)
    except (LookupError, UnicodeEncodeError): return False


def _choose():
    "Turn the simulator on if there is no GPU; make it strict wherever it is on."
    with suppress(AttributeError):  # a terminal without ✓ or × shows a question mark
        if sys.stdout.errors == "strict" and not _can_print(sys.stdout.encoding):
            sys.stdout.reconfigure(errors="replace")
    os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")  # lessons launch small grids on purpose
    # Have torch.profiler shut its tracer down after each profile. Otherwise it may crash at the end
    # of a process in which the driver was initialized before torch was imported (seen in 15 of 32 runs with
    # torch 2.11).
    os.environ.setdefault("TEARDOWN_CUPTI", "1")
    announcement = None
    chosen = os.environ.get("NUMBA_ENABLE_CUDASIM", "").strip()
    if chosen not in ("", "0", "1"):
        raise ImportError(f"NUMBA_ENABLE_CUDASIM is {chosen!r}: set it to 1 for the simulator, to 0 for a "
                          "GPU, or not at all")
    if not chosen:
        os.environ.pop("NUMBA_ENABLE_CUDASIM", None)  # Numba would warn about an empty one
        reason = _why_no_gpu()
        if reason and "numba" in sys.modules and not sys.modules["numba"].config.ENABLE_CUDASIM:
            raise ImportError(f"{reason}, so kernels need Numba's simulator, which must be on before numba "
                              "is imported. Restart Python (the notebook's kernel) and import numba_matmul, "
                              "or util, before numba.")
        if reason:
            os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
            announcement = f"Kernels run in Numba's simulator: {reason}."
    elif chosen == "0" and (reason := _why_no_gpu()):
        print(f"Kernels can be compiled here but not run: {reason}, and NUMBA_ENABLE_CUDASIM=0 turns the "
              "simulator off. Leave it unset to run them in the simulator.", file=sys.stderr)
    from numba import config
    from .sim import cells, kernel
    if config.ENABLE_CUDASIM: kernel.install(announcement)
    cells.skip_cells()


_choose()
