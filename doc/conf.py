"""Configuration of Sphinx.

``sphinx-build -W doc doc/_build`` runs the examples and shows their figures and what they print,
which takes five to fifteen minutes. ``-D plot_gallery=0`` shows their code alone.
"""

import importlib.util
import re
import sys
from pathlib import Path

import skfedem

sys.path.insert(0, str(Path(__file__).parent))  # gallery_order

project = "skfedem"
author = "the skfedem developers"
copyright = f"2026, {author}"
version = release = skfedem.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "matplotlib.sphinxext.plot_directive",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "**sg_execution_times.rst"]
default_role = "literal"

autosummary_generate = True
# What a module's __all__ lists is documented, whichever file it was written in.
autosummary_ignore_module_all = False
autodoc_typehints = "none"
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False

# Prompts are not copied: what is pasted runs.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"/(plot_|quickstart)",
    "ignore_pattern": r"/benchmarks/|/deploy_|readme_picture",
    "within_subsection_order": "gallery_order.InOrder",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "min_reported_time": 1,
}

# The figures of the page about plots, which ``-D plot_gallery=0`` does not leave out.
plot_include_source = True
plot_html_show_source_link = False
plot_html_show_formats = False
plot_formats = [("png", 100)]

html_theme = "pydata_sphinx_theme"
html_title = "skfedem"
html_static_path = ["_static"]
html_css_files = ["skfedem.css"]
html_theme_options = {
    "logo": {"text": "skfedem"},
    "header_links_before_dropdown": 7,
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
}
html_sidebars = {"getting_started": [], "whats_new": [], "index": []}
html_show_sourcelink = False

# Formulas are drawn by MathJax. Where the package django-static-mathjax is installed (it needs no
# Django), a copy of it comes with the pages and they need no network; else browsers load it from a
# content delivery network.
_mathjax = importlib.util.find_spec("mathjax")
if _mathjax is not None:
    _tex_svg = Path(_mathjax.submodule_search_locations[0], "static/mathjax/es5/tex-svg.js")
    if _tex_svg.exists():
        html_static_path.append(str(_tex_svg))
        mathjax_path = "tex-svg.js"


def adapt_inherited(app, what, name, obj, options, lines):
    """Adapt docstrings inherited from scikit-learn: its references to its own pages become text."""
    if name.endswith(".fit_transform"):  # there X is one table, which is transformed to an array
        lines[:] = ["Fit to ``X``, then transform it: ``fit(X, **fit_params).transform(X)``.", ""]
    text = re.sub(
        r"\n *and :ref:`sphx_glr_.*?` for an\n *example on how to use the API", "", "\n".join(lines)
    )
    lines[:] = re.sub(r":(?:ref|term):`([^`<]+?)\s*(?:<[^`>]*>)?`", r"\1", text).split("\n")


def changelog_as_rst(app, docname, source):
    """Put CHANGELOG.md under the heading of its page; the little Markdown in it is translated."""
    if docname != "whats_new":
        return
    changelog = Path(app.confdir, "..", "CHANGELOG.md")
    app.env.note_dependency(changelog)
    text = changelog.read_text(encoding="utf-8")
    text = re.sub(r"^## \[(.+?)\]", r"## \1", text, flags=re.MULTILINE)
    text = text[text.index("\n## ") + 1 :].replace("`", "``")
    for marks, underline in (("##", "-"), ("###", "~")):
        text = re.sub(
            rf"^{marks} (.+)$",
            lambda heading, underline=underline: f"{heading[1]}\n{underline * len(heading[1])}",
            text,
            flags=re.MULTILINE,
        )
    source[0] += "\n" + text


def setup(app):
    app.connect("autodoc-process-docstring", adapt_inherited)
    app.connect("source-read", changelog_as_rst)
