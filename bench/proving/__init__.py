"""The parts of bench/proof.py: what is run, running it, and what is made of it."""
