"""Evidence that a part behaves as the real one."""

from __future__ import annotations

#: Evidence of parts that declare none.
UNCHECKED = "no recorded run of a real server checks it"


def evidence_of(kind: type) -> str:
    """Return the evidence that a class declares in its attribute ``evidence``.

    A class does not inherit it: it does something else than the one it extends.
    """
    return str(vars(kind).get("evidence", UNCHECKED))
