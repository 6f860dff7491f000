"""One file for each group of skills: each makes exchanges (a user turn and what follows) and whole
conversations."""
