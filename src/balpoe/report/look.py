"""What figures and pages look like: the colours of methods, of groups of classes and of pages, light and dark.

A figure is drawn once, in the light colours. Where a page is dark, each of them is replaced by the dark one of the same
name: in the report by variables of its style sheet, in a file by a style sheet inside (`themed`). The hues of methods
differ for all kinds of colour vision, and each can be seen on its page; the tests say by how much.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

__all__ = ["DARK", "FONT", "HUES", "LIGHT", "STYLE", "Look", "css_variables", "hue", "method_looks", "themed", "words"]

LIGHT: Mapping[str, str] = {
    "ink": "#1c2733", "soft": "#55606c", "paper": "#ffffff", "line": "#d6dbe0", "field": "#f3f5f7",
    "blue": "#0072b2", "grey": "#7f8791", "green": "#156d4c", "orange": "#b87512", "violet": "#ae7ee6",
    "red": "#bd2419", "many": "#5c3b9c", "medium": "#b8478f", "few": "#e0661c",
    "grey-words": "#646c76", "orange-words": "#8f5806", "violet-words": "#7d46c0", "few-words": "#b3480a",
}  # fmt: skip
DARK: Mapping[str, str] = {
    "ink": "#e6ebf0", "soft": "#a6b0bb", "paper": "#14181e", "line": "#3b4652", "field": "#20272f",
    "blue": "#56b4e9", "grey": "#c3c9cf", "green": "#2daa84", "orange": "#f6b751", "violet": "#a96ec8",
    "red": "#fa6755", "many": "#8a74e0", "medium": "#e88fc4", "few": "#ffd09a",
    "grey-words": "#c3c9cf", "orange-words": "#f6b751", "violet-words": "#bd8ad8", "few-words": "#ffd09a",
}  # fmt: skip
"""Colours by name. Lines and marks differ from the paper at a ratio of 3 or more, words at 4.5: some hues are darker
in words."""
HUES = ("blue", "grey", "green", "orange", "violet", "red")
"""Hues of methods; C0 to C5 in a script of the gallery."""
METHODS = {
    r"\bbalpoe\b|^(product|ensemble|adjusted)\b": "blue",
    r"cross-entropy.*, adjusted|after training": "orange",
    r"cross-entropy|^mixup\b|^(lambda 1|tau = 0|as trained)\b": "grey",
    r"^(one )?logit.adjust|^balanced softmax|^uniform ensemble|^(lambda 0|tau = 1)\b": "green",
    r"^sade\b": "violet",
    r"^(lambda -1|tau = 2)\b": "red",
}
"""Whose hue a name has, the first pattern that is found in it: an expert has that of the method which has its lambda
for all."""
MARKERS, DASHES = "osD^vP*", ("-", "--", ":", "-.")
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", sans-serif'
STYLE: dict[Any, Any] = {
    "axes.prop_cycle": f"cycler('color', {[LIGHT[name] for name in HUES]})",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.labelsize": 10,
    "axes.labelcolor": LIGHT["ink"],
    "axes.edgecolor": LIGHT["soft"],
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LIGHT["line"],
    "grid.linewidth": 0.7,
    "text.color": LIGHT["ink"],
    "xtick.color": LIGHT["soft"],
    "ytick.color": LIGHT["soft"],
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "figure.facecolor": LIGHT["paper"],
    "axes.facecolor": "none",
    "figure.figsize": (6.4, 3.8),
    "figure.constrained_layout.use": True,
    "font.family": "sans-serif",
    "font.size": 10,
    "image.cmap": "cividis",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "svg.fonttype": "none",
}
"""Settings of matplotlib."""


class Look(NamedTuple):
    """How a method is drawn."""

    colour: str
    words: str
    """Colour of its name."""
    marker: str
    dash: str


def hue(method: str) -> str | None:
    """Return the hue that a method has in every figure, None for a name that is not known.

    >>> hue("BalPoE, long schedule"), hue("cross-entropy, adjusted"), hue("my run")
    ('blue', 'orange', None)
    """
    return next((name for pattern, name in METHODS.items() if re.search(pattern, method, re.IGNORECASE)), None)


def words(name: str) -> str:
    """Return the colour of words in a hue, for light pages.

    >>> words("blue"), words("orange")
    ('#0072b2', '#8f5806')
    """
    return LIGHT.get(f"{name}-words", LIGHT[name])


def method_looks(methods: Collection[str]) -> dict[str, Look]:
    """Return how methods of one figure are drawn: each in its hue, variants of one with other markers and dashes.

    A name that is not known gets a hue that no other has, as long as there are some.

    >>> looks = method_looks(["BalPoE", "cross-entropy", "cross-entropy with mixup"])
    >>> [(look.colour, look.dash) for look in looks.values()]
    [('#0072b2', '-'), ('#7f8791', '-'), ('#7f8791', '--')]
    """
    known = {method: hue(method) for method in methods}
    free = [name for name in HUES if name not in known.values()] or list(HUES)
    looks, seen, others = {}, dict.fromkeys(HUES, 0), 0
    for number, (method, own) in enumerate(known.items()):
        name = own or free[others % len(free)]
        others += own is None
        dash = DASHES[seen[name] % len(DASHES)]
        seen[name] += 1
        looks[method] = Look(LIGHT[name], words(name), MARKERS[number % len(MARKERS)], dash)
    return looks


def css_variables(selector: str = ":root", names: Iterable[str] = tuple(LIGHT)) -> str:
    """Return the colours as variables of a style sheet; a printed page is light.

    >>> css_variables("svg", ["ink"])
    'svg{--ink:#1c2733}@media screen and (prefers-color-scheme:dark){svg{--ink:#e6ebf0}}'
    """
    names = list(names)
    light, dark = (";".join(f"--{name}:{colours[name]}" for name in names) for colours in (LIGHT, DARK))
    return f"{selector}{{{light}}}@media screen and (prefers-color-scheme:dark){{{selector}{{{dark}}}}}"


def themed(svg: str) -> str:
    """Return a drawing in light colours with the variables in their place, black and white as ink and paper.

    >>> themed('style="fill: #0072b2; stroke: #000000"')
    'style="fill: var(--blue); stroke: var(--ink)"'
    """
    names = {"#000000": "ink"} | {colour: name for name, colour in LIGHT.items()}
    return re.sub(
        r"#[0-9a-f]{6}(?![0-9a-f])", lambda found: f"var(--{names[found[0]]})" if found[0] in names else found[0], svg
    )
