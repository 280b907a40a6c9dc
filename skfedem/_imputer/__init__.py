"""What the imputer and its search consist of, besides their parameters."""
