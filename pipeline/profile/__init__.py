"""What is in a topic: measured by Spark (topic_profile), judged (odd), shown (text, page)."""
