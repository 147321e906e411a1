"""The metadata of a model card: YAML in front of the text, as the Hugging Face Hub reads it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["TAGS", "card_metadata", "yaml_lines"]

TAGS = ("long-tailed-recognition", "imbalanced-data", "calibration", "ensemble", "label-shift")


def card_metadata(
    name: str,
    task: str,
    data: str,
    metrics: Mapping[str, tuple[str, float]],
    *,
    license: str = "unknown",  # noqa: A002 (the Hub's word)
) -> dict[str, Any]:
    """Return the metadata of a card.

    Args:
        name: Name of the model.
        task: The Hub's name of what it does, such as image-classification.
        data: Name of the data that it was measured on.
        metrics: Title and value of each metric, by the name of its kind; empty for a model that was not measured.
        license: The Hub's name of the model's licence.

    >>> card_metadata("trees", "image-classification", "photos", {})["library_name"]
    'balpoe'
    """
    measured = [{"type": kind, "name": title, "value": round(value, 4)} for kind, (title, value) in metrics.items()]
    result = {"task": {"type": task}, "dataset": {"type": data, "name": data}, "metrics": measured}
    return {
        "license": license,
        "library_name": "balpoe",
        "pipeline_tag": task,
        "tags": list(TAGS),
        **({"model-index": [{"name": name, "results": [result]}]} if measured else {}),
    }


def yaml_lines(value: Any) -> list[str]:
    r"""Return a value of mappings, lists, strings and numbers as lines of YAML; strings are in quotes, as in JSON.

    >>> print("\n".join(yaml_lines({"tags": ["a", "b"], "index": [{"name": "x: y", "value": 0.5}]})))
    tags:
    - "a"
    - "b"
    index:
    - name: "x: y"
      value: 0.5
    """
    if isinstance(value, Mapping):
        pairs = ((f"{key}:", each) for key, each in value.items())
        return [line for head, each in pairs for line in _below(head, each)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [
            f"{'-' if not number else ' '} {line}" for each in value for number, line in enumerate(yaml_lines(each))
        ]
    if isinstance(value, str):  # a line break of Unicode would be one of YAML, too
        value = "".join(each if each.isprintable() else "?" for each in value)
    return [json.dumps(value, ensure_ascii=False, allow_nan=False)]


def _below(head: str, value: Any) -> list[str]:
    lines = yaml_lines(value)
    if isinstance(value, Mapping):
        return [head, *(f"  {line}" for line in lines)]
    return [head, *lines] if isinstance(value, list) else [f"{head} {lines[0]}"]
