"""Update what the pages show of the result cards, and redraw their figures: `make pages`, after a card or a
drawing has changed. It needs no GPU. `PAGES="01* 90*"` does only some of them.

Every page is run in the simulator, as `nbdev_test` runs it. A cell that reads the cards, grades an exercise
or asks the microscope shows the same there as on a GPU: it gets its outputs from that run. So does a new
cell, which has none yet. A figure is redrawn, but the rest of its cell's output stays. No other cell changes.
`--check` changes nothing and compares the texts. `make test` runs every notebook this way: the names arrive
one by one on stdin, so that all pages share one process and its children."""
import ast
import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from math import isclose
from pathlib import Path

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
import numba_matmul  # noqa: E402, F401  first: this chooses between the GPU and the simulator
import nbdev.test  # noqa: E402
from execnb.nbio import read_nb  # noqa: E402

from numba_matmul.exercise import KEPT, UNSEEN  # noqa: E402
from numba_matmul.report.tables import out_of_date  # noqa: E402

from figures import add_svg  # noqa: E402
from run_notebooks import NBS, find, shrink_pictures, write_clean  # noqa: E402

gc.set_threshold(50_000, 20, 100)  # little of what a page creates is garbage before its end
ASK = {"load_cards", "pick_card", "gpu_card", "card_row", "cycles_per_step", "recorded", "gain", "causes",
       "readme_speed", "recorded_tuning", "you_are_here", "recorded_on_several", "experiment", "agreement",
       "counted", "shared_memory_bound", "stalls", "draw_machine", "lost", "stale_below", "main",
       "predict", "machines",
       "blind_test", "then_and_now",  # lesson 21's times of readers' kernels are kept beside these
       # these say the same anywhere: exercises are left to readers, and the microscope needs no GPU
       "grade", "microscope", "changes", "check_tile"}
# these carry their scripts along
PLAYED = {"play", "explore_banks", "explore_sectors", "explore_tiles", "explore_pipeline", "watch"}
# cards, their rows, or a search on one, that an earlier cell of a page has read
HELD = {"CARDS", "PROFILED", "by_shape", "tuning"}
# what these show takes a GPU, or a tool that may not be installed, or depends on what a reader has solved
ELSEWHERE = {"draw_trace", "tool_table", "so_far"}


class Keeping(nbdev.test.CaptureShell):
    "Keeps the last executed notebook, with its outputs; with its figures as SVG, too, if `draws`."
    draws = False
    def __init__(self, path=None):
        super().__init__(path)
        if Keeping.draws: add_svg(self)
    def run_all(self, nb, **options):
        Keeping.ran = nb
        return super().run_all(nb, **options)


def statements(cell):
    "Those of a cell, parsed. Exported cells show nothing."
    if cell.cell_type != "code" or cell.source.startswith(("#| export", "%%")): return []
    lines = (line for line in cell.source.splitlines() if not line.startswith(("%", "!")))
    return ast.parse("\n".join(lines)).body


def names_in(statements):
    "The names that they call, and all that they use."
    nodes = [node for statement in statements for node in ast.walk(statement)]
    functions = [node.func for node in nodes if isinstance(node, ast.Call)]
    return ({getattr(one, "id", getattr(one, "attr", None)) for one in functions},  # watch, and toy.watch
            {node.id for node in nodes if isinstance(node, ast.Name)})


def asking(cells):
    "The ids of the cells that show something from the cards, or something computed from that."
    held, found = set(HELD), set()
    for cell in cells:
        parsed = statements(cell)
        for statement in parsed:
            called, used = names_in([statement])
            if not (called & ASK or used & held): continue
            if not names_in(parsed)[0] & ELSEWHERE: found.add(cell.id)
            if isinstance(statement, ast.FunctionDef): held.add(statement.name)
            if isinstance(statement, ast.Assign): held |= names_in(statement.targets)[1]
    return found


def figures(cell):
    "The outputs of a cell that have a picture."
    return [output for output in cell.get("outputs") or [] if "image/png" in output.get("data", {})]


def answer(cell):
    "What a cell's output keeps: the answer to a question that the page leaves open."
    shown = [output["data"] for output in cell.get("outputs") or [] if KEPT in output.get("data", {})]
    return next((data[KEPT] for data in shown if "".join(data["text/markdown"]).startswith(UNSEEN)), None)


def same_answer(one, other):
    "Are two answers the same? Some depend a little on random data."
    if None in (one, other): return one == other
    pairs = [*zip(one["found"], other["found"])]
    return (one["question"] == other["question"] and len(one["found"]) == len(other["found"]) and all(
        name == same and isclose(value, now, rel_tol=0.1) for (name, value), (same, now) in pairs))


