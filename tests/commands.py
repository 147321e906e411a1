"""A quick training from the command line, and the sentence that a mistake prints."""

QUICK = ["train", "digits-lt", "--epochs", "2", "--width", "8", "--threads", "1"]


def sentence(err):
    """The one line that a mistake prints."""
    lines = [line for line in err.splitlines() if line.startswith("balpoe: ")]
    assert len(lines) == 1, err
    assert "Traceback" not in err
    return lines[0]
