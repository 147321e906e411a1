"""What decisions cost, and whether what is promised of them holds for further samples.

    python benchmarks/decision_promises.py NAME PREDICTIONS [--splits 100] [--only abstaining ...]

PREDICTIONS are test predictions, as prediction_sets.py takes them. Under each of three known priors: the cost of
answers against that of the most probable class, the error against the share answered, and answers in a tree of labels,
with 95 % intervals of the stratified, paired bootstrap. What is fitted, thresholds of abstaining and rules of metrics,
is fitted on half of each class and measured on the other half: means over splits, with the ends of what 95 % of the
splits have. A minute or two on one core. Writes `costs`, `metrics`, `recalls`, `abstaining`, `groups`, `risk` and
`tree` of NAME in results/decisions.json.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from prediction_sets import PRIORS, groups_of, halves, predictions_of, settled
from torch import Tensor

import balpoe
from balpoe.deployment.abstaining import abstained
from balpoe.deployment.posteriors import Posteriors, label_weights
from balpoe.deployment.taxonomy import Taxonomy, cifar100_taxonomy, tree_costs
from balpoe.files import read_json, write_json
from balpoe.method.intervals import bootstrap

DRAWS = 10  # of random costs
RULE_SPLITS = 20  # rules of metrics take longer to fit than thresholds
ERROR, RECALL, CONFIDENCE = 0.1, 0.8, 0.9
ABSTENTIONS: dict[str, dict[str, Any]] = {
    "on the held-out half": {"confidence": None},
    "promised": {"confidence": 0.95},
    "promised, equal shares": {"confidence": 0.95, "balance": "share"},
}
BALANCES = {"one threshold": "none", "equal shares": "share", "error in each group": "error"}
ANSWERED = (0.5, 0.8)
PARTS = ("costs", "tree", "risk", "metrics", "recalls", "abstaining", "groups")
VEHICLES = ("airplane", "automobile", "ship", "truck")


def taxonomy_of(class_names: Sequence[str]) -> Taxonomy:
    """CIFAR-100's superclasses; for CIFAR-10 animals and vehicles."""
    if set(class_names) == set((taxonomy := cifar100_taxonomy()).class_names):
        return Taxonomy.from_rows(
            [(name, taxonomy.labels[taxonomy.parents[number]]) for number, name in enumerate(taxonomy.class_names)],
            ("class", "superclass"),
            class_names,
        )
    rows = [(name, "vehicle" if name in VEHICLES else "animal") for name in class_names]
    return Taxonomy.from_rows(rows, ("class", "superclass"))


def with_interval(statistic: Callable[[Tensor], Tensor], targets: Tensor, resamples: int = 300) -> list[list[float]]:
    """Each component of a statistic of how often each sample was drawn: its value and the ends of its interval."""
    value = statistic(torch.ones(1, len(targets), dtype=torch.float64))
    ends = bootstrap(statistic, targets, num_resamples=resamples)
    return torch.cat([value, ends]).T.tolist()


def over_splits(values: Sequence[float]) -> list[float]:
    """Mean over splits, and the ends of what 95 % of them have."""
    table = torch.tensor(values, dtype=torch.float64)
    ends = table.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return [float(table.mean()), *ends]


