"""The compiled engine: the very rules of :mod:`kvsim.rules`, over flat memory."""
