"""Plant mistakes into the kernels, one at a time: does a check find each one, without a GPU? `make mutants`.

Each mistake from `mutant_rules` runs in a forked child that has everything loaded except the module with the
mistake and those that import it. Results are kept in build: another run on the same sources goes on from
there."""
import argparse
import ast
import hashlib
import importlib
import importlib.abc
import importlib.util
import json
import linecache
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from mutant_rules import (
    KERNELS, PACKAGE, ROOT, all_mutants, hand_made, listed, names_gone, path_of, sample)
from mutants_by_hand import EXCUSED

LIMIT = 15  # seconds per path: one that takes longer counts as hung


class Planted(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    "Loads one module from a given text."
    def __init__(self, module, text): self.module, self.text = module, text
    def find_spec(self, name, path=None, target=None):
        if name == self.module:
            return importlib.util.spec_from_loader(name, self, origin=str(path_of(name)))
    def exec_module(self, module):
        name = module.__file__ = str(path_of(self.module))
        linecache.cache[name] = len(self.text), None, self.text.decode().splitlines(True), name
        exec(compile(self.text, name, "exec"), module.__dict__)


@cache
def importers():
    "Module → those that import it, directly or indirectly."
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")
             if path.name not in ("__init__.py", "_modidx.py")}
    direct = {}
    for name, path in names.items():
        direct[name] = set()
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(node, ast.ImportFrom): continue
            above = name.split(".")[:-node.level] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            direct[name] |= {base, *(f"{base}.{alias.name}" for alias in node.names)} & names.keys()
    def reach(name, seen):
        for other, used in direct.items():
            if name in used and other not in seen: reach(other, seen.add(other) or seen)
        return seen
    return {name: reach(name, set()) for name in names}


def plant(module, text):
    "Reload the package's modules that use this one, with this text for it."
    for name in importers()[module] | {module}:
        if loaded := sys.modules.pop(name, None):
            parent, _, last = name.rpartition(".")
            if getattr(sys.modules[parent], last, None) is loaded:
                delattr(sys.modules[parent], last)
    sys.meta_path.insert(0, Planted(module, text))


def kernels_of(module):
    """The modules of the kernels that a mistake in this module may affect: its own, those that import it, all
    others."""
    reached = (importers()[module] | {module}) & set(KERNELS)
    short = module.rpartition(".")[2]
    def place(name):
        return name != module, f"{short} import" not in path_of(name).read_text("utf-8"), name
    return sorted(reached, key=place)


def in_order(kernel):
    "Its paths, the most effective first."
    def key(path):
        return (not path.options and kernel.tiles is not None, "mnk" not in path.name,
                np.prod(np.maximum(path.shape, 1)))
    return [(kernel, path) for path in sorted(kernel.paths, key=key)]


def path_finds(mutant):
    "The message of the first path that fails, or nothing."
    plant(mutant.module, mutant.mutated)
    try:
        check_path = importlib.import_module("numba_matmul.bench.verify").check_path
        kernels = [importlib.import_module(name).KERNEL for name in kernels_of(mutant.module)]
    except Exception as e: return f"import: {type(e).__name__}: {e}"
    first = 1 if mutant.module in KERNELS else len(kernels)  # its own kernel, or all of them in turn
    turns = [call for calls in zip_longest(*map(in_order, kernels[:first])) for call in calls if call]
    rest = [call for others in kernels[first:] for call in in_order(others)]
    for kernel, path in turns + rest:
        signal.alarm(LIMIT)
        try: check_path(kernel, path)
        except Exception as e: return f"{kernel.name}, {e}"
    return ""


# Tests of code that no path reaches, or that no path's result depends on.
FITTING = {
    "gemm.args": ("fp8", "plan"), "gemm.epilogue": ("torch_ops_layers", "fp8"), "gemm.fp8_cast": ("fp8",),
    "gemm.joined": ("split",), "gemm.limits": ("sim_barriers",), "gemm.plan": ("plan", "torch_ops_layers"),
    "gemm.scaled": ("fp8",), "gemm.split": ("split",), "gemm.tensor_maps": ("sim_copies",),
    "gemm.schedule": ("torch_ops_layers",),
    "kernels.k19_float32_on_tensor_cores": ("split", "torch_ops_float32"),
    "kernels.k20_fp8": ("fp8",)}


