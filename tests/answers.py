"""What the compiler says of the course's own kernels, kept, so tests needn't compile what hasn't changed.

`machine_code` keeps each answer in the user's cache, under a name made of the kernel's code, Python's
bytecode and the versions of the compiler. `unpack` puts the kept answers there before the first test. A
kernel that has changed has another name, so it is compiled: the answers are never wrong, only of no use. When
many are, tests take several minutes longer, and `python tests/answers.py` makes all of them anew, by running
every test with an empty cache."""
import hashlib
import json
import lzma
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

KEPT = Path(__file__).with_name("answers.json.xz")


def unpack():
    "Fill the cache, once for each state of the file."
    from numba_matmul.cards import write_whole
    from numba_matmul.compiler import cache_folder
    if not KEPT.exists(): return
    packed = KEPT.read_bytes()
    done = cache_folder()/f"{hashlib.sha256(packed).hexdigest()[:32]}.unpacked"
    if done.exists(): return
    with suppress(OSError):  # where nothing can be kept, tests compile
        cache_folder().mkdir(parents=True, exist_ok=True)
        for name, answer in json.loads(lzma.decompress(packed)).items():
            path = cache_folder()/name
            if not path.exists(): write_whole(path, json.dumps(answer))
        done.touch()


def pack(folder):
    "Keep all answers in a folder. Kernels of one kind are alike, so they come one after another."
    found = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}
    found = dict(sorted(found.items(), key=lambda item: len(json.dumps(item[1]))))
    text = json.dumps(found, separators=(",", ":")).encode()
    KEPT.write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    KEPT.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as cache:
        tests = [sys.executable, "-m", "pytest", "-q", "-n", "logical", "--maxschedchunk", "1", "tests"]
        status = subprocess.run(tests, env=os.environ | dict(XDG_CACHE_HOME=cache)).returncode
        pack(Path(cache)/"numba_matmul")
    print(f"{KEPT.name}: {KEPT.stat().st_size:,} bytes")
    sys.exit(status)
