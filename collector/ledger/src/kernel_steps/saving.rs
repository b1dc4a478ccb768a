use stallscope_abi::kernel::{Save, save};
use stallscope_abi::lane::{Caller, Checkpoint, Saver, Stage};

/// What a trainer's main thread wrote since the last hand-over.
#[derive(Debug, Default)]
pub(super) struct Saving {
    /// When a file was created.
    begun_ns: Option<u64>,
    /// The size of the largest one written.
    bytes: u64,
}

impl Saving {
    pub(super) fn mark(&mut self, save: &Save) -> Option<Checkpoint> {
        if save.what == save::BEGUN {
            self.begun_ns.get_or_insert(save.header.time_ns);
            return None;
        }
        // A file that was there before says nothing of one that is created later.
        let begun_ns = self.begun_ns?;
        self.bytes = self.bytes.max(save.bytes);
        (self.bytes > 0).then_some(Checkpoint {
            saver: Saver::Other,
            began_ns: begun_ns,
            stage: Stage::Persist,
            bytes: self.bytes,
            caller: Caller::MainThread,
        })
    }
}
