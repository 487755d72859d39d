"""Reading data sets: what a file is, which columns matter, and every row as it can be learnt.

file ──kinds──▶ format ──readers──▶ rows ──candidates──▶ canonical rows ──written──▶ two files
     └──parts──▶ each file in an archive,     ▲                │
                 unpacked, in UTF-8           │                └──lessons──▶ what sft learns of one
first rows ──shapes──▶ a mapping ──(a person)─┘

A mapping says which column plays which role, and which rows are kept. A canonical row (see `turns`)
is a conversation, a text, a preference or a judged answer.

Nothing here knows a table or a screen. Memory stays bounded whatever the file holds, and a row that
cannot be used is counted and told, never a crash.
"""
