use stallscope_abi::kernel::{Save, save};
use stallscope_abi::lane::{Kind, Record, Saver};

/// What a trainer's main thread wrote since the last hand-over.
#[derive(Debug, Default)]
pub(super) struct Saving {
    /// When a file was created.
    begun_ns: Option<u64>,
    /// The size of the largest one written.
    bytes: u64,
}

impl Saving {
    pub(super) fn mark(&mut self, save: &Save) -> Option<Record> {
        let time_ns = save.header.time_ns;
        if save.what == save::BEGUN {
            self.begun_ns.get_or_insert(time_ns);
            return None;
        }
        // A file that was there before says nothing of one that is created later.
        let begun_ns = self.begun_ns?;
        self.bytes = self.bytes.max(save.bytes);
        (self.bytes > 0).then(|| Record {
            time_ns,
            kind: Kind::Checkpoint as u16,
            id: Saver::Other as u32,
            a: begun_ns,
            b: 1,
            c: self.bytes,
            ..Record::default()
        })
    }
}
