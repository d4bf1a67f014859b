"Sphinx's settings for the website; build.py calls it."
import sys
from configparser import ConfigParser
from pathlib import Path

settings = ConfigParser(delimiters=["="])
settings.read(Path(__file__).parent.parent/"settings.ini", encoding="utf-8")
settings = settings["DEFAULT"]

project, author = settings["title"], settings["author"]
copyright, release = settings["copyright"], settings["version"]  # Sphinx's name
sys.path.insert(0, str(Path(__file__).parent))
extensions = ["myst_nb", "pages", "glossary"]
nb_execution_mode = "off"  # the pages show the notebooks' stored outputs
nb_execution_cache_path = str(Path(__file__).parent.parent/"build"/"website"/"cache")
nb_render_markdown_format = "myst"  # tables in outputs
nb_merge_streams = True
nb_code_prompt_show, nb_code_prompt_hide = "Show the code", "Hide the code"
myst_enable_extensions = ["fieldlist"]
myst_heading_anchors = 4
myst_heading_slug_func = "pages.anchor"
add_module_names = False
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 88
pygments_style = "default"

html_theme = "sphinx_book_theme"
html_title = project
html_static_path = ["static"]
html_css_files = ["site.css", "icons.css"]
html_js_files = [("site.js", dict(defer="defer"))]
html_search_scorer = str(Path(__file__).parent/"scorer.js")
html_favicon = "static/icon.svg"  # a tile of C
html_show_sphinx = False
html_context = dict(default_mode="auto")
html_theme_options = dict(show_navbar_depth=1, show_toc_level=2, home_page_in_toc=True,
                          use_fullscreen_button=False, navbar_persistent=[],
                          use_download_button=True, repository_branch=settings["branch"],
                          repository_url=settings["git_url"].removesuffix(".git"),
                          use_repository_button=bool(settings["git_url"]))
if settings["git_url"]:
    html_theme_options["launch_buttons"] = dict(colab_url="https://colab.research.google.com")
