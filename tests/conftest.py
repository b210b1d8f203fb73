"""Where the tests find measurements, and how long Hypothesis searches.

In the profile ``fast`` it draws the same examples every time, so that a red run is about what has
changed; the others draw new ones.
"""

from __future__ import annotations

import gc
import os
import shutil
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from whole import NEEDS_THE_WHOLE, NO_BROWSER, WHOLE, name_of, not_listed

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

#: Examples of a test that names no number; one that does (``strategies.examples``) runs that many
#: per hundred. HYPOTHESIS_PROFILE chooses.
PROFILES = {"fast": 20, "ci": 100, "nightly": 1000}

# Times say nothing here: the first example of a process may load or even compile the kernels.
for name, count in PROFILES.items():
    settings.register_profile(name, deadline=None, max_examples=count, derandomize=name == "fast")
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

# Hypothesis would read the sources of all modules for constants to draw, seconds in each worker,
# and what it draws would depend on the modules that are loaded.
with suppress(ImportError, AttributeError):  # versions without them
    providers: Any = import_module("hypothesis.internal.conjecture.providers")
    no_constants = providers._local_constants
    providers._get_local_constants = lambda: no_constants

#: The process of pytest-xdist that this is, if it is one.
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "gw0")

#: Where a browser may be: what the variable names, else the first of these on the path.
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Let every other worker read the files from the last: bytecode is written once, not twice."""
    report = yield
    if isinstance(collector, pytest.Directory) and WORKER[-1] in "13579":
        report.result.reverse()
    return report


def pytest_collection_finish() -> None:
    """Keep the garbage collector from going through all tests and modules again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Notebooks are long tests; all workers have the files in the same order."""
    items.sort(key=lambda item: item.path)
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker("long")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless browser; tests that need one skip where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason=NO_BROWSER)
    path = os.environ.get("PLAYWRIGHT_CHROMIUM")
    path = path or next((one for one in map(shutil.which, BROWSERS) if one), None)
    with sync_api.sync_playwright() as playwright:
        try:
            one = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except sync_api.Error:
            pytest.skip(NO_BROWSER)
        yield one
        one.close()


@pytest.fixture(scope="session")
def sample_data() -> Path:
    """The measurements that every clone has."""
    return Path(__file__).parent / "data"


@pytest.fixture
def whole_data(request: pytest.FixtureRequest) -> Path:
    """All measurements; a test that asks for them stands in the list of those that skip."""
    wrong = not_listed(request.node.nodeid)
    if wrong:
        pytest.fail(wrong, pytrace=False)
    if not WHOLE.is_dir():
        pytest.skip(f"not in a clone: {NEEDS_THE_WHOLE[name_of(request.node.nodeid)]}")
    return WHOLE
