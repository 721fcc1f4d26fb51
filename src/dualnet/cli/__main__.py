"""`python -m dualnet.cli` is the same as `dualnet`."""

import sys

from dualnet.cli import main

sys.exit(main())
