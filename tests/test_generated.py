"""The library, the scripts, the README and the cards are in step with what they are made from, and the notebooks are
clean."""
import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import jsonschema
import numpy as np
import pytest
from conftest import ROOT, SCHEMA, environment, minimal_card

from numba_matmul import cards
from numba_matmul.ncu import LOOK_AT
from numba_matmul.registry import ALL, KERNELS
from numba_matmul.report import readme
from numba_matmul.report.tables import by_chance, losing, size_text, without_pause

NOTEBOOKS = sorted((ROOT/"nbs").rglob("*.ipynb"))
CARDS = sorted((ROOT/"nbs"/"results").glob("*.json"))


def cells(path): return json.loads(path.read_text(encoding="utf-8"))["cells"]
def source(cell): return "".join(cell["source"])
def prose(path): return "\n".join(source(c) for c in cells(path) if c["cell_type"] == "markdown")


def output_texts(path):
    for cell in cells(path):
        for output in cell.get("outputs", []):
            yield output, ("".join(output.get("text", [])) + json.dumps(output.get("data", {}).get("text/plain", ""))
                           + "".join(output.get("data", {}).get("text/html", [])))


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    "The project in another folder, where a command may change it."
    target = tmp_path_factory.mktemp("copy")
    for name in "nbs", "numba_matmul":
        shutil.copytree(ROOT/name, target/name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
    for name in "settings.ini", "pyproject.toml", "setup.py", "README.md": shutil.copy(ROOT/name, target/name)
    return target


def run(code, folder):
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr


def test_library_is_what_the_notebooks_export(copy):
    run("from nbdev.doclinks import nbdev_export\nnbdev_export()", copy)
    def modules(root): return {path.relative_to(root) for path in (root/"numba_matmul").rglob("*.py")}
    for path in [*(copy/"numba_matmul").rglob("*.py"), copy/"pyproject.toml"]:
        written = path.read_text(encoding="utf-8")
        assert written == (ROOT/path.relative_to(copy)).read_text(encoding="utf-8"), f"{path.name}: run nbdev_export"
    assert modules(copy) == modules(ROOT)
    exported = [path for path in NOTEBOOKS if any(source(cell).startswith("#| default_exp") for cell in cells(path))]
    by_hand = {path for path in modules(ROOT) if path.name in ("__init__.py", "_modidx.py")}
    assert len(exported) == len(modules(ROOT) - by_hand), "a module without its notebook: nbdev_export deletes none"


def test_notebooks_are_clean(copy):
    run("from nbdev.clean import nbdev_clean\nnbdev_clean()", copy)
    for path in NOTEBOOKS:
        cleaned = (copy/path.relative_to(ROOT)).read_text(encoding="utf-8")
        assert cleaned == path.read_text(encoding="utf-8"), f"{path.name}: run nbdev_clean"


def test_scripts_are_what_the_lessons_write():
    written = {}
    for path in NOTEBOOKS:
        for cell in cells(path):
            first, _, body = source(cell).partition("\n")
            if first.startswith("%%writefile"):
                assert (first.split()[1].startswith("../profiling_scripts/")
                        and path.stem in first), f"{path.name}: {first}"
                written[first.split("/")[-1]] = body
    assert written == {p.name: p.read_text(encoding="utf-8").rstrip("\n")
                       for p in (ROOT/"profiling_scripts").glob("*.py")}


def test_every_kernel_has_a_lesson_and_a_script():
    for kernel in KERNELS.values():
        lesson, _ = readme._lesson(kernel)
        stem = lesson.removeprefix("nbs/").removesuffix(".ipynb")
        assert stem.startswith(f"{kernel.number:02}_") and (ROOT/"profiling_scripts"/f"{stem}.py").exists()
        assert lesson in (ROOT/"README.md").read_text(encoding="utf-8")


def test_readme_and_picture_come_from_the_cards():
    text = (ROOT/"README.md").read_text(encoding="utf-8")
    assert text == readme.readme_text(text), "run make readme"
    assert (ROOT/readme.PICTURE).read_text(encoding="utf-8") == readme.picture_svg(), "run make readme"


@pytest.fixture
def two_cards(tmp_path, monkeypatch):
    "The card of another GPU beside the first one: without kernel 12, and with another speed of Triton."
    card = cards.load_cards("experiments")[0]
    left = [row for row in card["speed"] if row["name"] not in ("sgemm_triton", "sgemm_async_copy")]
    triton = left[-1] | dict(name="sgemm_triton", gflops=12345.0, m=4096, n=4096, k=4096)
    other = card | dict(gpu="Another GPU", experiments={}, speed=[*left, triton])
    folder = tmp_path/"nbs"/"results"
    folder.mkdir(parents=True)
    for path in NOTEBOOKS:
        (tmp_path/path.relative_to(ROOT)).parent.mkdir(exist_ok=True)
        shutil.copy(path, tmp_path/path.relative_to(ROOT))
    settings = (ROOT/"settings.ini").read_text(encoding="utf-8")
    (tmp_path/"settings.ini").write_text(re.sub(r"(?m)^git_url.*", "git_url =", settings), encoding="utf-8")  # of no copy
    (folder/"b.json").write_text(json.dumps(card))
    (folder/"a.json").write_text(json.dumps(other))
    for module in readme, cards: monkeypatch.setattr(module, "card_folder", lambda: folder)
    return card, other


def test_a_second_card_adds_a_column(two_cards):
    full, _ = two_cards
    text, picture = readme.readme_ladder(), readme.picture_svg()
    for card in two_cards:
        assert text.count(f"one {card['gpu']} ") == 1 and f"{card['gpu']}, GFLOP/s" in text
    assert [f"{card['gpu']}, 4096" in picture for card in two_cards] == [True, False]  # the ladder's page has all
    lines = {line.split("|")[2].split("]")[0].strip(" ["): line for line in text.splitlines() if line.startswith("|")}
    assert lines["Asynchronous copies"].endswith("| – | – |") and "12,345" in lines["Triton, for comparison (float32)"]
    assert len({line.count("|") for line in lines.values()}) == 1
    assert "colab" not in text
    assert cards.load_cards() == list(two_cards)
    # first the one with experiments, which has speeds without a pause, too
    lines = [[cell.strip() for cell in line.split("|")[2:-1]] for line in readme.readme_speed().splitlines()[:10] if "--:" not in line]
    assert [gpu.split(", ")[0] for gpu in lines[0]] == ["H200"] * 2 + ["Another GPU"] * 2
    ours, others = list(zip(*lines))[1::2]  # in bfloat16
    steady, shapes = without_pause(full)["bfloat16", 4096], by_chance(full["experiments"]["twenty shapes by chance"]["values"])
    assert ours[3] == f"{steady['percent']:.1f} ({steady['gflops']:,.0f})" and others[3:6] == ("–",) * 3  # it has no experiments
    for cell, fits in zip(ours[4:6], (True, False)):
        found = shapes["bfloat16", fits]
        assert len(found) == 10 and cell == f"{np.exp(np.log(found).mean()):.0f} ({min(found):.0f})"
    assert ours[1:3] == others[1:3] and ours[6:] == others[6:] and ours[8].startswith("**")


def test_lessons_of_a_type_are_told_in_runs(monkeypatch):
    kernels = {number: SimpleNamespace(number=number) for number in (1, 2, 3, 5, 6, 8)}
    monkeypatch.setattr(readme, "KERNELS", kernels)
    def told(*numbers): return readme._lessons([kernels[number] for number in numbers])
    assert told(1, 2, 3) == "lessons 1 to 3" and told(6) == "lesson 6"
    assert told(2, 3, 5) == "lessons 2 to 5"  # there is no lesson 4
    assert told(1, 2, 8) == "lessons 1 to 2 and 8" and told(1, 3, 6) == "lessons 1, 3 and 6"


def test_badges_come_with_an_address(two_cards, monkeypatch):
    monkeypatch.setattr(readme, "_git_url", lambda: "https://github.com/someone/matmul")
    assert ("https://colab.research.google.com/github/someone/matmul/blob/main/nbs/05_2d_blocktiling.ipynb"
            in readme.readme_ladder())
    assert "!git clone -q https://github.com/someone/matmul matmul" in readme.readme_colab()


@pytest.mark.parametrize("script", sorted((ROOT/"profiling_scripts").glob("*.py")), ids=lambda p: p.name)
def test_a_script_names_the_two_numbers_of_its_lesson(script):
    spec = importlib.util.spec_from_file_location("profile_tool", ROOT/"tools"/"profile.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    names = tool.look_at(script)
    assert len(names) == 2 and set(names) <= LOOK_AT.keys()
    prose = "".join(source(c) for c in cells(ROOT/"nbs"/f"{script.stem}.ipynb") if c["cell_type"] == "markdown").lower()
    assert all(f"*{name.lower()}*" in prose for name in names)


def test_the_glossary_has_each_term_once_and_links_to_a_page_that_uses_it():
    text = "\n".join(source(c) for c in cells(ROOT/"nbs"/"91_glossary.ipynb"))
    entries = re.findall(r"^- \*\*(.+?)\*\*.*\]\((\S+\.ipynb)\)\)$", text, re.M)
    terms = [term.lower() for term, _ in entries]
    assert len(entries) == text.count("\n- ") > 60 and len(set(terms)) == len(terms)
    for term, page in entries:
        there = "".join(source(c) for c in cells(ROOT/"nbs"/page)).lower()
        assert any(word in there for word in re.split(r" and |, ", term.lower())), f"{term}: not in {page}"
    for kernel in KERNELS.values():  # and each lesson has a term, under its number
        page = readme._lesson(kernel)[0].removeprefix("nbs/")
        assert f"([lesson {kernel.number}]({page}))" in text, f"no term links to {page}"


@pytest.mark.parametrize("path", CARDS, ids=lambda p: p.name)
def test_card_keeps_the_schema(path):
    card = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(SCHEMA).validate(card)
    for row in card["speed"]:  # the derived numbers agree with the measured ones
        assert row["gflops"] == pytest.approx(2 * row["m"] * row["n"] * row["k"] / row["ms"] / 1e6)
        assert row["percent"] == pytest.approx(100 * row["cublas_ms"] / row["ms"])


def test_a_card_with_a_failed_check_is_refused():
    card = minimal_card()
    cards.check_card(card)
    card["speed"][0] = ({key: card["speed"][0][key] for key in ("name", "m", "n", "k")}
                        | dict(passed=False, message="wrong"))
    with pytest.raises(jsonschema.ValidationError): jsonschema.Draft202012Validator(SCHEMA).validate(card)
    with pytest.raises(ValueError, match="card.speed"): cards.check_card(card)


def test_every_experiment_of_the_lessons_is_recorded():
    "But for lessons whose kernel has no recorded speed either."
    card, names, later = cards.load_cards()[0], set(), set()
    measured = {ALL[row["name"]].number for row in card["speed"]}
    for path in NOTEBOOKS:
        found = {name for cell in cells(path) if cell["cell_type"] == "code"
                 for name in re.findall(r'\bexperiment\("([^"]+)"', source(cell))}
        names |= found
        without_speed = path.stem[:2].isdigit() and int(path.stem[:2]) in KERNELS.keys() - measured
        if without_speed: later |= found
    assert names - later <= set(card["experiments"]) <= names


def test_every_size_at_which_a_last_kernel_loses_has_a_cause():
    "On the page, and by the cards as they are, except where two runs could differ by as much."
    page, scope = cells(ROOT/"nbs"/"90_ladder.ipynb"), {}
    assert "| how we know |" in str(next(cell for cell in page if source(cell).startswith("causes("))["outputs"])
    assert not any("not looked into yet" in str(cell.get("outputs")) for cell in page)
    table = ast.parse(next(source(cell) for cell in page if source(cell).startswith("CAUSES = {"))).body[0]
    exec(compile(ast.Module([table], []), "<causes>", "exec"), scope)
    for dtype, kernel in {kernel.dtype: kernel for kernel in KERNELS.values()}.items():
        unknown = {size_text(*size) for size in losing(cards.load_cards(), kernel, below=96)} - set(scope["CAUSES"][dtype])
        assert not unknown, f"{dtype}: why is it slower at {', '.join(unknown)}?"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_outputs_are_fit_to_keep(path):
    assert path.stat().st_size < 700_000, "hard to read and to diff"
    for output, text in output_texts(path):
        assert output["output_type"] != "error"
        assert not re.search(r"(/home|/root|/tmp|/opt|/usr|/work|/Users|/content)/|"
                             r"site-packages|ipykernel_|ipython-input", text), text[:300]
        assert not re.search(r"\d+%\||it/s", text), "a progress bar is left"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_notebook_has_the_form_of_the_course(path):
    first, *rest = cells(path)
    assert re.match(r"# .+\n\n> .+", source(first)), "a title, and the one idea after >"
    imports = next((source(c) for c in rest
                    if c["cell_type"] == "code" and re.search(r"^(from|import) ", source(c), re.M)), None)
    if imports is None: return
    line = re.search(r"^(from|import) (.+)", imports, re.M)
    assert (re.match(r"(util|numba_matmul)\b", line[2])
            or "#| export" in imports), "the first import chooses the simulator"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_an_exported_cell_is_short_or_one_definition(path):
    for text in (source(c) for c in cells(path) if source(c).startswith("#| export")):
        assert text.count("\n") < 60 or len(ast.parse(text).body) == 1, text[:300]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_imports_stand_in_cells_of_their_own(path):
    "nbdev's documentation runs every cell that has an import, and none of those before it that have none."
    for cell in cells(path):
        text = source(cell)
        if (cell["cell_type"] != "code" or text.startswith("%%")
                or re.search(r"^#\| *(export|hide)", text, re.M)): continue
        tree, kinds = ast.parse(text), (ast.Import, ast.ImportFrom)
        imports = [isinstance(statement, kinds) for statement in tree.body]
        assert all(imports) or not any(imports), text
        if not imports or all(imports): continue
        nested = any(isinstance(node, kinds) for node in ast.walk(tree))
        assert (not nested
                or all(isinstance(statement, (ast.FunctionDef, ast.ClassDef)) for statement in tree.body)), text


def linked_files():
    for path in [*NOTEBOOKS, ROOT/"README.md", ROOT/"CONTRIBUTING.md"]:
        text = prose(path) if path.suffix == ".ipynb" else path.read_text(encoding="utf-8")
        text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)  # code
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", text): yield path, target


@pytest.mark.parametrize("path,target", list(linked_files()), ids=lambda x: getattr(x, "name", x))
def test_links_lead_somewhere(path, target): assert (path.parent/target).exists()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_anchors_name_a_heading(path):
    for file, anchor in re.findall(r"\]\(([\w./]*\.ipynb)?#([^)]+)\)", prose(path)):
        headings = re.findall(r"^#+ (.+)$", prose(path.parent/file if file else path), re.M)
        assert anchor in [re.sub(r"[`*]", "", heading).strip().replace(" ", "-") for heading in headings], (file, anchor)


def named_files():
    "Files of the project that a text names as code."
    for path in [*NOTEBOOKS, ROOT/"README.md", ROOT/"CONTRIBUTING.md"]:
        text = prose(path) if path.suffix == ".ipynb" else path.read_text(encoding="utf-8")
        for name in re.findall(r"`((?:nbs|tools|tests|numba_matmul|profiling_scripts)/[\w./]*|"
                               r"[\w/]+\.(?:py|ini|txt|md|ipynb|toml))`", text): yield path, name


@pytest.mark.parametrize("path,name", list(named_files()), ids=lambda x: getattr(x, "name", x))
def test_files_that_are_named_exist(path, name): assert (ROOT/name).exists() or (path.parent/name).exists()


@pytest.mark.parametrize("path", [p for p in NOTEBOOKS if re.match(r"(0\d|1\d|3\d)_", p.name)], ids=lambda p: p.name)
def test_the_main_path_of_a_lesson_is_short(path):
    "What comes before the rule can be read in one sitting."
    words = count = 0
    for cell in cells(path):
        before_rule, *rest = re.split(r"^---$", source(cell), flags=re.M) if cell["cell_type"] == "markdown" else [""]
        words += len(before_rule.split())
        if rest: break
        count += 1
    assert rest, "there is no rule after the main path"
    assert words <= (900 if path.name.startswith("01") else 1000) and count <= 35, (words, count)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_each_cell_has_an_id_of_its_own(path):
    ids = [cell["id"] for cell in cells(path)]
    assert len(set(ids)) == len(ids)
