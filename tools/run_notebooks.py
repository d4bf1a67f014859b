"""Run the notebooks of the course on this GPU, one at a time, and save their outputs: `make gpu
STAGE=notebooks`.

`NOTEBOOKS="01* 02*"` runs only some of them. A notebook's measurements go to the result card once it has run
to the end."""
import base64
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numba_matmul  # noqa: F401  first: this chooses between the GPU and the simulator
from execnb.nbio import read_nb, write_nb
from execnb.shell import CaptureShell
from nbdev.clean import clean_nb
from nbdev.config import get_config
from PIL import Image

from figures import add_svg
from numba_matmul.cards import gpu_card, gpu_name, need_gpu, write_card

NBS = Path(__file__).resolve().parent.parent/"nbs"


LARGE = 1_425_000  # pixels of a picture: one with more is stored at half its width

def shrink_pictures(cells):
    "Pictures with few colors: drawings look the same, and take a third of the space in the file."
    for cell in cells:
        for output in cell.get("outputs") or []:
            if (png := output.get("data", {}).get("image/png")) is None: continue
            picture = Image.open(io.BytesIO(base64.b64decode("".join(png)))).convert("RGB")
            small = io.BytesIO()
            if picture.width * picture.height > LARGE: picture = picture.reduce(2)
            picture.quantize(32, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
            output["data"]["image/png"] = base64.b64encode(small.getvalue()).decode()


def find(wanted):
    "The notebooks with these names, in which * stands for anything; all of them if there are none."
    paths = set()
    for name in wanted or ["*"]:
        try: found = set(NBS.rglob(f"{name}.ipynb"))
        except (NotImplementedError, ValueError):
            found = ()  # an absolute path, or ** within a name
        if not found: sys.exit(f"no notebook is named {name!r}")
        paths.update(found)
    return sorted(paths, key=lambda path: path.name)


def write_clean(nb, path):
    clean_nb(nb, allowed_cell_metadata_keys=get_config().allowed_cell_metadata_keys.split())
    write_nb(nb, path)


def run(path):
    "Execute one notebook in place; the exit status is 1 if a cell fails."
    nb, shell = read_nb(path), CaptureShell(path)
    add_svg(shell)
    for cell in nb.cells:
        if cell.cell_type == "code": cell.outputs = []  # a cell that prints nothing has no outputs
    try: shell.run_all(nb, exc_stop=True)
    except Exception: sys.exit(shell.prettytb(fname=path))
    shrink_pictures(nb.cells)
    write_clean(nb, path)


def run_in_child(path):
    "Execute one notebook in its own process, isolated from the others; returns its experiments."
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder)/"experiments"
        notes.touch()
        command = [sys.executable, Path(__file__).resolve(), "--one", path.name]
        env = os.environ | {"MATMUL_RECORD": str(notes)}
        if subprocess.run(command, cwd=path.parent, env=env).returncode:
            sys.exit(f"{path.name} failed; the notebook and the result card are unchanged")
        return {name: entry for line in notes.read_text(encoding="utf-8").splitlines()
                for name, entry in json.loads(line).items()}


def main(wanted):
    need_gpu("STAGE=notebooks")
    if not gpu_card():
        sys.exit(f"there is no card for the {gpu_name()} yet: run make gpu STAGE=ladder first")
    made = {}
    for path in find(wanted):
        start = time.time()
        made |= run_in_child(path)
        write_card(dict(gpu=gpu_name(), experiments=gpu_card().get("experiments", {}) | made))
        print(f"{path.name}: {time.time() - start:.0f} s", flush=True)
    if wanted in ([], ["*"]):  # drop those that no notebook makes
        write_card(dict(gpu=gpu_name(), experiments=made))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]: run(Path(sys.argv[2]))
    else: main(sys.argv[1:])
