"""Facts about TPUs: generations, topologies, hosts, labels."""
