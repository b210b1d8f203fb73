"""Machine code of translated rules: compiled once, kept in files, called by its address."""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from threading import RLock
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_binding: Any = import_module("llvmlite.binding")
_lock = RLock()

#: The first version of LLVM that llvmlite initializes by itself.
FIRST_INITIALIZED = 20
#: Every index of a list is compared with its length.
CHECKED = os.environ.get("KVSIM_BOUNDSCHECK", "0") == "1"
#: Address of the text of the first index out of bounds, which checked code writes; 0 for none.
FAULT = ctypes.c_int64()
_binding.add_symbol("kvsim_fault", ctypes.addressof(FAULT))

_engines: dict[str, Any] = {}  # keeps machine code alive, by the name of its function


@cache
def _processor() -> str:
    """Return a text that names this processor, and Numba's options in the environment."""
    try:
        features = _binding.get_host_cpu_features().flatten()
    except RuntimeError:
        features = ""
    options = sorted(one for one in os.environ.items() if one[0].startswith("NUMBA_"))
    found = (_binding.get_process_triple(), _binding.get_host_cpu_name(), features, options)
    return hashlib.sha256(repr(found).encode()).hexdigest()[:8]


def file_of(name: str, folder: Path) -> Path:
    """Return the file with the machine code of a function for this processor."""
    return folder / f"{name}.{_processor()}.object"


def library_of(name: str, folder: Path, text_of: Callable[[], str]) -> Any:
    """Return machine code that is loaded or compiled; a damaged file is replaced.

    If its file cannot be written, the code serves this process only, with a note.

    Parameters
    ----------
    name : name of the code and of its file
    folder : the cache
    text_of : returns a module in LLVM's language
    """
    if name not in _engines:
        file = file_of(name, folder)
        with alone(folder / f"{name}.lock"), _lock:
            _engines[name] = _engine_of(_loaded(file) or _compiled(name, text_of(), file))
    return _engines[name]


def check_fault() -> None:
    """Raise IndexError if checked code found an index out of bounds."""
    if FAULT.value:
        text, FAULT.value = ctypes.string_at(FAULT.value).decode(), 0
        raise IndexError(text)


def address_in(library: Any, function: str) -> int:
    with _lock:
        return int(library.get_function_address(function))


def _engine_of(code: bytes) -> Any:
    """Return an engine of LLVM with machine code, without Numba, which takes long to import."""
    if _binding.llvm_version_info[0] < FIRST_INITIALIZED:
        _binding.initialize()
    _binding.initialize_native_target()
    _binding.initialize_native_asmprinter()
    machine = _binding.Target.from_default_triple().create_target_machine()
    engine = _binding.create_mcjit_compiler(_binding.parse_assembly(""), machine)
    engine.add_object_file(_binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


def _loaded(file: Path) -> bytes | None:
    """Return the code of a file; None if it is absent or damaged."""
    try:
        digest, code = file.read_bytes().split(b"\n", 1)
    except (OSError, ValueError):
        return None
    if digest != hashlib.sha256(code).hexdigest().encode():
        return None
    return code


def _compiled(name: str, text: str, file: Path) -> bytes:
    with import_module("numba.core.compiler_lock").global_compiler_lock:
        codegen = import_module("numba.core.registry").cpu_target.target_context.codegen()
        library = codegen.create_library(name)
        library.enable_object_caching()
        triple, layout = codegen._tm.triple, codegen._data_layout
        head = f'target triple = "{triple}"\ntarget datalayout = "{layout}"\n'
        library._final_module.link_in(_binding.parse_assembly(head + text))
        library.finalize()
        code: bytes = library.serialize_using_object_code()[2][0]
    new = file.with_suffix(f".{os.getpid()}")
    try:
        new.write_bytes(hashlib.sha256(code).hexdigest().encode() + b"\n" + code)
        new.replace(file)
    except OSError as error:
        new.unlink(missing_ok=True)
        say(f"note: compiled code is not cached: {file.parent}: {error.strerror}")
    return code


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Let one process at a time compile; a process that waits prints a line.

    If no lock file can be made, as on a full disk, every process compiles.
    """
    held = FileLock(lock)
    try:
        held.acquire(blocking=False)
    except Timeout:
        say("waiting for another process to compile the code of this run ...")
        held.acquire()
    except OSError:
        yield
        return
    try:
        yield
    finally:
        held.release()


def say(text: str) -> None:
    print(f"kvsim: {text}", file=sys.stderr, flush=True)  # noqa: T201 - a first run is silent
