"""Parts of the estimator of population models."""
