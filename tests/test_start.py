"The first import, and the command line's answers."
import ctypes
import fcntl
import json
import os
import pty
import re
import runpy
import struct
import subprocess
import sys
import termios
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from conftest import ROOT, environment
from forked import in_fork
from numba import config

import numba_matmul
from numba_matmul import ladder as ladder_module
from numba_matmul.cards import load_cards
from numba_matmul.report.tables import days

without_gpu = pytest.mark.skipif(not config.ENABLE_CUDASIM, reason="there is a GPU")


def python(code, *args, **env):
    command = [sys.executable, *(("-c", code) if code else ()), *args]
    return subprocess.run(command, capture_output=True, text=True, env=environment() | env, cwd=ROOT)


def ladder(*args, **env): return python(None, "-m", "numba_matmul.ladder", *args, **env)


@without_gpu
def test_without_a_gpu_the_simulator_is_announced_in_one_line():
    """On stderr, and not at all in a program that only imports the package: its output is its own, and the
    garbage collector is unchanged."""
    done = python("""
import gc, sys
before = gc.get_threshold()
from util import to_d
from numba import config, cuda
assert config.ENABLE_CUDASIM and gc.get_threshold() == before
print("imported", file=sys.stderr)
@cuda.jit
def k(x): x[0] = 1
for _ in range(2): k[1, 1](to_d([0.0]))
print("mine", gc.get_threshold() == before)""")
    assert done.returncode == 0 and done.stdout == "mine True\n", done.stderr
    first, said = done.stderr.splitlines()
    assert first == "imported" and said.startswith("Kernels run in Numba's simulator: ")


@without_gpu
def test_a_gpu_that_is_demanded_and_not_there_is_told_at_once():
    done = python("import util", NUMBA_ENABLE_CUDASIM="0")
    assert (done.stdout == "" and "NUMBA_ENABLE_CUDASIM=0" in done.stderr
            and len(done.stderr.splitlines()) == 1)


@without_gpu
def test_a_terminal_without_our_signs_is_printed_to():
    done = python("import util; from numba_matmul.exercise import Scoreboard, Verdict; "
                  "print(Scoreboard([Verdict('a', True, '3 × 4 – 5')]))",
                  PYTHONIOENCODING="ascii", LC_ALL="C")
    assert done.returncode == 0 and done.stdout == "? a  3 ? 4 ? 5\n", done.stderr


@without_gpu
def test_numba_imported_first_is_an_error_that_says_what_to_do():
    done = python("import numba, util")
    assert done.returncode and "Restart Python" in done.stderr and "before numba" in done.stderr


@pytest.mark.parametrize("value", ["0", "1"])
def test_the_users_choice_wins(value):
    done = python("import numba_matmul; from numba import config; print(config.ENABLE_CUDASIM)",
                  NUMBA_ENABLE_CUDASIM=value)
    assert done.stdout == f"{value}\n", done.stderr


@pytest.mark.parametrize("value", ["yes", "true", "2", "-1", "1.0"])
def test_a_choice_that_is_none_is_refused_in_one_line(value):
    done = python("import util", NUMBA_ENABLE_CUDASIM=value)
    assert done.returncode == 1 and "Warning" not in done.stderr
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: NUMBA_ENABLE_CUDASIM is {value!r}: set it to 1 for the simulator, to 0 for a GPU, "
        "or not at all")


@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_choice_counts_as_none(value):
    assert python("import util", NUMBA_ENABLE_CUDASIM=value).stdout == python("import util").stdout


@without_gpu
def test_an_empty_choice_does_not_turn_the_simulator_off():
    done = python("import util; from numba import config; assert config.ENABLE_CUDASIM",
                  NUMBA_ENABLE_CUDASIM="")
    assert done.returncode == 0 and not done.stderr, done.stderr


class Driver:
    "A CUDA driver with one GPU."
    def __init__(self, version=13000, capability=(9, 0), gpus=1, init=0):
        self.version, self.capability, self.gpus, self.init = version, capability, gpus, init
    def cuInit(self, flags): return self.init

    def cuDeviceGetCount(self, out):
        out._obj.value = self.gpus
        return 0

    def cuDriverGetVersion(self, out):
        out._obj.value = self.version
        return 0

    def cuDeviceGetAttribute(self, out, attribute, device):
        out._obj.value = self.capability[attribute - 75]
        return 0


@pytest.mark.parametrize("driver,bindings,reason", [
    (Driver(), "13.0.0", None),
    (Driver(version=13020, capability=(12, 0)), "13.5.0", None),
    (Driver(version=12040, capability=(7, 0)), "12.9.1", None),
    (Driver(version=12040), "13.0.0", "supports CUDA 12.4"),
    (Driver(capability=(6, 1)), "13.0.0", "compute capability 6.1"),
    (Driver(gpus=0), "13.0.0", "doesn't find a GPU"),
    (Driver(init=100), "13.0.0", "doesn't find a GPU"),
])
def test_a_gpu_counts_if_the_driver_can_use_it(monkeypatch, driver, bindings, reason):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    monkeypatch.setattr(numba_matmul, "_version", lambda package: bindings)
    said = numba_matmul._why_no_gpu()
    assert said is None if reason is None else reason in said


