"""Test a single lesson: `make lesson N=05`. Runs its notebook; takes every path of its kernel, tries it with
many tiles, and compiles it; judges all solutions and mistakes of its exercises."""
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from numba_matmul.exercise import exercises, variants  # noqa: E402  this project's, from any folder
from numba_matmul.registry import KERNELS  # noqa: E402

# The files whose tests are named after a lesson or a kernel.
FILES = ("notebooks", "paths", "kernels", "refused", "machine_code", "generated", "start",
         "exercises")


def lesson_of(wanted):
    "The name of the lesson's notebook. Exits with a message if there is none."
    names = sorted(path.stem for path in (ROOT/"nbs").glob("*.ipynb"))
    def called(name):
        number, _, idea = name.partition("_")
        return name, number, number.lstrip("0"), idea
    found = [name for name in names if wanted in called(name)]
    if len(found) != 1: sys.exit(f"which lesson is {wanted!r}? There are {', '.join(names)}")
    return found[0]


def main(wanted):
    lesson = lesson_of(wanted)
    kernel = next((one for one in KERNELS.values() if one.fn.__module__.endswith(f".k{lesson}")), None)
    number, _, idea = lesson.partition("_")
    numbers = {path.stem.partition("_")[0] for path in (ROOT/"nbs").glob("*.ipynb")}
    keys = [key for key in exercises() if (key if key in numbers else key[:2]) == number]
    what = [f"nbs/{lesson}.ipynb", f"{len(kernel.paths)} paths of {kernel.name}" if kernel else "no kernel",
            *(f"{len(variants(exercises()[key]))} variants of exercise {key}" for key in keys)]
    print(", ".join(what), flush=True)
    # By the notebook's name, and by the kernel's where that is another one.
    names = {idea, kernel.name.partition("gemm_")[2]} if kernel else {idea}
    selected = f"({' or '.join(names)}) and not test_a_variant"
    tests = [sys.executable, "-m", "pytest", "-q", "-n", "logical", "--maxschedchunk", "1", "-k", selected,
             *(f"tests/test_{name}.py" for name in FILES)]
    failed = subprocess.run(tests, cwd=ROOT).returncode
    if keys:
        judge = [sys.executable, "-m", "numba_matmul.exercise", *keys]
        done = subprocess.run(judge, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        print("".join(line for line in done.stdout.splitlines(True) if not line.startswith("ok ")), end="")
        failed = failed or done.returncode
    sys.exit(failed)


if __name__ == "__main__": main(*sys.argv[1:2] or [""])
