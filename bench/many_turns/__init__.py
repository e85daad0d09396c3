"""The parts of bench/multi_turn.py, some of which bench/multi_turn_race.py shares."""
