"""Tinker as the backend: the model and its versions are on a Tinker server, hosted or one's own; here they speak OpenAI's dialect.

Rules: `version` and `names` know no SDK and no socket. `tinker` itself is imported inside functions only: it brings torch along, and the
rest of the house has no need of it. `service` is what serving and training share about the connection.
"""
