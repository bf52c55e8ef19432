"""A broker's log directory as rows: what to read (plan), how (decode, crc), as Spark's data source
(source), and the command (segments). All but the last travel to executors by value.
"""
