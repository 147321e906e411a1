"""A trained model of a run or of a file: `balpoe.load`."""

from pathlib import Path

from balpoe.deployment.model import Model
from balpoe.deployment.onnx_model import load_onnx
from balpoe.errors import UserError
from balpoe.experiments import model_file

__all__ = ["Model", "load"]


def load(path: str | Path, *, weights: str | Path = "", threads: int = 0) -> Model:
    """Return the model of a run, or of one file; the network is in float32, on the CPU, in evaluation mode.

    The model of an .onnx file that `balpoe.export` wrote runs in ONNX Runtime, and is used in the same way. Nothing in
    the file is executed; so .pt2 files are not read, which `torch.export.load` unpickles.

    Args:
        path: A model's file; the folder of a run, or its name below `runs`, of which the only seed is taken; or
            "latest" for the run that was finished last.
        weights: File of the backbone's weights, for a model that holds adapters alone; by default where they were in
            training, or beside the model.
        threads: Number of threads of ONNX Runtime, for an .onnx file; 0: as many as there are cores.

    >>> load("nowhere.safetensors")
    Traceback (most recent call last):
        ...
    balpoe.errors.UserError: there is no model nowhere.safetensors; give a run, or a .safetensors or .onnx file
    """
    file = model_file.model_path(path)
    if file.suffix == ".onnx":
        return load_onnx(file, threads)
    if file.suffix == ".pt2":
        raise UserError(
            f"{file} would be read by unpickling, which may run anything, and is not read here; take an .onnx file, "
            "or, if you trust it, torch.export.load"
        )
    run = file.parent if (file.parent / "recipe.toml").is_file() else None
    return Model(**vars(model_file.load(file, weights)), run=run)
