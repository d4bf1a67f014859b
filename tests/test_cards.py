"Result cards: which are loaded, who may change one, and what a wheel contains."
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from conftest import ROOT, SCHEMA, environment, minimal_card
from numba import config

from numba_matmul import cards, exercise, ladder, fingerprint as of_code
from numba_matmul.bench.experiment import experiment, from_card
from numba_matmul.draw import draw_matmul
from numba_matmul.machine import draw_machine
from numba_matmul.process import callees
from numba_matmul.registry import ALL, KERNELS, kernels_named
from numba_matmul.report import readme
from numba_matmul.sim.launch import launch_of

without_gpu = pytest.mark.skipif(not config.ENABLE_CUDASIM, reason="there is a GPU")


@pytest.fixture
def results(tmp_path, monkeypatch):
    "An empty folder for cards."
    folder = tmp_path/"nbs"/"results"
    folder.mkdir(parents=True)
    for module in cards, readme: monkeypatch.setattr(module, "card_folder", lambda: folder)
    return folder


def keep(folder, card, name="invented-gpu.json"):
    (folder/name).write_text(json.dumps(card), encoding="utf-8")
    return folder/name


BROKEN = {
    "half.json": lambda path: path.write_text('{"gpu": "Half a'),
    "empty.json": lambda path: path.write_text(""),
    "list.json": lambda path: path.write_text("[]"),
    "latin.json": lambda path: path.write_bytes('{"gpu": "é"}'.encode("latin-1")),
    "other.json": lambda path: path.write_text('{"gpu": "No speeds"}'),
    "row.json": lambda path: path.write_text(json.dumps(minimal_card()
                                                        | dict(speed=[{"name": "sgemm_naive"}]))),
    "nan.json": lambda path: path.write_text(json.dumps(minimal_card() | dict(clock_mhz=float("nan")))),
    "folder.json": lambda path: path.mkdir(),
    "deep.json": lambda path: path.write_text("[" * 10**5),
    "dangling.json": lambda path: path.symlink_to("nowhere"),
    "circle.json": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_card_is_named_once_and_the_others_still_load(results, capsys, name):
    BROKEN[name](results/name)
    keep(results, minimal_card())
    for _ in range(3): assert [card["gpu"] for card in cards.load_cards()] == ["Invented GPU"]
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and name in said and str(results) not in said


def test_what_is_asked_of_cards_wrongly_is_told(results):
    for ask in (lambda: cards.load_cards(3), lambda: cards.load_cards(kernels=[None]),
                lambda: cards.recorded(None), lambda: cards.recorded("sgemm_naive", size="4096")):
        with pytest.raises(TypeError, match="is not a name|expected a whole number"): ask()
    with pytest.raises(LookupError, match="no result card has a speed"): draw_machine("l2")
    assert "hasn't been recorded" in cards.recorded("sgemm_naive", before="nonsense")  # neither has that
    keep(results, minimal_card())
    (row,) = minimal_card()["speed"]
    with pytest.raises(ValueError,
                       match=f"before is 'nonsense', but no result card has its speed at {row['m']}"):
        cards.recorded(row["name"], row["m"], before="nonsense")
    with pytest.raises(LookupError, match="doesn't have a speed for 'nonsense' at 4096"):
        cards.cycles_per_step(minimal_card(), "nonsense")
    for card in None, {}, [1]:
        with pytest.raises(ValueError, match="isn't a result card"): cards.write_card(card)
    for part in "nonsense", 3, ["l2"], None, "":
        with pytest.raises(ValueError, match="no part is called .*; expected some of dram"):
            draw_machine(part)
    for card in {}, "H100", [1]:
        with pytest.raises(ValueError, match="card must"): draw_machine("l2", card=card)
    for shapes in (1, 2, 3), ([[0]], [[0, 1]], [[0]]), ([[0]], [], [[0]]):
        with pytest.raises(ValueError, match="expected .m, k., .k, n. and .m, n."):
            draw_matmul(*shapes)
    with pytest.raises(LookupError, match="have the experiment 'nonsense'"):
        from_card(minimal_card(), "nonsense")
    with pytest.raises(TypeError, match="expected a function"): experiment("x", "ms", 3)
    with pytest.raises(TypeError, match="expected a dict"): experiment("x", "ms", dict, of=3)


def test_an_empty_word_on_a_command_line_is_told(monkeypatch, capsys):
    # fastcore drops it from sys.argv
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "numba_matmul", ""])
    with pytest.raises(SystemExit): ladder.main(kernels="1")
    assert "an argument is empty" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="no exercise ''; there are 00a"): exercise.main(keys=[])
    for words, wrong in (([""], "''"), (["5", "x"], "'x'"), (["0"], "'0'"), (["1.0"], "'1.0'"),
                         (["21", "-1"], "'21' or '-1'")):
        with pytest.raises(SystemExit, match=f"STAGE=ncu: there is no kernel {wrong}; there are 1 to 20"):
            kernels_named(words, "STAGE=ncu")
    assert [kernel.number for kernel in kernels_named(["05", "1", "5"], "")] == [5, 1]
    assert len(kernels_named([], "")) == 20


