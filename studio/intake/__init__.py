"""Dataset import: detect a file's format and columns, and convert its rows for training.

file ──files──▶ format ──readers──▶ rows ──row_formats──▶ canonical rows ──rows──▶ two files
     └──archives──▶ each file in an archive,  ▲                │
                    unpacked, in UTF-8        │                └──▶ an SFT example
first rows ──detection──▶ a mapping ──(user)──┘

A mapping says which column plays which role, and which rows to keep. A canonical row (see
`row_formats.schema`) is a conversation, a text, a preference or a rated answer.

Nothing here imports the database or the web. Memory stays bounded whatever the file holds. A row
that cannot be used is counted and reported; it never crashes the import.
"""
