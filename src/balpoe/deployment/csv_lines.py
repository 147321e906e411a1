"""The lines of a small .csv that somebody has written by hand, each with where it stands."""

import csv
import io
from pathlib import Path

from balpoe.errors import UserError
from balpoe.files import csv_delimiter, read_text

__all__ = ["csv_lines"]


def csv_lines(path: Path) -> list[tuple[str, list[str]]]:
    r"""Return where each line stands and its cells, without blanks around them; empty lines are left out.

    Args:
        path: File, separated by commas or semicolons.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "tree.csv").write_text("class; genus\n\noak; quercus\n")
    ...     [(where.rpartition(", ")[2], cells) for where, cells in csv_lines(Path(folder, "tree.csv"))]
    [('line 1', ['class', 'genus']), ('line 3', ['oak', 'quercus'])]
    """
    text = read_text(path)
    reader = csv.reader(io.StringIO(text), delimiter=csv_delimiter(text), strict=True)
    try:
        return [(f"{path}, line {reader.line_num}", [cell.strip() for cell in row]) for row in reader if any(row)]
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}; write a line for each class") from error
