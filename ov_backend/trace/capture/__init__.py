"""A module and one call of it become one ATen graph whose weights are placeholders."""
