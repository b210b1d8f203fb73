"""Parts (allocators, routers, ...) given as objects, and their names in a configuration."""

from __future__ import annotations

import inspect
import pickle
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Self
from uuid import uuid4

from kvsim.errors import FieldError

#: Names of built-in parts, by class or function.
NAMES: dict[object, str] = {}
#: Path of each module that was imported from a file, by the module's name.
FILES: dict[str, str] = {}
#: Modules of parts that are not kvsim's.
PART_MODULES: set[str] = set()
#: Factories without an import path, such as a class in a function, by a name for this process.
UNNAMED: dict[str, Callable[..., Any]] = {}
#: The module of a script, a prompt or a notebook, which another process cannot import.
MAIN = "__main__"
#: Note of a study whose runs stay in one process because of such parts; their names follow.
IN_ONE_PROCESS = "run in one process, as workers cannot import parts of a prompt or notebook"


class _SignatureOfInit:
    """Descriptor: the signature of a class is that of its ``__init__``."""

    def __get__(self, instance: object, cls: Any) -> inspect.Signature:
        init = cls.__init__
        if init is object.__init__:
            return inspect.Signature()
        signature = inspect.signature(init)
        return signature.replace(parameters=[*signature.parameters.values()][1:])


class Parametric:
    """Base class of parts that an option also takes as objects; an object records its own creation.

    From the recorded class and parameters, each replica or gateway makes a part of its own.
    """

    __signature__: ClassVar[Any] = _SignatureOfInit()
    #: Number of positional arguments, which kvsim passes; a user's call without them returns a
    #: ``partial``.
    NEEDS: ClassVar[int] = 0
    _made_by: partial[Any]

    def __new__(cls, *args: Any, **params: Any) -> Self:
        if cls.NEEDS and not args and not inspect.isabstract(cls) and "config" not in params:
            return partial(cls, **params)  # type: ignore[return-value]
        made = super().__new__(cls)
        made.__dict__["_made_by"] = partial(cls, *args, **params)
        return made


#: A part as the value of an option: its name, an object, a class, or a function that makes it.
PartLike = str | Parametric | Callable[..., object]


def is_part(value: object) -> bool:
    """Return True if a value of an option is a part, not its name."""
    return isinstance(value, Parametric) or callable(value)


def text_of(part: PartLike, plus: str = "+") -> str:
    """Return ``NAME+KEY=VALUE`` for a part that is given as an object, a class or a function.

    NAME is the registered name or the import path; ``plus`` joins the keys. A part without such a
    text, such as a class in a function, or one with an array as parameter, gets a name for this
    process only.
    """
    if isinstance(part, str):
        return part
    made: Any = part._made_by if isinstance(part, Parametric) else part
    factory, given, params = made, (), {}
    if isinstance(made, partial):
        factory, given, params = made.func, made.args, made.keywords
    texts = {key: _value_text(value) for key, value in params.items()}
    if given or None in texts.values():
        return _unnamed(made, factory)
    keys = (f"{plus}{key.replace('_', '-')}={text}" for key, text in texts.items())
    return "".join([NAMES.get(factory) or _path_of(factory), *keys])


def _value_text(value: object) -> str | None:
    """Return a parameter as a text; None if no text can stand for it."""
    if is_part(value):
        return text_of(value, ":")  # type: ignore[arg-type]
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, float):
        short = f"{value:g}"
        text = (short if float(short) == value else text).replace("e+", "e")
    is_plain = isinstance(value, str | bool | int | float) and text and "+" not in text
    return text if is_plain else None


def _path_of(factory: Any) -> str:
    """Return the import path of a class or function, or a name for this process only."""
    module, name = factory.__module__, getattr(factory, "__qualname__", "")
    path = FILES.get(module, module)
    found = getattr(sys.modules.get(module), name, None) is factory
    return f"{path}:{name}" if found and not {"+", "="} & set(path) else _unnamed(factory, factory)


