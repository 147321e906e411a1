"""The training pass of `resnet32` in kernels of our own."""
