"""The CUDA C++ of lesson 31 compiles; the template of an extension matches the lesson, and works with a GPU
and nvcc."""
import ast
import json
import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

from numba_matmul.compiler import code_of_cubin

TEMPLATE = ROOT/"extension_template"


def strings():
    "The strings in the lesson's cells, by name."
    found = {}
    for cell in json.loads((ROOT/"nbs"/"31_other_ways.ipynb").read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] != "code" or text.startswith("%%"): continue
        for node in ast.parse(text).body:
            match node:
                case ast.Assign([ast.Name(name)], ast.Constant(str(value))): found[name] = value
    return found


TEXTS = strings()


def test_the_template_has_the_lessons_kernels():
    text = (TEMPLATE/"matmul.cu").read_text(encoding="utf-8")
    comment = "".join(line for line in text.splitlines(True)[:3] if line.startswith("//"))
    lesson = TEXTS["NAIVE"] + TEXTS["TILED"] + TEXTS["GLUE"]
    assert text == comment + lesson, "extension_template/matmul.cu is not the lesson's"


@pytest.mark.parametrize("name,kernel,multiply", [("SQUARE", "square", "FMUL"), ("NAIVE", "naive", "FFMA"),
                                                  ("TILED", "tiled", "FFMA"), ("SMEM", "smem", "FFMA")])
def test_cuda_cpp_compiles_without_a_gpu(name, kernel, multiply):
    core = pytest.importorskip("cuda.core")
    cubin = core.Program(TEXTS[name], "c++", core.ProgramOptions(arch="sm_90a")).compile("cubin").code
    code = code_of_cubin(cubin, kernel)
    assert code.spills == code.stack_bytes == 0
    assert any(x.opcode == multiply for x in code.instructions)


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
def test_nvcc_compiles_the_templates_kernels(tmp_path):
    "Without the PyTorch bindings: that part needs the headers of a CUDA build of PyTorch."
    kernels = (TEMPLATE/"matmul.cu").read_text(encoding="utf-8").partition("#include")[0]
    (tmp_path/"kernels.cu").write_text(kernels)
    command = ["nvcc", "-cubin", "-arch=sm_90", "-o", tmp_path/"kernels.cubin", tmp_path/"kernels.cu"]
    subprocess.run(command, check=True)
    assert (tmp_path/"kernels.cubin").read_bytes().startswith(b"\x7fELF")


CALL = """
import torch
import matmul_extension as module
a, b = torch.randn(256, 136, device="cuda"), torch.randn(136, 384, device="cuda")
c = torch.empty(256, 384, device="cuda")
exact = a.double() @ b.double()
for call in module.naive, module.tiled:
    c.fill_(torch.nan)
    call(a, b, c)
    torch.testing.assert_close(c.double(), exact, rtol=1e-4, atol=1e-4)
for wrong, text in ((a.t(), "row-major"), (a.double(), "float32"),
                    (a[:, :128].contiguous(), "fit together"), (a.cpu(), "on the GPU")):
    try: module.naive(wrong, b, c)
    except RuntimeError as e: assert text in str(e), e
    else: raise AssertionError(f"accepted, and it is not {text}")
short = torch.randn(100, 136, device="cuda")
try: module.tiled(short, b, torch.empty(100, 384, device="cuda"))
except RuntimeError as e: assert "fit the tile" in str(e), e
else: raise AssertionError("accepted a size that does not fit")
"""


def test_the_template_builds_and_multiplies(tmp_path):
    import torch
    if not torch.cuda.is_available() or not torch.version.cuda:
        pytest.skip("needs a GPU and PyTorch's build for CUDA")
    if not shutil.which("nvcc"): pytest.skip("nvcc is not installed")
    folder = tmp_path/"template"
    shutil.copytree(TEMPLATE, folder)
    arch = {"TORCH_CUDA_ARCH_LIST": "{}.{}".format(*torch.cuda.get_device_capability())}
    for command in ["setup.py", "build_ext", "--inplace"], ["-c", CALL]:
        done = subprocess.run([sys.executable, *command], cwd=folder, env=os.environ | arch,
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
