"""The data of a tricky kernel, and the decorators that add it to a table."""
from typing import NamedTuple

import numpy as np

FULL, RACE = 0xFFFFFFFF, "^race: "
RIGHT, WRONG = {}, {}


class Case(NamedTuple):
    kernel: object
    grid: int
    block: int
    args: object          # function without arguments → fresh arrays and numbers
    expected: object      # function of the originals → expected contents of the last one
    dynamic: int = 0      # bytes of shared memory
    sorted: bool = False  # may the results be in any order?
    kind: str = ""
    says: str = ""        # for a wrong one: the simulator's message, a regular expression
    alarms: str = ""      # for a right one: the compute-sanitizer tool that reports a false alarm

    def launch(self): return self.kernel[self.grid, self.block, 0, self.dynamic]

    def is_right(self, before, after):
        "Are these the expected contents of the last array?"
        arrange = np.sort if self.sorted else np.asarray
        return np.array_equal(arrange(self.expected(*before)), arrange(after))


def _keep(cases, grid, block, args, expected=None, **fields):
    def keep(kernel):
        name = kernel.py_func.__name__
        assert name not in RIGHT and name not in WRONG, name
        cases[name] = Case(kernel, grid, block, args, expected, **fields)
        return kernel
    return keep


def right(*case, **fields): return _keep(RIGHT, *case, **fields)
def wrong(kind, says, *case, **fields): return _keep(WRONG, *case, kind=kind, says=says, **fields)


def numbers(n): return np.random.default_rng(n).integers(1, 100, n).astype(np.float32)
def whole(n): return np.random.default_rng(n).integers(0, 100, n).astype(np.int32)
def zeros(*shape, dtype=np.float32): return np.zeros(shape, dtype)
def one_in_one_out(n): return lambda: (numbers(n), zeros(n))
def counted(*shape): return lambda: (zeros(*shape, dtype=np.int32),)


def broken(kind, says, *case, as_it_is=None, alarms="", **variants):
    """Register a factory's result for each of these arguments: it is wrong. Its result without arguments is
    right, if a name is given."""
    def keep(factory):
        def named(name, **options):
            kernel = factory(**options)
            kernel.py_func.__name__ = name
            return kernel
        if as_it_is: right(*case, alarms=alarms)(named(as_it_is))
        for name, options in variants.items():
            wrong(kind, says, *case)(named(f"{factory.__name__}_{name}", **options))
        return factory
    return keep
