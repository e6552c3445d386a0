"""Does it learn? Simulated users talk to a running Patina through its public API, and probes measure what changed.

Rules of the room:
- Nothing here touches the record or the trainer of a house under test: it sees what any client sees.
- Who judges (`models.styles` predicates) is neither the policy nor the scorer.
- What is measured was never asked: users draw from `pools.ASKED`, probes from `pools.PROBES`, and not even a fact is in both.
"""
