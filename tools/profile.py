"""Run profiling scripts under Nsight Compute: `make profile KERNEL=01`. Reports go to profiles/.

With `all`, which is a part of `make gpu STAGE=ncu`, the counters of every script go to the result card."""
import sys
from pathlib import Path

import numba_matmul  # first: it chooses between the GPU and the simulator
from numba import cuda

from numba_matmul.ncu import COUNTERS, MEMORY, STALLS, NcuError, ncu, which_launches, run_ncu
from numba_matmul.util import write_card

root = Path(__file__).parent.parent


def profile(script):
    "Profile the second launch of `script` with all sections, and print the details."
    report = root/"profiles"/script.stem
    report.parent.mkdir(exist_ok=True)
    print(f"{script.name} → profiles/{report.name}.ncu-rep", flush=True)
    counters = COUNTERS | STALLS | MEMORY
    run_ncu("--set", "full", "--import-source", "yes", "--metrics", ",".join(counters.values()), *which_launches(),
            "-f", "-o", str(report), sys.executable, script)
    print(run_ncu("-i", f"{report}.ncu-rep", "--page", "details"))
    ((kernel, found),) = ncu(f"{report}.ncu-rep", counters=counters).items()
    return {kernel.removesuffix("_kernel"): found}


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    scripts = sorted((root/"profiling_scripts").glob("*.py" if wanted == "all" else f"{wanted}_*.py"))
    if not wanted or not scripts:
        names = ", ".join(s.stem[:2] for s in sorted((root/"profiling_scripts").glob("*.py")))
        sys.exit(f"make profile KERNEL=…: there is no script for {wanted or 'nothing'}; there are {names}")
    try:
        profiles = {}
        for script in scripts: profiles |= profile(script)
        if wanted == "all": write_card(dict(gpu=str(cuda.get_current_device().name), profiles=profiles))
    except NcuError as e: sys.exit(str(e))