@without_gpu
def test_gpu_cells_are_skipped_in_ipython():
    done = python("""
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("import numba_matmul")
shell.run_cell("#| cuda\\nprint('ran')")
shell.run_cell("print('also', 'ran')")
""")
    assert "needs a GPU" in done.stdout and "\nran" not in done.stdout, done.stderr
    assert "also ran" in done.stdout


def test_pytorch_is_installed_before_a_cell_that_imports_it_and_not_for_one_that_only_defines_what_would():
    done = python("""
import importlib.util, subprocess, sys
from IPython.core.interactiveshell import InteractiveShell
sys.path.insert(0, "tools/jupyter")
importlib.util.find_spec = lambda name: None
subprocess.run = lambda command, **options: print("set up", command[-1])
import matmul_lab
shell = InteractiveShell.instance()
matmul_lab.load_ipython_extension(shell)
shell.run_cell("def on_a_gpu():\\n    from torch.cuda import Event")
print("defined")
shell.run_cell("if False: pass\\nimport torch.nothing")
""")
    assert done.stdout.startswith("defined\nset up --torch"), done.stdout + done.stderr


def test_what_jupyterlab_adds_to_a_notebook_on_opening_it_is_not_saved():
    config = SimpleNamespace(FileContentsManager=SimpleNamespace())
    runpy.run_path(str(ROOT/"tools/jupyter/jupyter_server_config.py"), dict(get_config=lambda: config))
    page = json.loads((ROOT/"nbs/04_1d_blocktiling.ipynb").read_text(encoding="utf-8"))
    opened = json.loads(json.dumps(page))
    opened["metadata"] |= dict(language_info=dict(name="python"),
                               kernelspec=page["metadata"]["kernelspec"] | dict(display_name="Python 3"))
    folded = [cell for cell in opened["cells"] if cell["metadata"].get("jupyter", {}).get("outputs_hidden")]
    for cell in folded: cell["metadata"]["collapsed"] = True
    config.FileContentsManager.pre_save_hook(model=dict(type="notebook", content=opened), path="")
    assert folded and opened == page


READ_ONLY = """
import os, sys
{shell}
run("import numba_matmul")
access = os.access
os.access = lambda path, mode: mode != os.W_OK and access(path, mode)
run("%%writefile ../here/there.py\\nnew")
run("%%writefile new.py\\nnew")
run("\\n%%writefile -a nowhere/new.py\\nnew")
run("print('%%writefile goes', 'on')")
os.access = access
run("%%writefile there.py\\nchanged")
"""
SHELLS = {"ipykernel": "from ipykernel.inprocess.manager import InProcessKernelManager as M\nm = M(); "
                       "m.start_kernel(); c = m.client(); c.start_channels()\ndef run(text):\n    "
                       "c.execute(text)\n    while c.iopub_channel.msg_ready():\n        content = "
                       "c.get_iopub_msg()['content']\n        print(content.get('text', ''), "
                       "content.get('evalue', ''), end='')",
          "nbdev": "from execnb.shell import CaptureShell\nshell = CaptureShell()\ndef run(text):\n    for "
                   "out in shell.run(text): print(''.join(out.get('text', '')), out.get('evalue', ''), "
                   "end='')"}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("simulator", "01")
def test_a_script_that_cannot_be_written_is_left_with_a_line(shell, simulator, tmp_path):
    here = tmp_path/"here"
    here.mkdir()
    (here/"there.py").write_text("old")
    done = subprocess.run([sys.executable, "-c", READ_ONLY.format(shell=SHELLS[shell])], cwd=here,
                          capture_output=True,
                          text=True, env=environment() | dict(NUMBA_ENABLE_CUDASIM=simulator))
    said = [line.strip() for line in done.stdout.splitlines()]
    assert {"here/there.py was not written: the file is read-only.",
            "new.py was not written: the folder is read-only."} <= {*said}, done.stdout + done.stderr
    assert not (here/"new.py").exists()
    words = " ".join(done.stdout.split())  # ipykernel may send a print in several parts
    assert "No such file" in words and "goes on" in words and (here/"there.py").read_text() == "changed\n"


