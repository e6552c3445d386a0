"""The recorder: relay, capture, session linking, turn classification, adapter alias. Light: no torch, no litellm.

Sans-IO: `wire`, `sse`, `canonical`, `words`, `classify`, `linking`. I/O: `relay`, `recorder`, `adapters`, `app`, `__main__`.
"""
