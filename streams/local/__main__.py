"""The supervisor in the background: `python -m streams.local SPEC`."""

import sys

from streams.local.supervisor import main

sys.exit(main())
