"""Who somebody is and what they may: TLS, SASL, access rules. The network knows faces only."""
