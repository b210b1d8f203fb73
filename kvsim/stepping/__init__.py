"""An engine to step by hand: requests one by one, over one replica and a trace that grows."""
