import gc
import json
import os
import pathlib
import re
import signal
import tempfile
from collections import defaultdict
from importlib.util import find_spec

import numba_matmul  # noqa: F401  first: it chooses between the GPU and the simulator
import answers
import pytest
from numba_matmul import process

ROOT = pathlib.Path(__file__).parent.parent
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for background processes
gc.set_threshold(50_000, 20, 100)  # little of what a test creates is garbage before its end

SCHEMA = json.loads((ROOT/"nbs"/"results"/"schema"/"card.schema.json").read_text(encoding="utf-8"))


def minimal_card(gpu="Invented GPU", size=4096):
    "A card with only the fields the schema requires, and the speed of one kernel at one size."
    full = json.loads((ROOT/"nbs"/"results"/"nvidia-h200.json").read_text(encoding="utf-8"))
    row = next(row for row in full["speed"]
               if (row["name"], row["m"], row["n"], row["k"]) == ("sgemm_naive", size, size, size))
    return {name: full[name] for name in SCHEMA["required"]} | dict(gpu=gpu, speed=[row])


def environment():
    "The environment of a user's process: it finds this project, and the simulator hasn't been chosen yet."
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"} | {"PYTHONPATH": path}


def exercise_id(x):
    "For an exercise or its key: the key with its lesson's name. For a solution or a mistake: its name."
    key = getattr(x, "key", x)
    if not re.fullmatch(r"\d\d[a-z]?", str(key)): return getattr(x, "name", x)
    return f"{key}_{pages_of(key)[0].stem.partition('_')[2]}"


def pages_of(key):
    "The pages that an exercise may be on: those of its own number, or of its lesson's."
    def found(number): return sorted((ROOT/"nbs").glob(f"{number}_*.ipynb"))
    return found(key) or found(key[:2])


# macOS doesn't have numba-cuda, and thus no compiler.
NEED_COMPILER = ["test_machine_code.py", "test_microscope.py", "test_ncu.py"]
collect_ignore = [] if find_spec("numba_cuda") else NEED_COMPILER


def pytest_configure(config):
    config.addinivalue_line("markers", "first(rank): takes long, so it starts before the others")
    if not hasattr(config, "workerinput"): answers.unpack()


def pytest_collection_modifyitems(items):
    def rank(item):
        marker = item.get_closest_marker("first")
        return marker.args[0] if marker else 9
    items.sort(key=rank)


@pytest.fixture(scope="session")
def valid():
    "Rejects a card, or part of one, that breaks a schema. (Its package takes over a second to import.)"
    from jsonschema import Draft202012Validator, ValidationError
    def valid(value, schema=SCHEMA): Draft202012Validator(schema).validate(value)
    valid.error = ValidationError
    return valid


@pytest.fixture
def temporary_folder(monkeypatch, tmp_path):
    "A temporary folder just for this test and its children: others write to the shared one meanwhile."
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def new_children(monkeypatch):
    "Long-lived children aren't used."
    monkeypatch.setattr(process, "_idle", defaultdict(list))


@pytest.fixture
def no_child(monkeypatch, new_children):
    "No child can be used or started."
    monkeypatch.setattr(process, "_Child", None)
