"""A sample of `make mutants`: mistakes in kernels are found, and the ones listed as impossible to find still
exist."""
import importlib
import subprocess
import sys

from conftest import ROOT, environment


def test_a_sample_of_mutants_is_found():
    command = [sys.executable, "tools/mutants.py", "--sample", "--jobs", "2"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0 and "100.0 % of 12 found" in done.stdout, done.stdout + done.stderr


def test_numbers_that_cannot_be_are_refused():
    for option, value in ("--jobs", "0"), ("--count", "-1"):
        done = subprocess.run([sys.executable, "tools/mutants.py", option, value], cwd=ROOT,
                              env=environment(), capture_output=True, text=True)
        assert done.returncode == 2 and f"'{value}': expected a whole number" in done.stderr


def test_results_are_kept(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT/"tools")
    tool = importlib.import_module("mutants")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    chosen, judged = tool.hand_made()[:3], []
    def run(mutants, jobs):
        for mutant in mutants: judged.append(mutant) or (yield mutant, f"{mutant.line}", 0.0)
    monkeypatch.setattr(tool, "run", run)
    for count in 2, 3, 3:
        found = dict(tool.results(chosen[:count], 1, tool.Kept()))
        assert found == {mutant: f"{mutant.line}" for mutant in chosen[:count]}
    assert judged == list(chosen)
    monkeypatch.setattr(tool, "PACKAGE", tmp_path)  # other sources
    assert not tool.Kept().messages
