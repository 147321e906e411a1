"""The text of a model card: what the model is, what it was trained and measured on, and what it is not good for."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import torch

from balpoe.deployment.card_scores import CardScores, interval_text
from balpoe.deployment.loaded_model import Model
from balpoe.evaluation.catalogue import METRICS
from balpoe.evaluation.metrics import shot_groups
from balpoe.evaluation.random_error import random_error_notes

__all__ = ["card_text", "data_name", "safe_text"]

LISTED = 20  # classes; of more than that the ends are shown
ENDS = 5  # classes of each end
LONGEST = 60  # letters of a name
ENOUGH = 20  # test samples of a class, with which a share of about a half is known to within 20 points
WORTH_A_WORD = 0.02  # gap of confidence and accuracy
SHOWN = ("accuracy", "balanced_accuracy", "ece", "nll", "brier")


def card_text(
    name: str,
    model: Model,
    scores: CardScores | None = None,
    *,
    data: str = "",
    files: Sequence[str] = (),
    exported: str = "",
    license: str = "unknown",  # noqa: A002 (the Hub's word)
    environment: Mapping[str, Any] | None = None,
) -> str:
    """Return the text of a card, in Markdown.

    Args:
        name: Name of the model.
        model: The model.
        scores: What its run's predictions say; None for a model by itself.
        data: Name of the data; by default what the model's recipe says.
        files: Names of the files beside the card.
        exported: What the ONNX file among them is, such as fp32.
        license: The Hub's name of the licence.
        environment: Where it was trained.
    """
    data = data or data_name(model)
    sections = {
        f"# {safe_text(name)}": [_what(model)],
        "## How to use it": _use(model, exported),
        "## Data": _data(model, scores, data),
        "## How good it is": _scores(scores),
        "## Under other class frequencies": _under_priors(scores),
        "## Limits": ["\n".join(f"- {each}" for each in _limits(model, scores, license))],
        "## Training": [_training(model, files, environment or {})],
    }
    return "\n\n".join("\n\n".join([heading, *texts]) for heading, texts in sections.items() if texts) + "\n"


def data_name(model: Model, data_root: str = "") -> str:
    """Return what the data of a model are called: the data set, or the folder of somebody's own, without its path."""
    recipe = model.recipe
    return recipe.dataset if recipe.dataset != "own" else PurePath(data_root or recipe.data_root).name or "own data"


def safe_text(text: str) -> str:
    r"""Return text that no Markdown and no HTML is made of, on one line, of a readable length.

    >>> print(safe_text("a|b <i>\n"), len(safe_text("x" * 99)))
    a\|b &lt;i>? 63
    """
    text = "".join(each if each.isprintable() else "?" for each in text)
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    for special in "\\`*_[]|":
        text = text.replace(special, f"\\{special}")
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _what(model: Model) -> str:
    lambdas = ", ".join(f"{value:g}" for value in model.recipe.expert_lambdas)
    experts = f"{model.network.num_experts} expert{'s' * (model.network.num_experts > 1)}"
    return (
        f"A classifier of {model.num_classes:,} classes, trained on a long tail by {model.recipe.title} "
        f"({experts}{f' with lambda {lambdas}' if lambdas else ''}; network {safe_text(model.recipe.network)}) with "
        "the Python package `balpoe`."
    )


def _use(model: Model, exported: str) -> list[str]:
    size = model.preprocessing.size
    images = len(size) == 3 and size[0] == 3
    given = '["one.jpg", "two.jpg"]' if images else "samples"
    what = "images of any size" if images else f"an array (samples, {', '.join(map(str, size))})"
    lines = [
        "import balpoe",
        "",
        'model = balpoe.load("model.safetensors")  # the file beside this card; nothing in it is executed',
        f"probabilities = model.predict({given})  # {what}",
    ]
    texts = []
    if model.source_prior is not None:
        lines.append(f'probabilities = model.predict({given}, target_prior="train")  # or shares by class name')
        texts.append(
            f"Without `target_prior` its probabilities are for {_made_for(model)}. Where your classes come in "
            "other shares, give those."
        )
    texts.insert(0, "```python\n" + "\n".join(lines) + "\n```")
    texts.append(
        'From the Hub, with `pip install balpoe[hub]`: `balpoe.deployment.hub.HubModel.from_pretrained("USER/NAME")`.'
    )
    if exported:
        texts.append(
            f"`model.onnx` is the same model ({exported}) for ONNX Runtime and others; `balpoe.load` takes it, too."
        )
    return texts


