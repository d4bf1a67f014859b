"""Every module in `numba_matmul/kernels` says what its kernel is; here they are found.

A number means something only here. All else knows a kernel by its name, or takes its function.
"""
import importlib
import pkgutil
import sys

from . import kernels


def find_kernels(
    package=kernels,  # whose modules each have a `KERNEL`
) -> list:            # of `Kernel`s, by number
    """Import every module of a package. `ImportError` names the one that fails, that has no
    `KERNEL`, or that has the number or the name of another one."""
    found, owner = [], {}  # owner: number or name → module
    for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        try: kernel = importlib.import_module(info.name).KERNEL
        except Exception as e:
            raise ImportError(f"{info.name} is no kernel's module: {type(e).__name__}: {e}") from e
        for key in {kernel.name, kernel.number} - {0}:
            if key in owner: raise ImportError(f"{owner[key]} and {info.name} are both kernel {key}")
            owner[key] = info.name
        found.append(kernel)
    return sorted(found, key=lambda kernel: kernel.number)

ALL = {kernel.name: kernel for kernel in find_kernels()}  # by name
KERNELS = {kernel.number: kernel for kernel in ALL.values() if kernel.number}  # by number
OTHERS = tuple(kernel for kernel in ALL.values() if not kernel.number)  # of other tools

def kernels_named(
    words,   # as on a command line: 5, 05 …
    what,    # the command, for its message
    more="", # what else there is
) -> list:   # of `Kernel`s; all of them if there is no word
    "End the program with a line that names the word which is no kernel's number."
    known = {text: kernel for number, kernel in KERNELS.items() for text in (str(number), f"{number:02}")}
    if unknown := [repr(word) for word in words if word not in known]:
        sys.exit(f"{what}: there is no kernel {' or '.join(unknown)}; "
                 f"there are {min(KERNELS)} to {max(KERNELS)}{more}")
    return list(dict.fromkeys(known[word] for word in words)) or list(KERNELS.values())

def number_of(
    name,  # of a host function
) -> int:  # 0: of another tool, or none that there is
    "The number of its lesson."
    return ALL[name].number if name in ALL else 0
