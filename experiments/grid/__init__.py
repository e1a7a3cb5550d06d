"""What to run: configuration, models, data sets, and the plan of every run."""
