"""Trains the starter: the weights in src/dualnet/weights that an encoder can begin with. README.md has the commands."""
