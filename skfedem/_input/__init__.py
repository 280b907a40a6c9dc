"""What users give: tables, matrices, who has which row, and weights; checked, and made one."""
