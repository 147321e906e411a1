"""A search for settings by what held-out samples say: Optuna behind one small room, its trials recorded as JSON lines.

Each trial is drawn by a sampler with a seed of its own, from the trials before it: a search that goes on where it
stopped proposes what one without a stop proposes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

from balpoe.baselines.catalogue import METHODS, checked_settings
from balpoe.errors import UserError, unknown_name
from balpoe.experiments.recipe import FIELDS, TYPES, Recipe, updated
from balpoe.files import read_text, write_text
from balpoe.method.lambdas import equidistant_lambdas

__all__ = ["Dimension", "Search", "Trial", "check_optuna", "check_tunable", "dimensions", "with_values"]

GROUPS = ("experts", "method", "optimisation")
NOT_TUNED = frozenset({"method", "method_settings", "optimizer_settings", "seed", "sync_batchnorm", "split",
                       "unmixed_statistics", "tune", "adapter", "adapter_size", "adapter_split",
                       "head_start", "first_layer", "residual_start"})  # fmt: skip
ALSO = frozenset({"augmentation"})
KNOWN_RANGES = {"mixup_alpha": (0.0, 1.0), "lambdas": (0.0, 2.0), "momentum": (0.8, 0.99), "num_experts": (1, 7),
                "weight_average_decay": (0.9, 0.999), "smoothing": (0.0, 10.0), "tau": (0.0, 2.0)}  # fmt: skip
FACTOR = 10.0  # other numbers above zero: from a tenth of the recipe's to ten times it
FIRST_RANDOM = 5  # trials before the sampler and the pruner have something to go by


@dataclass(frozen=True)
class Dimension:
    """What a setting may be: a number between two, or one of some choices."""

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    choices: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Trial:
    """Settings that were tried, and their score with each seed: higher is better."""

    values: dict[str, Any]
    scores: tuple[float, ...]
    pruned: bool = False
    """Whether it was given up before the last seed."""

    @property
    def score(self) -> float:
        """The mean over the seeds."""
        return fmean(self.scores)


def check_optuna() -> None:
    """Refuse to search where Optuna is not installed."""
    if find_spec("optuna") is None:
        raise UserError("--tune needs Optuna, which is not installed; install it with: pip install 'balpoe[tune]'")


def check_tunable(names: Sequence[str], recipes: Mapping[str, Recipe]) -> None:
    """Refuse names that no method can tune, in one sentence each.

    Args:
        names: Fields of a recipe, or settings of methods.
        recipes: Recipe of each method.
    """
    own = {key for recipe in recipes.values() for key in METHODS[recipe.method].settings}
    for name in names:
        if name not in FIELDS and name not in own:
            raise unknown_name("field to tune", name, [*filter(_is_tunable, FIELDS), *own])
        if name in FIELDS and not _is_tunable(name):
            words = ", ".join(filter(_is_tunable, FIELDS))
            raise UserError(f"--tune {name}: this is not a setting to search for; such are {words}")
        if not any(name in dimensions([name], recipe) for recipe in recipes.values()):
            raise UserError(f"--tune {name}: none of these methods has it; leave it out")
    if len(set(names)) < len(names):
        raise UserError(f"--tune names a setting twice: {','.join(names)}; give each once")


def _is_tunable(name: str) -> bool:
    """Whether a field of a recipe is a number, a switch or a choice that training depends on."""
    metadata, kind = FIELDS[name].metadata, TYPES.get(name)
    if name in ALSO or name == "lambdas":
        return True
    known = kind in (int, float, bool) or (kind is str and "choices" in metadata)
    return known and metadata["group"] in GROUPS and name not in NOT_TUNED


def dimensions(names: Sequence[str], recipe: Recipe) -> dict[str, Dimension]:
    """Return where to search for each setting that a recipe's method has.

    Args:
        names: Fields of a recipe, or settings of methods.
        recipe: Recipe to start from, whose own values are always among those that can be tried.

    >>> dimensions(["lr", "backward_tau", "schedule"], Recipe())["lr"]
    Dimension(low=0.01, high=1.0, log=True, whole=False, choices=())
    """
    entry, own = METHODS[recipe.method], checked_settings(recipe.method, recipe.method_settings)
    found = {}
    for name in names:
        if name in own:
            found[name] = _dimension(name, own[name], entry.settings[name].metadata)
        elif name == "lambdas":
            found |= {name: Dimension(*KNOWN_RANGES[name])} if entry.takes_lambdas else {}
        elif name in FIELDS and not (name == "num_experts" and entry.num_experts == 1):
            value = recipe.experts if name == "num_experts" else getattr(recipe, name)
            least = {"at_least": entry.least_experts} if name == "num_experts" else {}
            found[name] = _dimension(name, value, {**FIELDS[name].metadata, **least})
    return found


def _dimension(name: str, value: Any, limits: Mapping[str, Any]) -> Dimension:
    """Where to search for one setting, around its value and within its limits."""
    if isinstance(value, bool):
        return Dimension(choices=(False, True))
    if isinstance(value, str):
        return Dimension(choices=tuple(limits["choices"]))
    whole, (least, most) = isinstance(value, int), _limits(limits)
    if name in KNOWN_RANGES:
        low, high = KNOWN_RANGES[name]
        return Dimension(max(least, min(low, value)), min(most, max(high, value)), whole=whole)
    if most - least <= 1 or value <= 0:
        return Dimension(max(least, min(0.0, value)), min(most, max(1.0, value)), whole=whole)
    factor = 2.0 if whole else FACTOR
    low, high = max(least, value / factor), min(most, value * factor)
    return Dimension(round(low) if whole else low, round(high) if whole else high, log=True, whole=whole)


def _limits(limits: Mapping[str, Any]) -> tuple[float, float]:
    """The smallest and the largest number that a setting may be; a little inside of an open end."""
    least = limits.get("at_least", limits["above"] + 1e-6 if "above" in limits else float("-inf"))
    most = limits.get("at_most", limits["below"] - 1e-3 if "below" in limits else float("inf"))
    return least, most


def with_values(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Return a recipe with values that a search proposes; lambdas are proposed by the largest of evenly spaced ones.

    >>> with_values(Recipe(), {"lambdas": 0.5, "lr": 0.2}).lambdas
    (0.5, 0.0, -0.5)
    """
    own = METHODS[recipe.method].settings
    changes: dict[str, Any] = {name: value for name, value in values.items() if name not in own}
    if "lambdas" in changes:
        experts = changes.pop("num_experts", recipe.experts)
        changes["lambdas"] = tuple(changes["lambdas"] * each for each in equidistant_lambdas(experts))
    elif "num_experts" in changes:
        changes["lambdas"] = ()
    if settings := {name: value for name, value in values.items() if name in own}:
        changes["method_settings"] = {**recipe.method_settings, **settings}
    return updated(recipe, changes)


