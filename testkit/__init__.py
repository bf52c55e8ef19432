"""What the project's own tests and benchmarks share; no part of what is installed.

| room | what is there |
|---|---|
| `brokers` | one node or a whole cluster as processes: Barnabas, Apache Kafka, or both in one |
| `clients` | the clients that tests drive, one module each, and bare sockets |
| `workloads` | clients that go on while something is done to brokers, and what they saw |
| `faults` | disks that fail; how many rounds of a fault |
| `checking` | verdicts: anomalies of histories, replicas byte for byte, what each node says |
| `delivery` | what users get: the wheel, the image, the documents' console blocks |

Beside the rooms: `wait`, `require`, `clock` and `ports` for every test, and the `jars` of Apache
Kafka.

Rooms know only those below them: workloads, then brokers, then checking, then clients. None imports
`wire`, `storage`, `replication` or `server`: a proof must not share the mistakes of what it proves.
Of `barnabas` they use what is public, as its users do.
"""
