"""Imports run one way: each layer of the library builds on those before it, and no import, not even inside a
function, goes upward."""
import ast
import re
from functools import cache

import pytest
from conftest import ROOT

from numba_matmul import registry

PACKAGE = ROOT/"numba_matmul"
ROWS = re.findall(r"^\| (`.+?) \|", (ROOT/"CONTRIBUTING.md").read_text(encoding="utf-8").partition(
    "## How the library is layered")[2].partition("\n## ")[0], re.M)
LAYERS = [name for row in ROWS for name in re.findall(r"\w+", row)]  # from the ground up
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")
           if path.name not in ("__init__.py", "_modidx.py")}


def imported(name, tree):
    "The library's modules that a module imports, anywhere in its code."
    for node in ast.walk(tree):
        if isinstance(node, ast.Import): found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = (".".join([*name.split(".")[:-node.level], node.module or ""]).rstrip(".") if node.level
                    else node.module)
            found = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else: continue
        yield from (module for module in found if module in MODULES or module == "numba_matmul.kernels")


INSTRUMENTS = ("sass", "compiler", "microscope", "timeline", "play", "ncu", "cycles", "passes", "workload",
               "gpus", "tensor_model", "predict")

def layer(module): return module.split(".")[1]


@cache
def used_by(name):
    "The library's modules that one of them imports."
    return set(imported(name, ast.parse(MODULES[name].read_text(encoding="utf-8")))) - {name}


def test_every_module_has_its_layer():
    assert sorted({layer(name) for name in MODULES}) == sorted(LAYERS) and len(MODULES) > 40


@pytest.mark.parametrize("name", MODULES)
def test_no_import_goes_upward(name):
    upward = [other for other in used_by(name) if LAYERS.index(layer(other)) > LAYERS.index(layer(name))]
    assert not upward


def test_there_is_no_circle():
    left = {name: used_by(name) for name in MODULES}
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free: del left[name]
    assert not left


def test_no_instrument_knows_a_kernel_and_nobody_leans_on_the_facade():
    for name in MODULES:
        others = used_by(name)
        if layer(name) in INSTRUMENTS:
            assert not {layer(other) for other in others} & {"kernels", "registry", "ladder"}
        assert "numba_matmul.util" not in others


def test_an_import_inside_a_function_is_seen():
    code = ("def f():\n    if True:\n        from numba_matmul.ladder import main\n"
            "    try: import numba_matmul.util\n    except ImportError: from ..registry import KERNELS")
    found = set(imported("numba_matmul.sim.launch", ast.parse(code)))
    assert found == {"numba_matmul.ladder", "numba_matmul.util", "numba_matmul.registry"}


def test_a_module_that_is_no_kernels_is_named(tmp_path, monkeypatch):
    (tmp_path/"wrong_kernels").mkdir()
    (tmp_path/"wrong_kernels"/"__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    import wrong_kernels
    first = "from numba_matmul.kernels.k01_naive import KERNEL"
    (tmp_path/"wrong_kernels"/"a_first.py").write_text(first)
    (tmp_path/"wrong_kernels"/"b_again.py").write_text(first)
    both = "a_first and wrong_kernels.b_again are both kernel (1|sgemm_naive)"
    with pytest.raises(ImportError, match=both):
        registry.find_kernels(wrong_kernels)
    (tmp_path/"wrong_kernels"/"b_again.py").unlink()
    for code, text in ("1 / 0", "division by zero"), ("KERNEL_ = 1", "no attribute 'KERNEL'"):
        (tmp_path/"wrong_kernels"/f"k_{len(code)}.py").write_text(code)
        with pytest.raises(ImportError, match=f"wrong_kernels.k_{len(code)} isn't a kernel module: .*{text}"):
            registry.find_kernels(wrong_kernels)
        (tmp_path/"wrong_kernels"/f"k_{len(code)}.py").unlink()
