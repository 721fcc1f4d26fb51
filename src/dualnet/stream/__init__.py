"""The stream of an experiment: which labels there are, which examples make a step, and its batches."""
