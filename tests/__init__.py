"""What is shared by all tests. But for those of the door, nobody has to sign in."""

import os

# Before any settings are read, here or by a studio that a test starts.
os.environ.setdefault("STUDIO_SIGN_IN", "none")
