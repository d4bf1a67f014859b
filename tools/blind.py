"""A blind test of the model: kernels as readers write them, predicted first, timed afterward.

    python tools/blind.py check 2     # in the simulator: is every kernel of the second round right?
    python tools/blind.py predict 2   # needs no GPU: writes tests/readers/predicted_2.json
    python tools/blind.py time 2      # on a GPU: writes tests/readers/measured_2.json
    python tools/blind.py now 2       # what today's model says, no longer blind: now_2.json

The first round has the kernels of loops.py and tiles.py in tests/readers, and the solutions that exercises
accept besides the lesson's own; the second those of simple.py and fast.py; the third those of first_steps.py
and register_tiles.py; the fourth those of from_memory.py and in_registers.py. A round's predictions are
committed before its kernels are timed, and stay as they were."""
import fcntl
import json
import os
import statistics
import subprocess
import sys
import time
from datetime import date
from functools import partial
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT/"tests")]
import numba_matmul  # noqa: E402, F401  first: this chooses between the GPU and the simulator
import numpy as np  # noqa: E402
from numba_matmul.exercise import exercises  # noqa: E402
from numba_matmul.kernels import (  # noqa: E402
    k03_smem_blocking, k04_1d_blocktiling, k05_2d_blocktiling, k06_vectorized, k07_bank_conflicts_linearize,
    k08_bank_conflicts_padding, k10_warptiling, k11_double_buffering, k12_async_copy)
from numba_matmul.source import with_constants  # noqa: E402

FOLDER, SIZE = ROOT/"tests"/"readers", 4096
PAGES = {"01": None, "02": None, "03": k03_smem_blocking, "04": k04_1d_blocktiling, "05": k05_2d_blocktiling,
         "06": k06_vectorized, "07": k07_bank_conflicts_linearize, "07b": k07_bank_conflicts_linearize,
         "08": k08_bank_conflicts_padding, "10": k10_warptiling, "11": k11_double_buffering,
         "12": k12_async_copy}
GPUS = "NVIDIA H100 80GB HBM3", "NVIDIA H200"


MODULES = {"1": ("loops", "tiles"), "2": ("simple", "fast"), "3": ("first_steps", "register_tiles"),
           "4": ("from_memory", "in_registers")}


def kernels(number):
    "The kernels of a round by name, with their launch configurations."
    found = {name: kernel for module in MODULES[number]
             for name, kernel in import_module(f"readers.{module}").KERNELS.items()}
    if number != "1": return found
    for key, page in PAGES.items():
        exercise = exercises()[key]
        constants = {name: getattr(page, name) for name in exercise.constants}
        for name in exercise.solutions:
            if name == "reference": continue
            kernel = with_constants(exercise.build(name), constants)
            found[f"{key}: {name}"] = kernel[exercise.launch(SIZE, SIZE)]
    return found


def written(number):
    "The kernels of a later round by name, as `readers.written.Written`; none of the first."
    return {} if number == "1" else {name: one for module in MODULES[number]
                                     for name, one in import_module(f"readers.{module}").WRITTEN.items()}

def arguments(number, name, a, b, c):
    "What a kernel of a round is called with."
    one = written(number).get(name)
    return one.arguments(a, b, c) if one else (a, b, c)

def check_all(number):
    "Small products in the simulator, compared with numpy's."
    assert number != "1", "the launches of the first round are for 4096 only"
    random, wrong = np.random.default_rng(0), []
    for name, one in written(number).items():
        m, n, k = one.rows + 3, one.cols + 5, 3 * one.least + 1
        if not one.edges: m, n, k = one.rows, 2 * one.cols, 3 * one.least
        if one.sized: m, n, k = 64, 64, 64
        a, b = (random.standard_normal(shape, np.float32) for shape in ((m, k), (k, n)))
        c = np.full((m, n), 0 if one.adds else np.nan, np.float32)
        one.at(m, n)(*one.arguments(a, b, c))
        if not abs(c - a.astype(np.float64) @ b).max() < 1e-4: wrong.append(name)
    if wrong: sys.exit(f"wrong: {wrong}")
    print(len(written(number)), "kernels are right")

