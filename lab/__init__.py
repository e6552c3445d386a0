"""The laboratory: benchmarks, simulated users and measurements, and the programs that train what Patina ships."""
