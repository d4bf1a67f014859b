"""What `make` calls before anything else: creates .venv and installs the tested set of packages, once.

Without an NVIDIA driver, that's what the lessons need: PyTorch, which is larger than all the rest, comes with
`--torch`, and with it what the tests need with `--all`. Each first prints how much pip will download.
`--check NAME…` installs nothing: it checks whether the interpreter that runs it has what the course needs,
plus those packages."""
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT/".venv"
README = "README.md, \"Ways to run it\""
# in a lesson without a GPU, nothing imports these
NOT_WITHOUT_GPU = "torch", "nvidia-cuda-cccl", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime"
# GB to download and on disk, measured with constraints.txt on Linux, x86_64
SIZES = {"": (0.3, 0.9), "--torch": (0.3, 1.0), "--all": (0.4, 1.3), "GPU": (3.0, 5.7)}
CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # PyTorch's build without CUDA
# compiling all packages would take a minute; bytecode is created on the first import instead
QUIETLY = "--disable-pip-version-check", "--no-input", "--no-compile"


def pip_install(python, *args):
    "Run pip, showing its output; if it fails, exit with a message that says what to do."
    command = [str(python), "-m", "pip", "install", *QUIETLY, *args]
    if subprocess.run(command, cwd=ROOT).returncode:
        sys.exit("pip couldn't install the packages; see its reason above. Fix it (a full disk, the network, "
                 "another package index: pip config list), and run make again: it continues from "
                 "here.")


