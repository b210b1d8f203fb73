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
    "sphinx_copybutton",
    "generated_parts",
    "live_reports",
    "outside_links",
]
exclude_patterns = ["_build", "jupyter_execute", "**/.ipynb_checkpoints"]

# Notebooks are run by the tests; their pages show the outputs that are stored.
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
