"""The OpenAI dialect as vLLM speaks it, served for an engine that only has to sample: routes, bodies, templates, tool calls, text.

The engine is behind `engine.Engine`: the built-in one (`serving.embedded`) draws token by token, Tinker's brings whole samples. Rules:

* `detokenize`, `engine`, `text`, `toolcalls`, `values`, `wire` and `prompts` are pure: values in, values out, no I/O, no clock, no thread.
* `app` is the only file that knows HTTP; `serve` runs it as a process.
* What the sampler drew is what is reported: ids and log-probabilities are never trimmed, padded or re-tokenised.
"""
