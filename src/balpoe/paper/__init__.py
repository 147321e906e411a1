"""What the paper measured, beside what we measured."""