def test_cards_are_chosen_by_what_they_hold(results):
    few, many = minimal_card("A few"), minimal_card("Many") | dict(
        experiments={"x": dict(unit="ms", values={"y": 1.0}, date="2026-01-02")})
    keep(results, few, "a.json"), keep(results, many, "b.json")
    def found(*fields, **needs): return [card["gpu"] for card in cards.load_cards(*fields, **needs)]
    assert found() == ["Many", "A few"] and found("experiments") == ["Many"] and found("ncu") == []
    assert (found(kernels=["sgemm_naive"]) == ["Many", "A few"]
            and found(kernels=["sgemm_naive", "sgemm_gmem_coalescing"])
            == found(kernels=["sgemm_naive"], size=64) == [])


def test_a_changed_card_is_read_again(results):
    path = keep(results, minimal_card())
    assert cards.load_cards()[0]["date"] == minimal_card()["date"]
    keep(results, minimal_card() | dict(date="2027-02-03"))
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 1))
    assert cards.load_cards()[0]["date"] == "2027-02-03"


def test_only_its_gpu_changes_a_card_and_other_fields_stay(results, monkeypatch):
    path = keep(results, minimal_card() | dict(tuned={}))
    before = path.read_bytes()
    monkeypatch.setattr(cards, "_here", lambda: None)
    with pytest.raises(ValueError, match="only an Invented GPU can change its card, "
                                         "and this is a machine without a GPU"):
        cards.write_card(dict(gpu="Invented GPU", experiments={}))
    monkeypatch.setattr(cards, "_here", lambda: "Another GPU")
    with pytest.raises(ValueError, match="this is Another GPU"):
        cards.write_card(dict(gpu="Invented GPU", experiments={}))
    with pytest.raises(ValueError, match="the card of an Invented GPU"):
        cards.write_card(minimal_card("Another GPU"), path)
    with pytest.raises(ValueError, match="STAGE=ladder first"):
        cards.write_card(dict(gpu="Another GPU", experiments={}))
    assert path.read_bytes() == before and os.listdir(results) == [path.name]
    monkeypatch.setattr(cards, "_here", lambda: "Invented GPU")
    assert cards.write_card(dict(gpu="Invented GPU", experiments={})) == path
    assert json.loads(path.read_text(encoding="utf-8")) == minimal_card() | dict(tuned={}, experiments={})


