"""The compiled engine: the rules of :mod:`kvsim.rules`, over flat memory."""
