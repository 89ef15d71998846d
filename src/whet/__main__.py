"""Run whet's command line: `python -m whet` does what `whet` does."""

from whet.cli import main

main()
