"""The cells of a table that somebody has made: .csv (with commas or semicolons), .tsv and .parquet."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from balpoe.errors import UserError
from balpoe.files import csv_delimiter

__all__ = ["TableCells", "open_table"]


class TableCells(Protocol):
    """A table that is open."""

    place: str
    """Where its headings are."""
    header: list[str]
    """Its headings; none where the table is empty."""
    decimal_commas: bool
    """Whether numbers may be written with a comma, as they are where semicolons separate."""

    def rows(self, columns: Sequence[int]) -> Iterator[tuple[str, list[Any]]]:
        """Yield the place of each row and its cells in some columns; those of a text file are texts."""
        ...


def open_table(path: str | Path) -> TableCells:
    r"""Return the headings and the rows of a table.

    Args:
        path: A .csv, .tsv or .parquet.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "sites.csv").write_text("site;oak;ash\nnorth;3;0,5\n")
    ...     table = open_table(f"{folder}/sites.csv")
    ...     table.header, [cells for _, cells in table.rows([0, 2])]
    (['site', 'oak', 'ash'], [['north', '0,5']])
    """
    path = Path(path)
    return _Parquet(path) if path.suffix.lower() == ".parquet" else _Delimited(path)


class _Delimited:
    """A text file, with commas, semicolons or tabs between its cells."""

    def __init__(self, path: Path) -> None:
        text = _text(path)
        delimiter = csv_delimiter(text) if path.suffix.lower() == ".csv" else "\t"
        self.path, self.decimal_commas = path, delimiter == ";"
        self.lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        self.header = next(self._filled(), [])
        self.place = self._place()

    def rows(self, columns: Sequence[int]) -> Iterator[tuple[str, list[Any]]]:
        for fields in self._filled():
            if len(fields) != len(self.header):
                raise UserError(
                    f"{self._place()}: {len(fields)} fields where the first line has {len(self.header)}; put text that "
                    "holds the separator in double quotes"
                )
            yield self._place(), [fields[at] for at in columns]

    def _place(self) -> str:
        return f"{self.path}, line {max(1, self.lines.line_num)}"

    def _filled(self) -> Iterator[list[str]]:
        """An empty line says nothing."""
        try:
            yield from filter(None, self.lines)
        except csv.Error as error:
            raise UserError(f"{self._place()}: {error}; check the double quotes") from error


class _Parquet:
    """A file of columns, of which those wanted alone are read."""

    decimal_commas = False

    def __init__(self, path: Path) -> None:
        self.path, self.place = path, str(path)
        self.header = self._read(lambda file: list(file.schema_arrow.names))

    def rows(self, columns: Sequence[int]) -> Iterator[tuple[str, list[Any]]]:
        names = [self.header[at] for at in columns]
        table = self._read(lambda file: file.read(columns=names))
        values = [table.column(name).to_pylist() for name in names]
        for number, cells in enumerate(zip(*values, strict=True), start=1):
            yield f"{self.path}, row {number}", list(cells)

    def _read(self, read: Any) -> Any:
        try:
            from pyarrow import ArrowException
            from pyarrow.parquet import ParquetFile
        except ImportError as error:
            raise UserError(
                f"to read {self.path}, install pyarrow (pip install pyarrow), or save the table as .csv"
            ) from error
        try:
            with ParquetFile(self.path) as file:
                return read(file)
        except (ArrowException, OSError, ValueError) as error:
            reason = " ".join(str(error).split())  # on one line
            raise UserError(f"{self.path} is not a whole parquet file ({reason}); write it again") from error


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")  # with the mark that some editors put in front
    except OSError as error:
        raise UserError(f"cannot read {path}: {(error.strerror or str(error)).lower()}; check the path") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: this is not UTF-8 text; save the table as UTF-8") from error
