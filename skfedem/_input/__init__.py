"""What users give: tables, matrices, who has which row, weights; checked, and in one form."""
