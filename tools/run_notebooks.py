"Run every notebook of the course on this machine, one at a time, and keep its outputs: `make gpu STAGE=notebooks`."
import os
import subprocess
import sys
import time
from pathlib import Path

import numba_matmul  # first: it chooses between the GPU and the simulator
from execnb.nbio import read_nb, write_nb
from execnb.shell import CaptureShell
from nbdev.clean import clean_nb
from numba import cuda

from numba_matmul.util import write_card


def run(path):
    "Execute one notebook in place; the exit status is 1 if a cell fails."
    nb, shell = read_nb(path), CaptureShell(path)
    try: shell.run_all(nb, exc_stop=True)
    except Exception: sys.exit(shell.prettytb(fname=path))
    clean_nb(nb)
    write_nb(nb, path)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        run(Path(sys.argv[1]))
    else:
        write_card(dict(gpu=str(cuda.get_current_device().name), experiments={}))  # none stays that no notebook makes
        env = os.environ | {"MATMUL_RECORD": "1"}  # experiments go to the result card
        nbs = Path(__file__).parent.parent/"nbs"
        for path in sorted(nbs.glob("*.ipynb")):  # a process for each: a notebook sees no other's state
            start = time.time()
            if subprocess.run([sys.executable, Path(__file__).resolve(), path.name], cwd=nbs, env=env).returncode: sys.exit(f"{path.name} failed")
            print(f"{path.name}: {time.time() - start:.0f} s", flush=True)
