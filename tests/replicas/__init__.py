"""Two operator replicas for one job: the leader is killed, frozen or cut off (`make replicas`)."""
