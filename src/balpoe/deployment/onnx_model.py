"""A model of an ONNX file, run by ONNX Runtime, and used like any other."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from balpoe.data.dataset import Preprocessing
from balpoe.data.loading.image_files import Samples, raw_blocks
from balpoe.deployment.model import Model
from balpoe.deployment.onnx_file import INPUTS, OUTPUTS, read_onnx
from balpoe.deployment.onnx_memory import rows_at_once
from balpoe.errors import UserError
from balpoe.experiments.model_file import described

__all__ = ["OnnxModel", "OnnxNetwork", "load_onnx"]


class OnnxNetwork(nn.Module):
    """A session of ONNX Runtime in the place of a network; it normalises samples itself.

    Args:
        data: ONNX file.
        about: What is known of it.
        preprocessing: How samples are normalised in it.
        name: Name of the file, for messages.
        threads: Number of threads; 0: as many as there are cores.
    """

    def __init__(
        self, data: bytes, about: dict[str, Any], preprocessing: Preprocessing, name: str, threads: int = 0
    ) -> None:
        super().__init__()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 4
        try:
            self.session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # a file may fail in any of its operators' ways
            reason = str(error).strip().partition("\n")[0]
            raise UserError(f"ONNX Runtime cannot load {name} ({reason}); export it again") from error
        self.num_experts, self.num_classes = int(about["experts"]), len(about["class_names"])
        self.about, self.name, self.preprocessing = about, name, preprocessing
        self.input = INPUTS[len(preprocessing.size)]
        self.rows = rows_at_once(about["values_of_a_sample"])
        self.router = True if about.get("router") else None  # not one to call, but views cannot be averaged with it

    def forward(self, samples: Tensor) -> Tensor:
        """Return expert logits of normalised images, as any network does: views of images are made of those."""
        return self.expert_logits(self.preprocessing.pixels(samples))

    def expert_logits(self, samples: Tensor) -> Tensor:
        """Return expert logits of raw samples, so many at a time as the file leaves memory for."""
        return torch.cat([self.outputs(rows, names=OUTPUTS[2:])[0] for rows in samples.split(self.rows)])

    def outputs(self, samples: Tensor, log_prior: Any = None, names: Iterable[str] = OUTPUTS) -> list[Tensor]:
        """Return what the file says of raw samples.

        Args:
            samples: uint8 images, or features, of the model's size.
            log_prior: Log of the deployment prior, (classes,); None for the default in the metadata.
            names: Names of the outputs that are wanted.
        """
        wanted = torch.uint8 if self.input == "images" else torch.float32
        if samples.dtype != wanted and (wanted == torch.uint8 or not samples.is_floating_point()):
            raise UserError(f"{self.name} takes samples of {wanted}, but got {samples.dtype}")
        feed = {self.input: samples.to(wanted).contiguous().numpy()}
        default = self.about["log_prior"]
        if default is not None:
            feed["log_prior"] = np.asarray(default if log_prior is None else log_prior, dtype=np.float32)
        return [torch.from_numpy(each) for each in self.session.run(list(names), feed)]


@dataclass(frozen=True, eq=False)
class OnnxModel(Model):
    """A model whose experts run in ONNX Runtime; priors, calibration and decisions are those of every other model."""

    network: OnnxNetwork  # type: ignore[assignment]  # in the place of one of ours

    def logits_of_blocks(self, blocks: Iterable[Tensor]) -> Tensor:
        """Return expert logits, as the file gives them, of blocks of raw samples of the model's size."""
        return torch.cat([self.network.expert_logits(block) for block in blocks])

    def _logits_of(self, data: Samples) -> Tensor:
        return self.logits_of_blocks(raw_blocks(data, 64, self.recipe.workers))

    def costs(self, expert_logits: Tensor) -> dict[str, Any]:
        """Return what the file says of the network's size and work."""
        return {name: self.network.about[name] for name in ("parameters", "multiply_adds")}


def load_onnx(path: str | Path, threads: int = 0) -> OnnxModel:
    """Return the model of an ONNX file that `balpoe.export` wrote.

    Args:
        path: File.
        threads: Number of threads of ONNX Runtime; 0: as many as there are cores.
    """
    data, about = read_onnx(Path(path))
    return onnx_model(data, about, str(path), threads)


def onnx_model(data: bytes, about: dict[str, Any], name: str, threads: int = 0) -> OnnxModel:
    """Return the model of the bytes of such a file.

    Args:
        data: The file.
        about: What `read_onnx` knows of it.
        name: Its name, for messages.
        threads: Number of threads of ONNX Runtime.
    """
    try:
        default = about.get("default_prior")
        fields = {**described(about), "default_prior": None if default is None else torch.tensor(default)}
        _check_sizes(fields, about)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{name} does not describe a model of this version: {reason}; export it again") from error
    return OnnxModel(OnnxNetwork(data, about, fields["preprocessing"], name, threads), **fields)


def _check_sizes(fields: dict[str, Any], about: dict[str, Any]) -> None:
    """Raise an error if the metadata do not fit each other."""
    classes, experts, lambdas = len(fields["class_names"]), int(about["experts"]), fields["lambdas"]
    default, calibration = about["log_prior"], fields["calibration"]
    numbers = [
        each
        for each in (fields[name] for name in ("class_counts", "train_prior", "source_prior", "default_prior"))
        if each is not None
    ]
    prior = numbers[1:] + ([] if default is None else [torch.tensor(default).exp()])
    fitting = {
        "the number of classes": all(each.shape == (classes,) for each in (*numbers, *prior)),
        "a prior": all(bool(((each > 0) & (each <= 1 + 1e-6)).all()) for each in prior),
        "lambdas": lambdas is None or (len(lambdas) == experts and bool(lambdas.isfinite().all())),
        "the calibration": calibration is None or len(calibration.temperatures) == experts,
        "the class names": all(isinstance(name, str) for name in fields["class_names"]),
        "costs": all(isinstance(about[name], int) for name in ("parameters", "multiply_adds")),
    }
    for what, fits in fitting.items():
        if not fits:
            raise ValueError(f"{what} cannot be right")