def test_a_card_is_written_whole_or_not_at_all(results, monkeypatch):
    path = keep(results, minimal_card())
    before = path.read_bytes()
    monkeypatch.setattr(cards, "_here", lambda: "Invented GPU")
    for wrong in dict(speed=[]), dict(clock_mhz=float("nan")), dict(invented="field"), dict(date="yesterday"):
        with pytest.raises(ValueError): cards.write_card(dict(gpu="Invented GPU") | wrong)
    def full(self, *args, **kwargs): raise OSError(28, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", full)
        with pytest.raises(OSError): cards.write_card(dict(gpu="Invented GPU", experiments={}))
    assert path.read_bytes() == before and os.listdir(results) == [path.name]


def test_nothing_is_written_where_there_is_no_checkout(monkeypatch):
    monkeypatch.setattr(cards, "CHECKOUT", None)
    monkeypatch.setattr(cards, "_here", lambda: "Invented GPU")
    with pytest.raises(ValueError, match="checkout"): cards.write_card(minimal_card())


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    "The project in another folder, where a command may change it."
    target = tmp_path_factory.mktemp("elsewhere")/"matmul"
    shutil.copytree(ROOT, target, ignore=shutil.ignore_patterns(
        ".git", ".venv", "__pycache__", ".*_cache", "*.egg-info", "build", ".ipynb_checkpoints"))
    return target


def run(*command, cwd, **env):
    kept = {name: value for name, value in environment().items()
            if name not in ("PYTHON", "MAKEFLAGS", "MAKELEVEL")}
    return subprocess.run([str(x) for x in command], cwd=cwd, env=kept | env, capture_output=True, text=True)


def state(folder):
    return {path: path.read_bytes() for path in folder.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts}


@without_gpu
@pytest.mark.parametrize("stage", ["tune", "ladder", "calls", "notebooks", "ncu", "check"])
def test_every_stage_refuses_without_a_gpu_and_changes_nothing(elsewhere, stage):
    before = state(elsewhere)
    done = run("make", "gpu", f"STAGE={stage}", f"PYTHON={sys.executable}", cwd=elsewhere,
               PYTHONPATH=str(elsewhere))
    assert done.returncode and "GPU" in done.stderr and "Traceback" not in done.stderr
    assert state(elsewhere) == before


STAGES = """
import json, os, sys
import numba_matmul
from numba_matmul import cards
cards._here, cards.need_gpu = lambda: "Invented GPU", lambda what: None
sys.path.insert(0, "tools")
import run_notebooks
run_notebooks.need_gpu, run_notebooks.gpu_name = cards.need_gpu, cards._here
def command(names, env):
    if "fails" in names[-1]: return 1
    with open(env["MATMUL_RECORD"], "a") as notes: \
notes.write(json.dumps({names[-1]: dict(unit="ms", values=dict(x=1.0), date="2026-01-02")}) + "\\n")
    return 0
class Done:
    def __init__(self, status): self.returncode = status
run_notebooks.subprocess.run = lambda names, cwd, env: Done(command(names, env))
run_notebooks.main(sys.argv[1:])
"""


def test_experiments_reach_the_card_when_their_notebook_has_run_to_its_end(elsewhere):
    results, nbs = elsewhere/"nbs"/"results", elsewhere/"nbs"
    there = sorted(path.name for path in nbs.rglob("*.ipynb"))
    earlier = {"earlier": dict(unit="ms", values=dict(x=2.0), date="2026-01-01")}
    path = keep(results, minimal_card() | dict(experiments=earlier))
    def kept(): return sorted(json.loads(path.read_text(encoding="utf-8"))["experiments"])
    path_there = os.pathsep.join((str(elsewhere), environment()["PYTHONPATH"]))
    def stage(*names):
        return run(sys.executable, "-c", STAGES, *names, cwd=elsewhere, PYTHONPATH=path_there,
                   MATMUL_GPU="Invented GPU")
    try:
        assert stage("01_naive").returncode == 0 and kept() == ["01_naive.ipynb", "earlier"]
        shutil.copy(nbs/"01_naive.ipynb", nbs/"02_fails.ipynb")
        done = stage()
        # what came before it stays
        assert done.returncode and "02_fails.ipynb failed" in done.stderr and kept()[-1] == "earlier"
        (nbs/"02_fails.ipynb").unlink()
        assert stage().returncode == 0 and kept() == there  # experiments that no notebook makes are dropped
    finally: path.unlink(), (nbs/"02_fails.ipynb").unlink(missing_ok=True)


@without_gpu
def test_a_wheel_has_the_cards_and_works_outside_of_the_checkout(elsewhere, tmp_path):
    pip = sys.executable, "-m", "pip", "--disable-pip-version-check"
    shutil.copytree(elsewhere, tmp_path/"source")
    built = run(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, ".",
                cwd=tmp_path/"source")
    assert built.returncode == 0, built.stderr
    (wheel,), venv = tmp_path.glob("*.whl"), tmp_path/"venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=tmp_path)
    (site,) = venv.glob("lib/python*/site-packages")
    # and not this project, which is elsewhere
    (site/"dependencies.pth").write_text(os.path.dirname(os.path.dirname(pytest.__file__)))
    assert run(*pip, "install", "-q", "--no-deps", "--target", site, wheel, cwd=tmp_path).returncode == 0
    def python(*args): return run(venv/"bin"/"python", *args, cwd=tmp_path, PYTHONPATH="")
    done = python("-c", "import numba_matmul; from util import *; print(numba_matmul.__file__); "
                        "[print(card['gpu'], len(card['speed'])) for card in load_cards()]")
    place, *said = done.stdout.splitlines()
    assert (place.startswith(str(site))
            and said == [f"{card['gpu']} {len(card['speed'])}" for card in cards.load_cards()])
    before = state(site)
    done = python("-m", "numba_matmul.ladder", "--kernels", "1")
    assert (done.returncode == 0 and f"recorded on one {cards.load_cards()[0]['gpu']}, " in done.stdout
            and "–" not in done.stdout), done.stdout + done.stderr
    done = python("-m", "numba_matmul.ladder", "--readme")
    assert (done.returncode == 2
            and done.stderr == "matmul-ladder: --readme: the course's checkout isn't here\n")
    assert state(site) == before


def test_readme_without_a_card_is_refused(results, capsys):
    with pytest.raises(SystemExit): ladder.main(readme=True)
    assert "run make gpu STAGE=ladder first" in capsys.readouterr().err
    keep(results, minimal_card(size=512))
    with pytest.raises(SystemExit): ladder.main(readme=True)


@without_gpu
def test_a_ladder_that_is_interrupted_keeps_the_sizes_that_had_ended(results, monkeypatch):
    "Without a GPU: its measurements are made up."
    kernels, smaller, larger = list(ladder.KERNELS.values())[:2], (256,) * 3, (512,) * 3
    earlier = minimal_card()
    keep(results, earlier)
    monkeypatch.setenv("MATMUL_GPU", earlier["gpu"])
    def measure(kernel, shape, runs):
        if shape == larger and kernel is kernels[1]: raise KeyboardInterrupt
        return earlier["speed"][0] | dict(zip("mnk", shape), name=kernel.name, runs=runs)
    made_up = dict(measure=measure, _wrong=lambda kernels: {},
                   machine=lambda: {name: value for name, value in earlier.items() if name != "speed"},
                   clocks=lambda: earlier.get("clocks", {}).get("before", {}),
                   _check_memory=lambda shapes: None,
                   current_gpu=lambda: SimpleNamespace(compute_capability=(9, 0)))
    for name, value in made_up.items(): monkeypatch.setattr(ladder, name, value)
    with pytest.raises(KeyboardInterrupt): ladder._on_gpu(kernels, [], [smaller, larger], 7, "card")
    kept = {(row["name"], row["m"]): row["runs"] for row in cards.load_cards()[0]["speed"]}
    for row in earlier["speed"]: assert (row["name"], row["m"]) in kept
    assert [kept.get((kernel.name, size)) for size in (256, 512) for kernel in kernels] == [7, 7, None, None]
    ladder._on_gpu(kernels[1:], [], [(384,) * 3], 7, "card")
    assert [row["m"] for row in cards.load_cards()[0]["speed"]][:3] == [256, 256, 384]  # by size, not by day


def test_without_a_card_the_ladder_says_so(results, capsys):
    ladder.main(kernels="1")
    said = capsys.readouterr().out
    assert "no recorded speeds" in said and "None" not in said


def test_a_check_that_was_interrupted_goes_on_where_it_was(tmp_path, monkeypatch, capsys, valid):
    "The parts of tools/check_gpu.py, without a GPU: their findings are made up."
    spec = importlib.util.spec_from_file_location("check_gpu", ROOT/"tools"/"check_gpu.py")
    check_gpu = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check_gpu)
    asked, kernels_of, written, found = [], [], [], dict(runs=3, failed=[], errors={}, no_answer=[])
    sanitizers = {"a_kernel": {"wrong results": 3, "memcheck": 0, "racecheck": None}}
    def part(name, result=found, ends=True):
        def run(kernels):
            asked.append(name)
            if len(kernels) < 18: kernels_of.append([kernel.number for kernel in kernels])
            if not ends: raise KeyboardInterrupt
            return dict(result)
        return run
    for name, value in dict(need_gpu=lambda stage: None, gpu_name=lambda: "Invented GPU",
                            STATE=tmp_path/"check.json",
                            write_card=lambda card: written.append(card) or tmp_path/"card.json").items():
        monkeypatch.setattr(check_gpu, name, value)
    monkeypatch.setattr(check_gpu, "PARTS", dict(random=part("random"), large=part("large"),
                                                 tricky=part("tricky", found | dict(found=sanitizers)),
                                                 sanitizer=part("sanitizer", ends=False)))
    with pytest.raises(KeyboardInterrupt): check_gpu.main([])
    assert asked == ["random", "large", "tricky", "sanitizer"] and not written
    monkeypatch.setitem(check_gpu.PARTS, "sanitizer", part("sanitizer"))
    check_gpu.main([])
    assert asked[4:] == ["sanitizer"] and not check_gpu.STATE.exists()
    assert capsys.readouterr().out.count("checked before") == 3
    valid(written[0]["check"], SCHEMA["properties"]["check"] | {"$defs": SCHEMA["$defs"]})
    monkeypatch.setattr(check_gpu, "what_is_checked", lambda: "other code")  # then nothing is saved
    monkeypatch.setitem(check_gpu.PARTS, "large", part("large", found | dict(failed=["wrong"])))
    with pytest.raises(SystemExit): check_gpu.main([])
    assert asked[5:] == ["random", "large", "tricky", "sanitizer"]
    # Some parts and kernels, without writing a card.
    del asked[:], written[:]
    check_gpu.main(["16", "tricky", "random", "01", "1"])
    assert (asked, kernels_of, written) == (["random", "tricky"], [[16, 1]] * 2, [])
    for wrong in ("99", "", "harge", "1.5"):
        with pytest.raises(SystemExit,
                           match=f"STAGE=check: there is no kernel '{wrong}'; there are 1 to 20, and the "
                                 "parts random, "):
            check_gpu.main(["1", wrong])


