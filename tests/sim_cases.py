"Shared by several tests of the strict simulator."
import re

import numpy as np
import pytest
from numba import cuda

from numba_matmul.sim.launch import simulate
from numba_matmul.sim.scheduler import SimulatorError

X = np.arange(64, dtype=np.float32)


@cuda.jit
def last(x): x[x.size - 1] = 3


def refused(launch, *args, match):
    with pytest.raises(SimulatorError, match=match): simulate(launch, *args)


def refused_cases(launch, *args, cases):
    "The simulator refuses each case (the kernel's last argument) with a message that matches its pattern."
    for case, match in cases.items(): refused(launch, *args, case, match=match)


def refuses(block, *args, match):
    "Decorator that turns a kernel into a test: the simulator refuses it in one block of this many threads."
    def test_of(kernel):
        def test(): refused(kernel[1, block], *args, match=match)
        return test
    return test_of


def error_of(call, *args):
    "The exception a call raises, as text; `None` if it returns."
    try: call(*args)
    except Exception as e: return f"{type(e).__name__}: {e}"


def check_errors(*errors):
    "Each call raises an error that matches the pattern before it. Also in a child."
    for match, call in errors:
        said = error_of(call)
        assert said and re.search(match, said), (match, said)
