"""The trainer: verdicts -> advantages -> samples -> step -> adapter version -> gate -> publish. torch lives here."""
