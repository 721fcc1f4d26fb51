"""Training of the starter, the pretrained encoder weights in src/dualnet/weights. README.md has the commands."""