@without_gpu
def test_compiler_cells_are_skipped_only_where_there_is_no_compiler():
    done = python("""
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("import numba_matmul")
shell.run_cell("#| compiler\\nprint('compiled')")
from numba_matmul.sim import cells
cells.has_compiler = lambda: False
cells.skip_cells()
shell.run_cell("#| compiler\\nprint('compiled again')")
""")
    assert ("compiled\n" in done.stdout) == (find_spec("numba_cuda") is not None), done.stderr
    assert "needs numba-cuda" in done.stdout and "compiled again" not in done.stdout


@without_gpu
def test_ladder_without_a_gpu_shows_checks_and_recorded_speeds():
    done = ladder("--kernels", "1,5")  # each kernel is checked in test_kernels
    assert done.returncode == 0, done.stderr
    first = load_cards()[0]
    assert first["gpu"] in done.stdout and days(first) in done.stdout and "passed" in done.stdout
    assert "No speed was recorded" in ladder("--shape", "33", "34", "35", "--kernels", "1").stdout


@pytest.mark.parametrize("args,text", [
    (("--kernels", "9999"), "no kernel 9999"), (("--kernels", "1,x"), "'1,x'"),
    (("--kernels", ""), "--kernels ''"),
    (("--kernels", "1,1"), "each kernel once"), (("--size", "64,64"), "each size once"),
    (("--kernels", "１"), "--kernels '１'"), (("--size", "0"), "--size"),
    (("--size", "big"), "--size"), (("--size", ""), "--size ''"), (("--size", "64x32"), "--size"),
    (("--size", "64x0x32"), "--size"), (("--size", "６４"), "--size"), (("--size", "64,"), "--size"),
    (("--size", "64", "--shape", "1", "2", "3"), "only one of them"), (("--shape", "1", "0", "1"), "--shape"),
    (("--runs", "0"), "--runs"), (("--tune", "3"), "9, 10, 11, 12"), (("--plot", ""), "--plot ''"),
    (("--plot", "speeds.doc"), ".png or .svg or .pdf"),
    (("--plot", "no/such/folder/speeds.png"), "can't be written"), (("--json", ""), "--json"),
])
def test_nonsense_ends_in_one_line_and_status_2(args, text, monkeypatch, capsys):
    def asked(*_, **__): pytest.fail("asked after the work has begun")
    monkeypatch.setattr(ladder_module, "in_child", asked)
    with pytest.raises(SystemExit) as ended: ladder_module.main(**arguments(*args))
    said = capsys.readouterr().err
    assert ended.value.code == 2 and len(said.splitlines()) == 1 and text in said


def arguments(*args):
    "How the command line parses its arguments."
    found, rest = {}, list(args)
    while rest:
        name = rest.pop(0).removeprefix("--")
        if name == "shape": found[name], rest = [int(x) for x in rest[:3]], rest[3:]
        else: found[name] = int(rest.pop(0)) if name == "runs" else rest.pop(0)
    return found


def test_nonsense_on_the_command_line():
    done = ladder("--kernels", "9999")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "no kernel 9999" in done.stderr


def test_a_gpu_times_triton_only_with_all_kernels(monkeypatch):
    seen = []
    def run(kernels, others, *_):
        seen.append((len(kernels), len(others)))
        return [], None
    for name in "_in_simulator", "_on_gpu": monkeypatch.setattr(ladder_module, name, run)
    ladder_module.main(kernels="16"), ladder_module.main()
    assert seen == [(1, 0), (len(ladder_module.KERNELS), len(ladder_module.OTHERS))]


@without_gpu
def test_a_reader_who_has_seen_enough_sees_no_traceback():
    command = f"set -o pipefail; {sys.executable} -m numba_matmul.ladder --kernels 1 | head -1"
    done = subprocess.run(command, shell=True, executable="/bin/bash", capture_output=True, text=True,
                          env=environment(), cwd=ROOT)
    assert len(done.stdout.splitlines()) == 1 and done.stderr == ""


