"""Facts about TPUs that operator and trainer share: generations, topologies, hosts, chips."""
