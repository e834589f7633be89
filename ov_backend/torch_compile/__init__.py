"""The ``torch.compile`` backend: its options, and how it answers the calls of Dynamo's graphs."""
