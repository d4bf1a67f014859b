"""Finds the kernels: every module in `numba_matmul/kernels` declares one.

Only this module knows kernels by number. Everything else uses a kernel's name, or takes its function.
"""
import importlib
import pkgutil
import sys

from . import kernels


def find_kernels(
    package=kernels,  # its modules each have a `KERNEL`
) -> list:            # of `Kernel`s, by number
    """Import every module of a package. `ImportError` names the one that fails, lacks a `KERNEL`, or reuses
    another one's number or name."""
    found, owner = [], {}  # owner: number or name → module
    for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        try: kernel = importlib.import_module(info.name).KERNEL
        except Exception as e:
            raise ImportError(f"{info.name} isn't a kernel module: {type(e).__name__}: {e}") from e
        for key in {kernel.name, kernel.number} - {0}:
            if key in owner: raise ImportError(f"{owner[key]} and {info.name} are both kernel {key}")
            owner[key] = info.name
        found.append(kernel)
    return sorted(found, key=lambda kernel: kernel.number)

ALL = {kernel.name: kernel for kernel in find_kernels()}  # by name
KERNELS = {kernel.number: kernel for kernel in ALL.values() if kernel.number}  # by number
OTHERS = tuple(kernel for kernel in ALL.values() if not kernel.number)  # kernels from other tools

def kernels_named(
    words,   # as on a command line: 5, 05 …
    what,    # the command, for its message
    more="", # what else is accepted
) -> list:   # of `Kernel`s; all of them if there are no words
    "Exit with a message that names any word that isn't a kernel's number."
    known = {text: kernel for number, kernel in KERNELS.items() for text in (str(number), f"{number:02}")}
    if unknown := [repr(word) for word in words if word not in known]:
        sys.exit(f"{what}: there is no kernel {' or '.join(unknown)}; "
                 f"there are {min(KERNELS)} to {max(KERNELS)}{more}")
    return list(dict.fromkeys(known[word] for word in words)) or list(KERNELS.values())

def number_of(
    name,  # name of a host function
) -> int:  # 0: from another tool, or unknown
    "Its lesson's number."
    return ALL[name].number if name in ALL else 0
