"""What is compiled before it is called, and what earlier runs tell about that."""
