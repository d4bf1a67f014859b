"""What `make` calls before anything else: it makes .venv and installs the tested set of packages, once.

It says first how much pip will fetch, shows the large files as they come, and repeats pip's own words where that fails.
`--check NAME…` installs nothing: it looks whether the interpreter that runs it has what the course needs, and those packages."""
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
LARGE = 10  # MB: files from this size on are shown
SMALL_SIZE, FULL_SIZE = "0.7 GB to fetch, 2.1 GB on disk", "3.0 GB to fetch, 5.7 GB on disk"  # measured with constraints.txt on Linux, x86_64
README = "README.md, \"Ways to run it\""

# What a line of pip starts with, and what helps where it ends so (the first that is found).
KNOWN = re.compile(r"\s*(Collecting|Requirement|Obtaining|Processing|Looking|Installing|Downloading|Using cached|Preparing|Building|Getting|Created"
                   r"|Stored|Attempting|Found existing|Uninstalling|Successfully|Checking|Ignoring|WARNING|ERROR|error|note|hint|DEPRECATION|INFO|\[notice)")
HINTS = {r"No space left": "The disk is full (pip also writes to the temporary folder, TMPDIR, and to its cache: pip cache purge).",
         r"Retrying|[Cc]onnection|ProxyError|name resolution|timed out": "pip does not reach its package index: look at the network, or a proxy.",
         r"ResolutionImpossible|conflicting dependencies|No matching distribution|different Python":
             f"Other package indexes or another PyTorch build may be set (pip config list; {README}).",
         r"": "All that pip said is in .venv/pip.log."}


def megabytes(line):
    "The size that pip names at the end of a line."
    size = re.search(r"\(([\d.]+) ([kMG]?)B\)\s*$", line)
    return float(size[1]) * {"": 1e-6, "k": 1e-3, "M": 1, "G": 1e3}[size[2]] if size else 0


class Digest:
    "Of pip's output: large files with pip's own progress bar, installing, retries, and everything from the first error on."

    def __init__(self, terminal, write):
        self.terminal, self.write, self.collected, self.passing, self.failed, self.heard = terminal, write, 0, False, False, ""

    def __call__(self, piece):
        "Take a line, or a state of a progress bar, with the characters that end it."
        text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", piece).strip("\r\n")
        self.heard += text + "\n"
        word = KNOWN.match(text)
        if re.match(r"\s*(ERROR|error|Traceback)", text): self.failed = True
        if self.failed: return self.line(text)
        if not word:
            if self.passing and self.terminal: self.write(piece.replace("\r\n", "\n"))  # the progress bar
            return None
        self.passing = False
        if text.startswith("Collecting"): self.collected += 1
        if word[1] in ("Downloading", "Using cached") and megabytes(text) >= LARGE:
            self.line("  " + text.strip())
            self.passing = True
        elif text.startswith("Installing collected packages"):
            self.line(f"Installing {text.count(',') + 1} packages (this can take minutes)" if "," in text else "Installing it")
            self.passing = True
        elif text.startswith("WARNING: Retrying"): self.line(text)
        elif self.terminal and not text.startswith("Successfully"):
            self.write(f"\r\x1b[K{self.collected} packages: {text.strip()}"[:shutil.get_terminal_size().columns - 1])

    def line(self, text): self.write(("\r\x1b[K" if self.terminal else "") + text + "\n")


def pieces(read):
    "What `read` returns until it ends, cut after each line and each state of a progress bar."
    rest = b""
    while True:
        try: new = read()
        except OSError: new = b""  # how a pseudo-terminal ends on Linux
        *done, rest = re.split(rb"(?<=\n)|(?<=\r)(?!\n)(?=.)", rest + new, flags=re.S) if new else (rest, b"")
        yield from (piece.decode(errors="replace") for piece in done if piece)
        if not new: return


def pip_install(python, *args):
    "Run pip, and end with a line that says what to do if it fails."
    digest = Digest(sys.stdout.isatty(), lambda text: (sys.stdout.write(text), sys.stdout.flush()))
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--no-color", "--progress-bar", "on", *args]
    if digest.terminal:  # pip shows its progress bar on a terminal only
        import pty
        ours, theirs = pty.openpty()
        environment = dict(os.environ, COLUMNS=str(shutil.get_terminal_size().columns))
    else:
        ours, theirs = os.pipe()
        environment = dict(os.environ)
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    for piece in pieces(lambda: os.read(ours, 1 << 16)): digest(piece)
    os.close(ours)
    if digest.terminal: sys.stdout.write("\r\x1b[K\x1b[?25h")
    with open(str(VENV/"pip.log"), "a", encoding="utf-8") as log: log.write(digest.heard)
    if process.wait():
        hint = next(hint for pattern, hint in HINTS.items() if re.search(pattern, digest.heard))
        sys.exit(f"pip could not install the packages; its reason is above. {hint} Then call make again: it goes on from here.")


