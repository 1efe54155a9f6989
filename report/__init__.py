"""report.html: what happened in a run, on one page. The only room that uses jinja2 and pygal."""
