"""`format("barnabas")` as a sink that writes every row once: docs/pipeline.md, "sink".

    exactly_once  what a task does, step by step, and why that is once; knows no client and no Spark
    clients       the two client libraries it does it with
    writers       what Spark calls: options, columns, which slot of which batch

All three travel to executors by value.
"""