def _made_for(model: Model) -> str:
    assert model.source_prior is not None
    source, train = model.source_prior.double(), model.train_prior.double()
    if torch.allclose(source, torch.full_like(source, 1 / len(source)), atol=1e-6):
        return "classes that are all equally frequent"
    if torch.allclose(source, train / train.sum(), atol=1e-6):
        return "the class frequencies of training"
    return "a class mix that is neither even nor that of training (`model.source_prior`)"


def _data(model: Model, scores: CardScores | None, data: str) -> list[str]:
    counts = model.class_counts
    largest, smallest = int(counts.max()), int(counts.min())
    ratio = f" ({largest / smallest:,.3g} to 1)" if smallest else ""
    text = (
        f"Trained on {int(counts.sum()):,} samples of {safe_text(data)} in {model.num_classes:,} classes, from "
        f"{largest:,} samples of a class down to {smallest:,}{ratio}."
    )
    if scores is not None:
        part = "samples held out of training, not on the test set" if model.recipe.validation else "test samples"
        text += f" Measured on {len(scores.predictions):,} {part}."
    return [text, _class_table(model, scores)]


def _class_table(model: Model, scores: CardScores | None) -> str:
    order = model.class_counts.argsort(descending=True, stable=True).tolist()
    left_out = len(order) - 2 * ENDS if len(order) > LISTED else 0
    rows = [_class_row(model, scores, label) for label in (order[:ENDS] + order[-ENDS:] if left_out else order)]
    if left_out:
        rows.insert(ENDS, [f"... {left_out:,} more", *[""] * (len(rows[0]) - 1)])
    headings = ["class", "training samples", *([] if scores is None else ["test samples", "accuracy %"])]
    return _table(headings, rows)


def _class_row(model: Model, scores: CardScores | None, label: int) -> list[str]:
    row = [safe_text(model.class_names[label]), f"{int(model.class_counts[label]):,}"]
    if scores is None:
        return row
    of = scores.evaluation
    accuracy = interval_text("accuracy", of.per_class[label], of.per_class_interval[label])
    return [*row, f"{int((scores.predictions.targets == label).sum()):,}", accuracy]


def _scores(scores: CardScores | None) -> list[str]:
    if scores is None:
        return ["Not known: the card was written for a model's file alone, without the predictions of a run."]
    few, many = scores.shot_groups
    kinds = {"many": f"more than {many:,}", "medium": f"{few:,} to {many:,}", "few": f"fewer than {few:,}"}
    rows = [[_heading(name), scores.with_interval(name), METRICS[name].meaning] for name in SHOWN]
    for name, members in shot_groups(scores.predictions.class_counts, scores.shot_groups).items():
        if bool(members.any()):
            meaning = f"mean accuracy of the {int(members.sum()):,} classes with {kinds[name]} training samples"
            rows.append([_heading(name), scores.with_interval(name), meaning])
    units = "test samples" if scores.predictions.groups is None else "groups of test samples"
    text = (
        f"On the test samples as they are, with 95 % intervals over the {units}. Each number is computed from the "
        "run's saved predictions."
    )
    return [text, _table(["", "value (95 % interval)", "what it is"], rows)]


def _heading(name: str) -> str:
    metric = METRICS[name]
    return f"{metric.label}{', %' if metric.per_cent else ''}"


def _under_priors(scores: CardScores | None) -> list[str]:
    if scores is None or not scores.under_priors:
        return []
    rows = [
        [
            name,
            *(scores.with_interval("accuracy", each) for each in both),
            *(scores.with_interval("ece", each) for each in both),
        ]
        for name, both in scores.under_priors.items()
    ]
    text = (
        "The test samples are weighted to each class mix. As trained, the model does not know of it; adjusted, it was "
        "told by `target_prior`. ECE is how far confidence and accuracy are apart."
    )
    kinds = [f"{metric} %, {how}" for metric in ("accuracy", "ECE") for how in ("as trained", "adjusted")]
    return [text, _table(["class mix", *kinds], rows)]


