"""Run profiling scripts under Nsight Compute: `make profile KERNEL=01`. Reports go to profiles/.

With `--card` first, which is a part of `make gpu STAGE=ncu`, the counters go to the result card; no number means all."""
import sys
from pathlib import Path

import numba_matmul  # first: it chooses between the GPU and the simulator
from numba_matmul.ncu import COUNTERS, MEMORY, STALLS, NcuError, ncu, which_launches, run_ncu
from numba_matmul.util import gpu_card, gpu_name, write_card

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
    to_card, wanted = sys.argv[1:2] == ["--card"], [x for x in sys.argv[1:] if x != "--card"]
    there = {script.stem[:2]: script for script in sorted((root/"profiling_scripts").glob("*.py"))}
    if to_card and not wanted: wanted = list(there)
    if not wanted or not there.keys() >= set(wanted):
        sys.exit(f"make profile KERNEL=…: there is no script for {' '.join(wanted) or 'nothing'}; there are {', '.join(there)}")
    try:
        profiles = {}
        for number in wanted: profiles |= profile(there[number])
        if to_card:
            write_card(dict(gpu=gpu_name(), profiles=gpu_card().get("profiles", {}) | profiles))
    except NcuError as e: sys.exit(str(e))
