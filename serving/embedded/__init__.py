"""The built-in inference engine: one process, any Hugging Face causal LM, several LoRA adapters in one batch.

It speaks the dialect of vLLM's OpenAI server where Patina uses it, so that the two are interchangeable. Rules of this room:

* `sampling`, `detokenize`, `toolcalls`, `wire` and `prompts` are pure: values in, values out, no I/O, no clock, no thread.
* `cache`, `adapters`, `model` and `engine` hold the tensors. All of them are touched by one thread, the engine's.
* `app` is the only file that knows HTTP; it never touches a tensor. `__main__` is the command line.
* What the sampler drew is what is reported: ids and log-probabilities are never trimmed, padded or re-tokenised.
"""
