"""Configuration of Sphinx."""

import re

import skfedem

project = "skfedem"
author = "the skfedem developers"
copyright = f"2026, {author}"
version = release = skfedem.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
]
templates_path = ["_templates"]
exclude_patterns = ["_build"]
default_role = "literal"

autosummary_generate = True
# What a module's __all__ lists is documented, whichever file it was written in.
autosummary_ignore_module_all = False
autodoc_typehints = "none"
numpydoc_show_class_members = False

html_theme = "alabaster"
html_theme_options = {
    "description": "Federated Expectation-Maximization for scikit-learn users",
    "page_width": "1000px",
    "fixed_sidebar": True,
}
html_show_sourcelink = False


def unlink_inherited_references(app, what, name, obj, options, lines):
    """Turn references into scikit-learn's own pages, which inherited docstrings hold, into text."""
    for number, line in enumerate(lines):
        lines[number] = re.sub(r":(?:ref|term):`([^`<]+?)\s*(?:<[^`>]*>)?`", r"\1", line)


def setup(app):
    app.connect("autodoc-process-docstring", unlink_inherited_references)
