"""Anthropic's Messages API, translated to chat and back. Sans-IO."""
