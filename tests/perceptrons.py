"""Settings of quick fits of perceptrons."""

QUICK = {"learning_rate_init": 0.2, "batch_size": 16, "max_iter": 12, "random_state": 0}