def tests_of(mutant, all_tests):
    "Arguments for pytest: selections of tests, those that fit best first."
    def files(*names): return [f"tests/test_{name}.py" for name in names]
    if fitting := FITTING.get(mutant.module.removeprefix("numba_matmul.")): yield files(*fitting)
    names = [importlib.import_module(kernel).KERNEL.name for kernel in kernels_of(mutant.module)]
    if mutant.module in KERNELS: names = names[:1]  # its own
    else: yield files("refused")
    shorts = " or ".join(name.partition("gemm_")[2] or name for name in names)  # without the type of matrices
    yield ["-k", f"({shorts}) and not every_tile", *files("refused", "choice", "estimates", "kernels")]
    if not all_tests: return
    yield ["-k", "not every_tile", *files("kernels")]
    # as in tests/test_paths.py
    from numba_matmul.registry import KERNELS as known
    bf16 = [kernel.name for kernel in known.values() if kernel.dtype == "bfloat16"]
    group = "-".join(bf16) if names[0] in bf16 or "gemm" in mutant.module else names[0]
    yield [f"tests/test_paths.py::test_paths[{group}]"]


def test_finds(mutant, all_tests):
    "The first test that fails in a copy of the project with the mistake, or nothing."
    left_out = shutil.ignore_patterns(".git", ".venv", "build", "_docs", "profiles", ".hypothesis")
    with TemporaryDirectory() as folder:
        copy = Path(folder)/"project"
        shutil.copytree(ROOT, copy, ignore=left_out)
        (copy/path_of(mutant.module).relative_to(ROOT)).write_bytes(mutant.mutated)
        for selection in tests_of(mutant, all_tests):
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *selection]
            environment = os.environ | {"PYTHONPATH": str(copy)}
            done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
            if done.returncode in (0, 5): continue  # 5: there is no such test
            found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.M)
            return found[1] if found else "tests/"
    return ""


def judge(mutant, all_tests):
    "In a child: the message of the first path that fails, the name of the first test, or nothing."
    if message := path_finds(mutant): return message
    signal.alarm(0)
    return test_finds(mutant, all_tests)


def fork(mutant, log, judge):
    "Start judging a mutant in a child; returns its number."
    child = os.fork()
    if child: return child
    sys.stderr = open(os.devnull, "w")
    message = judge(mutant)
    Path(log).write_text(message)
    os._exit(1 if message else 0)


def run(mutants, jobs, judge):
    "Yield (mutant, message, seconds); the message is empty if nothing finds it."
    with TemporaryDirectory() as folder:
        waiting, running = list(mutants)[::-1], {}
        while waiting or running:
            while waiting and len(running) < jobs:
                mutant = waiting.pop()
                log = f"{folder}/{len(waiting)}"
                running[fork(mutant, log, judge)] = mutant, log, time.monotonic()
            child, status = os.wait()
            mutant, log, start = running.pop(child)
            message = Path(log).read_text() if os.WIFEXITED(status) else f"no end within {LIMIT} s"
            yield mutant, message, time.monotonic() - start


def digest(paths):
    "A short hash of these files and their names."
    whole = hashlib.sha256()
    for path in sorted(paths):
        text = path.read_bytes()
        whole.update(b"%s %d " % (path.name.encode(), len(text)) + text)
    return whole.hexdigest()[:16]


class Kept:
    """What earlier runs found, with the same sources of the package and of the rules: mutant → message. One
    that nothing found is tried again if a test has changed."""
    def __init__(self, all_tests=False):
        self.tests = digest((ROOT/"tests").glob("*.py")) + " all" * all_tests
        own = Path(__file__), Path(__file__).with_name("mutant_rules.py")
        self.path = ROOT/"build"/f"mutants-{digest([*PACKAGE.rglob('*.py'), *own])}.jsonl"
        lines = self.path.read_text("utf-8").splitlines() if self.path.exists() else []
        self.messages = {tuple(mutant): message for mutant, message, tests in map(json.loads, lines)
                         if message or tests == self.tests}

    def add(self, mutant, message):
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([mutant, message, self.tests]) + "\n")


