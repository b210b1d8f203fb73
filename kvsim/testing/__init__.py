"""Checks for tests of kvsim itself and of plug-in parts.

``check_allocator``, ``check_autoscaler``, ``check_cost_model``, ``check_eviction``,
``check_router`` and ``check_scheduler`` run a part on random small traces; ``check_result`` and
``equal_tables`` check the tables of a run.

The checks of parts have the same parameters and errors.

Parameters
----------
part : a name, optionally with parameters, an import path ``package.module:object``, an object, or
    the class or function itself
num_runs : number of random runs
seed : seed of the random numbers
**options : fields of :class:`kvsim.Config` that are the same in all runs, e.g. ``model``

Raises
------
AssertionError, RuntimeError
    If the part breaks a rule of its kind, which the message states; a note names the run.
ValueError
    If the options cannot be run at all.
"""

from kvsim.results.check import check_result, equal_tables
from kvsim.testing.allocator import check_allocator
from kvsim.testing.autoscaler import check_autoscaler
from kvsim.testing.cost_model import check_cost_model
from kvsim.testing.eviction import check_eviction
from kvsim.testing.router import check_router
from kvsim.testing.scheduler import check_scheduler

__all__ = [
    "check_allocator",
    "check_autoscaler",
    "check_cost_model",
    "check_eviction",
    "check_result",
    "check_router",
    "check_scheduler",
    "equal_tables",
]
