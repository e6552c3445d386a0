"""vLLM as the backend: in an environment of its own, started and supervised here, or already running.

Rules: nothing here imports vllm (it lives in another environment with other library versions). The decisions (`flags`, `model_facts`,
`capability_probe`, `memory_plan`, `gpu_arbiter`) use no process and no socket; `environment` and `__main__` start processes, `engine` queries vLLM.
"""
