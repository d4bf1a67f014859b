"""The website: every page builds without a warning, shows what a reader should see, and folds the optional
parts."""
import base64
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
from bs4 import BeautifulSoup
from conftest import ROOT, environment

from numba_matmul.cards import write_whole
from numba_matmul.exercise import KEPT
from numba_matmul.registry import KERNELS
from tools import fold

NOTEBOOKS = sorted((ROOT/"nbs").rglob("*.ipynb"))
LESSONS = [path for path in NOTEBOOKS if re.match(r"\d\d[a-z]?_", path.name) and path.parent.name == "nbs"]


def code_cells(path):
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
            if cell["cell_type"] == "code"]


def build(copy):
    "Build the website from a copy of the project; returns what is wrong, as text."
    folders = "nbs", "numba_matmul", "website"
    files = "settings.ini", "README.md", "CONTRIBUTING.md", "LICENSE"
    for name in folders:
        shutil.copytree(ROOT/name, copy/name,
                        ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
    for name in files: shutil.copy(ROOT/name, copy)
    done = subprocess.run([sys.executable, "website/build.py"], cwd=copy, env=environment(),
                          capture_output=True, text=True)
    there = {path.name for path in copy.iterdir()} - {*folders, *files, "_docs", "build"}
    return done.stderr + done.stdout * bool(done.returncode) + f"left behind: {there}" * bool(there)


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    "The website, page by page. One process of a test run builds it, the others wait."
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ: folder = folder.parent
    copy, said = folder/"website"/"matmul", folder/"website.txt"
    try: copy.mkdir(parents=True)
    except FileExistsError:
        started = time.monotonic()
        while not said.exists():
            assert time.monotonic() - started < 300, "it isn't built"
            time.sleep(0.2)
    else:
        text = "the build was interrupted"
        try: text = build(copy)
        finally: write_whole(said, text)
    assert not (text := said.read_text(encoding="utf-8")), text
    out = copy/"_docs"
    return {path.relative_to(out).as_posix(): path.read_text(encoding="utf-8")
            for path in out.rglob("*.html")}


def article(page): return BeautifulSoup(page, "html.parser").find("article", class_="bd-article")
def plain(part): return re.sub(r"\s+", " ", part.get_text())


@pytest.mark.first(1)
def test_every_notebook_has_a_page_without_directives_and_each_picture_says_what_it_shows(pages):
    "A figure without a title gets one; one without SVG is drawn again by `make pages`."
    notebooks = {f"nbs/{path.relative_to(ROOT/'nbs').with_suffix('.html').as_posix()}": path
                 for path in NOTEBOOKS}
    articles = ((name, article(page)) for name, page in pages.items())  # parsed once: it takes long
    count, drawn, left = 0, 0, {*notebooks}
    for name, page in articles:
        if not page: continue
        left.discard(name)
        if path := notebooks.get(name):
            code = [part.get_text() for part in page.select("div.cell_input pre")]
            assert not [text for text in code if re.search(r"^#\|", text, re.M)]
            pictures = sum("image/png" in output.get("data", {}) for cell in code_cells(path)
                           for output in cell["outputs"])
            assert len(page.select("img, .cell_output svg")) == pictures, name
        found = page.select("img:not(.toggler), .cell_output svg")
        for picture in found:
            told = picture.get("alt") or picture.get("aria-label") or ""
            assert re.search(r"\w,? \w", told), (name, str(picture)[:200])
        # the names that a drawing's parts have and use
        svgs = [one for one in found if one.name == "svg"]
        names = [part["id"] for picture in svgs for part in picture.select("[id]")]
        used = re.findall(r'(?:url\(|href=")#([\w-]+)', "".join(map(str, svgs)))
        assert len(names) == len({*names}) and {*used} <= {*names}, name
        assert max([0, *(len(str(picture)) for picture in found)]) < 150_000, name
        count, drawn = count + len(found), drawn + len(svgs)
    assert drawn > 0.95 * count > 100 and not left


def test_what_is_black_takes_the_ink_of_the_page_unless_it_stands_on_paint():
    import matplotlib.pyplot as plt
    figures = runpy.run_path(str(ROOT/"tools"/"figures.py"))
    fig, ax = plt.subplots(figsize=(3, 2), layout="constrained")
    ax.add_patch(plt.Rectangle((0, 0), 1, 1, facecolor="#F0E442"))
    ax.add_patch(plt.Rectangle((0.2, 0.2), 0.6, 0.6, fill=False, linewidth=2.25))
    ax.text(0.5, 0.5, "inside 3.14159", ha="center", va="center")
    ax.add_patch(plt.Rectangle((1, 0), 0.4, 1, facecolor="white"))
    ax.text(1.2, 0.5, "on paper", ha="center", va="center")
    ax.text(0.2, 0.1, "white", ha="center", va="center", color="white")
    ax.plot([1.5, 1.5], [0, 1], color="black", linewidth=1.25)
    ax.scatter(np.linspace(2, 3, 2000), np.linspace(0, 1, 2000))
    ax.set(title="A box & its <text>,\nand dots", xlim=(0, 3), ylim=(0, 1))
    plt.close(fig)
    before = [text.get_color() for text in ax.texts]
    svg = figures["svg_of"](fig)
    page = BeautifulSoup(svg, "html.parser").svg
    texts = {text.get_text(): text.get("style", "") for text in page.find_all("text")}
    assert "fill: black" in texts["inside 3.14159"] and "fill" not in texts["and dots"] + texts["on paper"]
    assert "fill: #ffffff" in texts["white"] and svg.count("fill: var(--paper, white)") == 1
    assert page["fill"] == "currentColor" and page["aria-label"] == "A box & its <text>, and dots"
    strokes = {float(width): color
               for color, width in re.findall(r"stroke: (\w+); stroke-width: ([\d.]+)", svg)}
    assert strokes[1.25] == "currentColor" and strokes[2.25] == "black"
    assert len(page.find_all("image")) == 1 and len(svg) < 40_000  # the dots
    assert before == [text.get_color() for text in ax.texts]


def test_ticks_that_are_made_when_a_figure_is_drawn_are_visible():
    import matplotlib.pyplot as plt
    fig, ax = plt.subplots(figsize=(3.5, 2.2), layout="constrained")
    ax.set(xlim=(0, 3.1))
    plt.close(fig)
    page = BeautifulSoup(runpy.run_path(str(ROOT/"tools"/"figures.py"))["svg_of"](fig), "html.parser")
    assert "3.0" in [text.get_text() for text in page.find_all("text", style=lambda x: "opacity" not in x)]


def test_a_figure_is_told_by_its_titles_axes_and_legend_or_by_its_label():
    import matplotlib.pyplot as plt
    title_of = runpy.run_path(str(ROOT/"tools"/"figures.py"))["title_of"]
    fig, ax = plt.subplots()
    ax.barh(["lesson 1", "lesson 2"], [10, 20], label="speed")
    ax.set(title="Two\nbars", xlabel="GFLOP/s")
    fig.legend()
    plt.close(fig)
    assert title_of(fig) == "Two bars. Axes: GFLOP/s. Rows: lesson 1; lesson 2. Legend: speed"
    fig.set_label("Bars of lessons")
    assert title_of(fig) == "Bars of lessons"


def test_a_figure_shrinks_as_long_as_its_digits_can_be_read(monkeypatch, pages):
    monkeypatch.syspath_prepend(str(ROOT/"website"))
    from pages import readable

    def least(size, width):
        svg = f'<svg viewBox="0 0 500 100" width="{width}"><text style="font-size: {size}px"></text></svg>'
        return readable(svg).partition('style="min-width: ')[2].partition("px")[0]
    assert [least(9, 700), least(6, 800), least(5, 700)] == ["500", "750", "700"]
    assert readable("<svg></svg>") == "<svg></svg>"  # no text
    for page in "index.html", "nbs/01_naive.html":
        found = article(pages[page]).select(".cell_output svg")
        assert found and all("min-width" in svg["style"] for svg in found)


def test_the_pages_come_in_reading_order_in_three_parts(pages):
    contents = re.search(r'<nav class="bd-links.*?</nav>', pages["index.html"], re.S)[0]
    assert re.findall(r'caption-text">(.+?)<', contents) == ["The course", "The instruments", "The library"]
    links = [link for link in re.findall(r'href="(nbs/[^/]+)\.html"', contents)]
    assert links == [f"nbs/{path.stem}" for path in LESSONS]
    every = set(re.findall(r'href="([\w/-]+)\.html', "".join(pages.values())))
    assert all(any(link.endswith(path.stem) for link in every) for path in NOTEBOOKS)


def test_the_front_page_is_the_readme(pages):
    text, written = plain(article(pages["index.html"])), (ROOT/"README.md").read_text(encoding="utf-8")
    for name in "speed", "exercises", "ladder":
        part = written.split(f"<!-- end of {name} -->")[0].rsplit("-->", 1)[1]
        numbers = re.findall(r"\d[\d,.]*\d", re.sub(r"\]\([^)]*\)", "]", part))
        assert numbers and not [number for number in numbers if number not in text], name


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: f"lesson {path.name.partition('_')[0]}")
def test_solutions_and_what_stands_under_the_rule_are_folded(path, pages):
    page, text = article(pages[f"nbs/{path.stem}.html"]), path.read_text(encoding="utf-8")
    headings = re.findall(r'"(## .+?|---)\\?n?"', text)
    rule = headings.index("---") if "---" in headings else len(headings)
    optional = [name for name in headings[rule + 1:] if not name.startswith("## Your turn")]
    solutions = [name for name in headings[:rule] if fold.SOLUTION.match(name[3:])] if optional else []
    folded = page.find_all("details", class_="folded")
    told = [part.parent.find(re.compile("h[12]")).get_text().strip("#").replace("’", "'") for part in folded]
    assert told == [name.removeprefix("## ") for name in headings if name in optional + solutions]
    for part in folded: part.extract()
    assert not solutions or not re.search(r"^@cuda.jit\s*def short_", page.get_text(), re.M)
    before_rule = text.split('"---', 1)[0]  # the reader's tasks stay open
    assert page.get_text().count('grade("') >= before_rule.count('grade(\\"')


