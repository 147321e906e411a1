"""From memory or files to batches on a device."""
