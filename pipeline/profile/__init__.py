"""What is in a topic: measured by Spark (topic_profile), shown as a page (page)."""
