"""Parts of the federated perceptrons: targets, tasks, runs, and methods of the fitted."""
