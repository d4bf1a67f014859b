"""The course as a website: `make site` builds it into the folder named by `doc_path` in settings.ini.

Sphinx reads a copy of README, CONTRIBUTING and the notebooks, with their stored outputs: nothing is run. The
only pages written here are the lists of pages (in reading order), the solutions, and the reference, which
comes from the library's docstrings and the comments next to its parameters."""
import ast
import gc
import html
import inspect
import io
import json
import re
import shutil
import sys
import time
import tokenize
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

gc.set_threshold(50_000, 20, 100)  # a website in the making is many objects, little of it garbage
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from numba_matmul.exercise import exercises, solutions  # noqa: E402
from numba_matmul.report import readme  # noqa: E402
from tools.figures import svg_of  # noqa: E402

from pages import readable  # noqa: E402

SETTINGS = ConfigParser(delimiters=["="])
SETTINGS.read(ROOT/"settings.ini", encoding="utf-8")
SETTINGS = SETTINGS["DEFAULT"]
BUILD, OUT = ROOT/"build"/"website", ROOT/SETTINGS["doc_path"]
STAGE = BUILD/"pages"
PACKAGE = ROOT/SETTINGS["lib_path"]


def section(file, heading):
    "The text under a heading in one of the project's pages."
    text = (ROOT/file).read_text(encoding="utf-8")
    return re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.M | re.S)[1]


def course():
    "The lessons' pages in reading order: their names start with their numbers."
    return sorted(f"nbs/{path.stem}" for path in (ROOT/"nbs").glob("*.ipynb"))


def instruments():
    "The pages listed in README's table of instruments, in its order."
    table = section("README.md", "The instruments")
    return re.findall(r"^\| \[.+?\]\((nbs/library/\w+)\.ipynb\)", table, re.M)


def layers():
    "Layers of the library → their contents, from the ground up, as in CONTRIBUTING."
    table = section("CONTRIBUTING.md", "How the library is layered")
    rows = re.findall(r"^\| (`.+`) \| (.+) \|$", table, re.M)
    return {tuple(re.findall(r"`(\w+)`", names)): text for names, text in rows}


def in_layer(names):
    "The modules of a layer."
    return [path for name in names
            for path in (PACKAGE/f"{name}.py", *sorted((PACKAGE/name).glob("[!_]*.py")))
            if path.exists()]


def links_to_the_reference(text, found):
    "The text of a page, with links to the library's source redirected to the reference."
    layer = {module: name for name, (_, modules) in found.items() for module in modules}
    def replaced(link):
        module = PACKAGE/link[2]
        name = ".".join(module.relative_to(ROOT).with_suffix("").parts)
        return f"[{link[1]}](/reference/{layer[module]}.md#{name})"
    return re.sub(rf"\[([^\]]*)\]\((?:\.\./)*{PACKAGE.name}/([\w/]+\.py)\)", replaced, text)


def with_picture(text):
    "README's text, with its pictures in the page, as a notebook's."
    def drawn(link):
        label, svg = html.escape(link[1]), readable(svg_of(readme.PICTURES[link[2]]()))
        prefix = rf"\g<1>{Path(link[2]).stem}-"  # each picture's names are its own on the page
        svg = re.sub(r'( id="|href="#|url\(#)(?=\w)', prefix, svg)
        return '<div class="cell_output">' + re.sub('(?<=aria-label=")[^"]*', label, svg) + "</div>"
    return re.sub(rf"!\[(.*?)\]\(({'|'.join(map(re.escape, readme.PICTURES))})\)", drawn, text)


def title_of(page):
    "A notebook's first line."
    first = json.loads((ROOT/f"{page}.ipynb").read_text(encoding="utf-8"))["cells"][0]["source"]
    return "".join(first).splitlines()[0].removeprefix("# ")


PAGES_ALONE = ":hidden:", ":maxdepth: 1"  # not their sections, which Sphinx would copy for every page

