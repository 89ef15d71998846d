"""Run the command line: `python -m whet_audit` is `whet-audit`."""

import sys

from whet_audit.cli import main

sys.exit(main())
