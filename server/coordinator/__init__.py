"""Coordinators: replicated state machines over internal topics (groups, transactions).

`machine` and `deadlines` know each other: a machine has deadlines, and what a deadline leads to
is a decision of the machine.
"""
