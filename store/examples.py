"""Questions and reactions for a first conversation: what the start prints, the page offers and the demo asks.

Ordinary ones that a model of 135 million parameters answers sensibly. No question is in a set that learning is measured with.
"""

QUESTIONS = (
    "What does a heart do?",
    "Why is exercise good for me?",
    "What is a volcano?",
    "Why is the ocean salty?",
    "How do bees make honey?",
)
COMPLAINTS = ("Shorter, please.", "No lists, just plain sentences.", "Call me Captain.")
THANKS = "Thanks!"
#: Asked by the demo before and after a version, and never trained on.
HELD_OUT = (
    "What is an earthquake?",
    "What does a librarian do?",
    "What is a rainbow?",
    "What is a glacier?",
    "What does a kidney do?",
    "What is compost?",
)
