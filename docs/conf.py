"""The site: ``python -m sphinx -W -n -b html docs docs/_build``."""

import filecmp
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

# Sphinx reads pages below its own folder only; a link to /notebooks/... works on GitHub, too.
for source in sorted((HERE.parent / "notebooks").rglob("*.*")):
    target = HERE / "notebooks" / source.relative_to(HERE.parent / "notebooks")
    if not target.exists() or not filecmp.cmp(source, target, shallow=False):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)

project = "kvsim"
author = "the authors of kvsim"
project_copyright = "the authors of kvsim, Apache-2.0"
html_title = "kvsim"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_click",
    "sphinx_copybutton",
    "docstrings",
    "from_code",
    "live_reports",
    "outside_links",
]
exclude_patterns = ["_build", "jupyter_execute", "**/.ipynb_checkpoints"]
nitpick_ignore_regex = [
    # Types of other packages: the build needs no network, so it reads no inventories of theirs.
    (
        "py:class",
        r"Recorded|NDArray|ArrayLike|np\.\w+|pd\.\w+|Figure|(pathlib\.)?Path|os\.PathLike|NoneType",
    ),
    # Names in signatures that exist for type checkers only, and parts of kvsim that no user makes.
    (
        "py:class",
        r"Floats|Ints|Runs|OnProgress|Backend|EventFeed|KVLayout|KVPlan|Replica|Case|Roofline|Remedy"
        r"|SpeculativeConfig",
    ),
    ("py:class", r"kvsim\.(records\.engine|catalog\.(spec|state)|roofline\.intensity)\.\w+"),
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
napoleon_custom_sections = [("Attributes", "params_style")]  # several may share a line

copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
