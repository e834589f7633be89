"""``python -m ov_backend COMMAND``; see :mod:`ov_backend.cli.main`."""

import sys

from ov_backend.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
