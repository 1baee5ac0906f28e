"""Reports: one page of HTML and Markdown, and the figures in it."""
