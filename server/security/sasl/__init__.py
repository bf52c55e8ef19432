"""SASL: PLAIN, SCRAM and OAUTHBEARER, as server and as client, and the frames they travel in."""
