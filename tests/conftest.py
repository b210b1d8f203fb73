"""Where the tests find what only some machines have."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# Times say nothing here: the first example of a process may load or even compile the kernels.
settings.register_profile("kvsim", deadline=None)
settings.load_profile("kvsim")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The measurements and traces beside the checkout; tests that need them skip without."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("shared data not present")
    return folder
