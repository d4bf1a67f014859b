"A Sphinx extension: how the website renders a notebook."
import html
import json
import re

from docutils import nodes

from numba_matmul import widgets
from numba_matmul.exercise import KEPT, UNSEEN
from tools.figures import SVG
from tools.fold import is_folded


def anchor(heading):
    "Anchors as Jupyter makes them, so that links between notebooks also work on the website."
    return heading.strip().replace(" ", "-")


DIRECTIVE = re.compile(r"^#\| *(export|exports|hide|cuda|compiler|default_exp)\b.*\n?", re.M)


FOLDERS = {"library": "/library.md"}


READABLE = 9  # pixels: on a narrow screen a figure scrolls in its box before its digits are smaller


def readable(svg):
    "A figure that doesn't shrink any further than its smallest text allows, and isn't enlarged either."
    smallest = min(map(float, re.findall(r"font(?:-size)?: ([\d.]+)px", svg)), default=0)
    if not smallest: return svg
    drawn, width = map(float, re.search(r'viewBox="0 0 ([\d.]+) .*?" width="(\d+)"', svg).groups())
    least = min(width, READABLE * drawn / smallest)
    return svg.replace("<svg", f'<svg style="min-width: {least:.0f}px"', 1)


def inline(outputs, heading, prefix):
    "Put figures into the page, where they take its color; one without SVG is named by its heading."
    shown = [output["data"] for output in outputs if "image/png" in output.get("data", {})]
    for number, data in enumerate(shown):
        png, svg = ("".join(data.pop(kind, "")).strip() for kind in ("image/png", SVG))
        label = html.escape(f"Figure in the section: {heading}")
        picture = f'<img alt="{label}" src="data:image/png;base64,{png}">'
        unique = rf"\g<1>{prefix}-{number}-"  # on the page
        data["text/html"] = readable(re.sub(r'( id="|href="#|url\(#)(?=\w)', unique, svg)) or picture


def answers(cells):
    "Let the page ask for predictions: a box at each question, and below it room for the answer."
    asked = [output["data"] for cell in cells for output in cell.get("outputs", []) if "data" in output]
    found, boxes = [data for data in asked if KEPT in data], []
    for place, answer in enumerate(found):
        text, kept = "".join(answer.pop("text/markdown")), answer.pop(KEPT)
        question = next((data for data in asked if "".join(data.get("text/markdown", "")).startswith(
            f"**{kept['question']}** Put your numbers")), None)
        if not question or UNSEEN not in text: continue
        room = f'<div data-answer="{place}">The answer appears here once you have typed your own.</div>'
        measured = text.replace(UNSEEN, "").strip()
        answer["text/html"] = room + f"<p>{html.escape(measured)}</p>" * bool(measured)
        box = widgets.box("prediction", f"Your prediction: {kept['question']}", kept | dict(place=place),
                          "It needs JavaScript.")
        question.clear()
        question["text/html"] = box
        boxes.append(question)
    if boxes: boxes[-1]["text/html"] += f"<script>(() => {{\n{widgets.script('prediction')}\n}})()</script>"


def as_page(app, docname, source):
    """A folder is a page here. Directives to nbdev aren't for readers, and neither are cells with nothing
    else."""
    source[0] = re.sub(r"\]\((?:\.\./|nbs/)*(library)/?\)", lambda link: f"]({FOLDERS[link[1]]})", source[0])
    if app.env.doc2path(docname).suffix != ".ipynb": return
    nb, cells, heading = json.loads(source[0]), [], ""
    answers(nb["cells"])
    for cell in nb["cells"]:
        heading = [heading, *re.findall(r"^#+ (.+)", "".join(cell["source"]), re.M)
                   * (cell["cell_type"] == "markdown")][-1]
        inline(cell.get("outputs", []), heading, cell["id"])
        if cell["cell_type"] == "code":
            cell["source"] = DIRECTIVE.sub("", "".join(cell["source"]))
            if not cell["source"].strip(): continue
            if all(re.match(r"from |import |[ )]|$", line) for line in cell["source"].splitlines()):
                if cells and "Show the imports" in str(cells[-1]["metadata"]):  # imports just before
                    cells[-1]["source"] += "\n" + cell["source"]
                    continue
                cell["metadata"] = dict(tags=["hide-input"], mystnb=dict(code_prompt_show="Show the imports"))
            elif "answer" in cell["metadata"].get("tags", []):
                cell["metadata"]["mystnb"] = dict(code_prompt_show="Show the answer")
        cells.append(cell)
    source[0] = json.dumps(nb | dict(cells=cells))


class details(nodes.General, nodes.Element): "A folded section, under a line that opens it."


def visit_details(translator, node):
    translator.body.append(f'<details class="folded"><summary>{node["line"]}</summary>\n')


def fold(app, doctree, docname):
    """Fold a lesson's kernel, which is its exercise's solution, and everything below the rule, section by
    section; whatever the reader should do stays open."""
    rule = next(doctree.findall(nodes.transition), None)
    if not re.match(r"nbs/\d", docname) or rule is None: return
    below = False  # the rule, which docutils puts between two sections
    for part in rule.parent.children:
        below = below or part is rule
        if not isinstance(part, nodes.section): continue
        title, *rest = part.children
        if not is_folded(title.astext(), below): continue
        part.children = [title]
        part += details("", *rest, line="Show this part" if below else "Write yours first, then open this")


def setup(app):
    app.add_node(details,
                 html=(visit_details, lambda translator, node: translator.body.append("</details>\n")))
    app.connect("source-read", as_page)
    app.connect("doctree-resolved", fold)
    return dict(parallel_read_safe=True, parallel_write_safe=True)
