import os
import pathlib

import numba_matmul  # first: it chooses between the GPU and the simulator

ROOT = pathlib.Path(__file__).parent.parent


def environment():
    "The environment of a process that a user starts: it finds this project, and nothing has chosen the simulator yet."
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"} | {"PYTHONPATH": path}
