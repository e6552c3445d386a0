"""A small Tinker server of our own: real LoRA training and sampling of one Hugging Face model, over the wire of SDK 0.38.

For tests, and for trying Patina with `--backend tinker` where there is no other server. What it computes is what Tinker documents: losses
are sums over tokens and batch, positions with advantage 0 do not count, Adam is not clipped unless asked. Nothing of Patina is used in it, so
that both can be wrong only independently.
"""
