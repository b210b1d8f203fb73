"""Evidence that a part behaves as the component of a real server that it models."""

from __future__ import annotations

#: Evidence of parts that declare none.
UNCHECKED = "no recorded run of a real server checks it"


def evidence_of(kind: type) -> str:
    """Return the evidence that a class declares in its attribute ``evidence``.

    A subclass does not inherit evidence, since it behaves differently from its base.
    """
    return str(vars(kind).get("evidence", UNCHECKED))