def cost_rows(predictions: balpoe.Predictions, taxonomy: Taxonomy) -> list[dict[str, Any]]:
    """Cost of the answers of least expected cost, against that of the most probable class, in per cent."""
    classes, generator = predictions.num_classes, torch.Generator().manual_seed(0)
    uniform = torch.rand(DRAWS, classes, classes, generator=generator, dtype=torch.float64)
    kinds = {
        "random matrix": list(uniform * (1 - torch.eye(classes))),
        "to miss a class, 1 to 100": list(100 ** torch.rand(DRAWS, classes, generator=generator, dtype=torch.float64)),
        "distance in the tree": [tree_costs(taxonomy)],
    }
    names, spent = [], []
    for name in PRIORS:
        prior = balpoe.target_prior(name, predictions)
        weights = label_weights(predictions, prior)
        plain = balpoe.decide(predictions, target_prior=prior)
        for kind, tables in kinds.items():
            names.append({"prior": name, "costs": kind})
            for answers in ([balpoe.decide(predictions, costs=each, target_prior=prior) for each in tables],
                            [plain] * len(tables)):  # fmt: skip
                paid = [_paid(each, one, predictions.targets) for each, one in zip(tables, answers, strict=True)]
                spent.append(weights * torch.stack(paid).mean(dim=0))
    table = torch.stack(spent, dim=1)

    def costs(counts: Tensor) -> Tensor:
        decided, plain = (counts @ table / len(table)).unflatten(1, (-1, 2)).unbind(dim=2)
        return torch.cat([decided, plain, 100 * (decided / plain - 1)], dim=1)

    found = iter(with_interval(costs, predictions.targets))
    rows = [{**name, "decided": next(found)} for name in names]
    for key in ("most probable", "change"):
        rows = [{**row, key: next(found)} for row in rows]
    return rows


def _paid(costs: Tensor, answers: Tensor, targets: Tensor) -> Tensor:
    return costs[targets, answers] if costs.ndim == 2 else costs[targets] * (answers != targets)


def macro_f1(answers: Tensor, test: balpoe.Predictions, prior: Tensor) -> float:
    """The mean over classes of F1 under a prior."""
    weights, right = label_weights(test, prior), answers == test.targets
    there, given = (torch.bincount(each, weights, minlength=test.num_classes) for each in (test.targets, answers))
    hits = torch.bincount(answers[right], weights[right], minlength=test.num_classes)
    return float((2 * hits / (there + given)).mean())


def metric_rows(predictions: balpoe.Predictions) -> list[dict[str, Any]]:
    """Macro F1 of its rule on fresh halves, and what it gains over the most probable class, in points."""
    rows = []
    for name in PRIORS:
        prior = balpoe.target_prior(name, predictions)
        values = []
        for seed in range(RULE_SPLITS):
            held_out, test = halves(predictions, seed)
            rule = balpoe.fit_rule(held_out, "macro_f1", target_prior=prior)
            answers = (rule(test), balpoe.decide(test, target_prior=prior))
            values.append([100 * macro_f1(each, test, prior) for each in answers])
        fitted, plain = zip(*values, strict=True)
        gain = [after - before for after, before in values]
        rows.append({"prior": name, "macro_f1": over_splits(fitted), "most probable": over_splits(plain),
                     "gain": over_splits(gain)})  # fmt: skip
    return rows


