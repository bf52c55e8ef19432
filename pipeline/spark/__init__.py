"""What every command needs of Spark's driver: a session, the JVM's Kafka admin client and its file
systems, and what travels to executors (shipping).
"""