def _limits(model: Model, scores: CardScores | None, license: str) -> list[str]:  # noqa: A002
    limits = [
        f"It knows its {model.num_classes:,} classes alone: whatever else it is shown gets one of their names.",
        *(_about_scores(scores) if scores is not None else ["Nothing is known here of how well it works."]),
    ]
    if scores is None and model.source_prior is None:
        limits.append("Its scores are no probabilities for a known class mix, and cannot be adjusted to any.")
    if model.calibration is None:
        limits.append(f"It is not calibrated: probabilities are as trained{_overconfidence(scores)}.")
    if license == "unknown":
        limits.append("No licence was given to it: ask whoever publishes it before you use it.")
    return limits


def _about_scores(scores: CardScores) -> list[str]:
    few, many = scores.evaluation.few, scores.evaluation.many
    limits = ["It was measured on samples of the same data alone; of other places, devices or years nothing is known."]
    if few is not None and many is not None and few < many:
        limits.append(
            f"Rare classes are recognised less well: {100 * few:.1f} % of a few-shot class on average, against "
            f"{100 * many:.1f} % of a many-shot one."
        )
    limits += [
        *_about_evidence(scores),
        *scores.predictions.caveats,
        *scores.predictions.about_groups,
        *random_error_notes(scores.evaluation.to_dict()),
        "It is one training: intervals tell what other test samples would change, not what another seed would.",
    ]
    if scores.unmeasured:
        limits.append(f"It was not measured under other class frequencies: {scores.unmeasured}.")
    return limits


def _overconfidence(scores: CardScores | None) -> str:
    """How far confidence and accuracy are apart on the whole, if that is worth a word."""
    bins = {} if scores is None else scores.evaluation.reliability
    rows = zip(*(bins.get(key, ()) for key in ("share", "confidence", "accuracy")), strict=True)
    gap = sum(share * (confidence - accuracy) for share, confidence, accuracy in rows)
    if abs(gap) < WORTH_A_WORD:
        return ""
    return f", and on the whole {100 * abs(gap):.1f} points {'more' if gap > 0 else 'less'} sure than right"


def _about_evidence(scores: CardScores) -> list[str]:
    """What few test samples leave open."""
    evidence, counts = scores.predictions.evidence, scores.predictions.class_counts
    none, thin = evidence == 0, (evidence > 0) & (evidence < ENOUGH)
    found = []
    if bool(none.any()):
        found.append(f"{_classes(int(none.sum()))} no test sample: nothing is known of them.")
    if bool(thin.any()):
        rare = int((thin & shot_groups(counts, scores.shot_groups)["few"]).sum())
        those = f", {rare:,} of them few-shot" if rare else ""
        unit = "samples" if scores.predictions.groups is None else "groups of samples"
        found.append(
            f"{_classes(int(thin.sum()))} fewer than {ENOUGH} test {unit}{those}: how well each of them is "
            "recognised is uncertain by 20 points and more, and the mean over many classes says it better."
        )
    return found


def _classes(number: int) -> str:
    return f"{number:,} class{'es have' if number > 1 else ' has'}"


def _training(model: Model, files: Sequence[str], environment: Mapping[str, Any]) -> str:
    recipe, packages = model.recipe, environment.get("packages")
    torch_version = packages.get("torch") if isinstance(packages, dict) else None
    versions = [
        f"{name} {value}" for name, value in (("balpoe", environment.get("balpoe")), ("torch", torch_version)) if value
    ]
    first = {"": "random weights", "pretrained": "timm's pretrained weights"}.get(
        recipe.weights, f"the weights {safe_text(PurePath(recipe.weights).name)}"
    )
    calibrated = ""
    if model.calibration is not None:
        temperatures = ", ".join(f"{value:.3g}" for value in model.calibration.temperatures)
        calibrated = f" It is calibrated by samples outside of training, with temperatures {temperatures}."
        if not model.calibration.fitted:
            known = f"{model.calibration.temperatures[0]:.3g}, which was known before"
            calibrated = f" Its logits are divided by a temperature of {known}."
    beside = " `recipe.toml` has all settings." if "recipe.toml" in files else ""
    made = f", with {' and '.join(versions)}" if versions else ""
    return f"It was trained from {first}{made}.{calibrated}{beside}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
