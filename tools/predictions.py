"""What the model says of the kernels of the course, on each GPU that has a result card: writes
numba_matmul/predicted.py, and for the tests the loops that it replayed. Takes some minutes; without a GPU.

    python tools/predictions.py
"""
import gzip
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOOPS = ROOT/"tests"/"loops.json.gz"
SHAPES = (*((size,) * 3 for size in (1000, 1024, 2048, 4092, 4096, 6000, 8192)),
          (128, 8192, 4096), (8192, 128, 4096), (256, 256, 65536), (16384, 16384, 64))


def _calls(name):
    "In a process that takes this GPU's tuned tiles: its workloads as JSON, one a line."
    from numba_matmul.gpus import machine_called
    from numba_matmul.registry import KERNELS
    from numba_matmul.workload import NoPrediction, workload
    for kernel in KERNELS.values():
        for shape in SHAPES:
            try: work = workload(kernel.fn, shape, machine_called(name).target)
            except NoPrediction as e:
                print(f"{kernel.name}: {e}", file=sys.stderr)
                break
            print(json.dumps([name, kernel.name, asdict(work)]), flush=True)


def main():
    sys.path.insert(0, str(ROOT))
    from numba_matmul.gpus import machine_called, machines
    from numba_matmul.predict import estimate, limit_of
    from numba_matmul.workload import KLoop, Workload
    loops, calls, lines = {}, [], []
    for gpu in [gpu.name for gpu in machines().values() if gpu.checked]:
        env = os.environ | {"MATMUL_GPU": gpu, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, __file__, gpu], env=env, stdout=subprocess.PIPE, text=True,
                              check=True)
        lines.append(f'    "{gpu}": {{')
        for _, name, work in map(json.loads, done.stdout.splitlines()):
            loop = KLoop(**work.pop("loop"))
            loops.setdefault(loop.key, asdict(loop))
            calls.append(dict(gpu=gpu, kernel=name, loop=loop.key, **work))
            work = Workload(loop=loop, **work)
            machine = machine_called(gpu)
            found = estimate(work, machine)
            at = repr((name, *work.shape)).replace("'", '"')
            lines.append(f'        {at}: ({found.ms:.5g}, "{limit_of(found, work, machine.sms)}"),')
        lines.append("    },")
    text = '"What the model says of the kernels of the course, written by tools/predictions.py."\n\n'
    text += "PREDICTED = {  # GPU → (kernel, m, n, k) → ms, and what limits it\n"
    (ROOT/"numba_matmul"/"predicted.py").write_text(text + "\n".join(lines) + "\n}\n")
    content = json.dumps(dict(loops=loops, calls=calls), separators=(",", ":"))
    content = re.sub(r"\.0([,\]])", r"\1", content)
    LOOPS.write_bytes(gzip.compress(content.encode(), mtime=0))


if __name__ == "__main__":
    if len(sys.argv) > 1: _calls(sys.argv[1])
    else: main()
