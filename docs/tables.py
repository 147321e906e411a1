"""make results: the tables and figures of results/ from its records, and the tables of results.md from these.

In results.md a line `<!-- table NAME -->` stands above the table results/tables/NAME.md.
"""

import re
from pathlib import Path

from balpoe.files import write_text
from balpoe.reproduce import write_tables

ROOT = Path(__file__).parents[1]
TABLE = re.compile(r"<!-- table ([\w-]+) -->\n\n(?:\|.*\n)*")


def spliced(page: str, tables: Path) -> str:
    """Return the page with each marked table as it is now."""

    def table(match: re.Match[str]) -> str:
        return f"<!-- table {match[1]} -->\n\n{(tables / f'{match[1]}.md').read_text(encoding='utf-8')}"

    return TABLE.sub(table, page)


if __name__ == "__main__":
    write_tables(ROOT / "results")
    page = ROOT / "docs" / "results.md"
    write_text(page, spliced(page.read_text(encoding="utf-8"), ROOT / "results" / "tables"))
