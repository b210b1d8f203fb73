"""Registries of allocators, schedulers, cost models, workloads and other components, by name.

A component is a class or function that a decorator registers under a name, in the file that defines
it. Installed packages add names by entry points (:mod:`kvsim.entry_points`). A name of the form
``package.module:object`` or ``path/to/file.py:object`` is imported, so that a user's own component
runs without an edit to any file of kvsim.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import iter_modules
from threading import RLock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_type_hints

from kvsim import engines
from kvsim.allowed import allowed, takes_whole_numbers, whole_number
from kvsim.entry_points import offers
from kvsim.errors import must_be, unknown_name
from kvsim.parametric import FILES, NAMES, PART_MODULES, UNNAMED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import ModuleType

    from kvsim.entry_points import Offer

T = TypeVar("T")
#: A class or function; classes of rules are virtual subclasses, which type checkers do not know.
F = TypeVar("F", bound="Callable[..., Any]")

#: A comma before a further KEY=, where a + belongs.
_FURTHER_KEYS = re.compile(r",\s*(?=[A-Za-z][\w-]*=)")


def import_modules(package: str) -> None:
    """Import every module of a package, so that each registers its parts."""
    path = import_module(package).__path__
    for module in iter_modules(path, package + "."):
        import_module(module.name)


def import_file(path: str) -> ModuleType:
    """Import a Python file by its path; a second call imports it again only if it was edited.

    Raises
    ------
    OSError
        If there is no such file.
    """
    file = Path(path).resolve()
    name = f"{file.stem}_{sha256(file.read_bytes() + str(file).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is not a file of Python")
        made = sys.modules[name] = module_from_spec(spec)
        try:
            spec.loader.exec_module(made)
        except BaseException:
            del sys.modules[name]
            raise
        FILES[name] = path
    return sys.modules[name]


@contextmanager
def current_folder() -> Iterator[None]:
    """Put the current folder last on Python's path while a user's part is imported.

    Afterwards it is removed: a package that is imported later may try an optional module that is
    not installed, and would run a file of that name in the folder.
    """
    here = None
    with suppress(OSError):  # the folder may be gone
        here = os.getcwd()  # noqa: PTH109 - as a text, as Python's path has it
    if here is None or {"", here} & set(sys.path):
        yield
        return
    sys.path.append(here)
    try:
        yield
    finally:
        with suppress(ValueError):  # the part has removed it itself
            sys.path.remove(here)


class Registry(Generic[T]):
    """Factories of one kind of component, by name.

    Parameters
    ----------
    what : name of the kind in errors, e.g. ``"scheduler"``
    package : package of modules that register components. These modules, and those of the engines'
        packages of the same name, are imported before the first look-up.
    kind : class of the components; a factory that makes anything else is refused
    group : group of the entry points by which installed packages add names; such a component is
        imported when its name is used
    """

    def __init__(
        self,
        what: str,
        package: str | None = None,
        kind: type[object] = object,
        group: str | None = None,
    ) -> None:
        self.what = what
        self.kind = kind
        self._package = package
        self._group = group
        self._lock = RLock()
        self._is_loading = False
        self._is_loaded = package is None and group is None
        self._factories: dict[str, Callable[..., T]] = {}
        self._offers: dict[str, list[Offer]] = {}
        self._installed: dict[str, Callable[..., T]] = {}

    def _load(self) -> None:
        """Import the package's modules and the offers of installed packages, once.

        Each module registers its parts. Other threads wait until it is done.
        """
        if self._is_loaded:
            return
        with self._lock:
            if not self._is_loaded and not self._is_loading:
                self._is_loading = True
                try:
                    if self._package is not None:
                        import_modules(self._package)
                        for package in engines.packages(self._package.removeprefix("kvsim.")):
                            import_modules(package)
                    if self._group is not None:
                        self._offers = offers(self._group)
                    self._is_loaded = True
                finally:
                    self._is_loading = False

    def register(self, name: str) -> Callable[[F], F]:
        """Return a decorator that registers a class or function under a name.

        Raises
        ------
        ValueError
            If the name is taken.
        """

        def decorate(factory: F) -> F:
            if name in self._factories:
                raise ValueError(f"{self.what} {name!r} is already registered")
            self._factories[name] = factory
            NAMES[factory] = name
            return factory

        return decorate

    @contextmanager
    def lend(self, factory: Callable[..., T]) -> Iterator[str]:
        """Register a class or function temporarily, under its own name or a similar one."""
        self._load()
        name = re.sub(r"\W", "", getattr(factory, "__name__", "")) or "own"
        while name in self._factories or name in self._offers:
            name += "-own"
        self._factories[name] = factory
        try:
            yield name
        finally:
            del self._factories[name]

    def names(self) -> list[str]:
        """All usable names, sorted, without those in :meth:`problems`."""
        self._load()
        return sorted({*self._factories, *self._offers} - set(self.problems()))

    def problems(self) -> dict[str, str]:
        """Names that installed packages offer and that cannot be used, each with the reason."""
        self._load()
        found = {}
        for name in sorted(self._offers):
            try:
                self.get(name)
            except ValueError as error:
                found[name] = str(error)
        return found

    def get(self, name: str) -> Callable[..., T]:
        """Return the factory of a name, or of ``package.module:object``.

        Raises
        ------
        ValueError
            For an unknown name; the message lists similar names. For a part of an installed package
            that cannot be imported, or has a name that is taken; the message names the package.
        """
        self._load()
        if name in self._offers:
            return self._get_installed(name)
        if name in self._factories:
            return self._factories[name]
        if name in UNNAMED:
            return self._checked(UNNAMED[name], repr(name))
        if ":" in name:
            return self._import(name)
        first, comma, rest = name.partition(",")
        if comma and "=" in rest and first in (*self._factories, *self._offers):
            joined = name.replace(",", "+")
            raise ValueError(f"unknown {self.what} {name!r}: + joins keys, as in {joined}")
        if name.endswith(".py"):
            raise ValueError(f"unknown {self.what} {name!r}: name its class, as in {name}:NAME")
        raise unknown_name(self.what, name, {*self._factories, *self._offers})

    def _get_installed(self, name: str) -> Callable[..., T]:
        """Import the part of an installed package, once; refuse a name that two parts have."""
        if name not in self._installed:
            own, (offer, *others) = self._factories.get(name), self._offers[name]
            # A package may register its part by the decorator as well; that is one part.
            if own is not None and not offer.is_imported_as(own):
                ours = f"{own.__module__}:{getattr(own, '__qualname__', name)}"
                raise ValueError(f"{self.what} {name!r} is taken: {ours}, and {offer}")
            if others:
                raise ValueError(f"{self.what} {name!r} is offered twice: {offer}, and {others[0]}")
            self._installed[name] = self._checked(offer.load(self.what), f"{name!r} ({offer})")
        return self._installed[name]

    def _import(self, path: str) -> Callable[..., T]:
        module, _, attribute = path.partition(":")
        try:
            with self._lock, current_folder():
                imported = import_file(module) if module.endswith(".py") else import_module(module)
                found = getattr(imported, attribute)
        except (ImportError, AttributeError, ValueError, OSError) as error:
            raise ValueError(f"cannot import {self.what} {path!r}: {error}") from None
        return self._checked(found, repr(path))

    def _checked(self, found: Any, label: str) -> Callable[..., T]:
        """Check that a user's object can make parts; classes of another kind are refused."""
        if not callable(found):
            raise ValueError(f"{self.what} {label} is not a class or function")
        if isinstance(found, type) and not issubclass(found, self.kind):
            raise ValueError(f"{self.what} {label} is not a subclass of {self.kind.__name__}")
        PART_MODULES.add(str(getattr(getattr(found, "func", found), "__module__", "")))
        factory: Callable[..., T] = found
        return factory

    def parameters(self, name: str) -> list[str]:
        """Return the parameters of a component that a user may set: those with a default."""
        return parameter_names(self.get(name))

    def create(self, name: str, *args: object, **params: object) -> T:
        """Call a factory. Texts in ``params`` are converted to the annotated types.

        Raises
        ------
        ValueError
            For an unknown name, an unknown parameter, a value of the wrong type, or a factory that
            makes an object of another class than ``kind``.
        """
        factory = self.get(name)
        given = self.check_params(name, params)
        try:
            made = factory(*args, **given)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # from inside the factory: its author wants to see where
            raise ValueError(f"{self.what} {name!r} cannot be made: {error}") from None
        if not isinstance(made, self.kind):
            raise ValueError(
                f"{self.what} {name!r} makes a {type(made).__name__}, no {self.kind.__name__}"
            )
        return made

    def make(self, text: str, *args: object) -> T:
        """Make the component ``NAME[+KEY=VALUE]...``.

        Raises
        ------
        ValueError
            For an unknown name, an unknown parameter, or a value of the wrong type.
        """
        name, params = parse_spec(text)
        return self.create(name, *args, **params)

    def check_params(self, name: str, params: Mapping[str, object]) -> dict[str, object]:
        """Convert and check parameters without calling the factory."""
        if not params:
            return {}
        return convert_params(f"{self.what} {name!r}", self.get(name), params)


