"""What pytest does not collect here: our kernels' file imports Triton, which some systems do not have."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("triton") else ["src/balpoe/networks/fused/kernels.py"]
