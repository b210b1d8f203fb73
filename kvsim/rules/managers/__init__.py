"""Rules of KV-cache managers without a block pool."""
