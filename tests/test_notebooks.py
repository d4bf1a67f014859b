"""Every notebook runs from top to bottom, as `nbdev_test` runs it, the longest first, so that no core waits for it at
the end.

A step of its own in `make test`, before the other tests: lessons write the scripts that those read."""
import json
import subprocess
import sys

import pytest
from conftest import ROOT, environment


def code(path):
    return sum(len("".join(cell["source"])) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
               if cell["cell_type"] == "code")


@pytest.mark.parametrize("path", sorted((ROOT/"nbs").rglob("*.ipynb"), key=code, reverse=True),
                         ids=lambda path: path.stem)
def test_notebook(path):
    command = [sys.executable, "-c", "import sys; from nbdev.test import nbdev_test; "
                                     "nbdev_test(path=sys.argv[1], n_workers=0)", str(path.relative_to(ROOT))]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0 and "Success." in done.stdout, done.stdout + done.stderr
