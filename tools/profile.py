"Run profiling scripts under Nsight Compute: `make profile KERNEL=01`, or `all`. Reports go to profiles/."
import sys
from pathlib import Path

from numba_matmul.ncu import NcuError, one_launch, run_ncu

root = Path(__file__).parent.parent


def profile(script):
    "Profile the second launch of `script` with all sections, and print the details."
    report = root/"profiles"/script.stem
    report.parent.mkdir(exist_ok=True)
    print(f"{script.name} → profiles/{report.name}.ncu-rep", flush=True)
    run_ncu("--set", "full", "--import-source", "yes", *one_launch(), "-f", "-o", str(report), sys.executable, script)
    print(run_ncu("-i", f"{report}.ncu-rep", "--page", "details"))


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    scripts = sorted((root/"profiling_scripts").glob("*.py" if wanted == "all" else f"{wanted}_*.py"))
    if not wanted or not scripts:
        names = ", ".join(s.stem[:2] for s in sorted((root/"profiling_scripts").glob("*.py")))
        sys.exit(f"make profile KERNEL=…: there is no script for {wanted or 'nothing'}; there are {names}")
    try:
        for script in scripts: profile(script)
    except NcuError as e: sys.exit(str(e))
