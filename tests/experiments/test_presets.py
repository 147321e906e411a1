"""The presets against the paper and the released code, through the table that docs/recipes.md prints."""

import json
from pathlib import Path

import pytest

from balpoe import UserError
from balpoe.experiments.presets import PRESETS, preset, read_recipe
from balpoe.experiments.recipe import FIELDS, MACHINE_FIELDS, recipe_toml

DOCUMENT = Path(__file__).parents[2] / "docs" / "recipes.md"


def rows():
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    start = lines.index("| preset | field | paper | released code | preset | `--as-released` |") + 2
    table = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return table


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]}:{row[1]}")
def test_each_documented_value(row):
    name, field, _, _, ours, released = row
    for as_released, text in ((False, ours), (True, released)):
        recipe = preset(name, as_released)
        value = recipe.expert_lambdas if field == "lambdas" else getattr(recipe, field)
        value = list(value) if isinstance(value, tuple) else value
        assert value == json.loads(text), (field, as_released)


def test_the_table_covers_every_setting_of_the_main_preset():
    documented = {row[1] for row in rows() if row[0] == "cifar100-lt"}
    left_out = {"num_experts", "smoothing", "seed"}  # said by lambdas; off; not a choice
    left_out |= {
        "data_version",
        "test_fraction",
        "group",
        "skip_unreadable",
        "image_size",
        "weights_version",
    }  # of pictures in files
    left_out |= {"tune", "adapter", "adapter_size", "adapter_split", "head_start"}  # of pretrained backbones
    left_out |= {"drop_path", "gradient_checkpointing"}  # of models of timm
    # Off: the paper's models are as trained.
    left_out |= {"calibrate", "temperature", "held_out", "choose_mixup", "choose_lr"}
    assert documented | left_out == set(FIELDS) - MACHINE_FIELDS


def test_variants_differ_from_their_base_only_where_the_table_says():
    for name in PRESETS:
        base, _, kind = name.rpartition("-")
        if base not in PRESETS or kind in ("features", "adapters", "full"):
            continue
        documented = {row[1] for row in rows() if row[0] == name}
        for as_released in (False, True):
            ours, theirs = preset(name, as_released), preset(base, as_released)
            changed = {field for field in FIELDS if getattr(ours, field) != getattr(theirs, field)}
            assert changed <= documented, name


def test_numbers_of_the_paper_in_the_summaries():
    """The paper's Table 1 (CIFAR-100-LT) and its supplement's table of CIFAR-10-LT, ratio 100."""
    numbers = {
        "cifar100-lt": "52.0",
        "cifar100-lt-strong": "54.7",
        "cifar100-lt-long": "55.9",
        "cifar10-lt": "84.2",
        "cifar10-lt-long": "86.8",
        "imagenet-lt-resnet50": "58.5",
        "imagenet-lt-resnet50-long": "60.8",
        "imagenet-lt-resnext50": "59.8",
        "imagenet-lt-resnext50-long": "62.0",
        "inaturalist-resnet50": "75.0",
        "inaturalist-resnet50-long": "76.9",
    }
    for name, number in numbers.items():
        assert number in PRESETS[name].__doc__
        assert number in DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PRESETS)
def test_printed_and_read_back(name, tmp_path):
    for comments in (False, True):
        path = tmp_path / "mine.toml"
        path.write_text(recipe_toml(preset(name), comments=comments), encoding="utf-8")
        assert read_recipe(path).identity() == preset(name).identity()


def test_a_file_may_start_from_a_preset(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('preset = "cifar10-lt-long"\nepochs = 20\nwidth = 8\n')
    recipe = read_recipe(path)
    assert (recipe.dataset, recipe.mixup_alpha, recipe.epochs, recipe.width) == ("cifar10-lt", 0.8, 20, (8,))
    assert read_recipe(path, as_released=True).augmentation == "crop-flip"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("epochs = ", "not valid TOML"),
        ("epoch = 3", "unknown field 'epoch'; did you mean 'epochs'"),
        ('preset = "cifar"', "unknown recipe 'cifar'"),
        ('epochs = "many"', "epochs must be a whole number, but is 'many'"),
        ("lr = nan", "lr must be a finite number"),
    ],
)
def test_wrong_files_are_named(tmp_path, text, sentence):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=f"mine.toml: .*{sentence}"):
        read_recipe(path)
