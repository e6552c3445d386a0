"""Benchmarks and experiments: run by hand, numbers go to docs/log.md."""
