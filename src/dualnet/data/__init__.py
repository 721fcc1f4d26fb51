"""Benchmarks, and the one door for images. Importing it loads no PyTorch, for the processes that decode."""
