"""What is checked before every call: has the signature, the code or a weight changed?"""
