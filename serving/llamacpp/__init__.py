"""The llama.cpp engine: one process, one GGUF file, a LoRA adapter for each sequence. It imports neither torch nor the trainer.

It has the interface of the built-in engine (`serving.openai_server`). Rules:

* `library` is the only module that calls libllama; `sampling` and `kept_sequences` are pure.
* `gguf_adapter` writes a version's weights as GGUF, also for `run.py export`; the base model is the file that the trainer's folder was converted from.
* `batch_engine` owns the context. Only its thread uses it. Adapters are loaded outside of it, so a load pauses no reply.
* `llamacpp_engine` connects it to the OpenAI server; `__main__` is the command line.
"""
