"""What all federated estimators share."""
