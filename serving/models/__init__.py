"""Where the model comes from: `--model-name` becomes a folder that every process reads, and the GGUF file it was made from.

`source.resolve_model` is the entrance. Nothing here imports torch but `convert`, which runs as a process of its own.
"""
