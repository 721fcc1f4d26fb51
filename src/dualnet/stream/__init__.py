"""The stream of an experiment: which labels are given, which examples form a step, and the batches."""
