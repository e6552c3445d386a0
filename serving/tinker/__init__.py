"""Tinker as the backend: model and versions are on a Tinker server, hosted or self-hosted, and are served here as an OpenAI API.

Rules: `version` and `model_names` import no SDK and open no socket. `tinker` is imported inside functions only, because it imports torch.
`service` is shared by serving and training.
"""
