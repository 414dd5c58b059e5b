"""Several machines on this one: network namespaces on a bridge, a Ray node in each, stores in another."""
