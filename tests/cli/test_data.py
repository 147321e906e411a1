import pytest


def test_data_of_digits(run):
    code, out, _ = run("data", "digits-lt", "--imbalance-ratio", "10")
    assert code == 0
    assert "10 classes" in out
    assert "shot groups: " in out


@pytest.mark.data
def test_data_of_cifar(run, cifar_root):
    code, out, _ = run("data", "cifar100-lt", "--data-root", cifar_root)
    assert code == 0
    assert "100 classes, 10,847 training samples (500 to 5 a class, imbalance ratio 100)" in out
    assert "shot groups: 35 many, 35 medium, 30 few" in out
