"""The jury: reads what followed a turn and says what it means. Verdict and hint, nothing else; litellm lives here.

    rules, reactions, lexicon    what can be told without a model          sans-IO
    parse, prompts, hints        what a judge is asked, and its answer     sans-IO
    judge, custom                ask a model; ask the user's own function
    registry, worker             settings -> jury; answered turns -> verdicts

The door to the rest of the house is the record: turns come from `Record.answered`, verdicts leave by `Record.add_verdict`.
"""
