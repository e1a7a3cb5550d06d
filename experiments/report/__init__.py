"""What a store says: rows, statistics, tables, figures, the finding."""
