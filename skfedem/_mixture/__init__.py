"""What the estimator of mixtures consists of, besides its parameters."""
