"""Long-tailed data: which samples, how they are augmented, and in which order they are seen."""
