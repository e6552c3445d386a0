"""vLLM as the backend: in an environment of its own, started and kept by us, or one that runs already.

Rules: nothing here imports vllm (it lives in another environment and wants other versions of our libraries). What is decided
(`flags`, `facts`, `probe`, `colocate`) knows no process and no socket; `environment` and `__main__` start things, `engine` asks things.
"""
