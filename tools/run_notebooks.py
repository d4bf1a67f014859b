"""Run the notebooks of the course on this machine, one at a time, and keep their outputs: `make gpu STAGE=notebooks`.

`NOTEBOOKS="01* 02*"` runs only some of them."""
import os
import subprocess
import sys
import time
from pathlib import Path

import numba_matmul  # first: it chooses between the GPU and the simulator
from execnb.nbio import read_nb, write_nb
from execnb.shell import CaptureShell
from nbdev.clean import clean_nb

from numba_matmul.util import gpu_name, write_card


def run(path):
    "Execute one notebook in place; the exit status is 1 if a cell fails."
    nb, shell = read_nb(path), CaptureShell(path)
    for cell in nb.cells:
        if cell.cell_type == "code": cell.outputs = []  # a cell that prints nothing keeps nothing
    try: shell.run_all(nb, exc_stop=True)
    except Exception: sys.exit(shell.prettytb(fname=path))
    clean_nb(nb)
    write_nb(nb, path)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        run(Path(sys.argv[2]))
    else:
        wanted = sys.argv[1:] or ["*"]
        if wanted == ["*"]:  # none stays that no notebook makes
            write_card(dict(gpu=gpu_name(), experiments={}))
        env = os.environ | {"MATMUL_RECORD": "1"}  # experiments go to the result card
        nbs = Path(__file__).parent.parent/"nbs"
        paths = {path for name in wanted for path in nbs.glob(f"{name}.ipynb")}
        if not paths: sys.exit(f"no notebook is called {' or '.join(wanted)}")
        for path in sorted(paths):  # a process for each: a notebook sees no other's state
            start = time.time()
            command = [sys.executable, Path(__file__).resolve(), "--one", path.name]
            if subprocess.run(command, cwd=nbs, env=env).returncode: sys.exit(f"{path.name} failed")
            print(f"{path.name}: {time.time() - start:.0f} s", flush=True)
