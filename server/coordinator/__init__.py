"""Coordinators: replicated state machines over internal topics (groups now, transactions later)."""
