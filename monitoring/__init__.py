"""What Prometheus and Grafana need, generated from one source by ``make gen``."""
