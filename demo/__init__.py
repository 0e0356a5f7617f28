"""The demo: one TPUTrainingJob on a real cluster, hit twice, watched until it succeeds."""
