"""Effects: informer, queue, client, metrics."""
