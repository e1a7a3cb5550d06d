"""Running a plan: what the store lacks is decoded."""
