"""A sample of `make mutants`: mistakes in kernels are found, and the ones listed as impossible to find still
exist."""
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
