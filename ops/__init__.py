"""What operators use: metrics, dashboards, rules, service files, a Kafka for development."""
