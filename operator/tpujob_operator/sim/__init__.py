"""A job in simulated time: the real coordinator, ledger and interval policy, and made-up faults."""
