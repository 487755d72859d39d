"""Reading data sets: what a file is, which columns matter, and every row as a conversation.

file ──kinds──▶ format ──readers──▶ rows ──shapes──▶ roles of columns ──turns──▶ conversations

Nothing here knows a table or a screen. Memory stays bounded whatever the file holds, and a row that
cannot be used is counted and told, never a crash.
"""
