"""Scorers: a verdict and a hint for a turn from what followed it. Only this package uses litellm.

    own_words, reactions         clauses; text of others; word patterns    sans-IO; the words are in `lexicon`
    evidence, features           what is known of a clause, as hashes      sans-IO
    classifier, combined, rules  its probabilities; verdict, wish, hint    pure but for reading the weights once
    parse, prompts, hints        prompts of the judge, and its votes       sans-IO
    judge, custom                ask a model; ask the user's own function
    registry, worker             settings -> scorer chain; answered turns -> verdicts

Turns come from `Record.answered`; verdicts go to `Record.add_verdict`.
"""