EDITS = {  # file, text, replacement → is the code different?
    "a tile": ("kernels/k05_2d_blocktiling.py", "TILE = Tile(bm=128", "TILE = Tile(bm=64", True),
    "a line of the kernel": ("kernels/k05_2d_blocktiling.py", "k0 += bk", "k0 += uint32(bk)", True),
    "an option of the compiler": ("kernels/k05_2d_blocktiling.py", "lineinfo=True", "lineinfo=False", True),
    "a property of the tile": ("gemm/tiles.py", "def threads(self): return ",
                               "def threads(self): return 1 * ", True),
    "a comment": ("kernels/k05_2d_blocktiling.py", "# rows per pass", "# something else", False),
    "a docstring": ("kernels/k05_2d_blocktiling.py", "Kernel 5 for a tile", "For a tile, kernel 5", False),
    "a message": ("kernels/k05_2d_blocktiling.py", "bm must be a multiple of tm",
                  "bm has to be a multiple of tm", False),
    "a test": ("kernels/k05_2d_blocktiling.py", '"its own tile", (37', '"its own tile", (39', False),
    "the short kernel of the lesson": ("kernels/k05_2d_blocktiling.py", "dot += 1", "dot += 2", False),
    "another kernel": ("kernels/k06_vectorized.py", "k0 += bk", "k0 += uint32(bk)", False),
    "what launches it": ("gemm/plan.py", "MAX_PLANS = 5000", "MAX_PLANS = 4000", False),
}