def test_progress_is_shown_on_a_terminal():
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    code = ("import time, numba_matmul\nfrom numba_matmul import ladder\nladder.in_child = lambda *_, **__: "
            "time.sleep(1.2)\nladder.main(kernels='1,2,3')")
    process = subprocess.Popen([sys.executable, "-c", code],
                               env=environment() | {"NUMBA_ENABLE_CUDASIM": "1"},
                               cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    try:
        while new := os.read(ours, 1 << 16): said += new
    except OSError: pass  # the end of a terminal
    os.close(ours)
    assert process.wait() == 0 and re.search(r"paths of kernels: +[1-9][0-9]%", said.decode())


@without_gpu
def test_ctrl_c_is_answered_in_one_line():
    code = ("import os, signal, numba_matmul\nfrom numba_matmul import ladder\nladder.in_child = lambda *_, "
            "**__: os.kill(os.getpid(), signal.SIGINT)\nladder.main()")
    done = python(code)
    assert done.returncode == 1 and done.stderr == "Interrupted: only finished results are kept.\n"


def test_a_gpu_that_cannot_run_a_kernel_leaves_it_out_with_a_line(capsys):
    kernels = list(ladder_module.KERNELS.values())
    def needing(*several): return [kernel for kernel in kernels if kernel.capability in several]
    assert ladder_module._able(kernels, (7, 5)) == needing((0, 0))
    said = capsys.readouterr().out
    assert "sgemm_async_copy is skipped: it needs compute capability 8.0, but this GPU has 7.5" in said
    assert (ladder_module._able(kernels, (8, 0)) == needing((0, 0), (8, 0))
            and ladder_module._able(kernels, (9, 0)) == kernels)
    assert ladder_module._able(kernels, (10, 0)) == needing((0, 0), (8, 0))  # wgmma is only for sm_90a


def test_a_size_that_a_kernel_leaves_to_another_gets_no_row(capsys):
    kernels = ladder_module.KERNELS.values()
    assert [kernel.name for kernel in kernels if not ladder_module._fits(kernel, (7, 4097, 64))] == [
        "bf16_gemm_tma_wgmma", "bf16_gemm_warp_specialized", "sgemm_tensor_cores", "fp8_gemm"]
    said = capsys.readouterr().out
    assert "bf16_gemm_tma_wgmma is skipped at 7×4097×64: n and k must be multiples of 8" in said
    assert "sgemm_tensor_cores is skipped at 7×4097×64: sgemm_stream_k does the work" in said
    assert "fp8_gemm isn't timed at 7×4097×64: scaled_mm needs multiples of 16" in said
    assert all(ladder_module._fits(kernel, (4096, 4096, 4096)) for kernel in kernels)


WRONG = """
import sys
from dataclasses import replace
from numba_matmul import ladder
from numba_matmul.kernels.k01_naive import sgemm_naive
def sgemm_wrong(a, b, c=None, alpha=1.0, beta=0.0):
    c = sgemm_naive(a, b, c, alpha, beta)
    if c.size: c[0, 0] = 1e6
    return c
ladder.KERNELS[1] = replace(ladder.KERNELS[1], fn=sgemm_wrong)
ladder.main(kernels="1,2")
"""


@without_gpu
def test_a_kernel_that_fails_its_check_gets_no_speed_and_status_1():
    done = python(WRONG)
    assert done.returncode == 1, done.stdout + done.stderr
    row = next(line for line in done.stdout.splitlines() if line.split()[:1] == ["1"])
    assert "FAILED" in row and row.count("–") == 4


@without_gpu
def test_several_sizes_are_all_shown():
    lines = ladder("--size", "1024,64x32x16,4096", "--kernels", "1").stdout.splitlines()
    assert [line.split()[2] for line in lines if line.startswith("1 ")] == [
        "1024×1024×1024", "64×32×16", "4096×4096×4096"]


@without_gpu
def test_json_without_a_gpu_is_refused(tmp_path):
    done = ladder("--json", str(tmp_path/"card.json"))
    assert done.returncode == 2 and not list(tmp_path.iterdir())


@without_gpu
def test_plot_is_written(tmp_path):
    assert ladder("--kernels", "1,2", "--plot", str(tmp_path/"speeds.png")).returncode == 0
    assert (tmp_path/"speeds.png").stat().st_size > 5000


@pytest.mark.parametrize("script", sorted((ROOT/"profiling_scripts").glob("*.py")), ids=lambda p: p.name)
def test_profiling_scripts_run(script):
    "In a fork that has the library; what chooses the simulator is imported first, as in the one below."
    first = re.search(r"^(?:from|import) (?!sys$)(\w+)", script.read_text(encoding="utf-8"), re.MULTILINE)
    assert first[1] == "util"
    def run():
        sys.path.insert(0, str(ROOT))
        runpy.run_path(str(script), run_name="__main__")
    in_fork(run)


def test_a_profiling_script_runs_alone():
    done = python(None, "profiling_scripts/01_naive.py")
    assert done.returncode == 0, done.stderr


def test_rows_of_another_software_leave_the_card_and_those_of_another_day_say_so(monkeypatch):
    rows = [dict(name=name, m=size, n=8, k=8) for name in ("sgemm_one", "sgemm_two") for size in (8, 16)]
    now = dict(date="2026-01-02", driver="1", versions=dict(numba="1"))
    dated = [row | dict(date="2026-01-01") for row in rows]
    for card, kept in ((now, rows[1:]), (now | dict(date="2026-01-01"), dated[1:]),
                       (now | dict(versions=dict(numba="2")), [])):
        monkeypatch.setattr(ladder_module, "gpu_card", lambda card=card: card | dict(speed=rows))
        assert ladder_module._rows_beside([dict(rows[0], ms=1.0)], now) == kept
    monkeypatch.setattr(ladder_module, "gpu_card", dict)
    assert ladder_module._rows_beside(rows, now) == []