def recall_rows(predictions: balpoe.Predictions) -> list[dict[str, Any]]:
    """Recall on fresh halves of five rare classes, each by itself, where 80 % were wanted under forward-50."""
    prior = balpoe.target_prior("forward-50", predictions)
    rare = predictions.class_counts.argsort()[: max(5, predictions.num_classes // 4)]
    chosen = rare[:: len(rare) // 5][:5].tolist()
    rows = []
    for confidence in (None, 0.95):
        found: dict[str, list[float]] = {"recall": [], "most probable": [], "accuracy lost": []}
        for seed in range(RULE_SPLITS):
            held_out, test = halves(predictions, seed)
            plain, weights = balpoe.decide(test, target_prior=prior), label_weights(test, prior)
            for label in chosen:
                wanted = {predictions.class_names[label]: RECALL}
                answers = balpoe.fit_rule(held_out, wanted, target_prior=prior, confidence=confidence)(test)
                members = test.targets == label
                found["recall"].append(float((answers == label)[members].double().mean()))
                found["most probable"].append(float((plain == label)[members].double().mean()))
                lost = (plain == test.targets).double() - (answers == test.targets).double()
                found["accuracy lost"].append(100 * float((weights * lost).mean()))
        kept = sum(value >= RECALL for value in found["recall"]) / len(found["recall"])
        rows.append({"confidence": confidence, "wanted": RECALL, "kept": kept,
                     **{key: over_splits(values) for key, values in found.items()}})  # fmt: skip
    return rows


def abstaining_rows(predictions: balpoe.Predictions, splits: int) -> list[dict[str, Any]]:
    """Error of the answers given on fresh halves where 10 % was wanted, and who is sent away."""
    found: dict[tuple[str, str], list[Any]] = {(name, way): [] for name in PRIORS for way in ABSTENTIONS}
    for seed in range(splits):
        held_out, test = halves(predictions, seed)
        for (name, way), values in found.items():
            prior = balpoe.target_prior(name, test)
            rule = balpoe.Abstention.fit(held_out, error=ERROR, target_prior=prior, seed=seed, **ABSTENTIONS[way])
            values.append({row.name: row for row in abstained(test, rule(test), target_prior=prior)})
    rows = []
    for (name, way), values in found.items():
        errors = [each["all"].error for each in values if each["all"].error is not None]
        answered = {f"answered of {group}": over_splits([1 - each[group].abstained for each in values])
                    for group in values[0]}  # fmt: skip
        kept = 1 - sum(error > ERROR for error in errors) / splits
        rows.append({"prior": name, "way": way, "wanted": ERROR, "error": over_splits(errors) if errors else None,
                     "kept": kept, "silent": splits - len(errors), **answered})  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def group_rows(predictions: balpoe.Predictions) -> list[dict[str, Any]]:
    """Who is sent away, and who is wrong, where shot groups have one threshold, equal shares or the same error."""
    found: dict[tuple[str, str], list[Any]] = {(name, way): [] for name in PRIORS for way in BALANCES}
    for seed in range(RULE_SPLITS):
        held_out, test = halves(predictions, seed)
        for (name, way), values in found.items():
            prior = balpoe.target_prior(name, test)
            rule = balpoe.Abstention.fit(held_out, error=ERROR, target_prior=prior, seed=seed, balance=BALANCES[way])
            values.append(abstaining(test, rule(test), prior))
    rows = []
    for (name, way), values in found.items():
        errors = [[each[f"error of {group}"] for group in groups_of(predictions)] for each in values]
        kept = [all(error is None or error <= ERROR for error in several) for several in errors]
        spreads = {key: _over_answered([each[key] for each in values]) for key in values[0]}
        silent = sum(each["error"] is None for each in values)
        rows.append({"prior": name, "way": way, **spreads, "kept in each": sum(kept) / RULE_SPLITS, "silent": silent})
        print(rows[-1], flush=True)
    return rows


def abstaining(test: balpoe.Predictions, answers: Tensor, prior: Tensor) -> dict[str, float | None]:
    """Share answered of the samples of each group, by the truth; error of the answers of each group, by the answer."""
    whole = {row.name: row for row in abstained(test, answers, target_prior=prior)}
    found: dict[str, float | None] = {"error": whole["all"].error}
    found |= {f"answered of {name}": 1 - row.abstained for name, row in whole.items()}
    weights, wrong = label_weights(test, prior), (answers != test.targets).double()
    for name, group in groups_of(test).items():
        mass = weights * torch.cat([group, torch.tensor([False])])[answers]
        found[f"error of {name}"] = float(mass @ wrong / mass.sum()) if bool(mass.any()) else None
    return found


def _over_answered(values: Sequence[float | None]) -> list[float] | None:
    """Mean and ends over the splits that answered something."""
    known = [value for value in values if value is not None]
    return over_splits(known) if known else None


def risk_rows(predictions: balpoe.Predictions) -> list[dict[str, Any]]:
    """Area under the risk-coverage curve, in per cent, of all samples and by shot group, and the error at coverage."""
    rows, targets = [], predictions.targets
    groups = {"all": torch.ones(predictions.num_classes, dtype=torch.bool), **groups_of(predictions)}
    members = {name: mask[targets] for name, mask in groups.items()}
    for name in PRIORS:
        prior = balpoe.target_prior(name, predictions)
        weights, posteriors = label_weights(predictions, prior), probabilities(predictions, prior)
        sure, answers = posteriors.max(dim=1)
        right = answers == targets

        def risks(counts: Tensor, sure: Tensor = sure, right: Tensor = right, weights: Tensor = weights) -> Tensor:
            found = []
            for row in counts * weights:
                curves = [balpoe.risk_coverage(sure[each], right[each], row[each]) for each in members.values()]
                whole = curves[0]
                at = [float(whole.risk[torch.searchsorted(whole.coverage, share - 1e-9)]) for share in (*ANSWERED, 1.0)]
                found.append([*(curve.area for curve in curves), *at])
            return 100 * torch.tensor(found, dtype=torch.float64)

        keys = [*(f"area of {group}" for group in members), *(f"error at {share:.0%}" for share in (*ANSWERED, 1.0))]
        rows.append({"prior": name, **dict(zip(keys, with_interval(risks, targets, 100), strict=True))})
    return rows


def probabilities(predictions: balpoe.Predictions, prior: Tensor) -> Tensor:
    return torch.cat([block for _, block in Posteriors(predictions, prior).probabilities()])


def tree_rows(predictions: balpoe.Predictions, taxonomy: Taxonomy) -> list[dict[str, Any]]:
    """Accuracy at each level, and the share answered at each level at a confidence of 90 %, with how many are right."""
    rows, targets = [], predictions.targets
    above = taxonomy.ancestors
    for name in PRIORS:
        prior = balpoe.target_prior(name, predictions)
        weights, posteriors = label_weights(predictions, prior), probabilities(predictions, prior)
        sums, deepest = taxonomy.summed(posteriors), taxonomy.deepest(posteriors, CONFIDENCE)
        levels = range(taxonomy.height)
        labels = [(taxonomy.level_of == level).nonzero().squeeze(1) for level in levels]
        hits = [labels[level][sums[:, labels[level]].argmax(dim=1)] == above[level, targets] for level in levels]
        here = [taxonomy.level_of[deepest.labels] == level for level in (*levels, taxonomy.height)]
        fine = deepest.right(targets)
        answered = here[0] | here[1]
        columns = [*hits, *here, *(each & fine for each in here[:2]), answered & fine, answered]
        table = weights[:, None] * torch.stack(columns, dim=1).double()

        def shares(counts: Tensor, table: Tensor = table) -> Tensor:
            sums = counts @ table / len(table)
            sums[:, 5:7] /= sums[:, 2:4]
            sums[:, 7] /= sums[:, 8]
            return 100 * sums[:, :8]

        keys = ("class accuracy", "superclass accuracy", "class answered", "superclass answered", "any answered",
                "class right", "superclass right", "answered right")  # fmt: skip
        rows.append({"prior": name, **dict(zip(keys, with_interval(shares, targets), strict=True))})
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", help="name in the record")
    parser.add_argument("predictions", type=Path)
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--only", nargs="+", default=PARTS, choices=PARTS, help="parts to measure")
    parser.add_argument("--out", type=Path, default=Path("results/decisions.json"))
    arguments = parser.parse_args(argv)
    given, splits = predictions_of(arguments.predictions), arguments.splits
    predictions, taxonomy = settled(given), taxonomy_of(given.class_names)
    evaluation = balpoe.evaluate(given)
    found: dict[str, Any] = {
        "samples": len(given),
        "accuracy": evaluation.accuracy,
        "ece": evaluation.ece,
        "ece as trained": balpoe.evaluate(replace(given, calibration=None)).ece,
    }
    measures: dict[str, Callable[[], Any]] = {
        "costs": lambda: cost_rows(predictions, taxonomy),
        "tree": lambda: tree_rows(predictions, taxonomy),
        "risk": lambda: risk_rows(predictions),
        "metrics": lambda: metric_rows(predictions),
        "recalls": lambda: recall_rows(predictions),
        "abstaining": lambda: {"splits": splits, "rows": abstaining_rows(predictions, splits)},
        "groups": lambda: {"splits": RULE_SPLITS, "rows": group_rows(predictions)},
    }
    found |= {part: measures[part]() for part in arguments.only}
    record = read_json(arguments.out) if arguments.out.exists() else {}
    record.setdefault(arguments.name, {}).update(found)
    write_json(arguments.out, record)


if __name__ == "__main__":
    main()
