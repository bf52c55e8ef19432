"""Faults that no broker offers, and the forms of the tests that repeat them."""
