"""Check every kernel on this GPU: `make gpu STAGE=check`; only some of them, and then for the screen alone:
`KERNELS="15 16"`.

Random sizes, views at odd addresses, guard bands around C that must stay untouched, matrices of more than 2³² elements,
many launches of the kernels whose warps work at their own pace, and compute-sanitizer. The counts go to the result
card."""
import os
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from itertools import product

import numba_matmul  # first: it chooses between the GPU and the simulator
import torch
from numba import cuda

from numba_matmul.registry import KERNELS
from numba_matmul.cards import gpu_name, need_gpu, write_card
from numba_matmul.bench.timing import progress
from numba_matmul.bench.verify import assert_matmul_correct

GUARD, GUARD_VALUE = 64, 12288.0  # one that bfloat16 has, too
CASES = 1000  # over all kernels
REPEATS, REPEATED = 100, ((300, 520, 1000), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096))
TOOLS = "memcheck", "racecheck", "initcheck", "synccheck"
SANITIZED = (256, 256, 128), (37, 36, 40)  # m, n, k: one that fits all tiles, and one that fits none
PIECE = 2**28  # elements of a matrix that are compared at once: in float64, and again without sign, 4 GB
PATIENCE = 90  # seconds for a tool and a product


def framed(rows, columns, fill, dtype, step):
    """A matrix inside a larger buffer, at a random offset of `step` elements: the buffer, the matrix, and its first
    element's place."""
    first = GUARD + random.randrange(0, 9, step)
    buffer = torch.full((first + rows * columns + GUARD,), fill, device="cuda", dtype=dtype)
    return buffer, buffer[first:first + rows * columns].view(rows, columns), first


def random_case(kernel):
    """One random product: sizes, factors, kind of array, addresses. Returns what it was; raises `AssertionError` if it
    is wrong."""
    m, n, k = (random.choice((random.randrange(0, 8), random.randrange(0, 150),
                              random.choice((32, 64, 128, 256, 255, 257)), random.randrange(0, 700)))
               for _ in range(3))
    step = 1  # then another kernel may do the work
    if random.random() < 0.75: step, (m, n, k) = kernel.multiple, kernel.fitted(m, n, k)
    alpha, beta = random.choice((0.0, 1.0, -0.5, random.gauss(0, 1))), random.choice((0.0, 1.0, random.gauss(0, 1)))
    case = f"{kernel.name} m={m} n={n} k={k} alpha={alpha} beta={beta}"
    dtype = getattr(torch, kernel.dtype)
    (_, a, _), (_, b, _), (buffer, c, first) = (
        framed(rows, columns, fill, dtype, step)
        for rows, columns, fill in ((m, k, torch.nan), (k, n, torch.nan), (m, n, GUARD_VALUE)))
    a.normal_(), b.normal_(), c.normal_()
    if beta == 0: c.fill_(torch.nan)
    if alpha == 0: a.fill_(torch.nan)
    before = c.clone()
    kept = torch.uint16 if dtype == torch.bfloat16 else dtype
    arrays = ([cuda.as_cuda_array(x.view(kept)) for x in (a, b, c)] if random.random() < 0.5 and min(m, n, k)
              else (a, b, c))
    kernel(*arrays, alpha, beta)
    if m and n: assert_matmul_correct(a, b, c, alpha, beta, c_before=before)
    bands = torch.cat((buffer[:first], buffer[first + m * n:]))
    assert bool((bands == GUARD_VALUE).all()), f"{case}: wrote outside c"
    return case


def many_launches(kernel, m, n, k):
    "The same product a hundred times, each time of new matrices into an array of NaN."
    dtype = getattr(torch, kernel.dtype)
    for _ in range(REPEATS):
        a, b = (torch.randn(*shape, device="cuda").to(dtype) for shape in ((m, k), (k, n)))
        assert_matmul_correct(a, b, kernel(a, b, torch.full((m, n), torch.nan, device="cuda", dtype=dtype)))