def test_a_folded_cell_is_folded_in_jupyterlab_and_on_the_website():
    count = 0
    for path in NOTEBOOKS:
        for cell in code_cells(path):
            meta = cell["metadata"]
            tags, hidden = set(meta.get("tags", ())), meta.get("jupyter", {})
            # the kernel that solves an exercise is in a section that the website folds as a whole
            exported = "".join(cell["source"]).startswith("#| export")
            if not exported:
                assert hidden.get("source_hidden", False) is ("hide-input" in tags), (path.name, cell["id"])
            assert hidden.get("outputs_hidden", False) is ("hide-output" in tags), (path.name, cell["id"])
            assert set(meta) <= {"tags", "jupyter"}, (path.name, cell["id"])
            assert tags <= {"hide-input", "hide-output", "answer"}, (path.name, cell["id"])
            count += "hide-input" in tags
    assert count > 200


def test_a_page_asks_before_it_answers(pages):
    count = 0
    for path in NOTEBOOKS:
        page = article(pages[f"nbs/{path.relative_to(ROOT/'nbs').with_suffix('.html').as_posix()}"])
        kept = [output["data"][KEPT] for cell in code_cells(path) for output in cell["outputs"]
                if KEPT in output.get("data", {})]
        boxes = page.select(".nm[data-widget=prediction]")
        told = [json.loads(zlib.decompress(base64.b64decode(box["data-with"]))) for box in boxes]
        places = [int(room["data-answer"]) for room in page.select("[data-answer]")]
        assert sorted(data["place"] for data in told) == places, path.name
        assert all(kept[data.pop("place")] == data for data in told)
        assert not boxes or "data-answer" in boxes[-1].find_next("script").get_text()
        assert len(kept) - len(boxes) <= (path.name == "exercise.ipynb"), path.name  # there it is answered
        count += len(boxes)
    assert count > 50


