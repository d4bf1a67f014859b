"""Is the machine code the same as at another commit? `make same-code BASE=<commit>`, without a GPU.

Everything in `tests/compiled.py` is compiled here and there, for every target that can have it. Names and line tables
may differ: what is compared are registers, stack, shared memory, and the instructions with their operands, one by
one."""
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from difflib import unified_diff
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHOWN = 12  # lines of a difference


def listing(code):
    "What must stay the same of a `MachineCode`, as lines without names."
    head = f"{code.registers} registers, {code.stack_bytes} bytes of stack, {code.shared_bytes} of shared memory"
    return [head, *(re.sub(r"_Z\w+|\$\w+", "name", f"{x.guard} {x.opcode} {x.operands}".strip())
                    for x in code.instructions)]


def compile_all(path):
    "Compile every case of this tree, and write label and listings by target: a kernel's cases are known by their order."
    import numba_matmul  # first: it chooses between the GPU and the simulator
    from numba_matmul.compiler import machine_code
    from numba_matmul.sim.launch import launch_of
    from numba_matmul.bench.timing import progress
    sys.path.insert(0, str(ROOT/"tests"))
    from compiled import cases, targets
    def compiled(case):
        label, kernel, fn, shape = case
        launch = launch_of(fn, shape)
        return kernel.number, label, {target: listing(machine_code(launch.kernel, launch.signature, target))
                                      for target in targets(kernel)}
    found, count = {}, Counter()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for number, label, codes in progress(pool.map(compiled, cases()), "compiled"):
            found[f"kernel {number}, case {count[number]}"] = label, codes
            count[number] += 1
    path.write_text(json.dumps(found), encoding="utf-8")


def listings(tree, path):
    "Label and listings of a tree's cases, made by its own copy of this file."
    script = tree/"tools"/"same_code.py"
    if not script.exists(): sys.exit(f"{tree.name} has no tools/same_code.py yet: choose a later commit")
    subprocess.run([sys.executable, script, "--compile", path], cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)},
                   check=True)
    return json.loads(path.read_text(encoding="utf-8"))


def main(base):
    "Compare, print what differs, and end with status 1 if anything does."
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)/base.replace("/", "-")
        added = subprocess.run(["git", "worktree", "add", "-q", "--detach", there, base], cwd=ROOT,
                               capture_output=True, text=True)
        if added.returncode: sys.exit(f"BASE={base} is no commit of this repository: {added.stderr.strip()}")
        try: before, after = listings(there, Path(folder)/"before"), listings(ROOT, Path(folder)/"after")
        finally: subprocess.run(["git", "worktree", "remove", "--force", there], cwd=ROOT, check=True)
    for case in sorted(before.keys() ^ after.keys()):
        print(f"{case}, {(before | after)[case][0]}: only {'before' if case in before else 'after'}")
    def code(found, case, target): return found[case][1].get(target, [])
    both = [(case, target) for case in before.keys() & after.keys()
            for target in before[case][1].keys() | after[case][1].keys()]
    changed = [which for which in both if code(before, *which) != code(after, *which)]
    for case, target in sorted(changed):
        differing = unified_diff(code(before, case, target), code(after, case, target), lineterm="", n=0)
        print(f"{case}, {after[case][0]}, {target}:", *list(differing)[2:SHOWN], sep="\n  ")
    print(f"{len(both)} pieces of machine code compared with {base}: {len(changed)} differ.")
    sys.exit(bool(changed) or before.keys() != after.keys())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--compile"] and len(sys.argv) == 3: compile_all(Path(sys.argv[2]))
    elif len(sys.argv) == 2: main(sys.argv[1])
    else: sys.exit("make same-code BASE=<commit>")
