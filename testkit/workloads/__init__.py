"""Clients that go on while something is done to the brokers, in processes of their own.

`workload` is plain records, `transactional_workload` transactions, both with a history that
`checking.checker` judges; `transactions`, `copier`, `streams` and `connect` prove exactly-once with
counts of their own; `administration` creates, deletes and moves meanwhile.
"""
