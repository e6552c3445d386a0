"""Questions and reactions for a first conversation: what the start prints, the page offers and the demo asks.

Ordinary ones that a model of 135 million parameters answers sensibly. None is in a set that learning is measured with.
"""

QUESTIONS = (
    "Why is the sky blue?",
    "Why do cats purr?",
    "What is the difference between a lake and a pond?",
    "How can I fall asleep faster?",
    "Why does bread rise?",
)
COMPLAINTS = ("Shorter, please.", "No lists, just plain sentences.", "Call me Captain.")
THANKS = "Thanks!"
