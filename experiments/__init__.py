"""Experiments with `attention` and `lil`: grids of runs, their store, reports, the command."""
