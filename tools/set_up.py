"""What `make` calls before anything else: creates .venv and installs the tested set of packages, once.

It first prints how much pip will download. `--check NAME…` installs nothing: it checks whether the
interpreter that runs it has what the course needs, plus those packages."""
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
# measured with constraints.txt on Linux, x86_64
SMALL_SIZE, FULL_SIZE = "0.7 GB to download, 2.1 GB on disk", "3.0 GB to fetch, 5.7 GB on disk"
README = "README.md, \"Ways to run it\""


def pip_install(python, *args):
    "Run pip, showing its output; if it fails, exit with a message that says what to do."
    # compiling all packages would take a minute; bytecode is created on the first import instead
    quietly = "--disable-pip-version-check", "--no-input", "--no-compile"
    command = [str(python), "-m", "pip", "install", *quietly, *args]
    if subprocess.run(command, cwd=ROOT).returncode:
        sys.exit("pip couldn't install the packages; see its reason above. Fix it (a full disk, the network, "
                 "another package index: pip config list), and run make again: it continues from "
                 "here.")


def cuda_major():
    """12 if the driver doesn't support CUDA 13, else 13 (also without a GPU: the compiler tool uses it);
    exits if it doesn't support 12."""
    try:
        said = subprocess.run(["nvidia-smi"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    except OSError: return 13
    if not (found := re.search(rb"CUDA Version: (\d+)", said)): return 13
    if int(found[1]) < 12:
        sys.exit(f"the NVIDIA driver only supports CUDA {int(found[1])}, and CUDA 12 is the oldest that this "
                 "course runs on: update the driver")
    return min(13, int(found[1]))


def announce(python, cuda):
    "Print what will be downloaded."
    if any(VENV.glob("lib/*/site-packages/torch")):
        return print("Updating .venv to match settings.ini and constraints.txt", flush=True)
    settings = subprocess.run([str(python), "-m", "pip", "config", "list"], stdout=subprocess.PIPE,
                              text=True).stdout
    print(f"Setting up .venv with Python {platform.python_version()}, once. "
          f"{shutil.disk_usage(str(ROOT)).free / 1e9:.0f} GB are free. pip downloads about 180 packages:")
    if sys.platform == "darwin" or re.search(r"/whl/cpu\b", settings):
        print(f"  {SMALL_SIZE}, with PyTorch's CPU build", flush=True)
    else:
        print(f"  {FULL_SIZE} with PyTorch's CUDA build, which is pip's default on Linux")
        print(f"  {SMALL_SIZE} with its CPU build, which is enough without a GPU: set PIP_EXTRA_INDEX_URL "
              f"before this call ({README})", flush=True)
    if cuda == 12:
        print(f"The driver supports CUDA 12 but not 13, so you need PyTorch's build for CUDA 12: {README}",
              flush=True)


def set_up():
    if sys.platform == "darwin" and platform.machine() == "x86_64":
        sys.exit("Numba and PyTorch no longer publish packages for Macs with an Intel processor. "
                 "Open the notebooks on Colab, or use a Linux machine.")
    try: import ensurepip, venv  # noqa: E401, F401
    except ImportError:
        sys.exit(f"{sys.executable} can't create environments: install its venv module (Debian and Ubuntu: "
                 f"apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv), and run make again")
    start, python = time.time(), VENV/"bin"/"python"
    if VENV.is_dir() and (VENV/"ready").exists(): (VENV/"ready").unlink()
    def works():
        return python.exists() and not subprocess.run([str(python), "-m", "pip", "--version"],
                                                      stdout=subprocess.DEVNULL,
                                                      stderr=subprocess.DEVNULL).returncode
    cuda = cuda_major()
    make_venv = [getattr(sys, "_base_executable", sys.executable), "-m", "venv", "--clear", str(VENV)]
    if not works() and subprocess.run(make_venv).returncode:
        sys.exit("The environment .venv couldn't be created; see the reason above.")
    announce(python, cuda)
    pins = (ROOT/"constraints.txt").read_text(encoding="utf-8").splitlines()
    wanted = "\n".join(pin for pin in pins if cuda == 13 or not pin.startswith(("cuda-", "nvidia-")))
    (VENV/"constraints.txt").write_text(wanted + "\n", encoding="utf-8")
    pip_install(python, "-c", str(VENV/"constraints.txt"), "-e", f".[dev,cu{cuda}]")
    if cuda == 13 and sys.platform != "darwin":
        pip_install(python, "--no-deps", "-r", "compiler.txt")
    (VENV/"ready").touch()
    size = sum(path.lstat().st_size for path in VENV.rglob("*") if path.is_file() and not path.is_symlink())
    print(f"Done in {time.time() - start:.0f} s: .venv takes {size / 1e9:.1f} GB. `make clean` removes it.",
          flush=True)


def check(names):
    "Exit with a one-line message if this interpreter lacks a required package, or one of `names`."
    from importlib.metadata import PackageNotFoundError, version
    ini = ConfigParser(delimiters=["="])
    ini.read(str(ROOT/"settings.ini"), encoding="utf-8")
    lines = [line for line in ini["DEFAULT"]["requirements"].splitlines()
             if not (sys.platform == "darwin" and "darwin" in line)]
    missing = []
    for name in [re.match(r"[\w.-]+", line)[0] for line in lines
                 if line.strip() and not line.startswith("#")] + names:
        try: version(name)
        except PackageNotFoundError: missing.append(name)
    if missing:
        cuda, python = cuda_major(), os.environ.get("PYTHON") or sys.executable
        pins = " -c constraints.txt" if cuda == 13 else ""
        last = (f" && {python} -m pip install --no-deps -r compiler.txt"
                if cuda == 13 and sys.platform != "darwin" else "")
        sys.exit(f"{python} lacks {', '.join(missing)}. Install with: {python} -m pip install -e "
                 f"\".[dev,cu{cuda}]\"{pins}{last}")


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1] != "--check":
        sys.exit(f"{sys.argv[1]!r} is unknown; expected no argument, or --check and package names")
    try: check(sys.argv[2:]) if sys.argv[1:] else set_up()
    except KeyboardInterrupt: sys.exit("\nInterrupted: run make again to continue from here.")
