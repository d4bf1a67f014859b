"Run profiling scripts under Nsight Compute: `make profile KERNEL=01`, or `all`. Reports go to profiles/."
import shutil
import subprocess
import sys
from pathlib import Path

root = Path(__file__).parent.parent
NCU = "--set full --import-source yes --clock-control none -k regex:_kernel --launch-skip 1 --launch-count 1 -f".split()


def profile(script):
    "Profile the second launch of `script` and print the details."
    report = root/"profiles"/script.stem
    report.parent.mkdir(exist_ok=True)
    print(f"{script.name} → profiles/{report.name}.ncu-rep", flush=True)
    done = subprocess.run(["ncu", *NCU, "-o", report, sys.executable, script], cwd=root, capture_output=True, text=True)
    if done.returncode or "No kernels were profiled" in done.stdout:
        hint = ("\nThe counters need permission: run as root, or have the administrator set the driver option NVreg_RestrictProfilingToAdminUsers=0."
                if "ERR_NVGPUCTRPERM" in done.stdout else "")
        sys.exit(done.stdout + done.stderr + hint)
    subprocess.run(["ncu", "-i", f"{report}.ncu-rep", "--page", "details"], check=True)


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    scripts = sorted((root/"profiling_scripts").glob("*.py" if wanted == "all" else f"{wanted}_*.py"))
    if not wanted or not scripts:
        names = ", ".join(s.stem[:2] for s in sorted((root/"profiling_scripts").glob("*.py")))
        sys.exit(f"make profile KERNEL=…: there is no script for {wanted or 'nothing'}; there are {names}")
    if not shutil.which("ncu"): sys.exit("ncu was not found: install NVIDIA Nsight Compute, or add its folder to PATH")
    for script in scripts: profile(script)
