"""The generated parts of the README, which `make readme` writes between marks.

Table, picture and speeds come from the cards, the ideas from the lessons' first lines. A new card adds
columns, a new kernel adds a line. The picture shows the first card; the ladder has the others. How fast, for
example:

The code
"""
import inspect
import io
import json
import re
import statistics
from configparser import ConfigParser

from ..cards import STALE, card_folder, card_row, load_cards, write_whole
from ..exercise import exercises
from ..draw import number_text
from ..registry import KERNELS, OTHERS, number_of
from .plots import DTYPES, by_dtype, draw_climb, draw_panels, panels, rows_at
from .tables import days, in_runs, kernels_of, random_shapes, stale_below, sustained, type_name, wall_clock


PICTURE, FRONT = "nbs/results/ladder.svg", "nbs/results/climb.svg"

def _root(): return card_folder().parent.parent

def _lesson(kernel):
    "The notebook of a `Kernel`, its title, and the one idea in its first cell."
    made_from = re.search(r"File to edit: (.+ipynb)", inspect.getsource(inspect.getmodule(kernel.fn)))
    path = _root()/"nbs"/made_from[1].split("nbs/")[1]
    return _page(path)

def _page(path):
    "A notebook, its title without the number, and its one idea."
    first = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
    found = (re.search(form, first, re.M)[1] for form in (r"^# (?:\w+ · )?(.+)$", r"^> (.+)$"))
    return path.relative_to(_root()).as_posix(), *found

def _without_kernel(number):
    "The pages that follow a kernel's lesson and have no kernel: 2b, 2c and 2d after 2."
    return sorted((_root()/"nbs").glob(f"{number:02}[a-z]_*.ipynb")) if number else []

def _git_url():
    settings = ConfigParser()
    settings.read(_root()/"settings.ini", encoding="utf-8")
    return settings["DEFAULT"]["git_url"].removesuffix(".git").rstrip("/")

def _badge(notebook):
    "A link that opens a notebook in Colab; empty until the repository has an address."
    if not _git_url().startswith("https://github.com/"): return ""
    colab = "https://colab.research.google.com"
    page = f"{colab}/github{_git_url().removeprefix('https://github.com')}/blob/main/{notebook}"
    return f" [![Open in Colab]({colab}/assets/colab-badge.svg)]({page})"

def _lessons(kernels):
    "Their numbers as text: lessons 1 to 12 and 19. A run ends where a kernel of another type comes between."
    numbers = in_runs([kernel.number for kernel in kernels], list(KERNELS))
    return f"lesson{'s' * (len(kernels) > 1)} {numbers}"

def _number(row, field):
    "A speed as the README shows it, marked if it is stale."
    if not row: return "–"
    text = f"{row[field]:,.0f}" if field == "gflops" else f"{row[field]:.1f}"
    return text + STALE * ("stale" in row)

def readme_ladder() -> str:
    "The generated part of the README: the picture, and each lesson with its speed on each card."
    cards = [card for card in load_cards() if rows_at(card)]
    gpus, around = [], "| {} |".format
    for card in cards:
        # The line that says which card, and what cuBLAS did there.
        speeds = {dtype: statistics.median(row["cublas_gflops"] for row in rows)
                  for dtype, rows in by_dtype(rows_at(card)).items()}
        cublas = ", ".join(f"{speed:,.0f} in {type_name(dtype)}" for dtype, speed in speeds.items())
        about = f"one {card['gpu']} (driver {card['driver']}, {days(card)})"
        gpus.append(f"- {about}. cuBLAS, in GFLOP/s: {cublas}")
    head = ["#", "lesson", "its idea"] + [f"{card['gpu']}, GFLOP/s | % of cuBLAS" for card in cards]
    lines = [around(" | ".join(head)), "|---|---|---|" + "--:|--:|" * len(cards)]
    shown = []  # rows, for the note on stale ones
    for kernel in (*KERNELS.values(), *OTHERS):
        rows = [card_row(card, kernel.name, 4096) for card in cards]
        if not kernel.number and not any(rows): continue
        shown += rows
        notebook, title, idea = _lesson(kernel)
        speeds = [f"{_number(row, 'gflops')} | {_number(row, 'percent')}" for row in rows]
        if not kernel.number: title, idea = kernel.title, ""  # the page has more than that kernel
        lines.append(around(" | ".join([str(kernel.number or ""), f"[{title}]({notebook}){_badge(notebook)}",
                                        idea, *speeds])))
        for path in _without_kernel(kernel.number):
            notebook, title, idea = _page(path)
            number = f"{kernel.number}{path.name[2]}"
            lines.append(around(" | ".join([number, f"[{title}]({notebook}){_badge(notebook)}", idea,
                                            *2 * len(cards) * [""]])))
    shows = "Speed of each lesson's short kernel, and of its kernel for any size, compared with cuBLAS"
    what = ", ".join(f"{type_name(dtype)} in {_lessons(kernels_of(dtype))}" for dtype in DTYPES)
    bars = ("Most lessons have two kernels: a short one that shows the idea (dark bars), and a longer one "
            "for matrices of any size (light bars, and the table). Pages with a letter are warm-ups, with no "
            "new matrix product.")
    where = f"All speeds are at 4096×4096×4096 ({what}), on"
    how = ("Runs of each kernel alternate with runs of cuBLAS, and each % compares the two. The speeds of "
           "cuBLAS in this list are medians over all kernels.")
    return "\n".join([bars, "", f"![{shows}]({PICTURE})", "", *lines, *stale_below(shown), "", where, "",
                      *gpus, "", how])


