"""The truth jobs: what each does to itself, and how far a measurement of it may be off."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    name: str
    # Of `program`, beside the storage's.
    flags: str
    ranks: int = 1
    # Points that kernel evidence alone may be off; None: measured and shown.
    kernel_bar: float | None = 3
    shim_bar: float = 1
    # Points that the shim alone may be off; None: not measured.
    alone_bar: float | None = None
    # What training is blocked in may stay unknown to the shim alone, but nothing may be blamed for it wrongly.
    alone_may_not_know: bool = False
    # The report has to find no data stall.
    no_stall: bool = False
    # The job has to have waited for data, or its figures show nothing.
    waits: bool = False
    # Training reads by itself: what that takes of the CPU is prep without syscall hooks.
    reads_on_cpu: bool = False
    # The report has to name this rank as the slow one.
    slow_rank: int | None = None
    # The waits of training are not known here: no steps are to be shown, and the report has to say these words.
    withheld: str | None = None
    # A device works asynchronously; this many points its hidden waits may be off.
    hidden_bar: float | None = None
    # Its device is a GPU, so that it can only be measured where there is one.
    gpu: bool = False
    # Run at reduced length by the tests, too.
    tested: bool = False
    # Busy processes, on the CPU that the workers have to use or on all.
    neighbours: int = 0
    # Points of training time by which the accounts of kernel and shim may differ on one cause.
    agreement_bar: float | None = None
    # What the report's first line has to begin with.
    finding: str | None = None
    # Read limits of the storage: MiB/s, requests/s.
    read_mb_s: float = 16
    read_iops: int = 0
    program: str = "job.py"
    # The report has to name a file whose path ends so as the one that was waited for longest.
    waits_for: str | None = None

    @property
    def is_loop(self) -> bool:
        """Trains without a loader: the kernel alone finds no steps, but what the main thread did."""
        return self.program == "loop.py"


CASES = [
    # To the shim alone what reading takes of the CPU is prep: 150 us a sample on a slow virtual machine.
    Case("fork-2", "--workers 2", alone_bar=5, tested=True),
    Case("workers-0", "--workers 0", tested=True, kernel_bar=None, reads_on_cpu=True),
    Case("workers-1", "--workers 1"),
    Case("workers-4", "--workers 4 --skew 3"),
    Case("prep-bound", "--workers 2 --prep-ms 5 --sample-bytes 8192"),
    Case("spawn", "--workers 2 --start spawn", tested=True),
    Case("forkserver", "--workers 2 --start forkserver"),
    Case("persistent", "--workers 2 --persistent --epoch-batches 60"),
    Case("prefetch-1", "--workers 2 --prefetch 1"),
    Case("prefetch-8", "--workers 2 --prefetch 8"),
    Case("pin", "--workers 2 --pin", tested=True),
    Case("pin-4", "--workers 4 --pin --skew 3"),
    Case("thread", "--workers 0 --thread", withheld="iterated by a thread", tested=True, kernel_bar=None),
    Case("mmap", "--workers 2 --source mmap", tested=True),
    Case("mmap-held", "--workers 2 --source mmap-held"),
    Case("mmap-pin", "--workers 2 --source mmap --pin"),
    Case("big-file", "--workers 2 --source big"),
    Case("direct", "--workers 2 --source direct", kernel_bar=None),
    Case("io-uring", "--workers 2 --source uring", kernel_bar=None),
    Case("small-files", "--workers 2 --source small --sample-bytes 8192", read_iops=1500),
    Case("network", "--workers 2 --source net", tested=True),
    Case("network-0", "--workers 0 --source net", kernel_bar=None),
    Case("checkpoint-loop", "--workers 2 --checkpoint loop"),
    # Checkpoints take so much of it that one who misses them all is far off.
    Case("checkpoint-often", "--workers 2 --checkpoint loop --checkpoint-every 4", tested=True),
    Case("checkpoint-fsync", "--workers 2 --checkpoint fsync"),
    Case("checkpoint-safetensors", "--workers 2 --checkpoint safetensors"),
    Case("checkpoint-thread", "--workers 2 --checkpoint thread"),
    Case("checkpoint-process", "--workers 2 --checkpoint process"),
    Case("checkpoint-dcp", "--workers 2 --checkpoint dcp", kernel_bar=None),
    Case("epochs", "--workers 2 --epoch-batches 50", kernel_bar=None),
    # Each epoch begins with a batch that is only looked at.
    Case("looks", "--workers 1 --epoch-batches 40 --look", kernel_bar=None, tested=True),
    # The workers of an iterator that is dropped after a batch are waited for, in the middle of training.
    Case("looks-between", "--workers 2 --prep-ms 2 --look-every 20", kernel_bar=None),
    # Half of each epoch is its tail, for which no index is put any more.
    Case("epoch-tails", "--workers 2 --epoch-batches 16 --prefetch 4 --source none --prep-ms 0.2 --compute-ms 50", tested=True),
    Case("evaluation", "--workers 2 --epoch-batches 60 --evaluate 15", tested=True, kernel_bar=None),
    # Nothing but the optimiser's steps tells it from training.
    Case("evaluation-gradients", "--workers 2 --epoch-batches 60 --evaluate 15 --with-gradients", kernel_bar=None, tested=True),
    Case("two-loaders", "--workers 1 --loaders 2", kernel_bar=None),
    Case(
        "ranks-2",
        "--workers 1 --source net --net-ms 0.5 --slow-rank 1",
        ranks=2,
        shim_bar=3,
        slow_rank=1,
        tested=True,
    ),
    Case(
        "ranks-4",
        "--workers 1 --source net --net-ms 2 --prep-ms 0.5 --compute-ms 4 --slow-rank 2 --slow-in fetch",
        ranks=4,
        shim_bar=3,
        slow_rank=2,
    ),
    Case("device", "--workers 2 --compute-ms 2 --device-ms 15 --prep-ms 0.5", hidden_bar=2, tested=True),
    Case("gpu", "--workers 2 --gpu --compute-ms 2 --device-ms 15 --prep-ms 0.5", hidden_bar=2, gpu=True),
    Case("gpu-pin", "--workers 2 --gpu --pin --compute-ms 2 --device-ms 15 --prep-ms 0.5", hidden_bar=2, gpu=True),
    # The device is done when a wait begins: none is hidden.
    Case("gpu-results", "--workers 2 --gpu --results --compute-ms 2 --device-ms 15 --prep-ms 0.5", hidden_bar=2, gpu=True),
    # It has more to do than the loader takes for a batch: the waits are hidden behind its work.
    Case("gpu-bound", "--workers 2 --gpu --compute-ms 1 --device-ms 40 --prep-ms 0.5", hidden_bar=2, gpu=True),
    Case(
        "loop-memmap",
        "--source memmap",
        program="loop.py",
        alone_bar=1,
        alone_may_not_know=True,
        waits_for="big.bin",
        tested=True,
    ),
    # As many steps as the others in the same time.
    Case("loop-accumulate", "--source memmap --accumulate 4", program="loop.py", waits_for="big.bin", read_mb_s=64),
    Case("loop-reader", "--source reader", program="loop.py", read_mb_s=4, waits=True),
    # The child reads more slowly than the loop computes.
    Case("loop-pipe", "--source pipe", program="loop.py", read_mb_s=4, waits=True, tested=True),
    # Threads of the job's own read: the loop sleeps in a lock for them. Where several do, what one computes while the one that
    # is waited for reads counts as prep.
    Case("loop-threads", "--source threads --prep-ms 0.5", program="loop.py", read_mb_s=2, waits=True, tested=True),
    # From outside no step shows, and what the threads compute is a part of the wait for them.
    Case("loop-threads-prep", "--source threads --prep-ms 5", program="loop.py", read_mb_s=2, kernel_bar=None, waits=True),
    Case("loop-threads-3", "--source threads --readers 3", program="loop.py", read_mb_s=2, shim_bar=3, waits=True),
    Case("loop-batcher", "--source batcher --readers 2", program="loop.py", read_mb_s=4, shim_bar=3, waits=True),
    Case("loop-by-script", "--source memmap --by-script", program="loop.py"),
    Case("loop-save-thread", "--source memmap --save thread --save-every 2", program="loop.py"),
    Case("loop-save-fork", "--source memmap --save fork --save-every 2", program="loop.py", tested=True),
    # Steps of some 6 ms: what a thread does between two slices of its neighbours decides, and the accounts of kernel
    # and shim differ by more than their bar (README).
    Case(
        "decode-busy",
        "--workers 2 --source none --prep-ms 0.6 --prep-silent --compute-ms 0.5",
        neighbours=2,
        agreement_bar=3,
        shim_bar=3,
    ),
    Case(
        "decode-busy-long",
        "--workers 2 --source none --prep-ms 6 --prep-silent --compute-ms 10",
        neighbours=2,
        agreement_bar=3,
        shim_bar=3,
        tested=True,
    ),
    Case(
        "crowded-workers",
        "--workers 2 --source none --prep-ms 0.5 --compute-ms 10 --worker-cpu 0 --trainer-cpu 1",
        neighbours=4,
        finding="short of CPU",
        shim_bar=3,
        tested=True,
    ),
    # By attach no step is seen: batches are ready whenever the trainer gets the core to take one.
    Case(
        "crowded-pin",
        "--workers 2 --pin --source none --prep-ms 0.5 --compute-ms 100 --worker-cpu 0 --trainer-cpu 0",
        neighbours=2,
        finding="short of CPU",
    ),
    # The shim alone sees that the loop sleeps while other threads use a CPU, and not that these lack one.
    Case(
        "helper-busy",
        "--workers 1 --source none --prep-ms 0.2 --compute-ms 10 --helper-ms 20",
        neighbours=2,
        finding="short of CPU",
        shim_bar=3,
        tested=True,
    ),
    Case("no-stall", "--workers 1 --source none --prep-ms 0.2 --compute-ms 200", no_stall=True, tested=True),
    Case("own-lock", "--workers 1 --source none --prep-ms 0.2 --lock-ms 200", no_stall=True),
    Case("own-request", "--workers 1 --source none --prep-ms 0.2 --request-ms 200", no_stall=True),
    # The other thread has nothing to do with what training sleeps for: its CPU time is no work of training's.
    Case(
        "own-sleep",
        "--workers 1 --source none --prep-ms 0.2 --sleep-ms 20 --busy-thread",
        agreement_bar=3,
        alone_bar=1,
    ),
]


def case(name: str) -> Case:
    """Raises KeyError."""
    return {one.name: one for one in CASES}[name]
