"""Every notebook runs from top to bottom, as `nbdev_test` runs it, in a copy of the project: what it writes
is not what other tests read. And what it shows of the result cards is what they say.

The longest come first, so that no core waits for one of them at the end."""
import json
import re
import shutil
import subprocess
import sys
from itertools import groupby

import pytest
from conftest import ROOT, environment

def code(path):
    "How much code a notebook has."
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return sum(len("".join(cell["source"])) for cell in cells if cell["cell_type"] == "code")


def room(path): return path.stem.split("_")[0]


LESSONS = sorted((ROOT/"nbs").glob("*.ipynb"), key=code, reverse=True)
LIBRARY = sorted((ROOT/"nbs"/"library").glob("*.ipynb"))
# those of a room share a process
RUNS = [[path] for path in LESSONS] + [list(paths) for _, paths in groupby(LIBRARY, key=room)]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    target = tmp_path_factory.mktemp("notebooks")/"matmul"
    for name in "nbs", "profiling_scripts":
        ignored = shutil.ignore_patterns(".ipynb_checkpoints", "__pycache__")
        shutil.copytree(ROOT/name, target/name, ignore=ignored)
    shutil.copy(ROOT/"settings.ini", target)
    return target


def test_every_notebook_is_run(): assert sum(map(len, RUNS)) == len(list((ROOT/"nbs").rglob("*.ipynb"))) > 30


def named(paths): return paths[0].stem if len(paths) == 1 else room(paths[0])


def check(paths, folder):
    command = [sys.executable, ROOT/"tools"/"pages.py", "--check", *paths]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)


@pytest.mark.first(0)
@pytest.mark.parametrize("paths", RUNS, ids=named)
def test_notebooks(paths, copy):
    done = check([path.relative_to(ROOT) for path in paths], copy)
    assert done.returncode == 0 and done.stdout.count("Success.") == len(paths), done.stdout + done.stderr


def test_a_number_that_no_card_says_is_found(copy):
    page = copy/"nbs"/"library"/"other_numbers.ipynb"
    text = (ROOT/"nbs"/"library"/"cards.ipynb").read_text(encoding="utf-8")
    said = re.search(r"`sgemm_naive` takes [\d.]+ ms", text)[0]
    page.write_text(text.replace(said, "`sgemm_naive` takes 1.5 ms"), encoding="utf-8")
    done = check([page.relative_to(copy)], copy)
    told = "run make pages" in done.stderr and said in done.stderr
    assert done.returncode == 1 and told, done.stdout + done.stderr
