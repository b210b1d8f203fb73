"""Session policies: eviction policies that protect blocks between the turns of a session."""

from kvsim.registry import import_modules

import_modules(__name__)
