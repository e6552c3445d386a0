"""The recipe of the reaction classifier: grammars of what people say (`phrases/`), a sampler and the training run."""
