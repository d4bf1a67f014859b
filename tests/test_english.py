"""English that nobody notices: no text of the project has the phrases by which readers knew a translation.

A pattern with legitimate uses is narrowed until it matches only the others: no place is exempt."""
import json
import re
import subprocess

import pytest
from conftest import ROOT

THINGS = ("barrier|bit|block|box|child|column|flag|kernel|lane|launch|line|mbarrier|number|pass|piece|place|"
          "row|stage|table|test|thread|tile|warp")
INSTEAD = {  # a phrase, with a space for any white space → what to write
    # fine: there is no X, X is no longer, no faster, no X at all
    r"(?<!there )(?<!There )(?<!here )\b(?:is|are|was|were) no "
    r"(?!longer|more|less|fewer|worse|different|matter|\w+er\b|\w+ (?:at all|left)\b)[\w{]+": "isn't a",
    r"(?<!there )(?<!There )(?<!here )\bis none\b": "isn't one",
    r"\bknows? (?:of )?(?:no|none)\b": "doesn't know, doesn't support",
    r"\bbrings\b": "gains, adds, contains, returns",
    r"\b[Ww]hat (?:do|does|did|would|will) \w+ (?:\w+ )?bring\b": "what do we gain",
    r"\bbrought (?:nothing|no\b|\d)": "gained",
    r"(?<!who )(?<!one )(?<!reader )\bwants\b": "needs, requests",
    r"\bhand(?:s|ed|ing)? over\b": "returns, passes",
    r"\bgo(?:es|ing) by\b": "uses, depends on",
    r"\b(?:is|are|was|were|be|been) told\b": "gets, is reported",
    r"\btakes? the least\b|\bthe least time\b|\bthe most of\b": "is fastest, most of",
    r"\b[Ll]ess is better\b": "lower is better",
    r"\bwithout a word\b|\bin silence\b": "silently",
    r"\b[Ww]ithout a pause\b": "sustained",
    rf"\b[Aa]n? (?:{THINGS}) for each\b": "one … per",
    r"\bin a (?:circle|hurry)\b": "deadlock, urgent",
    r"\borders? (?:an?|the|its|each|every) (?:tile|copy|copies|box|boxes|loads?)\b": "issues the copy of",
    r"\bequally many\b": "the same number of",
    r"\bworth nothing\b": "meaningless",
    r"\b[Aa]ll that (?:an?|there)\b": "everything",
    r"\bthat there (?:is|are)\b(?! \w)": "nothing: drop it",
    r"\bmisprints?\b": "typo",
    r"\bup to chance\b": "varies from run to run",
    r"\bas (?:it|they) should(?: be)?\b(?! \w)": "as expected, correct",
    r"\b[Pp]er cent\b": "percent, or % after a number",
    r"(?i)\b(?:neighbour|colour|behaviour|favour|honour|centre|towards|afterwards|cancelled|labelled|modelled|"
    r"(?:initial|optim|normal|synchron|serial|summar|recogn|organ|general|special|minim|maxim|util|visual|parallel)"
    r"is(?:e|ed|es|ing|ation)\b)": "the American spelling"}
PATTERNS = [(re.compile(phrase.replace(" ", r"\s")), instead) for phrase, instead in INSTEAD.items()]

TEXT = r'"((?:\\.|[^"\\\n])*)"', r"'((?:\\.|[^'\\\n])*)'", r'"""(.*?)"""'
LITERAL = re.compile(rf'(?<![\w"])(?:[bru]*f?|fr)(?:{TEXT[2]}|{TEXT[0]}|{TEXT[1]})|#([^\n]*)',
                     re.DOTALL | re.IGNORECASE)
CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)\n]*\)|https?://\S+", re.DOTALL)


def blotted(text): return "\0" + "\n" * text.count("\n")


def prose_of(source):
    "A program's comments and strings, on their lines. Those that follow one another are one text."
    parts, end = [], 0
    for found in LITERAL.finditer(source):
        before = source[end:found.start()]
        parts += [blotted(before) if before.strip("() \n") else before, " ", found[found.lastindex], " "]
        end = found.end()
    return "".join(parts)


def hits(text):
    "Each phrase of a text: its line, the words, and what to write."
    text = CODE.sub(lambda code: blotted(code[0]), text)
    text = re.sub(r" *\n *", "\n", re.sub(" +", " ", text))
    for pattern, instead in PATTERNS:
        for found in pattern.finditer(text):
            yield text.count("\n", 0, found.start()) + 1, " ".join(found[0].split()), instead


def phrases(path):
    "A message for each phrase of a page, a notebook or a program."
    text, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT)
    places = [(f"{name}:", text)]
    if path.suffix == ".py": places = [(f"{name}:", prose_of(text))]
    if path.suffix == ".ipynb":
        places = [(f"{name}, cell {cell['id']}, line ",
                   (prose_of if cell["cell_type"] == "code" else str)("".join(cell["source"])))
                  for cell in json.loads(text)["cells"]]
    return [f"{place}{line}: “{words}” → {instead}"
            for place, text in places for line, words, instead in sorted(hits(text))]


LISTED = subprocess.run(["git", "ls-files", "*.md", "*.py", "*.ipynb"], cwd=ROOT, capture_output=True,
                        text=True).stdout.split()
FOLDERS = ".", "nbs", "numba_matmul", "profiling_scripts", "tests", "tools", "website"


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_phrase_reads_as_translated(folder):
    names = [name for name in LISTED
             if (name.split("/")[0] if "/" in name else ".") == folder and name != "tests/test_english.py"]
    found = [phrase for name in names for phrase in phrases(ROOT/name)]
    assert not found, f"{len(found)} phrases:\n" + "\n".join(found)


def test_a_phrase_is_found_across_lines_and_only_in_prose():
    source = ('x = brings  # it brings\ndef f(a="is"): "no `wants`"\nraise E("a bool is "\n'
              '        f"no {mask}"\n        "per cent", "Colour")\n')
    assert sorted(line for line, *_ in hits(prose_of(source))) == [1, 3, 5, 5]
    assert not [*hits("There is no card: it is no longer here. `brings`\n```\nwants\n```")]
