"""The ways in which a truth job saves its state."""

import importlib
import os
import tempfile
import threading
from pathlib import Path

import torch
from log import Did, log
from work import Trainer


def save_beside(state: dict, path: Path):
    """A save that the loop does not wait for."""
    log().mark(Did.IDLE)
    torch.save(state, path)
    log().mark(Did.SAVED, path.stat().st_size)


class Checkpoints:
    """Saves `trainer`'s state as `how` says, into a temporary folder of its own."""

    def __init__(self, how: str, trainer: Trainer):
        self.how, self.trainer = how, trainer
        self.temporary = tempfile.TemporaryDirectory(prefix="stallscope-truth-")
        self.folder = Path(self.temporary.name)
        self.background = None
        self.writer = self.inbox = None
        if how == "dcp":
            # Imported by the first save it would be a part of that.
            importlib.import_module("torch.distributed.checkpoint")
        if how == "process":
            context = torch.multiprocessing.get_context("spawn")
            self.inbox = context.Queue()
            self.writer = context.Process(target=write_all, args=(self.inbox, self.folder / "process.pt"))
            self.writer.start()

    def save(self):
        """Called from the loop; the pieces it logs are the loop's."""
        log().mark(Did.COMPUTE)
        getattr(self, f"save_{self.how}")()

    def save_loop(self):
        torch.save(self.trainer.state(), self.folder / "loop.pt")
        log().mark(Did.PERSIST)

    def save_fsync(self):
        torch.save(self.trainer.state(), self.folder / "next.pt")
        log().mark(Did.PERSIST)
        with open(self.folder / "next.pt", "rb") as file:
            os.fsync(file.fileno())
        os.rename(self.folder / "next.pt", self.folder / "fsync.pt")
        log().mark(Did.PERSIST)

    def save_safetensors(self):
        from safetensors.torch import save_file

        save_file(self.trainer.model.state_dict(), self.folder / "model.safetensors")
        log().mark(Did.PERSIST)

    def save_thread(self):
        if self.background and self.background.is_alive():
            return
        state = {name: tensor.clone() for name, tensor in self.trainer.model.state_dict().items()}
        self.background = threading.Thread(target=save_beside, args=(state, self.folder / "thread.pt"))
        self.background.start()
        log().mark(Did.COMPUTE)

    def save_process(self):
        if self.inbox.empty():
            self.inbox.put({name: tensor.clone() for name, tensor in self.trainer.model.state_dict().items()})
        log().mark(Did.COMPUTE)

    def save_dcp(self):
        from torch.distributed import checkpoint

        if self.background and not self.background.done():
            return
        state = {"model": self.trainer.model.state_dict()}
        self.background = checkpoint.async_save(state, checkpoint_id=str(self.folder / "dcp"))
        log().mark(Did.SNAPSHOT)

    def close(self):
        """Waits for what is still being written."""
        if self.how == "thread" and self.background:
            self.background.join()
        if self.how == "dcp" and self.background:
            self.background.result()
        if self.writer:
            self.inbox.put(None)
            self.writer.join()
        self.temporary.cleanup()


def write_all(inbox, path: Path):
    while (state := inbox.get()) is not None:
        save_beside(state, path)
