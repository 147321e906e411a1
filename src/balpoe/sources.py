"""What a path of somebody's own holds, told without opening it."""

from pathlib import Path

__all__ = ["TABLES", "holds_features", "is_own"]

TABLES = (".csv", ".tsv", ".parquet")
ARRAYS = (".npz", ".npy")


def is_own(path: str | Path) -> bool:
    """Whether a path is a folder, or a file that pictures or features are described by."""
    path = Path(path)
    return path.is_dir() or (path.is_file() and path.suffix.lower() in (*TABLES, *ARRAYS))


def holds_features(path: str | Path) -> bool:
    """Whether it holds features rather than pictures: arrays, or a folder of them."""
    path = Path(path)
    if path.is_dir():  # beside folders of pictures an array is none of our business
        return any(path.glob("*.npy")) and not any(each.is_dir() for each in path.iterdir())
    return path.suffix.lower() in ARRAYS
