def test_the_presets_and_one_of_them(run):
    code, out, _ = run("recipes")
    assert code == 0
    assert "cifar100-lt-long" in out
    assert "55.9" in out
    code, out, _ = run("recipes", "cifar100-lt", "--as-released")
    assert code == 0
    assert "cosine_scale = 30.0" in out
