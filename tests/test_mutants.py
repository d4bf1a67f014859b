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
    def run(mutants, jobs, judge):
        for mutant in mutants:
            judged.append(mutant)
            yield mutant, mutant.rule * (mutant == chosen[0]), 0.0
    monkeypatch.setattr(tool, "run", run)
    def judged_now(count, *options):
        judged.clear()
        assert sorted(dict(tool.results(chosen[:count], 1, tool.Kept(*options))).values()) == [
            *[""] * (count - 1), chosen[0].rule]
        return [chosen.index(mutant) for mutant in judged]
    assert [judged_now(2), judged_now(3), judged_now(3)] == [[0, 1], [2], []]
    assert judged_now(3, True) == [1, 2]  # more tests may find what the others didn't
    monkeypatch.setattr(tool, "PACKAGE", tmp_path)  # other sources
    assert judged_now(1) == [0]
