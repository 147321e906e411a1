"""The report's part on decisions: answers that may be none, costs, prediction sets and a tree of labels."""
