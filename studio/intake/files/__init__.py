"""Files as they were uploaded.

Format, compression, archives, encoding, and what reading one may cost.
"""
