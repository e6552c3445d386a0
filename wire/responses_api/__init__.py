"""The Responses API, translated to chat and back. Sans-IO."""
