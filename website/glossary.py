"""A Sphinx extension: each term of the glossary has an anchor, and where a page uses one for the first time,
it links there and shows the definition."""
import html
import json
import posixpath
import re
from functools import cache
from pathlib import Path

from docutils import nodes

PAGE = "nbs/91_glossary"
# A link to these would be wrong too often, or in nearly every sentence.
EVERYDAY = {"alpha and beta", "conflict", "event", "factors", "flag", "guard", "issue", "line", "operator",
            "owner", "peak", "plan", "reuse", "round", "rules", "stack", "step", "word",
            "block", "device", "grid", "host", "kernel", "launch", "thread", "tile"}


def slug(term): return "term-" + re.sub(r"\W+", "-", term.lower()).strip("-")


@cache
def terms(folder):
    "Term → its definition, and the page that introduces it; longer terms come first."
    cells = json.loads(Path(folder, f"{PAGE}.ipynb").read_text(encoding="utf-8"))["cells"]
    found = re.findall(r"^- \*\*(.+?)\*\*([^:\n]*): (.+?) \(\[.+?\]\(([\w/]+)\.ipynb\)", "\n".join(
        "".join(cell["source"]) for cell in cells), re.M)
    plain = {term: (re.sub(r"[*`]", "", text), posixpath.normpath(f"nbs/{page}"))
             for term, _, text, page in found}
    return dict(sorted(plain.items(), key=lambda item: -len(item[0])))


@cache
def pattern(folder):
    "Any term of the glossary that isn't an everyday word, also in the plural."
    names = "|".join(re.escape(term) for term in terms(folder) if term not in EVERYDAY)
    return re.compile(rf"(?<![\w.-])({names})s?(?![\w-])", re.I)


def link(app, docname, term, text):
    "The first use of a term on a page."
    href = f"{posixpath.relpath(PAGE, posixpath.dirname(docname))}.html#{slug(term)}"
    tip = html.escape(terms(app.srcdir)[term][0])
    made = f'<a class="term" href="{href}" data-tip="{tip}">{html.escape(text)}</a>'
    return nodes.raw("", made, format="html")


def anchors(doctree):
    "Anchors of the terms, in the glossary itself."
    for item in doctree.findall(nodes.list_item):
        strong = next(item.findall(nodes.strong), None)
        if strong is not None: item["ids"].append(slug(strong.astext()))


def tell_terms(app, doctree, docname):
    if docname == PAGE: return anchors(doctree)
    if not docname.startswith("nbs/"): return
    known, seen = terms(app.srcdir), set()
    by_name = {term.lower(): term for term in known}
    for paragraph in [*doctree.findall(nodes.paragraph)]:
        if not isinstance(paragraph.parent, (nodes.section, nodes.list_item)): continue
        for text in [child for child in paragraph.children if isinstance(child, nodes.Text)]:
            parts, end = [], 0
            for found in pattern(app.srcdir).finditer(text):
                term = by_name[found[1].lower()]
                if term in seen or known[term][1] == docname: continue
                seen.add(term)
                parts += [nodes.Text(text[end:found.start()]), link(app, docname, term, found[0])]
                end = found.end()
            if parts: paragraph.replace(text, [*parts, nodes.Text(text[end:])])


def setup(app):
    app.connect("doctree-resolved", tell_terms)
    return dict(parallel_read_safe=True, parallel_write_safe=True)
