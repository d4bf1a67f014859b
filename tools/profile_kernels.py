"""Run profiling scripts under Nsight Compute: `make profile KERNEL=01`. Reports go to profiles/, with the
Python source in them.

The output ends with the numbers the lesson asks you to look at: each script lists them in its first lines.

With `--card` first, which is part of `make gpu STAGE=ncu`, the counters go to the result card; without
numbers it covers all kernels."""
import re
import sys
from pathlib import Path

import numba_matmul  # noqa: F401  first: this chooses between the GPU and the simulator
from numba_matmul.ncu import (COUNTERS, LOOK_AT, MEMORY, STALLS, NcuError, ncu, run_ncu,
                              which_launches)
from numba_matmul.cards import gpu_card, gpu_name, write_card
from numba_matmul.registry import KERNELS

root = Path(__file__).parent.parent


def look_at(script):
    "The names that a script's first lines ask you to look at."
    return re.search(r"Look at: (.+?)\.\"?$", script.read_text(encoding="utf-8"), re.M)[1].split(", ")


def profile(script):
    "Profile the second launch of `script` with all sections, and print the details."
    run_ncu("--version")  # if this fails, nothing is left behind
    report = root/"profiles"/script.stem
    report.parent.mkdir(exist_ok=True)
    print(f"{script.name} → profiles/{report.name}.ncu-rep", flush=True)
    kernel = KERNELS[int(script.stem[:2])]
    counters = COUNTERS | STALLS | MEMORY
    wanted = dict.fromkeys([*counters.values(), *LOOK_AT.values()])
    run_ncu("--set", "full", "--import-source", "yes", "--metrics", ",".join(wanted),
            *which_launches(kernel.kernel_name), "-f", "-o", str(report), sys.executable, script)
    print(run_ncu("-i", f"{report}.ncu-rep", "--page", "details"))
    (found,) = ncu(f"{report}.ncu-rep", counters=counters | LOOK_AT).values()
    print(f"{script.name}, look at: " + ", ".join(f"{name} {found[name]:,}" for name in look_at(script)))
    return {kernel.name: {name: found[name] for name in counters}}


if __name__ == "__main__":
    to_card, wanted = sys.argv[1:2] == ["--card"], [x for x in sys.argv[1:] if x != "--card"]
    there = {script.stem[:2]: script for script in sorted((root/"profiling_scripts").glob("*.py"))}
    if to_card and not wanted: wanted = list(there)
    unknown = [x for x in wanted if x.zfill(2) not in there]
    if unknown or not wanted:
        sys.exit(f"make profile KERNEL=…: there is no script for "
                 f"{' '.join(map(repr, unknown)) or 'nothing'}; "
                 f"there are {', '.join(there)}")
    try:
        profiles = {}
        for number in wanted: profiles |= profile(there[number.zfill(2)])
        if to_card:
            write_card(dict(gpu=gpu_name(), profiles=gpu_card().get("profiles", {}) | profiles))
    except NcuError as e: sys.exit(str(e))
