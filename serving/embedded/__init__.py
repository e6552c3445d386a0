"""The built-in inference engine: one process, any Hugging Face causal LM, several LoRA adapters in one batch.

It speaks the dialect of vLLM's OpenAI server where Patina uses it (`serving.dialect`), so that the two are interchangeable. Rules of
this room:

* `sampling` is pure: tensors in, tensors out.
* `cache`, `adapters`, `model` and `engine` hold the tensors. All of them are touched by one thread, the engine's.
* `host` is what the dialect knows of it; `__main__` is the command line.
"""
