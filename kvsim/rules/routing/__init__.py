"""Rules of routers: the choice of a replica, by the request and the gateway's view of replicas."""
