"""Comparisons of methods: the demo, its figures and its report."""
