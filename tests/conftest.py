"""Where the tests find what only some machines have, and how long Hypothesis searches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

#: Examples of a test that names no number; one that does (``strategies.examples``) runs that many
#: per hundred. HYPOTHESIS_PROFILE chooses.
PROFILES = {"fast": 30, "ci": 100, "nightly": 1000}

# Times say nothing here: the first example of a process may load or even compile the kernels.
for name, count in PROFILES.items():
    settings.register_profile(name, deadline=None, max_examples=count)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The measurements and traces beside the checkout; tests that need them skip without."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("shared data not present")
    return folder
