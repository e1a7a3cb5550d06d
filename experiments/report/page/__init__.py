"""The report as one HTML page: finding, conditions, figures, tables, and the texts themselves."""