def texts(cell):
    "A cell's output as text, without pictures and stderr."
    found = []
    for output in cell.get("outputs") or []:
        if output.get("name") == "stderr": continue
        shown = output.get("data", {}) | {"text/stdout": output.get("text", "")}
        found += ["".join(text) for kind, text in sorted(shown.items()) if text and kind.startswith("text/")]
    return found


def run(path):
    "Run a page as `nbdev_test` does; returns its cells with their outputs, by id."
    nbdev.test.nbdev_test(path=path, n_workers=0)
    return {cell.id: cell for cell in Keeping.ran.cells}


def check(path):
    "Exit with a message that names a cell whose output differs from the cards."
    made, cells = run(path), read_nb(path).cells
    asked = asking(cells)
    for cell in cells:
        if cell.id not in made or "#| compiler" in cell.source: continue  # other versions compile differently
        kept, new = answer(cell), answer(made[cell.id])
        if not same_answer(kept, new):
            sys.exit(f"{path.name}, cell {cell.id}: run make pages. It keeps the answer {kept}; it is {new}")
        if cell.id not in asked: continue
        kept, new = texts(cell), texts(made[cell.id])
        if kept != new:
            what = out_of_date(f"{path.name}, cell {cell.id}", "make pages")
            sys.exit(f"{what}. It shows\n{kept}\nand the cards say\n{new}")


def check_all_from_stdin():
    "Check one page per line. A line follows each one with the result."
    for line in sys.stdin:
        verdict = "checked"
        try: check(Path(line.strip()).resolve())
        except SystemExit as e:
            print(e)
            verdict = "failed"
        print(f"\n{verdict}", flush=True)


def keep_answer(cell, made):
    "The answer that a run has found, unless it's the same as before. The text stays."
    new = answer(made)
    if not new or same_answer(answer(cell), new): return
    for output in cell.get("outputs") or []:
        if "".join(output.get("data", {}).get("text/markdown", "")).startswith(UNSEEN):
            output["data"][KEPT] = new


def refresh(path):
    """Give the cells of a page that read the cards, or show something to play with, the outputs of a run, and
    the others its figures."""
    Keeping.draws = True
    made, nb = run(path), read_nb(path)
    before = path.read_text(encoding="utf-8")
    shrink_pictures(made.values())
    asked = asking(nb.cells)
    for cell in nb.cells:
        if cell.id not in made: continue
        old, new = figures(cell), figures(made[cell.id])
        called = names_in(statements(cell))[0]
        if cell.id in asked or called & PLAYED:
            cell.outputs = made[cell.id].outputs
        elif not cell.get("outputs") and not called & ELSEWHERE:
            if new or texts(made[cell.id]): cell.outputs = made[cell.id].outputs  # a new cell
        elif len(old) != len(new) or called & ELSEWHERE:
            if old: print(f"{path.name}, cell {cell.id}: its figure stays: only a GPU draws it", flush=True)
        else:
            for kept, drawn in zip(old, new): kept |= dict(data=drawn["data"], metadata=drawn["metadata"])
        keep_answer(cell, made[cell.id])
    write_clean(nb, path)
    if path.read_text(encoding="utf-8") != before:
        print(f"{path.name} shows what the cards say now", flush=True)


def in_child(path):
    "Refresh a page in its own process; returns what it printed if it failed."
    command = [sys.executable, __file__, "--one", path]
    done = subprocess.run(command, cwd=NBS.parent, capture_output=True, text=True)
    print("".join(line for line in done.stdout.splitlines(True) if "the cards say" in line
                  or "its figure stays" in line), end="",
          flush=True)
    return done.returncode and f"{path.name}:\n{done.stdout}{done.stderr}"


def main(wanted):
    paths = [path for path in find(wanted)
             if wanted or asking(cells := read_nb(path).cells)
             or any(figures(cell) or ".against(" in cell.source for cell in cells)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = [*filter(None, pool.map(in_child, paths))]
    if failed: sys.exit("\n".join(failed))
    print(f"{len(paths)} page{'s' * (len(paths) != 1)} checked. To commit: nbs")


if __name__ == "__main__":
    nbdev.test.CaptureShell = Keeping
    if sys.argv[1:] == ["--check"]: check_all_from_stdin()
    elif sys.argv[1:2] == ["--one"]: refresh(Path(sys.argv[2]).resolve())
    else: main(sys.argv[1:])