def driver():
    "The newest CUDA version that the NVIDIA driver supports; `None` without a driver."
    try: said = subprocess.run(["nvidia-smi"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    except OSError: return None
    found = re.search(rb"CUDA Version: (\d+)", said)
    return int(found[1]) if found else None


def cuda_major():
    """12 if the driver doesn't support CUDA 13, else 13 (also without a GPU: the compiler tool uses it);
    exits if it doesn't support 12."""
    supported = driver() or 13
    if supported < 12:
        sys.exit(f"the NVIDIA driver only supports CUDA {supported}, and CUDA 12 is the oldest that this "
                 "course runs on: update the driver")
    return min(13, supported)


def requirements(*keys):
    "The requirements under these keys in settings.ini."
    ini = ConfigParser(delimiters=["="])
    ini.read(str(ROOT/"settings.ini"), encoding="utf-8")
    lines = [line.strip() for key in keys for line in ini["DEFAULT"][key].splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def name_of(requirement):
    return re.match(r"[\w.-]+", requirement)[0]


def installed(package):
    return any(VENV.glob(f"lib/*/site-packages/{package}"))


def announce(part, cuda):
    "Print what will be downloaded."
    if installed("torch" if part else "numba"):
        return print("Updating .venv to match settings.ini and constraints.txt", flush=True)
    what = {"": "what the lessons need", "--torch": "PyTorch", "--all": "PyTorch and what the tests need",
            "GPU": "with PyTorch's CUDA build"}
    parts = [part] if not part or installed("numba") else ["", part]
    of = ["GPU"] if driver() else parts
    download, disk = (sum(sizes) for sizes in zip(*map(SIZES.get, of)))
    print(f"Setting up .venv with Python {platform.python_version()}, once: "
          f"{', '.join(what[one] for one in dict.fromkeys([*parts, *of]))}, {download:.1f} GB to download, "
          f"{disk:.1f} GB on disk. {shutil.disk_usage(str(ROOT)).free / 1e9:.0f} GB are free.", flush=True)
    if cuda == 12:
        print(f"The driver supports CUDA 12 but not 13, so you need PyTorch's build for CUDA 12: {README}",
              flush=True)


def packages(part, cuda):
    "pip's arguments for a part of the set-up: one list for each call."
    if not part and not driver():
        wanted = requirements("requirements", f"cu{cuda}_requirements")
        return [[need for need in wanted if name_of(need) not in NOT_WITHOUT_GPU] + ["jupyterlab"],
                ["--no-deps", "-e", "."]]
    return [["-e", f".[dev,cu{cuda}]" if part == "--all" else f".[cu{cuda}]", "jupyterlab"]]


def torch_without_cuda(python, constraints):
    "Install PyTorch's CPU build where pip would choose the CUDA build; where that can't be had, pip chooses."
    settings = subprocess.run([str(python), "-m", "pip", "config", "list"], stdout=subprocess.PIPE, text=True)
    if sys.platform == "darwin" or driver() or installed("torch") or "/whl/" in settings.stdout: return
    # by itself: every other package would be looked for in that index, too
    command = [str(python), "-m", "pip", "install", "-q", *QUIETLY, "--no-deps", "--retries", "0",
               "--index-url", CPU_INDEX, "-c", constraints, "torch"]
    if subprocess.run(command, cwd=ROOT, stderr=subprocess.DEVNULL).returncode:
        print(f"{CPU_INDEX} can't be reached, so pip takes PyTorch from where it takes the rest.", flush=True)


def set_up(part=""):
    if sys.platform == "darwin" and platform.machine() == "x86_64":
        sys.exit("Numba and PyTorch no longer publish packages for Macs with an Intel processor. "
                 "Open the notebooks on Colab, or use a Linux machine.")
    try: import ensurepip, venv  # noqa: E401, F401
    except ImportError:
        sys.exit(f"{sys.executable} can't create environments: install its venv module (Debian and Ubuntu: "
                 f"apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv), and run make again")
    start, python = time.time(), VENV/"bin"/"python"
    if not part and installed("torch"): part = "--torch"  # it's kept up to date, too
    if VENV.is_dir() and (VENV/"ready").exists(): (VENV/"ready").unlink()
    def works():
        return python.exists() and not subprocess.run([str(python), "-m", "pip", "--version"],
                                                      stdout=subprocess.DEVNULL,
                                                      stderr=subprocess.DEVNULL).returncode
    cuda = cuda_major()
    make_venv = [getattr(sys, "_base_executable", sys.executable), "-m", "venv", "--clear", str(VENV)]
    if not works() and subprocess.run(make_venv).returncode:
        sys.exit("The environment .venv couldn't be created; see the reason above.")
    announce(part, cuda)
    pins = (ROOT/"constraints.txt").read_text(encoding="utf-8").splitlines()
    wanted = "\n".join(pin for pin in pins if cuda == 13 or not pin.startswith(("cuda-", "nvidia-")))
    (VENV/"constraints.txt").write_text(wanted + "\n", encoding="utf-8")
    constraints = str(VENV/"constraints.txt")
    if part: torch_without_cuda(python, constraints)
    for args in packages(part, cuda): pip_install(python, "-c", constraints, *args)
    (VENV/"ready").touch()
    if part == "--all": (VENV/"all").touch()
    size = sum(path.lstat().st_size for path in VENV.rglob("*") if path.is_file() and not path.is_symlink())
    print(f"Done in {time.time() - start:.0f} s: .venv takes {size / 1e9:.1f} GB. `make clean` removes it.",
          flush=True)


def check(names):
    "Exit with a one-line message if this interpreter lacks a required package, or one of `names`."
    from importlib.metadata import PackageNotFoundError, version
    needed = [name_of(line) for line in requirements("requirements")
              if not (sys.platform == "darwin" and "darwin" in line)]
    if not driver(): needed = [name for name in needed if name not in NOT_WITHOUT_GPU]
    missing = []
    for name in needed + names:
        try: version(name)
        except PackageNotFoundError: missing.append(name)
    if missing:
        cuda, python = cuda_major(), os.environ.get("PYTHON") or sys.executable
        pins = " -c constraints.txt" if cuda == 13 else ""
        first = f" (PyTorch's build for CUDA 12 first: {README})" if cuda == 12 and "torch" in missing else ""
        sys.exit(f"{python} lacks {', '.join(missing)}. Install with: {python} -m pip install -e "
                 f"\".[dev,cu{cuda}]\"{pins}{first}")


if __name__ == "__main__":
    first, *names = sys.argv[1:] or [""]
    if first not in ("", "--torch", "--all", "--check"):
        sys.exit(f"{first!r} is unknown; expected --torch, --all, --check and package names, or nothing")
    try: check(names) if first == "--check" else set_up(first)
    except KeyboardInterrupt: sys.exit("\nInterrupted: run make again to continue from here.")
