"""Files of a run's folder, which may be damaged or untrusted: any defect raises ValueError."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.files import look_into

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

#: A table may take more than MAX_BYTES in memory only if it takes at most MAX_RATIO times the bytes
#: of its file; tables of steps and requests never compress better.
MAX_BYTES, MAX_RATIO = 2**30, 1000


class StoredRun:
    """Contents of a run's folder, read-only.

    Parameters
    ----------
    folder : folder of the saved run

    Raises
    ------
    ValueError
        If a save was interrupted, and the files that it left are damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self.find = look_into(folder)
        except OSError as error:
            raise ValueError(f"{folder}: a save was interrupted: {error}") from None

    def has(self, name: str) -> bool:
        """Return True if a file exists."""
        with self._told(name):
            return self.find(name).is_file()

    def record(self, name: str) -> dict[str, Any]:
        """Return a JSON object."""
        with self._told(name):
            found = json.loads(self.find(name).read_text(encoding="utf-8"))
            if not isinstance(found, dict):
                raise ValueError("no JSON object")
            return found

    def array(self, name: str, dtype: np.dtype[Any], num_dimensions: int) -> NDArray[Any]:
        """Return a NumPy array of the given type; the file must be as long as its header says."""
        with self._told(name):
            lazy = np.lib.format.open_memmap(self.find(name), mode="r")
            if lazy.dtype != dtype:
                raise ValueError(f"no array of {dtype}")
            if lazy.ndim != num_dimensions:
                raise ValueError(f"{lazy.ndim} dimensions, not {num_dimensions}")
            return np.array(lazy)

    def table(self, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a table; its size is checked in its metadata before it is read."""
        from pyarrow import parquet

        with self._told(f"{name}.parquet"):
            path = self.find(f"{name}.parquet")
            with parquet.ParquetFile(path) as file:
                num_rows, columns = file.metadata.num_rows, list(dtype.names or ())
                size = num_rows * dtype.itemsize
                if size > MAX_BYTES and size > MAX_RATIO * path.stat().st_size:
                    raise ValueError(f"{num_rows:,} rows would take {size:,} bytes")
                stored = file.read(columns=columns)
            array = np.zeros(stored.num_rows, dtype)
            for column in columns:
                array[column] = _column(column, stored[column], dtype[column])
            return array

    @contextmanager
    def _told(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # damaged bytes may raise anything in a reader
            said = " ".join(f"{error}".split()) or type(error).__name__
            raise ValueError(f"{self._folder}: cannot be read: {name}: {said}") from None


def _column(name: str, stored: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a column's values; refuse empty fields, and types that do not convert safely."""
    if stored.null_count:
        raise ValueError(f"column {name} has {stored.null_count:,} empty fields")
    values = stored.to_numpy()
    if not np.can_cast(values.dtype, dtype, "safe"):
        raise ValueError(f"column {name} holds {stored.type}, not {dtype}")
    array: NDArray[Any] = values
    return array
