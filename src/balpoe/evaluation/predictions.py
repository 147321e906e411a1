"""What a network said about a test set, saved once: every metric and figure is computed from it on a CPU."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from balpoe.data.npz import read_archive
from balpoe.errors import UserError
from balpoe.evaluation.array_files import load_array, save_array
from balpoe.evaluation.prediction_archives import ARRAYS, prediction_arguments
from balpoe.files import read_json, write_json
from balpoe.method.ensemble import checked_source, product_of_experts, shift_prior, source_prior
from balpoe.method.expert_calibration import ExpertCalibration, read_calibration, training_offsets
from balpoe.method.intervals import LEAST_EVIDENCE, evidence_counts
from balpoe.method.priors import checked_lambdas, checked_prior, class_prior, tempered_prior

__all__ = ["Predictions", "load_predictions"]

HALF_PRECISION_ABOVE = 256 * 2**20  # bytes; beyond that the logits are saved as float16
BLOCK_VALUES = 2**21  # logits looked at together when a large table is read row by row
PER_SAMPLE = "expert_logits", "targets", "groups", "view_logits", "experts_asked"
NO_POSTERIOR = (
    "This method's scores are not probabilities for a known class mix, so they are shown as trained and not adjusted "
    "to any prior; a prior only weights the test samples."
)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Expert logits and labels of a test set, with what it takes to understand them.

    Args:
        expert_logits: Output of the network, (samples, experts, classes).
        targets: Labels, (samples,).
        class_counts: Number of training samples of each class, (classes,).
        lambdas: Lambdas of the loss, (experts,) or (experts, classes); None for experts without any.
        class_names: One name per class; by default the numbers.
        train_prior: Prior that the loss was given; by default the shares of the class counts.
        parameters: Number of parameters of the network.
        multiply_adds: Cost of one sample.
        source_prior: Prior under which `logits` are posteriors, (classes,). It follows from the lambdas where there are
            any, whatever is given: uniform for lambdas that average to 0. None without lambdas: the logits are no
            posterior, and nothing is adjusted.
        calibration: What samples outside of training gave, or a known temperature. `expert_logits` are as the network
            gave them; `logits`, and every metric, are calibrated.
        groups: Group of each sample, whole numbers, (samples,): samples of one group, such as the frames of a track,
            are no independent evidence, and intervals resample groups. None where each stands for itself.
        expert_weights: Weights of the experts in the ensemble, (experts,), which sum to 1; None for equal ones.
        view_logits: Expert logits of two views of each sample, (samples, 2, experts, classes), from which the weights
            were learnt; None where there are no such views.
        experts_asked: Number of experts that a router asked about each sample, (samples,); those that it did not ask
            stand in `expert_logits` with the mean of those that it did. None where all are asked. `multiply_adds` is
            then the mean over the samples.
        multiply_adds_of_all: Cost of one sample with all experts asked, and no router; None without a router.

    >>> predictions = Predictions(torch.zeros(5, 3, 2), torch.tensor([0, 0, 0, 0, 1]), [90, 10], [1, 0, -1])
    >>> len(predictions), predictions.logits.shape, predictions.source_prior
    (5, torch.Size([5, 2]), tensor([0.5000, 0.5000]))
    """

    expert_logits: Tensor
    targets: Tensor
    class_counts: Tensor
    lambdas: Tensor | None = None
    class_names: tuple[str, ...] = ()
    train_prior: Tensor = None  # type: ignore[assignment]  # completed below
    parameters: int | None = None
    multiply_adds: int | None = None
    source_prior: Tensor | None = None
    calibration: ExpertCalibration | None = None
    groups: Tensor | None = None
    expert_weights: Tensor | None = None
    view_logits: Tensor | None = None
    experts_asked: Tensor | None = None
    multiply_adds_of_all: int | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__  # frozen for users, completed here once
        put(self, "class_counts", torch.as_tensor(self.class_counts))
        put(self, "class_names", tuple(self.class_names) or tuple(map(str, range(len(self.class_counts)))))
        if self.lambdas is not None:
            put(self, "lambdas", torch.atleast_1d(checked_lambdas(self.lambdas)))
        self._check_samples()
        self._check_classes()
        put(self, "targets", self.targets.long())
        put(self, "train_prior", self._completed_train_prior())
        put(self, "source_prior", self._completed_source_prior())

    def _check_samples(self) -> None:
        if self.targets.ndim != 1 or self.class_counts.ndim != 1:
            raise UserError(
                f"targets and class_counts must be one row of whole numbers each, but have the shapes "
                f"{tuple(self.targets.shape)} and {tuple(self.class_counts.shape)}"
            )
        if self.expert_logits.ndim != 3 or len(self.expert_logits) != len(self.targets):
            raise UserError(
                f"expert_logits must have shape (samples, experts, classes) for {len(self.targets)} targets, "
                f"but have {tuple(self.expert_logits.shape)}"
            )
        if self.lambdas is not None and len(self.lambdas) != self.num_experts:
            raise UserError(
                f"lambdas describes {len(self.lambdas)} experts but the predictions have {self.num_experts}"
            )
        if self.targets.is_floating_point() or self.targets.dtype == torch.bool:
            raise UserError(f"targets must be one row of whole numbers, but are {self.targets.dtype}")
        if self.groups is not None and (self.groups.shape != self.targets.shape or self.groups.is_floating_point()):
            raise UserError(
                f"groups must be a whole number for each of the {len(self.targets)} samples, but are "
                f"{self.groups.dtype} of shape {tuple(self.groups.shape)}"
            )
        if self.expert_weights is not None and self.expert_weights.shape != (self.num_experts,):
            raise UserError(
                f"expert_weights must be a number for each of the {self.num_experts} experts, but have the shape "
                f"{tuple(self.expert_weights.shape)}"
            )
        views = (len(self), 2, *self.expert_logits.shape[1:])
        if self.view_logits is not None and self.view_logits.shape != views:
            raise UserError(f"view_logits must have shape {views}, but have {tuple(self.view_logits.shape)}")
        self._check_asked()
        sizes = self.parameters, self.multiply_adds, self.multiply_adds_of_all
        if not all(size is None or isinstance(size, int) for size in sizes):
            raise UserError("parameters and multiply_adds must be whole numbers, or None")

    def _check_asked(self) -> None:
        asked = self.experts_asked
        if asked is None:
            return
        whole = asked.shape == self.targets.shape and not asked.is_floating_point()
        if not whole or (len(asked) and not 1 <= int(asked.min()) <= int(asked.max()) <= self.num_experts):
            raise UserError(
                f"experts_asked must be a number from 1 to {self.num_experts} for each of the {len(self.targets)} "
                f"samples, but are {asked.dtype} of shape {tuple(asked.shape)}"
            )

    def _check_classes(self) -> None:
        if not all(isinstance(name, str) for name in self.class_names):
            raise UserError("class_names must be texts, one for each class")
        classes = self.num_classes
        if len(self.targets) and not 0 <= int(self.targets.min()) <= int(self.targets.max()) < classes:
            wrong = int(((self.targets < 0) | (self.targets >= classes)).nonzero()[0])
            raise UserError(
                f"target {int(self.targets[wrong])} of sample {wrong} is outside the {classes} classes of the "
                f"predictions, 0 to {classes - 1}; give the labels that the network was trained with"
            )
        if len(self.class_counts) != classes or len(self.class_names) != classes:
            raise UserError(
                f"the predictions have {classes} classes, but class_counts {len(self.class_counts)} "
                f"and class_names {len(self.class_names)}"
            )

    def _completed_train_prior(self) -> Tensor:
        given: Any = self.train_prior
        if given is None:
            return class_prior(self.class_counts)
        checked_prior(given, self.num_classes, "train_prior")
        return torch.as_tensor(given)

    def _completed_source_prior(self) -> Tensor | None:
        if self.lambdas is not None:
            return source_prior(self.train_prior, self.lambdas, self.expert_weights)
        if self.source_prior is None:
            return None
        checked_source(self.source_prior, self.num_classes)
        return torch.as_tensor(self.source_prior)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def prior(self) -> Tensor:
        """Old name of `train_prior`."""
        return self.train_prior

    @property
    def num_experts(self) -> int:
        """How many experts there are."""
        return self.expert_logits.shape[1]

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return self.expert_logits.shape[2]

    @property
    def logits(self) -> Tensor:
        """The ensemble's logits, calibrated, (samples, classes)."""
        return self.product(self.calibrated())

    def product(self, expert_logits: Tensor) -> Tensor:
        """Return the ensemble's logits, (samples, classes), of expert logits, (samples, experts, classes)."""
        return product_of_experts(expert_logits, self.expert_weights)

    def calibrated(self, rows: slice = slice(None)) -> Tensor:
        """Return the expert logits of some samples as the calibration makes them; as they are without one."""
        return self._calibrated(self.expert_logits[rows])

    def calibrated_views(self) -> tuple[Tensor, Tensor]:
        """Return the expert logits of the first and of the second views, each (samples, experts, classes)."""
        if self.view_logits is None:
            raise UserError("these predictions have no views of their samples; predict with a method that takes some")
        first, second = (self._calibrated(self.view_logits[:, view]) for view in (0, 1))
        return first, second

    def _calibrated(self, logits: Tensor) -> Tensor:
        if self.calibration is None:
            return logits
        offsets = training_offsets(self.train_prior, self.lambdas, self.source_prior)
        return self.calibration(logits, self.train_prior, offsets)

    def uncalibrated(self) -> "Predictions":
        """Return the same predictions as the network gave them."""
        return replace(self, calibration=None)

    @property
    def expert_priors(self) -> Tensor | None:
        """The prior that each expert was trained for, (experts, classes); None without lambdas."""
        return None if self.lambdas is None else tempered_prior(self.train_prior, self.lambdas)

    @property
    def caveats(self) -> list[str]:
        """What every table and page says of these predictions, if anything."""
        return [*([NO_POSTERIOR] if self.source_prior is None else []), *self._about_weights]

    @property
    def _about_weights(self) -> list[str]:
        if self.expert_weights is None:
            return []
        numbers = ", ".join(f"{weight:.2f}" for weight in self.expert_weights.tolist())
        return [
            f"Transductive: the weights of the experts ({numbers}) were learnt from these very test images, without "
            "their labels; other methods have not seen them."
        ]

    @property
    def evidence(self) -> Tensor:
        """What the numbers of each class rest on, (classes,): its test groups, or its test samples without groups."""
        return evidence_counts(self.targets, self.num_classes, self.groups)

    @property
    def about_groups(self) -> list[str]:
        """What tables and pages say of the test groups, if there are any."""
        if self.groups is None:
            return []
        number = len(torch.unique(self.groups))
        found = f"The {len(self):,} test samples come in {number:,} group{'s' if number > 1 else ''}: "
        if number < LEAST_EVIDENCE:
            return [
                f"{found}too few to say how sure ECE and NLL are; accuracies are hardly known (their intervals say so)."
            ]
        return [f"{found}intervals are over groups, and a class has as much evidence as it has groups."]

    def adjusted(self, logits: Tensor, target_prior: Any) -> Tensor:
        """Return logits of this ensemble moved to another label prior; as they are if they are no posterior."""
        return logits if self.source_prior is None else shift_prior(logits, target_prior, self.source_prior)

    def answers(self, priors: Iterable[Any] = ()) -> Tensor:
        """Return the answer to each sample, (1 + priors, samples): as trained, then adjusted to each prior.

        >>> predictions = Predictions(torch.zeros(1, 1, 2), torch.tensor([0]), [90, 10], [0])
        >>> predictions.answers([[0.2, 0.8], [0.7, 0.3]])
        tensor([[0],
                [1],
                [0]])
        """
        nothing = torch.zeros(self.num_classes)
        moves = [nothing, *(self.adjusted(nothing, prior) for prior in priors)]
        found = []
        for rows in self.blocks():
            logits = self.product(self.calibrated(rows))
            found.append(torch.stack([(logits + move).argmax(dim=1) for move in moves]))
        return torch.cat(found, dim=1)

    def subset(self, indices: Tensor) -> "Predictions":
        """Return the predictions of some samples; weights of the experts stay as they are."""
        parts = {name: getattr(self, name) for name in PER_SAMPLE}
        return replace(self, **{name: part[indices] for name, part in parts.items() if part is not None})

    def blocks(self) -> Iterator[slice]:
        """Yield slices of rows that are small enough to work on at once."""
        rows = max(1, BLOCK_VALUES // (self.num_experts * self.num_classes))
        for start in range(0, len(self), rows):
            yield slice(start, start + rows)

    def save(self, folder: str | Path) -> None:
        """Write expert_logits.npy, targets.npy (and what else there is) and, last, predictions.json about them.

        The logits in the file are as the network gave them, without the calibration, whose numbers are in the .json.
        """
        folder = Path(folder)
        save_array(folder / "expert_logits.npy", _for_file(self.expert_logits))
        save_array(folder / "targets.npy", self.targets)
        if self.groups is not None:
            save_array(folder / "groups.npy", self.groups)
        if self.view_logits is not None:
            save_array(folder / "view_logits.npy", _for_file(self.view_logits))
        if self.experts_asked is not None:
            save_array(folder / "experts_asked.npy", self.experts_asked)
        write_json(
            folder / "predictions.json",
            {
                "class_names": self.class_names,
                "class_counts": self.class_counts.tolist(),
                "lambdas": _listed(self.lambdas),
                "train_prior": _listed(self.train_prior),
                "source_prior": _listed(self.source_prior),
                "parameters": self.parameters,
                "multiply_adds": self.multiply_adds,
                "calibration": self.calibration and asdict(self.calibration),
                "has_groups": self.groups is not None,
                "expert_weights": _listed(self.expert_weights),
                "has_views": self.view_logits is not None,
                "has_router": self.experts_asked is not None,
                "multiply_adds_of_all": self.multiply_adds_of_all,
            },
        )

    @staticmethod
    def load(folder: str | Path) -> "Predictions":
        """Read saved predictions; the logits stay on disk, mapped, until they are used."""
        folder = Path(folder)
        about = read_json(folder / "predictions.json")
        try:
            return Predictions(
                load_array(folder / "expert_logits.npy", mapped=True),
                load_array(folder / "targets.npy"),
                torch.tensor(about["class_counts"]),
                _tensor(about["lambdas"]),
                tuple(about["class_names"]),
                _tensor(about["train_prior"]),  # type: ignore[arg-type]  # None in files of earlier versions
                about["parameters"],
                about["multiply_adds"],
                _tensor(about.get("source_prior")),
                read_calibration(about.get("calibration")),
                groups=load_array(folder / "groups.npy") if about.get("has_groups") else None,
                expert_weights=_tensor(about.get("expert_weights")),
                view_logits=load_array(folder / "view_logits.npy", mapped=True) if about.get("has_views") else None,
                experts_asked=load_array(folder / "experts_asked.npy") if about.get("has_router") else None,
                multiply_adds_of_all=about.get("multiply_adds_of_all"),
            )
        except UserError:
            raise
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"{folder / 'predictions.json'} lacks or garbles {error}; predict again") from error


