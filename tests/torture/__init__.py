"""A campaign of faults: kills, mutated inputs, full disks, little memory, two processes on one folder.

`python -m tests.torture` runs it (`make torture`) and prints a table; `test_torture.py` runs a small one.
Everything about a trial is drawn from its identity, so that one command repeats it, and each is written down
when it is done, so that an interrupted campaign goes on where it was.

    processes.py  starts commands: real processes, or children forked after all imports; kills and judges them
    jobs.py       the commands that are tortured, and what a person does after a fault
    prints.py     what a folder holds, bit for bit, without clocks and machine
    scene.py      the small world in which a job happens, and how it should have ended
    faults.py     the campaigns of kills, full disks, capped memory and pairs
    inputs.py     the files that are mutated, and the commands that read them
    mutants.py    mutants from hypothesis
    fuzzing.py    one process of mutants, from hypothesis or the coverage-guided fuzzer, and who watches it
    record.py     the log, and the table
"""
