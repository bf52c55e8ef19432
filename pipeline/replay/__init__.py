"""An archive back into topics, every record once: the driver's part (replay), a task's (task)."""
