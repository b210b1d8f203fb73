"""``python -m kvsim``: the command line.

``python -m`` puts the current folder first on Python's path, where a file could shadow an installed
package. The folder is removed from the path, unless kvsim itself lies there, as in a checkout.
"""

import os
import sys

HERE = os.getcwd()  # noqa: PTH109 - as Python's path has it
if sys.path[:1] == [HERE] and os.path.dirname(os.path.dirname(__file__)) != HERE:  # noqa: PTH120
    del sys.path[0]

from kvsim.cli import main  # noqa: E402 - once the folder is gone

if __name__ == "__main__":
    main()
