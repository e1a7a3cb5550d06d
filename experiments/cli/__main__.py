"""`python -m experiments.cli`: the command `lil` where it is not on the path."""

from experiments.cli import main

raise SystemExit(main())