def _by_units(rows):
    "Rows of our kernels by type, and by the units that multiply, if they are unusual for it."
    found = {}
    for row in rows:
        if number := number_of(row["name"]):
            kernel = KERNELS[number]
            found.setdefault((kernel.dtype, kernel.units), []).append(row)
    return found

def _kind(dtype, units):
    "How a type is called in headings, and the units that multiply, if they are unusual for it."
    return type_name(dtype) + f" on {units}" * bool(units)

def readme_speed() -> str:
    """The generated part of the README that says how fast: at sizes we chose, and at random shapes."""
    head, columns, shown = ["the last kernels (in % of cuBLAS's speed unless noted)"], [], []
    labels = ["4096×4096×4096", "8192×8192×8192", "4096, sustained (GFLOP/s)",
              "random shapes, multiples of 64: mean (worst)", "other random shapes: mean (worst)",
              "relative error at 4096 (times cuBLAS's)"]
    # One column per card, type and kind of units: its last kernel, at sizes we chose and at random ones.
    for card in load_cards():
        steady = sustained(card)
        at_random = random_shapes(card)
        for (dtype, units), rows in _by_units(rows_at(card)).items():
            last = rows[-1]
            shapes = [None if units else at_random.get((dtype, fits)) for fits in (True, False)]
            head.append(f"{card['gpu'].removeprefix('NVIDIA ')}, {_kind(dtype, units)}")
            larger, row = card_row(card, last["name"], 8192), None if units else steady.get((dtype, 4096))
            shown += [last, larger]
            columns.append([_number(last, "percent"), _number(larger, "percent"),
                            f"{_number(row, 'percent')} ({_number(row, 'gflops')})" if row else "–",
                            *(f"{statistics.geometric_mean(found):.0f} ({min(found):.0f})" if found else "–"
                              for found in shapes),
                            f"{last['error']:.1e} ({last['error'] / last['cublas_error']:.2f})"])
    lines = [f"| {' | '.join(line)} |"
             for line in (head, ["---"] + ["--:"] * len(columns), *zip(labels, *columns))]
    versions = " and ".join(dict.fromkeys(f"{card['versions']['torch']} with CUDA {card['cuda']}"
                                          for card in load_cards()))
    dash = " –: not measured." if any(" – " in line for line in lines) else ""
    return "\n".join([*lines, "",
                      f"We call cuBLAS through PyTorch {versions}, with TF32 off. Means are geometric. "
                      "*Sustained*: over seconds of work, when the power limit may lower the clock; the "
                      "other speeds are from short runs with rests in between. In bfloat16, where n or k "
                      "isn't a multiple of 8, cuBLAS falls back to "
                      f"[older kernels](nbs/90_ladder.ipynb#What-cuBLAS-chose).{dash}", *stale_below(shown)])


def _first_card(): return next(card for card in load_cards() if rows_at(card))

def _hours():
    "The sum of what the lessons say they take, and the number of lessons."
    pages = [path.read_text(encoding="utf-8") for path in (_root()/"nbs").glob("*.ipynb")]
    minutes = [int(found[1]) for page in pages if (found := re.search(r"minutes=(\d+)", page))]
    return round(sum(minutes) / 60), len(minutes)

def readme_front() -> str:
    "The generated part of the README that a visitor sees first: a picture, three speeds, and the hours."
    card, lines, shown = _first_card(), [], []
    for (dtype, units), rows in _by_units(rows_at(card)).items():
        last = rows[-1]
        number, ratio = number_of(last["name"]), last["error"] / last["cublas_error"]
        lines.append(f"| {_kind(dtype, units)}, by lesson {number} | "
                     f"**{_number(last, 'gflops')}** | **{_number(last, 'percent')}** | "
                     f"{last['error']:.1e} ({ratio:.2f}) |")
        shown.append(last)
    hours, pages = _hours()
    about = "Each lesson's speed, from a naive loop to kernels past cuBLAS, on a logarithmic scale"
    return "\n".join([f"![{about}]({FRONT})", "",
                      f"| {card['gpu'].removeprefix('NVIDIA ')}, 4096×4096×4096 | GFLOP/s "
                      "| % of cuBLAS | error (× cuBLAS's) |",
                      "|---|--:|--:|--:|", *lines, *stale_below(shown), "",
                      f"**About {hours} hours** for the {pages} pages up to the last kernel."])

def readme_copy() -> str:
    "The generated part of the README on how to get the course: a link once it has an address."
    url = _git_url()
    link = (f"Clone [the repository]({url}), and open the course:" if url else
            "Replace `<address>` with the repository's address, or skip that line if you have a copy:")
    return "\n".join([link, "", "```", f"git clone {url or '<address>'} matmul && cd matmul",
                      "make lab      # the course in JupyterLab, at its first page",
                      "make ladder   # checks every kernel, and shows its speed next to cuBLAS's", "```"])

