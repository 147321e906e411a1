from commands import sentence


def test_get_and_list(run, tmp_path, monkeypatch):
    import timm

    monkeypatch.setenv("BALPOE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "balpoe.networks.weight_files.pretrained_model", lambda name: timm.create_model(name.partition(".")[0])
    )
    code, out, _ = run("weights", "list")
    assert code == 0
    assert out.startswith("balpoe weights get NAME fetches more")
    code, out, _ = run("weights", "get", "test_resnet")
    assert code == 0
    path = tmp_path / "cache" / "weights" / "test_resnet.r160_in1k.safetensors"
    assert out.startswith(f"{path}: 1.")
    assert run("weights", "list")[1].startswith("test_resnet.r160_in1k ")
    assert "vit_small_patch14_dinov2.lvd142m" in run("weights", "list", "vit_small*")[1].splitlines()
    for wrong, expected in (
        (["get"], "wants a name"),
        (["get", "resnet181"], "unknown network"),
        (["got"], "'get', 'list'"),
    ):
        code, _, err = run("weights", *wrong)
        assert code == 2
        assert expected in sentence(err)