def parameter_names(factory: Callable[..., object]) -> list[str]:
    """Return the parameters of a class or function that have a default."""
    signature = inspect.signature(factory).parameters.values()
    return [p.name for p in signature if p.default is not p.empty]


def convert_params(
    label: str, factory: Callable[..., object], params: Mapping[str, object]
) -> dict[str, object]:
    """Return parameters of a class or function, each converted to its annotated type.

    ``label`` names the class or function in errors. Only parameters with a default may be given.

    Raises
    ------
    ValueError
        For an unknown parameter, or a value of the wrong type.
    """
    from pydantic import TypeAdapter, ValidationError

    names = parameter_names(factory)
    checked: dict[str, object] = {}
    for key, value in params.items():
        if key not in names:
            options = ", ".join(p.replace("_", "-") for p in names) or "none"
            raise ValueError(
                f"{label} has no parameter {key.replace('_', '-')!r} (its parameters: {options})"
            )
        kind = _type_of(factory, key)
        is_text = isinstance(value, str) and takes_whole_numbers(kind)
        try:
            read = whole_number(str(value)) if is_text else value
            checked[key] = TypeAdapter(kind).validate_python(read)
        except ValidationError as error:
            reason = allowed(kind) or must_be(error.errors()[0])
            said = f"{key.replace('_', '-')}={value}"
            raise ValueError(f"{label}: {said}: {reason}{_joined_by_comma(said)}") from None
    return checked