@pytest.mark.parametrize("what", EDITS)
def test_what_makes_other_code(what, tmp_path, monkeypatch):
    "Kernel 5's."
    for name in "kernels", "gemm", "ptx":
        shutil.copytree(ROOT/"numba_matmul"/name, tmp_path/name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(of_code, "PACKAGE", tmp_path)
    def made():
        for kept in of_code._module, of_code._home_of, of_code._reached, of_code.fingerprint:
            kept.cache_clear()
        return of_code.fingerprint("sgemm_2d_blocktiling")
    before = made()
    name, old, new, other = EDITS[what]
    text = (tmp_path/name).read_text(encoding="utf-8")
    assert old in text
    (tmp_path/name).write_text(text.replace(old, new), encoding="utf-8")
    assert (made() != before) == other
    monkeypatch.undo()
    made()


def test_a_kernels_code_is_found_where_it_stands():
    def found(name): return {one for _, one in of_code.definitions(name)}
    few = {"sgemm_2d_blocktiling", "sgemm_2d_blocktiling_kernel", "TILE", "Tile"}
    assert found("sgemm_2d_blocktiling") == few
    reached = found("bf16_gemm_past_cublas")
    assert {"copy_padded_kernel", "wgmma_multiplier", "split_k_epilogue", "mbarrier_init"} < reached
    assert of_code.definitions("sgemm_nonsense") == {}
    assert len({of_code.fingerprint(name) for name in ALL}) == len(ALL)
    instruction = of_code.definitions("bf16_gemm_tma_wgmma")["ptx/hopper.py", "mbarrier_init"]
    assert "mbarrier.init.shared::cta.b64" in instruction


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=lambda kernel: kernel.name)
def test_no_function_of_a_launch_is_missed(kernel):
    launch = launch_of(kernel.fn, kernel.fitted(128, 128, 64))
    reached = {(fn.__module__.removeprefix("numba_matmul.").replace(".", "/") + ".py",
                fn.__qualname__.split(".")[0])
               for fn in callees(launch.kernel.py_func)}
    assert reached <= of_code.definitions(kernel.name).keys()


@pytest.mark.parametrize("path", sorted((ROOT/"nbs"/"results").glob("*.json")), ids=lambda p: p.name)
def test_every_speed_knows_its_code(path):
    assert all("code" in row for row in json.loads(path.read_text(encoding="utf-8"))["speed"])


def test_a_name_for_a_list_of_names_is_refused():
    with pytest.raises(TypeError, match="expected a list of names"):
        cards.load_cards(kernels="sgemm_naive")
