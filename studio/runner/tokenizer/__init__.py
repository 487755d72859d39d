"""The tokenizer service: previews of tokens and chat templates, in sandboxed children."""