class Search:
    """Trials of one method; the first one is the recipe as it stands.

    Args:
        recipe: Recipe to start from.
        names: What to search for.
        file: Where trials are recorded.
        seed: Seed of the proposals.
    """

    def __init__(self, recipe: Recipe, names: Sequence[str], file: Path, seed: int = 0) -> None:
        self.recipe, self.space, self.file, self.seed = recipe, dimensions(names, recipe), file, seed
        lines = read_text(file).splitlines() if file.exists() else []
        self.trials = [_read_trial(line, file) for line in lines]
        if any(set(trial.values) != set(self.space) for trial in self.trials):
            raise UserError(f"{file} is a search for other settings; choose another --name, or move it away")

    @property
    def best(self) -> Trial:
        """The best trial that was not given up."""
        return max((trial for trial in self.trials if not trial.pruned), key=lambda trial: trial.score)

    def propose(self) -> dict[str, Any]:
        """Return the settings of the next trial."""
        if not self.trials:
            return self._as_it_stands()
        trial = self._study().ask(_distributions(self.space))
        return {name: _rounded(trial.params[name], each) for name, each in self.space.items()}

    def is_worth_going_on(self, scores: Sequence[float]) -> bool:
        """Return whether a trial with such scores so far is not below the median of the others at this seed."""
        trial = self._study().ask(_distributions(self.space))
        for step in range(len(scores)):
            trial.report(fmean(scores[: step + 1]), step)
        return not trial.should_prune()

    def record(self, trial: Trial) -> None:
        """Keep a trial; whatever happens meanwhile, the file has whole lines."""
        self.trials.append(trial)
        write_text(self.file, "".join(json.dumps(asdict(each)) + "\n" for each in self.trials))

    def _as_it_stands(self) -> dict[str, Any]:
        own = checked_settings(self.recipe.method, self.recipe.method_settings)
        special = {"lambdas": max(self.recipe.expert_lambdas, default=0.0), "num_experts": self.recipe.experts}
        return {
            name: special[name] if name in special else own[name] if name in own else getattr(self.recipe, name)
            for name in self.space
        }

    def _study(self) -> Any:
        """Optuna's memory of the trials so far, with a sampler for the next one."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = optuna.samplers.TPESampler(seed=1000 * self.seed + len(self.trials), n_startup_trials=FIRST_RANDOM)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=FIRST_RANDOM)
        study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
        states = optuna.trial.TrialState
        for trial in self.trials:
            means = {step: fmean(trial.scores[: step + 1]) for step in range(len(trial.scores))}
            study.add_trial(
                optuna.trial.create_trial(
                    state=states.PRUNED if trial.pruned else states.COMPLETE,
                    value=trial.score,
                    params=trial.values,
                    distributions=_distributions(self.space),
                    intermediate_values=means,
                )
            )
        return study


def _rounded(value: Any, dimension: Dimension) -> Any:
    """A number with the digits that matter, and not beyond the ends."""
    if not isinstance(value, float):
        return value
    return min(max(float(f"{value:.3g}"), dimension.low), dimension.high)


def _distributions(space: Mapping[str, Dimension]) -> dict[str, Any]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, Any] = {}
    for name, each in space.items():
        if each.choices:
            found[name] = CategoricalDistribution(each.choices)
        elif each.whole:
            found[name] = IntDistribution(int(each.low), int(each.high), log=each.log)
        else:
            found[name] = FloatDistribution(each.low, each.high, log=each.log)
    return found


def _read_trial(line: str, file: Path) -> Trial:
    try:
        found = json.loads(line)
        return Trial(dict(found["values"]), tuple(map(float, found["scores"])), bool(found["pruned"]))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is garbled ({error}); delete its last line, or move it away") from error
