"""Rules of KV-cache managers other than the paged one: contiguous, virtual, forked, tiered."""