def load_predictions(path: str | Path) -> Predictions:
    """Return predictions of this or any other program.

    Args:
        path: The folder of a run, a folder of `Predictions.save`, or a .npz with the arrays
            `logits` or `log_probabilities`, (samples, classes) or (samples, experts, classes);
            `targets`, (samples,); `class_counts` of the training set, (classes,); and, if wanted, `class_names` (text),
            `groups` (whole numbers or text, (samples,)), and either `lambdas`, (experts,), or `source_prior`,
            (classes,), the prior that the logits are made for, empty for logits that are no posterior. With neither,
            each lambda is 1: trained with plain cross-entropy.

    >>> import numpy, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     numpy.savez(f"{folder}/theirs.npz", logits=numpy.eye(2), targets=[0, 1], class_counts=[90, 10])
    ...     load_predictions(f"{folder}/theirs.npz").source_prior
    tensor([0.9000, 0.1000])
    """
    path = Path(path)
    for folder in (path, path / "predictions"):
        if (folder / "predictions.json").is_file():
            return Predictions.load(folder)
    if path.suffix != ".npz" or path.is_dir():
        raise UserError(
            f"there are no predictions in {path}; give the folder of a finished run, one of Predictions.save, or a .npz"
        )
    arrays = read_archive(path, ARRAYS)
    try:
        return Predictions(**prediction_arguments(arrays))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _listed(tensor: Tensor | None) -> Any:
    return None if tensor is None else tensor.tolist()


def _tensor(values: Any) -> Tensor | None:
    return None if values is None else torch.tensor(values)


def _for_file(logits: Tensor) -> Tensor:
    """Logits as they are saved: in half precision where they are very many."""
    return logits.half() if logits.numel() * 4 > HALF_PRECISION_ABOVE else logits.float()
