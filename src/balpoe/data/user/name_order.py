"""Names in order, however many: what does not fit into little memory is sorted on disk."""

import contextlib
import itertools
import os
import sqlite3
from collections.abc import Iterable, Iterator

__all__ = ["in_order"]

HELD = 100_000  # names in memory: some 10 MB


def in_order(names: Iterable[str], held: int = HELD) -> Iterator[str]:
    """Yield names in order of their bytes, the same on every machine.

    Args:
        names: Names of files, or their paths.
        held: Largest number of names that are held in memory; more of them are sorted in a temporary file.

    >>> list(in_order(["b", "é", "a"], held=2))
    ['a', 'b', 'é']
    """
    waiting = iter(names)
    first = list(itertools.islice(waiting, held))
    if len(first) < held:
        yield from sorted(first, key=os.fsencode)
        return
    # Without a name the database is a file of its own that goes with the connection, and SQLite merges sorted runs.
    with contextlib.closing(sqlite3.connect("", check_same_thread=False)) as disk:
        disk.execute("CREATE TABLE names (name BLOB)")
        encoded = ((os.fsencode(name),) for name in itertools.chain(first, waiting))
        disk.executemany("INSERT INTO names VALUES (?)", encoded)
        del first
        for (name,) in disk.execute("SELECT name FROM names ORDER BY name"):
            yield os.fsdecode(name)
