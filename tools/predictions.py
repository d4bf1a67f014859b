"""What the model says of the kernels of the course, on each GPU that has a result card: writes
numba_matmul/predicted.py, and for the tests the loops that it replayed. Takes some minutes; without a GPU.

    python tools/predictions.py
"""
import gzip
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOOPS = ROOT/"tests"/"loops.json.gz"
SHAPES = (*((size,) * 3 for size in (256, 512, 1024, 2048, 4092, 4096, 6144, 8192)),
          (128, 8192, 4096), (8192, 128, 4096), (256, 256, 65536), (16384, 16384, 64))


def _calls(name):
    "In a process that takes this GPU's tuned tiles: its workloads as JSON, one a line."
    from numba_matmul.gpus import machine_called
    from numba_matmul.predict import predict
    from numba_matmul.registry import KERNELS
    from numba_matmul.workload import workload
    for kernel in KERNELS.values():
        for shape in SHAPES:
            found = predict(kernel.fn, *shape, gpu=name)
            if not found.ms: print(found, file=sys.stderr)
            elif found.loop is None: work = dict(shape=shape, ms=found.ms, limit=found.limit)
            else: work = asdict(workload(kernel.fn, shape, machine_called(name).target))
            if found.ms: print(json.dumps([name, kernel.name, work]), flush=True)


def main():
    sys.path.insert(0, str(ROOT))
    from numba_matmul.cards import code_of, load_cards
    from numba_matmul.gpus import machine_called
    from numba_matmul.predict import estimate, limit_of
    from numba_matmul.workload import KLoop, Workload
    loops, calls, lines = {}, [], []
    for card in load_cards():
        gpu, last = card["gpu"], None
        env = os.environ | {"MATMUL_GPU": gpu, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, __file__, gpu], env=env, stdout=subprocess.PIPE, text=True,
                              check=True)
        lines.append(f'    "{gpu}": {{')
        for _, name, work in map(json.loads, done.stdout.splitlines()):
            if name != last:
                if last: lines.append("        }),")
                lines.append(f'        "{name}": ("{code_of(card, name)}", {{')
            last = name
            if "ms" in work: shape, ms, limit = work["shape"], work["ms"], work["limit"]
            else:
                loop, machine = KLoop(**work.pop("loop")), machine_called(gpu)
                loops.setdefault(loop.key, asdict(loop))
                calls.append(dict(gpu=gpu, kernel=name, loop=loop.key, **work))
                work = Workload(loop=loop, **work)
                found, shape = estimate(work, machine), work.shape
                ms, limit = found.ms, limit_of(found, work, machine)
            lines.append(f'            {tuple(shape)}: ({ms:.5g}, "{limit}"),')
        lines += ["        }),", "    },"]
    text = '"What the model says of the kernels of the course, written by tools/predictions.py."\n\n'
    text += "# GPU → kernel → fingerprint of its code, and (m, n, k) → ms, what limits it\n"
    (ROOT/"numba_matmul"/"predicted.py").write_text(text + "PREDICTED = {\n" + "\n".join(lines) + "\n}\n")
    content = json.dumps(dict(loops=loops, calls=calls), separators=(",", ":"))
    LOOPS.write_bytes(gzip.compress(content.encode(), mtime=0))


if __name__ == "__main__":
    if len(sys.argv) > 1: _calls(sys.argv[1])
    else: main()
