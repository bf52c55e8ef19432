"""What a person types: start, format, check-config, health, demo. Nothing imports these."""
