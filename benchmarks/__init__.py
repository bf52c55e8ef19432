"""Barnabas beside Apache Kafka 4.3.1: the same client, the same machine, one run; ratios.

`python -m benchmarks` (or `make bench`). Both brokers live through the whole run; each workload is
run on one, then on the other, in pairs, after a warm-up pair that is not counted. What counts is
the ratio of each pair: the machine's speed drifts, a pair sees the same weather.
"""
