"""An engine to step by hand: one replica, and requests that are added one by one."""
