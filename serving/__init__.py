"""Backends that serve the policy and load adapter versions."""
