"""``make sweep``: lives of jobs under one fault each, compared with lives without any."""
