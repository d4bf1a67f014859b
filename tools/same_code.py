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
    "Compile every case of this tree, and write the listings by label and target."
    import numba_matmul  # first: it chooses between the GPU and the simulator
    from numba_matmul.compiler import machine_code
    from numba_matmul.sim.launch import launch_of
    from numba_matmul.bench.timing import progress
    sys.path.insert(0, str(ROOT/"tests"))
    from compiled import cases, targets
    def compiled(case):
        label, kernel, fn, shape = case
        launch = launch_of(fn, shape)
        return label, {target: listing(machine_code(launch.kernel, launch.signature, target))
                       for target in targets(kernel)}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(progress(pool.map(compiled, cases()), "compiled"))
    path.write_text(json.dumps(found), encoding="utf-8")


def listings(tree, path):
    "The listings of a tree, made by its own copy of this file."
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
    for label in before.keys() ^ after.keys(): print(f"{label}: only {'before' if label in before else 'after'}")
    both = [(label, target) for label in before.keys() & after.keys()
            for target in before[label].keys() | after[label].keys()]
    changed = [(label, target) for label, target in both if before[label].get(target) != after[label].get(target)]
    for label, target in sorted(changed):
        differing = unified_diff(before[label].get(target, []), after[label].get(target, []), lineterm="", n=0)
        print(f"{label}, {target}:", *list(differing)[2:SHOWN], sep="\n  ")
    print(f"{len(both)} pieces of machine code compared with {base}: {len(changed)} differ.")
    sys.exit(bool(changed) or before.keys() != after.keys())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--compile"]: compile_all(Path(sys.argv[2]))
    elif len(sys.argv) == 2: main(sys.argv[1])
    else: sys.exit("make same-code BASE=<commit>")
