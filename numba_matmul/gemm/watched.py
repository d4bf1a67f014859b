"""A lesson's cell, a search or a test may change a constant that a plan depends on, such as `MIN_K_TILES`.
Then cached plans are stale and must be dropped.

Which constants does a plan depend on? The capitalized names read by its function or by functions it calls:
their bytecode lists them. A change in a module is noticed immediately, because the module gets a special
class, `_Watched`. A notebook's globals can't be watched that way, so their values are compared in every
call.
"""
import sys
from collections.abc import Callable
from copy import copy
from importlib import import_module
from types import CodeType, FunctionType, ModuleType

_LISTENERS = []  # functions () to call when a constant changes


def when_a_constant_changes(forget: Callable) -> Callable:
    "Decorator for a function that empties a cache: it is called when a constant changes."
    _LISTENERS.append(forget)
    return forget


def _changed():
    for forget in _LISTENERS: forget()


def _names(code):
    "The names read by a function's code, including nested functions."
    return {*code.co_names}.union(*(_names(x) for x in code.co_consts if isinstance(x, CodeType)))


def _functions_of(make_plan):
    "The function that makes a plan, and the functions of `gemm` and of kernels that it calls."
    packages = __package__, f"{__package__.rpartition('.')[0]}.kernels"
    found = [make_plan]
    for fn in found:
        cells = [cell.cell_contents for cell in fn.__closure__ or ()]
        for value in [*map(fn.__globals__.get, _names(fn.__code__)), *cells]:
            value = getattr(value, "__wrapped__", value)
            ours = isinstance(value, FunctionType) and value.__module__.startswith(packages)
            if ours and value not in found: found.append(value)
    return found


class _Watched(ModuleType):
    "A module with constants that plans depend on."
    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name.isupper(): _changed()

    def __reduce__(self): return import_module, (self.__name__,)  # cloudpickle only knows plain modules


def constants_of(make_plan: Callable) -> list:
    """Constants in a notebook that a plan depends on, as (globals, name). Modules are watched from now on
    instead: comparing constants takes longer than the rest of a call."""
    found = {}
    for fn in _functions_of(make_plan):
        module, scope = sys.modules.get(fn.__module__), fn.__globals__
        if fn.__module__ != "__main__" and vars(module) is scope: module.__class__ = _Watched
        else:
            names = [name for name in sorted(_names(fn.__code__)) if name.isupper() and name in scope]
            found |= {(id(scope), name): (scope, name) for name in names}
    return [*found.values()]


_CONSTANTS = {}  # function that makes a plan → its constants
_SEEN = {}       # function that makes a plan → their values


def see_constants(make_plan: Callable):
    "In every call: drop all plans if a constant in a notebook has changed."
    constants = _CONSTANTS.get(make_plan)  # (a cached function would make torch.compile warn)
    if constants is None: constants = _CONSTANTS[make_plan] = constants_of(make_plan)
    if constants:
        values = [scope[name] for scope, name in constants]
        values = [copy(x) if isinstance(x, (dict, list)) else x for x in values]  # may be modified in place
        if _SEEN.setdefault(make_plan, values) != values:
            _changed()
            _SEEN[make_plan] = values