def toctree(pages, *options):
    return "\n".join(["```{toctree}", *options, "", *(f"/{page}" for page in pages), "```", ""])


def comments(source):
    "Line → the comment at its end."
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}


def described(node, notes):
    "A function or a class with its docstring, its parameters and their comments, in Sphinx markup."
    docstring, fields = ast.get_docstring(node) or "", []
    if isinstance(node, ast.ClassDef):
        kind, signature = "class", ""
        names = [(item.target.id, item.lineno) for item in node.body if isinstance(item, ast.AnnAssign)]
    else:
        kind, end = "function", node.body[0].lineno
        signature = f"({ast.unparse(node.args)})"
        if node.returns: signature += f" -> {ast.unparse(node.returns)}"
        every = [*node.args.posonlyargs, *node.args.args, node.args.vararg, *node.args.kwonlyargs,
                 node.args.kwarg]
        names = [(arg.arg, arg.lineno) for arg in every if arg]
        last = max([line for _, line in names], default=node.lineno)
        closing = [notes[line] for line in range(last + 1, end) if line in notes]
        if closing: fields.append(f":returns: {closing[0]}")
    together = {line: [name for name, at in names if at == line] for _, line in names}
    named = [f":param {', '.join(group)}: {notes[line]}" for line, group in together.items() if line in notes]
    return kind, signature, docstring, named + fields


def reference(module):
    "A module's exports, as a section."
    source = module.read_text(encoding="utf-8")
    tree, notes = ast.parse(source), comments(source)
    name = ".".join(module.relative_to(ROOT).with_suffix("").parts)
    made_from = re.search(r"File to edit: (?:\.\./)+(nbs/.+\.ipynb)", source)
    lines = [f"## {name}", "", f"```{{py:module}} {name}\n```", ""]
    if made_from:
        lines += [f"[{title_of(made_from[1].removesuffix('.ipynb'))}](/{made_from[1]})", ""]
    lines += [ast.get_docstring(tree) or "", ""]
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value,
                                                       ast.Call) and ast.unparse(node.value.func) == "tiled":
            host = getattr(import_module(name), node.targets[0].id)
            lines += [f"````{{py:function}} {host.__name__}{inspect.signature(host)}", "",
                      inspect.getdoc(host), "", "````", ""]
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name.startswith("_"):
            continue
        kind, signature, docstring, fields = described(node, notes)
        lines += [f"````{{py:{kind}}} {node.name}{signature}", "", docstring, "", *fields, "````", ""]
    return "\n".join(lines)


