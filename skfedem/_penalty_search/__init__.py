"""Parts of the imputer's cross-validated search."""
