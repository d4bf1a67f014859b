"""Every notebook runs from top to bottom, as `nbdev_test` runs it, in a copy of the project, so that other
tests don't read the files it writes. And what it shows of the result cards matches them.

The longest come first, so that no core has to wait for one of them at the end."""
import json
import re
import shutil
import subprocess
import sys

import nbformat
import pytest
from conftest import ROOT, environment

def code(path):
    "The amount of code in a notebook."
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return sum(len("".join(cell["source"])) for cell in cells if cell["cell_type"] == "code")


PAGES = sorted((ROOT/"nbs").rglob("*.ipynb"), key=code, reverse=True)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    target = tmp_path_factory.mktemp("notebooks")/"matmul"
    for name in "nbs", "profiling_scripts":
        ignored = shutil.ignore_patterns(".ipynb_checkpoints", "__pycache__")
        shutil.copytree(ROOT/name, target/name, ignore=ignored)
    shutil.copy(ROOT/"settings.ini", target)
    return target


@pytest.fixture(scope="module")
def check(copy):
    "The process that checks pages. It is reused for the next page, as in `nbdev_test`."
    command = [sys.executable, ROOT/"tools"/"pages.py", "--check"]
    process = subprocess.Popen(command, cwd=copy, env=environment(), text=True, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    def answer(path):
        print(path.relative_to(copy), file=process.stdin, flush=True)
        said = []
        for line in process.stdout:
            if line in ("checked\n", "failed\n"): return line.strip(), "".join(said)
            said.append(line)
        return "ended", "".join(said)
    yield answer
    process.kill()  # to exit by itself, it would first clean up after all pages
    process.communicate()


def test_there_are_notebooks(): assert len(PAGES) > 30


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_notebook_is_valid(page): nbformat.validate(nbformat.read(page, 4))


@pytest.mark.first(0)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_notebooks(page, copy, check):
    verdict, said = check(copy/page.relative_to(ROOT))
    assert verdict == "checked" and said.count("Success.") == 1, said


def shown(page, source):
    "What a page with this cell, and no outputs, shows once `make pages` has renewed it."
    cell = dict(cell_type="code", id="new", metadata={}, execution_count=None, outputs=[], source=source)
    page.write_text(json.dumps(dict(cells=[cell], metadata={}, nbformat=4, nbformat_minor=5)))
    command = [sys.executable, ROOT/"tools"/"pages.py", "--one", page]
    subprocess.run(command, cwd=page.parent, env=environment(), check=True, capture_output=True)
    (cell,) = json.loads(page.read_text(encoding="utf-8"))["cells"]
    return cell["outputs"]


@pytest.mark.parametrize("source, kind", [
    ("from matplotlib import pyplot as plt\nfig, ax = plt.subplots()\nplt.close(fig)\nfig", "image/png"),
    ("6 * 7", "text/plain"), ("from numba_matmul.cards import load_cards\nlen(load_cards())", "text/plain")])
def test_a_new_cell_gets_its_outputs(source, kind, copy):
    (output,) = shown(copy/"nbs"/"library"/"new_cell.ipynb", source)
    assert kind in output["data"]


def test_a_table_of_the_microscope_that_no_longer_holds_is_found(copy, check):
    page = copy/"nbs"/"other_table.ipynb"
    text = (ROOT/"nbs"/"05_2d_blocktiling.ipynb").read_text(encoding="utf-8")
    assert text.count("view = microscope(sgemm_2d_blocktiling, (128, 128, 8))") == 1
    page.write_text(text.replace("view = microscope(sgemm_2d_blocktiling, (128, 128, 8))",
                                 "view = microscope(sgemm_2d_blocktiling, (128, 128, 16))"),
                    encoding="utf-8")
    verdict, told = check(page)
    assert verdict == "failed" and "run make pages" in told, told


def test_a_number_that_no_card_says_is_found(copy, check):
    page = copy/"nbs"/"library"/"other_numbers.ipynb"
    text = (ROOT/"nbs"/"library"/"cards.ipynb").read_text(encoding="utf-8")
    said = re.search(r"`sgemm_naive` takes [\d.]+ ms", text)[0]
    page.write_text(text.replace(said, "`sgemm_naive` takes 1.5 ms"), encoding="utf-8")
    verdict, told = check(page)
    assert verdict == "failed" and "run make pages" in told and said in told, told