def write(name, text):
    path = STAGE/name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def stage():
    "Assemble Sphinx's input."
    shutil.rmtree(BUILD, ignore_errors=True)
    shutil.copytree(ROOT/"nbs", STAGE/"nbs", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    for name in "CONTRIBUTING.md", "LICENSE", "settings.ini": shutil.copy(ROOT/name, STAGE)
    for key, exercise in exercises().items():
        # the search leaves them out
        write(f"solutions/{key}.md", f"---\nnosearch: true\n---\n# Exercise {key} · `{exercise.name}`\n\n"
              f"{solutions(key)}\n")
    write("solutions.md",
          "# Solutions\n\nEach exercise has a page with its judge's goals, several correct solutions, "
          "and the mistakes it must catch. They give the exercises away: write your own "
          "kernel first.\n\n"
          + toctree([f"solutions/{key}" for key in exercises()], ":maxdepth: 1"))
    found = {"-".join(names): (text, in_layer(names)) for names, text in layers().items()}
    for name, (text, modules) in found.items():
        write(f"reference/{name}.md", f"# {name.replace('-', ', ')}\n\n{text[:1].upper()}{text[1:]}.\n\n"
              + "\n".join(map(reference, modules)))
    for path in [*STAGE.rglob("*.ipynb"), STAGE/"CONTRIBUTING.md"]:
        path.write_text(links_to_the_reference(path.read_text(encoding="utf-8"), found), encoding="utf-8")
    others = [page
              for page in (f"nbs/library/{path.stem}"
                           for path in sorted((ROOT/"nbs"/"library").glob("*.ipynb")))
              if page not in instruments()]
    write("library.md", "# The library\n" + section("CONTRIBUTING.md", "How the library is layered"))
    write("index.md", with_picture((ROOT/"README.md").read_text(encoding="utf-8"))
          + "\n" + toctree([*course(), "solutions"], ":hidden:", ":caption: The course")
          + toctree([*instruments(), *others], *PAGES_ALONE, ":caption: The instruments")
          + toctree(["library", *(f"reference/{name}" for name in found), "CONTRIBUTING"], *PAGES_ALONE,
                    ":caption: The library"))


MENDED = (  # of what the theme writes: (pattern, what is better for waiting or listening readers)
    (r"\s*<script[^>]*fontawesome\.js[^>]*>\s*</script>", ""),  # 1.5 MB: icons.css draws what is used
    (r'\s*<link rel="preload" as="script"[^>]*>', ""),  # they would come before what the page looks like
    (r'<summary aria-label="Toggle hidden content">', "<summary>"),  # its text says more
    (r'(<button[^>]*search-button-field[^>]*) aria-label="Search"', r"\1"),
    (r'<summary>(?=<span class="toctree-toggle")', '<summary aria-label="Show the pages below">'),
    (r'<div (?=id="pst-primary-sidebar")', '<div role="navigation" aria-label="Pages" '),
    (r'<th class="(head[^"]*)">\s*(?:<p>\s*</p>)?\s*</th>', r'<td class="\1"></td>'),
    (r"<dl>\s*((?:<dd><em class=\"sig-param.*?</dd>\s*)+)</dl>",
     lambda found: "<div>" + re.sub("(</?)dd>", r"\1div>", found[1]) + "</div>"))


# What keeps a page from its first paint, and only the page of search results uses.
SEARCH = r'\s*<script src="[^"]*\b(?:searchtools|language_data|searchindex)\.js[^"]*">\s*</script>'
LATER = r'<script (?=src="[^"]*\b(?:doctools|sphinx_highlight|sphinx-book-theme)\.js)'
GLYPHS = r'\.fa-[\w-]+(?:,\.fa-[\w-]+)*\{--fa:"[^"]*"\}'  # of the icons that icons.css draws


def mend(folder):
    "Mend the pages, and drop what they don't need."
    for path in folder.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        for pattern, better in MENDED: page = re.sub(pattern, better, page, flags=re.S)
        if path.name != "search.html": page = re.sub(LATER, "<script defer ", re.sub(SEARCH, "", page))
        path.write_text(page, encoding="utf-8")
    for path in (folder/"_static"/"styles").glob("*.css"):
        path.write_text(re.sub(GLYPHS, "", path.read_text(encoding="utf-8")), encoding="utf-8")
    for path in (folder/"_static").rglob("*.map"): path.unlink()
    for path in (folder/"_static"/"scripts").glob("fontawesome*"): path.unlink()


def main():
    from sphinx.cmd.build import build_main
    start = time.time()
    stage()
    status = build_main(["-q", "-W", "--keep-going", "-c", str(Path(__file__).parent), "-d",
                         str(BUILD/"doctrees"),
                         "-b", "html", str(STAGE), str(BUILD/"html")])
    if status: sys.exit("The website wasn't built: see the warnings above.")
    mend(BUILD/"html")
    shutil.rmtree(OUT, ignore_errors=True)
    (BUILD/"html").rename(OUT)
    pages = len(list(OUT.rglob("*.html")))
    print(f"{pages} pages in {time.time() - start:.0f} s: open {(OUT/'index.html').relative_to(ROOT)}")


if __name__ == "__main__": main()
