"""`python -m pipesim` is the command line."""

from pipesim.cli import main

main()