def readme_calls() -> str:
    "The generated part of the README that says what a call costs in a program."
    lines, paced = [], {}  # paced: kind of kernel → sizes at which the host sets the time of a call
    for card in load_cards("calls"):
        on_host = {row["name"]: statistics.median(row["us"]) for row in card["calls"]["rows"]
                   if row["what"] == "host"}
        for name, rows in wall_clock(card).items():
            kernel = KERNELS[number_of(name)]
            kind = _kind(kernel.dtype, kernel.units)
            for size, row in rows.items():
                on_gpu = card_row(card, name, size)
                # far above the GPU's time, and close to the host's
                if on_gpu and 1250 * on_gpu["ms"] < statistics.median(row["us"]) < 1.5 * on_host.get(name, 0):
                    paced.setdefault(kind, {})[size] = None
            if not lines:
                lines = [f"| µs of a call, ours / `torch.mm(out=)` | {' | '.join(map(str, rows))} |",
                         "|---|" + "--:|" * len(rows)]
            cells = [" / ".join(number_text(statistics.median(row[us])) for us in ("us", "torch_us"))
                     for row in rows.values()]
            lines.append(f"| {card['gpu']}, {kind} | {' | '.join(cells)} |")
    where = ", ".join(f"{'and ' * (0 < i == len(paced) - 1)}in {kind} at {' and '.join(map(str, sizes))}"
                      for i, (kind, sizes) in enumerate(paced.items()))
    host = f" Where the host takes far longer than the GPU, the host sets the pace: {where}." if where else ""
    return "\n".join([*lines, "",
                      "This is wall-clock time per call, including the host's work, over 1,000 calls in a "
                      "row on square matrices. Lower is better. In a run this long, the power limit may "
                      f"already lower the clock.{host}"])


def readme_colab() -> str:
    "The generated part of the README on Colab: the first cell, for a copy of the repository."
    url, clone = _git_url(), ""
    if url: clone = f"!git clone -q {url} matmul\n"
    lines = ["%cd matmul/nbs", '!pip install -q -c ../constraints.txt -e "..[cu13]"']
    return "```\n" + clone + "\n".join(lines) + "\n```"

def readme_exercises() -> str:
    "The generated part of the README that says how many exercises there are, and how their grader is tested."
    known = exercises().values()
    correct, wrong = (sum(len(getattr(one, kind)) for one in known) for kind in ("solutions", "mutants"))
    return (f"The grader is tested, too. For the {len(known)} exercises there are {correct} correct "
            f"solutions, all of which it accepts, and {wrong:,} wrong or slow ones, all of which it rejects "
            "for the right reason. `make grade` repeats that test. Your own work is graded in its notebook.")

def readme_gpus() -> str:
    "The generated part of the README that says which GPU runs which kernels."
    needs = {}
    for kernel in KERNELS.values(): needs.setdefault(kernel.capability, []).append(kernel)
    def text(major, minor, *alone):
        if not major: return "a GPU that Numba CUDA supports"
        return (f"exactly compute capability {major}.{minor}" if alone
                else f"compute capability {major}.{minor} or later")
    *parts, last = (f"of {_lessons(kernels)} need {text(*needed)}" for needed, kernels in needs.items())
    return f"The kernels {', those '.join(parts)}, and those {last}."

PARTS = {"front": readme_front, "copy": readme_copy, "speed": readme_speed, "calls": readme_calls,
         "exercises": readme_exercises, "gpus": readme_gpus,
         "ladder": readme_ladder, "colab": readme_colab}

def readme_text(text) -> str:
    "The README `text` with its generated parts made anew."
    for name, make in PARTS.items():
        first = f"<!-- {name}: made by `python -m numba_matmul.ladder --readme` -->"
        last = f"<!-- end of {name} -->"
        before, rest = text.split(first)
        text = f"{before}{first}\n\n{make()}\n\n{last}{rest.split(last)[1]}"
    return text

def picture():
    "The README's picture, a panel for each type on the first card, as a figure."
    return draw_panels(panels(_first_card()))

def front():
    "The README's first picture, as a figure."
    return draw_climb(_first_card())

PICTURES = {FRONT: front, PICTURE: picture}

def picture_svg(draw=picture) -> str:
    "A picture of the README, the same bytes for the same card."
    import matplotlib as mpl
    style = {"svg.fonttype": "none", "svg.hashsalt": "ladder", "font.family": "sans-serif"}
    with mpl.rc_context(style):
        fig, out = draw(), io.StringIO()
        fig.savefig(out, format="svg", bbox_inches="tight", pad_inches=0.2,  # other fonts are wider
                    metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"

def write_readme():
    "Write the README's generated parts and its pictures."
    readme = _root()/"README.md"
    write_whole(readme, readme_text(readme.read_text(encoding="utf-8")))
    for name, draw in PICTURES.items(): write_whole(_root()/name, picture_svg(draw))
