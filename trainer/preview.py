"""A preview of a version before its canary release: the newest questions of a person, answered by it, by the live version and by the teacher.

The teacher is the base model that reads all wishes. Replies are greedy. Two things are made of them:

==========  =====================================================================================================================
unasked     how unlikely a version's replies are to the teacher, in nats a token. A version that learnt the wishes says what the teacher says;
            one that learnt to please (to ask back, flatter, refuse, hide an error, break off) says what nothing in the prompt asks for. It may be no less likely
            than what the teacher itself says by chance, question by question
complaints  share of the replies that the person would complain about, by a regression of the recorded verdicts on traits of the recorded replies
==========  =====================================================================================================================

Sampling and reading are done by the policy; everything else here is pure.
"""
