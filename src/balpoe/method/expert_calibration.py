"""How far to trust each expert: temperatures and a bias by class frequency.

Samples outside of training give them, or a temperature is known from earlier trainings. What an expert learns is the
posterior of the training set, softmax(logits + offsets). Mixup leaves it too modest, many epochs without it leave it
too sure; so that is what a temperature divides (`balpoe.at_temperature`). Further numbers are fitted, too, and kept
only where they predict held-out labels better.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from balpoe.errors import UserError
from balpoe.method.ensemble import at_least_float32
from balpoe.method.label_likelihood import Expansion, Form, LabelLikelihood, most_likely
from balpoe.method.priors import class_prior, logit_offsets

__all__ = [
    "ExpertCalibration",
    "are_earned",
    "at_known_temperature",
    "fit_expert_calibration",
    "fit_one_temperature",
    "held_out_losses",
    "read_calibration",
    "training_offsets",
]

MOST_VALUES = 10_000_000  # logits of an ensemble that a fit looks at; of more samples, a part is enough
FOLDS = 5
EARNED = 2.0  # standard errors by which a further number must predict better
SMALL = 1e-2  # last step to the numbers without a fold, as a part of the scale
LEAST_GROUPS = 20  # of fewer samples, or series, a standard error says little


@dataclass(frozen=True)
class ExpertCalibration:
    """A temperature for each expert's training posterior, and a bias of all classes by their frequency.

    Args:
        temperatures: One per expert, above 0; above 1 for experts that are too sure of themselves.
        frequency_bias: Number times which the log training prior is added to all experts' logits.
        gain: Held-out log-likelihood that the calibration gained, in nats a sample.
        fitted: Whether samples outside of training gave it; if not, it is a temperature that was known before.

    >>> halved = ExpertCalibration((2.0,))
    >>> halved(torch.tensor([[[2.0, 0.0]]]), torch.tensor([0.9, 0.1]), torch.tensor([[0.0, 0.0]]))
    tensor([[[1., 0.]]])
    """

    temperatures: tuple[float, ...]
    frequency_bias: float = 0.0
    gain: float = 0.0
    fitted: bool = True

    def __post_init__(self) -> None:
        if not self.temperatures or not all(0 < value < float("inf") for value in self.temperatures):
            raise UserError(f"temperatures must be numbers above 0, one per expert, but are {self.temperatures}")

    def __call__(self, expert_logits: Tensor, train_prior: Tensor, offsets: Tensor) -> Tensor:
        """Return calibrated expert logits, (batch, experts, classes).

        A known temperature divides them as they are.

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
        if not self.fitted:
            return logits * scales.to(logits)
        fixed = (scales - 1) * offsets.double().cpu() + self.frequency_bias * train_prior.double().cpu().log()
        return logits * scales.to(logits) + fixed.to(logits)


def read_calibration(values: Any) -> ExpertCalibration | None:
    """Return a calibration from what JSON holds of it; None for none, as in files of earlier versions."""
    if values is None:
        return None
    numbers = (float(value) for value in values["temperatures"])
    bias, gain, fitted = float(values["frequency_bias"]), float(values["gain"]), values.get("fitted", True)
    return ExpertCalibration(tuple(numbers), bias, gain, bool(fitted))


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


