"""``python -m kvsim``: the command line.

Python has put the current folder first on its path, where any file might be taken for a package. It
is removed, unless kvsim itself lies there, as in a checkout.
"""

import os
import sys

HERE = os.getcwd()  # noqa: PTH109 - as Python's path has it
if sys.path[:1] == [HERE] and os.path.dirname(os.path.dirname(__file__)) != HERE:  # noqa: PTH120
    del sys.path[0]

from kvsim.cli import main  # noqa: E402 - once the folder is gone

if __name__ == "__main__":
    main()
