"""The truth calculator on logs written by hand."""
from account import CAUSES, Account
from log import Did, Mark, Phase

TRAINER, WORKER = (10, 10), (20, 20)


def marks(*rows):
    """Rows of (time, run delay, did, value)."""
    return [Mark(time, delay, value[0] if value else 0, did, Phase.TRAINING) for time, delay, did, *value in rows]


def job(worker_rows, trainer_rows):
    return Account({TRAINER: marks(*trainer_rows), WORKER: marks(*worker_rows)})


def seen(account, start, end, pid=10):
    causes = account.causes(pid, start, end)
    assert sum(causes.values()) == end - start
    assert set(causes) == set(CAUSES)
    return {cause: ns for cause, ns in causes.items() if ns}


def test_a_sleep_for_a_helper_counts_by_what_that_does():
    trainer = [(0, 0, Did.BEGIN), (100, 0, Did.ENTER), (200, 0, Did.EXIT, 1), (300, 10, Did.COMPUTE), (400, 25, Did.HELPED, 11),
               (410, 25, Did.ENTER), (410, 25, Did.EXIT, 2)]  # fmt: skip
    worker = [(0, 0, Did.BEGIN), (150, 0, Did.READY, 1), (160, 0, Did.READY, 2)]
    helper = [(0, 0, Did.BEGIN), (340, 30, Did.IDLE), (380, 40, Did.COMPUTE)]
    account = Account({TRAINER: marks(*trainer), WORKER: marks(*worker), (10, 11): marks(*helper)})
    # Preempted: its own 10, the helper's 30 and 10, and 15 after its wake-up.
    assert seen(account, 200, 410) == {"compute": 90 + 30 + 5 + 10, "preempted": 10 + 30 + 10 + 15, "unknown": 10}


TWO_STEPS = [
    (0, 0, Did.BEGIN),
    (100, 0, Did.ENTER),
    (200, 0, Did.EXIT, 1),
    (300, 10, Did.COMPUTE),
    (310, 10, Did.ENTER),
    (500, 10, Did.EXIT, 2),
]


def test_a_wait_is_cut_where_the_producer_changed():
    worker = [
        (0, 0, Did.BEGIN),
        (150, 0, Did.READY, 1),
        (320, 0, Did.IDLE),
        (400, 20, Did.FETCH),
        (450, 20, Did.PREP),
        (460, 20, Did.READY, 2),
    ]
    got = seen(job(worker, TWO_STEPS), 200, 500)
    assert got == {
        "compute": 100,
        "preempted": 10,
        "fetch": 60,
        "starved": 20,
        "prep": 50,
        # 310 to 320 the worker was idle, 450 to 500 the batch was on its way.
        "transfer": 60,
    }


def test_a_batch_that_was_ready_costs_only_its_way():
    worker = [(0, 0, Did.BEGIN), (150, 0, Did.READY, 1), (200, 0, Did.FETCH), (250, 0, Did.READY, 2)]
    assert seen(job(worker, TWO_STEPS), 200, 500) == {"compute": 100, "preempted": 10, "transfer": 190}


def on_its_way(feeder, trainer_delays, sharer, worker_delay=0):
    """A batch that is ready at 310, when it is awaited, and is sent at 400; its descriptor is asked for from 452 to 485. The
    causes until it is there at 500."""
    arrived, received = trainer_delays
    trainer = [
        *TWO_STEPS[:5],
        (450, 10 + arrived, Did.ARRIVED, 2),
        (452, 10 + arrived, Did.ASKING),
        (485, 10 + arrived + received, Did.HANDED),
        (490, 10 + arrived + received, Did.RECEIVED, 2),
    ]
    worker = [(0, 0, Did.BEGIN), (150, 0, Did.READY, 1), (310, 0, Did.READY, 2), (510, worker_delay, Did.PREP)]
    threads = {
        (20, 21): [Mark(0, 0, 0, Did.BEGIN, 0), *feeder],
        (20, 22): [Mark(0, 0, 0, Did.BEGIN, 0), *sharer],
        TRAINER: marks(*trainer, (500, 10 + arrived + received, Did.EXIT, 2)),
        WORKER: marks(*worker),
    }
    return seen(Account(threads), 310, 500)


