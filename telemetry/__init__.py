"""Metrics for Prometheus and spans for OpenTelemetry.

Names and units follow OpenTelemetry's semantic conventions for generative AI (1.38), as Prometheus writes them. No label holds text, a key or a
session. Nothing here runs on the path of a reply: the recorder observes what the journal holds.
"""
