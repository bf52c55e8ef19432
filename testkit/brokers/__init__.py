"""Brokers as processes on loopback, behind one face: `nodes` one by one, `clusters` of them."""
