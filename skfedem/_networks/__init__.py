"""Parts of the federated networks: targets, tasks, runs, and methods of the fitted."""
