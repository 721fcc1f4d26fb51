"""`python -m dualnet` is the same as `dualnet`."""

import sys

from dualnet.cli import main

sys.exit(main())
