"""SASL: PLAIN and SCRAM, as server and as client, and the frames they travel in."""
