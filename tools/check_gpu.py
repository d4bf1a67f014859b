"""Check every kernel on this GPU: `make gpu STAGE=check`. Only some kernels or parts, without writing a
card: `KERNELS="15 16"`, `PARTS="new_threads large"`.

First come the PTX instructions, on the same random operands here and in the simulator. Then threads that call
a kernel or an operator before anything else; random sizes, views at odd addresses, guard bands around C that
must stay untouched; many launches of the kernels whose warps run at their own pace; launches that overlap, in
streams, threads and graphs; matrices of more than 2³² elements; and compute-sanitizer, which also runs on
small kernels that are correct or incorrect in subtle ways. Each part takes a few minutes at most, and is
saved once it passes, so an interrupted check continues where it stopped. The counts go to the result
card."""
import ast
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial
from itertools import product
from pathlib import Path

import numba_matmul  # noqa: F401  first: this chooses between the GPU and the simulator
import torch

from numba_matmul import torch_ops
from numba_matmul.arrays import current_gpu, result_dtype
from numba_matmul.registry import KERNELS, kernels_named
from numba_matmul.gemm import limits
from numba_matmul.cards import gpu_name, need_gpu, write_card, write_whole
from numba_matmul.bench.timing import assert_matmul_correct, progress
from numba_matmul.kernels.k19_float32_on_tensor_cores import LARGE, SMALL_ROWS, split
from numba_matmul.process import ChildError, children_at_once, end_idle_children, in_child
from numba_matmul.syntax import parsed

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT/"tests"), str(ROOT/"tools")]
import instructions  # noqa: E402  tests and tools aren't packages
import overlapping  # noqa: E402
import tricky  # noqa: E402

GUARD, GUARD_VALUE = 64, 12288.0  # representable in bfloat16
CASES = 1000  # over all kernels
REPEATS, REPEATED = 100, ((300, 520, 1000), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096))
TOOLS = "memcheck", "racecheck", "initcheck", "synccheck"
SANITIZED = (256, 256, 128), (37, 36, 40)  # m, n, k: one that fits all tiles, and one that fits none
PIECE = 2**28  # elements of a matrix compared at once: in float64, plus their absolute values, 4 GB
PATIENCE = 90  # seconds per tool and product
TRICKY_PATIENCE = 25  # seconds for small kernels; a wrong one may hang
STATE = ROOT/"profiles"/"check.json"  # the finished parts
# m, n, k: blocks share tiles, rows are misaligned; sums are long
OVERLAPPING = (1100, 700, 900), (300, 520, 4000)
OPERANDS = 8  # how many sets of random operands each case of an instruction gets


def framed(rows, columns, fill, dtype, step):
    """A matrix inside a larger buffer, at a random offset of `step` elements: the buffer, the matrix, and the
    position of its first element."""
    first = GUARD + random.randrange(0, 9, step)
    buffer = torch.full((first + rows * columns + GUARD,), fill, device="cuda", dtype=dtype)
    return buffer, buffer[first:first + rows * columns].view(rows, columns), first


