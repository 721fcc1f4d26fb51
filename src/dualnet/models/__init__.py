"""Models: predictions, sessions of `dualnet learn`, saving and export."""