def test_who_carries_a_batch_without_a_cpu_starves_the_trainer():
    feeder = [Mark(380, 60, 2, Did.TAKEN, 0, 10), Mark(400, 60, 2, Did.SENT, 0, 30)]
    sharer = [Mark(470, 12, 0, Did.SERVING, 0), Mark(480, 12, 0, Did.SERVED, 0)]
    # The feeder 60, the trainer 20 and 8, the sharer 12.
    assert on_its_way(feeder, (20, 8), sharer) == {"starved": 100, "transfer": 90}


def test_who_waits_for_the_lock_of_a_thread_without_a_cpu_is_starved_too():
    feeder = [Mark(380, 0, 2, Did.TAKEN, 0, 0), Mark(400, 0, 2, Did.SENT, 0, 20)]
    # Of 90 up to its sending the feeder ran for 20 and waited for 70; the worker's main thread had no CPU for 45 of them,
    # and for 16 of the 33 in which a descriptor was waited for.
    got = on_its_way(feeder, (0, 0), [Mark(600, 0, 0, Did.SERVED, 0, 0)], worker_delay=100)
    assert got == {"starved": 45 + 16, "transfer": 129}


def test_a_sharer_without_a_cpu_holds_up_nobody_who_does_not_sleep_for_it():
    feeder = [Mark(380, 0, 2, Did.TAKEN, 0, 10), Mark(400, 0, 2, Did.SENT, 0, 30)]
    # It has handed over its descriptor at 485, and loses its CPU before it is done with the call.
    sharer = [Mark(470, 0, 0, Did.SERVING, 0), Mark(485, 0, 0, Did.SERVED, 0), Mark(500, 12, 0, Did.SERVING, 0)]
    assert on_its_way(feeder, (0, 0), sharer) == {"transfer": 190}


def test_any_window_adds_up():
    worker = [(0, 0, Did.BEGIN), (150, 0, Did.READY, 1), (420, 33, Did.FETCH), (460, 33, Did.READY, 2)]
    account = job(worker, TWO_STEPS)
    for start in range(0, 500, 7):
        for end in range(start, 620, 11):
            seen(account, start, end)


def test_windows_that_touch_add_up_to_the_whole():
    worker = [(0, 0, Did.BEGIN), (150, 0, Did.READY, 1), (420, 0, Did.FETCH), (460, 0, Did.READY, 2)]
    account = job(worker, TWO_STEPS)
    whole = account.causes(10, 120, 500)
    parts = account.causes(10, 120, 333) + account.causes(10, 333, 500)
    assert +whole == +parts


def test_a_woken_thread_waits_for_its_cpu_at_the_end_of_its_idleness():
    worker = [
        (0, 0, Did.BEGIN),
        (150, 0, Did.READY, 1),
        (400, 40, Did.IDLE),
        (450, 40, Did.FETCH),
        (460, 40, Did.READY, 2),
    ]
    got = seen(job(worker, TWO_STEPS), 310, 400)
    assert got == {"starved": 40, "transfer": 50}


def test_without_workers_the_trainer_is_the_producer():
    trainer = [
        (0, 0, Did.BEGIN),
        (10, 0, Did.ENTER),
        (20, 0, Did.READY, 1),
        (30, 0, Did.EXIT, 1),
        (130, 0, Did.COMPUTE),
        (131, 0, Did.ENTER),
        (135, 0, Did.IDLE),
        (235, 5, Did.FETCH),
        (335, 5, Did.PREP),
        (336, 5, Did.READY, 2),
        (340, 5, Did.EXIT, 2),
    ]
    got = seen(Account({TRAINER: marks(*trainer)}), 30, 340)
    assert got == {"compute": 101, "fetch": 95, "starved": 5, "prep": 100, "transfer": 9}


