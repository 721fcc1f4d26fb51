"""Experiments: their options, the training loop, and the folder of a run."""
