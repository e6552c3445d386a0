"""The trainer's weights on another machine: what travels, the worker there, and the version trainer here."""