def results(mutants, jobs, kept, tests=False):
    "Yield (mutant, message): first the kept ones, then the others, which are kept as they come."
    known = kept.messages if kept else {}
    for mutant in mutants:
        if mutant in known: yield mutant, known[mutant]
    left = [mutant for mutant in mutants if mutant not in known]
    for mutant, message, _ in run(left, jobs, partial(judge, all_tests=tests)):
        if kept: kept.add(mutant, message)
        yield mutant, message


def load():
    "Load what all children share."
    sys.path.insert(0, str(ROOT))
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    import numba_matmul.bench.verify, numba_matmul.registry  # noqa: E401, F401


def table(title, key, mutants, survivors):
    "Print how many of each kind there were, and how many weren't found."
    counts, left = Counter(map(key, mutants)), Counter(map(key, survivors))
    print(f"{title:<32} planted  not found")
    for name, count in sorted(counts.items()): print(f"  {name:<30} {count:7} {left[name]:10}")


def whole(least):
    "An argparse type: a number that isn't too small."
    def number(text):
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, {least} or more")
        return int(text)
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=whole(0), default=240,
                        help="number of mutants made by rules; 0: all of them")
    parser.add_argument("--jobs", type=whole(1), default=os.cpu_count())
    parser.add_argument("--tests", action="store_true",
                        help="let all tests of the kernels look for mutants that no path finds")
    parser.add_argument("--sample", action="store_true", help="only twelve of the cheap kernels, for a test")
    parser.add_argument("--only", default="", help="part of a module's name")
    args = parser.parse_args()
    load()
    known = {(mutant.module.removeprefix("numba_matmul."), *mutant.change)
             for mutant in all_mutants() + hand_made()}
    if stale := [entry for entry in EXCUSED if entry not in known]:
        sys.exit(f"mutants_by_hand: there is no such mutant anymore: {stale}")
    if gone := names_gone(): sys.exit(f"mutant_rules: nothing has these names anymore: {', '.join(gone)}")
    chosen = list(hand_made()) if args.sample else sample(args.count or None) + list(hand_made())
    chosen = [mutant for mutant in chosen if args.only in mutant.module]
    mutants = [mutant for mutant in chosen if not listed(mutant)]
    if not chosen: sys.exit(f"no module's name contains {args.only!r}")
    if not mutants: sys.exit("all chosen mutants are listed as impossible to find")
    if args.sample:
        mutants = [mutant for mutant in sorted(mutants, key=lambda mutant: mutant.hash)
                   if mutant.module in KERNELS][:12]
    print(f"{len(all_mutants())} mutants by rules, {len(hand_made())} by hand; {len(chosen)} chosen, "
          f"{len(chosen) - len(mutants)} of them listed as impossible to find", flush=True)
    kept = None if args.sample else Kept(args.tests)
    if kept and (count := sum(mutant in kept.messages for mutant in mutants)):
        print(f"{count} results are kept in {kept.path.relative_to(ROOT)}", flush=True)
    survivors, start = [], time.monotonic()
    for mutant, message in results(mutants, args.jobs, kept, args.tests):
        if not message: survivors.append(mutant)
        if not message or message.startswith("tests/"):
            print(f"{f'only {message} finds' if message else 'SURVIVES'} {mutant}", flush=True)
    table("rule", lambda mutant: mutant.rule, mutants, survivors)
    table("module", lambda mutant: mutant.module.removeprefix("numba_matmul."), mutants, survivors)
    percent = 100 * (1 - len(survivors) / len(mutants))
    print(f"{percent:.1f} % of {len(mutants)} found, in {time.monotonic() - start:.0f} s")
    sys.exit(percent < 95)


if __name__ == "__main__": main()
