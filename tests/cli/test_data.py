import numpy as np
import pytest

from commands import sentence


def test_data_of_digits(run):
    code, out, _ = run("data", "digits-lt", "--imbalance-ratio", "10")
    assert code == 0
    assert "10 classes" in out
    assert "shot groups: " in out


@pytest.mark.parametrize(
    ("name", "flags", "text"),
    [
        ("x.npz", ["--imbalance-ratio", "3"], "--imbalance-ratio means nothing for your own data, which are taken as"),
        ("x.npz", ["--profile", "step"], "--profile means nothing for your own data"),
        ("x.npz", ["--data-root", "elsewhere"], "your own data are where you say, so that --data-root is one too many"),
        ("digits-lt", ["--test-fraction", "0.3"], "--test-fraction means nothing for digits-lt; leave it out"),
        ("imagenet-lt", ["--imbalance-ratio", "3"], "--imbalance-ratio means nothing for imagenet-lt; leave it out"),
    ],
)
def test_settings_that_the_data_do_not_have_are_refused(run, tmp_path, name, flags, text):
    np.savez(tmp_path / "x.npz", features=np.eye(8), labels=np.arange(8) % 2)
    code, out, err = run("data", name, *flags)
    assert (code, out) == (2, "")
    assert text in sentence(err)
    assert run("data", "x.npz", "--test-fraction", "0.3")[0] == 0


@pytest.mark.data
def test_data_of_cifar(run, cifar_root):
    code, out, _ = run("data", "cifar100-lt", "--data-root", cifar_root)
    assert code == 0
    assert "100 classes, 10,847 training samples (500 to 5 a class, imbalance ratio 100)" in out
    assert "shot groups: 35 many, 35 medium, 30 few" in out
