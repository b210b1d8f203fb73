"""Rules of routers: the choice of a replica, over the request and what a gateway sees."""