def test_the_trainers_own_part_goes_by_what_it_says_it_did():
    trainer = [
        (0, 0, Did.BEGIN),
        (10, 0, Did.ENTER),
        (20, 0, Did.EXIT, 1),
        (120, 20, Did.COMPUTE),
        (220, 30, Did.PERSIST),
        (320, 40, Did.COLLECTIVE),
        (420, 50, Did.SLEEP),
        (520, 60, Did.SNAPSHOT),
    ]
    worker = [(0, 0, Did.BEGIN), (15, 0, Did.READY, 1)]
    got = seen(job(worker, trainer), 20, 520)
    assert got == {"compute": 80, "preempted": 40, "persist": 100, "peer": 90, "unknown": 90, "snapshot": 100}


def test_phases_and_first_batches_are_kept_apart():
    def handed(time, token, loader, phase):
        enter = Mark(time - 5, 0, loader, Did.ENTER, 0)
        return [enter, Mark(time, 0, token, Did.EXIT, phase)]

    rows = [
        Mark(0, 0, 0, Did.BEGIN, 0),
        Mark(1, 0, 3, Did.RANK, 0),
        *handed(10, 1, 0, Phase.TRAINING),
        *handed(20, 2, 0, Phase.TRAINING),
        Mark(25, 0, 0, Did.ENTER, 0),
        Mark(30, 0, 0, Did.END, 0),
        *handed(40, 3, 1, Phase.EVALUATION),
        *handed(50, 4, 1, Phase.EVALUATION),
        Mark(60, 0, 1, Did.END, 0),
        *handed(70, 5, 0, Phase.TRAINING),
        *handed(80, 6, 0, Phase.TRAINING),
    ]
    account = Account({TRAINER: rows})
    assert account.ranks() == {3: 10}
    assert [step.first for step in account.steps(10)] == [True, False, True, False, True, False]
    assert account.training(10) == [(10, 20), (20, 30), (70, 80)]


def test_a_wait_is_hidden_as_long_as_the_device_had_work():
    trainer = [
        (0, 0, Did.BEGIN),
        (10, 0, Did.ENTER),
        (20, 0, Did.EXIT, 1),
        (30, 0, Did.DEVICE, 60),
        (40, 0, Did.ENTER),
        (90, 0, Did.EXIT, 2),
        (95, 0, Did.DEVICE, 200),
        (100, 0, Did.ENTER),
        (150, 0, Did.EXIT, 3),
    ]
    account = job([(0, 0, Did.BEGIN)], trainer)
    assert account.hidden_ns(10, 20, 150) == 20 + 50
    assert account.hidden_ns(10, 50, 90) == 10
    assert account.hidden_ns(10, 0, 30) == 0


def test_what_a_loop_that_sleeps_takes_of_the_cpu_is_its_own():
    trainer = [Mark(0, 0, 0, Did.BEGIN, 0, 0), Mark(1, 0, 0, Did.RANK, 0, 0), Mark(101, 10, 0, Did.SLEEP, 0, 20)]
    causes = Account({(7, 7): trainer}).causes(7, 1, 101)
    assert {name: ns for name, ns in causes.items() if ns} == {"unknown": 70, "preempted": 10, "compute": 20}


def test_a_loop_that_reads_by_itself_waits_as_far_as_it_has_no_cpu():
    """Of 60 ns of reading 10 were spent on a CPU and 5 ready for one."""

    def mark(time, did, cpu, delay=0, value=0):
        return Mark(time, delay, value, did, 0, cpu)

    trainer = [
        mark(0, Did.BEGIN, 0),
        mark(1, Did.RANK, 0),
        mark(10, Did.COMPUTE, 9),
        mark(11, Did.STEP, 9, value=1),
        mark(71, Did.READ, 19, delay=5),
        mark(100, Did.COMPUTE, 48, delay=5),
        mark(100, Did.STEP, 48, delay=5, value=2),
    ]
    account = Account({(7, 7): trainer})
    assert account.training(7) == [(11, 100)]
    causes = account.causes(7, 11, 100)
    assert {name: ns for name, ns in causes.items() if ns} == {"fetch": 45, "compute": 39, "preempted": 5}
