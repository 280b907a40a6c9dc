"""Parts of the imputer, besides its parameters."""
