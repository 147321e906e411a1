"""The command line with parts of 64 images; it may be killed in the middle of a part, and lists the parts it writes."""

import functools
import os
import signal

from balpoe.cli import main as command_line
from balpoe.cli import predict_parts, predict_processes

ROWS = 64


def main(arguments):
    """Run a command; PARTS_BEFORE_DEATH parts are written, and half of the next one."""
    left, log = int(os.environ.get("PARTS_BEFORE_DEATH", "1000")), os.environ["PARTS_WRITTEN"]
    written = []
    write_file = predict_parts.write_file

    def logged(path, write):
        if path.name.startswith("part-"):
            if len(written) == left:
                write_file(path, lambda stream: (stream.write(b'{"rows": 64'), stream.flush(), _die()))
            written.append(path.name)
            with open(log, "a") as file:
                file.write(f"{path.name}\n")
        write_file(path, write)

    predict_parts.write_file = logged
    predict_processes.Parts = functools.partial(predict_parts.Parts, rows=ROWS)
    return command_line.main(arguments)


def _die():
    os.kill(os.getpid(), signal.SIGKILL)
