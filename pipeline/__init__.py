"""PySpark jobs around any Kafka-compatible broker: archive, replay, segments, profile.

For the data engineer who wants topics in a lake and back, exactly once, with one command, on a
laptop or on a Spark cluster. A black-box client: it imports none of `server` and `replication`, and
knows the broker only by the Kafka protocol and by the files of its log directory.

    cli        the flags of `barnabas pipeline ...`; PySpark is imported when a command runs
    session    Spark with its Kafka connector; problems become one line and the next step (errors)
    archive    Kafka -> Parquet, exactly once (archive_log: which files count; compaction)
    replay     Parquet -> Kafka with keys, headers, timestamps (replay_rows: what executors run)
    segments   a broker's log directory as a DataFrame (segment_plan, segment_decode,
               segment_source: what executors run)
    data_source  format("barnabas") for a user's own jobs: it reads with segment_source and writes
               with the room sink, every row once
    topic_profile  counts, rates, keys, sizes, gaps (profile_html: the page)

Nothing is distributed to executors by hand: what runs there imports only NumPy and PyArrow, which a
Spark executor has for Arrow anyway, and travels inside the job, pickled by value (`shipping`). It
claims no module name there, and no broker package need be installed. The sink needs a Kafka client:
the executors' own, or a file that travels too (`data_source.carry_client`).
These modules import each other relatively: `barnabas.register_source(spark)` loads them in a user's
own process as `barnabas._app.pipeline`, where the name `pipeline` may be the user's.
"""
