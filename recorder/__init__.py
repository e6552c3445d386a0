"""The recorder: reads the journal, links each exchange to its conversation, classifies it and writes rows. One for each home.

Without I/O: `canonical`, `finders`, `kinds`, `linking`, `text_overlap`, `turn_index`, `turns`.
With I/O: `journal_reader`, `turn_recorder`, `worker`, `__main__`.
"""
