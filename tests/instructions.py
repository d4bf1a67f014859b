"""Every PTX instruction that `bind` knows, on random operands.

`tests/test_ptx_bodies.py` runs the kernels of `instruction_kernels.py` in the simulator, `make gpu
STAGE=check` on a GPU and in the simulator."""
import ast
import os
import sys
import traceback
from pathlib import Path

import numba_matmul  # first: this chooses between the GPU and the simulator
import numpy as np

import instruction_kernels  # noqa: F401  it fills the table of cases
from instruction_cases import CASES, Cluster, Map, Maps, Near, Out
from numba import config
from numba_matmul.arrays import to_d, to_h
from numba_matmul.gemm.args import span
from numba_matmul.gemm.plan import Launch, PackedPlan, Plan, simulate_plan
from numba_matmul.gemm.tensor_maps import TensorMapWords, map_of

SHOWN = 5  # different results in a message


def bound():
    "The names of all functions that `bind` decorates, in the package's source."
    sources = (path.read_text(encoding="utf-8") for path in Path(numba_matmul.__file__).parent.rglob("*.py"))
    trees = (ast.parse(source) for source in sources if "bind(" in source)
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
            for mark in node.decorator_list
            if isinstance(mark, ast.Call)
            and getattr(mark.func, "attr", getattr(mark.func, "id", "")) == "bind"}


def run(key, seed):
    "A case's results in this process, on a GPU or in the simulator: a list of arrays."
    kernel, threads, args, _ = CASES[key].operands(seed)
    kept, found = [], []

    def on_device(arg):
        if isinstance(arg, Map): return map_of(on_device(arg.of), arg.rows)
        if isinstance(arg, Maps): return TensorMapWords(*((on_device(x.of), x.rows) for x in arg.maps)).words
        if not isinstance(arg, (Out, np.ndarray)): return arg
        array = to_d(arg.array if isinstance(arg, Out) else arg)
        kept.append(array)  # what a tensor map describes must stay alive
        if isinstance(arg, Out): found.append(array)
        return array
    args = tuple(map(on_device, args))
    if not isinstance(threads, Cluster): kernel[1, threads](*args)
    else:
        plan = Plan([Launch(kernel, threads.blocks, threads.threads, args, cluster=threads.blocks)])
        if config.ENABLE_CUDASIM: simulate_plan(plan)
        else: PackedPlan(plan, kept)([span(array)[0] for array in kept], 0)
    return [to_h(array) for array in found]


def run_on_gpu(key, seed):
    "`run` in a child that ends at an error: after one, a process can't use its GPU anymore."
    try: return run(key, seed)
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def differences(key, seed, found, other, names):
    "The differences beyond a case's tolerance between two lists of results, as text; empty if none."
    (_, _, args, results), said = CASES[key].operands(seed), []
    for number, (x, y, wanted) in enumerate(zip(found, other, results, strict=True)):
        x, y = np.asarray(x), np.asarray(y)
        assert x.dtype == y.dtype and x.shape == y.shape, f"{x.dtype}{x.shape}, {y.dtype}{y.shape}"
        bits = f"u{x.dtype.itemsize}"
        wrong = x.view(bits) != y.view(bits)
        if isinstance(wanted, Near):
            with np.errstate(all="ignore"): far = ~(np.abs(x.astype(float) - y.astype(float)) <= wanted.bound)
            wrong &= far & ~(np.isnan(x) & np.isnan(y))
        for at in np.argwhere(wrong)[:SHOWN].tolist():
            at = tuple(at)
            both = (f"{array[at]} = {int(array.view(bits)[at]):#x} {name}" for array,
                    name in zip((x, y), names))
            said.append(f"result {number} at {at}: {', '.join(both)}")
        if wrong.any(): said.append(f"{wrong.sum()} of {wrong.size} are different")
    operands = (x.of if isinstance(x, Map) else x for x in args)
    operands = [np.array2string(x, threshold=40) for x in operands if isinstance(x, np.ndarray)]
    return "\n  ".join([*said, f"operands (seed {seed}): {'; '.join(operands)}"] if said else [])
