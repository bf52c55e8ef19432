"""PySpark jobs around any Kafka-compatible broker: archive, replay, segments, profile.

For the data engineer who wants topics in a lake and back, exactly once, with one command, on a
laptop or on a Spark cluster. A black-box client: it imports none of `server` and `replication`, and
knows the broker only by the Kafka protocol and by the files of its log directory.

    cli        the flags of `barnabas pipeline ...`; PySpark is imported when a command runs
    archive    Kafka -> Parquet, exactly once: which files count, what is next, compaction
    replay     Parquet -> Kafka with keys, headers, timestamps
    segments   a broker's log directory as a DataFrame
    profile    counts, rates, keys, sizes, gaps of a topic; a page of them
    sink       writes rows once, into transactions; replay and Spark's writers use it
    spark      Spark with its Kafka connector, Kafka's admin client, file systems, what travels
    data_source  format("barnabas") for a user's own jobs: it reads with segments.source and writes
               with the room sink, every row once
    errors     problems become one line and the next step

Nothing is distributed to executors by hand: what runs there imports only NumPy and PyArrow, which a
Spark executor has for Arrow anyway, and travels inside the job, pickled by value
(`spark.shipping`). It claims no module name there, and no broker package need be installed. The
sink needs a Kafka client: the executors' own, or a file that travels too
(`data_source.carry_client`).
These modules import each other relatively: `barnabas.register_source(spark)` loads them in a user's
own process as `barnabas._app.pipeline`, where the name `pipeline` may be the user's.
"""
