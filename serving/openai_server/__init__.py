"""An OpenAI server with vLLM's extensions, for engines that only sample: routes, bodies, templates, tool calls, text.

The engine implements `engine.SamplingEngine`: the built-in one (`serving.embedded`) samples token by token, Tinker's returns whole samples. Rules:

* `detokenize`, `engine`, `token_text`, `toolcalls`, `values`, `schemas` and `prompts` are pure: no I/O, no clock, no thread.
* Only `app` handles HTTP; `serve` runs it as a process.
* Tokens are reported as sampled: ids and log-probabilities are never trimmed, padded or re-tokenised.
"""
