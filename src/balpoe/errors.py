"""Mistakes that a user can fix, and notes, told in one sentence each."""

import sys
from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["UserError", "show_warning", "unknown_name"]

MOST_LISTED = 50
LONGEST = 100


class UserError(ValueError):
    """A mistake that the user can fix: the message says what, where and what to do.

    The command line prints the message alone and exits with code 2; a bug keeps its traceback.

    >>> from balpoe import class_prior
    >>> class_prior([3, -1])
    Traceback (most recent call last):
        ...
    balpoe.errors.UserError: class 1 has a negative count of -1; give the samples of each class
    """


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as one line, in the place of `warnings.showwarning`."""
    if sys.stderr is not None:  # closed by the caller
        sys.stderr.write(f"balpoe: note: {message}\n")


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UserError:
    """Return the error for a misspelt name: the nearest known one, or all of them if they are few.

    >>> print(unknown_name("recipe", "cifar100lt", ["digits-lt", "cifar100-lt"]))
    unknown recipe 'cifar100lt'; did you mean 'cifar100-lt'?
    >>> print(unknown_name("device", "npu9", ["cuda", "mps"]))
    unknown device 'npu9'; known are cuda, mps
    """
    name, known = str(name), list(known)  # somebody may have given something else
    near = get_close_matches(name, known, n=1)
    if len(known) > MOST_LISTED:
        known = [*known[:MOST_LISTED], f"... ({len(known)} in all)"]
    # Names may be somebody's classes: on one line, of a readable length, without a terminal's control characters.
    listed = ", ".join(_shown(each) for each in known)
    return UserError(
        f"unknown {kind} {_short(repr(name))}; "
        + (f"did you mean {_short(repr(near[0]))}?" if near else f"known are {listed}")
    )


def _shown(name: str) -> str:
    return _short(name if name.isprintable() else repr(name))


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
