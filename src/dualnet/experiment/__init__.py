"""Experiments: options, the stream, the runner, run folders, and what is read from them."""
