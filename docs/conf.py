"""The site: ``python -m sphinx -W -n -b html docs docs/_build``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from kvsim import __doc__ as _summary

project = "kvsim"
author = "the authors of kvsim"
project_copyright = "the authors of kvsim, Apache-2.0"
html_title = "kvsim"
html_short_title = (_summary or "").partition("\n")[0]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_click",
    "sphinx_copybutton",
    "docstrings",
    "from_code",
]
exclude_patterns = ["_build", "jupyter_execute", "**/.ipynb_checkpoints"]
suppress_warnings = [
    # data.md and other pages of a list made with a pattern may not be written yet.
    "toc.empty_glob",
]

# Notebooks are run by the tests; their pages show the outputs that are stored.
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_param = False  # a docstring says what a parameter means; its signature says the type
napoleon_use_rtype = False
napoleon_use_ivar = True

copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
