"""Jobs: which runs are missing, and where they run."""
