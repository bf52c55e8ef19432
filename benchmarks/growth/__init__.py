"""`python -m benchmarks.growth`: what a request costs when there is more of everything."""
