"""``python -m data_tools.export``."""

import sys

from data_tools.export.command import main

if __name__ == "__main__":
    sys.exit(main())
