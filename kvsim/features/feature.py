"""The base of the scheduler's features, and the features by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from kvsim.dispatch import FEATURES
from kvsim.records.record import Record, strip_width
from kvsim.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.records.engine import Batch, Replica
    from kvsim.records.request import Request


class Feature(Record):
    """A feature of vLLM's scheduler: options of the configuration, state, and hooks.

    A subclass is a dataclass with slots. Its fields are numbers with defaults: the options, which
    are 0 or more, and the state of a replica. A feature is on if an option differs from its
    default. The hooks are rules, in Python and compiled; they may call functions of their file, but
    no methods.

    Attributes
    ----------
    options : fields that are options of the configuration, each with its description
    section : heading in the help under which they are listed
    """

    __slots__ = ()
    options: ClassVar[dict[str, str]] = {}
    section: ClassVar[str] = "Scheduler limits"

    def begin_step(self, state: Replica) -> None:
        """Prepare for a step, before anything is scheduled."""

    def holds_prefill(self, state: Replica) -> bool:
        """Return True if the next step may have no prefill; it is called before the other hooks."""
        return False

    def must_wait(self, state: Replica, request: Request) -> bool:
        """Return True if a waiting request must be skipped in this step."""
        return False

    def ends_admission(self, state: Replica) -> bool:
        """Return True if no further waiting request may join the batch in this step."""
        return False

    def limit_tokens(self, state: Replica, request: Request, num_tokens: int) -> int:
        """Return the number of a request's next tokens, at most ``num_tokens``, in this step.

        A running request has the status RUNNING. A waiting one without tokens is skipped; its
        ``num_computed_tokens`` is not set yet. Without ``enable_chunked_prefill``, return
        ``num_tokens`` or 0. Chunks are cut to whole blocks or states afterwards.
        """
        return num_tokens

    def record_admitted(self, state: Replica, request: Request) -> None:
        """Record that a waiting request has joined the batch."""

    def record_planned(self, state: Replica, request: Request) -> None:
        """Record that tokens of a running request are scheduled."""

    def end_step(self, state: Replica, batch: Batch) -> None:
        """Record a step that was scheduled, or found nothing to schedule."""

    def sees_decodes(self, state: Replica) -> bool:
        """Return True if the hooks have an effect while the same requests decode, step after step.

        If no feature has, such steps are computed together.
        """
        return True


#: The features by name.
SCHEDULER_FEATURES: Registry[Feature] = Registry(
    "feature of the scheduler", "kvsim.features", Feature, "kvsim.features"
)


def find_features() -> tuple[type[Feature], ...]:
    """Return the features in the order of their calls: by name, kvsim's own first."""
    made: Any = {name: SCHEDULER_FEATURES.get(name) for name in SCHEDULER_FEATURES.names()}
    named = sorted(made.items(), key=lambda one: not one[1].__module__.startswith("kvsim."))
    return tuple(feature for _, feature in named)


def chosen_features(settings: object) -> tuple[Feature, ...]:
    """Return the features that are on under these settings, with their options."""
    made = []
    for kind in FEATURES.all():
        given = {name: getattr(settings, name, kind.defaults()[name]) for name in kind.options}
        if any(value != kind.defaults()[name] for name, value in given.items()):
            made.append(kind(**given))
    return tuple(made)


def options_of(features: Iterable[type[Feature]]) -> dict[str, Any]:
    """Return the type and the description of every option, for the configuration."""
    return {
        name: (
            Annotated[strip_width(kind.kinds()[name]), Field(ge=0)],
            Field(kind.defaults()[name], description=text),
        )
        for kind in features
        for name, text in kind.options.items()
    }


def sections() -> dict[str, tuple[str, ...]]:
    """Return the options by their section of the help."""
    found: dict[str, tuple[str, ...]] = {}
    for kind in FEATURES.all():
        found[kind.section] = (*found.get(kind.section, ()), *kind.options)
    return found
