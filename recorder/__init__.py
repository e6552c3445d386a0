"""The recorder: reads the journal, links each exchange to its conversation, classifies it and writes rows. One for each home.

Without I/O: `canonical`, `classify`, `evidence`, `identifiers`, `linking`, `text_overlap`, `turns`.
With I/O: `journal_reader`, `turn_recorder`, `worker`, `__main__`.
"""
