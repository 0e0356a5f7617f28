"""Recovery side by side: this operator, JobSet alone, and Kubeflow Trainer, on one cluster."""
