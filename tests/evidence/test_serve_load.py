"""What docs/serve.md says of the server under load is what was recorded."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "results" / "serve_load.json").read_text())
PAGE = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("network", RECORD["rates"], ids=lambda network: network["network"])
def test_rates_and_waiting_times(network):
    for row in network["rows"]:
        times = f"{row['p50_ms']:,.0f} | {row['p99_ms']:,.0f}"
        rates = f"{row['images_per_second']:,.1f} | {100 * row['of_offline']:.0f} %"
        assert f"| {row['connections']} | {rates} | {times} |" in PAGE
        assert (set(row["statuses"]), row["cut"]) == ({"200"}, 0)
        assert row["p99_over_p50"] < 2  # the bar is 5
        if row["connections"] == 64 and network["network"] != "cifar":
            assert row["of_offline"] >= 0.8


def test_memory_and_answers():
    memory, answered = RECORD["memory"], RECORD["answered"]
    first, *_, last = memory["mebibytes"]
    assert f"from {first:.0f} to {last:.0f} MiB" in PAGE
    assert f"Over {memory['requests']:,} requests" in PAGE
    assert f"{answered['clients_that_left']} clients that left" in PAGE
    assert (answered["cut_beside_them"], answered["cut_by_the_stop"]) == (0, 0)


def test_the_other_processor():
    record = json.loads((ROOT / "results" / "serve_load_xeon.json").read_text())
    parts = {(each["network"], row["connections"]): row for each in record["rates"] for row in each["rows"]}
    light, many, large = (
        f"{100 * parts[key]['of_offline']:.0f} %" for key in (("lite0", 64), ("lite0", 256), ("resnet50", 64))
    )
    assert f"EfficientNet-Lite0 has {light} of offline at 64 connections, below the bar, and {many} at 256" in PAGE
    assert f"ResNet-50 has {large} at 64" in PAGE
    memory, answered = record["memory"], record["answered"]
    first, *_, last = memory["mebibytes"]
    assert f"memory went from {first:.0f} to {last:.0f} MiB over as many requests, and again none was cut" in PAGE
    assert memory["requests"] == RECORD["memory"]["requests"]
    assert (answered["cut_beside_them"], answered["cut_by_the_stop"], answered["exit_code"]) == (0, 0, 0)
    assert {row["cut"] for row in parts.values()} == {0}