def _joined_by_comma(said: str) -> str:
    """Return a hint if a value holds further keys."""
    joined = _FURTHER_KEYS.sub("+", said)
    return "" if joined == said else f" (+ joins keys: {joined})"


def _type_of(factory: Callable[..., object], parameter: str) -> Any:
    """Return a parameter's annotation.

    If a name in the annotation exists only for type checkers, return the type of the default.
    """
    function = factory.__init__ if inspect.isclass(factory) else factory
    function = inspect.unwrap(function)
    given = inspect.signature(factory).parameters[parameter]
    if given.annotation is given.empty:
        return object
    one = SimpleNamespace(__annotations__={parameter: given.annotation})
    names = getattr(function, "__globals__", {})
    try:
        return get_type_hints(one, names, include_extras=True)[parameter]
    except NameError:
        return object if given.default is None else type(given.default)


def overridden(part: object, names: Iterable[str]) -> list[str]:
    """Return the named methods that a user's class overrides.

    The rules of its base class do not apply to these methods. The base class is the nearest class
    with rules (``rules_of``).
    """
    kind = type(part)
    base = next(c for c in kind.__mro__ if "rules_of" in c.__dict__)
    return [n for n in names if getattr(kind, n, None) is not getattr(base, n, None)]


def parse_spec(text: str) -> tuple[str, dict[str, str | None]]:
    """Split ``BASE[+KEY[=VALUE]]...`` into its base and its keys (with underscores).

    A colon before ``KEY=VALUE`` acts as a plus, for a part named inside an allocator's text.

    Raises
    ------
    ValueError
        If the base or a key is empty, or a key is repeated.

    Examples
    --------
    >>> parse_spec("paged+block-size=32+int8")
    ('paged', {'block_size': '32', 'int8': None})
    """
    first, *parts = text.split("+")
    base, *earlier = re.split(r":(?=[^:=]+=)", first)
    if not base:
        raise ValueError(f"{text!r}: a name must come first, as in NAME+KEY=VALUE")
    keys: dict[str, str | None] = {}
    for part in (*earlier, *parts):
        key, equals, value = part.partition("=")
        key = key.replace("-", "_")
        if not key or (equals and not value):
            raise ValueError(f"{text!r}: {part!r} must be KEY or KEY=VALUE")
        if key in keys:
            raise ValueError(f"{text!r}: {key.replace('_', '-')} is given twice")
        keys[key] = value if equals else None
    return base, keys