def _unnamed(made: Callable[..., Any], factory: Any) -> str:
    """Return a name for this process only; the same object always gets the same name."""
    base = f"{factory.__module__}:{getattr(factory, '__qualname__', 'part')}".replace("+", "-")
    number = 1
    while UNNAMED.setdefault(f"{base}-{number}", made) is not made:
        number += 1
    return f"{base}-{number}"


def only_here(text: object) -> list[str]:
    """Return the names in a text of parts that only this process has, as in a notebook."""
    if not isinstance(text, str):
        return []
    return [name for name in UNNAMED if name in text] or re.findall(rf"{MAIN}:\w+", text)


def state_of(name: str) -> bytes:
    """Return the source and the parameters, as bytes, of a part that only this process has."""
    base = name.partition(f"{MAIN}:")[2]
    made: Any = UNNAMED.get(name) or getattr(sys.modules[MAIN], base, None)
    given: tuple[Any, ...] = ()
    if isinstance(made, partial):
        made, given = made.func, (made.args, made.keywords)
    try:
        return inspect.getsource(made).encode() + pickle.dumps(given)
    except Exception:  # no source, as at a prompt, or no pickle: differs from every other part
        return uuid4().bytes


def with_names(values: dict[str, Any]) -> dict[str, Any]:
    """Return options in which texts name the parts that were given as objects.

    The options ``eviction`` and ``session_policy`` become the allocator's eviction policy.
    """
    named = {name: text_of(value) if is_part(value) else value for name, value in values.items()}
    policy = named.pop("eviction", None)
    if policy is not None:
        allocator = named.get("allocator", "paged")
        named["allocator"] = f"{allocator}+eviction={str(policy).replace('+', ':')}"
    return with_session_policy(named)


#: By session policy: its eviction policy, the parameter that "=" sets, and True if "=" is required.
SESSION_POLICIES = {
    "ttl": ("session-ttl", "ttl", True),
    "program": ("session-program", "ttl", True),
    "hints": ("session-hints", "", False),
    "pin": ("session-pin", "share", False),
}
ALLOWED = "must be none, ttl=SECONDS, program=SECONDS, hints, pin or pin=SHARE"


def with_session_policy(values: dict[str, Any]) -> dict[str, Any]:
    """Return options in which the session policy is the allocator's eviction policy.

    Raises
    ------
    ValueError
        For an unknown policy, a wrong time, or a conflicting allocator or eviction policy.
    """
    policy = values.get("session_policy", "none")
    if policy in (None, "none"):
        return values
    name, equals, number = str(policy).partition("=")
    part, key, needs_number = SESSION_POLICIES.get(name, ("", "", True))
    is_right = bool(key) and _is_number(number, name) if equals else not needs_number
    if not is_right:
        raise FieldError("session_policy", f"is {policy!r}: {ALLOWED}")
    text = f"+eviction={part}" + (f":{key}={number}" if equals else "")
    if name == "program":
        values = {"scheduling_policy": "priority"} | values
    allocator = str(values.get("allocator", "paged"))
    if allocator.endswith(text):  # a saved configuration has both options
        return values
    engine = values.get("engine", "vllm")
    is_known = engine in ("vllm", "tensorrt-llm")
    if allocator.partition("+")[0] != "paged" or "+eviction=" in allocator or not is_known:
        other = engine if allocator == "paged" else allocator
        raise FieldError("session_policy", f"needs the allocator paged under LRU, got {other}")
    return values | {"allocator": allocator + text}


def _is_number(text: str, name: str) -> bool:
    """Return True if a text is a time above 0; for ``pin``, a share up to 1."""
    try:
        return 0.0 < float(text) < float("inf") and (name != "pin" or float(text) <= 1.0)
    except ValueError:
        return False


def program_ttl(policy: str) -> float | None:
    """Return the seconds of ``program=SECONDS``, None for any other session policy."""
    name, _, number = policy.partition("=")
    return float(number) if name == "program" else None
