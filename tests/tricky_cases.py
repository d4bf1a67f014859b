"""What a tricky kernel comes with, and the decorators that put it into a table."""
from typing import NamedTuple

import numpy as np

FULL, RACE = 0xFFFFFFFF, "^race: "
RIGHT, WRONG = {}, {}


class Case(NamedTuple):
    kernel: object
    grid: int
    block: int
    args: object          # function without arguments → the arrays and numbers, new ones
    expected: object      # function of them, as they were → what the last one must hold
    dynamic: int = 0      # bytes of shared memory
    sorted: bool = False  # are the results in any order?
    kind: str = ""
    says: str = ""        # of a wrong one: what the simulator says, a regular expression
    alarms: str = ""      # of a right one: the tool of compute-sanitizer that does not know what it does

    def launch(self): return self.kernel[self.grid, self.block, 0, self.dynamic]

    def is_right(self, before, after):
        "Is that what the last array should hold?"
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
    """Keep what a factory makes with each of these arguments: it is wrong. What it makes without any is
    right, if it has a name for that."""
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
