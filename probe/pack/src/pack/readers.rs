//! Who may read all that a pack has, for whom it is shown to others.

use super::{Pack, Source};
use crate::error::{Doing, Error, Result};
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

/// Who may read a pack: the owner and the group of its snapshot, and what these and others may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readers {
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Of a mode the bits to read.
    pub mode: u32,
}

const READ: u32 = 4;
const SEARCH: u32 = 1;

impl Readers {
    /// Those of them who may do this with this file or folder too.
    fn who_may(self, right: u32, facts: &Metadata) -> Readers {
        let mode = facts.mode();
        // Of another owner or group they may be in its group or not.
        let any = mode & mode >> 3;
        let of_group = facts.gid() == self.gid;
        let all = [
            (6, if facts.uid() == self.uid { mode >> 6 } else { any }),
            (3, if of_group { mode >> 3 } else { any }),
            (0, if of_group { mode } else { any }),
        ];
        let kept = all.into_iter().filter(|(_, may)| may & right != 0);
        Readers { mode: self.mode & kept.fold(0, |kept, (shift, _)| kept | READ << shift), ..self }
    }

    pub(super) fn may_read(self, facts: &Metadata) -> bool {
        self.who_may(READ, facts) == self
    }
}

impl Pack {
    /// Who may look into its folder and read its snapshot and all of its chunks that are there, by what was opened and not by what
    /// has come in its place. From now on no chunk is read that not all of these may read.
    pub fn readers(&mut self) -> Result<Readers> {
        let (Source::Files(files), Some(snapshot)) = (&mut self.source, self.snapshot.described()) else {
            let dir = self.dir.display();
            return Err(Error::Refused(format!("{dir} is in no folder whose rights could be taken over")));
        };
        let folder = files.folder().try_clone().and_then(|folder| File::from(folder).metadata());
        let folder = folder.doing("read", &self.dir)?;
        let mut readers = Readers { uid: snapshot.uid(), gid: snapshot.gid(), mode: 0o444 };
        readers = readers.who_may(READ, snapshot).who_may(SEARCH, &folder);
        for number in 0..self.snapshot.chunks() {
            let name = self.snapshot.chunk(number)?.id.file_name();
            // What cannot be looked at now is looked at when it is read.
            if let Some(facts) = files.facts(&name) {
                readers = readers.who_may(READ, &facts);
            }
        }
        files.shown_to = Some(readers);
        Ok(readers)
    }

    /// When its snapshot was written.
    pub fn changed(&self) -> Option<SystemTime> {
        self.snapshot.described().and_then(|facts| facts.modified().ok())
    }
}
