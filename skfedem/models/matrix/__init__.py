"""Low-rank matrices; ``low_rank`` is the model."""
