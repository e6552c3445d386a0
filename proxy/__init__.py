"""The gateway between clients and a backend: forwards requests, appends every exchange to the journal, resolves the adapter alias.

It knows nothing about conversations: `recorder` links and classifies. No module imports torch or litellm.
"""