def predict_all(number, what="predicted"):
    "What the model says of each kernel: GPU → ms and limit, or why it says nothing."
    from numba_matmul.predict import predict
    matrix, said = np.broadcast_to(np.float32(0), (SIZE, SIZE)), {}
    for name, kernel in kernels(number).items():
        said[name] = {}
        for gpu in GPUS:
            found = predict(kernel, *arguments(number, name, matrix, matrix, matrix), gpu=gpu)
            said[name][gpu] = [float(f"{found.ms:.5g}"), found.limit] if found.ms else [None, found.why]
        print(name, said[name], flush=True)
    filed(what, number).write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n")


def filed(what, number):
    "The file of a round's predictions or times."
    return FOLDER/(what + ("" if number == "1" else f"_{number}") + ".json")


def median_ms(kernel, *what):
    "Median time of a launch by events, after a tenth of a second of it."
    from numba import cuda
    def once():
        start, stop = cuda.event(), cuda.event()
        start.record()
        kernel(*what)
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop)
    until = time.monotonic() + 0.1
    while (first := once()) and time.monotonic() < until: pass
    return statistics.median(once() for _ in range(11 if first < 20 else 3))

def time_some(number, lock, *names):
    "In a process of its own: compile these kernels, then time them, one process at a time. Prints JSON."
    from numba import cuda
    random = np.random.default_rng(0)
    a, b = (cuda.to_device(random.standard_normal((SIZE, SIZE), np.float32)) for _ in "ab")
    adds = {name for name, one in written(number).items() if one.adds}
    some = random.integers(0, SIZE, 64)
    rows = a.copy_to_host()[some].astype(np.float64) @ b.copy_to_host()
    known, c = kernels(number), cuda.device_array((SIZE, SIZE), np.float32)
    for name in names:
        try:
            compiler, what = known[name].dispatcher, arguments(number, name, a, b, c)
            compiler.compile(tuple(map(compiler.typeof_pyval, what)))
            with open(lock, "w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                c.copy_to_device(np.full(c.shape, 0 if name in adds else np.nan, np.float32))
                known[name](*what)
                wrong = abs(c.copy_to_host()[some] - rows).max()
                ok = bool(wrong < 2e-3) and not np.isnan(c.copy_to_host()).any()
                ms = median_ms(known[name], *what)
            for stream in (sys.stdout, sys.stderr):  # the second is for those who watch
                print(json.dumps([name, ms if ok else None]), file=stream, flush=True)
        except Exception as e:
            print(json.dumps([name, None]), f"{type(e).__name__}: {e}"[:200], file=sys.stderr, flush=True)

def time_all(number, workers=8):
    "Times of a round's kernels on this GPU: GPU, date and ms by kernel."
    from numba import cuda
    lock, names = f"/tmp/blind.{os.getpid()}", list(kernels(number))
    command = [sys.executable, __file__, "some", number, lock]
    running = [subprocess.Popen([*command, *names[i::workers]], stdout=subprocess.PIPE, text=True)
               for i in range(workers)]
    found = dict(json.loads(line) for one in running for line in one.stdout)
    gpu = cuda.get_current_device().name
    filed("measured", number).write_text(json.dumps(
        dict(gpu=gpu.decode() if isinstance(gpu, bytes) else gpu, date=date.today().isoformat(),
             ms={name: found[name] for name in names if found.get(name)}), indent=1) + "\n")
    print(f"{len(found)} of {len(names)} kernels timed")


if __name__ == "__main__":
    commands = dict(check=check_all, predict=predict_all, now=partial(predict_all, what="now"),
                    time=time_all, some=time_some)
    commands[sys.argv[1]](*sys.argv[2:])
