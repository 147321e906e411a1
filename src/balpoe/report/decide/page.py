"""The controls of the report's part on decisions: a fragment of a page that follows the prior explorer."""

from collections.abc import Mapping
from importlib import resources
from string import Template
from typing import Any

from balpoe.deployment.taxonomy import Taxonomy
from balpoe.report.decide.sets import METHODS
from balpoe.report.decide.tree import packed_tree
from balpoe.report.decide.unknown import UnknownPart
from balpoe.report.page_data import script_json

__all__ = ["ROWS", "USUAL_KEEP", "decide_assets", "decide_controls"]

USUAL_ALPHA = 0.1
USUAL_KEEP = 0.95
"""Share of known samples that a reader sees kept first."""
ROWS = {"held-out mix": "all, class mix of the held-out samples", "all alike": "all, each class alike"}
"""What the rows of tables that are no shot group are called."""
SETS_NOTE = (
    "Made in this page for the prior above, from held-out samples that are new to the calibration. The interval is the "
    "noise of the test samples alone; the promise is an average over held-out samples, too, and is for samples that "
    "come about as those did."
)
PART = " <strong>Approximate:</strong> the page holds a part of the samples, or of their classes."


def decide_controls(
    sets: Mapping[str, Any] | None = None, taxonomy: Taxonomy | None = None, unknown: UnknownPart | None = None
) -> str:
    """Return controls that need `decide_assets`, and a prior explorer before them in the page.

    Args:
        sets: Samples that prediction sets are made of (`set_rows`); without them that part is left out.
        taxonomy: Tree of labels; without it that part is left out.
        unknown: Who would be called unknown; without it that part is left out.

    >>> page = decide_controls()
    >>> 'data-control="confidence"' in page, 'data-control="alpha"' in page
    (True, False)
    """
    tree = "" if taxonomy is None else _asset("tree.html")
    data = {"sets": sets, "tree": None if taxonomy is None else packed_tree(taxonomy)}
    parts = {"tree": tree, "sets": _sets(sets), "unknown": "" if unknown is None else _unknown(unknown)}
    return Template(_asset("decide.html")).substitute(data=script_json(data), **parts)


def decide_assets() -> tuple[str, str]:
    """Return the style sheet and the script, which come after those of the explorer."""
    script = _asset("sets.js") + _asset("decide.js") + _asset("unknown.js")
    return _asset("decide.css") + _asset("unknown.css"), script


def _sets(sets: Mapping[str, Any] | None) -> str:
    if sets is None:
        return ""
    alphas, note = sets["alphas"], SETS_NOTE + (PART if sets["part"] else "")
    usual = min(range(len(alphas)), key=lambda place: abs(alphas[place] - USUAL_ALPHA))
    options = "".join(f'<option value="{method}">{method}: {METHODS[method]}</option>' for method in sets["methods"])
    return Template(_asset("sets.html")).substitute(methods=options, last=len(alphas) - 1, usual=usual, note=note)


def _unknown(part: UnknownPart) -> str:
    keeps = [each.keep for each in part.scores]
    usual = min(range(len(keeps)), key=lambda place: abs(keeps[place] - USUAL_KEEP))
    data = {
        **part._asdict(),
        **{name: [round(share, 5) for share in getattr(part, name)] for name in ("right", "wrong")},
        "scores": [each._asdict() for each in part.scores],
        "rows": ROWS,
    }
    return Template(_asset("unknown.html")).substitute(last=len(keeps) - 1, usual=usual, data=script_json(data))


def _asset(name: str) -> str:
    return (resources.files("balpoe.report.decide") / name).read_text(encoding="utf-8")