def large_case(kernel, m, n, k):
    """A product in which a matrix has more than 2³² elements, or the grid is wider than 65,535 blocks; compared in
    pieces."""
    if not kernel.pads or random.random() < 0.5: m, n, k = kernel.fitted(m, n, k)
    dtype = getattr(torch, kernel.dtype)
    a, b, c = (torch.empty(*shape, device="cuda", dtype=dtype) for shape in ((m, k), (k, n), (m, n)))
    a.normal_(), b.normal_(), c.fill_(torch.nan)
    kernel(a, b, c)
    rows = max(1, PIECE // max(n, k))
    columns = max(1, PIECE // max(min(rows, m), k))
    for i, j in product(range(0, m, rows), range(0, n, columns)):
        assert_matmul_correct(a[i:i + rows], b[:, j:j + columns], c[i:i + rows, j:j + columns])


def sanitize(kernel, shape):
    "Number of errors that each tool of compute-sanitizer finds in one small product; None if it gives no answer."
    counts, shape = {}, kernel.fitted(*shape)
    for tool in TOOLS:
        command = ["compute-sanitizer", "--tool", tool, "--report-api-errors", "no", sys.executable, __file__,
                   "--once", str(kernel.number), *map(str, shape)]
        try: run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            counts[tool] = None
            continue
        line = next((x for x in reversed(run.stdout.splitlines())
                     if "ERROR SUMMARY" in x or "RACECHECK SUMMARY" in x), None)
        if line is None or run.returncode:
            sys.exit(f"compute-sanitizer --tool {tool}:\n{run.stdout[-3000:]}{run.stderr[-3000:]}")
        counts[tool] = sum(int(word) for word in line.replace("(", " ").split() if word.isdigit())
        if counts[tool]: print(run.stdout[-5000:])
    return counts


def once(number, m, n, k):
    "One product, for compute-sanitizer."
    dtype = getattr(torch, KERNELS[number].dtype)
    a, b = (torch.randn(*shape, device="cuda").to(dtype) for shape in ((m, k), (k, n)))
    assert_matmul_correct(a, b, KERNELS[number](a, b))


def main(numbers):
    need_gpu("STAGE=check")
    kernels = [KERNELS[number] for number in numbers or KERNELS]
    seed = random.randrange(2**32)
    random.seed(seed), torch.manual_seed(seed)
    start, failures, big = time.time(), [], 0
    for i in progress(range(CASES), "cases"):
        kernel = kernels[i % len(kernels)]
        try: random_case(kernel)
        except AssertionError as e: failures.append(f"{kernel.name}: {e}")
    for kernel, shape in product([kernel for kernel in kernels if kernel.uses_tma], REPEATED):
        try: many_launches(kernel, *shape)
        except AssertionError as e: failures.append(f"{kernel.name} {shape}, one of {REPEATS}: {e}")
    for kernel in progress(kernels, "large"):
        for m, n, k in ((65600, 65600, 3), (65600, 2, 65600), (2, 65600, 65600), (3, 65535 * 128 + 5, 2),
                        (65535 * 128 + 5, 3, 2)):
            try: large_case(kernel, m, n, k)
            except AssertionError as e: failures.append(f"{kernel.name} {m}×{n}×{k}: {e}")
            big += 1
            torch.cuda.empty_cache()
    found, no_answer = {}, []
    if shutil.which("compute-sanitizer"):
        runs = [(kernel, shape) for kernel in kernels for shape in SANITIZED]
        with ThreadPoolExecutor(max(1, min(8, os.cpu_count() // 2))) as pool:
            for (kernel, shape), counts in zip(runs, progress(pool.map(lambda run: sanitize(*run), runs), "sanitizer")):
                no_answer += [f"{tool} of {kernel.name} at {'×'.join(map(str, shape))}"
                              for tool, errors in counts.items() if errors is None]
                for tool, errors in counts.items(): found[tool] = found.get(tool, 0) + (errors or 0)
    else: print("compute-sanitizer was not found: skipped")
    print(*failures, sep="\n")
    result = dict(date=date.today().isoformat(), seed=seed, kernels=[kernel.name for kernel in kernels],
                  random_cases=CASES, large_cases=big, failed=len(failures), sanitizer_errors=found,
                  no_answer=no_answer)
    print(f"{CASES} random and {big} large cases, {len(failures)} failed; sanitizer {found or 'not run'}"
          f"{', no answer from ' * bool(no_answer)}{', '.join(no_answer)}; {time.time() - start:.0f} s.")
    if not numbers: print(f"Written: {write_card(dict(gpu=gpu_name(), check=result)).name}")
    if failures or any(found.values()): sys.exit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--once"]: once(*map(int, sys.argv[2:]))
    else: main([int(number) for number in sys.argv[1:]])
