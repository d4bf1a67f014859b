"""Is the machine code the same as at another commit? `make same-code BASE=<commit>`, without a GPU.

Everything in `tests/compiled.py` is compiled at both commits, for every target it supports. Names and line
tables may differ: the comparison covers registers, stack, shared memory, and the instructions with their
operands, one by one. `STAMP=1` then updates the fingerprints on the result cards and of the predictions:
a kernel whose machine code is unchanged keeps those that were current at that commit, although its source has
changed."""
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
    "What must stay the same in a `MachineCode`, as lines without names."
    head = (f"{code.registers} registers, {code.stack_bytes} bytes of stack, {code.shared_bytes} of shared "
            "memory")
    return [head, *(re.sub(r"_Z\w+|\$\w+", "name", f"{x.guard} {x.opcode} {x.operands}".strip())
                    for x in code.instructions)]


def compile_all(path):
    """Compile every case of this tree, and write label and listings by target: a kernel's cases are
    identified by their order. Also the fingerprints of all kernels, by GPU and name."""
    import numba_matmul  # noqa: F401  first: this chooses between the GPU and the simulator
    from numba_matmul.cards import code_of, load_cards
    from numba_matmul.compiler import machine_code
    from numba_matmul.registry import ALL
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
    codes = {card["gpu"]: {name: code_of(card, name) for name in ALL} for card in load_cards()}
    path.write_text(json.dumps(dict(cases=found, codes=codes)), encoding="utf-8")


def listings(tree, path):
    "The output of `compile_all` for a tree, from its own copy of this file."
    script = tree/"tools"/"same_code.py"
    if not script.exists():
        sys.exit(f"{tree.name} has no tools/same_code.py yet: choose a later commit")
    subprocess.run([sys.executable, script, "--compile", path], cwd=tree,
                   env=os.environ | {"PYTHONPATH": str(tree)},
                   check=True)
    made = json.loads(path.read_text(encoding="utf-8"))
    if "codes" not in made: sys.exit(f"{tree.name} doesn't tell fingerprints yet: choose a later commit")
    return made


def renew(codes, same):
    """Give speeds and predictions that were current the fingerprint of the present code, if they belong to a
    kernel whose machine code is unchanged."""
    from numba_matmul.cards import card_folder, code_of, write_whole
    from numba_matmul.registry import number_of
    renewed = {}  # fingerprint then → now
    for path in sorted(card_folder().glob("*.json")):
        card = json.loads(path.read_text(encoding="utf-8"))
        renewed |= {code: code_of(card, name) for name, code in codes.get(card["gpu"], {}).items()
                    if number_of(name) in same}
        rows = [row for row in card["speed"] if row.get("code") in renewed]
        for row in rows: row["code"] = renewed[row["code"]]
        write_whole(path, json.dumps(card, indent=1, allow_nan=False) + "\n")
        print(f"{path.name}: {len(rows)} speeds have the fingerprint of the present code")
    path = ROOT/"numba_matmul"/"predicted.py"
    text = path.read_text(encoding="utf-8")
    write_whole(path, re.sub(r"\b[0-9a-f]{12}\b", lambda code: renewed.get(code[0], code[0]), text))


def main(base, stamp):
    "Compare, print the differences, and exit with status 1 if there are any."
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)/base.replace("/", "-")
        added = subprocess.run(["git", "worktree", "add", "-q", "--detach", there, base], cwd=ROOT,
                               capture_output=True, text=True)
        if added.returncode:
            sys.exit(f"BASE={base} isn't a commit in this repository: {added.stderr.strip()}")
        try:
            was, made = listings(there, Path(folder)/"before"), listings(ROOT, Path(folder)/"after")
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", there], cwd=ROOT, check=True)
    # Cases in only one of the two, then the machine code of those in both.
    before, after = was["cases"], made["cases"]
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
    if stamp:
        def number(case): return int(re.search(r"\d+", case)[0])
        renew(was["codes"], {*map(number, before)} - {number(case) for case, _ in changed})
    sys.exit(bool(changed) or before.keys() != after.keys())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--compile"] and len(sys.argv) == 3: compile_all(Path(sys.argv[2]))
    elif len(sys.argv) == 2: main(sys.argv[1], stamp=False)
    elif len(sys.argv) == 3 and sys.argv[2] == "--stamp": main(sys.argv[1], stamp=True)
    else: sys.exit("make same-code BASE=<commit>, and STAMP=1 to renew the fingerprints on the cards")
