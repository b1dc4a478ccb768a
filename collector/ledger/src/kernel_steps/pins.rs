use super::Message;
use std::collections::HashSet;

/// A trainer's pin-memory threads, which read the workers' messages for its main thread.
#[derive(Debug, Default)]
pub(super) struct Pins {
    threads: HashSet<u32>,
    /// The message that was read last, or is being read.
    message: Option<Message>,
    /// A thread slept until it came, and has not read its header.
    unread: bool,
}

impl Pins {
    pub(super) fn contains(&self, tid: u32) -> bool {
        self.threads.contains(&tid)
    }

    /// A thread slept until a worker wrote `message`.
    pub(super) fn slept_for(&mut self, tid: u32, message: Message) {
        self.threads.insert(tid);
        (self.message, self.unread) = (Some(message), true);
    }

    /// With syscall hooks: a thread reads a message's header, for which it may not have had to sleep. Whose it is shows
    /// by who hands over the tensors.
    pub(super) fn read(&mut self, tid: u32, time_ns: u64) {
        self.threads.insert(tid);
        if !std::mem::take(&mut self.unread) {
            self.message = Some(Message::there(time_ns));
        }
    }

    /// A thread slept until `worker` handed over a tensor of the message's.
    pub(super) fn received(&mut self, tid: u32, worker: u32, start_ns: u64) {
        self.threads.insert(tid);
        self.unread = false;
        let read = self.message.filter(|message| message.worker.is_none_or(|of| of == worker));
        self.message = Some(Message { worker: Some(worker), ..read.unwrap_or(Message::there(start_ns)) });
    }

    /// What the main thread was woken for at `at_ns`.
    pub(super) fn passed_on(&self, at_ns: u64) -> Option<Message> {
        self.message.map(|message| Message { at_ns, ..message })
    }
}
