"""Numbers that stay on one line: in `51.6 ± 0.4`, `93 %` and `43 s` spaces do not break, in a narrow cell neither."""

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

UNITS = "ms|µs|s|kB|MB|GB|MiB|GiB"
BREAKS = re.compile(rf"(?<=\d) (?=[±%]|(?:{UNITS})\b)|(?<=±) (?=\d)")


def kept_together(text: str) -> str:
    r"""Return the text with spaces that do not break inside of numbers.

    >>> kept_together("51.6 ± 0.4 points, 3 %, 43 s of 5 seeds")
    '51.6\xa0±\xa00.4 points, 3\xa0%, 43\xa0s of 5 seeds'
    """
    return BREAKS.sub("\N{NO-BREAK SPACE}", text)


class NumberSpacing(SphinxTransform):
    """Changes the spaces in the text of a page, but for code, which is copied."""

    default_priority = 850

    def apply(self, **_: Any) -> None:
        """Change one page."""
        for text in list(self.document.findall(nodes.Text)):
            kept = kept_together(text.astext())
            if kept != text.astext() and not isinstance(text.parent, nodes.literal | nodes.literal_block | nodes.raw):
                text.parent.replace(text, nodes.Text(kept))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the transform."""
    app.add_transform(NumberSpacing)
    return {"parallel_read_safe": True}
