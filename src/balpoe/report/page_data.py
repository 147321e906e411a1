"""Data inside a page, for its scripts."""

import json

__all__ = ["script_json"]


def script_json(value: object) -> str:
    r"""Return JSON that cannot end the script element that holds it: no character of markup, ASCII only.

    >>> script_json(["</script>"])
    '["\\u003c/script\\u003e"]'
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
