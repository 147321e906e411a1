"""Long-tailed data: which samples, how they are augmented, and in which order they are seen."""

from balpoe.data.dataset import DATASETS, Dataset, Preprocessing, load_data, validation_data
from balpoe.data.loading.image_files import PictureFiles

__all__ = ["DATASETS", "Dataset", "PictureFiles", "Preprocessing", "load_data", "validation_data"]
