"""The sides of bench/multi_turn_race.py."""
