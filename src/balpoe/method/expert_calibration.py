"""How far to trust each expert: temperatures and a bias by class frequency, fitted on samples outside of training.

What an expert learns is the posterior of the training set, softmax(logits + offsets). Mixup leaves it too modest, many
epochs without it leave it too sure; so that is what a temperature divides (`balpoe.at_temperature`). Further numbers
are fitted, too, and kept only where they predict held-out labels better.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from balpoe.errors import UserError
from balpoe.method.calibration import SCALES
from balpoe.method.ensemble import at_least_float32
from balpoe.method.priors import class_counts, class_prior, logit_offsets

__all__ = [
    "ExpertCalibration",
    "are_earned",
    "fit_expert_calibration",
    "fit_one_temperature",
    "held_out_losses",
    "read_calibration",
    "training_offsets",
]

MOST_VALUES = 10_000_000  # logits of an ensemble that a fit looks at; of more samples, a part is enough
FOLDS = 5
EARNED = 2.0  # standard errors by which a further number must predict better
LEAST_GROUPS = 20  # of fewer samples, or series, a standard error says little


@dataclass(frozen=True)
class ExpertCalibration:
    """A temperature for each expert's training posterior, and a bias of all classes by their frequency.

    Args:
        temperatures: One per expert, above 0; above 1 for experts that are too sure of themselves.
        frequency_bias: Number times which the log training prior is added to all experts' logits.
        gain: Held-out log-likelihood that the calibration gained, in nats a sample.

    >>> halved = ExpertCalibration((2.0,))
    >>> halved(torch.tensor([[[2.0, 0.0]]]), torch.tensor([0.9, 0.1]), torch.tensor([[0.0, 0.0]]))
    tensor([[[1., 0.]]])
    """

    temperatures: tuple[float, ...]
    frequency_bias: float = 0.0
    gain: float = 0.0

    def __post_init__(self) -> None:
        if not self.temperatures or not all(0 < value < float("inf") for value in self.temperatures):
            raise UserError(f"temperatures must be numbers above 0, one per expert, but are {self.temperatures}")

    def __call__(self, expert_logits: Tensor, train_prior: Tensor, offsets: Tensor) -> Tensor:
        """Return calibrated expert logits, (batch, experts, classes).

        Args:
            expert_logits: Logits as the network gives them.
            train_prior: Prior that the loss was given, (classes,).
            offsets: What the loss added to the logits, (experts or 1, classes): `training_offsets`.
        """
        logits = at_least_float32(expert_logits)
        if len(self.temperatures) != logits.shape[1]:
            raise UserError(
                f"the calibration is one of {len(self.temperatures)} experts, but the logits have {logits.shape[1]}"
            )
        scales = 1 / torch.tensor(self.temperatures, dtype=torch.float64)[:, None]
        fixed = (scales - 1) * offsets.double().cpu() + self.frequency_bias * train_prior.double().cpu().log()
        return logits * scales.to(logits) + fixed.to(logits)


def read_calibration(values: Any) -> ExpertCalibration | None:
    """Return a calibration from what JSON holds of it; None for none, as in files of earlier versions."""
    if values is None:
        return None
    numbers = (float(value) for value in values["temperatures"])
    return ExpertCalibration(tuple(numbers), float(values["frequency_bias"]), float(values["gain"]))


def training_offsets(train_prior: Any, lambdas: Any, source_prior: Any) -> Tensor:
    """Return what takes expert logits to posteriors of the training set, (experts or 1, classes), in float64.

    Args:
        train_prior: Prior that the loss was given, or class counts.
        lambdas: Lambdas of the loss, or None where the experts have none.
        source_prior: Prior that the ensemble's logits are made for; None for logits that are no posterior.

    >>> training_offsets([0.9, 0.1], None, [0.5, 0.5]).diff()
    tensor([[-2.1972]], dtype=torch.float64)
    """
    prior = class_prior(train_prior).double()
    if lambdas is not None:
        return logit_offsets(train_prior, lambdas).double()
    if source_prior is None:
        return torch.zeros(1, len(prior), dtype=torch.float64)
    return (prior.log() - torch.as_tensor(source_prior).double().log())[None]


class _Form(NamedTuple):
    """One way to correct logits: fixed + sum of numbers times tables, the numbers to be found."""

    tables: Tensor
    """What each number multiplies, (numbers, samples, classes)."""
    fixed: Tensor
    """What is added, (classes,)."""
    usual: Tensor
    """The numbers of logits as they are, (numbers,)."""

    def subset(self, rows: Tensor) -> "_Form":
        return self._replace(tables=self.tables[:, rows])

    def logits(self, numbers: Tensor) -> Tensor:
        corrected: Tensor = torch.tensordot(numbers, self.tables, dims=1) + self.fixed
        return corrected


def fit_expert_calibration(
    expert_logits: Tensor,
    targets: Tensor,
    train_prior: Any,
    offsets: Tensor,
    source_prior: Tensor,
    *,
    groups: Tensor | None = None,
) -> ExpertCalibration:
    """Return the calibration under which labels that the experts have not seen are most likely.

    The likelihood is the mean of two: of the labels as they come, and of all classes alike. One temperature is fitted;
    a bias by frequency, and a temperature for each expert, only where they predict further labels better by two
    standard errors. A normal prior around no change, of deviation 1, counts where there are few labels.

    Args:
        expert_logits: Logits (samples, experts, classes) of samples that were not in training.
        targets: Labels, (samples,).
        train_prior: Prior that the loss was given, (classes,).
        offsets: What the loss added to the logits, as `training_offsets` returns it.
        source_prior: Prior that the ensemble's logits are made for, (classes,).
        groups: Number of each sample's group, (samples,); groups are judged as wholes.
    """
    rows = _some_rows(len(targets), expert_logits.shape[2])
    logits, problem = expert_logits[rows].double(), _Likelihoods(targets[rows], len(offsets[0]), source_prior)
    groups = rows if groups is None else groups[rows]
    log_prior = class_prior(train_prior).double().log()
    forms = _forms(logits, offsets, log_prior)
    solutions = {name: _solution(form, problem) for name, form in forms.items()}
    scores = {name: _cross_validated(form, problem, groups, solutions[name]) for name, form in forms.items()}
    best = "one"
    for name in ("one, bias", "each", "each, bias"):
        if name in scores and are_earned(scores[name] - scores[best], groups):
            best = name
    numbers, experts = solutions[best], logits.shape[1]
    scales = numbers[:1].expand(experts) if best.startswith("one") else numbers[:experts]
    bias = float(numbers[-1]) if best.endswith("bias") else 0.0
    before = problem.log_likelihoods(forms["one"].logits(forms["one"].usual))
    gain = float((scores[best] - before).mean())
    return ExpertCalibration(tuple((1 / scales).tolist()), bias, gain)


def fit_one_temperature(
    expert_logits: Tensor, targets: Tensor, offsets: Tensor, source_prior: Tensor | None
) -> ExpertCalibration:
    """Return one temperature for all experts, the first step of `fit_expert_calibration`, and nothing more.

    It is enough to compare trainings by, at a small part of the cost, and all that suits scores which are no posterior:
    their answers stay as they are. What it gains on further labels is not measured.

    Args:
        expert_logits: Logits (samples, experts, classes) of samples that were not in training.
        targets: Labels, (samples,).
        offsets: What the loss added to the logits, as `training_offsets` returns it.
        source_prior: Prior that the ensemble's logits are made for, (classes,); None for logits that are no posterior.

    >>> logits, targets = torch.tensor([[[2.0, 0.0]]] * 400), torch.tensor([0, 0, 0, 1] * 100)
    >>> fit_one_temperature(logits, targets, torch.zeros(1, 2), None).temperatures[0] > 1  # 75 % are right, not 88 %
    True
    """
    rows = _some_rows(len(targets), expert_logits.shape[2])
    problem = _Likelihoods(targets[rows], len(offsets[0]), source_prior)
    scale = _solution(_one_scale(expert_logits[rows].double(), offsets), problem)
    return ExpertCalibration((1 / float(scale),) * expert_logits.shape[1])


def held_out_losses(logits: Tensor, targets: Tensor, source_prior: Tensor | None) -> Tensor:
    """Return what samples contribute to the held-out NLL, their mean, in nats; of very many, a part.

    It is the mean of two: minus the log-likelihood of labels as they come, and of all classes alike.

    Args:
        logits: Logits (samples, classes), posteriors under `source_prior`.
        targets: Labels, (samples,).
        source_prior: Prior that the logits are made for, (classes,); None for logits that are no posterior.

    >>> losses = held_out_losses(torch.zeros(3, 2), torch.tensor([0, 1, 1]), torch.tensor([0.5, 0.5]))
    >>> float(losses.mean())  # (0.637 + 0.693) / 2
    0.6648...
    """
    rows = _some_rows(len(targets), logits.shape[1])
    problem = _Likelihoods(targets[rows], logits.shape[1], source_prior)
    return -problem.log_likelihoods(logits[rows].double())


def _some_rows(samples: int, classes: int) -> Tensor:
    """All rows, or of very many a part that is the same every time."""
    most = max(MOST_VALUES // classes, 1000)
    if samples <= most:
        return torch.arange(samples)
    return torch.randperm(samples, generator=torch.Generator().manual_seed(0))[:most].sort().values


def _one_scale(logits: Tensor, offsets: Tensor) -> _Form:
    """One number for all that the experts have learnt."""
    learnt = (logits + offsets).mean(dim=1)
    return _Form(learnt[None], -offsets.mean(dim=0), torch.ones(1, dtype=torch.float64))


def _forms(logits: Tensor, offsets: Tensor, log_prior: Tensor) -> dict[str, _Form]:
    """The ways to correct an ensemble, from the fewest numbers on."""
    experts, bias, one = logits.shape[1], log_prior.expand(1, len(logits), -1), _one_scale(logits, offsets)

    def with_bias(form: _Form) -> _Form:
        return form._replace(tables=torch.cat([form.tables, bias]), usual=torch.cat([form.usual, torch.zeros(1)]))

    forms = {"one": one, "one, bias": with_bias(one)}
    if experts > 1:
        each = one._replace(tables=((logits + offsets) / experts).transpose(0, 1), usual=one.usual.expand(experts))
        forms |= {"each": each, "each, bias": with_bias(each)}
    return forms


class _Likelihoods:
    """The log-likelihood of labels: half as they come, half with all classes that are there alike."""

    def __init__(self, targets: Tensor, classes: int, source_prior: Tensor | None) -> None:
        counts = class_counts(targets, classes).double()
        present = counts > 0
        if int(present.sum()) < 2:
            raise UserError("the held-out samples are of one class alone; give labelled samples of all classes")
        self.targets = targets
        self.moves = torch.zeros(2, classes, dtype=torch.float64)  # scores that are no posterior stay where they are
        if source_prior is not None:
            # A class without a held-out sample is excluded: nothing was measured of it.
            even = torch.zeros_like(counts).masked_fill(~present, -torch.inf)
            self.moves = torch.stack([(counts / counts.sum()).log(), even]) - source_prior.double().log()
        alike = len(targets) / (int(present.sum()) * counts)
        self.weights = torch.stack([torch.full_like(alike, 0.5)[targets], 0.5 * alike[targets]])

    def subset(self, rows: Tensor) -> "_Likelihoods":
        """The same two likelihoods, of some of the samples."""
        part = object.__new__(_Likelihoods)
        part.targets, part.moves, part.weights = self.targets[rows], self.moves, self.weights[:, rows]
        return part

    def log_likelihoods(self, logits: Tensor) -> Tensor:
        """What each sample contributes, (samples,)."""
        found = torch.zeros(len(logits), dtype=torch.float64)
        for move, weight in zip(self.moves, self.weights, strict=True):
            moved = (logits + move).log_softmax(dim=1)
            found += weight * moved.gather(1, self.targets[:, None]).squeeze(1)
        return found

    def residuals(self, logits: Tensor) -> tuple[float, Tensor]:
        """Minus the sum of all contributions, and its derivative by the logits, (samples, classes)."""
        value, derivative = 0.0, torch.zeros_like(logits)
        for move, weight in zip(self.moves, self.weights, strict=True):
            log_p = (logits + move).log_softmax(dim=1)
            value -= float(weight @ log_p.gather(1, self.targets[:, None]).squeeze(1))
            derivative += weight[:, None] * log_p.exp()
        derivative[torch.arange(len(logits)), self.targets] -= self.weights.sum(dim=0)
        return value, derivative


def _solution(form: _Form, problem: _Likelihoods, start: Tensor | None = None) -> Tensor:
    """The numbers under which the labels are most likely; the problem is convex, and a good start saves time."""
    from scipy.optimize import minimize  # on first use: a tenth of a second

    def value_and_slope(numbers: Any) -> tuple[float, Any]:
        given = torch.from_numpy(numbers)
        value, derivative = problem.residuals(form.logits(given))
        away = given - form.usual
        slope = torch.tensordot(form.tables, derivative, dims=2) + away
        return value + float(away @ away) / 2, slope.numpy()

    # Scales stay above zero; a bias, whose usual number is 0, may be of either sign.
    bounds = [SCALES if usual == 1 else (-10.0, 10.0) for usual in form.usual.tolist()]
    first = (form.usual if start is None else start).numpy()
    found = minimize(value_and_slope, first, jac=True, method="L-BFGS-B", bounds=bounds, tol=1e-12)
    return torch.from_numpy(found.x).double()


def _cross_validated(form: _Form, problem: _Likelihoods, groups: Tensor, start: Tensor) -> Tensor:
    """What each sample contributes to the likelihood under numbers that were found without its fold, (samples,)."""
    _, number = groups.unique(return_inverse=True)
    order = torch.randperm(int(number.max()) + 1, generator=torch.Generator().manual_seed(0))
    fold, found = order[number] % FOLDS, torch.zeros(len(number), dtype=torch.float64)
    for each in range(FOLDS):
        inside, outside = (fold == each).nonzero().squeeze(1), (fold != each).nonzero().squeeze(1)
        if len(inside) and len(outside):
            numbers = _solution(form.subset(outside), problem.subset(outside), start)
            found[inside] = problem.subset(inside).log_likelihoods(form.subset(inside).logits(numbers))
    return found


def are_earned(gains: Tensor, groups: Tensor | None = None) -> bool:
    """Return whether gains, summed by group, are above zero by two standard errors: more than random samples give.

    Args:
        gains: Gain of each sample, (samples,).
        groups: Number of each sample's group, (samples,); None where each is its own.

    >>> are_earned(torch.full((100,), 0.1)), are_earned(torch.arange(100.0) - 49)
    (True, False)
    """
    number = torch.arange(len(gains)) if groups is None else groups.unique(return_inverse=True)[1]
    sums = torch.zeros(int(number.max()) + 1, dtype=torch.float64).index_add(0, number, gains.double())
    return len(sums) >= LEAST_GROUPS and float(sums.mean()) > EARNED * float(sums.std()) / len(sums) ** 0.5
