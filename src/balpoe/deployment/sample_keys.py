"""The keys of test samples, from a table that lists them."""

import os
from collections.abc import Sequence
from pathlib import Path

from balpoe.data.user.table_cells import TableCells, open_table
from balpoe.data.user.tables import COLUMN_NAMES
from balpoe.deployment.prior_rows import key_columns, key_text
from balpoe.errors import UserError

__all__ = ["sample_keys"]


def sample_keys(
    source: str | Path, keys: Sequence[str], samples: int, paths: Sequence[str] | None = None
) -> list[tuple[str, ...]]:
    r"""Return the keys of each test sample.

    Args:
        source: A .csv, .tsv or .parquet with the key columns. Where it has a column of paths, and those of the samples
            are known, they are matched; otherwise it has one row for each sample, in their order.
        keys: Names of the key columns.
        samples: Number of samples.
        paths: Path of each sample's file, if it has one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = Path(folder, "images.csv")
    ...     _ = table.write_text("path,site\na.png,north\nb.png,south\n")
    ...     sample_keys(table, ["site"], 1, [f"{folder}/b.png"])
    [('south',)]
    """
    table = open_table(source)
    at = key_columns(table, keys)
    place = _path_column(table) if paths is not None else None
    if paths is None or place is None:
        found = [tuple(map(key_text, cells)) for _, cells in table.rows(at)]
        if len(found) != samples:
            raise UserError(
                f"{source} has {len(found):,} rows, but there are {samples:,} test samples; give a row for each, in "
                "their order" + ("" if paths is None else ", or a column of paths")
            )
        return found
    root = Path(source).parent
    by_path = {_same(os.path.join(root, str(cells[0]))): cells[1:] for _, cells in table.rows([place, *at])}
    lacking = next((path for path in paths if _same(path) not in by_path), None)
    if lacking is not None:
        raise UserError(f"{source} has no row for the test image {lacking}; add it, with {', '.join(keys)}")
    return [tuple(map(key_text, by_path[_same(path)])) for path in paths]


def _path_column(table: TableCells) -> int | None:
    names = [name.strip().casefold() for name in table.header]
    return next((names.index(name) for name in COLUMN_NAMES["path"] if name in names), None)


def _same(path: str) -> str:
    return os.path.normpath(os.path.abspath(path))