def cuda_major():
    "12 where the driver knows no CUDA 13, else 13 (also without a GPU: the compiler tool uses it)."
    try: said = subprocess.run(["nvidia-smi"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    except OSError: return 13
    return 12 if b"CUDA Version: 12" in said else 13


def announce(python, cuda):
    "Say what will be fetched, before it is."
    if any(VENV.glob("lib/*/site-packages/torch")): return print("Bringing .venv up to date with settings.ini and constraints.txt", flush=True)
    settings = subprocess.run([str(python), "-m", "pip", "config", "list"], stdout=subprocess.PIPE, universal_newlines=True).stdout
    print(f"Setting up .venv with Python {platform.python_version()}, once. {shutil.disk_usage(str(ROOT)).free / 1e9:.0f} GB are free here. pip fetches about 150 packages:")
    if sys.platform == "darwin" or re.search(r"/whl/cpu\b", settings): print(f"  {SMALL_SIZE}, with PyTorch's CPU build", flush=True)
    else:
        print(f"  {FULL_SIZE} with PyTorch's CUDA build, which is pip's default on Linux")
        print(f"  {SMALL_SIZE} with its CPU build, which is enough without a GPU: set PIP_EXTRA_INDEX_URL before this call ({README})", flush=True)
    if cuda == 12: print(f"The driver knows CUDA 12 and not 13, so PyTorch has to be its build for CUDA 12: {README}", flush=True)


def set_up():
    if sys.platform == "darwin" and platform.machine() == "x86_64":
        sys.exit("Macs with an Intel processor: Numba and PyTorch make no packages for them any more. Open the notebooks on Colab, or use a Linux machine.")
    try: import ensurepip, venv  # noqa: E401, F401
    except ImportError:
        sys.exit(f"{sys.executable} cannot make environments: install its venv module (Debian and Ubuntu: apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv), and call make again")
    start, python = time.time(), VENV/"bin"/"python"
    if VENV.is_dir() and (VENV/"ready").exists(): (VENV/"ready").unlink()
    def works(): return python.exists() and not subprocess.run([str(python), "-m", "pip", "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
    cuda = cuda_major()
    if not works() and subprocess.run([getattr(sys, "_base_executable", sys.executable), "-m", "venv", "--clear", str(VENV)]).returncode:
        sys.exit("The environment .venv could not be made; the reason is above.")
    announce(python, cuda)
    pins = (ROOT/"constraints.txt").read_text(encoding="utf-8").splitlines()
    (VENV/"constraints.txt").write_text("\n".join(pin for pin in pins if cuda == 13 or not pin.startswith(("cuda-", "nvidia-"))) + "\n", encoding="utf-8")
    pip_install(python, "-c", str(VENV/"constraints.txt"), "-e", f".[dev,cu{cuda}]")
    if cuda == 13 and sys.platform != "darwin": pip_install(python, "--no-deps", "-r", "compiler.txt")
    (VENV/"ready").touch()
    size = sum(path.lstat().st_size for path in VENV.rglob("*") if path.is_file() and not path.is_symlink())
    print(f"Done in {time.time() - start:.0f} s: .venv holds {size / 1e9:.1f} GB. `make clean` removes it.", flush=True)


def check(names):
    "End with one line if this interpreter lacks a package, or one of `names`."
    from importlib.metadata import PackageNotFoundError, version
    ini = ConfigParser(delimiters=["="])
    ini.read(str(ROOT/"settings.ini"), encoding="utf-8")
    lines = [line for line in ini["DEFAULT"]["requirements"].splitlines() if not (sys.platform == "darwin" and "darwin" in line)]
    missing = []
    for name in [re.match(r"[\w.-]+", line)[0] for line in lines if line.strip() and not line.startswith("#")] + names:
        try: version(name)
        except PackageNotFoundError: missing.append(name)
    if missing:
        cuda, python = cuda_major(), os.environ.get("PYTHON") or sys.executable
        pins = " -c constraints.txt" if cuda == 13 else ""
        last = f" && {python} -m pip install --no-deps -r compiler.txt" if cuda == 13 and sys.platform != "darwin" else ""
        sys.exit(f"{python} lacks {', '.join(missing)}. Install with: {python} -m pip install -e \".[dev,cu{cuda}]\"{pins}{last}")


if __name__ == "__main__":
    try: check(sys.argv[2:]) if sys.argv[1:2] == ["--check"] else set_up()
    except KeyboardInterrupt: sys.exit("\nInterrupted: call make again, and it goes on from here.")
