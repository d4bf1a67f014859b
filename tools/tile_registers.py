"""How many registers kernel 5 takes with each tile of the tile explorer: writes
numba_matmul/tile_registers.py. Takes a quarter of an hour; without a GPU.

    python tools/tile_registers.py
"""
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from numba_matmul.compiler import CompileError, machine_code  # noqa: E402
from numba_matmul.explore import tiles  # noqa: E402
from numba_matmul.kernels.k05_2d_blocktiling import sgemm_2d_blocktiling_kernel  # noqa: E402

FLAT, MATRIX = "float32[::1]", "float32[:, ::1]"
TYPES = f"void({FLAT}, {FLAT}, {MATRIX}, int64, float32, float32)"


def registers(tile):
    "Of a thread, and whether some of its values spill; zeros if the compiler refuses the tile."
    try: code = machine_code(sgemm_2d_blocktiling_kernel(*tile, predicated=False), TYPES)
    except CompileError: return 0, 0
    return code.registers, int(bool(code.spills))


def main():
    found = [f"{count}{'s' * spills}" for count, spills in map(registers, tiles())]
    lines = [" ".join(found[i:i + 25]) for i in range(0, len(found), 25)]
    (ROOT/"numba_matmul"/"tile_registers.py").write_text(
        '"""Registers of a thread of kernel 5 on an H100 (sm_90), in the order of\n`explore.tiles`; '
        's: some values spill. `tools/tile_registers.py` writes this file."""\n\nREGISTERS = """\n'
        + "\n".join(lines)
        + '\n""".split()\n')


if __name__ == "__main__": main()
