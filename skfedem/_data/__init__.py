"""Validation of user input: tables, matrices, client labels and weights."""
