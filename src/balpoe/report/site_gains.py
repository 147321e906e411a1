"""The gain of each place's own prior as a table on a terminal."""

from collections.abc import Mapping

from rich.table import Table

from balpoe.deployment.site_gains import Estimate, SiteGain, SiteGains

__all__ = ["site_gains_table"]

MOST_SITES = 20


def site_gains_table(gains: SiteGains, title: str) -> Table:
    """Return the largest places and all of them together: accuracy of each way, and what the prior gains by it and NLL.

    Args:
        gains: Result of `site_gains`.
        title: Title over the table.
    """
    table = Table(title=title, title_justify="left")
    for heading in ("", "samples", "as trained", "yes/no list", "prior", "gain", "over the list", "NLL change"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for site in gains.sites[:MOST_SITES]:
        table.add_row(*_cells(site))
    if len(gains.sites) > MOST_SITES:
        table.add_row(f"... {len(gains.sites) - MOST_SITES:,} more")
    table.add_section()
    table.add_row(*_cells(gains.overall))
    return table


def _cells(site: SiteGain) -> list[str]:
    return [
        site.name,
        f"{site.samples:,}",
        *(f"{100 * (value or 0):.1f}" for value in site.scores["accuracy"].values()),
        *(_shown(site.gains["accuracy"], way, 100, 1) for way in ("as trained", "yes/no list")),
        _shown(site.gains["nll"], "as trained", 1, 2),
    ]


def _shown(gains: Mapping[str, Estimate | None], way: str, scale: float, digits: int) -> str:
    """A difference and its interval, where it has them."""
    estimate = gains[way]
    if estimate is None:
        return "-"
    value, low, high = estimate
    text = f"{scale * value:+.{digits}f}"
    return text if low is None or high is None else f"{text} ({scale * low:+.{digits}f} to {scale * high:+.{digits}f})"
