"""The load generators, each run in a process of its own: `python -m benchmarks.loads JSON`.

The clients are public ones: librdkafka (through confluent-kafka and kcat), Apache Kafka's own
performance tools, kafka-python, aiokafka and Spark. A load is a function of a `Place` (where the
broker is, or where to start one) and its arguments; it answers figures. Every load checks that what
it sent arrived: a fast wrong answer is no figure.

    rdkafka         producers, kcat consumers, ping-pong
    pacing          fixed rates, latency from the intended send time
    java            ProducerPerformance, ConsumerPerformance, EndToEndLatency
    transactions    of the Java client and librdkafka: producers, copies, aborts, a dead coordinator
    python_clients  kafka-python and aiokafka
    groups          many group members
    lifetime        cold start, many partitions, crash recovery: these start brokers of their own
    suite           a test suite with a fresh broker for each test
    spark           Spark's Kafka sink and source
"""
