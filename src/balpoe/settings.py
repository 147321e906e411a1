"""Settings as fields of frozen dataclasses: each with a doc line and limits, checked without importing torch."""

import dataclasses
import math
import reprlib
import typing
from collections.abc import Callable, Mapping
from typing import Any

from balpoe.errors import UserError, unknown_name

__all__ = ["as_text", "check_fields", "checked", "checked_table", "kinds", "parsed", "parsed_setting", "setting"]


def setting(default: Any, doc: str, **limits: Any) -> Any:
    """Return a field with its doc line and limits: choices, at_least, at_most, above, below, lengths.

    Further keys are for whoever shows the field: `group` it belongs to (one of the group "machine" has no part in what
    a training computes), `metavar` for a flag's value, `off` for the value and the help of a flag
    --no-NAME, `filled_in` for what the program knows and is no flag.
    """
    if isinstance(default, dict):  # one for each instance
        return dataclasses.field(default_factory=lambda: dict(default), metadata={"doc": doc, **limits})
    return dataclasses.field(default=default, metadata={"doc": doc, **limits})


def kinds(owner: type) -> dict[str, Any]:
    """Return the types of the fields that can be checked: numbers, switches, texts, and tuples of them.

    Fields whose annotation is in quotes hold objects, and are their users' to check.
    """
    return {item.name: item.type for item in dataclasses.fields(owner) if not isinstance(item.type, str)}


def check_fields(values: Any) -> None:
    """Give every field of a frozen dataclass its declared type, within its limits, or say in one sentence why not."""
    checkable = kinds(type(values))
    for item in dataclasses.fields(values):
        if item.name in checkable:
            value = checked(item.name, checkable[item.name], item.metadata, getattr(values, item.name))
            object.__setattr__(values, item.name, value)


def checked_table(owner: str, known: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of something that has its own, those given checked and the others with their defaults.

    Args:
        owner: Name of what has them, for messages.
        known: Its settings, as `setting` makes them.
        values: Settings that are given.

    >>> checked_table("optimizer adamw", {"eps": setting(1e-8, "small", above=0)}, {})
    {'eps': 1e-08}
    """
    for name in values:
        if not known:
            raise UserError(f"{owner} has no settings of its own; leave {name} out")
        if name not in known:
            raise unknown_name(f"setting of {owner}", name, known)
    return {
        name: checked(name, _kind_of(item.default), item.metadata, values.get(name, item.default))
        for name, item in known.items()
    }


def parsed_setting(name: str, item: Any, text: str) -> Any:
    """Return the value of a setting, as `setting` makes it, from text.

    >>> parsed_setting("betas", setting((0.9, 0.999), "decay of two means"), "0.8,0.9")
    (0.8, 0.9)
    """
    return parsed(name, _kind_of(item.default), text)


def _kind_of(default: Any) -> Any:
    """The type of a setting that has none but its default's; a tuple's is that of its first entry."""
    return tuple[type(default[0]), ...] if isinstance(default, tuple) else type(default)  # type: ignore[misc]


def parsed(name: str, kind: Any, text: str) -> Any:
    """Return a field's value from text, as the command line gives it.

    >>> parsed("lambdas", tuple[float, ...], "1,0,-1")
    (1.0, 0.0, -1.0)
    """
    try:
        if typing.get_origin(kind) is tuple:
            convert = typing.get_args(kind)[0]
            return tuple(convert(part) for part in text.split(",")) if text.strip() else ()
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        raise UserError(f"{name} must be {_words(kind)}, but is {text!r}") from None


def checked(name: str, kind: Any, limits: Mapping[str, Any], value: Any) -> Any:
    """Return a value in its declared type and within its limits, or say in one sentence why not.

    >>> checked("epochs", int, {"at_least": 1}, 20.0)
    20
    """
    many = typing.get_origin(kind) is tuple
    one = typing.get_args(kind)[0] if many else kind
    values = list(value) if many and isinstance(value, list | tuple) else [value]
    whole = [_typed(one, part) for part in values]
    if any(part is None for part in whole):
        raise UserError(f"{name} must be {_words(kind)}, but is {as_text(value)}")
    if many and "lengths" in limits and len(whole) not in limits["lengths"]:
        raise UserError(f"{name} wants {limits['lengths'][0]} numbers, but is {as_text(value)}")
    for part in whole:
        if "choices" in limits and part not in limits["choices"]:
            raise unknown_name(name, str(part), limits["choices"])
        _check_range(name, part, limits)
    return tuple(whole) if many else whole[0]


def _typed(kind: type, value: Any) -> Any:
    """The value as `kind`, or None when it is something else: 1 is a float, 1.5 is not an int, True is neither."""
    if getattr(value, "ndim", None) == 0:  # a number of numpy's or torch's
        value = value.item()
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if isinstance(value, float) or abs(value) < 10**300 else math.inf
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and not value.isprintable():
        return None  # a path with a line break or with bytes that are not text
    return value if type(value) is kind else None


def _check_range(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{name} must be a finite number, but is {value}")
    tests: tuple[tuple[str, str, Callable[[Any, Any], bool]], ...] = (
        ("at_least", "at least", lambda a, b: a >= b),
        ("above", "above", lambda a, b: a > b),
        ("at_most", "at most", lambda a, b: a <= b),
        ("below", "below", lambda a, b: a < b),
    )
    for key, words, holds in tests:
        if key in limits and not holds(value, limits[key]):
            meant = f"; did you mean {1 / value:g}?" if name == "imbalance_ratio" and 0 < value < 1 else ""
            given = f"{value:g}" if isinstance(value, float) else reprlib.repr(value)
            raise UserError(f"{name} must be {words} {limits[key]}, but is {given}{meant}")


def _words(kind: Any) -> str:
    if typing.get_origin(kind) is tuple:
        words = {int: "whole numbers", float: "numbers", str: "words"}
        return f"{words[typing.get_args(kind)[0]]} with commas between"
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false", dict: "a table"}[kind]


def as_text(value: Any) -> str:
    """Return a value as a message shows it."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else repr(value)
