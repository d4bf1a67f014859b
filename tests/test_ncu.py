"Nsight Compute: its tables are read, its errors come with a remedy, and predictions agree with its counts."
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, environment, minimal_card

from numba_matmul import ncu as ncu_module
from numba_matmul.cards import card_row, load_cards
from numba_matmul.ncu import (NcuError, _read, agreement, counted, merged_by_compiler, ncu,
                              shared_memory_bound, stalls)
from numba_matmul.registry import ALL, KERNELS

NAIVE = KERNELS[1].fn


def test_predictions_agree_with_what_was_counted():
    cards = load_cards("ncu")
    for card in cards:
        timed = {kernel.name for kernel in KERNELS.values() if card_row(card, kernel.name, 4096)}
        assert card["profiles"].keys() == timed
        assert card["profiles"].keys() <= {row["kernel"] for row in card["ncu"]}
    rows = [row for card in cards for row in card["ncu"]]
    assert rows
    for row in rows:
        if row["predicted"] == pytest.approx(row["counted"], rel=0.01): continue
        assert row["kernel"] in ALL and merged_by_compiler(ALL[row["kernel"]].fn, row["counter"]), row


def show(monkeypatch, *cards):
    "Make the tables find these cards, in this order."
    monkeypatch.setattr(ncu_module, "load_cards",
                        lambda *fields: [card for card in cards if card.keys() >= set(fields)])


@pytest.mark.parametrize("first", [True, False])
def test_a_card_with_the_required_fields_alone_changes_no_table(first, monkeypatch):
    cards = load_cards()
    def tables():
        return (agreement(NAIVE, KERNELS[3].fn), counted("sgemm_naive", "cycles"),
                shared_memory_bound("sgemm_smem_blocking"))
    before = tables()
    show(monkeypatch, *([minimal_card(), *cards] if first else [*cards, minimal_card()]))
    assert tables() == before and stalls("sgemm_naive").axes


def test_without_a_profile_the_tables_say_so(monkeypatch):
    card = minimal_card()
    show(monkeypatch, card)
    assert agreement(NAIVE) == "Not counted yet: sgemm_naive."
    assert "0 predictions" in agreement(NAIVE, differing=True)
    for call in (lambda: counted("sgemm_naive", "cycles"), lambda: shared_memory_bound("sgemm_naive"),
                 lambda: stalls("sgemm_naive")):
        with pytest.raises(NcuError, match="no recorded profile: run make gpu STAGE=ncu"): call()
    profile = {"shared load wavefronts": 0, "shared store wavefronts": 0, "cycles": 1}
    card |= dict(profiles=dict(sgemm_naive=profile), speed=[])
    assert "| sgemm_naive | not counted yet" in shared_memory_bound("sgemm_naive")  # no speed at that size
    card["speed"] = [dict(name="sgemm_naive", m=4096, n=4096, k=4096, gflops=card["peak_gflops"] / 4)]
    assert "| sgemm_naive | 0.000 | 100% | 25% |" in shared_memory_bound("sgemm_naive")
    assert "| sgemm_smem_blocking | not counted yet" in shared_memory_bound("sgemm_smem_blocking")


def fake_ncu(folder, text):
    "A program in place of Nsight Compute: a shell runs this text."
    (folder/"ncu").write_text(f"#!/bin/sh\n{text}\n")
    (folder/"ncu").chmod(0o755)
    return str(folder/"ncu")


@pytest.mark.parametrize("says,text", [
    ("echo '==ERROR== ERR_NVGPUCTRPERM'; exit 1", "NVreg_RestrictProfilingToAdminUsers"),
    ("echo '==WARNING== No kernels were profiled.'", "no kernel of that name"),
    ("echo broken >&2; exit 7", "status 7"),
])
def test_errors_of_ncu_come_with_their_remedy(tmp_path, says, text):
    fake, script = fake_ncu(tmp_path, says), tmp_path/"script.py"
    script.touch()
    with pytest.raises(NcuError, match=text): ncu(script, command=fake)
    with pytest.raises(NcuError, match="no file"): ncu(tmp_path/"nothing.py", command=fake)
    with pytest.raises(NcuError, match="not found"): ncu(script, command="no-such-program")


HEAD, UNITS = '"ID","Kernel Name","cycles.avg"', '"","","cycle"'


@pytest.mark.parametrize("lines,text", [
    ([], "no table"), ([HEAD], "no table"), ([HEAD, UNITS], "no table"),
    (["==PROF== Connected", "some last words"], "no table.*some last words"),
    ([HEAD, UNITS, '"0","k[1](A)","n/a"'], "reported n/a for cycles.avg.*--query-metrics"),
    ([HEAD, UNITS, '"0","k[1](A)"'], "reported nothing for cycles.avg"),
    (['"ID","Kernel Name","other.sum"', UNITS, '"0","k[1](A)","7"'], "reported nothing for cycles.avg"),
    (['"ID"', '""', '"0"'], "reported nothing for cycles.avg"),
])
def test_a_table_that_cannot_be_read_is_shown(lines, text, tmp_path):
    report = tmp_path/"a.ncu-rep"
    report.touch()
    fake = fake_ncu(tmp_path, "\n".join(["cat <<'END'", *lines, "END"]))
    with pytest.raises(NcuError, match=f"(?s){text}"):
        ncu(report, counters={"cycles": "cycles.avg"}, command=fake)


def test_launches_of_a_kernel_are_averaged():
    rows = ('"0","m::k[1](A)","1,000.5"', '"1","m::k[1](A)","2,000"', '"2","other(A)","7"')
    read = _read("\n".join(("==PROF==", HEAD, UNITS, *rows)), {"cycles": "cycles.avg"})
    assert read == {"k": {"cycles": 1500.25}, "other": {"cycles": 7}}


def profile_tool(folder, *numbers, **env):
    "The output of tools/profile_kernels.py in a copy of the project, and the files it leaves."
    for name in ("tools", "profiling_scripts"):
        shutil.copytree(ROOT/name, folder/name, ignore=shutil.ignore_patterns("__pycache__"))
    before = set(folder.iterdir())
    done = subprocess.run([sys.executable, "tools/profile_kernels.py", *numbers], cwd=folder,
                          env=environment() | env, capture_output=True, text=True)
    return done, {path.name for path in set(folder.iterdir()) - before}


@pytest.mark.parametrize("numbers,text", [
    (["05"], "ncu was not found"), (["x", "5"], "no script for 'x'; there are 01, 02"),
    (["05", "005", "9999"], "for '005' '9999';"), ([], "for nothing;")])
def test_profiling_that_cannot_be_ends_in_one_line_and_leaves_nothing(numbers, text, tmp_path):
    done, left = profile_tool(tmp_path, *numbers, PATH="")
    assert done.returncode == 1 and text in done.stderr and len(done.stderr.splitlines()) == 1 and not left


def test_a_kernel_is_profiled_under_its_number_with_or_without_the_zero(tmp_path):
    fake_ncu(tmp_path, "echo $* >> said")
    done, left = profile_tool(tmp_path, "5", PATH=f"{tmp_path}:/bin")
    said = (tmp_path/"said").read_text().splitlines()
    assert said[0] == "--version" and said[1].endswith("profiling_scripts/05_2d_blocktiling.py")
    assert "profiles" in left
    assert done.returncode == 1 and "there is no file" in done.stderr  # this ncu doesn't write one