def random_case(kernel):
    """One random product: sizes, factors, kind of array, addresses. Returns a description; raises
    `AssertionError` if the result is wrong."""
    m, n, k = (random.choice((random.randrange(0, 8), random.randrange(0, 150),
                              random.choice((32, 64, 128, 256, 255, 257)), random.randrange(0, 700)))
               for _ in range(3))
    step = 1  # then another kernel may do the work
    if random.random() < 0.75: step, (m, n, k) = kernel.multiple, kernel.fitted(m, n, k)
    alpha = random.choice((0.0, 1.0, -0.5, random.gauss(0, 1)))
    beta = random.choice((0.0, 1.0, random.gauss(0, 1)))
    case = f"{kernel.name} m={m} n={n} k={k} alpha={alpha} beta={beta}"
    dtype, dtype_c = (getattr(torch, name) for name in (kernel.dtype, result_dtype(kernel.dtype)))
    (_, a, _), (_, b, _), (buffer, c, first) = (
        framed(rows, columns, fill, kind, step)
        for rows, columns, fill, kind in ((m, k, torch.nan, dtype), (k, n, torch.nan, dtype),
                                          (m, n, GUARD_VALUE, dtype_c)))
    for x in (a, b, c): x.copy_(torch.randn(x.shape, device="cuda"))
    if beta == 0: c.fill_(torch.nan)
    if alpha == 0: a.fill_(torch.nan)
    # the parts can't represent it
    if kernel.number == 19 and min(m, k) and random.random() < 0.25: a[0, k // 2] = 1e-30
    before = c.clone()
    arrays = overlapping.numba_arrays((a, b, c)) if random.random() < 0.5 and min(m, n, k) else (a, b, c)
    if kernel.number == 19: arrays, kernel = in_any_way(kernel, arrays, k)
    kernel(*arrays, alpha, beta)
    if m and n: assert_matmul_correct(a, b, c, alpha, beta, c_before=before)
    bands = torch.cat((buffer[:first], buffer[first + m * n:]))
    assert bool((bands == GUARD_VALUE).all()), f"{case}: wrote outside c"
    return case


def in_any_way(kernel, arrays, k):
    "Arrays and call of kernel 19: with any tile or none, with split sums, or with B split in advance."
    a, b, c = arrays
    if random.random() < 0.25: b = split(b)
    tile = random.choice((None, LARGE, SMALL_ROWS))
    split_k = random.choice((None, 1, 2)) if tile and k > 128 else None
    return (a, b, c), partial(kernel.fn.func, tile=tile, split_k=split_k)


def many_launches(kernel, m, n, k):
    "The same product a hundred times, each time with new matrices and an output full of NaN."
    for _ in range(REPEATS):
        a, b, c = overlapping.matrices(kernel, m, n, k)
        assert_matmul_correct(a, b, kernel(a, b, c))


def large_case(kernel, m, n, k):
    """A product with a matrix of more than 2³² elements, or a grid wider than 65,535 blocks; compared in
    pieces."""
    if not kernel.pads or random.random() < 0.5: m, n, k = kernel.fitted(m, n, k)
    kinds = [getattr(torch, name) for name in (kernel.dtype, kernel.dtype, result_dtype(kernel.dtype))]
    a, b, c = (torch.empty(*shape, device="cuda", dtype=kind)
               for shape, kind in zip(((m, k), (k, n), (m, n)), kinds))
    for x in (a, b):
        for rows in x.split(2**14): rows.copy_(torch.randn(rows.shape, device="cuda"))
    c.fill_(torch.nan)
    kernel(a, b, c)
    rows = max(1, PIECE // max(n, k))
    columns = max(1, PIECE // max(min(rows, m), k))
    for i, j in product(range(0, m, rows), range(0, n, columns)):
        assert_matmul_correct(a[i:i + rows], b[:, j:j + columns], c[i:i + rows, j:j + columns])


def sanitized(tool, program, patience=PATIENCE):
    """The number of errors a compute-sanitizer tool finds in a run of a program; None if it doesn't answer.
    Also what was printed, and whether the program finished."""
    command = ["compute-sanitizer", "--tool", tool, "--report-api-errors", "no", sys.executable, *program]
    try: run = subprocess.run(command, capture_output=True, text=True, timeout=patience)
    except subprocess.TimeoutExpired: return None, "", False
    line = next((x for x in reversed(run.stdout.splitlines())
                 if "ERROR SUMMARY" in x or "RACECHECK SUMMARY" in x), None)
    count = line and sum(int(word) for word in line.replace("(", " ").split() if word.isdigit())
    return count, run.stdout + run.stderr, not run.returncode


def sanitize(kernel, shape):
    "What `sanitized` counts with each tool in one small product."
    counts, product = {}, ["--once", str(kernel.number), *map(str, kernel.fitted(*shape))]
    for tool in TOOLS:
        counts[tool], text, ended = sanitized(tool, [__file__, *product])
        if text and not (ended and counts[tool] is not None):
            sys.exit(f"compute-sanitizer --tool {tool}:\n{text[-6000:]}")
        if counts[tool]: print(text[-5000:])
    return counts


def find_tricky(*names):
    """The findings on small kernels on this GPU: in how many runs the result is wrong, and how many errors
    each compute-sanitizer tool counts. None: it didn't finish."""
    program = [tricky.__file__, str(overlapping.TIMES), *names]
    found = dict.fromkeys(("wrong results", *TOOLS))
    try:
        done = subprocess.run([sys.executable, *program], capture_output=True, text=True,
                              timeout=TRICKY_PATIENCE)
    except subprocess.TimeoutExpired: return found  # it wouldn't under a tool either
    if not done.returncode: found["wrong results"] = int(done.stdout)
    if shutil.which("compute-sanitizer"):
        for tool in TOOLS: found[tool], _, _ = sanitized(tool, program, PATIENCE)
    return found


def once(number, m, n, k):
    "One product, for compute-sanitizer."
    # C is full of NaN: initcheck doesn't see the TMA's stores, and would report C as unwritten
    a, b, c = overlapping.matrices(KERNELS[number], m, n, k)
    assert_matmul_correct(a, b, overlapping.by_itself(KERNELS[number])(a, b, c))


def agree(case, key, *seeds):
    """Runs the kernel of a case on the same random operands, on this GPU and in the simulator, each in a
    child: one that hangs is ended."""
    for seed in seeds:
        found, simulated = (in_child(fn, key, seed, simulator=simulator, keep=True, timeout=PATIENCE)
                            for fn, simulator in ((instructions.run_on_gpu, False), (instructions.run, True)))
        said = instructions.differences(key, seed, found, simulated, ("on the GPU", "in the simulator"))
        assert not said, said


def outcome(runs):
    "The number of runs (function, kernel or name, shape), and their failures."
    failed = []
    for fn, kernel, shape in runs:
        try: fn(kernel, *shape)
        except Exception as e:
            why = f"{type(e).__name__}: {e}"
            failed.append(f"{fn.__name__} of {getattr(kernel, 'name', kernel)} {shape}: {why}")
    return dict(runs=len(runs), failed=failed)


def instructions_part(kernels):
    capability = tuple(current_gpu().compute_capability)
    runs = [(agree, case, (key, *(random.randrange(2**32) for _ in range(OPERANDS))))
            for key, case in instructions.CASES.items() if limits.capable(capability, case.needs)]
    return outcome(progress(runs, "instructions"))


def new_threads_part(kernels):
    runs = [(overlapping.kernel_first, kernel, (shape,))
            for kernel, shape in product(kernels, REPEATED[:2] + OVERLAPPING[1:])]
    runs += [(overlapping.operator_first, name, (dtype,))
             for name, dtype in product(overlapping.OPERATORS, torch_ops.DTYPES)]
    return outcome(progress(runs, "new threads"))


def random_cases(kernel, count, seed):
    "Random products of one kernel."
    random.seed(seed), torch.manual_seed(seed)
    return outcome([(random_case, kernel, ())] * count)


def random_part(kernels):
    "Several kernels at the same time, each in a child, because most of the time is spent compiling."
    def cases(kernel, seed):
        try:
            return in_child(random_cases, kernel, -(-CASES // len(kernels)), seed, simulator=False, keep=True,
                            timeout=CASES)
        except ChildError as e:
            return dict(runs=0, failed=[f"{kernel.name}, random cases of seed {seed}: {e}"])
    with ThreadPoolExecutor(children_at_once(simulator=False)) as pool:
        seeds = [random.randrange(2**32) for _ in kernels]
        found = list(progress(pool.map(cases, kernels, seeds), "kernels"))
    end_idle_children(simulator=False)
    return dict(runs=sum(part["runs"] for part in found),
                failed=[text for part in found for text in part["failed"]])


def repeated_part(kernels):
    own_pace = [kernel for kernel in kernels if kernel.uses_tma]
    return outcome(list(product([many_launches], own_pace, REPEATED)))


def overlapping_part(kernels):
    runs = [*product(overlapping.TESTS, kernels, OVERLAPPING),
            *product([overlapping.used_workspace], {KERNELS[14]} & set(kernels), OVERLAPPING),
            *product(overlapping.OF_PARTS, (x for x in kernels if x.number == 19), OVERLAPPING)]
    return outcome([(fn, kernel, (shape,)) for fn, kernel, shape in progress(runs, "overlapping")])


def large_part(kernels):
    shapes = ((65600, 65600, 3), (65600, 2, 65600), (2, 65600, 65600), (3, 65535 * 128 + 5, 2),
              (65535 * 128 + 5, 3, 2))
    def run(kernel, *shape):
        try: large_case(kernel, *shape)
        finally: torch.cuda.empty_cache()
    runs = list(product([run], kernels, shapes))
    return outcome(progress(runs, "large"))


def sanitizer_part(kernels):
    if not shutil.which("compute-sanitizer"):
        return dict(runs=0, failed=[], errors={}, no_answer=[])
    runs, found, no_answer = list(product(kernels, SANITIZED)), {}, []
    with ThreadPoolExecutor(max(1, min(12, os.cpu_count() * 3 // 4))) as pool:
        counted = progress(pool.map(lambda run: sanitize(*run), runs), "sanitizer")
        for (kernel, shape), counts in zip(runs, counted):
            no_answer += [f"{tool} of {kernel.name} at {'×'.join(map(str, shape))}"
                          for tool, errors in counts.items() if errors is None]
            for tool, errors in counts.items(): found[tool] = found.get(tool, 0) + (errors or 0)
    return dict(runs=len(runs), failed=[], errors=found, no_answer=no_answer)


def tricky_part(kernels):
    "Nothing may be found in the correct small kernels; findings on the wrong ones go to the card."
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(tricky.WRONG, progress(pool.map(find_tricky, tricky.WRONG), "wrong kernels")))
    of_right = find_tricky(*(name for name, case in tricky.RIGHT.items() if not case.alarms))
    clean = all(count == 0 for count in of_right.values())  # None: no answer
    failed = [] if clean else [f"small kernels that are right: {of_right}"]
    return dict(runs=len(found) + 1, failed=failed, found=found)


PARTS = dict(instructions=instructions_part, new_threads=new_threads_part, random=random_part,
             repeated=repeated_part, overlapping=overlapping_part, large=large_part, sanitizer=sanitizer_part,
             tricky=tricky_part)


def code_in(path):
    "A module's code as text: its syntax tree without docstrings."
    tree, documented = parsed(path.read_text(encoding="utf-8")), (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node) is not None: del node.body[0]
    return ast.dump(tree)


def what_is_checked():
    "The GPU and the code loaded here: parts checked before count only if these are the same."
    code = hashlib.sha256()
    loaded = sorted(Path(module.__file__) for name, module in sys.modules.items()
                    if name.startswith(("numba_matmul", "instruction", "tricky")))  # the last two: tests/
    for path in loaded: code.update(code_in(path).encode())
    return f"{gpu_name()} {code.hexdigest()}"


def ended_parts():
    "The parts finished earlier, for this code on this GPU."
    try: state = json.loads(STATE.read_text(encoding="utf-8"))
    except (OSError, ValueError): return {}
    return state["parts"] if state.get("of") == what_is_checked() else {}


def main(wanted):
    need_gpu("STAGE=check")
    named = kernels_named([word for word in wanted if word not in PARTS], "STAGE=check",
                          f", and the parts {', '.join(PARTS)}")
    kernels = list(map(overlapping.by_itself, named))
    parts = [name for name in PARTS if name in wanted] or list(PARTS)
    ended = {} if wanted else ended_parts()
    for name in parts:
        if name in ended:
            print(f"{name}: checked before, {ended[name]['seconds']} s")
            continue
        seed, start = random.randrange(2**32), time.time()
        random.seed(seed), torch.manual_seed(seed)
        ended[name] = PARTS[name](kernels) | dict(seed=seed, seconds=round(time.time() - start))
        print(f"{name}: {ended[name]['runs']} runs, {len(ended[name]['failed'])} failed, "
              f"{ended[name]['seconds']} s")
        print(*ended[name]["failed"], sep="\n")
        if wanted or ended[name]["failed"]: continue  # failed parts are checked again
        STATE.parent.mkdir(exist_ok=True)
        passed = {name: part for name, part in ended.items() if not part["failed"]}
        write_whole(STATE, json.dumps(dict(of=what_is_checked(), parts=passed)))
    # Only a complete check without failures goes to the card.
    failed = [x for part in ended.values() for x in part["failed"]]
    tools = ended.get("sanitizer", dict(errors={}, no_answer=[]))
    runs = {name: part["runs"] for name, part in ended.items()}
    print(f"{sum(runs.values())} runs, {len(failed)} failed; sanitizer {tools['errors'] or 'not run'}"
          f"{', no answer from ' * bool(tools['no_answer'])}{', '.join(tools['no_answer'])}.")
    if failed or any(tools["errors"].values()):
        sys.exit("Nothing was written." if not wanted else 1)
    if wanted: return
    result = dict(date=date.today().isoformat(), kernels=[kernel.name for kernel in kernels],
                  seeds={name: part["seed"] for name, part in ended.items()}, runs=runs, failed=len(failed),
                  sanitizer_errors=tools["errors"], no_answer=tools["no_answer"],
                  wrong_kernels=ended["tricky"]["found"])
    print(f"Written: {write_card(dict(gpu=gpu_name(), check=result)).name}")
    STATE.unlink()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--once"]: once(*map(int, sys.argv[2:]))
    else: main(sys.argv[1:])
