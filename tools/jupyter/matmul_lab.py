"""What the kernel that `make lab` starts loads first, as an extension of IPython. It imports nothing of the
course, since the first import of that is up to the notebook."""
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HINT = ("If a cell above defines this name, it hasn't run since the kernel started: "
        "Run ▸ Run All Above Selected Cell, then run this cell again.")


def load_ipython_extension(shell):
    "Explain a missing name, and install PyTorch before the first cell that needs it."
    told = []

    def missing_name(shell, kind, error, trace, tb_offset=None):
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
        if not told: print(HINT)
        told.append(error)

    def before(info):
        # not an import inside a function: what measures on a GPU isn't called without one
        needs = re.search(r"^(import|from) torch\b", info.raw_cell or "", re.M)
        if needs and not find_spec("torch"):
            subprocess.run([sys.executable, str(ROOT/"tools"/"set_up.py"), "--torch"], check=False)

    shell.set_custom_exc((NameError,), missing_name)
    shell.events.register("pre_run_cell", before)