def test_the_reference_tells_parameters_and_what_comes_back(pages):
    def room(first):
        return plain(article(pages[next(name for name in pages if name.startswith(f"reference/{first}"))]))
    page = room("fp8-")
    assert ("array_like(x, shape=None, dtype=None)" in page
            and "shape – shape of the new array; that of x if not given" in page)
    assert "Returns: uint16 array of the same shape" in page
    fields = room("gemm")
    assert "number – its lesson" in fields  # of a dataclass
    functions = [name for path in (ROOT/"numba_matmul"/"kernels").glob("k*.py")
                 for name in re.findall(r"^def (\w*gemm\w*)\(", path.read_text(encoding="utf-8"), re.M)]
    kernels = room("kernels-")
    assert len(functions) > 15 and all(f"{name}(" in kernels
                                       for name in [*functions,
                                                    *(kernel.name for kernel in KERNELS.values())])


def test_colab_comes_with_an_address(tmp_path):
    shutil.copytree(ROOT/"website", tmp_path/"website")
    def options(address):
        text = (ROOT/"settings.ini").read_text(encoding="utf-8")
        named = re.sub(r"^git_url =.*$", f"git_url = {address}", text, flags=re.M)
        (tmp_path/"settings.ini").write_text(named)
        return runpy.run_path(str(tmp_path/"website"/"conf.py"))["html_theme_options"]
    assert "launch_buttons" not in options("") and options("")["use_download_button"]
    named = options("https://github.com/someone/matmul.git")
    assert (named["launch_buttons"]["colab_url"]
            and named["repository_url"] == "https://github.com/someone/matmul")
