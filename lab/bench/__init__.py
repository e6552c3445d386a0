"""Benchmarks and experiments: run by hand, results go to lab/research/."""
