"""The documentation as a site: `make docs`."""

import popqorn

project = "POPQORN"
author = "The POPQORN developers"
project_copyright = "2026, The POPQORN developers"
version = release = popqorn.__version__

extensions = ["sphinx.ext.autodoc", "myst_parser"]
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!popqorn).*"),  # names of torch, numpy and Python: their pages are elsewhere
    ("py:.*", r".*\.[A-Z]"),  # type variables
]

myst_heading_anchors = 4  # the anchors that GitHub makes
highlight_language = "text"  # indented blocks hold mathematics, not Python

default_role = "code"  # docstrings write `name`, as Markdown does
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "exclude-members": "forward"}
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"POPQORN {release}"
html_show_sphinx = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]


def setup(app):
    """Pages link to the README, which is the site's first page, and to the changelog, which it includes."""
    links = {"(../README.md)": "(index.md)", "(../CHANGELOG.md)": "(changelog.md)", "(../CONTRIBUTING.md)": "(contributing.md)"}

    def linked(app, name, source):
        for there, here in links.items():
            source[0] = source[0].replace(there, here)

    app.connect("source-read", linked)
