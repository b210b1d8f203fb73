"""Eviction policies of the literature, in addition to those of :mod:`kvsim.kv.eviction`."""

from kvsim.registry import import_modules

import_modules(__name__)