def at_known_temperature(temperature: float, experts: int) -> ExpertCalibration:
    """Return the calibration that divides the logits of all experts, and so those of any product, by a temperature.

    One that is fitted divides posteriors of the training set, and moves an ensemble towards frequent classes or away
    from them; this one leaves all answers as they are.

    >>> prior, logits = torch.tensor([0.9, 0.1]), torch.tensor([[[2.0, 0.0], [4.0, 0.0]]])
    >>> at_known_temperature(0.5, experts=2)(logits, prior, training_offsets(prior, (1.0, 0.0), None)).mean(dim=1)
    tensor([[6., 0.]])
    """
    return ExpertCalibration((temperature,) * experts, fitted=False)


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
    standard errors. A normal prior around no change, of deviation 0.2, counts where there are few labels.

    Args:
        expert_logits: Logits (samples, experts, classes) of samples that were not in training.
        targets: Labels, (samples,).
        train_prior: Prior that the loss was given, (classes,).
        offsets: What the loss added to the logits, as `training_offsets` returns it.
        source_prior: Prior that the ensemble's logits are made for, (classes,).
        groups: Number of each sample's group, (samples,); groups are judged as wholes.
    """
    rows = _some_rows(len(targets), expert_logits.shape[2])
    problem = LabelLikelihood(expert_logits[rows], targets[rows], source_prior)
    groups = rows if groups is None else groups[rows]
    experts, folds = expert_logits.shape[1], _folds(groups)
    forms, solutions, scores = _forms(problem, offsets, class_prior(train_prior).double().log()), {}, {}
    best, scale = "one", forms["one"].usual
    for name, form in forms.items():
        solutions[name] = most_likely(form, problem, problem.rows, form.usual * scale)
        scale = solutions["one"]  # a good start for the others
        scores[name] = _cross_validated(form, problem, folds, solutions[name])
        if are_earned(scores[name] - scores[best], groups):
            best = name
    numbers = solutions[best]
    scales = numbers[:1].expand(experts) if best.startswith("one") else numbers[:experts]
    bias = float(numbers[-1]) if best.endswith("bias") else 0.0
    before = problem.log_likelihoods(forms["one"], forms["one"].usual, problem.rows)
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
    problem, experts = LabelLikelihood(expert_logits[rows], targets[rows], source_prior), expert_logits.shape[1]
    form = _one_scale(experts, offsets[:, problem.classes].double())
    scale = most_likely(form, problem, problem.rows, form.usual)
    return ExpertCalibration((1 / float(scale),) * experts)


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
    problem = LabelLikelihood(logits[rows, None], targets[rows], source_prior)
    form = _one_scale(1, torch.zeros(1, len(problem.classes), dtype=torch.float64))
    return -problem.log_likelihoods(form, form.usual, problem.rows)


def _some_rows(samples: int, classes: int) -> Tensor:
    """All rows, or of very many a part that is the same every time."""
    most = max(MOST_VALUES // classes, 1000)
    if samples <= most:
        return torch.arange(samples)
    return torch.randperm(samples, generator=torch.Generator().manual_seed(0))[:most].sort().values


def _one_scale(experts: int, offsets: Tensor) -> Form:
    """One number for all that the experts have learnt."""
    learnt, ones = offsets.mean(dim=0), torch.ones(1, dtype=torch.float64)
    return Form(torch.full((1, experts), 1 / experts, dtype=torch.float64), learnt[None], -learnt, ones)


def _forms(problem: LabelLikelihood, offsets: Tensor, log_prior: Tensor) -> dict[str, Form]:
    """The ways to correct an ensemble, from the fewest numbers on."""
    experts, offsets, log_prior = len(problem.logits), offsets[:, problem.classes].double(), log_prior[problem.classes]
    one = _one_scale(experts, offsets)

    def with_bias(form: Form) -> Form:
        none, constants = torch.zeros(1, experts), torch.cat([form.constants, log_prior[None]])
        return Form(torch.cat([form.mix, none]), constants, form.fixed, torch.cat([form.usual, none[:, 0]]))

    forms = {"one": one, "one, bias": with_bias(one)}
    if experts > 1:
        mix, constants = torch.eye(experts, dtype=torch.float64) / experts, offsets / experts
        each = Form(mix, constants.expand(experts, -1), one.fixed, one.usual.expand(experts))
        forms |= {"each": each, "each, bias": with_bias(each)}
    return forms


def _cross_validated(form: Form, problem: LabelLikelihood, folds: Tensor, whole: Tensor) -> Tensor:
    """What each sample contributes to the likelihood under numbers that were found without its fold, (samples,).

    Most are one small step from the numbers of the whole, and that step is known once each fold was looked at.
    """
    found = torch.zeros(len(folds), dtype=torch.float64)
    parts = [(folds == each).nonzero()[:, 0] for each in folds.unique()]
    around = [problem.expansion(form, whole, rows) for rows in parts]
    for fold, inside in enumerate(parts):
        others = [other for other in range(len(parts)) if other != fold]
        if others:
            outside, known = torch.cat([parts[each] for each in others]), Expansion.sum(around[each] for each in others)
            numbers = most_likely(form, problem, outside, whole, known=known, close=SMALL)
            found[inside] = problem.log_likelihoods(form, numbers, inside)
    return found


def _folds(groups: Tensor) -> Tensor:
    """A fold for each sample, (samples,); groups stay whole."""
    _, number = groups.unique(return_inverse=True)
    order = torch.randperm(int(number.max()) + 1, generator=torch.Generator().manual_seed(0))
    return order[number] % FOLDS


def are_earned(gains: Tensor, groups: Tensor | None = None, *, errors: float = EARNED) -> bool:
    """Return whether gains, summed by group, are above zero by some standard errors: more than random samples give.

    Args:
        gains: Gain of each sample, (samples,).
        groups: Number of each sample's group, (samples,); None where each is its own.
        errors: Number of standard errors.

    >>> are_earned(torch.full((100,), 0.1)), are_earned(torch.arange(100.0) - 49)
    (True, False)
    """
    number = torch.arange(len(gains)) if groups is None else groups.unique(return_inverse=True)[1]
    sums = torch.zeros(int(number.max()) + 1, dtype=torch.float64).index_add(0, number, gains.double())
    return len(sums) >= LEAST_GROUPS and float(sums.mean()) > errors * float(sums.std()) / len(sums) ** 0.5
