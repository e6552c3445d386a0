"""The built-in inference engine: one process, any Hugging Face causal LM, several LoRA adapters in one batch.

It implements the parts of vLLM's OpenAI server that Patina uses (`serving.openai_server`), so that the two are interchangeable. Rules:

* `sampling` is pure: tensors in, tensors out.
* `kv_cache`, `adapters`, `model` and `batch_engine` hold the tensors. One thread, the engine's, uses them.
* `embedded_engine` connects it to the OpenAI server; `__main__` is the command line.
"""
