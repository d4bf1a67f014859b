"""What a reader opens, and doesn't see at once: `python tools/fold.py` sets it in every lesson.

Folded are the code above a lesson's first sentence, whose outputs stay, the section with an exercise's
solution, what stands under a lesson's rule (except for what the reader is to do), and outputs that would
answer a question: those of `changes(…)`, and of cells with the tag `answer`. JupyterLab reads the cells'
metadata; the website folds the same sections, by their titles."""
import json
import re
import sys
from pathlib import Path

NBS = Path(__file__).resolve().parent.parent/"nbs"
COLLAPSED = "jp-MarkdownHeadingCollapsed"
SOLUTION = re.compile(r"The (kernel|rules|choice|operator)\b")


def is_folded(
    title,  # of a section
    below,  # is it under the rule?
):
    "Is a section of a lesson closed at first?"
    return bool(SOLUTION.match(title)) or below and not title.startswith("Your turn")


def titles(cell):
    "The sections that begin in a Markdown cell."
    if cell["cell_type"] != "markdown": return []
    return re.findall(r"^## (.+)", "".join(cell["source"]), re.M)


def hide(
    cell,
    part,  # "input" or "output"
):
    "Close a part of a cell, in JupyterLab and on the website."
    kept = dict(input="source_hidden", output="outputs_hidden")[part]
    cell["metadata"].setdefault("jupyter", {})[kept] = True
    tags = cell["metadata"].setdefault("tags", [])
    if f"hide-{part}" not in tags: tags.append(f"hide-{part}")


def fold(
    nb,  # a lesson's notebook, as a dict; it is changed
):
    "Set what is folded. `ValueError` where a folded section doesn't begin or end at the start of a cell."
    below = solution = folded = False
    texts = 0  # the first one is the title
    for cell in nb["cells"]:
        source = "".join(cell["source"])
        found = titles(cell)
        if found:
            if (folded or is_folded(found[-1], below)) and not source.startswith(f"## {found[0]}"):
                raise ValueError(f"cell {cell['id']}: put “## {found[0]}” at the start of a cell of its own")
            solution, folded = bool(SOLUTION.match(found[-1])), is_folded(found[-1], below)
            cell["metadata"].pop(COLLAPSED, None)
            if folded: cell["metadata"][COLLAPSED] = True
        below = below or cell["cell_type"] == "markdown" and source.strip() == "---"
        texts += cell["cell_type"] == "markdown"
        if cell["cell_type"] != "code": continue
        if texts == 1: hide(cell, "input")
        if solution and source.startswith("#| export"):
            cell["metadata"].setdefault("jupyter", {})["source_hidden"] = True
        answer = re.match(r"changes\(", source) or "answer" in cell["metadata"].get("tags", [])
        if answer: hide(cell, "output")


def lessons(): return sorted(NBS.glob("[0-3]*.ipynb"))


def main():
    for path in lessons():
        before = path.read_text(encoding="utf-8")
        nb = json.loads(before)
        try: fold(nb)
        except ValueError as e: sys.exit(f"{path.name}, {e}")
        text = json.dumps(nb, indent=1, ensure_ascii=False) + "\n"
        if text != before:
            path.write_text(text, encoding="utf-8")
            print(f"{path.name} is folded anew")


if __name__ == "__main__": main()
