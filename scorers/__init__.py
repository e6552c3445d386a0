"""Scorers: a verdict and a hint for a turn from what followed it. Only this package uses litellm.

    rules, reactions, lexicon    verdicts without a model                  sans-IO
    wish_labels                  which style wishes a hint states          pure; wish_training makes its weights
    parse, prompts, hints        prompts of the judge, and its votes       sans-IO
    judge, custom                ask a model; ask the user's own function
    registry, worker             settings -> scorer chain; answered turns -> verdicts

Turns come from `Record.answered`; verdicts go to `Record.add_verdict`.
"""
