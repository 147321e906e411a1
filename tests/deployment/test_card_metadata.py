"""The YAML that we write is read back by the Hub's own reader."""

import tempfile
from pathlib import Path

from huggingface_hub import metadata_load
from hypothesis import given, settings
from hypothesis import strategies as st

from balpoe.deployment.card_metadata import card_metadata, yaml_lines

WORDS = st.text(st.characters(codec="utf-8"), max_size=20)


def read(value):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "README.md")
        path.write_text("\n".join(["---", *yaml_lines(value), "---", "", "# text"]), encoding="utf-8")
        return metadata_load(path)


@settings(max_examples=40, deadline=None)
@given(name=WORDS, data=WORDS, value=st.floats(0, 1))
def test_any_name_is_read_as_it_was_written(name, data, value):
    metadata = card_metadata(name, "image-classification", data, {"accuracy": ("share", value)})
    (result,) = read(metadata)["model-index"][0]["results"]
    printable = "".join(each if each.isprintable() else "?" for each in data)
    assert result["dataset"] == {"type": printable, "name": printable}
    assert result["metrics"][0]["value"] == round(value, 4)


def test_nothing_measured_has_no_index():
    metadata = card_metadata("trees", "tabular-classification", "photos", {}, license="mit")
    assert read(metadata) == metadata
    assert "model-index" not in metadata
