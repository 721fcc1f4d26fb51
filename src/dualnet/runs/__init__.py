"""Runs: an experiment and its options, the runner, run folders, checkpoints, trained models."""
