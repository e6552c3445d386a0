"""Does it learn? Simulated users send requests to a running Patina through its public API, and probes measure what changed.

Rules of this package:
- A system under test is seen as any client sees it: not its record, not its trainer.
- Predicates (`lab.models.styles`) measure; they are neither the policy nor the scorer.
- Users draw from `question_splits.USER_QUESTIONS` and probes from `question_splits.PROBE_QUESTIONS`: no question and no fact is in both.
"""
