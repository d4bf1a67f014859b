"""Kernels that look wrong but are right, and kernels that look right but are wrong.

The strict simulator must tell them apart, and compute-sanitizer is tried too (`make gpu STAGE=check`):
`tricky.py TIMES NAME…` runs them on a GPU, and prints in how many runs the result was wrong."""
import sys

import numba_matmul  # noqa: F401  first: it chooses between the GPU and the simulator
from numba import cuda

import tricky_pairs  # noqa: F401  it fills the tables
import tricky_right  # noqa: F401  so does this
import tricky_wrong  # noqa: F401  and this
from tricky_cases import RIGHT, WRONG


def run(name):
    "Run it once on a GPU: is the result wrong?"
    case = (RIGHT | WRONG)[name]
    args = case.args()
    on_gpu = [cuda.to_device(arg) for arg in args]
    case.launch()(*on_gpu)
    cuda.synchronize()
    return bool(case.expected) and not case.is_right(args, on_gpu[-1].copy_to_host())


if __name__ == "__main__": print(sum(run(name) for name in sys.argv[2:] for _ in range(int(sys.argv[1]))))
